#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads what `sluice quantize` wrote with the packages of others, and compares.

    build/sluice quantize BASE OUT --to SCHEME --report OUT.json
    python check_written.py BASE OUT OUT.json [--run] [--ggml libggml-base.so]

BASE is a Hugging Face directory (or a .gguf file of plain floats where OUT is one). Each matrix that the
report says is quantized is decoded by compressed-tensors, modelopt, transformers' Fp8Dequantize or the
gguf package, whichever OUT's own keys ask for; its relative error (root mean square, of BASE) has to be
the report's within 1e-6 of it (1e-4 where gguf computes in fp32). With --run transformers loads OUT (but
modelopt's layout, which it does not know; and where a block is not whole it takes blocks of other sizes), and
how far its logits are from BASE's with the decoded matrices is printed, of which 16-bit weights make some.
--ggml names a library of llama.cpp, whose own reader and dequantizers then read a GGUF file as well: the same
floats, bit for bit, as the gguf package. Exit code 1 where a value differs.
"""
import argparse
import ctypes
import json
import pathlib
import sys
import types

import numpy as np
import torch
from safetensors import safe_open


def tensors_of(folder):
    """{name: function that loads it} of all files of a directory."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        file = safe_open(path, "pt")
        found |= {key: (lambda f=file, k=key: f.get_tensor(k)) for key in file.keys()}
    return found


def companions(stored, name):
    return {k[len(name) + 1:]: load() for k, load in stored.items() if k.rpartition(".")[0] == name}


def read_compressed_tensors(folder, stored, config):
    import make_compressed_tensors as packages
    from compressed_tensors.quantization import QuantizationConfig
    from compressed_tensors.utils.match import match_name
    parsed = QuantizationConfig.model_validate(config)
    for key in stored:
        name, _, part = key.rpartition(".")
        if part != "weight_scale":
            continue
        schemes = [g for g in parsed.config_groups.values()
                   if any(t == "Linear" or match_name(name, t) for t in g.targets)]
        assert len(schemes) == 1 and not any(match_name(name, i) for i in parsed.ignore), name
        yield name, packages.decode(schemes[0], companions(stored, name))


def read_modelopt(folder, stored, config):
    import make_modelopt as packages
    for key in stored:
        name, _, part = key.rpartition(".")
        if part == "weight_scale":
            yield name, packages.decode(companions(stored, name))


def read_fp8(folder, stored, config):
    from make_fp8_blocks import padded
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize
    for key in stored:
        name, _, part = key.rpartition(".")
        if part != "weight_scale_inv":
            continue
        codes = stored[name + ".weight"]()
        whole = Fp8Dequantize(types.SimpleNamespace())._dequantize_one(padded(codes), stored[key](), torch.float32)
        yield name, whole[:codes.shape[0], :codes.shape[1]].double().numpy()


def read_gguf(path):
    import gguf
    for tensor in gguf.GGUFReader(path).tensors:
        yield tensor.name.removesuffix(".weight"), gguf.quants.dequantize(tensor.data, tensor.tensor_type)


class TypeTraits(ctypes.Structure):
    """The beginning of ggml_type_traits."""
    _fields_ = [("name", ctypes.c_char_p), ("block", ctypes.c_int64), ("interleave", ctypes.c_int64),
                ("block_bytes", ctypes.c_size_t), ("is_quantized", ctypes.c_bool),
                ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64))]


