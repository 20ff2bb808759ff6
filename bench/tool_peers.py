#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What vLLM's parsers make of the transcripts that this project's tests parse.

  SLUICE_RECORD_TRANSCRIPTS=FILE build/tests/server/server_parse_test
  python3 bench/tool_peers.py FILE TOKENIZER_JSON [--calls FAMILY] [--show N]

Needs vLLM's Python files, no GPU, and torch; TOKENIZER_JSON is a byte-level one, to which the
families' markers are added as tokens, and for the family openai must be that of gpt-oss. Each transcript goes through the parser that vLLM's server
composes for the family, whole and token by token, and is compared with the pieces that the test
found: reasoning and content without the white space around them, calls by name and by their
arguments as JSON, as text where they are none. A table counts for each family what agrees, and why
the rest does not:

  behind    vLLM drops text behind calls
  cut       the output was cut by its length
  broken    the call is no whole JSON, or has no end
  unknown   no tool of the name was declared, from which vLLM has types
  text      vLLM leaves markers in the content: it found no call, or an empty thought
  raised    its parser raised an exception
  other     none of these

--show prints that many differences of each kind.
"""
import argparse
import collections
import functools
import json
import os
import sys

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

from tokenizers import AddedToken, Tokenizer  # noqa: E402
from transformers import PreTrainedTokenizerFast  # noqa: E402
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest  # noqa: E402
from vllm.parser.parser_manager import ParserManager  # noqa: E402
from vllm.reasoning import ReasoningParserManager  # noqa: E402
from vllm.tool_parsers import ToolParserManager  # noqa: E402

# Tokens that vLLM's parsers look up by name, where transcripts spell them as text.
TOKENS = {
    "hermes": ["<tool_call>", "</tool_call>"],
    "qwen3_coder": ["<tool_call>", "</tool_call>"],
    "mimo": ["<tool_call>", "</tool_call>"],
    "seed_oss": ["<seed:tool_call>", "</seed:tool_call>", "<seed:think>", "</seed:think>"],
    "glm45": ["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
              "</arg_value>"],
    "granite": ["<|tool_call|>"],
    "granite4": ["<tool_call>", "</tool_call>"],
    "granite-20b-fc": ["<function_call>"],
    "jamba": ["<tool_calls>", "</tool_calls>"],
    "mistral": ["[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"],
    "deepseek_v3": ["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
                    "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"],
    "deepseek_v32": ["｜DSML｜"],
    "kimi_k2": ["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
                "<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>"],
    "kimi_k3": ["<|open|>", "<|sep|>", "<|close|>", "<|end_of_msg|>"],
    "minimax_m2": ["<minimax:tool_call>", "</minimax:tool_call>"],
    "llama3_json": ["<|python_tag|>"],
    "lfm2": ["<|tool_call_start|>", "<|tool_call_end|>"],
    "gemma4": ["<|tool_call>", "<tool_call|>", "<|\"|>", "<|channel>", "<channel|>", "<|turn>",
               "<turn|>", "<|tool_response>"],
    "functiongemma": ["<start_function_call>", "<end_function_call>", "<escape>"],
    "cohere_command3": ["<|START_ACTION|>", "<|END_ACTION|>", "<|START_THINKING|>",
                        "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>",
                        "<|START_TEXT|>", "<|END_TEXT|>"],
    "apertus": ["<|tools_prefix|>", "<|tools_suffix|>", "<|inner_prefix|>", "<|inner_suffix|>"],
    "internlm": ["<|action_start|>", "<|plugin|>", "<|action_end|>"],
    "gigachat3": ["<|role_sep|>", "<|message_sep|>", "<|function_call|>"],
    "longcat": ["<longcat_tool_call>", "</longcat_tool_call>"],
    "dots": ["<dots_function_call>", "</dots_function_call>"],
    "ernie45": ["<tool_call>", "</tool_call>", "<response>", "</response>"],
    "hy_v3": ["<tool_calls>", "</tool_calls>", "<tool_call>", "</tool_call>", "<tool_sep>",
              "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
    "step3": ["<｜tool_calls_begin｜>", "<｜tool_calls_end｜>", "<｜tool_call_begin｜>",
              "<｜tool_call_end｜>", "<｜tool_sep｜>"],
    "xlam": [],
}
TOKENS["glm47"] = TOKENS["glm45"]
TOKENS["deepseek_v31"] = TOKENS["deepseek_v3"]

THINKING = ["<think>", "</think>"]
BEGINS_THINKING = ("think>", "[THINK]", "<|channel", "|>think", "_THINKING|>", "thought process:",
                   "<response>", "<|message|>")
# Tokens that end a turn, which a server does not hand to its parsers.
ENDS = ("<|im_end|>", "<|message_sep|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "</s>",
        "<｜end▁of▁sentence｜>", "<turn|>", "[e~[", "<|observation|>", "<|end_of_msg|>", "<|eot|>")
KINDS = ("behind", "cut", "broken", "unknown", "text", "raised", "other")


@functools.cache
def make_tokenizer(path, names):
    tokenizer = Tokenizer.from_file(path)
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False)
                                  for name in names])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    vocabulary = fast.get_vocab()  # which each parser asks for
    fast.get_vocab = lambda: vocabulary
    return fast


def make_request(tools):
    functions = [{"type": "function", "function": {"name": name, "parameters": schema}}
                 for name, schema in (tools or {"get": {"type": "object"}}).items()]
    return ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "x"}],
                                 tools=functions, tool_choice="auto")


def token_texts(tokenizer, ids):
    """The text that each token adds, as a server's detokenizer gives it: whole characters."""
    given, begin = "", 0
    for end in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[begin:end], skip_special_tokens=False)
        if text.endswith("\ufffd") and end < len(ids):
            yield ids[end - 1], ""
            continue
        yield ids[end - 1], text[len(given):]
        given = text
        if len(ids[begin:end]) > 32:
            given, begin = "", end


