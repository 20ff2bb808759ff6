#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a directory of an encoder as a GGUF file, as llama.cpp's converter does, with the package gguf.

    pip install gguf safetensors && python make_gguf.py DIRECTORY FILE.gguf [f32|f16|q8_0]

Without arguments it writes FOLDERS as files beside this script from the directories there. BERT's vocabulary is written with spaces in front of
tokens that begin a word; XLM-R's positions lose the rows in front of the first.
"""
import json
import pathlib
import sys

import gguf
import numpy as np
from safetensors import safe_open

HERE = pathlib.Path(__file__).resolve().parent
FOLDERS = ("bert-mean", "bert-cls", "bert-classify", "bert-rerank", "gemma-dense", "jina-bert-mean",
           "modernbert-bpe", "modernbert-mean", "nomic-bert-mean", "nomic-moe-mean", "qwen3-rerank",
           "xlm-roberta-cls")
NAMES = [("mlp.experts.mlp.w1", "ffn_up_exps.weight"), ("mlp.experts.mlp.w2", "ffn_down_exps.weight"),
         ("mlp.router.layer", "ffn_gate_inp"), ("mlp.fc1.", "ffn_up."), ("emb_ln", "token_embd_norm"), ("encoder.layers.", "blk."), ("attn.Wqkv", "attn_qkv"),
         ("attn.out_proj", "attn_output"), ("mlp.fc11", "ffn_up"), ("mlp.fc12", "ffn_gate"),
         ("mlp.fc2", "ffn_down"), ("norm1", "attn_output_norm"), ("norm2", "layer_output_norm"),
         ("embeddings.word_embeddings", "token_embd"), ("embeddings.position_embeddings", "position_embd"),
         ("embeddings.token_type_embeddings", "token_types"), ("embeddings.LayerNorm", "token_embd_norm"),
         ("encoder.layer.", "blk."), ("attention.self.query", "attn_q"), ("attention.self.key", "attn_k"),
         ("attention.self.value", "attn_v"), ("attention.output.dense", "attn_output"),
         ("attention.output.LayerNorm", "attn_output_norm"), ("intermediate.dense", "ffn_up"),
         ("output.dense", "ffn_down"), ("output.LayerNorm", "layer_output_norm"),
         ("classifier.out_proj", "cls.output"), ("classifier.dense", "cls"), ("pooler.dense", "cls"),
         ("classifier", "cls.output"), ("mlp.gated_layers", "ffn_up"), ("mlp.wo", "ffn_down"),
         ("mlp.layernorm", "layer_output_norm")]


def renamed(name, names):
    for old, ours in names:
        name = name.replace(old, ours)
    return name


def add_sizes(writer, config, offset=0):
    """`offset`: positions in front of a text's first."""
    writer.add_context_length(config["max_position_embeddings"] - offset)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])


def add_decoder_heads(writer, config):
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensor_name(name):
    for prefix in ("bert.", "roberta."):
        name = name.removeprefix(prefix)
    return renamed(name, NAMES).replace("gamma", "weight").replace("beta", "bias")


def add_vocabulary(writer, folder, is_bert):
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    special = {token["content"] for token in tokenizer["added_tokens"] if token["special"]}
    scores = []
    if is_bert:
        vocab = tokenizer["model"]["vocab"]
        names = sorted(vocab, key=vocab.get)
    else:
        names = [name for name, _ in tokenizer["model"]["vocab"]]
        scores = [score for _, score in tokenizer["model"]["vocab"]]
    types = [gguf.TokenType.UNKNOWN if name == "<unk>" else
             gguf.TokenType.CONTROL if name in special else gguf.TokenType.NORMAL for name in names]
    id_of = {name: i for i, name in enumerate(names)}
    if is_bert:
        def phantom(name, kind):
            if kind == gguf.TokenType.CONTROL or (name.startswith("[") and name.endswith("]")):
                return name
            return name[2:] if name.startswith("##") else "\u2581" + name
        names = [phantom(name, kind) for name, kind in zip(names, types)]
    writer.add_tokenizer_model("bert" if is_bert else "t5")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(names)
    writer.add_token_types(types)
    begin, end, unknown, padding = (["[CLS]", "[SEP]", "[UNK]", "[PAD]"] if is_bert else
                                    ["<s>", "</s>", "<unk>", "<pad>"])
    writer.add_unk_token_id(id_of[unknown])
    writer.add_sep_token_id(id_of[end])
    writer.add_pad_token_id(id_of[padding])
    if is_bert:
        writer.add_token_type_count(2)
        writer.add_uint32("tokenizer.ggml.cls_token_id", id_of[begin])
    else:
        writer.add_token_scores(scores)
        writer.add_add_space_prefix(True)
        writer.add_remove_extra_whitespaces(True)
        writer.add_bos_token_id(id_of[begin])
        writer.add_eos_token_id(id_of[end])
        writer.add_add_bos_token(True)
        writer.add_add_eos_token(True)


