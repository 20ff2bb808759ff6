#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""In every overlay those who must reach one another can, and others cannot (reach.py). Needs kubectl and
PyYAML, and is skipped without."""
import copy
import tempfile
import unittest

import manifests
from reach import problems


def deployment(items, name):
    return manifests.named(items, "Deployment", name)["spec"]["template"]


def set_variable(template, name, value):
    container = next(c for c in template["spec"]["containers"] if manifests.is_ours(c))
    next(item for item in container["env"] if item["name"] == name)["value"] = value


def drop_rules(items, policy, way, port):
    spec = manifests.named(items, "NetworkPolicy", policy)["spec"]
    kept = [rule for rule in spec[way] if all(each["port"] != port for each in rule["ports"])]
    assert len(kept) < len(spec[way])
    spec[way] = kept


def rename(items, kind, name):
    next(item for item in items if item["kind"] == kind)["metadata"]["name"] = name


# Overlay, a mistake in it, and a part of what is said of it.
MISTAKES = [
    ("llm-d", lambda items: drop_rules(items, "sluice-decode", "ingress", "pool"),
     "sluice-decode:8000 does not admit"),
    ("llm-d", lambda items: drop_rules(items, "sluice-prefill", "ingress", 8200),
     "KV: sluice-prefill:8200 does not admit"),
    ("llm-d", lambda items: drop_rules(items, "sluice-decode", "egress", 8200),
     "sluice-decode may not reach sluice-prefill:8200"),
    ("llm-d", lambda items: set_variable(deployment(items, "sluice-decode"), "SLUICE_PORT", "8002"),
     "the sidecar asks port 8001"),
    ("llm-d", lambda items: manifests.named(items, "InferencePool", "sluice")["spec"].update(
        targetPorts=[{"number": 8080}]), "does not listen on 8080"),
    ("llm-d", lambda items: rename(items, "InferencePool", "pool"), "no pool sluice"),
    ("llm-d", lambda items: deployment(items, "sluice-decode")["metadata"]["annotations"].update(
        {"prometheus.io/port": "8000"}), "Prometheus is sent to 8000"),
    ("autoscaled", lambda items: manifests.named(items, "Service", "sluice-worker")["spec"][
        "ports"][0].update(port=8101), "no Service sluice-worker has a port 8100"),
    ("autoscaled", lambda items: set_variable(
        deployment(items, "sluice-worker"), "SLUICE_WORKER_LISTEN", "0.0.0.0:8101"),
     "does not listen on worker"),
    ("autoscaled", lambda items: drop_rules(items, "sluice-router", "egress", 8100),
     "sluice-router may not reach sluice-worker:8100"),
    ("autoscaled", lambda items: drop_rules(items, "sluice-router", "egress", 443),
     "may not reach the API server"),
    ("autoscaled", lambda items: manifests.named(items, "NetworkPolicy", "sluice-worker")["spec"][
        "ingress"][0].update({"from": [{"podSelector": {}}]}), "admits a client of this namespace"),
    ("disaggregated", lambda items: drop_rules(items, "sluice-prefill", "ingress", 8200),
     "sluice-prefill:8200 does not admit sluice-decode"),
    ("watched", lambda items: manifests.named(items, "PodMonitor", "sluice")["spec"][
        "podMetricsEndpoints"][0].update(port="metrics"), "does not listen on metrics"),
    ("cpu", lambda items: drop_rules(items, "sluice", "egress", 443), "may not reach port 443"),
    ("cpu", lambda items: deployment(items, "sluice")["metadata"]["annotations"].update(
        {"prometheus.io/port": "9000"}), "does not listen on 9000"),
    ("cpu", lambda items: deployment(items, "sluice")["spec"]["containers"][0]["readinessProbe"][
        "httpGet"].update(port=8080), "readinessProbe asks for 8080"),
    ("cpu", lambda items: manifests.named(items, "NetworkPolicy", "sluice")["spec"]["ingress"].append(
        {"from": [{"namespaceSelector": {}}], "ports": [{"port": "http"}]}),
     "admits a pod of another namespace"),
    ("multi-node", lambda items: drop_rules(items, "sluice", "ingress", "worker"),
     "does not admit sluice leader"),
    ("ranks", lambda items: drop_rules(items, "sluice-worker", "ingress", "ranks"),
     "does not admit sluice-ranks worker"),
    ("ranks", lambda items: drop_rules(items, "sluice-rank", "egress", 29501),
     "sluice-ranks worker may not reach sluice-ranks leader:29501"),
    ("ranks", lambda items: manifests.named(items, "NetworkPolicy", "sluice-worker")["spec"]["ingress"][
        1].update({"from": [{"podSelector": {}}]}), "admits a client of this namespace"),
]


class Overlays(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.overlays = {name: manifests.overlay(name) for name in manifests.OVERLAYS}
        with tempfile.TemporaryDirectory() as folder:
            cls.overlays["watched"] = manifests.over(folder, "llm-d", components=["pod-monitor"])

    def test_those_who_must_reach_one_another_can(self):
        for name, items in self.overlays.items():
            with self.subTest(overlay=name):
                self.assertEqual(problems(items), [])

    def test_mistakes_are_found(self):
        for name, spoil, expected in MISTAKES:
            items = copy.deepcopy(self.overlays[name])
            spoil(items)
            with self.subTest(overlay=name, expected=expected):
                self.assertIn(expected, "\n".join(problems(items)))


if __name__ == "__main__":
    unittest.main()
