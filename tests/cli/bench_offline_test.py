#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`sluice bench`, `throughput` and `latency` as a user runs them: bench_offline_test.py SLUICE MODEL.

Console lines and JSON keys are those that scripts for `vllm bench` read; the figures must agree with
each other and with what was asked for.
"""

import json
import os
import re
import subprocess
import sys
import tempfile


def run(*arguments, code=0):
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=100)
    assert done.returncode == code, f"{arguments} gave {done.returncode}: {done.stderr}"
    return done.stdout if code == 0 else done.stderr


def near(a, b):
    return abs(a - b) <= 1e-6 * max(abs(a), abs(b))


def check_prefill_and_decode(sluice, model, folder):
    path = os.path.join(folder, "bench.json")
    # Two blocks and a part of one, which is taken from the cache too.
    run(sluice, "bench", model, "--prefill", "16", "--concurrency", "1,3", "--context", "37",
        "--prompt-len", "3", "--output-len", "24", "--rounds", "1", "--json", path)
    with open(path, encoding="utf-8") as file:
        result = json.load(file)
    assert [row["prompt_len"] for row in result["prefill"]] == [16]
    assert [row["concurrency"] for row in result["decode"]] == [1, 3]
    for row in result["decode"]:
        assert (row["context"], row["prompt_len"], row["output_len"]) == (37, 3, 24), row
        assert near(row["ms_per_token"], 1e3 * row["concurrency"] / row["tokens_per_second"])
    # Predictions are of the served API: here a method has to draft.
    config = '{"method":"ngram","prompt_lookup_min":1,"prompt_lookup_max":1,"adaptive":false}'
    text = run(sluice, "bench", model, "--prefill", "16", "--concurrency", "1", "--output-len", "48",
               "--rounds", "1", "--json", path, "--speculative-config", config)
    with open(path, encoding="utf-8") as file:
        row = json.load(file)["decode"][0]
    assert row["drafts"] > 0 and f"{row['drafts']} drafts, accepted by position:" in text, text
    rates = row["per_position_acceptance_rates"]
    assert rates == sorted(rates, reverse=True) and all(0 < rate <= 1 for rate in rates), rates
    few = ["--prefill", "16", "--concurrency", "1", "--context", "37", "--output-len", "4"]
    line = run(sluice, "bench", model, *few, "--no-enable-prefix-caching", code=1)
    assert "of 37 tokens computed beforehand 0 were cached" in line, line


def check_throughput(sluice, model, folder):
    path = os.path.join(folder, "throughput.json")
    page = os.path.join(folder, "throughput.html")
    text = run(sluice, "bench", "throughput", model, "--num-prompts", "6", "--random-input-len",
               "20", "--random-output-len", "5", "--n", "2", "--save-detailed", "--output-json",
               path, "--html", page)
    shown = re.search(r"Throughput: ([\d.]+) requests/s, ([\d.]+) total tokens/s, "
                      r"([\d.]+) output tokens/s", text)
    assert shown, text
    assert "Total num prompt tokens:  240\n" in text and "Total num output tokens:  60\n" in text
    assert "Median TTFT (ms):" in text
    with open(path, encoding="utf-8") as file:
        result = json.load(file)
    assert result["num_requests"] == result["completed"] == 12
    assert result["total_num_tokens"] == 300
    assert near(result["tokens_per_second"], 300 / result["elapsed_time"])
    assert near(result["requests_per_second"], 12 / result["elapsed_time"])
    assert abs(float(shown[2]) - result["tokens_per_second"]) < 0.01
    assert result["output_lens"] == [5] * 12 and result["input_lens"] == [20] * 12
    assert result["errors"] == [""] * 12
    # Two answers to the same prompt differ: each has its own seed.
    texts = result["generated_texts"]
    assert any(texts[i] != texts[i + 1] for i in range(0, 12, 2)), texts
    with open(page, encoding="utf-8") as file:
        assert "in process, cpu:" in file.read()


def check_seeds(sluice, model, folder):
    texts = []
    # Requests that are not measured change nothing.
    for run_index, (seed, warmups) in enumerate([("7", "0"), ("7", "3"), ("8", "0")]):
        path = os.path.join(folder, f"seed{run_index}.json")
        run(sluice, "bench", "throughput", model, "--num-prompts", "4", "--input-len", "9",
            "--output-len", "8", "--seed", seed, "--num-warmups", warmups, "--save-detailed",
            "--output-json", path)
        with open(path, encoding="utf-8") as file:
            texts.append(json.load(file)["generated_texts"])
    assert texts[0] == texts[1] and texts[0] != texts[2], texts


def check_conversations(sluice, model, folder):
    path = os.path.join(folder, "turns.json")
    run(sluice, "bench", "throughput", model, "--dataset-name", "multi_turn", "--num-prompts", "3",
        "--multi-turn-num-turns", "2", "--input-len", "4", "--output-len", "5", "--save-detailed",
        "--output-json", path)
    with open(path, encoding="utf-8") as file:
        result = json.load(file)
    assert result["completed"] == 6
    for first, second in zip(result["input_lens"][::2], result["input_lens"][1::2]):
        assert second > first + 5, result["input_lens"]


def check_latency(sluice, model, folder):
    path = os.path.join(folder, "latency.json")
    text = run(sluice, "bench", "latency", "--model", model, "--input-len", "12", "--output-len",
               "6", "--batch-size", "3", "--num-iters-warmup", "1", "--num-iters", "4",
               "--output-json", path)
    shown = re.search(r"Avg latency: ([\d.]+) seconds", text)
    assert shown and "99% percentile latency: " in text, text
    with open(path, encoding="utf-8") as file:
        result = json.load(file)
    assert len(result["latencies"]) == 4 and result["completed"] == 12
    assert near(result["avg_latency"], sum(result["latencies"]) / 4)
    assert list(result["percentiles"]) == ["10", "25", "50", "75", "90", "99"]
    # A batch cannot be faster than the slowest of its requests.
    assert result["avg_latency"] * 1e3 >= result["mean_e2el_ms"]
    # No more than the first token that random prompts of a small vocabulary share by chance.
    assert result["total_cached_tokens"] <= result["completed"], result["total_cached_tokens"]


def check_refusals(sluice, model):
    line = run(sluice, "bench", "throughput", model, "--random-input-len", "100000", code=1)
    assert "--max-model-len" in line and line.count("\n") == 1, line
    line = run(sluice, "bench", "throughput", model, "--dataset-name", "sharegpt",
               "--dataset-path", "/nonexistent.json", code=1)
    assert "/nonexistent.json" in line, line
    line = run(sluice, "bench", "latency", model, "--goodput", "speed:1", code=2)
    assert "speed" in line, line


def main():
    sluice, model = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        check_prefill_and_decode(sluice, model, folder)
        check_throughput(sluice, model, folder)
        check_seeds(sluice, model, folder)
        check_conversations(sluice, model, folder)
        check_latency(sluice, model, folder)
    check_refusals(sluice, model)


main()
