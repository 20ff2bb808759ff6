#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tekken/<version>/tekken.json, vocabularies of Mistral's form, and tekken/cases.txt, texts and the ids that
mistral-common gives them. Special tokens are found first, and mistral-common encodes what is between; in lines with "t"
they are text.

    pip install mistral-common regex && python make_tekken_goldens.py [--check PROGRAM [FILE ...]] [--count N]

--check compares random texts with bench_tokenizer's ids instead, of these vocabularies and of published FILEs.
Made with mistral-common 1.13.1.
"""
import argparse
import base64
import json
import pathlib
import random
import re
import shutil
import subprocess
import tempfile

from mistral_common.tokens.tokenizers.tekken import Tekkenizer

import make_tiktoken

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE / "tekken"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
PATTERN = "|".join([rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*", r"\p{N}",
                    r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
NUM_TOKENS = 430
SPECIAL = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[THINK]", "[/THINK]", "<pad>"]


def vocabulary(version, num_special, num_used, special=None):
    make_tiktoken.PATTERN, make_tiktoken.NUM_TOKENS = PATTERN, NUM_TOKENS
    ranks = make_tiktoken.train([(HERE.parent / "text.txt").read_text()[:20000], *make_tiktoken.MORE * 3])
    vocab = []
    for token, rank in ranks.items():
        try:
            text = token.decode()
        except UnicodeDecodeError:
            text = None
        vocab.append(dict(rank=rank, token_bytes=base64.b64encode(token).decode(), token_str=text))
    made = dict(config=dict(pattern=PATTERN, num_vocab_tokens=len(vocab), default_vocab_size=num_special + num_used,
                            default_num_special_tokens=num_special, version=version), vocab=vocab)
    if special:
        made["special_tokens"] = [dict(rank=i, token_str=name, is_control=True) for i, name in enumerate(special)]
    return made


def write(folder, made):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "tekken.json").write_text(json.dumps(made, separators=(",", ":")) + "\n")
    (folder / "config.json").write_text('{"model_type": "mistral", "eos_token_id": 2}\n')


KINDS = {"v3": lambda: vocabulary("v3", 24, 400), "v13": lambda: vocabulary("v13", 12, NUM_TOKENS, SPECIAL)}


class Oracle:
    def __init__(self, folder):
        self.tekken = Tekkenizer.from_file(folder / "tekken.json")
        self.ids = {str(getattr(token["token_str"], "value", token["token_str"])): token["rank"]
                    for token in self.tekken._all_special_tokens}
        self.names = re.compile("|".join(map(re.escape, sorted(self.ids, key=len, reverse=True))))

    def encode(self, text, mode):
        ids, position = [], 0
        for match in self.names.finditer(text) if mode == "p" else ():
            ids += self.tekken.encode(text[position:match.start()], False, False)
            ids.append(self.ids[match[0]])
            position = match.end()
        return ids + self.tekken.encode(text[position:], False, False)


def texts(count, seed):
    rng = random.Random(seed)
    sample = (HERE.parent / "text.txt").read_text()
    made = [*make_tiktoken.MORE, "", " ", "it's 1234", "[INST] hi [/INST]<s></s><SPECIAL_22>[THINK]", "e\u0301 \u01c5\u02b0", "\r\n\r\n x"]
    for text in make_tiktoken.random_texts(rng, [*make_tiktoken.MORE, sample[:3000]], count):
        begin = rng.randrange(len(sample))
        middle = rng.choice([*SPECIAL, "<SPECIAL_22>", "  ", "\n", "      x", "\U0001f468\u200d\U0001f469"])
        made.append(text + middle + sample[begin:begin + rng.randint(0, 60)])
        if len(made) >= count:
            break
    return made


def check(program, files, count):
    with tempfile.TemporaryDirectory() as made:
        folders = {name: make() for name, make in KINDS.items()}
        folders.update({pathlib.Path(file).stem: json.loads(pathlib.Path(file).read_text()) for file in files})
        for name, content in folders.items():
            folder = pathlib.Path(made) / name
            write(folder, content)
            oracle = Oracle(folder)
            lines = [(text, mode) for text in texts(count, seed=11) for mode in "pt"]
            asked = "".join(f"{mode} {text.encode().hex() or '-'}\n" for text, mode in lines)
            found = subprocess.run([program, str(folder)], input=asked, capture_output=True, text=True, check=True)
            wrong = [text for (text, mode), ids in zip(lines, found.stdout.splitlines(), strict=True)
                     if list(map(int, ids.split())) != oracle.encode(text, mode)]
            print(f"{name}: {len(wrong)} of {len(lines)} differ", *map(repr, sorted(wrong, key=len)[:5]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", nargs="+", metavar="PROGRAM FILE")
    parser.add_argument("--count", type=int, default=100000)
    arguments = parser.parse_args()
    if arguments.check:
        return check(arguments.check[0], arguments.check[1:], arguments.count)
    rows = []
    for name, make in KINDS.items():
        write(OUT / name, make())
        oracle = Oracle(OUT / name)
        for text in texts(60, seed=7):
            for mode in "pt":
                ids = oracle.encode(text, mode)
                rows.append(" ".join([name, mode, text.encode().hex() or "-", *map(str, ids)]))
    (OUT / "cases.txt").write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
