#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a prefill and a decode worker behind `sluice router` change beside one worker for both.

usage: bench/pair.py --model FILE [--sluice build/sluice] [--streams 8] [--tokens 800] [--long 4096]
                     [--rounds 5] [--transport auto]

Two processors, to which the workers are bound: the pair has one each, the whole worker has both. A
third side is one worker on one processor, which is what computes a prompt in the pair. In turns:

- first token: of one long prompt with nothing beside it, by the pair, and by one worker on one
  processor behind a router: the difference is what handing over costs.
- streams: p99 of the time between tokens of streams that decode while long prompts come one after
  the other, by the pair and by the whole worker.
"""
import os
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request

from mixed import flags, long_prompt, result, show, streams


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Process:
    def __init__(self, command, cpus):
        self.process = subprocess.Popen(["taskset", "-c", cpus, *command], stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)
        for line in self.process.stdout:
            if line.startswith(("serving ", "routing ")):
                self.url = next(word for word in line.split() if word.startswith("http://"))
                threading.Thread(target=self.process.stdout.read, daemon=True).start()
                return
        raise SystemExit(f"has not started: {' '.join(command)}")

    def metric(self, name):
        with urllib.request.urlopen(self.url + "/metrics") as answer:
            return sum(float(line.rsplit(" ", 1)[1]) for line in answer.read().decode().splitlines()
                       if line.split("{")[0].split(" ")[0] == name)


class Side:
    """Workers, each given as (flags, processors), and a router in front of them."""

    def __init__(self, args, *workers):
        self.workers, addresses = [], []
        for flags, cpus in workers:
            addresses.append(f"127.0.0.1:{free_port()}")
            self.workers.append(Process(
                [args.sluice, "serve", args.model, "--port", "0", "--worker-listen", addresses[-1],
                 "--max-num-seqs", str(args.streams + 1), *flags], cpus))
        self.router = Process(
            [args.sluice, "router", "--workers", ",".join(addresses), "--port", "0"],
            ",".join(map(str, range(os.cpu_count()))))
        self.url = self.router.url
        deadline = time.monotonic() + 30
        while self.router.metric("sluice:router_usable_workers") < len(workers):
            if time.monotonic() > deadline:
                raise SystemExit("the router does not see its workers")
            time.sleep(0.1)

    def stop(self):
        for process in (self.router, *self.workers):
            process.process.terminate()
            process.process.wait()


def first_token(args, side, seed, path):
    return result(long_prompt(args, side.url, path, seed), path)["median_ttft_ms"]


def beside_prompts(args, side, seed, folder):
    """p99 between tokens of the streams, and how many long prompts were computed meanwhile."""
    path, count = f"{folder}/streams.json", 0
    process = streams(args, side.url, path, seed)
    while process.poll() is None:
        result(long_prompt(args, side.url, f"{folder}/long.json", seed + 1000 + count),
               f"{folder}/long.json")
        count += 1
    values = result(process, path)
    return values["p99_itl_ms"], values["median_itl_ms"], count


def main():
    parser = flags(__doc__, tokens=800, rounds=5)
    parser.add_argument("--transport", default="auto")
    args = parser.parse_args()

    def role(name):
        return ["--role", name, "--threads", "1", "--kv-listen", f"127.0.0.1:{free_port()}",
                "--kv-peers", "127.0.0.1", "--kv-transport", args.transport]

    pair = Side(args, (role("prefill"), "0"), (role("decode"), "1"))
    whole = Side(args, (["--threads", "2"], "0,1"))
    single = Side(args, (["--threads", "1"], "0"))
    added, times, ratios = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for side in (pair, whole, single):  # a worker's first long prompt is slower than the next
            first_token(args, side, 999, f"{folder}/first.json")
        for number in range(args.rounds):
            path = f"{folder}/first.json"
            mine = first_token(args, pair, 7 * number + 1, path)
            other = first_token(args, single, 7 * number + 1, path)
            added.append(mine - other)
            times.append(mine / other)
            split = beside_prompts(args, pair, 7 * number + 2, folder)
            unsplit = beside_prompts(args, whole, 7 * number + 2, folder)
            ratios.append(unsplit[0] / split[0])
            print(f"first token {mine:.0f} and {other:.0f} ms; between tokens, p99 (median), and "
                  f"prompts: pair {split[0]:.1f} ({split[1]:.1f}) {split[2]}, whole "
                  f"{unsplit[0]:.1f} ({unsplit[1]:.1f}) {unsplit[2]}", flush=True)
    show("first token, pair - one worker, ms", added)
    show("first token, pair / one worker", times)
    show("p99 between tokens, whole worker / pair", ratios)
    decode = pair.workers[1]
    print(f"transfers {decode.metric('vllm:nixl_xfer_time_seconds_count'):.0f}, "
          f"bytes {decode.metric('vllm:nixl_bytes_transferred_sum'):.0f}, "
          f"prompts computed again {decode.metric('sluice_handoff_fallbacks_total'):.0f}")
    for side in (pair, whole, single):
        side.stop()


if __name__ == "__main__":
    main()
