#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes mtp-latents, mtp-gates, mtp-sinks and mtp-heads as make_mtp.py writes the modules of usual attention:
a module of DeepSeek-V3, whose layer has latents and experts; one of Qwen3.5, whose layer has gates and
experts; one of MiMo-V2-Flash, whose layer has a window, attention sinks and a dense half; one of Step-3.5, whose
layer has a window, more heads with a gate each, a dense half and behind it an output matrix of its own. The
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
from transformers.models.mimo_v2_flash import modeling_mimo_v2_flash as mimo
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as qwen
from transformers.models.step3p7 import modeling_step3p7 as step
from transformers.models.step3p7.configuration_step3p7 import Step3p7TextConfig

from make_eagle3 import CHAIN, EPS, H, HERE, rms_norm, tiny_embedding

LAYERS = 3
TOKENS = 12
FUSED = "mlp.experts."
WINDOW, WINDOWED, FULL = 5, "sliding_attention", "full_attention"


class Module:
    """The names of the module's tensors are those of `parts`: norms of embedding and state, the matrix, the
    last norm, and an output matrix if it has its own. Norms have `offset` less in files. A layer with a window
    sees so many tokens."""

    def __init__(self, rotary, layer, weights, parts, embedding, offset, hands_on_normed, window):
        self.layer, self.embedding, self.rotary, self.hands_on_normed = layer, embedding, rotary, hands_on_normed
        self.enorm, self.hnorm, self.matrix, self.norm = (weights[part] for part in parts[:4])
        self.output = weights[parts[4]] if len(parts) > 4 else embedding
        self.offset, self.window = offset, window
        self.inputs = torch.zeros(0, H)

    def normed(self, x, weight):
        return rms_norm(x, self.offset + weight)

    def forward(self, tokens, hidden):
        both = [self.normed(self.embedding[tokens], self.enorm), self.normed(hidden, self.hnorm)]
        self.inputs = torch.cat([self.inputs, torch.cat(both, -1) @ self.matrix.T])
        count = len(self.inputs)
        positions = torch.arange(count)[None]
        mask = torch.full((count, count), float("-inf")).triu(1)[None, None]
        if self.window:
            mask = mask + torch.full((count, count), float("-inf")).tril(-self.window)[None, None]
        x = self.inputs[None]
        kind = (WINDOWED,) if self.window else ()
        out = self.layer(x, attention_mask=mask, position_ids=positions,
                         position_embeddings=self.rotary(x, positions, *kind))
        out = (out[0] if isinstance(out, tuple) else out)[0][-len(tokens):]
        last = self.normed(out, self.norm)
        return last @ self.output.T, last if self.hands_on_normed else out


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


def published(config, **keys):
    """The configuration with the keys that the family's files have, and these."""
    config = config.to_diff_dict()
    for key in ("layer_types", "mlp_layer_types", "rope_parameters", "dtype", "transformers_version"):
        config.pop(key, None)
    return {**config, **keys}


def sinks(embedding):
    rope = dict(rope_type="default", partial_rotary_factor=0.334)
    config = transformers.MiMoV2FlashConfig(
        vocab_size=embedding.shape[0], hidden_size=H, intermediate_size=72, num_hidden_layers=LAYERS,
        num_attention_heads=8, num_key_value_heads=2, head_dim=24, v_head_dim=16, attention_value_scale=0.6,
        n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=24, sliding_window=WINDOW,
        layer_types=[FULL, WINDOWED, FULL], mlp_layer_types=["dense", "sparse", "dense"], rms_norm_eps=EPS,
        max_position_embeddings=2048, tie_word_embeddings=False,
        rope_parameters={FULL: dict(rope, rope_theta=5e4), WINDOWED: dict(rope, rope_theta=500.0)})
    config._attn_implementation = "eager"
    layer = mimo.MiMoV2FlashDecoderLayer(config, 1)
    layer.mlp = mimo.MiMoV2FlashMLP(config)  # of modules it is dense
    document = published(
        config, model_type="mimo_v2_flash", hybrid_layer_pattern=[0, 1, 0], moe_layer_freq=[0, 1, 0],
        sliding_window=WINDOW - 1, sliding_window_size=WINDOW - 1, rope_theta=5e4, swa_rope_theta=500.0,
        partial_rotary_factor=0.334, swa_num_attention_heads=8, swa_num_key_value_heads=4, swa_head_dim=24,
        swa_v_head_dim=16, layernorm_epsilon=EPS, add_swa_attention_sink_bias=True,
        add_full_attention_sink_bias=False)
    renamed = {"post_attention_layernorm.weight": "pre_mlp_layernorm.weight",
               "self_attn.sinks": "self_attn.attention_sink_bias"}
    own = "model.mtp.layers.0."
    return write("mtp-sinks", document, "MiMoV2FlashForCausalLM", layer, mimo.MiMoV2FlashRotaryEmbedding(config),
                 ["enorm", "hnorm", "eh_proj", "final_layernorm"], own, own, embedding, hands_on_normed=True,
                 window=WINDOW, renamed=renamed)


