#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sluice beside llama.cpp in the same minutes, and beside the machine's limits.

usage: bench/peers.py --model FILE [--sluice build/sluice] [--probes build/bench/kernels]
                      [--llama DIR] [--best FILE ...] [--rounds 5] [--threads 2] [--prefill 512]
                      [--concurrency 1,8,32] [--context 32] [--output-len 96]
                      [--step-target-ms 10000] [--kv-cache-memory auto] [--no-side-by-side]
                      [--vllm PYTHON --vllm-model DIR] [--json FILE]

Decoded tokens stand behind --context tokens of their request. Sluice computes all but the last of
them beforehand, for which its cache must have room.

A prompt is one step of either engine, which for Sluice needs a step target that is no bound: with
its default prompts are cut so that other requests wait 50 ms at most.

Shares of the limits: a decoded token at concurrency 1 reads every repacked weight once; a token of
a prompt multiplies every weight of the layers, a decoded one those of the head as well, 2
operations each. Side by side: two engines with --threads each, decoding 8 requests at the same
time, each against its speed alone.

DIR holds llama.cpp's llama-bench and llama-batched-bench; bench/peers.sh installs them, and vLLM's
CPU build, whose Python --vllm is. --best: other files of the same model, of which llama.cpp's best
figure counts.

A round runs each program once, in turn; a figure is the median of its rounds, with the smallest and
the largest; a ratio is the median of the rounds' own ratios.
"""
import argparse
import glob
import json
import os
import platform
import re
import statistics
import subprocess
import tempfile


def run(command, env=None):
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr[-4000:]}")
    return done.stdout


def sluice_round(args):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        run([args.sluice, "bench", args.model, "--threads", str(args.threads), "--prefill",
             str(args.prefill), "--step-target-ms", str(args.step_target_ms),
             "--kv-cache-memory", args.kv_cache_memory, "--concurrency",
             ",".join(map(str, args.concurrency)), "--context", str(args.context - 1),
             "--prompt-len", "1",
             "--output-len", str(args.output_len), "--rounds", "1", "--json", out.name])
        result = json.load(open(out.name))
    figures = {f"prefill {args.prefill}": result["prefill"][0]["tokens_per_second"]}
    for row in result["decode"]:
        figures[f"decode c={row['concurrency']}"] = row["tokens_per_second"]
    return figures


def decode_at_8(args, copies):
    """Tokens per second of each of so many engines that run at once."""
    files = [tempfile.NamedTemporaryFile(suffix=".json") for _ in range(copies)]
    runs = [subprocess.Popen([args.sluice, "bench", args.model, "--threads", str(args.threads),
                              "--prefill", "16", "--concurrency", "8", "--output-len", "512",
                              "--rounds", "1", "--json", out.name], stdout=subprocess.DEVNULL)
            for out in files]
    if any(process.wait() for process in runs):
        raise SystemExit("sluice bench failed")
    return [json.load(out)["decode"][0]["tokens_per_second"] for out in files]


def side_by_side_round(args):
    alone = decode_at_8(args, 1)[0]
    return min(decode_at_8(args, 2)) / alone


def llama_round(args, model):
    common = ["-m", model, "-t", str(args.threads)]
    bench = [os.path.join(args.llama, "llama-bench"), *common, "-r", "1", "-o", "json"]
    prefill = json.loads(run([*bench, "-p", str(args.prefill), "-n", "0"]))
    figures = {f"prefill {args.prefill}": prefill[0]["avg_ts"]}
    if 1 in args.concurrency:
        alone = json.loads(run([*bench, "-p", "0", "-n", "96", "-d", str(args.context)]))
        figures["decode c=1"] = alone[0]["avg_ts"]
    several = [c for c in args.concurrency if c > 1]
    if not several:
        return figures
    text = run([os.path.join(args.llama, "llama-batched-bench"), *common, "-c",
                str((args.context + 64) * max(several)), "-npp", str(args.context), "-ntg", "64",
                "-npl", ",".join(map(str, several))])
    for c in several:
        row = next(line for line in text.splitlines()
                   if re.match(rf"\|\s+{args.context} \|\s+64 \|\s+{c} \|", line))
        figures[f"decode c={c}"] = float(row.split("|")[8])
    return figures


def vllm_round(args):
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "vllm_round.py")
    # What its guide for CPUs preloads, where it is installed.
    wanted = ["/usr/lib/*/libtcmalloc_minimal.so.4",
              os.path.join(os.path.dirname(args.vllm), "../lib/libiomp5.so")]
    preload = [path for pattern in wanted for path in glob.glob(pattern)]
    text = run([args.vllm, script, args.vllm_model, "--prefill", str(args.prefill), "--concurrency",
                ",".join(map(str, args.concurrency)), "--context", str(args.context),
                "--output-len", str(args.output_len), "--threads", str(args.threads)],
               {**os.environ, "LD_PRELOAD": ":".join(preload)})
    return json.loads(text.splitlines()[-1])


def probe_round(args):
    rows = json.loads(run([args.probes, "--probes-only", "--threads", str(args.threads)]))
    return {"int8 GOP/s": rows["int8_gops"], "read GB/s": rows["read_gbps"]}


def shares(args, ours, limits):
    """Median shares of the probed limits that belong to the same round."""
    text = run([args.sluice, "inspect", "--all", args.model])
    packed = int(re.search(r"weights, repacked\s+(\d+) bytes", text).group(1))
    sizes = {name: int(n) * int(k) for name, n, k in
             re.findall(r"^  (\S+)\s.*\[(\d+), (\d+)\]", text, re.MULTILINE)}
    layers = sum(size for name, size in sizes.items() if name.startswith("blk."))
    head = sizes.get("output.weight", sizes["token_embd.weight"])

    def share(figure, units, limit):
        return statistics.median(mine[figure] * units / 1e9 / probe[limit]
                                 for mine, probe in zip(ours, limits))

    result = {f"prefill {args.prefill} of int8": share(f"prefill {args.prefill}", 2 * layers,
                                                       "int8 GOP/s")}
    for c in args.concurrency:
        if c == 1:
            result["decode c=1 of read"] = share("decode c=1", packed, "read GB/s")
        else:
            result[f"decode c={c} of int8"] = share(f"decode c={c}", 2 * (layers + head),
                                                    "int8 GOP/s")
    return result


def spread(values):
    return f"{statistics.median(values):8.1f} [{min(values):.1f}, {max(values):.1f}]"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--sluice", default="build/sluice")
    parser.add_argument("--probes", default="build/bench/kernels")
    parser.add_argument("--llama", default="")
    parser.add_argument("--best", nargs="*", default=[])
    parser.add_argument("--vllm", default="", help="a Python that has vLLM")
    parser.add_argument("--vllm-model", default="", help="the model as a directory")
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--concurrency", default="1,8,32",
                        type=lambda text: [int(c) for c in text.split(",")])
    parser.add_argument("--context", type=int, default=32)
    parser.add_argument("--output-len", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--step-target-ms", type=int, default=10000)
    parser.add_argument("--kv-cache-memory", default="auto", help="of Sluice")
    parser.add_argument("--no-side-by-side", action="store_true")
    parser.add_argument("--json", default="")
    args = parser.parse_args()

    ours, limits, beside = [], [], []
    peers = {}
    for _ in range(args.rounds):
        limits.append(probe_round(args))
        ours.append(sluice_round(args))
        if args.llama:
            same = llama_round(args, args.model)
            peers.setdefault("llama.cpp", []).append(same)
            others = [same] + [llama_round(args, path) for path in args.best]
            if args.best:
                peers.setdefault("llama.cpp's best", []).append(
                    {name: max(other[name] for other in others) for name in same})
        if args.vllm:
            peers.setdefault("vLLM (BF16)", []).append(vllm_round(args))
        if not args.no_side_by_side:
            beside.append(side_by_side_round(args))

    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo")
                if line.startswith("model name")), platform.processor())
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo")
                  if re.match(r"model\s*:", line)), "?")
    print(f"{cpu} (model {model}), {args.threads} threads, {args.rounds} rounds: "
          "median [smallest, largest]")
    for name in limits[0]:
        print(f"probe {name:14s} {spread([row[name] for row in limits])}")
    result = {"cpu": cpu, "threads": args.threads, "probes": limits, "sluice": ours, "peers": peers,
              "side by side": beside, "shares": shares(args, ours, limits), "ratios": {}}
    print(f"{'tokens/s':14s} {'sluice':>28s}" +
          "".join(f" {name:>28s} {'ratio':>6s}" for name in peers))
    for name in ours[0]:
        mine = [row[name] for row in ours]
        line = f"{name:14s} {spread(mine):>28s}"
        for peer, rows in peers.items():
            other = [row[name] for row in rows]
            ratio = statistics.median(a / b for a, b in zip(mine, other))
            result["ratios"].setdefault(peer, {})[name] = ratio
            line += f" {spread(other):>28s} {ratio:6.2f}"
        print(line)
    for name, share in result["shares"].items():
        print(f"share {name:20s} {100 * share:5.1f} %")
    if beside:
        print(f"two side by side, the slower against one alone: {statistics.median(beside):.2f} "
              f"[{min(beside):.2f}, {max(beside):.2f}]")
    if args.json:
        with open(args.json, "w") as out:
            json.dump(result, out, indent=1)


main()
