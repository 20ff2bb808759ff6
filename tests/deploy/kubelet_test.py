#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The pods of deploy/kubernetes, run by a kubelet of the test's own (kubelet.py) with the real binary.

usage: kubelet_test.py BINARY MODEL.gguf [PART OF A CHECK'S NAME]

Needs kubectl and PyYAML, and is skipped without. SLUICE_FULL rolls 20 workers under 64 streams.
"""
import collections
import contextlib
import copy
import http.client
import json
import os
import pathlib
import re
import struct
import sys
import tempfile
import threading
import time

import manifests  # first: finds a Python with PyYAML, and the folder of the next ones
from kubelet import Cluster, Group, ManifestError, Pod, pod_services
from kubernetes_api import Api
from mock_hub import COMMIT, REPO, Hub
from router_cluster import joined
from server_process import wait_until

KEY = "sk-of-a-test"
SECRETS = {"sluice-api-keys": {"keys": f"tests {KEY}\n"},
           "sluice-worker-secret": {"secret": "shared by workers and routers"}}
NOBODY = "127.255.0.1"  # an address where nothing listens
NUM_QUESTIONS = 4
NUM_ROLLED, NUM_STREAMS = (20, 64) if os.environ.get("SLUICE_FULL") else (3, 8)


class Case:
    """The objects of an overlay with the tiny model, from a hub of the test's own."""

    def __init__(self, binary, model, name, revision=COMMIT):
        self.folder = tempfile.TemporaryDirectory(prefix="kubelet_test")
        with open(model, "rb") as file:
            self.hub = Hub({"tiny.gguf": file.read()}, large=("tiny.gguf",))
        self.api = Api()
        self.items = manifests.own_overlay(
            self.folder.name, name,
            [f"SLUICE_MODEL={REPO}", f"SLUICE_REVISION={revision}", f"SLUICE_HUB_URL={self.hub.url}", "SLUICE_THREADS=1"],
            [f"SLUICE_SERVED_MODEL_NAME={REPO}", "SLUICE_HANDOFF_MIN_TOKENS=17"])
        self.cluster = Cluster(binary, self.folder.name, self.items, self.api,
                               copy.deepcopy(SECRETS))
        self.templates = dict(manifests.pod_templates(self.items))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        failures = [failure for pod in self.cluster.pods for failure in pod.failures]
        self.cluster.close()
        self.hub.close()
        self.api.server.shutdown()
        self.api.server.server_close()
        self.folder.cleanup()
        assert not failures, failures

    def pod(self, owner, name=None, change=lambda container: None):
        template = copy.deepcopy(self.templates[owner])
        change(next(c for c in template["spec"]["containers"] if manifests.is_ours(c)))
        return Pod(self.cluster, name or f"{owner}-{self.cluster.number}", template,
                   pod_services(self.items, template))


def request(pod, path, body=None, key=KEY):
    port = pod.main.port("http")
    connection = http.client.HTTPConnection(pod.address, port, timeout=120)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    connection.request("GET" if body is None else "POST", path,
                       None if body is None else json.dumps(body), headers)
    return connection, connection.getresponse()


def status(pod, path, key=KEY):
    connection, response = request(pod, path, key=key)
    with contextlib.closing(connection):
        return response.status


def stream(pod, number, length=200, salt="", on_event=lambda: None):
    """A whole answer; raises where it is not. Under a salt of its own its prompt is not cached."""
    connection, response = request(pod, "/v1/completions", {
        "model": REPO, "prompt": [20 + (number * 37 + i * i) % 300 for i in range(40)],
        "max_tokens": length, "stream": True, "ignore_eos": True, "temperature": 1.0,
        "seed": number, **({"cache_salt": salt} if salt else {})})
    with contextlib.closing(connection):
        assert response.status == 200, (response.status, response.read())
        events = []
        for raw in response:
            line = raw.decode().rstrip("\n")
            if line.startswith("data: "):
                events.append(line[6:])
                on_event()
        return joined("/v1/completions", events)


def check_ready_quickly(pod):
    """A probe that found a draining pod ready for longer than a second would send it clients."""
    assert pod.seconds_ready < 1, f"ready for {pod.seconds_ready:.2f} s more"


def check_end_in_streams(pod):
    """Long answers that have begun are whole when their pod ends, and some of them are under way then."""
    begun, ends, failures = threading.Semaphore(0), [], []

    def ask():
        try:
            stream(pod, 1, 1900, on_event=begun.release)
            ends.append(time.monotonic())
        except Exception as error:  # any of them is a failure
            failures.append(repr(error))
    clients = [threading.Thread(target=ask, daemon=True) for _ in range(16)]
    for client in clients:
        client.start()
        assert begun.acquire(timeout=60)
    pod.delete()
    for client in clients:
        client.join(timeout=60)
    assert not failures, f"cut by the end of the pod: {failures[:3]}"
    assert len(ends) == len(clients) and max(ends) > pod.terminated, "no stream was under way"
    check_ready_quickly(pod)


class Streams:
    """Clients that ask one question after the other, each for an answer that is known: a version's to
    a question is always the same."""

    def __init__(self, pod, count):
        self.pod, self.num_answers, self.failures, self.is_over = pod, 0, [], False
        self.lock, self.expected, self.answers_of = threading.Lock(), {}, collections.Counter()
        for number in range(NUM_QUESTIONS):
            self.check(number, stream(pod, number))
        self.threads = [threading.Thread(target=self.ask, args=(index,), daemon=True)
                        for index in range(count)]
        for thread in self.threads:
            thread.start()

    def ask(self, index):
        turn = index
        while not self.is_over:
            number = turn % NUM_QUESTIONS
            turn += 1
            try:
                self.check(number, stream(self.pod, number, salt=f"{index}-{turn}"))
                self.num_answers += 1
            except Exception as error:  # any of them ends the test
                self.failures.append(repr(error))
                self.is_over = True

    def check(self, number, answer):
        with self.lock:
            expected = self.expected.setdefault((answer["system_fingerprint"], number), answer)
            self.answers_of[answer["system_fingerprint"]] += 1
        assert answer == expected, f"{answer}\nis not\n{expected}"

    def versions(self):
        return {fingerprint for fingerprint, _ in self.expected}

    def wait_for_more(self, count):
        wanted = self.num_answers + count
        wait_until(f"{wanted} answers", lambda: self.failures or self.num_answers >= wanted, 120)

    def end(self):
        self.is_over = True
        for thread in self.threads:
            thread.join(timeout=120)
            assert not thread.is_alive(), "a client waits for its answer"
        assert not self.failures, self.failures[:3]


def a_server_starts_keeps_its_keys_fresh_and_ends(binary, model):
    with Case(binary, model, "cpu") as case:
        pod = case.pod("sluice").start()
        wait_until("the pod is ready", lambda: pod.is_ready)
        assert case.hub.requests("storage", "GET", "tiny.gguf"), "the model came from elsewhere"
        assert pod.inits[0].message() == f"{REPO}, revision {COMMIT}: commit {COMMIT}\n"
        assert status(pod, "/v1/models") == 200
        assert status(pod, "/v1/models", key="sk-none") == 401
        case.cluster.write_secret("sluice-api-keys", {"keys": "tests sk-new\n"})
        wait_until("the new key is known", lambda: status(pod, "/v1/models", "sk-new") == 200)
        assert status(pod, "/v1/models") == 401
        case.cluster.write_secret("sluice-api-keys", SECRETS["sluice-api-keys"])
        wait_until("the old key is back", lambda: status(pod, "/v1/models") == 200)
        pod.main.process.kill()
        wait_until("the container is started again", lambda: pod.main.num_starts == 2)
        wait_until("the pod is ready again", lambda: pod.is_ready)
        check_end_in_streams(pod)


def a_failed_download_says_why_in_one_line(binary, model):
    with Case(binary, model, "cpu") as case:
        case.hub.token = "hf_none"  # the repository is gated
        pod = case.pod("sluice")
        with contextlib.suppress(ManifestError):
            pod.start()
            raise AssertionError("it starts without its model")
        message = pod.inits[0].message()
        assert pod.state == "Init:CrashLoopBackOff" and pod.main.num_starts == 0
        lines = message.splitlines()
        assert len(lines) == 1 and lines[0].startswith("sluice: ") and "401" in lines[0], message


def workers_are_rolled_under_load(binary, model, name, owners, num_each):
    """As a Deployment does it that may have one pod more: a new one is ready before an old one ends."""
    with Case(binary, model, name) as case:
        workers = [case.pod(owner).start() for _ in range(num_each) for owner in owners]
        router = case.pod("sluice-router").start()
        wait_until("the router is ready", lambda: router.is_ready)
        streams = Streams(router, NUM_STREAMS)
        for turn in range(NUM_ROLLED):
            new = case.pod(owners[turn % len(owners)]).start()
            wait_until("a new worker is ready", lambda: new.is_ready or streams.failures)
            workers.append(new)
            streams.wait_for_more(NUM_STREAMS)
            old = workers.pop(0)
            seconds = old.delete()
            check_ready_quickly(old)
            print(f"  {old.name} was ready for {old.seconds_ready:.3f} s after SIGTERM, and ended "
                  f"after {seconds:.2f} s", flush=True)
        streams.wait_for_more(NUM_STREAMS)
        streams.end()
        print(f"  {streams.num_answers} answers, each as at rest")
        if len(owners) > 1:
            assert metric(router, "sluice:router_handoffs_total") > 0, "no prompt was handed over"
        next_router = case.pod("sluice-router").start()
        wait_until("the next router is ready", lambda: next_router.is_ready)
        check_end_in_streams(router)
        check_router_outlives_workers(next_router, workers)


def another_build(binary, folder):
    """The binary as another build of the same code: its build ID is what fingerprints know it by."""
    code = bytearray(binary.read_bytes())
    name = struct.pack("<III", 4, 20, 3) + b"GNU\0"  # sizes of name and ID, NT_GNU_BUILD_ID
    at = code.index(name) + len(name)
    code[at] ^= 0xFF
    path = pathlib.Path(folder) / "sluice"
    path.write_bytes(code)
    path.chmod(0o755)
    return path


def other_weights(model):
    """The model's file as it is after more training: one bit of its last tensor differs."""
    data = bytearray(model.read_bytes())
    data[-64] ^= 1
    return bytes(data)


def other_dtype(container):
    container["env"].append({"name": "SLUICE_KV_CACHE_DTYPE", "value": "float16"})


def shares(pod):
    """Of new requests, by fingerprint, as the router says."""
    connection, response = request(pod, "/metrics")
    with contextlib.closing(connection):
        found = re.findall(r'sluice:router_fingerprint_share{fingerprint="(\w+)"} (\S+)',
                           response.read().decode())
    return {fingerprint: float(share) for fingerprint, share in found}


def a_new_version_is_rolled_under_load(binary, model, kind):
    """As `kubectl apply` of a new tag or dtype does it, or pods that follow main start after a push: no
    request fails, and each is of one version."""
    with Case(binary, model, "autoscaled", "main" if kind == "push" else COMMIT) as case:
        workers = [case.pod("sluice-worker").start() for _ in range(3)]
        router = case.pod("sluice-router").start()
        wait_until("the router is ready", lambda: router.is_ready)
        streams = Streams(router, NUM_STREAMS)
        old_versions = streams.versions()
        change = other_dtype if kind == "dtype" else lambda container: None
        if kind == "build":
            case.cluster.binary = another_build(binary, case.folder.name)
        if kind == "push":
            case.hub.push({"tiny.gguf": other_weights(model)})
        for turn in range(3):
            new = case.pod("sluice-worker", change=change).start()
            wait_until("a new worker is ready", lambda: new.is_ready or streams.failures)
            if kind == "push":
                said = f"{REPO}, revision main: commit {case.hub.commit}\n"
                assert new.inits[0].message() == said, new.inits[0].message()
            workers.append(new)
            streams.wait_for_more(NUM_STREAMS)
            workers.pop(0).delete()
        streams.wait_for_more(NUM_STREAMS)
        streams.end()
        (old,), (new,) = old_versions, streams.versions() - old_versions
        assert shares(router)[new] == 1, shares(router)
        if kind == "build":
            for number in range(NUM_QUESTIONS):
                before, after = (streams.expected[version, number] for version in (old, new))
                assert before["choices"] == after["choices"], "the same code gives other answers"
        named = [line for line in router.main.log().splitlines() if "worker_differs" in line]
        assert named and len(named) == len(set(json.loads(line)["worker"] for line in named)), named
        print(f"  {streams.num_answers} answers of {old}, then {new}; none failed")
        for pod in [router, *workers]:
            pod.delete()


def a_canary_gets_its_share(binary, model):
    with Case(binary, model, "autoscaled") as case:
        workers = [case.pod("sluice-worker").start() for _ in range(2)]
        workers.append(case.pod("sluice-worker", change=other_dtype).start())
        usual, canary = (stream(pod, 1)["system_fingerprint"] for pod in (workers[0], workers[2]))
        router = case.pod("sluice-router", change=lambda container: container["env"].append(
            {"name": "SLUICE_ROUTE_SHARE", "value": f"{canary}=0.1"})).start()
        wait_until("both versions are served",
                   lambda: shares(router) == {usual: 0.9, canary: 0.1}, 30)
        answers = [stream(router, number, 5)["system_fingerprint"] for number in range(50)]
        assert 4 <= answers.count(canary) <= 6, answers.count(canary)
        assert answers.count(usual) + answers.count(canary) == 50
        streams = Streams(router, NUM_STREAMS)
        streams.wait_for_more(max(2 * NUM_STREAMS, 50))
        counted = streams.answers_of.copy()
        share = counted[canary] / counted.total()
        assert 0.05 <= share <= 0.16, counted
        workers[2].delete()  # beside requests that have just been read for it
        wait_until("the canary has gone", lambda: shares(router)[usual] == 1)
        streams.wait_for_more(NUM_STREAMS)
        streams.end()
        assert stream(router, 1, 5)["system_fingerprint"] == usual
        print(f"  {share:.3f} of {counted.total()} answers were the canary's while it was there; "
              f"none of {streams.num_answers} failed")
        for pod in [router, *workers[:2]]:
            pod.delete()


def a_node_is_drained_under_load(binary, model):
    """Two of three workers end at once, and others come for them."""
    with Case(binary, model, "autoscaled") as case:
        workers = [case.pod("sluice-worker").start() for _ in range(3)]
        router = case.pod("sluice-router").start()
        wait_until("the router is ready", lambda: router.is_ready)
        streams = Streams(router, NUM_STREAMS)
        ends = [threading.Thread(target=pod.delete) for pod in workers[:2]]
        for end in ends:
            end.start()
        replaced = [case.pod("sluice-worker").start() for _ in ends]
        for end in ends:
            end.join()
        wait_until("all are ready", lambda: all(pod.is_ready for pod in replaced))
        streams.wait_for_more(2 * NUM_STREAMS)
        streams.end()
        assert len(streams.versions()) == 1
        for pod in [router, workers[2], *replaced]:
            pod.delete()


def metric(pod, name):
    connection, response = request(pod, "/metrics")
    with contextlib.closing(connection):
        lines = response.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines
               if line.startswith((name + "{", name + " ")))


