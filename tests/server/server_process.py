# SPDX-License-Identifier: Apache-2.0
"""What the tests that drive the binary from outside share: a running server, waiting, their loop."""
import atexit
import contextlib
import http.client
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time

SKIPPED = 77
# How long what must happen may take on a busy machine; less than the 120 s for which a rank waits for another.
PATIENCE_S = 60


def needs(*modules):
    """Goes on in the Python that SLUICE_TEST_PYTHON names where this one lacks a module; ends with
    SKIPPED where that lacks it too."""
    for module in modules:
        try:
            __import__(module)
        except ImportError:
            other = os.environ.get("SLUICE_TEST_PYTHON")
            if other and os.path.abspath(other) != os.path.abspath(sys.executable):
                os.execv(other, [other, *sys.argv])
            print(f"skipped: this Python has no {module}")
            sys.exit(SKIPPED)


_held = []


def free_port():
    """A port of 127.0.0.1 for a server, and for nobody else until this process ends: it stays bound here,
    beside which only who names it and sets SO_REUSEADDR may listen, as servers do."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    _held.append(held)
    return held.getsockname()[1]


def metric_of(text, name):
    """The sum of the metric's series in what /metrics has answered."""
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.decode().splitlines()
               if line.startswith(name + "{"))


def rss_of(pid):
    """Resident bytes that are the process's own, without mapped files."""
    with open(f"/proc/{pid}/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    return int(fields["RssAnon"].split()[0]) * 1024


class Server:
    def __init__(self, binary, model, *flags, variables=()):
        self.process = subprocess.Popen(
            [binary, "serve", model, "--port", "0", *flags], env={**os.environ, **dict(variables)},
            stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        atexit.register(self.process.kill)  # whatever fails
        key = flags[flags.index("--api-key") + 1] if "--api-key" in flags else None
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.log = []
        for line in self.process.stdout:
            self.log.append(line)
            if line.startswith("serving "):
                self.port = int(line.split("http://127.0.0.1:")[1].split()[0])
                break
        else:
            raise AssertionError(f"no server: {self.log} {self.process.stderr.read()}")
        # An unread pipe would block the server.
        self.readers = [threading.Thread(target=self.log.extend, args=(pipe,), daemon=True)
                        for pipe in (self.process.stdout, self.process.stderr)]
        for reader in self.readers:
            reader.start()
        model_card = json.loads(self.get("/v1/models"))["data"][0]
        self.model = model_card["id"]
        self.max_len = model_card["max_model_len"]

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", path, headers=self.headers)
        with contextlib.closing(connection):
            return connection.getresponse().read()

    def metric(self, name):
        return metric_of(self.get("/metrics"), name)

    def num_aborted(self):
        """Requests aborted so far."""
        lines = self.get("/metrics").decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines
                   if 'finished_reason="abort"' in line)

    def accepts(self):
        try:
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=60).connect()
        except ConnectionError:
            return False
        return True

    def rss(self):
        return rss_of(self.process.pid)

    def address_space(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmSize"))

    def limit_address_space(self, size=resource.RLIM_INFINITY):
        resource.prlimit(self.process.pid, resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))

    def post(self, body, path="/v1/completions"):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("POST", path, json.dumps({"model": self.model, **body}),
                           {"Content-Type": "application/json"})
        return connection, connection.getresponse()

    def stream(self, body, on_event=lambda: None):
        """Text and log-probabilities; raises where the stream is not whole."""
        connection, response = self.post({**body, "stream": True, "logprobs": 0})
        with contextlib.closing(connection), contextlib.closing(response):
            assert response.status == 200, response.read()
            text, logprobs, reason, done = "", [], None, False
            for raw in response:
                line = raw.decode().rstrip("\n")
                if line == "data: [DONE]":
                    done = True
                elif line.startswith("data: "):
                    event = json.loads(line[6:])
                    assert "error" not in event, event
                    on_event()
                    for choice in event["choices"]:
                        assert reason is None, "an event after the last"
                        text += choice["text"]
                        logprobs += (choice["logprobs"] or {}).get("token_logprobs", [])
                        reason = choice["finish_reason"]
            assert done and reason in ("stop", "length"), (done, reason)
            return text, logprobs

    def whole_log(self):
        """What it has said, once it has ended."""
        for reader in self.readers:
            reader.join(PATIENCE_S)
        return "".join(self.log)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


def wait_until(what, condition, seconds=PATIENCE_S):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def least(measure, enough):
    """The least of up to three measurements: a machine that does other work may hold one up."""
    found = measure()
    for _ in range(2):
        if found < enough:
            break
        found = min(found, measure())
    return found


def run_checks(server, checks):
    """Each (name, check) in turn; then the server must end in order."""
    try:
        for name, check in checks:
            started = time.monotonic()
            check()
            print(f"ok {name} ({time.monotonic() - started:.1f} s)", flush=True)
        assert server.stop() == 0
    finally:
        server.process.kill()
