#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares a served model with what sentence-transformers makes of the same directory in float32.

    python check_sentences.py BINARY DIRECTORY [--served FILE.gguf] [--count 1000] [--flags="--activation-bits 16"]
                              [--peer 5]

Needs torch and sentence-transformers. Texts have random words of the tokenizer's vocabulary, of 1 up to the model's
most tokens. Printed: the smallest and mean cosine, and the largest difference of an element. --keep FILE.npy keeps the
expected vectors for the next call. --peer N: also those of llama.cpp (package xllamacpp) with FILE.gguf, of every Nth
text.
"""
import argparse
import base64
import json
import pathlib
import random
import sys
import urllib.request

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "server"))

from server_process import Server  # noqa: E402: the path comes first


def make_texts(directory, count, most):
    vocabulary = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    pieces = vocabulary if isinstance(vocabulary, dict) else [piece for piece, _ in vocabulary]
    words = sorted(word for word in (piece.strip("\u2581\u0120") for piece in pieces) if word.isalpha() and len(word) > 2)
    source = random.Random(6)
    lengths = [1 + (most + 20) * i // count for i in range(count)]
    return [" ".join(source.choice(words) for _ in range(length)) for length in lengths]


def expect_vectors(directory, texts, most):
    from sentence_transformers import SentenceTransformer
    model = SentenceTransformer(str(directory), device="cpu")
    assert model.max_seq_length == most, model.max_seq_length
    return np.stack([model.encode([text])[0] for text in texts])


def served(server, texts):
    vectors = []
    for begin in range(0, len(texts), 500):
        body = {"input": texts[begin:begin + 500], "encoding_format": "base64", "truncate_prompt_tokens": -1}
        request = urllib.request.Request(f"http://127.0.0.1:{server.port}/v1/embeddings", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as reply:
            rows = json.load(reply)["data"]
        vectors += [np.frombuffer(base64.b64decode(row["embedding"]), np.float32) for row in rows]
    return np.stack(vectors)


def peers(file, directory, texts, most):
    """llama.cpp's vectors of the same ids, on one thread."""
    import xllamacpp
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(most)
    params = xllamacpp.CommonParams()
    params.model.path = file
    params.embedding = True
    params.n_parallel = 1
    params.n_ctx = params.n_batch = params.n_ubatch = most
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    server = xllamacpp.Server(params)
    rows = [server.handle_embeddings({"input": [tokenizer.encode(text).ids], "model": "any"}) for text in texts]
    return np.array([row["data"][0]["embedding"] for row in rows], np.float32)


def show(name, found, wanted):
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    cosines = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    print(f"{name}: {len(a)} texts, cosine from {cosines.min():.8f}, mean {cosines.mean():.8f}, "
          f"largest difference {np.abs(a - b).max():.1e}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary")
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--served", help="another file of the same model; else the directory")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--flags", default="")
    parser.add_argument("--peer", type=int, default=0, metavar="N")
    parser.add_argument("--keep", type=pathlib.Path, help="a file that keeps the expected vectors")
    args = parser.parse_args()
    most = json.loads((args.directory / "sentence_bert_config.json").read_text())["max_seq_length"]
    texts = make_texts(args.directory, args.count, most)
    if args.keep and args.keep.exists():
        wanted = np.load(args.keep)
    else:
        wanted = expect_vectors(args.directory, texts, most)
        if args.keep:
            np.save(args.keep, wanted)
    server = Server(args.binary, args.served or str(args.directory), "--max-client-batch-size", "500",
                    *args.flags.split())
    found = served(server, texts)
    server.process.terminate()
    show("Sluice", found, wanted)
    if args.peer:
        few = slice(None, None, args.peer)
        show("Sluice", found[few], wanted[few])
        show("llama.cpp", peers(args.served, args.directory, texts[few], most), wanted[few])


if __name__ == "__main__":
    main()
