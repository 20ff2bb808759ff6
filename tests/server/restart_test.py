#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hot restarts by SIGUSR2: restart_test.py BINARY MODEL. Nobody is refused, running streams end whole,
and a service manager learns which process serves; where the next process could not outlive this one
or compute, SIGUSR2 changes nothing."""
import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

from node_processes import Nodes
from server_process import Server, free_port, wait_until

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
    grpc_port = free_port()
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
    stop, seen, num_reopened = threading.Event(), [], [0] * 5
    body = json.dumps({"model": server.model, **REQUEST})

    def ask(connection):
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        response.read()
        return response.status

    def client(index, pause):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        while not stop.is_set():
            try:
                seen.append(ask(connection))
            except (http.client.RemoteDisconnected, ConnectionError):
                connection.close()  # it ended while it was idle
                num_reopened[index] += 1
                continue
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
    threads = [threading.Thread(target=client, args=each)
               for each in enumerate((0.05, 0.7, 2.3, 2.9, 3.5))]
    for thread in threads:
        thread.start()
    wait_until("each client has asked", lambda: len(seen) >= len(threads), 60)
    server.process.send_signal(signal.SIGUSR2)
    wait_until("the old process drains", lambda: any("draining" in line for line in server.log), 60)
    time.sleep(4)  # all clients have asked since
    assert server.process.poll() is None
    stop.set()
    for thread in threads:
        thread.join()
    with contextlib.closing(stream), contextlib.closing(response):
        assert b"[DONE]" in response.read()
    assert server.process.wait(timeout=60) == 0, server.log
    assert set(seen) == {200}, seen
    assert max(num_reopened) <= 1, num_reopened
    end(successor_of(server))


def check_manager(binary, model):
    """systemd is told that the next process is the service's main one while the old one still runs."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX,
                                                                socket.SOCK_DGRAM) as manager:
        path = f"{folder}/notify"
        manager.bind(path)
        manager.settimeout(60)
        server = Server(binary, model, variables={"NOTIFY_SOCKET": path})
        server.process.send_signal(signal.SIGUSR2)
        said = manager.recv(4096).decode()
        assert server.process.poll() is None
        assert server.process.wait(timeout=60) == 0, server.log
        pid = successor_of(server)
        assert said == f"MAINPID={pid}", said
        end(pid)


def check_refusal(reason, pid, server):
    """SIGUSR2 says why it starts no process, and the server goes on."""
    os.kill(pid, signal.SIGUSR2)
    wait_until(f"{reason}: {server.log}", lambda: any(
        "restart_failed" in line and reason in line for line in server.log))
    assert not any("successor_started" in line for line in server.log), server.log
    assert server.get("/health") == b'{"status":"ok"}'


def script(folder, name, text):
    path = f"{folder}/{name}"
    with open(path, "w", encoding="ascii") as file:
        file.write(f"#!/bin/sh\n{text}\n")
    os.chmod(path, 0o755)
    return path


def check_deaf_manager(binary, model):
    """A unit of systemd that takes no notices would end with this process."""
    with tempfile.TemporaryDirectory() as folder:
        command = script(folder, "unit", f'SYSTEMD_EXEC_PID=$$ exec {binary} "$@"')
        server = Server(command, model)
        check_refusal("NotifyAccess", server.process.pid, server)
        assert server.stop() == 0


def check_first_process(binary, model):
    """A container ends with its first process."""
    alone = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if not shutil.which("unshare") or subprocess.run([*alone, "true"], check=False,
                                                     stderr=subprocess.DEVNULL).returncode != 0:
        print("   skipped: no process may have a namespace of its own here")
        return
    with tempfile.TemporaryDirectory() as folder:
        command = script(folder, "container", f'exec {" ".join(alone)} {binary} "$@"')
        server = Server(command, model)
        with open(f"/proc/{server.process.pid}/task/{server.process.pid}/children",
                  encoding="ascii") as children:
            pid = int(children.read().split()[0])
        check_refusal("PID 1", pid, server)
        os.kill(pid, signal.SIGTERM)
        assert server.process.wait(timeout=60) == 0


def check_group(binary, model):
    """A next process would not be known to the other nodes of a model. SIGHUP ends no node either, and a node
    above 0 says who takes requests."""
    nodes = Nodes(binary, model, 2)
    follower = nodes.followers[0]
    try:
        for process, log in ((nodes.leader.process, nodes.leader.log), (follower.process, follower.log)):
            process.send_signal(signal.SIGHUP)
            process.send_signal(signal.SIGUSR2)
            wait_until("it says why", lambda log=log: any(
                "restart_failed" in line and "the other nodes of the model stay" in line for line in log))
        url = re.search(r"http://[^\s\"]+", next(line for line in follower.log if " probes " in line))[0]
        try:
            urllib.request.urlopen(f"{url}/v1/models", timeout=10)
            raise AssertionError("a follower has models")
        except urllib.error.HTTPError as error:
            assert error.code == 404 and b"node 0, which takes requests" in error.read()
        assert nodes.leader.stream(REQUEST) and follower.process.poll() is None
        nodes.leader.process.send_signal(signal.SIGTERM)
        assert nodes.leader.process.wait(60) == 0 and follower.end()[0] == 0
        assert not any("signal=15" in line for line in follower.log), follower.log
    finally:
        nodes.kill()


def main():
    binary, model = os.path.abspath(sys.argv[1]), sys.argv[2]
    for check in (check_load, check_kept_connections, check_manager, check_deaf_manager,
                  check_first_process, check_group):
        started = time.monotonic()
        check(binary, model)
        print(f"ok {check.__name__} ({time.monotonic() - started:.1f} s)", flush=True)


if __name__ == "__main__":
    sys.exit(main())
