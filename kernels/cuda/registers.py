#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes ptxas' figures for every CUDA kernel as a table: kernels/cuda/registers.md. Takes each file's
command from a build folder that has nvcc, for one architecture. Fails if ptxas notes that it waits
for each wgmma (C7514 and its like) or leaves out setmaxnreg (C7508), which it does not call warnings,
and if the machine code has a trap (BPT.TRAP): nvcc silently puts one where a kernel refers to a
constant of the host, for example by std::max(kConstant, x).
Usage: kernels/cuda/registers.py BUILD > registers.md
"""
import json
import pathlib
import re
import shlex
import struct
import subprocess
import sys
import tempfile

HEAD = """# Registers, spills and shared memory

By `python3 kernels/cuda/registers.py build > kernels/cuda/registers.md`, whose build has benchmarks
(`-DSLUICE_BENCH=ON`); {version}, sm_90a.
Launches add dynamic shared memory: the linear layers their ring of stages or sums of segments,
norms the row or the heads, rope its heads, `place_rows` its counts, attention what attention.md says,
over floats the heads and weights of its rows. It is aligned to 1024, to which the static part is
rounded up in a file that has any. The build fails where a kernel spills.

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


def loss_in(text):
    """Returns the line in which ptxas notes what it did not do as told; None without one."""
    loss = re.search(r"[^\n]*(\(C75\d\d\)|Potential Performance Loss|setmaxnreg)[^\n]*", text)
    return loss and loss.group()


def functions_with_traps(cubin):
    """Returns the names of an ELF file's functions with a BPT instruction, for sm_70 and later."""
    bpt = 0x95C  # the low 12 of an instruction's 128 bits: its operation
    sections_at, = struct.unpack_from("<Q", cubin, 40)
    size, count, of_names = struct.unpack_from("<HHH", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQ", cubin, sections_at + i * size) for i in range(count)]
    names = headers[of_names][4]
    for name, _, _, _, begin, length in headers:
        name = cubin[names + name:cubin.index(b"\0", names + name)].decode()
        code = cubin[begin:begin + length]
        if name.startswith(".text.") and any(
                struct.unpack_from("<Q", code, at)[0] & 0xFFF == bpt
                for at in range(0, len(code), 16)):
            yield name.removeprefix(".text.")


def compiled(words):
    """What ptxas says of a file by nvcc's command, and the machine code."""
    words = [w for w in words if not w.endswith("ccache")]
    words[words.index("-c")] = "-cubin"
    with tempfile.TemporaryDirectory() as folder:
        cubin = pathlib.Path(folder) / "a.cubin"
        words[words.index("-o") + 1] = str(cubin)
        found = subprocess.run(words + ["-Xptxas=-v"], check=True, capture_output=True, text=True)
        return found.stderr, cubin.read_bytes()


def kernels_of(command):
    words = shlex.split(command)
    said, cubin = compiled(words)
    if loss_in(said):
        sys.exit(f"registers.py: {words[-1]}: {loss_in(said)}")
    traps = sorted(map(demangle, functions_with_traps(cubin)))
    if traps:
        sys.exit(f"registers.py: {words[-1]}: a trap in {', '.join(traps)}")
    pattern = (r"entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
               r"(\d+) bytes spill loads.*?Used (\d+) registers([^\n]*)")
    for name, stack, stores, loads, registers, rest in re.findall(pattern, said, re.S):
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
