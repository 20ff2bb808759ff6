# SPDX-License-Identifier: Apache-2.0
"""tokenizer.json files of every kind that is read, and ids the `tokenizers` package gives for them.

    python make_json_goldens.py                       writes json/*.json and json/cases.txt
    python make_json_goldens.py --check BENCH_TOKENIZER [--count 2000] [--text FILE] [FILE.json...]
                                compares bench_tokenizer on random texts, on these and on more files

Made with tokenizers 0.23.3. A line of cases.txt is "file mode hex ids...", see make_goldens.py.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time

import check_models
import reference
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers as pre
from tokenizers import processors, trainers

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "json")
BYTES = [f"<0x{i:02X}>" for i in range(256)]
WORDS = reference.WORDS
LINES = [" ".join(WORDS[i:] + WORDS[:i]) for i in range(0, len(WORDS), 9)]
LINES += ["a" * 20 + " " * 20 + "\n\n  hello world the user said 2024 1234 the theory of it"] * 10
CONTROL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]


def bpe(size, spaced, **options):
    """BPE over characters, trained; `spaced` vocabularies spell spaces as U+2581."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", **options))
    lines = LINES
    if spaced:
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
    special = ["<unk>", "<s>", "</s>"] + (BYTES if options.get("byte_fallback") else [])
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, limit_alphabet=120, show_progress=False
    )
    if spaced:
        tokenizer.pre_tokenizer = pre.Split("▁", "merged_with_next")
    tokenizer.train_from_iterator(lines, trainer)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = []
    content["pre_tokenizer"] = content["normalizer"] = None
    fresh = Tokenizer.from_str(json.dumps(content))
    fresh.add_special_tokens([AddedToken(t, normalized=False) for t in ["<unk>"] + CONTROL])
    return fresh


def byte_level(size=420, **options):
    tokenizer = Tokenizer(models.BPE(**options))
    tokenizer.pre_tokenizer = pre.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(LINES, trainer)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in CONTROL])
    return tokenizer


def unigram(size=400, exact=False, **options):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre.Metaspace()
    special = ["<unk>", "<s>", "</s>"] + (BYTES if options.get("byte_fallback") else [])
    trainer = trainers.UnigramTrainer(
        vocab_size=size, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(LINES, trainer)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = []
    content["model"].update(options)
    # Scores of binary fractions sum alike in any order.
    if not exact:
        content["model"]["vocab"] = [[t, round(s * 64) / 64] for t, s in content["model"]["vocab"]]
    fresh = Tokenizer.from_str(json.dumps(content))
    fresh.decoder = decoders.Metaspace()
    fresh.add_special_tokens([AddedToken(t, normalized=False) for t in ["<unk>"] + CONTROL])
    return fresh


def llama2():
    tokenizer = bpe(600, True, byte_fallback=True, fuse_unk=True)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    bos = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", bos)]
    )
    return tokenizer


def gemma():
    tokenizer = bpe(600, True, byte_fallback=True, fuse_unk=True)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_tokens([AddedToken("▁▁▁", normalized=True), AddedToken("\n\n", normalized=False)])
    return tokenizer


def mistral():
    tokenizer = bpe(600, True, byte_fallback=True, fuse_unk=True)
    tokenizer.pre_tokenizer = pre.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence([decoders.Metaspace(prepend_scheme="first")])
    return tokenizer


def unknowns(fuse):
    tokenizer = bpe(300, True, fuse_unk=fuse)
    tokenizer.pre_tokenizer = pre.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="never")
    return tokenizer


def t5():
    tokenizer = unigram()
    tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()])
    tokenizer.pre_tokenizer = pre.Sequence([pre.WhitespaceSplit(), pre.Metaspace()])
    eos = tokenizer.token_to_id("</s>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A $B </s>", special_tokens=[("</s>", eos)]
    )
    return tokenizer


def albert():
    tokenizer = unigram(300)
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace("``", '"'),
            normalizers.NFKD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(" {2,}"), " "),
            normalizers.Strip(),
        ]
    )
    return tokenizer


def unigram_bytes():
    tokenizer = unigram(600, byte_fallback=True)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = None
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def qwen():
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.NFC()
    pattern = reference.LLAMA3.replace("{1,3}", "")
    tokenizer.pre_tokenizer = pre.Sequence(
        [pre.Split(Regex(pattern), "isolated"), pre.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    return tokenizer


def llama3():
    tokenizer = byte_level(ignore_merges=True)
    tokenizer.pre_tokenizer = pre.Sequence(
        [
            pre.Split(Regex(reference.LLAMA3), "isolated"),
            pre.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bos = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)]),
        ]
    )
    return tokenizer


def falcon():
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = pre.Sequence(
        [
            pre.Punctuation("contiguous"),
            pre.ByteLevel(add_prefix_space=False),
            pre.Digits(individual_digits=False),
            pre.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
        ]
    )
    return tokenizer


