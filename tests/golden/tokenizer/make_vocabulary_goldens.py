#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Directories of tokenizers without a tokenizer.json, and ids that transformers' fast classes give for them.

    pip install transformers && python make_vocabulary_goldens.py

vocabularies/<name>/ has vocab.txt, or vocab.json and merges.txt, and what names the class and its options.
A line of vocabularies/cases.txt is "name p hex ids...", as make_json_goldens.py has them, without the tokens that
enclose texts; vocabularies/ends.json has the ids of a pair of texts "a" and "b" with these.
Made with transformers 5.24.0 and tokenizers 0.23.3.
"""
import json
import pathlib
import random
import shutil
import unicodedata

import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE / "vocabularies"
PARTS = ["The quick brown fox, jumped over 13 lazy dogs!", "Caf\u00e9 na\u00efve \u00c5ngstr\u00f6m \u00dcBER",
         "e\u0301te\u0301 o\u0308 A\u030a", "\u4e2d\u6587\u5b57\u7b26abc\u6df7\u5408", "\u65e5\u672c\u8a9e\u306e\u30ab\u30bf\u30ab\u30ca",
         "\ud55c\uad6d\uc5b4 \uc138\uacc4", "\u041f\u0420\u0418\u0412\u0415\u0422 \u043c\u0438\u0440 \u0439\u043e\u0436", "\u039f\u0394\u03a5\u03a3\u03a3\u0395\u03a5\u03a3 \u03ac\u03ad",
         "\u0130stanbul \u0131\u015f\u0131k", "\u0645\u064e\u0631\u0652\u062d\u064e\u0628\u064b\u0627", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", "\u0939\u093f\u0928\u094d\u0926\u0940",
         "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f", "tab\there\nline\r\nnbsp\u00a0zero\u200bwidth\ufeff", "\u0000nul\u0007bell\ufffdbad",
         "[CLS] [SEP] [MASK] <s> </s> <mask> [UNK] [cls]", "a" * 101 + " " + "b" * 100, "can't won't I'll 3.14 $5-10%", "  spaces   and   more  ",
         "\u2460\u2167\ufb01 \u00df \u1e9e", "\U00020000\U0002a6d6 \u3400 \uf900", "\u2014dash\u2026\u00bfqu\u00e9?\u3002\uff0c", "new words [X1] and [X2]"]


def write(folder, files):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8",
                                   newline="")


def word_pieces(special, more=()):
    """Characters of the texts in every form, most of them, and pieces of words."""
    chars = set()
    for text in PARTS:
        for each in (text, text.lower(), unicodedata.normalize("NFD", text), unicodedata.normalize("NFD", text.lower())):
            chars.update(c for c in each if not c.isspace() and unicodedata.category(c)[0] != "C")
    kept = [c for c in sorted(chars) if ord(c) % 11 != 3]
    words = ["the", "fox", "##ing", "##ed", "cafe", "caf\u00e9", "\u4e2d\u6587", "##\u4e2d", "##mir", "\u043c\u0438\u0440", "13", "##ox", "jump", "over", "##er"]
    return list(dict.fromkeys([*special, *kept, *("##" + c for c in kept if c.isalnum()), *words, *more]))


BERT = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def lines(pieces, end="\n"):
    return end.join(pieces) + end


def bert(options, **files):
    return {"vocab.txt": lines(word_pieces(BERT)), "config.json": {"model_type": "bert"},
            "tokenizer_config.json": {"tokenizer_class": "BertTokenizer", **options}, **files}


def byte_pairs(options):
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(PARTS * 2, trainers.BpeTrainer(
        vocab_size=600, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False))
    model = json.loads(tokenizer.to_str())["model"]
    vocab = {**model["vocab"], "<mask>": len(model["vocab"])}
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    return {"vocab.json": vocab, "merges.txt": "#version: 0.2\n" + lines(merges),
            "config.json": {"model_type": "roberta"},
            "tokenizer_config.json": {"tokenizer_class": "RobertaTokenizer",
                                      "mask_token": dict(content="<mask>", lstrip=True, rstrip=False, normalized=False,
                                                         single_word=False, __type="AddedToken"), **options}}


def unnamed():
    files = bert({})
    files["vocab.txt"] += "fox\n"  # comes twice
    del files["tokenizer_config.json"]
    return files


def listed():
    pieces = word_pieces(BERT)
    token = dict(lstrip=False, rstrip=False, single_word=False)
    decoder = {str(pieces.index(name)): dict(content=name, normalized=False, special=True, **token)
               for name in BERT if name != "[unused0]"}
    decoder[str(len(pieces))] = dict(content="[X1]", normalized=True, special=False, **token)
    return {"vocab.txt": lines(pieces), "config.json": {"model_type": "distilbert"},
            "tokenizer_config.json": {"tokenizer_class": "DistilBertTokenizer", "do_lower_case": False,
                                      "added_tokens_decoder": decoder}}


def renamed():
    special = ["<p>", "<u>", "<c>", "<e>", "<m>"]
    roles = dict(zip(["pad_token", "unk_token", "cls_token", "sep_token", "mask_token"], special))
    pieces = word_pieces(special)
    return {"vocab.txt": lines(pieces, "\r\n"), "config.json": {"model_type": "bert"},
            "tokenizer_config.json": {"tokenizer_class": "BertTokenizerFast", "cls_token": "[CLS]"},
            "special_tokens_map.json": roles, "added_tokens.json": {"[X1]": len(pieces), "[X2]": len(pieces) + 1}}


KINDS = {
    "bert": unnamed,
    "bert-cased": lambda: bert(dict(do_lower_case=False)),
    "bert-accents": lambda: bert(dict(do_lower_case=True, strip_accents=False)),
    "bert-stripped": lambda: bert(dict(do_lower_case=False, strip_accents=True)),
    "bert-whole": lambda: bert(dict(do_lower_case=True, tokenize_chinese_chars=False, strip_accents=None)),
    "bert-renamed": renamed,
    "distilbert": listed,
    "mpnet": lambda: {"vocab.txt": lines(word_pieces(["<s>", "<pad>", "</s>", "[UNK]"], ["<mask>"])),
                      "config.json": {"model_type": "mpnet"},
                      "tokenizer_config.json": {"tokenizer_class": "MPNetTokenizer", "do_lower_case": True}},
    "roberta": lambda: byte_pairs({}),
    "roberta-space": lambda: byte_pairs(dict(add_prefix_space=True)),
}


def texts():
    rng = random.Random(7)
    made = list(PARTS)
    for _ in range(40):
        made.append("".join(rng.choice(PARTS)[: rng.randint(1, 30)] + rng.choice(["", " "])
                            for _ in range(rng.randint(1, 4))))
    return made


def main():
    rows, ends = [], {}
    for name, make in KINDS.items():
        write(OUT / name, make())
        files = json.loads((OUT / name / "config.json").read_text())
        kind = {"bert": transformers.BertTokenizer, "distilbert": transformers.DistilBertTokenizer,
                "mpnet": transformers.MPNetTokenizer, "roberta": transformers.RobertaTokenizer}[files["model_type"]]
        tokenizer = kind.from_pretrained(OUT / name)
        for text in texts():
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            rows.append(" ".join([name, "p", text.encode().hex() or "-", *map(str, ids)]))
        ends[name] = tokenizer("a", "b")["input_ids"]
    (OUT / "cases.txt").write_text("\n".join(rows) + "\n")
    (OUT / "ends.json").write_text(json.dumps(ends) + "\n")


if __name__ == "__main__":
    main()
