#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The maps of flags in from_vllm.md and from_llama_server.md are whole and true.

usage: flag_maps_test.py BINARY

Whole: each flag that the other program lists (peer_flags.json, made by make_peer_flags.py) is in one row,
and no row names a flag that it does not have. True: what a row says becomes of a flag is what `sluice serve
--help`, the table of parameters and the tables of flags in server/cli do with it.
"""
import fnmatch
import json
import pathlib
import re
import subprocess
import sys

import guides

PEERS = json.loads(pathlib.Path(__file__).with_name("peer_flags.json").read_text())
CLI = guides.REPOSITORY / "server/cli"
VLLM, LLAMA = guides.DEPLOY / "from_vllm.md", guides.DEPLOY / "from_llama_server.md"


def serve_flags(binary):
    text = subprocess.run([binary, "serve", "--help"], capture_output=True, text=True,
                          check=True).stdout
    return set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text))


def rows(page):
    """(spellings, what becomes of them, note) of each row of the section's tables."""
    found = [row for table in guides.section(page, "Flags").tables() for row in table]
    assert found, f"{page.name} has no table"
    return [(guides.CODE.findall(row[0]), row[1], row[2]) for row in found]


def belongs(group, spellings):
    """A spelling counts before a pattern that takes it as well."""
    exact = any(flag in spellings for flag in group)
    by_pattern = any(fnmatch.fnmatchcase(flag, spelling) for flag in group for spelling in spellings
                     if "*" in spelling)
    return 2 if exact else 1 if by_pattern else 0


def check_whole(page, peer, older=()):
    """`older`: flags of earlier versions that may be named as well. Returns each group's row."""
    table, failures, row_of = rows(page), [], {}
    groups = PEERS[peer]["flags"] + [[flag] for flag in older]
    for group in groups:
        ranks = [belongs(group, spellings) for spellings, _, _ in table]
        best = max(ranks)
        if best == 0:
            failures.append(f"no row for {group}")
        elif ranks.count(best) > 1:
            failures.append(f"{ranks.count(best)} rows for {group}")
        else:
            row_of[tuple(group)] = table[ranks.index(best)]
    known = {flag for group in groups for flag in group}
    for spellings, _, _ in table:
        for spelling in spellings:
            if not fnmatch.filter(known, spelling):
                failures.append(f"{peer} has no {spelling}")
    assert not failures, f"{page.name}:\n" + "\n".join(failures)
    return row_of


def parameters():
    """Fields that requests may have, sampling parameters as well."""
    names = set()
    for path in ("server/api/parameters.cpp", "engine/core/sampling_params.cpp"):
        text = (guides.REPOSITORY / path).read_text()
        names |= set(re.findall(r'(?:implemented|sampling)\(\s*"(\w+)"', text))
    return names


def check_ours(page, row_of, ours, fates_of_shared):
    """Cells of the second column that name something of ours. A flag that both have is the same, or
    has one of the other fates."""
    failures, fields = [], parameters()
    theirs = {flag for group in row_of for flag in group}
    for group, (_, fate, note) in row_of.items():
        named = guides.CODE.findall(fate)
        if not fate or (fate in ("no", "refused", "left out", "always") and not note):
            failures.append(f"{group}: the row says neither what nor why")
        if fate == "same" and not set(group) & ours:
            failures.append(f"{group} is no flag here")
        if fate.startswith("request"):
            failures += [f"{group}: requests have no {name}" for name in named if name not in fields]
        elif not fate.startswith("only"):
            failures += [f"{group}: no flag {name}" for name in named
                         if name.startswith("--") and name not in ours]
        shared = set(group) & ours - {"--help", "--config"}
        if shared and fate.split()[0] not in ("same", *fates_of_shared) and not shared & set(named):
            failures.append(f"{group}: {shared} is a flag here too, the row says: {fate}")
        failures += [f"{group}: no flag {flag} (note)" for name in guides.CODE.findall(note)
                     for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", name)
                     if flag not in ours | theirs]
    assert not failures, f"{page.name}:\n" + "\n".join(failures)


def llama_flags_map(ours):
    row_of = check_whole(LLAMA, "llama-server")
    check_ours(LLAMA, row_of, ours, ())
    text = (CLI / "llama_flags.cpp").read_text()
    code = set(re.findall(r'^    \{"(-[\w-]+)", Meaning::', text, re.M))
    assert len(code) >= 10, "llama_flags.cpp reads otherwise now"
    page = {spelling for spellings, fate, _ in rows(LLAMA) if fate == "taken" for spelling in spellings}
    assert page == code, f"{LLAMA.name}: taken: {page ^ code} is on one side alone"


def vllm_flags_of_the_code():
    """What becomes of each flag: (fate, the value or values of its row); short names are among them."""
    whole = (CLI / "vllm_flags.cpp").read_text()
    text = whole[whole.index("constexpr FlagRow kFlags[]"):whole.index("// clang-format on")]
    code = {f"--{name}": (fate, raw or plain) for name, fate, raw, plain in re.findall(
        r'\{"([a-z0-9-]+)",\s*Values::\w+,\s*Fate::k(\w+)(?:,\s*(?:R"\((.*?)\)"|"(.*?)"))?\}', text)}
    assert len(code) == text.count("Values::k"), "vllm_flags.cpp reads otherwise now"
    whole = (CLI / "vllm_command_line.cpp").read_text()
    for short, full in re.findall(r'\{"(--?[\w-]+)", "([\w.-]+)"\}', whole[whole.index("kShort[]"):]):
        name, _, key = full.partition(".")
        code[short] = ("Renamed", name) if key else code["--" + name]
    return code


def vllm_flags_map(ours):
    code = vllm_flags_of_the_code()
    listed = {flag for group in PEERS["vllm"]["flags"] for flag in group}
    older = sorted(flag for flag in set(code) - listed if flag.startswith("--"))
    row_of = check_whole(VLLM, "vllm", older)
    check_ours(VLLM, row_of, ours, ("refused", "left", "only"))
    failures = []
    for group, (_, fate, _) in row_of.items():
        fates = {code.get(flag, ("Refused", "")) for flag in group}
        if len(fates) > 1:
            failures.append(f"{group}: the code knows some of its names alone: {fates}")
        kind, other = fates.pop()
        expected = {"Same": "same", "Renamed": f"`--{other}`", "Ignored": "left out",
                    "Apart": "apart", "Neutral": f"only {other}", "Refused": "refused"}[kind]
        if expected.startswith("only "):
            values = [each for each in expected[len("only "):].split(",") if each]
            told = guides.CODE.findall(fate)
            is_right = fate.startswith("only") and told == values or (
                not values and fate in ("only empty", "only off"))
        else:
            is_right = fate == expected or expected == "apart" and fate not in ("left out", "refused")
        if not is_right:
            failures.append(f"{group}: the page says {fate!r}, the code {expected!r}")
    assert not failures, f"{VLLM.name}:\n" + "\n".join(failures)


def main():
    ours = serve_flags(sys.argv[1])
    for check in (llama_flags_map, vllm_flags_map):
        check(ours)
        print(f"ok {check.__name__}")


if __name__ == "__main__":
    main()
