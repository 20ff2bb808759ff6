#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The binary as its users meet it: start, chat, errors, load, signals.

usage: serving_test.py BINARY MODEL [--seconds 5] [--clients 64]

Starts `BINARY serve MODEL` on a free port. Needs the standard library only; where SLUICE_TEST_PYTHON
names an interpreter with the `openai` package, openai_client_test.py runs against the server too.
"""
import argparse
import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time

from server_process import Server, run_checks, wait_until

HERE = os.path.dirname(os.path.abspath(__file__))


def request(number):
    """One of 16 requests; the same number is the same request."""
    number %= 16
    return {"prompt": [10 + number + i for i in range(8 + 5 * number)], "max_tokens": 24,
            "temperature": 0.5 * (number % 3), "seed": number, "ignore_eos": True}


def check_streams(server, clients, seconds):
    """Many clients stream for a while: the same answers as alone, all of them whole, flat memory."""
    expected = [server.stream(request(number)) for number in range(16)]
    assert all(len(logprobs) == 24 for _, logprobs in expected)
    assert len({text for text, _ in expected}) > 4, "the requests are meant to differ"
    end = time.monotonic() + seconds
    failures, counts, sizes = [], [0] * clients, []

    def client(index):
        number = index
        try:
            while time.monotonic() < end:
                got = server.stream(request(number))
                assert got == expected[number % 16], f"request {number % 16} changed"
                counts[index] += 1
                number += 7
        except Exception as error:  # the thread's only way to tell
            failures.append(repr(error))

    threads = [threading.Thread(target=client, args=(index,)) for index in range(clients)]
    for thread in threads:
        thread.start()
    while time.monotonic() < end:
        time.sleep(min(0.5, seconds / 10))
        sizes.append(server.rss())
    for thread in threads:
        thread.join()
    assert not failures, failures[:3]
    assert min(counts) > 0, "a client got no answer"
    quarter = max(1, len(sizes) // 4)
    grown = max(sizes[-quarter:]) - max(sizes[:2 * quarter])
    assert grown < 8 << 20, f"memory grew by {grown} bytes under steady load"
    wait_until("idle", lambda: server.metric("vllm:num_requests_running") == 0)
    assert server.metric("vllm:kv_cache_usage_perc") == 0, "blocks are held by nobody"
    print(f"   {sum(counts)} streams of {clients} clients, memory {sizes[0] >> 20} to "
          f"{sizes[-1] >> 20} MiB")


def check_disconnect(server):
    """A client that leaves has its request aborted, long before it would end."""
    body = {"prompt": [1, 2, 3], "max_tokens": server.max_len - 8, "ignore_eos": True,
            "stream": True}
    connection, response = server.post(body)
    response.readline()
    wait_until("running", lambda: server.metric("vllm:num_requests_running") == 1)
    response.close()
    connection.close()
    wait_until("aborted", lambda: server.metric("vllm:num_requests_running") == 0, 2)
    assert server.metric("vllm:kv_cache_usage_perc") == 0


def check_errors(server):
    cases = (
        ({"prompt": "x", "temperature": -1}, 400, "temperature"),
        ({"prompt": "x", "max_tokens": 0}, 400, "max_tokens"),
        ({"prompt": "x", "top_p": 2}, 400, "top_p"),
        ({"prompt": "x", "no_such_parameter": 1}, 400, "no_such_parameter"),
        ({"prompt": [10**9]}, 400, "prompt"),
        ({"prompt": "x", "model": "other"}, 404, "model"),
    )
    for body, status, field in cases:
        connection, response = server.post(body)
        with contextlib.closing(connection):
            error = json.loads(response.read())["error"]
            assert response.status == status and error["param"] == field, (body, error)
            assert error["message"] and error["type"]


def check_drain(binary, model):
    """SIGTERM: running streams end whole, new connections find nobody; exit code 0."""
    server = Server(binary, model)
    answers, tokens = [], server.max_len - 16
    body = {"prompt": [5] * 8, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    begun = [threading.Event() for _ in range(8)]
    threads = [threading.Thread(target=lambda b=b: answers.append(server.stream(body, b.set)))
               for b in begun]
    for thread in threads:
        thread.start()
    assert all(event.wait(timeout=60) for event in begun)
    assert server.metric("vllm:num_requests_running") > 0, "the streams are meant to be long"
    assert server.stop() == 0
    for thread in threads:
        thread.join()
    assert len(answers) == 8 and all(len(logprobs) == tokens for _, logprobs in answers)


def check_restart(binary, model):
    """SIGUSR2 under load: another process serves, nobody is refused, running streams end whole."""
    server = Server(binary, model)
    expected = server.stream(request(3))
    stop, failures, counts = threading.Event(), [], [0] * 4
    body = {"prompt": [5] * 8, "max_tokens": 400, "ignore_eos": True, "temperature": 0}
    long_answers = []

    def client(index):
        try:
            while not stop.is_set():
                assert server.stream(request(3)) == expected
                counts[index] += 1
        except (OSError, AssertionError, http.client.HTTPException) as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=client, args=(i,)) for i in range(len(counts))]
    threads.append(threading.Thread(target=lambda: long_answers.append(server.stream(body))))
    for thread in threads:
        thread.start()
    wait_until("running", lambda: sum(counts) > 8)
    server.process.send_signal(signal.SIGUSR2)
    assert server.process.wait(timeout=60) == 0, server.log
    before = sum(counts)
    wait_until("the next process serves", lambda: sum(counts) > before + 8 or failures)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert len(long_answers) == 1 and len(long_answers[0][1]) == 400
    pid = next(int(line.split("pid=")[1]) for line in server.log if "successor_started" in line)
    os.kill(pid, signal.SIGTERM)
    wait_until("the next process has ended", lambda: not os.path.exists(f"/proc/{pid}"))


def check_second_signal(binary, model):
    """A second SIGTERM does not wait for the streams; the cut stream says so."""
    server = Server(binary, model)
    body = {"prompt": [5] * 8, "max_tokens": server.max_len - 16, "ignore_eos": True,
            "stream": True}
    connection, response = server.post(body)
    response.readline()
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.05)
    started = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(timeout=10)
    assert time.monotonic() - started < 3
    try:
        rest = response.read()
    except http.client.IncompleteRead as cut:
        rest = cut.partial
    assert b"error" in rest or b"abort" in rest, rest[-200:]
    connection.close()


def one_line_failure(command, *words):
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    lines = result.stderr.strip().splitlines()
    assert result.returncode != 0, command
    assert len(lines) == 1, lines
    assert all(word in lines[0] for word in words), lines[0]


def check_refusals(server, binary, model):
    """What cannot start says why in one line."""
    one_line_failure([binary, "serve", model, "--port", str(server.port)], str(server.port), "use")
    one_line_failure([binary, "serve", "/no/such/model.gguf"], "/no/such/model.gguf")
    one_line_failure([binary, "serve", os.path.abspath(__file__)], os.path.basename(__file__))
    one_line_failure([binary, "serve", model, "--max-num-seq", "4"], "--max-num-seqs")
    one_line_failure([binary, "serve", model, "--threads", "none"], "--threads")


def check_openai_client(server):
    python = os.environ.get("SLUICE_TEST_PYTHON")
    if not python:
        print("   skipped: SLUICE_TEST_PYTHON is not set")
        return
    subprocess.run([python, os.path.join(HERE, "openai_client_test.py"),
                    f"http://127.0.0.1:{server.port}/v1"], check=True, timeout=300,
                   stdout=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float,
                        default=60 if os.environ.get("SLUICE_FULL") else 5)
    args = parser.parse_args()
    server = Server(args.binary, args.model)
    checks = (
        ("openai client", lambda: check_openai_client(server)),
        ("errors", lambda: check_errors(server)),
        ("disconnect", lambda: check_disconnect(server)),
        ("streams", lambda: check_streams(server, args.clients, args.seconds)),
        ("refusals", lambda: check_refusals(server, args.binary, args.model)),
        ("drain", lambda: check_drain(args.binary, args.model)),
        ("second signal", lambda: check_second_signal(args.binary, args.model)),
        ("restart", lambda: check_restart(args.binary, args.model)),
    )
    run_checks(server, checks)


if __name__ == "__main__":
    sys.exit(main())
