#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether the tests of a commit find bugs: puts each of bugs.py into the sources, one at a time, in
a copy of them, builds its program in each build that runs it at a commit, and says what happens.

usage: run.py [--check] [WORD]
    --check  only looks whether each bug's text is still there, once, also of the lists for the
             simulator and the handoff's model
    WORD     only bugs whose description, file or program has it
"""

import filecmp
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

from bugs import BUGS

ROOT = pathlib.Path(__file__).resolve().parents[2]
COPY = ROOT / "build-mutations"
TARGETS = {"commit": {}, "commit-asan": {},
           "commit-tsan": {"TSAN_OPTIONS": f"suppressions={ROOT}/tests/tsan_suppressions.txt"}}
LIMIT_S = 600


def placed(chosen):
    """The files with their bugs in them; ends where a bug has lost its place."""
    texts, lost = [], []
    for _, path, old, new, _ in chosen:
        text = (ROOT / path).read_text()
        if text.count(old) != 1:
            lost.append(f"{path} has this {text.count(old)} times, not once:\n{old}")
        texts.append(text.replace(old, new))
    if lost:
        sys.exit("mutations: " + "\nmutations: ".join(lost))
    return texts


def run(command, **more):
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)


def prepare():
    """A copy of what git has, with a build folder for each preset."""
    for name in run(["git", "ls-files"], cwd=ROOT).stdout.splitlines():
        source, target = ROOT / name, COPY / name
        if source.is_symlink():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            target.symlink_to(source.readlink())
        elif not target.exists() or not filecmp.cmp(source, target, shallow=False):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    for preset in TARGETS:
        subprocess.run(["cmake", "--preset", preset, "-DSLUICE_CUDA=OFF"], cwd=COPY, check=True,
                       stdout=subprocess.DEVNULL)


def entries(preset, program):
    """The names of the program's entries in ctest, if this build runs it."""
    listed = run(["ctest", "--test-dir", COPY / f"build-{preset}", "-N", "-R",
                  rf"^{program}(_[0-9]+)?$"]).stdout
    return re.findall(r"Test +#\d+: (\S+)", listed)


def judge(preset, program):
    """How the program ends in this build; None where it sees nothing."""
    folder = COPY / f"build-{preset}"
    built = run(["ninja", "-C", folder, program])
    if built.returncode != 0:  # of the bug, or without it
        raise RuntimeError(f"{program} does not compile in {preset}:\n{built.stdout[-2000:]}")
    ended = run(["ctest", "--test-dir", folder, "-j", str(os.cpu_count()), "--timeout", str(LIMIT_S),
                 "--output-on-failure", "-R", rf"^{program}(_[0-9]+)?$"],
                env={**os.environ, **TARGETS[preset]})
    if ended.returncode == 0:
        return None
    found = re.search(r"(ERROR: \w+Sanitizer: [\w-]+|WARNING: ThreadSanitizer: [\w ]+|"
                      r"runtime error: .{0,60}|\[  FAILED  \] \w+\.\w+|\*\*\*Timeout)", ended.stdout)
    return found[1] if found else "fails"


def main():
    words = [w for w in sys.argv[1:] if w != "--check"]
    if len(words) > 1:
        sys.exit(__doc__)
    chosen = [bug for bug in BUGS if not words or any(words[0] in text for text in
                                                      (bug[0], bug[1], bug[4]))]
    texts = placed(chosen)
    if "--check" in sys.argv:
        for others in ("scheduler/mutations.py", "engine/handoff_mutations.py"):
            subprocess.run([sys.executable, ROOT / "tests" / others, "--check"], check=True)
        return
    prepare()
    num_found = 0
    for (what, path, _, _, program), text in zip(chosen, texts):
        start = time.monotonic()
        builds = [preset for preset in TARGETS if entries(preset, program)]
        if not builds:
            sys.exit(f"mutations: no build of a commit runs {program}")
        target = COPY / path
        original = target.read_text()
        target.write_text(text)
        end, why = None, ""
        try:
            # The first that sees it is enough.
            end = next((f"{preset}: {end}" for preset in builds
                        if (end := judge(preset, program)) is not None), None)
        except RuntimeError as error:
            why = f"\n{error}"
        finally:
            target.write_text(original)
        num_found += end is not None
        print(f"{'MISSED' if end is None else 'found'}: {what} ({path}): {end} "
              f"[{time.monotonic() - start:.0f} s]{why}", flush=True)
    print(f"{num_found} of {len(chosen)} bugs are found")


if __name__ == "__main__":
    main()
