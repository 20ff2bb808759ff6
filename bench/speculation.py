#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Answers with and without drafts, in turns: how much faster, how often right, and the same text.

usage: bench/speculation.py --model FILE [--sluice build/sluice] [--streams 1,8,32] [--rounds 5]
                            [--tokens 128] [--modes ngram,suffix,ngram+suffix,prediction]
                            [--tasks quote,edit,ordinary,random,schema] [--json FILE]
       bench/speculation.py --model FILE --replay 0,0.1,0.3,0.5,1 [--streams 1,8,32] ...

Tasks: `quote` copies a passage of the prompt, `edit` a piece of code with a name changed, `ordinary`
goes on with a text, `random` with random tokens, `schema` fills in an object with long keys, by a JSON
schema. Prompts differ by stream and round.

A mode is a server with `--speculative-config` (ngram+suffix: both), beside one without. `prediction`
is one without, whose requests send as `prediction` the answer that the server without drafts has
just given; `forced` is one without, which drafts what a schema leaves no choice about. A round asks every server for the same streams, in an order that turns; a ratio is of
that round's tokens/s, or of its median time to the first token. --replay takes another road: each
request's true answer is drafted with that share of wrong tokens, and the table is gain over error
rate and streams.

Any answer that differs from the one without drafts ends the run with status 1. Times are those of
the client; tokens of the answers' usage.
"""
import argparse
import http.client
import json
import random
import re
import statistics
import sys
import threading
import time
import urllib.parse

from served import Server

# Public domain: Melville's Moby-Dick, Austen's Pride and Prejudice, Dickens's A Tale of Two Cities.
PASSAGES = (
    "Call me Ishmael. Some years ago, never mind how long precisely, having little or no money in my "
    "purse, and nothing particular to interest me on shore, I thought I would sail about a little and "
    "see the watery part of the world. It is a way I have of driving off the spleen and regulating the "
    "circulation. Whenever I find myself growing grim about the mouth, I account it high time to get "
    "to sea as soon as I can.",
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, must "
    "be in want of a wife. However little known the feelings or views of such a man may be on his "
    "first entering a neighbourhood, this truth is so well fixed in the minds of the surrounding "
    "families, that he is considered as the rightful property of some one or other of their daughters.",
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of "
    "foolishness, it was the epoch of belief, it was the epoch of incredulity, it was the season of "
    "Light, it was the season of Darkness, it was the spring of hope, it was the winter of despair, we "
    "had everything before us, we had nothing before us.",
)
CODE = '''def {name}(values, limit):
    total = 0
    kept = []
    for value in values:
        if value > limit:
            continue
        total += value
        kept.append(value)
    if not kept:
        return None
    mean = total / len(kept)
    spread = sum((value - mean) ** 2 for value in kept)
    return {{"mean": mean, "spread": spread, "count": len(kept)}}
'''
BEGINNINGS = ("The history of the city begins", "To cook rice well you need", "A good teacher is",
              "In the mountains the weather", "My brother and I used to", "The main idea of physics is")


SCHEMA = {"type": "object", "additionalProperties": False, "properties": {
    "first_name_of_the_customer": {"type": "string", "maxLength": 20},
    "is_registered_for_the_newsletter": {"type": "boolean"},
    "preferred_method_of_delivery": {"enum": ["by mail", "by courier", "collects it"]},
    "number_of_orders_in_this_year": {"type": "integer", "minimum": 0, "maximum": 99},
    "country_of_the_billing_address": {"enum": ["France", "Norway", "Portugal", "Japan"]},
    "has_a_complaint_that_is_open": {"type": "boolean"}}}
SCHEMA["required"] = list(SCHEMA["properties"])


def prompt_of(task, number):
    """A string, or token ids. `number` makes it differ from all others of the run."""
    chance = random.Random(number)
    if task == "random":
        return [chance.randrange(1000, 20000) for _ in range(64)]
    if task == "ordinary":
        return f"Notes, page {number}.\n\n{chance.choice(BEGINNINGS)}"
    if task == "edit":
        name = f"summary_{number}"
        code = CODE.format(name=name)
        head = code.replace(name, "digest").split("\n")[0]
        return f"# Before\n{code}\n# After: {name} is called digest, nothing else changes\n{head}\n"
    if task == "schema":
        return f"Customer {number} of the shop, as JSON:\n"
    passage = f"Letter {number}. {chance.choice(PASSAGES)}"
    front = " ".join(passage.split()[:8])
    return f"Original:\n{passage}\n\nThe same text once more:\n{front}"


class Stream(threading.Thread):
    """One request; its answer, its time and that of its first token."""

    def __init__(self, url, body, barrier):
        super().__init__()
        self.place, self.body, self.barrier = urllib.parse.urlparse(url), body, barrier
        self.text, self.usage, self.first, self.error = "", {}, None, None

    def run(self):
        connection = http.client.HTTPConnection(self.place.hostname, self.place.port, timeout=600)
        self.barrier.wait()
        self.begin = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(self.body),
                           {"Content-Type": "application/json"})
        reply = connection.getresponse()
        if reply.status != 200:
            self.error = reply.read().decode()
            return
        for line in reply:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            self.first = self.first or time.perf_counter()
            for choice in event["choices"]:
                self.text += choice["text"]
            self.usage = event.get("usage") or self.usage
        self.end = time.perf_counter()


def run_streams(url, bodies):
    barrier = threading.Barrier(len(bodies))
    streams = [Stream(url, body, barrier) for body in bodies]
    for stream in streams:
        stream.start()
    for stream in streams:
        stream.join()
        if stream.error:
            raise SystemExit(f"{url}: {stream.error}")
    seconds = max(s.end for s in streams) - min(s.begin for s in streams)
    return {"rate": sum(s.usage["completion_tokens"] for s in streams) / seconds,
            "first": statistics.median(s.first - s.begin for s in streams),
            "texts": [s.text for s in streams]}


def counters(url):
    """Drafts, and tokens accepted at each position."""
    place = urllib.parse.urlparse(url)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    found = re.search(r"^vllm:spec_decode_num_drafts_total\{.*\} (\S+)", text, re.M)
    drafts = float(found.group(1)) if found else 0
    positions = re.findall(
        r'^vllm:spec_decode_num_accepted_tokens_per_pos_total\{.*position="(\d+)".*\} (\S+)',
        text, re.M)
    return drafts, {int(position): float(value) for position, value in positions}


def bodies_of(args, task, streams, number, speculative, predictions=None):
    bodies = []
    for i in range(streams):
        body = {"prompt": prompt_of(task, 1000 * number + i), "max_tokens": args.tokens,
                "temperature": args.temperature, "seed": number, "ignore_eos": True, "stream": True,
                "stream_options": {"include_usage": True}, "speculative": speculative}
        if task == "schema":
            body |= {"structured_outputs": {"json": SCHEMA}, "ignore_eos": False}
        if predictions is not None:
            body["prediction"] = {"type": "content", "content": predictions[i]}
        bodies.append(body)
    return bodies


class Side:
    """A server and how it is asked."""

    def __init__(self, args, name, words, predicts):
        self.name, self.predicts = name, predicts
        self.server = Server(args, *words)
        self.drafts, self.accepted = 0, {}

    def play(self, args, task, streams, number, truth):
        predictions = truth["texts"] if self.predicts else None
        before = counters(self.server.url)
        result = run_streams(self.server.url,
                             bodies_of(args, task, streams, number, self.name != "off", predictions))
        after = counters(self.server.url)
        self.drafts += after[0] - before[0]
        for position, value in after[1].items():
            self.accepted[position] = (self.accepted.get(position, 0) + value -
                                       before[1].get(position, 0))
        return result

    def take_acceptance(self):
        """By position, of the drafts since it was last asked."""
        shares = [self.accepted.get(p, 0) / self.drafts for p in sorted(self.accepted)
                  ] if self.drafts else []
        self.drafts, self.accepted = 0, {}
        return [share for share in shares if share > 0]


def measure(args, off, sides, task, streams, first_number):
    """Ratios to `off` by side: one for each round, after one that is not counted."""
    ratios = {side.name: {"rate": [], "first": []} for side in sides}
    for number in range(first_number, first_number + args.rounds + 1):
        # The truth is known before any prediction is sent, and `off` is timed in its turn.
        truth = run_streams(off.server.url, bodies_of(args, task, streams, number, False))
        order = [off, *sides]
        turn = number % len(order)
        results = {side.name: side.play(args, task, streams, number, truth)
                   for side in order[turn:] + order[:turn]}
        for side in sides:
            if results[side.name]["texts"] != truth["texts"]:
                raise SystemExit(f"{task}, {streams} streams: {side.name} gives another answer")
            if number == first_number:
                continue
            for what in ("rate", "first"):
                ratios[side.name][what].append(results[side.name][what] / results[off.name][what])
        if number == first_number:
            for side in sides:
                side.take_acceptance()
    return ratios


def spread(values):
    return f"{statistics.median(values):.2f} [{min(values):.2f}, {max(values):.2f}]"


def mode_words(mode):
    methods = mode.replace("+", ",")
    return ["--speculative-config", json.dumps({"method": methods})]


def start_sides(args, sides):
    if args.replay:
        for rate in args.replay.split(","):
            config = {"method": "replay", "replay_error_rate": float(rate)}
            sides.append(Side(args, f"error rate {rate}",
                              ["--speculative-config", json.dumps(config)], True))
        return
    for mode in args.modes.split(","):
        is_plain = mode in ("prediction", "forced")
        sides.append(Side(args, mode, [] if is_plain else mode_words(mode), mode == "prediction"))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--sluice", default="build/sluice")
    parser.add_argument("--streams", default="1,8,32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128, help="of each answer, at most")
    parser.add_argument("--temperature", type=float, default=0)
    parser.add_argument("--modes", default="ngram,suffix,ngram+suffix,prediction")
    parser.add_argument("--tasks", default="quote,edit,ordinary,random")
    parser.add_argument("--replay", help="error rates, instead of modes")
    parser.add_argument("--json")
    args = parser.parse_args()
    counts = [int(count) for count in args.streams.split(",")]
    args.concurrency = max(counts)
    rows, sides = [], []
    off = Side(args, "off", [], False)
    try:
        start_sides(args, sides)
        number = 1
        print(f"{'task':10}{'streams':>8}  {'mode':16}{'tokens/s, ratio':22}"
              f"{'first token, ratio':22}accepted at position 1, 2, ...")
        for task in args.tasks.split(","):
            for streams in counts:
                ratios = measure(args, off, sides, task, streams, number)
                number += args.rounds + 1
                for side in sides:
                    accepted = side.take_acceptance()
                    rows.append({"task": task, "streams": streams, "mode": side.name,
                                 "accepted": accepted, **ratios[side.name]})
                    print(f"{task:10}{streams:8}  {side.name:16}"
                          f"{spread(rows[-1]['rate']):22}{spread(rows[-1]['first']):22}"
                          f"{' '.join(f'{share:.2f}' for share in accepted)}", flush=True)
    finally:
        for side in [off, *sides]:
            side.server.stop()
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
