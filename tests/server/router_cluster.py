# SPDX-License-Identifier: Apache-2.0
"""Workers behind `sluice router`, each behind a relay that can stall or be cut; and what an answer
adds up to, whatever its events were."""
import asyncio
import contextlib
import http.client
import json
import os
import signal
import subprocess
import threading
import time

from server_process import free_port, wait_until

SECRET = "a secret of tests"


class Relay:
    """TCP from `port` to `target`. cut(): nothing comes through, and nobody is told; heal(): what
    was open is closed, new connections get through."""

    def __init__(self, loop, target):
        self.loop, self.target = loop, target
        self.is_cut, self.writers = False, set()
        self.server = self.call(asyncio.start_server(self.accept, "127.0.0.1", 0))
        self.port = self.server.sockets[0].getsockname()[1]

    def call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    async def accept(self, reader, writer):
        if self.is_cut:
            return writer.transport.abort()
        try:
            other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            return writer.transport.abort()
        pair = {writer, other_writer}
        self.writers |= pair
        await asyncio.wait({asyncio.ensure_future(self.copy(reader, other_writer)),
                            asyncio.ensure_future(self.copy(other_reader, writer))},
                           return_when=asyncio.FIRST_COMPLETED)
        for each in pair:
            each.transport.abort()
        self.writers -= pair

    async def copy(self, reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                while self.is_cut:
                    await asyncio.sleep(0.02)
                writer.write(data)
                await writer.drain()

    def cut(self):
        self.is_cut = True

    def heal(self):
        async def close():
            for writer in list(self.writers):
                writer.transport.abort()
            self.is_cut = False
        self.call(close())


class Process:
    """A command of the binary that says where it serves."""

    def __init__(self, command, log_path):
        self.log_path = log_path
        with open(log_path, "a") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True,
                                            env={**os.environ, "SLUICE_WORKER_SECRET": SECRET})
        self.port = None
        for line in self.process.stdout:
            if line.startswith(("serving ", "routing ")):
                self.port = int(line.split("http://127.0.0.1:")[1].split()[0])
                break
        assert self.port is not None, self.log()
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def log(self):
        with open(self.log_path) as log:
            return log.read()[-6000:]

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode(), dict(response.getheaders())

    def post(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request("POST", path, json.dumps(body),
                               {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode()

    def metrics(self):
        values = {}
        for line in self.get("/metrics")[1].splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                values[name] = float(value)
        return values

    def metric(self, name):
        return sum(v for k, v in self.metrics().items() if k.split("{")[0] == name)


class Worker:
    def __init__(self, cluster, index, role):
        self.cluster, self.index = cluster, index
        self.role_flags = [] if role is None else [
            "--role", role, "--kv-listen", f"127.0.0.1:{free_port()}", "--kv-peers", "127.0.0.1"]
        self.worker_port = free_port()
        self.relay = Relay(cluster.loop, self.worker_port)
        self.start()

    def start(self, *flags):
        self.server = Process(
            [self.cluster.binary, "serve", self.cluster.model, "--port", "0", "--worker-listen",
             f"127.0.0.1:{self.worker_port}", *self.role_flags, *self.cluster.worker_flags, *flags],
            os.path.join(self.cluster.folder, f"worker-{self.index}.log"))

    def kill(self):
        self.server.process.kill()
        self.server.process.wait()

    def send(self, number):
        self.server.process.send_signal(number)

    def is_free(self):
        values = self.server.metrics()
        busy = [v for k, v in values.items() if k.startswith(
            ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"))]
        return not any(busy)


class Cluster:
    """`num_prefill` of the workers compute prompts for the others; 0: all compute their own."""

    def __init__(self, binary, model, folder, count, worker_flags=(), router_flags=(),
                 num_prefill=0):
        self.binary, self.model, self.folder = binary, model, folder
        self.worker_flags = worker_flags
        roles = ["prefill"] * num_prefill + ["decode"] * (count - num_prefill)
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.workers = [Worker(self, index, roles[index] if num_prefill else None)
                        for index in range(count)]
        addresses = ",".join(f"127.0.0.1:{worker.relay.port}" for worker in self.workers)
        self.router = Process([binary, "router", "--workers", addresses, "--port", "0",
                               "--served-model-name", "tiny", *router_flags],
                              os.path.join(folder, "router.log"))
        self.wait_for_usable(count)

    def states(self):
        """Status of each worker as the router sees it, in their order."""
        found = {}
        for name in self.router.metrics():
            if name.startswith("sluice:router_worker_state{"):
                labels = dict(part.split("=", 1) for part in name[name.index("{") + 1:-1].split(","))
                found[labels["worker"].strip('"')] = labels["status"].strip('"')
        return [found.get(f"127.0.0.1:{worker.relay.port}") for worker in self.workers]

    def num_usable(self):
        return self.router.metric("sluice:router_usable_workers")

    def wait_for_usable(self, count, seconds=60):
        wait_until(f"{count} usable workers, {self.states()}",
                   lambda: self.num_usable() == count, seconds)

    def stop(self):
        self.router.process.send_signal(signal.SIGTERM)
        code = self.router.process.wait(timeout=60)
        self.close()
        return code

    def close(self):
        for process in (self.router, *(worker.server for worker in self.workers)):
            with contextlib.suppress(OSError):
                process.process.send_signal(signal.SIGCONT)
            process.process.kill()
            process.process.wait()

    def post(self, path, body, timeout=300):
        connection = http.client.HTTPConnection("127.0.0.1", self.router.port, timeout=timeout)
        connection.request("POST", path, json.dumps({"model": "tiny", **body}),
                           {"Content-Type": "application/json"})
        return connection, connection.getresponse()

    def answer(self, path, body, on_event=lambda: None):
        """What a client has at the end; raises where that is not all of an answer."""
        connection, response = self.post(path, body)
        with contextlib.closing(connection):
            if not body.get("stream"):
                data = response.read()
                assert response.status == 200, (response.status, data)
                return without_names(json.loads(data))
            assert response.status == 200, (response.status, response.read())
            events = []
            for raw in response:
                line = raw.decode().rstrip("\n")
                if line.startswith("data: "):
                    on_event()
                    events.append(line[6:])
            return joined(path, events)


# What differs between two answers to one request: names, times, and what caches and drafts saved.
NAMES = ("id", "created", "created_at", "completed_at", "call_id", "item_id", "cached_tokens",
         "prompt_tokens_details", "input_tokens_details", "cache_read_input_tokens",
         "cache_creation_input_tokens", "sequence_number", "input_tokens", "timings")


def without_names(value):
    if isinstance(value, dict):
        return {k: without_names(v) for k, v in value.items() if k not in NAMES}
    if isinstance(value, list):
        return [without_names(item) for item in value]
    return value


def merge(into, more):
    """The pieces of a stream under their places: text is added up, lists too, the rest replaces."""
    for key, value in more.items():
        if key in NAMES or value is None or value == []:
            continue
        if isinstance(value, dict):
            merge(into.setdefault(key, {}), value)
        elif isinstance(value, list) and value and isinstance(value[0], dict) and (
                "index" in value[0]):
            items = into.setdefault(key, {})
            for item in value:
                merge(items.setdefault(item["index"], {}), item)
        elif isinstance(value, list):
            into[key] = into.get(key, []) + without_names(value)
        elif isinstance(value, str) and key in ("text", "content", "reasoning", "arguments"):
            into[key] = into.get(key, "") + value
        else:
            into[key] = value


def joined(path, events):
    """One object of a whole stream."""
    if path.startswith(("/v1/chat/", "/v1/completions")):
        assert events and events[-1] == "[DONE]", events[-3:]
        whole = {}
        for event in map(json.loads, events[:-1]):
            assert "error" not in event, event
            merge(whole, event)
        reasons = [choice.get("finish_reason") for choice in whole["choices"].values()]
        assert all(reason in ("stop", "length", "tool_calls") for reason in reasons), reasons
        return whole
    texts, last = {}, None
    for event in map(json.loads, events):
        assert "error" not in event["type"], event
        delta = event.get("delta")
        piece = delta if isinstance(delta, str) else (delta or {}).get("text", "")
        place = event.get("content_index", event.get("index", 0))
        if event["type"].endswith("delta"):
            texts[place] = texts.get(place, "") + piece
        last = event
    assert last["type"] in ("message_stop", "response.completed", "response.incomplete"), last
    return {"texts": texts, "last": without_names(last)}
