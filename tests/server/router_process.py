# SPDX-License-Identifier: Apache-2.0
"""What the tests of routers share: workers, a router of others in front of them, what answers say.

Routers listen on 127.0.0.1.
"""
import contextlib
import http.client
import json
import os
import subprocess
import sys
import time

from server_process import Server, free_port

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = [{"role": "user", "content": "Say hello, naïve 你好 12345."}]


def long_body(worker):
    """A stream that takes a while: most of the context."""
    return {"messages": MESSAGES, "max_tokens": worker.max_len // 2, "temperature": 1,
            "ignore_eos": True, "stream": True}


class Worker(Server):
    def __init__(self, binary, model, *flags):
        super().__init__(binary, model, "--served-model-name", "tiny", "--grpc-port", "0", *flags)
        line = next(line for line in self.log if line.startswith("gRPC on "))
        self.grpc_url = "grpc://" + line.split()[2]
        self.http_url = f"http://127.0.0.1:{self.port}"

    def is_idle(self):
        return self.metric("vllm:num_requests_running") == 0


class Router:
    """A router in front of workers, which its arguments `workers` name."""

    def __init__(self, command, workers, folder):
        self.port = free_port()
        self.log_path = os.path.join(folder, f"router-{self.port}.log")
        with open(self.log_path, "w") as log:
            self.process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--port", str(self.port),
                 "--prometheus-port", str(free_port()), "--policy", "round_robin", *workers],
                stdout=log, stderr=subprocess.STDOUT, cwd=folder)

    def post(self, path, body, timeout=60):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        connection.request("POST", path, json.dumps({"model": "tiny", **body}),
                           {"Content-Type": "application/json", **self.headers()})
        return connection, connection.getresponse()

    def headers(self):
        return {}

    def answer(self, path, body):
        connection, response = self.post(path, body)
        with contextlib.closing(connection):
            text = response.read()
            assert response.status == 200, (response.status, text)
            return json.loads(text)

    def is_ready(self):
        try:
            self.answer(CHAT, {"messages": MESSAGES, "max_tokens": 1})
            return True
        except (OSError, AssertionError, http.client.HTTPException):
            assert self.process.poll() is None, self.log()
            time.sleep(0.1)
            return False

    def log(self):
        with open(self.log_path, errors="replace") as log:
            return log.read()[-6000:]

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def whole_characters(text):
    """smg drops the bytes of a character that an answer ends inside of; a random model does often."""
    return text.rstrip("\ufffd")


def text_of(answer):
    choice = answer["choices"][0]
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    return whole_characters(text)


def stream_text(response):
    """What the events of a stream add up to; raises where it is not whole."""
    assert response.status == 200, response.read()
    text, reason, done = "", None, False
    for raw in response:
        line = raw.decode().strip()
        if line == "data: [DONE]":
            done = True
        elif line.startswith("data: "):
            event = json.loads(line[6:])
            assert "error" not in event, event
            for choice in event["choices"]:
                piece = choice["delta"].get("content") if "delta" in choice else choice["text"]
                text += piece or ""
                reason = choice.get("finish_reason") or reason
    assert done and reason in ("stop", "length"), (done, reason)
    return whole_characters(text)


def python_beside(*programs):
    """The folder of the interpreter that has these programs beside it; goes on in that one. None,
    and the reason printed, where there is no such."""
    python = os.environ.get("SLUICE_ROUTER_PYTHON", sys.executable)
    folder = os.path.dirname(python)
    missing = [name for name in programs if not os.path.exists(os.path.join(folder, name))]
    if missing:
        print(f"skipped: beside {python} there is no {' nor '.join(missing)}")
        return None
    if os.path.realpath(sys.executable) != os.path.realpath(python) or \
            os.path.dirname(sys.executable) != folder:
        os.execv(python, [python, *sys.argv])
    return folder
