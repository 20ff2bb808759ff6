#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes prometheus_rule.yaml, which Prometheus' operator reads, from alerts.yaml: python3 make_rule.py"""
import pathlib

FOLDER = pathlib.Path(__file__).resolve().parent
HEAD = """\
# SPDX-License-Identifier: Apache-2.0
# The groups of alerts.yaml, by make_rule.py.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: sluice
  labels: {app.kubernetes.io/name: sluice}
spec:
"""


def rule():
    text = (FOLDER / "alerts.yaml").read_text()
    lines = text[text.index("groups:\n"):].splitlines(keepends=True)
    return HEAD + "".join("  " + line for line in lines)


if __name__ == "__main__":
    (FOLDER / "prometheus_rule.yaml").write_text(rule())
