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
NUM_PROMPTS = 6  # of 40 blocks; the disk has room for 160 or so


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


def told(events, medium):
    """Hashes of the blocks that lie there, by what the events say, and of all that ever did."""
    there, ever = set(), set()
    for event in events:
        if event.get("medium") != medium:
            continue
        hashes = event["block_hashes"]
        if event["type"] == "BlockStored":
            assert not there.intersection(hashes), "stored twice"
            there.update(hashes)
            ever.update(hashes)
        else:
            assert event["type"] == "BlockRemoved" and there.issuperset(hashes), event
            there.difference_update(hashes)
    return there, ever


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


def prompt(first):
    return [10 + (first + i * i) % 50 for i in range(40 * BLOCK + 1)]


def check_tiers(server, client, folder):
    """What is computed is told of in memory and on disk, under the hashes of the cache, and what
    does not fit on disk any more is told too."""
    for count in range(1, NUM_PROMPTS + 1):
        complete(server, prompt(count - 1))
        # A tier that is behind has no buffers for the next prompt, whose blocks it would then never get.
        for medium in ("CPU", "STORAGE"):
            wait_until(f"a prompt is told of in {medium}", lambda: len(
                told(events_of(replay(client)), medium)[1]) == 40 * count, seconds=60)

    def settled():
        events = events_of(replay(client))
        on_disk, ever_on_disk = told(events, "STORAGE")
        in_memory, _ = told(events, "CPU")
        cached, _ = told(events, "GPU")
        return (len(cached) == 40 * NUM_PROMPTS and in_memory == ever_on_disk == cached and
                len(on_disk) == len(kv_files(folder)) < len(ever_on_disk))
    wait_until("tiers are told", settled)


def kv_files(folder):
    return [name for _, _, names in os.walk(folder) for name in names if name.endswith(".kv")]


def check_restart(server, client, num_files):
    """After a restart nothing is said of the disk before somebody asks for it."""
    events = events_of(replay(client))
    assert events == [{"type": "AllBlocksCleared"}], events
    for first in range(NUM_PROMPTS):
        complete(server, prompt(first))
    wait_until("the disk is told", lambda: len(told(events_of(replay(client)), "GPU")[0]) == 40 * NUM_PROMPTS)
    events = events_of(replay(client))
    on_disk, _ = told(events, "STORAGE")
    assert 0 < len(on_disk) <= num_files, len(on_disk)
    assert on_disk <= told(events, "GPU")[0]
    first = next(event for event in events if event.get("medium") == "STORAGE")
    assert first["parent_block_hash"] is None and first["token_ids"][:BLOCK] == prompt(0)[:BLOCK]


def main():
    binary, model = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder, zmq.Context() as context:
        place = "ipc://" + os.path.join(folder, "events")
        config = {"enable_kv_cache_events": True, "publisher": "zmq", "topic": "kv@test@m",
                  "endpoint": place, "replay_endpoint": place + "-replay"}
        words = ["--kv-events-config", json.dumps(config)]
        disk = os.path.join(folder, "disk")
        on_disk = ["--kv-disk-path", disk, "--kv-disk-size", "1MiB"]

        def run(words, name, check):
            server = Server(binary, model, *words)
            with context.socket(zmq.DEALER) as client:
                client.linger = 0
                client.connect(config["replay_endpoint"])
                run_checks(server, [(name, lambda: check(server, client))])

        run(words, "events", check_events)
        run([*words, *on_disk, "--kv-offloading-size", "1"], "tiers",
            lambda server, client: check_tiers(server, client, disk))
        num_files = len(kv_files(disk))
        run([*words, *on_disk], "restart",
            lambda server, client: check_restart(server, client, num_files))


if __name__ == "__main__":
    main()