def check_router_outlives_workers(router, workers):
    """Without workers a router is not ready, and is not started again for that."""
    for worker in workers:
        worker.delete()
    wait_until("the router is not ready", lambda: not router.is_ready)
    assert router.get("/version") == 200 and router.main.num_starts == 1
    router.delete()


def an_overlay_is_played(binary, model, name):
    """Each template of an overlay as a pod, on the CPU: it starts, becomes ready and ends."""
    def on_cpu(container):
        for item in container.get("env", []):
            if item["name"] == "SLUICE_DEVICE":
                item["value"] = "cpu"
    with Case(binary, model, name) as case:
        owners = [owner for owner, template in case.templates.items()
                  if any(manifests.is_ours(c) for c in manifests.containers(template))]
        routers = [owner for owner in owners if "router" in owner or "leader" in owner]
        workers = [case.pod(owner, change=on_cpu) for owner in owners if owner not in routers]
        for pod in workers:
            if name == "multi-node":  # what the set's controller says, too
                pod.variables = {"LWS_GROUP_SIZE": "5", "LWS_WORKER_INDEX": "1",
                                 "LWS_LEADER_ADDRESS": NOBODY}
        pods = [pod.start() for pod in workers]
        for owner in routers:
            # The Service of a LeaderWorkerSet's group, which has its leader too.
            case.cluster.names["leader-0"] = [NOBODY, *(pod.address for pod in pods)]
            pods.append(case.pod(owner, "leader-0" if "leader" in owner else None).start())
        for pod in pods:
            wait_until(f"{pod.name} is ready", lambda: pod.is_ready)
        if routers:
            stream(pods[-1], 1, 20)
        for pod in reversed(pods):
            pod.delete()


