#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes mtp-latents as make_mtp.py writes the modules of usual attention: a module of DeepSeek-V3, whose
layer has latents and experts. The layer is transformers'; what is around it is DeepSeek's description. Its
config.json is that of the model it lies behind, of the tiny model's width and vocabulary.

    pip install torch transformers gguf==0.19.0 numpy && python make_latent_mtp.py
"""
import json

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as v3

from make_eagle3 import CHAIN, H, HERE, rms_norm, tiny_embedding

NAME = "mtp-latents"
LAYERS = 3
TOKENS = 12
FUSED = "mlp.experts."


class Module:
    def __init__(self, config, layer, weights, embedding):
        self.layer, self.w, self.embedding = layer, weights, embedding
        self.rotary = v3.DeepseekV3RotaryEmbedding(config)
        self.inputs = torch.zeros(0, H)

    def forward(self, tokens, hidden):
        both = [rms_norm(self.embedding[tokens], self.w["enorm"]), rms_norm(hidden, self.w["hnorm"])]
        self.inputs = torch.cat([self.inputs, torch.cat(both, -1) @ self.w["eh_proj"].T])
        count = len(self.inputs)
        positions = torch.arange(count)[None]
        mask = torch.full((count, count), float("-inf")).triu(1)[None, None]
        x = self.inputs[None]
        out = self.layer(x, attention_mask=mask, position_ids=positions,
                         position_embeddings=self.rotary(x, positions))
        out = (out[0] if isinstance(out, tuple) else out)[0][-len(tokens):]
        return rms_norm(out, self.w["shared_head.norm"]) @ self.embedding.T, out


def stored_layer(layer):
    """The layer's tensors by published names: a matrix of each expert."""
    for name, tensor in layer.state_dict().items():
        if not name.startswith(FUSED):
            yield name, tensor
            continue
        for i, matrix in enumerate(tensor):
            if name.endswith("down_proj"):
                yield f"{FUSED}{i}.down_proj.weight", matrix
            else:
                yield from zip([f"{FUSED}{i}.gate_proj.weight", f"{FUSED}{i}.up_proj.weight"], matrix.chunk(2))


def main():
    torch.manual_seed(20261129)
    embedding = tiny_embedding()
    config = transformers.DeepseekV3Config(
        vocab_size=embedding.shape[0], hidden_size=H, intermediate_size=96, num_hidden_layers=LAYERS,
        num_attention_heads=3, num_key_value_heads=3, q_lora_rank=40, kv_lora_rank=96, qk_nope_head_dim=24,
        qk_rope_head_dim=8, v_head_dim=20, n_routed_experts=12, num_experts_per_tok=3, n_group=4, topk_group=2,
        moe_intermediate_size=24, n_shared_experts=2, first_k_dense_replace=1, rms_norm_eps=1e-5,
        max_position_embeddings=2048, tie_word_embeddings=True, num_nextn_predict_layers=1)
    config._attn_implementation = "eager"
    layer = v3.DeepseekV3DecoderLayer(config, LAYERS - 1).eval()
    for name, tensor in layer.state_dict().items():
        centre, width = (1.0, 0.2) if "norm" in name else (0.0, 1.5 / tensor.shape[-1] ** 0.5)
        tensor.copy_((centre + width * torch.randn_like(tensor)).half().float())
    weights = {name: (0.7 + 0.6 * torch.rand(H)).half().float() for name in ("enorm", "hnorm", "shared_head.norm")}
    weights["eh_proj"] = (torch.randn(H, 2 * H) * 1.5 / (2 * H) ** 0.5).half().float()
    folder = HERE / NAME
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(
        {**config.to_diff_dict(), "architectures": ["DeepseekV3ForCausalLM"]}, indent=1) + "\n")
    own = f"model.layers.{LAYERS}."
    stored = {f"{own}{name}.weight": tensor for name, tensor in weights.items()}
    stored |= {own + name: tensor for name, tensor in stored_layer(layer)}
    save_file({name: tensor.half().contiguous() for name, tensor in stored.items()}, folder / "model.safetensors")
    module = Module(config, layer, weights, embedding)
    tokens, hidden = torch.randint(0, embedding.shape[0], (TOKENS,)), torch.randn(TOKENS, H)
    logits, states = module.forward(tokens, hidden)
    parts, chain = [hidden, logits, states], []
    for _ in range(CHAIN):
        chain.append(int(logits[-1].argmax()))
        logits, states = module.forward(torch.tensor(chain[-1:]), states[-1:])
        parts += [logits, states]
    values = np.concatenate([p.numpy().astype("<f4").ravel() for p in parts])
    (HERE / f"{NAME}.f32").write_bytes(values.tobytes())
    document = {"script": "tests/golden/eagle/make_latent_mtp.py", "torch": torch.__version__,
                "transformers": transformers.__version__, "hidden": H,
                "heads": [{"name": NAME, "tokens": tokens.tolist(), "chain": chain,
                           "num_output_tokens": embedding.shape[0]}]}
    (HERE / "latent_mtp.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    with torch.no_grad():
        main()
