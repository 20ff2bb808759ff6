#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tiny random CrossEncoders of several modules, as sentence-transformers 5.4 and later save them.

    pip install torch transformers sentence-transformers && python make_cross_encoders.py [name ...]

<name>/           what CrossEncoder.save_pretrained() writes
<name>.json       {"pairs", "ids", "logits", "vectors"}: ids as the tokenizer, or the chat template, gives them,
                  logits and scores as CrossEncoder.predict() gives them in float32
"""
import json
import pathlib
import shutil
import sys
import tempfile

import torch
import transformers
from sentence_transformers import CrossEncoder
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.cross_encoder.modules import LogitScore
from sentence_transformers.sentence_transformer.modules import LayerNorm, Pooling

from make_embeddings import HERE, PAIRS, SIZES, modernbert, randomize, save_random, word_piece

JUDGE_TEMPLATE = ('{% for message in messages %}{% if message.role == "system" %}<|im_start|>{{ message.content }}\n'
                  '{% elif message.role == "query" %}A: {{ message.content }}\n{% elif message.role == "document" %}'
                  'B: {{ message.content }}<|im_end|>\nyes?{% endif %}{% endfor %}')


def write_modules_of_scores(name):
    """A CrossEncoder of several modules, as it saves itself, whose scores are logits."""
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    tokenizer = word_piece()
    with tempfile.TemporaryDirectory() as copy:
        parts = pathlib.Path(copy) / name
        save_random(transformers.ModernBertModel(modernbert(tokenizer)).eval(), parts)
        tokenizer.save_pretrained(parts)
        width = SIZES["hidden_size"]
        layers = [Pooling(width, pooling_mode="mean"),
                  Dense(width, 24, activation_function=torch.nn.GELU()), LayerNorm(24),
                  Dense(24, 1, activation_function=torch.nn.Identity(), module_output_name="scores")]
        with torch.no_grad():
            for i, layer in enumerate(layers):
                randomize(layer, seed=11 + i)
        encoder = CrossEncoder(modules=[Transformer(str(parts)), *layers], device="cpu",
                               activation_fn=torch.nn.Identity())
        encoder.save_pretrained(str(folder))
    (folder / "README.md").unlink()
    encoder = CrossEncoder(str(folder), device="cpu")
    scores = encoder.predict([tuple(pair) for pair in PAIRS])
    ids = [tokenizer(*pair, truncation=True, max_length=64)["input_ids"] for pair in PAIRS]
    logits = [[float(score)] for score in scores]
    row = dict(pairs=PAIRS, ids=ids, logits=logits, vectors=logits)
    (HERE / f"{name}.json").write_text(json.dumps(row) + "\n")


def write_judge(name):
    """qwen3-rerank as a CrossEncoder saves it, with a conversation of its own and one token for scores."""
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as copy:
        parts = pathlib.Path(copy) / name
        shutil.copytree(HERE / "qwen3-rerank", parts)
        (parts / "chat_template.jinja").write_text(JUDGE_TEMPLATE)
        transformer = Transformer(str(parts), transformer_task="text-generation")
        token = transformer.tokenizer.convert_tokens_to_ids("yes")
        encoder = CrossEncoder(modules=[transformer, LogitScore(true_token_id=token)], device="cpu",
                               prompts={"sea": "Is it of the sea?"}, default_prompt_name="sea")
        encoder.save_pretrained(str(folder))
    for unused in ("README.md", "generation_config.json"):
        (folder / unused).unlink()
    encoder = CrossEncoder(str(folder), device="cpu")
    pairs = [tuple(pair) for pair in PAIRS]
    features = [encoder.preprocess([pair], prompt="Is it of the sea?") for pair in pairs]
    logits = encoder.predict(pairs, activation_fn=torch.nn.Identity())
    row = dict(pairs=PAIRS, ids=[each["input_ids"][0].tolist() for each in features],
               logits=[[float(x)] for x in logits], vectors=[[float(x)] for x in encoder.predict(pairs)])
    (HERE / f"{name}.json").write_text(json.dumps(row) + "\n")


MODELS = {"modernbert-modules": write_modules_of_scores, "qwen3-judge": write_judge}
if __name__ == "__main__":
    for each in sys.argv[1:] or MODELS:
        MODELS[each](each)
