# SPDX-License-Identifier: Apache-2.0
"""Tiny random models, and what is written beside the checkpoints that other programs make of them.

formats.json has a row a checkpoint: scheme and base (BASES below), tokens of a prompt, files of logits (raw
fp32, [tokens][vocabulary]: "logits" with inputs of matrices as they are, "rounded" with inputs rounded as the
scheme says, where it says so), versions of the packages, and of each quantized matrix:
  shape, first, last  its first and last four decoded values, exact doubles
  digest              the sum of (2 i + 1) * bits of element i as fp64, row by row, modulo 2^64; -0 counts as 0
  divisor, divided    NVFP4 of compressed-tensors: shape, first, last and digest are of code * block scale, the
                      value is that over divisor, of which divided has the first four as fp64 rounds them
"decoded_type": "fp32" in a row: decoded values are rounded once to fp32. Scales of a KV cache are in some
checkpoints; no logits have a rounded cache.
"""
import contextlib
import importlib.metadata
import json
import pathlib
import shutil
import tempfile

import numpy as np
import tokenizers
import torch
import transformers
from safetensors.torch import load_file

HERE = pathlib.Path(__file__).resolve().parent
VOCAB, TOKENS = 71, 8
COMMON = dict(vocab_size=VOCAB, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
              max_position_embeddings=256, bos_token_id=0, eos_token_id=1, pad_token_id=2,
              tie_word_embeddings=True)
# name: (transformers class prefix, overrides of COMMON). The wide ones have whole groups and blocks of 128
# along K, llama-wide of blocks also a part of one along K and N.
BASES = {
    "llama": ("Llama", dict(hidden_size=64, intermediate_size=96, num_hidden_layers=1)),
    "qwen2": ("Qwen2", dict(hidden_size=64, intermediate_size=96, num_hidden_layers=1)),
    "qwen2-two": ("Qwen2", dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2)),
    "llama-wide": ("Llama", dict(hidden_size=128, intermediate_size=256, num_hidden_layers=1,
                                 num_attention_heads=8)),
    "qwen2-wide": ("Qwen2", dict(hidden_size=128, intermediate_size=128, num_hidden_layers=1,
                                 num_attention_heads=8)),
    "llama-part": ("Llama", dict(hidden_size=128, intermediate_size=160, num_hidden_layers=1,
                                 num_attention_heads=8)),
    "qwen3-moe": ("Qwen3Moe", dict(hidden_size=64, intermediate_size=64, moe_intermediate_size=32,
                                   num_hidden_layers=1, num_experts=3, num_experts_per_tok=2,
                                   norm_topk_prob=True)),
}


