# SPDX-License-Identifier: Apache-2.0
"""Gemma 4's rows of make_models.py, and what its files have that no other family's do. Their seeds
depend on their order here alone."""
import json

import torch
from safetensors.torch import save_file

S, F = "sliding_attention", "full_attention"
# All sizes differ: a swap of two would show.
DENSE = dict(num_hidden_layers=5, layer_types=[S, F, S, S, F], sliding_window=9, intermediate_size=40,
             head_dim=16, global_head_dim=24, num_global_key_value_heads=1, attention_k_eq_v=True,
             hidden_size_per_layer_input=0, final_logit_softcapping=5.0, tie_word_embeddings=True)
SHARED = dict(DENSE, num_hidden_layers=8, layer_types=[S, F, S, F, S, S, F, F], num_kv_shared_layers=4,
              attention_k_eq_v=False, use_double_wide_mlp=True, hidden_size_per_layer_input=12,
              vocab_size_per_layer_input=73)
MOE = dict(DENSE, num_hidden_layers=3, layer_types=[S, S, F], enable_moe_block=True, num_experts=6,
           top_k_experts=2, moe_intermediate_size=24, final_logit_softcapping=None)
MODELS = {
    "gemma4": ("Gemma4Text", "gemma4", DENSE, "F16"),
    "gemma4-shared": ("Gemma4Text", "gemma4", SHARED, "F16"),
    "gemma4-moe": ("Gemma4Text", "gemma4", MOE, "F16"),
    "gemma4-all": ("Gemma4Text", "gemma4", dict(
        SHARED, attention_k_eq_v=True, enable_moe_block=True, num_experts=5, top_k_experts=3,
        moe_intermediate_size=24), "BF16"),
    "gemma4-unified": ("Gemma4UnifiedText", None, dict(
        DENSE, num_hidden_layers=3, layer_types=[S, S, F], head_dim=24, global_head_dim=40,
        rope_parameters={S: {"rope_type": "default", "rope_theta": 500.0},
                         F: {"rope_type": "proportional", "partial_rotary_factor": 0.5,
                             "rope_theta": 10000.0}}), "F16"),
}


def engines(common):
    """Models for the determinism test: layers that share K and V and have inputs of their own, and experts
    beside dense halves."""
    common = dict(common, sliding_window=40, intermediate_size=64)
    return [
        ("engine-shared", "Gemma4Text", "gemma4", {
            **SHARED, **common, **dict(hidden_size_per_layer_input=32,
            vocab_size_per_layer_input=common["vocab_size"])}),
        ("engine-beside", "Gemma4Text", "gemma4", {
            **MOE, **common, "moe_intermediate_size": 32}),
    ]


def is_gemma4(config):
    return config.model_type.startswith("gemma4")


def randomise(config, model):
    """Gives what begins at 1, as scales do, other values near it."""
    if not is_gemma4(config):
        return
    for name, weight in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith(("layer_scalar", "router.scale", "per_expert_scale")):
            weight.copy_(1.0 + 0.2 * torch.randn_like(weight))


def round_buffers(model, dtype):
    for name, weight in model.named_buffers():
        if name.endswith("layer_scalar"):
            weight.copy_(weight.to(dtype).float())


def publish(name, folder, config, tensors):
    """Rewrites a directory as Google's are: the full layers' sizes in two keys, the text model inside a
    multimodal one, and matrices for K and V even where a layer reads another's."""
    if name not in ("gemma4", "gemma4-shared"):
        return
    full = config.pop("per_layer_config")[str(config["layer_types"].index(F))]
    config["global_head_dim"] = full["head_dim"]
    config["num_global_key_value_heads"] = full.get("num_key_value_heads")
    if name == "gemma4":
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        return
    stored = {n.replace("model.", "model.language_model.", 1): t for n, t in tensors.items()}
    for layer in range(len(config["layer_types"]) - config["num_kv_shared_layers"],
                       len(config["layer_types"])):
        place = f"model.language_model.layers.{layer}.self_attn."
        like = config["layer_types"].index(config["layer_types"][layer])
        for part in ("k_proj", "v_proj", "k_norm"):
            source = tensors[f"model.layers.{like}.self_attn.{part}.weight"]
            stored[f"{place}{part}.weight"] = torch.full_like(source, 3.0)
    stored["model.vision_tower.std_bias"] = torch.ones(2, 3)
    stored["model.embed_vision.embedding_projection.weight"] = torch.ones(2, 3)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    outer = {"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4",
             "text_config": config, "vision_config": {"model_type": "gemma4_vision"},
             "tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(outer, indent=1) + "\n")


def converted(architecture, name, array, result):
    """Takes the tensors that llama.cpp's converter names itself; others are returned."""
    if architecture != "gemma4":
        return array
    layer = "blk." + name.split(".")[2] + "."
    own = {"router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale",
           "layer_scalar": "layer_output_scale.weight",
           "experts.gate_up_proj": "ffn_gate_up_exps.weight",
           "experts.down_proj": "ffn_down_exps.weight"}
    for ending, ours in own.items():
        if name.endswith(ending):
            result[layer + ours] = array
            return None
    return array


def add_keys(writer, architecture, config, arrays):
    """The keys that llama.cpp's converter writes for this family; rotation frequencies as a tensor."""
    if architecture != "gemma4":
        return False
    full = config.per_layer_config[F]
    sliding = config.per_layer_config[S]
    is_sliding = [kind == S for kind in config.layer_types]
    shared = config.num_kv_shared_layers
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input or 0)
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern(is_sliding)
    writer.add_key_length(full.head_dim)
    writer.add_value_length(full.head_dim)
    writer.add_key_length_swa(sliding.head_dim)
    writer.add_value_length_swa(sliding.head_dim)
    width = config.intermediate_size
    writer.add_feed_forward_length(
        [width * (2 if i >= len(is_sliding) - shared else 1) for i in range(len(is_sliding))]
        if config.use_double_wide_mlp else width)
    writer.add_head_count_kv(
        [sliding.num_key_value_heads if s else full.num_key_value_heads for s in is_sliding])
    writer.add_rope_dimension_count(full.head_dim)
    writer.add_rope_dimension_count_swa(sliding.head_dim)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope[F]["rope_theta"])
    writer.add_rope_freq_base_swa(rope[S]["rope_theta"])
    turned = int(full.head_dim * rope[F]["partial_rotary_factor"] / 2)
    arrays["rope_freqs.weight"] = torch.tensor(
        [1.0] * turned + [1e30] * (full.head_dim // 2 - turned)).numpy()
    if config.final_logit_softcapping:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if config.enable_moe_block:
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.top_k_experts)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    return True
