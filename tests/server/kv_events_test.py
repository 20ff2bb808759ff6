#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A router's view: kv_events_test.py SLUICE MODEL. Decodes the stream with pyzmq and msgpack, as the
routers do, and checks that it names exactly the blocks of the prompts that were sent."""

import json
import os
import subprocess
import sys
import time
import urllib.request

if os.environ.get("SLUICE_TEST_PYTHON") and sys.executable != os.environ["SLUICE_TEST_PYTHON"]:
    os.execv(os.environ["SLUICE_TEST_PYTHON"], [os.environ["SLUICE_TEST_PYTHON"], *sys.argv])
try:
    import msgpack
    import zmq
except ImportError:
    print("skipped: pyzmq and msgpack are not installed")
    sys.exit(77)

BLOCK = 16


def free_ports(count):
    import socket
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def wait_for_port(server):
    for line in server.stdout:
        if line.startswith("serving "):
            return int(line.rsplit(":", 1)[1].split()[0].rstrip("/"))
    raise AssertionError("the server ended before it served")


def complete(port, prompt):
    body = json.dumps({"model": "m", "prompt": prompt, "max_tokens": 2, "temperature": 0})
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body.encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def replay(context, port, count):
    client = context.socket(zmq.DEALER)
    client.connect(f"tcp://127.0.0.1:{port}")
    deadline = time.time() + 20
    while True:
        client.send_multipart([b"", (0).to_bytes(8, "big")])
        messages = []
        while True:
            assert client.poll(20000), "no answer to a replay"
            empty, number, payload = client.recv_multipart()
            assert empty == b""
            if not payload:
                assert int.from_bytes(number, "big", signed=True) == -1
                break
            messages.append((int.from_bytes(number, "big"), msgpack.unpackb(payload)))
        stored = sum(len(event["block_hashes"]) for _, (_, events, _) in messages
                     for event in events if event["type"] == "BlockStored")
        if stored >= count:
            return messages
        assert time.time() < deadline, f"{stored} of {count} blocks were told"
        time.sleep(0.05)


def main():
    sluice, model = sys.argv[1:]
    pub, router = free_ports(2)
    config = {"enable_kv_cache_events": True, "publisher": "zmq", "topic": "kv@test@m",
              "endpoint": f"tcp://*:{pub}", "replay_endpoint": f"tcp://*:{router}"}
    server = subprocess.Popen(
        [sluice, "vllm", "serve", model, "--port", "0", "--served-model-name", "m",
         "--kv-events-config", json.dumps(config)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    context = zmq.Context()
    try:
        port = wait_for_port(server)
        shared = [5 + i % 50 for i in range(2 * BLOCK)]
        first = shared + [7] * BLOCK
        second = shared + [9] * BLOCK
        complete(port, first)
        complete(port, second)
        messages = replay(context, router, 4)
        numbers = [number for number, _ in messages]
        assert numbers == list(range(len(numbers))), numbers
        events = [event for _, (_, events, _) in messages for event in events]
        assert events[0] == {"type": "AllBlocksCleared"}
        chains = {None: []}  # by hash: the tokens of the whole prefix
        for event in events[1:]:
            assert event["type"] == "BlockStored" and event["block_size"] == BLOCK, event
            before = chains[event["parent_block_hash"]]
            for i, block in enumerate(event["block_hashes"]):
                before = before + event["token_ids"][i * BLOCK:(i + 1) * BLOCK]
                assert block not in chains
                chains[block] = before
        del chains[None]
        expected = [shared[:BLOCK], shared, first, second]
        assert sorted(chains.values()) == sorted(expected), chains
    finally:
        server.terminate()
        server.wait(20)
        context.destroy(linger=0)


main()
