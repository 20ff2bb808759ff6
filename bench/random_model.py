#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A GGUF file with the shape of a real model and random weights: as fast as the real one, and as large.

usage: bench/random_model.py llama-1b|gemma3-270m OUT.gguf       (needs the packages gguf and numpy)

llama-1b: Llama 3.2 1B, Q4_1 with an embedding of Q8_0. gemma3-270m: Gemma 3 270M with the types of a
Q4_K_M file: Q5_0 where k is no multiple of 256, Q4_K and Q6_K else, an embedding of Q8_0.
"""
import sys

import gguf
import numpy as np

Type = gguf.GGMLQuantizationType
random = np.random.default_rng(1)

SHAPES = {
    "llama-1b": dict(arch="llama", hidden=2048, ffn=8192, layers=16, heads=32, kv_heads=8, head_dim=64,
                     vocab=128256, context=8192, base=500000.0),
    "gemma3-270m": dict(arch="gemma3", hidden=640, ffn=2048, layers=18, heads=4, kv_heads=1,
                        head_dim=256, vocab=262144, context=8192, base=1000000.0),
}


def blocks(kind, n, k):
    """Random blocks with scales of weights of about 0.02."""
    size, width = gguf.GGML_QUANT_SIZES[kind]
    count = n * k // size
    data = random.integers(0, 256, (count, width), dtype=np.uint8)

    def scales(at, value):
        data[:, at:at + 2] = np.frombuffer(np.float16(value).tobytes(), dtype=np.uint8)

    if kind == Type.Q4_1:
        scales(0, 0.004), scales(2, -0.03)
    elif kind == Type.Q5_0:
        scales(0, 0.002)
    elif kind == Type.Q8_0:
        scales(0, 0.0003)
    elif kind == Type.Q4_K:
        scales(0, 0.0001), scales(2, 0.0008)
    elif kind == Type.Q6_K:
        scales(208, 0.00002)
    return data.reshape(n, -1)


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in SHAPES:
        sys.exit(__doc__)
    shape = SHAPES[sys.argv[1]]
    gemma = shape["arch"] == "gemma3"
    writer = gguf.GGUFWriter(sys.argv[2], shape["arch"])
    writer.add_name(sys.argv[1] + " of random weights")
    writer.add_context_length(shape["context"])
    writer.add_embedding_length(shape["hidden"])
    writer.add_block_count(shape["layers"])
    writer.add_feed_forward_length(shape["ffn"])
    writer.add_head_count(shape["heads"])
    writer.add_head_count_kv(shape["kv_heads"])
    writer.add_key_length(shape["head_dim"])
    writer.add_value_length(shape["head_dim"])
    writer.add_rope_dimension_count(shape["head_dim"])
    writer.add_rope_freq_base(shape["base"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape["vocab"])
    if gemma:
        writer.add_sliding_window(512)
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]
    kinds = [gguf.TokenType.UNKNOWN] + [gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.BYTE] * 256
    while len(tokens) < shape["vocab"]:
        kinds.append(gguf.TokenType.NORMAL)
        tokens.append(f"t{len(tokens)}")
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([float(-i) for i in range(len(tokens))])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)

    def matrix(name, kind, n, k):
        writer.add_tensor(name, blocks(kind, n, k), raw_dtype=kind)

    def norm(name, n):
        writer.add_tensor(name, np.full(n, 1.0, dtype=np.float32))

    hidden, ffn = shape["hidden"], shape["ffn"]
    q, kv = shape["heads"] * shape["head_dim"], shape["kv_heads"] * shape["head_dim"]
    kind = Type.Q5_0 if gemma else Type.Q4_1
    matrix("token_embd.weight", Type.Q8_0, shape["vocab"], hidden)
    norm("output_norm.weight", hidden)
    for layer in range(shape["layers"]):
        prefix = f"blk.{layer}."
        norm(prefix + "attn_norm.weight", hidden)
        matrix(prefix + "attn_q.weight", kind, q, hidden)
        matrix(prefix + "attn_k.weight", kind, kv, hidden)
        matrix(prefix + "attn_v.weight", Type.Q8_0 if gemma else kind, kv, hidden)
        matrix(prefix + "attn_output.weight", Type.Q4_K if gemma else kind, hidden, q)
        norm(prefix + "ffn_norm.weight", hidden)
        matrix(prefix + "ffn_gate.weight", kind, ffn, hidden)
        matrix(prefix + "ffn_up.weight", kind, ffn, hidden)
        matrix(prefix + "ffn_down.weight", Type.Q6_K if gemma else kind, hidden, ffn)
        if gemma:
            norm(prefix + "attn_q_norm.weight", shape["head_dim"])
            norm(prefix + "attn_k_norm.weight", shape["head_dim"])
            norm(prefix + "post_attention_norm.weight", hidden)
            norm(prefix + "post_ffw_norm.weight", hidden)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


main()
