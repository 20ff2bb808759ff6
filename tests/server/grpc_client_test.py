#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A Python gRPC client that knows the services by reflection alone, beside HTTP on the same server.

usage: grpc_client_test.py BINARY MODEL

Needs the `grpcio` and `grpcio-reflection` packages, of this interpreter or of the one that
SLUICE_TEST_PYTHON names; exit code 77 without them.
"""
import array
import contextlib
import json
import os
import re
import signal
import sys
import threading
import time

from server_process import PATIENCE_S, Server, free_port, least, needs, run_checks, wait_until

needs("grpc", "grpc_reflection")

import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_reflection.v1alpha import proto_reflection_descriptor_database as reflection

VLLM = "vllm.grpc.engine.VllmEngine"
SLUICE = "sluice.v1.Sluice"
HEALTH = "grpc.health.v1.Health"


class Client:
    """Stubs made from what the server says about itself."""

    def __init__(self, server):
        place = re.search(r"^gRPC on (\S+)", "".join(server.log), re.M).group(1)
        self.channel = grpc.insecure_channel(place)
        self.database = reflection.ProtoReflectionDescriptorDatabase(self.channel)
        self.pool = descriptor_pool.DescriptorPool(self.database)

    def services(self):
        return set(self.database.get_services())

    def call(self, service, method, /, timeout=600, **fields):
        """The response, or an iterator over a stream of them."""
        descriptor = self.pool.FindServiceByName(service).FindMethodByName(method)
        request = message_factory.GetMessageClass(descriptor.input_type)(**fields)
        response = message_factory.GetMessageClass(descriptor.output_type)
        kind = self.channel.unary_stream if descriptor.server_streaming else self.channel.unary_unary
        stub = kind(f"/{service}/{method}", request_serializer=lambda m: m.SerializeToString(),
                    response_deserializer=response.FromString)
        return stub(request, timeout=timeout)

    def health(self, service=""):
        """SERVING is 1, NOT_SERVING 2."""
        return self.call(HEALTH, "Check", timeout=PATIENCE_S, service=service).status

    def generate(self, prompt, stream=True, on_message=lambda: None, **sampling):
        """Token ids and log-probabilities, checked for wholeness."""
        ids, logprobs, complete = [], [], None
        for response in self.call(VLLM, "Generate", tokenized={"input_ids": prompt}, stream=stream,
                                  sampling_params={"logprobs": 1, **sampling}):
            assert complete is None, "a message after the last"
            on_message()
            if response.HasField("chunk"):
                ids += response.chunk.token_ids
                logprobs += response.chunk.output_logprobs.token_logprobs
            else:
                complete = response.complete
        assert complete.finish_reason in ("stop", "length")
        if stream:
            assert list(complete.output_ids) == ids, "chunks and complete differ"
        else:
            logprobs = list(complete.output_logprobs.token_logprobs)
        assert complete.completion_tokens == len(complete.output_ids) == len(logprobs)
        return list(complete.output_ids), logprobs


def http_completion(server, body):
    connection, response = server.post({"logprobs": 1, "return_token_ids": True, **body})
    with contextlib.closing(connection):
        assert response.status == 200, response.read()
        choice = json.loads(response.read())["choices"][0]
    return choice["token_ids"], floats(choice["logprobs"]["token_logprobs"]), choice["text"]


def floats(values):
    """What HTTP writes in decimal and gRPC as 32 bits."""
    return list(array.array("f", values))


def expect_code(code, call, word=""):
    try:
        answer = call()
        if hasattr(answer, "__next__"):
            list(answer)
    except grpc.RpcError as error:
        assert error.code() == code and word in error.details(), (error.code(), error.details())
        return
    raise AssertionError(f"no {code}")


def check_reflection(client):
    assert {VLLM, SLUICE, HEALTH} <= client.services(), client.services()
    for service in client.services():  # each with all that its messages are made of
        for method in client.pool.FindServiceByName(service).methods:
            assert method.input_type.full_name and method.output_type.full_name, method.name
    watched = client.call(HEALTH, "Watch", service=VLLM)
    assert next(iter(watched)).status == 1
    watched.cancel()
    assert client.health() == client.health(VLLM) == client.health(SLUICE) == 1
    expect_code(grpc.StatusCode.NOT_FOUND, lambda: client.health("nobody"))
    info = client.call(VLLM, "GetModelInfo")
    assert info.is_generation and info.vocab_size > 0 and info.max_context_length > 0
    assert client.call(VLLM, "HealthCheck").healthy
    assert client.call(VLLM, "GetServerInfo").server_type == "vllm-grpc"
    expect_code(grpc.StatusCode.INVALID_ARGUMENT, lambda: client.call(VLLM, "Embed"))


def check_equal(server, client):
    """Greedy and sampled requests: the same tokens and log-probabilities through both doors."""
    for number in range(12):
        prompt = [10 + number + i for i in range(4 + 3 * number)]
        sampling = {"max_tokens": 20, "temperature": 0.6 * (number % 3), "seed": number,
                    "top_p": 0.9 if number % 2 else 1.0, "top_k": 30 * (number % 2),
                    "frequency_penalty": 0.2 * (number % 4), "ignore_eos": True}
        ids, logprobs, text = http_completion(server, {"prompt": prompt, **sampling})
        for stream in (True, False):
            got = client.generate(prompt, stream=stream, **sampling)
            assert got == (ids, logprobs), f"request {number}, stream {stream}"
        whole = client.call(SLUICE, "Complete", prompts=[{"tokens": {"ids": prompt}}],
                            sampling={"logprobs": 1, "return_token_ids": True, **sampling})
        assert list(whole.choices[0].token_ids) == ids
        assert whole.choices[0].text == text
        assert [t.token.logprob for t in whole.choices[0].logprobs] == logprobs
    assert server.metric("vllm:kv_cache_usage_perc") == 0


def check_chat(server, client):
    messages = [{"role": "user", "content": "Say hello."}]
    connection, response = server.post({"messages": messages, "max_tokens": 12, "seed": 3},
                                       "/v1/chat/completions")
    with contextlib.closing(connection):
        assert response.status == 200, response.read()
        expected = json.loads(response.read())
    sampling = {"max_tokens": 12, "seed": 3}
    whole = client.call(SLUICE, "Chat", messages=messages, sampling=sampling)
    assert whole.choices[0].text == expected["choices"][0]["message"]["content"]
    assert whole.usage.prompt_tokens == expected["usage"]["prompt_tokens"]
    assert whole.system_fingerprint == expected["system_fingerprint"]
    parts = list(client.call(SLUICE, "StreamChat", messages=messages, sampling=sampling))
    assert "".join(c.text for p in parts for c in p.choices) == whole.choices[0].text
    assert parts[-1].usage.completion_tokens == whole.usage.completion_tokens


def check_errors(client):
    bad = grpc.StatusCode.INVALID_ARGUMENT
    expect_code(bad, lambda: client.generate([1], temperature=-1), "temperature")
    expect_code(bad, lambda: client.generate([10**9]), "prompt")
    expect_code(bad, lambda: client.generate([1], n=10**6), "n must be")
    expect_code(bad, lambda: client.call(SLUICE, "Chat"), "messages")
    expect_code(grpc.StatusCode.NOT_FOUND,
                lambda: client.call(SLUICE, "Complete", model="other", prompts=[{"text": "x"}]))


def check_cancel(server, client):
    long = {"max_tokens": server.max_len - 8, "ignore_eos": True}

    def is_cancelled():
        before = server.num_aborted()
        stream = client.call(VLLM, "Generate", tokenized={"input_ids": [1, 2, 3]}, stream=True,
                             sampling_params=long)
        next(stream)
        stream.cancel()
        wait_until("idle", lambda: server.metric("vllm:num_requests_running") == 0)
        return server.num_aborted() > before

    def is_aborted(number):
        name = f"r{number}"
        stream = client.call(VLLM, "Generate", request_id=name, tokenized={"input_ids": [1, 2, 3]},
                             sampling_params=long)
        ends = []
        reader = threading.Thread(target=lambda: ends.extend(r.complete.finish_reason for r in stream))
        reader.start()
        while reader.is_alive():  # it may not be there yet
            client.call(VLLM, "Abort", request_ids=[name])
        return ends == ["abort"]

    # A request may have ended before a busy machine lets this client go on.
    assert any(is_cancelled() for _ in range(20))
    assert any(is_aborted(number) for number in range(20))
    wait_until("idle", lambda: server.metric("vllm:num_requests_running") == 0)
    assert server.metric("vllm:kv_cache_usage_perc") == 0


def check_streams(server, client, seconds):
    """Both protocols at once, some leaving early: answers as alone, every block back."""
    prompts = [[10 + n + i for i in range(8 + 5 * n)] for n in range(8)]
    sampling = {"max_tokens": 24, "temperature": 0.7, "seed": 5, "ignore_eos": True}
    expected = [client.generate(prompt, **sampling) for prompt in prompts]
    end = time.monotonic() + seconds
    failures, counts = [], [0] * 24

    def run(index):
        number = index
        try:
            while time.monotonic() < end:
                prompt, answer = prompts[number % 8], expected[number % 8]
                if index % 3 == 0:
                    got = http_completion(server, {"prompt": prompt, **sampling})
                    assert got[:2] == answer, "HTTP differs"
                elif number % 5 == 0:
                    stream = client.call(VLLM, "Generate", tokenized={"input_ids": prompt},
                                         stream=True, sampling_params=sampling)
                    next(stream)
                    stream.cancel()
                else:
                    assert client.generate(prompt, **sampling) == answer, "gRPC differs"
                counts[index] += 1
                number += 3
        except Exception as error:  # the thread's only way to tell
            failures.append(repr(error))

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(counts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[:3]
    assert min(counts) > 0
    wait_until("idle", lambda: server.metric("vllm:num_requests_running") == 0)
    assert server.metric("vllm:kv_cache_usage_perc") == 0, "blocks are held by nobody"
    print(f"   {sum(counts)} streams")


def start_streams(client, count, max_tokens):
    """Returns when all have begun; answers and error codes fill the lists that are returned."""
    answers, codes = [], []

    def run(begun):
        try:
            answers.append(client.generate([5] * 8, on_message=begun.set, max_tokens=max_tokens,
                                           ignore_eos=True))
        except grpc.RpcError as error:
            codes.append(error.code())

    events = [threading.Event() for _ in range(count)]
    threads = [threading.Thread(target=run, args=(event,)) for event in events]
    for thread in threads:
        thread.start()
    assert all(event.wait(timeout=60) for event in events)
    return threads, answers, codes


def check_drain(binary, model):
    """SIGTERM: health turns at once, running streams end whole, exit code 0."""
    server = Server(binary, model, "--grpc-port", "0", "--max-num-seqs", "128", "--drain-timeout-s", "600")
    client = Client(server)
    assert client.health() == 1
    client.services()
    threads, answers, codes = start_streams(client, 100, 1000)
    assert len(answers) < 100, "some must be running at the signal"
    server.process.send_signal(signal.SIGTERM)
    wait_until("not serving", lambda: client.health() == client.health(VLLM) == 2)
    expect_code(grpc.StatusCode.UNAVAILABLE, lambda: client.generate([1]))
    for thread in threads:
        thread.join()
    assert not codes and len(answers) == 100, codes
    assert all(len(ids) == 1000 for ids, _ in answers)
    assert server.process.wait(timeout=60) == 0


def check_cut(binary, model):
    """At the deadline what still runs is cut, and says so."""
    for _ in range(5):  # all may have ended before a busy machine lets this test go on
        server = Server(binary, model, "--grpc-port", "0", "--drain-timeout-s", "0")
        client = Client(server)
        threads, answers, codes = start_streams(client, 8, server.max_len - 16)
        server.process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert len(answers) + len(codes) == 8
        assert server.process.wait(timeout=60) == 0
        if codes:
            break
    assert set(codes) == {grpc.StatusCode.UNAVAILABLE}, codes


def high_water(server):
    """The most that was ever resident."""
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))


def check_strangers(binary, model):
    """Messages of who has no key are refused unread, on the clients' port and on the workers'."""
    port = free_port()
    server = Server(binary, model, "--grpc-port", "0", "--api-key", "a-key", "--threads", "1",
                    "--kv-cache-memory", "16M", "--worker-listen", f"127.0.0.1:{port}",
                    "--worker-secret", "0123456789abcdef")
    public = re.search(r"^gRPC on (\S+)", "".join(server.log), re.M).group(1)
    time.sleep(0.5)
    before, codes = high_water(server), []

    def call(place, path):
        with grpc.insecure_channel(place, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            try:
                list(channel.unary_stream(path)(b"\x0a\x80\x80\x80\x07" + b"x" * (14 << 20), timeout=60))
                codes.append(grpc.StatusCode.OK)
            except grpc.RpcError as error:
                codes.append(error.code())

    for place, path in ((public, f"/{SLUICE}/Chat"), (public, f"/{VLLM}/Generate"),
                        (f"127.0.0.1:{port}", "/sluice.worker.v1.Worker/Generate")):
        callers = [threading.Thread(target=call, args=(place, path)) for _ in range(8)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    assert codes == [grpc.StatusCode.UNAUTHENTICATED] * 24, codes
    grown = high_water(server) - before
    print(f"   24 messages of 14 MiB took {grown >> 20} MiB")
    assert grown < 48 << 20, grown
    assert server.stop() == 0


def check_large(binary, model):
    """Reading large messages holds nobody up."""
    server = Server(binary, model, "--grpc-port", "0", "--threads", "1", "--kv-cache-memory", "16M")
    client = Client(server)

    def chat(codes):
        messages = [{"role": "user", "content": "a" * 20}] * (14 * (1 << 20) // 30)
        try:
            client.call(SLUICE, "Chat", messages=messages)
        except grpc.RpcError as error:
            codes.append(error.code())

    def hold_up():
        """How long an answer took beside two chats, as a part of what is too long."""
        codes = []
        callers = [threading.Thread(target=chat, args=(codes,)) for _ in range(2)]
        for caller in callers:
            caller.start()
        slowest, begun = 0, time.monotonic()
        while any(caller.is_alive() for caller in callers):
            at = time.monotonic()
            assert json.loads(server.get("/v1/models"))["data"]
            slowest = max(slowest, time.monotonic() - at)
        took = time.monotonic() - begun
        print(f"   two chats of 14 MiB took {took:.2f} s, the slowest answer meanwhile {slowest:.3f} s")
        assert codes == [grpc.StatusCode.INVALID_ARGUMENT] * 2, codes  # longer than the context
        return 0 if took < 1 else slowest / max(0.3, took / 4)

    assert least(hold_up, 1) < 1
    assert server.stop() == 0


def check_memory(binary, model):
    """Without memory kept to take their trees apart, large messages are refused."""
    server = Server(binary, model, "--grpc-port", "0", "--threads", "1", "--kv-cache-memory", "16M")
    client = Client(server)
    messages = [{"role": "user", "content": "a"}]
    asked = (
        ("Complete", {"prompts": [{"tokens": {"ids": [1] * 100_000}}]}),
        ("Chat", {"messages": messages, "documents": [json.dumps({"a": [1] * 50_000})]}),
        ("Chat", {"messages": messages * 20_000}),
    )

    def ask():
        codes = []
        for method, fields in asked:
            try:
                client.call(SLUICE, method, **fields)
                codes.append(grpc.StatusCode.OK)
            except grpc.RpcError as error:
                codes.append(error.code())
            assert server.process.poll() is None, "".join(server.log[-20:])
        return codes

    too_long = grpc.StatusCode.INVALID_ARGUMENT
    whole = [too_long, grpc.StatusCode.OK, too_long]
    found = ask()
    assert found == whole, found
    # One large body takes both reserves. The second is enough to take its tree apart, and neither
    # fits any more. gRPC itself ends the process where it gets no memory, so it needs some.
    server.limit_address_space(server.address_space() - (100 << 20))
    connection, answer = server.post({"prompt": [1] * 1_900_000})
    server.limit_address_space(server.address_space() + (80 << 20))
    assert answer.status == 503, answer.read()
    connection.close()
    found = ask()
    assert found == [grpc.StatusCode.UNAVAILABLE] * 3, found
    server.limit_address_space()
    wait_until("the reserve is kept again", lambda: ask() == whole)
    assert server.stop() == 0


def main():
    binary, model = sys.argv[1:3]
    server = Server(binary, model, "--grpc-port", "0")
    client = Client(server)
    seconds = 30 if os.environ.get("SLUICE_FULL") else 3
    checks = (
        ("reflection", lambda: check_reflection(client)),
        ("equal", lambda: check_equal(server, client)),
        ("chat", lambda: check_chat(server, client)),
        ("errors", lambda: check_errors(client)),
        ("cancel", lambda: check_cancel(server, client)),
        ("streams", lambda: check_streams(server, client, seconds)),
        ("drain", lambda: check_drain(binary, model)),
        ("cut", lambda: check_cut(binary, model)),
        ("strangers", lambda: check_strangers(binary, model)),
        ("large", lambda: check_large(binary, model)),
        ("memory", lambda: check_memory(binary, model)),
    )
    run_checks(server, checks)


if __name__ == "__main__":
    main()
