#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tiny random models of vectors and scores, and what sentence-transformers makes of texts.

    pip install torch transformers sentence-transformers && python make_embeddings.py [name ...]

<name>/           a directory as sentence-transformers saves it: config.json, model.safetensors,
                  tokenizer.json, modules.json, 1_Pooling/config.json
<name>.json       {"texts", "ids", "vectors"}: ids as the tokenizer gives them, vectors or scores as
                  SentenceTransformer or CrossEncoder gives them in float32
poolings.json     {model: {way to pool: vectors}} of two of these directories with another 1_Pooling

Three families' code is not in transformers, but beside the weights of their authors. The directories have the
authors' names; vectors of new-cls are those of transformers' GteModel, which is the same model (its rotations are
what the authors' NTKScalingRotaryEmbedding makes of a base and a factor), and those of jina-bert-mean and
nomic-moe-mean of the formulas below, after the authors' modeling_bert.py (jina-bert-implementation) and
modeling_hf_nomic_bert.py (nomic-bert-2048).
"""
import json
import pathlib
import shutil
import sys
import tempfile
import zlib

import safetensors.torch
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from sentence_transformers import CrossEncoder, SentenceTransformer

HERE = pathlib.Path(__file__).resolve().parent
WORDS = ("the a cat dog sat on mat in house river runs to sea light is fast sound slow red green blue sky "
         "rain falls down hill query document yes no what why where").split()
TEXTS = ["the cat sat on the mat", "a dog runs to the sea", "Light is fast, sound is slow.", "red",
         "the sky is blue and the hill is green where the river runs down to the sea in the rain " * 3,
         "caf\u00e9 na\u00efve \u4e2d\u6587 unheard-of words!"]
PAIRS = [["what runs to the sea", "the river runs to the sea"], ["what is red", "the sky is blue"],
         ["why", "no " * 100], ["where is the cat", "the cat sat on the mat in the house"]]
LONG_TEXTS = {}  # of some models beside the others
SPACED_PAIRS = [["what  runs", "the   cat sat \u00e9 e\u0301 on [MASK]"]]


def word_piece(more=()):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *more] + list("abcdefghijklmnopqrstuvwxyz,.!-")
    pieces += ["##" + c for c in "abcdefghijklmnopqrstuvwxyz"] + WORDS + ["##s", "##ing"]
    pieces = list(dict.fromkeys(pieces))
    vocab = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])])
    tokenizer.decoder = decoders.WordPiece()
    return transformers.BertTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]",
                                          cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]",
                                          model_max_length=64)


def unigram():
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    pieces += [("\u2581" + word, -3.0 - 0.1 * i) for i, word in enumerate(WORDS)]
    pieces += [(c, -8.0 - 0.01 * i) for i, c in enumerate("\u2581abcdefghijklmnopqrstuvwxyz,.!-")]
    pieces += [("<mask>", 0.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=3))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    tokenizer.decoder = decoders.Metaspace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>",
                                                unk_token="<unk>", pad_token="<pad>", cls_token="<s>",
                                                sep_token="</s>", mask_token="<mask>", model_max_length=64)


def byte_pairs():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {c: i for i, c in enumerate(alphabet)}
    merges = []
    for word in ["yes", "no"]:
        for end in range(1, len(word)):
            merges.append((word[:end], word[end]))
            vocab.setdefault(word[:end + 1], len(vocab))
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    end = tokenizer.token_to_id("<|endoftext|>")
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="$A <|endoftext|>", pair="$A $B <|endoftext|>",
                                      special_tokens=[("<|endoftext|>", end)])])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<|endoftext|>",
                                                eos_token="<|im_end|>", padding_side="left",
                                                model_max_length=512)


def modern_pairs():
    """Byte-level BPE as ModernBERT's: NFC, runs of spaces as tokens, [CLS] text [SEP]."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {c: i for i, c in enumerate(alphabet)}
    merges = [(word[:end], word[end]) for word in ["\u0120" + word for word in WORDS if len(word) > 2] +
              ["\u00c3\u00a9"] for end in range(1, len(word))]
    for pair in (merges := list(dict.fromkeys(merges))):
        vocab.setdefault("".join(pair), len(vocab))
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(["   ", "  "])
    tokenizer.add_special_tokens(["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(mark, tokenizer.token_to_id(mark)) for mark in ("[CLS]", "[SEP]")])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", cls_token="[CLS]",
                                                sep_token="[SEP]", pad_token="[PAD]", mask_token="[MASK]",
                                                model_max_length=64)


SIZES = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             initializer_range=0.3)


def bert(tokenizer, **more):
    return transformers.BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, type_vocab_size=2,
                                   pad_token_id=0, **SIZES, **more)


