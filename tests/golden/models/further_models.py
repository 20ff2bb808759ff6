# SPDX-License-Identifier: Apache-2.0
"""Further rows of make_models.py: norms, gates and rotations of families beside Llama's. Their seeds
depend on their order here alone."""
import torch
from safetensors.torch import load_file, save_file

import ungated_models as ungated

PHI3 = dict(num_key_value_heads=1, head_dim=8)
LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
            "short_factor": [1.0, 1.1, 1.2], "long_factor": [1.0, 2.0, 5.0]}
GRANITE4 = dict(head_dim=8, layer_types=["full_attention", "full_attention"], num_local_experts=0,
                shared_intermediate_size=40, intermediate_size=24, mamba_n_heads=4,
                embedding_multiplier=3.0, attention_multiplier=0.09, residual_multiplier=0.4,
                logits_scaling=2.0)

STABLELM = dict(num_hidden_layers=3, head_dim=8, layer_norm_eps=1e-3, rope_parameters={
    "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5})

LLAMA3_ROPE = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
QWEN3_VL_MOE = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24, rope_parameters={
    "rope_type": "default", "rope_theta": 50000.0, "mrope_interleaved": True, "mrope_section": [4, 2, 2]})

PHIMOE = dict(head_dim=8, num_local_experts=6, num_experts_per_tok=2, intermediate_size=24,
              attention_bias=True, lm_head_bias=True, rms_norm_eps=1e-3)
PHIMOE_ROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.1, 1.2, 1.3],
               "long_factor": [1.0, 2.0, 5.0, 8.0]}

# Architectures whose files have rows of q and k in pairs.
PERMUTED = ("llama", "baichuan", "smollm3", "granite", "granitemoe", "granitehybrid", "mistral3", "arcee", "internlm2",
            "minicpm")
# The text model's type and the vision tower of multimodal classes.
TOWERS = {
    "Mistral3": ("mistral", dict(
        model_type="pixtral", hidden_size=16, intermediate_size=24, num_hidden_layers=1,
        num_attention_heads=2, head_dim=8, image_size=28, patch_size=14, num_channels=3)),
    "Qwen2VL": ("qwen2_vl_text", dict(depth=1, embed_dim=16, hidden_size=32, num_heads=2, patch_size=4)),
    "Qwen2_5_VL": ("qwen2_5_vl_text", dict(
        depth=1, hidden_size=16, out_hidden_size=32, num_heads=2, patch_size=4, intermediate_size=8)),
    "Qwen3VL": ("qwen3_vl_text", dict(
        depth=1, hidden_size=16, out_hidden_size=32, num_heads=2, patch_size=4, intermediate_size=8,
        num_position_embeddings=16, deepstack_visual_indexes=[0])),
}
TOWERS["Qwen3VLMoe"] = ("qwen3_vl_moe_text", TOWERS["Qwen3VL"][1])
for _prefix, _type in (("Glm4v", "glm4v_text"), ("Glm4vMoe", "glm4v_moe_text")):
    TOWERS[_prefix] = (_type, dict(TOWERS["Qwen2_5_VL"][1], out_hidden_size=32, image_size=16))

