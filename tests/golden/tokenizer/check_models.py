# SPDX-License-Identifier: Apache-2.0
"""Compares bench_tokenizer with `tokenizers` on real vocabularies, and measures both in one run.

    python check_models.py BENCH_TOKENIZER FILE... [--count 10000] [--text FILE]

FILE is a GGUF, or PRE=tokenizer.json for a vocabulary of that file with the pre-tokenizer PRE, then
compared with the tokenizer.json itself. A GGUF of a SentencePiece model is compared with the
sentencepiece package. A GGUF with .inp and .out files beside it (llama.cpp's vectors) is compared with these too. Needs gguf, tokenizers.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time

import reference
import sentencepiece_oracle
from tokenizers import Tokenizer

SEPARATOR = "\n__ggml_vocab_test__\n"


def from_gguf(path):
    import gguf

    fields = gguf.GGUFReader(path).fields

    def get(name):
        field = fields.get("tokenizer.ggml." + name)
        return None if field is None else field.contents()

    model = get("model")
    return {
        "model": model,
        "pre": get("pre") or "default",
        "scores": get("scores") if model in ("llama", "t5") else None,
        "unknown": get("unknown_token_id"),
        "add_space_prefix": spaces if (spaces := get("add_space_prefix")) is not None else model == "llama",
        "tokens": get("tokens"),
        "types": get("token_type"),
        "merges": get("merges"),
        "bos": get("bos_token_id"),
        "eos": get("eos_token_id"),
    }


def from_json(path, pre):
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    names = dict((i, t) for t, i in content["model"]["vocab"].items())
    types = {i: 1 for i in names}
    for added in content["added_tokens"]:
        names[added["id"]] = added["content"]
        types[added["id"]] = 3 if added["special"] else 4
    size = max(names) + 1
    return {
        "pre": pre,
        "tokens": [names.get(i, f"<|unused {i}|>") for i in range(size)],
        "types": [types.get(i, 5) for i in range(size)],
        "merges": [m if isinstance(m, str) else " ".join(m) for m in content["model"]["merges"]],
    }


def our_ids(binary, vocabulary_path, cases):
    lines = "".join(f"{'p' if parse else 't'} {text.encode().hex()}\n" for text, parse in cases)
    run = subprocess.run([binary, vocabulary_path], input=lines, capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{vocabulary_path}: {run.stderr}")
    return [[int(i) for i in line.split()] for line in run.stdout.split("\n")[:-1]]


def breaks(rng, text):
    """Bytes that are mostly no UTF-8: cut, overlong, surrogates, random."""
    data = bytearray(text.encode())
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(data))
        piece = rng.choice([b"\xed\xa0\x80", b"\xed\xb0\x80", b"\xc0\x80", b"\xf5\x80\x80\x80", b"\xff\xfe",
                            bytes([rng.randrange(256)]), bytes(rng.randrange(128, 256) for _ in range(9))])
        data[at : at + rng.randint(0, 3)] = piece
    return bytes(data)


def keeper(vocabulary):
    """What a vocabulary can give back: byte-level ones may lack tokens of bytes, SentencePiece's U+2581 is a space."""
    if vocabulary.get("model", "gpt2") != "gpt2":
        return lambda data: data.replace("▁".encode(), b" ")
    known = {token for token, kind in zip(vocabulary["tokens"], vocabulary["types"]) if kind == 1}
    spelled = list(range(0x21, 0x7F)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    others = [byte for byte in range(256) if byte not in spelled]
    spelling = {byte: chr(byte) for byte in spelled} | {byte: chr(0x100 + i) for i, byte in enumerate(others)}
    missing = bytes(byte for byte in range(256) if spelling[byte] not in known)
    return lambda data: data.translate(None, missing)


def round_trip(binary, path, name, texts, normalize, keep):
    """decode(encode(x)) is x, byte by byte; what is normalized first is x in that form."""
    rng = random.Random(4)
    cases = [text.encode() for text in texts]
    expected = [normalize(text).encode() for text in texts]
    if normalize("e\u0301") == "e\u0301":
        broken = [breaks(rng, text) for text in texts]
        cases += broken
        expected += broken
    lines = "".join(f"d {case.hex()}\n" for case in cases)
    run = subprocess.run([binary, path], input=lines, capture_output=True, text=True)
    expected = [keep(data) for data in expected]
    found = [bytes.fromhex(line) for line in run.stdout.split("\n")[:-1]]
    return report(f"{name} there and back", cases, found, expected)


def report(name, cases, found, expected):
    assert len(found) == len(expected), (len(found), len(expected))
    wrong = [i for i in range(len(cases)) if found[i] != expected[i]]
    print(f"{name}: {len(cases)} texts, {sum(map(len, expected))} ids or bytes, {len(wrong)} mismatches", flush=True)
    for i in wrong[:5]:
        print("  text", ascii(cases[i]), "\n  found", found[i], "\n  expected", expected[i])
    return len(wrong)


def check(binary, argument, arguments):
    pre, _, path = argument.rpartition("=")
    vocabulary = from_json(path, pre) if pre else from_gguf(path)
    if pre:
        oracle = Tokenizer.from_file(path)
    elif vocabulary["model"] == "llama":
        oracle = sentencepiece_oracle.build(vocabulary)
    else:
        oracle = reference.build(vocabulary)
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        vocabulary_path = os.path.join(folder, "vocabulary.txt")
        reference.write_vocabulary(vocabulary, vocabulary_path)
        rng = random.Random(1)
        texts = reference.random_texts(vocabulary, arguments.count, seed=20)
        cases = [(text, rng.random() < 0.5) for text in texts]
        expected = [reference.encode(oracle, text, parse) for text, parse in cases]
        name = f"{os.path.basename(path)} ({vocabulary['pre']})"
        wrong += report(name, cases, our_ids(binary, vocabulary_path, cases), expected)
        form = getattr(oracle, "normalizer", None)
        normalize = form.normalize_str if form is not None else str
        wrong += round_trip(binary, vocabulary_path, name, texts, normalize, keeper(vocabulary))
        if os.path.exists(path + ".inp"):
            with open(path + ".inp", encoding="utf-8", newline="") as file:
                cases = [(text, False) for text in file.read().split(SEPARATOR)]
            with open(path + ".out", encoding="utf-8") as file:
                expected = [[int(i) for i in line.split()] for line in file.read().split("\n")]
            cases = cases[: len(expected)]
            found = our_ids(binary, vocabulary_path, cases)
            wrong += report(name + " vectors of llama.cpp", cases, found, expected[: len(cases)])
        if arguments.text:
            with open(arguments.text, encoding="utf-8", newline="") as file:
                text = file.read()
            subprocess.run([binary, vocabulary_path, arguments.text], check=True)
            start = time.perf_counter()
            ids = reference.encode(oracle, text, False)
            seconds = time.perf_counter() - start
            size = len(text.encode()) * 1e-6
            print(f"tokenizers: {len(ids)} ids, {seconds:.3f} s, {size / seconds:.2f} MB/s")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--text")
    arguments = parser.parse_args()
    sys.exit(1 if sum(check(arguments.binary, f, arguments) for f in arguments.files) else 0)


if __name__ == "__main__":
    main()