def xlm_roberta(tokenizer, **more):
    return transformers.XLMRobertaConfig(vocab_size=len(tokenizer), max_position_embeddings=66,
                                         type_vocab_size=1, pad_token_id=1, layer_norm_eps=1e-5, **SIZES,
                                         **more)


def qwen3(tokenizer, **more):
    return transformers.Qwen3Config(vocab_size=len(tokenizer), max_position_embeddings=1024, head_dim=16,
                                    num_key_value_heads=2, tie_word_embeddings=True, **SIZES, **more)


def nomic_bert(tokenizer, **more):
    return transformers.NomicBertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, type_vocab_size=2,
                                        head_dim=8, pad_token_id=0, **SIZES, **more)


def qwen2(tokenizer, **more):
    return transformers.Qwen2Config(vocab_size=len(tokenizer), max_position_embeddings=512,
                                    num_key_value_heads=2, tie_word_embeddings=False, **SIZES, **more)


def gemma(tokenizer, **more):
    sizes = {**SIZES, "num_hidden_layers": 3}
    return transformers.Gemma3TextConfig(vocab_size=len(tokenizer), max_position_embeddings=128, head_dim=16,
                                         num_key_value_heads=1, sliding_window=8, query_pre_attn_scalar=16,
                                         use_bidirectional_attention=True, tie_word_embeddings=True,
                                         layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                                         **sizes, **more)


def modernbert(tokenizer, **more):
    sizes = {**SIZES, "num_hidden_layers": 4}
    begin, end = tokenizer.cls_token_id, tokenizer.sep_token_id
    return transformers.ModernBertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, local_attention=8,
                                         pad_token_id=tokenizer.pad_token_id, bos_token_id=begin, cls_token_id=begin,
                                         eos_token_id=end, sep_token_id=end, **sizes, **more)


NTK = dict(theta=20000.0, factor=8.0)


def gte(tokenizer, **more):
    """The rotations of the authors' rope_scaling {"type": "ntk"}."""
    half = SIZES["hidden_size"] // SIZES["num_attention_heads"] / 2
    rope = dict(rope_type="linear", rope_theta=NTK["theta"] * NTK["factor"], factor=NTK["factor"] ** (1 / half))
    return transformers.GteConfig(vocab_size=len(tokenizer), max_position_embeddings=64, type_vocab_size=1,
                                  pad_token_id=1, rope_parameters=rope, **SIZES, **more)


