# SPDX-License-Identifier: Apache-2.0
"""Does to the real binary what a kubelet does with a pod: starts it with the manifest's command and
environment, probes it by the manifest's paths and numbers, and ends it as the manifest says.

Pods have addresses of 127.0.0.0/8, which take the place of 0.0.0.0, and folders that take the places
of their mounts. Periods and pauses are shorter by PACE; time-outs and the grace period are not.
"""
import concurrent.futures
import contextlib
import copy
import http.client
import os
import pathlib
import re
import signal
import subprocess
import threading
import time

from kubernetes_api import SPACE, TOKEN
from manifests import image_settings, is_ours, selected

PACE = 0.05
BACK_OFF = 10 * PACE  # before a container starts again, and twice as long each time


class ManifestError(AssertionError):
    """The manifest asks for what the binary does not have."""


def knobs(binary):
    """The environment variables that the binary reads."""
    markdown = subprocess.run([binary, "config", "--markdown"], capture_output=True, text=True,
                              check=True).stdout
    return {"SLUICE_" + flag.upper().replace("-", "_")
            for flag in re.findall(r"^\| `--([a-z0-9-]+)`", markdown, re.M)}


def own_address(number):
    """An address of this process alone, as another one may play the same manifests."""
    return f"127.{64 + os.getpid() % 128}.{os.getpid() // 128 % 250}.{number}"


def at_address(value, address):
    """What listens everywhere in a container of its own listens on its address here."""
    everywhere = "0.0.0.0"
    if value == everywhere or value.startswith(everywhere + ":"):
        return address + value[len(everywhere):]
    return value


def with_addresses(value, names):
    """`dns:name:port`, of which there may be several, with the addresses that names stand for."""
    for item in value.split(",") if value.startswith("dns:") else []:
        _, name, port = item.split(":")
        value = value.replace(item, ",".join(f"{address}:{port}" for address in names[name]))
    return value


class Cluster:
    """What pods get from outside: addresses, ConfigMaps, Secrets, names, and the API server."""

    def __init__(self, binary, folder, items, api, secrets):
        self.binary, self.items, self.api, self.secrets = binary, items, api, secrets
        self.folder = pathlib.Path(folder)
        self.entry, _, self.image_environment = image_settings()
        self.knobs = knobs(binary)
        self.names = {}  # of headless services: addresses
        self.pods = []
        self.number = 0

    def map(self, kind, name):
        for item in self.items:
            if item["kind"] == kind and item["metadata"]["name"] == name:
                return item["data"]
        return None

    def secret_folder(self, name):
        """As a kubelet lays it: names are links into a folder that changes in one step."""
        if name not in self.secrets:
            raise ManifestError(f"there is no Secret {name}")
        folder = self.folder / f"secret-{name}"
        if not folder.exists():
            folder.mkdir()
            self.write_secret(name, self.secrets[name])
        return folder

    def write_secret(self, name, values):
        folder = self.folder / f"secret-{name}"
        version = folder / f"..{time.monotonic_ns()}"
        version.mkdir()
        for key, value in values.items():
            (version / key).write_text(value)
            if not (folder / key).is_symlink():
                (folder / key).symlink_to(f"..data/{key}")
        (folder / "..data_tmp").symlink_to(version.name)
        (folder / "..data_tmp").rename(folder / "..data")

    def may_watch_endpoints(self, account):
        roles = {item["metadata"]["name"] for item in self.items if item["kind"] == "Role" and any(
            "endpointslices" in rule["resources"] and {"list", "watch"} <= set(rule["verbs"])
            for rule in item["rules"])}
        return any(item["kind"] == "RoleBinding" and item["roleRef"]["name"] in roles and any(
            subject["name"] == account for subject in item["subjects"]) for item in self.items)

    def close(self):
        for pod in list(self.pods):
            pod.close()