def build(base, dtype, seed, **overrides):
    """A model whose weights have the dtype's precision; rows and blocks differ in magnitude."""
    prefix, settings = BASES[base]
    config = getattr(transformers, prefix + "Config")(**{**COMMON, **settings, **overrides})
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    model = getattr(transformers, prefix + "ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            values = torch.randn_like(weight)
            if weight.dim() == 1 and "norm" in name:
                weight.copy_(1 + 0.2 * values)
            elif weight.dim() == 1:
                weight.copy_(0.2 * values)
            else:
                rows = torch.exp(0.5 * torch.randn(weight.shape[:-1]))[..., None]
                parts = torch.exp(0.5 * torch.randn((*weight.shape[:-1], weight.shape[-1] // 16)))
                weight.copy_(0.1 * values * rows * parts.repeat_interleave(16, -1))
    return model.to(dtype)


@contextlib.contextmanager
def saved(model):
    """The folder of a saved model with a tokenizer beside it: the packages want a place they can load from."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokenizer().save_pretrained(folder)
        yield folder


def prompt(seed):
    return torch.randint(3, VOCAB, (TOKENS,), generator=torch.Generator().manual_seed(seed))


def calibration(seed, count=8, length=32):
    """Rows of token ids as the packages' calibration takes them."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, VOCAB, (length,), generator=generator).tolist() for _ in range(count)]


def tokenizer():
    """One word a token: the packages ask for a tokenizer even where they are given token ids."""
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w3"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w2", eos_token="w1")


def digest(values):
    """As formats.json has it, in hexadecimal."""
    bits = (np.ascontiguousarray(values, np.float64).reshape(-1) + 0.0).view(np.uint64)
    odd = np.arange(bits.size, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    with np.errstate(over="ignore"):
        return f"{int((bits * odd).sum(dtype=np.uint64)):016x}"


def summary(values):
    """One decoded matrix as formats.json has it: exact doubles."""
    values = np.asarray(values, np.float64)
    flat = values.reshape(-1)
    return {"shape": list(values.shape), "digest": digest(values),
            "first": flat[:4].tolist(), "last": flat[-4:].tolist()}


def with_matrices(model, decoded):
    """The model in fp32 with decoded matrices, each element rounded once to fp32."""
    result = type(model)(model.config).eval().float()
    result.config._attn_implementation = "eager"
    result.load_state_dict({k: v.float() for k, v in model.state_dict().items()})
    with torch.no_grad():
        for name, values in decoded.items():
            target_of(result, name).copy_(torch.as_tensor(np.asarray(values, np.float64)))
    return result


def target_of(model, name):
    """The part of a parameter that a checkpoint's matrix is: transformers has an experts' in one tensor."""
    path, _, part = name.rpartition(".")
    if ".experts." not in path:
        return model.get_submodule(name).weight
    path, _, number = path.rpartition(".")
    experts = model.get_submodule(path)
    if part == "down_proj":
        return experts.down_proj[int(number)]
    return experts.gate_up_proj[int(number)].chunk(2)[("gate_proj", "up_proj").index(part)]


def round_expert_inputs(experts, hook):
    """The forward pass of transformers' experts with inputs of both products rounded by hook."""
    def forward(x, chosen, weights):
        (rounded,) = hook(None, (x,))
        out = torch.zeros_like(x)
        for choice in range(chosen.shape[1]):
            gate, up = torch.einsum("tk,tnk->tn", rounded,
                                    experts.gate_up_proj[chosen[:, choice]]).chunk(2, -1)
            (inner,) = hook(None, (experts.act_fn(gate) * up,))
            out += weights[:, choice, None] * torch.einsum(
                "tk,tnk->tn", inner, experts.down_proj[chosen[:, choice]])
        return out

    experts.forward = forward


def worst_error(model, decoded):
    """Largest root mean square of what decoded matrices miss of the model's, relative to theirs."""
    errors = []
    for name, values in decoded.items():
        weight = target_of(model, name).detach().double().numpy()
        errors.append(np.sqrt(np.mean((values - weight) ** 2) / np.mean(weight ** 2)))
    return max(errors)


def run(model, tokens):
    with torch.no_grad():
        return model(tokens[None]).logits[0].float().numpy()


def versions(*packages):
    return {p: importlib.metadata.version(p) for p in ("torch", "transformers", *packages)}


def clean(folder):
    """Only what describes the model stays, readable as text and without a tokenizer's or recipe's files."""
    for file in folder.iterdir():
        if file.name not in ("config.json", "hf_quant_config.json", "quant_config.json",
                             "quantize_config.json", "model.safetensors"):
            file.unlink() if file.is_file() else shutil.rmtree(file)
        else:
            file.chmod(0o644)


def write_row(name, scheme, base, tokens, decoded, logits, provenance, extra={}, **more):
    """logits: {ending of the file: array}. decoded: {matrix: fp64 values}; extra: more about each."""
    for ending, values in logits.items():
        values.astype(np.float32).tofile(HERE / f"{name}.{ending}.f32")
    path = HERE / "formats.json"
    rows = json.loads(path.read_text()) if path.exists() else {}
    rows[name] = {"scheme": scheme, "base": base, "tokens": tokens.tolist(), **more,
                  "logits": {k: f"{name}.{k}.f32" for k in logits},
                  "decoded": {k: summary(v) | extra.get(k, {}) for k, v in sorted(decoded.items())},
                  "made by": provenance}
    path.write_text("{\n" + ",\n".join(f"{json.dumps(key)}: " + lines(row) for key, row in sorted(rows.items()))
                    + "\n}\n")


def lines(row):
    """A row with one decoded matrix a line."""
    matrices = ",\n  ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in row["decoded"].items())
    rest = ",\n ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in row.items() if k != "decoded")
    return "{" + rest + ",\n \"decoded\": {\n  " + matrices + "}}"


def checkpoint(folder):
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors.update(load_file(file))
    return tensors