# name: (tokenizer, config, class, pooling or None for scores, normalized, most tokens, config's more)
MODELS = {
    "qwen3-embedding": (byte_pairs, qwen3, transformers.Qwen3Model, "lasttoken", True, 512, {}),
    "qwen3-mean": (byte_pairs, qwen3, transformers.Qwen3Model, "mean", False, 512, {}),
    "qwen2-both-ways": (byte_pairs, qwen2, transformers.Qwen2Model, "lasttoken", True, 512,
                        dict(is_causal=False)),
    "qwen3-rerank": (byte_pairs, qwen3, transformers.Qwen3ForCausalLM, "yes", False, 1024, {}),
    "bert-mean": (word_piece, bert, transformers.BertModel, "mean", True, 48, {}),
    "bert-cls": (word_piece, bert, transformers.BertModel, "cls", True, 64, {}),
    "xlm-roberta-cls": (unigram, xlm_roberta, transformers.XLMRobertaModel, "cls", True, 64, {}),
    "nomic-bert-mean": (word_piece, nomic_bert, transformers.NomicBertModel, "mean", True, 64, {}),
    "gemma-dense": (unigram, gemma, transformers.Gemma3TextModel, "mean", True, 64, {}),
    "bert-tanh": (word_piece, bert, transformers.BertModel, "cls", False, 64, {}),
    "modernbert-mean": (word_piece, modernbert, transformers.ModernBertModel, "mean", True, 64, {}),
    "modernbert-rerank": (word_piece, modernbert, transformers.ModernBertForSequenceClassification, None, False, 64,
                          dict(num_labels=1, classifier_pooling="mean")),
    "modernbert-classify": (word_piece, modernbert, transformers.ModernBertForSequenceClassification, None, False,
                            64, dict(num_labels=3)),
    "modernbert-bpe": (modern_pairs, modernbert, transformers.ModernBertForSequenceClassification, None, False, 64,
                       dict(num_labels=1, classifier_pooling="cls", id2label={0: "relevant"})),
    "new-cls": (unigram, gte, transformers.GteModel, "cls", True, 64, {}),
    "bert-rerank": (word_piece, bert, transformers.BertForSequenceClassification, None, False, 64,
                    dict(num_labels=1)),
    "xlm-roberta-rerank": (unigram, xlm_roberta, transformers.XLMRobertaForSequenceClassification, None,
                           False, 64, dict(num_labels=1)),
    "bert-classify": (word_piece, bert, transformers.BertForSequenceClassification, None, False, 64,
                      dict(num_labels=3, id2label={0: "bad", 1: "fair", 2: "good"},
                           label2id={"bad": 0, "fair": 1, "good": 2})),
}


# The conversation on Qwen3-Reranker's model card.
JUDGE = ('<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the '
         'Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
         "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
         "<Query>: {}\n<Document>: {}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")


def judge(model, tokenizer):
    ids = [tokenizer(JUDGE.format(*pair), add_special_tokens=False)["input_ids"] for pair in PAIRS]
    yes, no = tokenizer.convert_tokens_to_ids(["yes", "no"])
    with torch.no_grad():
        rows = [model(torch.tensor([each])).logits[0, -1] for each in ids]
    logits = [float(row[yes] - row[no]) for row in rows]
    return dict(pairs=PAIRS, ids=ids, logits=[[x] for x in logits],
                vectors=[[float(torch.sigmoid(torch.tensor(x)))] for x in logits])


def randomize(model, seed):
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in sorted(model.state_dict().items()):
        if not tensor.is_floating_point():
            continue
        is_norm = "norm" in name.lower() and name.endswith("weight")
        values = torch.randn(tensor.shape, generator=generator)
        tensor.copy_(1 + 0.2 * values if is_norm else 0.15 * values)


def save_random(model, folder):
    with torch.no_grad():
        randomize(model, zlib.crc32(folder.name.encode()))
    model.save_pretrained(folder)
    return model


# Layers behind the pooling: sizes, activation, bias.
DENSE = {"gemma-dense": [((32, 40), "linear.Identity", False), ((40, 24), "linear.Identity", False)],
         "bert-tanh": [((32, 24), "activation.Tanh", True)]}


def linear(w, name, x):
    return torch.nn.functional.linear(x, w[name + ".weight"], w.get(name + ".bias"))


def layer_norm(w, name, x, eps):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], w[name + ".weight"], w[name + ".bias"], eps)


def heads_of(x, count):
    return x.view(len(x), count, -1).transpose(0, 1)


def attend(q, k, v, more=0):
    scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5 + more
    return (torch.softmax(scores, -1) @ v).transpose(0, 1).flatten(1)


