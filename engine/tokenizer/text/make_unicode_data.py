#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes unicode_data.cpp and unicode_compatibility.cpp:
normalization and lower case as the `tokenizers` package knows them.

    python make_unicode_data.py

The package's Unicode version is what defines token ids, so each entry of Python's own tables is kept
only where the package agrees. Records are strings of characters, written as base64 of UTF-8.
Made with tokenizers 0.23.3 and Unicode 14.
"""
import base64
import pathlib
import textwrap
import unicodedata

from tokenizers import normalizers, pre_tokenizers

CODES = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
HANGUL = range(0xAC00, 0xAC00 + 11172)


def decompositions(form, base):
    form = getattr(normalizers, form)()
    base = getattr(normalizers, base)() if base else None
    out = ""
    for code in CODES:
        if code in HANGUL or code == 0:
            continue
        character = chr(code)
        mapped = form.normalize_str(character)
        if mapped != (base.normalize_str(character) if base else character):
            out += character + mapped + "\0"
    return out


def combining_classes():
    nfd = normalizers.NFD()
    runs = []
    for code in CODES:
        kind = unicodedata.combining(chr(code))
        if kind == 0:
            continue
        character = chr(code)
        # A known mark swaps places with one of another class.
        other = "\u0334" if kind > 1 else "\u0301"
        text = "a" + (character + other if kind > 1 else other + character)
        if nfd.normalize_str(text) == text:
            continue
        if runs and runs[-1][1] == code - 1 and runs[-1][2] == kind:
            runs[-1][1] = code
        else:
            runs.append([code, code, kind])
    return "".join(chr(a) + chr(b) + chr(kind) for a, b, kind in runs)


def compositions():
    nfc = normalizers.NFC()
    out = ""
    for code in CODES:
        fields = unicodedata.decomposition(chr(code)).split()
        if len(fields) != 2 or fields[0].startswith("<"):
            continue
        pair = "".join(chr(int(field, 16)) for field in fields)
        if nfc.normalize_str(pair) == chr(code):
            out += pair + chr(code)
    return out


def lowercase():
    lower = normalizers.Lowercase()
    out = ""
    for code in CODES[1:]:
        mapped = lower.normalize_str(chr(code))
        if mapped != chr(code):
            out += chr(code) + mapped + "\0"
    return out


def runs_of(normalizer):
    """What the normalizer leaves nothing of."""
    runs = []
    for code in CODES:
        if normalizer.normalize_str(chr(code)) != "":
            continue
        if runs and runs[-1][1] == code - 1:
            runs[-1][1] = code
        else:
            runs.append([code, code])
    return "".join(chr(a) + chr(b) for a, b in runs)


def punctuation():
    """As members of a set in a regular expression."""
    split = pre_tokenizers.Punctuation("isolated")
    runs = []
    for code in CODES:
        if len(split.pre_tokenize_str("a" + chr(code) + "a")) != 3:
            continue
        if runs and runs[-1][1] == code - 1:
            runs[-1][1] = code
        else:
            runs.append([code, code])
    return "".join(f"\\x{{{a:x}}}" + (f"-\\x{{{b:x}}}" if b > a else "") for a, b in runs)


def bert(**options):
    default = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False}
    return normalizers.BertNormalizer(**(default | options))


def constant(name, text):
    if name == "kPunctuationMembers":
        data = text.replace("\\", "\\\\")
        runs = [f'    "{row}"' for row in textwrap.wrap(data.replace("}\\", "} \\"), 90)]
        return f"const std::string_view {name} =\n" + "\n".join(runs).replace(" \\", "\\") + ";\n"
    data = base64.b64encode(text.encode()).decode()
    lines = [f'    "{data[i:i + 92]}"' for i in range(0, len(data), 92)]
    return f"const std::string_view {name} =\n" + "\n".join(lines) + ";\n"


def main():
    write("unicode_data.cpp", {
        "kCanonicalDecompositions": decompositions("NFD", None),
        "kCombiningClasses": combining_classes(),
        "kCompositions": compositions(),
        "kLowercase": lowercase(),
        "kMarks": runs_of(normalizers.StripAccents()),
        "kBertMarks": runs_of(bert(strip_accents=True)),
        "kBertControls": runs_of(bert(clean_text=True)),
        "kPunctuationMembers": punctuation(),
    })
    write("unicode_compatibility.cpp", {
        "kCompatibilityDecompositions": decompositions("NFKD", "NFD"),
    })


def write(file_name, parts):
    text = (
        "// SPDX-License-Identifier: Apache-2.0\n"
        "// Written by make_unicode_data.py.\n"
        '#include "engine/tokenizer/text/unicode_data.h"\n\n'
        "namespace sluice {\n\n"
        + "\n".join(constant(name, value) for name, value in parts.items())
        + "\n}  // namespace sluice\n"
    )
    pathlib.Path(__file__).with_name(file_name).write_text(text)


if __name__ == "__main__":
    main()
