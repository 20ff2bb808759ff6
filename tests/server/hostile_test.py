#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A client that means harm, over raw sockets: broken framing, smuggling, bombs, broken JSON, values out
of range, half-closed and slow connections.

usage: hostile_test.py BINARY MODEL

After each case a normal request on a new connection is answered; at the end greedy tokens are those
of the beginning, nothing runs or holds a block, and memory has not grown. Standard library only.
"""
import contextlib
import http.client
import json
import random
import socket
import sys
import threading
import time

from server_process import PATIENCE_S, Server, least

COMPLETION = "/v1/completions"
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
CLOSED = 0  # instead of a status: the connection ends without an answer


class Target(Server):
    def __init__(self, binary, model):
        super().__init__(binary, model, "--request-timeout-s", "2", "--threads", "1",
                         "--max-body-bytes", "1M", "--max-connections", "600")

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)

    def request(self, method, path, body=None):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port,
                                                           timeout=60)) as connection:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()

    def greedy(self):
        status, body = self.request("POST", COMPLETION, json.dumps(
            {"prompt": "Once upon", "max_tokens": 12, "temperature": 0, "ignore_eos": True,
             "return_token_ids": True}))
        assert status == 200, body
        return json.loads(body)["choices"][0]["token_ids"]


def read_answer(connection):
    """Status and body of one answer; (CLOSED, b"") if the connection ends first."""
    data = b""
    try:
        while b"\r\n\r\n" not in data:
            piece = connection.recv(65536)
            if not piece:
                return CLOSED, data
            data += piece
        head, body = data.split(b"\r\n\r\n", 1)
        status = int(head.split(b" ", 2)[1])
        lengths = [int(line.split(b":")[1]) for line in head.split(b"\r\n")
                   if line.lower().startswith(b"content-length:")]
        while lengths and len(body) < lengths[0]:
            piece = connection.recv(65536)
            if not piece:
                break
            body += piece
        return status, body
    except ConnectionError:
        return CLOSED, b""


def head(*lines, request="POST " + COMPLETION + " HTTP/1.1"):
    return "\r\n".join((request, "Host: x") + lines).encode("latin-1") + b"\r\n\r\n"


def with_body(body, *lines, path=COMPLETION):
    if isinstance(body, str):
        body = body.encode()
    return head("Content-Type: application/json", f"Content-Length: {len(body)}", *lines,
                request=f"POST {path} HTTP/1.1") + body


GOOD = '{"prompt":"a","max_tokens":1}'
GOOD_BYTES = GOOD.encode()
CHUNKED = "Transfer-Encoding: chunked"


def chunked(*chunks, lines=()):
    return head(CHUNKED, *lines) + b"".join(chunks)


GOOD_CHUNK = b"%x\r\n%s\r\n" % (len(GOOD_BYTES), GOOD_BYTES)

# Name, bytes to send, statuses that are right.
FRAMING = [
    ("length and chunked", head(CHUNKED, "Content-Length: 5") + GOOD_CHUNK + b"0\r\n\r\n", {400}),
    ("chunked and length", head("Content-Length: 5", CHUNKED) + GOOD_CHUNK + b"0\r\n\r\n", {400}),
    ("two lengths", head("Content-Length: 5", "Content-Length: 6") + b"hello", {400}),
    ("length list", head("Content-Length: 5, 6") + b"hello", {400}),
    ("negative length", head("Content-Length: -1"), {400}),
    ("signed length", head("Content-Length: +5") + b"hello", {400}),
    ("length in hex", head("Content-Length: 0x5") + b"hello", {400}),
    ("length of 2^64", head("Content-Length: 18446744073709551616"), {400, 413}),
    ("length of 2^63", head("Content-Length: 9223372036854775808"), {400, 413}),
    ("length beyond the limit", head("Content-Length: 1048577"), {413}),
    ("encoding gzip", head("Transfer-Encoding: gzip") + b"x", {400, 501}),
    ("encoding chunked twice", head("Transfer-Encoding: chunked, chunked") + b"0\r\n\r\n",
     {400, 501}),
    ("chunked then identity", head("Transfer-Encoding: chunked, identity") + b"0\r\n\r\n",
     {400, 501}),
    ("encoding with a tab", head("Transfer-Encoding:\x0bchunked") + b"0\r\n\r\n", {400, 501}),
    ("two encodings", head(CHUNKED, "Transfer-Encoding: identity") + b"0\r\n\r\n", {400, 501}),
    ("space before the colon", head("Content-Length : 5") + b"hello", {400}),
    ("folded header", head("X-Long: a\r\n b"), {400, 411}),
    ("NUL in a header", head("X-Zero: a\0b"), {400}),
    ("bare CR in a header", head("X-Return: a\rb"), {400}),
    ("no colon", head("nonsense"), {400}),
    ("empty header name", head(": value"), {400}),
    ("chunk size too long", chunked(b"fffffffffffffffff\r\n"), {400, 413}),
    ("chunk size beyond the limit", chunked(b"7fffffff\r\n"), {400, 413}),
    ("chunk size with 0x", chunked(b"0x5\r\nhello\r\n0\r\n\r\n"), {400}),
    ("negative chunk size", chunked(b"-5\r\nhello\r\n0\r\n\r\n"), {400}),
    ("no line end behind a chunk", chunked(b"5\r\nhelloXX0\r\n\r\n"), {400}),
    ("endless chunk extension", chunked(b"5;" + b"a" * 200000), {400, 413, 431}),
    ("endless trailer", chunked(GOOD_CHUNK, b"0\r\n", b"X: y\r\n" * 40000), {400, 431, CLOSED}),
    ("many chunks of one byte beyond the limit", chunked(b"1\r\n \r\n" * 1100000),
     {408, 413, CLOSED}),  # 408: on a busy machine
    ("header bomb", head("X-Bomb: " + "a" * 100000), {431}),
    ("a thousand headers", head(*(f"X-{i}: {'b' * 80}" for i in range(1000))), {431}),
    ("long path", head(request="GET /" + "a" * 100000 + " HTTP/1.1"), {414, 431}),
    ("long method", head(request="A" * 5000 + " / HTTP/1.1"), {400, 404, 405, 431, 501}),
    ("unknown method", head(request="BREW /v1/models HTTP/1.1"), {400, 405, 501}),
    ("CONNECT", head(request="CONNECT example.com:443 HTTP/1.1"), {400, 404, 405}),
    ("TRACE", head(request="TRACE / HTTP/1.1"), {404, 405, 501}),
    ("version 9.9", head(request="GET /health HTTP/9.9"), {400, 505}),
    ("version 0.9", b"GET /health\r\n\r\n", {400}),
    ("HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400, 505}),
    ("TLS hello", bytes.fromhex("16030100c8010000c40303") + bytes(200), {400}),
    ("binary noise", random.Random(1).randbytes(4096), {400}),
    ("NUL bytes", bytes(1000), {400}),
    ("path with NUL", head(request="GET /v1/models\0x HTTP/1.1"), {400, 404}),
    ("path out of the root", head(request="GET /../../etc/passwd HTTP/1.1"), {404}),
    ("encoded path", head(request="GET /%2e%2e/%00 HTTP/1.1"), {400, 404}),
    ("unknown expectation", with_body(GOOD, "Expect: 200-maybe"), {200, 417}),
    ("encoded body", with_body(GOOD, "Content-Encoding: br"), {400, 415}),
    ("body shorter than its length", head("Content-Length: 100") + b"{", {400, 408, CLOSED}),
]


def deep(opening, closing, levels):
    return opening * levels + closing * levels


def member(text):
    return '{"prompt":"a","max_tokens":1,' + text + "}"


def chat_with(text):
    return '{"messages":[{"role":"user","content":"a"}],' + text + "}"


def message_with(text, role="user", content='"a"'):
    return '{"messages":[{"role":"' + role + '","content":' + content + "}]," + text + "}"


BIG = 100000

# Name, body, path; all of these are answered with 400.
BODIES = [
    ("nothing", "", COMPLETION),
    ("null", "null", COMPLETION),
    ("an array", "[]", COMPLETION),
    ("a string", '"a"', COMPLETION),
    ("deep arrays", member('"x":' + deep("[", "]", 400000)), COMPLETION),
    ("deep objects", member('"x":' + deep('{"a":', "}", 10000).replace("}", "1}", 1)), COMPLETION),
    ("unclosed arrays", "[" * BIG, COMPLETION),
    ("duplicate keys", member('"max_tokens":2'), COMPLETION),
    ("duplicate key by escape", member('"max\\u005ftokens":2'), COMPLETION),
    ("1e400", member('"temperature":1e400'), COMPLETION),
    ("-1e400", member('"logit_bias":{"1":-1e400}'), COMPLETION),
    ("NaN", member('"temperature":NaN'), COMPLETION),
    ("Infinity", member('"temperature":Infinity'), COMPLETION),
    ("a number of 10^5 digits", member('"seed":' + "1" * BIG), COMPLETION),
    ("leading zero", member('"seed":01'), COMPLETION),
    ("hexadecimal", member('"seed":0x10'), COMPLETION),
    ("high surrogate alone", '{"prompt":"\\ud800"}', COMPLETION),
    ("low surrogate alone", '{"prompt":"\\udc00"}', COMPLETION),
    ("surrogates the wrong way round", '{"prompt":"\\udc00\\ud800"}', COMPLETION),
    ("escape cut off", '{"prompt":"\\u12"}', COMPLETION),
    ("unknown escape", '{"prompt":"\\x41"}', COMPLETION),
    ("raw NUL", b'{"prompt":"a\0b"}', COMPLETION),
    ("raw newline", '{"prompt":"a\nb"}', COMPLETION),
    ("invalid UTF-8", b'{"prompt":"\xff\xfe"}', COMPLETION),
    ("overlong UTF-8", b'{"prompt":"\xc0\xaf"}', COMPLETION),
    ("surrogate in UTF-8", b'{"prompt":"\xed\xa0\x80"}', COMPLETION),
    ("beyond Unicode", b'{"prompt":"\xf4\x90\x80\x80"}', COMPLETION),
    ("UTF-8 cut off", b'{"prompt":"\xe2\x82"}', COMPLETION),
    ("UTF-16", GOOD.encode("utf-16"), COMPLETION),
    ("trailing comma", '{"prompt":"a",}', COMPLETION),
    ("text behind", GOOD + "x", COMPLETION),
    ("two objects", GOOD + GOOD, COMPLETION),
    ("comment", member('/* c */"n":1'), COMPLETION),
    ("single quotes", "{'prompt':'a'}", COMPLETION),
    ("unclosed string", '{"prompt":"a', COMPLETION),
    ("parameter that is not offered", member('"use_beam_search":true'), COMPLETION),
    ("unknown parameter with a long name, and a wrong one",
     member('"' + "n" * BIG + '":1,"temperature":-1'), COMPLETION),
    ("10^5 unknown parameters", member(",".join(f'"k{i}":0' for i in range(BIG // 2))), COMPLETION),
    ("no prompt", '{"max_tokens":1}', COMPLETION),
    ("prompt of null", '{"prompt":null}', COMPLETION),
    ("empty prompts", '{"prompt":[]}', COMPLETION),
    ("mixed prompts", '{"prompt":["a",1]}', COMPLETION),
    ("token beyond the vocabulary", '{"prompt":[999999999]}', COMPLETION),
    ("negative token", '{"prompt":[-1]}', COMPLETION),
    ("token of 2^64", '{"prompt":[18446744073709551616]}', COMPLETION),
    ("prompt beyond the context", json.dumps({"prompt": "a b " * 200000}), COMPLETION),
    ("10^5 prompts", json.dumps({"prompt": ["a"] * BIG}), COMPLETION),
    ("n of 2^31", member('"n":2147483648'), COMPLETION),
    ("max_tokens of 2^31", '{"prompt":"a","max_tokens":2147483648}', COMPLETION),
    ("max_tokens of 0", '{"prompt":"a","max_tokens":0}', COMPLETION),
    ("10^5 stops", member('"stop":' + json.dumps(["s"] * BIG)), COMPLETION),
    ("a long stop", member('"stop":"' + "s" * BIG + '"'), COMPLETION),
    ("10^5 stop tokens", member('"stop_token_ids":' + json.dumps([1] * BIG)), COMPLETION),
    ("10^4 biases", member('"logit_bias":{' + ",".join(f'"{i}":1' for i in range(10000)) + "}"),
     COMPLETION),
    ("10^4 bad words", member('"bad_words":' + json.dumps(["w"] * 10000)), COMPLETION),
    ("logprobs of 10^9", member('"logprobs":1000000000'), COMPLETION),
    ("contradiction", member('"min_tokens":2'), COMPLETION),
    ("stream options without a stream", member('"stream_options":{"include_usage":true}'),
     COMPLETION),
    ("messages where a prompt belongs", '{"messages":[{"role":"user","content":"a"}]}', COMPLETION),
    ("no messages", '{"messages":[]}', CHAT),
    ("message of a number", '{"messages":[1]}', CHAT),
    ("no role", '{"messages":[{"role":"","content":"a"}]}', CHAT),
    ("content of a number", '{"messages":[{"role":"user","content":1}]}', CHAT),
    ("an image", '{"messages":[{"role":"user","content":[{"type":"image_url","image_url":'
                 '{"url":"http://127.0.0.1/"}}]}]}', CHAT),
    ("template of the client's", '{"messages":[{"role":"user","content":"a"}],'
                                 '"chat_template":"{{ 1 }}"}', CHAT),
    ("template variable messages", '{"messages":[{"role":"user","content":"a"}],'
                                   '"chat_template_kwargs":{"messages":[]}}', CHAT),
    ("10^4 long messages", json.dumps(
        {"messages": [{"role": "user", "content": "word " * 10}] * 8000}), CHAT),
    ("10^4 tools", chat_with('"tools":' + json.dumps(
        [{"type": "function", "function": {"name": f"f{i}"}} for i in range(10000)])), CHAT),
    ("tool without a name", chat_with('"tools":[{"type":"function","function":{"name":""}}]'), CHAT),
    ("name of a tool with a NUL",
     chat_with('"tools":[{"type":"function","function":{"name":"a\\u0000"}}]'), CHAT),
    ("tools of a number", chat_with('"tools":1'), CHAT),
    ("choice of a tool that is not there",
     chat_with('"tools":[{"type":"function","function":{"name":"a"}}],"tool_choice":'
               '{"type":"function","function":{"name":"b"}}'), CHAT),
    ("no input", "{}", RESPONSES),
    ("empty input", '{"input":[]}', RESPONSES),
    ("items of numbers", '{"input":[1,2]}', RESPONSES),
    ("item of an unknown type", '{"input":[{"type":"computer_call"}]}', RESPONSES),
    ("call without arguments", '{"input":[{"type":"function_call","call_id":"a","name":"b"}]}',
     RESPONSES),
    ("output of a number", '{"input":[{"type":"function_call_output","call_id":"a","output":1}]}',
     RESPONSES),
    ("choice of a search tool",
     '{"input":"a","tools":[{"type":"web_search"}],"tool_choice":{"type":"web_search"}}', RESPONSES),
    ("in the background", '{"input":"a","background":true}', RESPONSES),
    ("truncation of a number", '{"input":"a","truncation":1}', RESPONSES),
    ("deep input", '{"input":' + deep("[", "]", 100000) + "}", RESPONSES),
    ("one message too long for any context", json.dumps(
        {"input": "a b " * 200000, "truncation": "auto"}), RESPONSES),
    ("no max_tokens", '{"messages":[{"role":"user","content":"a"}]}', MESSAGES),
    ("role of a tool", message_with('"max_tokens":1', role="tool"), MESSAGES),
    ("no blocks", message_with('"max_tokens":1', content="[]"), MESSAGES),
    ("block without a type", message_with('"max_tokens":1', content="[{}]"), MESSAGES),
    ("block of an image", message_with('"max_tokens":1', content='[{"type":"image"}]'), MESSAGES),
    ("result of no call", message_with('"max_tokens":1', content='[{"type":"tool_result"}]'),
     MESSAGES),
    ("system of a number", message_with('"max_tokens":1,"system":1'), MESSAGES),
    ("thinking of a number", message_with('"max_tokens":1,"thinking":1'), MESSAGES),
    ("budget of 10^400", message_with(
        '"max_tokens":9,"thinking":{"type":"enabled","budget_tokens":1e400}'), MESSAGES),
    ("stops of a string", message_with('"max_tokens":1,"stop_sequences":"a"'), MESSAGES),
    ("count of nothing", "{}", MESSAGES + "/count_tokens"),
    ("tokens of text", '{"tokens":"a"}', "/detokenize"),
    ("token beyond the vocabulary", '{"tokens":[99999999]}', "/detokenize"),
    ("neither prompt nor messages", "{}", "/tokenize"),
]


class Report:
    def __init__(self, server):
        self.server = server
        self.cases = 0
        self.failures = []

    def check(self, name, holds, detail=""):
        self.cases += 1
        if not holds:
            self.failures.append(f"{name}: {detail}")
            print("FAIL", self.failures[-1], flush=True)
        status, body = self.server.request("POST", COMPLETION, GOOD)
        if status != 200:
            self.failures.append(f"after {name}: {status} {body[:200]}")
            print("FAIL", self.failures[-1], flush=True)


def send_all(connection, data):
    """A server may answer and close before it has taken everything."""
    with contextlib.suppress(ConnectionError):
        connection.sendall(data)


def check_framing(server, report):
    for name, data, right in FRAMING:
        with contextlib.closing(server.connect()) as connection:
            send_all(connection, data)
            if "shorter" in name:
                connection.shutdown(socket.SHUT_WR)
            status, body = read_answer(connection)
            report.check(name, status in right, f"{status}, expected {right}: {body[:160]}")


def check_smuggled_request_is_not_served(server, report):
    """What follows an ambiguous request is never taken as a request of its own."""
    inner = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
    for name, first in (
            ("smuggling by chunks", head(CHUNKED, f"Content-Length: {len(inner) + 5}") + b"0\r\n\r\n"),
            ("smuggling by length", head("Content-Length: 0", f"Content-Length: {len(inner)}"))):
        with contextlib.closing(server.connect()) as connection:
            send_all(connection, first + inner)
            data = b""
            with contextlib.suppress(ConnectionError):
                while piece := connection.recv(65536):
                    data += piece
            report.check(name, data.count(b"HTTP/1.1 ") == 1 and b'"object":"list"' not in data,
                         data[:200])


def check_bodies(server, report):
    for name, text, path in BODIES:
        with contextlib.closing(server.connect()) as connection:
            send_all(connection, with_body(text, path=path))
            status, body = read_answer(connection)
            holds = status == 400
            if holds:
                error = json.loads(body)["error"]
                members = {"message", "type"} | (set() if path.startswith(MESSAGES) else
                                                 {"param", "code"})
                holds = bool(error["message"]) and set(error) == members
                holds = holds and len(body) < 2000
            report.check(name, holds, f"{status}: {body[:200]}")


def check_connections(server, report):
    with contextlib.closing(server.connect()) as connection:  # the client half-closes and waits
        connection.sendall(with_body(GOOD))
        connection.shutdown(socket.SHUT_WR)
        report.check("half-closed client", read_answer(connection)[0] in (200, CLOSED))

    slow = [server.connect() for _ in range(100)]
    for connection in slow:
        connection.sendall(b"POST /v1/comp")
    report.check("100 slow heads", True)
    ended = time.monotonic() + PATIENCE_S
    for connection in slow:
        connection.settimeout(max(0.1, ended - time.monotonic()))
        status = read_answer(connection)[0]
        connection.close()
        if status not in (408, CLOSED):
            report.check("slow head ends", False, str(status))
    report.check("slow heads end", True)

    for _ in range(500):  # a stream that is left at once
        with contextlib.closing(server.connect()) as connection:
            connection.sendall(with_body('{"prompt":"a","max_tokens":100,"stream":true}'))
    report.check("500 streams left at once", True)

    for _ in range(2000):
        server.connect().close()
    report.check("2000 empty connections", True)

    idle = []
    with contextlib.suppress(OSError):
        for _ in range(700):  # more than the server takes
            idle.append(server.connect())
    for connection in idle:
        connection.close()
    time.sleep(0.2)
    report.check("more connections than the limit", True)


def make_noise(server, chance):
    """A connection that means harm."""
    with contextlib.suppress(OSError), contextlib.closing(server.connect()) as connection:
        connection.settimeout(5)
        data = chance.choice(FRAMING[:25])[1]
        connection.sendall(data[:chance.randrange(len(data)) + 1])
        if chance.random() < 0.5:
            read_answer(connection)


def be_good(server, _):
    """A connection like any other."""
    with contextlib.closing(server.connect()) as connection:
        connection.sendall(with_body(GOOD))
        assert read_answer(connection)[0] == 200


@contextlib.contextmanager
def neighbours(server, behave):
    """Four threads that `behave(server, chance)` until the end of the block."""
    stop = threading.Event()

    def run(seed):
        chance = random.Random(seed)
        while not stop.is_set():
            behave(server, chance)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def check_neighbours(server, report):
    """A client beside noise has its tokens, and waits no longer than beside good clients. The bound
    is far off what is aimed at (1.2), as times on a machine that does other work are."""
    with neighbours(server, make_noise):
        tokens = {tuple(server.greedy()) for _ in range(10)}
    report.check("same tokens beside noise", len(tokens) == 1, str(tokens))

    def slower():
        """How many times slower the slowest requests are beside noise."""
        times = {make_noise: [], be_good: []}
        for behave in (be_good, make_noise) * 3:
            with neighbours(server, behave):
                for _ in range(100):
                    begin = time.perf_counter()
                    be_good(server, None)
                    times[behave].append(time.perf_counter() - begin)
        p99 = {behave: sorted(all_times)[-3] for behave, all_times in times.items()}
        print(f"p99 beside noise {1000 * p99[make_noise]:.1f} ms, beside good clients "
              f"{1000 * p99[be_good]:.1f} ms: {p99[make_noise] / p99[be_good]:.2f} times")
        return p99[make_noise] / p99[be_good]

    ratio = least(slower, 5)
    report.check("as quick beside noise", ratio < 5, f"{ratio:.1f} times slower")


def wait_until_idle(server):
    for _ in range(10 * PATIENCE_S):
        if server.metric("vllm:num_requests_running") == 0 and \
                server.metric("vllm:kv_cache_usage_perc") == 0:
            return True
        time.sleep(0.1)
    return False


def main():
    server = Target(sys.argv[1], sys.argv[2])
    try:
        report = Report(server)
        before = server.greedy()
        check_framing(server, report)
        check_bodies(server, report)
        warm = server.rss()
        check_smuggled_request_is_not_served(server, report)
        check_connections(server, report)
        check_neighbours(server, report)
        check_bodies(server, report)
        report.check("greedy tokens are those of the beginning", server.greedy() == before)
        report.check("nothing runs and no block is held", wait_until_idle(server))
        grown = server.rss() - warm
        report.check("memory is flat", grown < 32 << 20, f"grew by {grown >> 20} MiB")
        report.check("the server lives", server.process.poll() is None)
        print(f"{report.cases} cases, {len(report.failures)} failures")
        sys.exit(1 if report.failures else 0)
    finally:
        server.process.terminate()
        server.process.wait(30)


if __name__ == "__main__":
    main()
