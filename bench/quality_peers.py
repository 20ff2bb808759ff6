#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a model in number formats as the field's own tools do at their defaults, for bench/quality.py.

    pip install llmcompressor nvidia-modelopt llama-cpp-cffi        # int8, fp8, fp8-block, nvfp4, mxfp4, GGUF
    pip install gptqmodel                                           # int4; another torch, so another venv
    python bench/quality_peers.py BASE OUT --calibration TEXT int8 fp8 nvfp4 ...

BASE is a Hugging Face directory in BF16 (for GGUF: a BF16 .gguf file). Each scheme becomes OUT/<scheme>:
  int8        llmcompressor INT8 (8-bit weights by channel, inputs by token)
  fp8         llmcompressor FP8_DYNAMIC; fp8-block: its FP8_BLOCK
  nvfp4       modelopt NVFP4_DEFAULT_CFG, inputs' scales from --calibration
  int4        gptqmodel at its defaults (GPTQ, 4 bits, groups of 128), 16 rows of 512 tokens of --calibration
  mxfp4       plain rounding as the OCP standard has it: exponent of the block's largest magnitude less 2,
              nearest code, ties to even; packed by compressed-tensors
  Q4_K_M ...  llama_model_quantize of llama.cpp, without importance
Everything runs on one thread of the CPU. A line for each scheme: seconds and bytes.
"""
import argparse
import json
import os
import pathlib
import shutil
import time

ROWS, LENGTH = 16, 512
GGUF_TYPES = {"Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K_S": 11, "Q3_K_M": 12,
              "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_S": 16, "Q5_K_M": 17, "Q6_K": 18, "IQ4_NL": 25, "IQ4_XS": 30}


def rows_of(base, text, count=ROWS):
    """Token ids of pieces of the text, [count][LENGTH]."""
    from transformers import AutoTokenizer
    ids = AutoTokenizer.from_pretrained(base)(text).input_ids
    if len(ids) < count * LENGTH:
        raise SystemExit(f"quality_peers.py: the text has {len(ids)} tokens, {count * LENGTH} are asked for")
    return [ids[i * LENGTH:(i + 1) * LENGTH] for i in range(count)]


def load(base):
    from transformers import AutoModelForCausalLM
    return AutoModelForCausalLM.from_pretrained(base, dtype="auto").eval()


def llmcompressor(base, out, scheme):
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import QuantizationModifier
    model = load(base)
    oneshot(model=model, recipe=QuantizationModifier(targets="Linear", scheme=scheme, ignore=["lm_head"]))
    model.save_pretrained(out, save_compressed=True)


def modelopt(base, out, text):
    import modelopt.torch.quantization as mtq
    import torch
    from modelopt.torch.export import export_hf_checkpoint
    model = load(base)
    rows = rows_of(base, text, 8)

    def run(quantized):
        for row in rows:
            quantized(torch.tensor([row]))

    mtq.quantize(model, mtq.NVFP4_DEFAULT_CFG, run)
    export_hf_checkpoint(model, export_dir=out)


def gptqmodel(base, out, text):
    from gptqmodel import BACKEND, GPTQModel, QuantizeConfig
    model = GPTQModel.load(str(base), QuantizeConfig(bits=4, group_size=128, offload_to_disk=False), device="cpu")
    rows = [{"input_ids": r, "attention_mask": [1] * len(r)} for r in rows_of(base, text)]
    model.quantize(rows, batch_size=1, backend=BACKEND.TORCH)
    model.save(str(out))


def plain_mxfp4(base, out):
    import torch
    from compressed_tensors.compressors.nvfp4.helpers import pack_fp4_to_uint8
    from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme
    from compressed_tensors.quantization.quant_scheme import MXFP4A16
    from safetensors.torch import load_file, save_file
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    middles = (values[1:] + values[:-1]) / 2
    out.mkdir(parents=True)
    stored = load_file(base / "model.safetensors")
    for key in [k for k in stored if k.endswith("_proj.weight")]:
        blocks = stored.pop(key).float().unflatten(-1, (-1, 32))
        largest = blocks.abs().amax(-1, keepdim=True)
        exponent = torch.where(largest > 0, torch.floor(torch.log2(largest)) - 2, torch.zeros_like(largest))
        exponent = exponent.clamp(-127, 127)
        scaled = (blocks / torch.exp2(exponent)).flatten(-2)
        magnitude = scaled.abs()
        index = torch.bucketize(magnitude, middles)  # a middle goes down: up where that code is odd
        index += (magnitude == middles[index.clamp(max=6)]).int() * (index % 2)
        codes = values[index.clamp(max=7)] * torch.where(scaled < 0, -1.0, 1.0)
        name = key.removesuffix(".weight")
        stored[name + ".weight_packed"] = pack_fp4_to_uint8(codes.contiguous())
        stored[name + ".weight_scale"] = (exponent.squeeze(-1) + 127).to(torch.uint8).contiguous()
    save_file(stored, out / "model.safetensors", metadata={"format": "pt"})
    scheme = QuantizationScheme(targets=["Linear"], format="mxfp4-pack-quantized", **MXFP4A16)
    config = json.loads((base / "config.json").read_text())
    config["quantization_config"] = json.loads(QuantizationConfig(
        config_groups={"group_0": scheme}, format="mxfp4-pack-quantized", quantization_status="compressed",
        ignore=["lm_head"]).model_dump_json())
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def llama_quantize(base, out, kind):
    from llama._llama_cpp_cpu import ffi, lib as library
    library.llama_backend_init()
    params = ffi.new("llama_model_quantize_params *", library.llama_model_quantize_default_params())
    params.ftype, params.nthread = GGUF_TYPES[kind], 1
    if library.llama_model_quantize(str(base).encode(), str(out).encode(), params):
        raise SystemExit(f"quality_peers.py: llama.cpp cannot write {kind}")


def write(scheme, base, out, text):
    if scheme in GGUF_TYPES:
        llama_quantize(base, out, scheme)
    elif scheme == "int4":
        gptqmodel(base, out, text)
    elif scheme == "nvfp4":
        modelopt(base, out, text)
    elif scheme == "mxfp4":
        plain_mxfp4(base, out)
    else:
        llmcompressor(base, out, {"int8": "INT8", "fp8": "FP8_DYNAMIC", "fp8-block": "FP8_BLOCK"}[scheme])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("schemes", nargs="+")
    parser.add_argument("--calibration", type=pathlib.Path)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")
    text = arguments.calibration.read_text() if arguments.calibration else ""
    arguments.out.mkdir(parents=True, exist_ok=True)
    for scheme in arguments.schemes:
        target = arguments.out / (scheme + ".gguf" if scheme in GGUF_TYPES else scheme)
        shutil.rmtree(target, ignore_errors=True)
        begin = time.monotonic()
        write(scheme, arguments.base.resolve(), target, text)
        if target.is_dir():
            for file in arguments.base.glob("tokenizer*"):
                shutil.copy(file, target)
        size = sum(f.stat().st_size for f in ([target] if target.is_file() else target.glob("*.safetensors")))
        print(f"{scheme}: {time.monotonic() - begin:.0f} s, {size} bytes", flush=True)


if __name__ == "__main__":
    main()
