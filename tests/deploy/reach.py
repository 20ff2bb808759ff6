# SPDX-License-Identifier: Apache-2.0
"""Who must reach whom among rendered manifests, derived from what they tell their processes, and whether
services, ports and network policies let them. A kubelet's probes pass every policy."""
import re

from manifests import is_ours, pod_templates, selected, settings

# Where a request comes from that is no pod of the manifests: namespace, labels of pod and namespace.
CLIENT = ("a client of this namespace", True, {}, {})
ALLOWED = ("a pod of an allowed namespace", False, {}, {"sluice-clients": "allowed"})
STRANGER = ("a pod of another namespace", False, {}, {})
EVERYWHERE = "any address"


def matches(selector, labels):
    """A label selector of Kubernetes; an empty one takes all."""
    if not selected(selector.get("matchLabels", {}), labels):
        return False
    for rule in selector.get("matchExpressions", []):
        value, operator = labels.get(rule["key"]), rule["operator"]
        if operator == "In" and value not in rule["values"] or operator == "Exists" and value is None:
            return False
        if operator not in ("In", "Exists"):
            raise ValueError(f"operator {operator} is not read here")
    return True


class PodOf:
    """A pod that a template makes: its labels, its named ports, and what its processes listen on."""

    def __init__(self, owner, template, items):
        self.owner, self.template, self.items = owner, template, items
        self.group, _, self.place = owner.partition(" ")  # of a LeaderWorkerSet: leader or worker
        self.labels = template["metadata"]["labels"]
        spec = template["spec"]
        self.inits = [c for c in spec.get("initContainers", []) if c.get("restartPolicy") != "Always"]
        self.containers = spec["containers"] + [c for c in spec.get("initContainers", [])
                                                if c not in self.inits]
        self.named, self.listens = {}, set()
        for container in self.containers:
            self.named |= {port["name"]: port["containerPort"] for port in container.get("ports", [])}
            self.listens |= self.listened(container)

    def master_port(self):
        """Where node 0 of a model waits for the others, which the set's variables start."""
        own = self.own() or {}
        is_shared = int(own.get("SLUICE_TENSOR_PARALLEL_SIZE", 1)) > 1 and self.place
        return int(own.get("SLUICE_MASTER_PORT", 29501)) if is_shared else None

    def own(self):
        """Settings of Sluice in this pod; None where there is none."""
        return next((settings(self.items, c) for c in self.containers if is_ours(c)), None)

    def listened(self, container):
        if not is_ours(container):
            flags = " ".join(container.get("args", []))
            declared = {port["containerPort"] for port in container.get("ports", [])}
            told = {int(port) for port in re.findall(r"--(?:\w+-)*(?<!vllm-)port=(\d+)", flags)}
            return declared | told
        values = settings(self.items, container)
        ports = {int(values.get("SLUICE_PORT", 8000))}
        ports |= {int(values[name].rsplit(":", 1)[1])
                  for name in ("SLUICE_WORKER_LISTEN", "SLUICE_KV_LISTEN") if name in values}
        if int(values.get("SLUICE_GRPC_PORT", -1)) >= 0:
            ports.add(int(values["SLUICE_GRPC_PORT"]))
        if self.place == "leader" and self.master_port():
            ports.add(self.master_port())
        return ports

    def number(self, port):
        return self.named.get(port) if isinstance(port, str) else port

    def port_of(self, name):
        address = (self.own() or {}).get(name)
        return int(address.rsplit(":", 1)[1]) if address else None


