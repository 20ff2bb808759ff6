# SPDX-License-Identifier: Apache-2.0
"""The `tokenizers` package (Hugging Face) as the oracle of engine/tokenizer, by GGUF's names."""

import random

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TAIL = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{TAIL}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{TAIL}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK_V3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CASED = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚ"
    "Ḁ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼ"
    "ℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗ"
    "Ａ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"

NFC = ("qwen2", "qwen35", "command-r", "gpt-neox")  # their texts are normalized first

# Name: (regular expressions in order, a whole word that is a token needs no merges).
PRE = {
    "gpt-2": ([GPT2], False),
    "smollm": ([r"\p{N}", GPT2], False),
    "llama-bpe": ([LLAMA3], True),
    "qwen2": ([LLAMA3.replace("{1,3}", "")], False),
    "qwen35": (
        [LLAMA3.replace("{1,3}", "").replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"\s\p{L}", r"\s\p{L}\p{M}")],
        False,
    ),
    "tekken": ([GPT4O.replace(TAIL, "").replace("{1,3}", "")], True),
    "command-r": ([r"\p{N}", GPT2], False),
    "gpt-neox": ([GPT2], False),
    "gpt-4o": ([GPT4O], True),
    "deepseek-llm": (
        [
            r"[\r\n]",
            rf"\s?[{CASED}]+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"\s+$",
            CJK,
            r"\p{N}+",
        ],
        False,
    ),
    "deepseek-coder": ([r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}"], False),
    "deepseek-v3": ([r"\p{N}{1,3}", "[一-龥\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK_V3], False),
    "falcon": ([r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"], False),
    "default": ([r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"], False),
    "grok-2": ([LLAMA3.replace("{1,3}", "")], False),
    "minimax-m2": ([GPT4O], False),
    "minicpm5": ([r"\p{N}{1,3}", LLAMA3.replace("{1,3}", "+")], True),
    "seed-coder": (
        [LLAMA3.replace("{1,3}", "{1}").replace(r"[^\s\p{L}\p{N}]+[\r\n]*", r"[^\s\p{L}\p{N}\r\n]+")],
        False,
    ),
    "bailingmoe": (
        [
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
            r"|\s*[\r\n]|\s+(?!\S)|\s+"
        ],
        False,
    ),
    "tiny_aya": ([r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O], False),
    "youtu": (
        [
            "[\uac00-\ud7a3\u3131-\u318e]+|[！…“”‘’—：；，\u3001-\u303f\ufe30-\ufe4f]+"
            "|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
            GPT4O.replace("{1,3}", ""),
        ],
        True,
    ),
    "afmoe": (
        [
            r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
            "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u30ff\uff65-\uff9f\u2f00-\u2fdf"
            "\u0e40-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af"
            "\u1100-\u11ff]+",
            DEEPSEEK_V3,
        ],
        False,
    ),
}


def build(vocabulary):
    """A Tokenizer from the dict that write_vocabulary takes."""
    patterns, whole_words_first = PRE[vocabulary["pre"]]
    tokens, types = vocabulary["tokens"], vocabulary["types"]
    merges = [tuple(merge.split(" ")) for merge in vocabulary["merges"]]
    model = models.BPE(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=merges,
        ignore_merges=whole_words_first,
    )
    tokenizer = Tokenizer(model)
    # GPT-2's expression is the package's own; SmolLM's tokenizer.json says Digits for \p{N}.
    if patterns[-1] is GPT2:
        splits = [pre_tokenizers.Digits(individual_digits=True)] if len(patterns) == 2 else []
    else:
        splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=patterns[-1] is GPT2)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    if vocabulary["pre"] in NFC:
        tokenizer.normalizer = normalizers.NFC()
    control = [t for t, kind in zip(tokens, types) if kind in (2, 3)]
    user = [t for t, kind in zip(tokens, types) if kind == 4]
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in control])
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t in user])
    return tokenizer


def encode(tokenizer, text, parse):
    tokenizer.encode_special_tokens = not parse
    return tokenizer.encode(text, add_special_tokens=False).ids


def escape(name):
    return "".join(f"%{ord(c):02X}" if ord(c) <= 0x20 or c == "%" else c for c in name)


def write_vocabulary(vocabulary, path):
    with open(path, "w", encoding="utf-8", newline="\n") as out:
        out.write(f"model {vocabulary.get('model', 'gpt2')}\npre {vocabulary['pre']}\n")
        for key in ("bos", "eos", "unknown"):
            if vocabulary.get(key) is not None:
                out.write(f"{key} {vocabulary[key]}\n")
        for key in ("add_space_prefix", "remove_extra_whitespaces"):
            if vocabulary.get(key) is not None:
                out.write(f"{key} {int(vocabulary[key])}\n")
        if vocabulary.get("precompiled_charsmap"):
            out.write(f"precompiled_charsmap {vocabulary['precompiled_charsmap'].hex()}\n")
        out.write(f"tokens {len(vocabulary['tokens'])}\n")
        scores = vocabulary.get("scores") or [None] * len(vocabulary["tokens"])
        for token, kind, score in zip(vocabulary["tokens"], vocabulary["types"], scores):
            out.write(f"{escape(token)} {kind}{'' if score is None else f' {score!r}'}\n")
        merges = vocabulary.get("merges") or []
        out.write(f"merges {len(merges)}\n")
        for merge in merges:
            out.write(merge + "\n")


WORDS = (
    "the The of and to in that it's IT'S we'll WE'LL they've don'T I'm you'd 'ſ can't naïve Führer "
    "straße ŒUVRE Ǆ ǅ ǆ ﬁn нещо на Български กา ខ្មែរ हिन्दी தமிழ் עִבְרִית العربية 日本語 テスト 中文字符 한국어 "
    "𝔘𝔫𝔦 🦙 👨‍👩‍👧 🇩🇪 ½ ² ٣٤ ४२ Ⅷ 0 1 12 123 1234 12345 3.14 1,000,000 x=y; a+=b --flag $HOME "
    "foo_bar fooBar HTTPServer <div> </p> {} [] () `` ''' \"\"\" ... !!! ?! // /* */ \\n \\t # @ ~ ^ | & "
    "http://a.b/c?d=e&f=g user@example.com ᾳ ῼ K Ω ℵ ⅓ ① 〇 々 ヽ ゝ ー ～ 。「」 “quoted” ‘x’ — – …"
).split(" ")
SPACES = (
    [" "] * 12
    + ["  ", "   ", "\n", "\n\n", "\t", "\r\n", " \n", "\n ", "\u0085", "\u00a0", "\u3000", "\u180e"]
    + ["\u2028", "\u200b", "\ufeff", "\x0b", "\x0c", "\x1c", "        ", ""]
)


def random_text(rng, tokens, specials):
    """Words, odd spaces, pieces of the vocabulary, special names and random characters."""
    parts = []
    for _ in range(rng.randint(0, 12)):
        kind = rng.random()
        if kind < 0.6:
            parts.append(rng.choice(WORDS))
        elif kind < 0.75:
            parts.append(rng.choice(tokens))
        elif kind < 0.82 and specials:
            name = rng.choice(specials)
            parts.append(name if rng.random() < 0.7 else name[: rng.randint(1, len(name))])
        elif kind < 0.92:
            for _ in range(rng.randint(1, 4)):
                top = rng.choice([0x80, 0x250, 0x3000, 0xFFFF, 0x1FBFF, 0x3FFFF, 0x10FFFF])
                code = rng.randint(0, top)
                parts.append(chr(code) if not 0xD800 <= code < 0xE000 else "\ufffd")
        else:
            parts.append(rng.choice("ab 1\n'.é中") * rng.randint(1, 70))
        parts.append("".join(rng.choice(SPACES) for _ in range(rng.choice([0, 1, 1, 1, 2, 3]))))
    return "".join(parts)


def random_texts(vocabulary, count, seed):
    rng = random.Random(seed)
    specials = [t for t, kind in zip(vocabulary["tokens"], vocabulary["types"]) if kind in (2, 3, 4)]
    return [random_text(rng, vocabulary["tokens"], specials) for _ in range(count)]