JINA = dict(hidden_size=48, intermediate_size=40, num_hidden_layers=2, num_attention_heads=6, vocab_size=0,
            max_position_embeddings=64, type_vocab_size=2, layer_norm_eps=1e-12, pad_token_id=0, hidden_act="gelu",
            feed_forward_type="geglu", position_embedding_type="alibi", model_type="bert",
            architectures=["JinaBertModel"])


def jina_shapes(c):
    n, inner = c["hidden_size"], c["intermediate_size"]
    yield "embeddings.word_embeddings.weight", (c["vocab_size"], n)
    yield "embeddings.token_type_embeddings.weight", (2, n)
    norms = ["embeddings.LayerNorm"]
    for i in range(c["num_hidden_layers"]):
        at = f"encoder.layer.{i}."
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            yield at + f"attention.{name}.weight", (n, n)
            yield at + f"attention.{name}.bias", (n,)
        yield at + "mlp.gated_layers.weight", (2 * inner, n)
        yield at + "mlp.wo.weight", (n, inner)
        yield at + "mlp.wo.bias", (n,)
        norms += [at + "attention.output.LayerNorm", at + "mlp.layernorm"]
    for name in norms:
        yield name + ".weight", (n,)
        yield name + ".bias", (n,)


def jina_states(w, c, ids):
    eps, heads = c["layer_norm_eps"], c["num_attention_heads"]
    whole = 2 ** (heads.bit_length() - 1)
    slopes = [2 ** (-8 * (i + 1) / whole) for i in range(whole)]
    slopes += [2 ** (-8 * (i + 1) / (2 * whole)) for i in range(2 * whole)][0::2][:heads - whole]
    places = torch.arange(len(ids))
    falls = -torch.tensor(slopes).view(-1, 1, 1) * (places[:, None] - places[None]).abs()
    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][0]
    x = layer_norm(w, "embeddings.LayerNorm", x, eps)
    for i in range(c["num_hidden_layers"]):
        at = f"encoder.layer.{i}."
        q, k, v = (heads_of(linear(w, at + "attention.self." + name, x), heads) for name in ("query", "key", "value"))
        half = linear(w, at + "attention.output.dense", attend(q, k, v, falls))
        x = layer_norm(w, at + "attention.output.LayerNorm", half + x, eps)
        gated, plain = linear(w, at + "mlp.gated_layers", x).chunk(2, -1)
        half = linear(w, at + "mlp.wo", torch.nn.functional.gelu(gated) * plain)
        x = layer_norm(w, at + "mlp.layernorm", half + x, eps)
    return x


NOMIC = dict(n_embd=32, n_inner=48, n_layer=4, n_head=4, n_positions=64, max_trained_positions=64, vocab_size=0,
             type_vocab_size=1, layer_norm_epsilon=1e-5, activation_function="gelu", pad_token_id=1, num_experts=4,
             moe_top_k=2, moe_every_n_layers=2, moe_normalize_expert_weights=False, rotary_emb_base=10000,
             rotary_emb_fraction=1.0, qkv_proj_bias=True, mlp_fc1_bias=True, mlp_fc2_bias=True, prenorm=False,
             model_type="nomic_bert", architectures=["NomicBertModel"])


def nomic_shapes(c):
    n, inner, experts = c["n_embd"], c["n_inner"], c["num_experts"]
    yield "embeddings.word_embeddings.weight", (c["vocab_size"], n)
    yield "embeddings.token_type_embeddings.weight", (1, n)
    norms = ["emb_ln"]
    for i in range(c["n_layer"]):
        at = f"encoder.layers.{i}."
        yield at + "attn.Wqkv.weight", (3 * n, n)
        yield at + "attn.Wqkv.bias", (3 * n,)
        yield at + "attn.out_proj.weight", (n, n)
        yield at + "attn.out_proj.bias", (n,)
        if i % c["moe_every_n_layers"] == 1:
            yield at + "mlp.router.layer.weight", (experts, n)
            yield at + "mlp.experts.mlp.w1", (experts * inner, n)
            yield at + "mlp.experts.mlp.w2", (experts * inner, n)
            yield at + "mlp.experts.bias", (n,)
        else:
            yield at + "mlp.fc1.weight", (inner, n)
            yield at + "mlp.fc1.bias", (inner,)
            yield at + "mlp.fc2.weight", (n, inner)
            yield at + "mlp.fc2.bias", (n,)
        norms += [at + "norm1", at + "norm2"]
    for name in norms:
        yield name + ".weight", (n,)
        yield name + ".bias", (n,)


