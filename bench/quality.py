#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Quality of number formats: ours beside what the field's own tools write, run by our engine.

    python bench/quality_peers.py BASE THEIRS int8 fp8 ...       # in venvs of their own, see there
    build/sluice quantize BASE OURS/int8 --to int8 ...
    python3 bench/quality.py build BASE --text TEXT --ours OURS --theirs THEIRS [--json FILE]

For each scheme that is in both folders (a directory, or a .gguf file) a row: KL divergence from BASE in nats
of the next token's distribution over 8192 (--tokens) tokens of TEXT in sequences of 512
(build/bench/quality: 32-bit activations), ours over theirs, how often the most likely token is BASE's,
perplexity, and bits per weight of all tensors together. --calibrated FOLDER has ours with --calibrate. Exit code 1 where ours is more than 1.05
times theirs, or a calibrated one not below it.
"""
import argparse
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

TOKENS, CONTEXT, MOST, AT_ONCE = 8192, 512, 1.05, 4


def bytes_of(path):
    """Of all tensors: without the header and, in GGUF, the vocabulary."""
    if path.is_file():
        import gguf
        return sum(int(t.n_bytes) for t in gguf.GGUFReader(path).tensors)
    total = 0
    for file in path.glob("*.safetensors"):
        with open(file, "rb") as stream:
            total += file.stat().st_size - 8 - struct.unpack("<Q", stream.read(8))[0]
    return total


def schemes_of(folder):
    if not folder:
        return {}
    return {p.stem if p.suffix == ".gguf" else p.name: p for p in sorted(folder.iterdir())
            if p.suffix == ".gguf" or (p / "config.json").exists()}


def tokens_of(build, base, text, folder, count):
    model = base if base.is_file() else next(base.glob("tokenizer.json")).parent
    done = subprocess.run([build / "sluice", "tokenize", "--model", model, "--file", text, "--json"],
                          capture_output=True, text=True, check=True)
    ids = json.loads(done.stdout)[:count]
    if len(ids) < count:
        raise SystemExit(f"quality.py: {text} has {len(ids)} tokens, {count} are asked for")
    path = folder / "tokens.json"
    path.write_text(json.dumps(ids))
    return path


def measure(build, tokens, base, paths):
    """{path: row of build/bench/quality}; a few models beside the base at a time."""
    rows = {}
    for first in range(0, len(paths), AT_ONCE):
        done = subprocess.run([build / "bench/quality", tokens, str(CONTEXT), base, *paths[first:first + AT_ONCE]],
                              capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"quality.py: {done.stderr.strip()}", file=sys.stderr)
            continue
        for line in done.stdout.splitlines():
            row = json.loads(line)
            rows[row["model"]] = row
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("base", type=pathlib.Path)
    for name in ("text", "ours", "theirs", "calibrated", "json"):
        parser.add_argument("--" + name, type=pathlib.Path, required=name in ("text",))
    parser.add_argument("--schemes", nargs="*")
    parser.add_argument("--tokens", type=int, default=TOKENS)
    arguments = parser.parse_args()
    sides = {side: schemes_of(getattr(arguments, side)) for side in ("theirs", "ours", "calibrated")}
    names = arguments.schemes or sorted(set().union(*sides.values()))
    weights = bytes_of(arguments.base) / 2
    with tempfile.TemporaryDirectory() as folder:
        tokens = tokens_of(arguments.build, arguments.base, arguments.text, pathlib.Path(folder), arguments.tokens)
        paths = [found[name] for name in names for found in sides.values() if name in found]
        rows = measure(arguments.build, tokens, arguments.base, paths)
    if str(arguments.base) in rows:
        print(f"base: perplexity {rows[str(arguments.base)]['perplexity']:.3f}, {arguments.tokens} tokens")
    print(f"{'scheme':10} {'side':10} {'bits':>6} {'KL':>10} {'+-':>8} {'same top':>9} {'perplexity':>10} {'ratio':>6}")
    bad, table = 0, []
    for name in names:
        reference = rows.get(str(sides["theirs"].get(name)))
        for side, found in sides.items():
            row = rows.get(str(found.get(name)))
            if row is None:
                continue
            ratio = row["kl"] / reference["kl"] if reference else float("nan")
            limit = {"theirs": 1.0, "ours": MOST, "calibrated": 1.0}[side]
            bad += ratio > limit
            bits = 8 * bytes_of(found[name]) / weights
            table.append({**row, "scheme": name, "side": side, "bits": bits, "ratio": ratio})
            print(f"{name:10} {side:10} {bits:6.3f} {row['kl']:10.6f} {row['kl_error']:8.1e} "
                  f"{100 * row['same_top']:8.2f}% {row['perplexity']:10.3f} {ratio:6.3f}"
                  f"{'  more than it may be' if ratio > limit else ''}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(table, indent=1) + "\n")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
