# SPDX-License-Identifier: Apache-2.0
"""Writes vocabulary.txt and cases.txt with the `tokenizers` package (made with 0.23.3).

    python make_goldens.py

The vocabulary is trained here on the words of reference.py: all 256 bytes, 300 merges, three control
tokens and one user-defined. A line of cases.txt is "pre mode hex ids...": mode t takes control
tokens' names for text, p parses them; the text is UTF-8 in hex ("-": empty).
"""

import json
import os

import reference
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

CASES_PER_PRE = 60
CASES_PER_VARIANT = 24
# These differ from others in a few places, which VARIED shows.
VARIANTS = ("grok-2", "minimax-m2", "minicpm5", "seed-coder", "bailingmoe", "tiny_aya", "youtu", "afmoe")
VARIED = [
    "1 12 123 1234 12345 123456 1234567 1234px 12_345 12345é ٣٤٥٦٧ ⅧⅧⅧⅧ ½½½½ 12½ 1,234.5678",
    "ภาษาไทย ລາວ ខ្មែរ မြန်မာ 한국어ㄱㄴ ㄅㄆ ｶﾀｶﾅ 龥龦㐀豈⼀！…“x”——、〿﹏ 「」",
    "a!!\n\n?\r\n \n\n  x\n \n \n.\n/ //\n 'S'M'LL'x HTTPServer HTTPServer",
]
FIXED = [
    "",
    "Hello world, it's 2024!\n\n  def f(x):\n\treturn x ** 2  # don't",
    "'S 'ſ 'T I'LL we'Ve 'd'",
    "a\u0085b\u00a0c\u180ed\u2028e\u3000 f\u200bg",
    " 123 1234 12345 ١٢٣ ½²",
    "  \n \n\n  x \r\n\r\n y\t\t ",
    "<|im_start|>user\nhi<|im_end|>\n<|im_<|im_end|>",
    "<tool><tool ><|endoftext|>tool>",
    "HTTPServer fooBar ǅungla ÉCOLE école e\u0301te\u0301",
    "日本語テスト 中文，字符。한국어 𝔘𝔫𝔦 👨‍👩‍👧🇩🇪",
    "$5 + x^2 = `y` | ~z <= 3",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
]


def train():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=556,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    words = reference.WORDS
    lines = [" ".join(words[i:] + words[:i]) for i in range(0, len(words), 7)]
    lines += ["a" * 20 + " " * 20 + "\n\n  hello world the user said 2024 1234 "] * 10
    tokenizer.train_from_iterator(lines, trainer)
    content = json.loads(tokenizer.to_str())["model"]
    tokens = [t for t, _ in sorted(content["vocab"].items(), key=lambda item: item[1])]
    merges = [m if isinstance(m, str) else " ".join(m) for m in content["merges"]]
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    types = [1] * len(tokens) + [3] * 3 + [4]
    tokens = tokens + control + ["<tool>"]
    # No merge yields it, so it is a token only where a whole word goes first.
    tokens.append("ĠHTTPServer")
    types.append(1)
    return {"tokens": tokens, "types": types, "merges": merges, "bos": None, "eos": len(tokens) - 3}


def main():
    folder = os.path.dirname(os.path.abspath(__file__))
    vocabulary = train()
    vocabulary["pre"] = "smollm"
    reference.write_vocabulary(vocabulary, os.path.join(folder, "vocabulary.txt"))
    with open(os.path.join(folder, "cases.txt"), "w", encoding="utf-8", newline="\n") as out:
        for seed, pre in enumerate(reference.PRE):
            vocabulary["pre"] = pre
            oracle = reference.build(vocabulary)
            fixed = FIXED + VARIED if pre in VARIANTS else FIXED
            count = (CASES_PER_VARIANT if pre in VARIANTS else CASES_PER_PRE) - len(fixed)
            texts = fixed + reference.random_texts(vocabulary, count, seed)
            for i, text in enumerate(texts):
                for mode in "tp" if i < len(fixed) else "tp"[i % 2]:
                    ids = reference.encode(oracle, text, mode == "p")
                    hexed = text.encode().hex() or "-"
                    out.write(" ".join([pre, mode, hexed, *map(str, ids)]) + "\n")


if __name__ == "__main__":
    main()
