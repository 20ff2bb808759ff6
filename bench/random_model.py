#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A GGUF file with the shape of a real model and random weights: as fast as the real one, and as large.

usage: bench/random_model.py SHAPE OUT.gguf [--weights TYPE]    (needs the packages gguf and numpy)

SHAPE     shape of                        weights, if --weights names no other type of GGUF
llama-1b        Llama 3.2 1B              Q4_1, its embedding Q8_0
gemma3-270m     Gemma 3 270M              as a Q4_K_M file's: Q5_0 where K is no multiple of 256
qwen3.5-0.8b    Qwen3.5 0.8B              Q4_0, its embedding Q8_0
qwen3.5-2b      Qwen3.5 2B                Q4_0, its embedding Q8_0
qwen3-30b-a3b   Qwen3 30B-A3B             Q4_0, its embedding Q8_0
glm-4.7-flash   GLM-4.7-Flash             Q4_0, its embedding Q8_0

Matrices of one shape have the same values, so that a file of 17 GB is made with little memory.
"""
import argparse
import functools

import gguf
import numpy as np

Type = gguf.GGMLQuantizationType
random = np.random.default_rng(1)

QWEN3_5 = dict(arch="qwen35", layers=24, heads=8, kv_heads=2, head_dim=256, rope_dim=64, vocab=248320,
               context=262144, base=10000000.0, full_every=4, state_heads=16, state_dim=128, conv=4)
SHAPES = {
    "llama-1b": dict(arch="llama", hidden=2048, ffn=8192, layers=16, heads=32, kv_heads=8, head_dim=64,
                     vocab=128256, context=8192, base=500000.0, weights="Q4_1"),
    "gemma3-270m": dict(arch="gemma3", hidden=640, ffn=2048, layers=18, heads=4, kv_heads=1,
                        head_dim=256, vocab=262144, context=8192, base=1000000.0, weights="Q5_0"),
    "qwen3.5-0.8b": dict(QWEN3_5, hidden=1024, ffn=3584),
    "qwen3.5-2b": dict(QWEN3_5, hidden=2048, ffn=6144),
    "qwen3-30b-a3b": dict(arch="qwen3moe", hidden=2048, ffn=6144, layers=48, heads=32, kv_heads=4,
                          head_dim=128, vocab=151936, context=40960, base=1000000.0, experts=128,
                          used=8, expert_ffn=768, head=True),
    "glm-4.7-flash": dict(arch="deepseek2", hidden=2048, ffn=10240, layers=47, heads=20, kv_heads=1,
                          head_dim=576, rope_dim=64, vocab=154880, context=202752, base=1000000.0,
                          experts=64, used=4, expert_ffn=1536, dense_layers=1, shared_ffn=1536,
                          query_rank=768, latent=512, plain_dim=192, value_dim=256, head=True),
}


@functools.cache
def blocks(kind, *shape):
    """Random weights of about 0.02, in blocks of the type along the last axis."""
    if kind == Type.F32:
        return random.standard_normal(shape, np.float32) * np.float32(0.02)
    if kind == Type.BF16:
        floats = random.standard_normal(shape, np.float32) * np.float32(0.02)
        return (floats.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    size, width = gguf.GGML_QUANT_SIZES[kind]
    count = int(np.prod(shape)) // size
    data = random.integers(0, 256, (count, width), dtype=np.uint8)

    def scales(at, value):
        data[:, at:at + 2] = np.frombuffer(np.float16(value).tobytes(), dtype=np.uint8)

    if kind == Type.Q4_0:
        scales(0, 0.004)
    elif kind == Type.Q4_1:
        scales(0, 0.004), scales(2, -0.03)
    elif kind == Type.Q5_0:
        scales(0, 0.002)
    elif kind == Type.Q8_0:
        scales(0, 0.0003)
    elif kind == Type.Q4_K:
        scales(0, 0.0001), scales(2, 0.0008)
    elif kind == Type.Q6_K:
        scales(208, 0.00002)
    else:
        raise SystemExit(f"--weights {kind.name}: no random blocks of it")
    return data.reshape(*shape[:-1], -1)


class Model:
    """Writes the tensors of one shape."""

    def __init__(self, shape, kind, out):
        self.shape, self.kind = shape, kind
        self.writer = gguf.GGUFWriter(out, shape["arch"])

    def matrix(self, name, *shape, kind=None):
        kind = self.kind if kind is None else kind
        self.writer.add_tensor(name, blocks(kind, *shape), raw_dtype=kind)

    def floats(self, name, n, value=1.0):
        self.writer.add_tensor(name, np.full(n, value, dtype=np.float32))

    def attention(self, prefix):
        s, hidden = self.shape, self.shape["hidden"]
        q, kv = s["heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"]
        gemma = s["arch"] == "gemma3"
        gated = 2 if s["arch"] == "qwen35" else 1
        self.matrix(prefix + "attn_q.weight", q * gated, hidden)
        self.matrix(prefix + "attn_k.weight", kv, hidden)
        self.matrix(prefix + "attn_v.weight", kv, hidden, kind=Type.Q8_0 if gemma else None)
        self.matrix(prefix + "attn_output.weight", hidden, q, kind=Type.Q4_K if gemma else None)
        if s["arch"] != "llama":
            self.floats(prefix + "attn_q_norm.weight", s["head_dim"])
            self.floats(prefix + "attn_k_norm.weight", s["head_dim"])

    def latents(self, prefix):
        s, hidden, heads = self.shape, self.shape["hidden"], self.shape["heads"]
        self.matrix(prefix + "attn_q_a.weight", s["query_rank"], hidden)
        self.floats(prefix + "attn_q_a_norm.weight", s["query_rank"])
        self.matrix(prefix + "attn_q_b.weight", heads * (s["plain_dim"] + s["rope_dim"]),
                    s["query_rank"])
        self.matrix(prefix + "attn_kv_a_mqa.weight", s["latent"] + s["rope_dim"], hidden)
        self.floats(prefix + "attn_kv_a_norm.weight", s["latent"])
        self.matrix(prefix + "attn_k_b.weight", heads, s["latent"], s["plain_dim"])
        self.matrix(prefix + "attn_v_b.weight", heads, s["value_dim"], s["latent"])
        self.matrix(prefix + "attn_output.weight", hidden, heads * s["value_dim"])

    def states(self, prefix):
        s, hidden = self.shape, self.shape["hidden"]
        heads, width = s["state_heads"], s["state_heads"] * s["state_dim"]
        self.matrix(prefix + "attn_qkv.weight", 3 * width, hidden)
        self.matrix(prefix + "attn_gate.weight", width, hidden)
        self.matrix(prefix + "ssm_out.weight", hidden, width)
        self.matrix(prefix + "ssm_alpha.weight", heads, hidden)
        self.matrix(prefix + "ssm_beta.weight", heads, hidden)
        self.matrix(prefix + "ssm_conv1d.weight", 3 * width, s["conv"], kind=Type.F32)
        self.floats(prefix + "ssm_a", heads, -0.5)
        self.floats(prefix + "ssm_dt.bias", heads, 0.1)
        self.floats(prefix + "ssm_norm.weight", s["state_dim"])

    def mlp(self, prefix, suffix, ffn, down=None):
        hidden = self.shape["hidden"]
        self.matrix(f"{prefix}ffn_gate{suffix}.weight", ffn, hidden)
        self.matrix(f"{prefix}ffn_up{suffix}.weight", ffn, hidden)
        self.matrix(f"{prefix}ffn_down{suffix}.weight", hidden, ffn, kind=down)

    def experts(self, prefix):
        s, hidden = self.shape, self.shape["hidden"]
        self.matrix(prefix + "ffn_gate_inp.weight", s["experts"], hidden, kind=Type.F32)
        for name in ("gate", "up"):
            self.matrix(f"{prefix}ffn_{name}_exps.weight", s["experts"], s["expert_ffn"], hidden)
        self.matrix(prefix + "ffn_down_exps.weight", s["experts"], hidden, s["expert_ffn"])
        if "shared_ffn" in s:
            self.floats(prefix + "exp_probs_b.bias", s["experts"], 0.0)
            self.mlp(prefix, "_shexp", s["shared_ffn"])

    def layer(self, number):
        s, prefix = self.shape, f"blk.{number}."
        gemma = s["arch"] == "gemma3"
        self.floats(prefix + "attn_norm.weight", s["hidden"])
        if "latent" in s:
            self.latents(prefix)
        elif (number + 1) % s.get("full_every", 1):
            self.states(prefix)
        else:
            self.attention(prefix)
        after = gemma or s["arch"] == "qwen35"
        self.floats(prefix + "post_attention_norm.weight", s["hidden"]) if after else None
        if s["arch"] != "qwen35":
            self.floats(prefix + "ffn_norm.weight", s["hidden"])
        if gemma:
            self.floats(prefix + "post_ffw_norm.weight", s["hidden"])
        if "experts" in s and number >= s.get("dense_layers", 0):
            self.experts(prefix)
        else:
            self.mlp(prefix, "", s["ffn"], Type.Q6_K if gemma else None)

    def keys(self, name):
        s, writer = self.shape, self.writer
        writer.add_name(name + " of random weights")
        writer.add_context_length(s["context"])
        writer.add_embedding_length(s["hidden"])
        writer.add_block_count(s["layers"])
        writer.add_feed_forward_length(s["ffn"])
        writer.add_head_count(s["heads"])
        writer.add_head_count_kv(s["kv_heads"])
        writer.add_key_length(s["head_dim"])
        writer.add_value_length(s.get("latent", s["head_dim"]))
        writer.add_rope_dimension_count(s.get("rope_dim", s["head_dim"]))
        writer.add_rope_freq_base(s["base"])
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_vocab_size(s["vocab"])
        if s["arch"] == "gemma3":
            writer.add_sliding_window(512)
        if "experts" in s:
            writer.add_expert_count(s["experts"])
            writer.add_expert_used_count(s["used"])
            writer.add_expert_feed_forward_length(s["expert_ffn"])
        if "state_heads" in s:
            writer.add_ssm_conv_kernel(s["conv"])
            writer.add_ssm_state_size(s["state_dim"])
            writer.add_ssm_group_count(s["state_heads"])
            writer.add_ssm_time_step_rank(s["state_heads"])
            writer.add_ssm_inner_size(s["state_heads"] * s["state_dim"])
            writer.add_full_attention_interval(s["full_every"])
            writer.add_rope_dimension_sections([11, 11, 10, 0])
        if "latent" in s:
            writer.add_leading_dense_block_count(s["dense_layers"])
            writer.add_expert_shared_count(1)
            writer.add_expert_weights_scale(1.8)
            writer.add_expert_weights_norm(True)
            writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
            writer.add_q_lora_rank(s["query_rank"])
            writer.add_kv_lora_rank(s["latent"])
            writer.add_key_length_mla(s["plain_dim"] + s["rope_dim"])
            writer.add_value_length_mla(s["value_dim"])

    def vocabulary(self):
        tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]
        kinds = [gguf.TokenType.UNKNOWN] + [gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.BYTE] * 256
        while len(tokens) < self.shape["vocab"]:
            kinds.append(gguf.TokenType.NORMAL)
            tokens.append(f"t{len(tokens)}")
        self.writer.add_tokenizer_model("llama")
        self.writer.add_tokenizer_pre("default")
        self.writer.add_token_list(tokens)
        self.writer.add_token_scores([float(-i) for i in range(len(tokens))])
        self.writer.add_token_types(kinds)
        self.writer.add_bos_token_id(1)
        self.writer.add_eos_token_id(2)

    def write(self, name, embedding):
        s = self.shape
        self.keys(name)
        self.vocabulary()
        self.matrix("token_embd.weight", s["vocab"], s["hidden"], kind=embedding)
        if s.get("head"):
            self.matrix("output.weight", s["vocab"], s["hidden"], kind=embedding)
        self.floats("output_norm.weight", s["hidden"])
        for number in range(s["layers"]):
            self.layer(number)
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("out")
    parser.add_argument("--weights", default="")
    args = parser.parse_args()
    shape = SHAPES[args.shape]
    kind = Type[args.weights or shape.get("weights", "Q4_0")]
    embedding = kind if kind in (Type.BF16, Type.F32) else Type.Q8_0
    Model(shape, kind, args.out).write(args.shape, embedding)


main()
