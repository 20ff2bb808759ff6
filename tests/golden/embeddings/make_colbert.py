#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tiny random models of late interaction, and what sentence-transformers makes of texts.

    pip install torch transformers sentence-transformers && python make_colbert.py [name ...]

<name>.json has "query_vectors", "document_vectors" of make_embeddings.py's texts, and "scores" of its pairs.
"""
import json
import shutil
import sys
import zlib

import safetensors.torch
import torch
import transformers
from sentence_transformers import MultiVectorEncoder

from make_embeddings import HERE, PAIRS, SIZES, TEXTS, bert, modernbert, randomize, save_random, word_piece, write_dense


def write_colbert(name):
    """ColBERT as its authors save it: BERT with "linear.weight" behind each token, vectors of length 1."""
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    tokenizer = word_piece(("[unused0]", "[unused1]"))
    tokenizer.save_pretrained(folder)
    config = bert(tokenizer, architectures=["HF_ColBERT"])
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    with torch.no_grad():
        randomize(model, zlib.crc32(name.encode()))
    matrix = 0.2 * torch.randn((16, SIZES["hidden_size"]), generator=torch.Generator().manual_seed(3))
    config.save_pretrained(folder)
    tensors = {"bert." + key: value.contiguous() for key, value in model.state_dict().items()}
    safetensors.torch.save_file({**tensors, "linear.weight": matrix}, folder / "model.safetensors")

    def tokens_of(text):
        ids = tokenizer(text, truncation=True, max_length=64)["input_ids"]
        with torch.no_grad():
            states = model(torch.tensor([ids])).last_hidden_state[0]
        return ids, torch.nn.functional.normalize(states @ matrix.T, dim=-1)

    (folder / "artifact.metadata").write_text(json.dumps(
        dict(query_token_id="[unused0]", doc_token_id="[unused1]", query_maxlen=12, doc_maxlen=24,
             attend_to_mask_tokens=False, mask_punctuation=True)))
    ids, vectors = zip(*(tokens_of(text) for text in TEXTS))
    row = dict(texts=TEXTS, ids=ids, vectors=[each.flatten().tolist() for each in vectors])
    (HERE / f"{name}.json").write_text(json.dumps(row | compared(folder)) + "\n")


def compared(folder):
    """What MultiVectorEncoder makes of queries, documents and pairs, one text at a time."""
    encoder = MultiVectorEncoder(str(folder), device="cpu")
    queries = [encoder.encode_query([text])[0] for text in TEXTS]
    documents = [encoder.encode_document([text])[0] for text in TEXTS]
    scores = [float((encoder.encode_query([query])[0] @ encoder.encode_document([document])[0].T).max(1).values.sum())
              for query, document in PAIRS]
    return dict(query_vectors=[each.flatten().tolist() for each in queries],
                document_vectors=[each.flatten().tolist() for each in documents], pairs=PAIRS, scores=scores)


def write_pylate(name):
    """ColBERT as PyLate saves it: markers beside the vocabulary, tokens added to queries unseen by others."""
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    tokenizer = word_piece()
    tokenizer.add_tokens(["[Q] ", "[D] "])
    tokenizer.save_pretrained(folder)
    save_random(transformers.BertModel(bert(tokenizer), add_pooling_layer=False).eval(), folder)
    write_dense(folder / "1_Dense", (32, 24), "linear.Identity", False, seed=3)
    (folder / "modules.json").write_text(json.dumps(
        [dict(idx=0, name="0", path="", type="sentence_transformers.models.Transformer"),
         dict(idx=1, name="1", path="1_Dense", type="pylate.models.Dense.Dense")], indent=1))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(
        dict(model_type="ColBERT", prompts={}, query_prefix="[Q] ", document_prefix="[D] ", query_length=16,
             document_length=20, attend_to_expansion_tokens=False, do_query_expansion=True,
             skiplist_words=[",", ".", "the"]), indent=1))
    (HERE / f"{name}.json").write_text(json.dumps(compared(folder)) + "\n")


def write_multi_vector(name):
    """ColBERT as MultiVectorEncoder saves it: prompts of text, a layer beside its input, tokens seen by others."""
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    tokenizer = word_piece()
    tokenizer.save_pretrained(folder)
    save_random(transformers.ModernBertModel(modernbert(tokenizer)).eval(), folder)
    write_dense(folder / "1_Dense", (32, 16), "linear.Identity", True, seed=4, residual=True)
    kinds = ["base.modules.transformer.Transformer", "base.modules.dense.Dense",
             "multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask", "base.modules.normalize.Normalize"]
    paths = ["", "1_Dense", "2_MultiVectorMask", "3_Normalize"]
    (folder / "modules.json").write_text(json.dumps(
        [dict(idx=i, name=str(i), path=path, type="sentence_transformers." + kind)
         for i, (path, kind) in enumerate(zip(paths, kinds))], indent=1))
    names = dict.fromkeys(("module_input_name", "module_output_name"), "token_embeddings")
    mask = dict(skiplist_words=[","], skiplist_tasks=["query", "document"])
    for path, config in ((paths[2], mask), (paths[3], names)):
        (folder / path).mkdir()
        (folder / path / "config.json").write_text(json.dumps(config))
    (folder / "sentence_bert_config.json").write_text(json.dumps(
        dict(transformer_task="feature-extraction", module_output_name="token_embeddings", document_length=40,
             query_expansion=dict(strategy="min", attend=True, token="[SEP]", length=9),
             modality_config=dict(text=dict(method="forward", method_output_name="last_hidden_state")))))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(
        dict(model_type="MultiVectorEncoder", prompts=dict(query="what ", document="document "))))
    (HERE / f"{name}.json").write_text(json.dumps(compared(folder)) + "\n")


ALL = {"bert-colbert": write_colbert, "bert-pylate": write_pylate, "modernbert-multi-vector": write_multi_vector}
for each in sys.argv[1:] or ALL:
    ALL[each](each)
