# SPDX-License-Identifier: Apache-2.0
"""A small API server of Kubernetes: the EndpointSlices of a namespace, listed and watched.

It is strict: it wants the token of a service account, answers a list, and then sends what changes to
whoever watches from the version of that list.
"""
import http.server
import json
import threading
import time
import urllib.parse

TOKEN = "token-of-a-pod"
SPACE = "space"
PATH = f"/apis/discovery.k8s.io/v1/namespaces/{SPACE}/endpointslices"
SELECTOR = "kubernetes.io/service-name"


def service_of(item):
    return item["metadata"]["labels"][SELECTOR]


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

    def put(self, name, port, *addresses, service="service", kind="MODIFIED", **conditions):
        with self.changed:
            self.version += 1
            self.slices[name] = {
                "metadata": {"name": name, "resourceVersion": str(self.version),
                             "labels": {SELECTOR: service}},
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
                    not query.get("labelSelector", "").startswith(SELECTOR + "=")):
                self.refused += 1
                return request.send_error(403)
            service = query["labelSelector"].removeprefix(SELECTOR + "=")
            if "watch" not in query:
                self.lists += 1
                self.is_gone = False
                body = json.dumps({"metadata": {"resourceVersion": str(self.version)},
                                   "items": [item for item in self.slices.values()
                                             if service_of(item) == service]}).encode()
                request.send_response(200)
                request.send_header("Content-Length", str(len(body)))
                request.end_headers()
                return request.wfile.write(body)
            self.watches += 1
        self.watch(request, service, int(query["resourceVersion"]),
                   float(query["timeoutSeconds"]))

    def watch(self, request, service, since, seconds):
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
                    if service_of(event["object"]) == service:
                        send(event)
            request.wfile.write(b"0\r\n\r\n")
        except OSError:
            pass
