#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Structured output: what a schema costs, and whether answers keep it.

  python3 bench/structured.py --model MODEL.gguf [--baseline OTHER_SLUICE] [--generations 2000]

  first      milliseconds to the first token of a request with a schema that nobody has sent before,
             less those of one without a schema; again: with the one before
  streams    tokens a second of 8 and 32 streams with a schema over those without, in turn, the
             median of the rounds; neighbours: the time between tokens of a stream without a schema
             (median and 99th percentile) beside streams that each send schemas of their own, over
             that beside streams without
  hostile    the time between tokens of eight streams without a schema (median, 99th percentile, and
             largest) alone, beside grammars that four clients send without an end and that are
             refused, and beside new heavy schemas that compile
  valid      answers at temperature 1.0 over --schemas random schemas that a validator which is not
             ours (jsonschema_rs) accepts; an answer that its length cut is no answer

With --baseline `first` and `hostile` are measured with that binary as well, in turn.
"""
import argparse
import collections
import concurrent.futures
import http.client
import itertools
import json
import random
import re
import statistics
import subprocess
import sys
import threading
import time


class Server:
    def __init__(self, sluice, args):
        self.process = subprocess.Popen(
            [sluice, "serve", args.model, "--port", "0", "--served-model-name", "model",
             *args.flags], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for line in self.process.stdout:
            match = re.match(r"serving .* on http://([^ ]+) ", line)
            if match:
                break
        else:
            raise SystemExit(f"structured.py: {sluice} does not start")
        self.address = match.group(1)
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def close(self):
        self.process.terminate()
        self.process.wait()

    def ask(self, schema, times=None, **more):
        """Text and reason of an answer; `times` gets when its tokens came."""
        body = {"model": "model", "messages": [{"role": "user", "content": "Answer in JSON."}],
                "stream": True, **more}
        if schema is not None:
            body["response_format"] = {"type": "json_schema", "json_schema": {
                "name": "s", "strict": True, "schema": schema}}
        connection = http.client.HTTPConnection(self.address, timeout=300)
        connection.request("POST", "/v1/chat/completions", json.dumps(body),
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise SystemExit(f"structured.py: {response.status} {response.read()} {schema}")
        text, reason = "", None
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            if times is not None:
                times.append(time.monotonic())
            choice = json.loads(line[6:])["choices"][0]
            text += choice["delta"].get("content") or ""
            reason = choice["finish_reason"] or reason
        connection.close()
        return text, reason


class Schemas:
    """Random schemas as people write them; no two are the same."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.count = 0

    def value(self, depth):
        kind = self.random.choice(
            ("string", "string", "enum", "integer", "number", "boolean", "pattern", "null") +
            (("array", "object", "either") if depth > 0 else ()))
        if kind == "enum":
            return {"enum": self.random.sample(["red", "green", "blue", 1, 2.5, None, "é"], 3)}
        if kind == "integer":
            return {"type": "integer", "minimum": 0, "maximum": self.random.randint(1, 5000)}
        if kind == "string":
            return {"type": "string", "maxLength": self.random.randint(3, 20)}
        if kind == "pattern":
            return {"type": "string", "pattern": f"^[A-Z]{{{self.random.randint(1, 4)}}}-[0-9]+$"}
        if kind == "array":
            return {"type": "array", "items": self.value(depth - 1),
                    "maxItems": self.random.randint(1, 4)}
        if kind == "object":
            return self.make(depth - 1)
        if kind == "either":
            return {"anyOf": [self.value(depth - 1), {"type": "null"}]}
        return {"type": kind}

    def make(self, depth=2):
        names = []
        for _ in range(self.random.randint(1, 4)):
            self.count += 1
            names.append(f"{self.random.choice(('name', 'size', 'kind', 'tags'))}_{self.count}")
        required = [name for name in names if self.random.random() < 0.7]
        return {"type": "object", "properties": {name: self.value(depth) for name in names},
                "required": required, "additionalProperties": False}


