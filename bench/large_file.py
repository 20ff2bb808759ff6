#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How often a start reads a large file, and how fast: once, at the speed of the disk or of memory, is right.

    large_file.py BINARY [--gib 8] [--fp8] [--keep FILE]

Writes a Llama of the wanted size in Q8_0 or, as safetensors, in FP8 with a scale per row (random codes),
reads it once from the disk with large reads (the disk's limit), drops it from the page cache, starts the
server on it and prints what the kernel counted until it serves: bytes read from the disk over bytes of
the file, largest resident memory over the file, seconds; and beside the rate of the load those of the
plain read and of memory that nobody has used before (as many bytes set by a thread a processor: what
a system gives a process first is cleared, and a virtual machine may have to fetch it). A load takes as
much twice, for the file's pages and for its own: the last number is the share of that. Fails where the
file was read more than 1.05 times. Needs the gguf and numpy packages (--fp8: numpy alone), and as much
disk and memory as the file has.
"""
import argparse
import ctypes
import json
import mmap
import multiprocessing
import os
import struct
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/golden/models"))
HIDDEN, WIDE, KV, VOCAB = 4096, 14336, 1024, 259
LAYER = {"attn_q": (HIDDEN, HIDDEN), "attn_k": (KV, HIDDEN), "attn_v": (KV, HIDDEN),
         "attn_output": (HIDDEN, HIDDEN), "ffn_gate": (WIDE, HIDDEN), "ffn_up": (WIDE, HIDDEN),
         "ffn_down": (HIDDEN, WIDE)}
BLOCK, BLOCK_BYTES = 32, 34  # of Q8_0


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


def write_gguf(path, num_layers):
    import gguf
    from gguf import GGMLQuantizationType as Kind
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


HF_NAMES = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
            "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
            "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}


def hf_name(name):
    if not name.startswith("blk."):
        return {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
                "output.weight": "lm_head.weight"}[name]
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{HF_NAMES[part]}.weight"


def write_fp8(folder, num_layers):
    """config.json, a tokenizer of words and model.safetensors, whose path is returned."""
    os.makedirs(folder, exist_ok=True)
    header, end = {}, 0
    for name, shape in tensors(num_layers):
        is_linear = len(shape) == 2 and name.startswith("blk.")
        stored = [(hf_name(name), "F8_E4M3" if is_linear else "BF16", shape)]
        if is_linear:
            stored.append((hf_name(name) + "_scale", "F32", (shape[0], 1)))
        for key, kind, dims in stored:
            size = int(np.prod(dims)) * {"F8_E4M3": 1, "BF16": 2, "F32": 4}[kind]
            header[key] = {"dtype": kind, "shape": list(dims), "data_offsets": [end, end + size]}
            end += size
    codes = np.random.default_rng(0).integers(0, 256, 1 << 25, dtype=np.uint8)
    codes[(codes & 0x7F) == 0x7F] = 0  # NaN
    data = {"F8_E4M3": codes.tobytes(), "BF16": np.full(1 << 20, 0x3F80, np.uint16).tobytes(),
            "F32": np.full(1 << 20, 2.0 ** -12, np.float32).tobytes()}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path = os.path.join(folder, "model.safetensors")
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for entry in header.values():
            left = entry["data_offsets"][1] - entry["data_offsets"][0]
            while left > 0:
                file.write(data[entry["dtype"]][:left])
                left -= min(left, len(data[entry["dtype"]]))
        os.fsync(file.fileno())
    weights = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
    rows = {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
              "intermediate_size": WIDE, "num_hidden_layers": num_layers, "num_attention_heads": 32,
              "num_key_value_heads": 8, "vocab_size": VOCAB, "max_position_embeddings": 4096,
              "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "quantization_config": {
                  "quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
                  "quantization_status": "compressed", "config_groups": {"group_0": {
                      "targets": ["Linear"], "weights": weights, "input_activations": rows}}}}
    words = {"version": "1.0", "added_tokens": [], "model": {
        "type": "WordLevel", "unk_token": "w0", "vocab": {f"w{i}": i for i in range(VOCAB)}}}
    for name, content in (("config.json", config), ("tokenizer.json", words)):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(content, file)
    return path


def drop(path):
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def plain_read_seconds(path):
    drop(path)
    buffer = bytearray(1 << 24)
    start = time.monotonic()
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return time.monotonic() - start


def fresh_memory_seconds(size):
    memory = mmap.mmap(-1, size)
    memory.madvise(mmap.MADV_HUGEPAGE)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    part = size // os.cpu_count()
    threads = [threading.Thread(target=ctypes.CDLL(None).memset,
                                args=(ctypes.c_void_p(begin + i * part), 1, ctypes.c_size_t(part)))
               for i in range(os.cpu_count())]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.monotonic() - start


def measure(binary, path, model):
    size = os.stat(path).st_size
    with multiprocessing.get_context("fork").Pool(1) as pool:  # its memory ends with it
        fresh = pool.apply(fresh_memory_seconds, (size,))
    plain = plain_read_seconds(path)
    drop(path)
    start = time.monotonic()
    server = subprocess.Popen([binary, "serve", model, "--port", "0", "--log-level", "error",
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
          f"{seconds:.1f} s: {size / seconds * 1e-9:.2f} GB/s, {plain / seconds:.2f} of a plain read's "
          f"{size / plain * 1e-9:.2f} and {fresh / seconds:.2f} of fresh memory's {size / fresh * 1e-9:.2f}, "
          f"{2 * fresh / seconds:.2f} of what twice as much takes")
    return read


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("--gib", type=float, default=8)
    parser.add_argument("--fp8", action="store_true")
    parser.add_argument("--keep", help="write the file (--fp8: the folder) here, or use it where it is")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = options.keep or os.path.join(folder, "large" if options.fp8 else "large.gguf")
        path = os.path.join(model, "model.safetensors") if options.fp8 else model
        if not os.path.exists(path):
            bits = 8 if options.fp8 else 8 * BLOCK_BYTES / BLOCK
            layer_bytes = sum(n * k for n, k in LAYER.values()) * bits / 8
            (write_fp8 if options.fp8 else write_gguf)(model, max(1, round(options.gib * (1 << 30) / layer_bytes)))
        sys.exit(0 if measure(options.binary, path, model) < 1.05 else 1)


if __name__ == "__main__":
    main()
