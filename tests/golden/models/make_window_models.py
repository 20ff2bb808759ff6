#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the models whose windowed layers differ from the full ones in more than the window, as
make_models.py writes the others, with rows in window_models.json.

    pip install torch transformers gguf numpy && python make_window_models.py [name ...]

Prompts are several times as long as any chunk or window. All sizes differ.
"""
import base64
import importlib.metadata
import json
import shutil
import sys

import gguf
import numpy as np
import torch
from safetensors.torch import load_file, save_file

import make_models as common

LLAMA4 = dict(num_hidden_layers=5, head_dim=24, intermediate_size=24, intermediate_size_mlp=56,
              num_local_experts=6, num_experts_per_tok=1, no_rope_layer_interval=3,
              attention_chunk_size=11, floor_scale=7, attn_scale=0.3, interleave_moe_layer_step=2,
              rope_parameters=common.LLAMA3_ROPE)
SCOUT = dict(num_hidden_layers=4, head_dim=24, intermediate_size=24, intermediate_size_mlp=56,
             num_local_experts=6, num_experts_per_tok=1, rope_parameters=common.LLAMA3_ROPE)

S, F = "sliding_attention", "full_attention"
MIMO = dict(num_hidden_layers=5, head_dim=24, v_head_dim=16, num_attention_heads=8,
            num_key_value_heads=2, intermediate_size=56, moe_intermediate_size=24,
            n_routed_experts=6, num_experts_per_tok=2, sliding_window=9, layer_types=[F, S, S, F, S],
            attention_value_scale=0.6, routed_scaling_factor=1.7, rope_parameters={
                F: {"rope_type": "default", "rope_theta": 5e4, "partial_rotary_factor": 0.334},
                S: {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}})
STEP = dict(num_hidden_layers=5, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
            num_sliding_attention_heads=6, intermediate_size=56, moe_intermediate_size=24,
            share_expert_dim=40, n_routed_experts=6, num_experts_per_tok=2, sliding_window=9,
            layer_types=[F, S, S, F, S], mlp_layer_types=["dense", "sparse", "sparse", "sparse", "sparse"],
            moe_router_scaling_factor=1.7, swiglu_limits=[0.0, 0.0, 0.05, 0.07, 0.0],
            swiglu_limits_shared=[0.09, 0.0, 0.0, 0.1, 0.2], rope_parameters={
                F: dict(common.LLAMA3_ROPE, rope_theta=5e4, partial_rotary_factor=0.5),
                S: {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0}})

# name: (transformers class prefix, gguf architecture or None, overrides, storage type, tokens)
MODELS = {
    "llama4": ("Llama4Text", None, LLAMA4, "BF16", 60),
    # Layers' kinds as listed, no norms, no growth; the last chunks are cut short.
    "llama4-listed": ("Llama4Text", None, dict(
        LLAMA4, use_qk_norm=False, attn_temperature_tuning=False, moe_layers=[0, 3],
        no_rope_layers=[1, 0, 1, 1, 0]), "F16", 49),
    # The chunks and the growth that a file implies.
    "llama4-file": ("Llama4Text", "llama4", SCOUT, "F16", 40),
    "mimo-v2": ("MiMoV2Flash", "mimo2", MIMO, "F16", 40),
    # Keys and values are those of Xiaomi's config.json.
    "mimo-v2-published": ("MiMoV2Flash", None, dict(
        MIMO, rope_parameters={
            kind: {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": 0.334}
            for kind, theta in ((F, 5e4), (S, 500.0))}), "BF16", 40),
    "step3p5": ("Step3p7Text", "step35", STEP, "F16", 40),
    # Inside a multimodal model, as transformers writes it.
    "step3p7": ("Step3p7Text", None, dict(STEP, swiglu_limits=None, swiglu_limits_shared=None), "BF16", 40),
    "llama4-dense": ("Llama4Text", "llama4", dict(SCOUT, interleave_moe_layer_step=2), "F16", 40),
}


def gguf_arrays(architecture, config, tensors):
    """{gguf name: float32 array}, as llama.cpp's converter makes them."""
    result, others = {}, {}
    for name, tensor in tensors.items():
        layer = "blk." + name.split(".")[2] + "." if ".layers." in name else ""
        if name.endswith("experts.gate_up_proj"):
            array = tensor.float().numpy()
            half = array.shape[-1] // 2
            result[layer + "ffn_gate_exps.weight"] = array[..., :half].swapaxes(1, 2)
            result[layer + "ffn_up_exps.weight"] = array[..., half:].swapaxes(1, 2)
        elif name.endswith("experts.down_proj"):
            result[layer + "ffn_down_exps.weight"] = tensor.float().numpy().swapaxes(1, 2)
        elif name.endswith("attention_sink_bias"):
            result[layer + "attn_sinks.weight"] = tensor.float().numpy()
        else:
            others[name] = tensor
    result.update(common.gguf_tensors(architecture, config, others))
    return result


