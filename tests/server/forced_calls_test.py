#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Forced calls of tools from outside: forced_calls_test.py BINARY MODEL TEMPLATES.

A model at temperature 1 that was never taught to call tools calls them where the request forces it,
in each family's form: the answer is calls and nothing else, their arguments are valid by a validator
that is not ours, streamed as whole. Only an answer that its length cut may be less. With
SLUICE_SMOLLM2 the model is that one. SLUICE_GENERATIONS: answers for each family (24).
"""
import concurrent.futures
import json
import os
import sys

from server_process import Server, needs, run_checks

needs("jsonschema_rs")

import jsonschema_rs  # noqa: E402

WEATHER = {"type": "object",
           "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]},
                          "days": {"type": "integer", "minimum": 1, "maximum": 9},
                          "units": {"type": "array", "items": {"enum": ["C", "F"]}, "minItems": 1,
                                    "maxItems": 2}},
           "required": ["city", "days"], "additionalProperties": False}
SWITCH = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"],
          "additionalProperties": False}
SCHEMAS = {"weather": WEATHER, "switch": SWITCH}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": schema, "strict": strict}}
         for (name, schema), strict in zip(SCHEMAS.items(), (True, False))]
NAMED = {"type": "function", "function": {"name": "switch"}}
# The template, and the reader where the template's own needs another vocabulary than the model's.
FAMILIES = (("Qwen-Qwen3-0.6B.jinja", "hermes"), ("Qwen3-Coder.jinja", "qwen3_coder"),
            ("Qwen-Qwen3-0.6B.jinja", "llama3_json"), ("Qwen-Qwen3-0.6B.jinja", "mistral"),
            ("Qwen-Qwen3-0.6B.jinja", "deepseek_v31"), ("Qwen-Qwen3-0.6B.jinja", "glm45"),
            ("Qwen-Qwen3-0.6B.jinja", "lfm2"), ("Qwen-Qwen3-0.6B.jinja", "gemma4"),
            ("Qwen-Qwen3-0.6B.jinja", "kimi_k2"), ("Qwen-Qwen3-0.6B.jinja", "openai"))
WITHOUT_MARKER = ("llama3_json", "openai")  # of calls: they cannot be told from text before
ONE_A_TURN = ("openai",)


class Forced:
    def __init__(self, server, family):
        self.server = server
        self.family = family

    def ask(self, seed, choice, **more):
        connection, response = self.server.post(
            {"messages": [{"role": "user", "content": "Answer."}], "tools": TOOLS, "seed": seed,
             "tool_choice": choice, "temperature": 1.0, "max_tokens": 200,
             "chat_template_kwargs": {"enable_thinking": False}, **more}, "/v1/chat/completions")
        data = response.read()
        connection.close()
        assert response.status == 200, data
        return data.decode()

    def whole(self, *asked, **more):
        choice = json.loads(self.ask(*asked, **more))["choices"][0]
        # A call that was cut before its name was whole is text.
        assert not choice["message"]["content"] or choice["finish_reason"] == "length", choice
        calls = [(call["function"]["name"], call["function"]["arguments"])
                 for call in choice["message"].get("tool_calls", [])]
        return choice["finish_reason"], calls

    def streamed(self, *asked, **more):
        calls, text, reason = {}, "", None
        for line in self.ask(*asked, stream=True, **more).splitlines():
            if not line.startswith("data: {"):
                continue
            choice = json.loads(line[6:])["choices"][0]
            text += choice["delta"].get("content", "")
            reason = choice["finish_reason"] or reason
            for call in choice["delta"].get("tool_calls", []):
                name, arguments = calls.get(call["index"], ("", ""))
                function = call["function"]
                calls[call["index"]] = (name + function.get("name", ""),
                                        arguments + function["arguments"])
        assert not text or reason == "length", text
        return reason, [calls[index] for index in sorted(calls)]

    def calls_are_valid(self):
        total = int(os.environ.get("SLUICE_GENERATIONS", "24"))

        def one(seed):
            choice = NAMED if seed % 3 == 0 else "required"
            more = {"parallel_tool_calls": False} if seed % 3 == 1 else {}
            reason, calls = self.whole(seed, choice, **more)
            assert (reason, calls) == self.streamed(seed, choice, **more), (seed, calls)
            if reason == "length":
                return 0
            assert reason == ("stop" if choice is NAMED else "tool_calls"), (reason, calls)
            assert len(calls) == 1 if seed % 3 < 2 else len(calls) >= 1, calls
            for name, arguments in calls:
                assert choice == "required" or name == "switch", calls
                assert jsonschema_rs.is_valid(SCHEMAS[name], json.loads(arguments)), calls
            return 1

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            ended = sum(pool.map(one, range(total)))
        print(f"  {ended} of {total} answers ended before their length did")
        assert ended > total // 2, ended
        # With one call or several, and one function alone: three grammars.
        count = 2 if self.family in ONE_A_TURN else 3
        misses = self.server.metric("sluice_grammar_cache_misses_total")
        hits = self.server.metric("sluice_grammar_cache_hits_total")
        assert misses == count and hits == 2 * total - count, (misses, hits)

    def free_choice_of_strict_tools(self):
        """Text is free, or JSON in place of calls; calls without a marker cannot be kept strict."""
        body = {"messages": [{"role": "user", "content": "Answer."}], "tools": TOOLS, "seed": 1,
                "temperature": 1.0, "max_tokens": 40,
                "chat_template_kwargs": {"enable_thinking": False}}
        connection, response = self.server.post(body, "/v1/chat/completions")
        data = response.read().decode()
        connection.close()
        assert response.status == (400 if self.family in WITHOUT_MARKER else 200), data
        either = {"type": "json_schema", "json_schema": {"name": "s", "schema": SWITCH, "strict": True}}
        for seed in range(4):
            choice = json.loads(self.ask(seed, "auto", response_format=either))["choices"][0]
            if choice["finish_reason"] == "length":
                continue
            if choice["message"]["content"]:
                assert jsonschema_rs.is_valid(SWITCH, json.loads(choice["message"]["content"])), choice
            for call in choice["message"].get("tool_calls") or []:
                function = call["function"]
                assert jsonschema_rs.is_valid(SCHEMAS[function["name"]],
                                              json.loads(function["arguments"])), choice

    def refusals(self):
        unique = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
        for strict in (True, False):
            tools = [{"type": "function",
                      "function": {"name": "f", "parameters": unique, "strict": strict}}]
            connection, response = self.server.post(
                {"messages": [{"role": "user", "content": "x"}], "tools": tools, "max_tokens": 5,
                 "tool_choice": "required"}, "/v1/chat/completions")
            data = response.read().decode()
            connection.close()
            assert response.status == (400 if strict else 200), data
            if strict:
                error = json.loads(data)["error"]
                assert error["param"] == "tools", error
                assert "uniqueItems" in error["message"], error
                assert "#/properties/a" in error["message"], error


def main(binary, model, templates):
    for template, family in FAMILIES:
        print(family, flush=True)
        server = Server(binary, os.environ.get("SLUICE_SMOLLM2", model), "--chat-template",
                        os.path.join(templates, template), "--tool-call-parser", family)
        tests = Forced(server, family)
        run_checks(server, [(name, getattr(tests, name))
                            for name in ("calls_are_valid", "free_choice_of_strict_tools", "refusals")])


if __name__ == "__main__":
    main(*sys.argv[1:])
