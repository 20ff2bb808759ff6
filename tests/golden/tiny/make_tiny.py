#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the tiny Llama model that tests run on, and the logits a correct engine gives for it.

    pip install gguf==0.19.0 numpy && python make_tiny.py

tiny-llama.gguf  random weights (fixed seed) in every supported tensor type, byte-level BPE
                 vocabulary trained on TEXT below, SmolLM2-like special tokens and chat template
logits.f32       raw float32 [prompt length, vocabulary]: a float64 forward pass in numpy over the
                 dequantized weights
logits.json      prompt ids, greedy continuation of the same forward pass, provenance
../../fuzz/corpus/gguf_fuzz/tiny.gguf  the same metadata cut to a few tokens and tensors
"""
import collections
import importlib.metadata
import json
import pathlib
import re

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

HERE = pathlib.Path(__file__).resolve().parent
SEEDS = HERE.parent.parent / "fuzz" / "corpus" / "gguf_fuzz"
SEED = 20250102
HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FFN, CONTEXT = 64, 3, 4, 2, 16, 160, 2048
FREQ_BASE, EPSILON = 10000.0, 1e-5
# Not a multiple of 16, so that the last tile of the output rows is a partial one.
VOCAB = 487
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
DEFAULT_TYPE = {0: Kind.Q4_1, 1: Kind.F16, 2: Kind.Q4_1}
# Mixed types inside one layer happen in real files: q, k and v cannot always be fused.
SPECIAL_TYPE = {"blk.0.attn_output.weight": Kind.F32, "blk.2.attn_v.weight": Kind.Q8_0}

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")

TEXT = """
You are a helpful assistant. The user writes a message and the assistant writes an answer. A server
that answers many users at the same time reads all of their messages, puts them in a queue, and on
every step gives each of them the next part of the answer. When the queue is full the server says so
and the user tries again later. The weather in the mountains changes quickly: in the morning the sky
is clear, at noon there are clouds over the lake, and in the evening it rains on the roof of the old
house. The children were reading a story about a small boat that sailed around the world. First it
went along the coast, then it crossed the ocean, and after three months it came home again. What is
the name of the captain? The captain's name is not known, but people say she was the best sailor of
her time. Please write a short poem about the sea. The sea is wide, the sea is deep, the stars above
it never sleep; the wind that carries us along is singing an old and simple song. How do I make
bread? Take flour, water, salt and some yeast, mix them well, let the dough rest for an hour, and
then bake it until the crust is brown. If the bread is still soft inside, wait a little longer. This
is the end of the text, and there is nothing more to say than that.
"""


def byte_letters():
    """GPT-2's printable letter for every byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, extra = {}, 0
    for byte in range(256):
        if byte in printable:
            letters[byte] = chr(byte)
        else:
            letters[byte] = chr(256 + extra)
            extra += 1
    return letters, [*printable, *[b for b in range(256) if b not in printable]]


LETTERS, BYTE_ORDER = byte_letters()
# SmolLM2's split for ASCII text: single digits apart, then GPT-2's pattern.
SPLIT = re.compile(r"[0-9]|'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[^\sA-Za-z0-9]+|\s+(?![^\s0-9])|\s+")


def words_of(text):
    return ["".join(LETTERS[b] for b in word.encode()) for word in SPLIT.findall(text)]


def merge_pair(parts, pair):
    merged, i = [], 0
    while i < len(parts):
        if i + 1 < len(parts) and (parts[i], parts[i + 1]) == pair:
            merged.append(parts[i] + parts[i + 1])
            i += 2
        else:
            merged.append(parts[i])
            i += 1
    return merged


def train_merges(text, count):
    words = [(list(word), n) for word, n in sorted(collections.Counter(words_of(text)).items())]
    merges = []
    while len(merges) < count:
        pairs = collections.Counter()
        for parts, n in words:
            for pair in zip(parts, parts[1:]):
                pairs[pair] += n
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        words = [(merge_pair(parts, best), n) for parts, n in words]
    return merges