class FileParams(ctypes.Structure):
    _fields_ = [("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p)]


class Memory(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


def read_ggml(library, path):
    """{name: floats} of a GGUF file, where its tensors lie and what they mean by llama.cpp."""
    import gguf
    ggml = ctypes.CDLL(str(library))
    for name, result, arguments in (
            ("gguf_init_from_file", ctypes.c_void_p, [ctypes.c_char_p, FileParams]),
            ("ggml_init", ctypes.c_void_p, [Memory]),
            ("gguf_get_n_tensors", ctypes.c_int64, [ctypes.c_void_p]),
            ("gguf_get_tensor_name", ctypes.c_char_p, [ctypes.c_void_p, ctypes.c_int64]),
            ("gguf_get_tensor_offset", ctypes.c_size_t, [ctypes.c_void_p, ctypes.c_int64]),
            ("gguf_get_data_offset", ctypes.c_size_t, [ctypes.c_void_p]),
            ("gguf_get_tensor_type", ctypes.c_int, [ctypes.c_void_p, ctypes.c_int64]),
            ("ggml_get_type_traits", ctypes.POINTER(TypeTraits), [ctypes.c_int])):
        function = getattr(ggml, name)
        function.restype, function.argtypes = result, arguments
    ggml.ggml_init(Memory(1 << 16, None, False))  # makes its table of fp16
    file = ggml.gguf_init_from_file(str(path).encode(), FileParams(True, None))
    assert file, f"llama.cpp does not read {path}"
    shapes = {t.name: tuple(int(d) for d in reversed(t.shape)) for t in gguf.GGUFReader(path).tensors}
    data = np.fromfile(path, np.uint8)
    for i in range(ggml.gguf_get_n_tensors(file)):
        name = ggml.gguf_get_tensor_name(file, i).decode()
        traits = ggml.ggml_get_type_traits(ggml.gguf_get_tensor_type(file, i)).contents
        if not traits.to_float:  # F32
            continue
        values = np.empty(shapes[name], np.float32)
        begin = ggml.gguf_get_data_offset(file) + ggml.gguf_get_tensor_offset(file, i)
        traits.to_float(data.ctypes.data + begin, values.ctypes.data, values.size)
        yield name.removesuffix(".weight"), values


def differ_by_ggml(library, path):
    """Names of matrices that llama.cpp reads otherwise than the gguf package, and how many it reads."""
    theirs = dict(read_gguf(path))
    wrong, count = [], 0
    for name, values in read_ggml(library, path):
        count += 1
        if not np.array_equal(values.view(np.uint32), theirs[name].astype(np.float32).view(np.uint32)):
            wrong.append(name)
    return wrong, count


def matrices_of(out):
    """(name, values) of the quantized matrices, with a word on what reads them."""
    if out.is_file():
        return "gguf", read_gguf(out)
    config = json.loads((out / "config.json").read_text()).get("quantization_config", {})
    stored = tensors_of(out)
    if (out / "hf_quant_config.json").exists():
        return "modelopt", read_modelopt(out, stored, config)
    if config.get("quant_method") == "fp8":
        return "transformers", read_fp8(out, stored, config)
    return "compressed-tensors", read_compressed_tensors(out, stored, config)


def run(base, out, decoded):
    """Largest difference of the logits of OUT in transformers from BASE's with decoded matrices, relative."""
    from transformers import AutoModelForCausalLM, FineGrainedFP8Config

    import tiny
    config = json.loads((out / "config.json").read_text()).get("quantization_config", {})
    more = {"quantization_config": FineGrainedFP8Config(dequantize=True)} if config.get("quant_method") == "fp8" else {}
    loaded = AutoModelForCausalLM.from_pretrained(out, dtype="auto", **more)
    tokens = torch.arange(5, 69) % loaded.config.vocab_size
    tiny.run(loaded, tokens)
    for module in loaded.modules():  # inputs as they are
        if hasattr(module, "quantization_scheme"):
            module.quantization_enabled = False
    theirs = tiny.run(torch.nn.Module.float(loaded), tokens)
    plain = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
    ours = tiny.run(tiny.with_matrices(plain, decoded), tokens)
    return np.abs(theirs - ours).max() / np.abs(ours).max()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("report", type=pathlib.Path)
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--ggml", type=pathlib.Path)
    arguments = parser.parse_args()
    report = {row["name"].removesuffix(".weight"): row
              for row in json.loads(arguments.report.read_text())["tensors"]
              if not row["scheme"].startswith("kept")}
    base = ({k: (lambda v=v: torch.as_tensor(v)) for k, v in read_gguf(arguments.base)}
            if arguments.base.is_file() else
            {k.removesuffix(".weight"): v for k, v in tensors_of(arguments.base).items()})
    reader, matrices = matrices_of(arguments.out)
    decoded, wrong = {}, 0
    for name, values in matrices:
        if name not in report:
            if reader != "gguf":
                print(f"{name}: quantized in the checkpoint, not in the report")
                wrong += 1
            continue
        weight = base[name]().double().numpy()
        values = np.asarray(values, np.float64)
        error = np.sqrt(np.sum((values - weight) ** 2) / np.sum(weight ** 2))
        said = report.pop(name)["relative_error"]
        if abs(error - said) > (1e-4 if reader == "gguf" else 1e-6) * said + 1e-12:
            print(f"{name}: {reader} reads an error of {error:.9f}, the report has {said:.9f}")
            wrong += 1
        if arguments.run:
            decoded[name] = values
        else:
            decoded[name] = None
    for name in report:
        print(f"{name}: in the report, not found by {reader}")
        wrong += 1
    print(f"{arguments.out}: {len(decoded)} matrices read by {reader}, {wrong} wrong")
    if arguments.ggml and reader == "gguf":
        others, count = differ_by_ggml(arguments.ggml, arguments.out)
        print(f"{count} tensors read by llama.cpp, {len(others)} otherwise {' '.join(others[:4])}")
        wrong += len(others) + (count == 0)
    if arguments.run and reader in ("compressed-tensors", "transformers"):
        print(f"transformers' logits differ by {run(arguments.base, arguments.out, decoded):.1e} of the largest")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
