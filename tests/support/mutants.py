# SPDX-License-Identifier: Apache-2.0
"""Puts chosen bugs into sources, one at a time, and asks whether a test program fails: the engine of
the mutations.py scripts. Needs a build folder with that program in it, and leaves the sources as
they are."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def commands(build, test):
    """The compile command of each source, and the test's link command, as lists of words."""
    compiles = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        source = pathlib.Path(entry["file"])
        if source.is_relative_to(ROOT):
            compiles[str(source.relative_to(ROOT))] = entry["command"].split()
    listed = subprocess.run(["ninja", "-C", build, "-t", "commands", test], check=True,
                            capture_output=True, text=True).stdout.splitlines()
    words = listed[-1].split()
    return compiles, words[words.index("&&") + 1:len(words) - 2]


def replaced(path, pairs):
    text = (ROOT / path).read_text()
    for old, new in zip(pairs[::2], pairs[1::2]):
        if text.count(old) != 1:
            sys.exit(f"mutants: {path} has this {text.count(old)} times, not once:\n{old}")
        text = text.replace(old, new)
    return text


def set_output(words, path):
    words = list(words)
    words[words.index("-o") + 1] = str(path)
    return words


def is_caught(build, folder, compile_words, link_words, text, environment):
    """How the mutant ends, or None when the test saw nothing."""
    source, code, program = folder / "mutant.cpp", folder / "mutant.o", folder / "mutant"
    source.write_text(text)
    words = set_output(compile_words, code)
    words[words.index("-c") + 1] = str(source)
    subprocess.run([*words, "-w"], cwd=build, check=True)
    # Before the archives: what is defined already is not taken from them.
    words = set_output(link_words, program)
    words.insert(words.index("-o"), str(code))
    subprocess.run(words, cwd=build, check=True)
    try:
        ended = subprocess.run([program], capture_output=True, text=True, timeout=120, check=False,
                               env={**os.environ, **environment})
    except subprocess.TimeoutExpired:
        return "hangs"
    if ended.returncode == 0:
        return None
    if ended.returncode < 0:
        return "crashes"
    found = re.search(r'"([a-z][^"]*)"', ended.stdout)
    return found[1] if found else "fails"


def main(usage, test, mutations, environment):
    """`mutations`: what the bug is, file, text that stands there once, what stands there instead;
    more pairs."""
    if len(sys.argv) not in (2, 3):
        sys.exit(usage)
    build = pathlib.Path(sys.argv[1]).resolve()
    word = sys.argv[2] if len(sys.argv) == 3 else ""
    subprocess.run(["ninja", "-C", build, test], check=True, stdout=subprocess.DEVNULL)
    compiles, link = commands(build, test)
    missed = 0
    chosen = [m for m in mutations if word in m[0]]
    texts = [replaced(path, pairs) for _, path, *pairs in chosen]
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for (what, path, *_), text in zip(chosen, texts):
            end = is_caught(build, folder, compiles[path], link, text, environment)
            missed += end is None
            print(f"{'MISSED' if end is None else 'caught'}: {what}: {end}", flush=True)
        # The judge itself: what is not changed passes.
        path = chosen[0][1]
        end = is_caught(build, folder, compiles[path], link, (ROOT / path).read_text(),
                        environment)
        if end is not None:
            sys.exit(f"mutants: the code as it is fails: {end}")
    print(f"{len(chosen) - missed} of {len(chosen)} bugs are caught")
    sys.exit(missed > 0)

