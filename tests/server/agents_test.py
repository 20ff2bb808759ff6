#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The official clients of OpenAI and Anthropic, with tools and reasoning, streamed and not.

usage: agents_test.py BINARY MODEL SCRIPTED_SERVER

Runs where SLUICE_TEST_PYTHON has the packages `openai` and `anthropic`. Calls come from a server
whose model says what the test tells it; text from a real one.
"""
import contextlib
import json
import subprocess
import sys
import urllib.request

from server_process import Server, needs, run_checks

needs("openai", "anthropic")
import anthropic  # noqa: E402
import openai  # noqa: E402

THOUGHT = "I need the weather."
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln",  "days": 2}}\n</tool_call>'
SECOND = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
SAID = f"<think>\n{THOUGHT}\n</think>\n\nLet me look. {CALL}\n{SECOND}"
ARGUMENTS = {"city": "Köln", "days": 2}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
          "required": ["city"]}
CHAT_TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
              {"type": "function", "function": {"name": "now"}}]
RESPONSE_TOOLS = [{"type": "function", "name": "weather", "parameters": SCHEMA, "strict": False},
                  {"type": "function", "name": "now", "parameters": {}, "strict": False}]
MESSAGE_TOOLS = [{"name": "weather", "input_schema": SCHEMA},
                 {"name": "now", "input_schema": {"type": "object"}}]
ASK = [{"role": "user", "content": "How is the weather in Köln?"}]
KEY = "sk-test-key"


@contextlib.contextmanager
def scripted(program, text):
    process = subprocess.Popen([program, text, KEY], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               text=True)
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.stdin.close()
        assert process.wait(timeout=30) == 0


def openai_at(url):
    return openai.OpenAI(base_url=url + "/v1", api_key=KEY, max_retries=0, timeout=60)


def anthropic_at(url):
    return anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0, timeout=60)


def check_chat(url):
    client = openai_at(url)
    whole = client.chat.completions.create(model="fake", messages=ASK, tools=CHAT_TOOLS)
    choice = whole.choices[0]
    assert choice.finish_reason == "tool_calls", choice
    assert choice.message.content.strip() == "Let me look.", choice.message
    assert choice.message.reasoning_content == THOUGHT
    assert [call.function.name for call in choice.message.tool_calls] == ["weather", "now"]
    assert json.loads(choice.message.tool_calls[0].function.arguments) == ARGUMENTS
    assert whole.usage.completion_tokens_details.reasoning_tokens > 0
    with client.chat.completions.stream(model="fake", messages=ASK, tools=CHAT_TOOLS) as stream:
        names = [event.name for event in stream
                 if event.type == "tool_calls.function.arguments.done"]
        streamed = stream.get_final_completion().choices[0]
    assert names == ["weather", "now"], names
    assert streamed.finish_reason == "tool_calls"
    assert streamed.message.content == choice.message.content
    assert ([call.function.arguments for call in streamed.message.tool_calls] ==
            [call.function.arguments for call in choice.message.tool_calls])
    history = ASK + [choice.message.model_dump(exclude_none=True)] + [
        {"role": "tool", "tool_call_id": call.id, "content": "12 degrees"}
        for call in choice.message.tool_calls]
    client.chat.completions.create(model="fake", messages=history, tools=CHAT_TOOLS)


def check_response_events(events):
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:2] == ["created", "in_progress"] and kinds[-1] == "completed", kinds
    merged = [kind for i, kind in enumerate(kinds) if i == 0 or kind != kinds[i - 1]]
    text = ["output_item.added", "content_part.added", "{}.delta", "{}.done", "content_part.done",
            "output_item.done"]
    call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
            "output_item.done"]
    expected = ([kind.format("reasoning_text") for kind in text] +
                [kind.format("output_text") for kind in text] + call + call)
    assert merged[2:-1] == expected, merged


def check_responses(url):
    client = openai_at(url)
    asked = {"model": "fake", "input": ASK[0]["content"], "tools": RESPONSE_TOOLS,
             "instructions": "Be brief."}
    whole = client.responses.create(**asked)
    assert whole.status == "completed" and whole.instructions == "Be brief.", whole
    assert [item.type for item in whole.output] == ["reasoning", "message", "function_call",
                                                    "function_call"]
    assert whole.output[0].content[0].text == THOUGHT
    assert whole.output_text.strip() == "Let me look."
    assert json.loads(whole.output[2].arguments) == ARGUMENTS
    assert whole.usage.output_tokens_details.reasoning_tokens > 0
    check_response_events(list(client.responses.create(**asked, stream=True)))
    with client.responses.stream(**asked) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_response()
    assert ([item.model_dump(exclude={"id", "call_id", "parsed_arguments"}) for item in
             streamed.output if item.type == "function_call"] ==
            [item.model_dump(exclude={"id", "call_id"}) for item in whole.output
             if item.type == "function_call"])
    results = [{"type": "function_call_output", "call_id": item.call_id, "output": "12 degrees"}
               for item in whole.output if item.type == "function_call"]
    more = client.responses.create(model="fake", previous_response_id=whole.id, input=results)
    assert more.previous_response_id == whole.id
    assert more.usage.input_tokens > whole.usage.input_tokens - 300
    # All items are sent again.
    items = [item.model_dump(exclude_none=True) for item in whole.output]
    client.responses.create(model="fake", store=False, input=ASK + items + results)
    assert client.responses.retrieve(whole.id).output_text == whole.output_text
    assert list(client.responses.retrieve(whole.id, stream=True))[-1].response.output == whole.output
    client.responses.delete(whole.id)
    expect(openai.NotFoundError, lambda: client.responses.retrieve(whole.id))
    unknown = expect(openai.BadRequestError, lambda: client.responses.create(
        model="fake", input="x", previous_response_id="resp_none"))
    assert unknown.code == "previous_response_not_found", unknown
    cut = client.responses.create(**asked, max_output_tokens=5)
    assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens"
    hosted = client.responses.with_raw_response.create(
        model="fake", input="x", tools=[{"type": "web_search"}])
    assert hosted.headers["x-sluice-ignored-arguments"] == "tools.web_search", hosted.headers
    refused = expect(openai.BadRequestError, lambda: client.responses.create(
        model="fake", input="x", tools=[{"type": "web_search"}], tool_choice={"type": "web_search"}))
    assert refused.param == "tool_choice" and "web_search" in refused.message


def check_messages(url):
    client = anthropic_at(url)
    asked = {"model": "fake", "max_tokens": 500, "messages": ASK, "tools": MESSAGE_TOOLS,
             "system": "Be brief."}
    whole = client.messages.create(**asked)
    assert whole.stop_reason == "tool_use", whole
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert whole.content[0].thinking == THOUGHT
    assert whole.content[1].text.strip() == "Let me look."
    assert whole.content[2].input == ARGUMENTS and whole.content[3].input == {}
    with client.messages.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_message()
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop", kinds
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 4
    assert streamed.stop_reason == "tool_use"
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    plain = {"id", "parsed_output"}
    assert ([block.model_dump(exclude=plain, exclude_none=True) for block in streamed.content] ==
            [block.model_dump(exclude=plain, exclude_none=True) for block in whole.content])
    results = [{"type": "tool_result", "tool_use_id": block.id, "content": "12 degrees"}
               for block in whole.content if block.type == "tool_use"]
    history = ASK + [{"role": "assistant", "content": [block.model_dump(exclude_none=True)
                                                       for block in whole.content]},
                     {"role": "user", "content": results + [{"type": "text", "text": "Well?"}]}]
    again = client.messages.create(**{**asked, "messages": history})
    counted = client.messages.count_tokens(model="fake", messages=history, tools=MESSAGE_TOOLS,
                                           system="Be brief.")
    usage = again.usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
    stopped = client.messages.create(**asked, stop_sequences=["look"])
    assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == "look", stopped
    cut = client.messages.create(**{**asked, "max_tokens": 5})
    assert cut.stop_reason == "max_tokens"
    refused = expect(anthropic.BadRequestError, lambda: client.messages.create(
        **{**asked, "messages": [{"role": "user", "content": [
            {"type": "image", "source": {"type": "url", "url": "http://x"}}]}]}))
    assert refused.body["type"] == "error" and "image" in refused.body["error"]["message"]
    assert refused.body["error"]["type"] == "invalid_request_error"
    stranger = anthropic.Anthropic(base_url=url, api_key="wrong", max_retries=0)
    denied = expect(anthropic.AuthenticationError, lambda: stranger.messages.create(**asked))
    assert denied.body["error"]["type"] == "authentication_error"


def events_of(url, path, body, headers):
    request = urllib.request.Request(url + path, json.dumps(body).encode(),
                                     {"Content-Type": "application/json", **headers})
    with urllib.request.urlopen(request, timeout=60) as response:
        lines = response.read().decode().splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: ")]


def check_coding_agents(url):
    """Bodies as two coding agents send them, with all that they send beside."""
    cached = {"cache_control": {"type": "ephemeral"}}
    read = {"name": "Read", "description": "Reads a file.", "input_schema": {
        "$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
        "properties": {"file_path": {"type": "string"}}, "required": ["file_path"],
        "additionalProperties": False}}
    events = events_of(url, "/v1/messages?beta=true", {
        "model": "fake", "max_tokens": 2000, "stream": True, "temperature": 1,
        "metadata": {"user_id": "user_1_session_2"},
        "thinking": {"type": "enabled", "budget_tokens": 1999},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "system": [{"type": "text", "text": "You are an agent.", **cached}],
        "tools": [read, {**MESSAGE_TOOLS[0], **cached}, MESSAGE_TOOLS[1]],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "<system-reminder>x"},
                                         {"type": "text", "text": "Read a.txt", **cached}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "I read it.", "signature": "c2ln"},
                {"type": "tool_use", "id": "toolu_1", "name": "Read",
                 "input": {"file_path": "a.txt"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1",
                                          "content": "1\ttext", "is_error": False, **cached}]}]},
        {"x-api-key": KEY, "anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-1"})
    assert events[0]["type"] == "message_start" and events[-1]["type"] == "message_stop"
    assert events[-2]["delta"]["stop_reason"] == "tool_use", events[-2]
    shell = {"type": "function", "name": "shell", "description": "Runs a command.", "strict": False,
             "parameters": {"type": "object", "properties": {
                 "command": {"type": "array", "items": {"type": "string"}}}}}
    events = events_of(url, "/v1/responses", {
        "model": "fake", "stream": True, "store": False, "instructions": "You are an agent.",
        "tools": [shell, *RESPONSE_TOOLS], "tool_choice": "auto", "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"}, "text": {"verbosity": "low"},
        "include": ["reasoning.encrypted_content"], "prompt_cache_key": "0190-aa",
        "input": [
            {"type": "message", "role": "developer",
             "content": [{"type": "input_text", "text": "<permissions>"}]},
            {"type": "message", "role": "user",
             "content": [{"type": "input_text", "text": "Say hi"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm"}],
             "encrypted_content": None},
            {"type": "function_call", "name": "shell", "call_id": "call_1",
             "arguments": '{"command":["echo","hi"]}'},
            {"type": "function_call_output", "call_id": "call_1", "output": "hi"}]},
        {"Authorization": "Bearer " + KEY})
    assert events[-1]["type"] == "response.completed", events[-1]
    calls = [item for item in events[-1]["response"]["output"] if item["type"] == "function_call"]
    assert len(calls) == 1, "one call where several are not wanted"


def expect(error, call):
    try:
        call()
    except error as caught:
        return caught
    raise AssertionError(f"{error.__name__} expected")


def check_text(server):
    """A real model: what is streamed is what is answered whole."""
    url = f"http://127.0.0.1:{server.port}"
    asked = {"model": server.model, "input": "Say hello.", "max_output_tokens": 12,
             "temperature": 0.8, "extra_body": {"seed": 5}}
    client = openai_at(url)
    whole = client.responses.create(**asked)
    deltas = [event.delta for event in client.responses.create(**asked, stream=True)
              if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text, (deltas, whole.output_text)
    message = {"model": server.model, "messages": ASK, "max_tokens": 12,
               "extra_body": {"seed": 5, "temperature": 0.8}}
    client = anthropic_at(url)
    whole = client.messages.create(**message)
    with client.messages.stream(**message) as stream:
        text = "".join(stream.text_stream)
    assert text == "".join(block.text for block in whole.content)


def main():
    binary, model, program = sys.argv[1:4]
    for name, check in (("chat", check_chat), ("responses", check_responses),
                        ("messages", check_messages), ("coding agents", check_coding_agents)):
        with scripted(program, SAID) as url:
            check(url)
        print("ok", name, flush=True)
    server = Server(binary, model)
    run_checks(server, (("text", lambda: check_text(server)),))


if __name__ == "__main__":
    sys.exit(main())
