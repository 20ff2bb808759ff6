#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models by name against a hub that lies, stalls and breaks off. usage: hub_test.py BINARY MODEL.gguf

Each case makes one thing go wrong at mock_hub.py. Needs the standard library only; the case over
TLS needs the openssl program and is skipped without it.
"""
import base64
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.parse

from mock_hub import COMMIT, REPO, Hub, git_sha1

FOLDER = "models--org--tiny"


def directory_files(weights):
    index = {"metadata": {}, "weight_map": {"a": "model-00001-of-00002.safetensors",
                                             "b": "model-00002-of-00002.safetensors"}}
    return {
        "README.md": b"not needed", "pytorch_model.bin": b"not needed either",
        "config.json": b'{"model_type":"llama"}', "tokenizer.json": b"{}",
        "tokenizer_config.json": b'{"a":1}', "generation_config.json": b"{}",
        "chat_template.jinja": b"{{ x }}", "onnx/model.onnx": b"no",
        "model.safetensors.index.json": json.dumps(index).encode(),
        "model-00001-of-00002.safetensors": weights,
        "model-00002-of-00002.safetensors": weights[::-1],
    }


SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
WEIGHTS = bytes(range(256)) * 1200


class Case:
    """A fresh hub and an empty cache."""

    def __init__(self, binary, files=None, large=SHARDS, certificate=None):
        self.binary = binary
        self.hub = Hub(directory_files(WEIGHTS) if files is None else files, large, certificate)
        self.home = tempfile.mkdtemp(prefix="hub_test")
        self.cache = os.path.join(self.home, "hub")
        self.environment = {"HOME": self.home, "HF_HOME": self.home, "PATH": os.environ["PATH"],
                            "HF_ENDPOINT": self.hub.url}
        for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS"):
            if name in os.environ:
                self.environment[name] = os.environ[name]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.hub.close()
        shutil.rmtree(self.home)

    def start(self, *arguments, **environment):
        return subprocess.Popen([self.binary, *arguments], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True,
                                env=self.environment | environment)

    def fetch(self, model=REPO, *flags, **environment):
        process = self.start("fetch", model, *flags, **environment)
        out, err = process.communicate(timeout=120)
        self.err = err
        assert process.returncode in (0, 1, 2), (process.returncode, err)
        return out.strip() if process.returncode == 0 else None

    def refused(self, *parts, model=REPO, flags=(), **environment):
        found = self.fetch(model, *flags, **environment)
        assert found is None, found
        lines = [line for line in self.err.splitlines() if not re.match(r"sluice: .*: \d+%, ", line)]
        assert len(lines) == 1 and lines[0].startswith("sluice: "), self.err
        for part in parts:
            assert part in lines[0], (part, lines[0])

    def path(self, *parts):
        return os.path.join(self.cache, FOLDER, *parts)

    def check_snapshot(self, path):
        assert path == self.path("snapshots", COMMIT), path
        for file in ("config.json", "tokenizer.json", "model.safetensors.index.json", *SHARDS):
            with open(os.path.join(path, file), "rb") as stored:
                assert stored.read() == self.hub.files[file], file
            assert os.readlink(os.path.join(path, file)).startswith("../../blobs/"), file
        assert not os.path.exists(os.path.join(path, "README.md"))
        with open(self.path("refs", "main")) as ref:
            assert ref.read() == COMMIT
        left = [f for f in os.listdir(self.path("blobs")) if f.endswith(".incomplete")]
        assert left == [], left


def a_directory_is_fetched_once_and_only_what_is_needed(binary, _):
    with Case(binary) as case:
        case.check_snapshot(case.fetch())
        assert "MB" in case.err
        case.hub.log.clear()
        case.check_snapshot(case.fetch())
        assert case.hub.log == [] and case.err == "", (case.hub.log, case.err)
        case.check_snapshot(case.fetch(HF_HUB_OFFLINE="1"))
        # Which commit a moving name stood for is kept for who asks later.
        report = os.path.join(case.home, "report")
        case.check_snapshot(case.fetch(REPO, "--report", report))
        with open(report, encoding="utf-8") as file:
            assert file.read() == f"{REPO}, revision main: commit {COMMIT}\n"
        os.unlink(case.path("snapshots", COMMIT, SHARDS[1]))
        case.refused("not complete", "HF_HUB_OFFLINE", HF_HUB_OFFLINE="1")
        case.check_snapshot(case.fetch())  # the blob is still there: linked, not downloaded
        assert case.hub.requests("storage", "GET", "safetensors") == []


def a_vocabulary_is_a_tokenizer(binary, _):
    for names in (("tiktoken.model",), ("vocab.txt",), ("vocab.json", "merges.txt")):
        files = directory_files(WEIGHTS)
        data = files.pop("tokenizer.json")
        with Case(binary, files | dict.fromkeys(names, data)) as case:
            path = case.fetch()
            case.hub.log.clear()
            assert case.fetch() == path and case.hub.log == [], (names, case.hub.log)
            os.unlink(os.path.join(path, names[-1]))
            assert case.fetch() == path and os.path.exists(os.path.join(path, names[-1])), os.listdir(path)


def flags_name_the_hub_the_cache_and_the_token(binary, _):
    with Case(binary) as case:
        case.hub.token = "secret"
        case.refused("status 401", "--hf-token")
        case.refused("status 401", "this token may not", HF_TOKEN="other")
        case.cache = os.path.join(case.home, "elsewhere")
        found = case.fetch(REPO, "--hub-url", case.hub.url, "--download-dir", case.cache,
                           "--hf-token", "secret", HF_ENDPOINT="http://127.0.0.1:9")
        case.check_snapshot(found)
        for server, _, path, token, _ in case.hub.log:
            assert server == "hub" or token is None, f"the token went to the storage: {path}"
        with open(os.path.join(case.home, "token"), "w") as file:
            file.write("secret\n")
        assert case.fetch(REPO, "--download-dir", os.path.join(case.home, "third")) is not None


def cut_connections_resume_where_they_ended(binary, _):
    with Case(binary) as case:
        case.hub.cut_after = [100_000, 50_000, 1]
        case.check_snapshot(case.fetch())
        ranges = [r[4] for r in case.hub.requests("storage", "GET", SHARDS[0])]
        assert ranges == [None, "bytes=100000-", "bytes=150000-", "bytes=150001-"], ranges


def a_killed_download_is_continued(binary, _):
    with Case(binary) as case:
        sha = hashlib.sha256(WEIGHTS).hexdigest()
        os.makedirs(case.path("blobs"))
        with open(case.path("blobs", sha + ".incomplete"), "wb") as part:
            part.write(WEIGHTS[:77])
        case.check_snapshot(case.fetch())
        assert [r[4] for r in case.hub.requests("storage", "GET", SHARDS[0])] == ["bytes=77-"]


def a_wrong_part_is_thrown_away(binary, _):
    for content in (b"x" * 77, b"y" * 500_000):  # other bytes; more than the file has
        with Case(binary) as case:
            os.makedirs(case.path("blobs"))
            part = case.path("blobs", hashlib.sha256(WEIGHTS).hexdigest() + ".incomplete")
            with open(part, "wb") as file:
                file.write(content)
            case.check_snapshot(case.fetch())


def servers_without_ranges_send_all_again(binary, _):
    with Case(binary) as case:
        case.hub.no_ranges = True
        case.hub.cut_after = [100_000]
        case.check_snapshot(case.fetch())


def a_range_that_is_not_the_wanted_one_is_not_used(binary, _):
    with Case(binary) as case:
        case.hub.wrong_range = True
        case.hub.cut_after = [100_000]
        case.check_snapshot(case.fetch())


def a_wrong_hash_is_one_line_and_no_file(binary, _):
    with Case(binary) as case:
        case.hub.lie = {SHARDS[0]: b"z" * len(WEIGHTS)}
        case.refused(SHARDS[0], "hash: found ", "expected " + hashlib.sha256(WEIGHTS).hexdigest())
        assert not os.path.lexists(case.path("snapshots", COMMIT, SHARDS[0]))
        assert not os.path.exists(case.path("refs", "main"))
        case.hub.lie = {"config.json": b'{"model_type":"other"}'[:22]}
        shutil.rmtree(case.cache)
        case.refused("config.json", "hash: found", git_sha1(case.hub.files["config.json"]))
        case.hub.lie = {SHARDS[0]: WEIGHTS + b"more"}
        case.refused(SHARDS[0], "size: found more than")
        case.hub.lie = {}
        case.check_snapshot(case.fetch())


def every_status_is_one_line(binary, _):
    with Case(binary) as case:
        for status, part in ((401, "needs a token"), (403, "needs a token"),
                             (404, "there is no model"), (400, "status 400"), (418, "status 418")):
            case.hub.statuses = [status]
            case.refused(f"status {status}", part)
        case.hub.statuses = [404]
        case.hub.headers = {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "no \xe9 x"}
        case.refused("there is no revision main", "no   x")
        case.hub.statuses = [429]
        case.hub.headers = {"Retry-After": "3600"}
        case.refused("status 429", "try again in 3600 s")
        case.hub.headers = {}
        case.hub.statuses = [500] * 5
        case.refused("status 500", "tried 5 times")
        case.hub.statuses = [503, 429, 500]
        case.hub.headers = {"Retry-After": "0"}
        case.check_snapshot(case.fetch())


def ranges_that_are_refused_start_over(binary, _):
    with Case(binary) as case:
        sha = hashlib.sha256(WEIGHTS).hexdigest()
        os.makedirs(case.path("blobs"))
        with open(case.path("blobs", sha + ".incomplete"), "wb") as part:
            part.write(WEIGHTS[:1000])
        case.hub.lie = {SHARDS[0]: WEIGHTS[:900]}
        case.refused("status 416 (tried 5 times)")
        statuses = [r[4] for r in case.hub.requests("storage", "GET", SHARDS[0])]
        assert statuses[:2] == ["bytes=1000-", None], statuses


def no_answer_makes_it_wait_for_long(binary, _):
    with Case(binary) as case:
        sha = hashlib.sha256(WEIGHTS).hexdigest()
        os.makedirs(case.path("blobs"))
        with open(case.path("blobs", sha + ".incomplete"), "wb") as part:
            part.write(WEIGHTS[:1000])
        case.hub.lie = {SHARDS[0]: WEIGHTS[:900]}
        case.hub.headers = {"Retry-After": "86400"}
        case.refused("status 416", "try again in 86400 s")


def a_part_is_not_written_through_a_link(binary, _):
    with Case(binary) as case:
        sha = hashlib.sha256(WEIGHTS).hexdigest()
        os.makedirs(case.path("blobs"))
        other = os.path.join(case.home, "other")
        with open(other, "wb") as file:
            file.write(b"mine")
        for link in (other, os.path.join(case.home, "not there")):
            part = case.path("blobs", sha + ".incomplete")
            os.symlink(link, part)
            case.refused(".incomplete: cannot make this file")
            os.unlink(part)
        assert not os.path.lexists(os.path.join(case.home, "not there"))
        with open(other, "rb") as file:
            assert file.read() == b"mine"
        case.check_snapshot(case.fetch())


def hostile_answers_are_one_line(binary, _):
    with Case(binary) as case:
        for info, part in ((b"[]", "no JSON object"), (b"{", "no JSON object"),
                           (b'{"sha":"../../x","siblings":[]}', "40 hex digits"),
                           (b'{"sha":"%s"}' % COMMIT.encode(), "siblings"),
                           (b'{"sha":"%s","siblings":[{"rfilename":"../../x.gguf"}]}'
                            % COMMIT.encode(), "leaves the repository"),
                           (b'{"sha":"%s","siblings":[{"rfilename":"a.bin"}]}' % COMMIT.encode(),
                            "found a.bin")):
            case.hub.info = info
            case.refused(part)
        case.hub.info = None
        case.hub.etag = "../../../escape"
        case.refused("etag")
        case.hub.etag = None
        case.hub.redirect = "ftp://elsewhere/x"
        case.refused("location: found \"ftp://elsewhere/x\"")
        case.hub.redirect = f"/{REPO}/resolve/{COMMIT}/{SHARDS[0]}"  # to itself
        case.refused("more than 8 redirects")
        case.hub.redirect = None
        case.hub.files = dict(case.hub.files)
        del case.hub.files[SHARDS[1]]
        case.refused("model.safetensors.index.json: found " + SHARDS[1])


def without_a_network_it_says_so(binary, _):
    with Case(binary) as case:
        case.refused("cannot connect", HF_ENDPOINT="http://127.0.0.1:9")
        case.refused("--hub-url must look like", flags=("--hub-url", "example.org"))
        case.refused("--revision", flags=("--revision", "../x"))
        case.refused("no/model.gguf", model="no/model.gguf")
        assert case.hub.log == []


def two_processes_fetch_a_file_once(binary, _):
    with Case(binary) as case:
        processes = [case.start("fetch", REPO) for _ in range(4)]
        for process in processes:
            out, err = process.communicate(timeout=120)
            assert process.returncode == 0, err
            case.check_snapshot(out.strip())
        for shard in SHARDS:
            assert len(case.hub.requests("storage", "GET", shard)) == 1, shard


def a_lock_of_another_client_is_waited_for(binary, _):
    with Case(binary) as case:
        locks = os.path.join(case.cache, ".locks", FOLDER)
        os.makedirs(locks)
        with open(os.path.join(locks, hashlib.sha256(WEIGHTS).hexdigest() + ".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            process = case.start("fetch", REPO)
            for line in process.stderr:
                if "waiting" in line:
                    break
        out, _ = process.communicate(timeout=120)
        case.check_snapshot(out.strip())


def gguf_files_are_chosen_by_quantization(binary, model):
    with open(model, "rb") as file:
        real = file.read()
    files = {"tiny-Q4_K_M.gguf": real, "tiny-Q8_0.gguf": b"eight", "tiny-Q4_K.gguf": b"four",
             "UD/tiny-UD-Q8_0.gguf": b"other", "mmproj-Q8_0.gguf": b"eyes", "config.json": b"{}",
             "big-Q6_K-00001-of-00002.gguf": b"part1", "big-Q6_K-00002-of-00002.gguf": b"part2",
             "half-Q2_K-00001-of-00002.gguf": b"part1"}
    with Case(binary, files, large=("tiny-Q4_K_M.gguf",)) as case:
        def name(found):
            return found[len(case.path("snapshots", COMMIT)) + 1:]

        case.hub.files["my model.gguf"] = b"spaced"
        assert name(case.fetch(REPO + ":q8_0")) == "tiny-Q8_0.gguf"
        assert name(case.fetch(REPO)) == "tiny-Q4_K_M.gguf"
        assert name(case.fetch(REPO + ":Q4_K")) == "tiny-Q4_K.gguf"
        assert name(case.fetch(REPO + ":UD-Q8_0")) == "UD/tiny-UD-Q8_0.gguf"
        assert name(case.fetch(REPO + "/UD/tiny-UD-Q8_0.gguf")) == "UD/tiny-UD-Q8_0.gguf"
        assert name(case.fetch(REPO + ":my model.gguf")) == "my model.gguf"
        assert name(case.fetch(REPO + ":Q6_K")) == "big-Q6_K-00001-of-00002.gguf"
        assert os.path.exists(case.path("snapshots", COMMIT, "big-Q6_K-00002-of-00002.gguf"))
        case.refused("found 1 parts, expected 2", model=REPO + ":Q2_K")
        case.refused("GGUF files: found", "expected \"IQ1_S\"", model=REPO + ":IQ1_S")
        assert name(case.fetch(REPO, HF_HUB_OFFLINE="1")) == "tiny-Q4_K_M.gguf"

        process = case.start("serve", REPO, "--dry-run")
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0 and "memory plan" in out, err
        process = case.start("tokenize", "--model", REPO, "--file", os.devnull)
        assert process.wait(timeout=120) == 0, process.communicate()


def dummy_weights_need_no_weights(binary, _):
    with Case(binary) as case:
        assert case.fetch(REPO, "--load-format", "dummy") is not None
        assert case.hub.requests("storage", "GET", "") == []


def tls_certificates_are_checked(binary, _):
    if shutil.which("openssl") is None:
        print("skipped: there is no openssl program")
        return
    with tempfile.TemporaryDirectory() as folder:
        certificate = self_signed(folder, "localhost")
        with Case(binary, certificate=certificate) as case:
            case.refused("TLS: ")
            case.check_snapshot(case.fetch(SSL_CERT_FILE=certificate + ".crt"))
            shutil.rmtree(case.cache)
            case.hub.redirect = "http://localhost:9/x"
            case.refused("expected a URL of https", SSL_CERT_FILE=certificate + ".crt")


class Proxy:
    """Forwards plain requests and tunnels for CONNECT; knows the address of every name."""

    def __init__(self, *ports):
        self.ports = {str(port): port for port in ports}  # by the port that was asked for
        self.wanted = None  # Proxy-Authorization
        self.log = []  # (method, target, Proxy-Authorization, Authorization)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.place = f"127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.socket.accept()
                threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        with contextlib.suppress(OSError), client:
            head = b""
            while b"\r\n\r\n" not in head:
                head += client.recv(1)
            lines = head.decode().split("\r\n")
            method, target, _ = lines[0].split(" ")
            fields = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines[1:] if line)}
            self.log.append((method, target, fields.get("proxy-authorization"),
                             fields.get("authorization")))
            if self.wanted and fields.get("proxy-authorization") != self.wanted:
                client.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n"
                               b"Content-Length: 0\r\nConnection: close\r\n\r\n")
                return
            url = urllib.parse.urlsplit(target if method != "CONNECT" else "//" + target)
            with socket.create_connection(("127.0.0.1", self.ports[str(url.port)])) as server:
                if method == "CONNECT":
                    client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                else:
                    lines[0] = f"{method} {url.path}?{url.query} HTTP/1.1"
                    server.sendall("\r\n".join(
                        line for line in lines if not line.startswith("Proxy-")).encode())
                back = threading.Thread(target=self.copy, args=(server, client), daemon=True)
                back.start()
                self.copy(client, server)
                back.join()

    @staticmethod
    def copy(source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def close(self):
        self.socket.close()


def self_signed(folder, *names):
    certificate = os.path.join(folder, "both.pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                    "-subj", "/CN=localhost", "-addext",
                    "subjectAltName=" + ",".join("DNS:" + name for name in names),
                    "-keyout", certificate, "-out", certificate + ".crt"],
                   check=True, capture_output=True)
    with open(certificate + ".crt") as public, open(certificate, "a") as both:
        both.write(public.read())
    return certificate


@contextlib.contextmanager
def behind_a_proxy(binary, certificate=None):
    """The hub and its storage have names that only the proxy knows."""
    with Case(binary, certificate=certificate) as case:
        hub = case.hub
        ports = [hub.hub.server_address[1], hub.storage.server_address[1]]
        scheme = "https" if certificate else "http"
        hub.url = f"{scheme}://hub.invalid:{ports[0]}"
        hub.storage_url = f"{scheme}://storage.invalid:{ports[1]}"
        case.environment["HF_ENDPOINT"] = hub.url
        proxy = Proxy(*ports)
        try:
            yield case, proxy
        finally:
            proxy.close()


BASIC = "Basic " + base64.b64encode(b"us:er p@ss").decode()
CREDENTIALS = "us:er%20p%40ss@"


def plain_requests_go_through_the_proxy(binary, _):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        with behind_a_proxy(binary) as (case, proxy):
            proxy.wanted = BASIC
            case.hub.token = "secret"
            case.hub.cut_after = [100_000]
            environment = {name: f"http://{CREDENTIALS}{proxy.place}/", "HF_TOKEN": "secret"}
            case.check_snapshot(case.fetch(**environment))
            assert all(way[1].startswith("http://") for way in proxy.log), proxy.log
            assert len(proxy.log) == len(case.hub.log)
            for _, target, _, token in proxy.log:
                assert (token is None) == ("storage.invalid" in target), target


def tls_goes_through_a_tunnel_that_sees_no_token(binary, _):
    if shutil.which("openssl") is None:
        print("skipped: there is no openssl program")
        return
    with tempfile.TemporaryDirectory() as folder:
        certificate = self_signed(folder, "hub.invalid", "storage.invalid")
        for name in ("https_proxy", "HTTPS_PROXY", "all_proxy"):
            with behind_a_proxy(binary, certificate) as (case, proxy):
                proxy.wanted = BASIC
                case.hub.token = "secret"
                environment = {"SSL_CERT_FILE": certificate + ".crt", "HF_TOKEN": "secret",
                               "http_proxy": "http://127.0.0.1:9"}
                environment[name] = CREDENTIALS + proxy.place  # http:// may be left out
                case.check_snapshot(case.fetch(**environment))
                hosts = {way[1].split(":")[0] for way in proxy.log}
                assert hosts == {"hub.invalid", "storage.invalid"}, hosts
                assert all(way[0] == "CONNECT" and way[3] is None for way in proxy.log), proxy.log
                for server, _, path, token, _ in case.hub.log:
                    assert server == "hub" or token is None, path
                shutil.rmtree(case.cache)
                environment[name] = "http://" + proxy.place
                case.refused("opened no tunnel: HTTP/1.1 407", proxy.place, **environment)


def some_hosts_need_no_proxy(binary, _):
    with Case(binary) as case:
        nowhere = {"http_proxy": "http://us:secret@127.0.0.1:9"}
        for name, hosts in (("no_proxy", "localhost"), ("NO_PROXY", "*"),
                            ("no_proxy", "example.org, localhost")):
            case.check_snapshot(case.fetch(**nowhere, **{name: hosts}))
            shutil.rmtree(case.cache)
        case.check_snapshot(case.fetch(https_proxy="http://127.0.0.1:9"))
        assert all(request[3] is None for request in case.hub.log)
        shutil.rmtree(case.cache)
        case.refused("by the proxy 127.0.0.1:9", **nowhere, no_proxy="example.org")
        assert "secret" not in case.err
        case.refused("http_proxy: found \"socks5://127.0.0.1:9\", expected a proxy as http://",
                     http_proxy="socks5://us:secret@127.0.0.1:9")


CASES = [
    a_directory_is_fetched_once_and_only_what_is_needed,
    a_vocabulary_is_a_tokenizer,
    flags_name_the_hub_the_cache_and_the_token,
    cut_connections_resume_where_they_ended,
    a_killed_download_is_continued,
    a_wrong_part_is_thrown_away,
    servers_without_ranges_send_all_again,
    a_range_that_is_not_the_wanted_one_is_not_used,
    a_wrong_hash_is_one_line_and_no_file,
    every_status_is_one_line,
    ranges_that_are_refused_start_over,
    no_answer_makes_it_wait_for_long,
    a_part_is_not_written_through_a_link,
    hostile_answers_are_one_line,
    without_a_network_it_says_so,
    two_processes_fetch_a_file_once,
    a_lock_of_another_client_is_waited_for,
    gguf_files_are_chosen_by_quantization,
    dummy_weights_need_no_weights,
    tls_certificates_are_checked,
    plain_requests_go_through_the_proxy,
    tls_goes_through_a_tunnel_that_sees_no_token,
    some_hosts_need_no_proxy,
]


def main(cases):
    binary, model = sys.argv[1:3]
    for case in cases:
        if len(sys.argv) > 3 and sys.argv[3] not in case.__name__:
            continue
        print(case.__name__.replace("_", " "), flush=True)
        case(os.path.abspath(binary), model)
    print("all passed")


if __name__ == "__main__":
    main(CASES)
