#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The binary as its users meet it: start, chat, errors, load, signals.

usage: serving_test.py BINARY MODEL [--seconds 5] [--clients 64]

Starts `BINARY serve MODEL` on a free port. Needs the standard library only; where SLUICE_TEST_PYTHON
names an interpreter with the `openai` package, openai_client_test.py runs against the server too.
Under SLUICE_FULL also five minutes of 256 clients with the model that SLUICE_SMOLLM2 names.
"""
import argparse
import contextlib
import http.client
import json
import os
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time

from server_process import PATIENCE_S, Server, metric_of, run_checks, wait_until

HERE = os.path.dirname(os.path.abspath(__file__))


def request(number):
    """One of 16 requests; the same number is the same request."""
    number %= 16
    return {"prompt": [10 + number + i for i in range(8 + 5 * number)], "max_tokens": 24,
            "temperature": 0.5 * (number % 3), "seed": number, "ignore_eos": True}


class Left(Exception):
    """A client has gone in the middle of its stream."""


def leave_after(count):
    """For Server.stream(): raises at the event of that number."""
    events = iter(range(count))

    def on_event():
        if next(events, None) is None:
            raise Left
    return on_event


def check_streams(server, clients, seconds):
    """Many clients stream for a while, and one in five leaves somewhere: the others get the same
    answers as alone, all of them whole; memory is flat, and at the end nothing is held."""
    expected = [server.stream(request(number)) for number in range(16)]
    assert all(len(logprobs) == 24 for _, logprobs in expected)
    assert len({text for text, _ in expected}) > 4, "the requests are meant to differ"
    end = time.monotonic() + seconds
    failures, counts, left, sizes = [], [0] * clients, [0] * clients, []

    def client(index):
        number = index
        chance = random.Random(index)
        try:
            while time.monotonic() < end:
                number += 7
                if chance.random() < 0.2:
                    with contextlib.suppress(Left):
                        server.stream(request(number), leave_after(chance.randrange(24)))
                    left[index] += 1
                    continue
                got = server.stream(request(number))
                assert got == expected[number % 16], f"request {number % 16} changed"
                counts[index] += 1
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
    assert all(map(sum, zip(counts, left))), "a client had no stream"
    quarter = max(1, len(sizes) // 4)
    grown = max(sizes[-quarter:]) - max(sizes[:2 * quarter])
    assert grown < 8 << 20, f"memory grew by {grown} bytes under steady load"
    wait_until("idle", lambda: server.metric("vllm:num_requests_running") == 0)
    assert server.metric("vllm:kv_cache_usage_perc") == 0, "blocks are held by nobody"
    print(f"   {sum(counts)} streams of {clients} clients and {sum(left)} that were left, memory "
          f"{sizes[0] >> 20} to {sizes[-1] >> 20} MiB")


def check_disconnect(server):
    """A client that leaves has its request aborted, before it would end."""
    body = {"prompt": [1, 2, 3], "max_tokens": server.max_len - 8, "ignore_eos": True, "n": 8,
            "stream": True}

    def is_aborted():
        before = server.num_aborted()
        connection, response = server.post(body)
        response.readline()
        response.close()
        connection.close()
        wait_until("idle", lambda: server.metric("vllm:num_requests_running") == 0)
        assert server.metric("vllm:kv_cache_usage_perc") == 0
        return server.num_aborted() > before

    # The answer may be there before a busy machine lets this client leave.
    assert any(is_aborted() for _ in range(10))


def check_metrics_under_load(server):
    """/metrics waits for no step. The bound is far off what is aimed at (5 ms), as this client's own
    threads are in the way."""
    stop = threading.Event()

    def stream():
        while not stop.is_set():
            server.stream({**request(1), "max_tokens": 200})

    threads = [threading.Thread(target=stream) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until("running", lambda: server.metric("vllm:num_requests_running") == 4)
    times = []
    for _ in range(200):
        begin = time.perf_counter()
        server.get("/metrics")
        times.append(time.perf_counter() - begin)
    stop.set()
    for thread in threads:
        thread.join()
    print(f"   /metrics: median {1000 * sorted(times)[100]:.1f} ms, p99 "
          f"{1000 * sorted(times)[197]:.1f} ms")
    assert sorted(times)[197] < 1, sorted(times)[-5:]


def check_errors(server):
    cases = (
        ({"prompt": "x", "temperature": -1}, 400, "temperature"),
        ({"prompt": "x", "max_tokens": 0}, 400, "max_tokens"),
        ({"prompt": "x", "top_p": 2}, 400, "top_p"),
        ({"prompt": "x", "use_beam_search": True}, 400, "use_beam_search"),
        ({"prompt": [10**9]}, 400, "prompt"),
        ({"prompt": "x", "model": "other"}, 404, "model"),
    )
    for body, status, field in cases:
        connection, response = server.post(body)
        with contextlib.closing(connection):
            error = json.loads(response.read())["error"]
            assert response.status == status and error["param"] == field, (body, error)
            assert error["message"] and error["type"]
    connection, response = server.post({"prompt": "x", "max_tokens": 1, "no_such_parameter": 1})
    with contextlib.closing(connection):
        assert response.status == 200, response.read()
        assert response.getheader("x-sluice-ignored-arguments") == "no_such_parameter"


def begin_streams(server, count, read):
    """Threads that `read(begun)` a stream each, all of them after their first event."""
    begun = [threading.Event() for _ in range(count)]
    threads = [threading.Thread(target=read, args=(event,)) for event in begun]
    for thread in threads:
        thread.start()
    assert all(event.wait(timeout=60) for event in begun)
    assert server.metric("vllm:num_requests_running") > 0, "the streams are meant to be long"
    return threads


def check_drain(binary, model):
    """SIGTERM: a hundred running streams end whole, new connections find nobody; exit code 0."""
    server = Server(binary, model, "--max-num-seqs", "128", "--drain-timeout-s", "600")
    answers, tokens = [], 600
    body = {"prompt": [5] * 8, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    threads = begin_streams(server, 100,
                            lambda begun: answers.append(server.stream(body, begun.set)))
    server.process.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join()
    assert server.process.wait(timeout=PATIENCE_S) == 0
    assert len(answers) == 100 and all(len(logprobs) == tokens for _, logprobs in answers)


def last_totals(server):
    """The numbers of the line that ends an ended server's log."""
    wait_until("its last line", lambda: any(" served " in line for line in server.log))
    line = next(line for line in server.log if " served " in line)
    return {name: float(value) for name, value in re.findall(r" ([a-z_]+)=([0-9.]+)", line)}


