# SPDX-License-Identifier: Apache-2.0
"""What the tests of prefill and decode workers share: the two as processes, requests of both modes,
and what of an answer is the same wherever it is computed."""
import contextlib
import http.client
import itertools
import json
import signal
import threading

from router_process import CHAT, COMPLETIONS
from server_process import Server, free_port, wait_until

WORDS = "Once upon a time there was a worker that had a twin, naïve 你好 and far away. "
numbers = itertools.count(1)


def prompt_of(length):
    """One that nobody has had before."""
    return f"{next(numbers)} {WORDS * (length // len(WORDS) + 1)}"[:length]


def body_of(path, length, **more):
    """Of a prompt of so many characters."""
    prompt = prompt_of(length)
    start = {"prompt": prompt} if path == COMPLETIONS else {
        "messages": [{"role": "user", "content": prompt}]}
    return path, {**start, "max_tokens": 12, **more}


def essence(answer):
    """What of an answer the same request has wherever it is computed."""
    return ([(choice["index"], choice.get("message") or choice["text"], choice["finish_reason"],
              choice.get("logprobs")) for choice in answer["choices"]],
            answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"])


def read_answer(connection, response):
    with contextlib.closing(connection):
        data = response.read()
        assert response.status == 200, (response.status, data)
        return json.loads(data)


def read_stream(connection, response):
    """By choice: text, log-probabilities and reason of a stream that is whole."""
    with contextlib.closing(connection), contextlib.closing(response):
        assert response.status == 200, response.read()
        choices, done = {}, False
        for raw in response:
            line = raw.decode().rstrip("\n")
            if line == "data: [DONE]":
                done = True
            elif line.startswith("data: "):
                event = json.loads(line[6:])
                assert "error" not in event, event
                for choice in event["choices"]:
                    mine = choices.setdefault(choice["index"], ["", [], None])
                    piece = choice["delta"].get("content") if "delta" in choice else choice["text"]
                    mine[0] += piece or ""
                    if choice.get("logprobs"):
                        mine[1].append(choice["logprobs"])
                    mine[2] = choice.get("finish_reason") or mine[2]
        assert done and all(choice[2] for choice in choices.values()), choices
        return choices


class Pair:
    def __init__(self, binary, model, transport, alone, ranks_of_prefill=1, flags=()):
        self.binary, self.model, self.transport, self.flags = binary, model, transport, flags
        self.alone = alone
        self.ranks = {"prefill": ranks_of_prefill, "decode": 1}
        self.kv_ports = {"prefill": free_port(), "decode": free_port()}
        self.prefill, self.decode = self.start("prefill"), self.start("decode")

    def start(self, role):
        # Small steps: a prompt is computed in several, and its parts travel meanwhile.
        return Server(self.binary, self.model, "--role", role, "--threads", "1",
                      "--max-num-batched-tokens", "64", "--kv-cache-memory", "64MiB",
                      "--max-model-len", "2048", "--kv-transport", self.transport,
                      "--tensor-parallel-size", str(self.ranks[role]),
                      "--kv-listen", f"127.0.0.1:{self.kv_ports[role]}", "--kv-peers", "127.0.0.1",
                      *self.flags)

    def restart(self, role, how=signal.SIGKILL):
        server = getattr(self, role)
        server.process.send_signal(how)
        server.process.wait(timeout=60)
        setattr(self, role, self.start(role))

    def offer(self, path, body):
        """What the prefill half of a serial handoff answers."""
        half = {name: value for name, value in body.items() if name not in ("stream", "n")}
        answer = read_answer(*self.prefill.post(
            {**half, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}, path))
        return answer["kv_transfer_params"]

    def address_for_decode(self):
        """Where the decode worker finds the prefill worker."""
        return "127.0.0.1", self.kv_ports["prefill"]

    def fetch(self, path, body, params):
        if "remote_port" in params:
            host, port = self.address_for_decode()
            params = {**params, "remote_host": host, "remote_port": port,
                      "sluice": {**params["sluice"], "addr": f"{host}:{port}"}}
        return self.decode.post({**body, "kv_transfer_params": params}, path)

    def fetch_early(self, path, body):
        """Both halves at once, the decode worker's first; its answer, and the other half's thread."""
        transfer = f"transfer {next(numbers)}"
        half = {name: value for name, value in body.items() if name not in ("stream", "n")}

        def prefill():
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection, response = self.prefill.post(
                    {**half, "max_tokens": 1, "kv_transfer_params": {
                        "do_remote_decode": True, "transfer_id": transfer}}, path)
                with contextlib.closing(connection):
                    response.read()
        other = threading.Thread(target=prefill)
        results = []

        def decode():
            with contextlib.suppress(OSError, http.client.HTTPException):
                results.append(self.fetch(path, body, {
                    "do_remote_prefill": True, "transfer_id": transfer,
                    "remote_engine_id": "p@{}:{}".format(*self.address_for_decode())}))
        first = threading.Thread(target=decode)
        first.start()
        other.start()
        return first, other, results

    def expect_same(self, path, body, answer):
        expected = read_answer(*self.alone.post(body, path))
        assert essence(answer) == essence(expected), (body, answer, expected)

    def state(self, worker):
        return json.loads(worker.get("/debug/state"))

    def is_free(self, worker):
        state = self.state(worker)
        blocks = state["kv_blocks"]
        handoff = state["handoff"]
        held = sum(handoff[name] for name in (
            "claiming", "awaiting_room", "receiving", "reserved_blocks", "posted_slots",
            "pinned_blocks"))
        return not state["requests"] and blocks["referenced"] == 0 and held == 0 and \
            blocks["free"] + blocks["cached"] == blocks["total"]

    def expect_free(self):
        for worker in self.workers():
            wait_until("all blocks are free", lambda one=worker: self.is_free(one))

    def prefill_is_draining(self):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.prefill.port, timeout=10)
            connection.request("GET", "/health")
            with contextlib.closing(connection):
                return connection.getresponse().status == 503
        except OSError:
            return True  # it takes no new connections

    def workers(self):
        return self.prefill, self.decode

    def stop(self):
        for worker in self.workers():
            worker.process.kill()
            worker.process.wait()
