# SPDX-License-Identifier: Apache-2.0
"""The recurrent models of make_models.py: their rows, their logits token by token, and what GGUF files of
them have otherwise."""
import json

import numpy as np
import torch
from safetensors.torch import save_file

# Layers of the gated delta rule, all sizes distinct.
DELTA = dict(num_hidden_layers=4, linear_key_head_dim=16, linear_value_head_dim=16,
             linear_num_key_heads=2, linear_num_value_heads=4, linear_conv_kernel_dim=4,
             rope_parameters={"rope_type": "default", "rope_theta": 10000.0,
                              "partial_rotary_factor": 0.5})
# Layers of short convolutions.
LFM2 = dict(num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"], head_dim=8,
            tie_word_embeddings=True)

# Layers of Mamba-2: groups of heads, and prompts of many chunks of transformers' other form.
MAMBA = dict(mamba_n_heads=4, mamba_d_head=16, mamba_n_groups=2, mamba_d_state=32, mamba_d_conv=3,
             mamba_expand=2, mamba_chunk_size=8, num_hidden_layers=3)
HYBRID = dict(MAMBA, layer_types=["linear_attention", "full_attention", "linear_attention"], head_dim=8,
              embedding_multiplier=3.0, attention_multiplier=0.09, residual_multiplier=0.4,
              logits_scaling=2.0, intermediate_size=24, shared_intermediate_size=40)

# Layers of one half each.
HALVES = dict(num_hidden_layers=None, mamba_num_heads=4, mamba_head_dim=16, n_groups=2, ssm_state_size=32,
              conv_kernel=3, chunk_size=8, n_routed_experts=6, num_experts_per_tok=2,
              moe_intermediate_size=16, moe_shared_expert_intermediate_size=24,
              routed_scaling_factor=1.5)
# Layers of two mixers, and a factor of every product.
BESIDE = dict(MAMBA, mamba_d_ssm=64, num_hidden_layers=2, embedding_multiplier=3.0, lm_head_multiplier=0.6,
              key_multiplier=0.8, attention_in_multiplier=1.3, attention_out_multiplier=0.7,
              ssm_in_multiplier=1.2, ssm_out_multiplier=0.9, ssm_multipliers=[0.7, 1.1, 0.6, 0.8, 1.5],
              mlp_multipliers=[1.4, 0.8], mamba_norm_before_gate=False)
MIXER, FULL, DENSE, EXPERTS = "linear_attention", "full_attention", "mlp", "moe"

