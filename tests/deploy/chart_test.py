#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The chart of deploy/kubernetes, rendered and linted by Helm: it makes what the overlays are, takes
values as people write them (chart_values.yaml), and refuses mistakes.

Needs kubectl and PyYAML, and what kubernetes_requirements.txt has besides, or is skipped.
"""
import copy
import functools
import importlib.util
import json
import logging
import re
import tempfile
import unittest

import manifests
import yaml
from discovery import Discovery
from reach import problems

CHART = manifests.KUBERNETES / "chart"
VALUES = yaml.safe_load((manifests.REPOSITORY / "tests/deploy/chart_values.yaml").read_text())
OVERLAYS = {
    "autoscaled": {"topology": "routed", "autoscaling": {"kind": "hpa"}},
    "autoscaled-keda": {"topology": "routed", "autoscaling": {"kind": "keda"}},
    "cpu": {},
    "disaggregated": {"topology": "disaggregated"},
    "gpu": {"device": "cuda"},
    "llm-d": {"topology": "llm-d"},
    "multi-node": {"topology": "groups"},
    "ranks": {"topology": "ranks"},
}
OF_RELEASES = ("app.kubernetes.io/managed-by", "app.kubernetes.io/instance", "app.kubernetes.io/version",
               "helm.sh/chart", "checksum/settings")


def without_release(value):
    """Without what tells releases apart, which overlays have not."""
    if isinstance(value, list):
        return [without_release(each) for each in value]
    if not isinstance(value, dict):
        return value.replace('{namespace="space",', "{") if isinstance(value, str) else value
    kept = {key: without_release(each) for key, each in value.items() if key not in OF_RELEASES}
    return {key: each for key, each in kept.items() if key != "matchLabels" or each}


def generated(path, function):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, function)()


class ChartTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.helm = manifests.package("helm_python")
        logging.getLogger("helm").setLevel(logging.ERROR)

    @classmethod
    @functools.cache
    def rendered(cls, values, release):
        # As `-f FILE`: Helm reads YAML's numbers as floats.
        read = cls.helm.values_from_yaml(values)
        with cls.helm.Chart.load(str(CHART)) as chart:
            return chart.render(read, name=release, namespace="space")

    def files(self, values, release="sluice"):
        return self.rendered(yaml.safe_dump(values), release)

    def render(self, values, release="sluice"):
        items = [item for name, text in self.files(values, release).items() if name.endswith(".yaml")
                 for item in yaml.safe_load_all(text) if item]
        made = manifests.by_name(items)
        self.assertEqual(len(made), len(items), "two objects of one name")
        return made

    def pod(self, made, name="Deployment sluice"):
        return made[name]["spec"]["template"]["spec"]


class Overlays(ChartTest):
    def test_it_makes_what_the_overlays_are(self):
        self.maxDiff = 6000
        self.assertEqual(sorted(OVERLAYS), manifests.OVERLAYS)
        for name, values in OVERLAYS.items():
            expected = manifests.by_name(map(manifests.without_hashes, manifests.overlay(name)))
            made = self.render(values)
            with self.subTest(overlay=name):
                self.assertEqual(sorted(made), sorted(expected))
            for item, object_ in expected.items():
                with self.subTest(overlay=name, item=item):
                    own = without_release(made[item])
                    for each in (own, object_):
                        if not each["metadata"].get("labels"):
                            each["metadata"].pop("labels", None)
                    self.assertEqual(yaml.safe_dump(own), yaml.safe_dump(object_))

    def test_what_prometheus_operator_and_grafana_read_is_the_components(self):
        with tempfile.TemporaryDirectory() as folder:
            expected = manifests.by_name(manifests.over(
                folder, "cpu", components=["pod-monitor", "alerts", "dashboards"]))
        made = self.render({"podMonitor": True, "alerts": True, "dashboards": True})
        for name in ("PodMonitor sluice", "PrometheusRule sluice", "ConfigMap sluice-dashboards"):
            with self.subTest(name=name):
                self.assertEqual(without_release(made[name]), expected[name])


class Clusters(ChartTest):
    """What depends on the definitions that a cluster has."""

    def installed(self, values, definitions):
        rendered = self.render(values).values()
        cluster = Discovery({(item["apiVersion"], item["kind"]) for item in rendered} | definitions)
        self.addCleanup(cluster.close)
        settings = {"apiVersion": "v1", "kind": "Config", "current-context": "test",
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
                    "clusters": [{"name": "test", "cluster": {"server": cluster.url}}],
                    "users": [{"name": "test", "user": {}}]}
        with self.helm.Config(kubeconfig_content=yaml.safe_dump(settings), namespace="space",
                              storage_driver="memory") as config:
            release = config.install(str(CHART), "sluice", values, namespace="space", dry_run="server")
        return set(manifests.by_name(yaml.safe_load_all(release["manifest"])))

    def test_objects_of_operators_are_where_their_definitions_are(self):
        monitor, rule = "PodMonitor sluice", "PrometheusRule sluice"
        definitions = {("monitoring.coreos.com/v1", "PodMonitor"),
                       ("monitoring.coreos.com/v1", "PrometheusRule")}
        for values, there, expected in (
                ({}, set(), set()), ({}, definitions, {monitor}), ({"podMonitor": False}, definitions, set()),
                ({"alerts": "auto"}, definitions, {monitor, rule}), ({"alerts": "auto"}, set(), set()),
                ({"podMonitor": True}, set(), {monitor})):
            with self.subTest(values=values, there=bool(there)):
                self.assertEqual(self.installed(values, there) & {monitor, rule}, expected)


class Values(ChartTest):
    def test_what_people_write_is_taken_and_valid(self):
        self.assertGreaterEqual(len(VALUES), 20)
        validate = manifests.package("kubernetes_validate").validate
        schemas = manifests.package("jsonschema_rs")
        others = json.loads((manifests.REPOSITORY / "tests/deploy/resource_schemas.json").read_text())
        for name, values in VALUES.items():
            report = self.helm.lint(str(CHART), values, strict=True, namespace="space",
                                    kube_version="v1.33.0")
            with self.subTest(values=name, check="lint"):
                self.assertEqual((report["errors"], [m for m in report["messages"] if m["severity"] > 1]),
                                 ([], []))
            items = list(self.render(values, "chat").values())
            for item in items:
                kind = f"{item['apiVersion']} {item['kind']}"
                with self.subTest(values=name, item=item["metadata"]["name"], kind=kind):
                    if kind in others:
                        schemas.validate(others[kind]["spec"], item["spec"])
                    else:
                        validate(item, "1.37", strict=True)
            for owner, template in manifests.pod_templates(items):
                with self.subTest(values=name, owner=owner):
                    validate({"apiVersion": "v1", "kind": "Pod", "spec": template["spec"],
                              "metadata": {"name": "pod"} | template["metadata"]}, "1.37", strict=True)
            if values.get("networkPolicy", {}).get("enabled", True):
                with self.subTest(values=name, check="who must reach whom"):
                    self.assertEqual(problems(items), [])

    def test_numbers_are_written_as_servers_read_them(self):
        data = self.render(VALUES["own model"])["ConfigMap sluice"]["data"]
        self.assertEqual(data, {
            "SLUICE_MODEL": "Qwen/Qwen3-0.6B", "SLUICE_MAX_NUM_SEQS": "128",
            "SLUICE_KV_CACHE_MEMORY": "8589934592", "SLUICE_SEED": "9007199254740991",
            "SLUICE_ENABLE_LOG_REQUESTS": "true"})
        data = self.render(VALUES["pinned model"])["ConfigMap sluice"]["data"]
        self.assertEqual(json.loads(data["SLUICE_SPECULATIVE_CONFIG"]),
                         VALUES["pinned model"]["settings"]["SLUICE_SPECULATIVE_CONFIG"])
        self.assertEqual(data["SLUICE_SERVED_MODEL_NAME"], "qwen,gpt-4o-mini")
        for made in map(self.render, VALUES.values()):
            for name, item in made.items():
                if item["kind"] == "ConfigMap" and "dashboards" not in name:
                    for value in item["data"].values():
                        self.assertNotRegex(value, r"^\d+(\.\d+)?e\+", name)

    def test_the_default_revision_is_of_the_default_model_alone(self):
        self.assertIn("SLUICE_REVISION", self.render({})["ConfigMap sluice"]["data"])
        for values, warns in (({}, False), (VALUES["own model"], True), (VALUES["pinned model"], False),
                              (VALUES["existing claim"], False),
                              ({"settings": {"SLUICE_REVISION": "main"}}, True)):
            notes = next(text for name, text in self.files(values).items() if name.endswith("NOTES.txt"))
            self.assertEqual("WARNING: SLUICE_REVISION is not a commit" in notes, warns, notes)

    def test_resources_and_places(self):
        pod = self.pod(self.render(VALUES["larger pods"]))
        self.assertEqual(pod["containers"][0]["resources"], {
            "requests": {"cpu": "16", "memory": "48Gi", "ephemeral-storage": "256Mi"},
            "limits": {"cpu": "32", "memory": "48Gi"}})
        self.assertEqual(pod["initContainers"][0]["resources"]["requests"]["ephemeral-storage"], "60Gi")
        template = self.render(VALUES["placed pods"])["Deployment sluice"]["spec"]["template"]
        pod = template["spec"]
        self.assertEqual(pod["nodeSelector"]["node-role/inference"], "true")
        self.assertEqual([each["key"] for each in pod["tolerations"]], ["dedicated"])
        self.assertIn("podAntiAffinity", pod["affinity"])
        spread, = pod["topologySpreadConstraints"]
        self.assertEqual(spread["labelSelector"]["matchLabels"]["app.kubernetes.io/instance"], "sluice")
        self.assertEqual(pod["priorityClassName"], "production")
        self.assertEqual(template["metadata"]["labels"]["team"], "search")
        self.assertEqual(
            template["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"], "false")

    def test_images(self):
        pod = self.pod(self.render(VALUES["private registry"]))
        for container in manifests.containers({"spec": pod}):
            self.assertEqual(container["image"], "registry.example:5000/mirror/ml/sluice:1.2")
            self.assertEqual(container["imagePullPolicy"], "Always")
        self.assertEqual(pod["imagePullSecrets"], [{"name": "registry-login"}])
        pod = self.pod(self.render(VALUES["image by digest"]))
        self.assertEqual(pod["containers"][0]["image"], "ghcr.io/example/sluice@sha256:" + "a" * 64)
        pod = self.pod(self.render(VALUES["behind llm-d"]), "Deployment sluice-decode")
        self.assertIn("mirror.example/llm-d/sidecar:v0.9.0", [c["image"] for c in pod["initContainers"]])

    def test_where_the_model_comes_from(self):
        def models(pod):
            return next(volume for volume in pod["volumes"] if volume["name"] == "models")
        made = self.render(VALUES["existing claim"])
        self.assertEqual(models(self.pod(made))["persistentVolumeClaim"], {"claimName": "team-models"})
        self.assertFalse(any("PersistentVolumeClaim" in name for name in made))
        made = self.render(VALUES["new claim"], "a-sluice")
        claim = made["PersistentVolumeClaim a-sluice-models"]["spec"]
        self.assertEqual((claim["storageClassName"], claim["resources"]["requests"]["storage"]),
                         ("cephfs", "200Gi"))
        self.assertEqual(models(self.pod(made, "Deployment a-sluice"))["persistentVolumeClaim"],
                         {"claimName": "a-sluice-models"})
        made = self.render(VALUES["model as an image"])
        self.assertEqual(models(self.pod(made))["image"]["reference"], "registry.example/models/qwen3:1")
        self.assertEqual(self.pod(made)["initContainers"], [])
        self.assertEqual(len(made["NetworkPolicy sluice"]["spec"]["egress"]), 1)

    def test_ways_in(self):
        made = self.render(VALUES["ingress with TLS"], "a")
        ingress = made["Ingress a-sluice"]["spec"]
        self.assertEqual((ingress["ingressClassName"], ingress["tls"][0]["secretName"]), ("nginx", "llm-tls"))
        self.assertEqual(ingress["rules"][0]["http"]["paths"][0]["backend"]["service"],
                         {"name": "a-sluice", "port": {"name": "http"}})
        route = self.render(VALUES["gateway"], "a")["HTTPRoute a-sluice"]["spec"]
        self.assertEqual(route["parentRefs"], [{"name": "public", "namespace": "gateways"}])
        self.assertEqual(route["rules"][0]["backendRefs"], [{"name": "a-sluice", "port": 80}])
        self.assertEqual(route["rules"][0]["timeouts"]["request"], "0s")
        made = self.render(VALUES["load balancer"])
        self.assertEqual(made["Service sluice"]["spec"]["type"], "LoadBalancer")
        self.assertEqual(made["Service sluice"]["spec"]["ports"][0]["port"], 8080)
        self.assertNotIn("NetworkPolicy sluice", made)
        route = self.render(VALUES["behind llm-d"])["HTTPRoute sluice"]["spec"]
        self.assertEqual((route["parentRefs"], route["hostnames"]),
                         ([{"name": "shared-gateway"}], ["llm.example"]))

    def test_gpus(self):
        made = self.render(VALUES["several GPUs"])
        pod = self.pod(made)
        self.assertEqual(pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"], 4)
        self.assertEqual(made["ConfigMap sluice"]["data"]["SLUICE_TENSOR_PARALLEL_SIZE"], "4")
        self.assertEqual(pod["nodeSelector"], {"nvidia.com/gpu.family": "hopper"})
        self.assertTrue(pod["containers"][0]["image"].endswith("-cuda"))
        pod = self.pod(self.render(VALUES["GPUs of a cloud"]))
        self.assertEqual(pod["nodeSelector"], {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"})

    def test_routers_and_roles(self):
        made = self.render(VALUES["routed and autoscaled"])
        self.assertEqual(made["ConfigMap sluice-router"]["data"]["SLUICE_AFFINITY_BLOCKS"], "16777216")
        self.assertEqual(made["Deployment sluice-router"]["spec"]["replicas"], 3)
        self.assertNotIn("replicas", made["Deployment sluice-worker"]["spec"])
        self.assertEqual(made["HorizontalPodAutoscaler sluice-worker"]["spec"]["maxReplicas"], 40)
        made = self.render(VALUES["prefill and decode"])
        self.assertEqual(made["ConfigMap sluice-prefill"]["data"]["SLUICE_MAX_NUM_BATCHED_TOKENS"], "8192")
        self.assertNotIn("SLUICE_MAX_NUM_BATCHED_TOKENS", made["ConfigMap sluice-decode"]["data"])
        self.assertEqual(self.pod(made, "Deployment sluice-prefill")["nodeSelector"],
                         {"nvidia.com/gpu.family": "hopper", "pool": "prefill"})
        self.assertEqual(made["Deployment sluice-decode"]["spec"]["replicas"], 8)
        group = self.render(VALUES["groups of pods"])["LeaderWorkerSet sluice"]["spec"]
        self.assertEqual((group["replicas"], group["leaderWorkerTemplate"]["size"]), (2, 9))
        leader = group["leaderWorkerTemplate"]["leaderTemplate"]["spec"]
        self.assertEqual(leader["terminationGracePeriodSeconds"], 5 + 300 + 15)
        made = self.render(VALUES["one model over pods"])
        self.assertEqual(made["ConfigMap sluice"]["data"]["SLUICE_TENSOR_PARALLEL_SIZE"], "4")
        spec = made["LeaderWorkerSet sluice-ranks"]["spec"]
        self.assertEqual((spec["replicas"], spec["leaderWorkerTemplate"]["size"]), (3, 4))
        for name in ("leaderTemplate", "workerTemplate"):
            pod = spec["leaderWorkerTemplate"][name]["spec"]
            self.assertEqual(pod["terminationGracePeriodSeconds"], 120 + 15)
            self.assertEqual(pod["containers"][0]["resources"]["limits"]["memory"], "96Gi")

    def test_pods_that_share_a_model_have_one_that_divides(self):
        for ranks in (2, 4, 8):
            made = self.render({"topology": "ranks", "ranks": ranks})
            data = made["ConfigMap sluice"]["data"]
            self.assertEqual(made["ConfigMap sluice-router"]["data"]["SLUICE_SERVED_MODEL_NAME"],
                             data["SLUICE_MODEL"])
            self.assertEqual([heads % ranks for heads in manifests.HEADS[data["SLUICE_MODEL"]]], [0, 0])
            self.assertNotIn("SLUICE_PIPELINE_PARALLEL_SIZE", data)
        default = self.render({})["ConfigMap sluice"]["data"]
        for stages, shares in ((2, 2), (4, 1)):
            data = self.render({"topology": "ranks", "ranks": 4, "stages": stages})["ConfigMap sluice"]["data"]
            self.assertEqual((data["SLUICE_PIPELINE_PARALLEL_SIZE"], data["SLUICE_TENSOR_PARALLEL_SIZE"]),
                             (str(stages), str(shares)))
            self.assertEqual(data["SLUICE_MODEL"] == default["SLUICE_MODEL"], shares == 1)
            self.assertEqual(data["SLUICE_REVISION"] == default["SLUICE_REVISION"], shares == 1)
        for wrong in ({"ranks": 2, "stages": 4}, {"stages": 2, "device": "cuda"}):
            with self.assertRaisesRegex(Exception, "stages: "):
                self.render({"topology": "ranks"} | wrong)

    def test_the_ranks_of_a_later_stage_reach_each_other(self):
        def peers(stages):
            spec = self.render({"topology": "ranks", "ranks": 4, "stages": stages})["NetworkPolicy sluice-rank"]["spec"]
            return [rule for way, end in (("ingress", "from"), ("egress", "to")) for rule in spec[way]
                    if end in rule and "rank" in str(rule[end]) and {"protocol": "TCP", "port": 29501} in rule["ports"]]
        self.assertEqual([len(peers(stages)) for stages in (1, 2, 4)], [0, 2, 0])

    def test_secrets_accounts_and_patches(self):
        made = self.render(VALUES["own secrets and names"], "other")
        pod = self.pod(made, "Deployment chat-worker")
        text = yaml.safe_dump_all(made.values())
        self.assertEqual(re.findall(r"sluice-(?:api-keys|worker-secret|hub)", text), [])
        for name in ("chat-keys", "chat-worker", "name: hf"):
            self.assertIn(name, text)
        self.assertEqual(pod["dnsPolicy"], "Default")
        self.assertIn({"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"},
                      pod["containers"][0]["env"])
        self.assertIn("eks.amazonaws.com/role-arn",
                      made["ServiceAccount chat-worker"]["metadata"]["annotations"])


class Releases(ChartTest):
    def test_several_in_a_namespace_have_nothing_in_common(self):
        for name, values in VALUES.items():
            if "fullnameOverride" in values:
                continue
            first, second = (self.render(values, release) for release in ("a", "b"))
            with self.subTest(values=name):
                self.assertEqual(set(first) & set(second), set())
                # Workers of both are asked for here; policies keep them apart.
                for each in problems(list(first.values()) + list(second.values())):
                    self.assertTrue("a-sluice" in each and "b-sluice" in each or
                                    "networkPolicy" in values, each)
                services = [item for item in first.values() if item["kind"] == "Service"]
                for owner, template in manifests.pod_templates(list(second.values())):
                    for item in services:
                        self.assertFalse(manifests.selected(item["spec"]["selector"],
                                                            template["metadata"]["labels"]), owner)

    def test_what_a_pod_reads_starts_it_anew(self):
        """A change of any value changes the template of whoever reads it, and of nobody else."""
        def templates(values):
            return dict(manifests.pod_templates(list(self.render(values).values())))
        base = {"topology": "disaggregated"}
        before = templates(base)
        routers, servers = {"sluice-router"}, {"sluice-prefill", "sluice-decode"}
        for values, restarted in (
                ({"settings": {"SLUICE_MAX_NUM_SEQS": 7}}, servers),
                ({"settings": {"SLUICE_MODEL": "org/other"}}, routers | servers),
                ({"servedModelName": "other"}, routers),
                ({"router": {"settings": {"SLUICE_WORKER_WAIT_S": 7}}}, routers),
                ({"decode": {"settings": {"SLUICE_MAX_NUM_SEQS": 7}}}, {"sluice-decode"}),
                ({"drainTimeoutSeconds": 7}, routers | servers),
                ({"secrets": {"worker": "other"}}, routers | servers),
                ({"image": {"tag": "7.7.7"}}, routers | servers),
                ({"model": {"downloadSize": "9Gi"}}, servers),
                ({"replicas": {"sluice-decode": 7}}, set()), ({"service": {"port": 81}}, set())):
            after = templates(base | values)
            with self.subTest(values=values):
                self.assertEqual({name for name in before if before[name] != after[name]}, restarted)
        for topology, reader in (("groups", "sluice worker"), ("groups", "sluice leader")):
            after = [templates({"topology": topology, "settings": {"SLUICE_SEED": seed}})[reader]
                     for seed in (1, 2)]
            self.assertNotEqual(*after)


class Schema(ChartTest):
    def test_it_is_what_the_script_makes_of_the_knobs(self):
        self.assertEqual((CHART / "values.schema.json").read_text(),
                         generated(CHART / "make_schema.py", "schema"))

    def test_it_refuses_mistakes(self):
        schema = json.loads((CHART / "values.schema.json").read_text())
        schemas = manifests.package("jsonschema_rs")
        defaults = yaml.safe_load((CHART / "values.yaml").read_text())
        schemas.validate(schema, defaults)
        for mistake in (
                {"topology": "mesh"}, {"drainTimeout": 3}, {"drainTimeoutSeconds": "60"},
                {"settings": {"SLUICE_MODEL": "a", "MODEL": "a"}}, {"model": {"source": "image"}},
                {"settings": {"SLUICE_MODEL": "a", "SLUICE_MAX_NUM_SEQ": 64}},
                {"settings": {"SLUICE_MODEL": "a", "SLUICE_MAX_NUM_SEQS": 0}},
                {"settings": {"SLUICE_MODEL": "a", "SLUICE_MAX_NUM_SEQS": "many"}},
                {"settings": {"SLUICE_MODEL": "a", "SLUICE_KV_CACHE_DTYPE": "int9"}},
                {"router": {"settings": {"SLUICE_WORKERS_WAIT_S": 1}}}, {"settings": {}},
                {"server": {"resource": {}}}, {"image": {"digest": "sha256:1"}}, {"gpu": {"count": 3}},
                {"ingress": {"enabled": True, "hosts": []}}, {"podMonitor": "yes"},
                {"replicas": {"worker": 3}}, {"images": {"sluice": {"tag": "1"}}}):
            with self.subTest(mistake=mistake), self.assertRaises(schemas.ValidationError):
                schemas.validate(schema, defaults | mistake)

    def test_helm_says_why_it_refuses(self):
        for values, words in (({"topology": "llm-d", "ingress": {"enabled": True, "hosts": [{}]}}, "gateway"),
                              ({"httpRoute": {"enabled": True}}, "parentRefs name no gateway"),
                              ({"autoscaling": {"kind": "hpa"}}, "topology routed"),
                              ({"settings": {"SLUICE_MAX_NUM_SEQ": 1}}, "SLUICE_MAX_NUM_SEQ")):
            with self.subTest(values=values), self.assertRaisesRegex(self.helm.HelmError, words):
                self.render(copy.deepcopy(values))


if __name__ == "__main__":
    unittest.main()
