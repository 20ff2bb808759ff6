#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a tiny random EAGLE head, of the first kind, for the tiny Llama model, and what PyTorch
computes with it.

    pip install torch safetensors gguf==0.19.0 numpy && python make_eagle.py

first/config.json, first/model.safetensors   the head, its tensors in F16
first.f32    raw float32: hidden states in [TOKENS, H]; the logits [TOKENS, V] and states [TOKENS, H] of
             a pass over all rows; the same of CHAIN rows of one token each behind them, which read the
             head's own state before
first.json   tokens of the pass, tokens of the chain, provenance

Sizes and operators are make_eagle3.py's; the head is written from the published description: a matrix
with a bias over [embedding of the next token; state], a decoder layer without a norm in front of its
attention, and the target's output layer, which is its embedding here.
"""
import json

import numpy as np
import torch
from safetensors.torch import save_file

from make_eagle3 import (CHAIN, EPS, FFN, H, HEAD_DIM, HEADS, HERE, KV_HEADS, THETA, TOKENS, rms_norm, rotate,
                         tiny_embedding)


class Head:
    def __init__(self, weights, embedding):
        self.w, self.embedding = weights, embedding
        self.k, self.v = torch.zeros(0, KV_HEADS, HEAD_DIM), torch.zeros(0, KV_HEADS, HEAD_DIM)

    def forward(self, tokens, hidden):
        w, start = self.w, self.k.shape[0]
        x = torch.cat([self.embedding[tokens], hidden], -1) @ w["fc.weight"].T + w["fc.bias"]
        positions = torch.arange(start, start + len(tokens))
        q, k, v = ((x @ w[f"layers.0.self_attn.{n}_proj.weight"].T).view(len(tokens), -1, HEAD_DIM) for n in "qkv")
        self.k, self.v = torch.cat([self.k, rotate(k, positions)]), torch.cat([self.v, v])
        keys = self.k.repeat_interleave(HEADS // KV_HEADS, 1)
        values = self.v.repeat_interleave(HEADS // KV_HEADS, 1)
        scores = torch.einsum("qhd,khd->hqk", rotate(q, positions), keys) / HEAD_DIM ** 0.5
        seen = torch.arange(keys.shape[0])[None] <= positions[:, None]
        shares = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        mixed = torch.einsum("hqk,khd->qhd", shares, values).reshape(len(tokens), -1)
        y = x + mixed @ w["layers.0.self_attn.o_proj.weight"].T
        z = rms_norm(y, w["layers.0.post_attention_layernorm.weight"])
        gate = torch.nn.functional.silu(z @ w["layers.0.mlp.gate_proj.weight"].T)
        out = y + (gate * (z @ w["layers.0.mlp.up_proj.weight"].T)) @ w["layers.0.mlp.down_proj.weight"].T
        return out @ self.embedding.T, out


def main():
    generator = torch.Generator().manual_seed(20261127)
    embedding = tiny_embedding()
    shapes = {"fc": (H, 2 * H), "layers.0.self_attn.q_proj": (H, H), "layers.0.self_attn.o_proj": (H, H),
              "layers.0.self_attn.k_proj": (KV_HEADS * HEAD_DIM, H),
              "layers.0.self_attn.v_proj": (KV_HEADS * HEAD_DIM, H), "layers.0.mlp.gate_proj": (FFN, H),
              "layers.0.mlp.up_proj": (FFN, H), "layers.0.mlp.down_proj": (H, FFN)}
    stored = {f"{name}.weight": (torch.randn(n, k, generator=generator) * 1.5 / k ** 0.5).half()
              for name, (n, k) in shapes.items()}
    stored["fc.bias"] = (torch.randn(H, generator=generator) * 0.2).half()
    stored["layers.0.post_attention_layernorm.weight"] = (0.7 + 0.6 * torch.rand(H, generator=generator)).half()
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": H,
              "intermediate_size": FFN, "num_hidden_layers": 1, "num_attention_heads": HEADS,
              "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "rms_norm_eps": EPS, "rope_theta": THETA,
              "max_position_embeddings": 2048, "vocab_size": embedding.shape[0], "bias": True,
              "tie_word_embeddings": False, "hidden_act": "silu"}
    folder = HERE / "first"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(stored, folder / "model.safetensors")
    head = Head({name: value.float() for name, value in stored.items()}, embedding)
    tokens = torch.randint(0, embedding.shape[0], (TOKENS,), generator=generator)
    hidden = torch.randn(TOKENS, H, generator=generator)
    logits, states = head.forward(tokens, hidden)
    parts, chain = [hidden, logits, states], []
    for _ in range(CHAIN):
        chain.append(int(logits[-1].argmax()))
        logits, states = head.forward(torch.tensor(chain[-1:]), states[-1:])
        parts += [logits, states]
    (HERE / "first.f32").write_bytes(np.concatenate([p.numpy().astype("<f4").ravel() for p in parts]).tobytes())
    document = {"script": "tests/golden/eagle/make_eagle.py", "torch": torch.__version__, "hidden": H,
                "heads": [{"name": "first", "tokens": tokens.tolist(), "chain": chain,
                           "num_output_tokens": embedding.shape[0]}]}
    (HERE / "first.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    with torch.no_grad():
        main()
