#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tiny INT8 W8A8 checkpoints in compressed-tensors' spelling and the logits torch computes.

    pip install torch transformers compressed-tensors numpy && python make_w8a8.py

<name>/            config.json and model.safetensors; quantization_config comes from the
                   compressed-tensors package's own classes
<name>.logits.f32  raw float32 [tokens, vocabulary] of an eager float32 forward pass in which every
                   quantized Linear gets the decoded weights and inputs that were rounded to int8
                   with one scale per token (largest magnitude / 127, as serving engines have it)
w8a8.json          one row per model: tokens, provenance

Weights are random with a fixed seed. Their codes and scales are made by compressed-tensors.
"""
import importlib.metadata
import json
import pathlib
import shutil

import numpy as np
import torch
import transformers
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import quantize
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent
VOCAB, TOKENS = 71, 40
COMMON = dict(vocab_size=VOCAB, hidden_size=40, intermediate_size=72, num_hidden_layers=2,
              num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=256,
              initializer_range=0.2, bos_token_id=0, eos_token_id=1, pad_token_id=2,
              tie_word_embeddings=False)
# name: (transformers class prefix, overrides, type of scales and floats, scales' shape, names of
#        Linears that stay floats, whether config.json is in the older spelling)
MODELS = {
    "llama-w8a8": ("Llama", dict(), torch.bfloat16, "column", ["lm_head"], False),
    "llama-w8a8-old": ("Llama", dict(attention_bias=True), torch.float32, "row", [], True),
    "qwen3-w8a8": ("Qwen3", dict(tie_word_embeddings=True), torch.float16, "column", ["lm_head"], False),
    "phi3-w8a8": ("Phi3", dict(num_attention_heads=2, num_key_value_heads=1, head_dim=20), torch.bfloat16,
                  "column", ["lm_head"], False),
    "gemma3-w8a8": ("Gemma3Text", dict(tie_word_embeddings=True, sliding_window=12,
                                       query_pre_attn_scalar=16,
                                       layer_types=["sliding_attention", "full_attention"]),
                    torch.bfloat16, "column", ["lm_head"], False),
    # With a tokenizer beside it, a model for tests of the whole engine.
    "engine-w8a8": ("Llama", dict(vocab_size=440, hidden_size=64, max_position_embeddings=2048,
                                  tie_word_embeddings=True), torch.bfloat16, "column", ["lm_head"], False),
    "engine-experts-w8a8": ("Qwen3Moe", dict(
        vocab_size=440, hidden_size=64, max_position_embeddings=2048, tie_word_embeddings=True,
        num_experts=5, num_experts_per_tok=2, moe_intermediate_size=40, norm_topk_prob=True),
        torch.bfloat16, "column", ["lm_head", "re:.*mlp.gate$"], False),
}
WEIGHTS = QuantizationArgs(num_bits=8, type="int", strategy="channel", symmetric=True, dynamic=False)
INPUTS = QuantizationArgs(num_bits=8, type="int", strategy="token", symmetric=True, dynamic=True)


def round_inputs(_, inputs):
    """A Linear's input as int8 with one scale per token, decoded again."""
    x = inputs[0]
    scale = x.abs().amax(dim=-1, keepdim=True) / 127
    codes = torch.round(x * (1 / scale)).clamp(-127, 127)
    return (codes * scale,)


def encode(rows, kind):
    """Codes and scales [rows, 1] of a matrix."""
    scale, zero = calculate_qparams(rows.amin(1, keepdim=True), rows.amax(1, keepdim=True), WEIGHTS)
    scale = scale.to(kind)
    return quantize(rows, scale.float(), zero, WEIGHTS, dtype=torch.int8).contiguous(), scale


