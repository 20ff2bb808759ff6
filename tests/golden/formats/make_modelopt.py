#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the checkpoints that nvidia-modelopt makes of tiny models, and what its own classes decode.

    pip install nvidia-modelopt transformers && python make_modelopt.py [name ...]

Codes, scales, names, config.json and hf_quant_config.json are export_hf_checkpoint's. Decoded values are
FP8QTensor's and NVFP4QTensor's with companions as fp64. Logits as in make_compressed_tensors.py; inputs are
rounded by the same classes with the checkpoint's input_scale.
"""
import copy
import json
import shutil
import sys

import modelopt.torch.quantization as mtq
import numpy as np
import torch
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.quantization.qtensor import FP8QTensor, NVFP4QTensor
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import tiny

MIXED = "mixed"
# name: (base, dtype, name of a configuration of modelopt, names of further ones, what is done to the files)
MODELS = {
    "modelopt-fp8": ("llama", torch.bfloat16, "FP8_DEFAULT_CFG", ["FP8_KV_CFG"], None),
    "modelopt-fp8-qwen2": ("qwen2", torch.float16, "FP8_DEFAULT_CFG", [], "one config"),
    "modelopt-fp8-experts": ("qwen3-moe", torch.bfloat16, "FP8_DEFAULT_CFG", [], None),
    "modelopt-fp8-channel": ("llama", torch.bfloat16, "FP8_PER_CHANNEL_PER_TOKEN_CFG", [], None),
    "modelopt-nvfp4": ("llama", torch.bfloat16, "NVFP4_DEFAULT_CFG", [], None),
    "modelopt-nvfp4-qwen2": ("qwen2", torch.bfloat16, "NVFP4_DEFAULT_CFG", ["FP8_KV_CFG"], "one config"),
    "modelopt-nvfp4-experts": ("qwen3-moe", torch.bfloat16, "NVFP4_DEFAULT_CFG", [], None),
    "modelopt-w4a16-nvfp4": ("llama", torch.float16, "W4A16_NVFP4_CFG", [], None),
    "modelopt-mixed": ("qwen2-two", torch.bfloat16, MIXED, [], None),
    # Seeds are by place: second models of schemes that have one above.
    "modelopt-fp8-channel-qwen2": ("qwen2", torch.float16, "FP8_PER_CHANNEL_PER_TOKEN_CFG", [], None),
    "modelopt-w4a16-nvfp4-qwen2": ("qwen2", torch.bfloat16, "W4A16_NVFP4_CFG", [], None),
    "modelopt-mixed-f16": ("qwen2-two", torch.float16, MIXED, [], "one config"),
}


def configuration(name, more):
    """modelopt's own; mixed: FP8 in attention, NVFP4 in the first layer's MLP, floats in the second's."""
    if name != MIXED:
        result = copy.deepcopy(getattr(mtq, name))
        for extra in more:
            result["quant_cfg"] += copy.deepcopy(getattr(mtq, extra))["quant_cfg"]
        return result
    result = copy.deepcopy(mtq.FP8_DEFAULT_CFG)
    for row in copy.deepcopy(mtq.NVFP4_DEFAULT_CFG)["quant_cfg"]:
        pattern = row.get("quantizer_name")
        if pattern in ("*weight_quantizer", "*input_quantizer"):
            result["quant_cfg"].append({**row, "quantizer_name": "*layers.0.mlp" + pattern})
    result["quant_cfg"].append({"quantizer_name": "*layers.1.mlp*", "enable": False})
    return result


def quantize(name, seed):
    base, dtype, kind, more, change = MODELS[name]
    model = tiny.build(base, dtype, seed)
    folder = tiny.HERE / name
    shutil.rmtree(folder, ignore_errors=True)

    def run(quantized):
        for row in tiny.calibration(seed):
            quantized(torch.tensor([row]))

    with tiny.saved(model) as place:
        loaded = AutoModelForCausalLM.from_pretrained(place, dtype="auto")
        mtq.quantize(loaded, configuration(kind, more), run)
        export_hf_checkpoint(loaded, export_dir=folder)
    tiny.clean(folder)
    if change == "one config":  # files of modelopt before 0.31 have hf_quant_config.json alone
        path = folder / "config.json"
        config = json.loads(path.read_text())
        config.pop("quantization_config")
        path.write_text(json.dumps(config, indent=2) + "\n")
    return folder, model


def decode(own):
    """fp64 values of one matrix from what the checkpoint has for it."""
    codes, scale = own["weight"], own["weight_scale"]
    if codes.dtype == torch.uint8:
        tensor = NVFP4QTensor((codes.shape[0], codes.shape[1] * 2), torch.float64, codes)
        return tensor.dequantize(torch.float64, scale=scale.double(), double_scale=own["weight_scale_2"].double(),
                                 block_sizes={-1: 16}).numpy()
    scale = scale[:, None] if scale.ndim == 1 else scale
    return FP8QTensor(codes.shape, torch.float64, codes).dequantize(torch.float64, scale=scale.double()).numpy()


def round_inputs(own):
    """A hook that rounds a Linear's inputs as the checkpoint asks, or None."""
    scale = own.get("input_scale")
    if scale is None:
        return None
    scale = scale.float()

    def hook(_, inputs):
        x = inputs[0]
        if own["weight"].dtype == torch.uint8:
            tensor, first, second = NVFP4QTensor.quantize(x.clone(), 16, None, scale)
            return (tensor.dequantize(torch.float32, scale=first, double_scale=second, block_sizes={-1: 16}),)
        tensor, _ = FP8QTensor.quantize(x.clamp(-448 * scale, 448 * scale), scale)
        return (tensor.dequantize(torch.float32, scale=scale),)

    return hook


def make(name, seed):
    folder, base = quantize(name, seed)
    stored = load_file(folder / "model.safetensors")
    found = {}
    for key in stored:
        matrix, _, part = key.rpartition(".")
        if part == "weight_scale":
            found[matrix] = {k[len(matrix) + 1:]: v for k, v in stored.items() if k.rpartition(".")[0] == matrix}
    decoded = {key: decode(own) for key, own in found.items()}
    tokens = tiny.prompt(seed)
    float_model = tiny.with_matrices(base, decoded)
    results = {"logits": tiny.run(float_model, tokens)}
    for key, own in found.items():
        hook = round_inputs(own)
        if hook and ".experts." not in key:  # each expert has a scale of its own
            float_model.get_submodule(key).register_forward_pre_hook(hook)
    rounded = tiny.run(float_model, tokens)
    if not np.array_equal(rounded, results["logits"]) and not any(".experts." in k for k in found):
        results["rounded"] = rounded
    tiny.write_row(name, MODELS[name][2], MODELS[name][0], tokens, decoded, results,
                   tiny.versions("nvidia-modelopt"))
    print(f"{name}: {len(decoded)} matrices, error {tiny.worst_error(base, decoded):.1%}, logits {list(results)}",
          flush=True)


if __name__ == "__main__":
    for number, key in enumerate(MODELS):
        if not sys.argv[1:] or key in sys.argv[1:]:
            make(key, 3000 + number)
