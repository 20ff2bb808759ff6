#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a prefix that is known already saves: one that is cached, and one that a restarted server finds
on disk.

usage: bench/prefixes.py hit --model FILE [--sluice build/sluice] [--rounds 7]
       bench/prefixes.py restore --model FILE [--sluice build/sluice] [--rounds 5]

`hit`: times to the first token of P cached and R new tokens, beside R tokens alone, in turns. R tokens
behind P attend to P keys more, cached or not. So another prompt of P + R is computed as a whole, and
the engine's own record tells what its step of the last R took: the last ratio is to R alone with that
step in place of its own. Chunks have 512 tokens, of which P is a multiple.

`restore`: prompts of 17 to 4096 tokens, computed by one server and then asked of another, started
anew on the same --kv-disk-path; each round has prompts and a server of its own. The server decides by
itself which it reads and which it computes; the files lie in the page cache.
"""
import argparse
import contextlib
import http.client
import json
import os
import random
import re
import statistics
import subprocess
import tempfile
import time

LENGTHS = (17, 33, 64, 128, 256, 512, 1024, 2048, 4096)
CASES = ((512, 32), (512, 128), (1024, 32), (1024, 256), (2048, 64), (4096, 128))
CHUNK = 512
FIRST_ID, LAST_ID = 1000, 40000


class Server:
    def __init__(self, args, *flags):
        self.process = subprocess.Popen(
            [args.sluice, "serve", args.model, "--port", "0", *flags],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in self.process.stdout:
            found = re.search(r"serving .* on http://([0-9.]+):([0-9]+)", line)
            if found:
                self.connection = http.client.HTTPConnection(found[1], int(found[2]))
                self.model = self.get("/v1/models")["data"][0]["id"]
                return
        raise SystemExit("the server has not started")

    def answer(self, method, path, body=None):
        self.connection.request(method, path, body, {"Content-Type": "application/json"})
        response = self.connection.getresponse()
        text = response.read()
        if response.status != 200:
            raise SystemExit(f"{path}: {response.status} {text.decode()}")
        return json.loads(text)

    def get(self, path):
        return self.answer("GET", path)

    def first_token(self, prompt):
        """Milliseconds, tokens that were found, milliseconds that its last step took."""
        body = json.dumps({"model": self.model, "prompt": prompt, "max_tokens": 1, "temperature": 0})
        start = time.perf_counter()
        answer = self.answer("POST", "/v1/completions", body)
        passed = (time.perf_counter() - start) * 1e3
        details = answer["usage"].get("prompt_tokens_details") or {}
        last = self.get("/debug/state")["steps"][-1]
        return (passed, details.get("cached_tokens") or 0, last["execute_ms"] + last["sample_ms"],
                last["tokens"])

    def stop(self):
        self.connection.close()
        self.process.terminate()
        self.process.wait()


@contextlib.contextmanager
def serving(args, *flags):
    server = Server(args, *flags)
    try:
        yield server
    finally:
        server.stop()


def tokens(source, count):
    return [source.randrange(FIRST_ID, LAST_ID) for _ in range(count)]


def spread(values, form=".2f"):
    return f"{statistics.median(values):{form}} [{min(values):{form}}, {max(values):{form}}]"


def hit_round(server, source, prefix_length, rest):
    prefix = tokens(source, prefix_length)
    server.first_token(prefix)
    hit, found, _, _ = server.first_token(prefix + tokens(source, rest))
    alone, _, alone_step, _ = server.first_token(tokens(source, rest))
    _, _, step, count = server.first_token(tokens(source, prefix_length + rest))
    if count != rest:
        raise SystemExit(f"the last step had {count} tokens, not {rest}")
    return {"hit": hit, "alone": alone, "ratio": hit / alone, "found": found / prefix_length,
            "corrected": hit / (alone - alone_step + step)}


def measure_hits(args):
    source = random.Random(args.seed)
    print("cached + new     found  hit ms  alone ms  hit / alone          hit / alone with P keys")
    with serving(args, "--max-model-len", "8192", "--max-num-batched-tokens", str(CHUNK),
                 "--step-target-ms", "10000") as server:
        for _ in range(5):
            server.first_token(tokens(source, 512))  # the cost model learns
        for prefix_length, rest in CASES:
            rounds = [hit_round(server, source, prefix_length, rest) for _ in range(args.rounds)]
            of = {name: [r[name] for r in rounds] for name in rounds[0]}
            print(f"{prefix_length:6} + {rest:4}  {min(of['found']):7.1%}"
                  f"{statistics.median(of['hit']):8.1f}{statistics.median(of['alone']):10.1f}"
                  f"  {spread(of['ratio']):20} {spread(of['corrected'])}", flush=True)


def settle(folder):
    """Until nothing is written any more."""
    count = -1
    while count != (count := sum(len(names) for _, _, names in os.walk(folder))):
        time.sleep(0.5)


def measure_restores(args):
    source = random.Random(args.seed)
    cold = {length: [] for length in LENGTHS}
    again = {length: [] for length in LENGTHS}
    chosen = {length: [] for length in LENGTHS}
    for _ in range(args.rounds):
        prompts = {length: tokens(source, length) for length in LENGTHS}
        with tempfile.TemporaryDirectory() as folder:
            flags = ("--max-model-len", "8192", "--kv-disk-path", folder)
            with serving(args, *flags) as server:
                server.first_token(tokens(source, 512))
                for length in LENGTHS:
                    cold[length].append(server.first_token(prompts[length])[0])
                settle(folder)
                known = tokens(source, 512)
                server.first_token(known)
                settle(folder)
            with serving(args, *flags) as server:
                for prompt in (tokens(source, 512), known):  # what computing and reading take
                    server.first_token(prompt)
                for length in LENGTHS:
                    passed, found, *_ = server.first_token(prompts[length])
                    again[length].append(passed)
                    chosen[length].append(found > 0)
    print("tokens  computed ms             after a restart ms      computed / restarted  read")
    for length in LENGTHS:
        ratios = [a / b for a, b in zip(cold[length], again[length])]
        print(f"{length:6}  {spread(cold[length], '.1f'):22}  {spread(again[length], '.1f'):22}  "
              f"{spread(ratios):20}  {sum(chosen[length])} of {args.rounds}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("hit", "restore"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--sluice", default="build/sluice")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.what == "hit":
        measure_hits(args)
    else:
        measure_restores(args)


if __name__ == "__main__":
    main()