class Vocabulary:
    def __init__(self):
        self.merges = train_merges(TEXT.replace("\n", " ").strip(), VOCAB - 256 - len(CONTROL))
        self.tokens = CONTROL + [LETTERS[b] for b in BYTE_ORDER] + ["".join(m) for m in self.merges]
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        assert len(self.ids) == VOCAB

    def encode(self, text):
        ids = []
        for part in re.split("(" + "|".join(map(re.escape, CONTROL)) + ")", text):
            if part in CONTROL:
                ids.append(self.ids[part])
                continue
            for word in words_of(part):
                parts = list(word)
                for merge in self.merges:
                    parts = merge_pair(parts, merge)
                ids.extend(self.ids[p] for p in parts)
        return ids

    def decode(self, ids):
        byte_of = {letter: byte for byte, letter in LETTERS.items()}
        return b"".join(self.tokens[i].encode() if i < len(CONTROL) else
                        bytes(byte_of[c] for c in self.tokens[i]) for i in ids).decode(errors="replace")


def make_weights(rng):
    """{name: (type, float32 array)} in file order; rows are outputs."""
    def matrix(rows, columns, std):
        return rng.normal(0, std, (rows, columns)).astype(np.float32)

    def norm():
        return (1 + 0.2 * rng.normal(0, 1, HIDDEN)).astype(np.float32)

    weights = {"token_embd.weight": (Kind.Q8_0, matrix(VOCAB, HIDDEN, 0.3))}
    for layer in range(LAYERS):
        shapes = {
            "attn_norm": None,
            "attn_q": (HEADS * HEAD_DIM, HIDDEN, 0.2),
            "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN, 0.2),
            "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN, 0.15),
            "attn_output": (HIDDEN, HEADS * HEAD_DIM, 0.15),
            "ffn_norm": None,
            "ffn_gate": (FFN, HIDDEN, 0.15),
            "ffn_up": (FFN, HIDDEN, 0.15),
            "ffn_down": (HIDDEN, FFN, 0.12),
        }
        for stem, shape in shapes.items():
            name = f"blk.{layer}.{stem}.weight"
            if shape is None:
                weights[name] = (Kind.F32, norm())
            else:
                weights[name] = (SPECIAL_TYPE.get(name, DEFAULT_TYPE[layer]), matrix(*shape))
    weights["output_norm.weight"] = (Kind.F32, norm())
    return weights


def write_model(path, vocabulary, weights, tokens, merges):
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("Tiny Llama for tests")
    writer.add_license("apache-2.0")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(FREQ_BASE)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_vocab_size(len(tokens))
    writer.add_add_space_prefix(False)
    writer.add_add_bos_token(False)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in CONTROL else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)
    for name, (kind, array) in weights.items():
        if kind == Kind.F32:
            writer.add_tensor(name, array)
        else:
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_weights(path):
    """The weights as the file states them, dequantized, in float64; rows are outputs."""
    return {t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float64)
            for t in gguf.GGUFReader(path).tensors}


def rms_norm(x, weight):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float64(np.float32(EPSILON))) * weight


def rope(x, positions):
    """x [tokens, heads, HEAD_DIM]; pairs (2i, 2i + 1), the order of GGUF's llama rows."""
    frequency = FREQ_BASE ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    angle = positions[:, None, None] * frequency
    even, odd = x[..., 0::2], x[..., 1::2]
    out = np.empty_like(x)
    out[..., 0::2] = even * np.cos(angle) - odd * np.sin(angle)
    out[..., 1::2] = even * np.sin(angle) + odd * np.cos(angle)
    return out


