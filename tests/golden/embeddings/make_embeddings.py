#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tiny random models of vectors and scores, and what sentence-transformers makes of texts.

    pip install torch transformers sentence-transformers && python make_embeddings.py [name ...]

<name>/           a directory as sentence-transformers saves it: config.json, model.safetensors,
                  tokenizer.json, modules.json, 1_Pooling/config.json
<name>.json       {"texts", "ids", "vectors"}: ids as the tokenizer gives them, vectors or scores as
                  SentenceTransformer or CrossEncoder gives them in float32
"""
import json
import pathlib
import shutil
import sys
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


def word_piece():
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + list("abcdefghijklmnopqrstuvwxyz,.!-")
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


# Layers behind the pooling: sizes, activation, bias.
DENSE = {"gemma-dense": [((32, 40), "linear.Identity", False), ((40, 24), "linear.Identity", False)],
         "bert-tanh": [((32, 24), "activation.Tanh", True)]}


def write_dense(folder, sizes, function, bias, seed):
    folder.mkdir()
    generator = torch.Generator().manual_seed(seed)
    tensors = {"linear.weight": 0.2 * torch.randn(sizes[::-1], generator=generator)}
    if bias:
        tensors["linear.bias"] = 0.2 * torch.randn(sizes[1], generator=generator)
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(
        dict(in_features=sizes[0], out_features=sizes[1], bias=bias,
             activation_function="torch.nn.modules." + function)))


def write(name):
    make_tokenizer, make_config, model_class, pooling, normalized, most, more = MODELS[name]
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    tokenizer = make_tokenizer()
    model = model_class(make_config(tokenizer, **more)).eval()
    with torch.no_grad():
        randomize(model, zlib.crc32(name.encode()))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    row = {}
    if pooling == "yes":
        row = judge(model, tokenizer)
    elif pooling is None:
        encoder = CrossEncoder(str(folder), device="cpu", max_length=most)
        row["pairs"] = PAIRS if more["num_labels"] == 1 else [[text] for text in TEXTS]
        inputs = PAIRS if more["num_labels"] == 1 else TEXTS
        ids = [tokenizer(*pair, truncation=True, max_length=most)["input_ids"] for pair in row["pairs"]]
        batches = [tokenizer(*pair, truncation=True, max_length=most, return_tensors="pt") for pair in row["pairs"]]
        with torch.no_grad():
            logits = [model(**batch).logits[0] for batch in batches]
        function = torch.sigmoid if more["num_labels"] == 1 else lambda x: torch.softmax(x, -1)
        row.update(ids=ids, logits=[x.tolist() for x in logits],
                   vectors=[function(x).tolist() for x in logits])
        if more["num_labels"] == 1:
            scores = encoder.predict([tuple(pair) for pair in inputs])
            assert max(abs(float(a) - b[0]) for a, b in zip(scores, row["vectors"])) < 1e-5
    else:
        modules = [("0", "", "Transformer"), ("1", "1_Pooling", "Pooling")]
        dense = DENSE.get(name, [])
        for i, (sizes, function, bias) in enumerate(dense):
            modules.append((str(2 + i), f"{2 + i}_Dense", "Dense"))
            write_dense(folder / f"{2 + i}_Dense", sizes, function, bias, seed=7 + i)
        if normalized:
            modules.append((str(2 + len(dense)), f"{2 + len(dense)}_Normalize", "Normalize"))
        (folder / "1_Pooling").mkdir()
        (folder / "modules.json").write_text(json.dumps(
            [dict(idx=i, name=idx, path=path, type="sentence_transformers.models." + kind)
             for i, (idx, path, kind) in enumerate(modules)], indent=1))
        modes = {"cls": "cls_token", "mean": "mean_tokens", "lasttoken": "lasttoken"}
        (folder / "1_Pooling/config.json").write_text(json.dumps(
            {"word_embedding_dimension": SIZES["hidden_size"],
             **{f"pooling_mode_{mode}": mode == modes[pooling] for mode in
                ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens",
                 "lasttoken"]}}, indent=1))
        (folder / "sentence_bert_config.json").write_text(json.dumps(
            {"max_seq_length": most, "do_lower_case": False}))
        normalize = folder / f"{2 + len(dense)}_Normalize"
        normalize.mkdir(exist_ok=True)
        encoder = SentenceTransformer(str(folder), device="cpu")
        row["texts"] = TEXTS
        row["ids"] = [tokenizer(text, truncation=True, max_length=most)["input_ids"] for text in TEXTS]
        row["vectors"] = [encoder.encode([text])[0].tolist() for text in TEXTS]
        shutil.rmtree(normalize)
    (HERE / f"{name}.json").write_text(json.dumps(row) + "\n")
    print(name, sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))


for each in sys.argv[1:] or MODELS:
    write(each)
