#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails where a commit compiles over a tenth more files than tests/compile_budget.txt says: how many
each build of tests/run.sh compiles from nothing, nvcc's files left out. Compiles nothing itself.

usage: compile_budget.py [--write]    (--write: today's counts become the budget)
"""

import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUDGET = ROOT / "tests/compile_budget.txt"
BUILDS = {"commit": ["test_programs"], "commit-asan": ["test_programs", "fuzz"],
          "commit-tsan": ["test_programs"]}
MOST = 1.1


def count_units(preset, targets):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["cmake", "--preset", preset, "-B", folder, "-DSLUICE_CUDA=OFF"], cwd=ROOT,
                       check=True, capture_output=True)
        commands = subprocess.run(["ninja", "-C", folder, "-t", "commands", *targets], check=True,
                                  capture_output=True, text=True).stdout
        return len(re.findall(r" -c \S+$", commands, re.MULTILINE))


def main():
    counts = {preset: count_units(preset, targets) for preset, targets in BUILDS.items()}
    if sys.argv[1:] == ["--write"]:
        BUDGET.write_text("".join(f"{preset} {count}\n" for preset, count in counts.items()))
        return
    allowed = dict(line.split() for line in BUDGET.read_text().splitlines())
    failed = False
    for preset, count in counts.items():
        over = count > MOST * int(allowed[preset])
        failed |= over
        print(f"{preset}: {count} files, the budget is {allowed[preset]}{': over' if over else ''}")
    if failed:
        sys.exit("Compile less, or say in the commit why more is right: compile_budget.py --write")


if __name__ == "__main__":
    main()
