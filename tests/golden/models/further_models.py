# SPDX-License-Identifier: Apache-2.0
"""Further rows of make_models.py: norms, gates and rotations of families beside Llama's. Their seeds
depend on their order here alone."""
PHI3 = dict(num_key_value_heads=1, head_dim=8)
LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
            "short_factor": [1.0, 1.1, 1.2], "long_factor": [1.0, 2.0, 5.0]}
GRANITE4 = dict(head_dim=8, layer_types=["full_attention", "full_attention"], num_local_experts=0,
                shared_intermediate_size=40, intermediate_size=24, mamba_n_heads=4,
                embedding_multiplier=3.0, attention_multiplier=0.09, residual_multiplier=0.4,
                logits_scaling=2.0)

STABLELM = dict(num_hidden_layers=3, head_dim=8, layer_norm_eps=1e-3, rope_parameters={
    "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5})

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
}


def engines(common):
    """Models for the determinism test: halves side by side, and gates of attention."""
    return [
        ("engine-parallel", "Cohere2", "cohere2", dict(
            common, num_hidden_layers=4, head_dim=8, intermediate_size=64, sliding_window=40)),
        ("engine-gates", "Afmoe", "afmoe", dict(
            common, num_hidden_layers=4, sliding_window=40, num_experts=6, num_experts_per_tok=2,
            moe_intermediate_size=32, num_shared_experts=1, num_dense_layers=1, intermediate_size=64,
            mup_enabled=True)),
    ]


def ffn_width(config):
    is_shared = config.model_type == "granitemoehybrid" and not config.num_local_experts
    return config.shared_intermediate_size if is_shared else config.intermediate_size


def plain(config, tensors):
    """Granite 4's only feed-forward half under the names of Granite 3."""
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
    if architecture in ("cohere2", "nemotron", "command-r", "stablelm"):
        writer.add_layer_norm_eps(getattr(config, "layer_norm_eps", None) or config.norm_eps)
    else:
        writer.add_layer_norm_rms_eps(getattr(config, "rms_norm_eps", None) or config.norm_eps)
    if architecture in ("cohere2", "command-r"):
        writer.add_logit_scale(config.logit_scale)
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