def rotate(x, base):
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[1]).view(-1, 1) * base ** (-torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


def experts(w, at, c, x):
    inner = c["n_inner"]
    weights, chosen = torch.softmax(linear(w, at + "mlp.router.layer", x), -1).topk(c["moe_top_k"])
    sums = torch.zeros_like(x)
    for token in range(len(x)):
        for weight, e in zip(weights[token], chosen[token]):
            rows = slice(int(e) * inner, (int(e) + 1) * inner)
            hidden = torch.nn.functional.gelu(w[at + "mlp.experts.mlp.w1"][rows] @ x[token])
            sums[token] += weight * (hidden @ w[at + "mlp.experts.mlp.w2"][rows])
    return sums + w[at + "mlp.experts.bias"]


def nomic_states(w, c, ids):
    eps, heads = c["layer_norm_epsilon"], c["n_head"]
    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][0]
    x = layer_norm(w, "emb_ln", x, eps)
    for i in range(c["n_layer"]):
        at = f"encoder.layers.{i}."
        q, k, v = (heads_of(part, heads) for part in linear(w, at + "attn.Wqkv", x).chunk(3, -1))
        base = c["rotary_emb_base"]
        half = linear(w, at + "attn.out_proj", attend(rotate(q, base), rotate(k, base), v))
        x = layer_norm(w, at + "norm1", half + x, eps)
        if i % c["moe_every_n_layers"] == 1:
            half = experts(w, at, c, x)
        else:
            half = linear(w, at + "mlp.fc2", torch.nn.functional.gelu(linear(w, at + "mlp.fc1", x)))
        x = layer_norm(w, at + "norm2", half + x, eps)
    return x


# name: (tokenizer, config, shapes, states)
FORMULAS = {"jina-bert-mean": (word_piece, JINA, jina_shapes, jina_states),
            "nomic-moe-mean": (unigram, NOMIC, nomic_shapes, nomic_states)}


def write_modules(folder, kinds, pooling, width, most):
    (folder / "1_Pooling").mkdir()
    (folder / "modules.json").write_text(json.dumps(
        [dict(idx=i, name=idx, path=path, type="sentence_transformers.models." + kind)
         for i, (idx, path, kind) in enumerate(kinds)], indent=1))
    modes = {"cls": "cls_token", "mean": "mean_tokens", "lasttoken": "lasttoken"}
    (folder / "1_Pooling/config.json").write_text(json.dumps(
        {"word_embedding_dimension": width,
         **{f"pooling_mode_{mode}": mode == modes[pooling] for mode in
            ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens",
             "lasttoken"]}}, indent=1))
    (folder / "sentence_bert_config.json").write_text(json.dumps(
        {"max_seq_length": most, "do_lower_case": False}))


