#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Renders conversations, as clients write them, with jinja2 under Hugging Face's settings.

Needs jinja2 and transformers. Writes message_goldens.json beside itself, from the templates in
message_templates.json and chatml.jinja. With --templates DIR it does the same for every *.jinja of
DIR, into --out FILE: run messages_test with SLUICE_MESSAGE_GOLDENS=FILE to compare those, and see
a table of what each template takes (--table).

What clients write is brought into form here by the rules that server/prompt/messages.h and
server/prompt/message_forms.h state, in Python, and by FORMS. FORMS was written down from what the server
found in the published templates, so it holds that fast and does not prove it; the forms of
message_templates.json were written with the templates. Where the result differs from what
transformers renders of the same conversation, the case says why: only the others are transformers'
own word.
"""
import argparse
import copy
import datetime
import json
import pathlib

import jinja2
import transformers
import transformers.utils.chat_template_utils as utils

HERE = pathlib.Path(__file__).parent
CLOCK = 1767323045  # 2026-01-02 03:04:05 UTC
TOKENS = {"bos_token": "<s>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}

# For templates that are not in message_templates.json. parts: roles that take them beside strings;
# developer: false where they are rendered as system; merged: of several instructions all join the
# first; late_lost: those behind other messages do, since they would not reach the prompt;
# text_arguments, object_arguments, null_content: what calls are wanted with.
SYSTEM = {"developer": False}
CHAT = ["system", "user", "assistant"]
FORMS = {
    "Apriel-1.6-15b-Thinker-fixed": {"parts": ["user"], **SYSTEM},
    "Bielik-11B-v3.0-Instruct": {"merged": True, "late_lost": True, **SYSTEM},
    "Cohere2MoE": {"parts": CHAT + ["tool"], **SYSTEM},
    "CohereForAI-c4ai-command-r-plus-tool_use": SYSTEM,
    "GLM-4.6": {"parts": CHAT, **SYSTEM},
    "GLM-4.7-Flash": {"parts": CHAT, "object_arguments": True, **SYSTEM},
    "HuggingFaceTB-SmolLM3-3B": {"merged": True, "late_lost": True, **SYSTEM},
    "Kimi-K2-Instruct": {"parts": "all"},
    "Mistral-Small-3.2-24B-Instruct-2506": {"parts": ["user", "assistant"], "merged": True,
                                            "late_lost": True, **SYSTEM},
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": SYSTEM,
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": SYSTEM,
    "Qwen-QwQ-32B": SYSTEM,
    "Qwen-Qwen2.5-7B-Instruct": SYSTEM,
    "Qwen-Qwen3-0.6B": SYSTEM,
    "Qwen3-Coder": {"object_arguments": True},
    "StepFun3.5-Flash": {"parts": CHAT + ["tool"], "object_arguments": True, **SYSTEM},
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": {"text_arguments": True, "null_content": True,
                                                 "merged": True, **SYSTEM},
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": {"merged": True, **SYSTEM},
    "deepseek-ai-DeepSeek-V3.1": SYSTEM,
    "deepseek-ai-DeepSeek-V3.2": {"object_arguments": True, **SYSTEM},
    "fireworks-ai-llama-3-firefunction-v2": SYSTEM,
    "google-gemma-2-2b-it": SYSTEM,
    "google-gemma-4-31B-it-interleaved": {"parts": ["user", "assistant", "tool", "other"]},
    "llama-cpp-deepseek-r1": {"merged": True, **SYSTEM},
    "llama-cpp-rwkv-world": {"merged": True, **SYSTEM},
    "microsoft-Phi-3.5-mini-instruct": SYSTEM,
    "mistralai-Mistral-Nemo-Instruct-2407": {"merged": True, "late_lost": True, **SYSTEM},
    "moonshotai-Kimi-K2": {"parts": CHAT + ["other", "developer"]},
    "openai-gpt-oss-120b": {"merged": True, "late_lost": True},
    "stepfun-ai-Step-3.5-Flash": {"parts": CHAT + ["tool"], "object_arguments": True, **SYSTEM},
    "unsloth-Apriel-1.5": {"parts": ["user"], **SYSTEM},
}


class FixedDatetime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.fromtimestamp(CLOCK, datetime.timezone.utc).replace(tzinfo=None)


def text(*texts):
    return [{"type": "text", "text": item} for item in texts]


def call(content="", **function):
    return {"role": "assistant", "content": content,
            "tool_calls": [{"id": "call12345", "type": "function",
                            "function": {"name": "f", **function}}]}


def conversations():
    user = {"role": "user", "content": "Hi"}
    answer = {"role": "tool", "tool_call_id": "call12345", "name": "f", "content": "3 °C"}
    reply = {"role": "assistant", "content": "Yes?"}
    system = {"role": "system", "content": "Brief."}
    arguments = {"town": "Oslo é", "days": 2, "f": 1.5, "o": {"k": [True, None]}, "s": "<'\"&>"}

    def after(message):
        return [user, message, answer]

    return {
        "plain": [system, user, reply, user],
        "no_calls": [user, {**reply, "tool_calls": []}, user],
        "null_fields": [{**system, "name": None},
                        {**user, "name": ""},
                        {**reply, "tool_calls": None, "function_call": None, "refusal": None,
                         "audio": None, "annotations": [], "name": None,
                         "reasoning_content": None}, user],
        "null_content": [user, {"role": "assistant", "content": None}, user],
        "null_user": [{"role": "user", "content": None}],
        "null_beside_call": after(call(None, arguments="{\"a\": 1}")),
        "empty_beside_call": after(call("", arguments="{\"a\": 1}")),
        "text_beside_call": after(call("Let me see.", arguments="{\"a\": 1}")),
        "absent_beside_call": after({k: v for k, v in call(arguments="{}").items()
                                     if k != "content"}),
        "null_in_call": after({**call(), "tool_calls": [
            {"id": "call12345", "index": None, "type": "function", "extra": [],
             "function": {"name": "f", "arguments": "{}", "description": None}}]}),
        "arguments_object": after(call(arguments=arguments)),
        "arguments_text": after(call(arguments=json.dumps(arguments, ensure_ascii=False))),
        "arguments_null_text": after(call(arguments="null")),
        "arguments_null": after(call(arguments=None)),
        "arguments_absent": after(call()),
        "arguments_empty": after(call(arguments=" ")),
        "arguments_cut": after(call(arguments="{\"town\": \"Os")),
        "arguments_list": after(call(arguments="[1, 2]")),
        "parts": [{"role": "user", "content": text("one", "two")}],
        "parts_everywhere": [{"role": "system", "content": text("be", "brief")},
                             {"role": "user", "content": text("one", " two ")},
                             {"role": "assistant", "content": text("three", "four")},
                             {"role": "user", "content": text("five")}],
        "parts_of_tool": [user, call(arguments="{}"), {**answer, "content": text("six", "seven")}],
        "no_parts": [user, {"role": "assistant", "content": []}, user],
        "developer": [{"role": "developer", "content": "Be brief."}, user],
        "developer_parts": [{"role": "developer", "content": text("Be", "brief.")}, user],
        "developer_second": [system, {"role": "developer", "content": "In rhyme."}, user],
        "developer_late": [system, user, reply, {"role": "developer", "content": "In rhyme."}, user],
        "developer_behind_user": [user, {"role": "developer", "content": "In rhyme."}],
        "two_systems": [system, {"role": "system", "content": "In rhyme."}, user],
        "ipython": [user, call(arguments="{}"), {"role": "ipython", "content": "7"}],
        "observation": [user, reply, {"role": "observation", "content": "8"}],
        "tool_response": [user, reply, {"role": "tool_response", "content": text("9", "10")}],
        "reasoning": [user, {**reply, "reasoning": "Hm."}, user],
        "thinking": [user, {**reply, "reasoning_content": None, "thinking": "Hm."}, user],
        "reasoning_and_call": after({**call(arguments="{}"), "reasoning_content": "Hm."}),
        "arguments_spaced": after(call(arguments="{\"a\":1,\"b\":[1,2.50]}")),
        "arguments_twice": after(call(arguments="{\"a\":1,\"b\":2,\"a\":3}")),
        "strange_role": [user, {"role": "king", "content": "No."}],
    }


def continued():
    user = {"role": "user", "content": "Hi"}
    return {
        "continue_space": [user, {"role": "assistant", "content": "Sure: "}],
        "continue_lines": [user, {"role": "assistant", "content": "\n Sure:\n\n"}],
        "continue_parts": [user, {"role": "assistant", "content": text("Well.", "Sure: ")}],
        "continue_thought": [user, {"role": "assistant", "content": "<think>\n\n</think>\n\n"}],
        "continue_thoughts": [user, {"role": "assistant",
                                     "content": "<think>\nok\n</think>\n\n"}],
        "continue_unicode": [user, {"role": "assistant", "content": "Sure:\u2003"}],
        "continue_plain": [user, {"role": "assistant", "content": "Sure"}],
    }


def is_empty(value):
    return value is None or value in ("", [], {})


def normal_arguments(value):
    if not isinstance(value, str):
        return {} if value is None else value
    if not value.strip():
        return {}
    try:
        parsed = json.loads(value)
    except ValueError:
        return value
    return {} if parsed is None else parsed if isinstance(parsed, dict) else value


REASONING = ("reasoning_content", "thinking", "reasoning")


def normal(message, text_arguments):
    reasoning = next((message[k] for k in REASONING if message.get(k) is not None), None)
    out = {k: v for k, v in message.items() if k in ("role", "content") or not is_empty(v)}
    out["content"] = message.get("content") if message.get("content") is not None else ""
    if not is_empty(reasoning):
        out = {"thinking": reasoning, **out, "reasoning_content": reasoning}
    for made in out.get("tool_calls", []):
        for key in [k for k, v in made.items() if k != "id" and is_empty(v)]:
            del made[key]
        function = made["function"]
        arguments = normal_arguments(function.get("arguments"))
        if text_arguments and isinstance(function.get("arguments"), str) and arguments != {}:
            arguments = function["arguments"]
        for key in [k for k, v in function.items()
                    if k not in ("arguments", "name") and is_empty(v)]:
            del function[key]
        function["arguments"] = arguments
    return out


def joined_instructions(messages, forms, why):
    """Instructions of which not all would reach the prompt, as one at the front."""
    instructions = [m for m in messages if m["role"] in ("system", "developer")]
    others = [m for m in messages if m["role"] not in ("system", "developer")]
    is_late = messages[:len(instructions)] != instructions
    if len(instructions) > 1:
        joins = forms.get("merged") or (is_late and forms.get("late_lost"))
    else:
        joins = is_late and forms.get("late_lost")
    if not joins:
        return messages
    why.add("instructions joined at the front")
    first = {**instructions[0], "content": "\n\n".join(m["content"] for m in instructions)}
    return [first] + others


def fitted(messages, forms, why):
    for message in messages:
        if message["role"] == "developer" and not forms.get("developer", True):
            message["role"] = "system"
            why.add("developer as system")
    out = joined_instructions(messages, forms, why)
    for message in out:
        fit_content(message, forms, why)
        for made in message.get("tool_calls", []):
            function = made["function"]
            if forms.get("text_arguments") and not isinstance(function["arguments"], str):
                function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
                why.add("arguments as text")
            if forms.get("object_arguments") and not isinstance(function["arguments"], dict):
                function["arguments"] = {"arguments": function["arguments"]}
                why.add("text of arguments in an object")
        if forms.get("null_content") and "tool_calls" in message and message["content"] == "":
            message["content"] = None
            why.add("null beside calls")
    return out


def fit_content(message, forms, why):
    known = set(CHAT) | {"tool", "developer"}
    role = message["role"] if message["role"] in known else "other"
    takes = lambda name: forms.get(name) == "all" or role in forms.get(name, [])
    if isinstance(message["content"], str) and takes("only_parts"):
        message["content"] = text(message["content"])
        why.add("string as a part")
    if isinstance(message["content"], list) and not takes("parts") and not takes("only_parts"):
        message["content"] = "\n".join(part["text"] for part in message["content"])
        why.add("parts joined")


def render(source, messages, **kwargs):
    try:
        template = utils._compile_jinja_template(source)
        # A filter that several serving engines add and some published templates use.
        template.environment.filters["from_json"] = json.loads
        rendered, _ = utils.render_jinja_template([messages], None, None, source, **kwargs, **TOKENS)
        return {"output": rendered[0]}
    except Exception as error:  # pylint: disable=broad-except
        return {"error": str(error)}


def case(source, forms, messages, **kwargs):
    why = set()
    sent = [{k: v for k, v in message.items() if v is not None}
            for message in copy.deepcopy(messages)]
    for message in sent:  # what a careful user of transformers does
        for made in message.get("tool_calls", []):
            made["function"]["arguments"] = normal_arguments(made["function"].get("arguments"))
    theirs = render(source, sent, **kwargs)
    ours = [normal(message, forms.get("text_arguments")) for message in copy.deepcopy(messages)]
    ours = fitted(ours, forms, why)
    wanted = render(source, ours, **kwargs)
    row = {"messages": messages, **kwargs, **wanted}
    if wanted != theirs:
        row["differs"] = sorted(why) or ["null or empty fields"]
    return row


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--templates", type=pathlib.Path)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "message_goldens.json")
    args = parser.parse_args()
    utils.datetime = FixedDatetime
    if args.templates:
        templates = {path.stem: {"source": path.read_text(), **FORMS.get(path.stem, {})}
                     for path in sorted(args.templates.glob("*.jinja"))}
    else:
        templates = json.loads((HERE / "message_templates.json").read_text())
        templates["chatml"] = {"source": (HERE / "chatml.jinja").read_text()}
    rows = []
    for name, forms in templates.items():
        mine = []
        for title, messages in conversations().items():
            mine.append({"name": title, **case(forms["source"], forms, messages,
                                               add_generation_prompt=True)})
        for title, messages in continued().items():
            mine.append({"name": title, **case(forms["source"], forms, messages,
                                               continue_final_message=True)})
        rows.append({"template": name, "source": forms["source"], "cases": mine})
        if args.table:
            failed = sum("error" in row for row in mine)
            differ = sorted({why for row in mine for why in row.get("differs", [])})
            print(f"{name} | {failed} errors | {', '.join(differ) or '-'}")
    document = {"provenance": f"jinja2 {jinja2.__version__}, transformers "
                              f"{transformers.__version__}, make_message_goldens.py",
                "clock": CLOCK, "templates": rows}
    args.out.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n")
    print(f"{sum(len(row['cases']) for row in rows)} cases")


main()
