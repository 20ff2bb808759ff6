#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Masks beside XGrammar's own Python package, over the same schemas, vocabulary and tokens.

  build/bench/grammar VOCABULARY SCHEMAS --record FILE
  python3 bench/grammar_peers.py FILE          # where xgrammar and torch are installed

Prints for each schema milliseconds to compile and microseconds of a mask (median, 99th percentile),
as the other program does. The schemas are those behind the gate, so that both read the same text.
"""
import json
import sys
import time

import xgrammar


def quantile(values, at):
    return sorted(values)[int(at * (len(values) - 1))] if values else 0.0


def measure(compiler, width, entry):
    begun = time.perf_counter()
    compiled = compiler.compile_json_schema(entry["schema"], any_whitespace=True, strict_mode=True,
                                            max_whitespace_cnt=16)
    compile_ms = 1e3 * (time.perf_counter() - begun)
    mask = xgrammar.allocate_token_bitmask(1, width)
    taken = []
    begun = time.perf_counter()
    for answer in entry["answers"]:
        matcher = xgrammar.GrammarMatcher(compiled)
        for token in answer:
            start = time.perf_counter()
            matcher.fill_next_token_bitmask(mask)
            taken.append(1e6 * (time.perf_counter() - start))
            if not matcher.accept_token(token):
                raise SystemExit(f"grammar_peers.py: {entry['name']}: a token is refused")
        if time.perf_counter() - begun > 3:
            break
    return compile_ms, taken


def main():
    with open(sys.argv[1], encoding="utf-8") as lines:
        vocabulary = json.loads(next(lines))
        info = xgrammar.TokenizerInfo(
            [bytes.fromhex(token) for token in vocabulary["tokens"]],
            vocab_type=xgrammar.VocabType.RAW, vocab_size=vocabulary["width"],
            stop_token_ids=vocabulary["ends"])
        compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        print(f"{'schema':28} {'compile':>9} {'masks':>6} {'p50 us':>8} {'p99 us':>8} {'most us':>9}")
        for line in lines:
            entry = json.loads(line)
            compile_ms, taken = measure(compiler, vocabulary["width"], entry)
            print(f"{entry['name']:28} {compile_ms:9.1f} {len(taken):6} {quantile(taken, 0.5):8.1f} "
                  f"{quantile(taken, 0.99):8.1f} {quantile(taken, 1):9.1f}", flush=True)


if __name__ == "__main__":
    main()
