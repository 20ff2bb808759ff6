#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The dashboard asks only for metrics and labels that the server has, and is what its script makes."""
import importlib.util
import json
import pathlib
import re
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent.parent
GRAFANA = REPOSITORY / "deploy/compose/grafana"


def load_script():
    spec = importlib.util.spec_from_file_location("make_dashboard", GRAFANA / "make_dashboard.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Dashboard(unittest.TestCase):
    def setUp(self):
        self.dashboard = json.loads((GRAFANA / "sluice.json").read_text())
        self.source = (REPOSITORY / "server/metrics.cpp").read_text()

    def expressions(self):
        return [target["expr"] for panel in self.dashboard["panels"]
                for target in panel["targets"]]

    def test_is_what_the_script_makes(self):
        self.assertEqual(self.dashboard, load_script().dashboard())

    def test_every_metric_is_one_the_server_has(self):
        known = set(re.findall(r'out\.\w+\(\s*"([\w:]+)"', self.source))
        histograms = set(re.findall(r'out\.histogram\(\s*"([\w:]+)"', self.source))
        asked = {name for text in self.expressions()
                 for name in re.findall(r"\b((?:vllm:|sluice_)\w+)", text)}
        self.assertGreater(len(asked), 10)
        for name in asked:
            base = name.removesuffix("_bucket")
            self.assertIn(base, known)
            self.assertEqual(base in histograms, name.endswith("_bucket"), name)

    def test_every_label_is_one_the_server_writes(self):
        labels = {name for text in self.expressions()
                  for name in re.findall(r"by \((\w+)\)", text)} - {"le"}
        for label in labels:
            self.assertIn(f'"{label}"', self.source)


if __name__ == "__main__":
    unittest.main()
