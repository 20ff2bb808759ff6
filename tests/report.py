#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Passes ctest's output on, and puts a table in front of its summary: for each build what was
compiled and how long that and its tests took, and the slowest tests of all.

usage: ctest ... | report.py SINCE NAME=FOLDER...    (seconds since 1970, before which nothing counts;
the build folders, first the one that this ctest runs in)
"""

import pathlib
import re
import sys

NUM_SLOWEST = 10
SUMMARY = re.compile(r"^\d+% tests passed")
RESULT = re.compile(r"^ *\d+/\d+ Test +#\d+: (\S+) \.*.*?([\d.]+) sec")
LOGGED_NAME = re.compile(r"^\d+/\d+ Testing: (\S+)$")
LOGGED_TIME = re.compile(r"^Test time = +([\d.]+) sec$")


def compiled(folder, since):
    """How many units, their seconds by the clock, added up, the slowest and its seconds."""
    seconds = {}
    log = folder / ".ninja_log"
    for line in log.read_text().splitlines()[1:] if log.exists() else []:
        start, end, changed, output = line.split("\t")[:4]
        if output.endswith(".o") and int(changed) >= since * 1_000_000_000:
            seconds[output] = (int(end) - int(start)) / 1000
    slowest = max(seconds, key=seconds.get, default="")
    return len(seconds), sum(seconds.values()), slowest, seconds.get(slowest, 0)


def tested(folder, since):
    """Name and seconds of each test of the last run in this folder."""
    log = folder / "Testing/Temporary/LastTest.log"
    if not log.exists() or log.stat().st_mtime < since:
        return []
    tests, name = [], ""
    for line in log.read_text(errors="replace").splitlines():
        if found := LOGGED_NAME.match(line):
            name = found[1]
        elif found := LOGGED_TIME.match(line):
            tests.append((name, float(found[1])))
    return tests


def table(folders, own_tests, since):
    lines = ["", f"{'build':10}{'units':>7}{'compiling':>12}{'running':>10}   slowest unit"]
    tests = []
    for position, (name, folder) in enumerate(folders):
        units, seconds, slowest, slowest_seconds = compiled(folder, since)
        found = tested(folder, since) if position > 0 else own_tests
        # A stage's own entry holds what its build lists.
        found = [(test, s) for test, s in found if not test.startswith("stage_")]
        unit = f"{pathlib.Path(slowest).name} {slowest_seconds:.0f} s" if slowest else ""
        lines.append(f"{name:10}{units:7}{seconds / 60:8.1f} min{sum(s for _, s in found) / 60:6.1f} min"
                     f"   {unit}")
        tests += [(f"{name}: {test}", s) for test, s in found]
    lines.append("slowest tests: " + ", ".join(
        f"{test} {s:.0f} s" for test, s in sorted(tests, key=lambda t: -t[1])[:NUM_SLOWEST]))
    return lines + [""]


def main():
    since = float(sys.argv[1])
    folders = [(name, pathlib.Path(path)) for name, path in
               (argument.split("=", 1) for argument in sys.argv[2:])]
    own_tests = []
    for line in sys.stdin:
        if found := RESULT.match(line):
            own_tests.append((found[1], float(found[2])))
        if SUMMARY.match(line):
            print("\n".join(table(folders, own_tests, since)), flush=True)
        print(line, end="", flush=True)


if __name__ == "__main__":
    main()