def forward(weights, ids):
    """Logits [tokens, VOCAB] of a causal pass in float64."""
    num_tokens = len(ids)
    positions = np.arange(num_tokens, dtype=np.float64)
    x = weights["token_embd.weight"][ids]
    hidden = np.triu(np.full((num_tokens, num_tokens), -np.inf), 1)
    for layer in range(LAYERS):
        w = {name.split(".")[2]: value for name, value in weights.items()
             if name.startswith(f"blk.{layer}.")}
        h = rms_norm(x, w["attn_norm"])
        q = rope((h @ w["attn_q"].T).reshape(num_tokens, HEADS, HEAD_DIM), positions)
        k = rope((h @ w["attn_k"].T).reshape(num_tokens, KV_HEADS, HEAD_DIM), positions)
        v = (h @ w["attn_v"].T).reshape(num_tokens, KV_HEADS, HEAD_DIM)
        k, v = (np.repeat(a, HEADS // KV_HEADS, axis=1) for a in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(HEAD_DIM) + hidden
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        attended = np.einsum("hij,jhd->ihd", scores, v).reshape(num_tokens, HEADS * HEAD_DIM)
        x = x + attended @ w["attn_output"].T
        h = rms_norm(x, w["ffn_norm"])
        gate, up = h @ w["ffn_gate"].T, h @ w["ffn_up"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w["ffn_down"].T
    return rms_norm(x, weights["output_norm.weight"]) @ weights["token_embd.weight"].T


def greedy(weights, prompt, count):
    ids, margin = list(prompt), np.inf
    for _ in range(count):
        last = forward(weights, ids)[-1]
        first, second = np.argsort(-last, kind="stable")[:2]
        margin = min(margin, last[first] - last[second])
        ids.append(int(first))
    return ids[len(prompt):], float(margin)


def write_seed(vocabulary):
    """A small valid file for the fuzzer: every metadata kind, one tensor of every type."""
    rng = np.random.default_rng(SEED)
    kinds = {"token_embd.weight": Kind.Q8_0, "blk.0.attn_q.weight": Kind.Q4_1,
             "blk.0.attn_k.weight": Kind.F16, "output_norm.weight": Kind.F32}
    weights = {name: (kind, rng.normal(0, 1, (2, 32)).astype(np.float32))
               for name, kind in kinds.items()}
    tokens = CONTROL + [LETTERS[b] for b in b"thean"] + ["th", "the", "an"]
    write_model(SEEDS / "tiny.gguf", vocabulary, weights, tokens, [("t", "h"), ("th", "e"), ("a", "n")])


def main():
    vocabulary = Vocabulary()
    model = HERE / "tiny-llama.gguf"
    write_model(model, vocabulary, make_weights(np.random.default_rng(SEED)), vocabulary.tokens,
                vocabulary.merges)
    write_seed(vocabulary)
    weights = read_weights(model)
    prompt_text = ("<|im_start|>user\nWhat is the name of the small boat that sailed around the world, "
                   "and who was its captain? Tell me 3 things about the sea.<|im_end|>\n")
    prompt = vocabulary.encode(prompt_text)[:40]
    assert len(prompt) == 40
    logits = forward(weights, prompt)
    (HERE / "logits.f32").write_bytes(logits.astype("<f4").tobytes())
    continuation, margin = greedy(weights, prompt, 32)
    (HERE / "logits.json").write_text(json.dumps({
        "script": "tests/golden/tiny/make_tiny.py",
        "numpy": np.__version__,
        "gguf": importlib.metadata.version("gguf"),
        "model": model.name,
        "shape": list(logits.shape),
        "dtype": "float32, little-endian; computed in float64",
        "logit_std": round(float(logits.std()), 4),
        "prompt": prompt,
        "greedy": continuation,
        "greedy_smallest_margin": margin,
    }) + "\n")
    print(f"{model.name}: {model.stat().st_size} bytes, logit std {logits.std():.2f}, "
          f"greedy {vocabulary.decode(continuation)!r}, smallest margin {margin:.4f}")


if __name__ == "__main__":
    main()