class Container:
    """One of a pod, started again when it ends."""

    def __init__(self, pod, manifest):
        self.pod, self.manifest, self.name = pod, manifest, manifest["name"]
        self.log_path = pod.folder / f"{self.name}.log"
        self.message_path = pod.folder / f"{self.name}.message"
        self.process, self.num_starts = None, 0

    def command(self):
        command = self.manifest.get("command", self.pod.cluster.entry)
        if command[0] != self.pod.cluster.entry[0]:
            raise ManifestError(f"{self.name}: the image has no {command[0]}")
        arguments = [str(self.message_path) if each == "/dev/termination-log" else each
                     for each in self.manifest.get("args", [])]
        return [str(self.pod.cluster.binary), *command[1:], *arguments]

    def environment(self):
        """In the manifest's order, as references see what is before them."""
        cluster, spec, variables = self.pod.cluster, self.pod.spec, {}
        for source in self.manifest.get("envFrom", []):
            reference = source.get("configMapRef") or source["secretRef"]
            kind = "ConfigMap" if "configMapRef" in source else "Secret"
            values = (cluster.map(kind, reference["name"]) if kind == "ConfigMap"
                      else cluster.secrets.get(reference["name"]))
            if values is None and not reference.get("optional"):
                raise ManifestError(f"{self.name}: there is no {kind} {reference['name']}")
            variables |= values or {}
        for item in self.manifest.get("env", []):
            variables[item["name"]] = self.value(item, variables)
        for name in variables:
            if name.startswith("SLUICE_") and name not in cluster.knobs:
                raise ManifestError(f"{self.name}: the binary has no {name}")
        own = {}
        if spec.get("enableServiceLinks", True):
            own["SLUICE_PORT"] = "tcp://10.0.0.1:80"
        if spec.get("automountServiceAccountToken", True) and cluster.may_watch_endpoints(
                spec["serviceAccountName"]):
            account = self.pod.folder / "account"
            account.mkdir(exist_ok=True)
            (account / "token").write_text(TOKEN)
            own |= {"SLUICE_KUBERNETES_API": cluster.api.url,
                    "SLUICE_KUBERNETES_ACCOUNT": str(account)}
        placed = {name: self.placed(value)
                  for name, value in (cluster.image_environment | variables).items()}
        return own | self.pod.variables | placed | {"HOME": str(self.pod.folder)}

    def value(self, item, variables):
        if "value" in item:
            return re.sub(r"\$\((\w+)\)", lambda m: variables.get(m[1], m[0]), item["value"])
        source = item["valueFrom"]
        if "fieldRef" in source:
            return {"metadata.namespace": SPACE, "metadata.name": self.pod.name,
                    "status.podIP": self.pod.address}[source["fieldRef"]["fieldPath"]]
        reference = source["secretKeyRef"]
        try:
            return self.pod.cluster.secrets[reference["name"]][reference["key"]]
        except KeyError:
            raise ManifestError(f"there is no Secret {reference['name']}") from None

    def placed(self, value):
        """With the pod's own address, folders, and what names of services stand for."""
        value = with_addresses(at_address(value, self.pod.address), self.pod.cluster.names)
        for mount in self.manifest.get("volumeMounts", []):
            if value == mount["mountPath"] or value.startswith(mount["mountPath"] + "/"):
                return str(self.pod.volume(mount["name"])) + value[len(mount["mountPath"]):]
        return value

    def start(self):
        self.num_starts += 1
        log = open(self.log_path, "w")  # the last run's
        self.process = subprocess.Popen(self.command(), env=self.environment(), stdout=log,
                                        stderr=log, stdin=subprocess.DEVNULL)
        log.close()

    def log(self):
        return self.log_path.read_text()

    def message(self):
        """Of a container that ended, as `kubectl describe` shows it."""
        if self.message_path.exists():
            return self.message_path.read_text()
        if self.manifest.get("terminationMessagePolicy") != "FallbackToLogsOnError":
            return ""
        return self.log()[-2048:]

    def port(self, name):
        for port in self.manifest.get("ports", []):
            if name in (port["name"], port["containerPort"]):
                return port["containerPort"]
        raise ManifestError(f"{self.name}: a probe asks for port {name}, which is not there")

    def probe(self, kind):
        """True: it passes. A page that nobody serves will never pass."""
        manifest = self.manifest[kind]
        get = manifest["httpGet"]
        status = self.pod.get(get["path"], self.port(get["port"]), manifest.get("timeoutSeconds", 1))
        if status in (401, 403, 404, 405):
            raise ManifestError(f"{self.name}: {kind} of {get['path']} gets {status}")
        return status is not None and 200 <= status < 400


