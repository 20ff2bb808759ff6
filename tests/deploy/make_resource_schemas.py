#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes resource_schemas.json: what the custom resources of deploy/kubernetes may hold, as those who
define them say it. All of these are under Apache-2.0.

usage: make_resource_schemas.py FOLDER

FOLDER has a clone of each repository of SOURCES, as OWNER+NAME/repo, with its tags. Needs PyYAML. Of a
definition the schema of `spec` is kept, without descriptions, and closed: a cluster drops fields that it
does not know, a test should refuse them. Rules in CEL are not kept. Pod templates are left open, as
manifests_test.py checks them as pods.
"""
import json
import pathlib
import subprocess
import sys

import yaml

SOURCES = {  # apiVersion and kind: repository, tag, file
    "gateway.networking.k8s.io/v1 HTTPRoute": (
        "kubernetes-sigs/gateway-api", "v1.6.1",
        "config/crd/standard/gateway.networking.k8s.io_httproutes.yaml"),
    "inference.networking.k8s.io/v1 InferencePool": (
        "kubernetes-sigs/gateway-api-inference-extension", "v1.5.0",
        "config/crd/bases/inference.networking.k8s.io_inferencepools.yaml"),
    "keda.sh/v1alpha1 ScaledObject": (
        "kedacore/keda", "v2.20.2", "config/crd/bases/keda.sh_scaledobjects.yaml"),
    "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet": (
        "kubernetes-sigs/lws", "v0.10.0",
        "config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml"),
    "monitoring.coreos.com/v1 PodMonitor": (
        "prometheus-operator/prometheus-operator", "v0.93.0",
        "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml"),
    "monitoring.coreos.com/v1 PrometheusRule": (
        "prometheus-operator/prometheus-operator", "v0.93.0",
        "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml"),
}
POD_TEMPLATES = ("leaderTemplate", "workerTemplate")
# `default` and `format` bind nothing; integers as strings are written out below.
LEFT_OUT = ("description", "default", "format", "example")


def kept(schema, name=""):
    if name in POD_TEMPLATES:
        return {"type": "object"}
    out = {}
    for key, value in schema.items():
        if key in LEFT_OUT or key.startswith("x-kubernetes-"):
            continue
        if key == "properties":
            out[key] = {each: kept(inner, each) for each, inner in value.items()}
        elif key in ("items", "not") or key == "additionalProperties" and isinstance(value, dict):
            out[key] = kept(value)
        elif key in ("allOf", "anyOf", "oneOf"):
            out[key] = [kept(each) for each in value]
        else:
            out[key] = value
    if schema.get("x-kubernetes-int-or-string"):
        out |= {"type": ["integer", "string"]}
        out.pop("anyOf", None)
    if out.pop("nullable", False):
        out["type"] = [*([out["type"]] if isinstance(out["type"], str) else out["type"]), "null"]
    is_open = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in out
    if out.get("type") == "object" and "properties" in out and not is_open:
        out["additionalProperties"] = False
    return out


def definition(folder, repository, tag, path):
    place = pathlib.Path(folder) / repository.replace("/", "+") / "repo"
    text = subprocess.run(["git", "-C", str(place), "show", f"{tag}:{path}"], check=True,
                          capture_output=True, text=True).stdout
    return yaml.safe_load(text)


def main():
    schemas = {}
    for resource, (repository, tag, path) in SOURCES.items():
        version, kind = resource.split("/")[1].split()
        defined = definition(sys.argv[1], repository, tag, path)["spec"]
        assert defined["names"]["kind"] == kind
        served = next(each for each in defined["versions"] if each["name"] == version)
        whole = served["schema"]["openAPIV3Schema"]["properties"]["spec"]
        schemas[resource] = {"version": f"{tag} of {repository}", "spec": kept(whole)}
    text = ",\n".join(f"{json.dumps(name)}: {json.dumps(schema, separators=(',', ':'))}"
                      for name, schema in schemas.items())
    pathlib.Path(__file__).with_name("resource_schemas.json").write_text("{\n" + text + "\n}\n")


if __name__ == "__main__":
    main()
