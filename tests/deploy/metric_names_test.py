#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every metric and every label that dashboards and alerts ask for is in what real servers and a
router say of themselves, without a Prometheus: prometheus_test.py has one.

usage: metric_names_test.py BINARY MODEL
"""
import sys
import tempfile

import monitoring


def check(known):
    expressions = monitoring.queries() + monitoring.alerts()
    assert len(monitoring.alerts()) > 10
    for where, expression in expressions:
        missing = monitoring.unknown(expression, known)
        assert not missing, f"{where}: nobody has {sorted(missing)}"
    # A mistake is found.
    first = next(text for _, text in expressions if "vllm:num_requests_running" in text)
    for wrong in (first.replace("running", "runing"), first.replace("instance", "instanze")):
        assert monitoring.unknown(wrong, known), wrong


def main():
    binary, model = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        fleet = monitoring.Fleet(binary, model, folder)
        try:
            fleet.request()
            check(monitoring.samples("\n".join(fleet.scrape())))
        finally:
            fleet.close()
    print("ok")


if __name__ == "__main__":
    main()