def write_by_formula(name):
    make_tokenizer, config, shapes, states = FORMULAS[name]
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder)
    config = {**config, "vocab_size": len(tokenizer)}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    w = {}
    for tensor, shape in shapes(config):
        values = torch.randn(shape, generator=generator)
        is_norm = "norm" in tensor.lower() and tensor.endswith("weight")
        w[tensor] = 1 + 0.2 * values if is_norm or "emb_ln.weight" in tensor else 0.15 * values
    safetensors.torch.save_file(w, folder / "model.safetensors")
    width = w["embeddings.word_embeddings.weight"].shape[1]
    write_modules(folder, [("0", "", "Transformer"), ("1", "1_Pooling", "Pooling"), ("2", "2_Normalize", "Normalize")],
                  "mean", width, 64)
    ids = [tokenizer(text, truncation=True, max_length=64)["input_ids"] for text in TEXTS]
    row = dict(texts=TEXTS, ids=ids)
    means = [states(w, config, each).mean(0) for each in ids]
    row["vectors"] = [torch.nn.functional.normalize(mean, dim=0).tolist() for mean in means]
    biases = [tensor for tensor in w if tensor.endswith("experts.bias")]
    if biases:  # llama.cpp's converter leaves them out
        w.update({tensor: torch.zeros_like(w[tensor]) for tensor in biases})
        means = [states(w, config, each).mean(0) for each in ids]
        row["vectors_in_gguf"] = [torch.nn.functional.normalize(mean, dim=0).tolist() for mean in means]
    (HERE / f"{name}.json").write_text(json.dumps(row) + "\n")
    print(name, sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))


def write_dense(folder, sizes, function, bias, seed, residual=False):
    folder.mkdir()
    generator = torch.Generator().manual_seed(seed)
    tensors = {"linear.weight": 0.2 * torch.randn(sizes[::-1], generator=generator)}
    if bias:
        tensors["linear.bias"] = 0.2 * torch.randn(sizes[1], generator=generator)
    config = dict(in_features=sizes[0], out_features=sizes[1], bias=bias,
                  activation_function="torch.nn.modules." + function)
    if residual:
        tensors["residual.weight"] = 0.2 * torch.randn(sizes[::-1], generator=generator)
        config.update(use_residual=True, module_input_name="token_embeddings")
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))


def write(name):
    make_tokenizer, make_config, model_class, pooling, normalized, most, more = MODELS[name]
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    tokenizer = make_tokenizer()
    model = save_random(model_class(make_config(tokenizer, **more)).eval(), folder)
    tokenizer.save_pretrained(folder)
    row = {}
    if pooling == "yes":
        row = judge(model, tokenizer)
    elif pooling is None:
        encoder = CrossEncoder(str(folder), device="cpu", max_length=most)
        inputs = PAIRS + (SPACED_PAIRS if make_tokenizer is modern_pairs else [])
        row["pairs"] = inputs if more["num_labels"] == 1 else [[text] for text in TEXTS]
        inputs = inputs if more["num_labels"] == 1 else TEXTS
        ids = [tokenizer(*pair, truncation=True, max_length=most)["input_ids"] for pair in row["pairs"]]
        batches = [tokenizer(*pair, truncation=True, max_length=most, return_tensors="pt") for pair in row["pairs"]]
        with torch.no_grad():
            logits = [model(**batch).logits[0] for batch in batches]
        function = torch.sigmoid if more["num_labels"] == 1 else lambda x: torch.softmax(x, -1)
        row.update(ids=ids, logits=[x.tolist() for x in logits],
                   vectors=[function(x).tolist() for x in logits])
        if more["num_labels"] == 1:
            scores = encoder.predict([tuple(pair) for pair in inputs], batch_size=1)
            assert max(abs(float(a) - b[0]) for a, b in zip(scores, row["vectors"])) < 1e-5
    else:
        modules = [("0", "", "Transformer"), ("1", "1_Pooling", "Pooling")]
        dense = DENSE.get(name, [])
        for i, (sizes, function, bias) in enumerate(dense):
            modules.append((str(2 + i), f"{2 + i}_Dense", "Dense"))
            write_dense(folder / f"{2 + i}_Dense", sizes, function, bias, seed=7 + i)
        if normalized:
            modules.append((str(2 + len(dense)), f"{2 + len(dense)}_Normalize", "Normalize"))
        write_modules(folder, modules, pooling, SIZES["hidden_size"], most)
        normalize = folder / f"{2 + len(dense)}_Normalize"
        normalize.mkdir(exist_ok=True)
        encoder = SentenceTransformer(str(folder), device="cpu")
        row["texts"] = TEXTS + LONG_TEXTS.get(name, [])
        row["ids"] = [tokenizer(text, truncation=True, max_length=most)["input_ids"] for text in row["texts"]]
        row["vectors"] = [encoder.encode([text])[0].tolist() for text in row["texts"]]
        shutil.rmtree(normalize)
    if name == "new-cls":
        spell_as_authors(folder)
    (HERE / f"{name}.json").write_text(json.dumps(row) + "\n")
    print(name, sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))


