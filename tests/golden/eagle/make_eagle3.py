#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tiny random EAGLE-3 heads for the tiny Llama model, and what PyTorch computes with them.

    pip install torch safetensors gguf==0.19.0 numpy && python make_eagle3.py

<name>/config.json, <name>/model.safetensors   a head, its tensors in F16
<name>.f32     raw float32: hidden states in [TOKENS, 3 * H]; for a pass over all rows the logits
               [TOKENS, V'] and states [TOKENS, H]; the same of CHAIN rows of one token each behind
               them, which read the head's own state before
heads.json     one row per head: tokens of the pass, tokens of the chain, shapes, provenance

The forward pass is written here from the published description of the head, with torch's
operators: rows of [norm(embedding of the next token); norm(fc(three hidden states))], attention
over both halves, a gated MLP, a norm and the head's own output layer. Weights are rounded to F16
before it.
"""
import importlib.metadata
import json
import pathlib

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent
TINY = HERE.parent / "tiny" / "tiny-llama.gguf"
H, HEADS, KV_HEADS, HEAD_DIM, FFN, EPS, THETA = 64, 4, 2, 16, 96, 1e-5, 10000.0
TOKENS, CHAIN = 24, 3

# name: names ("midlayer": as the first heads, "layers": as later exports), tokens of the output
# (None: all), whether the normed state is the residual, own embedding, layers read
HEADS_OF = {
    "midlayer": dict(style="midlayer", tokens=100, residual=False, embedding=False, layers=None),
    "layers": dict(style="layers", tokens=None, residual=True, embedding=True, layers=[0, 1, 2]),
    "mapped": dict(style="layers", tokens=100, residual=True, embedding=False, layers=[0, 1, 2]),
    "whole": dict(style="midlayer", tokens=None, residual=False, embedding=False, layers=[0, 1, 2]),
}


def tiny_embedding():
    for tensor in gguf.GGUFReader(TINY).tensors:
        if tensor.name == "token_embd.weight":
            return torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy())
    raise SystemExit("no embedding")


def rms_norm(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight


def rotate(x, positions):
    half = HEAD_DIM // 2
    inverse = THETA ** (-torch.arange(half, dtype=torch.float64) * 2 / HEAD_DIM)
    angles = positions.double()[:, None] * inverse
    cos, sin = angles.cos().float()[:, None], angles.sin().float()[:, None]
    low, high = x[..., :half], x[..., half:]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


class Head:
    def __init__(self, weights, embedding, residual):
        self.w, self.embedding, self.residual = weights, embedding, residual
        self.k = torch.zeros(0, KV_HEADS, HEAD_DIM)
        self.v = torch.zeros(0, KV_HEADS, HEAD_DIM)

    def forward(self, tokens, hidden):
        """hidden: [rows, 3 * H], or [rows, H] of the head itself. Logits and states."""
        w = self.w
        h = hidden @ w["fc.weight"].T if hidden.shape[-1] != H else hidden
        normed = rms_norm(h, w["layer.hidden_norm.weight"])
        x = torch.cat([rms_norm(self.embedding[tokens], w["layer.input_layernorm.weight"]), normed], -1)
        start = self.k.shape[0]
        positions = torch.arange(start, start + len(tokens))
        q = rotate((x @ w["layer.self_attn.q_proj.weight"].T).view(-1, HEADS, HEAD_DIM), positions)
        k = rotate((x @ w["layer.self_attn.k_proj.weight"].T).view(-1, KV_HEADS, HEAD_DIM), positions)
        v = (x @ w["layer.self_attn.v_proj.weight"].T).view(-1, KV_HEADS, HEAD_DIM)
        self.k, self.v = torch.cat([self.k, k]), torch.cat([self.v, v])
        keys = self.k.repeat_interleave(HEADS // KV_HEADS, 1)
        values = self.v.repeat_interleave(HEADS // KV_HEADS, 1)
        scores = torch.einsum("qhd,khd->hqk", q, keys) / HEAD_DIM ** 0.5
        seen = torch.arange(keys.shape[0])[None] <= positions[:, None]
        scores = scores.masked_fill(~seen, float("-inf"))
        mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).reshape(len(tokens), -1)
        y = (normed if self.residual else h) + mixed @ w["layer.self_attn.o_proj.weight"].T
        z = rms_norm(y, w["layer.post_attention_layernorm.weight"])
        gate = torch.nn.functional.silu(z @ w["layer.mlp.gate_proj.weight"].T)
        out = y + (gate * (z @ w["layer.mlp.up_proj.weight"].T)) @ w["layer.mlp.down_proj.weight"].T
        return rms_norm(out, w["norm.weight"]) @ w["lm_head.weight"].T, out


def random_weights(generator, num_tokens):
    def matrix(n, k):
        return (torch.randn(n, k, generator=generator) * 1.5 / k ** 0.5).half()

    def norm():
        return (0.7 + 0.6 * torch.rand(H, generator=generator)).half()

    shapes = {"self_attn.q_proj": (HEADS * HEAD_DIM, 2 * H), "self_attn.k_proj": (KV_HEADS * HEAD_DIM, 2 * H),
              "self_attn.v_proj": (KV_HEADS * HEAD_DIM, 2 * H), "self_attn.o_proj": (H, HEADS * HEAD_DIM),
              "mlp.gate_proj": (FFN, H), "mlp.up_proj": (FFN, H), "mlp.down_proj": (H, FFN)}
    weights = {f"layer.{name}.weight": matrix(*shape) for name, shape in shapes.items()}
    for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        weights[f"layer.{name}.weight"] = norm()
    weights |= {"fc.weight": matrix(H, 3 * H), "norm.weight": norm(), "lm_head.weight": matrix(num_tokens, H)}
    return weights


def stored_name(name, style):
    if style == "midlayer":
        return name.replace("layer.", "midlayer.", 1) if name.startswith("layer.") else name
    if name == "lm_head.weight":
        return name
    return "model." + (name.replace("layer.", "layers.0.", 1) if name.startswith("layer.") else name)


def make(name, row, number, target_embedding):
    generator = torch.Generator().manual_seed(20261126 + number)
    vocab = target_embedding.shape[0]
    num_tokens = row["tokens"] or vocab
    weights = random_weights(generator, num_tokens)
    embedding = target_embedding
    stored = {stored_name(key, row["style"]): value for key, value in weights.items()}
    if row["embedding"]:
        own = (torch.randn(vocab, H, generator=generator) * 0.3).half()
        stored["model.embed_tokens.weight"] = own
        embedding = own.float()
    ids = torch.arange(num_tokens)
    if row["tokens"]:
        ids = torch.randperm(vocab, generator=generator)[:num_tokens].sort().values
        stored["d2t"] = ids - torch.arange(num_tokens)
        stored["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, ids, True)
    config = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": H,
              "intermediate_size": FFN, "num_hidden_layers": 1, "num_attention_heads": HEADS,
              "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "rms_norm_eps": EPS, "rope_theta": THETA,
              "max_position_embeddings": 2048, "vocab_size": vocab, "draft_vocab_size": num_tokens,
              "tie_word_embeddings": False, "hidden_act": "silu", "norm_before_residual": row["residual"]}
    if row["layers"]:
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": row["layers"]}
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file({key: value.contiguous() for key, value in stored.items()}, folder / "model.safetensors")

    head = Head({key: value.float() for key, value in weights.items()}, embedding, row["residual"])
    tokens = torch.randint(0, vocab, (TOKENS,), generator=generator)
    hidden = torch.randn(TOKENS, 3 * H, generator=generator)
    logits, states = head.forward(tokens, hidden)
    parts = [hidden, logits, states]
    chain = []
    for _ in range(CHAIN):
        token = ids[logits[-1].argmax()]
        chain.append(int(token))
        logits, states = head.forward(token[None], states[-1:])
        parts += [logits, states]
    raw = np.concatenate([part.numpy().astype("<f4").ravel() for part in parts])
    (HERE / f"{name}.f32").write_bytes(raw.tobytes())
    return {"name": name, "tokens": tokens.tolist(), "chain": chain, "num_output_tokens": num_tokens}


def main():
    torch.manual_seed(0)
    embedding = tiny_embedding()
    rows = [make(name, row, i, embedding) for i, (name, row) in enumerate(HEADS_OF.items())]
    versions = {name: importlib.metadata.version(name) for name in ("torch", "safetensors", "gguf", "numpy")}
    document = {"script": "tests/golden/eagle/make_eagle3.py", "versions": versions, "hidden": H, "heads": rows}
    (HERE / "heads.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    with torch.no_grad():
        main()