def first_use(servers, schemas, count):
    """Of each server: milliseconds of new schemas and of known ones, beyond a request without."""
    taken = [[[], [], []] for _ in servers]
    for number in range(count + 1):
        schema = schemas.make()
        for server, (plain, new, known) in zip(servers, taken):
            for asked, into in ((None, plain), (schema, new), (schema, known)):
                begun = time.monotonic()
                times = []
                server.ask(asked, times, max_tokens=1, temperature=0)
                if number > 0:  # the first one starts the process that compiles
                    into.append(1e3 * (times[0] - begun))
    for plain, new, known in taken:
        base = statistics.median(plain)
        yield [statistics.median(new) - base, statistics.quantiles(new, n=20)[-1] - base,
               statistics.median(known) - base]


def rate(server, schema, num_streams):
    """Tokens a second of streams of 64 tokens."""
    times = [[] for _ in range(num_streams)]
    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(num_streams) as pool:
        list(pool.map(lambda i: server.ask(schema, times[i], max_tokens=64, temperature=1.0,
                                           seed=i), range(num_streams)))
    return sum(map(len, times)) / (time.monotonic() - begun)


# Strings without an end of their own, so that all streams are of one length.
LONG = {"type": "object", "properties": {"text": {"type": "string", "minLength": 400}},
        "required": ["text"], "additionalProperties": False}


def throughput(server, num_streams, rounds):
    rate(server, LONG, 1)
    ratios = []
    for number in range(rounds):
        pair = [(LONG, rate(server, LONG, num_streams)), (None, rate(server, None, num_streams))]
        if number % 2 == 1:
            pair = [(None, rate(server, None, num_streams)),
                    (LONG, rate(server, LONG, num_streams))]
        rates = {schema is not None: value for schema, value in pair}
        ratios.append(rates[True] / rates[False])
    return statistics.median(ratios)