def a_group_of_ranks_is_made_anew_under_load(binary, model):
    """A pod of one of two groups is killed: the group ends and comes again, and no stream is lost. Then a
    group is deleted as a whole, which ends its streams in order."""
    with Case(binary, model, "ranks") as case:
        spec = manifests.named(case.items, "LeaderWorkerSet", "sluice-ranks")["spec"]
        groups = [Group(case.cluster, f"sluice-ranks-{number}", spec).start() for number in range(2)]
        router = case.pod("sluice-router").start()
        wait_until("the router is ready", lambda: router.is_ready)
        streams = Streams(router, NUM_STREAMS)
        assert status(groups[0].pods[1], "/v1/models") != 200, "a rank answers clients"
        for victim in (1, 0):
            begun = time.monotonic()
            groups[0].pods[victim].main.process.kill()
            wait_until("the others of the group end too",
                       lambda: all(pod.has_restarted() for pod in groups[0].pods))
            seconds = time.monotonic() - begun
            groups[0].recreate()
            wait_until("the group is ready again", lambda: groups[0].pods[0].is_ready)
            streams.wait_for_more(NUM_STREAMS)
            print(f"  the group had ended {seconds:.1f} s after one of its pods was killed", flush=True)
        assert not streams.failures, streams.failures
        groups[1].delete()
        streams.wait_for_more(NUM_STREAMS)
        streams.end()
        assert len(streams.versions()) == 1
        assert metric(router, "sluice:router_continuations_total") > 0, "no stream was continued"
        print(f"  {streams.num_answers} answers, each as at rest")
        router.delete()
        groups[0].delete()


