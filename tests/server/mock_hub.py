# SPDX-License-Identifier: Apache-2.0
"""A hub of models for tests. It answers as the real one does: the API names a commit and its files,
HEAD gives hash and size, large files redirect to a second host. Its members make it lie, stall and
break off. Needs the standard library only.
"""
import contextlib
import hashlib
import http.server
import json
import ssl
import threading
import urllib.parse

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "org/tiny"


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Hub:
    """Two servers: the hub, and the storage it redirects large files to."""

    def __init__(self, files, large=(), certificate=None):
        self.files = files
        self.commit = COMMIT  # of main; the only one that has files
        self.large = set(large)
        self.token = None  # wanted in Authorization
        self.statuses = []  # taken one after the other, before anything else is answered
        self.headers = {}  # sent with these, and with 416
        self.cut_after = []  # bytes after which answers with large files end
        self.no_ranges = False
        self.wrong_range = False
        self.lie = {}  # path -> bytes sent instead
        self.etag = None
        self.info = None  # body of the API's answer
        self.redirect = None  # location instead of the storage's
        self.log = []  # (server, method, path, Authorization, Range)
        self.storage = self.start("storage", certificate)
        self.hub = self.start("hub", certificate)
        scheme = "https" if certificate else "http"
        self.url = f"{scheme}://localhost:{self.hub.server_address[1]}"
        self.storage_url = f"{scheme}://localhost:{self.storage.server_address[1]}"

    def start(self, name, certificate):
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                hub.answer(self, name)

            do_HEAD = do_GET

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def push(self, files):
        """Moves main to another commit, which has these files."""
        self.files, self.commit = files, self.commit[1:] + self.commit[:1]

    def close(self):
        for server in (self.hub, self.storage):
            server.shutdown()
            server.server_close()

    def answer(self, request, name):
        target, _, query = request.path.partition("?")
        path = urllib.parse.unquote(target)
        token = request.headers.get("Authorization")
        self.log.append((name, request.command, path, token, request.headers.get("Range")))
        if self.statuses:
            return self.reply(request, self.statuses.pop(0), b'{"error":"told to"}', self.headers)
        if name == "hub" and self.token and token != f"Bearer {self.token}":
            return self.reply(request, 401, b"", {"X-Error-Code": "RepoNotFound"})
        if name == "storage" and query != "sign=a/":
            return self.reply(request, 403, b"")
        if path in (f"/api/models/{REPO}/revision/{each}" for each in ("main", self.commit)):
            siblings = [{"rfilename": file} for file in self.files]
            info = self.info or json.dumps({"sha": self.commit, "siblings": siblings}).encode()
            return self.reply(request, 200, info)
        prefix = f"/{REPO}/resolve/{self.commit}/"
        file = path[len(prefix):] if name == "hub" else path[1:]
        if not (path.startswith(prefix) or name == "storage") or file not in self.files:
            return self.reply(request, 404, b"", {"X-Error-Code": "EntryNotFound"})
        data = self.files[file]
        if name == "hub" and file in self.large:
            etag = self.etag or hashlib.sha256(data).hexdigest()
            location = self.redirect or f"{self.storage_url}/{urllib.parse.quote(file)}?sign=a/"
            return self.reply(request, 302, b"moved", {
                "X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(data)),
                "Location": location, "X-Repo-Commit": self.commit})
        return self.send_file(request, file, data)

    def send_file(self, request, file, data):
        headers = {"ETag": f'"{self.etag or git_sha1(data)}"'}
        data = self.lie.get(file, data)
        status, begin = 200, 0
        wanted = request.headers.get("Range")
        if wanted and not self.no_ranges:
            begin = int(wanted[len("bytes="):-1])
            if begin >= len(data):
                return self.reply(request, 416, b"", self.headers)
            status = 206
            shown = begin + 1 if self.wrong_range else begin
            headers["Content-Range"] = f"bytes {shown}-{len(data) - 1}/{len(data)}"
        self.reply(request, status, data[begin:], headers,
                   self.cut_after.pop(0)
                   if self.cut_after and file in self.large and request.command == "GET" else None)

    def reply(self, request, status, body, headers=None, cut=None):
        request.send_response(status)
        for key, value in (headers or {}).items():
            request.send_header(key, value)
        request.send_header("Content-Length", str(len(body)))
        request.send_header("Connection", "close")
        request.end_headers()
        if request.command != "HEAD":
            with contextlib.suppress(ConnectionError):
                request.wfile.write(body[:cut])
        request.close_connection = True

    def requests(self, server, method, ending):
        return [r for r in self.log if r[0] == server and r[1] == method and r[2].endswith(ending)]
