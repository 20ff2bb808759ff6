#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Requests that want what there is little of: memory, the event loop, threads. Each is answered or
refused by itself, nobody else waits for it, and the server lives.

usage: scarcity_test.py BINARY MODEL

Standard library only.
"""
import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from server_process import PATIENCE_S, Server, least, wait_until

MIB = 1 << 20
KEY = "a-key-of-this-test"
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}


@contextlib.contextmanager
def serving(binary, model, *flags):
    server = Server(binary, model, "--threads", "1", "--kv-cache-memory", "16M", *flags)
    try:
        yield server
        assert server.stop() == 0
    finally:
        server.process.kill()


def ask(server, method, path, body=None, key=None, timeout=120):
    """Status, headers and body; status 0: the connection ended without an answer."""
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port,
                                                       timeout=timeout)) as connection:
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        except (ConnectionError, http.client.HTTPException):
            return 0, {}, b""


def begin(server, path, declared, sent, *lines):
    """A connection that has sent a header and the first bytes of a body."""
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    head = "\r\n".join((f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json",
                        f"Content-Length: {declared}", *lines)) + "\r\n\r\n"
    with contextlib.suppress(ConnectionError):
        connection.sendall(head.encode() + b" " * sent)
    return connection


def status_of(connection):
    """Of the answer, 0 for an end without one; None where there is none yet."""
    data = b""
    try:
        while b"\r\n\r\n" not in data:
            piece = connection.recv(65536)
            if not piece:
                return 0
            data += piece
    except ConnectionError:
        return 0
    except TimeoutError:
        return None
    return int(data.split(b" ", 2)[1])


def settled(server):
    """Its resident bytes, once they stay the same."""
    before = -1
    while server.rss() != before:
        before = server.rss()
        time.sleep(0.3)
    return before


def check_a_header_without_the_key_is_enough(binary, model):
    with serving(binary, model, "--api-key", KEY) as server:
        before = settled(server)
        for path in ("/v1/chat/completions", "/v1/messages", "/tokenize", "/detokenize"):
            with contextlib.closing(begin(server, path, 16 * MIB, 1)) as connection:
                assert status_of(connection) == 401, path
            with contextlib.closing(begin(server, path, 16 * MIB, 1,
                                          "Authorization: Bearer other")) as connection:
                assert status_of(connection) == 401, path
        # Nothing is there, or nothing takes a body there.
        for path, wanted in (("/v1/nothing", 404), ("/v1/models", 405)):
            with contextlib.closing(begin(server, path, 16 * MIB, 1)) as connection:
                assert status_of(connection) == wanted, path
        # Who expects to be told before sending is told.
        with contextlib.closing(begin(server, "/tokenize", 16 * MIB, 0,
                                      "Expect: 100-continue")) as connection:
            assert status_of(connection) == 401
        with contextlib.closing(begin(server, "/tokenize", 16 * MIB, 0, "Expect: 100-continue",
                                      f"Authorization: Bearer {KEY}")) as connection:
            assert status_of(connection) == 100
        many = [begin(server, "/v1/completions", 16 * MIB, 4 * MIB) for _ in range(32)]
        assert server.rss() - before < 16 * MIB, (server.rss() - before) / MIB
        for connection in many:
            connection.close()
        status, _, _ = ask(server, "POST", "/tokenize", '{"prompt": "a"}', key=KEY)
        assert status == 200, status


def longest_gap(server, num_tokens):
    """Seconds between two tokens of a stream, at most."""
    body = json.dumps({"prompt": "a", "max_tokens": num_tokens, "ignore_eos": True, "stream": True})
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port,
                                                       timeout=120)) as connection:
        connection.request("POST", "/v1/completions", body, {"Authorization": f"Bearer {KEY}"})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        longest, count, before = 0.0, 0, None
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            now = time.monotonic()
            longest = max(longest, now - (before or now))
            before = now
            count += 1
        assert count >= num_tokens // 2, count
        return longest


def check_bodies_without_the_key_hold_no_stream_up(binary, model):
    """64 connections that send bodies of 16 MiB again and again, whatever is answered."""
    piece = b" " * (64 << 10)
    with serving(binary, model, "--api-key", KEY) as server:
        before, alone = settled(server), longest_gap(server, 400)
        # The strangers of this test, and other programs, take their part of the processors.
        most = 0.2 if os.environ.get("SLUICE_FULL") else 1
        ending = threading.Event()

        def send_bodies():
            while not ending.is_set():
                with contextlib.suppress(OSError), contextlib.closing(
                        begin(server, "/v1/chat/completions", 16 * MIB, 0)) as connection:
                    for _ in range(16 * MIB // len(piece)):
                        if ending.is_set():
                            break
                        connection.sendall(piece)

        strangers = [threading.Thread(target=send_bodies) for _ in range(64)]
        for stranger in strangers:
            stranger.start()
        gap = least(lambda: longest_gap(server, 400), most)
        most_rss = server.rss() - before
        ending.set()
        for stranger in strangers:
            stranger.join()
        print(f"   the longest gap of a stream: {alone:.3f} s alone, {gap:.3f} s beside 64 strangers, "
              f"who took {most_rss / MIB:.0f} MiB")
        assert most_rss < 32 * MIB, most_rss / MIB
        assert gap < most, gap


def check_incomplete_bodies_share_their_memory(binary, model):
    with serving(binary, model, "--max-body-bytes", "2M") as server:
        before = settled(server)
        many = [begin(server, "/tokenize", 2 * MIB, 2 * MIB - 4096) for _ in range(40)]
        waiting, statuses = list(many), []
        while len(statuses) < 30:
            answered, _, _ = select.select(waiting, [], [], PATIENCE_S)
            assert answered, statuses
            statuses += [status_of(connection) for connection in answered]
            waiting = [connection for connection in waiting if connection not in answered]
        assert set(statuses) <= {0, 503} and 503 in statuses, statuses
        time.sleep(0.5)
        waiting = set(waiting).difference(select.select(waiting, [], [], 0)[0])
        assert waiting, "there is room for four"
        assert server.rss() - before < 32 * MIB, (server.rss() - before) / MIB
        # Small ones are taken all the same, and large ones once there is room.
        status, _, body = ask(server, "POST", "/tokenize", '{"prompt": "a"}')
        assert status == 200, body
        for connection in many:
            connection.close()
        wait_until("there is room again", lambda: ask(
            server, "POST", "/tokenize", " " * MIB + '{"prompt": "a"}')[0] == 200)


def check_a_large_body_holds_nobody_up(binary, model):
    with serving(binary, model) as server:
        words = json.dumps({"messages": [{"role": "user", "content": "a"}] * (14 * MIB // 34)})

        def hold_up():
            """How long a probe took beside the body, as a part of what is too long."""
            answers = []
            large = threading.Thread(
                target=lambda: answers.append(ask(server, "POST", "/v1/chat/completions", words)))
            begun = time.monotonic()
            large.start()
            slowest = 0
            while large.is_alive():
                at = time.monotonic()
                assert ask(server, "GET", "/health")[0] == 200
                slowest = max(slowest, time.monotonic() - at)
                time.sleep(0.01)
            took = time.monotonic() - begun
            assert answers[0][0] == 400, answers[0][2][:200]  # longer than the context
            print(f"   a body of 14 MiB took {took:.2f} s, the slowest probe meanwhile {slowest:.3f} s")
            return 0 if took < 0.5 else slowest / max(0.3, took / 4)

        assert least(hold_up, 1) < 1
        # A connection may go on with small bodies, and with large ones after small ones.
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port)) as connection:
            for padding in (0, MIB, 0, 3 * MIB):
                connection.request("POST", "/tokenize", " " * padding + '{"prompt": "a b c"}',
                                   {"Content-Type": "application/json"})
                answer = connection.getresponse()
                assert answer.status == 200, padding
                assert json.loads(answer.read())["count"] > 2


def check_memory_that_lacks_is_one_requests(binary, model):
    """The address space has little left: requests are answered or refused, and the process lives."""
    with serving(binary, model) as server:
        ask(server, "POST", "/v1/completions", '{"prompt": "a", "max_tokens": 4}')
        large = json.dumps({"messages": [{"role": "user", "content": "word " * (12 * MIB // 5)}]})
        counted = []
        for room in (4, 16, 48, 96):
            time.sleep(0.3)  # the reserve is kept again
            server.limit_address_space(server.address_space() + room * MIB)
            for path, body in (("/v1/chat/completions", large), ("/tokenize", large),
                               ("/v1/completions", json.dumps({"prompt": [1] * 1_900_000}))):
                counted.append(ask(server, "POST", path, body)[0])
            assert server.process.poll() is None, (room, counted, "".join(server.log[-20:]))
            server.limit_address_space()
            assert ask(server, "GET", "/health")[0] == 200
        assert set(counted) <= {0, 400, 413, 503}, counted
        status, _, body = ask(server, "POST", "/v1/completions", '{"prompt": "a", "max_tokens": 4}')
        assert status == 200, body


def check_large_bodies_wait_for_a_reserve(binary, model):
    """What takes large trees apart allocates: without memory kept for that none is built, neither of
    a body nor of an earlier request's that is kept. A page of the kept input needs none."""
    with serving(binary, model) as server:
        def ask_large():
            body = json.dumps({"prompt": [1] * 1_900_000})
            status = ask(server, "POST", "/v1/completions", body)[0]
            assert server.process.poll() is None, "".join(server.log[-20:])
            return status

        thoughts = {"type": "reasoning", "summary": [],
                    "content": [{"type": "reasoning_text", "text": "aaaa"}] * 20_000}
        status, _, body = ask(server, "POST", "/v1/responses", json.dumps(
            {"input": [thoughts, {"role": "user", "content": "a"}], "max_output_tokens": 4}))
        assert status == 200, body[:300]
        kept = json.loads(body)["id"]
        further = json.dumps({"input": "a", "max_output_tokens": 4, "previous_response_id": kept})

        def ask_kept():
            return [ask(server, "GET", f"/v1/responses/{kept}/input_items")[0],
                    ask(server, "POST", "/v1/responses", further)[0]]

        assert ask_kept() == [200, 200]
        server.limit_address_space(server.address_space() - 100 * MIB)
        # Takes both reserves. The second is enough to take its tree apart, and neither fits any more.
        first = ask_large()
        without = server.address_space()
        answers = []
        for room in range(16, 92, 6):
            server.limit_address_space(without + room * MIB)
            answers.append(ask_large())
            if answers[-1] == 503 and room < 30:
                assert ask_kept() == [200, 503], room
        assert {first, *answers} <= {0, 503}, (first, answers)
        assert answers.count(503) > 6, answers
        server.limit_address_space()
        wait_until("the reserve is kept again", lambda: ask_large() == 400)  # longer than the context
        assert ask_kept() == [200, 200]


