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


def ninja(build, *words):
    return subprocess.run(["ninja", "-C", build, *words], check=True, capture_output=True,
                          text=True).stdout.splitlines()


def commands(build, test):
    """The compile command of each of the test's sources, and its link command, as lists of words."""
    inputs = set(ninja(build, "-t", "inputs", test))
    compiles = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        source, words = pathlib.Path(entry["file"]), entry["command"].split()
        if source.is_relative_to(ROOT) and words[words.index("-o") + 1] in inputs:
            compiles[str(source.relative_to(ROOT))] = words
    words = ninja(build, "-t", "commands", test)[-1].split()
    return compiles, words[words.index("&&") + 1:len(words) - 2]


def sources_of(build, compiles, path):
    """The sources to compile again when this file changes: itself, or all that include it."""
    if path in compiles:
        return [path]
    found = []
    for source, words in compiles.items():
        read = ninja(build, "-t", "deps", words[words.index("-o") + 1])
        if any((build / line.strip()).resolve() == ROOT / path for line in read):
            found.append(source)
    if not found:
        sys.exit(f"mutants: nothing in the program includes {path}")
    return found


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


def is_caught(build, compiles, link_words, path, text, environment):
    """How the mutant ends, or None when the test saw nothing."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        changed, program = folder / path, folder / "mutant"
        changed.parent.mkdir(parents=True)
        changed.write_text(text)
        codes = []
        for source in sources_of(build, compiles, path):
            codes.append(str(folder / f"mutant{len(codes)}.o"))
            words = set_output(compiles[source], codes[-1])
            words[words.index("-c") + 1] = str(changed if source == path else ROOT / source)
            # The folder comes first, so that a header is found here.
            subprocess.run([*words, "-w", "-iquote", folder], cwd=build, check=True)
        # Objects precede the archives: definitions that exist are not taken from those.
        words = set_output(link_words, program)
        at = words.index("-o")
        subprocess.run([*words[:at], *codes, *words[at:]], cwd=build, check=True)
        return how_it_ends(program, environment)


def how_it_ends(program, environment):
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
    """`mutations`: the bug's name, file, text that occurs there once, its replacement; more pairs."""
    if len(sys.argv) not in (2, 3):
        sys.exit(usage)
    if sys.argv[1] == "--check":
        for _, path, *pairs in mutations:
            replaced(path, pairs)
        return
    build = pathlib.Path(sys.argv[1]).resolve()
    word = sys.argv[2] if len(sys.argv) == 3 else ""
    subprocess.run(["ninja", "-C", build, test], check=True, stdout=subprocess.DEVNULL)
    compiles, link = commands(build, test)
    missed = 0
    chosen = [m for m in mutations if word in m[0]]
    texts = [replaced(path, pairs) for _, path, *pairs in chosen]
    for (what, path, *_), text in zip(chosen, texts):
        end = is_caught(build, compiles, link, path, text, environment)
        missed += end is None
        print(f"{'MISSED' if end is None else 'caught'}: {what}: {end}", flush=True)
    # The unchanged sources must pass, or the judge is wrong.
    path = chosen[0][1]
    end = is_caught(build, compiles, link, path, (ROOT / path).read_text(), environment)
    if end is not None:
        sys.exit(f"mutants: the code as it is fails: {end}")
    print(f"{len(chosen) - missed} of {len(chosen)} bugs are caught")
    sys.exit(missed > 0)