def add_llama4_keys(writer, config, chunk):
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_feed_forward_length(config.intermediate_size_mlp)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_interleave_moe_layer_step(config.interleave_moe_layer_step)
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.intermediate_size)
    if chunk:  # what our own files say
        writer.add_sliding_window(config.attention_chunk_size)
        writer.add_attn_temperature_scale(config.attn_scale)
        writer.add_uint32("llama4.attention.temperature_length", config.floor_scale)


def add_mimo_keys(writer, config):
    windowed = [kind == S for kind in config.layer_types]
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count_kv([(2 if each else 1) * config.num_key_value_heads for each in windowed])
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.v_head_dim)
    writer.add_float32("mimo2.attention.value_scale", config.attention_value_scale)
    add_windows(writer, config, windowed, F)
    add_router(writer, config, config.routed_scaling_factor)


def add_step_keys(writer, config):
    windowed = [kind == S for kind in config.layer_types]
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count_kv([config.num_key_value_heads] * len(windowed))
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_swiglu_clamp_exp(config.swiglu_limits)
    writer.add_swiglu_clamp_shexp(config.swiglu_limits_shared)
    writer.add_expert_shared_feed_forward_length(config.share_expert_dim)
    writer.add_leading_dense_block_count(config.mlp_layer_types.index("sparse"))
    add_windows(writer, config, windowed, S)
    writer.add_expert_weights_norm(True)
    add_router(writer, config, config.moe_router_scaling_factor)


def add_windows(writer, config, windowed, stated):
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern(windowed)
    rope = config.rope_parameters
    writer.add_rope_dimension_count(int(config.head_dim * rope[stated]["partial_rotary_factor"]))
    writer.add_rope_dimension_count_swa(int(config.head_dim * rope[S]["partial_rotary_factor"]))
    writer.add_rope_freq_base(rope[F]["rope_theta"])
    writer.add_rope_freq_base_swa(rope[S]["rope_theta"])


def add_router(writer, config, scale):
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_weights_scale(scale)


def head_counts(architecture, config):
    if architecture != "step35":
        return config.num_attention_heads
    return [config.per_layer_config[i].num_attention_heads for i in range(config.num_hidden_layers)]


