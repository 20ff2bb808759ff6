#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/compose.yaml, started as `docker compose up` does it, with the real binary and no container.

usage: compose_test.py BINARY MODEL.gguf

Containers have addresses of 127.0.0.0/8, which take the place of 0.0.0.0 and of their names, and folders
that take the places of their volumes. Needs PyYAML, and is skipped without.
"""
import contextlib
import http.client
import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import manifests  # first: finds a Python with PyYAML, and the folder of the next ones
import yaml
from kubelet import at_address, knobs, own_address, with_addresses
from server_process import wait_until

DEPLOY = manifests.REPOSITORY / "deploy"
WITHOUT_VERSION = "sluice"  # built beside it
VARIABLES = {"SLUICE_MODEL": "/models/model.gguf", "SLUICE_WORKER_SECRET": "a secret of more than 16 characters"}


def filled_in(item, variables):
    """Strings with their variables: ${NAME:?message} must be there, ${NAME:-default} may be."""
    if isinstance(item, dict):
        return {key: filled_in(value, variables) for key, value in item.items()}
    if isinstance(item, list):
        return [filled_in(value, variables) for value in item]

    def value(match):
        name, kind, rest = match.groups()
        if variables.get(name):
            return variables[name]
        assert kind == "-", f"{name}: {rest}"
        return rest
    return re.sub(r"\$\{(\w+):([?-])([^}]*)\}", value, item) if isinstance(item, str) else item


def services(variables):
    return filled_in(yaml.safe_load((DEPLOY / "compose.yaml").read_text()), variables)["services"]


def seconds(text):
    assert re.fullmatch(r"\d+s", text), text
    return int(text[:-1])


class Container:
    def __init__(self, project, name, service):
        self.project, self.service = project, service
        project.number += 1
        self.name, self.address = f"{name}-{project.number}", own_address(project.number)
        project.names.setdefault(name, []).append(self.address)

    def placed(self, value):
        value = with_addresses(at_address(value, self.address), self.project.names)
        for volume in self.service.get("volumes", []):
            source, target, mode = volume.split(":")
            assert mode == "ro" and self.service["read_only"], f"{self.name} may write"
            if value.startswith(target + "/"):
                return source + value[len(target):]
        return value

    def start(self):
        project, entry = self.project, self.service.get("command", self.project.command)
        environment = project.image_environment | self.service.get("environment", {})
        unknown = [name for name in environment
                   if name.startswith("SLUICE_") and name not in project.knobs]
        assert not unknown, f"{self.name}: the binary has no {unknown}"
        environment = {name: self.placed(value) for name, value in environment.items()}
        self.log_path = project.folder / f"{self.name}.log"
        with open(self.log_path, "w") as log:
            self.process = subprocess.Popen(
                [project.binary, *map(self.placed, entry)], stdout=log, stderr=log,
                env=environment | {"HOME": str(project.folder), "SLUICE_THREADS": "1"})

    def log(self):
        return f"{self.name}: {self.log_path.read_text()}"

    def is_healthy(self):
        """HEALTHCHECK's command, which asks the container's own loopback."""
        assert self.process.poll() is None, self.log()
        return subprocess.run([self.project.binary, "health", "--url", f"http://{self.address}:8000"],
                              capture_output=True).returncode == 0

    def published(self):
        """The port that clients reach outside, which must be one that is listened on inside."""
        host, outside, inside = self.service["ports"][0].split(":")
        assert host == "127.0.0.1" and inside == "8000", self.service["ports"]
        return int(outside)

    def stop(self):
        started = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=seconds(self.service["stop_grace_period"]))
        assert code == 0, f"{self.name} ends with {code}: {self.log()}"
        return time.monotonic() - started

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Project:
    """`docker compose up NAME`: the service, and those that it depends on before it."""

    def __init__(self, binary, model):
        self.binary, self.knobs = binary, knobs(binary)
        _, self.command, self.image_environment = manifests.image_settings()
        self.temporary = tempfile.TemporaryDirectory(prefix="compose_test")
        self.folder = pathlib.Path(self.temporary.name)
        shutil.copy(model, self.folder / "model.gguf")
        self.services = services(VARIABLES | {"SLUICE_MODELS": str(self.folder)})
        self.names, self.number, self.containers = {}, 0, []

    def up(self, name):
        service = self.services[name]
        for other in service.get("depends_on", []):
            if other not in self.names:
                self.up(other)
        for _ in range(service.get("deploy", {}).get("replicas", 1)):
            container = Container(self, name, service)
            container.start()
            self.containers.append(container)
            wait_until(f"{container.name} is healthy", container.is_healthy, 60)
        return self.containers[-1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for container in self.containers:
            container.kill()
        self.temporary.cleanup()


def asked(container, path, body=None):
    connection = http.client.HTTPConnection(container.address, 8000, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET" if body is None else "POST", path,
                           None if body is None else json.dumps(body),
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode()
        assert response.status == 200, (path, response.status, text, container.log())
        return text


def metric(container, name):
    return sum(float(line.rsplit(" ", 1)[1]) for line in asked(container, "/metrics").splitlines()
               if line.startswith((name + "{", name + " ")))


def each_group_answers(binary, model):
    """What `up`, `up router` and `up pair_router` start answers one question, and ends in order."""
    answers = set()
    for name, outside, num_workers in (("sluice", 8000, 0), ("router", 8001, 2), ("pair_router", 8002, 2)):
        with Project(binary, model) as project:
            front = project.up(name)
            assert front.published() == outside
            if num_workers:
                wait_until("all workers are usable", lambda: metric(
                    front, "sluice:router_usable_workers") == num_workers, 30)
            prompt = [20 + i * i % 300 for i in range(600)]  # long enough for a handoff
            answer = json.loads(asked(front, "/v1/completions", {
                "prompt": prompt, "max_tokens": 16, "temperature": 0, "ignore_eos": True}))
            answers.add(answer["choices"][0]["text"])
            if name == "pair_router":
                assert metric(front, "sluice:router_handoffs_total") == 1, front.log()
            for container in reversed(project.containers):
                container.stop()
            assert seconds(front.service["stop_grace_period"]) > 60  # --drain-timeout-s
    assert len(answers) == 1, f"the same question has {len(answers)} answers"


def workers_without_a_secret_do_not_start(binary, model):
    with Project(binary, model) as project:
        project.services = services({"SLUICE_MODEL": "/models/model.gguf",
                                     "SLUICE_MODELS": str(project.folder)})
        container = Container(project, "worker", project.services["worker"])
        listens = container.service["environment"]["SLUICE_WORKER_LISTEN"]
        assert listens.startswith("0.0.0.0:"), listens  # no loopback, so it stays as it is here
        place = container.placed
        container.placed = lambda value: value if value == listens else place(value)
        container.start()
        project.containers.append(container)
        assert container.process.wait(timeout=60) != 0
        assert "--worker-secret" in container.log(), container.log()


def what_it_names_is_there(binary, model):
    """Files that are mounted, names that others reach, versions of images."""
    found = services(VARIABLES | {"SLUICE_MODELS": "/models-of-a-test"})
    for name, service in found.items():
        if service["image"] != WITHOUT_VERSION:
            assert re.search(r":v?\d+\.\d+\.\d+(@sha256:[0-9a-f]{64})?$", service["image"]), name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists(), f"{name}: {source}"
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), f"{name} is reached from outside: {port}"
    scraped = yaml.safe_load((DEPLOY / "compose/prometheus.yaml").read_text())["scrape_configs"]
    for job in scraped:
        targets = [t for each in job.get("static_configs", []) for t in each["targets"]]
        targets += [f"{name}:{each['port']}" for each in job.get("dns_sd_configs", [])
                    for name in each["names"]]
        assert targets, job
        for target in targets:
            host, port = target.split(":")
            assert host in found and port == "8000", target
    source = yaml.safe_load((DEPLOY / "compose/grafana/datasource.yaml").read_text())
    for each in source["datasources"]:
        assert re.fullmatch(r"http://(\w+):9090", each["url"])[1] in found, each


def main():
    binary, model = map(pathlib.Path, sys.argv[1:3])
    for check in (what_it_names_is_there, workers_without_a_secret_do_not_start, each_group_answers):
        started = time.monotonic()
        check(binary, model)
        print(f"ok {check.__name__} ({time.monotonic() - started:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
