#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the checkpoints that llmcompressor makes of tiny models, and what compressed-tensors decodes.

    pip install llmcompressor gguf && python make_compressed_tensors.py [--keep] [name ...]

--keep decodes and runs the checkpoints that are there. Codes, scales, names and config.json are
llmcompressor's. Decoded values are compressed-tensors' own functions with companions as fp64. Two files of
logits a model, both with the decoded weights in fp32: <name>.logits.f32 with inputs of each Linear as they
are, <name>.rounded.f32 with inputs that compressed-tensors (this script: to int8) rounds as the scheme says,
where the scheme says so.
"""
import shutil
import sys

import numpy as np
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.mx_utils import decompress_mx_scale
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationConfig, QuantizationStatus
from compressed_tensors.quantization.lifecycle.forward import dequantize, forward_quantize
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.gptq import GPTQModifier
from llmcompressor.modifiers.quantization import QuantizationModifier
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import tiny

KEEPS = "--keep" in sys.argv
PACKAGES = ("compressed-tensors", "llmcompressor")
LINEAR = ["Linear"]
TENSOR_FP8 = dict(num_bits=8, type="float", strategy="tensor", symmetric=True, dynamic=False)
KV_CACHE = dict(TENSOR_FP8)


def weights(bits, kind="int", **settings):
    return dict(num_bits=bits, type=kind, dynamic=False, **{"symmetric": True, **settings})


def groups(**named):
    """config_groups: name=(targets, weights[, input activations])."""
    return {name: dict(zip(("targets", "weights", "input_activations"), parts))
            for name, parts in named.items()}


INT8_STATIC = dict(num_bits=8, type="int", strategy="tensor", symmetric=True, dynamic=False)
INT8_TOKEN = dict(num_bits=8, type="int", strategy="token", symmetric=True, dynamic=True)
FP8_TOKEN = dict(num_bits=8, type="float", strategy="token", symmetric=True, dynamic=True)
FP4 = dict(num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True, dynamic=False,
           scale_dtype="torch.float8_e4m3fn")
ATTENTION = [r"re:.*self_attn\.[qkvo]_proj$"]
GATE_UP, DOWN = [r"re:.*mlp\.(gate|up)_proj$"], [r"re:.*mlp\.down_proj$"]
# name: (base, dtype, scheme's words, arguments of QuantizationModifier or, with "gptq", GPTQModifier)
MODELS = {
    "ct-int8": ("llama", torch.bfloat16, dict(scheme="INT8")),
    "ct-int8-static": ("qwen2", torch.float16, dict(config_groups=groups(
        group_0=(LINEAR, weights(8, strategy="channel"), INT8_STATIC)))),
    "ct-fp8": ("llama", torch.bfloat16, dict(scheme="FP8", kv_cache_scheme=KV_CACHE)),
    "ct-fp8-qwen2": ("qwen2", torch.float32, dict(scheme="FP8")),
    "ct-fp8-dynamic": ("llama", torch.float16, dict(scheme="FP8_DYNAMIC")),
    "ct-fp8-dynamic-qwen2": ("qwen2-two", torch.bfloat16, dict(
        scheme="FP8_DYNAMIC", ignore=["lm_head", r"re:.*layers\.1\.(mlp\.down|self_attn\.o)_proj"])),
    "ct-fp8-experts": ("qwen3-moe", torch.bfloat16, dict(scheme="FP8_DYNAMIC",
                                                      ignore=["lm_head", r"re:.*gate$"])),
    "ct-fp8-block": ("llama-part", torch.bfloat16, dict(scheme="FP8_BLOCK")),
    "ct-fp8-block-qwen2": ("qwen2-wide", torch.float16, dict(scheme="FP8_BLOCK")),
    "ct-w4a16": ("llama-wide", torch.bfloat16, dict(scheme="W4A16")),
    "ct-w4a16-gptq": ("qwen2-wide", torch.float16, dict(scheme="W4A16", actorder="static", gptq=True)),
    "ct-w4a16-g32": ("llama", torch.float32, dict(config_groups=groups(
        group_0=(LINEAR, weights(4, strategy="group", group_size=32))))),
    "ct-w4a16-channel": ("qwen2", torch.bfloat16, dict(config_groups=groups(
        group_0=(LINEAR, weights(4, strategy="channel"))))),
    "ct-w4a16-asym": ("llama-wide", torch.float16, dict(scheme="W4A16_ASYM")),
    "ct-w4a16-asym-g32": ("qwen2", torch.bfloat16, dict(config_groups=groups(
        group_0=(LINEAR, weights(4, strategy="group", group_size=32, symmetric=False))))),
    "ct-w4a16-asym-channel": ("llama", torch.bfloat16, dict(config_groups=groups(
        group_0=(LINEAR, weights(4, strategy="channel", symmetric=False))))),
    "ct-w4a16-experts": ("qwen3-moe", torch.bfloat16, dict(
        config_groups=groups(group_0=(LINEAR, weights(4, strategy="group", group_size=32))),
        ignore=["lm_head", r"re:.*gate$"])),
    "ct-w4a8": ("qwen2", torch.bfloat16, dict(config_groups=groups(
        group_0=(LINEAR, weights(4, strategy="group", group_size=32), INT8_TOKEN)))),
    "ct-w8a16": ("llama", torch.bfloat16, dict(config_groups=groups(
        group_0=(LINEAR, weights(8, strategy="group", group_size=32))))),
    "ct-w8a16-channel-asym": ("qwen2", torch.float16, dict(config_groups=groups(
        group_0=(LINEAR, weights(8, strategy="channel", symmetric=False))))),
    "ct-nvfp4a16": ("llama", torch.bfloat16, dict(scheme="NVFP4A16")),
    "ct-nvfp4a16-experts": ("qwen3-moe", torch.bfloat16, dict(scheme="NVFP4A16",
                                                          ignore=["lm_head", r"re:.*gate$"])),
    "ct-nvfp4": ("qwen2", torch.bfloat16, dict(scheme="NVFP4")),
    "ct-mxfp4a16": ("llama", torch.bfloat16, dict(scheme="MXFP4A16")),
    "ct-mxfp4": ("qwen2", torch.bfloat16, dict(scheme="MXFP4")),
    "ct-mixed": ("qwen2-two", torch.bfloat16, dict(
        ignore=["lm_head", r"re:.*layers\.1\.self_attn.*"],
        config_groups=groups(
            group_0=(ATTENTION, weights(8, "float", strategy="channel"), FP8_TOKEN),
            group_1=(GATE_UP, weights(4, strategy="group", group_size=32, symmetric=False)),
            group_2=(DOWN, FP4)))),
    # Seeds are by place: second models of schemes that have one above.
    "ct-int8-static-llama": ("llama", torch.bfloat16, dict(config_groups=groups(
        group_0=(LINEAR, weights(8, strategy="channel"), INT8_STATIC)))),
    "ct-w4a16-channel-llama": ("llama", torch.float16, dict(config_groups=groups(
        group_0=(LINEAR, weights(4, strategy="channel"))))),
    "ct-w4a16-asym-qwen2": ("qwen2-wide", torch.bfloat16, dict(scheme="W4A16_ASYM")),
    "ct-w4a16-asym-channel-qwen2": ("qwen2", torch.float16, dict(config_groups=groups(
        group_0=(LINEAR, weights(4, strategy="channel", symmetric=False))))),
    "ct-w4a8-llama": ("llama", torch.float16, dict(config_groups=groups(
        group_0=(LINEAR, weights(4, strategy="group", group_size=32), INT8_TOKEN)))),
    "ct-w8a16-qwen2": ("qwen2", torch.float16, dict(config_groups=groups(
        group_0=(LINEAR, weights(8, strategy="group", group_size=32))))),
    "ct-w8a16-channel-asym-llama": ("llama", torch.bfloat16, dict(config_groups=groups(
        group_0=(LINEAR, weights(8, strategy="channel", symmetric=False))))),
    "ct-nvfp4-llama": ("llama", torch.float16, dict(scheme="NVFP4")),
    "ct-mxfp4-llama": ("llama", torch.float16, dict(scheme="MXFP4")),
}


def quantize(name, seed):
    """The folder of llmcompressor's checkpoint, and the float model that it was made of."""
    base, dtype, settings = MODELS[name]
    settings = {"targets": LINEAR, "ignore": ["lm_head"], **settings}
    modifier = GPTQModifier if settings.pop("gptq", False) else QuantizationModifier
    if "config_groups" in settings:
        settings.pop("targets")
    model = tiny.build(base, dtype, seed)
    folder = tiny.HERE / name
    if KEEPS:
        return folder, model
    shutil.rmtree(folder, ignore_errors=True)
    rows = tiny.calibration(seed)
    data = Dataset.from_dict({"input_ids": rows, "attention_mask": [[1] * len(r) for r in rows]})
    with tiny.saved(model) as place:
        loaded = AutoModelForCausalLM.from_pretrained(place, dtype="auto")
        oneshot(model=loaded, tokenizer=place, recipe=modifier(**settings), dataset=data,
                num_calibration_samples=len(rows), max_seq_length=len(rows[0]))
        loaded.save_pretrained(folder, save_compressed=True)
    tiny.clean(folder)
    return folder, model


