#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The first seconds of servers beside each other: what a size of the KV cache, or how its memory
comes, costs the first requests.

usage: bench/first_minute.py --model FILE [--rounds 5] "auto=" "small=--kv-cache-memory 128M" ...

A variant is NAME=FLAGS, or NAME@BINARY=FLAGS for another binary. Each round starts every variant
once, in an order of its own, and asks at once: one stream, 32 streams, prompts of 512 tokens. A
ratio is over the last variant's within a round; medians of the rounds, with smallest and largest.
"""
import argparse
import json
import os
import random
import re
import statistics
import subprocess
import tempfile
import time

LOADS = {  # prompts, at a time, tokens in, tokens out
    "1 stream": (1, 1, 32, 200),
    "32 streams": (32, 32, 32, 96),
    "prefill": (12, 1, 512, 1),
}


class Server:
    def __init__(self, binary, model, flags):
        begun = time.monotonic()
        self.process = subprocess.Popen([binary, "serve", model, "--port", "0", *flags],
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in self.process.stdout:
            found = re.search(r"serving .* on (http://\S+)", line)
            if found:
                self.url, self.start = found.group(1), time.monotonic() - begun
                return
        raise SystemExit(f"{binary} {' '.join(flags)}: the server has not started")

    def resident(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as file:
            return int(re.search(r"VmRSS:\s+(\d+)", file.read()).group(1)) / 1024

    def stop(self):
        self.process.terminate()
        self.process.wait()


def ask(client, url, load, seed):
    prompts, at_a_time, tokens_in, tokens_out = LOADS[load]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        subprocess.run([client, "bench", "serve", "--base-url", url, "--ignore-eos", "--num-prompts",
                        str(prompts), "--max-concurrency", str(at_a_time), "--random-input-len",
                        str(tokens_in), "--random-output-len", str(tokens_out), "--seed", str(seed),
                        "--save-result", "--result-filename", path],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with open(path, encoding="utf-8") as file:
            return json.load(file)


def measure(variant, args, seed):
    binary, flags = variant
    server = Server(binary, args.model, flags)
    try:
        figures = {"start, s": server.start, "resident at start, MiB": server.resident()}
        for number, load in enumerate(LOADS):
            result = ask(args.sluice, server.url, load, 10 * seed + number)
            if load == "prefill":
                figures["prefill, tokens/s"] = result["total_input_tokens"] / result["duration"]
                continue
            # Of a stream behind its first token, so that prefill is not in it.
            figures[f"{load}, tokens/s"] = 1000 / result["mean_itl_ms"]
            figures[f"{load}, gap p99 ms"] = result["p99_itl_ms"]
        figures["resident at the end, MiB"] = server.resident()
        return figures
    finally:
        server.stop()


def spread(values):
    return f"{statistics.median(values):9.3f} [{min(values):.3f}, {max(values):.3f}]"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--sluice", default="build/sluice")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("variants", nargs="+")
    args = parser.parse_args()
    variants = {}
    for text in args.variants:
        name, flags = text.split("=", 1)
        name, _, binary = name.partition("@")
        variants[name] = (binary or args.sluice, flags.split())
    rounds = []
    for number in range(args.rounds):
        order = random.Random(number).sample(sorted(variants), len(variants))
        rounds.append({name: measure(variants[name], args, number) for name in order})
    base = list(variants)[-1]
    for figure in rounds[0][base]:
        print(figure)
        for name in variants:
            line = f"  {name:12}{spread([one[name][figure] for one in rounds])}"
            if name != base:
                line += "   ratio " + spread([one[name][figure] / one[base][figure] for one in rounds])
            print(line)


if __name__ == "__main__":
    main()
