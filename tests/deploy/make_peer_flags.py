#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes peer_flags.json: the flags of vLLM's server and of llama-server, as these programs list them.

usage: make_peer_flags.py VLLM_VERSION VLLM LLAMA_VERSION LLAMA_README.md

VLLM is the folder of vLLM's package, which is read and not run; LLAMA_README.md is tools/server/README.md
of llama.cpp, whose tables its own program makes. Spellings of one flag stand together.
"""
import ast
import json
import pathlib
import re
import sys

SPELLING = re.compile(r"(?:^|(?<=, ))--?[a-zA-Z][\w.-]*")
VLLM_FILES = ("engine/arg_utils.py", "entrypoints/common/cli_args.py")
VLLM_FIELDS = ("BaseFrontendArgs", "FrontendArgs")  # classes whose fields are flags


def vllm_flags(package):
    groups = {}
    for node in (node for path in VLLM_FILES for node in ast.walk(ast.parse((package / path).read_text()))):
        spellings = []
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            spellings = [each.value for each in node.args if isinstance(each, ast.Constant)
                         and str(each.value).startswith("-")]
            groups |= {max(spellings, key=len): spellings} if spellings else {}
        if isinstance(node, ast.ClassDef) and node.name in VLLM_FIELDS:
            names = [each.target.id for each in node.body if isinstance(each, ast.AnnAssign)]
            groups |= {flag: [flag] for flag in ("--" + name.replace("_", "-") for name in names)}
    return sorted(groups.values())


def llama_flags(text):
    table = text[text.index("HELP_START"):text.index("HELP_END")]
    return [SPELLING.findall(cell) for cell in re.findall(r"^\| `([^`]+)` \|", table, re.M)]


def main():
    vllm_version, vllm, llama_version, llama_readme = sys.argv[1:5]
    flags = {
        "llama-server": {"version": llama_version,
                         "flags": llama_flags(pathlib.Path(llama_readme).read_text())},
        "vllm": {"version": vllm_version,
                 "flags": vllm_flags(pathlib.Path(vllm))},
    }
    assert all(len(each["flags"]) > 200 for each in flags.values()), "a list is cut off"
    lines = ["{"]
    for name, each in flags.items():
        lines.append(f' {json.dumps(name)}: {{"version": {json.dumps(each["version"])}, "flags": [')
        lines += ["  " + json.dumps(group) + "," for group in each["flags"]]
        lines[-1] = lines[-1].rstrip(",")
        lines.append(" ]},")
    lines[-1] = lines[-1].rstrip(",")
    pathlib.Path(__file__).with_name("peer_flags.json").write_text("\n".join([*lines, "}", ""]))


if __name__ == "__main__":
    main()