def num_settled_threads(server):
    """Once it stays the same."""
    before = -1
    while (now := len(os.listdir(f"/proc/{server.process.pid}/task"))) != before:
        before = now
        time.sleep(0.3)
    return now


def wrapper(folder, *command):
    """A program that runs its arguments behind `command`."""
    path = pathlib.Path(folder) / "run"
    path.write_text("#!/bin/sh\n" + " ".join(command) + ' "$@"\n', encoding="ascii")
    for item in (path, path.parent):
        item.chmod(0o755)
    return str(path)


def check_descriptors_that_lack(binary, model):
    """`ulimit -n 256`, and many more connections than that."""
    completion = json.dumps({"prompt": "a", "max_tokens": 2})
    schema = json.dumps({"prompt": "a", "max_tokens": 2, "response_format": SCHEMA})
    with tempfile.TemporaryDirectory() as folder, serving(
            wrapper(folder, "ulimit -n 256 && exec", binary), model) as server:
        held = [begin(server, "/v1/completions", 64, 8) for _ in range(400)]
        statuses = []
        for connection in held:
            connection.settimeout(0.02)
            statuses.append(status_of(connection))
        # None: it is let in and may go on, or the kernel keeps it until there is room.
        assert set(statuses) <= {None, 0, 503}, statuses
        assert ask(server, "GET", "/health")[0] == 200
        counted = [ask(server, "POST", "/v1/completions", body)[0] for body in (completion, schema)]
        assert set(counted) <= {0, 200, 503}, counted
        for connection in held:
            connection.close()
        wait_until("there is room again",
                   lambda: ask(server, "POST", "/v1/completions", schema)[0] == 200)