class Pod:
    def __init__(self, cluster, name, template, services=(), variables=None):
        """`services`: those whose EndpointSlices have the pod while it is ready; `variables`: what its
        controller adds to its environment."""
        self.variables = variables or {}
        self.cluster, self.name, self.spec = cluster, name, template["spec"]
        cluster.number += 1
        self.address = own_address(cluster.number)
        self.folder = cluster.folder / name
        self.folder.mkdir()
        self.services = services
        self.is_ready, self.is_terminating, self.stopped = False, False, threading.Event()
        self.failures = []
        self.inits = [Container(self, c) for c in self.spec.get("initContainers", []) if is_ours(c)]
        self.containers = [Container(self, c) for c in self.spec["containers"] if is_ours(c)]
        self.threads = []
        cluster.pods.append(self)

    @property
    def main(self):
        return self.containers[0]

    def volume(self, name):
        volume = next((v for v in self.spec["volumes"] if v["name"] == name), None)
        if volume is None:
            raise ManifestError(f"{self.name}: no volume {name}")
        if "secret" in volume:
            return self.cluster.secret_folder(volume["secret"]["secretName"])
        folder = self.folder / f"volume-{name}"
        folder.mkdir(exist_ok=True)
        return folder

    def get(self, path, port=None, timeout=5):
        """The status; none: no answer."""
        port = port or self.main.port(self.main.manifest["readinessProbe"]["httpGet"]["port"])
        connection = http.client.HTTPConnection(self.address, port, timeout=timeout)
        with contextlib.closing(connection):
            try:
                connection.request("GET", path)
                return connection.getresponse().status
            except OSError:
                return None

    def start(self):
        self.initialize()
        for container in self.containers:
            container.start()
        for container in self.containers:
            self.wait_until_started(container)
            for kind in ("readinessProbe", "livenessProbe"):
                thread = threading.Thread(target=self.keep_probing, args=(container, kind),
                                          daemon=True)
                thread.start()
                self.threads.append(thread)
        return self

    def initialize(self):
        """Init containers, one after the other; one that fails is run again, later and later."""
        for container in self.inits:
            pause = BACK_OFF
            while True:
                container.start()
                if container.process.wait(timeout=60) == 0:
                    break
                self.state = "Init:CrashLoopBackOff"
                if container.num_starts == 3:
                    raise ManifestError(container.message())
                self.stopped.wait(pause)
                pause *= 2

    def wait_until_started(self, container):
        probe = container.manifest["startupProbe"]
        for _ in range(probe["failureThreshold"]):
            if container.probe("startupProbe"):
                return
            if container.process.poll() is not None and not self.stopped.is_set():
                raise ManifestError(f"{self.name}: {container.message()}")
            if self.stopped.wait(probe["periodSeconds"] * PACE):
                return
        raise ManifestError(f"{self.name} does not start: {container.log()}")

    def keep_probing(self, container, kind):
        """The threshold's number of failures in a row makes it not ready, or starts it again."""
        probe, num_failed = container.manifest[kind], 0
        while not self.stopped.is_set() and not (self.is_terminating and kind == "livenessProbe"):
            try:
                passed = container.probe(kind)
            except ManifestError as error:
                self.failures.append(str(error))
                return
            num_failed = 0 if passed else num_failed + 1
            if kind == "livenessProbe" and container.process.poll() is not None:
                num_failed = probe["failureThreshold"]  # it has ended by itself
            if kind == "readinessProbe" and passed != self.is_ready and (
                    passed or num_failed >= probe["failureThreshold"]):
                self.publish(ready=passed)
            if kind == "livenessProbe" and num_failed >= probe["failureThreshold"]:
                self.restart(container)
                num_failed = 0
            self.stopped.wait(probe["periodSeconds"] * PACE)

    def restart(self, container):
        self.publish(ready=False)
        container.process.kill()
        container.process.wait()
        if self.stopped.wait(BACK_OFF) or self.is_terminating:
            return
        container.start()
        self.wait_until_started(container)

    def publish(self, ready):
        self.is_ready = ready
        for service, port in self.services:
            self.cluster.api.put(self.name, port, self.address, service=service, ready=ready,
                                 terminating=self.is_terminating)

    def delete(self):
        """As when a Deployment replaces it. Returns the seconds from SIGTERM to the end."""
        self.is_terminating = True
        self.publish(self.is_ready)
        grace = self.spec["terminationGracePeriodSeconds"]
        self.pre_stop()
        self.terminated = time.monotonic()
        for container in self.containers:
            container.process.send_signal(signal.SIGTERM)
        self.seconds_ready = self.watch_until_unready(self.terminated + grace) - self.terminated
        for container in self.containers:
            try:
                code = container.process.wait(timeout=grace)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"{self.name} outlives its {grace} s") from None
            if code != 0:
                raise AssertionError(f"{self.name} ends with {code}: {container.log()}")
        seconds = time.monotonic() - self.terminated
        self.close()
        return seconds

    def watch_until_unready(self, deadline):
        """When the last probe began that still passed: it was ready then, however long a busy machine
        took for the answer."""
        path = self.main.manifest["readinessProbe"]["httpGet"]["path"]
        last = began = time.monotonic()
        while self.get(path) == 200:
            assert began < deadline, f"{self.name} stays ready"
            last, began = began, time.monotonic()
        return last

    def pre_stop(self):
        for container in self.containers:
            hook = container.manifest.get("lifecycle", {}).get("preStop")
            if hook:
                if "sleep" not in hook:
                    raise ManifestError(f"{self.name}: the image has nothing to run for preStop")
                self.stopped.wait(hook["sleep"]["seconds"] * PACE)

    def has_restarted(self):
        return any(container.num_starts > 1 or container.process.poll() is not None
                   for container in self.containers)

    def close(self):
        self.stopped.set()
        for container in self.inits + self.containers:
            if container.process is not None and container.process.poll() is None:
                container.process.kill()
                container.process.wait()
        for service, port in self.services:
            self.cluster.api.put(self.name, port, service=service, kind="DELETED")
        if self in self.cluster.pods:
            self.cluster.pods.remove(self)


