#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A GPU's figures beside torch and cuBLASLt, in turns in one run: decode and prefill of a model of
8B's shape with random weights, attention of prompts, what the GPU waits for the host, joules a token.
No GPU has run it yet.

  python3 gpu_peers.py --bin FOLDER --tokenizer tokenizer.json [--rounds N]

FOLDER has `sluice` and `gpu_kernels` (bin/ of the archive that deploy/gpu_archive.sh makes); any
tokenizer of at most 128256 tokens does. Needs torch with CUDA, and 16 GB of disk. --device cpu runs
torch's side alone on a small shape, to see that it works.
"""
import argparse
import ctypes
import json
import math
import os
import pathlib
import random
import shutil
import statistics
import struct
import subprocess
import tempfile
import time

# Llama 3 8B.
SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
INT8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True,
                        "dynamic": False},
            "input_activations": {"num_bits": 8, "type": "int", "strategy": "token",
                                  "symmetric": True, "dynamic": True},
        }
    },
}
SMALL = dict(SHAPE, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, head_dim=64, vocab_size=1024)
CONTEXT = 1024  # of torch's static cache; Sluice's longest request is as long


def weight_bytes(shape):
    """Of what a decode step reads, in BF16: everything but the embedding's other rows."""
    width = shape["num_attention_heads"] * shape["head_dim"]
    kv = shape["num_key_value_heads"] * shape["head_dim"]
    hidden, ffn = shape["hidden_size"], shape["intermediate_size"]
    layer = hidden * (2 * width + 2 * kv) + 3 * hidden * ffn
    return 2 * (shape["num_hidden_layers"] * layer + hidden * shape["vocab_size"])


class Energy:
    """Joules of the first GPU since its driver was loaded, by NVML; None where it does not say."""

    def __init__(self):
        self.device = ctypes.c_void_p()
        try:
            self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            self.nvml = None
            return
        if self.nvml.nvmlInit_v2() or self.nvml.nvmlDeviceGetHandleByIndex_v2(
                0, ctypes.byref(self.device)):
            self.nvml = None

    def joules(self):
        total = ctypes.c_ulonglong()
        if self.nvml is None or self.nvml.nvmlDeviceGetTotalEnergyConsumption(
                self.device, ctypes.byref(total)):
            return None
        return total.value / 1e3


class Sluice:
    def __init__(self, folder, programs, tokenizer):
        self.program = programs / "sluice"
        self.tokenizer = tokenizer
        self.models = {}
        for name, more in (("bf16", {}), ("int8", {"quantization_config": INT8})):
            model = folder / name
            model.mkdir()
            (model / "config.json").write_text(json.dumps({**SHAPE, **more}))
            shutil.copy(tokenizer, model / "tokenizer.json")
            self.models[name] = model
        self.out = folder / "out.json"

    def bench(self, model, prefill, output_len):
        self.run(self.models[model], "--load-format", "dummy", "--prefill", prefill, "--prompt-len", 32,
                 "--output-len", output_len, "--json", self.out)
        return json.loads(self.out.read_text())


    def first_token_seconds(self):
        """From the start of a process to the end of two answers of one token and two of two, the file
        in the page cache: somewhat more than the first token takes."""
        model = self.models["bf16"].parent / "file"
        if not model.exists():
            write_model(model, self.tokenizer)
        begin = time.perf_counter()
        self.run(model, "--prefill", 16, "--prompt-len", 16, "--output-len", 2)
        return time.perf_counter() - begin

    def run(self, model, *options):
        command = [self.program, "bench", model, "--device", "cuda", "--max-num-batched-tokens", 8192,
                   "--concurrency", 1, "--rounds", 1, *options]
        # The archive's libraries are sluice's own, and not for torch.
        environment = dict(os.environ, LD_LIBRARY_PATH=str(self.program.parent.parent / "lib"))
        subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL,
                       env=environment)