def deepseek():
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.Sequence([])
    tokenizer.pre_tokenizer = pre.Sequence(
        [pre.Split(Regex(p), "isolated") for p in reference.PRE["deepseek-llm"][0][:-1]]
        + [pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return tokenizer


def roberta():
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = pre.ByteLevel(add_prefix_space=True)
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", tokenizer.token_to_id("</s>")), ("<s>", tokenizer.token_to_id("<s>"))
    )
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
    return tokenizer


def flags():
    """Added tokens with every flag, in raw and in normalized text."""
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.add_tokens(
        [
            AddedToken("THE", normalized=True, single_word=True),
            AddedToken("wor", normalized=True),
            AddedToken("user", normalized=False, single_word=True, rstrip=True),
            AddedToken("é", normalized=True, lstrip=True),
            AddedToken("  ", normalized=True),
        ]
    )
    tokenizer.add_special_tokens(
        [AddedToken("<R>", rstrip=True, normalized=False), AddedToken("<N>", normalized=True),
         AddedToken("<B>", lstrip=True, rstrip=True, normalized=False)]
    )
    return tokenizer


def behaviors():
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = pre.Sequence(
        [
            pre.CharDelimiterSplit("|"),
            pre.Split("<", "merged_with_next"),
            pre.Split(Regex(r"[,.]"), "merged_with_previous"),
            pre.Split(Regex(r"\p{Lu}"), "contiguous"),
            pre.Split(Regex(r"[a-z ]+"), "removed", invert=True),
            pre.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return tokenizer


def words():
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = pre.Sequence(
        [pre.Whitespace(), pre.Punctuation(), pre.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return tokenizer


def vanishing():
    """Characters without a token are left out, and what stood around them merges."""
    content = json.loads(bpe(600, True).to_str())
    content["model"]["unk_token"] = None
    return Tokenizer.from_str(json.dumps(content))


def scores():
    """Scores with all their digits: the order of addition decides between equal segmentations."""
    return unigram(exact=True)


KINDS = {
    "llama2": llama2,
    "gemma": gemma,
    "mistral": mistral,
    "fused_unknowns": lambda: unknowns(True),
    "unknowns": lambda: unknowns(False),
    "t5": t5,
    "albert": albert,
    "unigram_bytes": unigram_bytes,
    "qwen": qwen,
    "llama3": llama3,
    "falcon": falcon,
    "deepseek": deepseek,
    "roberta": roberta,
    "flags": flags,
    "behaviors": behaviors,
    "words": words,
    "vanishing": vanishing,
    "scores": scores,
}


def texts_for(tokenizer, count, seed):
    content = json.loads(tokenizer.to_str())
    vocab = content["model"]["vocab"]
    tokens = [t for t in (vocab if isinstance(vocab, dict) else [t for t, _ in vocab])]
    tokens = [t.replace("▁", " ").replace("Ġ", " ") for t in tokens] + ["▁", "THE", "wor"]
    specials = [t["content"] for t in content["added_tokens"]] + ["<R> ", " <B> ", "<N>", " user "]
    rng = random.Random(seed)
    return [reference.random_text(rng, tokens, specials) for _ in range(count)]


def is_comparable(tokenizer, text, parse):
    """The package's unigram models find control tokens by their spelling whatever they are told."""
    if parse or isinstance(tokenizer.model, models.BPE):
        return True
    added = tokenizer.get_added_tokens_decoder().values()
    return not any(token.special and token.content in text for token in added)


def encode(tokenizer, text, parse):
    return reference.encode(tokenizer, text, parse)


def write_goldens():
    os.makedirs(FOLDER, exist_ok=True)
    with open(os.path.join(FOLDER, "cases.txt"), "w", encoding="utf-8", newline="\n") as out:
        for seed, (name, make) in enumerate(KINDS.items()):
            tokenizer = make()
            path = os.path.join(FOLDER, name + ".json")
            with open(path, "w", encoding="utf-8", newline="\n") as file:
                json.dump(json.loads(tokenizer.to_str()), file, ensure_ascii=False)
                file.write("\n")
            for i, text in enumerate(texts_for(tokenizer, 40, seed)):
                mode = "tp"[i % 2]
                if not is_comparable(tokenizer, text, mode == "p"):
                    continue
                ids = encode(tokenizer, text, mode == "p")
                out.write(" ".join([name, mode, text.encode().hex() or "-", *map(str, ids)]) + "\n")


def measure(binary, tokenizer, path, text_path):
    """Both in one run, on one core each."""
    subprocess.run([binary, path, text_path], check=True)
    with open(text_path, encoding="utf-8", newline="") as file:
        text = file.read()
    start = time.perf_counter()
    encode(tokenizer, text, False)
    seconds = time.perf_counter() - start
    print(f"tokenizers: {seconds:.3f} s, {len(text.encode()) * 1e-6 / seconds:.2f} MB/s", flush=True)


def check(binary, files, count, text):
    wrong = 0
    for path in files:
        tokenizer = Tokenizer.from_file(path)
        rng = random.Random(3)
        cases = [(text, rng.random() < 0.5) for text in texts_for(tokenizer, count, 77)]
        cases = [case for case in cases if is_comparable(tokenizer, *case)]
        expected = [encode(tokenizer, text, parse) for text, parse in cases]
        found = check_models.our_ids(binary, path, cases)
        wrong += check_models.report(os.path.basename(path), cases, found, expected)
        if text:
            measure(binary, tokenizer, path, text)
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--text", help="also measure both on this file")
    parser.add_argument("files", nargs="*")
    arguments = parser.parse_args()
    if not arguments.check:
        return write_goldens()
    files = [os.path.join(FOLDER, name + ".json") for name in KINDS] + arguments.files
    sys.exit(1 if check(arguments.check, files, arguments.count, arguments.text) else 0)


if __name__ == "__main__":
    main()