# Rows of make_models.MODELS.
MODELS = {
    # Recurrent layers: prompts longer than a chunk of transformers' other form.
    "qwen3-5": ("Qwen3_5Text", "qwen35", dict(
        DELTA, linear_num_key_heads=2, linear_num_value_heads=6), "F16"),
    "qwen3-5-equal-heads": ("Qwen3_5Text", None, dict(
        DELTA, linear_num_key_heads=3, linear_num_value_heads=3, linear_value_head_dim=32), "BF16"),
    # Stacked experts, as published, and a text model inside a multimodal one.
    "qwen3-5-moe": ("Qwen3_5MoeText", "qwen35moe", dict(
        DELTA, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16,
        shared_expert_intermediate_size=24), "F16"),
    "qwen3-next": ("Qwen3Next", "qwen3next", dict(
        DELTA, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16,
        shared_expert_intermediate_size=24, mlp_only_layers=[]), "F16"),
    "lfm2": ("Lfm2", "lfm2", dict(
        LFM2, intermediate_size=60, block_multiple_of=16, block_ffn_dim_multiplier=1.3), "F16"),
    "lfm2-bias": ("Lfm2", None, dict(LFM2, conv_bias=True, conv_L_cache=4,
                                     block_auto_adjust_ff_dim=False), "BF16"),
    "lfm2-moe": ("Lfm2Moe", "lfm2moe", dict(
        LFM2, num_dense_layers=1, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16,
        routed_scaling_factor=1.5), "F16"),
    "granite-hybrid": ("GraniteMoeHybrid", "granitehybrid", dict(
        HYBRID, num_local_experts=6, num_experts_per_tok=2), "F16"),
    "granite-hybrid-dense": ("GraniteMoeHybrid", "granitehybrid", dict(
        HYBRID, num_local_experts=0, mamba_n_groups=1, tie_word_embeddings=True), "BF16"),
    "bamba": ("Bamba", None, dict(
        MAMBA, attn_layer_indices=[1], intermediate_size=40, mamba_proj_bias=True), "F16"),
    "bamba-limits": ("Bamba", None, dict(
        MAMBA, attn_layer_indices=[2], mamba_conv_bias=False, time_step_limit=(0.4, 1.1)), "BF16"),
    # Two mixers in succession, and a dense half at the end.
    "nemotron-h": ("NemotronH", "nemotron_h", dict(
        HALVES, layers_block_type=[MIXER, DENSE, MIXER, FULL, DENSE]), "F16"),
    "nemotron-h-moe": ("NemotronH", "nemotron_h_moe", dict(
        HALVES, layers_block_type=[MIXER, EXPERTS, MIXER, FULL, EXPERTS], norm_topk_prob=False), "F16"),
    "nemotron-h-latent": ("NemotronH", "nemotron_h_moe", dict(
        HALVES, layers_block_type=[MIXER, EXPERTS, FULL, EXPERTS], moe_latent_size=12), "BF16"),
    "nemotron-h-bias": ("NemotronH", None, dict(
        HALVES, layers_block_type=[EXPERTS, FULL, DENSE, EXPERTS, MIXER], moe_latent_size=12,
        n_group=3, topk_group=2, mlp_bias=True, attention_bias=True, use_bias=True,
        use_conv_bias=False), "F16"),
    # GGUF files have factors in their weights: rounded, they would be of another model.
    "falcon-h1": ("FalconH1", "falcon-h1", BESIDE, "F32"),
    "falcon-h1-norm": ("FalconH1", "falcon-h1", dict(
        BESIDE, mamba_rms_norm=True), "F32"),
    "falcon-h1-limits": ("FalconH1", None, dict(
        BESIDE, mamba_conv_bias=False, time_step_limit=(0.4, float("inf")), ssm_in_multiplier=1.0,
        mamba_proj_bias=True), "BF16"),
    "olmo-hybrid": ("OlmoHybrid", None, dict(
        DELTA, head_dim=8, linear_num_key_heads=2, linear_value_head_dim=32, rope_parameters={
            "rope_type": "default", "rope_theta": None}), "F16"),
    "olmo-hybrid-rope": ("OlmoHybrid", None, dict(
        DELTA, head_dim=8, num_key_value_heads=4, linear_allow_neg_eigval=False, rope_parameters={
            "rope_type": "default", "rope_theta": 5000.0}), "BF16"),
    "olmo-hybrid-saved": ("OlmoHybrid", None, dict(
        DELTA, head_dim=8, linear_value_head_dim=48, rope_parameters={
            "rope_type": "default", "rope_theta": 5000.0}), "BF16"),
}


