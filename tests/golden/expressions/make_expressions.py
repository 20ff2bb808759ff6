#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
r"""Writes expressions.json: regular expressions, and for each of them texts that Python's
re.fullmatch takes and texts that it does not, with \d, \w and \s of ASCII. Texts are the given ones
and their neighbours: a character more, less or another. "." and line breaks do not meet, as flags and
dialects differ there, nor do \s and characters outside of ASCII.

    python3 make_expressions.py
"""
import json
import os
import re
import sys

# An expression and texts, of which at least one matches.
GIVEN = [
    # Escapes of one character, before what could be one more digit.
    (r"\x41", "A"), (r"\x411", "A1"), (r"\x41F", "AF"), (r"\x41b{2}", "Abb"), (r"\x0ab", "\nb"),
    (r"\u00411", "A1"), (r"\u00e9a", "éa"), (r"\u20ac1", "€1"), (r"\x7ff", "\x7ff"),
    (r"\x1f0", "\x1f0"), (r"\xe9e", "ée"), (r"\x28a\x29", "(a)"), (r"\x5b", "["), (r"\x5c", "\\"),
    (r"\x22", '"'), (r"\x2e", "."), (r"\x2a", "*"), (r"a\x2a", "a*"), (r"a\x7b2}", "a{2}"),
    (r"\x5e", "^"), (r"\x24", "$"), (r"\n1", "\n1"), (r"\t9", "\t9"), (r"\fa", "\fa"),
    (r"\va", "\va"), (r"\U0001F600", "😀"),
    # Classes.
    (r"[\^a]{2}", "^a"), (r"[\^]{2}", "^^"), (r"[\^]", "^"), (r"[\^+\-*/]{3}", "^-/"),
    (r"[+\^]{2}", "+^"), (r"[^\^]{2}", "ab"), (r"[\^\d]{2}", "^1"), (r"[\x5ea]{2}", "^a"),
    (r"[\u005ea]{2}", "^a"), (r"[\^-z]{2}", "_q"), (r"(?:[\^x])y", "^y"), (r"[\^-]{2}", "^-"),
    (r"[\^+-]{2}", "+-"), (r"[\^\]]{2}", "]^"), (r"[\^\\]{2}", "\\^"), (r"[a^]{2}", "a^"),
    (r"[\-a]{2}", "-a"), (r"[\]a]{2}", "]a"), (r"[\[a]{2}", "[a"), (r"[a\-z]{3}", "a-z"),
    (r"[\x2da]{2}", "-a"), (r"[a\x2dz]{3}", "a-z"), (r"[\x41b]", "A"), (r"[\x411]{2}", "1A"),
    (r"[\x41\x42]{2}", "AB"), (r"[\x41-\x43]{2}", "BC"), (r"[\x01a]{2}", "\x01a"),
    (r"[\x7fa]{2}", "\x7fa"), (r"[\x80-\xffa]{2}", "éa"), (r"[\x5d]", "]"), (r"[\x5c]", "\\"),
    (r"[\x0a]", "\n"), (r"[\n\ra]{2}", "\na"), (r"[\ba]{2}", "\ba"), (r"[]a]{2}", "]a"),
    (r"[^]a]{2}", "bc"), (r"[a-]{2}", "a-"), (r"[\w-]{3}", "a-1"), (r"[\w.]{4}", "a.1_"),
    (r"[\d\-]{3}", "1-2"), (r"[^\d]{2}", "ab"), (r"[\D]{2}", "ab"), (r"[^\w ]{2}", "-."),
    (r"[^\W_]{3}", "a1B"), (r"[\W\d]{3}", "1-2"), (r"[ -~]{4}", "a ~Z"),
    (r"[\x20-\x7e]{4}", "a ~Z"), (r"[^\x00-\x7F]{2}", "éß"), (r"[\u4e00-\u9fff]{2}", "日本"),
    (r"[^\u4e00-\u9fff]{2}", "ab"), (r"[😀-😎]{2}", "😀😎"), (r"[à-ü]{2}", "éà"),
    (r"[\U0001F600-\U0001F64F]{2}", "😀😎"), (r"[!-/]{3}", "!-/"), (r"[.?*+(){}|]{3}", ".?*"),
    (r"[^\n\r]{3}", "a b"), (r'[^"]{3}', "a'b"), (r"[^\[\]]{3}", "a()"), (r"[+\-*/^]{3}", "+-^"),
    # Pieces.
    (r"a\{2\}", "a{2}"), (r"\.\*\+", ".*+"), (r"C\+\+", "C++"), (r"(a|b)?c", "ac"),
    (r"(\d{1,3}\.){3}\d{1,3}", "1.22.333.4"), (r"-?\d+(\.\d+)?", "-1.5"), (r"(foo|)x", "foox"),
    (r"a{2,3}b", "aaab"), (r"(?:é|日){2}", "é日"), (r"\D{2}", "ab"), (r"\W{2}", "-."),
    (r".{3}", "a😀b"), (r"a.c", "abc"), (r"[.]{2}", ".."), (r'"[^"]*"', '"ab"'),
    (r"(?P<year>\d{2})-(?P<m_1>a|b)?", "12-a"), (r"(?P<a>x)+", "xx"),
]
# What JavaScript writes in another way: a pair of escapes is one character to it, and to clients that
# write JSON in ASCII, and names of groups have no P.
PAIRS = [
    (r"(?<y>\d{2})-(?<m>a)?", r"(?P<y>\d{2})-(?P<m>a)?", "12-a"),
    (r"\ud83d\ude00", r"\U0001f600", "😀"), (r"\ud83d\ude00a", r"\U0001f600a", "😀a"),
    (r"[\ud83d\ude00-\ud83d\ude4f]{2}", r"[\U0001f600-\U0001f64f]{2}", "😀😎"),
]
OTHERS = "^a]-\\x1AfbZ[.\n\"é日😀 "


def neighbours(text):
    yield text
    yield ""
    for at in range(len(text) + 1):
        yield text[:at] + text[at + 1:]
        for other in OTHERS:
            yield text[:at] + other + text[at:]
            yield text[:at] + other + text[at + 1:]


def meets(expression, text):
    has_dot = re.search(r"(?<!\\)\.", re.sub(r"\[[^]]*\]", "", expression)) is not None
    return has_dot and "\n" in text


def case(expression, judged, text):
    pattern = re.compile(judged, re.ASCII)
    cases = {"expression": expression, "matching": [], "other": []}
    for one in dict.fromkeys(neighbours(text)):
        if meets(expression, one):
            continue
        cases["matching" if pattern.fullmatch(one) else "other"].append(one)
    for name in ("matching", "other"):
        cases[name] = cases[name][:30]
        assert cases[name], expression
    return cases


def main():
    cases = [case(expression, expression, text) for expression, text in GIVEN]
    cases += [case(*given) for given in PAIRS]
    target = os.path.join(os.path.dirname(os.path.abspath(__file__)), "expressions.json")
    lines = ",\n".join(json.dumps(one, ensure_ascii=True) for one in cases)
    with open(target, "w", encoding="utf-8") as out:
        out.write("[\n" + lines + "\n]\n")
    print(len(cases), "expressions, Python", sys.version.split()[0])


main()
