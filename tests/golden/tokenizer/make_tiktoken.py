#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tiktoken/tiktoken.model, a vocabulary of Kimi's form, and tiktoken/cases.txt, texts and the ids that the
tiktoken package gives them with the expression of Kimi's published class and all special tokens allowed.

    pip install tiktoken && python make_tiktoken.py

Merges are learned from the tests' text and a few sentences in other scripts, so that many tokens can be made
in several ways. cases.txt has lines as those of make_json_goldens.py.
"""
import base64
import collections
import json
import pathlib
import random

import regex
import tiktoken

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE / "tiktoken"
NUM_TOKENS = 900
LETTERS_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
LETTERS_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join([
    r"[\p{Han}]+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{LETTERS_UPPER}*{LETTERS_LOWER}+{SHORT}",
    rf"[^\r\n\p{{L}}\p{{N}}]?{LETTERS_UPPER}+{LETTERS_LOWER}*{SHORT}",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
MORE = ["人工智能正在改变世界，我们需要更好的模型。中文和English混合的句子，数字12345也在里面。",
        "日本語の文章もあります。カタカナとひらがな、漢字。", "Привет, мир! Как дела сегодня?", "안녕하세요 세계",
        "def f(x):\n    return x ** 2\n\n\n\t\tif a == b:\r\n", "aaaaaaa xyxyxyxyx ababab -------- ======", "   " * 9]
SPECIAL = ["[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>"]
# Published files have some that are shown and found in any text.
SHOWN = ["<|tool_calls_section_begin|>", "<|tool_call_begin|>"]


def train(texts):
    """Ranks by bytes: of the most frequent adjacent pairs, whole pieces being apart."""
    pieces = collections.Counter()
    for text in texts:
        pieces.update(match.encode() for match in regex.findall(PATTERN, text, regex.V1))
    ranks = {bytes([i]): i for i in range(256)}
    words = [([bytes([b]) for b in piece], count) for piece, count in pieces.items()]
    while len(ranks) < NUM_TOKENS:
        pairs = collections.Counter()
        for parts, count in words:
            for pair in zip(parts, parts[1:]):
                pairs[pair] += count
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        ranks.setdefault(best[0] + best[1], len(ranks))
        for parts, _ in words:
            i = 0
            while i + 1 < len(parts):
                if (parts[i], parts[i + 1]) == best:
                    parts[i:i + 2] = [parts[i] + parts[i + 1]]
                i += 1
    return ranks


def random_texts(generator, texts, count):
    characters = sorted(set("".join(texts))) + ["\u3001", "\u3005", "\u3007", "\U00020000", "\U0001F600", "\u0301",
                                               "\u00e9", "\u01c5", "\u02b0", "\u00a0", "\u2003", "\u0661", "\u00bd"]
    for _ in range(count):
        yield "".join(generator.choice(characters) for _ in range(generator.randrange(1, 40)))
    for _ in range(count):
        yield "".join(generator.choice("xyab -=1") for _ in range(generator.randrange(1, 60)))


def main():
    sample = (HERE.parent / "text.txt").read_text()[:20000]
    texts = [sample, *MORE * 3]
    ranks = train(texts)
    special = {name: NUM_TOKENS + i for i, name in enumerate(SPECIAL + SHOWN)}
    reserved = {f"<|reserved_token_{i}|>": i for i in range(NUM_TOKENS + len(special), NUM_TOKENS + 256)}
    encoding = tiktoken.Encoding("kimi", pat_str=PATTERN, mergeable_ranks=ranks,
                                 special_tokens={**special, **reserved})
    OUT.mkdir(exist_ok=True)
    (OUT / "tiktoken.model").write_bytes(
        b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items()))
    fields = dict(lstrip=False, normalized=False, rstrip=False, single_word=False)
    config = {"added_tokens_decoder": {str(i): dict(fields, content=name, special=name in SPECIAL)
                                       for name, i in special.items()},
              "additional_special_tokens": SPECIAL[2:], "bos_token": "[BOS]", "eos_token": "[EOS]",
              "clean_up_tokenization_spaces": False, "model_max_length": 4096,
              "tokenizer_class": "TikTokenTokenizer"}
    (OUT / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    generator = random.Random(52)
    cases = [*MORE, "", " ", "\n", "it's WE'LL they'D I'm", "1 12 123 1234 12345", "a、b，c。", "々〇人々", "人a人A人'S",
             "[BOS]user<|im_middle|>hi<|im_end|><|tool_call_begin|>f<|reserved_token_1000|>",
             "Ünïcödé ǅ e\u0301 \u200d", sample[:600],
             *random_texts(generator, [*MORE, sample[:3000]], 150)]
    with open(OUT / "cases.txt", "w", encoding="utf-8") as file:
        for text in cases:
            ids = encoding.encode(text, allowed_special="all")
            assert encoding.decode(ids) == text
            file.write(" ".join(["tiktoken", "p", text.encode().hex() or "-", *map(str, ids)]) + "\n")


if __name__ == "__main__":
    main()
