#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tiny random modules that guess a further token (MTP) for the tiny Llama model, and what
PyTorch computes with them.

    pip install torch safetensors gguf==0.19.0 numpy && python make_mtp.py

<name>/config.json, <name>/model.safetensors   a folder of a model of the tiny one's shape with the
             module's tensors alone, in F16, under the names of a family: mtp-layers DeepSeek-V3's and
             GLM-4.5's, mtp-mimo MiMo's, mtp-next Qwen3-Next's
<name>.f32   raw float32: hidden states in [TOKENS, H]; the logits [TOKENS, V] and states [TOKENS, H]
             of a pass over all rows; the same of CHAIN rows of one token each behind them, which read
             the module's own state before
mtp.json     tokens of the passes, tokens of the chains, provenance

Written from the published description of each: a norm of the next token's embedding and one of the
state, a matrix over both, a whole decoder layer, a norm, and the target's output layer, which is its
embedding here. MiMo has the state in front of the embedding; DeepSeek's next row reads the state in
front of that last norm, the others' the one behind it. The matrices are the same in all.
"""
import json

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

from make_eagle3 import CHAIN, EPS, H, HEAD_DIM, HEADS, HERE, KV_HEADS, THETA, TINY, rms_norm, rotate, tiny_embedding

TOKENS = 12
PARTS = ["enorm", "hnorm", "proj", "norm"]
LAYER = ["input_layernorm", "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj",
         "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]

# name: what precedes the module's own tensors and its layer's, the names of PARTS, whether the state
# is in front, whether the next row reads it normed
FAMILIES = {
    "mtp-layers": ("model.layers.3.", "model.layers.3.", ["enorm", "hnorm", "eh_proj", "shared_head.norm"],
                   False, False),
    "mtp-mimo": ("model.mtp_layers.0.", "model.mtp_layers.0.",
                 ["token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm"], True, True),
    "mtp-next": ("mtp.", "mtp.layers.0.", ["pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm"],
                 False, True),
}


def tiny_value(key):
    field = gguf.GGUFReader(TINY).fields["llama." + key]
    return int(field.parts[field.data[0]][0])


class Module:
    def __init__(self, weights, embedding, state_first, hands_on_normed):
        self.w, self.embedding = weights, embedding
        self.state_first, self.hands_on_normed = state_first, hands_on_normed
        self.k, self.v = torch.zeros(0, KV_HEADS, HEAD_DIM), torch.zeros(0, KV_HEADS, HEAD_DIM)

    def forward(self, tokens, hidden):
        w, start = self.w, self.k.shape[0]
        both = [rms_norm(self.embedding[tokens], w["enorm"]), rms_norm(hidden, w["hnorm"])]
        x = torch.cat(both[::-1] if self.state_first else both, -1) @ w["proj"].T
        normed = rms_norm(x, w["input_layernorm"])
        positions = torch.arange(start, start + len(tokens))
        q, k, v = ((normed @ w[f"self_attn.{n}_proj"].T).view(len(tokens), -1, HEAD_DIM) for n in "qkv")
        self.k, self.v = torch.cat([self.k, rotate(k, positions)]), torch.cat([self.v, v])
        keys = self.k.repeat_interleave(HEADS // KV_HEADS, 1)
        values = self.v.repeat_interleave(HEADS // KV_HEADS, 1)
        scores = torch.einsum("qhd,khd->hqk", rotate(q, positions), keys) / HEAD_DIM ** 0.5
        seen = torch.arange(keys.shape[0])[None] <= positions[:, None]
        shares = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        mixed = torch.einsum("hqk,khd->qhd", shares, values).reshape(len(tokens), -1)
        y = x + mixed @ w["self_attn.o_proj"].T
        z = rms_norm(y, w["post_attention_layernorm"])
        gate = torch.nn.functional.silu(z @ w["mlp.gate_proj"].T)
        out = y + (gate * (z @ w["mlp.up_proj"].T)) @ w["mlp.down_proj"].T
        last = rms_norm(out, w["norm"])
        return last @ self.embedding.T, last if self.hands_on_normed else out


def main():
    generator = torch.Generator().manual_seed(20261127)
    embedding, ffn = tiny_embedding(), tiny_value("feed_forward_length")
    shapes = {"proj": (H, 2 * H), "self_attn.q_proj": (H, H), "self_attn.o_proj": (H, H),
              "self_attn.k_proj": (KV_HEADS * HEAD_DIM, H), "self_attn.v_proj": (KV_HEADS * HEAD_DIM, H),
              "mlp.gate_proj": (ffn, H), "mlp.up_proj": (ffn, H), "mlp.down_proj": (H, ffn)}
    weights = {name: (torch.randn(n, k, generator=generator) * 1.5 / k ** 0.5).half()
               for name, (n, k) in shapes.items()}
    for name in ["enorm", "hnorm", "norm", "input_layernorm", "post_attention_layernorm"]:
        weights[name] = (0.7 + 0.6 * torch.rand(H, generator=generator)).half()
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": H,
              "intermediate_size": ffn, "num_hidden_layers": tiny_value("block_count"),
              "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
              "rms_norm_eps": EPS, "rope_theta": THETA, "max_position_embeddings": 2048,
              "vocab_size": embedding.shape[0], "num_nextn_predict_layers": 1, "hidden_act": "silu"}
    rows = []
    for family, (own, of_layer, names, state_first, hands_on_normed) in FAMILIES.items():
        folder = HERE / family
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        stored = {f"{own}{name}.weight": weights[part] for part, name in zip(PARTS, names)}
        stored |= {f"{of_layer}{name}.weight": weights[name] for name in LAYER}
        save_file(stored, folder / "model.safetensors")
        module = Module({name: value.float() for name, value in weights.items()}, embedding, state_first,
                        hands_on_normed)
        tokens = torch.randint(0, embedding.shape[0], (TOKENS,), generator=generator)
        hidden = torch.randn(TOKENS, H, generator=generator)
        logits, states = module.forward(tokens, hidden)
        parts, chain = [hidden, logits, states], []
        for _ in range(CHAIN):
            chain.append(int(logits[-1].argmax()))
            logits, states = module.forward(torch.tensor(chain[-1:]), states[-1:])
            parts += [logits, states]
        values = np.concatenate([p.numpy().astype("<f4").ravel() for p in parts])
        (HERE / f"{family}.f32").write_bytes(values.tobytes())
        rows.append({"name": family, "tokens": tokens.tolist(), "chain": chain,
                     "num_output_tokens": embedding.shape[0]})
    document = {"script": "tests/golden/eagle/make_mtp.py", "torch": torch.__version__, "hidden": H, "heads": rows}
    (HERE / "mtp.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    with torch.no_grad():
        main()