def write_model(folder, tokenizer):
    """A safetensors file of the shape, 16 GB, of small numbers."""
    hidden, ffn, vocab = SHAPE["hidden_size"], SHAPE["intermediate_size"], SHAPE["vocab_size"]
    width = SHAPE["num_attention_heads"] * SHAPE["head_dim"]
    kv = SHAPE["num_key_value_heads"] * SHAPE["head_dim"]
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,),
              "lm_head.weight": (vocab, hidden)}
    for layer in range(SHAPE["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        shapes.update({
            at + "input_layernorm.weight": (hidden,),
            at + "post_attention_layernorm.weight": (hidden,),
            at + "self_attn.q_proj.weight": (width, hidden),
            at + "self_attn.k_proj.weight": (kv, hidden),
            at + "self_attn.v_proj.weight": (kv, hidden),
            at + "self_attn.o_proj.weight": (hidden, width),
            at + "mlp.gate_proj.weight": (ffn, hidden),
            at + "mlp.up_proj.weight": (ffn, hidden),
            at + "mlp.down_proj.weight": (hidden, ffn)})
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    # BF16 of about 0.01, of both signs.
    words = [struct.pack("<H", sign << 15 | 0x3C00 | fraction) for sign in (0, 1)
             for fraction in range(128)]
    piece = b"".join(random.choices(words, k=1 << 22))
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SHAPE))
    shutil.copy(tokenizer, folder / "tokenizer.json")
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for at in range(0, end, len(piece)):
            file.write(piece[:end - at])


def kernels_of(programs, out):
    """gpu_kernels' figures, and its text."""
    text = subprocess.run([programs / "gpu_kernels", out], check=True, capture_output=True,
                          text=True).stdout
    return json.loads(out.read_text()), text


class Torch:
    """Llama with a static cache, its decode step compiled, as torch runs it fastest."""

    def __init__(self, shape, device):
        import torch

        self.torch = torch
        self.shape = shape
        self.device = device
        self.dtype = torch.bfloat16
        heads, kv_heads = shape["num_attention_heads"], shape["num_key_value_heads"]
        dim, hidden = shape["head_dim"], shape["hidden_size"]
        ffn, vocab = shape["intermediate_size"], shape["vocab_size"]

        def weight(n, k):
            return torch.randn(n, k, device=device, dtype=self.dtype) / math.sqrt(k)

        def ones():
            return torch.ones(hidden, device=device, dtype=self.dtype)

        def cache():
            return torch.zeros(1, kv_heads, CONTEXT, dim, device=device, dtype=self.dtype)

        self.layers = [
            {"norm": ones(), "qkv": weight((heads + 2 * kv_heads) * dim, hidden),
             "out": weight(hidden, heads * dim), "mlp_norm": ones(),
             "gate_up": weight(2 * ffn, hidden), "down": weight(hidden, ffn),
             "k": cache(), "v": cache()}
            for _ in range(shape["num_hidden_layers"])]
        self.embedding = weight(vocab, hidden)
        self.head = weight(vocab, hidden)
        self.norm = ones()
        frequency = shape["rope_theta"]**(-torch.arange(0, dim, 2, device=device).float() / dim)
        angle = torch.outer(torch.arange(CONTEXT, device=device).float(), frequency)
        self.cos, self.sin = angle.cos(), angle.sin()
        self.positions = torch.arange(CONTEXT, device=device)

    def step(self, token, position):
        """token, position: [1]. The next token."""
        torch, shape = self.torch, self.shape
        heads, kv_heads = shape["num_attention_heads"], shape["num_key_value_heads"]
        dim, eps = shape["head_dim"], shape["rms_norm_eps"]
        functional = torch.nn.functional
        x = self.embedding[token]
        cos, sin = self.cos[position], self.sin[position]
        mask = (self.positions <= position)[None, None, None, :]

        def normed(values, scale):
            return functional.rms_norm(values, values.shape[-1:], scale, eps)

        def rotated(values):
            a, b = values.float().chunk(2, dim=-1)
            return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(self.dtype)

        for layer in self.layers:
            qkv = functional.linear(normed(x, layer["norm"]), layer["qkv"]).view(-1, dim)
            q, k, v = qkv.split((heads, kv_heads, kv_heads))
            layer["k"][0].index_copy_(1, position, rotated(k)[:, None])
            layer["v"][0].index_copy_(1, position, v[:, None])
            seen = functional.scaled_dot_product_attention(
                rotated(q)[None, :, None], layer["k"], layer["v"], attn_mask=mask,
                enable_gqa=True)
            x = x + functional.linear(seen.reshape(1, -1), layer["out"])
            gate, up = functional.linear(normed(x, layer["mlp_norm"]), layer["gate_up"]).chunk(2, -1)
            x = x + functional.linear(functional.silu(gate) * up, layer["down"])
        return functional.linear(normed(x, self.norm), self.head).argmax(-1)

    def synchronize(self):
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def tokens_per_second(self, count):
        torch = self.torch
        mode = "reduce-overhead" if self.device == "cuda" else "default"
        step = torch.compile(self.step, mode=mode, fullgraph=True)
        with torch.inference_mode():
            token = torch.zeros(1, dtype=torch.long, device=self.device)
            position = torch.full((1,), 32, dtype=torch.long, device=self.device)
            for _ in range(8):  # compiled and captured
                token = step(token, position).clone()
                position += 1
            self.synchronize()
            begin = time.perf_counter()
            for _ in range(count):
                token = step(token, position).clone()
                position += 1
            self.synchronize()
        return count / (time.perf_counter() - begin)

    def attention_us(self, length):
        """One prompt of that many tokens, causal; the median of 20 after 3."""
        torch, shape = self.torch, self.shape

        def rows(heads):
            return torch.randn(1, heads, length, shape["head_dim"], device=self.device,
                               dtype=self.dtype)

        q = rows(shape["num_attention_heads"])
        k, v = rows(shape["num_key_value_heads"]), rows(shape["num_key_value_heads"])
        times = []
        for _ in range(23):
            self.synchronize()
            begin = time.perf_counter()
            torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True,
                                                             enable_gqa=True)
            self.synchronize()
            times.append(time.perf_counter() - begin)
        return 1e6 * statistics.median(times[3:])


