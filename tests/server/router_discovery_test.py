#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A router finds its workers through a Kubernetes API server, here a small one of the test's own,
and prompts where workers say that they are cached.

usage: router_discovery_test.py BINARY MODEL

The API server is strict: it wants the token of the service account, answers a list, and then sends
what changes to whoever watches from the version of that list.
"""
import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

from router_cluster import SECRET, Process, free_port
from server_process import wait_until

TOKEN = "token-of-a-pod"
PATH = "/apis/discovery.k8s.io/v1/namespaces/space/endpointslices"


class Api:
    def __init__(self):
        self.changed = threading.Condition()
        self.version, self.slices, self.events = 1, {}, []
        self.refused, self.lists, self.watches, self.is_gone = 0, 0, 0, False
        api = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                api.handle(self)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def put(self, name, port, *addresses, kind="MODIFIED", **conditions):
        with self.changed:
            self.version += 1
            self.slices[name] = {
                "metadata": {"name": name, "resourceVersion": str(self.version)},
                "ports": [{"name": "other", "port": port}],
                "endpoints": [{"addresses": [a], "conditions": conditions} for a in addresses]}
            self.events.append((self.version, {"type": kind, "object": self.slices[name]}))
            if kind == "DELETED":
                del self.slices[name]
            self.changed.notify_all()

    def forget(self):
        """What is older than now cannot be watched any more."""
        with self.changed:
            self.is_gone = True
            self.changed.notify_all()

    def handle(self, request):
        url = urllib.parse.urlsplit(request.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        with self.changed:
            if (request.headers.get("Authorization") != f"Bearer {TOKEN}" or url.path != PATH or
                    query.get("labelSelector") != "kubernetes.io/service-name=service"):
                self.refused += 1
                return request.send_error(403)
            if "watch" not in query:
                self.lists += 1
                self.is_gone = False
                body = json.dumps({"metadata": {"resourceVersion": str(self.version)},
                                   "items": list(self.slices.values())}).encode()
                request.send_response(200)
                request.send_header("Content-Length", str(len(body)))
                request.end_headers()
                return request.wfile.write(body)
            self.watches += 1
        self.watch(request, int(query["resourceVersion"]), float(query["timeoutSeconds"]))

    def watch(self, request, since, seconds):
        request.send_response(200)
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()

        def send(event):
            line = json.dumps(event).encode() + b"\n"
            for part in (line[:7], line[7:]):  # pieces are no lines
                request.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                request.wfile.flush()
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                with self.changed:
                    new = [event for event in self.events if event[0] > since]
                    if not new and not self.is_gone:
                        self.changed.wait(0.2)
                        continue
                    gone = self.is_gone
                if gone:
                    send({"type": "ERROR", "object": {"code": 410, "reason": "Expired"}})
                    break
                for since, event in new:
                    send(event)
            request.wfile.write(b"0\r\n\r\n")
        except OSError:
            pass


def check_events(binary, model, folder):
    """A prompt that a worker has computed for somebody else goes to that worker."""
    ports, workers = [free_port() for _ in range(2)], []
    for port in ports:
        events = {"enable_kv_cache_events": True, "endpoint": f"tcp://*:{free_port()}"}
        workers.append(Process([binary, "serve", model, "--port", "0", "--threads", "1",
                                "--worker-listen", f"127.0.0.1:{port}",
                                "--kv-events-config", json.dumps(events)],
                               os.path.join(folder, f"events-{port}.log")))
    router = Process([binary, "router", "--port", "0", "--workers",
                      ",".join(f"127.0.0.1:{port}" for port in ports)],
                     os.path.join(folder, "events-router.log"))
    try:
        wait_until("two usable workers",
                   lambda: router.metric("sluice:router_usable_workers") == 2, 20)
        time.sleep(1)  # a subscription takes a moment, and nobody says when it is there

        def ask(process, prompt):
            status, data = process.post("/v1/completions", {"prompt": prompt, "max_tokens": 1})
            assert status == 200, data
        def goes_to_the_cached(number, seconds):
            prompt = [20 + (number * 37 + i * i) % 300 for i in range(100)]
            worker = workers[number % 2]
            ask(worker, prompt)
            time.sleep(seconds)  # nobody says when the router has heard of it
            cached = worker.metric("vllm:prefix_cache_hits_total")
            hits = router.metric("sluice:router_prefix_hits_total")
            ask(router, prompt)
            return (worker.metric("vllm:prefix_cache_hits_total") >= cached + 80
                    and router.metric("sluice:router_prefix_hits_total") >= hits + 80)

        late = [number for number in range(8) if not goes_to_the_cached(number, 0.5)]
        for number in late:  # other prompts, and more time
            assert goes_to_the_cached(number + 8, 5), late
    finally:
        for process in (router, *workers):
            process.process.kill()


def main():
    binary, model = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as folder:
        check_events(binary, model, folder)
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "token"), "w") as token:
            token.write(TOKEN + "\n")
        api = Api()
        ports = [free_port() for _ in range(2)]
        workers = [Process([binary, "serve", model, "--port", "0", "--threads", "1",
                            "--worker-listen", f"127.0.0.1:{port}"],
                           os.path.join(folder, f"worker-{port}.log")) for port in ports]
        api.put("first", ports[0], "127.0.0.1")
        os.environ["SLUICE_KUBERNETES_API"] = api.url
        os.environ["SLUICE_KUBERNETES_ACCOUNT"] = folder
        router = Process([binary, "router", "--workers", "k8s:space/service", "--port", "0"],
                         os.path.join(folder, "router.log"))
        try:
            def usable(count):
                wait_until(f"{count} usable workers; {router.log()}",
                           lambda: router.metric("sluice:router_usable_workers") == count, 20)
            usable(1)
            api.put("second", ports[1], "127.0.0.1", kind="ADDED")
            usable(2)
            api.put("first", ports[0], "127.0.0.1", ready=False)
            usable(1)
            api.put("first", ports[0], "127.0.0.1", ready=True, terminating=True)
            usable(1)
            api.put("first", ports[0], "127.0.0.1", ready=True)
            usable(2)
            lists = api.lists
            api.forget()
            wait_until("a new list", lambda: api.lists > lists)
            api.put("second", ports[1], kind="DELETED")
            usable(1)
            # While the API server is away, what is known stays known.
            api.server.shutdown()
            api.server.server_close()
            time.sleep(2)
            assert router.metric("sluice:router_usable_workers") == 1
            assert api.refused == 0, "a request without the account's token, or for another service"
            router.process.terminate()
            started = time.monotonic()
            assert router.process.wait(timeout=20) == 0
            assert time.monotonic() - started < 5, "a watch holds up the end"
            dry = subprocess.run([binary, "router", "--workers", "k8s:space/service:8100",
                                  "--dry-run"], capture_output=True, text=True, check=True)
            assert "k8s:space/service:8100" in dry.stdout, dry.stdout
            assert SECRET not in dry.stdout
        finally:
            for process in (router, *workers):
                process.process.kill()
    print("ok")


if __name__ == "__main__":
    main()
