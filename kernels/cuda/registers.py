#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What ptxas says about every CUDA kernel, as a table: kernels/cuda/registers.md. Takes each file's
command from a build folder that has nvcc. Fails where ptxas says that it waits for each wgmma or
leaves out setmaxnreg, which to it are no warnings.
Usage: kernels/cuda/registers.py BUILD > registers.md
"""
import json
import re
import shlex
import subprocess
import sys

HEAD = """# Registers, spills and shared memory

By `python3 kernels/cuda/registers.py build > kernels/cuda/registers.md`; {version}, sm_90a.
Launches add dynamic shared memory: the linear layers their ring of stages or sums of segments,
norms the row or the heads, rope its heads, `place_rows` its counts, attention what README.md says,
over floats the heads and weights of its rows. It is aligned to 1024, to which the static part is
rounded up in a file that has any. The build fails where a kernel spills. No GPU has run them.

| file | kernel | registers | spilled bytes | stack bytes | static shared bytes |
|---|---|---:|---:|---:|---:|"""


def demangle(name):
    command = ["c++filt", name]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    text = re.sub(r"\(anonymous namespace\)::|sluice::|kernels::|cuda::", "", text)
    depth, end = 0, len(text)  # the parameters, which follow the template's arguments
    for at, character in enumerate(text):
        depth += {"<": 1, ">": -1}.get(character, 0)
        if character == "(" and depth == 0:
            end = at
            break
    return text[:end].removeprefix("void ").replace("|", "\\|")


def kernels_of(command):
    words = shlex.split(command)
    output = words.index("-o")
    words[output + 1] = "/dev/null"
    words = [w for w in words if not w.endswith("ccache")]
    found = subprocess.run(words + ["-Xptxas=-v"], check=True, capture_output=True, text=True)
    loss = re.search(r"[^\n]*(Potential Performance Loss|setmaxnreg)[^\n]*", found.stderr)
    if loss:
        sys.exit(f"registers.py: {words[-1]}: {loss.group()}")
    pattern = (r"entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
               r"(\d+) bytes spill loads.*?Used (\d+) registers([^\n]*)")
    for name, stack, stores, loads, registers, rest in re.findall(pattern, found.stderr, re.S):
        shared = re.search(r"(\d+) bytes smem", rest)
        yield (demangle(name), int(registers), int(stores) + int(loads), int(stack),
               int(shared.group(1)) if shared else 0)


def main():
    with open(f"{sys.argv[1]}/compile_commands.json", encoding="utf-8") as file:
        commands = [c for c in json.load(file) if "-x cu" in c["command"]]
    nvcc = next(w for w in shlex.split(commands[0]["command"]) if w.endswith("nvcc"))
    version = subprocess.run([nvcc, "--version"], check=True, capture_output=True, text=True).stdout
    print(HEAD.format(version="nvcc " + re.search(r"V([\d.]+)", version).group(1)))
    for command in sorted(commands, key=lambda c: c["file"]):
        for kernel, *numbers in sorted(kernels_of(command["command"])):
            cells = [command["file"].split("/")[-1], f"`{kernel}`", *map(str, numbers)]
            print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
