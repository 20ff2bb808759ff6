#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How often a start reads a large file: once is right. usage: large_file.py BINARY [--gib 8] [--keep FILE]

Writes a Llama of the wanted size in Q8_0 (random codes), drops it from the page cache, starts the
server on it and prints what the kernel counted until it serves: bytes read from the disk over bytes of
the file, largest resident memory over the file, seconds. Fails where the file was read more than
1.05 times. Needs the gguf and numpy packages, and as much disk and memory as the file has.
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/golden/models"))
HIDDEN, WIDE, KV, VOCAB = 4096, 14336, 1024, 259
LAYER = {"attn_q": (HIDDEN, HIDDEN), "attn_k": (KV, HIDDEN), "attn_v": (KV, HIDDEN),
         "attn_output": (HIDDEN, HIDDEN), "ffn_gate": (WIDE, HIDDEN), "ffn_up": (WIDE, HIDDEN),
         "ffn_down": (HIDDEN, WIDE)}
BLOCK, BLOCK_BYTES = 32, 34  # of Q8_0
LAYER_BYTES = sum(n * k for n, k in LAYER.values()) // BLOCK * BLOCK_BYTES


def tensors(num_layers):
    """Names and shapes; one dimension: floats."""
    yield "token_embd.weight", (VOCAB, HIDDEN)
    yield "output_norm.weight", (HIDDEN,)
    yield "output.weight", (VOCAB, HIDDEN)
    for i in range(num_layers):
        for name in ("attn_norm", "ffn_norm"):
            yield f"blk.{i}.{name}.weight", (HIDDEN,)
        for name, shape in LAYER.items():
            yield f"blk.{i}.{name}.weight", shape


def write(path, num_layers):
    from make_models import add_byte_vocabulary
    writer = gguf.GGUFWriter(path, "llama")
    add_byte_vocabulary(writer, VOCAB)
    writer.add_block_count(num_layers)
    writer.add_context_length(4096)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(WIDE)
    writer.add_head_count(32)
    writer.add_head_count_kv(8)
    writer.add_layer_norm_rms_eps(1e-5)
    for name, shape in tensors(num_layers):
        if len(shape) == 1:
            writer.add_tensor_info(name, shape, np.dtype(np.float32), shape[0] * 4)
            continue
        stored = (shape[0], shape[1] // BLOCK * BLOCK_BYTES)
        writer.add_tensor_info(name, stored, np.dtype(np.uint8), stored[0] * stored[1],
                               raw_dtype=Kind.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (1 << 20, BLOCK_BYTES), dtype=np.uint8)
    blocks[:, :2] = np.frombuffer(np.float16(0.002).tobytes(), np.uint8)
    blocks = blocks.tobytes()
    with open(path, "ab") as file:
        file.write(b"\0" * (-file.tell() % 32))
        for _, shape in tensors(num_layers):
            if len(shape) == 1:
                file.write(np.ones(shape, np.float32).tobytes())
                continue
            left = shape[0] * shape[1] // BLOCK * BLOCK_BYTES
            while left > 0:
                file.write(blocks[:left])
                left -= min(left, len(blocks))
        os.fsync(file.fileno())


def measure(binary, path):
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    size = os.fstat(file).st_size
    start = time.monotonic()
    server = subprocess.Popen([binary, "serve", path, "--port", "0", "--log-level", "error",
                               "--kv-cache-memory", "64M"], stdout=subprocess.PIPE, text=True)
    try:
        if not any(line.startswith("serving") for line in server.stdout):
            sys.exit("the server did not start")
        seconds = time.monotonic() - start
        counters = dict(line.split(":\t") if ":\t" in line else line.split(": ")
                        for name in ("io", "status")
                        for line in open(f"/proc/{server.pid}/{name}").read().splitlines())
    finally:
        server.terminate()
        server.wait()
    read = int(counters["read_bytes"]) / size
    resident = int(counters["VmHWM"].split()[0]) * 1024 / size
    print(f"file {size} bytes, read {read:.3f} times, largest resident memory {resident:.2f} of it, "
          f"{seconds:.1f} s")
    return read


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("--gib", type=float, default=8)
    parser.add_argument("--keep", help="write the file here, or use it where it is")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.keep or os.path.join(folder, "large.gguf")
        if not os.path.exists(path):
            write(path, max(1, round(options.gib * (1 << 30) / LAYER_BYTES)))
        sys.exit(0 if measure(options.binary, path) < 1.05 else 1)


if __name__ == "__main__":
    main()
