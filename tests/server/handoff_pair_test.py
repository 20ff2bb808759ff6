#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A prefill and a decode worker as two processes between which KV travels: whatever becomes of a
transfer, answers and streams are those of one worker that computes alone, and no block stays taken.

usage: handoff_pair_test.py BINARY MODEL

With SLUICE_SMOLLM2 the answers are compared with the real model as well.
"""
import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time

from handoff_pair import Pair, body_of, essence, read_answer, read_stream
from router_process import CHAT, COMPLETIONS
from server_process import PATIENCE_S, Server, run_checks, wait_until

BLOCK = 16
SAMPLINGS = ({"temperature": 0}, {"temperature": 0.8, "seed": 11},
             {"temperature": 0.8, "seed": 12, "top_p": 0.9, "presence_penalty": 0.5})


def num_cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def whole_blocks(answer):
    return (answer["usage"]["prompt_tokens"] - 1) // BLOCK * BLOCK


def check_answers(pair):
    before = pair.decode.metric("vllm:nixl_bytes_transferred_count")
    num_fetched = 0
    for path in (CHAT, COMPLETIONS):
        logprobs = {"logprobs": True, "top_logprobs": 2} if path == CHAT else {"logprobs": 2}
        for sampling in (*SAMPLINGS, {**SAMPLINGS[1], "n": 2}):
            for length, more in ((90, {}), (700, logprobs)):
                path, body = body_of(path, length, **sampling, **more)
                answer = read_answer(*pair.fetch(path, body, pair.offer(path, body)))
                pair.expect_same(path, body, answer)
                assert num_cached(answer) >= whole_blocks(answer) > 0, answer["usage"]
                num_fetched += 1
    pair.expect_free()
    assert pair.decode.metric("vllm:nixl_bytes_transferred_count") - before == num_fetched
    assert pair.decode.metric("vllm:nixl_xfer_time_seconds_count") >= num_fetched
    for name in ("transfers", "blocks", "bytes"):
        sent, taken = (worker.metric(f"sluice_handoff_{name}_total") for worker in pair.workers())
        # A second choice may have computed blocks of the first one's by then.
        assert sent == taken if name != "blocks" else sent >= taken, (name, sent, taken)
        assert taken >= num_fetched, (name, taken)
    assert pair.decode.metric("sluice_handoff_fallbacks_total") == 0


def check_early_answers(pair):
    """Of prompts of several steps and parts, which travel while they are computed."""
    for sampling in (*SAMPLINGS, {**SAMPLINGS[1], "n": 2}):
        path, body = body_of(COMPLETIONS, 1500, logprobs=1, **sampling)
        first, other, results = pair.fetch_early(path, body)
        first.join(), other.join()
        answer = read_answer(*results[0])
        pair.expect_same(path, body, answer)
        assert num_cached(answer) >= whole_blocks(answer) > 500, answer["usage"]
    pair.expect_free()


def check_streams(pair):
    for path in (CHAT, COMPLETIONS):
        for sampling in (*SAMPLINGS, {**SAMPLINGS[1], "n": 2}):
            path, body = body_of(path, 300, stream=True, logprobs=path == CHAT or 1, **sampling)
            stream = read_stream(*pair.fetch(path, body, pair.offer(path, body)))
            expected = read_stream(*pair.alone.post(body, path))
            assert stream == expected, (body, stream, expected)
    pair.expect_free()


def check_many_at_once(pair):
    requests = [body_of(COMPLETIONS, 100 + 60 * i, **SAMPLINGS[i % 3]) for i in range(12)]
    answers = {}

    def go(i):
        path, body = requests[i]
        if i % 2:
            first, other, results = pair.fetch_early(path, body)
            first.join(), other.join()
            answers[i] = read_answer(*results[0])
        else:
            answers[i] = read_answer(*pair.fetch(path, body, pair.offer(path, body)))
    threads = [threading.Thread(target=go, args=(i,)) for i in range(len(requests))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, (path, body) in enumerate(requests):
        pair.expect_same(path, body, answers[i])
    pair.expect_free()


def check_aborts(pair):
    """Of a stream that runs, and of a request whose blocks do not come."""
    path, body = body_of(COMPLETIONS, 400, stream=True, ignore_eos=True, **SAMPLINGS[1])
    body["max_tokens"] = 1000
    connection, response = pair.fetch(path, body, pair.offer(path, body))
    assert response.status == 200
    response.readline()
    response.close()
    connection.close()
    pair.expect_free()
    path, body = body_of(COMPLETIONS, 400, stream=True, **SAMPLINGS[1])
    params = pair.offer(path, body)
    pair.prefill.process.send_signal(signal.SIGSTOP)
    connection = http.client.HTTPConnection("127.0.0.1", pair.decode.port, timeout=60)
    connection.request("POST", path, json.dumps(
        {"model": pair.decode.model, **body, "kv_transfer_params": params}),
        {"Content-Type": "application/json"})
    wait_until("the request waits", lambda: [
        request["status"] for request in pair.state(pair.decode)["requests"]] == ["claiming"])
    assert pair.state(pair.decode)["handoff"]["claiming"] == 1
    connection.close()
    wait_until("it is gone", lambda: not pair.state(pair.decode)["requests"])
    pair.prefill.process.send_signal(signal.SIGCONT)
    pair.expect_free()


def check_decode_restart(pair):
    for _ in range(3):  # on a busy machine the prefill worker may still hold the old one for alive
        path, body = body_of(COMPLETIONS, 500, **SAMPLINGS[1])
        before = pair.offer(path, body)
        pair.restart("decode")
        answer = read_answer(*pair.fetch(path, body, before))
        pair.expect_same(path, body, answer)
        pair.expect_free()
        if num_cached(answer) == whole_blocks(answer):
            return
        print(f"   computed again: {[line for line in pair.decode.log if 'handoff' in line]}", flush=True)
    raise AssertionError(answer["usage"])


def check_prefill_killed_before(pair):
    path, body = body_of(COMPLETIONS, 500, **SAMPLINGS[1])
    params = pair.offer(path, body)
    pair.restart("prefill")
    # The process that is there now is not the one that has the blocks.
    answer = read_answer(*pair.fetch(path, body, params))
    pair.expect_same(path, body, answer)
    assert num_cached(answer) < BLOCK, answer["usage"]
    path, body = body_of(COMPLETIONS, 500, **SAMPLINGS[1])
    params = pair.offer(path, body)
    pair.prefill.process.kill()
    pair.prefill.process.wait()
    answer = read_answer(*pair.fetch(path, body, params))
    pair.expect_same(path, body, answer)
    assert num_cached(answer) < BLOCK, answer["usage"]
    pair.prefill = pair.start("prefill")
    pair.expect_free()


def check_prefill_killed_meanwhile(pair):
    for wait_ms in (0, 15, 40):
        path, body = body_of(COMPLETIONS, 1900, **SAMPLINGS[1])
        first, other, results = pair.fetch_early(path, body)
        time.sleep(wait_ms / 1000)
        pair.prefill.process.kill()
        pair.prefill.process.wait()
        first.join(), other.join()
        pair.expect_same(path, body, read_answer(*results[0]))
        pair.prefill = pair.start("prefill")
        pair.expect_free()
    assert pair.decode.metric("sluice_handoff_fallbacks_total") >= 3, "no transfer was cut"


def check_drain(pair):
    """A prefill worker that ends hands over what it has promised; a decode worker ends its streams."""
    path, body = body_of(COMPLETIONS, 500, **SAMPLINGS[1])
    params = pair.offer(path, body)
    pair.prefill.process.send_signal(signal.SIGTERM)
    wait_until("it ends", lambda: pair.prefill_is_draining())
    answer = read_answer(*pair.fetch(path, body, params))
    pair.expect_same(path, body, answer)
    assert num_cached(answer) == whole_blocks(answer), answer["usage"]
    assert pair.prefill.process.wait(timeout=PATIENCE_S) == 0
    pair.prefill = pair.start("prefill")
    for role in ("prefill", "decode"):
        requests = [body_of(COMPLETIONS, 900 + 200 * i, **SAMPLINGS[1]) for i in range(4)]
        running = [pair.fetch_early(path, body) for path, body in requests]
        decode = pair.decode
        wait_until("all have come", lambda: 4 == len(pair.state(decode)["requests"]) + sum(
            len(results) for _, _, results in running))
        getattr(pair, role).process.send_signal(signal.SIGTERM)
        for (path, body), (first, other, results) in zip(requests, running):
            first.join(), other.join()
            pair.expect_same(path, body, read_answer(*results[0]))
        assert getattr(pair, role).process.wait(timeout=PATIENCE_S) == 0
        setattr(pair, role, pair.start(role))
    wait_until("the decode worker is free", lambda: pair.is_free(pair.decode))
    # What the other did not take keeps a worker that ends for a short time alone.
    path, body = body_of(COMPLETIONS, 500, **SAMPLINGS[1])
    pair.offer(path, body)
    begun = time.monotonic()
    pair.restart("prefill", signal.SIGTERM)
    assert time.monotonic() - begun < 15, "it waited for a claim as long as ever"


def check_plan(binary, model):
    """Memory where KV arrives is planned for, on workers that fetch."""
    def plan(*flags):
        text = subprocess.run([binary, "serve", model, "--dry-run", *flags], check=True,
                              capture_output=True, text=True).stdout
        rows = [line.split() for line in text.splitlines() if " bytes" in line]
        return {" ".join(row[:row.index("bytes") - 1]): int(row[row.index("bytes") - 1])
                for row in rows}
    listens = ("--kv-listen", "127.0.0.1:0", "--kv-transfer-buffer", "9MiB")
    name = "KV of other workers"
    decode, prefill, alone = plan(*listens), plan(*listens, "--role", "prefill"), plan()
    assert decode[name] == 8 << 20, decode  # slots of 2 MiB
    assert name not in prefill and name not in alone, (prefill, alone)
    assert decode["total"] - prefill["total"] == decode[name]


def check_real_model(binary, model):
    alone = Server(binary, model, "--threads", "1", "--max-model-len", "2048")
    pair = Pair(binary, model, "tcp", alone)
    try:
        for path in (CHAT, COMPLETIONS):
            path, body = body_of(path, 600, **SAMPLINGS[1])
            answer = read_answer(*pair.fetch(path, body, pair.offer(path, body)))
            pair.expect_same(path, body, answer)
            assert num_cached(answer) >= whole_blocks(answer) > 0, answer["usage"]
        pair.expect_free()
    finally:
        pair.stop()
        alone.process.kill()


def main():
    binary, model = sys.argv[1:]
    alone = Server(binary, model, "--threads", "1", "--max-model-len", "2048")
    checks = [("plan", lambda: check_plan(binary, model))]
    pairs = []
    for transport, ranks in (("tcp", 1), ("shm", 2)):
        pair = Pair(binary, model, transport, alone, ranks)
        pairs.append(pair)
        for check in (check_answers, check_early_answers, check_streams, check_many_at_once,
                      check_aborts, check_decode_restart, check_prefill_killed_before,
                      check_prefill_killed_meanwhile, check_drain):
            name = f"{transport} {check.__name__.removeprefix('check_')}"
            checks.append((name, lambda check=check, pair=pair: check(pair)))
    if "SLUICE_SMOLLM2" in os.environ:
        checks.append(("real model", lambda: check_real_model(binary, os.environ["SLUICE_SMOLLM2"])))
    try:
        run_checks(alone, checks)
    finally:
        for pair in pairs:
            pair.stop()


main()
