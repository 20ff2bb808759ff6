#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The lists of functions of the Berkeley function calling leaderboard, as tools.

  pip download --no-deps bfcl-eval && unzip bfcl_eval-*.whl
  python3 bench/function_lists.py bfcl_eval/data LISTS
  SLUICE_FUNCTION_LISTS=LISTS build/tests/server/tool_call_grammar_test --gtest_filter='Function*'

Writes a line of JSON for each case: its tools, whose types get the names of JSON schemas, and, where
the data has a right answer, its calls with arguments in the order of the schema.
"""
import json
import pathlib
import sys

TYPES = {"dict": "object", "float": "number", "tuple": "array", "list": "array", "double": "number",
         "long": "integer", "byte": "integer", "short": "integer", "char": "string",
         "String": "string", "Boolean": "boolean", "HashMap": "object", "Hashtable": "object",
         "Array": "array", "ArrayList": "array", "Queue": "array", "Stack": "array", "Bigint":
         "integer", "bigint": "integer", "int": "integer", "str": "string", "bool": "boolean"}


def with_types(schema):
    if isinstance(schema, list):
        return [with_types(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {}
    for key, value in schema.items():
        if key == "type" and isinstance(value, str):
            if value == "any":
                continue
            value = TYPES.get(value, value)
        elif key == "properties" and isinstance(value, dict):
            value = {name: with_types(one) for name, one in value.items()}
        elif key in ("items", "additionalProperties", "anyOf", "oneOf", "allOf"):
            value = with_types(value)
        result[key] = value
    return result


def chosen(value):
    """The first of the values that the data takes, at every level."""
    if isinstance(value, dict):
        firsts = {key: options[0] if isinstance(options, list) and options else options
                  for key, options in value.items()}
        return {key: chosen(first) for key, first in firsts.items() if first != ""}
    if isinstance(value, list):
        return [chosen(item) for item in value]
    return value


def ordered(arguments, schema):
    if isinstance(arguments, list):
        return [ordered(item, schema.get("items") or {}) for item in arguments]
    if not isinstance(arguments, dict):
        return arguments
    properties = schema.get("properties", {})
    names = [name for name in properties if name in arguments]
    names += [name for name in arguments if name not in properties]
    return {name: ordered(arguments[name], properties.get(name, {})) for name in names}


def calls_of(answer, tools):
    schemas = {tool["name"]: tool["parameters"] for tool in tools}
    calls = []
    for call in answer:
        for name, arguments in call.items():
            calls.append({"name": name,
                          "arguments": ordered(chosen(arguments), schemas.get(name, {}))})
    return calls


def main():
    folder = pathlib.Path(sys.argv[1])
    count = 0
    with open(sys.argv[2], "w", encoding="utf-8") as lists:
        for path in sorted(folder.glob("BFCL_v4_*.json")):
            answers = {}
            expected = folder / "possible_answer" / path.name
            if expected.exists():
                for line in expected.read_text(encoding="utf-8").splitlines():
                    entry = json.loads(line)
                    answers[entry["id"]] = entry["ground_truth"]
            text = path.read_text(encoding="utf-8")
            if text.lstrip().startswith("["):
                continue  # names of cases of other files
            for line in text.splitlines():
                entry = json.loads(line) if line.startswith('{"') else {}
                if not entry.get("function"):
                    continue
                functions = entry["function"]
                tools = [{"name": function["name"],
                          "parameters": with_types(function["parameters"])}
                         for function in (functions if isinstance(functions, list) else [functions])]
                calls = calls_of(answers.get(entry["id"], []), tools)
                lists.write(json.dumps({"id": entry["id"], "tools": tools, "calls": calls},
                                       ensure_ascii=False) + "\n")
                count += 1
    print(f"{count} lists")


if __name__ == "__main__":
    main()
