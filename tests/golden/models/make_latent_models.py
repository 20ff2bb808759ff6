#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the models of latent attention as make_models.py writes the others, with rows in
latent_models.json.

    pip install torch transformers gguf numpy && python make_latent_models.py [name ...]

The gguf package has "deepseek32" in llama.cpp's repository only (gguf-py). Some prompts are several times as long as the context that YaRN stretches: a wrong scale of scores
leaves the first rows right. All sizes differ.
"""
import importlib.metadata
import json
import shutil
import sys

import gguf
import numpy as np
import torch
from safetensors.torch import load_file, save_file

import make_models as common
import recurrent_models as recurrent

HEADS = 3
LATENT = dict(hidden_size=48, num_hidden_layers=3, num_attention_heads=HEADS,
              num_key_value_heads=HEADS, max_position_embeddings=512, kv_lora_rank=96,
              q_lora_rank=40, qk_nope_head_dim=24, qk_rope_head_dim=8, head_dim=8, v_head_dim=20)
EXPERTS = dict(n_routed_experts=12, num_experts_per_tok=3, moe_intermediate_size=24,
               n_shared_experts=2, first_k_dense_replace=1)
V3 = dict(LATENT, **EXPERTS, n_group=4, topk_group=2, routed_scaling_factor=2.5)
V2 = dict(LATENT, **EXPERTS, routed_scaling_factor=1.7)
# Fewer keys than most queries see.
INDEXED = dict(V3, index_topk=48, index_n_heads=14, index_head_dim=32)

# Delta layers whose channels decay apart, as many heads as those of attention where GGUF says it once.
KIMI = dict(LATENT, num_hidden_layers=4, q_lora_rank=None, num_local_experts=12, num_experts_per_tok=3,
            moe_intermediate_size=24, n_shared_experts=2, n_group=4, topk_group=2, linear_head_dim=16,
            linear_conv_kernel_dim=4, layer_types=["linear_attention"] * 3 + ["full_attention"],
            mlp_layer_types=["dense"] + ["sparse"] * 3)

CHANNELS = dict(intermediate_size=128, qk_rope_head_dim=16, head_dim=16, linear_head_dim=32, linear_num_heads=4,
                num_local_experts=4, num_experts_per_tok=2, moe_intermediate_size=128, n_shared_experts=1,
                mlp_layer_types=["dense", "sparse", "sparse"],
                layer_types=["linear_attention", "full_attention", "linear_attention"])


def yarn(mscale, mscale_all_dim):
    return {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 32.0,
            "beta_slow": 1.0, "mscale": mscale, "mscale_all_dim": mscale_all_dim,
            "original_max_position_embeddings": 64}


# name: (transformers class prefix, gguf architecture or None, overrides, storage type, tokens)
MODELS = {
    "deepseek-v3": ("DeepseekV3", None, dict(V3, rope_parameters=yarn(0.7, 1.3)), "BF16", 264),
    "deepseek-v3-whole-queries": ("DeepseekV3", "deepseek2", dict(
        V3, q_lora_rank=None, rope_parameters=yarn(1.1, 1.1)), "F16", 264),
    # Rotated parts in halves, as a file may say.
    "deepseek-v3-halves": ("DeepseekV3", None, dict(V3, rope_interleave=False, n_group=1,
                                                   topk_group=1), "F32", 48),
    "deepseek-v2": ("DeepseekV2", "deepseek2", dict(
        V2, topk_method="group_limited_greedy", n_group=4, topk_group=2,
        rope_parameters=yarn(0.707, 0.707)), "F16", 264),
    "deepseek-v2-lite": ("DeepseekV2", None, dict(V2, q_lora_rank=None, topk_method="greedy",
                                                  n_group=1, topk_group=1), "BF16", 48),
    # An epsilon that the norms of latents do not have.
    "glm4-moe-lite": ("Glm4MoeLite", None, dict(
        V3, n_group=1, topk_group=1, qk_nope_head_dim=40, v_head_dim=56, rms_norm_eps=1e-2), "BF16", 264),
    "deepseek-v32": ("DeepseekV32", "deepseek32", dict(INDEXED, rope_parameters=yarn(1.0, 1.0)), "BF16", 264),
    # The second layer reads what the first has chosen.
    "glm-moe-dsa": ("GlmMoeDsa", None, dict(
        INDEXED, n_group=1, topk_group=1, rms_norm_eps=1e-2,
        indexer_types=["full", "shared", "full"]), "F32", 264),
    # Queries that grow with their positions, from 64 on.
    "mistral4": ("Mistral4", None, dict(
        V3, n_group=1, topk_group=1, routed_scaling_factor=1.3, head_dim=32,
        rope_parameters=dict(yarn(1.0, 1.0), llama_4_scaling_beta=0.3)), "BF16", 264),
    "kimi-linear": ("KimiLinear", "kimi-linear", dict(KIMI, linear_num_heads=HEADS), "F16", 80),
    # The published spelling, and an epsilon that the norms of latents do not have.
    "kimi-linear-published": ("KimiLinear", None, dict(
        KIMI, linear_num_heads=4, n_group=1, topk_group=1, rms_norm_eps=1e-2), "BF16", 80),
    # V3's attention, dense layers alone.
    "youtu": ("Youtu", None, dict(LATENT, tie_word_embeddings=True), "BF16", 264),
}
del MODELS["glm4-moe-lite"][2]["first_k_dense_replace"]


def split_values(config, tensors):
    """Each head's keys, transposed, and values, as GGUF has them."""
    result = {}
    for name, tensor in tensors.items():
        if not name.endswith(".kv_b_proj.weight"):
            result[name] = tensor
            continue
        heads = tensor.reshape(config.num_attention_heads, -1, tensor.shape[-1])
        keys, values = heads.split([config.qk_nope_head_dim, config.v_head_dim], dim=1)
        result[name.replace("kv_b_proj", "k_b_proj")] = keys.transpose(1, 2).contiguous()
        result[name.replace("kv_b_proj", "v_b_proj")] = values.contiguous()
    return result


