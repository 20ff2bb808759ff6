#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One model over several processes (--nnodes): the bits of one process, and what happens when a
process, its link or its settings are not what the others need.

usage: nodes_test.py BINARY MODEL [--links SHARD/SHARDS]
    --links  nothing but that part of the 200 seeds of faults of links, of which else a few are drawn
"""
import atexit
import concurrent.futures
import json
import math
import mmap
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from fault_proxy import KINDS, Fault, Plan, Proxy
from server_process import Server, rss_of, wait_until

FLAGS = ["--kv-cache-memory", "8MiB", "--threads", "1", "--max-num-seqs", "8"]
WEIGHTS = "weights, repacked"  # a row of the plan
SECRET = ["--worker-secret", "a secret of this test"]
RANKS = "--tensor-parallel-size"  # how nodes share a model: each layer,
STAGES = "--pipeline-parallel-size"  # or some layers each,
BOTH = "both"  # or in two stages the layers of each
PROMPTS = ["Hello there", "1 2 3 4 5 6 7 8 9 10 11 12", "The quick brown fox jumps over the lazy dog " * 8,
           "x"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def shares(by, size):
    spread = [STAGES, "2", RANKS, str(size // 2)] if by == BOTH else [by, str(size)]
    return ["--nnodes", str(size), *spread]


class Follower:
    def __init__(self, binary, model, rank, size, port, *flags, by=RANKS):
        self.process = subprocess.Popen(
            [binary, "serve", model, "--port", "0", "--node-rank", str(rank), *shares(by, size),
             "--master-port", str(port), *FLAGS, *flags],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.log = []
        self.reader = threading.Thread(target=self.log.extend, args=(self.process.stdout,), daemon=True)
        self.reader.start()

    def end(self, seconds=15):
        code = self.process.wait(seconds)
        self.reader.join()
        return code, "".join(self.log)


class Nodes:
    """A model over `size` processes; `dialled`: the port that followers dial; `follower`: the program
    that they are, if not `binary`."""

    def __init__(self, binary, model, size, flags=(), dialled=None, follower=None, by=RANKS):
        self.port = free_port()
        self.followers = [
            Follower(follower or binary, model, rank, size, dialled(self.port) if dialled else self.port,
                     *SECRET, *flags, by=by)
            for rank in range(1, size)]
        self.leader = Server(binary, model, *shares(by, size), "--master-port", str(self.port), *FLAGS, *SECRET,
                             *flags)

    def kill(self):
        for process in [self.leader.process, *(f.process for f in self.followers)]:
            process.kill()
            process.wait()


def answers(server):
    """What concurrent requests of several kinds get, without what depends on the process."""
    def ask(i):
        body = {"prompt": PROMPTS[i % len(PROMPTS)], "max_tokens": 24, "logprobs": 3, "seed": i,
                "temperature": 0 if i % 2 else 0.9, "ignore_eos": True, "echo": i % 3 == 0}
        if i % 4 == 2:
            body["structured_outputs"] = {"regex": "[a-c ]{10,40}"}
        connection, response = server.post(body)
        answer = json.loads(response.read())
        connection.close()
        return response.status, answer.get("choices"), answer.get("system_fingerprint")

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        return list(pool.map(ask, range(12)))


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
            assert any("ranks_connected" in line and name in line for line in nodes.leader.log), \
                nodes.leader.log
            assert nodes.leader.stop() == 0
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
            assert saved > 0.45 * whole[WEIGHTS], (process.args, saved)
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
                        assert saved > 0.45 * whole[WEIGHTS], (process.args, saved)
                    wait_until("each node packs its share", lambda: len(packed_files(cache)) == 2)
                else:
                    log = "".join(nodes.leader.log)
                    assert "mapped from the packed weights cache" in log, log
                assert nodes.leader.stop() == 0
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
    connection, response = server.post({"prompt": "Hello", "max_tokens": 1500, "ignore_eos": True,
                                        "temperature": 0, "stream": True})
    text, error = "", None
    try:
        for raw in response:
            line = raw.decode().rstrip("\n")
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                error = event.get("error", error)
                text += "".join(choice["text"] for choice in event.get("choices", ()))
                started.set()
    except OSError as broken:
        error = error or str(broken)
    connection.close()
    return text, error


def check_lost(binary, model, transport, victim, how, words, by=RANKS):
    """A process is lost while an answer is streamed: the others end soon, and say why."""
    nodes = Nodes(binary, model, 2, ["--kv-transport", transport], by=by)
    try:
        started = threading.Event()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(stream_until_the_end, nodes.leader, started)
            assert started.wait(10)
            processes = {"leader": nodes.leader.process, "follower": nodes.followers[0].process}
            begun = time.monotonic()
            processes[victim].send_signal(how)
            other = processes["follower" if victim == "leader" else "leader"]
            code = other.wait(12)
            seconds = time.monotonic() - begun
            assert code == 1, code
            time.sleep(0.2)  # the log's reader
            log = "".join(nodes.followers[0].log if victim == "leader" else nodes.leader.log)
            assert words in log, log
            if victim == "follower":
                assert answer.result(10)[1] is not None, "the answer ended as if it were whole"
            processes[victim].kill()
        print(f"ok {victim} lost by {how.name} over {transport} {by}: the other ends after {seconds:.1f} s",
              flush=True)
    finally:
        nodes.kill()


def check_lost_rank(binary, model, transport, victim, how):
    """One of the ranks of two stages is lost while an answer is streamed: the leader and the rank that
    shares its stage know which it was, and all end."""
    nodes = Nodes(binary, model, 4, ["--kv-transport", transport], by=BOTH)
    try:
        started = threading.Event()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(stream_until_the_end, nodes.leader, started)
            assert started.wait(10)
            begun, lost = time.monotonic(), nodes.followers[victim - 1]
            lost.process.send_signal(how)
            others = [nodes.leader, *(follower for follower in nodes.followers if follower is not lost)]
            assert [other.process.wait(12) for other in others] == 3 * [1]
            seconds = time.monotonic() - begun
            time.sleep(0.2)  # the logs' readers
            assert all(f"rank {victim} at 127.0.0.1:" in "".join(other.log) for other in others)
            assert answer.result(10)[1] is not None, "the answer ended as if it were whole"
        print(f"ok rank {victim} of 2 x 2 lost by {how.name} over {transport}: {seconds:.1f} s", flush=True)
    finally:
        nodes.kill()


def change_words(process, is_over):
    """Changes a word of each part in the memory that a node shares, again and again."""
    folder = f"/proc/{process.pid}/fd"
    found = [name for name in os.listdir(folder) if "sluice-ranks" in os.readlink(f"{folder}/{name}")
             and "memfd" in os.readlink(f"{folder}/{name}")]
    with open(f"{folder}/{found[0]}", "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        while not is_over():
            for at in range(4096, len(memory), 4096):  # behind the page of signs; 24 bytes may be a header
                memory[at + 27] ^= 0x3f  # a float's exponent


def check_memory(binary, model, wanted, by):
    """A word that changes in shared memory ends the group; nothing wrong is given out."""
    nodes = Nodes(binary, model, 2, ["--kv-transport", "shm"], by=by)
    try:
        started = threading.Event()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(stream_until_the_end, nodes.leader, started)
            assert started.wait(10)
            leader, follower = nodes.leader.process, nodes.followers[0]
            change_words(leader, lambda: leader.poll() is not None or answer.done())
            text, error = answer.result(10)
        assert error is not None and wanted.startswith(text), (text[-80:], error)
        assert leader.wait(12) == 1 and follower.end()[0] == 1
        words = re.compile(r"rank [01]: its part of exchange \d+ is not what it sent")
        for log in (nodes.leader.log, follower.log):
            assert words.search("".join(log)), log
        print(f"ok a word changed in shared memory {by}: {len(text)} of {len(wanted)} characters", flush=True)
    finally:
        nodes.kill()


def check_ends(binary, model, wanted):
    """Who is asked to end lets all end in order: no stream is cut."""
    for victims in (("leader", "follower"), ("follower",)):
        nodes = Nodes(binary, model, 2)
        try:
            started = [threading.Event() for _ in range(3)]
            with concurrent.futures.ThreadPoolExecutor(3) as pool:
                streams = [pool.submit(stream_until_the_end, nodes.leader, event) for event in started]
                assert all(event.wait(10) for event in started)
                if "leader" in victims:
                    nodes.leader.process.send_signal(signal.SIGTERM)
                for follower in nodes.followers[:None if "leader" in victims else 1]:
                    follower.process.send_signal(signal.SIGTERM)
                assert [stream.result(60) for stream in streams] == 3 * [(wanted, None)]
            assert nodes.leader.process.wait(10) == 0, nodes.leader.log
            for follower in nodes.followers:
                code, log = follower.end()
                assert code == 0, (code, log)
        finally:
            nodes.kill()
        print(f"ok SIGTERM to {' and '.join(victims)} during streams: all whole", flush=True)
    follower = Follower(binary, model, 1, 2, free_port())
    wait_until("it dials", lambda: any("probes" in line for line in follower.log))
    follower.process.send_signal(signal.SIGTERM)
    assert follower.end(5)[0] in (-signal.SIGTERM, 128 + signal.SIGTERM)


def check_refusals(binary, model):
    """What does not fit together is refused by name, at both ends where both know."""
    def refused(leader_flags, follower_flags, at_follower, at_leader=None):
        port = free_port()
        leader = subprocess.Popen(
            [binary, "serve", model, "--port", "0", "--nnodes", "2", "--tensor-parallel-size", "2",
             "--master-port", str(port), "--rank-init-timeout", "4", *FLAGS, *leader_flags],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        follower = Follower(binary, model, 1, 2, port, "--rank-init-timeout", "4", *follower_flags)
        code, log = follower.end()
        assert code in (1, 2) and at_follower in log, (code, log)
        out, _ = leader.communicate(timeout=15)
        assert leader.returncode in (1, 2) and (at_leader or at_follower) in out, out

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
                              text=True, check=False, timeout=30)
        assert done.returncode == code and words in done.stderr, (flags, done)
    print("ok refusals", flush=True)


def ranks_check(binary, size, *flags, dialled=lambda port: port, of_rank=lambda rank: ()):
    """`sluice ranks-check` on each rank: their exit codes and outputs."""
    port = free_port()
    ranks = []
    for rank in range(size):
        at = dialled(port) if rank else port
        ranks.append(subprocess.Popen(
            [binary, "ranks-check", "--nnodes", str(size), "--node-rank", str(rank), "--master-port", str(at),
             "--rank-init-timeout", "5", *SECRET, *flags, *of_rank(rank)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    outputs = [process.communicate(timeout=60)[0] for process in ranks]
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
             ranks_check(binary, 2, of_rank=lambda rank: rank * ["--worker-secret", "another one of this test"])),
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
    within 10 s, with a reason that names a rank."""
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
        except AssertionError as error:
            assert "no server" in str(error), error
            ends["failed"] += 1
            plan.over.set()
            continue
        try:
            got = answers(nodes.leader)
            for answer, wanted in zip(got, expected):
                assert answer == wanted or answer[0] != 200, (seed, answer, wanted)
            whole = got == expected
            ends["whole" if whole else "failed"] += 1
            if whole:
                nodes.leader.stop()
            code = nodes.leader.process.wait(10)
            _, followed = nodes.followers[0].end(10)
            assert whole or code == 1, (seed, code, nodes.leader.log)
            for log in ("".join(nodes.leader.log), followed):
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
        check_lost(binary, model, transport, "follower", signal.SIGKILL, "rank 1 at 127.0.0.1:")
        check_lost(binary, model, transport, "leader", signal.SIGKILL, "rank 0 at 127.0.0.1:")
    check_lost(binary, model, "shm", "follower", signal.SIGSTOP, "has been silent for 5 s")
    check_lost(binary, model, "shm", "follower", signal.SIGKILL, "rank 1 at 127.0.0.1:", by=STAGES)
    check_lost_rank(binary, model, "tcp", 3, signal.SIGKILL)
    if os.environ.get("SLUICE_FULL"):
        for transport, victim, how in [("shm", 1, signal.SIGKILL), ("shm", 2, signal.SIGSTOP),
                                       ("shm", 3, signal.SIGKILL), ("tcp", 1, signal.SIGSTOP),
                                       ("tcp", 2, signal.SIGKILL)]:
            check_lost_rank(binary, model, transport, victim, how)
        check_lost(binary, model, "shm", "leader", signal.SIGKILL, "rank 0 at 127.0.0.1:", by=STAGES)
        for transport in ("shm", "tcp"):
            check_lost(binary, model, transport, "follower", signal.SIGSTOP, "has been silent for 5 s",
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