def step_arrays(config, tensors):
    """Norms with 1 added, and the factors of full layers among those of whole heads."""
    named = {}
    for name, tensor in tensors.items():
        tensor = tensor.float()
        named[name] = tensor + 1 if name.endswith("norm.weight") else tensor
    arrays = {}
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.STEP35, config.num_hidden_layers)
    for name, tensor in named.items():
        stem = name.removesuffix(".weight")
        if name.endswith("moe.router_bias"):
            arrays["blk." + name.split(".")[2] + ".exp_probs_b.bias"] = tensor.numpy()
        else:
            arrays[names.get_name(stem) + ".weight"] = tensor.numpy()
    rope = config.rope_parameters[F]
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu", layer_type=F)
    width = 2 * len(scaled)
    plain = 1.0 / rope["rope_theta"] ** (torch.arange(0, width, 2).float() / width)
    factors = np.ones(config.head_dim // 2, np.float32)
    factors[: width // 2] = (plain / scaled).numpy()
    arrays["rope_freqs.weight"] = factors
    return arrays


def write_gguf(path, architecture, config, tensors, kind):
    is_step = architecture == "step35"
    arrays = step_arrays(config, tensors) if is_step else gguf_arrays(architecture, config, tensors)
    writer = gguf.GGUFWriter(path, architecture)
    if kind == "Q8_0":
        common.add_byte_vocabulary(writer, config.vocab_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(head_counts(architecture, config))
    if architecture == "mimo2":
        add_mimo_keys(writer, config)
    elif is_step:
        add_step_keys(writer, config)
    else:
        add_llama4_keys(writer, config, chunk=kind == "Q8_0")
        common.add_rope(writer, architecture, config, config.head_dim, arrays, False)
    common.add_tensors(writer, arrays, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class StepModel(torch.nn.Module):
    """Step's text model by itself, which transformers has only inside a multimodal one."""

    def __init__(self, config):
        super().__init__()
        from transformers.models.step3p7.modeling_step3p7 import Step3p7TextModel
        self.config = config
        self.model = Step3p7TextModel(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, tokens):
        class Result:
            logits = self.lm_head(self.model(tokens).last_hidden_state)
        return Result


def build(prefix, overrides, seed):
    if prefix != "Step3p7Text":
        config, model = common.build(prefix, overrides, seed)
    else:
        from transformers.models.step3p7.configuration_step3p7 import Step3p7TextConfig
        torch.manual_seed(seed)
        config = Step3p7TextConfig(**{**common.COMMON, **overrides})
        config._attn_implementation = "eager"
        model = StepModel(config).eval().float()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.copy_(0.2 * torch.randn_like(weight))
    with torch.no_grad():
        for name, weight in [*model.named_parameters(), *model.named_buffers()]:
            if "sinks" in name or name.endswith("e_score_correction_bias"):
                weight.copy_(0.5 * torch.randn_like(weight))
    return config, model


def round_to(model, kind):
    common.round_to(model, kind)
    with torch.no_grad():
        for name, weight in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                weight.copy_(weight.to(common.TORCH_TYPE[kind]).float())


def step_tensors(model, kind):
    """Tensors under the names that StepFun's files have."""
    result = {}
    for name, tensor in model.state_dict().items():
        tensor = tensor.to(common.TORCH_TYPE[kind]).contiguous()
        name = name.replace(".mlp.shared_experts.", ".share_expert.")
        if name.endswith("mlp.experts.gate_up_proj"):
            gate, up = tensor.chunk(2, dim=1)
            result[name.replace("mlp.experts.gate_up_proj", "moe.gate_proj.weight")] = gate.contiguous()
            result[name.replace("mlp.experts.gate_up_proj", "moe.up_proj.weight")] = up.contiguous()
        elif name.endswith("mlp.experts.down_proj"):
            result[name.replace("mlp.experts.down_proj", "moe.down_proj.weight")] = tensor
        elif "inv_freq" not in name:
            name = name.replace("mlp.gate.e_score_correction_bias", "moe.router_bias")
            result[name.replace(".mlp.gate.", ".moe.gate.")] = tensor
    return result


def publish_step(name, config):
    text = json.loads(config.to_json_string())
    if name == "step3p7":
        return {"architectures": ["Step3p7ForConditionalGeneration"], "model_type": "step3p7",
                "text_config": text, "vision_config": {"model_type": "step3p5_vision"}}
    windowed = [kind == S for kind in config.layer_types] + [True]  # and a module behind the layers
    keys = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim",
            "max_position_embeddings", "rms_norm_eps", "sliding_window",
            "moe_intermediate_size", "moe_router_scaling_factor", "tie_word_embeddings")
    full = dict(config.rope_parameters[F])
    theta, part = full.pop("rope_theta"), full.pop("partial_rotary_factor")
    local = config.rope_parameters[S]
    return {"architectures": ["Step3p5ForCausalLM"], "model_type": "step3p5",
            **{key: text[key] for key in keys},
            "num_attention_heads": config.per_layer_config[config.layer_types.index(F)].num_attention_heads,
            "num_attention_groups": config.num_key_value_heads,
            "attention_other_setting": {
                "attention_type": S, "num_attention_heads": config.num_sliding_attention_heads,
                "num_attention_groups": config.num_key_value_heads, "head_dim": config.head_dim},
            "moe_num_experts": config.n_routed_experts, "moe_top_k": config.num_experts_per_tok,
            "share_expert_dim": config.share_expert_dim, "norm_expert_weight": True,
            "moe_layers_enum": ",".join(
                str(i) for i, kind in enumerate(config.mlp_layer_types) if kind == "sparse"),
            "layer_types": [S if each else F for each in windowed], "num_nextn_predict_layers": 1,
            "rope_theta": [local["rope_theta"] if each else theta for each in windowed],
            "partial_rotary_factors": [
                local["partial_rotary_factor"] if each else part for each in windowed],
            "rope_scaling": full, "yarn_only_types": [F], "use_head_wise_attn_gate": True,
            "swiglu_limits": [*config.swiglu_limits, 0.0],
            "swiglu_limits_shared": [*config.swiglu_limits_shared, 0.0]}


def publish_mimo(config):
    windowed = [int(kind == S) for kind in config["layer_types"]]
    full, local = config["rope_parameters"][F], config["rope_parameters"][S]
    for key in ("layer_types", "mlp_layer_types", "rope_parameters", "num_local_experts"):
        config.pop(key, None)
    return {**config, "hybrid_layer_pattern": windowed,
            "moe_layer_freq": [int(i > 0) for i in range(len(windowed))],
            "sliding_window": config["sliding_window"] - 1,
            "sliding_window_size": config["sliding_window"] - 1,
            "attention_chunk_size": config["sliding_window"] - 1,
            "swa_num_attention_heads": config["num_attention_heads"],
            "swa_num_key_value_heads": 2 * config["num_key_value_heads"],
            "swa_head_dim": config["head_dim"], "swa_v_head_dim": config["v_head_dim"],
            "rope_theta": full["rope_theta"], "swa_rope_theta": local["rope_theta"],
            "partial_rotary_factor": full["partial_rotary_factor"], "layernorm_epsilon": 1e-5,
            "add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False,
            "scoring_func": "sigmoid", "topk_method": "noaux_tc"}


def save(name, config, model, kind):
    folder = common.HERE / name
    if isinstance(model, StepModel):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        tensors = step_tensors(model, kind)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(publish_step(name, config), indent=1) + "\n")
        return tensors
    tensors = common.save(name, model, kind)
    if name == "mimo-v2-published":
        path = folder / "config.json"
        path.write_text(json.dumps(publish_mimo(json.loads(path.read_text())), indent=1) + "\n")
    return tensors


def write_engine_models():
    """Models that a whole engine runs, for the determinism test."""
    sizes = dict(vocab_size=259, max_position_embeddings=2048)
    for name, prefix, architecture, overrides in (
            ("engine-chunks", "Llama4Text", "llama4", {
                **SCOUT, **sizes, **dict(
                    head_dim=16, intermediate_size=32, intermediate_size_mlp=64,
                    interleave_moe_layer_step=2, attention_chunk_size=40, floor_scale=24,
                    attn_scale=0.3)}),
            ("engine-sinks", "MiMoV2Flash", "mimo2", {
                **MIMO, **sizes, **dict(
                    head_dim=32, num_hidden_layers=4, layer_types=[F, S, F, S],
                    moe_intermediate_size=32, intermediate_size=64, sliding_window=40)}),
            ("engine-heads", "Step3p7Text", "step35", {
                **STEP, **sizes, **dict(
                    num_hidden_layers=4, layer_types=[F, S, F, S],
                    mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
                    num_sliding_attention_heads=8, moe_intermediate_size=32, intermediate_size=64,
                    share_expert_dim=64, sliding_window=40, swiglu_limits=[0.0, 0.0, 0.05, 0.07],
                    swiglu_limits_shared=[0.09, 0.0, 0.0, 0.1])})):
        config, model = build(prefix, overrides, len(name))
        folder = common.HERE / name
        tensors = save(name, config, model, "F32")
        shutil.rmtree(folder)
        write_gguf(common.HERE / f"{name}.gguf", architecture, config, tensors, "Q8_0")


def module_tensors(layer, windowed, stored, head, renamed, random):
    """A module that often guesses rightly: its layer adds little to the stream, which begins with the next
    token's embedding as the model's does. Norms of Step have 1 less in files."""
    hidden = stored["model.norm.weight"].shape[0]
    is_step = "output" in head
    place = f"model.layers.{windowed}.self_attn."
    shapes = {part.removeprefix(place): tensor.shape for part, tensor in stored.items() if part.startswith(place)}
    tensors = {"self_attn." + part: 0.2 * torch.randn(shape, generator=random) for part, shape in shapes.items()}
    wide = stored["model.layers.0.mlp.up_proj.weight"].shape
    tensors |= {f"mlp.{part}_proj.weight": 0.2 * torch.randn(wide if part != "down" else wide[::-1], generator=random)
                for part in ("gate", "up", "down")}
    for part in ("self_attn.o_proj.weight", "mlp.down_proj.weight"):
        tensors[part] *= 0.3
    usual = 0.0 if is_step else 1.0
    for part in ("input_layernorm", renamed, "enorm"):
        tensors[part + ".weight"] = usual + torch.zeros(hidden)
    tensors["hnorm.weight"] = usual + 0.2 * torch.randn(hidden, generator=random)
    tensors["eh_proj.weight"] = torch.eye(hidden, 2 * hidden) + 0.02 * torch.randn(
        hidden, 2 * hidden, generator=random)
    tensors[head["norm"]] = stored["model.norm.weight"]
    if is_step:
        tensors[head["output"]] = stored["lm_head.weight"]
    return {layer + part: tensor.half().clone() for part, tensor in tensors.items()}


def write_engine_modules():
    """Directories of models with a module behind their layers, for the tests of drafts."""
    sizes = dict(vocab_size=259, max_position_embeddings=2048)
    listed = dict(num_hidden_layers=3, layer_types=[F, S, F])
    shared = "transformer.shared_head."
    for name, prefix, overrides, layer, renamed, head in (
            ("engine-sinks-mtp", "MiMoV2Flash", dict(
                MIMO, **listed, rope_parameters={
                    kind: {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": 0.334}
                    for kind, theta in ((F, 5e4), (S, 500.0))}) | sizes,
             "model.mtp.layers.0.", "pre_mlp_layernorm", {"norm": "final_layernorm.weight"}),
            ("engine-heads-mtp", "Step3p7Text", dict(
                STEP, **listed, mlp_layer_types=["dense", "sparse", "sparse"], swiglu_limits=[0.0, 0.0, 0.05],
                swiglu_limits_shared=[0.09, 0.0, 0.0]) | sizes,
             "model.layers.3.", "post_attention_layernorm",
             {"norm": shared + "norm.weight", "output": shared + "output.weight"})):
        config, model = build(prefix, overrides, len(name))
        with torch.no_grad():
            for part, weight in model.named_parameters():
                if part.endswith(("o_proj.weight", "down_proj", "down_proj.weight")):
                    weight *= 0.3
        round_to(model, "F16")
        stored = save(name, config, model, "F16")
        folder = common.HERE / name
        if prefix == "MiMoV2Flash":
            path = folder / "config.json"
            path.write_text(json.dumps(publish_mimo(json.loads(path.read_text())), indent=1) + "\n")
            stored = load_file(folder / "model.safetensors")
        random = torch.Generator().manual_seed(53)
        save_file(stored | module_tensors(layer, 1, stored, head, renamed, random), folder / "model.safetensors",
                  metadata={"format": "pt"})
        tokens = [bytes([i]) for i in range(256)] + [b"th", b"he", b"in"]
        (folder / "tiktoken.model").write_bytes(
            b"".join(base64.b64encode(token) + b" %d\n" % i for i, token in enumerate(tokens)))


def main():
    write_engine_models()
    write_engine_modules()
    wanted = sys.argv[1:] or [*MODELS]
    rows_path = common.HERE / "window_models.json"
    document = json.loads(rows_path.read_text()) if rows_path.exists() else {}
    rows = {row["name"]: row for row in document.get("models", [])}
    for number, (name, (prefix, architecture, overrides, kind, count)) in enumerate(MODELS.items()):
        if name not in wanted:
            continue
        config, model = build(prefix, overrides, 3000 + number)
        round_to(model, kind)
        tokens = np.random.default_rng(number).integers(3, common.VOCAB, count)
        with torch.no_grad():
            logits = model(torch.tensor(tokens)[None]).logits[0].float().numpy()
        (common.HERE / f"{name}.logits.f32").write_bytes(logits.astype("<f4").tobytes())
        tensors = save(name, config, model, kind)
        row = {"name": name, "tokens": tokens.tolist(), "directory": name}
        if architecture:
            write_gguf(common.HERE / f"{name}.gguf", architecture, config, tensors, kind)
            row["gguf"] = f"{name}.gguf"
        rows[name] = row
        size = sum(f.stat().st_size for f in (common.HERE / name).iterdir())
        print(f"{name}: {size} bytes, logits {logits.min():.2f} to {logits.max():.2f}", flush=True)
    versions = {p: importlib.metadata.version(p) for p in ("torch", "transformers", "gguf", "numpy")}
    rows_path.write_text(json.dumps(
        {"script": "tests/golden/models/make_window_models.py", **versions,
         "models": [rows[name] for name in MODELS if name in rows]}) + "\n")


if __name__ == "__main__":
    main()