def engine_models(common):
    """Rows of make_models.write_engine_models(): wide enough for four ranks, of which some share key heads,
    groups and KV heads."""
    return (
        ("engine-delta", "Qwen3_5MoeText", "qwen35moe", dict(
            common, num_hidden_layers=4, linear_num_key_heads=4, linear_num_value_heads=8,
            linear_key_head_dim=32, linear_value_head_dim=16, head_dim=32, num_experts=4,
            num_experts_per_tok=2, moe_intermediate_size=128, shared_expert_intermediate_size=128)),
        # Its last layer is a module behind the others: with_module().
        ("engine-delta-mtp", "Qwen3_5MoeText", "qwen35moe", dict(
            common, num_hidden_layers=5, linear_num_key_heads=2, linear_num_value_heads=4,
            linear_key_head_dim=16, linear_value_head_dim=16, num_experts=4, num_experts_per_tok=2,
            moe_intermediate_size=32, shared_expert_intermediate_size=32, tie_word_embeddings=False,
            layer_types=[MIXER, MIXER, MIXER, FULL, FULL])),
        ("engine-conv", "Lfm2", "lfm2", dict(
            common, num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"], head_dim=32,
            hidden_size=128, intermediate_size=128, block_auto_adjust_ff_dim=False)),
        ("engine-mamba", "GraniteMoeHybrid", "granitehybrid", dict(
            common, **HYBRID, num_local_experts=4, num_experts_per_tok=2) | dict(
                mamba_n_heads=8, mamba_expand=4, head_dim=32, intermediate_size=128,
                shared_intermediate_size=128)),
        ("engine-halves", "NemotronH", "nemotron_h_moe", dict(
            common, **HALVES, layers_block_type=[MIXER, EXPERTS, FULL, EXPERTS]) | dict(
                tie_word_embeddings=False, moe_intermediate_size=32, moe_latent_size=32,
                moe_shared_expert_intermediate_size=64)),
        ("engine-two-mixers", "FalconH1", "falcon-h1", dict(common, **BESIDE) | dict(
            head_dim=8, intermediate_size=32)))


def with_module(name, config, arrays):
    """Makes the last layer a module that guesses a further token, often rightly: layers add little to the
    stream, and the module begins with the next token's embedding as the model does."""
    if name != "engine-delta-mtp":
        return arrays
    config.num_nextn_predict_layers = 1
    hidden, module = config.hidden_size, f"blk.{config.num_hidden_layers - 1}.nextn."
    for part, array in arrays.items():
        if part.endswith(("ssm_out.weight", "attn_output.weight", "_exps.weight", "_shexp.weight")):
            arrays[part] = 0.3 * array
    random = np.random.default_rng(53)
    noise = (0.02 * random.standard_normal((hidden, 2 * hidden))).astype(np.float32)
    arrays[module + "eh_proj.weight"] = noise + np.eye(hidden, 2 * hidden, dtype=np.float32)
    arrays[module + "enorm.weight"] = np.ones(hidden, np.float32)
    arrays[module + "hnorm.weight"] = (1 + 0.2 * random.standard_normal(hidden)).astype(np.float32)
    arrays[module + "shared_head_norm.weight"] = arrays["output_norm.weight"]
    return arrays


def is_recurrent(config):
    return bool({"linear_attention", "conv", "hybrid"} & set(getattr(config, "layer_types", None) or []))


def has_mamba(config):
    return is_recurrent(config) and (hasattr(config, "mamba_d_state") or hasattr(config, "ssm_state_size"))


def only_chunks_clamp(config):
    """Whether transformers' form in chunks has limits of the steps that its other one leaves out."""
    limits = getattr(config, "time_step_limit", None)
    return limits is not None and tuple(limits) != (0.0, float("inf"))


def token_by_token(name, model, tokens, in_chunks):
    """The logits of the recurrent form; transformers' other one, in chunks, has other roundings."""
    rows, cache = [], None
    for place, token in enumerate(tokens):
        # Bamba's class counts positions by its first layer, which counts none.
        out = model(torch.tensor([[token]]), cache=cache, use_cache=True,
                    position_ids=torch.tensor([[place]]))
        cache = out.cache
        rows.append(out.logits[0, 0].float().numpy())
    logits = np.stack(rows)
    if only_chunks_clamp(model.config):
        return in_chunks
    difference = np.abs(logits - in_chunks).max() / (logits.max() - logits.min())
    print(f"{name}: its two forms differ by {difference:.2g} of the range", flush=True)
    return logits


def centres_norm(config, name):
    """Whether 1 is added to the weights of this norm."""
    types = getattr(config, "layer_types", None) or []
    is_plain = has_mamba(config) or config.model_type == "olmo_hybrid"
    return "linear_attention" in types and not is_plain and "linear_attn" not in name


