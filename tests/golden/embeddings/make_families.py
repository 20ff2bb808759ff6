#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes goldens as make_embeddings.py does, of more families: DistilBERT, decoders with a layer for scores.

    pip install torch transformers sentence-transformers && python make_families.py [name ...]

Made with transformers 5.24.0 and sentence-transformers 5.7.0.
"""
import sys

import transformers

import make_embeddings as base


def word_piece_of_one_kind():
    """Without token types, which DistilBERT does not have."""
    tokenizer = base.word_piece()
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    return tokenizer


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
}


if __name__ == "__main__":
    base.MODELS.update(MODELS)
    for each in sys.argv[1:] or MODELS:
        base.write(each)
