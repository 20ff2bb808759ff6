#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A directory with the shape of a real BERT, random weights and means of length 1, and the same as an ONNX file.

usage: bench/random_encoder.py SHAPE VOCABULARY OUT    (needs numpy, onnx and safetensors)

SHAPE       minilm-l6 (6 layers, 384 wide) or bge-small (12 layers, 384 wide), both with 12 heads of 32
VOCABULARY  a directory with tokenizer.json, tokenizer_config.json and vocab.txt of bert-base-uncased
OUT         a new folder: a model directory with model.onnx in it, for bench/embeddings.py

The ONNX file has the operators that ONNX Runtime's optimizer for transformers makes of an export: one for
attention with Q, K and V together, one for a sum and its norm, one for a bias and gelu.
"""
import argparse
import json
import pathlib
import shutil

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file

LAYERS = {"minilm-l6": 6, "bge-small": 12}
HIDDEN, INNER, HEADS, POSITIONS, EPSILON = 384, 1536, 12, 512, 1e-12
TRANSFORMERS = "sentence_transformers.models."


def weights_of(num_layers, vocab_size):
    random = np.random.default_rng(1)
    weights = {}

    def add(name, *shape):
        scale = 1 / np.sqrt(shape[-1]) if len(shape) > 1 else 0.02
        weights[name] = (scale * random.standard_normal(shape)).astype(np.float32)

    def norm(name):
        weights[name + ".weight"] = (1 + 0.1 * random.standard_normal(HIDDEN)).astype(np.float32)
        add(name + ".bias", HIDDEN)

    for name, rows in (("word", vocab_size), ("position", POSITIONS), ("token_type", 2)):
        add(f"embeddings.{name}_embeddings.weight", rows, HIDDEN)
    norm("embeddings.LayerNorm")
    for i in range(num_layers):
        at = f"encoder.layer.{i}."
        for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            add(at + name + ".weight", HIDDEN, HIDDEN)
            add(at + name + ".bias", HIDDEN)
        norm(at + "attention.output.LayerNorm")
        add(at + "intermediate.dense.weight", INNER, HIDDEN)
        add(at + "intermediate.dense.bias", INNER)
        add(at + "output.dense.weight", HIDDEN, INNER)
        add(at + "output.dense.bias", HIDDEN)
        norm(at + "output.LayerNorm")
    return weights


class Graph:
    def __init__(self, weights):
        self.weights, self.nodes, self.constants = weights, [], {}

    def constant(self, name, value=None):
        self.constants[name] = numpy_helper.from_array(np.ascontiguousarray(
            self.weights[name] if value is None else value), name)
        return name

    def add(self, op, inputs, more=(), domain="com.microsoft", **attributes):
        out = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [out, *more], domain=domain, **attributes))
        return out

    def matmul(self, x, name):
        return self.add("MatMul", [x, self.constant(name + ".weight^T", self.weights[name + ".weight"].T)], domain="")

    def norm_of_sum(self, x, skip, norm, bias):
        return self.add("SkipLayerNormalization",
                        [x, skip, self.constant(norm + ".weight"), self.constant(norm + ".bias"),
                         self.constant(bias + ".bias")], epsilon=EPSILON)

    def layer(self, x, at):
        parts = [at + "attention.self." + name for name in ("query", "key", "value")]
        matrix = np.concatenate([self.weights[part + ".weight"].T for part in parts], axis=1)
        bias = np.concatenate([self.weights[part + ".bias"] for part in parts])
        mixed = self.add("Attention", [x, self.constant(at + "qkv", matrix), self.constant(at + "qkv.bias", bias), "mask"],
                         num_heads=HEADS)
        mixed = self.matmul(mixed, at + "attention.output.dense")
        x = self.norm_of_sum(mixed, x, at + "attention.output.LayerNorm", at + "attention.output.dense")
        inner = self.matmul(x, at + "intermediate.dense")
        inner = self.add("BiasGelu", [inner, self.constant(at + "intermediate.dense.bias")])
        return self.norm_of_sum(self.matmul(inner, at + "output.dense"), x, at + "output.LayerNorm", at + "output.dense")


def onnx_model(weights, num_layers):
    graph = Graph(weights)
    names = ("input_ids", "attention_mask", "token_type_ids")
    ids, mask, types = (graph.add("Cast", [name], domain="", to=TensorProto.INT32) for name in names)
    tables = [graph.constant(f"embeddings.{name}_embeddings.weight") for name in ("word", "position", "token_type")]
    norm = [graph.constant("embeddings.LayerNorm." + name) for name in ("weight", "bias")]
    x = graph.add("EmbedLayerNormalization", [ids, types, *tables, *norm, mask], ["mask_index"], epsilon=EPSILON)
    graph.nodes.append(helper.make_node("Identity", [mask], ["mask"]))
    for i in range(num_layers):
        x = graph.layer(x, f"encoder.layer.{i}.")
    graph.nodes.append(helper.make_node("Identity", [x], ["last_hidden_state"]))
    shape = ["batch", "length"]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in names]
    output = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [*shape, HIDDEN])
    made = helper.make_graph(graph.nodes, "bert", inputs, [output], list(graph.constants.values()))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(made, opset_imports=opsets, ir_version=9)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=LAYERS)
    parser.add_argument("vocabulary", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    args = parser.parse_args()
    num_layers = LAYERS[args.shape]
    (args.out / "1_Pooling").mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copy(args.vocabulary / name, args.out)
    vocab_size = len((args.vocabulary / "vocab.txt").read_text(encoding="utf-8").split("\n")) - 1
    weights = weights_of(num_layers, vocab_size)
    save_file(weights, args.out / "model.safetensors")
    (args.out / "config.json").write_text(json.dumps(dict(
        model_type="bert", architectures=["BertModel"], hidden_size=HIDDEN, intermediate_size=INNER,
        num_hidden_layers=num_layers, num_attention_heads=HEADS, max_position_embeddings=POSITIONS, type_vocab_size=2,
        vocab_size=vocab_size, layer_norm_eps=EPSILON, hidden_act="gelu", pad_token_id=0)))
    (args.out / "modules.json").write_text(json.dumps(
        [dict(idx=i, name=str(i), path=path, type=TRANSFORMERS + kind) for i, (path, kind) in
         enumerate((("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")))]))
    (args.out / "1_Pooling/config.json").write_text(json.dumps(
        dict(word_embedding_dimension=HIDDEN, pooling_mode_mean_tokens=True)))
    onnx.save(onnx_model(weights, num_layers), args.out / "model.onnx")


main()