def check_threads_that_lack(binary, model):
    """`ulimit -u` near use. Root is exempt, so another user runs the server."""
    is_root = os.geteuid() == 0
    uid = str(20000 + os.getpid() % 20000)  # not that of other users
    user = ["setpriv", "--reuid", uid, "--regid", uid, "--clear-groups"] if is_root else []
    can_run = subprocess.run([*user, binary, "--version"], check=False, capture_output=True)
    if can_run.returncode != 0:
        print(f"   skipped: no other user can run the server: {can_run.stderr.decode().strip()}")
        return

    def bodies(name):
        # A schema that no request has had yet: its grammar needs a process.
        schema = {"type": "object", "properties": {name: {"type": "integer"}}}
        asked = ({}, {"stream": True}, {"n": 4}, {"structured_outputs": {"regex": f"[ab]+{name}"}},
                 {"response_format": {"type": "json_schema",
                                      "json_schema": {"name": "a", "schema": schema}}})
        return [json.dumps({"prompt": "a", "max_tokens": 2, **more}) for more in asked]

    with tempfile.TemporaryDirectory() as folder, serving(
            wrapper(folder, "exec", *user, binary), model) as server:

        def limit(count):
            subprocess.run([*user, "prlimit", f"--pid={server.process.pid}", f"--nproc={count}:"],
                           check=True)

        num_settled_threads(server)  # it is ready a moment before all of them run
        counted = []
        for room in range(3):
            num_threads = len(os.listdir(f"/proc/{server.process.pid}/task"))
            limit(num_threads + room if is_root else 1)  # a user's other processes count, too
            counted += [ask(server, "POST", "/v1/completions", body)[0]
                        for body in bodies(f"p{room}")]
            counted.append(ask(server, "POST", "/tokenize", " " * MIB + '{"prompt": "a"}')[0])
            assert server.process.poll() is None, (room, counted, "".join(server.log[-20:]))
            assert ask(server, "GET", "/health")[0] == 200
            most = resource.getrlimit(resource.RLIMIT_NPROC)[1]
            limit("unlimited" if most == resource.RLIM_INFINITY else most)
        print(f"   {counted.count(200)} answered, {counted.count(503)} refused")
        assert set(counted) == {200, 503}, counted
        # Processes that began while there was little do not keep that limit: at once, so that all
        # that there are have to fork.
        with concurrent.futures.ThreadPoolExecutor(8) as others:
            counted = list(others.map(lambda body: ask(server, "POST", "/v1/completions", body)[0],
                                      bodies("p0") + bodies("p1") + bodies("p3") + bodies("p4")))
        assert set(counted) == {200}, counted


