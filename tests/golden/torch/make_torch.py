#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes state dicts as torch.save() does: weights of goldens beside this folder, every type, and code in a pickle.

    pip install torch transformers safetensors && python make_torch.py

xlm-roberta-cls.bin       what XLMRobertaModel of ../embeddings/xlm-roberta-cls saves, as BAAI/bge-m3 is published;
                          its vectors are those of ../embeddings/xlm-roberta-cls.json
gpt-neox-sequential.bin   ../models/gpt-neox-sequential in the format of PyTorch before 1.6
opt/                      ../models/opt in two parts with an index, with tied weights and a transposed one
types.bin                 every type, and views of every kind; types-legacy.bin: of PyTorch before 1.6
types.json                of those: dtype and shape as safetensors says them, and the bytes, row by row
call.bin, call-legacy.bin an object in a state dict whose reading calls os.system
"""
import collections
import json
import os
import pathlib

import safetensors.torch
import torch
import transformers

HERE = pathlib.Path(__file__).parent
NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64",
         torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
         torch.bool: "BOOL", torch.complex64: "C64", torch.float8_e4m3fn: "F8_E4M3", torch.uint16: "U16"}


def tensors_of(golden):
    return safetensors.torch.load_file(HERE.parent / golden / "model.safetensors")


def write_encoder():
    folder = HERE.parent / "embeddings/xlm-roberta-cls"
    model = transformers.XLMRobertaModel.from_pretrained(folder).eval()
    golden = json.loads((HERE.parent / "embeddings/xlm-roberta-cls.json").read_text())
    for ids, vector in zip(golden["ids"], golden["vectors"]):
        with torch.no_grad():
            first = model(torch.tensor([ids])).last_hidden_state[0, 0]
        assert torch.allclose(torch.nn.functional.normalize(first, dim=0), torch.tensor(vector), atol=1e-5)
    torch.save(model.state_dict(), HERE / "xlm-roberta-cls.bin")


def write_parts():
    folder = HERE / "opt"
    folder.mkdir(exist_ok=True)
    tensors = tensors_of("models/opt")
    names = sorted(tensors)
    key = "decoder.layers.0.self_attn.q_proj.weight"
    parts = [collections.OrderedDict((name, tensors[name]) for name in some)
             for some in (names[:len(names) // 2], names[len(names) // 2:])]
    for part in parts:
        if key in part:
            part[key] = part[key].t().contiguous().t()  # the same values, column by column
        if "decoder.embed_tokens.weight" in part:
            part["lm_head.weight"] = part["decoder.embed_tokens.weight"]
    index = {"metadata": {}, "weight_map": {}}
    for i, part in enumerate(parts):
        name = f"pytorch_model-{i + 1:05}-of-00002.bin"
        torch.save(part, folder / name)
        index["weight_map"].update({tensor: name for tensor in part})
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index, indent=2) + "\n")


def write_types():
    torch.manual_seed(7)
    state = collections.OrderedDict()
    for dtype, name in NAMES.items():
        values = torch.randint(0, 2 if dtype is torch.bool else 100, (3, 5))
        state["type." + name.lower()] = values.to(dtype)
    whole = torch.randn(6, 4)
    state["whole"] = whole
    state["tied"] = whole
    state["rows"] = whole[2:4]
    state["columns"] = whole[:, 1:3]
    state["transposed"] = whole.t()
    state["parameter"] = torch.nn.Parameter(whole[5].bfloat16())
    state["turned"] = torch.randn(2, 3, 4).permute(2, 0, 1)
    state["expanded"] = torch.tensor([[1.5]]).expand(2, 3)
    state["of one"] = torch.tensor([[1.5]]).expand(1, 1)
    state["scalar"] = torch.tensor(3.0)
    state["empty"] = torch.zeros(0, 4)
    rows = [{"name": name, "dtype": NAMES[tensor.dtype], "shape": list(tensor.shape),
             "bytes": bytes(tensor.detach().contiguous().view(-1).view(torch.uint8)).hex()
                      if tensor.numel() else ""}
            for name, tensor in state.items()]
    (HERE / "types.json").write_text("[" + ",\n ".join(map(json.dumps, rows)) + "]\n")
    save_both(state, "types")


class Call:
    def __reduce__(self):
        return os.system, ("true",)


def save_both(state, name):
    torch.save(state, HERE / f"{name}.bin")
    torch.save(state, HERE / f"{name}-legacy.bin", _use_new_zipfile_serialization=False)


def main():
    write_encoder()
    torch.save(collections.OrderedDict(tensors_of("models/gpt-neox-sequential")), HERE / "gpt-neox-sequential.bin",
               _use_new_zipfile_serialization=False)
    write_parts()
    write_types()
    save_both({"weight": torch.zeros(2), "call": Call()}, "call")


if __name__ == "__main__":
    main()
