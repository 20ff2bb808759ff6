#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One model over two processes of one thread (--nnodes 2) beside one process of two threads.

usage: bench/nodes.py --model FILE [--by stages] [--sluice build/sluice] [--streams 8] [--tokens 48]
                      [--rounds 7]

Two processors: the processes of a model over two are bound to one each, the whole one to both. All
sides stay loaded and are measured in turns: the median time between tokens of streams that decode
together. --by stages: each process has some of the layers, and half of the streams is in one while
the other half is in the other; otherwise each has a share of every layer. A ratio is the speed over that of the whole process in the same round. Of the time of the
others' threads nothing is taken off: on a machine that does something else the two that wait for each
other lose more.
"""
import subprocess
import tempfile

from mixed import flags, result, show, streams
from pair import Process, free_port


class Whole:
    name = "one process of 2 threads"

    def __init__(self, args):
        self.leader = Process([args.sluice, "serve", args.model, "--port", "0", "--threads", "2",
                               "--max-num-seqs", str(args.streams), "--max-model-len", "512"], "0,1")

    def stop(self):
        self.leader.process.terminate()
        self.leader.process.wait()


class Nodes(Whole):
    """Node 1 ends with node 0."""

    def __init__(self, args, transport):
        self.name = f"2 processes by {args.by} over {transport}"
        by = {"ranks": "--tensor-parallel-size", "stages": "--pipeline-parallel-size"}[args.by]
        common = ["serve", args.model, "--port", "0", "--threads", "1", "--nnodes", "2",
                  by, "2", "--master-port", str(free_port()), "--kv-transport",
                  transport, "--max-num-seqs", str(args.streams), "--max-model-len", "512"]
        self.follower = subprocess.Popen(["taskset", "-c", "1", args.sluice, *common, "--node-rank", "1"],
                                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.leader = Process([args.sluice, *common], "0")


def main():
    parser = flags(__doc__, tokens=48, rounds=7)
    parser.add_argument("--by", default="ranks", choices=["ranks", "stages"])
    args = parser.parse_args()
    sides = [Whole(args), Nodes(args, "shm"), Nodes(args, "tcp")]
    ratios = {side.name: [] for side in sides[1:]}
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/streams.json"
            for number in range(args.rounds + 1):
                gaps = {}
                for side in sides:
                    found = result(streams(args, side.leader.url, path, number + 1), path)
                    gaps[side.name] = found["median_itl_ms"]
                if number == 0:  # first uses
                    continue
                for name, values in ratios.items():
                    values.append(gaps[sides[0].name] / gaps[name])
                print("  ".join(f"{name}: {gap:.1f} ms" for name, gap in gaps.items()), flush=True)
    finally:
        for side in sides:
            side.stop()
    for name, values in ratios.items():
        show(f"{name} / {sides[0].name}", values)


if __name__ == "__main__":
    main()
