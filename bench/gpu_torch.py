#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch's side of gpu_peers.py: a Llama's decode step with a static cache, attention of prompts.
One JSON object a line, each as soon as it is known, so that what comes before a failure counts.

  python3 gpu_torch.py decode|attention [--device cpu] [--tokens N] [--lengths 512,2048]

--device cpu takes a small shape, to see that it works.
"""
import argparse
import json
import math
import statistics
import sys
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
SMALL = dict(SHAPE, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, head_dim=64, vocab_size=1024)
PROMPT = 32    # tokens before the first that is timed, here and in Sluice's request
CONTEXT = 512  # of the static cache, all of which each step reads: no more than a request has


def say(**values):
    print(json.dumps(values), flush=True)


class Llama:
    """Weights and caches of the shape, and a decode step over them.

    What a CUDA graph replays has to be where it was: token and position are tensors that a step
    writes the next ones into. A layer is a function of its tensors, not a module: 32 layers are
    then one compiled graph, in the time that one takes to compile."""

    def __init__(self, torch, shape, device):
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
            (ones(), weight((heads + 2 * kv_heads) * dim, hidden), weight(hidden, heads * dim),
             ones(), weight(2 * ffn, hidden), weight(hidden, ffn), cache(), cache())
            for _ in range(shape["num_hidden_layers"])]
        self.embedding = weight(vocab, hidden)
        self.head = weight(vocab, hidden)
        self.norm = ones()
        frequency = shape["rope_theta"]**(-torch.arange(0, dim, 2, device=device).float() / dim)
        angle = torch.outer(torch.arange(CONTEXT, device=device).float(), frequency)
        self.cos, self.sin = angle.cos(), angle.sin()
        self.positions = torch.arange(CONTEXT, device=device)
        self.token = torch.zeros(1, dtype=torch.long, device=device)
        self.position = torch.zeros(1, dtype=torch.long, device=device)

    def restart(self):
        self.token.zero_()
        self.position.fill_(PROMPT)

    def parts(self, grouped):
        """The functions of a step. grouped: query heads of one KV head as rows of one product, the
        mask broadcast; else SDPA is told to repeat KV heads."""
        torch, shape = self.torch, self.shape
        functional = torch.nn.functional
        heads, kv_heads = shape["num_attention_heads"], shape["num_key_value_heads"]
        dim, eps, dtype = shape["head_dim"], shape["rms_norm_eps"], self.dtype

        def normed(values, scale):
            return functional.rms_norm(values, values.shape[-1:], scale, eps)

        def begin(token, position, embedding, cos, sin, positions):
            mask = (positions <= position)[None, None, None, :]
            return embedding[token], cos[position], sin[position], mask

        def layer(x, cos, sin, mask, position,
                  norm, qkv, out, mlp_norm, gate_up, down, keys, values):
            def rotated(rows):
                a, b = rows.float().chunk(2, dim=-1)
                return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(dtype)

            rows = functional.linear(normed(x, norm), qkv).view(-1, dim)
            q, k, v = rows.split((heads, kv_heads, kv_heads))
            keys.index_copy_(2, position, rotated(k)[None, :, None])
            values.index_copy_(2, position, v[None, :, None])
            if grouped:
                q = rotated(q).view(1, kv_heads, heads // kv_heads, dim)
                seen = functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
            else:
                seen = functional.scaled_dot_product_attention(
                    rotated(q)[None, :, None], keys, values, attn_mask=mask, enable_gqa=True)
            x = x + functional.linear(seen.reshape(1, -1), out)
            gate, up = functional.linear(normed(x, mlp_norm), gate_up).chunk(2, -1)
            return x + functional.linear(functional.silu(gate) * up, down)

        def end(x, norm, head):
            return functional.linear(normed(x, norm), head).argmax(-1)

        return begin, layer, end

    def step_of(self, compiled, grouped):
        begin, layer, end = self.parts(grouped)
        if compiled:
            begin, layer, end = (self.torch.compile(f, dynamic=False, fullgraph=True)
                                 for f in (begin, layer, end))

        def step():
            x, cos, sin, mask = begin(self.token, self.position, self.embedding, self.cos, self.sin,
                                      self.positions)
            for tensors in self.layers:
                x = layer(x, cos, sin, mask, self.position, *tensors)
            self.token.copy_(end(x, self.norm, self.head))
            self.position.add_(1)

        return step

    def synchronize(self):
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def recorded(self, step):
        """The step as a CUDA graph's replay, or itself; and what that is."""
        torch = self.torch
        if self.device != "cuda":
            return step, ""
        try:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    step()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            return graph.replay, ", in a CUDA graph"
        except RuntimeError as error:
            print(f"no CUDA graph: {error}", file=sys.stderr, flush=True)
            torch.cuda.synchronize()
            return step, ", launched (no CUDA graph)"

    def tokens_per_second(self, step, count):
        """The median of three answers, after one that does not count."""
        times = []
        for _ in range(4):
            self.restart()
            self.synchronize()
            begin = time.perf_counter()
            for _ in range(count):
                step()
            self.synchronize()
            times.append(time.perf_counter() - begin)
        return count / statistics.median(times[1:])