# Rows like those of MODELS there: (transformers class prefix, gguf architecture or None, overrides, storage type)
FURTHER = {
    # Long enough that queries grow several times.
    "ministral3": ("Ministral3", "mistral3", dict(num_hidden_layers=3, head_dim=24, rope_parameters={
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 12,
        "llama_4_scaling_beta": 0.4}), "F16"),
    "hunyuan-dense": ("HunYuanDenseV1", "hunyuan-dense", dict(
        num_hidden_layers=3, head_dim=24, rope_parameters={
            "rope_type": "dynamic", "rope_theta": 10000.0, "factor": 1.0, "alpha": 50.0}), "F16"),
    "cohere2": ("Cohere2", "cohere2", dict(
        num_hidden_layers=5, head_dim=8, sliding_window=9, logit_scale=0.4, layer_norm_eps=1e-3,
        tie_word_embeddings=True), "F16"),
    "arcee": ("Arcee", "arcee", dict(num_hidden_layers=3, head_dim=24), "F16"),
    "arcee-bias": ("Arcee", None, dict(attention_bias=True, mlp_bias=True), "F16"),
    "nemotron": ("Nemotron", "nemotron", dict(num_hidden_layers=3, head_dim=24, norm_eps=1e-3), "F16"),
    "afmoe": ("Afmoe", "afmoe", dict(
        num_hidden_layers=5, head_dim=24, sliding_window=9, num_experts=6, num_experts_per_tok=2,
        moe_intermediate_size=16, num_shared_experts=2, num_dense_layers=2, route_scale=1.7,
        mup_enabled=True), "F16"),
    "afmoe-unscaled": ("Afmoe", None, dict(
        num_hidden_layers=4, sliding_window=7, num_experts=5, num_experts_per_tok=3,
        moe_intermediate_size=24, num_shared_experts=1), "BF16"),
    "phi4": ("Phi3", "phi3", dict(PHI3, sliding_window=None, rope_parameters={
        "rope_type": "default", "rope_theta": 250000.0}), "F16"),
    "phi4-mini": ("Phi3", "phi3", dict(
        PHI3, tie_word_embeddings=True, original_max_position_embeddings=16, sliding_window=262144,
        rope_parameters=LONGROPE), "F16"),
    "hunyuan-moe": ("HunYuanMoEV1", "hunyuan-moe", dict(
        head_dim=24, num_experts=6, moe_topk=2, intermediate_size=24), "F16"),
    "hunyuan-moe-lists": ("HunYuanMoEV1", None, dict(
        num_hidden_layers=3, num_experts=5, moe_topk=[3, 3, 3], intermediate_size=16), "F16"),
    "granite4": ("GraniteMoeHybrid", "granite", dict(GRANITE4, position_embedding_type="rope"), "F16"),
    "granite4-nope": ("GraniteMoeHybrid", None, GRANITE4, "BF16"),
    "dots1": ("Dots1", "dots1", dict(
        num_hidden_layers=3, head_dim=24, n_routed_experts=6, num_experts_per_tok=2,
        moe_intermediate_size=24, n_shared_experts=2, first_k_dense_replace=1, norm_topk_prob=True,
        routed_scaling_factor=2.5, sliding_window=None), "F16"),
    "dots1-window": ("Dots1", None, dict(
        num_hidden_layers=3, n_routed_experts=12, num_experts_per_tok=3, moe_intermediate_size=16,
        n_shared_experts=1, n_group=4, topk_group=2, sliding_window=9, max_window_layers=1), "BF16"),
    "gemma": ("Gemma", "gemma", dict(num_hidden_layers=3, head_dim=24, tie_word_embeddings=True), "F16"),
    "cohere": ("Cohere", "command-r", dict(
        num_hidden_layers=3, head_dim=8, logit_scale=0.4, layer_norm_eps=1e-3, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0}), "F16"),
    "stablelm": ("StableLm", "stablelm", dict(STABLELM, use_qkv_bias=True), "F16"),
    "stablelm-unbiased": ("StableLm", None, STABLELM, "BF16"),
    "helium": ("Helium", None, dict(num_hidden_layers=3, head_dim=8), "F16"),
    "ministral-8b": ("Ministral", None, dict(
        num_hidden_layers=3, head_dim=24, sliding_window=9, layer_types=[
            "sliding_attention", "full_attention", "sliding_attention"]), "BF16"),
    # Keys beside the vision tower's, as Qwen publishes them, and nested.
    "qwen2-vl": ("Qwen2VL", "qwen2vl", dict(
        num_hidden_layers=3, head_dim=None, rope_parameters={
            "rope_type": "default", "rope_theta": 50000.0, "mrope_section": [1, 2, 1]}), "F16"),
    "qwen2-5-vl": ("Qwen2_5_VL", None, dict(
        head_dim=None, rope_parameters={
            "rope_type": "default", "rope_theta": 50000.0, "mrope_section": [2, 1, 1]}), "BF16"),
    "qwen3-vl": ("Qwen3VL", "qwen3vl", dict(
        num_hidden_layers=3, head_dim=24, rope_parameters={
            "rope_type": "default", "rope_theta": 50000.0, "mrope_interleaved": True,
            "mrope_section": [4, 4, 4]}), "F16"),
    "qwen3-vl-moe": ("Qwen3VLMoe", "qwen3vlmoe", QWEN3_VL_MOE, "F16"),
    "qwen3-vl-moe-saved": ("Qwen3VLMoe", None, QWEN3_VL_MOE, "BF16"),
    # transformers has no class of these: one that computes the same, under their names (disguised()).
    "internlm2": ("Llama", None, dict(num_hidden_layers=3, head_dim=8, num_key_value_heads=2), "F16"),
    "internlm2-bias": ("Llama", None, dict(
        head_dim=8, num_key_value_heads=4, attention_bias=True, rope_parameters={
            "rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}), "BF16"),
    "internlm2-file": ("Llama", "internlm2", dict(num_hidden_layers=3, head_dim=8), "F16"),
    "internlm3": ("Llama", None, dict(head_dim=24), "F16"),
    "minicpm": ("Granite", "minicpm", dict(
        num_hidden_layers=3, head_dim=8, embedding_multiplier=3.0, attention_multiplier=8 ** -0.5,
        residual_multiplier=1.4 / 3 ** 0.5, logits_scaling=4.0), "F16"),
    "minicpm3": ("MiniCPM3", None, dict(
        num_hidden_layers=3, head_dim=None, num_key_value_heads=4, kv_lora_rank=32, q_lora_rank=24,
        qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=None, scale_emb=3, scale_depth=1.1,
        dim_model_base=8), "F16"),
    "exaone": ("Llama", "exaone", dict(
        num_hidden_layers=3, head_dim=8, rope_parameters=dict(LLAMA3_ROPE, rope_theta=50000.0)), "F16"),
    "bailing-moe": ("Glm4Moe", "bailingmoe2", dict(
        num_hidden_layers=3, head_dim=8, n_routed_experts=12, num_experts_per_tok=3,
        moe_intermediate_size=24, n_shared_experts=2, first_k_dense_replace=1, norm_topk_prob=True,
        routed_scaling_factor=2.5, n_group=4, topk_group=2, use_qk_norm=True), "F16"),
    "glm4v": ("Glm4v", None, dict(num_hidden_layers=3, head_dim=None, rope_parameters={
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
        "mrope_section": [1, 1]}), "F16"),
    "glm4v-moe": ("Glm4vMoe", None, dict(
        num_hidden_layers=3, head_dim=8, n_routed_experts=6, num_experts_per_tok=2,
        moe_intermediate_size=24, n_shared_experts=2, first_k_dense_replace=1, routed_scaling_factor=1.7,
        attention_bias=True, rope_parameters={
            "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
            "mrope_section": [1, 1]}), "BF16"),
    "jais2": ("Jais2", None, dict(num_hidden_layers=3, head_dim=24, layer_norm_eps=1e-3), "F16"),
    "phi4mm": ("Phi3", None, dict(
        PHI3, tie_word_embeddings=True, original_max_position_embeddings=16, sliding_window=262144,
        rope_parameters=LONGROPE), "F16"),
    # Norms of each head's own.
    "command-r-plus": ("Cohere", "command-r", dict(
        num_hidden_layers=3, head_dim=8, logit_scale=0.4, layer_norm_eps=1e-3, tie_word_embeddings=True,
        use_qk_norm=True), "F16"),
    "stablelm-12b": ("StableLm", "stablelm", dict(
        STABLELM, qk_layernorm=True, use_parallel_residual=True), "F16"),
    "apertus": ("Apertus", "apertus", dict(
        num_hidden_layers=3, head_dim=24, rope_parameters=dict(LLAMA3_ROPE, rope_theta=50000.0)), "F16"),
    "phimoe": ("Phimoe", "phimoe", dict(
        PHIMOE, rope_parameters=dict(
            PHIMOE_ROPE, original_max_position_embeddings=16, short_mscale=1.25, long_mscale=1.25)), "F16"),
    "phimoe-short": ("Phimoe", None, dict(
        PHIMOE, sliding_window=9, router_jitter_noise=0.3, rope_parameters=dict(
            PHIMOE_ROPE, original_max_position_embeddings=64, short_mscale=1.25, long_mscale=1.5)), "BF16"),
    "dbrx": ("Dbrx", "dbrx", dict(
        d_model=32, n_heads=4, n_layers=2, max_seq_len=256,
        attn_config=dict(kv_n_heads=2, clip_qkv=0.8, rope_theta=5000.0),
        ffn_config=dict(ffn_hidden_size=24, moe_num_experts=6, moe_top_k=3, moe_jitter_eps=0.01),
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0}), "F16"),
    # Remote code is not run: it computes this, by Llama's class, with scores that fall with distance in the second.
    "baichuan-7b": ("Llama", "baichuan", dict(
        num_hidden_layers=3, head_dim=8, num_key_value_heads=4), "F16"),
    "baichuan-13b": ("Llama", None, dict(
        num_hidden_layers=3, hidden_size=48, num_attention_heads=6, head_dim=8, num_key_value_heads=6,
        has_distances=True), "F16"),
    "glm": ("Glm", "chatglm", dict(num_hidden_layers=3, hidden_size=48, head_dim=12), "F16"),
}


def engines(common):
    """Models for the determinism test: halves side by side, gates of attention, positions, distances."""
    return [
        *ungated.engines(common),
        ("engine-parallel", "Cohere2", "cohere2", dict(
            common, num_hidden_layers=4, head_dim=8, intermediate_size=64, sliding_window=40)),
        ("engine-gates", "Afmoe", "afmoe", dict(
            common, num_hidden_layers=4, sliding_window=40, num_experts=6, num_experts_per_tok=2,
            moe_intermediate_size=32, num_shared_experts=1, num_dense_layers=1, intermediate_size=64,
            mup_enabled=True)),
    ]


def ffn_width(config):
    if config.model_type == "dbrx":
        return config.ffn_config.ffn_hidden_size
    is_shared = config.model_type == "granitemoehybrid" and not config.num_local_experts
    return config.shared_intermediate_size if is_shared else config.intermediate_size


def publish(name, folder, config, tensors):
    """Rewrites what transformers saved as Qwen publishes it: keys beside the vision tower's, and experts'
    matrices transposed. Returns the configuration to store; `tensors` are those that a file is
    written from."""
    ungated.publish(name, folder, config)
    if name == "qwen2-vl":
        text = config.pop("text_config")
        rope = text.pop("rope_parameters")
        config.update(text, model_type="qwen2_vl", rope_theta=rope["rope_theta"], rope_scaling={
            "type": "mrope", "mrope_section": rope["mrope_section"]})
    if name == "minicpm3":
        config.pop("v_head_dim")  # as published
    if name in DISGUISES:
        result = disguised(name, folder, config)
        if name == "bailing-moe":  # files have q, k and v as one too
            tensors.clear()
            tensors.update(load_file(folder / "model.safetensors"))
        return result
    if name == "qwen3-vl-moe":
        stored = {key: tensor.transpose(1, 2).contiguous() if ".mlp.experts." in key else tensor
                  for key, tensor in tensors.items()}
        save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    return config


# (model_type, class, {key of the class that computes: the family's}, {part of a name: the family's})
LLAMA_NAMES = {"self_attn.o_proj": "attention.wo", "mlp.gate_proj": "feed_forward.w1",
               "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2",
               "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm",
               "model.embed_tokens": "model.tok_embeddings", "lm_head": "output"}
BAILING_NAMES = {"self_attn.o_proj": "attention.dense", "self_attn.q_norm": "attention.query_layernorm",
                 "self_attn.k_norm": "attention.key_layernorm",
                 "mlp.gate.e_score_correction_bias": "mlp.gate.expert_bias",
                 "model.embed_tokens": "model.word_embeddings"}
BAICHUAN = ("baichuan", "BaichuanForCausalLM", {
    "head_dim": None, "num_key_value_heads": None, "has_distances": None, "rope_parameters": None}, {})
INTERNLM2 = ("internlm2", "InternLM2ForCausalLM", {"attention_bias": "bias"}, LLAMA_NAMES)
DISGUISES = {
    "baichuan-7b": BAICHUAN, "baichuan-13b": BAICHUAN,
    "internlm2": INTERNLM2, "internlm2-bias": INTERNLM2,
    "internlm3": ("internlm3", "InternLM3ForCausalLM", {"attention_bias": "bias"}, {}),
    "minicpm": ("minicpm", "MiniCPMForCausalLM", {
        "embedding_multiplier": "scale_emb", "residual_multiplier": "scale_depth",
        "logits_scaling": "dim_model_base", "attention_multiplier": None}, {}),
    "bailing-moe": ("bailing_moe", "BailingMoeV2ForCausalLM", {
        "n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}, BAILING_NAMES),
    "phi4mm": ("phi4mm", "Phi4MMForCausalLM", {}, {
        f"{part}_proj.weight": f"{part}_proj.base_layer.weight" for part in ("qkv", "o", "gate_up", "down")}),
    "exaone": ("exaone", "ExaoneForCausalLM", {
        "num_hidden_layers": "num_layers", "rms_norm_eps": "layer_norm_epsilon",
        "hidden_act": "activation_function"}, {
        "model.embed_tokens": "transformer.wte", "model.norm": "transformer.ln_f",
        "model.layers": "transformer.h", "self_attn.o_proj": "attn.attention.out_proj",
        "self_attn": "attn.attention", "input_layernorm": "ln_1", "post_attention_layernorm": "ln_2",
        "mlp.gate_proj": "mlp.c_fc_0", "mlp.up_proj": "mlp.c_fc_1", "mlp.down_proj": "mlp.c_proj"}),
}


def disguised(name, folder, config):
    """Gives a directory the names of a family that computes the same, with q, k and v as one."""
    model_type, class_name, keys, names = DISGUISES[name]
    path = folder / "model.safetensors"
    tensors = load_file(path)
    is_joined = name.startswith("baichuan") or ("attention." in str(names) and name != "exaone")
    for key in [key for key in tensors if ".self_attn.q_proj." in key and is_joined]:
        parts = [tensors.pop(key.replace("q_proj", part)) for part in ("q_proj", "k_proj", "v_proj")]
        if model_type == "internlm2":  # the queries that share a KV head, then its key and its value
            heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
            width = config["head_dim"]
            parts = [part.reshape(kv_heads, -1, width, *part.shape[1:]) for part in parts]
            whole = torch.cat(parts, 1).reshape((heads + 2 * kv_heads) * width, *parts[0].shape[3:])
            tensors[key.replace("self_attn.q_proj", "attention.wqkv")] = whole.contiguous()
        else:
            whole = "self_attn.W_pack" if model_type == "baichuan" else "attention.query_key_value"
            tensors[key.replace("self_attn.q_proj", whole)] = torch.cat(parts)
    for old, new in names.items():
        tensors = {key.replace(old, new): tensor for key, tensor in tensors.items()}
    if name == "phi4mm":  # adapters of images and sound, and their towers
        for key in [key for key in tensors if ".base_layer." in key]:
            for part, adapter in (("lora_A", "vision"), ("lora_B", "speech")):
                tensors[key.replace("base_layer", f"{part}.{adapter}")] = torch.ones(2, 8)
        tensors["model.embed_tokens_extend.audio_embed.proj.weight"] = torch.ones(2, 8)
    save_file(tensors, path, metadata={"format": "pt"})
    if name == "baichuan-13b":
        config["model_max_length"] = config.pop("max_position_embeddings")
    if name == "minicpm":
        config["logits_scaling"] = config["hidden_size"] / config["logits_scaling"]
        config["residual_multiplier"] *= config["num_hidden_layers"] ** 0.5
    for old, new in keys.items():
        if old in config and new is not None:
            config[new] = config[old]
        config.pop(old, None)
    return dict(config, model_type=model_type, architectures=[class_name])


def experts_apart(config, tensors):
    """DBRX's experts, each with matrices of its own under the usual names."""
    parts = {"w1": "gate_proj", "v1": "up_proj", "w2": "down_proj"}
    for name in [name for name in tensors if ".ffn.experts.mlp." in name]:
        layer, part = name.split(".")[2], name.rpartition(".")[2]
        for number, rows in enumerate(tensors.pop(name).chunk(config.ffn_config.moe_num_experts)):
            place = f"model.layers.{layer}.mlp.experts.{number}.{parts[part]}.weight"
            tensors[place] = rows.T if part == "w2" else rows
    return tensors


def plain(config, tensors):
    """Granite 4's only feed-forward half under the names of Granite 3, and text models alone."""
    tensors = {name.replace("language_model.", ""): tensor for name, tensor in tensors.items()
               if "visual." not in name}
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        place, _, _ = name.rpartition(".")
        for number, rows in enumerate(tensors.pop(name)):
            parts = rows.chunk(2) if name.endswith("gate_up_proj") else [rows]
            for stem, part in zip(("gate_proj", "up_proj") if len(parts) == 2 else ("down_proj",), parts):
                tensors[f"{place}.{number}.{stem}.weight"] = part
    if config.model_type == "dbrx":
        return experts_apart(config, tensors)
    if config.model_type != "granitemoehybrid" or config.num_local_experts:
        return tensors
    result = {}
    for name, tensor in tensors.items():
        if "shared_mlp.input_linear" in name:
            gate, up = tensor.chunk(2)
            result[name.replace("shared_mlp.input_linear", "mlp.gate_proj")] = gate
            result[name.replace("shared_mlp.input_linear", "mlp.up_proj")] = up
        else:
            result[name.replace("shared_mlp.output_linear", "mlp.down_proj")] = tensor
    return result


def add_keys(writer, architecture, config):
    """Keys of GGUF files that few families have, as llama.cpp's converter writes them."""
    if architecture.startswith("nemotron_h"):
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    elif architecture == "dbrx":
        writer.add_layer_norm_eps(1e-5)
        writer.add_clamp_kqv(config.attn_config.clip_qkv)
        writer.add_expert_count(config.ffn_config.moe_num_experts)
        writer.add_expert_used_count(config.ffn_config.moe_top_k)
    elif architecture in ("cohere2", "nemotron", "command-r", "stablelm", *ungated.ARCHITECTURES):
        writer.add_layer_norm_eps(next(getattr(config, key) for key in (
            "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps") if hasattr(config, key)))
        ungated.add_keys(writer, architecture, config)
    else:
        writer.add_layer_norm_rms_eps(getattr(config, "rms_norm_eps", None) or config.norm_eps)
    if architecture == "apertus":
        ungated.add_xielu(writer)
    if architecture == "stablelm" and config.use_parallel_residual:
        writer.add_parallel_residual(True)
    if architecture in ("cohere2", "command-r"):
        writer.add_logit_scale(config.logit_scale)
    if architecture in ("qwen2vl", "qwen3vl", "qwen3vlmoe"):
        writer.add_rope_dimension_sections([*config.rope_parameters["mrope_section"], 0])
    if architecture == "minicpm":
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if architecture == "mistral3":
        writer.add_rope_scaling_yarn_log_mul(config.rope_parameters["mscale_all_dim"])
        writer.add_attn_temperature_scale(config.rope_parameters["llama_4_scaling_beta"])
    if architecture == "hunyuan-moe":
        writer.add_expert_shared_feed_forward_length(config.intermediate_size)
    if architecture == "afmoe":
        writer.add_expert_shared_count(config.num_shared_experts)
        writer.add_leading_dense_block_count(config.num_dense_layers)
        writer.add_expert_weights_scale(config.route_scale)
        writer.add_expert_weights_norm(True)
