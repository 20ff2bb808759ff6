#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`sluice bench serve` beside guidellm (PyPI, 0.8.1) on the same server at the same load.

usage: bench/guidellm.py --url http://127.0.0.1:8000 --model NAME --guidellm PATH
                         [--sluice build/sluice] [--rate 2] [--count 60] [--tokens 32] [--rounds 3]

Both send the same chat prompts at a constant rate, in turns; a round's ratio is ours over theirs, of
medians. Their inter-token latency is our time per output token: both leave out the first token.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile


def write_prompts(path, args, number):
    with open(path, "w") as out:
        for i in range(args.count):
            prompt = f"Round {number}. Write a few sentences about the number {i}, please."
            out.write(json.dumps({"prompt": prompt, "output_tokens": args.tokens,
                                  "output_tokens_count": args.tokens}) + "\n")


def ours(args, folder, prompts):
    path = os.path.join(folder, "ours.json")
    subprocess.run([args.sluice, "bench", "serve", "--backend", "openai-chat", "--base-url", args.url,
                    "--model", args.model, "--dataset-name", "custom", "--dataset-path", prompts,
                    "--num-prompts", str(args.count), "--request-rate", str(args.rate),
                    "--burstiness", "inf", "--ignore-eos", "--percentile-metrics", "ttft,tpot,e2el",
                    "--save-result", "--result-filename", path],
                   check=True, stdout=subprocess.DEVNULL)
    result = json.load(open(path))
    return {"TTFT ms": result["median_ttft_ms"], "ITL ms": result["median_tpot_ms"],
            "E2E ms": result["median_e2el_ms"],
            "tokens/request": result["total_output_tokens"] / result["completed"]}


def theirs(args, folder, prompts):
    path = os.path.join(folder, "theirs.json")
    subprocess.run([args.guidellm, "run",
                    "--backend", f"kind=openai_http,target={args.url},model={args.model}",
                    "--profile", f"kind=constant,rate={args.rate}",
                    "--constraint", f"kind=max_requests,count={args.count}",
                    "--data", f"kind=json_file,path={prompts}",
                    "--output", f"kind=json,path={path}", "--disable-console"],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                   env=dict(os.environ, HF_HUB_OFFLINE="1"))
    metrics = json.load(open(path))["benchmarks"][0]["metrics"]

    def median(name):
        return metrics[name]["successful"]["median"]

    return {"TTFT ms": median("time_to_first_token_ms"), "ITL ms": median("inter_token_latency_ms"),
            "E2E ms": 1e3 * median("request_latency"), "tokens/request": median("output_token_count")}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--guidellm", required=True)
    parser.add_argument("--sluice", default="build/sluice")
    parser.add_argument("--rate", type=float, default=2)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.rounds):
            mine, peer = os.path.join(folder, "a.jsonl"), os.path.join(folder, "b.jsonl")
            write_prompts(mine, args, 2 * number)
            write_prompts(peer, args, 2 * number + 1)
            rounds.append((ours(args, folder, mine), theirs(args, folder, peer)))
    print(f"{'':16s} {'ours':>10s} {'guidellm':>10s} {'ratio':>8s}")
    for name in rounds[0][0]:
        a = statistics.median(row[0][name] for row in rounds)
        b = statistics.median(row[1][name] for row in rounds)
        ratio = statistics.median(row[0][name] / row[1][name] for row in rounds)
        print(f"{name:16s} {a:10.2f} {b:10.2f} {ratio:8.3f}")


main()
