#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes pack-quantized checkpoints whose groups are not neighbours along K (weight_g_idx).

    pip install torch transformers && pip install --no-deps --target OLD compressed-tensors==0.9.4
    PYTHONPATH=OLD python make_g_idx.py

compressed-tensors wrote weight_g_idx for actorder "group" until it dropped it; 0.9.4 has it. Its own
compressor packs and decodes; the order of columns is random, by this script. Scales are of random groups'
largest magnitudes, by its own calculate_qparams.
"""
import json
import shutil

import torch
from compressed_tensors.compressors.quantized_compressors.pack_quantized import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import save_file

import tiny

# name: (base, seed, bits, group)
MODELS = {"ct-w4a16-g-idx": ("qwen2-wide", 1, 4, 32), "ct-w8a16-g-idx": ("qwen2", 2, 8, 32)}


def make(name):
    base, seed, bits, group = MODELS[name]
    model = tiny.build(base, torch.bfloat16, 6000 + seed)
    args = QuantizationArgs(num_bits=bits, type="int", strategy="group", group_size=group, symmetric=True,
                            dynamic=False, actorder="group")
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    config = QuantizationConfig(config_groups={"group_0": scheme}, format="pack-quantized",
                                quantization_status="compressed", ignore=["lm_head"])
    compressor = PackedQuantizationCompressor(config=config)
    folder = tiny.HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    stored, decoded = tiny.checkpoint(folder), {}
    generator = torch.Generator().manual_seed(seed)
    for key, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear) or key == "lm_head":
            continue
        weight = module.weight.data
        columns = weight.shape[1]
        g_idx = (torch.arange(columns) // group)[torch.randperm(columns, generator=generator)].int()
        ordered = weight[:, torch.argsort(g_idx, stable=True)].unflatten(-1, (-1, group))
        scale, zero = calculate_qparams(ordered.amin(-1), ordered.amax(-1), args)
        made = compressor.compress_weight(weight, scale, args, zero, g_idx)
        made |= {"weight_scale": scale, "weight_g_idx": g_idx}
        exact = {**made, "weight_scale": scale.double()}
        decoded[key] = compressor.decompress_weight(exact, args).double().numpy()
        stored.pop(key + ".weight")
        stored |= {f"{key}.{part}": value.contiguous() for part, value in made.items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    tiny.clean(folder)
    settings = json.loads((folder / "config.json").read_text())
    settings["quantization_config"] = json.loads(config.model_dump_json())
    (folder / "config.json").write_text(json.dumps(settings, indent=1) + "\n")
    tokens = tiny.prompt(seed)
    logits = tiny.run(tiny.with_matrices(model, decoded), tokens)
    tiny.write_row(name, "pack-quantized, actorder group", base, tokens, decoded, {"logits": logits},
                   {**tiny.versions(), "compressed-tensors": "0.9.4"})
    print(f"{name}: {len(decoded)} matrices, error {tiny.worst_error(model, decoded):.1%}", flush=True)


if __name__ == "__main__":
    for key in MODELS:
        make(key)
