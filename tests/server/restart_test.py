#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hot restarts by SIGUSR2: restart_test.py BINARY MODEL. Nobody is refused, and running streams end
whole."""
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import sys
import threading
import time

from server_process import Server, wait_until

REQUEST = {"prompt": [10 + i for i in range(8)], "max_tokens": 24, "temperature": 0,
           "ignore_eos": True}


def successor_of(server):
    line = next(line for line in server.log if "successor_started" in line)
    return int(re.search(r"pid=(\d+)", line)[1])


def end(pid):
    os.kill(pid, signal.SIGTERM)
    wait_until("the next process has ended", lambda: not os.path.exists(f"/proc/{pid}"))


def check_load(binary, model):
    """Under load: another process serves, nobody is refused, running streams end whole; it has the
    port of gRPC too."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        grpc_port = free.getsockname()[1]
    server = Server(binary, model, "--grpc-port", str(grpc_port))
    expected = server.stream(REQUEST)
    stop, failures, counts = threading.Event(), [], [0] * 4
    body = {"prompt": [5] * 8, "max_tokens": 400, "ignore_eos": True, "temperature": 0}
    long_answers = []

    def client(index):
        try:
            while not stop.is_set():
                assert server.stream(REQUEST) == expected
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
    with socket.create_connection(("127.0.0.1", grpc_port), timeout=10) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
        assert connection.recv(9)[3] == 4, "settings are a server's first frame"
    end(successor_of(server))


def check_kept_connections(binary, model):
    """While the old process drains, clients that keep connections, busy or idle, are answered as always;
    one whose connection has ended opens another, as pools do."""
    server = Server(binary, model, "--drain-timeout-s", "60", "--max-stream-buffer-bytes", "1000000000")
    stop, seen = threading.Event(), []
    body = json.dumps({"model": server.model, **REQUEST})

    def ask(connection):
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        response.read()
        return response.status

    def client(pause):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        while not stop.is_set():
            try:
                seen.append(ask(connection))
            except (http.client.RemoteDisconnected, ConnectionError):
                connection.close()  # it ended while it was idle
                seen.append(ask(connection))
            stop.wait(pause)
        connection.close()

    # A stream that is not read is not at its end.
    stream = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    stream.sock = socket.socket()
    stream.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stream.sock.connect(("127.0.0.1", server.port))
    stream.request("POST", "/v1/completions", json.dumps({
        "model": server.model, "prompt": [5] * 8, "max_tokens": server.max_len - 16, "n": 8,
        "logprobs": 5, "ignore_eos": True, "stream": True}), {"Content-Type": "application/json"})
    response = stream.getresponse()
    threads = [threading.Thread(target=client, args=(pause,)) for pause in (0.05, 0.7, 2.3, 2.9, 3.5)]
    for thread in threads:
        thread.start()
    wait_until("each client has asked", lambda: len(seen) >= len(threads))
    server.process.send_signal(signal.SIGUSR2)
    wait_until("the old process drains", lambda: any("draining" in line for line in server.log))
    time.sleep(4)  # all clients have asked since
    assert server.process.poll() is None
    stop.set()
    for thread in threads:
        thread.join()
    with contextlib.closing(stream), contextlib.closing(response):
        assert b"[DONE]" in response.read()
    assert server.process.wait(timeout=60) == 0, server.log
    assert set(seen) == {200}, seen
    end(successor_of(server))


def main():
    binary, model = os.path.abspath(sys.argv[1]), sys.argv[2]
    for check in (check_load, check_kept_connections):
        started = time.monotonic()
        check(binary, model)
        print(f"ok {check.__name__} ({time.monotonic() - started:.1f} s)", flush=True)


if __name__ == "__main__":
    sys.exit(main())
