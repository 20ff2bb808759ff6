#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a tiny random checkpoint of every architecture and the logits transformers computes for it.

    pip install torch transformers gguf numpy && python make_models.py [name ...]

<name>/            config.json and model.safetensors as transformers saves them (or in an older
                   spelling, where the row says so)
<name>.gguf        the same weights in GGUF; tensor names from the gguf package's own table
<name>.logits.f32  raw float32 [tokens, vocabulary] of an eager float32 forward pass
models.json        one row per model: files, tokens, provenance
engine-*.gguf      models with a vocabulary, for tests of the whole engine

Weights are random with a fixed seed, rounded to the type they are stored in before the forward pass.
"""
import importlib.metadata
import json
import pathlib
import shutil
import sys

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file, save_file

import recurrent_models as recurrent
from mxfp4_experts import ggml_blocks, quantize_experts, replace_experts
import further_models
import gemma4_models as gemma4
import ungated_models as ungated

HERE = pathlib.Path(__file__).resolve().parent
VOCAB, TOKENS = 71, 40
COMMON = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=40, num_hidden_layers=2,
              num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=256,
              initializer_range=0.2, bos_token_id=0, eos_token_id=1, pad_token_id=2,
              tie_word_embeddings=False)
LLAMA3_ROPE = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0,
            "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
            "long_factor": [1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 12.0, 16.0]}
GEMMA3 = dict(tie_word_embeddings=True, sliding_window=12, query_pre_attn_scalar=24,
              layer_types=["sliding_attention", "full_attention", "sliding_attention"],
              num_hidden_layers=3,
              rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
                               "full_attention": {"rope_type": "linear", "rope_theta": 10000.0,
                                                  "factor": 4.0}})
PHI3 = dict(num_attention_heads=2, num_key_value_heads=1)
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "original_max_position_embeddings": 64}
GPT_OSS = dict(num_local_experts=4, num_experts_per_tok=2, sliding_window=12, intermediate_size=32,
               rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
                                "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                                "original_max_position_embeddings": 64})

# name: (transformers class prefix, gguf architecture or None, overrides of COMMON, storage type)
MODELS = {
    "llama": ("Llama", "llama", dict(), "F16"),
    "llama-tied-mha": ("Llama", "llama", dict(tie_word_embeddings=True, num_key_value_heads=4), "F32"),
    "llama-mqa-bias": ("Llama", "llama", dict(num_key_value_heads=1, attention_bias=True,
                                              mlp_bias=True), "F16"),
    "llama-head48": ("Llama", "llama", dict(head_dim=48, num_attention_heads=2, num_key_value_heads=1),
                     "F16"),
    "llama3-rope": ("Llama", "llama", dict(rope_parameters=LLAMA3_ROPE), "F16"),
    "llama-linear-rope": ("Llama", "llama", dict(rope_parameters={
        "rope_type": "linear", "rope_theta": 5000.0, "factor": 2.5}), "BF16"),
    "mistral-window": ("Mistral", None, dict(sliding_window=9), "BF16"),
    "smollm3": ("SmolLM3", "smollm3", dict(num_hidden_layers=4, no_rope_layers=[1, 1, 1, 0],
                                           hidden_size=32, intermediate_size=32), "F16"),
    "qwen2": ("Qwen2", "qwen2", dict(), "F16"),
    "qwen3": ("Qwen3", "qwen3", dict(tie_word_embeddings=True), "BF16"),
    "qwen3-moe": ("Qwen3Moe", "qwen3moe", dict(num_experts=5, num_experts_per_tok=2,
                                               moe_intermediate_size=16, norm_topk_prob=True), "F16"),
    "qwen3-moe-unnormalized": ("Qwen3Moe", None, dict(
        num_experts=4, num_experts_per_tok=3, moe_intermediate_size=16, norm_topk_prob=False), "F16"),
    "gemma2": ("Gemma2", "gemma2", dict(tie_word_embeddings=True, sliding_window=12,
                                        query_pre_attn_scalar=16, attn_logit_softcapping=5.0,
                                        final_logit_softcapping=8.0), "F16"),
    "gemma3": ("Gemma3Text", None, GEMMA3, "F16"),
    "gemma3-six": ("Gemma3Text", "gemma3", dict(
        tie_word_embeddings=True, sliding_window=16, query_pre_attn_scalar=16, num_hidden_layers=6,
        intermediate_size=16, num_attention_heads=2, num_key_value_heads=1), "F16"),
    "phi3": ("Phi3", "phi3", dict(PHI3, sliding_window=20), "F16"),
    "phi3-long": ("Phi3", "phi3", dict(PHI3, rope_parameters=LONGROPE, original_max_position_embeddings=16,
                                       sliding_window=None), "F16"),
    "phi3-short": ("Phi3", "phi3", dict(PHI3, rope_parameters=LONGROPE, original_max_position_embeddings=64,
                                        sliding_window=None), "F16"),
    "phi3-partial": ("Phi3", "phi3", dict(PHI3, sliding_window=None, rope_parameters={
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}), "F16"),
    "olmo2": ("Olmo2", "olmo2", dict(), "F16"),
    "granite": ("Granite", "granite", dict(embedding_multiplier=3.0, attention_multiplier=0.09,
                                           residual_multiplier=0.4, logits_scaling=2.0), "F16"),
    "gpt-oss": ("GptOss", "gpt-oss", GPT_OSS, "F16"),
    "gpt-oss-mxfp4": ("GptOss", "gpt-oss", GPT_OSS, "BF16"),
    # Heads that are no whole vectors, and long contexts in the other architectures.
    "llama-head20": ("Llama", "llama", dict(head_dim=20, num_attention_heads=2, num_key_value_heads=1,
                                            tie_word_embeddings=True), "F16"),
    "llama-head100": ("Llama", "llama", dict(head_dim=100, num_attention_heads=2,
                                             num_hidden_layers=1), "BF16"),
    "llama-head8-gqa8": ("Llama", "llama", dict(head_dim=8, num_attention_heads=8,
                                                num_key_value_heads=1), "F16"),
    "qwen2-head40": ("Qwen2", "qwen2", dict(head_dim=40, num_attention_heads=2,
                                            num_key_value_heads=1, tie_word_embeddings=True), "F16"),
    "qwen3-head24": ("Qwen3", "qwen3", dict(head_dim=24), "BF16"),
    "gemma3-head40": ("Gemma3Text", None, dict(GEMMA3, head_dim=40, num_attention_heads=2), "F16"),
    "phi3-head12": ("Phi3", "phi3", dict(PHI3, head_dim=12, sliding_window=None), "F16"),
    "llama-dynamic-rope": ("Llama", None, dict(max_position_embeddings=20, rope_parameters={
        "rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}), "F16"),
    "qwen2-dynamic-rope": ("Qwen2", None, dict(max_position_embeddings=10, rope_parameters={
        "rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}), "F16"),
    "llama-yarn": ("Llama", "llama", dict(rope_parameters=YARN), "F16"),
    "qwen3-yarn": ("Qwen3", None, dict(rope_parameters=dict(YARN, attention_factor=0.9)), "F16"),
    "llama-longrope": ("Llama", None, dict(max_position_embeddings=64, rope_parameters=dict(
        LONGROPE, original_max_position_embeddings=16, factor=4.0)), "F16"),
    # Keys that change a result and that few files have.
    "llama-mscale": ("Llama", None, dict(rope_parameters=dict(YARN, mscale=0.8, mscale_all_dim=1.3)),
                     "F16"),
    "smollm3-window": ("SmolLM3", None, dict(
        num_hidden_layers=4, use_sliding_window=True, sliding_window=7, no_rope_layer_interval=2,
        no_rope_layers=None), "F16"),
    "qwen3-moe-window": ("Qwen3Moe", None, dict(
        num_experts=6, num_experts_per_tok=3, moe_intermediate_size=16, use_sliding_window=True,
        sliding_window=5, max_window_layers=1), "BF16"),
    "gemma2-uncapped": ("Gemma2", None, dict(
        tie_word_embeddings=True, sliding_window=8, query_pre_attn_scalar=50,
        attn_logit_softcapping=None, final_logit_softcapping=None), "F16"),
    "gemma3-soft-caps": ("Gemma3Text", None, dict(GEMMA3, attn_logit_softcapping=2.0,
                                                  final_logit_softcapping=4.0), "F16"),
    "granite-defaults": ("Granite", None, dict(), "F16"),
    "smollm3-defaults": ("SmolLM3", None, dict(num_hidden_layers=4, tie_word_embeddings=True,
                                               rope_parameters=None, no_rope_layers=None), "F16"),
    "gpt-oss-defaults": ("GptOss", None, dict(
        num_local_experts=4, num_experts_per_tok=2, intermediate_size=32, sliding_window=128,
        rope_parameters=None, max_position_embeddings=131072), "F16"),
    "phi3-su": ("Phi3", None, dict(PHI3, rope_parameters=LONGROPE, original_max_position_embeddings=16,
                                   sliding_window=None), "F16"),
    # Biases where an architecture may have them or not.
    "qwen3-bias": ("Qwen3", None, dict(attention_bias=True), "F16"),
    "qwen3-moe-bias": ("Qwen3Moe", None, dict(num_experts=3, num_experts_per_tok=2, attention_bias=True,
                                              moe_intermediate_size=16), "F16"),
    "olmo2-bias": ("Olmo2", None, dict(attention_bias=True, num_key_value_heads=4), "BF16"),
    "smollm3-bias": ("SmolLM3", None, dict(attention_bias=True, mlp_bias=True), "F16"),
    "granite-bias": ("Granite", None, dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True,
                                           attention_multiplier=0.2, logits_scaling=4.0), "F16"),
    "gemma2-bias": ("Gemma2", None, dict(tie_word_embeddings=True, attention_bias=True, sliding_window=12,
                                         query_pre_attn_scalar=16, hidden_activation="silu"), "F16"),
    "gemma3-bias": ("Gemma3Text", None, dict(GEMMA3, attention_bias=True, hidden_activation="silu"),
                    "BF16"),
    "gpt-oss-unbiased": ("GptOss", None, dict(GPT_OSS, attention_bias=False), "F16"),
    # Models with GGUF files.
    "mistral": ("Mistral", "llama", dict(sliding_window=None, head_dim=24), "F16"),
    "mixtral": ("Mixtral", "llama", dict(num_local_experts=4, num_experts_per_tok=2), "F16"),
    "llama-scale-linear": ("Llama", "llama", dict(rope_parameters={
        "rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}), "F16"),
    "llama-yarn-factor": ("Llama", "llama", dict(rope_parameters=dict(YARN, attention_factor=0.9)), "F16"),
    "phi3-partial-long": ("Phi3", "phi3", dict(
        PHI3, sliding_window=None, original_max_position_embeddings=16, tie_word_embeddings=True,
        rope_parameters=dict(LONGROPE, partial_rotary_factor=0.5, short_factor=LONGROPE["short_factor"][:4],
                             long_factor=LONGROPE["long_factor"][:4])), "F16"),
    "gemma3-long": ("Gemma3Text", "gemma3", dict(
        tie_word_embeddings=True, sliding_window=16, query_pre_attn_scalar=16, num_hidden_layers=6,
        intermediate_size=16, num_attention_heads=2, num_key_value_heads=1, rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0}}), "F16"),
    "olmo3": ("Olmo3", "olmo2", dict(num_hidden_layers=4, sliding_window=9, rope_parameters={
        "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
        "full_attention": dict(YARN, rope_theta=5000.0)}), "F16"),
    # Routers, shared experts, leading dense layers, other norms and rotations.
    "qwen2-moe": ("Qwen2Moe", "qwen2moe", dict(
        num_experts=5, num_experts_per_tok=2, moe_intermediate_size=16,
        shared_expert_intermediate_size=24), "F16"),
    "olmoe": ("Olmoe", "olmoe", dict(head_dim=8, num_experts=6, num_experts_per_tok=3,
                                     intermediate_size=24), "F16"),
    "granite-moe": ("GraniteMoe", "granitemoe", dict(
        head_dim=8, num_local_experts=6, num_experts_per_tok=3, intermediate_size=24,
        embedding_multiplier=3.0, attention_multiplier=0.2, residual_multiplier=0.4,
        logits_scaling=2.0), "F16"),
    "granite-moe-shared": ("GraniteMoeShared", "granitemoe", dict(
        head_dim=8, num_local_experts=6, num_experts_per_tok=3, intermediate_size=24,
        shared_intermediate_size=40, embedding_multiplier=3.0, attention_multiplier=0.2,
        residual_multiplier=0.4, logits_scaling=2.0), "F16"),
    "glm4": ("Glm4", "glm4", dict(), "F16"),
    "glm4-moe": ("Glm4Moe", "glm4moe", dict(
        num_hidden_layers=3, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=16,
        n_shared_experts=2, routed_scaling_factor=2.5, use_qk_norm=True, attention_bias=True), "F16"),
    "glm4-moe-groups": ("Glm4Moe", "glm4moe", dict(
        num_hidden_layers=3, n_routed_experts=12, num_experts_per_tok=3, moe_intermediate_size=16,
        n_shared_experts=1, n_group=4, topk_group=2, first_k_dense_replace=2,
        norm_topk_prob=False), "F16"),
    "seed-oss": ("SeedOss", "seed_oss", dict(head_dim=24), "F16"),
    "ernie4-5": ("Ernie4_5", "ernie4_5", dict(tie_word_embeddings=True), "F16"),
    "ernie4-5-moe": ("Ernie4_5_Moe", "ernie4_5-moe", dict(
        num_hidden_layers=3, moe_intermediate_size=16, moe_num_experts=6, moe_k=2,
        moe_num_shared_experts=2), "F16"),
    "exaone4": ("Exaone4", "exaone4", dict(num_hidden_layers=5, sliding_window=9), "F16"),
    "exaone4-full": ("Exaone4", "exaone4", dict(
        sliding_window=None, layer_types=["full_attention", "full_attention"]), "F16"),
    "minimax-m2": ("MiniMaxM2", "minimax-m2", dict(
        num_local_experts=6, num_experts_per_tok=2, rotary_dim=8, intermediate_size=24), "F16"),
    "solar-open": ("SolarOpen", "glm4moe", dict(
        n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=16, n_shared_experts=1,
        routed_scaling_factor=1.5), "F16"),
    "hy-v3": ("HYV3", None, dict(
        num_hidden_layers=4, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16,
        mlp_layer_types=["dense", "sparse", "dense", "sparse"]), "F16"),
    # A text model inside a multimodal one, whose other parts stay in the file.
    "mistral3": ("Mistral3", None, dict(sliding_window=None, head_dim=24), "F16"),
}
MODELS.update(recurrent.MODELS)
# Keys left out of config.json: transformers' class has the same values.
LEFT_OUT = {
    "granite-defaults": ("attention_multiplier", "embedding_multiplier", "residual_multiplier",
                         "logits_scaling", "rms_norm_eps"),
    "smollm3-defaults": ("rope_parameters", "rms_norm_eps", "no_rope_layers", "layer_types",
                         "no_rope_layer_interval", "tie_word_embeddings"),
    "gpt-oss-defaults": ("rope_parameters", "rms_norm_eps", "sliding_window", "layer_types",
                         "max_position_embeddings"),
}
# Checkpoints whose config.json is rewritten as older files spell it.
OLD_SPELLING = {"qwen2-dynamic-rope", "qwen3-yarn", "llama3-rope", "llama-linear-rope", "gemma3-six", "phi3-long",
                "qwen2", "phi3-su"}
# GGUF files with the key that linear scaling had before 2024.
OLD_GGUF = {"llama-scale-linear"}
SHARDED = {"qwen3", "llama-mqa-bias"}
TORCH_TYPE = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def build(prefix, overrides, seed):
    config_class = getattr(transformers, prefix + "Config")
    torch.manual_seed(seed)
    if prefix in further_models.TOWERS:
        text_type, vision = further_models.TOWERS[prefix]
        config = config_class(text_config={"model_type": text_type, **COMMON, **overrides},
                              vision_config=vision)
        config._attn_implementation = "eager"
        model = getattr(transformers, prefix + "ForConditionalGeneration")(config)
    else:
        config = config_class(**{**ungated.common(prefix, COMMON), **overrides})
        config._attn_implementation = "eager"
        model = getattr(transformers, ungated.model_name(prefix.removesuffix("Text")))(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ungated.is_norm(name, weight):
                centred = ((config.model_type.startswith("gemma") or config.model_type == "nemotron")
                           and not gemma4.is_gemma4(config))
                offset = 0.0 if centred or recurrent.centres_norm(config, name) else 1.0
                weight.copy_(offset + 0.2 * torch.randn_like(weight))
            else:
                weight.copy_(0.2 * torch.randn_like(weight))
        for name, weight in model.named_buffers():
            ungated.fill_buffer(name, weight)
            if name.endswith(("e_score_correction_bias", "expert_bias")):  # zeros would hide it
                weight.copy_(0.2 * torch.randn_like(weight))
        gemma4.randomise(config, model)
    return config, ungated.with_long_factors(config, ungated.distant(config, model.eval().float()), TOKENS)


def round_to(model, kind):
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.to(TORCH_TYPE[kind]).float())
        gemma4.round_buffers(model, TORCH_TYPE[kind])


def respell(config):
    """The same config.json as files from before rope_parameters and dtype have it."""
    rope = config.pop("rope_parameters", None) or {}
    if "full_attention" in rope:
        config["rope_theta"] = rope["full_attention"]["rope_theta"]
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        config["rope_scaling"] = None
        config.pop("layer_types")
        config["sliding_window_pattern"] = 6
    else:
        config["rope_theta"] = rope.pop("rope_theta", 10000.0)
        kind = rope.pop("rope_type", "default")
        rope.pop("original_max_position_embeddings", None) if kind == "longrope" else None
        config["rope_scaling"] = None if kind == "default" else {"type": kind, **rope}
        config.pop("layer_types", None)
    config["torch_dtype"] = config.pop("dtype", "float32")
    return config


def save(name, model, kind):
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    stored = model.to(TORCH_TYPE[kind])
    stored.save_pretrained(folder, max_shard_size="16KB" if name in SHARDED else "1GB")
    for extra in folder.glob("generation_config.json"):
        extra.unlink()
    path = folder / "config.json"
    config = json.loads(path.read_text())
    if name in OLD_SPELLING:
        config = respell(config)
    if name == "phi3-su":
        config["rope_scaling"]["type"] = "su"
        config["original_max_position_embeddings"] = 16
    for key in LEFT_OUT.get(name, ()):
        config.pop(key, None)
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors.update(load_file(file))
    config = further_models.publish(name, folder, config, tensors)
    path.write_text(json.dumps(config, indent=1) + "\n")
    recurrent.publish(name, folder, config, tensors)
    gemma4.publish(name, folder, config, tensors)
    return tensors


def permute(rows, heads):
    """Llama's order of q and k rows in GGUF: rotation pairs become neighbours."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def gguf_tensors(architecture, config, tensors):
    """{gguf name: float32 array}; names from the gguf package."""
    kind = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == architecture)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    result, experts = {}, {}
    for name, tensor in tensors.items():
        array = tensor.numpy() if tensor.dtype == torch.uint8 else tensor.float().numpy()
        stem, _, suffix = name.rpartition(".")
        if architecture == "gpt-oss" and ".experts." in name:
            layer = "blk." + name.split(".")[2] + "."
            if name.endswith("_scales") or name + "_scales" in tensors:
                continue  # with the blocks
            if name.endswith("_blocks"):
                array = ggml_blocks(array, tensors[name.removesuffix("blocks") + "scales"].numpy())
                if "down_proj" in name:
                    result[layer + "ffn_down_exps.weight"] = array
                else:
                    result[layer + "ffn_gate_exps.weight"] = array[:, 0::2]
                    result[layer + "ffn_up_exps.weight"] = array[:, 1::2]
            elif "gate_up_proj_bias" in name:
                result[layer + "ffn_gate_exps.bias"] = array[:, 0::2]
                result[layer + "ffn_up_exps.bias"] = array[:, 1::2]
            elif "gate_up_proj" in name:
                result[layer + "ffn_gate_exps.weight"] = array[:, :, 0::2].swapaxes(1, 2)
                result[layer + "ffn_up_exps.weight"] = array[:, :, 1::2].swapaxes(1, 2)
            elif "down_proj_bias" in name:
                result[layer + "ffn_down_exps.bias"] = array
            else:
                result[layer + "ffn_down_exps.weight"] = array.swapaxes(1, 2)
            continue
        if gemma4.converted(architecture, name, array, result) is None:
            continue
        if ".experts." in name:
            head, tail = stem.split(".experts.")
            number, part = tail.split(".")
            part = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}.get(part, part)
            experts.setdefault(f"{ungated.usual_place(head)}.experts.{part}.{suffix}", {})[int(number)] = array
            continue
        if architecture in ("gemma", "gemma2", "gemma3", "nemotron") and name.endswith("norm.weight"):
            array = array + 1
        if architecture in further_models.PERMUTED:
            if ".q_proj." in name:
                array = permute(array, config.num_attention_heads)
            if ".k_proj." in name:
                array = permute(array, config.num_key_value_heads)
        array = recurrent.converted(architecture, config, name, array, result)
        array = ungated.converted(architecture, config, name, array, result)
        if array is None:
            continue
        if name.endswith(("e_score_correction_bias", "expert_bias")):
            result["blk." + name.split(".")[2] + ".exp_probs_b.bias"] = array.reshape(-1)
            continue
        if name.endswith("input_linear.weight"):  # gate rows, then up rows, of each expert
            layer = "blk." + name.split(".")[2] + "."
            kind_of = "shexp" if "shared_mlp" in name else "exps"
            half = array.shape[-2] // 2
            result[layer + f"ffn_gate_{kind_of}.weight"] = array[..., :half, :]
            result[layer + f"ffn_up_{kind_of}.weight"] = array[..., half:, :]
            continue
        if name.endswith("shared_expert_gate.weight"):
            array = array.reshape(-1)
        if name.endswith(".sinks"):
            found = names.get_name(name)
            result[found + ".weight"] = array
            continue
        found = names.get_name(stem)
        assert found is not None, (architecture, name)
        result[f"{found}.{suffix}"] = array
    for name, parts in experts.items():
        stem, _, suffix = name.rpartition(".")
        found = names.get_name(stem)
        assert found is not None, name
        result[f"{found}.{suffix}"] = np.stack([parts[i] for i in range(len(parts))])
    return result


