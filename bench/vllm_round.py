#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One round of vLLM's CPU build, in process: prefill and decode as `sluice bench` times them.

usage: bench/vllm_round.py MODEL_DIR --prefill 512 --concurrency 1,8,32 --context 32
                           --output-len 96 --threads 2

For bench/peers.py, by the Python that has vLLM. Prints
{"prefill 512": tokens/s, "decode c=1": ...}.

Prefill is P / (time of one request of P random tokens for one token). Decode is C * (N - M) tokens
over the time of C requests of N tokens less that of C others of M: what comes before the first
tokens is in both. BF16; no prefix cache; end tokens are ignored. A directory with a config.json
alone has random weights, which take the same time.
"""
import argparse
import json
import os
import random
import time


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--concurrency", default="1,8,32")
    parser.add_argument("--context", type=int, default=32)
    parser.add_argument("--output-len", type=int, default=96)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    concurrency = [int(c) for c in args.concurrency.split(",")]

    # Read when vLLM is imported. One core for each thread, which is its advice.
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{args.threads - 1}")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm import LLM, SamplingParams

    longest = max(args.prefill, args.context + args.output_len) + 16
    stored = any(name.endswith(".safetensors") for name in os.listdir(args.model))
    llm = LLM(model=args.model, load_format="auto" if stored else "dummy", skip_tokenizer_init=True,
              dtype="bfloat16", max_model_len=longest, max_num_seqs=max(concurrency),
              enable_prefix_caching=False,
              max_num_batched_tokens=max(longest, args.context * max(concurrency)))
    ids = random.Random(1)

    def seconds(count, length, tokens):
        prompts = [{"prompt_token_ids": [ids.randrange(1000, 20000) for _ in range(length)]}
                   for _ in range(count)]
        sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True,
                                  detokenize=False)
        start = time.perf_counter()
        llm.generate(prompts, sampling, use_tqdm=False)
        return time.perf_counter() - start

    seconds(1, args.prefill, 2)
    figures = {f"prefill {args.prefill}": args.prefill / seconds(1, args.prefill, 1)}
    few = max(args.output_len // 8, 1)
    for c in concurrency:
        seconds(c, args.context, 2)
        short, long = (seconds(c, args.context, n) for n in (few, args.output_len))
        figures[f"decode c={c}"] = c * (args.output_len - few) / (long - short)
    print(json.dumps(figures))


# vLLM starts its engine as a process that imports this file again.
if __name__ == "__main__":
    main()
