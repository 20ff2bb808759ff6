#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A router's view of the prefix cache: its events, decoded with pyzmq and msgpack as routers do, name
exactly the blocks of the prompts that were sent.

usage: kv_events_test.py BINARY MODEL

Needs the `pyzmq` and `msgpack` packages, of this interpreter or of the one that SLUICE_TEST_PYTHON
names; exit code 77 without them.
"""
import contextlib
import json
import os
import sys
import tempfile

from server_process import Server, needs, run_checks, wait_until

needs("msgpack", "zmq")

import msgpack
import zmq

BLOCK = 16


def complete(server, prompt):
    connection, response = server.post({"prompt": prompt, "max_tokens": 2, "temperature": 0})
    with contextlib.closing(connection):
        assert response.status == 200, response.read()
        response.read()


def replay(client):
    """All messages so far, with their numbers."""
    client.send_multipart([b"", (0).to_bytes(8, "big")])
    messages = []
    while True:
        assert client.poll(20000), "no answer to a replay"
        empty, number, payload = client.recv_multipart()
        assert empty == b""
        if not payload:
            assert int.from_bytes(number, "big", signed=True) == -1
            return messages
        messages.append((int.from_bytes(number, "big"), msgpack.unpackb(payload)))


def events_of(messages):
    return [event for _, (_, events, _) in messages for event in events]


def check_events(server, client):
    shared = [5 + i % 50 for i in range(2 * BLOCK)]
    first, second = shared + [7] * BLOCK, shared + [9] * BLOCK
    complete(server, first)
    complete(server, second)
    wait_until("four blocks are told", lambda: 4 == sum(
        len(event.get("block_hashes", [])) for event in events_of(replay(client))))
    messages = replay(client)
    numbers = [number for number, _ in messages]
    assert numbers == list(range(len(numbers))), numbers
    events = events_of(messages)
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
    assert sorted(chains.values()) == sorted([shared[:BLOCK], shared, first, second]), chains


def main():
    binary, model = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder, zmq.Context() as context:
        place = "ipc://" + os.path.join(folder, "events")
        config = {"enable_kv_cache_events": True, "publisher": "zmq", "topic": "kv@test@m",
                  "endpoint": place, "replay_endpoint": place + "-replay"}
        server = Server(binary, model, "--kv-events-config", json.dumps(config))
        with context.socket(zmq.DEALER) as client:
            client.linger = 0
            client.connect(config["replay_endpoint"])
            run_checks(server, [("events", lambda: check_events(server, client))])


if __name__ == "__main__":
    main()