def check_a_start_without_threads(binary, model):
    """A server that gets too few threads ends with an error, whichever of them is missing."""
    if os.geteuid() != 0:
        print("   skipped: another user's processes cannot be counted")
        return
    uid = str(20000 + (os.getpid() + 1) % 20000)
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        for limit in range(1, 24):
            log = pathlib.Path(folder) / "log"
            with open(log, "wb") as file, subprocess.Popen(
                    ["prlimit", f"--nproc={limit}", "setpriv", "--reuid", uid, "--regid", uid,
                     "--clear-groups", binary, "serve", model, "--port", "0", "--threads", "3",
                     "--kv-cache-memory", "16M"], stdout=file, stderr=file) as server:
                wait_until("it serves or ends", lambda: server.poll() is not None or
                           b"serving " in log.read_bytes())
                with contextlib.suppress(subprocess.TimeoutExpired):
                    server.wait(3)
                text = log.read_text(encoding="utf-8", errors="replace")
                if server.returncode is None:
                    server.send_signal(signal.SIGTERM)
                    assert server.wait(30) == 0, text
                    print(f"   serves with {limit} threads")
                    return
                if "setpriv" not in text.splitlines()[-1]:
                    assert server.returncode == 1 and "sluice: " in text, (limit, text)
    raise AssertionError("it never served")


def check_a_half_written_key_is_none(binary, model):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "keys"
        path.write_text(f"a {KEY}\n", encoding="ascii")
        with serving(binary, model, "--api-key", "another-key", "--api-key-file", str(path)) as server:
            with open(path, "a", encoding="ascii") as file:
                file.write("b sk-0123456789")
                file.flush()
                server.process.send_signal(signal.SIGHUP)
                time.sleep(0.25)
                file.write("abcdef\n")
            wait_until("the whole key is known", lambda: ask(
                server, "GET", "/v1/models", key="sk-0123456789abcdef")[0] == 200)
            for key, wanted in (("sk-0123456789", 401), ("sk-0123456789abcdef", 200), (KEY, 200)):
                assert ask(server, "GET", "/v1/models", key=key)[0] == wanted, key


def check_a_key_sees_its_own_requests(binary, model):
    with serving(binary, model, "--api-key", "first-key", "--api-key", "second-key") as server:
        body = json.dumps({"prompt": "a", "max_tokens": 1500, "ignore_eos": True})
        running = threading.Thread(
            target=lambda: ask(server, "POST", "/v1/completions", body, key="first-key"))
        running.start()

        def requests_of(key):
            state = json.loads(ask(server, "GET", "/debug/state", key=key)[2])
            return len(state["requests"]) + sum(len(step["requests"]) for step in state["steps"])
        wait_until("the request is seen", lambda: requests_of("first-key") > 1)
        assert requests_of("second-key") == 0
        assert b'"pid":2' in ask(server, "GET", "/debug/trace", key="first-key")[2]
        running.join()


def main():
    binary, model = sys.argv[1:]
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            started = time.monotonic()
            check(binary, model)
            print(f"ok {name[6:].replace('_', ' ')} ({time.monotonic() - started:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