def quantize_experts(experts, key, kind, stored):
    """Experts, which transformers has in one tensor: stored one by one, computed with rounded inputs."""
    for name in ("gate_up_proj", "down_proj"):
        stored.pop(f"{key}.{name}")
        matrices = getattr(experts, name)
        for i in range(experts.num_experts):
            parts = zip(("gate_proj", "up_proj"), matrices[i].chunk(2)) if name == "gate_up_proj" else [
                (name, matrices[i])]
            for part, rows in parts:
                codes, scale = encode(rows, kind)
                stored[f"{key}.{i}.{part}.weight"] = codes
                stored[f"{key}.{i}.{part}.weight_scale"] = scale
                rows.copy_(codes.float() * scale.float())

    def forward(x, chosen, weights):
        (rounded,) = round_inputs(None, (x,))
        out = torch.zeros_like(x)
        for choice in range(chosen.shape[1]):
            gate, up = torch.einsum("tk,tnk->tn", rounded, experts.gate_up_proj[chosen[:, choice]]).chunk(2, -1)
            (inner,) = round_inputs(None, (experts.act_fn(gate) * up,))
            out += weights[:, choice, None] * torch.einsum(
                "tk,tnk->tn", inner, experts.down_proj[chosen[:, choice]])
        return out

    experts.forward = forward


def quantization_config(ignore):
    config = QuantizationConfig(
        config_groups={"group_0": QuantizationScheme(targets=["Linear"], weights=WEIGHTS,
                                                     input_activations=INPUTS)},
        format="int-quantized", quantization_status="compressed", ignore=ignore)
    return json.loads(config.model_dump_json())


def make(name, seed):
    prefix, overrides, kind, shape, ignore, is_old = MODELS[name]
    config = getattr(transformers, prefix + "Config")(**{**COMMON, **overrides})
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    model = getattr(transformers, prefix.removesuffix("Text") + "ForCausalLM")(config).eval().float()
    stored = {}
    with torch.no_grad():
        for key, weight in model.named_parameters():
            offset = 1.0 if weight.dim() == 1 and "norm" in key and "gemma" not in config.model_type else 0.0
            weight.copy_((offset + 0.2 * torch.randn_like(weight)).to(kind).float())
            stored[key] = weight.to(kind).clone()
        for key, module in model.named_modules():
            if key.endswith(".experts"):
                quantize_experts(module, key, kind, stored)
            if not isinstance(module, torch.nn.Linear) or key in ignore:
                continue
            codes, scale = encode(module.weight, kind)
            stored[key + ".weight"] = codes
            stored[key + ".weight_scale"] = scale if shape == "column" else scale.reshape(-1)
            module.weight.copy_(codes.float() * scale.float())
            module.register_forward_pre_hook(round_inputs)
        if config.tie_word_embeddings:
            stored.pop("lm_head.weight", None)
        tokens = torch.randint(3, VOCAB, (TOKENS,), generator=torch.Generator().manual_seed(seed))
        logits = model(tokens[None]).logits[0].float().numpy()
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    settings = json.loads(config.to_json_string(use_diff=False))
    settings = {k: v for k, v in settings.items() if k in COMMON or k in overrides or k in (
        "model_type", "architectures", "rms_norm_eps", "rope_parameters", "hidden_act",
        "hidden_activation", "sliding_window", "attention_bias", "mlp_bias", "layer_types",
        "num_local_experts")}
    key = "compression_config" if is_old else "quantization_config"
    settings[key] = quantization_config(ignore)
    if is_old:
        settings[key]["quantization_status"] = "frozen"
    (folder / "model.safetensors").chmod(0o644)
    (folder / "config.json").write_text(json.dumps(settings, indent=1) + "\n")
    logits.astype(np.float32).tofile(HERE / f"{name}.logits.f32")
    return {"name": name, "directory": name, "tokens": tokens.tolist()}


def main():
    rows = [make(name, 100 + i) for i, name in enumerate(MODELS)]
    versions = {p: importlib.metadata.version(p) for p in ("torch", "transformers", "compressed-tensors",
                                                           "numpy")}
    document = {"script": "tests/golden/w8a8/make_w8a8.py", **versions, "models": rows}
    (HERE / "w8a8.json").write_text(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()