def add_byte_vocabulary(writer, size):
    """A vocabulary of control tokens and single bytes, so that an engine can start."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    letters = [chr(b) for b in printable] + [chr(256 + i) for i in range(len(others))]
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert size == len(control) + len(letters)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(control + letters)
    writer.add_token_types([3] * len(control) + [1] * len(letters))
    writer.add_token_merges([])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def add_rope(writer, architecture, config, width, arrays, is_old):
    rope = dict(config.rope_parameters)
    if "full_attention" in rope:
        rope = rope["full_attention"]
    stretch = rope.get("alpha", 1) ** (width / (width - 2))
    writer.add_rope_freq_base(rope["rope_theta"] * stretch)
    writer.add_rope_dimension_count(int(width * rope.get("partial_rotary_factor", 1)))
    kind_of_rope = rope.get("rope_type", "default")
    if is_old:
        writer.add_float32(f"{architecture}.rope.scale_linear", rope["factor"])
    elif kind_of_rope == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif kind_of_rope == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if "attention_factor" in rope:  # what goes beyond YaRN's own; the converter of Olmo 3 writes the whole
            usual = 1 + 0.1 * np.log(rope["factor"])
            writer.add_rope_scaling_attn_factors(float(rope["attention_factor"] / usual))
    elif kind_of_rope == "llama3":
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
        scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
        plain = 1.0 / rope["rope_theta"] ** (torch.arange(0, width, 2).float() / width)
        arrays["rope_freqs.weight"] = (plain / scaled).numpy()
    elif kind_of_rope == "longrope":
        arrays["rope_factors_long.weight"] = np.array(rope["long_factor"], np.float32)
        arrays["rope_factors_short.weight"] = np.array(rope["short_factor"], np.float32)
        original = config.original_max_position_embeddings
        writer.add_rope_scaling_orig_ctx_len(original)
        usual = (np.log(config.max_position_embeddings) / np.log(original)) ** 0.5
        writer.add_rope_scaling_attn_factors(float(rope.get("long_mscale", usual)))


def add_experts(writer, architecture, config):
    experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
    if not experts or architecture == "nemotron_h":
        return
    width = getattr(config, "moe_intermediate_size", None) or config.intermediate_size
    writer.add_expert_count(experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(width)
    if architecture in ("qwen2moe", "qwen35moe", "qwen3next"):
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if architecture in ("granitemoe", "granitehybrid") and getattr(config, "shared_intermediate_size", 0):
        writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)
    if architecture in ("glm4moe", "dots1", "bailingmoe2"):
        writer.add_expert_shared_count(config.n_shared_experts)
        writer.add_leading_dense_block_count(getattr(config, "first_k_dense_replace", 0))
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_weights_norm(config.norm_topk_prob)
        if config.n_group > 1:
            writer.add_expert_group_count(config.n_group)
            writer.add_expert_group_used_count(config.topk_group)
    if architecture == "ernie4_5-moe":
        writer.add_expert_shared_count(config.moe_num_shared_experts)
        writer.add_leading_dense_block_count(config.moe_layer_start_index)
    if architecture in ("glm4moe", "minimax-m2", "afmoe", "lfm2moe", "dots1", "bailingmoe2"):
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def add_tensors(writer, arrays, kind):
    for name, array in arrays.items():
        if array.dtype == np.uint8:
            writer.add_tensor(name, array, raw_dtype=Kind.MXFP4)
            continue
        array = np.ascontiguousarray(array, np.float32)
        if recurrent.stays_exact(name):
            writer.add_tensor(name, array)
            continue
        if array.ndim >= 2 and kind == "F16" and not name.endswith(".bias"):
            array = array.astype(np.float16)
        if array.ndim >= 2 and kind == "Q8_0" and "conv1d" not in name and "shortconv.conv" not in name:
            writer.add_tensor(name, gguf.quants.quantize(array, Kind.Q8_0), raw_dtype=Kind.Q8_0)
        else:
            writer.add_tensor(name, array)


def write_gguf(path, architecture, config, arrays, kind):
    writer = gguf.GGUFWriter(path, architecture)
    if kind == "Q8_0":
        add_byte_vocabulary(writer, config.vocab_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(getattr(config, "max_position_embeddings", 2048))
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    if gemma4.add_keys(writer, architecture, config, arrays):
        return finish_gguf(writer, arrays, kind)
    down = arrays.get("blk.0.ffn_down.weight")
    width = further_models.ffn_width(config) if down is None else down.shape[1]
    writer.add_feed_forward_length(recurrent.ffn_widths(architecture, config, width))
    writer.add_head_count_kv(ungated.kv_heads(architecture, config) or recurrent.kv_heads(architecture, config))
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(width)
    writer.add_value_length(width)
    further_models.add_keys(writer, architecture, config)
    if architecture not in recurrent.HALVES_ARCHITECTURES and architecture not in ("gpt2", "bloom", "starcoder"):
        add_rope(writer, architecture, config, width, arrays, path.stem in OLD_GGUF)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if architecture in ("granite", "granitemoe") or config.model_type == "granitemoehybrid":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    recurrent.add_keys(writer, architecture, config)
    add_experts(writer, architecture, config)
    finish_gguf(writer, arrays, kind)


def finish_gguf(writer, arrays, kind):
    add_tensors(writer, arrays, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_engine_models():
    """Models that a whole engine runs, for the determinism test: windows, experts, and experts in groups
    beside shared ones and a dense layer, states of two kinds; quantized."""
    common = dict(vocab_size=259, tie_word_embeddings=True, max_position_embeddings=2048)
    for name, prefix, architecture, overrides in (
            ("engine-windows", "Gemma3Text", "gemma3", dict(
                common, sliding_window=40, query_pre_attn_scalar=16, num_hidden_layers=6,
                intermediate_size=32, num_attention_heads=2, num_key_value_heads=1)),
            ("engine-experts", "Qwen3Moe", "qwen3moe", dict(
                common, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32,
                norm_topk_prob=True)),
            ("engine-router", "Glm4Moe", "glm4moe", dict(
                common, n_routed_experts=12, num_experts_per_tok=3, moe_intermediate_size=32,
                n_shared_experts=2, n_group=4, topk_group=2, num_hidden_layers=3, use_qk_norm=True,
                intermediate_size=64,
                attention_bias=True, routed_scaling_factor=2.5)),
            *further_models.engines(common), *recurrent.engine_models(common),
            *gemma4.engines(common)):
        config, model = build(prefix, overrides, len(name))
        model.save_pretrained(HERE / name)
        tensors = load_file(HERE / name / "model.safetensors")
        shutil.rmtree(HERE / name)
        write_gguf(HERE / f"{name}.gguf", architecture, config,
                   recurrent.with_module(name, config, gguf_tensors(architecture, config, tensors)), "Q8_0")


def main():
    sys.argv[1:] or write_engine_models()
    names = [*MODELS, *further_models.FURTHER, *gemma4.MODELS, *ungated.MODELS]
    wanted = sys.argv[1:] or names
    rows_path = HERE / "models.json"
    document = json.loads(rows_path.read_text()) if rows_path.exists() else {}
    rows = {row["name"]: row for row in document.get("models", [])}
    numbered = [*enumerate(MODELS.items()), *enumerate(further_models.FURTHER.items(), 500),
                *enumerate(gemma4.MODELS.items(), 700), *enumerate(ungated.MODELS.items(), 800)]
    for number, (name, (prefix, architecture, overrides, kind)) in numbered:
        if name not in wanted:
            continue
        config, model = build(prefix, overrides, 1000 + number)
        round_to(model, kind)
        packed = quantize_experts(model, number) if name.endswith("mxfp4") else {}
        recurs = recurrent.is_recurrent(config)
        tokens = np.random.default_rng(number).integers(3, VOCAB, 2 * TOKENS if recurs else TOKENS)
        with torch.no_grad():
            logits = model(torch.tensor(tokens)[None]).logits[0].float().numpy()
            if recurs:
                logits = recurrent.token_by_token(name, model, tokens, logits)
        (HERE / f"{name}.logits.f32").write_bytes(logits.astype("<f4").tobytes())
        tensors = save(name, model, kind)
        if packed:
            replace_experts(HERE / name, packed)
            tensors.update(packed)
        row = {"name": name, "tokens": tokens.tolist(), "directory": name}
        if architecture:
            config = getattr(config, "text_config", config)
            write_gguf(HERE / f"{name}.gguf", architecture, config,
                       gguf_tensors(architecture, config, further_models.plain(config, tensors)), kind)
            row["gguf"] = f"{name}.gguf"
        rows[name] = row
        size = sum(f.stat().st_size for f in (HERE / name).iterdir())
        print(f"{name}: {size} bytes, logits {logits.min():.2f} to {logits.max():.2f}", flush=True)
    versions = {p: importlib.metadata.version(p) for p in ("torch", "transformers", "gguf", "numpy")}
    rows_path.write_text(json.dumps(
        {"script": "tests/golden/models/make_models.py", **versions,
         "models": [rows[name] for name in names if name in rows]}) + "\n")


if __name__ == "__main__":
    main()
