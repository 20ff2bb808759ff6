#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One model over several processes (--nnodes): the bits of one process, and what happens when a
process, its link or its settings are not what the others need.

usage: nodes_test.py BINARY MODEL [--links SHARD/SHARDS]
    --links  nothing but that part of the 200 seeds of faults of links, of which else a few are drawn
"""
import atexit
import concurrent.futures
import contextlib
import http.client
import json
import math
import mmap
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from fault_proxy import KINDS, Fault, Plan, Proxy
from node_processes import BOTH, FLAGS, RANKS, SECRET, STAGES, Follower, Nodes, answers, shares
from server_process import PATIENCE_S, Server, free_port, rss_of, wait_until

WEIGHTS = "weights, repacked"  # a row of the plan
# How much less a process must hold that has half of the weights, of which 0.49 and more are measured: heaps
# and stacks of more threads have up to 2 MiB each where all memory is in huge pages.
MUST_SAVE = 0.35
BREAKS_OFF = "it breaks off"  # a stream without an end and without an error


def check_bits(binary, model, expected):
    drafts = ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}']
    variants = [("auto", RANKS, []), ("tcp", RANKS, ["--activation-bits", "32"]),
                ("shm", RANKS, ["--kv-cache-dtype", "int8", "--max-num-batched-tokens", "16"]),
                ("tcp", RANKS, drafts), ("shm", STAGES, []), ("tcp", STAGES, []), ("shm", BOTH, []),
                ("tcp", BOTH, [])]
    if os.environ.get("SLUICE_FULL"):
        variants += [("shm", STAGES, drafts), ("tcp", STAGES, [RANKS, "2"])]
    for transport, by, flags in variants:
        size = 4 if by == BOTH else 2
        nodes = Nodes(binary, model, size, [*flags, "--kv-transport", transport], by=by)
        try:
            if flags:
                one = Server(binary, model, *FLAGS, *flags)
                wanted = answers(one)
                assert one.stop() == 0
            else:
                wanted = expected
            assert all(status == 200 for status, *_ in wanted), wanted
            assert answers(nodes.leader) == wanted, (transport, by, flags)
            name = "TCP" if transport == "tcp" else "shared memory"
            assert nodes.leader.stop() == 0
            log = nodes.leader.whole_log()
            assert any("ranks_connected" in line and name in line for line in log.splitlines()), log
            for follower in nodes.followers:
                code, log = follower.end()
                assert code == 0, (code, log)
        finally:
            nodes.kill()
        print(f"ok {size} processes by {by} over {transport} {flags}", flush=True)


def write_large_model(folder):
    """A model whose weights are most of a process's memory: 12 layers of BF16, 84 MiB."""
    golden = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden")
    with open(os.path.join(golden, "models/llama/config.json")) as file:
        config = json.load(file)
    hidden, ffn, heads, kv_heads, width, layers, vocab = 512, 2048, 8, 2, 64, 12, 451
    config.update(hidden_size=hidden, intermediate_size=ffn, num_attention_heads=heads,
                  num_key_value_heads=kv_heads, head_dim=width, num_hidden_layers=layers,
                  vocab_size=vocab, max_position_embeddings=512, tie_word_embeddings=False)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)
    shutil.copy(os.path.join(golden, "tokenizer/json/qwen.json"), os.path.join(folder, "tokenizer.json"))
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,),
              "lm_head.weight": (vocab, hidden)}
    for layer in range(layers):
        for name, shape in {"input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
                            "self_attn.q_proj": (heads * width, hidden),
                            "self_attn.k_proj": (kv_heads * width, hidden),
                            "self_attn.v_proj": (kv_heads * width, hidden),
                            "self_attn.o_proj": (hidden, heads * width),
                            "mlp.gate_proj": (ffn, hidden), "mlp.up_proj": (ffn, hidden),
                            "mlp.down_proj": (hidden, ffn)}.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    random_bytes = random.Random(7)
    # The high bytes become those of numbers of either sign between 1/128 and 1/32.
    high = bytes(0x3C | (i & 0x80) for i in range(256))
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in shapes.values():
            data = bytearray(random_bytes.randbytes(2 * math.prod(shape)))
            data[1::2] = data[1::2].translate(high)
            file.write(data)


def planned(binary, model, *flags):
    """The plan's rows in bytes, by name."""
    done = subprocess.run([binary, "serve", model, *FLAGS, *flags, "--dry-run"], capture_output=True,
                          text=True, check=True, timeout=60)
    return {name: int(size) for name, size in re.findall(r"^  (\S.*?) +(\d+) bytes", done.stdout, re.MULTILINE)}