def add_latent_keys(writer, config, splits):
    rope = dict(getattr(config, "rope_parameters", None) or {"rope_theta": 10000.0, "rope_type": "default"})
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    nope, turned, value = config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim
    writer.add_kv_lora_rank(config.kv_lora_rank)
    if config.q_lora_rank:
        writer.add_q_lora_rank(config.q_lora_rank)
    heads = 1 if splits else config.num_attention_heads
    recurs = recurrent.is_recurrent(config)
    writer.add_head_count_kv(
        [0 if kind == "linear_attention" else heads for kind in config.layer_types] if recurs else heads)
    if recurs:
        writer.add_kda_head_dim(config.linear_head_dim)
        writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_key_length(config.kv_lora_rank + turned if splits else nope + turned)
    writer.add_value_length(config.kv_lora_rank if splits else value)
    if splits:
        writer.add_key_length_mla(nope + turned)
        writer.add_value_length_mla(value)
    writer.add_rope_dimension_count(turned)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
    writer.add_expert_count(getattr(config, "n_routed_experts", None) or config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_leading_dense_block_count(
        config.mlp_layer_types.count("dense") if recurs else config.first_k_dense_replace)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    sigmoid = config.model_type != "deepseek_v2"
    writer.add_expert_weights_norm(sigmoid)
    if sigmoid:
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if hasattr(config, "index_topk"):
        writer.add_indexer_head_count(config.index_n_heads)
        writer.add_indexer_key_length(config.index_head_dim)
        writer.add_indexer_top_k(config.index_topk)
    if (config.n_group or 1) > 1:
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)


