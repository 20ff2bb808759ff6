#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes deepseek_v32.json: conversations and the prompts that the code published with DeepSeek V3.2
makes of them.

    python make_encoding_goldens.py encoding_dsv32.py [tools.py]

The module is encoding/encoding_dsv32.py beside the weights of deepseek-ai/DeepSeek-V3.2. It was made
with the copy in the package sglang 0.5.23 (srt/entrypoints/openai), which has lost the empty lines of
TOOLS_SYSTEM_TEMPLATE; these came from the second module, mlx-lm 0.32.2's chat_templates/deepseek_v32.py,
whose text is that of the published test_output.txt.
"""
import hashlib
import importlib.util
import json
import pathlib
import sys


def load(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tool(name, properties, description="A tool."):
    return {"type": "function", "function": {
        "name": name, "description": description,
        "parameters": {"type": "object", "properties": properties, "required": [*properties]}}}


TOOLS = [tool("get_date", {}, "Heute, auf \"Käse\""),
         tool("get_weather", {"city": {"type": "string"}, "days": {"type": "integer"}})]


def says(role, content, **more):
    return {"role": role, "content": content, **more}


def calls(*made, content="", **more):
    return says("assistant", content, tool_calls=[
        {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, (name, arguments) in enumerate(made)], **more)


def answers(*texts):
    return [says("tool", text, tool_call_id=f"call_{i}") for i, text in enumerate(texts)]


WEATHER = ("get_weather", {"city": "Ulm \"an\" der <Donau>", "days": 2, "exact": True, "none": None, "where": [1.5, {"a": "ä"}],
                           "empty": ""})
SYSTEM = says("system", "You help.")
FIRST = [says("user", "What is the weather?"),
         calls(("get_date", {}), reasoning_content="First the date."), *answers("2026-01-02"),
         calls(WEATHER, WEATHER, content="Now the weather.", reasoning_content="Then the weather."),
         *answers("sun", "{\"temperature\": 3}")]
DONE = [*FIRST, says("assistant", "It is sunny.", reasoning_content="Both are there.")]
FORMAT = {"type": "object", "properties": {"a": {"type": "string"}}}

# Messages, and whether they come with tools.
CONVERSATIONS = [
    ([says("user", "Hello")], False),
    ([SYSTEM, says("user", "Hello")], False),
    ([says("user", "Hello")], True),
    ([SYSTEM, says("user", "Hello")], True),
    ([SYSTEM, says("user", "One"), says("assistant", "1", reasoning_content="Easy."), says("user", "Two")], False),
    (FIRST, True),
    ([SYSTEM, *FIRST], True),
    ([SYSTEM, *DONE], True),
    ([SYSTEM, *DONE, says("user", "And tomorrow?")], True),
    ([SYSTEM, *DONE, says("user", "And tomorrow?"), calls(WEATHER, reasoning_content="Again."), *answers("rain")], True),
    ([SYSTEM, *DONE, *FIRST[:3]], True),
    ([*FIRST[:4], FIRST[4]], True),  # one of two results
    ([says("user", "One"), SYSTEM, says("user", "Two")], True),
    ([SYSTEM, says("system", "And more.", response_format=FORMAT), says("user", "Hello")], False),
    ([says("system", "Own.", tools=TOOLS[:1]), says("user", "Hello")], False),
    ([SYSTEM, says("developer", "Find it.")], False),
    ([SYSTEM, says("developer", "Find it.", tools=TOOLS[1:], response_format=FORMAT)], False),
    ([SYSTEM, says("developer", "Find it."), *FIRST[1:]], True),
]


def conversation(messages, has_tools):
    """As the published test has tools: in the first message, of the system."""
    messages = json.loads(json.dumps(messages))
    if has_tools:
        if messages[0]["role"] != "system":
            messages.insert(0, says("system", ""))
        messages[0]["tools"] = TOOLS
    for message in messages:
        for call in message.get("tool_calls", []):
            function = call["function"]
            function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
    return messages


def main():
    sources = [pathlib.Path(path) for path in sys.argv[1:]]
    module = load(sources[0], "encoding_dsv32")
    if len(sources) > 1:
        module.TOOLS_SYSTEM_TEMPLATE = load(sources[1], "tools").TOOLS_SYSTEM_TEMPLATE
    rows = []
    for messages, has_tools in CONVERSATIONS:
        for thinking in (False, True):
            text = module.encode_messages(conversation(messages, has_tools), "thinking" if thinking else "chat")
            rows.append({"variables": {"messages": messages, "tools": TOOLS if has_tools else None,
                                       "thinking": thinking, "add_generation_prompt": True}, "text": text})
    document = {"script": "tests/golden/templates/make_encoding_goldens.py",
                "sha256": [hashlib.sha256(path.read_bytes()).hexdigest() for path in sources], "rows": rows}
    path = pathlib.Path(__file__).with_name("deepseek_v32.json")
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in document.pop("rows"))
    path.write_text(json.dumps(document)[:-1] + ', "rows": [\n' + lines + "\n]}\n")
    print(len(rows), "rows,", path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