def decode(scheme, stored, with_divisor=True):
    """fp64 values of one matrix from what the checkpoint has for it."""
    kind = getattr(scheme.format, "value", scheme.format)
    scale = stored["weight_scale"]
    if kind in ("nvfp4-pack-quantized", "mxfp4-pack-quantized"):
        packed = stored["weight_packed"]
        codes = unpack_fp4_from_uint8(packed, packed.shape[0], packed.shape[1] * 2, torch.float64)
        scale = decompress_mx_scale(scale) if kind.startswith("mx") else scale
        second = stored.get("weight_global_scale")
        return dequantize(x_q=codes, scale=scale.double(), args=scheme.weights, dtype=torch.float64,
                          global_scale=second.double() if second is not None and with_divisor else None).numpy()
    state = {**stored, "weight_scale": scale.double()}
    values = BaseCompressor.get_value_from_registry(kind).decompress(state, scheme)["weight"]
    assert values.dtype == torch.float64
    return values.numpy()


def quantized_modules(folder):
    """transformers' model, and {name: (scheme that compressed-tensors gives it, its stored tensors)}."""
    stored = load_file(folder / "model.safetensors")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    found = {}
    schemes = {n: getattr(m, "quantization_scheme", None) for n, m in model.named_modules()}
    config = QuantizationConfig.model_validate(model.config.quantization_config.quantization_config)
    for key in stored:
        name, _, part = key.rpartition(".")
        if part != "weight_scale":
            continue
        # transformers has experts in one tensor, which no scheme is given to.
        scheme = config.config_groups["group_0"] if ".experts." in name else schemes[name]
        found[name] = (scheme, {k[len(name) + 1:]: v for k, v in stored.items()
                                if k.rpartition(".")[0] == name})
    return model, found