def as_json(text):
    try:
        return json.loads(text)
    except ValueError:
        return "not JSON: " + text.strip()


def answer(reasoning, content, calls):
    return {"reasoning": (reasoning or "").strip(), "content": (content or "").strip(),
            "calls": [(name, as_json(arguments)) for name, arguments in calls]}


def ours(record):
    texts = {"reasoning": "", "content": ""}
    calls = []
    for kind, text, _ in record["pieces"]:
        if kind in texts:
            texts[kind] += text
        elif kind == "call":
            calls.append([text, ""])
        elif kind == "arguments":
            calls[-1][1] += text
    return answer(texts["reasoning"], texts["content"], calls)


def before_calls(record):
    """Content in front of the first call, or all where there is none."""
    text = ""
    for kind, part, _ in record["pieces"]:
        if kind == "call":
            break
        if kind == "content":
            text += part
    return text.strip()


def whole(parser, request, record, ids):
    reasoning, content, calls = parser.parse(record["text"], request, enable_auto_tools=True,
                                             model_output_token_ids=ids)
    return answer(reasoning, content, [(call.name, call.arguments) for call in calls or []])


def streamed(parser, request, tokenizer, record, ids):
    reasoning, content, calls = "", "", {}
    prompt = tokenizer.encode(record["prompt_tail"], add_special_tokens=False)
    pairs = list(token_texts(tokenizer, ids))
    for at, (token, text) in enumerate(pairs):
        delta = parser.parse_delta(text, [token], request, prompt, finished=at + 1 == len(pairs))
        if delta is None:
            continue
        reasoning += delta.reasoning or ""
        content += delta.content or ""
        for call in delta.tool_calls or []:
            entry = calls.setdefault(call.index, ["", ""])
            if call.function is not None:
                entry[0] += call.function.name or ""
                entry[1] += call.function.arguments or ""
    return answer(reasoning, content, [calls[index] for index in sorted(calls)])


def without_end(text):
    for end in ENDS:
        text = text.removesuffix(end)
    return text


def kind_of(record, found, expected, text_before):
    """Why the two differ; None: they do not."""
    if found == expected:
        return None
    if record["is_cut"]:
        return "cut"
    same_calls = found["calls"] == expected["calls"]
    if same_calls and found["content"] == text_before and expected["calls"]:
        return "behind"
    is_broken = any(isinstance(arguments, str) for _, arguments in expected["calls"])
    if is_broken or record["pieces"] and record["pieces"][-1][0] == "arguments":
        return "broken"
    if any(name not in (record["tools"] or {}) for name, _ in expected["calls"]):
        return "unknown"
    markers = record["specials"] + TOKENS.get(record["calls"], []) + THINKING
    marked = [marker for marker in markers if marker in found["content"] + found["reasoning"]]
    return "text" if marked else "other"


def main():
    arguments = argparse.ArgumentParser(description=__doc__,
                                        formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("transcripts")
    arguments.add_argument("tokenizer")
    arguments.add_argument("--calls")
    arguments.add_argument("--show", type=int, default=0)
    options = arguments.parse_args()
    groups = collections.defaultdict(dict)
    with open(options.transcripts, encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            if record["parses_calls"] and (not options.calls or record["calls"] == options.calls):
                groups[record["calls"]][line] = record
    print(f"{'family':18} {'outputs':>8}  {'way':8} {'agree':>6} "
          + " ".join(f"{kind:>8}" for kind in KINDS))
    for calls, records in sorted(groups.items()):
        if calls not in ToolParserManager.lazy_parsers:
            print(f"{calls:18} {len(records):8}  not in vLLM")
            continue
        report(calls, list(records.values()), options)


def report(calls, records, options):
    counts = {way: collections.Counter() for way in ("whole", "streamed")}
    shown = collections.Counter()
    for record in records:
        # Without reasoning in the output, some of vLLM's parsers take all of it for that.
        reasoning = record["reasoning"]
        has_reasoning = any(mark in record["text"] + record["prompt_tail"]
                            for mark in BEGINS_THINKING)
        if reasoning not in ReasoningParserManager.lazy_parsers or not has_reasoning:
            reasoning = None
        names = record["specials"] + TOKENS.get(calls, []) + THINKING
        tokenizer = make_tokenizer(options.tokenizer, tuple(dict.fromkeys(names)))
        request = make_request(record["tools"])
        record["text"] = without_end(record["text"])
        ids = tokenizer.encode(record["text"], add_special_tokens=False)
        expected = ours(record)
        text_before = before_calls(record)
        for way, count in counts.items():
            try:
                parser = ParserManager._compose_parser(
                    calls, reasoning, True, None, calls == "openai", None, tokenizer)(
                        tokenizer, request.tools)
                found = (whole(parser, request, record, ids) if way == "whole" else
                         streamed(parser, request, tokenizer, record, ids))
                kind = kind_of(record, found, expected, text_before)
            except Exception as error:  # what a parser raises is part of what is measured
                found, kind = repr(error), "raised"
            count[kind or "agree"] += 1
            shown[way, kind] += 1
            if kind and shown[way, kind] <= options.show:
                print(f"  {calls} {way} {kind}: {record['text']!r}\n    vLLM: {found!r}\n"
                      f"    ours: {expected!r}")
    for way, count in counts.items():
        print(f"{calls:18} {len(records):8}  {way:8} {count['agree']:6} "
              + " ".join(f"{count[kind]:8}" for kind in KINDS), flush=True)


if __name__ == "__main__":
    sys.exit(main())
