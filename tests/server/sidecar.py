# SPDX-License-Identifier: Apache-2.0
"""A stand-in of llm-d's routing sidecar, which is a Go program: the serial dance that it makes of
each request with an x-prefiller-host-port header, and what its versions do where a prefill fails."""
import http.client
import http.server
import json
import threading
import uuid

DROPPED = ("host", "content-length", "transfer-encoding", "connection", "x-prefiller-host-port")


class Sidecar(http.server.ThreadingHTTPServer):
    """Listens on a free port from the start on.

    `falls_back`: the older versions, which let the decode worker compute a prompt whose prefill
    failed otherwise than by a 4xx; the newer ones answer with the failure. `relay`: the blob of the
    prefill's answer to the one that the decode worker gets.
    """
    daemon_threads = True

    def __init__(self, decode_port, falls_back, relay=lambda blob: blob):
        super().__init__(("127.0.0.1", 0), Handler)
        self.decode_port, self.falls_back, self.relay = decode_port, falls_back, relay
        self.port = self.server_port
        self.blobs = []  # of prefill workers' answers; None where there was none
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        pass  # a client that left

    def stop(self):
        self.shutdown()
        self.server_close()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def leg(self, host_port, headers, body):
        connection = http.client.HTTPConnection(host_port, timeout=120)
        data = json.dumps(body).encode()
        connection.putrequest("POST", self.path)
        for name, value in headers:
            connection.putheader(name, value)
        connection.putheader("Content-Length", str(len(data)))
        connection.endheaders(data)
        return connection, connection.getresponse()

    def answer(self, status, headers, data):
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in DROPPED:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        # Go's Header.Add: a client's own name of the request stays in front of it.
        headers = [(n, v) for n, v in self.headers.items() if n.lower() not in DROPPED]
        headers.append(("x-request-id", str(uuid.uuid4())))
        prefiller = self.headers.get("x-prefiller-host-port")
        if prefiller is not None:
            failure = self.prefill(prefiller.split(",")[0], headers, body)
            if failure is not None:
                return self.answer(*failure)
        return self.decode(headers, body)

    def prefill(self, prefiller, headers, body):
        """Puts the blob into `body`. What the client gets instead, if it gets that."""
        limits = (("max_output_tokens",) if self.path.endswith("/responses") else
                  ("max_tokens", "max_completion_tokens"))
        half = {**body, "stream": False, **dict.fromkeys(limits, 1),
                "kv_transfer_params": {
                    "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None,
                    "remote_block_ids": None, "remote_host": None, "remote_port": None}}
        if not self.server.falls_back and "max_tokens" in limits:
            half["min_tokens"] = 1
        half.pop("stream_options", None)
        try:
            connection, response = self.leg(prefiller, headers, half)
            data = response.read()
            connection.close()
        except OSError as error:
            return None if self.server.falls_back else (502, [], str(error).encode())
        if response.status >= 300:
            is_clients = not self.server.falls_back or 400 <= response.status <= 451
            return (response.status, response.getheaders(), data) if is_clients else None
        try:
            answer = json.loads(data)
        except ValueError:
            return 400, [], b"invalid JSON from the prefill worker"
        blob = answer.get("kv_transfer_params")
        self.server.blobs.append(blob)
        body["kv_transfer_params"] = self.server.relay(blob)
        return None

    def decode(self, headers, body):
        try:
            connection, response = self.leg(f"127.0.0.1:{self.server.decode_port}", headers, body)
        except OSError as error:
            return self.answer(503, [], json.dumps({"error": str(error)}).encode())
        try:
            if not body.get("stream"):
                return self.answer(response.status, response.getheaders(), response.read())
            self.send_response(response.status)
            self.send_header("Content-Type", response.getheader("Content-Type", ""))
            self.send_header("Connection", "close")
            self.end_headers()
            for line in response:
                self.wfile.write(line)
                self.wfile.flush()
            self.close_connection = True
        finally:
            connection.close()  # of a client that left too