class Reach:
    def __init__(self, items):
        self.items = items
        self.pods = [PodOf(owner, template, items) for owner, template in pod_templates(items)]
        self.problems = []

    def of_kind(self, kind):
        return [item for item in self.items if item["kind"] == kind]

    def chosen(self, selector):
        return [pod for pod in self.pods if matches(selector, pod.labels)]

    def policies(self, pod, way):
        return [item["spec"] for item in self.of_kind("NetworkPolicy")
                if way in item["spec"]["policyTypes"]
                and matches(item["spec"]["podSelector"], pod.labels)]

    @staticmethod
    def is_peer(peer, source):
        _, is_here, labels, namespace = source
        if "namespaceSelector" in peer and not matches(
                peer["namespaceSelector"], namespace if not is_here else {}):
            return False
        if "namespaceSelector" not in peer and not is_here:
            return False
        return matches(peer.get("podSelector", {}), labels)

    def admits(self, pod, source, port):
        """Whether the pod's policies let `source` reach its port."""
        policies = self.policies(pod, "Ingress")
        return not policies or any(
            any(self.is_peer(peer, source) for peer in rule["from"])
            and any(pod.number(each["port"]) == port for each in rule["ports"])
            for policy in policies for rule in policy.get("ingress", []))

    def lets_out(self, pod, target, port):
        """Whether the pod's policies let it reach a port of `target`, a pod or EVERYWHERE."""
        policies = self.policies(pod, "Egress")
        for policy in policies:
            for rule in policy.get("egress", []):
                ports = [each["port"] if target == EVERYWHERE else target.number(each["port"])
                         for each in rule["ports"]]
                if port in ports and ("to" not in rule or target != EVERYWHERE and any(
                        self.is_peer(peer, ("", True, target.labels, {})) for peer in rule["to"])):
                    return True
        return not policies

    def need(self, why, source, pods, port):
        """`source`: a PodOf, or one of those above."""
        if not pods:
            self.problems.append(f"{why}: no pod")
        for pod in pods:
            number = pod.number(port)
            if number not in pod.listens:
                self.problems.append(f"{why}: {pod.owner} does not listen on {port}")
                continue
            if isinstance(source, PodOf):
                if not self.lets_out(source, pod, number):
                    self.problems.append(f"{why}: {source.owner} may not reach {pod.owner}:{number}")
                source_pod = (source.owner, True, source.labels, {})
            else:
                source_pod = source
            if not self.admits(pod, source_pod, number):
                self.problems.append(f"{why}: {pod.owner}:{number} does not admit {source_pod[0]}")

    def service(self, why, name, port):
        """(pods, port of theirs) behind a Service's port."""
        for item in self.of_kind("Service"):
            if item["metadata"]["name"] == name:
                for each in item["spec"]["ports"]:
                    if port in (each["port"], each["name"]):
                        return self.chosen({"matchLabels": item["spec"]["selector"]}), each["targetPort"]
        self.problems.append(f"{why}: no Service {name} has a port {port}")
        return [], 0

    def check_pods(self):
        for pod in self.pods:
            for container in pod.containers:
                declared = {port["containerPort"] for port in container.get("ports", [])}
                if declared != pod.listened(container):
                    self.problems.append(f"{pod.owner}: {container['name']} declares {declared} and "
                                         f"listens on {pod.listened(container)}")
                for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                    probe = container.get(kind, {})
                    asked = (probe.get("httpGet") or probe.get("grpc") or {}).get("port")
                    if probe and pod.number(asked) not in pod.listened(container):
                        self.problems.append(f"{pod.owner}: {kind} asks for {asked}")
            annotations = pod.template["metadata"].get("annotations", {})
            if annotations.get("prometheus.io/scrape") == "true":
                port = int(annotations["prometheus.io/port"])
                self.need("Prometheus", ALLOWED, [pod], port)
                own = pod.own()
                if own is not None and port != int(own.get("SLUICE_PORT", 8000)):
                    self.problems.append(f"{pod.owner}: Prometheus is sent to {port}")
            if any(c.get("args", [])[:1] == ["fetch"] for c in pod.inits):
                for port in (53, 443):
                    if not self.lets_out(pod, EVERYWHERE, port):
                        self.problems.append(f"{pod.owner}: the download may not reach port {port}")

    def check_services(self):
        for item in self.of_kind("Service"):
            is_open = item["spec"].get("clusterIP") != "None"
            for port in item["spec"]["ports"]:
                pods = self.chosen({"matchLabels": item["spec"]["selector"]})
                for source in (CLIENT, ALLOWED) if is_open else ():
                    self.need(f"Service {item['metadata']['name']}", source, pods, port["targetPort"])
                for pod in pods:
                    if pod.number(port["targetPort"]) not in pod.listens:
                        self.problems.append(f"Service {item['metadata']['name']}: {pod.owner} does "
                                             f"not listen on {port['targetPort']}")
        for item in self.of_kind("PodMonitor"):
            for endpoint in item["spec"]["podMetricsEndpoints"]:
                self.need("PodMonitor", ALLOWED, self.chosen(item["spec"]["selector"]),
                          endpoint["port"])

    def check_routers(self):
        for router in self.pods:
            workers = (router.own() or {}).get("SLUICE_WORKERS", "")
            for each in filter(None, workers.split(",")):
                kind, _, rest = each.partition(":")
                name, _, port = rest.rpartition(":")
                if kind == "k8s":
                    if not any(self.lets_out(router, EVERYWHERE, api) for api in (443, 6443)):
                        self.problems.append(f"{router.owner}: may not reach the API server")
                    pods, port = self.service(router.owner, name.split("/")[1], int(port))
                else:  # the Service that a LeaderWorkerSet makes, with all pods of the group
                    pods = [pod for pod in self.pods if pod.port_of("SLUICE_WORKER_LISTEN")]
                    port = int(port)
                self.need(f"{router.owner}'s workers", router, pods, port)
                for pod in pods:
                    if pod.number(port) != pod.port_of("SLUICE_WORKER_LISTEN"):
                        self.problems.append(f"{router.owner}: {pod.owner} takes no routers on {port}")

    def check_transfers(self):
        """Whoever answers fetches KV from whoever has computed the prompt, and either may do both."""
        peers = [pod for pod in self.pods if pod.port_of("SLUICE_KV_LISTEN")]
        for source in peers:
            for target in peers:
                self.need("KV", source, [target], target.port_of("SLUICE_KV_LISTEN"))

    def check_ranks(self):
        for pod in self.pods:
            if pod.place == "worker" and pod.master_port():
                leaders = [each for each in self.pods
                           if each.group == pod.group and each.place == "leader"]
                self.need("ranks", pod, leaders, pod.master_port())

    def check_pools(self):
        for item in self.of_kind("InferencePool"):
            pods = self.chosen(item["spec"]["selector"])
            picker = item["spec"]["endpointPickerRef"]
            pickers, port = self.service("pool", picker["name"], picker["port"]["number"])
            self.need("the gateway asks the picker", ALLOWED, pickers, port)
            for target in item["spec"]["targetPorts"]:
                for source in (ALLOWED, CLIENT, *pickers):
                    self.need("pool", source, pods, target["number"])
                # A sidecar asks prefill workers at the pool's port.
                for pod in pods:
                    sidecars = [c for c in pod.containers
                                if any(arg.startswith("--vllm-port=") for arg in c.get("args", []))]
                    for sidecar in sidecars:
                        behind = next(int(arg.split("=")[1]) for arg in sidecar["args"]
                                      if arg.startswith("--vllm-port="))
                        if behind != int(pod.own().get("SLUICE_PORT", 8000)):
                            self.problems.append(f"{pod.owner}: the sidecar asks port {behind}")
                        self.need("sidecar", pod, [each for each in pods if (each.own() or {}).get(
                            "SLUICE_ROLE") == "prefill"], target["number"])
        for item in self.of_kind("HTTPRoute"):
            for rule in item["spec"]["rules"]:
                for each in rule["backendRefs"]:
                    if each.get("kind") == "InferencePool":
                        if not any(pool["metadata"]["name"] == each["name"]
                                   for pool in self.of_kind("InferencePool")):
                            self.problems.append(f"route: no pool {each['name']}")
                    else:
                        self.need("route", ALLOWED, *self.service("route", each["name"], each["port"]))
        for item in self.of_kind("Ingress"):
            for rule in item["spec"]["rules"]:
                for path in rule["http"]["paths"]:
                    backend = path["backend"]["service"]
                    self.need("ingress", ALLOWED, *self.service(
                        "ingress", backend["name"], backend["port"]["name"]))

    def check_closed(self):
        """What nobody else may reach: anything from elsewhere, and ports between workers."""
        for pod in self.pods:
            if pod.own() is None:
                continue
            inside = {pod.port_of("SLUICE_WORKER_LISTEN"), pod.port_of("SLUICE_KV_LISTEN"),
                      pod.master_port() if pod.place == "leader" else None} - {None}
            if pod.port_of("SLUICE_WORKER_LISTEN"):
                inside.add(int(pod.own().get("SLUICE_PORT", 8000)))
            for source, ports in ((STRANGER, pod.listens), (CLIENT, inside),
                                  (ALLOWED, inside - {int(pod.own().get("SLUICE_PORT", 8000))})):
                for port in sorted(ports):
                    if self.admits(pod, source, port):
                        self.problems.append(f"{pod.owner}:{port} admits {source[0]}")


def problems(items):
    """What is wrong between the pods of manifests, a sentence each."""
    reach = Reach(items)
    reach.check_pods()
    reach.check_services()
    reach.check_routers()
    reach.check_transfers()
    reach.check_ranks()
    reach.check_pools()
    reach.check_closed()
    return reach.problems
