#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Answers and events of every kind against the clients' own types: sdk_types_test.py BINARY MODEL.

Text, log-probabilities, tools, reasoning, cut answers and usage, streamed and not, refusals, and
errors in the middle of streams, of a model that says what it is told. Runs where SLUICE_TEST_PYTHON has the packages `openai` and `anthropic`.
"""
import json
import pathlib
import sys
import tempfile
import threading

from server_process import Server, needs, run_checks

needs("openai", "anthropic")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "clients"))
from scripted_model import write_model  # noqa: E402
from scripts import TEXT, call  # noqa: E402
import sdk_types  # noqa: E402

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ARGUMENTS = {"city": "Köln"}
THOUGHT = "<think>\nI need it.\n</think>\n\n"
SCRIPTS = {
    "text": [TEXT],
    "thought": [THOUGHT + TEXT],
    "call": [THOUGHT + call("weather", ARGUMENTS, "I look. ") + "\n" + call("weather", ARGUMENTS)],
    "json": [json.dumps(ARGUMENTS)],
}
CHAT, TEXTS, RESPONSES, MESSAGES = ("/v1/chat/completions", "/v1/completions", "/v1/responses",
                                    "/v1/messages")
FUNCTION = {"name": "weather", "description": "Tells it.", "parameters": CITY}
FORMAT = {"name": "place", "schema": CITY, "strict": True}
SAYS = "<|say:text:0|>"


def asks(name):
    return [{"role": "user", "content": f"case:{name}"}]


def chat(name, **more):
    return CHAT, {"messages": asks(name), **more}


def response(name, **more):
    return RESPONSES, {"input": asks(name), **more}


def message(name, **more):
    return MESSAGES, {"messages": asks(name), "max_tokens": 500, **more}


# name: (path, body); each is asked for whole and streamed.
CASES = {
    "chat": chat("text"),
    "chat, thought": chat("thought"),
    "chat, two choices": chat("thought", n=2),
    "chat, usage": chat("text", stream_options={"include_usage": True}),
    "chat, logprobs": chat("text", logprobs=True, top_logprobs=2),
    "chat, tools": chat("call", tools=[{"type": "function", "function": FUNCTION}]),
    "chat, forced tool": chat("text", tools=[{"type": "function", "function": FUNCTION}],
                              tool_choice="required", max_tokens=80),
    "chat, schema": chat("json", response_format={"type": "json_schema", "json_schema": FORMAT}),
    "chat, cut": chat("text", max_tokens=3),
    "chat, cut thought": chat("thought", max_tokens=3),
    "chat, stop": chat("text", stop=["script"]),
    "text": (TEXTS, {"prompt": SAYS, "max_tokens": 5}),
    "text, echo and logprobs": (TEXTS, {"prompt": SAYS, "max_tokens": 5, "echo": True,
                                        "logprobs": 2}),
    "text, several": (TEXTS, {"prompt": [SAYS, SAYS], "n": 2, "max_tokens": 5,
                              "stream_options": {"include_usage": True}}),
    "response": response("text"),
    "response, thought": response("thought"),
    "response, settings": response(
        "text", instructions="Be brief.", metadata={"a": "b"}, temperature=0.5, top_p=0.9,
        user="u", safety_identifier="s", prompt_cache_key="k", service_tier="auto", store=False,
        truncation="auto", reasoning={"effort": "low", "summary": "auto"}, max_tool_calls=3,
        text={"verbosity": "low"}, parallel_tool_calls=False),
    "response, logprobs": response("text", top_logprobs=2,
                                   include=["message.output_text.logprobs"]),
    "response, tools": response("call", tools=[{"type": "function", "strict": False, **FUNCTION}]),
    "response, one tool": response(
        "text", max_output_tokens=80, tools=[{"type": "function", "strict": True, **FUNCTION}],
        tool_choice={"type": "function", "name": "weather"}),
    "response, custom tool": response(
        "text", max_output_tokens=80, tools=[{"type": "custom", "name": "shell"}],
        tool_choice={"type": "custom", "name": "shell"}),
    "response, namespace": response("text", tools=[{
        "type": "namespace", "name": "places", "description": "Places.",
        "tools": [{"type": "function", "strict": False, **FUNCTION}]}]),
    "response, schema": response("json", text={"format": {"type": "json_schema", **FORMAT}}),
    "response, cut": response("text", max_output_tokens=3),
    "response, cut thought": response("thought", max_output_tokens=3),
    "message": message("text"),
    "message, thought": message("thought"),
    "message, hidden thought": message("thought",
                                       thinking={"type": "adaptive", "display": "omitted"}),
    "message, tools": message("call", tools=[{"name": "weather", "input_schema": CITY}]),
    "message, forced tool": message("text", tools=[{"name": "weather", "input_schema": CITY}],
                                    tool_choice={"type": "any"}),
    "message, schema": message("json", output_config={"format": {"type": "json_schema",
                                                                 "schema": CITY}}),
    "message, cut": message("text", max_tokens=3),
    "message, stop": message("text", stop_sequences=["script"]),
    "message, service": message("text", service_tier="auto", metadata={"user_id": "u"}),
}

# name: (status, path, body)
ERRORS = {
    "chat, wrong type": (400, CHAT, {"messages": 5}),
    "chat, unknown model": (404, CHAT, {"messages": asks("text"), "model": "nobody"}),
    "text, not supported": (400, TEXTS, {"prompt": "A", "suffix": "B"}),
    "response, wrong value": (400, RESPONSES, {"input": "A", "temperature": 9}),
    "response, nobody's": (400, RESPONSES, {"input": "A", "previous_response_id": "resp_1"}),
    "message, no length": (400, MESSAGES, {"messages": asks("text")}),
    "message, thread": (400, *message("text", thread={"id": "t"})),
    "message, unknown model": (404, *message("text", model="nobody")),
    "chat, no schema": (400, *chat("json", response_format={"type": "json_schema"})),
    "response, hosted tool": (400, *response("text", tool_choice={"type": "mcp"})),
    "message, hosted tool": (400, *message("text", tools=[{"type": "web_search_20250305"}],
                                           tool_choice={"type": "any"})),
    "response, background": (400, *response("text", background=True)),
}

# Refused by a model with a template that shows the text.
TOO_LONG = {
    "chat, too long": (400, CHAT, {"messages": [{"role": "user", "content": "A " * 9000}]}),
    "text, too long": (400, TEXTS, {"prompt": "A " * 9000}),
    "response, too long": (400, RESPONSES, {"input": "A " * 9000}),
    "message, too long": (400, MESSAGES, {"messages": [{"role": "user", "content": "A " * 9000}],
                                          "max_tokens": 5}),
}

# What takes long enough to be cut, of any model.
LONG = {
    CHAT: {"messages": [{"role": "user", "content": "a"}], "ignore_eos": True},
    TEXTS: {"prompt": "a", "max_tokens": 400, "ignore_eos": True},
    RESPONSES: {"input": "a", "temperature": 2},
    MESSAGES: {"messages": [{"role": "user", "content": "a"}], "max_tokens": 400, "temperature": 2},
}


def answer_of(server, path, body, status=200):
    connection, got = server.post(body, path)
    text = got.read().decode()
    connection.close()
    assert got.status == status, (path, body, got.status, text)
    return text


def check_case(server, path, body):
    """A list of faults."""
    whole = {key: value for key, value in body.items() if key != "stream_options"}
    found = sdk_types.faults(path, json.loads(answer_of(server, path, whole)), is_event=False)
    lines = answer_of(server, path, {**body, "stream": True}).split("\n")
    events = [json.loads(line[6:]) for line in lines
              if line.startswith("data: ") and line != "data: [DONE]"]
    assert len(events) > 2, lines
    for event in events:
        if event.get("type") != "ping":  # the client skips it
            found += sdk_types.faults(path, event, is_event=True)
    return found


def refusal_faults(server, cases):
    found = []
    for name, (status, path, body) in cases.items():
        value = json.loads(answer_of(server, path, body, status))
        found += [f"{name}: {fault}" for fault in sdk_types.error_faults(path, value)]
    return found


def check_all(server):
    found = []
    for name, (path, body) in CASES.items():
        found += [f"{name}: {fault}" for fault in dict.fromkeys(check_case(server, path, body))]
    found += refusal_faults(server, ERRORS)
    count = json.loads(answer_of(server, MESSAGES + "/count_tokens", {"messages": asks("text")}))
    found += sdk_types.faults(MESSAGES + "/count_tokens", count, is_event=False)
    assert not found, "\n".join(["answers that the clients' types refuse:", *found])


def is_error(event):
    return "error" in event or event.get("type") == "response.failed"


def read_events(server, path, begun, events):
    connection, got = server.post({**LONG[path], "stream": True}, path)
    for raw in got:
        begun.set()
        line = raw.decode().strip()
        if line.startswith("data: ") and line != "data: [DONE]":
            events.append((path, json.loads(line[6:])))
    connection.close()


def event_faults(path, event):
    if event.get("type") == "ping":  # the client skips it
        return []
    if "error" in event and event.get("type", "error") == "error":
        return sdk_types.error_faults(path, event)
    return sdk_types.faults(path, event, is_event=True)


def check_cut_streams(binary, model):
    """A server that ends at once says so in each stream."""
    server = Server(binary, model, "--max-num-seqs", "128", "--drain-timeout-s", "0")
    refused = refusal_faults(server, TOO_LONG)
    assert not refused, refused
    events, threads, begun = [], [], []
    for path in [*LONG] * 25:
        begun.append(threading.Event())
        threads.append(threading.Thread(target=read_events, args=(server, path, begun[-1], events)))
        threads[-1].start()
    for one in begun:
        one.wait(30)
    assert server.stop() == 0
    for thread in threads:
        thread.join()
    found = dict.fromkeys(fault for path, event in events for fault in event_faults(path, event))
    assert not found, "\n".join(["events that the clients' types refuse:", *found])
    cut = {path for path, event in events if is_error(event)}
    assert cut == set(LONG), f"the streams are meant to be long: {cut}"


def main():
    check_cut_streams(sys.argv[1], sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder) / "scripted.gguf"
        write_model(model, SCRIPTS)
        server = Server(sys.argv[1], str(model), "--tool-call-parser", "hermes",
                        "--reasoning-parser", "qwen3", "--kv-cache-memory", "268435456")
        run_checks(server, [("types", lambda: check_all(server))])


if __name__ == "__main__":
    sys.exit(main())
