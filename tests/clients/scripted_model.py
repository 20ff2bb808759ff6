# SPDX-License-Identifier: Apache-2.0
"""A model file whose model says what it is told, for `sluice serve` behind clients of others.

A user's text names a script ("case:NAME"); the chat template ends the prompt with the special token
of that script's turn, which is the number of answers since. From there the weights lead from
piece to piece: a piece's embedding is a unit vector, attention and feed-forward add nothing, and the
output row of the next piece points along it. Everything else is a vocabulary of bytes.
"""
import re
import struct

LAYERS, HEADS, FFN = 1, 2, 32
CONTEXT = 131072
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
END = CONTROL.index("<|im_end|>")
CERTAIN = 4.0  # weight of the next piece; the norm makes a logit of CERTAIN * sqrt(width) of it

TEMPLATE = """\
{%- set state = namespace(case='', turn=0) -%}
{%- if tools -%}
<tools>{% for tool in tools %}{{ tool | tojson }}
{% endfor %}</tools>
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>
{%- endif -%}
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{{ m.content }}
{%- for call in m.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor -%}
<|im_end|>
{% if m.role == 'assistant' %}{% set state.turn = state.turn + 1 %}{% endif -%}
{%- if m.role == 'user' and m.content -%}
{%- for name in [NAMES] -%}
{%- if 'case:' ~ name in m.content %}{% set state.case = name %}{% set state.turn = 0 %}{% endif -%}
{%- endfor -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% if state.case %}{{ '<|say:' ~ state.case ~ ':' ~ ([state.turn, LAST[state.case]] | min) ~ '|>' }}\
{% else %}<|say::0|>{% endif -%}
{%- endif -%}
"""


def byte_letters():
    """GPT-2's printable letter for every byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(256 + i) for i, b in enumerate(others)}}


LETTERS = byte_letters()


def template_of(scripts):
    names = ", ".join(f"'{name}'" for name in scripts)
    last = "{" + ", ".join(f"'{name}': {len(turns) - 1}" for name, turns in scripts.items()) + "}"
    return TEMPLATE.replace("[NAMES]", f"[{names}]").replace("LAST[", f"({last})[")


def pieces_of(text):
    return re.findall(r"\s*\S{1,12}|\s+$", text)


class Vocabulary:
    """Tokens and, for each that is part of a script, the one that follows."""

    def __init__(self, scripts):
        self.tokens = CONTROL + [LETTERS[b] for b in range(256)] + [LETTERS[32] + "t"]
        self.kinds = [3] * len(CONTROL) + [1] * 257
        self.follows = {}
        self.say("<|say::0|>", "Hello.")
        for name, turns in scripts.items():
            for turn, text in enumerate(turns):
                self.say(f"<|say:{name}:{turn}|>", text)

    def say(self, marker, text):
        at = self.add(marker, 3)
        for piece in pieces_of(text):
            following = self.add("".join(LETTERS[b] for b in piece.encode()), 1)
            self.follows[at] = following
            at = following
        self.follows[at] = END

    def add(self, token, kind):
        self.tokens.append(token)
        self.kinds.append(kind)
        return len(self.tokens) - 1


def tensors_of(vocabulary):
    """{name: (shape in GGUF's order, floats)}."""
    width = -(-len(vocabulary.follows) // 64) * 64 + 64
    size = len(vocabulary.tokens)
    embedding, output = [0.0] * (width * size), [0.0] * (width * size)
    axes = {token: axis for axis, token in enumerate(vocabulary.follows)}
    for token in range(size):
        axis = axes.get(token, width - 1)
        embedding[token * width + axis] = 1.0
        output[vocabulary.follows.get(token, END) * width + axis] = CERTAIN
    ones = ((width,), [1.0] * width)

    def zeros(columns, rows):
        return ((columns, rows), [0.0] * (columns * rows))
    return width, {
        "token_embd.weight": ((width, size), embedding),
        "blk.0.attn_norm.weight": ones, "blk.0.ffn_norm.weight": ones,
        "blk.0.attn_q.weight": zeros(width, width), "blk.0.attn_k.weight": zeros(width, width),
        "blk.0.attn_v.weight": zeros(width, width), "blk.0.attn_output.weight": zeros(width, width),
        "blk.0.ffn_gate.weight": zeros(width, FFN), "blk.0.ffn_up.weight": zeros(width, FFN),
        "blk.0.ffn_down.weight": zeros(FFN, width),
        "output_norm.weight": ones, "output.weight": ((width, size), output)}


def text_bytes(text):
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def value_bytes(value):
    """A metadata value with its type in front: u32, f32, bool, string, list of i32 or of strings."""
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + text_bytes(value)
    if isinstance(value[0], int):
        return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
    return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text_bytes, value))


def write_model(path, scripts):
    """Writes the model of {name: [what it says in each turn]} as GGUF."""
    vocabulary = Vocabulary(scripts)
    width, tensors = tensors_of(vocabulary)
    metadata = {
        "general.architecture": "llama", "general.name": "scripted", "llama.block_count": LAYERS,
        "llama.context_length": CONTEXT, "llama.embedding_length": width,
        "llama.feed_forward_length": FFN, "llama.attention.head_count": width // 64,
        "llama.attention.head_count_kv": width // 64, "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": 64, "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": len(vocabulary.tokens), "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.tokens": vocabulary.tokens,
        "tokenizer.ggml.token_type": vocabulary.kinds,
        "tokenizer.ggml.merges": [LETTERS[32] + " t"], "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": END, "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_space_prefix": False, "tokenizer.chat_template": template_of(scripts)}
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))
    head += b"".join(text_bytes(key) + value_bytes(value) for key, value in metadata.items())
    body = b""
    for name, (shape, floats) in tensors.items():
        head += text_bytes(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(body))
        body += struct.pack(f"<{len(floats)}f", *floats)
        body += bytes(-len(body) % 32)
    with open(path, "wb") as file:
        file.write(head + bytes(-len(head) % 32) + body)
