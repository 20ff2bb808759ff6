#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Workers die under streaming clients, and no client notices.

usage: router_kill_test.py BINARY MODEL [--clients 12] [--faults 12] [--workers 3] [--prefill 1]
                           [--seed 1] [--pause 0.5]

Starts workers and a router with the model. First every kind of request is answered undisturbed; then
clients repeat them while workers are killed (kill -9), stopped (SIGSTOP) and cut off (a relay that
lets nothing through), with a random rest of at most `--pause` seconds between. `--prefill` of the workers
compute prompts for the others. Every answer must be
whole and the same as undisturbed, a silent worker out of rotation within 10 s, and at the end no worker
may hold a block. The full run with a real model:
    router_kill_test.py BINARY MODEL.gguf --clients 64 --faults 200 --workers 4
Three workers answer then, of one thread each. Of two, a fault moves all streams to the other one, which
dies before it has computed them again: after ten such losses without a token a stream ends
(--max-worker-losses of the router).
Under SLUICE_FULL also with models whose layers keep states, of which a stream that moves, or a prompt
that is computed elsewhere, needs the one after its last token.
"""
import argparse
import collections
import contextlib
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback

from router_cluster import Cluster
from server_process import wait_until

HERE = os.path.dirname(os.path.abspath(__file__))
TEMPLATE = os.path.join(HERE, "../golden/templates/tools/Qwen-Qwen3-0.6B.jinja")
RECURRENT = [os.path.join(HERE, f"../golden/models/{name}.gguf") for name in ("engine-delta", "engine-halves")]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SCHEMA = {"type": "object",
          "properties": {"city": {"type": "string", "maxLength": 60},
                         "list": {"type": "array", "items": {"type": "integer"}, "maxItems": 20}},
          "required": ["city", "list"], "additionalProperties": False}
TOOLS = [{"type": "function",
          "function": {"name": "weather", "parameters": SCHEMA, "strict": True}}]
MAX_SILENCE_S = 5.0


def ids(number):
    return [10 + (7 * number + 3 * i) % 90 for i in range(8 + 5 * number)]


def chat(text):
    return [{"role": "user", "content": text}]


def requests(length):
    """Kind of request: path and body. Answers are about `length` tokens long."""
    long = {"max_tokens": length, "stream": True, "ignore_eos": True}
    free = {**long, "temperature": 1.0}
    free_chat = {**free, "chat_template_kwargs": {"enable_thinking": False}}
    del free_chat["ignore_eos"]
    return {
        "greedy": (COMPLETIONS, {**long, "prompt": ids(1), "temperature": 0}),
        "seeded": (COMPLETIONS, {**free, "prompt": ids(2), "seed": 11}),
        "logprobs": (COMPLETIONS, {**free, "prompt": ids(3), "seed": 12, "logprobs": 3}),
        "penalties": (COMPLETIONS, {**free, "prompt": ids(4), "seed": 13, "presence_penalty": 1.5,
                                    "frequency_penalty": 0.5, "repetition_penalty": 1.3,
                                    "min_tokens": length // 2, "logit_bias": {"40": 2.5},
                                    "top_k": 50, "top_p": 0.95, "min_p": 0.01}),
        "n": (COMPLETIONS, {**free, "prompt": ids(5), "seed": 14, "n": 3,
                            "stream_options": {"include_usage": True}}),
        "prompt_logprobs": (COMPLETIONS, {**free, "prompt": ids(6), "seed": 15, "stream": False,
                                          "prompt_logprobs": 2, "logprobs": 1}),
        "chat": (CHAT, {**free, "messages": chat("Say something."), "seed": 16, "logprobs": True,
                        "top_logprobs": 2, "stream_options": {"include_usage": True}}),
        "schema": (CHAT, {**free_chat, "messages": chat("Answer."), "seed": 17,
                          "response_format": {"type": "json_schema",
                                              "json_schema": {"name": "a", "schema": SCHEMA,
                                                              "strict": True}}}),
        "tools": (CHAT, {**free_chat, "messages": chat("Call."), "seed": 18, "tools": TOOLS,
                         "tool_choice": "required"}),
        "responses": ("/v1/responses", {"input": "Say something.", "stream": True, "seed": 19,
                                        "max_output_tokens": length, "temperature": 1.0}),
        "messages": ("/v1/messages", {"messages": chat("Say something."), "max_tokens": length,
                                      "stream": True, "temperature": 1.0, "seed": 20}),
    }


class Trial:
    def __init__(self, options, cluster):
        self.options, self.cluster = options, cluster
        self.random = random.Random(options.seed)
        self.requests = requests(options.length)
        self.expected = {}
        self.counts = collections.Counter()
        self.failures = []
        self.is_over = False

    def learn(self):
        for kind, (path, body) in self.requests.items():
            self.expected[kind] = self.cluster.answer(path, body)
            assert self.cluster.answer(path, body) == self.expected[kind], f"{kind} differs at rest"
        # A stop string that ends an answer late: from the answer without it.
        path, body = self.requests["seeded"]
        text = self.expected["seeded"]["choices"][0]["text"]
        stop = text[len(text) * 2 // 3:][:6]
        self.requests["stop"] = (path, {**body, "stop": [stop]})
        self.expected["stop"] = self.cluster.answer(*self.requests["stop"])
        assert self.expected["stop"]["choices"][0]["finish_reason"] == "stop"
        assert len(self.expected["stop"]["choices"][0]["text"]) < len(text)
        texts = {json.dumps(answer) for answer in self.expected.values()}
        assert len(texts) == len(self.requests), "the requests are meant to differ"

    def client(self, index):
        kinds = sorted(self.requests)
        turn = index
        while not self.is_over:
            kind = kinds[turn % len(kinds)]
            turn += 1
            try:
                path, body = self.requests[kind]
                # Under a salt of its own no prompt is cached: each is computed again, and moves.
                body = {**body, "cache_salt": f"{index}-{turn}"}
                answer = self.cluster.answer(path, body)
                assert answer == self.expected[kind], (
                    f"{kind}: {json.dumps(answer)[:1500]}\nis not\n"
                    f"{json.dumps(self.expected[kind])[:1500]}")
                self.counts[kind] += 1
            except Exception:
                self.failures.append(f"{kind}: {traceback.format_exc()}")
                self.is_over = True

    def wait_until_out(self, index, since):
        wait_until("a silent worker is still in rotation",
                   lambda: self.cluster.states()[index] == "silent", MAX_SILENCE_S + 5)
        return time.monotonic() - since

    def disturb(self, number):
        index = self.random.randrange(len(self.cluster.workers))
        worker = self.cluster.workers[index]
        fault = ("kill", "kill", "stop", "cut", "blink")[number % 5]
        started = time.monotonic()
        note = ""
        if fault == "kill":
            worker.kill()
            time.sleep(self.random.uniform(0, 0.5))
            worker.start()
        elif fault == "stop":
            worker.send(signal.SIGSTOP)
            try:
                note = f", out after {self.wait_until_out(index, started):.1f} s"
            finally:
                worker.send(signal.SIGCONT)
        elif fault == "cut":
            worker.relay.cut()
            try:
                note = f", out after {self.wait_until_out(index, started):.1f} s"
            finally:
                worker.relay.heal()
        else:  # shorter than a death
            worker.send(signal.SIGSTOP)
            time.sleep(1.0)
            worker.send(signal.SIGCONT)
        self.cluster.wait_for_usable(len(self.cluster.workers))
        print(f"  {number + 1}: {fault} of worker {index}{note}, whole again after "
              f"{time.monotonic() - started:.1f} s", flush=True)
        time.sleep(self.random.uniform(0, self.options.pause))

    def run(self):
        self.learn()
        before = self.cluster.router.metrics()
        clients = [threading.Thread(target=self.client, args=(index,), daemon=True)
                   for index in range(self.options.clients)]
        for client in clients:
            client.start()
        time.sleep(0.5)
        for number in range(self.options.faults):
            if self.failures:
                break
            self.disturb(number)
        self.is_over = True
        for client in clients:
            client.join(timeout=300)
            assert not client.is_alive(), "a client waits for its answer"
        assert not self.failures, "\n".join(self.failures[:3]) + self.cluster.router.log()
        after = self.cluster.router.metrics()

        def grown(name):
            return sum(value - before.get(key, 0) for key, value in after.items()
                       if key.split("{")[0] == name)
        continued = grown("sluice:router_continuations_total")
        print(f"  {sum(self.counts.values())} answers ({dict(self.counts)}), "
              f"{continued:.0f} continuations, {grown('sluice:router_retries_total'):.0f} retries")
        assert grown("sluice:router_lost_requests_total") == 0
        assert continued > 0, "no fault met a stream"
        if self.options.prefill:
            assert grown("sluice:router_handoffs_total") > 0, "no prompt went to a prefill worker"
        for worker in self.cluster.workers:
            wait_until("a worker holds something", worker.is_free, 30)


def check_handoff(cluster):
    """KV of a prompt that nobody has seen is fetched: all of it but the last block's part. A worker
    whose last report says that it has work is spared, so a prompt may have to be sent again."""
    fetched, deadline = 0, time.monotonic() + 60
    for number in itertools.count():
        body = {"prompt": [10 + (7 * number + 3 * i) % 90 for i in range(70)], "max_tokens": 4,
                "cache_salt": f"handoff-{number}"}
        connection, response = cluster.post(COMPLETIONS, body)
        with contextlib.closing(connection):
            usage = json.loads(response.read())["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        assert cached in (0, 64), usage
        fetched += cached == 64
        if fetched == 4:
            return
        assert time.monotonic() < deadline, (usage, [
            {name: value for name, value in worker.server.metrics().items()
             if value and "handoff" in name and "bucket" not in name} for worker in cluster.workers])


def check_all_gone(cluster, length):
    """Without a worker requests are refused at once, and streams end with an error in time."""
    path, body = requests(4000)["greedy"]
    body["max_tokens"] = length
    first_event = threading.Event()
    problems = []

    def streamed():
        connection, response = cluster.post(path, body)
        with contextlib.closing(connection):
            for line in response:
                first_event.set()
                yield line

    def text_of(data):
        events = [json.loads(line[6:]) for line in data.splitlines() if line.startswith(b"data: {")]
        return "".join(choice["text"] for event in events for choice in event.get("choices", ()))

    whole = text_of(b"".join(streamed()))
    first_event.clear()

    def client():
        while b'"finish_reason":"' in (data := b"".join(streamed())):
            if text_of(data) != whole:  # it is cut short without a sign
                return problems.append(data[-500:])
        if b'"error"' not in data:
            problems.append(data[-500:])

    for worker in cluster.workers[1:]:
        worker.kill()
    cluster.wait_for_usable(1)
    thread = threading.Thread(target=client)
    thread.start()
    assert first_event.wait(30)
    cluster.workers[0].send(signal.SIGSTOP)
    thread.join(timeout=60)
    assert not thread.is_alive() and not problems, problems
    wait_until("no worker is usable", lambda: cluster.num_usable() == 0)
    connection, response = cluster.post(path, body)
    assert response.status == 503 and int(response.getheader("Retry-After")) >= 1, response.status
    response.read()
    for page in ("/health", "/ready"):
        status, _, headers = cluster.router.get(page)
        assert status == 503 and "Retry-After" in headers, (page, status, headers)
    cluster.workers[0].send(signal.SIGCONT)
    for worker in cluster.workers[1:]:
        worker.start()
    cluster.wait_for_usable(len(cluster.workers))
    assert cluster.router.get("/ready")[0] == 200


def check_other_model(cluster):
    """A worker that comes back with another model is a version of too few to get new requests, and no
    stream goes on there."""
    worker = cluster.workers[0]
    worker.kill()
    worker.start("--activation-bits", "32")
    wait_until(f"the other model is seen, {cluster.states()}",
               lambda: cluster.router.metric("sluice:router_worker_differs") == 1, 30)
    path, body = requests(24)["greedy"]
    before = worker.server.metric("vllm:generation_tokens_total")
    for _ in range(8):
        cluster.answer(path, body)
    assert worker.server.metric("vllm:generation_tokens_total") == before
    worker.kill()
    worker.start()
    cluster.wait_for_usable(len(cluster.workers))


def check_drain(cluster, length):
    """A worker that is told to end hands its streams on."""
    path, body = requests(length)["seeded"]
    expected = cluster.answer(path, body)
    events = threading.Semaphore(0)
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(
        cluster.answer(path, body, events.release)), daemon=True) for _ in range(6)]
    for thread in threads:
        thread.start()
    for _ in range(12):
        assert events.acquire(timeout=30)
    worker = cluster.workers[-1]  # the first ones may compute prompts alone
    worker.send(signal.SIGTERM)
    time.sleep(0.2)
    worker.send(signal.SIGTERM)  # at once
    worker.server.process.wait(timeout=30)
    for thread in threads:
        thread.join(timeout=120)
    assert len(answers) == 6 and all(answer == expected for answer in answers), answers
    worker.start()
    cluster.wait_for_usable(len(cluster.workers))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--faults", type=int, default=10)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--prefill", type=int, default=1)
    parser.add_argument("--length", type=int, default=160)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause", type=float, default=0.5)
    options = parser.parse_args()
    run(options, options.model, is_whole=True)
    for model in RECURRENT if os.environ.get("SLUICE_FULL") else ():
        print(os.path.basename(model), flush=True)
        run(options, model, is_whole=False)


def run(options, model, is_whole):
    """All checks, or those of streams that move."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(options.binary, model, folder, options.workers,
                          ("--threads", "1"),
                          ("--chat-template", TEMPLATE, "--tool-call-parser", "hermes",
                           "--worker-wait-s", "5", "--handoff-min-tokens", "17"),
                          options.prefill)
        try:
            trial = Trial(options, cluster)
            for name, check in (
                    *([("prompts are computed elsewhere", lambda: check_handoff(cluster))]
                      if options.prefill else []),
                    ("streams outlive their workers", trial.run),
                    ("streams leave a worker that ends", lambda: check_drain(cluster, options.length)),
                    *([("another model takes no part", lambda: check_other_model(cluster)),
                       ("without a worker all are told", lambda: check_all_gone(cluster, 1800))]
                      if is_whole else [])):
                started = time.monotonic()
                check()
                print(f"ok {name} ({time.monotonic() - started:.1f} s)", flush=True)
            assert cluster.stop() == 0
        except BaseException:
            print(cluster.router.log(), file=sys.stderr)
            raise
        finally:
            cluster.close()


if __name__ == "__main__":
    main()