def decode(torch, device, tokens):
    """Eager first: it needs no compiler, and is a figure should compiling fail."""
    if PROMPT + tokens > CONTEXT:
        raise SystemExit(f"gpu_torch.py: at most {CONTEXT - PROMPT} tokens")
    # Products of one row become reductions of their own in place of cuBLAS's, and tuned.
    torch._inductor.config.coordinate_descent_tuning = device == "cuda"
    llama = Llama(torch, SHAPE if device == "cuda" else SMALL, device)
    failed = False
    for compiled, grouped in ((False, True), (True, True), (True, False)):
        name = "compiled" if compiled else "eager"
        name += ", grouped queries" if grouped else ", enable_gqa"
        try:
            llama.restart()
            step = llama.step_of(compiled, grouped)
            for _ in range(3):
                step()  # compiled
            step, how = llama.recorded(step)
            say(compiled=compiled, how=name + how,
                tokens_per_second=llama.tokens_per_second(step, tokens))
        except Exception as error:  # the other ways still count
            failed = True
            print(f"{name}: {error}", file=sys.stderr, flush=True)
    return 1 if failed else 0


def sdpa_seconds(torch, device, calls):
    """Of one call: all of them recorded into a CUDA graph, the median of its replays."""
    if device != "cuda":
        begin = time.perf_counter()
        for call in calls:
            call()
        return (time.perf_counter() - begin) / len(calls)
    calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(12):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times[1:]) / len(calls)


def attention(torch, device, lengths):
    """One prompt, causal, by each backend that takes it. KV of so many calls in turn that nothing
    of the first is left in the L2 cache, as gpu_kernels does."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    shape = SHAPE if device == "cuda" else SMALL
    backends = {"FLASH_ATTENTION": SDPBackend.FLASH_ATTENTION,
                "CUDNN_ATTENTION": SDPBackend.CUDNN_ATTENTION}
    if device != "cuda":
        backends = {"MATH": SDPBackend.MATH}
    for length in lengths:
        def rows(heads):
            return torch.randn(1, heads, length, shape["head_dim"], device=device,
                               dtype=torch.bfloat16)

        heads, kv_heads = shape["num_attention_heads"], shape["num_key_value_heads"]
        l2 = 0
        if device == "cuda":
            l2 = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 60 << 20)
        bytes_of_kv = 4 * kv_heads * length * shape["head_dim"]
        copies = min(256, max(20, math.ceil(8 * l2 / bytes_of_kv)))
        q = rows(heads)
        caches = [(rows(kv_heads), rows(kv_heads)) for _ in range(copies)]
        for name, backend in backends.items():
            try:
                with sdpa_kernel([backend]):
                    calls = [lambda k=k, v=v: torch.nn.functional.scaled_dot_product_attention(
                        q, k, v, is_causal=True, enable_gqa=True) for k, v in caches]
                    say(length=length, how=name, us=1e6 * sdpa_seconds(torch, device, calls))
            except RuntimeError as error:
                print(f"{name} at {length}: {error}", file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("decode", "attention"))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tokens", type=int, default=CONTEXT - PROMPT)
    parser.add_argument("--lengths", default="512,2048,8192")
    options = parser.parse_args()
    try:
        import torch
        import torch._inductor.config
    except ImportError as error:
        raise SystemExit(f"no torch: {error}") from error
    name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(f"torch {torch.__version__} on {name}", file=sys.stderr, flush=True)
    with torch.no_grad():
        if options.what == "decode":
            raise SystemExit(decode(torch, options.device, options.tokens))
        attention(torch, options.device, [int(n) for n in options.lengths.split(",")])


if __name__ == "__main__":
    main()
