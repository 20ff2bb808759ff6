#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A long prompt beside streams that decode: how much each side slows the other down.

usage: bench/mixed.py --model FILE [--sluice build/sluice] [--streams 8] [--tokens 1500]
                      [--long 4096] [--rounds 3]

A round: streams alone, a long prompt alone, both at once. Ratios are of the same round: p99 of the
time between tokens over the whole of the streams (mixed over alone), time to the first token of the
long prompt (the same).
"""
import argparse
import json
import statistics
import subprocess
import tempfile
import time

from served import Server


def start(args, url, path, seed, words):
    return subprocess.Popen(
        [args.sluice, "bench", "serve", "--base-url", url, "--ignore-eos", "--save-result",
         "--result-filename", path, "--dataset-name", "random", "--seed", str(seed), *words],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def streams(args, url, path, seed):
    return start(args, url, path, seed,
                 ["--num-prompts", str(args.streams), "--random-input-len", "32",
                  "--random-output-len", str(args.tokens), "--max-concurrency", str(args.streams)])


def long_prompt(args, url, path, seed):
    return start(args, url, path, seed,
                 ["--num-prompts", "1", "--random-input-len", str(args.long),
                  "--random-output-len", "1", "--max-concurrency", "1"])


def result(process, path):
    if process.wait() != 0:
        raise SystemExit("sluice bench serve failed")
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def play_round(args, url, seed, folder):
    path, other = f"{folder}/streams.json", f"{folder}/long.json"
    decode = result(streams(args, url, path, seed), path)
    alone = result(long_prompt(args, url, other, seed), other)
    process = streams(args, url, path, seed + 1)
    time.sleep(1)
    mixed = result(long_prompt(args, url, other, seed + 1), other)
    if process.poll() is not None:
        raise SystemExit("the streams ended before the prompt: longer ones, or a shorter prompt")
    return {"time between tokens, p99": result(process, path)["p99_itl_ms"] / decode["p99_itl_ms"],
            "time to first token": mixed["median_ttft_ms"] / alone["median_ttft_ms"]}


def flags(description, tokens, rounds):
    """What streams() and long_prompt() take, with these defaults."""
    parser = argparse.ArgumentParser(description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--sluice", default="build/sluice")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=tokens, help="of each stream")
    parser.add_argument("--long", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=rounds)
    return parser


def show(name, values):
    print(f"{name}: median {statistics.median(values):.2f} [{min(values):.2f}, {max(values):.2f}]",
          flush=True)


def main():
    args = flags(__doc__, tokens=1500, rounds=3).parse_args()
    args.concurrency = args.streams + 1
    rounds = []
    server = Server(args)
    try:
        with tempfile.TemporaryDirectory() as folder:
            for number in range(args.rounds):
                rounds.append(play_round(args, server.url, 2 * number + 1, folder))
                print("  ".join(f"{name} {value:.2f}" for name, value in rounds[-1].items()),
                      flush=True)
    finally:
        server.stop()
    for name in rounds[0]:
        show(f"{name}, mixed / alone", [r[name] for r in rounds])


if __name__ == "__main__":
    main()
