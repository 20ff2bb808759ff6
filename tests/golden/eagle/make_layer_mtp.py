#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes mtp-latents and mtp-gates as make_mtp.py writes the modules of usual attention: a module of
DeepSeek-V3, whose layer has latents and experts, and one of Qwen3.5, whose layer has gates and experts. The
layers are transformers'; what is around them is each family's description. A config.json is that of the model
that the module lies behind, of the tiny model's width and vocabulary.

    pip install torch transformers gguf==0.19.0 numpy && python make_layer_mtp.py
"""
import json

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as v3
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as qwen

from make_eagle3 import CHAIN, EPS, H, HERE, rms_norm, tiny_embedding

LAYERS = 3
TOKENS = 12
FUSED = "mlp.experts."


class Module:
    """The names of the module's tensors are those of `parts`: norms of embedding and state, the matrix, the
    last norm, which Qwen's next row reads the state behind. Qwen's norms have 1 less in files."""

    def __init__(self, rotary, layer, weights, parts, embedding, is_qwen):
        self.layer, self.embedding, self.rotary, self.hands_on_normed = layer, embedding, rotary, is_qwen
        self.enorm, self.hnorm, self.matrix, self.norm = (weights[part] for part in parts)
        self.offset = 1.0 if is_qwen else 0.0
        self.inputs = torch.zeros(0, H)

    def normed(self, x, weight):
        return rms_norm(x, self.offset + weight)

    def forward(self, tokens, hidden):
        both = [self.normed(self.embedding[tokens], self.enorm), self.normed(hidden, self.hnorm)]
        self.inputs = torch.cat([self.inputs, torch.cat(both, -1) @ self.matrix.T])
        count = len(self.inputs)
        positions = torch.arange(count)[None]
        mask = torch.full((count, count), float("-inf")).triu(1)[None, None]
        x = self.inputs[None]
        out = self.layer(x, attention_mask=mask, position_ids=positions,
                         position_embeddings=self.rotary(x, positions))
        out = (out[0] if isinstance(out, tuple) else out)[0][-len(tokens):]
        last = self.normed(out, self.norm)
        return last @ self.embedding.T, last if self.hands_on_normed else out


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


def latents(embedding):
    config = transformers.DeepseekV3Config(
        vocab_size=embedding.shape[0], hidden_size=H, intermediate_size=96, num_hidden_layers=LAYERS,
        num_attention_heads=3, num_key_value_heads=3, q_lora_rank=40, kv_lora_rank=96, qk_nope_head_dim=24,
        qk_rope_head_dim=8, v_head_dim=20, n_routed_experts=12, num_experts_per_tok=3, n_group=4, topk_group=2,
        moe_intermediate_size=24, n_shared_experts=2, first_k_dense_replace=1, rms_norm_eps=1e-5,
        max_position_embeddings=2048, tie_word_embeddings=True, num_nextn_predict_layers=1)
    config._attn_implementation = "eager"
    own = f"model.layers.{LAYERS}."
    return write("mtp-latents", config, "DeepseekV3ForCausalLM", v3.DeepseekV3DecoderLayer(config, LAYERS - 1),
                 v3.DeepseekV3RotaryEmbedding(config), ["enorm", "hnorm", "eh_proj", "shared_head.norm"], own, own,
                 embedding)


def gates(embedding):
    config = transformers.Qwen3_5MoeTextConfig(
        vocab_size=embedding.shape[0], hidden_size=H, num_hidden_layers=LAYERS + 1, num_attention_heads=6,
        num_key_value_heads=2, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4,
        linear_key_head_dim=16, linear_value_head_dim=16, num_experts=6, num_experts_per_tok=2,
        moe_intermediate_size=24, shared_expert_intermediate_size=40, rms_norm_eps=EPS,
        max_position_embeddings=2048, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5})
    config._attn_implementation = "eager"
    return write("mtp-gates", config, "Qwen3_5MoeForCausalLM", qwen.Qwen3_5MoeDecoderLayer(config, LAYERS),
                 qwen.Qwen3_5MoeTextRotaryEmbedding(config),
                 ["pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm"], "mtp.", "mtp.layers.0.", embedding)


def write(name, config, class_name, layer, rotary, parts, own, of_layer, embedding):
    is_qwen = own == "mtp."
    usual = 0.0 if is_qwen else 1.0
    for part, tensor in layer.eval().state_dict().items():
        centre, width = (usual, 0.2) if "norm" in part else (0.0, 1.5 / tensor.shape[-1] ** 0.5)
        tensor.copy_((centre + width * torch.randn_like(tensor)).half().float())
    weights = {part: (usual - 0.3 + 0.6 * torch.rand(H)).half().float() for part in parts if "norm" in part}
    weights[parts[2]] = (torch.randn(H, 2 * H) * 1.5 / (2 * H) ** 0.5).half().float()
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(
        {**config.to_diff_dict(), "architectures": [class_name]}, indent=1) + "\n")
    stored = {f"{own}{part}.weight": tensor for part, tensor in weights.items()}
    of_tensors = layer.state_dict().items() if is_qwen else stored_layer(layer)  # Qwen's experts are stacked
    stored |= {of_layer + part: tensor for part, tensor in of_tensors}
    save_file({part: tensor.half().contiguous() for part, tensor in stored.items()}, folder / "model.safetensors")
    module = Module(rotary, layer, weights, parts, embedding, is_qwen)
    tokens, hidden = torch.randint(0, embedding.shape[0], (TOKENS,)), torch.randn(TOKENS, H)
    logits, states = module.forward(tokens, hidden)
    parts, chain = [hidden, logits, states], []
    for _ in range(CHAIN):
        chain.append(int(logits[-1].argmax()))
        logits, states = module.forward(torch.tensor(chain[-1:]), states[-1:])
        parts += [logits, states]
    values = np.concatenate([p.numpy().astype("<f4").ravel() for p in parts])
    (HERE / f"{name}.f32").write_bytes(values.tobytes())
    return {"name": name, "tokens": tokens.tolist(), "chain": chain, "num_output_tokens": embedding.shape[0]}


def main():
    torch.manual_seed(20261129)
    embedding = tiny_embedding()
    document = {"script": "tests/golden/eagle/make_layer_mtp.py", "torch": torch.__version__,
                "transformers": transformers.__version__, "hidden": H,
                "heads": [latents(embedding), gates(embedding)]}
    (HERE / "layer_mtp.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    with torch.no_grad():
        main()