def add_byte_pairs(writer, folder, config):
    """A vocabulary as ModernBertModel of the converter writes it."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocab = dict(tokenizer["model"]["vocab"])
    added = {token["content"]: token for token in tokenizer["added_tokens"]}
    vocab.update({content: token["id"] for content, token in added.items()})
    names = sorted(vocab, key=vocab.get)
    types = [gguf.TokenType.NORMAL if name not in added else
             gguf.TokenType.CONTROL if added[name]["special"] else gguf.TokenType.USER_DEFINED for name in names]
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(True)
    writer.add_add_sep_token(True)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("modern-bert")
    writer.add_token_list(names)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_sep_token_id(vocab["[SEP]"])
    writer.add_unk_token_id(vocab["[UNK]"])
    writer.add_pad_token_id(vocab["[PAD]"])
    writer.add_mask_token_id(vocab["[MASK]"])
    writer.add_uint32("tokenizer.ggml.cls_token_id", vocab["[CLS]"])


GEMMA_NAMES = [("embed_tokens", "token_embd"), ("input_layernorm", "attn_norm"),
               ("post_attention_layernorm", "post_attention_norm"), ("pre_feedforward_layernorm", "ffn_norm"),
               ("post_feedforward_layernorm", "post_ffw_norm"), ("self_attn.q_norm", "attn_q_norm"),
               ("self_attn.k_norm", "attn_k_norm"), ("self_attn.q_proj", "attn_q"), ("self_attn.k_proj", "attn_k"),
               ("self_attn.v_proj", "attn_v"), ("self_attn.o_proj", "attn_output"), ("mlp.gate_proj", "ffn_gate"),
               ("mlp.up_proj", "ffn_up"), ("mlp.down_proj", "ffn_down"), ("layers.", "blk.")]


def write_gemma(folder, path, config):
    writer = gguf.GGUFWriter(path, "gemma-embedding")
    add_sizes(writer, config)
    add_decoder_heads(writer, config)
    writer.add_rope_freq_base(config["rope_parameters"]["full_attention"]["rope_theta"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern(config["layer_types"].index("full_attention") + 1)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    add_vocabulary(writer, folder, is_bert=False)
    with safe_open(folder / "model.safetensors", "np") as tensors:
        for name in tensors.keys():
            new = renamed("output_norm.weight" if name == "norm.weight" else name, GEMMA_NAMES)
            values = tensors.get_tensor(name).astype(np.float32)
            writer.add_tensor(new, values + np.float32(1) if "norm" in new else values)
    for i in (2, 3):
        with safe_open(folder / f"{i}_Dense/model.safetensors", "np") as tensors:
            writer.add_tensor(f"dense_{i}.weight", tensors.get_tensor("linear.weight"))
    finish(writer)


MODERN_NAMES = [("embeddings.tok_embeddings", "token_embd"), ("embeddings.norm", "token_embd_norm"),
                ("final_norm", "output_norm"), ("mlp_norm", "ffn_norm"), ("attn.Wqkv", "attn_qkv"),
                ("attn.Wo", "attn_output"), ("mlp.Wi", "ffn_up"), ("mlp.Wo", "ffn_down"), ("layers.", "blk."),
                ("head.dense", "cls"), ("head.norm", "cls.norm"), ("classifier", "cls.output"), ("model.", "")]


def write_modernbert(folder, path, config):
    writer = gguf.GGUFWriter(path, "modern-bert")
    add_sizes(writer, config)
    writer.add_layer_norm_eps(config["norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(config["rope_parameters"]["sliding_attention"]["rope_theta"])
    writer.add_sliding_window(config["local_attention"])
    writer.add_sliding_window_pattern(config["layer_types"].index("full_attention", 1))
    writer.add_causal_attention(False)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_string("modern-bert.hidden_act", config["hidden_activation"])
    is_scored = config["architectures"][0].endswith("ForSequenceClassification")
    writer.add_pooling_type(gguf.PoolingType.RANK if is_scored else gguf.PoolingType.MEAN)
    if is_scored:
        writer.add_classifier_output_labels(list(config["id2label"].values()))
        add_byte_pairs(writer, folder, config)
    else:
        add_vocabulary(writer, folder, is_bert=True)
    with safe_open(folder / "model.safetensors", "np") as tensors:
        for name in tensors.keys():
            new = renamed(name, MODERN_NAMES)
            writer.add_tensor(new, tensors.get_tensor(name).astype(np.float32))
    finish(writer)


QWEN_NAMES = [("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm"),
              ("self_attn.q_norm", "attn_q_norm"), ("self_attn.k_norm", "attn_k_norm"), ("self_attn.q_proj", "attn_q"),
              ("self_attn.k_proj", "attn_k"), ("self_attn.v_proj", "attn_v"), ("self_attn.o_proj", "attn_output"),
              ("mlp.gate_proj", "ffn_gate"), ("mlp.up_proj", "ffn_up"), ("mlp.down_proj", "ffn_down"),
              ("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("model.layers.", "blk.")]


def write_qwen3_reranker(folder, path, config):
    """As Qwen3Model of the converter writes one: the rows of "yes" and "no" are there twice."""
    writer = gguf.GGUFWriter(path, "qwen3")
    add_sizes(writer, config)
    add_decoder_heads(writer, config)
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_pooling_type(gguf.PoolingType.RANK)
    writer.add_classifier_output_labels(["yes", "no"])
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocab = dict(tokenizer["model"]["vocab"])
    control = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    names = sorted({**vocab, **control}, key={**vocab, **control}.get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(names)
    writer.add_token_types([gguf.TokenType.CONTROL if name in control else gguf.TokenType.NORMAL for name in names])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(control["<|im_end|>"])
    writer.add_pad_token_id(control["<|endoftext|>"])
    with safe_open(folder / "model.safetensors", "np") as tensors:
        for name in tensors.keys():
            new = renamed(name, QWEN_NAMES)
            writer.add_tensor(new, tensors.get_tensor(name).astype(np.float32))
        table = tensors.get_tensor("model.embed_tokens.weight").astype(np.float32)
    writer.add_tensor("cls.output.weight", table[[vocab["yes"], vocab["no"]]])
    finish(writer)


def of_authors(config):
    """transformers' spelling of a configuration of Nomic's."""
    more = dict(max_position_embeddings="n_positions", hidden_size="n_embd", num_hidden_layers="n_layer",
                intermediate_size="n_inner", num_attention_heads="n_head", layer_norm_eps="layer_norm_epsilon")
    return {**config, **{new: config[old] for new, old in more.items()},
            "rope_parameters": {"rope_theta": config["rotary_emb_base"]}}


def write(folder, path, kind="f32"):
    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] == "gemma3_text":
        return write_gemma(folder, path, config)
    if config["model_type"] == "qwen3":
        return write_qwen3_reranker(folder, path, config)
    if config["model_type"] == "modernbert":
        return write_modernbert(folder, path, config)
    is_nomic = config["model_type"] == "nomic_bert"
    has_experts = "moe_every_n_layers" in config
    if has_experts:
        config = of_authors(config)
    is_bert = (is_nomic and not has_experts) or config["model_type"] == "bert"
    offset = 0 if is_bert or is_nomic else config["pad_token_id"] + 1
    is_jina = config.get("position_embedding_type") == "alibi"
    writer = gguf.GGUFWriter(path, "nomic-bert-moe" if has_experts else "nomic-bert" if is_nomic else
                             "jina-bert-v2" if is_jina else "bert")
    if is_nomic:
        writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    if has_experts:
        writer.add_moe_every_n_layers(config["moe_every_n_layers"])
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["moe_top_k"])
    add_sizes(writer, config, offset)
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    is_scored = config["architectures"][0].endswith("ForSequenceClassification")
    pooling = gguf.PoolingType.RANK if is_scored else None
    if (folder / "1_Pooling/config.json").exists():
        modes = json.loads((folder / "1_Pooling/config.json").read_text())
        pooling = (gguf.PoolingType.CLS if modes["pooling_mode_cls_token"] else gguf.PoolingType.MEAN)
    if pooling is not None:
        writer.add_pooling_type(pooling)
    if is_scored:
        writer.add_classifier_output_labels([config["id2label"][k] for k in sorted(config["id2label"], key=int)])
    add_vocabulary(writer, folder, is_bert)
    with safe_open(folder / "model.safetensors", "np") as tensors:
        for name in tensors.keys():
            if name.endswith("position_ids"):
                continue
            values = tensors.get_tensor(name).astype(np.float32)
            if "position_embeddings" in name:
                values = values[offset:]
            if "pooler" in name and not is_scored:
                continue
            if name.endswith("experts.bias"):  # llama.cpp's converter leaves it out
                continue
            if "experts.mlp" in name:
                values = values.reshape(config["num_experts"], -1, values.shape[1])
                values = values.transpose(0, 2, 1).copy() if name.endswith("w2") else values
            new = tensor_name(name)
            is_matrix = values.ndim == 2 and "position" not in new and "token_types" not in new
            if is_matrix and kind == "f16":
                writer.add_tensor(new, values.astype(np.float16))
            elif is_matrix and kind == "q8_0":
                writer.add_tensor(new, gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0),
                                  raw_dtype=gguf.GGMLQuantizationType.Q8_0)
            else:
                writer.add_tensor(new, values)
    finish(writer)


if len(sys.argv) > 2:
    write(pathlib.Path(sys.argv[1]), sys.argv[2], *sys.argv[3:])
else:
    for each in FOLDERS:
        write(HERE / each, str(HERE / f"{each}.gguf"))
