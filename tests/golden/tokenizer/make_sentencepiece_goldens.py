#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Directories whose tokenizer is a SentencePiece model alone, and the ids that sentencepiece gives for them.

    pip install sentencepiece transformers protobuf && python make_sentencepiece_goldens.py

sentencepiece/<name>/ has tokenizer.model, trained on the texts below, and the files that name the class and its added
tokens. A line of sentencepiece/cases.txt is "name p hex ids...", without tokens that enclose texts: added tokens are
found first, leftmost and then longest, and sentencepiece encodes what is between. transformers' LlamaTokenizer gives
the ids of llama-first ("legacy": false). sentencepiece/ends.json has the ids of texts "a" and "b" with what encloses them.
--check PROGRAM [--count N] compares random texts with bench_tokenizer's ids instead, also for nmt_nfkc's rules.
Made with sentencepiece 0.2.3, transformers 5.24.0 and tokenizers 0.23.3.
"""
import argparse
import io
import json
import pathlib
import random
import re
import shutil
import subprocess
import tempfile

import sentencepiece

from make_vocabulary_goldens import PARTS

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE / "sentencepiece"
MODEL = "tokenizer.model"
WORDS = ("the of and to in a is that for it was on are as with his they at be this from have or by one had not but what all "
         "were when we there can an your which their said if do will each about how up out them then she many some so these "
         "would other into has more her two like him see time could no make than first been its who now people my made over "
         "did down only way find use may water long little very after words called just where most know").split()
RULES = "FB01\t66 69\n2460\t31\nFF0C\t2C\n3000\t20\nA0\t20\n9\t20\n41 30A\tC5\nD\t\n"
IM_START, IM_END = "<|im_start|>", "<|im_end|>"


def corpus():
    rng = random.Random(3)
    lines = [part.replace("\0", "").replace("\n", " ") for part in PARTS] * 4
    for _ in range(3000):
        words = [rng.choice(WORDS) for _ in range(rng.randint(1, 12))]
        lines.append((rng.choice([" ", " ", "  ", ", "])).join(words) + rng.choice([".", "", " 12", " 1987", "    x"]))
    return lines


def train(**options):
    with tempfile.TemporaryDirectory() as folder:
        rules = pathlib.Path(folder) / "rules.tsv"
        rules.write_text(RULES)
        if options.get("normalization_rule_name") == "tsv":
            del options["normalization_rule_name"]
            options["normalization_rule_tsv"] = str(rules)
        model = io.BytesIO()
        settings = dict(vocab_size=620, model_type="bpe", byte_fallback=True, normalization_rule_name="identity",
                        remove_extra_whitespaces=False, hard_vocab_limit=False, num_threads=1, minloglevel=2)
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(corpus()), model_writer=model,
                                                 **{**settings, **options})
        return model.getvalue()


def token(content, special=True, **flags):
    return {"content": content, "lstrip": False, "normalized": not special, "rstrip": False, "single_word": False,
            "special": special, **flags}


BASE = {"0": token("<unk>"), "1": token("<s>"), "2": token("</s>")}
LISTED = {**BASE, "620": token(IM_START), "621": token(IM_END), "622": token("<new>", special=False)}


def llama(**options):
    config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": IM_END, "unk_token": "<unk>",
              "added_tokens_decoder": LISTED, **options}
    return {MODEL: train(), "tokenizer_config.json": config, "config.json": {"model_type": "mistral"}}


def older():
    return {MODEL: train(allow_whitespace_only_pieces=True),
            "config.json": {"model_type": "llama"}, "added_tokens.json": {IM_START: 620, IM_END: 621},
            "special_tokens_map.json": {"bos_token": "<s>", "eos_token": {"content": "</s>", "normalized": True},
                                        "additional_special_tokens": [IM_START]}}


def internlm(**options):
    symbols = ["[UNUSED_TOKEN_%d]" % i for i in range(3)] + ["12", "\u2581\u2581\u2581", "(x)|*"]
    listed = {**BASE, "3": token(IM_START), "4": token(IM_END)}
    return {MODEL: train(**{**dict(user_defined_symbols=symbols, remove_extra_whitespaces=True, normalization_rule_name="tsv"),
                            **options}),
            "config.json": {"model_type": "internlm2"},
            "tokenizer_config.json": {"tokenizer_class": "InternLM2TokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
                                      "add_eos_token": True, "added_tokens_decoder": listed}}


def baichuan():
    return {MODEL: train(add_dummy_prefix=False, split_digits=True, control_symbols=["<|c|>"]),
            "config.json": {"model_type": "baichuan"},
            "tokenizer_config.json": {"tokenizer_class": "BaichuanTokenizer", "add_bos_token": False,
                                      "bos_token": token("<s>"), "eos_token": token("</s>")}}


def unigram(**options):
    return {MODEL: train(**{**dict(model_type="unigram", normalization_rule_name="tsv", remove_extra_whitespaces=True,
                                   byte_fallback=False, character_coverage=0.98), **options}),
            "config.json": {"model_type": "ernie4_5"},
            "tokenizer_config.json": {"tokenizer_class": "Ernie4_5_Tokenizer", "bos_token": "<s>", "eos_token": "</s>"}}


KINDS = {"llama": llama, "llama-first": lambda: llama(legacy=False), "llama-older": older, "internlm": internlm,
         "baichuan": baichuan, "unigram": unigram,
         "unigram-bytes": lambda: unigram(byte_fallback=True, add_dummy_prefix=False, remove_extra_whitespaces=False)}
LARGE = {"unigram-nfkc": lambda: unigram(normalization_rule_name="nmt_nfkc"),
         "bpe-nfkc": lambda: internlm(normalization_rule_name="nmt_nfkc")}


def write(folder, files):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())


class Oracle:
    def __init__(self, name, folder):
        self.processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / MODEL))
        self.first = None
        config = folder / "tokenizer_config.json"
        config = json.loads(config.read_text()) if config.exists() else {}
        added = {t["content"]: int(i) for i, t in config.get("added_tokens_decoder", {}).items()}
        if (folder / "added_tokens.json").exists():
            added.update(json.loads((folder / "added_tokens.json").read_text()))
        for i in range(self.processor.piece_size()):
            if self.processor.is_control(i) or self.processor.is_unknown(i):
                added[self.processor.id_to_piece(i)] = i
        self.added = added
        self.names = re.compile("|".join(map(re.escape, sorted(added, key=len, reverse=True))))
        if config.get("legacy") is False:
            import transformers

            self.first = transformers.LlamaTokenizer.from_pretrained(folder, legacy=False)

    def encode(self, text):
        if self.first:
            return self.first(text, add_special_tokens=False)["input_ids"]
        ids, position = [], 0
        for match in self.names.finditer(text):
            ids += self.processor.encode(text[position:match.start()])
            ids.append(self.added[match[0]])
            position = match.end()
        return ids + self.processor.encode(text[position:])


def texts(count, seed=7):
    rng = random.Random(seed)
    extra = [IM_START, IM_END, "<new>", "<s>", "</s>", "<unk>", "<|c|>", "[UNUSED_TOKEN_2]", "(x)|*", "    ", "\u2581", "\n", "\t",
             "\ufb01", "A\u030a", "\u2460", "\uff0c", "\u3000", " ", "12", "1234", "\r\n", "<0x41", "\u0301", "\U0001f468", "x   y"]
    made = list(PARTS) + [IM_START + "user\nthe water" + IM_END + "\n" + IM_START + " assistant", " a", "  a", "", " ", "a ", "a\n"]
    while len(made) < count:
        pieces = []
        for _ in range(rng.randint(1, 8)):
            kind = rng.random()
            if kind < 0.4:
                pieces.append(rng.choice(WORDS) + rng.choice(["", " "]))
            elif kind < 0.6:
                pieces.append(rng.choice(extra))
            elif kind < 0.85:
                part = rng.choice(PARTS)
                begin = rng.randrange(len(part))
                pieces.append(part[begin:begin + rng.randint(1, 20)])
            else:
                pieces.append("".join(chr(rng.choice([rng.randint(1, 0x24F), rng.randint(0x300, 0xD7FF),
                                                      rng.randint(0xE000, 0x1FFFF)])) for _ in range(rng.randint(1, 3))))
        made.append("".join(pieces).replace("\0", ""))
    return made


def check(program, count):
    with tempfile.TemporaryDirectory() as made:
        for name, make in {**KINDS, **LARGE}.items():
            folder = pathlib.Path(made) / name
            write(folder, make())
            oracle = Oracle(name, folder)
            lines = texts(count, seed=11)
            asked = "".join("p " + (text.encode().hex() or "-") + "\n" for text in lines)
            found = subprocess.run([program, str(folder)], input=asked, capture_output=True, text=True, check=True)
            wrong = []
            for text, ids in zip(lines, found.stdout.splitlines(), strict=True):
                if list(map(int, ids.split())) != oracle.encode(text):
                    wrong.append(text)
            print(f"{name}: {len(wrong)} of {len(lines)} differ", *map(repr, sorted(wrong, key=len)[:5]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", metavar="PROGRAM")
    parser.add_argument("--count", type=int, default=100000)
    arguments = parser.parse_args()
    if arguments.check:
        return check(arguments.check, arguments.count)
    rows, ends = [], {}
    for name, make in KINDS.items():
        write(OUT / name, make())
        oracle = Oracle(name, OUT / name)
        for text in texts(75):
            if "unigram" in name and re.search(r"(.)\1{4}", text):
                continue  # several segmentations have the same score
            rows.append(" ".join([name, "p", text.encode().hex() or "-", *map(str, oracle.encode(text))]))
        bos = [1] if name in ("llama", "llama-first", "llama-older", "internlm") else []
        eos = [2] if name == "internlm" else []
        ends[name] = bos + oracle.encode("a") + eos + bos + oracle.encode("b") + eos
    (OUT / "cases.txt").write_text("\n".join(rows) + "\n")
    (OUT / "ends.json").write_text(json.dumps(ends) + "\n")


if __name__ == "__main__":
    main()