def write_gguf(path, architecture, config, tensors, kind, splits=True):
    arrays = common.gguf_tensors(
        architecture, config, split_values(config, tensors) if splits else tensors)
    writer = gguf.GGUFWriter(path, architecture)
    if kind == "Q8_0":
        common.add_byte_vocabulary(writer, config.vocab_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    add_latent_keys(writer, config, splits)
    common.add_tensors(writer, arrays, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def apart(config, tensors):
    """Experts as directories and gguf's names have them: a matrix each."""
    result = {}
    for name, tensor in tensors.items():
        name = name.replace(".block_sparse_moe.", ".mlp.")
        head, found, part = name.partition(".experts.")
        if not found or part not in ("gate_up_proj", "down_proj"):
            result[name] = tensor
            continue
        for i, matrix in enumerate(tensor):
            if part == "down_proj":
                result[f"{head}.experts.{i}.down_proj.weight"] = matrix
            else:
                gate, up = matrix.chunk(2)
                result[f"{head}.experts.{i}.gate_proj.weight"] = gate
                result[f"{head}.experts.{i}.up_proj.weight"] = up
    return result


def round_biases(model, kind):
    """The routers' terms are no parameters, and stored like them: near ties a rounding chooses others."""
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(buffer.to(common.TORCH_TYPE[kind]).float())


def respell_kimi(folder):
    """The same directory as published ones are: delta layers in an object, layers counted from 1, and dense
    halves that do not have experts' names."""
    stored = load_file(folder / "model.safetensors")
    save_file({name.replace("layers.0.block_sparse_moe.", "layers.0.mlp."): tensor
               for name, tensor in stored.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    config = json.loads(path.read_text())
    types = [*enumerate(config.pop("layer_types"), 1)]
    config["linear_attn_config"] = {
        "full_attn_layers": [i for i, kind in types if kind == "full_attention"],
        "kda_layers": [i for i, kind in types if kind == "linear_attention"],
        "head_dim": config.pop("linear_head_dim"), "num_heads": config.pop("linear_num_heads"),
        "short_conv_kernel_size": config.pop("linear_conv_kernel_dim")}
    config["first_k_dense_replace"] = config.pop("mlp_layer_types").count("dense")
    config |= {"mla_use_nope": True, "moe_router_activation_func": "sigmoid", "moe_layer_freq": 1,
               "use_grouped_topk": True, "rope_scaling": None, "rope_theta": 10000.0}
    path.write_text(json.dumps(config, indent=1) + "\n")


def write_engine_models():
    """Models that a whole engine runs, for the determinism tests: latents, and latents beside states."""
    shared = dict(vocab_size=259, tie_word_embeddings=False, max_position_embeddings=2048, hidden_size=64,
                  kv_lora_rank=64, qk_nope_head_dim=32, v_head_dim=32, num_attention_heads=4,
                  num_key_value_heads=4)
    for name, prefix, architecture, overrides, seed in (
            ("engine-latents", "DeepseekV3", "deepseek2", dict(
                V3 | shared, intermediate_size=64, q_lora_rank=32, moe_intermediate_size=32,
                rope_parameters=yarn(1.0, 1.0)), 77),
            ("engine-channels", "KimiLinear", "kimi-linear", dict(
                KIMI | shared | CHANNELS, num_hidden_layers=3, n_group=1, topk_group=1), 78)):
        config, model = common.build(prefix, overrides, seed)
        folder = common.HERE / name
        model.save_pretrained(folder)
        tensors = load_file(folder / "model.safetensors")
        shutil.rmtree(folder)
        write_gguf(common.HERE / f"{name}.gguf", architecture, config, apart(config, tensors), "Q8_0")


def main():
    wanted = sys.argv[1:] or [*MODELS]
    if not sys.argv[1:]:
        write_engine_models()
    rows_path = common.HERE / "latent_models.json"
    document = json.loads(rows_path.read_text()) if rows_path.exists() else {}
    rows = {row["name"]: row for row in document.get("models", [])}
    for number, (name, (prefix, architecture, overrides, kind, count)) in enumerate(MODELS.items()):
        if name not in wanted:
            continue
        config, model = common.build(prefix, overrides, 2000 + number)
        common.round_to(model, kind)
        round_biases(model, kind)
        tokens = np.random.default_rng(number).integers(3, common.VOCAB, count)
        with torch.no_grad():
            logits = model(torch.tensor(tokens)[None]).logits[0].float().numpy()
            if recurrent.is_recurrent(config):
                logits = recurrent.token_by_token(name, model, tokens, logits)
        (common.HERE / f"{name}.logits.f32").write_bytes(logits.astype("<f4").tobytes())
        tensors = apart(config, common.save(name, model, kind))
        if name == "kimi-linear-published":
            respell_kimi(common.HERE / name)
        row = {"name": name, "tokens": tokens.tolist(), "directory": name}
        if architecture:
            write_gguf(common.HERE / f"{name}.gguf", architecture, config, tensors, kind,
                       splits=name != "deepseek-v2")
            row["gguf"] = f"{name}.gguf"
        rows[name] = row
        size = sum(f.stat().st_size for f in (common.HERE / name).iterdir())
        print(f"{name}: {size} bytes, logits {logits.min():.2f} to {logits.max():.2f}", flush=True)
    versions = {p: importlib.metadata.version(p) for p in ("torch", "transformers", "gguf", "numpy")}
    rows_path.write_text(json.dumps(
        {"script": "tests/golden/models/make_latent_models.py", **versions,
         "models": [rows[name] for name in MODELS if name in rows]}) + "\n")


if __name__ == "__main__":
    main()