def check_drain_deadline(binary, model):
    """SIGTERM with little time to drain: of a hundred streams those that are cut say so. A scrape
    during the drain counts at least what was sent by then, the lines of the log what each has had,
    and the last one what all have had, which no scrape sees."""
    server = Server(binary, model, "--max-num-seqs", "128", "--drain-timeout-s", "1",
                    "--enable-log-requests")
    body = {"prompt": [5] * 8, "max_tokens": server.max_len - 16, "ignore_eos": True,
            "stream": True, "logprobs": 0}
    ends, sent, arrived = [], {}, []
    # A draining server accepts no more, and keeps only connections with a request.
    scraper = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    scraper.sendall(b"GET /metrics HTTP/1.1\r\n")

    def read(begun):
        connection, response = server.post(body)
        with contextlib.closing(connection), contextlib.closing(response):
            lines = []
            for raw in response:
                begun.set()
                lines.append(raw.decode().strip())
                arrived.append('"tokens":["' in lines[-1])
            events = [line[6:] for line in lines if line]
            assert events[-1] == "[DONE]", events[-1]
            last = json.loads(events[-2])
            ends.append("error" if "error" in last else last["choices"][0]["finish_reason"])
            assert "error" not in last or last["error"]["code"] == 503, last
            if "error" in last:
                parts = [json.loads(event) for event in events[:-2]]
                sent[parts[0]["id"]] = sum(
                    len(part["choices"][0]["logprobs"]["tokens"]) for part in parts
                    if part["choices"][0]["logprobs"])

    threads = begin_streams(server, 100, read)
    server.process.send_signal(signal.SIGTERM)
    wait_until("it accepts no more", lambda: not server.accepts())
    at_least = sum(arrived)  # events with a token or more
    scraper.sendall(b"Host: test\r\n\r\n")
    with contextlib.closing(scraper), http.client.HTTPResponse(scraper) as response:
        response.begin()
        counted = metric_of(response.read(), "vllm:generation_tokens_total")
    assert 100 <= at_least <= counted, (at_least, counted)
    assert server.process.wait(timeout=60) == 0  # another signal would end it at once
    for thread in threads:
        thread.join()
    assert len(ends) == 100 and set(ends) <= {"error", "length"}, (len(ends), set(ends))
    assert "error" in ends, "the streams are meant to be long"
    totals = last_totals(server)
    assert totals["prompt_tokens"] == 800, totals
    assert totals["finished_error"] == ends.count("error"), (totals, ends)
    assert totals["finished_length"] == ends.count("length"), (totals, ends)
    assert totals["finished_abort"] == 0, totals
    told = sum(int(count) for line in server.log for count in re.findall(r" output_tokens=(\d+)", line))
    assert counted <= totals["generation_tokens"], (counted, totals)
    assert told <= totals["generation_tokens"] <= told + 100 * 64, (told, totals)
    for name, count in sent.items():
        line = next(line for line in server.log if f"request id={name} " in line)
        counted = int(re.search(r" output_tokens=(\d+)", line).group(1))
        assert 0 < count <= counted <= count + 64, (count, line)
        assert " status=503 " in line and " finish=error " in line, line
        assert " prompt_tokens=8 " in line, line