def what_the_binary_does_not_have_fails_here(binary, model):
    """The test's own test: a manifest with a mistake."""
    def path(kind, value):
        return lambda c: c[kind]["httpGet"].update(path=value)
    mistakes = {
        "a startup probe of no page": (path("startupProbe", "/healthz"), "/healthz gets 404"),
        "a readiness probe of no page": (path("readinessProbe", "/health/ready"), "gets 404"),
        "a liveness probe of no page": (path("livenessProbe", "/livez"), "gets 404"),
        "a probe that needs a key": (path("readinessProbe", "/v1/models"), "gets 401"),
        "a probe of no port": (lambda c: c["startupProbe"]["httpGet"].update(port="web"), "port web"),
        "no such flag": (lambda c: c["args"].append("--max-num-sequences=1"), "max-num-sequences"),
        "no such variable": (lambda c: c["env"].append({"name": "SLUICE_DRAIN_S", "value": "1"}),
                             "the binary has no SLUICE_DRAIN_S"),
        "a value out of range": (lambda c: c["env"].append(
            {"name": "SLUICE_MAX_NUM_SEQS", "value": "-1"}), "max-num-seqs"),
        "no such secret": (lambda c: c["env"].append({"name": "SLUICE_WORKER_SECRET", "valueFrom": {
            "secretKeyRef": {"name": "none", "key": "secret"}}}), "no Secret none"),
        "a shell": (lambda c: c.update(command=["/bin/sh", "-c", "sluice serve"]), "no /bin/sh"),
        "preStop by a shell": (lambda c: c["lifecycle"].update(
            preStop={"exec": {"command": ["sleep", "5"]}}), "nothing to run for preStop"),
    }
    with Case(binary, model, "cpu") as case:
        for name, (change, expected) in mistakes.items():
            pod = case.pod("sluice", change=change)
            try:
                pod.start()
                wait_until("ready, or a failed probe", lambda: pod.is_ready or pod.failures, 30)
                wait_until("liveness", lambda: pod.failures or "liveness" not in name, 30)
                if pod.failures:
                    raise ManifestError(pod.failures[0])
                pod.delete()
            except ManifestError as error:
                assert expected in str(error), f"{name}: {error}"
            else:
                raise AssertionError(f"{name} is not found")
            finally:
                pod.failures.clear()
                pod.close()


