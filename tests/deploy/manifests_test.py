#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What deploy/kubernetes renders to is well-formed, restricted, pinned and consistent.

Needs kubectl and PyYAML. Each check that needs a package more is skipped without it:
kubernetes-validate (the cluster's own schemas), jsonschema_rs (others' resources).
kubernetes_requirements.txt has them all.
"""
import copy
import json
import pathlib
import re
import subprocess
import tempfile
import unittest

import manifests
import yaml
from discovery import Discovery

SCHEMAS = json.loads((pathlib.Path(__file__).parent / "resource_schemas.json").read_text())
CUT_OFF_S = 15  # after the drain's time, for what is cut off then
COMMIT = re.compile(r"[0-9a-f]{40}")


class Overlays(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.overlays = {name: manifests.overlay(name) for name in manifests.OVERLAYS}
        with tempfile.TemporaryDirectory() as folder:
            cls.overlays["autoscaled, watched"] = manifests.over(
                folder, "autoscaled", components=["pod-monitor", "alerts"])

    def each_template(self):
        for name, items in self.overlays.items():
            for owner, template in manifests.pod_templates(items):
                with self.subTest(overlay=name, owner=owner):
                    yield items, template

    def test_pods_keep_to_the_restricted_standard(self):
        for _, template in self.each_template():
            pod = template["spec"]["securityContext"]
            self.assertTrue(pod["runAsNonRoot"])
            self.assertGreater(pod["runAsUser"], 0)
            self.assertEqual(pod["seccompProfile"], {"type": "RuntimeDefault"})
            for volume in template["spec"]["volumes"]:
                self.assertEqual(set(volume) & {"hostPath", "nfs"}, set())
            for container in manifests.containers(template):
                context = container["securityContext"]
                self.assertFalse(context["allowPrivilegeEscalation"])
                self.assertTrue(context["readOnlyRootFilesystem"])
                self.assertEqual(context["capabilities"], {"drop": ["ALL"]})
                self.assertIn("memory", container["resources"]["limits"])

    def test_only_who_asks_the_api_server_has_a_token(self):
        with_token = set()
        for items, template in self.each_template():
            spec = template["spec"]
            account = manifests.named(items, "ServiceAccount", spec["serviceAccountName"])
            self.assertFalse(account["automountServiceAccountToken"])
            if spec["automountServiceAccountToken"]:
                with_token.add(spec["serviceAccountName"])
                manifests.named(items, "RoleBinding", spec["serviceAccountName"])
        self.assertEqual(with_token, {"sluice-router", "sluice-picker"})

    def test_the_grace_period_is_pause_drain_and_what_is_cut_off(self):
        for _, template in self.each_template():
            for container in template["spec"]["containers"]:
                values = {item["name"]: item.get("value") for item in container.get("env", [])}
                if not manifests.is_ours(container):
                    continue
                pause = (container.get("lifecycle") or {}).get("preStop", {}).get("sleep", {})
                self.assertEqual(template["spec"]["terminationGracePeriodSeconds"],
                                 pause.get("seconds", 0) + int(values["SLUICE_DRAIN_TIMEOUT_S"])
                                 + CUT_OFF_S)

    def test_servers_of_clients_pause_before_they_end(self):
        for _, template in self.each_template():
            for container in template["spec"]["containers"]:
                is_worker = any(item["name"] == "SLUICE_WORKER_LISTEN"
                                for item in container.get("env", []))
                is_rank = template["metadata"]["labels"].get("app.kubernetes.io/component") == "rank"
                if manifests.is_ours(container) and not is_worker and not is_rank:
                    self.assertIn("preStop", container["lifecycle"])

    def test_images_have_versions_and_these_are_in_one_place(self):
        for _, template in self.each_template():
            for container in manifests.containers(template):
                self.assertRegex(container["image"], r":v?\d+\.\d+\.\d+|@sha256:[0-9a-f]{64}$")
        for path in manifests.KUBERNETES.rglob("*.yaml"):
            if path.parent.name != "versions":
                self.assertNotRegex(path.read_text(), r"(?m)^\s*(- )?image: [^{\s]\S*:", path)

    def test_models_are_pinned_to_a_commit(self):
        for name, items in self.overlays.items():
            for owner, template in manifests.pod_templates(items):
                for container in manifests.containers(template):
                    if not manifests.is_ours(container) or container["args"] == ["router"]:
                        continue
                    with self.subTest(overlay=name, owner=owner, container=container["name"]):
                        revision = manifests.settings(items, container)["SLUICE_REVISION"]
                        self.assertTrue(COMMIT.fullmatch(revision), revision)
                        self.assertNotIn("--revision", " ".join(container["args"]))

    def test_the_heads_of_a_shared_model_divide_among_the_pods(self):
        items = self.overlays["ranks"]
        group = manifests.named(items, "LeaderWorkerSet", "sluice-ranks")["spec"]["leaderWorkerTemplate"]
        for role in ("leaderTemplate", "workerTemplate"):
            settings = manifests.settings(items, group[role]["spec"]["containers"][0])
            self.assertEqual(int(settings["SLUICE_TENSOR_PARALLEL_SIZE"]), group["size"])
            for heads in manifests.HEADS[settings["SLUICE_MODEL"]]:
                self.assertEqual(heads % group["size"], 0, settings)

    def test_the_operators_definitions_are_needed_by_who_asks_for_them(self):
        for name in manifests.OVERLAYS:
            with self.subTest(overlay=name):
                versions = {item["apiVersion"].split("/")[0] for item in self.overlays[name]}
                self.assertNotIn("monitoring.coreos.com", versions)

    def test_gpus_are_those_that_the_kernels_are_for(self):
        found = 0
        for _, template in self.each_template():
            for container in template["spec"]["containers"]:
                if "nvidia.com/gpu" in container["resources"]["limits"]:
                    found += 1
                    self.assertEqual(template["spec"]["nodeSelector"]["nvidia.com/gpu.family"], "hopper")
        self.assertEqual(found, 1)

    def test_the_scheduler_knows_what_a_download_takes(self):
        for _, template in self.each_template():
            models = [v for v in template["spec"]["volumes"] if v["name"] == "models" and "emptyDir" in v]
            for volume in models:
                fetch = next(c for c in template["spec"]["initContainers"] if c["name"] == "model")
                self.assertEqual(fetch["resources"]["requests"]["ephemeral-storage"],
                                 volume["emptyDir"]["sizeLimit"])

    def test_what_selects_pods_finds_some(self):
        for name, items in self.overlays.items():
            labels = [template["metadata"]["labels"]
                      for _, template in manifests.pod_templates(items)]
            for item in items:
                spec = item.get("spec", {})
                chosen = {"Service": lambda: spec["selector"],
                          "NetworkPolicy": lambda: spec["podSelector"]["matchLabels"],
                          "PodDisruptionBudget": lambda: spec["selector"]["matchLabels"],
                          "PodMonitor": lambda: spec["selector"]["matchLabels"],
                          "InferencePool": lambda: spec["selector"]["matchLabels"]}.get(item["kind"])
                if chosen is not None:
                    with self.subTest(overlay=name, item=item["metadata"]["name"]):
                        self.assertTrue(any(manifests.selected(chosen(), each) for each in labels))
                if "scaleTargetRef" in spec:
                    target = manifests.named(items, "Deployment", spec["scaleTargetRef"]["name"])
                    self.assertNotIn("replicas", target["spec"])

    def test_what_scales_pods_changes_none(self):
        autoscaled, keda = (list(manifests.pod_templates(self.overlays[name]))
                            for name in ("autoscaled", "autoscaled-keda"))
        self.assertEqual(autoscaled, keda)

    def test_every_pod_has_a_budget_a_policy_and_is_scraped(self):
        for items, template in self.each_template():
            labels = template["metadata"]["labels"]
            self.assertEqual(template["metadata"]["annotations"]["prometheus.io/scrape"], "true")
            if not any(map(manifests.is_ours, template["spec"]["containers"])):
                continue
            for kind, selector in (("NetworkPolicy", "podSelector"), ("PodDisruptionBudget", "selector")):
                self.assertTrue(any(
                    item["kind"] == kind
                    and manifests.selected(item["spec"][selector]["matchLabels"], labels)
                    for item in items), kind)

    def test_components_change_servers_and_nothing_else(self):
        for name in ("cpu", "disaggregated"):
            before = manifests.by_name(self.overlays[name])
            servers = {f"Deployment {owner}": template["spec"]["containers"]
                       for owner, template in manifests.pod_templates(self.overlays[name])
                       if owner != "sluice-router"}
            for component in ("model-claim", "model-image"):
                with self.subTest(overlay=name, component=component), \
                        tempfile.TemporaryDirectory() as folder:
                    after = manifests.by_name(manifests.over(folder, name, components=[component]))
                    changed = {item for item in before if after[item] != before[item]}
                    self.assertEqual({item for item in changed if "Deployment" in item}, set(servers))
                    for item in servers:
                        spec = after[item]["spec"]["template"]["spec"]
                        models = next(v for v in spec["volumes"] if v["name"] == "models")
                        self.assertNotIn("emptyDir", models)
                        self.assertEqual(bool(spec.get("initContainers")), component == "model-claim")
                        self.assertEqual(spec["containers"], servers[item])
                        for each in spec.get("initContainers", []):
                            self.assertNotIn("ephemeral-storage", each["resources"]["requests"])
                        egress = after[item.replace("Deployment", "NetworkPolicy")]["spec"]["egress"]
                        ports = {port["port"] for rule in egress for port in rule["ports"]}
                        self.assertEqual(443 in ports, component == "model-claim")

    def test_the_clusters_schemas_take_them(self):
        validate = manifests.package("kubernetes_validate").validate
        for name, items in self.overlays.items():
            for item in items:
                if f"{item['apiVersion']} {item['kind']}" in SCHEMAS:
                    continue
                with self.subTest(overlay=name, item=item["metadata"]["name"], kind=item["kind"]):
                    validate(item, "1.37", strict=True)
            for owner, template in manifests.pod_templates(items):
                metadata = {"name": "pod"} | template["metadata"]
                with self.subTest(overlay=name, owner=owner):
                    validate({"apiVersion": "v1", "kind": "Pod", "metadata": metadata,
                              "spec": template["spec"]}, "1.37", strict=True)

    def test_the_schemas_of_others_take_theirs(self):
        schemas = manifests.package("jsonschema_rs")
        found = set()
        for name, items in self.overlays.items():
            for item in items:
                kind = f"{item['apiVersion']} {item['kind']}"
                if kind in SCHEMAS:
                    found.add(kind)
                    with self.subTest(overlay=name, kind=kind):
                        schemas.validate(SCHEMAS[kind]["spec"], item["spec"])
        self.assertEqual(found, set(SCHEMAS))

    def test_the_schemas_of_others_find_mistakes(self):
        schemas = manifests.package("jsonschema_rs")
        mistakes = {
            "HTTPRoute": lambda spec: spec["rules"][0]["backendRefs"][0].update(ports=80),
            "InferencePool": lambda spec: spec.update(targetPort=spec.pop("targetPorts")),
            "LeaderWorkerSet": lambda spec: spec["leaderWorkerTemplate"].update(sizes=2),
            "PodMonitor": lambda spec: spec["podMetricsEndpoints"][0].update(interval="often"),
            "PrometheusRule": lambda spec: spec["groups"][0]["rules"][0].update(exprs="up"),
            "ScaledObject": lambda spec: spec["triggers"][0]["metadata"].update(threshold=5),
        }
        self.assertEqual(set(mistakes), {name.split()[1] for name in SCHEMAS})
        for kind, spoil in mistakes.items():
            item = copy.deepcopy(next(item for items in self.overlays.values() for item in items
                                      if item["kind"] == kind))
            spoil(item["spec"])
            with self.subTest(kind=kind), self.assertRaises(schemas.ValidationError):
                schemas.validate(SCHEMAS[f"{item['apiVersion']} {kind}"]["spec"], item["spec"])

    def test_keda_is_told_what_its_scaler_of_prometheus_needs(self):
        scaled = manifests.named(self.overlays["autoscaled-keda"], "ScaledObject", "sluice-worker")
        for trigger in scaled["spec"]["triggers"]:
            self.assertEqual(trigger["type"], "prometheus")
            self.assertLessEqual({"serverAddress", "query", "threshold"}, set(trigger["metadata"]))

    def test_kubectl_would_create_them(self):
        """Offline it does nothing: even without validation it asks the cluster what there is."""
        cluster = Discovery({(item["apiVersion"], item["kind"])
                             for items in self.overlays.values() for item in items})
        self.addCleanup(cluster.close)
        # kubectl makes its home where there is none, and keeps there what the cluster answered.
        home = tempfile.TemporaryDirectory()
        self.addCleanup(home.cleanup)
        for name, items in self.overlays.items():
            done = subprocess.run(
                [manifests.kubectl(), "create", "--dry-run=client", "--validate=false", "-o", "name",
                 "--server", cluster.url, "-f", "-"], input=yaml.safe_dump_all(items),
                capture_output=True, text=True, env={"HOME": home.name})
            with self.subTest(overlay=name):
                self.assertEqual(done.returncode, 0, done.stderr)
                made = [line.rsplit("/", 1)[1] for line in done.stdout.splitlines()]
                self.assertEqual(made, [item["metadata"]["name"] for item in items])


if __name__ == "__main__":
    unittest.main()