def round_to_int8(static_scale):
    """127 steps to the largest magnitude of a token, or to that of the given scale: compressed-tensors takes
    127.5, and 128 below 0."""
    def hook(_, inputs):
        scale = inputs[0].abs().amax(-1, keepdim=True) / 127 if static_scale is None else static_scale.float()
        scale = torch.where(scale == 0, torch.ones_like(scale), scale)
        return (torch.round(inputs[0] * (1 / scale)).clamp(-127, 127) * scale,)

    return hook


def round_inputs(scheme, stored):
    """A hook that rounds a Linear's inputs. A last group that is not whole gets zeros behind it, which change
    neither its scale nor its codes: compressed-tensors takes whole groups alone."""
    inputs_scheme = scheme.input_activations
    if inputs_scheme.type == "int":
        return round_to_int8(None if inputs_scheme.dynamic else stored["input_scale"])
    module = torch.nn.Module()
    module.quantization_status = QuantizationStatus.FROZEN
    for key in ("input_scale", "input_zero_point", "input_global_scale"):
        if key in stored:
            setattr(module, key, stored[key].float())
    group = inputs_scheme.group_size or 1

    def hook(_, inputs):
        columns = inputs[0].shape[-1]
        padded = torch.nn.functional.pad(inputs[0], (0, -columns % group))
        # An expert's rows have no batch, and rows of a batch of one are what a scheme of tokens means.
        rows = padded[None] if padded.ndim == 2 else padded
        rounded = forward_quantize(module, rows, "input", inputs_scheme)[..., :columns]
        return (rounded[0] if padded.ndim == 2 else rounded,)

    return hook


def difference(loaded, tokens, ours):
    """Largest difference of the checkpoint run by transformers with weights rounded to the checkpoint's
    dtype, relative to the largest logit."""
    try:
        tiny.run(loaded, tokens)  # decodes the weights, to the dtype of the checkpoint
    except RuntimeError as error:
        return f"cannot run it: {error}"
    theirs = tiny.run(torch.nn.Module.float(loaded), tokens)
    return f"differs by {np.abs(theirs - ours).max() / np.abs(theirs).max():.1e}"


def make(name, seed):
    folder, base = quantize(name, seed)
    loaded, found = quantized_modules(folder)
    decoded = {key: decode(scheme, own) for key, (scheme, own) in found.items()}
    error = tiny.worst_error(base, decoded)
    divisors = {key: float(own["weight_global_scale"]) for key, (_, own) in found.items()
                if "weight_global_scale" in own}
    tokens = tiny.prompt(seed)
    float_model = tiny.with_matrices(base, decoded)
    results = {"logits": tiny.run(float_model, tokens)}
    for key, (scheme, own) in found.items():
        if scheme.input_activations is None:
            continue
        hook = round_inputs(scheme, own)
        if ".experts." in key:
            tiny.round_expert_inputs(float_model.get_submodule(key.partition(".experts.")[0] + ".experts"), hook)
        else:
            float_model.get_submodule(key).register_forward_pre_hook(hook)
    ours = tiny.run(float_model, tokens)
    if not np.array_equal(ours, results["logits"]):
        results["rounded"] = ours
    # A division rounds: what is exact is the value in front of it.
    extra = {key: {"divisor": value, "divided": decoded[key].reshape(-1)[:4].tolist()}
             for key, value in divisors.items()}
    decoded |= {key: decode(*found[key], with_divisor=False) for key in divisors}
    tiny.write_row(name, MODELS[name][2].get("scheme", "config_groups"), MODELS[name][0], tokens, decoded,
                   results, tiny.versions(*PACKAGES), extra)
    print(f"{name}: {len(decoded)} matrices, error {error:.1%}, logits {list(results)}; transformers "
          f"{difference(loaded, tokens, ours)}", flush=True)


if __name__ == "__main__":
    names = [argument for argument in sys.argv[1:] if argument != "--keep"]
    for number, key in enumerate(MODELS):
        if not names or key in names:
            make(key, 2000 + number)