def publish(name, folder, config, tensors):
    if name == "qwen3-5-moe":
        publish_experts(folder, config, tensors)
    if config["model_type"] == "olmo_hybrid" and name != "olmo-hybrid-saved":
        publish_convs(folder, config, tensors)


def publish_convs(folder, config, tensors):
    """Cuts the convolutions of q, k and v where they end: transformers cuts all channels in three."""
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
    for stem in {name.partition("q_conv1d")[0] for name in tensors if "q_conv1d" in name}:
        names = [f"{stem}{part}_conv1d.weight" for part in "qkv"]
        parts = torch.cat([tensors[name] for name in names]).split([keys, keys, values])
        tensors.update({name: part.clone() for name, part in zip(names, parts)})
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def publish_experts(folder, config, tensors):
    """Rewrites the directory as Qwen's are: experts stacked, beside a vision tower and a module that
    guesses a further token."""
    experts = {}
    stored = {}
    for name, tensor in tensors.items():
        place = name.replace("model.", "model.language_model.", 1)
        if ".experts." not in name:
            stored[place] = tensor
            continue
        head, tail = place.split(".experts.")
        number, part, _ = tail.split(".")
        experts.setdefault(head, {}).setdefault(part, {})[int(number)] = tensor
    for head, parts in experts.items():
        gate, up, down = (torch.stack([parts[p][i] for i in sorted(parts[p])])
                          for p in ("gate_proj", "up_proj", "down_proj"))
        stored[head + ".experts.gate_up_proj"] = torch.cat([gate, up], 1)
        stored[head + ".experts.down_proj"] = down
    stored["model.visual.pos_embed.weight"] = torch.ones(2, 3)
    stored["mtp.fc.weight"] = torch.ones(2, 3)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    outer = {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe",
             "text_config": config, "vision_config": {"model_type": "qwen3_5_moe"},
             "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(outer, indent=1) + "\n")


HALVES_ARCHITECTURES = ("nemotron_h", "nemotron_h_moe")
DELTA_ARCHITECTURES = ("qwen35", "qwen35moe", "qwen3next")


def tiled(array, config, width):
    """Value heads of `width` rows in the order of qwen35 files: first those that are their key heads'
    first ones."""
    keys = config.linear_num_key_heads
    rest = array.shape[1:]
    return array.reshape(keys, config.linear_num_value_heads // keys, width, *rest).swapaxes(
        0, 1).reshape(-1, *rest)


def delta_tensor(result, architecture, config, name, array):
    layer = "blk." + name.split(".")[2] + "."
    part = name.split("linear_attn.")[-1]
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    width = config.linear_value_head_dim
    order = (lambda rows, w: rows) if architecture == "qwen3next" else (lambda rows, w: tiled(rows, config, w))

    def with_values(rows):
        return np.concatenate([rows[:2 * keys], order(rows[2 * keys:], width)])

    if name.endswith("experts.gate_up_proj"):
        half = array.shape[1] // 2
        result[layer + "ffn_gate_exps.weight"] = array[:, :half]
        result[layer + "ffn_up_exps.weight"] = array[:, half:]
    elif name.endswith("experts.down_proj"):
        result[layer + "ffn_down_exps.weight"] = array
    elif part == "in_proj_qkvz.weight":
        groups, group = config.linear_num_key_heads, config.linear_num_value_heads // config.linear_num_key_heads
        sizes = [config.linear_key_head_dim] * 2 + [group * width] * 2
        parts = np.split(array.reshape(groups, -1, array.shape[1]), np.cumsum(sizes)[:-1], axis=1)
        q, k, v, z = (p.reshape(-1, array.shape[1]) for p in parts)
        result[layer + "attn_qkv.weight"] = np.concatenate([q, k, v])
        result[layer + "attn_gate.weight"] = z
    elif part == "in_proj_ba.weight":
        result[layer + "ssm_ba.weight"] = array
    elif part == "in_proj_qkv.weight":
        result[layer + "attn_qkv.weight"] = with_values(array)
    elif part == "in_proj_z.weight":
        result[layer + "attn_gate.weight"] = order(array, width)
    elif part == "in_proj_b.weight":
        result[layer + "ssm_beta.weight"] = order(array, 1)
    elif part == "in_proj_a.weight":
        result[layer + "ssm_alpha.weight"] = order(array, 1)
    elif part == "conv1d.weight":
        result[layer + "ssm_conv1d.weight"] = with_values(array[:, 0])
    elif part == "A_log":
        result[layer + "ssm_a"] = order(-np.exp(array), 1)
    elif part == "dt_bias":
        result[layer + "ssm_dt.bias"] = order(array, 1)
    elif part == "norm.weight":
        result[layer + "ssm_norm.weight"] = array
    else:
        assert part == "out_proj.weight", name
        result[layer + "ssm_out.weight"] = order(array.T, width).T


def converted(architecture, config, name, array, result):
    """A tensor as GGUF has it; None: it is in `result`, under its name there."""
    layer = "blk." + name.split(".")[2] + "." if ".layers." in name else ""
    if architecture in DELTA_ARCHITECTURES:
        if ".linear_attn." in name or name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            delta_tensor(result, architecture, config, name, array)
            return None
        return array + 1 if name.endswith("norm.weight") else array
    if architecture == "kimi-linear":
        return kda_tensor(result, layer, name, array)
    if architecture == "falcon-h1":
        array = array * factors_of(config, name)
        if name.endswith("pre_ff_layernorm.weight"):  # without a suffix in the converter's table
            result[layer + "ffn_norm"] = array
            return None
    if architecture in ("granitehybrid", "falcon-h1") or architecture in HALVES_ARCHITECTURES:
        return mamba_tensor(result, config, layer, name, array)
    if not architecture.startswith("lfm2"):
        return array
    if name == "model.embedding_norm.weight":
        result["token_embd_norm.weight"] = array
        return None
    if name.endswith("expert_bias"):
        result[layer + "exp_probs_b.bias"] = array
        return None
    return array[:, 0] if name.endswith("conv.conv.weight") else array


def kda_tensor(result, layer, name, array):
    part = name.split("self_attn.")[-1]
    if part == "A_log":
        result[layer + "ssm_a"] = -np.exp(array)
    elif part == "dt_bias":
        result[layer + "ssm_dt.bias"] = array
    elif part.endswith("_conv1d.weight"):
        result[layer + f"ssm_conv1d_{part[0]}.weight"] = array[None]
    else:
        return array
    return None


def factors_of(config, name):
    """What llama.cpp's converter multiplies a tensor of Falcon-H1 by."""
    attention = config.attention_in_multiplier
    inner, shared = config.mamba_d_ssm, config.mamba_n_groups * config.mamba_d_state
    factors = {"q_proj": attention, "k_proj": attention * config.key_multiplier, "v_proj": attention,
               "o_proj": config.attention_out_multiplier, "mamba.out_proj": config.ssm_out_multiplier,
               "gate_proj": config.mlp_multipliers[0], "down_proj": config.mlp_multipliers[1],
               "lm_head": config.lm_head_multiplier, "embed_tokens": config.embedding_multiplier,
               "mamba.in_proj": config.ssm_in_multiplier * np.repeat(
                   config.ssm_multipliers, [inner, inner, shared, shared, config.mamba_n_heads])[:, None]}
    return next((factor for part, factor in factors.items() if f"{part}.weight" in name), 1.0)


def mamba_tensor(result, config, layer, name, array):
    part = name.split("mamba.")[-1].split(".mixer.")[-1]
    if part.startswith(("q_", "k_", "v_", "o_", "up_", "down_", "gate.", "shared_", "fc")):
        return array
    if ".shared_mlp." in name:  # with experts; without, plain() has renamed it
        half = array.shape[0] // 2
        if "output_linear" in name:
            result[layer + "ffn_down_shexp.weight"] = array
        else:
            result[layer + "ffn_gate_shexp.weight"] = array[:half]
            result[layer + "ffn_up_shexp.weight"] = array[half:]
    elif part == name:
        return array
    elif part == "A_log":
        result[layer + "ssm_a"] = -np.exp(array).reshape(-1, 1)
    elif part == "D":
        result[layer + "ssm_d"] = array.reshape(-1, 1)
    elif part == "dt_bias":
        result[layer + "ssm_dt.bias"] = array
    elif part == "norm.weight":
        groups = getattr(config, "mamba_n_groups", None) or config.n_groups
        result[layer + "ssm_norm.weight"] = array.reshape(groups, -1)
    else:
        stem, suffix = part.split(".")
        stem = {"in_proj": "ssm_in", "conv1d": "ssm_conv1d", "out_proj": "ssm_out"}[stem]
        result[layer + f"{stem}.{suffix}"] = array[:, 0] if array.ndim == 3 else array
    return None


def stays_exact(name):
    """Vectors that GGUF files have in two dimensions."""
    return name.endswith(("ssm_a", "ssm_d", "ssm_norm.weight"))


def ffn_widths(architecture, config, usual):
    """A number for each layer, 0 for mixers."""
    if architecture not in HALVES_ARCHITECTURES:
        return usual
    widths = {DENSE: config.intermediate_size, EXPERTS: config.moe_intermediate_size}
    return [widths.get(t, 0) for t in config.layer_types]


def kv_heads(architecture, config):
    if architecture not in ("granitehybrid", *HALVES_ARCHITECTURES) and not architecture.startswith("lfm2"):
        return config.num_key_value_heads
    return [config.num_key_value_heads if t == "full_attention" else 0 for t in config.layer_types]


def add_keys(writer, architecture, config):
    if architecture in DELTA_ARCHITECTURES:
        writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
        writer.add_ssm_state_size(config.linear_key_head_dim)
        writer.add_ssm_group_count(config.linear_num_key_heads)
        writer.add_ssm_time_step_rank(config.linear_num_value_heads)
        writer.add_ssm_inner_size(config.linear_num_value_heads * config.linear_value_head_dim)
        writer.add_array(f"{architecture}.rope.dimension_sections", [2, 1, 1, 0])
        writer.add_uint32(f"{architecture}.full_attention_interval", 4)
        if getattr(config, "num_nextn_predict_layers", 0):
            writer.add_nextn_predict_layers(config.num_nextn_predict_layers)
    if architecture in ("granitehybrid", "falcon-h1"):
        writer.add_ssm_conv_kernel(config.mamba_d_conv)
        writer.add_ssm_state_size(config.mamba_d_state)
        writer.add_ssm_group_count(config.mamba_n_groups)
        writer.add_ssm_time_step_rank(config.mamba_n_heads)
        writer.add_ssm_inner_size(config.mamba_n_heads * config.mamba_d_head)
    if architecture == "granitehybrid":
        writer.add_rope_scaling_finetuned(False)
    if architecture in HALVES_ARCHITECTURES:
        writer.add_ssm_conv_kernel(config.conv_kernel)
        writer.add_ssm_state_size(config.ssm_state_size)
        writer.add_ssm_group_count(config.n_groups)
        writer.add_ssm_time_step_rank(config.mamba_num_heads)
        writer.add_ssm_inner_size(config.mamba_num_heads * config.mamba_head_dim)
        writer.add_rope_scaling_finetuned(False)
    if architecture == "nemotron_h_moe":
        writer.add_expert_shared_count(config.n_shared_experts)
        writer.add_expert_shared_feed_forward_length(config.moe_shared_expert_intermediate_size)
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_group_count(config.n_group)
        if config.moe_latent_size:
            writer.add_moe_latent_size(config.moe_latent_size)
    if architecture.startswith("lfm2"):
        writer.add_shortconv_l_cache(config.conv_L_cache)
    if architecture == "lfm2moe":
        writer.add_leading_dense_block_count(config.num_dense_layers)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
