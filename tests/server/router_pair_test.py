#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A prefill and a decode worker behind routers of others that split requests between two: the
answers are those of one worker without a router.

usage: router_pair_test.py BINARY MODEL [ROUTER ...]

ROUTER: some of the names in ROUTERS; all without any. Needs the packages of
tests/router_requirements.txt, of this interpreter or of the one that SLUICE_ROUTER_PYTHON names;
exit code 77 without them.

What a router does not do is not asked of it: sglang-router sends fields that it knows alone (no
log-probabilities of completions, no blob of a prefill) and has no /v1/responses; smg makes text of
tokens itself, knows no seed in /v1/responses and no handoff of several choices; vllm-router and smg
answer with an error where the prefill worker is dead.
"""
import argparse
import contextlib
import json
import os
import sys
import tempfile
import time

from router_process import (CHAT, COMPLETIONS, MESSAGES, Router, Worker, long_body, python_beside,
                            stream_text, whole_characters)
from server_process import SKIPPED, wait_until
from sidecar import Sidecar

RESPONSES = "/v1/responses"
PROMPT = "The answer, naïve 12345: once upon a time there was a worker that had a twin."
# Each changes what an answer is made of, and none is random without a seed.
VARIANTS = ({"temperature": 0}, {"temperature": 1, "seed": 5}, {"temperature": 1, "seed": 6, "n": 2},
            {"temperature": 1, "seed": 7, "top_p": 0.9, "presence_penalty": 0.5},
            {"temperature": 0, "stop": ["e", "你"]})


class Pair:
    """Two workers of a handoff, and one that computes the same requests alone."""

    def __init__(self, args, connector):
        def worker(role, kv_role):
            which = ("--role", role) if connector is None else (
                "--kv-transfer-config", json.dumps({"kv_connector": connector, "kv_role": kv_role}))
            return Worker(args.binary, args.model, "--threads", "1", "--unknown-arguments", "refuse",
                          *which)
        self.alone = Worker(args.binary, args.model, "--threads", "1")
        self.prefill = worker("prefill", "kv_producer")
        self.decode = worker("decode", "kv_consumer")
        self.workers = (self.alone, self.prefill, self.decode)
        self.prefill_is_dead = False

    def living(self):
        return [self.decode] if self.prefill_is_dead else [self.prefill, self.decode]

    def expected(self, path, body):
        connection, response = self.alone.post(body, path)
        with contextlib.closing(connection):
            data = response.read()
            assert response.status == 200, data
            return json.loads(data)

    def counted(self):
        """Handoffs that moved KV, and prompts that a worker computed instead, by the counters."""
        moved = sum(worker.metric("vllm:nixl_bytes_transferred_count") for worker in self.living())
        computed = sum(worker.metric("sluice_handoff_fallbacks_total") for worker in self.living())
        return moved + computed

    def moved_bytes(self):
        return sum(worker.metric("vllm:nixl_bytes_transferred_sum") for worker in self.living())

    def kill_prefill(self):
        self.prefill.process.kill()
        self.prefill.process.wait()
        self.prefill_is_dead = True

    def stop(self):
        for worker in self.workers:
            worker.process.kill()
            worker.process.wait()


def essence(answer):
    """What of an answer the same request has wherever it is computed."""
    out = []
    for choice in answer["choices"]:
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        out.append((choice["index"], whole_characters(text or ""), choice["finish_reason"],
                    choice.get("logprobs")))
    return out, answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]


def check_chat(router, pair):
    for variant in VARIANTS:
        for more in ({}, {"logprobs": True, "top_logprobs": 2}):
            if more and not router.has_logprobs:
                continue
            body = {"messages": MESSAGES, "max_tokens": 12, **variant, **more}
            before = pair.counted()
            answer = router.answer(CHAT, body)
            assert essence(answer) == essence(pair.expected(CHAT, body)), (body, answer)
            assert "cached_tokens" in answer["usage"]["prompt_tokens_details"] or router.makes_text
            if variant.get("n", 1) <= router.max_n:
                assert pair.counted() > before, "a handoff neither took place nor was counted"


def check_completions(router, pair):
    for variant in VARIANTS:
        body = {"prompt": PROMPT, "max_tokens": 12, **variant}
        if router.has_logprobs:
            body["logprobs"] = 2
        before = pair.counted()
        answer = router.answer(COMPLETIONS, body)
        assert essence(answer) == essence(pair.expected(COMPLETIONS, body)), (body, answer)
        if variant.get("n", 1) <= router.max_n:
            assert pair.counted() > before, "a handoff neither took place nor was counted"


def check_stream(router, pair):
    for path, start in ((CHAT, {"messages": MESSAGES}), (COMPLETIONS, {"prompt": PROMPT})):
        for variant in VARIANTS:
            if "n" in variant:
                continue
            body = {**start, "max_tokens": 12, **variant}
            expected = essence(pair.expected(path, body))[0][0][1]
            connection, response = router.post(path, {**body, "stream": True})
            with contextlib.closing(connection):
                text = stream_text(response)
                assert text == expected, (body, text, expected)


def check_responses(router, pair):
    def texts(answer):
        return [part["text"] for item in answer["output"] for part in item["content"]]
    for variant in VARIANTS[:router.num_responses]:
        body = {"input": PROMPT, "max_output_tokens": 12, **variant}
        before = pair.counted()
        answer = router.answer(RESPONSES, body)
        assert texts(answer) == texts(pair.expected(RESPONSES, body)), (body, answer)
        assert pair.counted() > before, "a handoff neither took place nor was counted"


def check_abort(router, pair):
    def num_aborted():
        return sum(worker.num_aborted() for worker in pair.living())
    before = num_aborted()
    connection, response = router.post(CHAT, long_body(pair.decode))
    assert response.status == 200, response.read()
    response.readline()
    response.close()
    connection.close()
    for worker in pair.living():
        wait_until("the worker hears that its client left", worker.is_idle, seconds=30)
    assert num_aborted() > before, "the answer ended before its client left"


def blob_of_another_prompt(pair):
    """What the prefill worker offers for a prompt; where it offers nothing, what it might have."""
    connection, response = pair.prefill.post(
        {"prompt": "Another prompt, of the same length or not.", "max_tokens": 1,
         "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}})
    with contextlib.closing(connection):
        blob = json.loads(response.read()).get("kv_transfer_params")
    return blob or {
        "do_remote_prefill": True, "do_remote_decode": False, "remote_engine_id": "11" * 8,
        "remote_host": "127.0.0.1", "remote_port": 1, "remote_block_ids": [[]],
        "sluice": {"v": 1, "transfer_id": "ab" * 16, "epoch": "11" * 8, "addr": "127.0.0.1:1",
                   "fingerprint": "fp_0", "tokens": 17, "blocks": 1, "key": "cd" * 16,
                   "prompt_digest": "ef" * 16, "seed": "01" * 8, "first_token": 5,
                   "check": "22" * 8}}


def check_wrong_blob(router, pair):
    """A router that brings the offer for one prompt to the decode half of another."""
    wrong = 'sluice_handoff_fallbacks_total{engine="0",model_name="tiny",reason="wrong_prompt"}'
    def refused():
        lines = pair.decode.get("/metrics").decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(wrong))
    blob = blob_of_another_prompt(pair)
    for start, path in (({"messages": MESSAGES}, CHAT), ({"prompt": PROMPT}, COMPLETIONS)):
        body = {**start, "max_tokens": 12, "temperature": 1, "seed": 9}
        before, moved = refused(), pair.moved_bytes()
        connection, response = pair.decode.post({**body, "kv_transfer_params": blob}, path)
        with contextlib.closing(connection):
            answer = json.loads(response.read())
        assert essence(answer) == essence(pair.expected(path, body)), answer
        assert refused() == before + 1 and pair.moved_bytes() == moved


def check_dead_prefill(router, pair):
    """Last: an answer that is right, or an error of the router, and never another answer."""
    pair.kill_prefill()
    body = {"messages": MESSAGES, "max_tokens": 12, "temperature": 0}
    expected = essence(pair.expected(CHAT, body))
    statuses = set()
    for _ in range(3):
        connection, response = router.post(CHAT, body)
        with contextlib.closing(connection):
            data = response.read()
            statuses.add(response.status)
            if response.status == 200:
                assert essence(json.loads(data)) == expected, data
    assert statuses == {200} if router.outlives_prefill else min(statuses) >= 500, statuses
    connection, response = pair.decode.post(body, CHAT)
    with contextlib.closing(connection):
        assert essence(json.loads(response.read())) == expected


CHECKS = (("chat", check_chat), ("completions", check_completions), ("stream", check_stream),
          ("responses", check_responses), ("abort", check_abort),
          ("the offer of another prompt", check_wrong_blob), ("dead prefill", check_dead_prefill))


class PairRouter(Router):
    """`max_n`: choices of which it still hands one over. `makes_text`: of tokens, by itself.
    `num_responses`: of VARIANTS that it takes in /v1/responses."""
    outlives_prefill = False
    num_responses = 0

    def __init__(self, command, arguments, folder, max_n=2, has_logprobs=True, makes_text=False):
        super().__init__(command, arguments, folder)
        self.max_n, self.has_logprobs, self.makes_text = max_n, has_logprobs, makes_text


class SidecarRouter(PairRouter):
    """The sidecar beside the decode worker, and in front of it who names a prefill worker."""

    def __init__(self, pair, falls_back):
        self.sidecar = Sidecar(pair.decode.port, falls_back)
        self.port = self.sidecar.port
        self.prefiller = f"127.0.0.1:{pair.prefill.port}"
        self.max_n, self.has_logprobs, self.makes_text = 2, True, False
        self.outlives_prefill, self.num_responses = falls_back, 2

    def headers(self):
        return {"x-prefiller-host-port": self.prefiller, "x-request-id": "of-the-client"}

    def log(self):
        return f"{len(self.sidecar.blobs)} prefills, {self.sidecar.blobs[-3:]}"

    def is_ready(self):
        return True

    def stop(self):
        self.sidecar.stop()


def sidecar(falls_back):
    return None, lambda programs, pair, folder: SidecarRouter(pair, falls_back)


class Smg(PairRouter):
    num_responses = 1  # it knows no seed there


class VllmRouter(PairRouter):
    num_responses = 2


def vllm_router(programs, pair, folder):
    return VllmRouter([os.path.join(programs, "vllm-router")],
                      ["--vllm-pd-disaggregation", "--prefill", pair.prefill.http_url,
                       "--decode", pair.decode.http_url], folder)


def vllm_router_mooncake(programs, pair, folder):
    return VllmRouter([os.path.join(programs, "vllm-router")],
                      ["--vllm-pd-disaggregation", "--kv-connector", "mooncake",
                       "--prefill", pair.prefill.http_url, str(pair.prefill.port),
                       "--decode", pair.decode.http_url], folder)


def sglang_router(programs, pair, folder):
    return PairRouter([os.path.join(programs, "sglang-router"), "launch"],
                      ["--pd-disaggregation", "--prefill", pair.prefill.http_url, "8998",
                       "--decode", pair.decode.http_url], folder, has_logprobs=False)


def smg(programs, pair, folder):
    return Smg([sys.executable, "-m", "smg", "launch"],
               ["--pd-disaggregation", "--prefill", pair.prefill.grpc_url,
                "--decode", pair.decode.grpc_url], folder, max_n=1, has_logprobs=False,
               makes_text=True)


# Name: the connector that workers are told, or None for their role alone, and how it is started.
ROUTERS = {
    "sidecar --old": sidecar(falls_back=True),
    "sidecar --new": sidecar(falls_back=False),
    "vllm-router": (None, vllm_router),
    "vllm-router mooncake": (None, vllm_router_mooncake),
    "sglang-router": (None, sglang_router),
    "smg": (None, smg),
    "smg mooncake": ("MooncakeConnector", smg),
}


def check_router(name, args, programs, folder):
    connector, start = ROUTERS[name]
    pair = Pair(args, connector)
    router = start(programs, pair, folder)
    try:
        wait_until(f"{name} is ready", router.is_ready, seconds=40)
        for title, check in CHECKS:
            if check is check_responses and router.num_responses == 0:
                continue
            started = time.monotonic()
            check(router, pair)
            print(f"ok {name}: {title} ({time.monotonic() - started:.1f} s)", flush=True)
    except BaseException:
        print(router.log())
        raise
    finally:
        router.stop()
        pair.stop()


def main():
    programs = python_beside("vllm-router", "sglang-router", "smg")
    if programs is None:
        return SKIPPED
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("routers", nargs="*", metavar="ROUTER")
    args = parser.parse_args()
    args.binary, args.model = os.path.abspath(args.binary), os.path.abspath(args.model)
    with tempfile.TemporaryDirectory() as folder:
        for name in args.routers or ROUTERS:
            check_router(name, args, programs, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
