#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Throughput of tokenizer.json files: bench_tokenizer against the `tokenizers` package.

    python tokenizer_peers.py BENCH_TOKENIZER TEXT_FILE TOKENIZER_JSON... [--bytes 16384]

Both encode the text as documents of about --bytes, one thread each, in alternating rounds of one
run, so that a busy machine slows both. The package's faster call counts (encode_batch_fast leaves
out the offsets where it exists). The ids are compared first. Printed: the best round of each in
MB/s, and the ratio as the median over rounds.
"""
import argparse
import os
import statistics
import subprocess
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import tokenizers  # noqa: E402: the environment comes first


def documents_of(data, size):
    documents = []
    while data:
        newline = data.find(b"\n", min(size, len(data)) - 1)
        end = len(data) if newline < 0 else newline + 1
        documents.append(data[:end].decode())
        data = data[end:]
    return documents


class Ours:
    def __init__(self, binary, path, text, size):
        self.process = subprocess.Popen([binary, path, text, str(size)], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().split()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def timed(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def compare(arguments, path):
    with open(arguments.text, "rb") as file:
        data = file.read()
    documents = documents_of(data, arguments.bytes)
    package = tokenizers.Tokenizer.from_file(path)
    # Text is text: special tokens in it are no matter here, as the text holds none.
    fast = getattr(package, "encode_batch_fast", package.encode_batch)
    calls = [lambda: [package.encode(d, add_special_tokens=False) for d in documents],
             lambda: fast(documents, add_special_tokens=False)]
    call = min(calls, key=timed)
    ours = Ours(arguments.binary, path, arguments.text, arguments.bytes)
    expected = [i for d in documents for i in package.encode(d, add_special_tokens=False).ids]
    same = [int(i) for i in ours.ask("ids")] == expected
    rounds = [(float(ours.ask("go")[0]), timed(call)) for _ in range(arguments.rounds)]
    ours.close()
    size = len(data) * 1e-6
    ratio = statistics.median(theirs / mine for mine, theirs in rounds)
    print(f"{os.path.basename(path):22} {size / min(r[0] for r in rounds):8.2f} MB/s, tokenizers "
          f"{size / min(r[1] for r in rounds):6.2f} MB/s, ratio {ratio:5.2f}, "
          f"{len(expected)} ids {'equal' if same else 'DIFFERENT'}", flush=True)
    return same


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary")
    parser.add_argument("text")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--bytes", type=int, default=16384)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    sys.exit(0 if all([compare(arguments, path) for path in arguments.files]) else 1)


if __name__ == "__main__":
    main()
