#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes goldens as make_embeddings.py does, of more families: DistilBERT, MPNet, decoders with a layer for scores,
and Llamas that see both ways.

    pip install torch transformers sentence-transformers && python make_families.py [name ...]

Made with transformers 5.24.0 and sentence-transformers 5.7.0. llama_bidirec is not in transformers: its vectors and
scores are those of LlamaModel with is_causal false, pooled as NVIDIA's llama_bidirectional_model.py does.
"""
import json
import shutil
import sys

import torch
import transformers

import make_embeddings as base


def word_piece_of_one_kind():
    """Without token types, which DistilBERT does not have."""
    tokenizer = base.word_piece()
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    return tokenizer


def word_piece_in_marks():
    """MPNet's: BERT's pieces between RoBERTa's marks."""
    pieces = list(base.word_piece().get_vocab())
    vocab = ["<s>", "<pad>", "</s>", "[UNK]", *sorted(set(pieces) - {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"})]
    return transformers.MPNetTokenizer(vocab={piece: i for i, piece in enumerate([*vocab, "<mask>"])},
                                       model_max_length=300)


def llama(tokenizer, **more):
    return transformers.LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=128, num_key_value_heads=2,
                                    tie_word_embeddings=False, **base.SIZES, **more)


def mistral(tokenizer, **more):
    return transformers.MistralConfig(vocab_size=len(tokenizer), max_position_embeddings=128, num_key_value_heads=2,
                                      tie_word_embeddings=False, sliding_window=None, **base.SIZES, **more)


def gemma2(tokenizer, **more):
    return transformers.Gemma2Config(vocab_size=len(tokenizer), max_position_embeddings=128, head_dim=16,
                                     num_key_value_heads=2, sliding_window=8, query_pre_attn_scalar=16, **base.SIZES,
                                     **more)


def distilbert(tokenizer, **more):
    return transformers.DistilBertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, dim=32, hidden_dim=48,
                                         n_layers=2, n_heads=4, pad_token_id=0, **more)


def mpnet(tokenizer, **more):
    return transformers.MPNetConfig(vocab_size=len(tokenizer), max_position_embeddings=302, pad_token_id=1,
                                    layer_norm_eps=1e-5, **base.SIZES, **more)


MODELS = {
    # Their tokenizer ends texts with the token of padding, behind which nothing is pooled.
    "qwen3-scores": (base.byte_pairs, base.qwen3, transformers.Qwen3ForSequenceClassification, None, False, 512,
                     dict(num_labels=1, pad_token_id=259)),
    "mistral-scores": (base.byte_pairs, mistral, transformers.MistralForSequenceClassification, None, False, 128,
                       dict(num_labels=1)),
    "llama-classify": (base.byte_pairs, llama, transformers.LlamaForSequenceClassification, None, False, 128,
                       dict(num_labels=3, id2label={0: "bad", 1: "fair", 2: "good"})),
    "gemma2-classify": (base.unigram, gemma2, transformers.Gemma2ForSequenceClassification, None, False, 64,
                        dict(num_labels=2, pad_token_id=1)),
    "distilbert-mean": (word_piece_of_one_kind, distilbert, transformers.DistilBertForMaskedLM, "mean", True, 64, {}),
    "distilbert-classify": (word_piece_of_one_kind, distilbert, transformers.DistilBertForSequenceClassification, None,
                            False, 64, dict(num_labels=2, id2label={0: "NEGATIVE", 1: "POSITIVE"})),
    "mpnet-mean": (word_piece_in_marks, mpnet, transformers.MPNetModel, "mean", True, 300, {}),
    "mpnet-scores": (word_piece_in_marks, mpnet, transformers.MPNetForSequenceClassification, None, False, 300,
                     dict(num_labels=1)),
}
# Keys up to some 200 places away, where places far apart have one bias.
base.LONG_TEXTS["mpnet-mean"] = [" ".join(base.WORDS * 7)]


def write_bidirec(name):
    """Llama whose tokens see both ways, under the names of NVIDIA's code (llama_bidirectional_model.py): their mean
    is pooled as config.json says, and scores are a product of it."""
    tokenizer = base.byte_pairs()
    config = llama(tokenizer, num_labels=1, is_causal=False)
    folder = base.HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    model = base.save_random(transformers.LlamaForSequenceClassification(config).eval(), folder)
    tokenizer.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    del config["is_causal"]
    config.update(model_type="llama_bidirec", architectures=["LlamaBidirectionalForSequenceClassification"],
                  pooling="avg", temperature=1.0, auto_map={
                      "AutoModel": "llama_bidirectional_model.LlamaBidirectionalModel"})
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    ids = [tokenizer(*pair)["input_ids"][:128] for pair in base.PAIRS]
    with torch.no_grad():
        means = [model.model(torch.tensor([each])).last_hidden_state[0].mean(0) for each in ids]
        logits = [model.score(mean) for mean in means]
    row = dict(pairs=base.PAIRS, ids=ids, logits=[x.tolist() for x in logits],
               vectors=[torch.sigmoid(x).tolist() for x in logits],
               means=[torch.nn.functional.normalize(mean, dim=0).tolist() for mean in means])
    (base.HERE / f"{name}.json").write_text(json.dumps(row) + "\n")


if __name__ == "__main__":
    base.MODELS.update(MODELS)
    for each in sys.argv[1:] or [*MODELS, "llama-bidirec"]:
        (write_bidirec if each == "llama-bidirec" else base.write)(each)