def spread(values):
    return f"{statistics.median(values):.4g} [{min(values):.4g}, {max(values):.4g}]"


def report(name, values, asked):
    print(f"| {name} | {spread(values)} | {asked} |", flush=True)


def compare(options):
    import torch

    programs = pathlib.Path(options.bin)
    peer = Torch(SHAPE, "cuda")
    energy = Energy()
    figures = {}

    def note(name, value):
        figures.setdefault(name, []).append(value)

    with tempfile.TemporaryDirectory() as folder:
        sluice = Sluice(pathlib.Path(folder), programs, options.tokenizer)
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
        for _ in range(options.rounds):
            kernels, text = kernels_of(programs, pathlib.Path(folder) / "kernels.json")
            read = kernels["read_bytes_per_second"]
            theirs = peer.tokens_per_second(options.tokens)
            ours = sluice.bench("bf16", 512, options.tokens)["decode"][0]
            rate = ours["tokens_per_second"]
            note("decode, tokens/s", rate)
            note("decode / torch.compile", rate / theirs)
            note("decode / read rate", rate * weight_bytes(SHAPE) / read)
            note("idle us a step", ours["device_idle_us_per_step"])
            for row in kernels["attention"]["decode"]:
                if row["context"] == 4096:
                    note(f"attention of {row['requests']} behind 4096 / read rate", row["of_read"])
            for row in kernels["attention"]["prefill"]:
                length = row["tokens"]
                note(f"attention of {length} / SDPA", peer.attention_us(length) / row["us"])
            note("INT8 at 2048 rows / cuBLASLt, the least", min(
                row["cublaslt_us"] / row["us"] for row in kernels["linear"]
                if row["type"] == "INT8" and row["rows"] == 2048))
            note("INT8 prefill of 2048, tokens/s",
                 sluice.bench("int8", 2048, 8)["prefill"][0]["tokens_per_second"])
            # What loading and prompts take is in both, and in neither's difference.
            before = energy.joules()
            sluice.bench("bf16", 16, options.tokens)
            between = energy.joules()
            sluice.bench("bf16", 16, 3 * options.tokens)
            after = energy.joules()
            if before is not None:
                rounds = 2  # the one that does not count, too
                joules = (after - between) - (between - before)
                note("tokens a joule", rounds * 2 * options.tokens / joules)
            note("first token of 16 GB, s", sluice.first_token_seconds())
        print("\n| figure | median [least, most] | asked |\n|---|---|---|")
        asked = {"decode / torch.compile": ">= 1.1", "decode / read rate": ">= 0.75",
                 "idle us a step": "<= 20", "first token of 16 GB, s": "<= 4",
                 "INT8 at 2048 rows / cuBLASLt, the least": ">= 0.9"}
        for name in figures:
            if name.startswith("attention"):
                asked[name] = ">= 0.75" if "SDPA" in name else ">= 0.85"
        for name, values in figures.items():
            report(name, values, asked.get(name, ""))
        print("\ngpu_kernels of the last round:\n")
        print(text)


def try_on_cpu(options):
    peer = Torch(SMALL, "cpu")
    print(f"decode {peer.tokens_per_second(options.tokens):.1f} tokens/s, "
          f"attention of 128 {peer.attention_us(128):.0f} us")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin")
    parser.add_argument("--tokenizer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    if options.device == "cpu":
        return try_on_cpu(options)
    if not options.bin or not options.tokenizer:
        parser.error("--bin and --tokenizer are wanted")
    compare(options)


if __name__ == "__main__":
    main()
