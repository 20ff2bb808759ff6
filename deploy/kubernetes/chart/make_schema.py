#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes values.schema.json: what the chart takes, and every knob of engine/core/knobs.md as a setting with
its range. Usage: python3 make_schema.py"""
import json
import pathlib
import re

FOLDER = pathlib.Path(__file__).resolve().parent
KNOBS = FOLDER.parents[2] / "engine/core/knobs.md"
SUFFIXED = r"^-?[0-9]+(\.[0-9]+)?([eE]\+?[0-9]+)?([kmgt]|[KMGT](i|iB)?)?$"
TEXT = {"type": "string"}
QUANTITY = {"type": "string", "pattern": "^[0-9]+[KMGTP]i?$"}
BOOLEAN = {"type": "boolean"}
MAP = {"type": "object"}
TEXTS = {"type": "object", "additionalProperties": {"type": ["string", "null"]}}
WHEN_THERE = {"enum": [True, False, "auto"]}


def closed(properties, **more):
    return {"type": "object", "additionalProperties": False, "properties": properties, **more}


def choice(*values):
    return {"enum": list(values)}


def items(of):
    return {"type": "array", "items": of}


def natural(least, most=None):
    return {"type": "integer", "minimum": least} | ({"maximum": most} if most is not None else {})


def setting(values, default, text):
    """The schema of a knob, by its row in knobs.md."""
    number = re.match(r"(?:from (-?\d+)|(-?\d+) to (-?\d+))(?: |$)", values)
    if values == "true, false":
        return {"type": ["boolean", "string"], **choice(True, False, "true", "false", "1", "0", "on", "off")}
    if number:
        least = int(number[1] or number[2])
        bounds = {"minimum": least} | ({"maximum": int(number[3])} if number[3] else {})
        kinds = [{"type": "integer", **bounds}, {"type": "string", "pattern": SUFFIXED}]
        return {"anyOf": [*kinds, {"enum": ["auto", -1]}] if default == "auto" else kinds}
    if values.startswith("list"):
        each = {"type": ["string", "integer"]}
        return {"anyOf": [each, {"type": "array", "items": each}]}
    if values == "text":
        is_json = text.startswith("JSON")
        return {"type": ["string", "number", "object"] if is_json else ["string", "number"]}
    words = values.split(", ")
    words[-1] = words[-1].split(" ")[0]  # the unit
    numbers = [int(word) for word in words if word.isdigit()]
    return {"anyOf": [choice(*words), choice(*numbers)]} if numbers else choice(*words)


def settings():
    rows = re.findall(r"^\| `--([a-z0-9-]+)` \| `?([^|`]*)`? \| ([^|]+) \| (.+) \|$", KNOBS.read_text(), re.M)
    assert len(rows) > 80
    found = {"SLUICE_" + name.upper().replace("-", "_"): setting(values.strip(), default.strip(), text)
             for name, default, values, text in rows}
    return dict(sorted(found.items()))


def pods():
    return {"resources": closed({"requests": MAP, "limits": MAP, "claims": {"type": "array"}}),
            "nodeSelector": TEXTS, "tolerations": items(MAP), "affinity": MAP,
            "topologySpreadConstraints": items({"type": "object", "required": [
                "maxSkew", "topologyKey", "whenUnsatisfiable"]}),
            "priorityClassName": TEXT, "runtimeClassName": TEXT, "schedulerName": TEXT, "podLabels": TEXTS,
            "podAnnotations": TEXTS, "env": items({"type": "object", "required": ["name"]}), "patch": MAP}


def image(**more):
    return closed({"registry": TEXT, "repository": TEXT, "tag": {"type": "string"},
                   "digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"}, **more})


def properties():
    knobs = {"$ref": "#/definitions/settings"}
    role = closed(pods() | {"settings": knobs})
    return {
        "global": MAP,
        "topology": choice("server", "routed", "disaggregated", "llm-d", "groups", "ranks"),
        "device": choice("cpu", "cuda"),
        "settings": {"allOf": [knobs], "required": ["SLUICE_MODEL"]},
        "servedModelName": TEXT,
        "model": closed(
            {"source": choice("download", "claim", "image"), "downloadSize": QUANTITY, "existingClaim": TEXT,
             "claimSize": QUANTITY, "storageClass": TEXT, "image": TEXT,
             "accessModes": items(choice("ReadWriteMany", "ReadWriteOnce", "ReadOnlyMany",
                                         "ReadWriteOncePod"))},
            required=["source"], **{
                "if": {"properties": {"source": {"const": "image"}}},
                "then": {"required": ["image"], "properties": {"image": {"minLength": 1}}}}),
        "gpu": closed({"count": choice(1, 2, 4, 8), "nodeSelector": TEXTS}),
        "drainTimeoutSeconds": natural(0, 86400),
        "replicas": {"type": "object", "propertyNames": choice(
            "sluice", "sluice-worker", "sluice-prefill", "sluice-decode", "sluice-ranks", "sluice-router"),
            "additionalProperties": natural(0)},
        "groupSize": natural(2),
        "ranks": choice(2, 4, 8),
        "stages": choice(1, 2, 4, 8),
        "fullnameOverride": {"type": "string", "pattern": "^([a-z]([a-z0-9-]{0,38}[a-z0-9])?)?$"},
        "image": image(pullPolicy=choice("", "Always", "IfNotPresent", "Never")),
        "images": {"type": "object", "propertyNames": choice("llm-d-endpoint-picker", "llm-d-sidecar"),
                   "additionalProperties": image()},
        "imagePullSecrets": items(closed({"name": TEXT}, required=["name"])),
        "secrets": closed({name: {"type": "string", "minLength": 1} for name in ("apiKeys", "worker", "hub")}),
        "server": closed(pods()),
        "router": role, "prefill": role, "decode": role,
        "service": closed({"type": choice("ClusterIP", "NodePort", "LoadBalancer"),
                           "port": natural(1, 65535), "annotations": TEXTS}),
        "serviceAccount": closed({"annotations": TEXTS}),
        "networkPolicy": closed({"enabled": BOOLEAN}),
        "ingress": closed(
            {"enabled": BOOLEAN, "className": TEXT, "annotations": TEXTS, "tls": items(MAP),
             "hosts": items(closed({"host": TEXT, "paths": items(closed({
                 "path": TEXT, "pathType": choice("Prefix", "Exact", "ImplementationSpecific")}))}))},
            **{"if": {"properties": {"enabled": {"const": True}}},
               "then": {"properties": {"hosts": {"minItems": 1}}}}),
        "httpRoute": closed({"enabled": BOOLEAN, "annotations": TEXTS, "parentRefs": items(MAP),
                             "hostnames": items(TEXT)}),
        "autoscaling": closed({"kind": choice("none", "hpa", "keda"), "minReplicas": natural(1),
                               "maxReplicas": natural(1), "prometheus": TEXT}, required=["kind"]),
        "podMonitor": WHEN_THERE, "alerts": WHEN_THERE, "dashboards": BOOLEAN,
    }


def lined(value, depth):
    """JSON with a line for each member of objects down to `depth`."""
    if depth == 0 or not isinstance(value, dict):
        return json.dumps(value)
    members = (f"{json.dumps(key)}: {lined(each, 3 if key == 'definitions' else depth - 1)}"
               for key, each in value.items())
    return "{\n" + ",\n".join(members) + "\n}"


def schema():
    made = {"$schema": "http://json-schema.org/draft-07/schema#",
            **closed(properties(), required=["topology", "device", "settings", "model",
                                             "drainTimeoutSeconds", "autoscaling"]),
            "definitions": {"settings": closed(settings())}}
    return lined(made, 2) + "\n"


if __name__ == "__main__":
    (FOLDER / "values.schema.json").write_text(schema())
