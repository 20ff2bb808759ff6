#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Dashboards and the operator's rule are what their scripts make, and are where they are loaded.
Whether the metrics are there that they ask for: metric_names_test.py."""
import re
import unittest

import monitoring


class Dashboards(unittest.TestCase):
    def test_are_what_the_script_makes(self):
        folder = monitoring.COMPONENTS / "dashboards"
        made = monitoring.script(folder / "make_dashboards.py").files()
        self.assertEqual(sorted(made), sorted(path.name for path in folder.glob("*.json")))
        for name, text in made.items():
            self.assertEqual((folder / name).read_text(), text, name)
        listed = (folder / "kustomization.yaml").read_text()
        self.assertIn(f"files: [{', '.join(sorted(made))}]", listed)

    def test_every_query_can_be_read(self):
        queries = monitoring.queries()
        self.assertGreater(len(queries), 80)
        for where, expression in queries:
            self.assertTrue(monitoring.asked(expression)[0], where)

    def test_each_can_be_read_for_one_source_namespace_job_model_and_instance(self):
        for name, dashboard in monitoring.dashboards().items():
            variables = {each["name"]: each for each in dashboard["templating"]["list"]}
            self.assertEqual(list(variables), ["datasource", "namespace", "job", "model", "instance"])
            self.assertEqual(variables.pop("datasource")["type"], "datasource")
            sources = [each["datasource"]["uid"] for each in [*variables.values(), *dashboard["panels"]]]
            self.assertEqual(set(sources), {"${datasource}"}, name)
            for panel in dashboard["panels"]:
                for target in panel["targets"]:
                    if "DCGM" in target["expr"]:
                        continue
                    for chosen in ('namespace=~"$namespace"', 'job=~"$job"', 'instance=~"$instance"'):
                        self.assertEqual(target["expr"].count(chosen), target["expr"].count("{"),
                                         panel["title"])

    def test_curves_of_a_panel_have_names_of_their_own(self):
        for name, dashboard in monitoring.dashboards().items():
            for panel in dashboard["panels"]:
                with self.subTest(dashboard=name, panel=panel["title"]):
                    legends = [target["legendFormat"] for target in panel["targets"]]
                    self.assertEqual(len(set(legends)), len(legends), legends)
                    self.assertTrue(all(legends))
                    for target in panel["targets"]:
                        by = re.search(r"\bby \(([^)]*)\)", target["expr"])
                        for label in set(by[1].split(", ")) - {"le"} if by else ():
                            self.assertIn("{{" + label + "}}", target["legendFormat"])


class Alerts(unittest.TestCase):
    def test_the_operators_rule_is_what_the_script_makes(self):
        folder = monitoring.COMPONENTS / "alerts"
        self.assertEqual((folder / "prometheus_rule.yaml").read_text(),
                         monitoring.script(folder / "make_rule.py").rule())

    def test_prometheus_loads_them(self):
        compose = (monitoring.REPOSITORY / "deploy/compose.yaml").read_text()
        settings = (monitoring.REPOSITORY / "deploy/compose/prometheus.yaml").read_text()
        self.assertIn("./kubernetes/components/alerts/alerts.yaml:/etc/prometheus/alerts.yaml:ro",
                      compose)
        self.assertIn("./kubernetes/components/dashboards:/etc/grafana/dashboards:ro", compose)
        self.assertIn("rule_files: [/etc/prometheus/alerts.yaml]", settings)


class Expressions(unittest.TestCase):
    def test_are_taken_apart(self):
        names, labels = monitoring.asked(
            'sum by (job, le) (rate(a:b_total{x=~"y{z",w!="sum"}[5m])) / on (job) c_d offset 5m > 0.5'
            ' and min_over_time(e[1m]) unless up')
        self.assertEqual(names, {"a:b_total", "c_d", "e", "up"})
        self.assertEqual(labels, {"job", "le", "x", "w"})

    def test_what_nobody_has_is_found(self):
        known = monitoring.samples('# HELP a\na{x="1",y="b"} 2\nb 3\n')
        for expression, expected in (('sum by (x) (rate(a{job="j"}[1m])) / b', set()),
                                     ("a + c", {"c"}), ("sum by (z) (a)", {"z"}),
                                     ('b{x="1"}', {"x"}), ("DCGM_FI_DEV_GPU_UTIL", set())):
            self.assertEqual(monitoring.unknown(expression, known), expected, expression)


if __name__ == "__main__":
    unittest.main()
