#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Throughput over HTTP beside the same requests given to the engine in process, in turns.

usage: bench/served.py --model FILE [--sluice build/sluice] [--concurrency 32] [--prompts 256]
                       [--input-len 64] [--output-len 128] [--rounds 5]

Both sides are `sluice bench` with one data set, as many requests under way and as many running at a
time. A ratio is served over in process within a round; the client's CPU is part of what serving
costs and stands beside it.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import tempfile


class Server:
    def __init__(self, args, *words):
        self.process = subprocess.Popen(
            [args.sluice, "serve", args.model, "--port", "0", "--max-num-seqs",
             str(args.concurrency), "--no-enable-prefix-caching", *words],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in self.process.stdout:
            found = re.search(r"serving .* on (http://\S+)", line)
            if found:
                self.url = found.group(1)
                return
        raise SystemExit("the server has not started")

    def stop(self):
        self.process.terminate()
        self.process.wait()


def data_set(args, number):
    return ["--dataset-name", "random", "--num-prompts", str(args.prompts), "--random-input-len",
            str(args.input_len), "--random-output-len", str(args.output_len), "--max-concurrency",
            str(args.concurrency), "--seed", str(number)]


def served(args, url, number, path):
    subprocess.run([args.sluice, "bench", "serve", "--base-url", url, "--ignore-eos",
                    "--save-result", "--result-filename", path, *data_set(args, number)],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    result = json.load(open(path))
    return {"tokens/s": result["total_output_tokens"] / result["duration"],
            "client CPU": result["client_cpu_seconds"] / result["duration"] / os.cpu_count()}


def in_process(args, number, path):
    subprocess.run([args.sluice, "bench", "throughput", args.model, "--max-num-seqs",
                    str(args.concurrency), "--no-enable-prefix-caching", "--output-json", path,
                    "--num-warmups", str(args.concurrency),
                    *data_set(args, number)],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    result = json.load(open(path))
    return {"tokens/s": result["total_output_tokens"] / result["duration"]}


def show(name, values, form):
    values = sorted(values)
    print(f"{name:22}{statistics.median(values):{form}} "
          f"[{values[0]:{form}}, {values[-1]:{form}}]")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--sluice", default="build/sluice")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("--input-len", type=int, default=64)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    server = Server(args)
    rounds = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "result.json")
            served(args, server.url, 0, path)  # not counted
            for number in range(1, args.rounds + 1):
                rounds.append((served(args, server.url, number, path),
                               in_process(args, number, path)))
    finally:
        server.stop()
    show("served, tokens/s", [a["tokens/s"] for a, _ in rounds], ".1f")
    show("in process, tokens/s", [b["tokens/s"] for _, b in rounds], ".1f")
    show("ratio", [a["tokens/s"] / b["tokens/s"] for a, b in rounds], ".3f")
    show("client's CPU share", [a["client CPU"] for a, _ in rounds], ".4f")


if __name__ == "__main__":
    main()