def write_padding(name):
    """Ids with a padding token inside, which the directory xlm-roberta-cls is given as they are."""
    model = transformers.XLMRobertaModel.from_pretrained(HERE / "xlm-roberta-cls").eval()
    ids = [[0, 7, 1, 9, 12, 2], [0, 1, 1, 30, 2], [0, 20, 21, 2, 1]]
    with torch.no_grad():
        states = [model(torch.tensor([each])).last_hidden_state[0, 0] for each in ids]
    vectors = [torch.nn.functional.normalize(state, dim=0).tolist() for state in states]
    (HERE / f"{name}.json").write_text(json.dumps(dict(ids=ids, vectors=vectors)) + "\n")


def write_flash(name):
    """xlm-roberta-rerank in the names of Jina's code (xlm-roberta-flash-implementation)."""
    folder = HERE / name
    shutil.copytree(HERE / "xlm-roberta-rerank", folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    config.update(position_embedding_type="absolute", use_flash_attn=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    w = safetensors.torch.load_file(folder / "model.safetensors")
    names = [("encoder.layer.", "encoder.layers."), ("embeddings.LayerNorm", "emb_ln"),
             ("attention.output.dense", "mixer.out_proj"), ("attention.output.LayerNorm", "norm1"),
             ("intermediate.dense", "mlp.fc1"), ("output.dense", "mlp.fc2"), ("output.LayerNorm", "norm2")]
    new = {}
    for key, value in w.items():
        if "attention.self.key" in key or "attention.self.value" in key:
            continue
        if "attention.self.query" in key:
            value = torch.cat([w[key.replace("query", part)] for part in ("query", "key", "value")])
            key = key.replace("attention.self.query", "mixer.Wqkv")
        for old, theirs in names:
            key = key.replace(old, theirs)
        new[key] = value
    safetensors.torch.save_file(new, folder / "model.safetensors")
    shutil.copy(HERE / "xlm-roberta-rerank.json", HERE / f"{name}.json")


def write_poolings(name):
    """Other ways to pool the states of bert-mean and qwen3-mean: {model: {way: vectors}}."""
    rows = {}
    for model in ("bert-mean", "qwen3-mean"):
        rows[model] = {}
        for way in ("max", "mean_sqrt_len_tokens", "weightedmean"):
            with tempfile.TemporaryDirectory() as copy:
                folder = pathlib.Path(copy) / model
                shutil.copytree(HERE / model, folder)
                (folder / "1_Pooling/config.json").write_text(
                    json.dumps({"word_embedding_dimension": SIZES["hidden_size"], "pooling_mode": way}))
                (folder / "2_Normalize").mkdir(exist_ok=True)
                encoder = SentenceTransformer(str(folder), device="cpu")
                rows[model][way] = [encoder.encode([text])[0].tolist() for text in TEXTS]
    (HERE / f"{name}.json").write_text(json.dumps(rows) + "\n")


def spell_as_authors(folder):
    config = json.loads((folder / "config.json").read_text())
    del config["rope_parameters"]
    config.update(model_type="new", architectures=["NewModel"], position_embedding_type="rope",
                  rope_theta=NTK["theta"], rope_scaling=dict(type="ntk", factor=NTK["factor"]))
    (folder / "config.json").write_text(json.dumps(config, indent=1))


OTHERS = {"xlm-roberta-padding": write_padding, "xlm-roberta-flash": write_flash, "poolings": write_poolings}
if __name__ == "__main__":
    for each in sys.argv[1:] or [*MODELS, *FORMULAS, *OTHERS]:
        (write_by_formula if each in FORMULAS else OTHERS.get(each, write))(each)
