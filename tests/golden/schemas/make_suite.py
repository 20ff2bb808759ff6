#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes draft2020-12.json: the JSON Schema Test Suite (MIT, LICENSE beside this file) as the source
distribution of the Python package jsonschema has it, in one file, without remarks and without what
is optional or needs other documents.

    pip download --no-deps --no-binary jsonschema jsonschema==4.26.0 && tar xzf jsonschema-*.tar.gz
    python3 make_suite.py jsonschema-4.26.0/json/tests/draft2020-12
"""
import glob
import json
import os
import sys


def main(folder):
    groups = []
    for path in sorted(glob.glob(os.path.join(folder, "*.json"))):
        with open(path, encoding="utf-8") as file:
            for group in json.load(file):
                groups.append({
                    "file": os.path.basename(path),
                    "description": group["description"],
                    "schema": group["schema"],
                    "tests": [{"data": t["data"], "valid": t["valid"]} for t in group["tests"]],
                })
    lines = ",\n".join(json.dumps(group, separators=(",", ":")) for group in groups)
    target = os.path.join(os.path.dirname(os.path.abspath(__file__)), "draft2020-12.json")
    with open(target, "w", encoding="utf-8") as out:
        out.write("[\n" + lines + "\n]\n")


if __name__ == "__main__":
    main(sys.argv[1])