def check_second_signal(binary, model):
    """A second SIGTERM does not wait for the streams; the cut stream says so."""
    server = Server(binary, model, "--max-stream-buffer-bytes", "1000000000", "--drain-timeout-s", "600")
    body = {"prompt": [5] * 8, "max_tokens": server.max_len - 16, "ignore_eos": True, "n": 16,
            "stream": True}
    connection, response = server.post(body)
    response.readline()
    server.process.send_signal(signal.SIGTERM)
    wait_until("it accepts no more", lambda: not server.accepts())
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(timeout=PATIENCE_S)
    try:
        rest = response.read()
    except http.client.IncompleteRead as cut:
        rest = cut.partial
    assert b"error" in rest or b"abort" in rest, rest[-200:]
    connection.close()


LOG_LINE = re.compile(r"\d{4}-\d{2}-\d{2}T")


def one_line_failure(command, *words):
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    lines = [line for line in result.stderr.strip().splitlines() if not LOG_LINE.match(line)]
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
    one_line_failure([binary, "serve", model, "--port", "0", "--worker-listen", "127.0.0.1:0",
                      "--worker-secret", "fifteen letters"], "--worker-secret")


@contextlib.contextmanager
def started(command, **more):
    """The process, and its line that says where it serves."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               **more)
    try:
        yield process, next(line for line in process.stdout if line.startswith("serving "))
    finally:
        process.kill()
        process.communicate()


def check_exposure(binary, model):
    """Without a key it warns who else could use it, and it says at which address it listens."""
    for key, warns in (((), True), (("--api-key", "sk"), False)):
        command = [binary, "serve", model, "--host", "0.0.0.0", "--port", "0", *key]
        with started(command) as (process, line):
            assert " on http://0.0.0.0:" in line, line
            process.kill()
            log = process.stderr.read()
            assert ("no_key" in log) == warns, log


def check_json_lines(binary, model):
    """With --log-format json all that a server says is one object a line."""
    command = [binary, "serve", model, "--port", "0", "--log-format", "json", "--enable-log-requests"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = []
    try:
        for line in process.stdout:
            lines.append(json.loads(line))
            if lines[-1]["event"] == "serving":
                break
        serving = lines[-1]
        connection = http.client.HTTPConnection(serving["url"].removeprefix("http://"), timeout=30)
        connection.request("GET", "/metrics")
        assert connection.getresponse().read()
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 2}),
                           {"X-Request-Id": "json-1", "Content-Type": "application/json"})
        assert connection.getresponse().read()
        client = "%s:%s" % connection.sock.getsockname()
        connection.close()
        process.terminate()
        lines += [json.loads(line) for line in process.stdout]
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
    for line in lines:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"]), line
        assert line["level"] in ("info", "warning"), line
    plan, = (line for line in lines if line["event"] == "plan")
    assert "KV cache" in plan["text"] and serving["ready_s"] > 0
    request, = (line for line in lines if line["event"] == "request")
    assert request["id"] == "json-1" and request["client"] == client, request
    assert request["finish"] == "length" and request["output_tokens"] == 2, request
    failed = subprocess.run([*command[:2], "/no/such/model.gguf", *command[3:]], capture_output=True,
                            text=True, timeout=60)
    assert failed.returncode == 1
    reason, = map(json.loads, (failed.stdout + failed.stderr).splitlines())
    assert reason["level"] == "error" and "/no/such/model.gguf" in reason["reason"], reason


def check_descriptors(binary, model):
    """More connections than the soft limit has descriptors keep no probe out."""
    limits = (256, min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with started([binary, "serve", model, "--port", "0"], preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_NOFILE, limits)) as (_, line), contextlib.ExitStack() as idle:
        port = int(line.split("http://127.0.0.1:")[1].split()[0])
        for _ in range(400):
            idle.enter_context(socket.create_connection(("127.0.0.1", port)))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
        connection.close()


def check_openai_client(server):
    """OpenAI's own client."""
    python = os.environ.get("SLUICE_TEST_PYTHON")
    found = python and subprocess.run([python, "-c", "import openai"], check=False,
                                      stderr=subprocess.DEVNULL).returncode == 0
    if not found:
        print("   skipped: SLUICE_TEST_PYTHON has no openai")
        return
    script = os.path.join(HERE, "openai_client_test.py")
    subprocess.run([python, script, f"http://127.0.0.1:{server.port}/v1"], check=True, timeout=300,
                   stdout=subprocess.DEVNULL)


def check_real_model(binary):
    """The five minutes of many clients that take a model of some size."""
    model = os.environ.get("SLUICE_SMOLLM2")
    if not model or not os.environ.get("SLUICE_FULL"):
        print("   skipped: SLUICE_FULL and SLUICE_SMOLLM2 are not both set")
        return
    server = Server(binary, model)
    run_checks(server, (("256 clients", lambda: check_streams(server, 256, 300)),))


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
        ("metrics under load", lambda: check_metrics_under_load(server)),
        ("streams", lambda: check_streams(server, args.clients, args.seconds)),
        ("refusals", lambda: check_refusals(server, args.binary, args.model)),
        ("exposure", lambda: check_exposure(args.binary, args.model)),
        ("json_lines", lambda: check_json_lines(args.binary, args.model)),
        ("descriptors", lambda: check_descriptors(args.binary, args.model)),
        ("drain", lambda: check_drain(args.binary, args.model)),
        ("drain deadline", lambda: check_drain_deadline(args.binary, args.model)),
        ("second signal", lambda: check_second_signal(args.binary, args.model)),
        ("real model", lambda: check_real_model(args.binary)),
    )
    run_checks(server, checks)


if __name__ == "__main__":
    sys.exit(main())
