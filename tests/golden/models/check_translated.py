#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds what `sluice quantize` writes from one layout for the other to programs of others.

    pip install torch transformers gguf numpy && python check_translated.py BINARY [LLAMA_DIR]

For every model here with a GGUF file: the directory made of it (--to f32) is loaded by transformers, and
the largest difference of its logits from those in <name>.logits.f32, as a part of their range, is printed:
below 1e-6. The file made of the directory is read by the gguf package and its tensors compared with those of
<name>.gguf; with LLAMA_DIR (see check_llama_cpp.py) llama.cpp computes logits from it. Fails where a tensor or
a directory differs.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy as np
import torch
import transformers

HERE = pathlib.Path(__file__).resolve().parent


def spread(found, expected):
    return float(np.abs(found - expected).max() / (expected.max() - expected.min()))


def transformers_logits(path, tokens):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        return model(torch.tensor(tokens)[None]).logits[0].float().numpy()


def read(path):
    return {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors}


def different_tensors(path, golden):
    """Names of tensors that differ by more than a rounding of rotary factors."""
    found, expected = read(path), read(golden)
    names = sorted(set(found) ^ set(expected))
    for name in sorted(set(found) & set(expected)):
        tolerance = 2e-5 if name.startswith("rope_") else 0
        if found[name].shape != expected[name].shape or \
                not np.allclose(found[name], expected[name], rtol=tolerance, atol=0):
            names.append(name)
    return names


def main():
    binary, failed = sys.argv[1], []
    llama = None
    if len(sys.argv) > 2:
        import check_llama_cpp
        llama = check_llama_cpp.load_library(pathlib.Path(sys.argv[2]))
    for row in json.loads((HERE / "models.json").read_text())["models"]:
        if "gguf" not in row:
            continue
        expected = np.fromfile(HERE / f"{row['name']}.logits.f32", "<f4").reshape(len(row["tokens"]), -1)
        with tempfile.TemporaryDirectory() as scratch:
            folder, file = f"{scratch}/directory", f"{scratch}/model.gguf"
            for source, target in ((HERE / row["gguf"], folder), (HERE / row["directory"], file)):
                subprocess.run([binary, "quantize", source, target, "--to", "f32"], check=True, capture_output=True)
            figures = {"transformers": spread(transformers_logits(folder, row["tokens"]), expected)}
            if figures["transformers"] > 1e-5:
                failed.append(row["name"])
            names = different_tensors(file, HERE / row["gguf"])
            failed += [f"{row['name']}: {name}" for name in names]
            if llama:
                copy = f"{scratch}/floats.gguf"
                check_llama_cpp.copy_as_floats(file, copy, expected.shape[1])
                of_llama = check_llama_cpp.logits(llama, copy, row["tokens"], expected.shape[1])
                figures["llama.cpp"] = "refuses it" if of_llama is None else spread(of_llama, expected)
        print(row["name"], *(f"{k} {v if isinstance(v, str) else format(v, '.1e')}" for k, v in figures.items()),
              sep=", ", flush=True)
    sys.exit(f"differ: {failed}" if failed else 0)


if __name__ == "__main__":
    main()