class Group:
    """The pods of a LeaderWorkerSet's group, as its controller makes them and, where it says so, makes
    them anew when one of them has ended."""

    def __init__(self, cluster, name, spec):
        self.cluster, self.name, self.spec = cluster, name, spec
        self.pods, self.generation = [], 0

    def start(self):
        """All pods at once, as the leader may wait for the others."""
        group = self.spec["leaderWorkerTemplate"]
        assert self.spec["startupPolicy"] == "LeaderCreated"
        self.generation += 1
        leader = None
        for index in range(group["size"]):
            template = copy.deepcopy(group["workerTemplate" if index else "leaderTemplate"])
            pod = Pod(self.cluster, f"{self.name}-{index}-{self.generation}", template,
                      pod_services(self.cluster.items, template))
            leader = leader or pod
            pod.variables = {"LWS_GROUP_SIZE": str(group["size"]), "LWS_WORKER_INDEX": str(index),
                             "LWS_LEADER_ADDRESS": leader.address}
            self.pods.append(pod)
        at_once([pod.start for pod in self.pods])
        return self

    def recreate(self):
        """What the controller does when it sees a container that has ended."""
        assert self.spec["leaderWorkerTemplate"]["restartPolicy"] == "RecreateGroupOnPodRestart"
        assert any(pod.has_restarted() for pod in self.pods)
        for pod in self.pods:
            pod.is_terminating = True
            pod.close()
        self.pods.clear()
        return self.start()

    def delete(self):
        """As when the set has one group less: all pods end at the same time."""
        at_once([pod.delete for pod in self.pods])
        self.pods.clear()


def at_once(calls):
    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        for done in [pool.submit(call) for call in calls]:
            done.result()


def pod_services(items, template):
    """(service, port) of the headless services that list pods of the template."""
    return [(item["metadata"]["name"], item["spec"]["ports"][0]["port"]) for item in items
            if item["kind"] == "Service" and item["spec"].get("clusterIP") == "None"
            and selected(item["spec"]["selector"], template["metadata"]["labels"])]