class MemoryGroup:
    """A control group with a limit of memory, for one process."""

    def __init__(self, name, limit):
        with open("/proc/self/cgroup") as file:
            own = {fields[1]: fields[2] for fields in (line.strip().split(":", 2) for line in file)}
        if "memory" in own:
            parent, limits = "/sys/fs/cgroup/memory" + own["memory"], "memory.limit_in_bytes"
        else:
            parent, limits = "/sys/fs/cgroup" + own.get("", "/"), "memory.max"
        self.folder = os.path.join(parent, f"sluice-nodes-{os.getpid()}-{name}")
        os.mkdir(self.folder)
        atexit.register(self.remove)
        with open(os.path.join(self.folder, limits), "w") as file:
            file.write(str(limit))

    def command(self, folder, binary):
        """A program that runs the binary in this group."""
        path = os.path.join(folder, os.path.basename(self.folder))
        with open(path, "w") as file:
            file.write(f'#!/bin/sh\necho $$ > {self.folder}/cgroup.procs || exit 9\nexec {binary} "$@"\n')
        os.chmod(path, 0o755)
        return path

    def remove(self):
        for _ in range(100):  # a process that has ended is in it for a moment
            try:
                return os.rmdir(self.folder)
            except OSError:
                time.sleep(0.05)


def packed_files(folder):
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return [name for name in names if not name.endswith(".partial")]


def check_stages(binary, folder, flags, whole, whole_rss, expected):
    """A process holds the weights and the KV of its stage's layers, and no others."""
    spread = [*flags, "--nnodes", "2", STAGES, "2"]
    stages = [planned(binary, folder, *spread, "--node-rank", str(rank)) for rank in (0, 1)]
    assert sum(stage[WEIGHTS] for stage in stages) == whole[WEIGHTS], (whole, stages)
    assert 0.48 < stages[1][WEIGHTS] / whole[WEIGHTS] < 0.5, (whole, stages)
    nodes = Nodes(binary, folder, 2, flags, by=STAGES)
    try:
        assert answers(nodes.leader) == expected
        for process in (nodes.leader.process, nodes.followers[0].process):
            saved = whole_rss - rss_of(process.pid)
            assert saved > MUST_SAVE * whole[WEIGHTS], (process.args, saved)
        assert nodes.leader.stop() == 0 and nodes.followers[0].end()[0] == 0
    finally:
        nodes.kill()
    print(f"ok stages: {[stage[WEIGHTS] for stage in stages]} of {whole[WEIGHTS]} bytes",
          flush=True)


