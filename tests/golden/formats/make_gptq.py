#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes GPTQ and AWQ checkpoints of tiny models as gptqmodel and auto-round make them, and what gptqmodel
decodes.

    pip install gptqmodel auto-round && GPTQMODEL_CPU_WORKERS=2 python make_gptq.py [--keep] [name ...]

--keep decodes the checkpoints that are there.

gptqmodel writes GPTQ (v1 and v2, with and without order of activation, symmetric or not), auto-round AWQ's
gemm layout and a GPTQ checkpoint of its own (gptqmodel's AWQ asks for matrices of 64 rows and more). Decoded values are gptqmodel's functions,
in fp32 (GPTQ: a difference of two 4-bit codes times an fp16 scale is exact there) and fp64 (AWQ).
gptq-v2-as-v1 is gptq-v2's file with the label of v1, as published checkpoints have been: its values are
those of v2. Logits as in make_compressed_tensors.py.
"""
import json
import os
import shutil
import sys
import tempfile

import torch
from auto_round import AutoRound
from gptqmodel import BACKEND, GPTQModel, QuantizeConfig
from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm
from gptqmodel.utils.model_dequant import convert_gptq_file
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import tiny

KEEPS = "--keep" in sys.argv
# name: (base, seed, program, arguments of its configuration)
MODELS = {
    "gptq-v1": ("llama-wide", 1, "gptqmodel", dict(group_size=128, sym=True, desc_act=False)),
    "gptq-v2": ("llama", 2, "gptqmodel", dict(group_size=32, sym=True, desc_act=False, format="gptq_v2")),
    "gptq-v2-as-v1": ("llama", 2, "relabel gptq-v2", dict(checkpoint_format="gptq", format="gptq")),
    "gptq-act-order": ("qwen2-wide", 3, "gptqmodel", dict(group_size=32, sym=True, desc_act=True)),
    "gptq-asym": ("qwen2", 4, "gptqmodel", dict(group_size=32, sym=False, desc_act=False)),
    "gptq-v2-asym-act-order": ("llama", 5, "gptqmodel", dict(
        group_size=32, sym=False, desc_act=True, format="gptq_v2")),
    "gptq-8bit-channel": ("llama", 6, "gptqmodel", dict(bits=8, group_size=-1, sym=True, desc_act=False,
                                                     act_group_aware=False)),
    "gptq-v1-qwen2": ("qwen2-wide", 10, "gptqmodel", dict(group_size=128, sym=True, desc_act=False)),
    "gptq-asym-llama": ("llama", 11, "gptqmodel", dict(group_size=32, sym=False, desc_act=False)),
    "gptq-act-order-llama": ("llama", 12, "gptqmodel", dict(group_size=32, sym=True, desc_act=True)),
    "gptq-8bit-channel-qwen2": ("qwen2", 13, "gptqmodel", dict(
        bits=8, group_size=-1, sym=True, desc_act=False, act_group_aware=False)),
    "gptq-auto-round": ("qwen2", 7, "auto-round", dict(format="auto_gptq", group_size=32, sym=True)),
    "awq": ("llama-wide", 8, "auto-round", dict(format="auto_awq", group_size=128, sym=False)),
    "awq-g32": ("qwen2", 9, "auto-round", dict(format="auto_awq", group_size=32, sym=False)),
    "gptq-auto-round-llama": ("llama", 14, "auto-round", dict(format="auto_gptq", group_size=32, sym=True)),
}


def run_gptqmodel(settings, place, folder, seed):
    settings = {"bits": 4, "offload_to_disk": False, **settings}
    config = QuantizeConfig(**settings)
    model = GPTQModel.load(place, config, device="cpu")
    rows = tiny.calibration(seed, 32, 64)
    model.quantize([{"input_ids": r, "attention_mask": [1] * len(r)} for r in rows], batch_size=4,
                   backend=BACKEND.TORCH)
    model.save(str(folder))


def run_auto_round(settings, place, folder):
    """Nearest codes (iters=0): tuning would ask for a data set of text."""
    settings = dict(settings)
    layout = settings.pop("format")
    model = AutoModelForCausalLM.from_pretrained(place, dtype="auto")
    rounder = AutoRound(model, AutoTokenizer.from_pretrained(place), bits=4, iters=0, disable_opt_rtn=True,
                        device_map="cpu", **settings)
    rounder.quantize_and_save(str(folder), format=layout)


def gather(folder):
    """auto-round writes into a folder of its own naming or into shards."""
    for file in list(folder.rglob("*.safetensors")):
        file.rename(folder / "model.safetensors")
    for file in list(folder.rglob("*.json")):
        if file.parent != folder:
            file.rename(folder / file.name)


def quantize(name, model):
    base, seed, program, settings = MODELS[name]
    folder = tiny.HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    if program.startswith("relabel"):
        shutil.copytree(tiny.HERE / program.split()[1], folder)
        path = folder / "config.json"
        config = json.loads(path.read_text())
        config["quantization_config"].update(settings)
        path.write_text(json.dumps(config, indent=2) + "\n")
        (folder / "quantize_config.json").unlink(missing_ok=True)
        return folder
    with tiny.saved(model) as place:
        if program == "auto-round":
            run_auto_round(settings, place, folder)
        else:
            run_gptqmodel(settings, place, folder, seed)
    gather(folder)
    tiny.clean(folder)
    return folder


def decode(name, folder):
    """{matrix: fp64 values [N, K]}."""
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    path = folder / "model.safetensors"
    stored = load_file(path)
    matrices = [k.removesuffix(".qweight") for k in stored if k.endswith(".qweight")]
    if config["quant_method"] == "awq":
        values = {}
        for key in matrices:
            scales = stored[key + ".scales"].double()
            group = config["group_size"]
            values[key] = dequantize_gemm(stored[key + ".qweight"], stored[key + ".qzeros"], scales, 4,
                                          group).T.contiguous().numpy()
        return values
    if name == "gptq-v2-as-v1":
        config["checkpoint_format"] = "gptq_v2"
    found = convert_gptq_file(path, torch.float32, config, "cpu")
    return {key: found[key + ".weight"].double().numpy() for key in matrices}


def make(name):
    base, seed, program, settings = MODELS[name]
    model = tiny.build(base, torch.float16, 4000 + seed)
    folder = tiny.HERE / name if KEEPS else quantize(name, model)
    decoded = decode(name, folder)
    tokens = tiny.prompt(seed)
    float_model = tiny.with_matrices(model, decoded)
    # Writers round what they do not quantize to a type of their own.
    kept = {k: v.float() for k, v in load_file(folder / "model.safetensors").items() if v.is_floating_point()}
    parameters = float_model.state_dict()
    float_model.load_state_dict({k: kept.get(k, v) for k, v in parameters.items()})
    results = {"logits": tiny.run(float_model, tokens)}
    tiny.write_row(name, settings | {"program": program}, base, tokens, decoded, results,
                   tiny.versions("gptqmodel", "auto-round"))
    print(f"{name}: {len(decoded)} matrices, error {tiny.worst_error(model, decoded):.1%}", flush=True)


if __name__ == "__main__":
    os.chdir(tempfile.mkdtemp())  # gptqmodel writes logs where it runs
    names = [argument for argument in sys.argv[1:] if argument != "--keep"]
    for key in MODELS:
        if not names or key in names:
            make(key)
