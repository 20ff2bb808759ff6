#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Greedy continuations of SmolLM2-135M-Instruct by transformers, from the dequantized GGUF weights.

usage: make_goldens.py SmolLM2-135M-Instruct.Q4_1.gguf

Writes greedy.json beside this file: for each prompt its token ids and the 64 token ids that
transformers generates greedily in float32. Needs transformers, torch and gguf; the tests read only
the result. Prompts are chat prompts through the model's own template and plain text.
"""
import hashlib
import json
import pathlib
import sys

import torch
import transformers

CHAT = [
    "What is the capital of France?",
    "Explain in two sentences why the sky is blue.",
    "Write a short poem about the sea.",
    "List three uses of a paper clip.",
    "How do I boil an egg?",
    "Translate 'good morning' into Spanish.",
    "What is 17 plus 25?",
    "Give me a name for a cat and say why.",
    "Summarize the story of Romeo and Juliet.",
    "Write a Python function that reverses a string.",
    "Who wrote The Origin of Species?",
    "What should I pack for a weekend in the mountains?",
    "Tell me a joke about computers.",
    "What causes the seasons?",
]
TEXT = [
    "The history of the printing press begins",
    "Once upon a time, in a small village by the river,",
    "def fibonacci(n):\n",
    "Water boils at 100 degrees Celsius because",
    "The quick brown fox jumps over the lazy dog. The",
    "In 1969, the first humans",
]
NEW_TOKENS = 64


def main():
    path = pathlib.Path(sys.argv[1])
    torch.set_grad_enabled(False)
    kwargs = {"gguf_file": path.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, **kwargs)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, dtype=torch.float32, **kwargs
    )
    model.eval()
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
        )
        for text in CHAT
    ] + TEXT
    rows = []
    for prompt in prompts:
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        sequence = torch.tensor([ids])
        out = []
        cache = None
        margin = float("inf")
        for _ in range(NEW_TOKENS):
            result = model(sequence, past_key_values=cache, use_cache=True)
            cache = result.past_key_values
            best = torch.topk(result.logits[0, -1], 2)
            margin = min(margin, float(best.values[0] - best.values[1]))
            out.append(int(best.indices[0]))
            sequence = torch.tensor([[out[-1]]])
        rows.append({"prompt": ids, "output": out, "smallest_margin": round(margin, 6)})
        print(len(rows), margin, repr(tokenizer.decode(out))[:70], flush=True)
    result = {
        "provenance": {
            "model": path.name,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "method": "float32, greedy, end tokens ignored",
        },
        "rows": rows,
    }
    target = pathlib.Path(__file__).with_name("greedy.json")
    target.write_text(json.dumps(result, separators=(",", ":")) + "\n")


main()