def check_share(binary):
    """A process holds its rank's weights: a model that is too large for one is served by two."""
    with tempfile.TemporaryDirectory() as folder:
        write_large_model(folder)
        flags = ["--max-model-len", "256", "--max-num-batched-tokens", "64"]
        one = Server(binary, folder, *FLAGS, *flags)
        whole = planned(binary, folder, *flags)
        expected = answers(one)
        whole_rss = one.rss()
        assert one.stop() == 0
        spread = [*flags, "--nnodes", "2", "--tensor-parallel-size", "2"]
        shares = [planned(binary, folder, *spread, "--node-rank", str(rank)) for rank in (0, 1)]
        for share in shares:
            assert 0.5 <= share[WEIGHTS] / whole[WEIGHTS] < 0.52, (whole, shares)
        check_stages(binary, folder, flags, whole, whole_rss, expected)
        cache = os.path.join(folder, "packed")
        time.sleep(2.2)  # files that have just changed are not packed for the next start
        for packs in (True, False):
            nodes = Nodes(binary, folder, 2, [*flags, "--packed-weights-cache", cache])
            try:
                assert answers(nodes.leader) == expected
                if packs:
                    for process in (nodes.leader.process, nodes.followers[0].process):
                        saved = whole_rss - rss_of(process.pid)
                        assert saved > MUST_SAVE * whole[WEIGHTS], (process.args, saved)
                    wait_until("each node packs its share", lambda: len(packed_files(cache)) == 2)
                assert nodes.leader.stop() == 0
                log = nodes.leader.whole_log()
                assert packs or "mapped from the packed weights cache" in log, log
            finally:
                nodes.kill()
        print(f"ok shares: {[share[WEIGHTS] for share in shares]} of {whole[WEIGHTS]} bytes", flush=True)

        limit = int(whole["total"] - 0.25 * whole[WEIGHTS]) + (40 << 20)
        try:
            groups = [MemoryGroup(name, limit) for name in ("leader", "follower")]
        except OSError as error:
            print(f"ok share in limited memory: left out, no control groups here: {error}")
            return
        lead, follow = (group.command(folder, binary) for group in groups)
        done = subprocess.run([lead, "serve", folder, "--port", "0", *FLAGS, *flags],
                              capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 1 and "memory plan" in done.stderr, done
        nodes = Nodes(lead, folder, 2, flags, follower=follow)
        try:
            assert answers(nodes.leader) == expected
            assert nodes.leader.stop() == 0
        finally:
            nodes.kill()
        print(f"ok two processes of {limit} bytes each serve what one of them refuses", flush=True)


def stream_until_the_end(server, started):
    """Streams a long answer; returns its text and the error that ended it."""
    text, error, is_done = "", None, False
    try:
        connection, response = server.post({"prompt": "Hello", "max_tokens": 1500, "ignore_eos": True,
                                            "temperature": 0, "stream": True})
        if response.status != 200:
            error = response.read()
        for raw in response:
            line = raw.decode().rstrip("\n")
            is_done = is_done or line == "data: [DONE]"
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                error = event.get("error", error)
                text += "".join(choice["text"] for choice in event.get("choices", ()))
                started.set()
        connection.close()
    except (OSError, http.client.HTTPException) as broken:
        error = error or repr(broken)
    return text, error or (None if is_done else BREAKS_OFF)


def stream_until_lost(server, started, wanted):
    """Streams answers until one ends with an error; returns the text of that one and the error. However
    fast the machine is, one is under way whatever happens then."""
    while True:
        text, error = stream_until_the_end(server, started)
        if error is not None:
            return text, error
        assert text == wanted, "an answer ended as if it were whole"


@contextlib.contextmanager
def streaming(server, wanted):
    """While answers are streamed; gives the text and the error of the last one, to come."""
    started = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(stream_until_lost, server, started, wanted)
        try:
            assert started.wait(PATIENCE_S)
            yield answer
        except BaseException:
            server.process.kill()  # else the answers go on
            raise


def check_lost(binary, model, wanted, transport, victim, how, words, by=RANKS):
    """A process is lost while an answer is streamed: the others end soon, and say why."""
    nodes = Nodes(binary, model, 2, ["--kv-transport", transport], by=by)
    try:
        with streaming(nodes.leader, wanted) as answer:
            ends = {"leader": nodes.leader, "follower": nodes.followers[0]}
            begun, lost = time.monotonic(), ends.pop(victim).process
            lost.send_signal(how)
            other, = ends.values()
            code = other.process.wait(PATIENCE_S)
            seconds = time.monotonic() - begun
            log = other.whole_log()
            assert code == 1 and words in log, (code, log)
            lost.kill()
            text, error = answer.result(PATIENCE_S)
            assert wanted.startswith(text), text
            assert victim == "leader" or error != BREAKS_OFF, "the leader says nothing to its client"
        print(f"ok {victim} lost by {how.name} over {transport} {by}: the other ends after {seconds:.1f} s",
              flush=True)
    finally:
        nodes.kill()


def check_lost_rank(binary, model, wanted, transport, victim, how):
    """One of the ranks of two stages is lost while an answer is streamed: the leader and the rank that
    shares its stage know which it was, and all end."""
    nodes = Nodes(binary, model, 4, ["--kv-transport", transport], by=BOTH)
    try:
        with streaming(nodes.leader, wanted) as answer:
            begun, lost = time.monotonic(), nodes.followers[victim - 1]
            lost.process.send_signal(how)
            others = [nodes.leader, *(follower for follower in nodes.followers if follower is not lost)]
            assert [other.process.wait(PATIENCE_S) for other in others] == 3 * [1]
            seconds = time.monotonic() - begun
            for log in (other.whole_log() for other in others):
                assert f"rank {victim} at 127.0.0.1:" in log, log
            text, error = answer.result(PATIENCE_S)
            assert wanted.startswith(text) and error != BREAKS_OFF, (text, error)
        print(f"ok rank {victim} of 2 x 2 lost by {how.name} over {transport}: {seconds:.1f} s", flush=True)
    finally:
        nodes.kill()


def shared_file(process):
    """The memory that a node shares, as a file."""
    folder = f"/proc/{process.pid}/fd"
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if "memfd:sluice-ranks" in os.readlink(f"{folder}/{name}"):
                return open(f"{folder}/{name}", "r+b")
    raise AssertionError(f"process {process.pid} shares no memory")


def change_words(process, share, is_over):
    """Changes a word of each part in the first share of the memory, again and again."""
    with shared_file(process) as file, mmap.mmap(file.fileno(), 0) as memory:
        end = 4096 + int(share * (len(memory) - 4096))
        while not is_over():
            for at in range(4096, end, 4096):  # behind the page of signs; 24 bytes may be a header
                memory[at + 27] ^= 0x3f  # a float's exponent


def check_memory(binary, model, wanted, by):
    """A word that changes in shared memory ends the group; nothing wrong is given out."""
    nodes = Nodes(binary, model, 2, ["--kv-transport", "shm"], by=by)
    try:
        with streaming(nodes.leader, wanted) as answer:
            leader, follower = nodes.leader.process, nodes.followers[0]
            # Parts of a layer are read where they lie: of rank 0's, which come first, rank 1 may have read a
            # word before it changes or compute with it after it has checked the part, which the next
            # comparison finds. After that of the last part of rank 1 there is none.
            change_words(leader, 0.5 if by == RANKS else 1, lambda: leader.poll() is not None or answer.done())
            text, error = answer.result(PATIENCE_S)
        assert wanted.startswith(text), (text[-80:], error)
        assert leader.wait(PATIENCE_S) == 1 and follower.end()[0] == 1
        words = re.compile(r"rank [01]: (its part of exchange \d+ is not what it sent"
                           r"|what it computed before exchange \d+ differs)")
        for log in (nodes.leader.whole_log(), follower.whole_log()):
            assert words.search(log), log
        print(f"ok a word changed in shared memory {by}: {len(text)} of {len(wanted)} characters", flush=True)
    finally:
        nodes.kill()


def dialling(binary, model, port, *flags):
    """Node 1 of two, which looks for node 0."""
    follower = Follower(binary, model, "--node-rank", "1", *shares(RANKS, 2), "--master-port", str(port), *flags)
    wait_until("it dials", lambda: any("probes" in line for line in follower.log))
    return follower


def check_ends(binary, model, wanted):
    """Who is asked to end lets all end in order: no stream is cut."""
    for victims in (("leader", "follower"), ("follower",)):
        nodes = Nodes(binary, model, 2, ["--drain-timeout-s", "600"])
        try:
            started = [threading.Event() for _ in range(3)]
            with concurrent.futures.ThreadPoolExecutor(3) as pool:
                streams = [pool.submit(stream_until_the_end, nodes.leader, event) for event in started]
                assert all(event.wait(PATIENCE_S) for event in started)
                if "leader" in victims:
                    nodes.leader.process.send_signal(signal.SIGTERM)
                for follower in nodes.followers[:None if "leader" in victims else 1]:
                    follower.process.send_signal(signal.SIGTERM)
                assert [stream.result() for stream in streams] == 3 * [(wanted, None)]
            assert nodes.leader.process.wait(PATIENCE_S) == 0, nodes.leader.log
            for follower in nodes.followers:
                code, log = follower.end()
                assert code == 0, (code, log)
        finally:
            nodes.kill()
        print(f"ok SIGTERM to {' and '.join(victims)} during streams: all whole", flush=True)
    follower = dialling(binary, model, free_port())
    follower.process.send_signal(signal.SIGTERM)
    assert follower.end()[0] in (-signal.SIGTERM, 128 + signal.SIGTERM)


def check_refusals(binary, model):
    """What does not fit together is refused by name, at both ends where both know."""
    def refused(leader_flags, follower_flags, at_follower, at_leader=None):
        port = free_port()
        follower = dialling(binary, model, port, *follower_flags)  # several times a second
        leader = Follower(binary, model, *shares(RANKS, 2), "--master-port", str(port),
                          "--rank-init-timeout", "4", *leader_flags)
        code, log = follower.end()
        assert code in (1, 2) and at_follower in log, (code, log)
        code, log = leader.end()
        assert code in (1, 2) and (at_leader or at_follower) in log, log

    refused(SECRET, ["--worker-secret", "another secret of this test"], "rank 0 has another --worker-secret",
            "rank 1; refused: 127.0.0.1:")
    refused(["--block-size", "32", *SECRET], SECRET,
            "--block-size: found 16 on node 1, node 0 has 32")
    refused(["--activation-bits", "16", *SECRET], SECRET,
            "--activation-bits: found 8 on node 1, node 0 has 16")
    # Alone, and what contradicts itself.
    for flags, words, code in [
            (["--nnodes", "2"], "--tensor-parallel-size: found 1, expected --nnodes, 2", 2),
            (["--nnodes", "3", STAGES, "2", RANKS, "2"],
             "--pipeline-parallel-size: found 2, expected --nnodes, 3: each node has one stage", 2),
            (["--nnodes", "2", "--tensor-parallel-size", "2", "--node-rank", "2"],
             "--node-rank: found 2, expected less than --nnodes, 2", 2),
            (["--node-rank", "1"], "--node-rank: found 1, expected less than --nnodes, 1", 2),
            (["--nnodes", "2", "--tensor-parallel-size", "2", "--kv-listen", "127.0.0.1:0"],
             "--nnodes: found more than 1 with --kv-listen", 1),
            (["--nnodes", "2", "--tensor-parallel-size", "2", "--kv-transport", "nccl"],
             "--nnodes: found more than 1 with --kv-transport: ranks on CPUs take", 1),
            (["--nnodes", "2", "--tensor-parallel-size", "2", "--master-addr", "0.0.0.0"],
             "--master-addr: found 0.0.0.0 without --worker-secret", 2)]:
        done = subprocess.run([binary, "serve", model, *flags, "--dry-run"], capture_output=True,
                              text=True, check=False, timeout=PATIENCE_S)
        assert done.returncode == code and words in done.stderr, (flags, done)
    print("ok refusals", flush=True)


def ranks_check(binary, size, *flags, dialled=lambda port: port, of_rank=lambda rank: (), within=PATIENCE_S):
    """`sluice ranks-check` on each rank, which meet within that time: their exit codes and outputs."""
    port = free_port()
    ranks = []
    for rank in range(size):
        at = dialled(port) if rank else port
        ranks.append(subprocess.Popen(
            [binary, "ranks-check", "--nnodes", str(size), "--node-rank", str(rank), "--master-port", str(at),
             "--rank-init-timeout", str(within), *SECRET, *flags, *of_rank(rank)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    outputs = [process.communicate(timeout=2 * PATIENCE_S)[0] for process in ranks]
    return [process.returncode for process in ranks], outputs


def check_ranks_check(binary):
    for size, transport, lines in [
            (2, "auto", ["TCP: every word as it was sent; 64 B in", "shared memory: every word as it was sent;",
                         "TCP and shared memory: the same words"]),
            (3, "tcp", ["rank 0 and rank 2: ", "TCP: every word as it was sent; 64 B in"])]:
        codes, outputs = ranks_check(binary, size, "--kv-transport", transport)
        assert codes == size * [0], outputs
        for words in [f"on all {size}", "rank 1: ", " one way, ", *lines,
                      f"planted: rank {size - 1} differs", "found, by name"]:
            assert words in outputs[0], (words, outputs[0])
        assert ("shared memory" in outputs[0]) == (transport == "auto"), outputs[0]
        assert all("found, by name" in output for output in outputs), outputs

    def with_fault(kind, at):
        proxies = []

        def dialled(port):
            proxies.append(Proxy("rank", lambda: port))
            proxies[-1].plan = Plan({("rank", "up"): [Fault(kind, at, 1, 0)]})
            return proxies[-1].port
        return ranks_check(binary, 2, dialled=dialled)

    # Within a message, and within a part of an exchange, which carries a hash.
    for kind, at, words in [("flip", 10 << 20, "rank 1: a message of 2 MiB is not what it sent to rank 0"),
                            ("flip", 22 << 20, "is not what it sent"),
                            ("cut", 10 << 20, "rank 1 at 127.0.0.1:")]:
        codes, outputs = with_fault(kind, at)
        assert codes == [1, 1] and words in outputs[0], (kind, at, codes, outputs)
    for codes, words, (found, outputs) in [
            ([1, 2], "--kv-transport: found tcp on node 1, node 0 has auto",
             ranks_check(binary, 2, of_rank=lambda rank: rank * ["--kv-transport", "tcp"])),
            ([1, 1], "missing after 5 s (--rank-init-timeout): rank 1",
             ranks_check(binary, 2, within=5,
                         of_rank=lambda rank: rank * ["--worker-secret", "another one of this test"])),
            ([2], "--nnodes: found 1, expected the number of processes", ranks_check(binary, 1))]:
        assert found == codes and words in outputs[0], (codes, words, found, outputs)
    print("ok ranks-check", flush=True)


def memory_files():
    """Files of shared memory that a process could leave behind."""
    return {name for name in os.listdir("/dev/shm") if "sluice" in name}


# What a log says of the end of a group: of which rank, or which of a node's own bytes.
REASON = re.compile(r"rank_group_failed.* reason=.*rank [01]\b|rank_refused|rank 0 does not answer")


# A connection that goes on loses no bytes: a rank waits for as long as another computes.
LINK_FAULTS = [kind for kind in KINDS if kind != "drop"]


def check_links(binary, model, seeds, expected):
    """Whatever a link does to bytes, an answer is right or there is none, and all processes end
    soon, with a reason that names a rank."""
    ends = {"whole": 0, "failed": 0}
    before = memory_files()
    for seed in seeds:
        plan = Plan.draw(seed, {("rank", "up"): 60_000, ("rank", "down"): 60_000}, LINK_FAULTS)
        proxies = []

        def dialled(port):
            proxies.append(Proxy("rank", lambda: port))
            proxies[-1].plan = plan
            return proxies[-1].port

        try:
            nodes = Nodes(binary, model, 2, ["--rank-init-timeout", "10", "--kv-transport", "tcp"],
                          dialled, by=STAGES if seed % 2 else RANKS)
        except (AssertionError, ConnectionError, http.client.HTTPException) as error:
            # It serves nothing, or no longer when it is asked for the first time.
            assert "no server" in str(error) or not isinstance(error, AssertionError), error
            ends["failed"] += 1
            plan.over.set()
            continue
        try:
            got = answers(nodes.leader, may_end=True)
            for answer, wanted in zip(got, expected):
                assert answer == wanted or answer[0] != 200, (seed, answer, wanted)
            whole = got == expected
            ends["whole" if whole else "failed"] += 1
            if whole:
                nodes.leader.stop()
            code = nodes.leader.process.wait(PATIENCE_S)
            _, followed = nodes.followers[0].end()
            assert whole or code == 1, (seed, code, nodes.leader.log)
            for log in (nodes.leader.whole_log(), followed):
                assert whole or REASON.search(log), (seed, log)
        finally:
            plan.over.set()
            nodes.kill()
            for proxy in proxies:
                proxy.listener.close()
    assert memory_files() <= before, memory_files() - before
    print(f"ok links: {ends}", flush=True)


def main():
    binary, model = sys.argv[1:3]
    one = Server(binary, model, *FLAGS)
    expected = answers(one)
    if "--links" in sys.argv:
        assert one.stop() == 0
        shard, shards = map(int, sys.argv[sys.argv.index("--links") + 1].split("/"))
        return check_links(binary, model, range(shard, 200, shards), expected)
    streamed, error = stream_until_the_end(one, threading.Event())
    assert error is None and one.stop() == 0
    check_bits(binary, model, expected)
    for transport in ("shm", "tcp"):
        check_lost(binary, model, streamed, transport, "follower", signal.SIGKILL, "rank 1 at 127.0.0.1:")
        check_lost(binary, model, streamed, transport, "leader", signal.SIGKILL, "rank 0 at 127.0.0.1:")
    check_lost(binary, model, streamed, "shm", "follower", signal.SIGSTOP, "has been silent for 5 s")
    check_lost(binary, model, streamed, "shm", "follower", signal.SIGKILL, "rank 1 at 127.0.0.1:", by=STAGES)
    check_lost_rank(binary, model, streamed, "tcp", 3, signal.SIGKILL)
    if os.environ.get("SLUICE_FULL"):
        for transport, victim, how in [("shm", 1, signal.SIGKILL), ("shm", 2, signal.SIGSTOP),
                                       ("shm", 3, signal.SIGKILL), ("tcp", 1, signal.SIGSTOP),
                                       ("tcp", 2, signal.SIGKILL)]:
            check_lost_rank(binary, model, streamed, transport, victim, how)
        check_lost(binary, model, streamed, "shm", "leader", signal.SIGKILL, "rank 0 at 127.0.0.1:", by=STAGES)
        for transport in ("shm", "tcp"):
            check_lost(binary, model, streamed, transport, "follower", signal.SIGSTOP, "has been silent for 5 s",
                       by=STAGES)
    for by in (RANKS, STAGES):
        check_memory(binary, model, streamed, by)
    check_ends(binary, model, streamed)
    check_refusals(binary, model)
    check_ranks_check(binary)
    check_links(binary, model, range(6), expected)
    check_share(binary)


if __name__ == "__main__":
    main()
