#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes typescript_tools.json: lists of tools and what the code published with Kimi-K2.5 makes of
them; null where it refuses them.

    python make_typescript_goldens.py tool_declaration_ts.py

The module is the one beside the weights of moonshotai/Kimi-K2.5. That of the package
tinker-cookbook 0.6.1 (renderers/kimi_k2_5_tool_declaration_ts.py) says that it is a copy.
"""
import hashlib
import importlib.util
import json
import pathlib
import random
import sys

NAMES = ["city", "unit", "days", "Zone", "a_list", "käse", "where to", "q"]
TEXTS = ["A city.", "Two\nlines", "Gap\n\nbetween", "", "Käse \"quoted\""]


def function(name, parameters=None, description=None):
    made = {"name": name}
    if description is not None:
        made["description"] = description
    if parameters is not None:
        made["parameters"] = parameters
    return {"type": "function", "function": made}


def of(properties, **more):
    return {"type": "object", "properties": properties, **more}


def by_hand():
    yield [function("bare")]
    yield [function("empty", {}, "")]
    yield [function("get_weather", of(
        {"location": {"type": "string", "description": "City and country"},
         "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"}},
        required=["location"]), "Determine weather\nin a place")]
    yield [function("b", of({"z": {"type": "integer", "minimum": 1, "maximum": 2.5, "default": 3},
                             "y": {"type": "number", "minimum": 1e16, "default": 1.0},
                             "x": {"type": "boolean", "default": False}})), function("a")]
    yield [function("limits", of({"t": {"type": "string", "pattern": "^a\\d+$", "maxLength": 9, "minLength": 0},
                                  "l": {"type": "array", "minItems": 1, "maxItems": 4, "items": {"type": "string"}},
                                  "n": {"type": "null"}, "o": {"type": "object", "maximum": 3}}))]
    yield [function("deep", of({"o": of({"i": of({"t": {"type": "string", "description": "Deep\n\ndown"}},
                                                 required=["t"])}, description="An object")}, required=["o"]))]
    yield [function("lists", of({"a": {"type": "array", "items": {"type": "string", "description": "One"}},
                                 "b": {"type": "array", "items": of({"k": {"type": "integer", "maximum": 7}})},
                                 "c": {"type": "array", "items": {"type": "array", "items": {
                                     "type": "number", "minimum": 0, "description": "In\nit"}}},
                                 "d": {"type": "array"}, "e": {"type": "array", "items": False},
                                 "f": {"type": "array", "items": True}, "g": {"type": "array", "items": {}}}))]
    yield [function("unions", of({"a": {"anyOf": [{"type": "string"}, {"type": "null"}], "description": "Either",
                                        "default": None},
                                  "b": {"type": ["integer", "null", "array", "object", "boolean"]},
                                  "c": {"anyOf": [of({"k": {"type": "string"}}), {"type": "array", "items": {}}]},
                                  "d": {"enum": ["x", 1, 2.0, True, None, ["y", 1.5]]},
                                  "e": {"type": ["string", "null"], "enum": ["x", None]},
                                  "f": {"anyOf": []}}))]
    yield [function("others", of({"a": of({}, additionalProperties={"type": "string", "description": "d"}),
                                  "b": {"type": "object", "additionalProperties": True},
                                  "c": {"type": "object", "additionalProperties": False},
                                  "d": {"type": "object", "additionalProperties": None},
                                  "e": {"type": "object", "additionalProperties": of({"k": {"type": "string"}})}},
                                 additionalProperties=False))]
    yield [function("any", of({"a": {}, "b": True, "c": False, "d": {"type": "strange", "pattern": "x"}}))]
    yield [function("defaults", of({"a": {"type": "array", "default": [1, "ä", None, {"k": True}]},
                                    "b": {"type": "string", "default": ""},
                                    "c": {"type": "object", "default": {}}}))]
    yield [function("refers", {**of({"a": {"$ref": "#/$defs/Two", "description": "Ref"},
                                     "b": {"type": "array", "items": {"$ref": "#/$defs/One"}}}),
                               "$defs": {"Two": of({"k": {"$ref": "#/$defs/One"}}, description="Second\none"),
                                         "One": {"type": "string", "enum": ["x"]}}}, "With definitions")]
    yield [function("itself", of({"b": {"$ref": "#"}, "a": {"type": "string"}}, required=["b"],
                                 additionalProperties=False), "A tree")]
    yield [function("inner", of({"a": of({"k": {"$ref": "#/$defs/N"}}, **{"$defs": {"N": {"type": "string"}}}),
                                 "b": {"$ref": "#/$defs/N"}}))]
    yield [function("late", {**of({"a": {"$ref": "#/$defs/T"}}),
                             "$defs": {"T": of({"next": {"$ref": "#"}})}})]
    # What it refuses.
    for schema in ({"$ref": "#/$defs/None"}, {"$ref": "other.json"}, {"description": "no type"}, "text", 3, None,
                   {"type": ["string", "strange"]}, {"type": "integer", "enum": [1.5]},
                   {"type": "string", "enum": [1]}, {"type": ["string", "number"], "enum": ["x"]},
                   {"type": "array", "items": [{"type": "string"}]}, {"type": "object", "properties": []},
                   {"type": "object", "properties": {}, "required": None},
                   {"type": "object", "additionalProperties": "any"}, {"type": "string", "description": 5}):
        yield [function("refused", of({"a": schema}))]


class Random:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def maybe(self, share=0.5):
        return self.random.random() < share

    def schema(self, depth):
        pick = self.random.choice
        kind = pick(["string", "integer", "number", "boolean", "object", "array", "enum", "anyOf", "several", "any"])
        if depth == 0 and kind in ("object", "array", "anyOf"):
            kind = "string"
        made = {"description": pick(TEXTS)} if self.maybe() else {}
        if self.maybe(0.2):
            made["default"] = pick([0, 1.5, "t", True, [1, 2], {"k": None}, None])
        if kind == "object":
            made.update(self.object(depth - 1))
        elif kind == "array":
            made.update({"type": "array", "items": self.schema(depth - 1)})
        elif kind == "enum":
            made["enum"] = self.random.sample(["x", "y\"", 3, 0.25, None, False], self.random.randint(1, 4))
        elif kind == "anyOf":
            made["anyOf"] = [self.schema(depth - 1) for _ in range(self.random.randint(1, 3))]
        elif kind == "several":
            made["type"] = self.random.sample(["string", "null", "integer", "array"], 2)
        elif kind == "any":
            return {}
        else:
            made["type"] = kind
        for key in ("minLength", "maximum", "minItems", "pattern"):
            if self.maybe(0.2):
                made[key] = pick([1, 2.0, "p"])
        return made

    def object(self, depth):
        names = self.random.sample(NAMES, self.random.randint(0, 4))
        made = of({name: self.schema(depth) for name in names})
        if self.maybe():
            made["required"] = self.random.sample(names, self.random.randint(0, len(names)))
        if self.maybe(0.3):
            made["additionalProperties"] = self.random.choice([True, False, {"type": "integer"}])
        return made

    def tools(self):
        return [function(f"f{i}", self.object(3), self.random.choice(TEXTS)) for i in range(self.random.randint(1, 2))]


def sorted_keys(tools):
    return json.loads(json.dumps(tools, sort_keys=True))


def main():
    source = pathlib.Path(sys.argv[1])
    spec = importlib.util.spec_from_file_location("tool_declaration_ts", source)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    lists = [*by_hand(), *(Random(seed).tools() for seed in range(40))]
    rows = []
    for tools in lists:
        try:
            text = module.encode_tools_to_typescript_style(sorted_keys(tools))
        except Exception:  # as its caller does
            text = None
        rows.append({"tools": tools, "text": text})
    document = {"script": "tests/golden/templates/make_typescript_goldens.py",
                "module_sha256": hashlib.sha256(source.read_bytes()).hexdigest(), "rows": rows}
    path = pathlib.Path(__file__).with_name("typescript_tools.json")
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in document.pop("rows"))
    path.write_text(json.dumps(document)[:-1] + ', "rows": [\n' + lines + "\n]}\n")
    print(len(rows), "rows,", sum(row["text"] is None for row in rows), "refused,", path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
