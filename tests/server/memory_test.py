#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a serving process has resident beyond its memory plan: code, tokenizer, tables, stacks.

usage: memory_test.py SLUICE MODEL     with SLUICE_SMOLLM2: that model too

The KV cache is resident as far as it has been used and a little ahead: no more once requests find
blocks that others have given back.

The buffers of the plan are the anonymous mappings that reserve nothing and have advice on huge pages,
which tells them from stacks and heaps in smaps: their size must be in the plan, so that nothing
unplanned hides among them. The rest of the plan (frequencies, the sampler's tables) lies on the heap
and is taken off as planned.
"""
import os
import re
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from server_process import Server, wait_until

# 36 to 38 MB with two threads, of which 27 are pages of the program and its libraries; other machines
# have more threads, and libraries of other sizes.
MOST = 42 << 20
# Buffers and request of a connection that stays open.
OF_A_CONNECTION = 64 << 10
PAGE = 4096
# What an idle engine has ready behind the blocks in use; up to 2 MiB of each plane more.
AHEAD = 256 << 20


def mappings(pid):
    """(name, size, resident, flags) of each, in bytes."""
    found = []
    with open(f"/proc/{pid}/smaps") as file:
        for line in file:
            head = re.match(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \S+ *(.*)$", line)
            if head:
                found.append([head.group(3), int(head.group(2), 16) - int(head.group(1), 16), 0, []])
            elif line.startswith("Rss:"):
                found[-1][2] = 1024 * int(line.split()[1])
            elif line.startswith("VmFlags:"):
                found[-1][3] = line.split()[1:]
    return found


def planned(server, row):
    text = "".join(server.log)
    return int(re.search(rf"^ +{row} +(\d+) bytes", text, re.MULTILINE).group(1))


def beyond_the_plan(server, model):
    files, buffers, buffer_bytes, rest = 0, 0, 0, 0
    found = mappings(server.process.pid)
    for name, size, resident, flags in found:
        if name == os.path.realpath(model) or name.endswith(".packed"):
            files += resident
        elif not name and "nr" in flags and ("hg" in flags or "nh" in flags):
            buffers += resident
            buffer_bytes += size
        else:
            rest += resident
    total = planned(server, "total")
    on_heap = total - buffer_bytes - planned(server, "incomplete requests")  # none are here
    mapped = "mapped from the packed weights cache" in "".join(server.log)
    if mapped:
        on_heap -= planned(server, "weights, repacked")
    # Mappings end at whole pages.
    assert -5 * PAGE < on_heap < planned(server, "rope tables") + planned(
        server, "logits and sampling"), f"{buffer_bytes} bytes of buffers, {total} planned: {found}"
    print(f"{os.path.basename(model)}{', mapped' if mapped else ''}: {rest - on_heap} bytes beyond "
          f"the plan; resident: buffers {buffers} of {buffer_bytes}, model {files}, rest {rest}")
    return rest - on_heap


def check(binary, model, *flags):
    server = Server(binary, model, "--kv-cache-memory", "64M", *flags)
    try:
        _, response = server.post({"prompt": "Once upon a time", "max_tokens": 8})
        assert response.status == 200, response.read()
        response.read()
        assert beyond_the_plan(server, model) <= MOST
        # What requests need is in the plan, too.
        for _ in range(20):
            _, response = server.post({"prompt": "One two three " * 8, "max_tokens": 16,
                                       "ignore_eos": True, "n": 8})
            assert response.status == 200, response.read()
            response.read()
        assert beyond_the_plan(server, model) <= MOST
        assert server.stop() == 0
    finally:
        server.process.kill()


def check_the_cache_grows_with_use(binary, model):
    size = 2 << 30
    server = Server(binary, model, "--kv-cache-memory", str(size), "--huge-pages", "off",
                    "--no-enable-prefix-caching")

    def resident():
        # The system joins a mapping with equal ones beside it, so this may include other buffers:
        # of the model here at most 100 MB, resident from the start.
        bytes_, rss = max((bytes_, rss) for _, bytes_, rss, flags in mappings(server.process.pid)
                          if "nh" in flags)
        assert bytes_ > size - MOST, bytes_
        return rss

    def settled():
        before = -1
        while resident() != before:
            before = resident()
            time.sleep(0.3)
        return before
    try:
        text = "".join(server.log)
        assert "  KV cache bound by      --kv-cache-memory\n" in text, text
        start = settled()
        assert AHEAD / 2 < start < 2 * AHEAD, start
        for _ in range(5):
            _, response = server.post({"prompt": "Once upon a time", "max_tokens": 100,
                                       "ignore_eos": True, "n": 8})
            assert response.status == 200, response.read()
            response.read()
        end = settled()
        assert start <= end < 2 * AHEAD, (start, end)
        print(f"KV cache of {size} bytes: resident {start} at the start, {end} after 40 answers")
        assert server.stop() == 0
    finally:
        server.process.kill()


def check_states_of_64_streams(binary, model):
    """What the plan gives a model of recurrent layers is what 64 requests of full length take."""
    server = Server(binary, model, "--max-num-seqs", "64", "--kv-cache-memory", "auto")
    try:
        text = "".join(server.log)
        found = re.search(r"^ +states +(\d+) bytes +(\d+) of .*, for 64 requests at once$", text,
                          re.MULTILINE)
        assert found, text
        total = int(server.metric("sluice_states_total"))
        assert total == int(found.group(2)), text
        most, ended = 0, []

        def stream(number):
            ids = [(number * 37 + i * i) % 250 for i in range(40)]
            _, response = server.post({"prompt": ids, "max_tokens": server.max_len - 40,
                                       "ignore_eos": True})
            response.read()
            ended.append(response.status)
        for _ in range(5):  # the first one may end before a busy machine has begun the last
            threads = [threading.Thread(target=stream, args=(i,)) for i in range(64)]
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                most = max(most, int(server.metric("sluice_states_used")))
                time.sleep(0.02)
            if most >= 64:
                break
        assert set(ended) == {200}, ended
        assert 64 <= most <= total, (most, total)
        assert server.metric("vllm:num_preemptions_total") == 0
        assert beyond_the_plan(server, model) <= MOST + 64 * OF_A_CONNECTION
        buffers = sum(size for name, size, _, flags in mappings(server.process.pid)
                      if not name and "nr" in flags and ("hg" in flags or "nh" in flags))
        plan = planned(server, "total") - planned(server, "incomplete requests")
        assert 0.98 * plan <= buffers <= 1.02 * plan, (buffers, plan)
        print(f"64 streams: {most} of {total} states in use, buffers of {buffers} bytes, planned {plan}")
        assert server.stop() == 0
    finally:
        server.process.kill()


def has_file(folder):
    return any(name.endswith(".packed") for name in os.listdir(folder))


def main():
    binary, *models = sys.argv[1:]
    golden = os.path.dirname(os.path.dirname(os.path.abspath(models[0])))
    check_states_of_64_streams(binary, os.path.join(golden, "models", "engine-delta.gguf"))
    if os.environ.get("SLUICE_SMOLLM2"):
        models.append(os.environ["SLUICE_SMOLLM2"])
    for model in models:
        check_the_cache_grows_with_use(binary, model)
        check(binary, model)
        with tempfile.TemporaryDirectory() as folder:
            flags = ["--packed-weights-cache", folder]
            writer = Server(binary, model, *flags)
            try:
                wait_until("the packed weights are written", lambda: has_file(folder), 60)
            finally:
                writer.stop()
            check(binary, model, *flags)


if __name__ == "__main__":
    main()
