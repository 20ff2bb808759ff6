#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes checkpoints of quant_method "fp8" (128x128 blocks, weight_scale_inv) of tiny models.

    pip install torch transformers && python make_fp8_blocks.py [name ...]

transformers' own classes quantize and decode: Fp8Quantize and Fp8Dequantize of its fp8 integration, with
config.json's keys from FineGrainedFP8Config. They take whole blocks alone, and transformers runs such a model
on a GPU alone: this script puts zeros behind parts of blocks before Fp8Quantize and Fp8Dequantize, and leaves
them away after. Inputs are rounded by this script as the scheme says: groups of 128 a token, scale = largest
magnitude / 448, codes nearest e4m3. Logits as in make_compressed_tensors.py. Decoded values are fp32, in
which an e4m3 code times an fp32 scale rounds once: the type is in formats.json.
"""
import json
import shutil
import sys
import types

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import FineGrainedFP8Config
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

import tiny

BLOCK = 128
# name: (base, seed, scale_fmt, type that scales are stored in, names of Linears that stay floats)
MODELS = {
    "fp8-block": ("llama-part", 1, "float", torch.float32, ["lm_head"]),
    "fp8-block-ue8m0": ("qwen2-wide", 2, "ue8m0", torch.float8_e8m0fnu, ["lm_head"]),
    "fp8-block-ue8m0-floats": ("llama", 3, "ue8m0", torch.float32, ["lm_head", "model.layers.0.self_attn.o_proj"]),
    "fp8-block-experts": ("qwen3-moe", 4, "float", torch.float32, ["lm_head", "model.layers.0.mlp.gate"]),
}


def padded(matrix):
    rows, columns = matrix.shape
    shape = (-(-rows // BLOCK) * BLOCK, -(-columns // BLOCK) * BLOCK)
    result = torch.zeros(shape, dtype=torch.float32)
    result[:rows, :columns] = matrix.float()
    return result


def quantize(matrix, config):
    """Codes and scales of a matrix, and their decoded values in fp32."""
    quantizer = types.SimpleNamespace(quantization_config=config)
    made = Fp8Quantize(quantizer).convert({"m.weight": padded(matrix)})
    codes, scales = made["m.weight"], made["m.weight_scale_inv"]
    whole = Fp8Dequantize(quantizer)._dequantize_one(codes, scales, torch.float32)
    rows, columns = matrix.shape
    return codes[:rows, :columns].contiguous(), scales, whole[:rows, :columns]


def round_inputs(_, inputs):
    """A Linear's input in e4m3 with one scale for 128 values of a token, decoded again."""
    x = inputs[0]
    columns = x.shape[-1]
    groups = torch.nn.functional.pad(x, (0, -columns % BLOCK)).unflatten(-1, (-1, BLOCK))
    scale = groups.abs().amax(-1, keepdim=True) / 448
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    codes = (groups / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    return ((codes.float() * scale).flatten(-2)[..., :columns],)


def matrices_of(model, kept):
    """{name in a checkpoint: matrix} of all that is quantized."""
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name not in kept:
            found[name] = module.weight.data
        if name.endswith(".experts"):
            for i in range(module.num_experts):
                for part in ("gate_proj", "up_proj", "down_proj"):
                    key = f"{name}.{i}.{part}"
                    found[key] = tiny.target_of(model, key).data
    return found


def make(name):
    base, seed, scale_format, scale_type, kept = MODELS[name]
    model = tiny.build(base, torch.bfloat16, 5000 + seed)
    config = FineGrainedFP8Config(scale_fmt=scale_format, modules_to_not_convert=kept)
    folder = tiny.HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    stored = tiny.checkpoint(folder)
    decoded = {}
    for key, matrix in matrices_of(model, kept).items():
        codes, scales, decoded[key] = quantize(matrix, config)
        stored[key + ".weight"] = codes
        stored[key + ".weight_scale_inv"] = scales.to(scale_type)
    save_file({k: v.contiguous() for k, v in stored.items()}, folder / "model.safetensors",
              metadata={"format": "pt"})
    tiny.clean(folder)
    settings = json.loads((folder / "config.json").read_text())
    keys = config.to_dict()
    settings["quantization_config"] = {
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK], "modules_to_not_convert": keys["modules_to_not_convert"],
        **({"scale_fmt": "ue8m0"} if scale_format == "ue8m0" else {})}
    (folder / "config.json").write_text(json.dumps(settings, indent=1) + "\n")
    tokens = tiny.prompt(seed)
    float_model = tiny.with_matrices(model, decoded)
    results = {"logits": tiny.run(float_model, tokens)}
    for key in decoded:
        if ".experts." in key:
            experts = float_model.get_submodule(key.partition(".experts.")[0] + ".experts")
            tiny.round_expert_inputs(experts, round_inputs)
        else:
            float_model.get_submodule(key).register_forward_pre_hook(round_inputs)
    results["rounded"] = tiny.run(float_model, tokens)
    tiny.write_row(name, "fp8", base, tokens, {k: v.double().numpy() for k, v in decoded.items()}, results,
                   tiny.versions(), decoded_type="fp32")
    print(f"{name}: {len(decoded)} matrices, error {tiny.worst_error(model, {k: np.float64(v) for k, v in decoded.items()}):.1%}",
          flush=True)


if __name__ == "__main__":
    for key in MODELS:
        if not sys.argv[1:] or key in sys.argv[1:]:
            make(key)
