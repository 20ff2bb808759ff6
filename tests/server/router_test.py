#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two servers behind routers of others: vllm-router (HTTP) and smg (HTTP and gRPC).

usage: router_test.py BINARY MODEL

Needs the packages of tests/router_requirements.txt, of this interpreter or of the one that
SLUICE_ROUTER_PYTHON names; exit code 77 without them.
"""
import argparse
import contextlib
import hashlib
import io
import json
import os
import signal
import sys
import tempfile
import threading
import time
import zipfile

from router_process import (CHAT, COMPLETIONS, MESSAGES, Router, Worker, long_body, python_beside,
                            stream_text, text_of)
from server_process import SKIPPED, wait_until


def check_chat(router, workers):
    body = {"messages": MESSAGES, "max_tokens": 12, "temperature": 0}
    connection, response = workers[0].post(body, CHAT)
    with contextlib.closing(connection):
        expected = json.loads(response.read())
    for _ in range(3):
        answer = router.answer(CHAT, body)
        assert text_of(answer) == text_of(expected), (answer, expected)
        assert answer["usage"]["prompt_tokens"] == expected["usage"]["prompt_tokens"]
        assert answer["choices"][0]["finish_reason"] == expected["choices"][0]["finish_reason"]


def check_stream(router, workers):
    body = {"messages": MESSAGES, "max_tokens": 12, "temperature": 0}
    connection, response = workers[0].post(body, CHAT)
    with contextlib.closing(connection):
        expected = text_of(json.loads(response.read()))
    connection, response = router.post(CHAT, {**body, "stream": True})
    with contextlib.closing(connection):
        assert stream_text(response) == expected


def check_completions(router, workers):
    body = {"prompt": "The answer, naïve 12345", "max_tokens": 12, "temperature": 0}
    connection, response = workers[0].post(body)
    with contextlib.closing(connection):
        expected = text_of(json.loads(response.read()))
    assert text_of(router.answer(COMPLETIONS, body)) == expected
    connection, response = router.post(COMPLETIONS, {**body, "stream": True})
    with contextlib.closing(connection):
        assert stream_text(response) == expected


def check_abort(router, workers):
    for _ in workers:
        connection, response = router.post(CHAT, long_body(workers[0]))
        assert response.status == 200, response.read()
        response.readline()
        connection.close()
    for worker in workers:
        wait_until("the worker hears that its client left", worker.is_idle)
    assert sum(worker.num_aborted() for worker in workers) > 0, "all ended before they were left"


def check_drain(router, workers):
    """One worker ends while its streams run: they are whole, and the other takes what comes."""
    streams = [router.post(CHAT, long_body(workers[0])) for _ in range(4)]
    results = []
    readers = [threading.Thread(target=lambda r=response: results.append(stream_text(r)))
               for _, response in streams]
    for reader in readers:
        reader.start()
    workers[0].process.send_signal(signal.SIGTERM)
    for reader in readers:
        reader.join(timeout=60)
    for connection, _ in streams:
        connection.close()
    assert len(results) == len(streams), f"{len(results)} of {len(streams)} streams are whole"
    assert workers[0].process.wait(timeout=60) == 0
    body = {"messages": MESSAGES, "max_tokens": 4}
    for _ in range(8):
        router.answer(CHAT, body)


# Both smg and sglang-router bring a program of the name smg.
SMG = [sys.executable, "-m", "smg", "launch"]
CHECKS = (("chat", check_chat), ("stream", check_stream), ("completions", check_completions),
          ("abort", check_abort), ("drain", check_drain))


def check_router(name, command, scheme, args, folder):
    workers = [Worker(args.binary, args.model, "--threads", "1") for _ in range(2)]
    router = Router(command, ["--worker-urls", *(getattr(worker, scheme) for worker in workers)],
                    folder)
    try:
        wait_until(f"{name} is ready", router.is_ready, seconds=30)
        for title, check in CHECKS:
            started = time.monotonic()
            check(router, workers)
            print(f"ok {name}: {title} ({time.monotonic() - started:.1f} s)", flush=True)
    except BaseException:
        print(router.log())
        raise
    finally:
        router.stop()
        for worker in workers:
            worker.process.kill()
            worker.process.wait()


def fetch_tokenizer(worker):
    """The files of GetTokenizer by name, as smg reads them."""
    import grpc
    from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2_grpc
    with grpc.insecure_channel(worker.grpc_url.removeprefix("grpc://")) as channel:
        stub = vllm_engine_pb2_grpc.VllmEngineStub(channel)
        chunks = list(stub.GetTokenizer(common_pb2.GetTokenizerRequest(), timeout=60))
    data = b"".join(chunk.data for chunk in chunks)
    assert chunks[-1].sha256 == hashlib.sha256(data).hexdigest()
    assert not any(chunk.sha256 for chunk in chunks[:-1])
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


TEXTS = ("", " ", "Hello, world!", "  two  spaces\n\n\tand more ", "can't WON'T 12345 1,234.5",
         "naïve café e\u0301 你好 😀 ▁x",
         "def f(x):\n    return x ** 2  # ok\n" * 3)


def check_tokenizer(args):
    """The ids of the `tokenizers` package with our tokenizer.json are ours."""
    import tokenizers
    worker = Worker(args.binary, args.model, "--threads", "1")
    try:
        files = fetch_tokenizer(worker)
        config = json.loads(files["tokenizer_config.json"])
        tokenizer = tokenizers.Tokenizer.from_str(files["tokenizer.json"].decode())
        assert config["chat_template"]
        assert json.loads(files["generation_config.json"])["eos_token_id"]
        for text in TEXTS:
            for special in (True, False):
                connection, response = worker.post(
                    {"prompt": text, "add_special_tokens": special}, "/tokenize")
                with contextlib.closing(connection):
                    ours = json.loads(response.read())["tokens"]
                theirs = tokenizer.encode(text, add_special_tokens=special).ids
                assert not text or theirs == ours, (text, theirs, ours)
        print("ok tokenizer.json", flush=True)
    finally:
        worker.process.kill()
        worker.process.wait()


def check_cache(args, folder):
    """What smg reads of the prefix cache's changes, and its flush, in its own messages."""
    import grpc
    from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2_grpc
    events = json.dumps({"enable_kv_cache_events": True, "endpoint": f"ipc://{folder}/kv"})
    worker = Worker(args.binary, args.model, "--threads", "1", "--kv-events-config", events)
    prompt = "Once upon a time there was a prompt of several blocks, and then some more of it."

    def cached_tokens():
        connection, response = worker.post({"prompt": prompt, "max_tokens": 1})
        with contextlib.closing(connection):
            return json.loads(response.read())["usage"]["prompt_tokens_details"]["cached_tokens"]

    try:
        connection, response = worker.post({"prompt": prompt}, "/tokenize")
        with contextlib.closing(connection):
            ids = json.loads(response.read())["tokens"]
        with grpc.insecure_channel(worker.grpc_url.removeprefix("grpc://")) as channel:
            stub = vllm_engine_pb2_grpc.VllmEngineStub(channel)
            batches = stub.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest(), timeout=60)
            first = next(batches)
            assert first.sequence_number == 0 and first.events[0].HasField("cleared"), first
            assert cached_tokens() == 0
            batch = next(batches)
            assert batch.sequence_number == 1, batch
            blocks = batch.events[0].stored.blocks
            told = [token for block in blocks for token in block.token_ids]
            assert told and told == ids[:len(told)], (told, ids)
            assert blocks[0].block_size == len(told) // len(blocks)
            assert batch.events[0].stored.tier == common_pb2.KV_CACHE_TIER_DEVICE
            assert cached_tokens() >= blocks[0].block_size
            assert stub.FlushCache(common_pb2.FlushCacheRequest(timeout_s=10), timeout=60).success
            while not any(event.HasField("cleared") for event in batch.events):
                batch = next(batches)
            assert cached_tokens() == 0
            batches.cancel()
        print("ok prefix cache over gRPC", flush=True)
    finally:
        worker.process.kill()
        worker.process.wait()


def main():
    programs = python_beside("vllm-router", "smg")
    if programs is None:
        return SKIPPED
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("model")
    args = parser.parse_args()
    args.binary, args.model = os.path.abspath(args.binary), os.path.abspath(args.model)
    with tempfile.TemporaryDirectory() as folder:
        check_tokenizer(args)
        check_cache(args, folder)
        for name, command, scheme in (
                ("vllm-router, HTTP", [os.path.join(programs, "vllm-router")], "http_url"),
                ("smg, HTTP", SMG, "http_url"),
                ("smg, gRPC", SMG, "grpc_url")):
            check_router(name, command, scheme, args, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
