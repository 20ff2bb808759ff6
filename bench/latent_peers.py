#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Latent attention of GLM-4.7-Flash's shape beside llama.cpp's, in turns:

    python bench/latent_peers.py build/bench/latent_attention FOLDER_OF_LIBGGML --threads 2

llama.cpp's operator is what its graph of latent models calls: ggml_flash_attn_ext over a cache of
16-bit latents, of which values are a view.
"""
import argparse
import ctypes
import pathlib
import random
import statistics
import subprocess
import time

LATENT, ROPE, HEADS = 512, 64, 20
F32, TYPES = 0, {"f16": 1, "bf16": 30}
HALVES = {"f16": (0x2E00, 0x3FF), "bf16": (0x3F00, 0xFF)}  # least value, random bits


class Params(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


class Ggml:
    """One operator of one shape, ready to run."""

    def __init__(self, folder, kind, streams, tokens, context):
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        base = ctypes.CDLL(str(folder / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
        self.cpu = ctypes.CDLL(str(folder / "libggml-cpu.so"), mode=ctypes.RTLD_GLOBAL)

        def function(name, *arguments, library=base, result=pointer):
            found = getattr(library, name)
            found.argtypes, found.restype = arguments, result
            return found

        size, real = ctypes.c_size_t, ctypes.c_float
        function("ggml_cpu_init", library=self.cpu, result=None)()
        new = function("ggml_new_tensor_4d", pointer, ctypes.c_int, *[number] * 4)
        data = function("ggml_get_data", pointer)
        room = streams * (context * (LATENT + ROPE) * 2 + context * tokens * 4
                          + tokens * HEADS * 2 * (LATENT + ROPE) * 4) + (256 << 20)
        self.context = function("ggml_init", Params)(Params(room, None, False))
        q = new(self.context, F32, LATENT + ROPE, tokens, HEADS, streams)
        k = new(self.context, TYPES[kind], LATENT + ROPE, context, 1, streams)
        row = (LATENT + ROPE) * 2
        v = function("ggml_view_4d", pointer, pointer, *[number] * 4, *[size] * 4)(
            self.context, k, LATENT, context, 1, streams, row, row * context, row * context, 0)
        mask = new(self.context, TYPES["f16"], context, tokens, 1, streams)
        self.fill(data(q), [0x3CA3D70A], 4, tokens * HEADS * streams * (LATENT + ROPE))
        least, bits = HALVES[kind]
        pattern = [least + random.getrandbits(16) % (bits + 1) | random.getrandbits(1) << 15
                   for _ in range(1 << 16)]
        self.fill(data(k), pattern, 2, context * streams * (LATENT + ROPE))
        rows = [[0xFC00 if key > context - tokens + token else 0 for key in range(context)]
                for token in range(tokens)]
        for stream in range(streams):
            for token, values in enumerate(rows):
                self.fill(data(mask) + 2 * context * (stream * tokens + token), values, 2, context)
        out = function("ggml_flash_attn_ext", *[pointer] * 5, *[real] * 3)(
            self.context, q, k, v, mask, 0.0625, 0.0, 0.0)
        self.graph = function("ggml_new_graph", pointer)(self.context)
        function("ggml_build_forward_expand", pointer, pointer, result=None)(self.graph, out)
        self.compute = function("ggml_graph_compute_with_ctx", pointer, pointer, ctypes.c_int,
                                library=self.cpu, result=ctypes.c_int)
        self.free = function("ggml_free", pointer, result=None)

    @staticmethod
    def fill(at, pattern, width, count):
        block = b"".join(value.to_bytes(width, "little") for value in pattern)
        whole = (block * (count * width // len(block) + 1))[:count * width]
        ctypes.memmove(at, whole, len(whole))

    def microseconds(self, threads):
        times = []
        for _ in range(5):
            start = time.perf_counter()
            if self.compute(self.context, self.graph, threads) != 0:
                raise SystemExit("ggml did not compute the graph")
            times.append((time.perf_counter() - start) * 1e6)
        return statistics.median(times)


def ours(binary, threads, name, streams, tokens, context):
    text = subprocess.run([binary, "--threads", str(threads), "--only", name], check=True,
                          capture_output=True, text=True).stdout
    for line in text.splitlines():
        words = line.removeprefix(name).split()
        if line.startswith(name) and [int(w) for w in words[:3]] == [streams, tokens, context]:
            return float(words[3])
    raise SystemExit(f"{binary} has no {name} of {streams}, {tokens}, {context}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary")
    parser.add_argument("ggml", type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"{'shape':14} {'streams':>7} {'new':>4} {'context':>7} {'us':>9} "
          + " ".join(f"{kind:>9} {'ratio':>6}" for kind in TYPES))
    shapes = [("flash decode", streams, 1, context)
              for context in (4096, 16384) for streams in (1, 8, 32)]
    for shape in [*shapes, ("flash prefill", 1, 256, 4096)]:
        peers = {kind: Ggml(options.ggml, kind, *shape[1:]) for kind in TYPES}
        mine, theirs = [], {kind: [] for kind in TYPES}
        for _ in range(options.rounds):
            mine.append(ours(options.binary, options.threads, *shape))
            for kind, peer in peers.items():
                theirs[kind].append(peer.microseconds(options.threads))
        row = f"{shape[0]:14} {shape[1]:7} {shape[2]:4} {shape[3]:7} {statistics.median(mine):9.0f} "
        for kind, peer in peers.items():
            ratio = statistics.median(b / a for a, b in zip(mine, theirs[kind]))
            row += f"{statistics.median(theirs[kind]):9.0f} {ratio:6.2f} "
            peer.free(peer.context)
        print(row, flush=True)


if __name__ == "__main__":
    main()
