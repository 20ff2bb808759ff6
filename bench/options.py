#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Settings of the engine beside each other, in turn: start, memory, prefill, decode.

  python3 bench/options.py --model MODEL.gguf "plain=" "strict=--cpu-strict" --rounds 7
  python3 bench/options.py --model MODEL.gguf "plain=" --busy 1

A variant is a name and the flags it adds. Each round runs all of them, in an order of its own. The
first one is what the others are compared with, within the round; medians are printed.
  start     process start to the first byte of the first token, over HTTP, files in the page cache
  memory    Pss of --servers processes of the variant together, reserved huge pages included, each
            after its first token
  prefill, decode   `sluice bench`; with --busy N again beside N processes that only count: its share
"""
import argparse
import http.client
import json
import os
import random
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

SPIN = "while True: pass"


class Server:
    """`sluice serve` that has answered one token; `seconds` is how long that took."""

    def __init__(self, args, flags):
        begin = time.monotonic()
        self.process = subprocess.Popen(
            [args.sluice, "serve", args.model, "--port", "0",
             "--served-model-name", "model", *args.common, *flags],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for line in self.process.stdout:
            match = re.match(r"serving .* on http://([^ ]+) ", line)
            if match:
                break
        else:
            raise SystemExit(f"options.py: the server does not start with {flags}")
        connection = http.client.HTTPConnection(match.group(1), timeout=60)
        connection.request("POST", "/v1/completions", json.dumps(
            {"model": "model", "prompt": "Once", "max_tokens": 1, "stream": True}),
            {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise SystemExit(f"options.py: {answer.status} {answer.read()}")
        answer.readline()
        self.seconds = time.monotonic() - begin
        connection.close()

    def pss(self):
        with open(f"/proc/{self.process.pid}/smaps_rollup") as file:
            return 1024 * sum(int(line.split()[1]) for line in file
                              if line.startswith(("Pss:", "Private_Hugetlb:")))

    def stop(self):
        self.process.terminate()
        self.process.communicate()


def start(args, flags):
    servers = []
    try:
        for _ in range(args.servers):
            servers.append(Server(args, flags))
        time.sleep(args.settle)
        return {"start, ms": 1e3 * statistics.median(server.seconds for server in servers),
                "memory, MiB": sum(server.pss() for server in servers) / 2**20}
    finally:
        for server in servers:
            server.stop()


def speed(args, flags):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([args.sluice, "bench", args.model, "--prefill", str(args.prefill),
                        "--concurrency", args.concurrency, "--rounds", "1", "--json", file.name,
                        *args.common, *flags], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        result = json.load(open(file.name))
    figures = {f"prefill {row['prompt_len']}, tokens/s": row["tokens_per_second"]
               for row in result["prefill"]}
    figures.update({f"decode x {row['concurrency']}, tokens/s": row["tokens_per_second"]
                    for row in result["decode"]})
    return figures


def beside(args, flags, alone):
    """Shares of what it did alone."""
    others = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(args.busy)]
    try:
        figures = speed(args, flags)
    finally:
        for other in others:
            other.kill()
            other.wait()
    return {f"{name.split(',')[0]}, share beside {args.busy} busy": value / alone[name]
            for name, value in figures.items()}


def measure(args, flags):
    figures = {} if args.no_start else start(args, flags)
    if not args.no_speed:
        figures.update(speed(args, flags))
    if args.busy:
        figures.update(beside(args, flags, figures))
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("variants", nargs="+", metavar="NAME=FLAGS")
    parser.add_argument("--model", required=True)
    parser.add_argument("--sluice", default="build/sluice")
    parser.add_argument("--common", type=shlex.split, default=["--kv-cache-memory", "64M"],
                        help="flags of all variants (default: --kv-cache-memory 64M)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--servers", type=int, default=1, help="processes whose memory is counted")
    parser.add_argument("--settle", type=float, default=0.5, help="seconds before it is counted")
    parser.add_argument("--no-start", action="store_true", help="only prefill and decode")
    parser.add_argument("--no-speed", action="store_true", help="only start and memory")
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--concurrency", default="1,8")
    parser.add_argument("--busy", type=int, default=0, metavar="N")
    args = parser.parse_args()
    if args.no_speed and (args.no_start or args.busy):
        parser.error("--no-speed leaves nothing to measure")
    variants = []
    for text in args.variants:
        name, equals, flags = text.partition("=")
        if not equals:
            parser.error(f"{text}: expected NAME=FLAGS")
        variants.append((name, shlex.split(flags)))
    for _, flags in variants:  # not counted: caches of files fill
        measure(args, flags)
    order = random.Random(0)
    rounds = []
    for _ in range(args.rounds):
        rounds.append({name: measure(args, flags)
                       for name, flags in order.sample(variants, len(variants))})
    first = variants[0][0]
    print(f"{os.path.basename(args.model)}, {args.rounds} rounds: median [smallest, largest], "
          f"ratio to {first}")
    for figure in rounds[0][first]:
        print(figure)
        for name, _ in variants:
            values = sorted(row[name][figure] for row in rounds)
            ratio = statistics.median(row[name][figure] / row[first][figure] for row in rounds)
            print(f"  {name:16}{statistics.median(values):10.2f} "
                  f"[{values[0]:.2f}, {values[-1]:.2f}]  {ratio:.3f}")


if __name__ == "__main__":
    main()