def heads(embedding):
    theta = {FULL: 5e4, WINDOWED: 500.0}
    part = {FULL: 0.5, WINDOWED: 1.0}
    kinds = [FULL, WINDOWED, FULL, WINDOWED]
    limits = [0.0, 0.3, 0.0, 0.2]
    config = Step3p7TextConfig(
        vocab_size=embedding.shape[0], hidden_size=H, intermediate_size=72, num_hidden_layers=LAYERS + 1,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_sliding_attention_heads=6,
        moe_intermediate_size=24, share_expert_dim=40, n_routed_experts=6, num_experts_per_tok=2,
        sliding_window=WINDOW, layer_types=kinds, mlp_layer_types=["dense", "sparse", "sparse", "dense"],
        swiglu_limits_shared=limits, rms_norm_eps=EPS, max_position_embeddings=2048,
        tie_word_embeddings=False,
        rope_parameters={kind: dict(rope_type="default", rope_theta=theta[kind], partial_rotary_factor=part[kind])
                         for kind in theta})
    config._attn_implementation = "eager"
    document = dict(
        vocab_size=embedding.shape[0], hidden_size=H, intermediate_size=72, num_hidden_layers=LAYERS,
        num_nextn_predict_layers=2, num_attention_heads=4, num_attention_groups=2, head_dim=16,
        attention_other_setting=dict(attention_type=WINDOWED, num_attention_heads=6, num_attention_groups=2,
                                     head_dim=16),
        moe_num_experts=6, moe_top_k=2, moe_intermediate_size=24, share_expert_dim=40, norm_expert_weight=True,
        moe_layers_enum="1,2", sliding_window=WINDOW, layer_types=[*kinds, WINDOWED],
        rope_theta=[theta[kind] for kind in [*kinds, WINDOWED]],
        partial_rotary_factors=[part[kind] for kind in [*kinds, WINDOWED]], use_head_wise_attn_gate=True,
        swiglu_limits=[0.0] * 5, swiglu_limits_shared=[*limits, 0.0], rms_norm_eps=EPS,
        max_position_embeddings=2048, tie_word_embeddings=False, model_type="step3p5")
    own = f"model.layers.{LAYERS}."
    head = "transformer.shared_head."
    return write("mtp-heads", document, "Step3p5ForCausalLM", step.Step3p7DecoderLayer(config, LAYERS),
                 step.Step3p7RotaryEmbedding(config), ["enorm", "hnorm", "eh_proj", head + "norm", head + "output"],
                 own, own, embedding, offset=1.0, window=WINDOW)


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
                 ["pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm"], "mtp.", "mtp.layers.0.", embedding,
                 offset=1.0, hands_on_normed=True, is_stacked=True)


def write(name, config, class_name, layer, rotary, parts, own, of_layer, embedding, offset=0.0,
          hands_on_normed=False, window=0, is_stacked=False, renamed={}):
    usual = 1.0 - offset
    for part, tensor in layer.eval().state_dict().items():
        centre, width = (usual, 0.2) if "norm" in part else (0.0, 1.5 / tensor.shape[-1] ** 0.5)
        tensor.copy_((centre + width * torch.randn_like(tensor)).half().float())
    weights = {part: (usual - 0.3 + 0.6 * torch.rand(H)).half().float() for part in parts if "norm" in part}
    weights[parts[2]] = (torch.randn(H, 2 * H) * 1.5 / (2 * H) ** 0.5).half().float()
    if len(parts) > 4:
        weights[parts[4]] = (torch.randn_like(embedding) * 1.5 / H ** 0.5).half().float()
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(
        {**(config if isinstance(config, dict) else config.to_diff_dict()), "architectures": [class_name]},
        indent=1) + "\n")
    stored = {f"{own}{part}.weight": tensor for part, tensor in weights.items()}
    of_tensors = layer.state_dict().items() if is_stacked else stored_layer(layer)
    stored |= {of_layer + renamed.get(part, part): tensor for part, tensor in of_tensors}
    save_file({part: tensor.half().contiguous() for part, tensor in stored.items()}, folder / "model.safetensors")
    module = Module(rotary, layer, weights, parts, embedding, offset, hands_on_normed, window)
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
                "heads": [latents(embedding), gates(embedding), sinks(embedding), heads(embedding)]}
    (HERE / "layer_mtp.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    with torch.no_grad():
        main()
