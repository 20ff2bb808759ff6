#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Passes ctest's output on, and puts before its summary a table, for each build what was compiled and
how long that and its tests took, and the slowest tests of all, and of each test that failed what it
said last, which may be far above.

usage: ctest ... | report.py SINCE NAME=FOLDER...    (seconds since 1970, before which nothing counts;
the build folders, first the one that this ctest runs in)
"""

import dataclasses
import pathlib
import re
import sys

NUM_SLOWEST = 10
NUM_LAST_LINES = 15
MOST_CHARACTERS = 1500  # of a line
SUMMARY = re.compile(r"^\d+% tests passed")
STEP = re.compile(r"^ *(Start +\d+: |\d+/\d+ Test +#\d+: )")
RULE = "-" * 58  # above what a test said
FAILURE = re.compile(r": Failure$|ERROR: \w+Sanitizer: |WARNING: ThreadSanitizer: |: runtime error: ")
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


@dataclasses.dataclass
class Test:
    name: str
    seconds: float = 0
    has_failed: bool = False
    lines: list = dataclasses.field(default_factory=list)  # what it said


def tested(folder, since):
    """The tests of the last run in this folder."""
    log = folder / "Testing/Temporary/LastTest.log"
    if not log.exists() or log.stat().st_mtime < since:
        return []
    tests, is_output = [], False
    for line in log.read_text(errors="replace").splitlines():
        if found := LOGGED_NAME.match(line):
            tests.append(Test(found[1]))
        elif line in ("Output:", "<end of output>"):
            is_output = line == "Output:"
        elif is_output:
            tests[-1].lines += [line] if line != RULE else []
        elif found := LOGGED_TIME.match(line):
            tests[-1].seconds = float(found[1])
        elif line == "Test Failed.":
            tests[-1].has_failed = True
    return tests


def last_words(name, test):
    """Of GoogleTest's or a sanitizer's output the first failure, of another one's its end."""
    first = next((i for i, line in enumerate(test.lines) if FAILURE.search(line)), None)
    lines = test.lines[-NUM_LAST_LINES:] if first is None else test.lines[first:first + NUM_LAST_LINES]
    return [f"{name}: {test.name} failed:",
            *("  " + (line if len(line) <= MOST_CHARACTERS else "..." + line[-MOST_CHARACTERS:])
              for line in lines)]


def table(folders, since):
    lines = ["", f"{'build':10}{'units':>7}{'compiling':>12}{'running':>10}   slowest unit"]
    failures, times = [], []
    for name, folder in folders:
        units, seconds, slowest, slowest_seconds = compiled(folder, since)
        tests = tested(folder, since)
        failures += [line for test in tests if test.has_failed for line in last_words(name, test)]
        # A stage's own entry holds what its build lists.
        found = [(f"{name}: {test.name}", test.seconds) for test in tests
                 if not test.name.startswith("stage_")]
        unit = f"{pathlib.Path(slowest).name} {slowest_seconds:.0f} s" if slowest else ""
        lines.append(f"{name:10}{units:7}{seconds / 60:8.1f} min{sum(s for _, s in found) / 60:6.1f} min"
                     f"   {unit}")
        times += found
    lines.append("slowest tests: " + ", ".join(
        f"{test} {s:.0f} s" for test, s in sorted(times, key=lambda t: -t[1])[:NUM_SLOWEST]))
    return [*lines, "", *failures, *([""] if failures else [])]


def main():
    since = float(sys.argv[1])
    folders = [(name, pathlib.Path(path)) for name, path in
               (argument.split("=", 1) for argument in sys.argv[2:])]
    sys.stdin.reconfigure(errors="replace")
    summary = []  # from its first line; of a stage that failed, more tests follow
    for line in sys.stdin:
        if SUMMARY.match(line) or STEP.match(line):
            print("".join(summary), end="", flush=True)
            summary = []
        if summary or SUMMARY.match(line):
            summary.append(line)
        else:
            print(line, end="", flush=True)
    # The log is whole once ctest has ended.
    print("\n".join(table(folders, since)))
    print("".join(summary), end="", flush=True)


if __name__ == "__main__":
    main()