def a_stream_that_is_cut_fails_here(binary, model):
    def at_once(container):
        next(item for item in container["env"]
             if item["name"] == "SLUICE_DRAIN_TIMEOUT_S")["value"] = "0"
    with Case(binary, model, "cpu") as case:
        pod = case.pod("sluice", change=at_once).start()
        try:
            check_end_in_streams(pod)
        except AssertionError as error:
            assert "cut by the end" in str(error), error
        else:
            raise AssertionError("a cut stream is not seen")


def main():
    binary, model = map(pathlib.Path, sys.argv[1:3])
    wanted = sys.argv[3] if len(sys.argv) > 3 else ""
    # The others are in what comes before; the pods of autoscaled-keda are those of autoscaled.
    played = [name for name in manifests.OVERLAYS
              if name not in ("cpu", "autoscaled", "autoscaled-keda", "disaggregated", "ranks")]
    for check, *more in [
            (a_server_starts_keeps_its_keys_fresh_and_ends,),
            (a_failed_download_says_why_in_one_line,),
            (workers_are_rolled_under_load, "autoscaled", ["sluice-worker"], 3),
            (workers_are_rolled_under_load, "disaggregated", ["sluice-prefill", "sluice-decode"], 1),
            (a_new_version_is_rolled_under_load, "dtype"),
            (a_new_version_is_rolled_under_load, "build"),
            (a_new_version_is_rolled_under_load, "push"),
            (a_canary_gets_its_share,),
            (a_node_is_drained_under_load,),
            (a_group_of_ranks_is_made_anew_under_load,),
            (what_the_binary_does_not_have_fails_here,),
            (a_stream_that_is_cut_fails_here,),
            *((an_overlay_is_played, name) for name in played)]:
        if wanted not in check.__name__:
            continue
        started = time.monotonic()
        check(binary, model, *more)
        print(f"ok {check.__name__} {more[0] if more else ''} ({time.monotonic() - started:.1f} s)",
              flush=True)


if __name__ == "__main__":
    main()
