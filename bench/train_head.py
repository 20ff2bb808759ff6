#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains an EAGLE-3 head for a small Llama model in a GGUF file, so that the path of heads is measured
with one that predicts.

usage: bench/train_head.py data  --model FILE --data FILE.jsonl [--sluice build/sluice] [--samples 1200]
       bench/train_head.py train --model FILE --data FILE.jsonl --out FOLDER [--epochs 3] [--minutes 25]
       pip install torch safetensors gguf==0.19.0 numpy

`data`: the model asks itself. It goes on from the beginning of a user's turn, then answers its own
question, half of them at temperature 0 and half at 1. Answers that repeat themselves (less than half
of their runs of four tokens differ) are left out: guessing repetitions would flatter a head. One of 16
samples is held out.

`train`: the model's hidden states over all samples, by PyTorch in F32 over the file's weights, then the
head: tokens that are most frequent in the data, a loss over --steps unrolled steps (from the second on the
head reads its own state, and attention sees the true prefix and the head's own rows), AdamW. Prints how
often the head's first guess is the token of the held-out answers that were made at temperature 0, and
writes config.json and model.safetensors for --speculative-config '{"method":"eagle3","model":FOLDER}'.

Nothing of it is in the repository: the head takes some minutes on two cores.
"""
import argparse
import collections
import concurrent.futures
import json
import pathlib
import random
import time
import urllib.request

SYSTEM = ("<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
          "<|im_end|>\n")
OPENINGS = ("How", "What", "Why", "When", "Where", "Who", "Which", "Write", "Explain", "Describe", "List",
            "Give", "Can you", "Could you", "I need", "I want", "Create", "Tell me", "Is it", "Compare",
            "Summarize", "In", "My", "The", "A", "Help me", "Translate", "Find", "Name", "Suppose")
HELD_OUT = 16  # one of so many samples


# --- Data ------------------------------------------------------------------------------------


def post(url, path, body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as reply:
        return json.load(reply)


def complete(url, prompt, num_tokens, temperature, seed):
    body = {"prompt": prompt, "max_tokens": num_tokens, "temperature": temperature, "seed": seed,
            "stop": ["<|im_end|>"], "return_token_ids": True}
    return post(url, "/v1/completions", body)["choices"][0]


def is_varied(tokens):
    runs = [tuple(tokens[i:i + 4]) for i in range(len(tokens) - 3)]
    return len(runs) >= 8 and 2 * len(set(runs)) >= len(runs)


def sample(url, number, num_tokens):
    """A question of the model's own and its answer; None: not worth learning."""
    opening = random.Random(number).choice(OPENINGS)
    question = opening + complete(url, SYSTEM + "<|im_start|>user\n" + opening, 40, 1, number)["text"]
    prompt = f"{SYSTEM}<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    temperature = number // HELD_OUT % 2
    answer = complete(url, prompt, num_tokens, temperature, number)
    if not is_varied(answer["token_ids"]):
        return None
    return {"number": number, "temperature": temperature, "prompt": answer["prompt_token_ids"],
            "answer": answer["token_ids"]}


def make_data(args):
    from served import Server
    args.concurrency = 32
    server = Server(args)
    num_kept = 0
    try:
        with concurrent.futures.ThreadPoolExecutor(args.concurrency) as pool, open(
                args.data, "w", encoding="utf-8") as file:
            for row in pool.map(lambda n: sample(server.url, n, args.tokens), range(args.samples)):
                if row:
                    file.write(json.dumps(row) + "\n")
                    num_kept += 1
    finally:
        server.stop()
    print(f"{num_kept} samples of {args.samples}")


# --- The model that is guessed for -----------------------------------------------------------


class Target:
    """A Llama model of a GGUF file, which keeps query and key rows in interleaved order."""

    def __init__(self, path):
        import gguf
        reader = gguf.GGUFReader(path)
        field = lambda name: reader.fields[f"llama.{name}"].contents()
        self.num_layers, self.hidden = field("block_count"), field("embedding_length")
        self.ffn, self.heads = field("feed_forward_length"), field("attention.head_count")
        self.kv_heads, self.theta = field("attention.head_count_kv"), field("rope.freq_base")
        self.eps = field("attention.layer_norm_rms_epsilon")
        self.head_dim = self.hidden // self.heads
        self.w = {t.name: torch.from_numpy(gguf.quants.dequantize(t.data, t.tensor_type).copy()).float()
                  for t in reader.tensors}
        for i in range(self.num_layers):
            for name, count in (("q", self.heads), ("k", self.kv_heads)):
                key = f"blk.{i}.attn_{name}.weight"
                rows = self.w[key].view(count, self.head_dim // 2, 2, self.hidden)
                self.w[key] = rows.transpose(1, 2).reshape(-1, self.hidden).contiguous()
        self.taps = (2, self.num_layers // 2, self.num_layers - 3)

    def states(self, tokens):
        """What enters the layers `taps` and, normed, the output layer: [length, 4 * hidden]."""
        w, kept, length = self.w, [], len(tokens)
        x = w["token_embd.weight"][tokens]
        turn = rotation(length, self.head_dim, self.theta)
        for i in range(self.num_layers):
            if i in self.taps:
                kept.append(x)
            normed = rms_norm(x, w[f"blk.{i}.attn_norm.weight"], self.eps)
            q, k, v = ((normed @ w[f"blk.{i}.attn_{n}.weight"].T).view(length, -1, self.head_dim).transpose(0, 1)
                       for n in "qkv")
            mixed = F.scaled_dot_product_attention(turned(q, turn), turned(k, turn), v, is_causal=True,
                                                   enable_gqa=True)
            x = x + mixed.transpose(0, 1).reshape(length, -1) @ w[f"blk.{i}.attn_output.weight"].T
            normed = rms_norm(x, w[f"blk.{i}.ffn_norm.weight"], self.eps)
            gate = F.silu(normed @ w[f"blk.{i}.ffn_gate.weight"].T)
            x = x + (gate * (normed @ w[f"blk.{i}.ffn_up.weight"].T)) @ w[f"blk.{i}.ffn_down.weight"].T
        kept.append(rms_norm(x, w["output_norm.weight"], self.eps))
        return torch.cat(kept, -1)

    def output(self):
        return self.w.get("output.weight", self.w["token_embd.weight"])


def rms_norm(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotation(length, head_dim, theta, first=0):
    inverse = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angles = torch.arange(first, first + length)[:, None] * inverse
    return angles.cos().float(), angles.sin().float()


def turned(x, turn):
    """The halves of the last dimension, rotated; rows are the one before."""
    low, high = x.chunk(2, -1)
    cos, sin = turn
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


# --- The head --------------------------------------------------------------------------------


class Head:
    def __init__(self, target, ids):
        self.t, hidden = target, target.hidden
        last = f"blk.{target.num_layers - 1}."
        w = target.w
        wide = lambda name: torch.cat([torch.zeros_like(w[last + name]), w[last + name]], 1)
        self.w = {
            "fc.weight": torch.cat([torch.zeros(hidden, 2 * hidden), torch.eye(hidden)], 1),
            "midlayer.input_layernorm.weight": torch.ones(hidden),
            "midlayer.hidden_norm.weight": w[last + "attn_norm.weight"].clone(),
            "midlayer.post_attention_layernorm.weight": w[last + "ffn_norm.weight"].clone(),
            "midlayer.self_attn.q_proj.weight": wide("attn_q.weight"),
            "midlayer.self_attn.k_proj.weight": wide("attn_k.weight"),
            "midlayer.self_attn.v_proj.weight": wide("attn_v.weight"),
            "midlayer.self_attn.o_proj.weight": w[last + "attn_output.weight"].clone(),
            "midlayer.mlp.gate_proj.weight": w[last + "ffn_gate.weight"].clone(),
            "midlayer.mlp.up_proj.weight": w[last + "ffn_up.weight"].clone(),
            "midlayer.mlp.down_proj.weight": w[last + "ffn_down.weight"].clone(),
            "norm.weight": w["output_norm.weight"].clone(),
            "lm_head.weight": target.output()[ids].clone(),
        }
        for value in self.w.values():
            value.requires_grad_(True)

    def step(self, embedded, hidden, before, number):
        """Rows of samples side by side, [samples, length, ...]: their states, and keys and values of all
        steps so far. `before`: those of earlier steps; row i of step n sees rows up to i of the first
        step and row i of each later one."""
        w, t = self.w, self.t
        shape = (*hidden.shape[:2], -1, t.head_dim)
        h = hidden @ w["fc.weight"].T if number == 0 else hidden
        x = torch.cat([rms_norm(embedded, w["midlayer.input_layernorm.weight"], t.eps),
                       rms_norm(h, w["midlayer.hidden_norm.weight"], t.eps)], -1)
        q, k, v = ((x @ w[f"midlayer.self_attn.{n}_proj.weight"].T).view(shape).transpose(1, 2) for n in "qkv")
        turn = rotation(h.shape[1], t.head_dim, t.theta, first=number)
        q, k = turned(q, turn), turned(k, turn)
        groups = t.heads // t.kv_heads
        rows = before + [(k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1))]
        scale = t.head_dim ** -0.5
        causal = torch.ones(h.shape[1], h.shape[1], dtype=torch.bool).tril()
        scores = (q @ rows[0][0].transpose(-1, -2) * scale).masked_fill(~causal, float("-inf"))
        own = [(q * keys).sum(-1, keepdim=True) * scale for keys, _ in rows[1:]]
        shares = torch.cat([scores, *own], -1).softmax(-1)
        length = h.shape[1]
        mixed = shares[..., :length] @ rows[0][1]
        for i, (_, values) in enumerate(rows[1:]):
            mixed = mixed + shares[..., length + i:length + i + 1] * values
        y = h + mixed.transpose(1, 2).flatten(2) @ w["midlayer.self_attn.o_proj.weight"].T
        z = rms_norm(y, w["midlayer.post_attention_layernorm.weight"], t.eps)
        gate = F.silu(z @ w["midlayer.mlp.gate_proj.weight"].T)
        out = y + (gate * (z @ w["midlayer.mlp.up_proj.weight"].T)) @ w["midlayer.mlp.down_proj.weight"].T
        return out, rows

    def logits(self, states):
        return rms_norm(states, self.w["norm.weight"], self.t.eps) @ self.w["lm_head.weight"].T

    def write(self, folder, ids, num_target_tokens):
        from safetensors.torch import save_file
        folder.mkdir(parents=True, exist_ok=True)
        t = self.t
        config = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": t.hidden,
                  "intermediate_size": t.ffn, "num_hidden_layers": 1, "num_attention_heads": t.heads,
                  "num_key_value_heads": t.kv_heads, "head_dim": t.head_dim, "rms_norm_eps": t.eps,
                  "rope_theta": t.theta, "max_position_embeddings": 8192, "vocab_size": num_target_tokens,
                  "draft_vocab_size": len(ids), "tie_word_embeddings": False, "hidden_act": "silu",
                  "norm_before_residual": False,
                  "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(t.taps)}}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        tensors = {name: value.detach().bfloat16().contiguous() for name, value in self.w.items()}
        tensors["d2t"] = ids - torch.arange(len(ids))
        tensors["t2d"] = torch.zeros(num_target_tokens, dtype=torch.bool).index_fill(0, ids, True)
        save_file(tensors, folder / "model.safetensors")


# --- Training --------------------------------------------------------------------------------


class Sample:
    """Row i reads the state of token i and the embedding of i + 1, and guesses token i + 2."""

    def __init__(self, row, target):
        tokens = torch.tensor(row["prompt"] + row["answer"])
        self.temperature, self.is_held_out = row["temperature"], row["number"] % HELD_OUT == 0
        self.tokens, self.num_prompt = tokens, len(row["prompt"])
        self.states = target.states(tokens).half()


def batch_of(samples, length):
    """Padded at the end: what follows a row is not seen by it."""
    tokens = torch.stack([F.pad(s.tokens, (0, length - len(s.tokens))) for s in samples])
    states = torch.stack([F.pad(s.states, (0, 0, 0, length - len(s.tokens))) for s in samples]).float()
    guessed = torch.zeros(len(samples), length, dtype=torch.bool)
    for row, s in zip(guessed, samples):
        row[s.num_prompt:len(s.tokens)] = True
    return tokens, states, guessed


def losses(head, samples, known, num_steps):
    """Of each step: the mean cross entropy to the target's own distribution over the head's tokens, and
    how often the best guess is the token that came."""
    target, hidden = head.t, head.t.hidden
    length = max(len(s.tokens) for s in samples)
    tokens, states, guessed = batch_of(samples, length)
    num_rows = length - 1 - num_steps
    h, before, result = states[:, :num_rows, :3 * hidden], [], []
    for step in range(num_steps):
        embedded = target.w["token_embd.weight"][tokens[:, step + 1:step + 1 + num_rows]]
        h, before = head.step(embedded, h, before, step)
        counts = guessed[:, step + 2:step + 2 + num_rows]
        logits = head.logits(h[counts])
        final = states[:, step + 1:step + 1 + num_rows, 3 * hidden:][counts]
        with torch.no_grad():
            wanted = (final @ known["output"].T).softmax(-1)
        came = known["of"][tokens[:, step + 2:step + 2 + num_rows][counts]]
        right = logits.argmax(-1) == came
        loss = -(wanted * logits.log_softmax(-1)).sum(-1).mean()
        result.append((loss, right.float().sum(), len(came)))
    return result


def held_out_acceptance(head, samples, known, num_steps):
    right, total = [0.0] * num_steps, [0] * num_steps
    with torch.no_grad():
        for i in range(0, len(samples), 4):
            for step, (_, hits, count) in enumerate(losses(head, samples[i:i + 4], known, num_steps)):
                right[step] += float(hits)
                total[step] += count
    return [r / max(t, 1) for r, t in zip(right, total)]


def train(args):
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    begin = time.process_time()
    target = Target(args.model)
    rows = [json.loads(line) for line in open(args.data, encoding="utf-8")]
    counts = collections.Counter(t for row in rows if row["number"] % HELD_OUT for t in row["answer"])
    ids = torch.tensor(sorted(t for t, _ in counts.most_common(args.vocabulary)))
    num_target_tokens = target.output().shape[0]
    known = {"output": target.output()[ids],
             "of": torch.full((num_target_tokens,), -1).index_copy(0, ids, torch.arange(len(ids)))}
    with torch.no_grad():
        samples = [Sample(row, target) for row in rows]
    held_out = [s for s in samples if s.is_held_out and s.temperature == 0]
    learned = [s for s in samples if not s.is_held_out]
    print(f"{len(learned)} samples, {sum(len(s.tokens) for s in learned)} tokens, {len(ids)} of them differ; "
          f"states after {time.process_time() - begin:.0f} s", flush=True)
    head = Head(target, ids)
    optimiser = torch.optim.AdamW(head.w.values(), lr=args.rate, betas=(0.9, 0.95), weight_decay=0.01)
    num_batches = args.epochs * len(learned) // args.batch
    shares = lambda: " ".join(f"{share:.3f}" for share in held_out_acceptance(head, held_out, known, args.steps))
    print(f"held out, at temperature 0, before: {shares()}", flush=True)
    order = []
    for epoch in range(args.epochs):
        order += random.Random(args.seed + epoch).sample(learned, len(learned))
    for number in range(num_batches):
        spent = (time.process_time() - begin) / 60 / args.minutes
        progress = max((number + 1) / num_batches, spent)  # the rate falls to 0 by then
        if spent >= 1:
            break
        warmth = min(1, (number + 1) / 20)
        for group in optimiser.param_groups:
            group["lr"] = args.rate * warmth * 0.5 * (1 + math.cos(math.pi * min(progress, 1)))
        chosen = order[number * args.batch:(number + 1) * args.batch]
        loss = sum(0.8 ** step * value for step, (value, _, _) in
                   enumerate(losses(head, chosen, known, args.steps)))
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.w.values(), 0.5)
        optimiser.step()
        if (number + 1) % 25 == 0:
            print(f"batch {number + 1} of {num_batches}, {time.process_time() - begin:.0f} s, loss {loss.item():.3f}, "
                  f"held out {shares()}", flush=True)
            head.write(pathlib.Path(args.out), ids, num_target_tokens)
    head.write(pathlib.Path(args.out), ids, num_target_tokens)
    print(f"held out, at temperature 0, by position: {shares()}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("data", "train"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--sluice", default="build/sluice")
    parser.add_argument("--samples", type=int, default=1200)
    parser.add_argument("--tokens", type=int, default=128, help="of each answer, at most")
    parser.add_argument("--out")
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=8, help="samples")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--minutes", type=float, default=25, help="of one thread, states and training, at most")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.what == "data":
        make_data(args)
    elif not args.out:
        raise SystemExit("train needs --out")
    else:
        train(args)


if __name__ == "__main__":
    import sys
    if "train" in sys.argv[1:2]:
        import math
        import torch
        import torch.nn.functional as F
    main()