def neighbour(server, schemas, has_schemas):
    """Times between the tokens of one stream beside four that begin new answers all the time."""
    is_over = threading.Event()

    def others(seed):
        while not is_over.is_set():
            server.ask(schemas.make() if has_schemas else None, max_tokens=16, temperature=1.0,
                       seed=seed)
    threads = [threading.Thread(target=others, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    times = []
    server.ask(None, times, max_tokens=200, temperature=1.0, ignore_eos=True)
    is_over.set()
    for thread in threads:
        thread.join()
    return sorted(1e3 * (b - a) for a, b in zip(times, times[1:]))


def repeated(what, times):
    return what * times


# Each is refused, most of them after all the time or memory that a compilation has.
HOSTILE = [
    {"regex": "((((a{1,1000}){1,1000}){1,1000}){1,1000}){1,1000}"},
    {"regex": repeated("(a?){50}", 40) + "{1000}"},
    {"grammar": 'root ::= (("a"{1,100000}){1,100000}){1,100000}'},
    {"regex": repeated("(", 8000) + "a" + repeated(")", 8000)},
    {"json": {"type": "object", "properties": {
        f"p{i}": {"type": "string", "pattern": "^(([a-z]+|[0-9]{1,500}){1,500}){1,50}$"}
        for i in range(20)}}},
]


def heavy(number):
    """A schema that compiles, for as long as the limits let it."""
    return {"json": {"type": "object", "additionalProperties": False, "properties": {
        f"p{i}_{number}": {"type": "string", "maxLength": 30 + i} for i in range(60)}}}


def hostile(number):
    """One that nobody has sent before, or a cache would know its answer."""
    (kind, text), = HOSTILE[number % len(HOSTILE)].items()
    return {kind: text + "b" * (number % 97) if kind == "regex" else text}


def between_tokens(server, make):
    """Times between the tokens of eight streams; make(n): what four others ask for, if any."""
    is_over, asked, answers = threading.Event(), itertools.count(), collections.Counter()
    longest = [0.0]

    def others():
        while not is_over.is_set():
            begun = time.monotonic()
            connection = http.client.HTTPConnection(server.address, timeout=300)
            connection.request("POST", "/v1/chat/completions", json.dumps({
                "model": "model", "max_tokens": 1, "structured_outputs": make(next(asked)),
                "messages": [{"role": "user", "content": "Answer."}]}),
                {"Content-Type": "application/json"})
            answers[connection.getresponse().status] += 1
            longest[0] = max(longest[0], time.monotonic() - begun)
            connection.close()
    threads = [threading.Thread(target=others) for _ in range(4 if make else 0)]
    for thread in threads:
        thread.start()
    times = [[] for _ in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: server.ask(None, times[i], max_tokens=300, temperature=1.0, seed=i,
                                           ignore_eos=True), range(8)))
    is_over.set()
    for thread in threads:
        thread.join()
    return (sorted(1e3 * (b - a) for each in times for a, b in zip(each, each[1:])),
            {**answers, "slowest, s": round(longest[0], 1)})


def beside_compilers(servers, rounds):
    """Lines of a table: what each server's streams have beside each kind of others."""
    kinds = {"alone": None, "heavy": heavy, "hostile": hostile}
    taken = {}
    for _ in range(rounds):
        for number, server in enumerate(servers):
            for kind, make in kinds.items():
                times, answers = between_tokens(server, make)
                taken.setdefault((number, kind), []).append(
                    (times[len(times) // 2], times[int(0.99 * len(times))], times[-1], answers))
    for (number, kind), rows in taken.items():
        values = [statistics.median(row[i] for row in rows) for i in range(3)]
        yield (f"{'this' if number == 0 else 'baseline'}, {kind}: median {values[0]:.1f} ms, "
               f"p99 {values[1]:.1f}, largest {values[2]:.1f}; the others' answers {rows[-1][3]}")


def validity(server, schemas, num_schemas, generations):
    import jsonschema_rs
    made = [schemas.make() for _ in range(num_schemas)]
    counts = {"valid": 0, "invalid": 0, "cut by length": 0}

    def one(i):
        schema = made[i % num_schemas]
        text, reason = server.ask(schema, max_tokens=200, temperature=1.0, seed=i)
        if reason == "length":
            return "cut by length"
        if jsonschema_rs.is_valid(schema, json.loads(text)):
            return "valid"
        print(f"invalid: {json.dumps(schema)}\n  {text}", file=sys.stderr)
        return "invalid"

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for what in pool.map(one, range(generations)):
            counts[what] += 1
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluice", default="build/sluice")
    parser.add_argument("--baseline", help="another sluice, for first uses")
    parser.add_argument("--model", required=True)
    parser.add_argument("--flags", nargs="*", default=[])
    parser.add_argument("--first", type=int, default=20, help="new schemas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hostile", type=int, default=0, help="rounds beside compilers")
    parser.add_argument("--schemas", type=int, default=300)
    parser.add_argument("--generations", type=int, default=2000)
    args = parser.parse_args()

    server = Server(args.sluice, args)
    schemas = Schemas(1)
    servers = [server] + ([Server(args.baseline, args)] if args.baseline else [])
    if args.first > 1:
        for name, row in zip(("this", "baseline"), first_use(servers, schemas, args.first)):
            print(f"first {name}: new p50 {row[0]:.1f} ms, p95 {row[1]:.1f} ms, "
                  f"known p50 {row[2]:.1f} ms")
    if args.hostile > 0:
        for line in beside_compilers(servers, args.hostile):
            print(line, flush=True)
    for other in servers[1:]:
        other.close()
    if args.rounds > 0:
        for num_streams in (8, 32):
            ratio = throughput(server, num_streams, args.rounds)
            print(f"streams {num_streams}: {ratio:.3f}", flush=True)
        beside = [neighbour(server, schemas, has_schemas) for has_schemas in (False, True)]
        for what, at in (("median", 0.5), ("99th percentile", 0.99)):
            free, bound = (times[int(at * (len(times) - 1))] for times in beside)
            print(f"neighbours, {what}: {free:.1f} ms, beside schemas {bound:.1f} ms")
    if args.generations > 0:
        counts = validity(server, schemas, args.schemas, args.generations)
        print(f"valid: {counts} of {args.generations} over {args.schemas} schemas")
    server.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
