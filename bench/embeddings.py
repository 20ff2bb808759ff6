#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Vectors of texts from /v1/embeddings beside ONNX Runtime in this process, in turns.

usage: bench/embeddings.py --model DIRECTORY --onnx MODEL.onnx [--sluice build/sluice] [--threads 2] [--rounds 5]
                           [--flags="--max-num-batched-tokens 2048"]

Needs onnxruntime, transformers and numpy. MODEL.onnx has the inputs input_ids, attention_mask and
token_type_ids and gives the last hidden states; vectors are their means, of length 1, as in
all-MiniLM-L6-v2. Both sides get the same texts of random words of the vocabulary: ONNX Runtime in
batches of 32 with tokenizers, Sluice in one request whose vectors are base64.
"""
import argparse
import base64
import http.client
import json
import pathlib
import random
import statistics
import time
import urllib.parse

import numpy as np
import onnxruntime
from transformers import AutoTokenizer

from pair import Process


class Onnx:
    def __init__(self, args):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = args.threads
        self.session = onnxruntime.InferenceSession(args.onnx, options)
        self.tokenizer = AutoTokenizer.from_pretrained(args.model)

    def vectors(self, texts):
        parts = []
        for i in range(0, len(texts), 32):
            batch = self.tokenizer(texts[i:i + 32], padding=True, return_tensors="np")
            inputs = {key: batch[key].astype(np.int64) for key in ("input_ids", "attention_mask", "token_type_ids")}
            states = self.session.run(None, inputs)[0]
            mask = batch["attention_mask"][..., None]
            means = (states * mask).sum(1) / mask.sum(1)
            parts.append(means / np.linalg.norm(means, axis=1, keepdims=True))
        return np.concatenate(parts)


class Sluice:
    def __init__(self, args):
        self.server = Process([args.sluice, "serve", args.model, "--port", "0", "--threads", str(args.threads),
                               *args.flags.split()],
                              f"0-{args.threads - 1}")
        self.connection = http.client.HTTPConnection(urllib.parse.urlsplit(self.server.url).netloc)

    def vectors(self, texts):
        body = json.dumps({"input": texts, "encoding_format": "base64"})
        self.connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
        rows = json.loads(self.connection.getresponse().read())["data"]
        return np.array([np.frombuffer(base64.b64decode(row["embedding"]), np.float32) for row in rows])


def seconds(side, texts):
    begin = time.perf_counter()
    side.vectors(texts)
    return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--onnx", required=True)
    parser.add_argument("--sluice", default="build/sluice")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--flags", default="")
    args = parser.parse_args()
    lines = (pathlib.Path(args.model) / "vocab.txt").read_text(encoding="utf-8").split("\n")
    words = [word for word in lines if word.isalpha() and len(word) > 3]
    source = random.Random(5)
    peer, ours = Onnx(args), Sluice(args)
    for length, count in ((32, 256), (254, 64), (10, 1)):
        texts = [" ".join(source.choice(words) for _ in range(length - 2)) for _ in range(count)]
        apart = np.abs(peer.vectors(texts) - ours.vectors(texts)).max()
        rounds = args.rounds if count > 1 else 12 * args.rounds
        times = [(seconds(peer, texts), seconds(ours, texts)) for _ in range(rounds)]
        ratios = sorted(a / b for a, b in times)
        theirs, own = (statistics.median(side) for side in zip(*times))
        print(f"{count} texts of {length} tokens: ONNX Runtime {1e3 * theirs:.1f} ms, Sluice {1e3 * own:.1f} ms, "
              f"ratio {statistics.median(ratios):.2f} [{ratios[0]:.2f}, {ratios[-1]:.2f}], apart by {apart:.1e}")
    ours.server.process.terminate()


main()
