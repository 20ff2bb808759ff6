#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Structured output from outside: structured_test.py BINARY MODEL.

Answers at temperature 1 are valid in their schemas, by a validator that is not ours, unless they
were cut by length; the official client parses them into classes of pydantic; what is refused is
refused by name. With SLUICE_SMOLLM2 the model is that one. SLUICE_GENERATIONS: answers (120).
"""
import concurrent.futures
import contextlib
import itertools
import json
import os
import sys
import time
from typing import List, Literal, Optional

from server_process import Server, least, needs, run_checks

needs("openai", "pydantic", "jsonschema_rs")

import jsonschema_rs  # noqa: E402
import openai  # noqa: E402
import pydantic  # noqa: E402

ITEM = {"type": "object", "properties": {"id": {"type": "integer", "minimum": 1, "maximum": 99},
                                         "label": {"type": "string", "maxLength": 12}},
        "required": ["id", "label"], "additionalProperties": False}
SCHEMAS = [
    {"type": "boolean"},
    {"type": "null"},
    {"type": "integer", "minimum": -5, "maximum": 1200},
    {"type": "integer", "multipleOf": 7},
    {"type": "integer", "minimum": 10, "maximum": 90, "multipleOf": 15},
    {"type": "number", "minimum": 0.5, "exclusiveMaximum": 2.25},
    {"type": "number", "exclusiveMinimum": -1, "maximum": 1},
    {"type": "string", "minLength": 3, "maxLength": 9},
    {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    {"type": "string", "pattern": "[0-9]"},
    {"type": "string", "format": "date"},
    {"enum": ["red", "green", 7, None, {"a": [1]}]},
    {"const": "only \"this\" \\ one"},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    {"type": "array", "prefixItems": [{"type": "string", "maxLength": 4}, {"type": "integer"}],
     "items": False, "minItems": 2},
    {"type": "array", "items": ITEM, "maxItems": 3},
    ITEM,
    {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "boolean"},
                                      "c": {"type": "boolean"}}, "minProperties": 2},
    {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "boolean"},
                                      "c": {"type": "boolean"}}, "maxProperties": 1},
    {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 3},
    {"type": "object", "patternProperties": {"^k[0-9]$": {"type": "boolean"}},
     "additionalProperties": False, "maxProperties": 2},
    {"type": "object", "properties": {"x": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
     "required": ["x"]},
    {"oneOf": [{"type": "object", "properties": {"k": {"const": "a"}, "n": {"type": "integer"}},
                "required": ["k", "n"]},
               {"type": "object", "properties": {"k": {"const": "b"}, "s": {"type": "boolean"}},
                "required": ["k"]}]},
    {"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
               {"properties": {"a": {"minimum": 3, "maximum": 8}, "b": {"type": "null"}}}]},
    {"$defs": {"n": {"type": "integer", "minimum": 0}}, "type": "object",
     "properties": {"v": {"$ref": "#/$defs/n", "maximum": 50}}, "required": ["v"]},
    {"type": "object", "properties": {"v": {"type": "boolean"},
                                      "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
     "required": ["v", "next"]},
    {"type": ["integer", "string", "null"], "maxLength": 5, "maximum": 3},
    {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "boolean"}},
     "dependentRequired": {"a": ["b"]}},
    {"type": "object", "propertyNames": {"enum": ["p", "q"]},
     "additionalProperties": {"type": "boolean"}},
    {"type": "object"},
    {},
]


class Step(pydantic.BaseModel):
    text: str
    weight: float
    kind: Literal["easy", "hard"]


class Plan(pydantic.BaseModel):
    title: str
    steps: List[Step] = pydantic.Field(max_length=2)
    note: Optional[str]


class Structured:
    def __init__(self, server):
        self.server = server
        self.client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none",
                                    max_retries=0, timeout=300)

    def chat(self, text="Answer.", **more):
        return self.client.chat.completions.create(
            model=self.server.model, messages=[{"role": "user", "content": text}], **more)

    def answers_are_valid(self):
        total = int(os.environ.get("SLUICE_GENERATIONS", "120"))
        counts = {"stop": 0, "length": 0}

        def one(i):
            schema = SCHEMAS[i % len(SCHEMAS)]
            answer = self.chat(
                temperature=1.0, seed=i, max_tokens=160,
                response_format={"type": "json_schema", "json_schema": {
                    "name": "s", "strict": True, "schema": schema}}).choices[0]
            if answer.finish_reason == "stop":
                value = json.loads(answer.message.content)
                assert jsonschema_rs.is_valid(schema, value), (schema, answer.message.content)
            return answer.finish_reason

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for reason in pool.map(one, range(total)):
                counts[reason] += 1
        print(f"  {total} answers over {len(SCHEMAS)} schemas: {counts}")
        assert counts["stop"] > total // 3, counts

    def client_parses(self):
        for seed in range(4):
            try:
                answer = self.client.beta.chat.completions.parse(
                    model=self.server.model, seed=seed, temperature=1.0, max_tokens=400,
                    messages=[{"role": "user", "content": "A plan for tea."}], response_format=Plan)
            except openai.LengthFinishReasonError:
                continue
            plan = answer.choices[0].message.parsed
            assert isinstance(plan, Plan) and len(plan.steps) <= 2, plan

    def streams_are_the_same(self):
        form = {"type": "json_schema", "json_schema": {"name": "s", "schema": ITEM, "strict": True}}
        whole = self.chat(seed=3, temperature=1.0, max_tokens=80, response_format=form)
        parts = self.chat(seed=3, temperature=1.0, max_tokens=80, response_format=form, stream=True)
        text = "".join(e.choices[0].delta.content or "" for e in parts if e.choices)
        assert text == whole.choices[0].message.content, (text, whole)

    def constraints(self):
        def one(**constraint):
            return self.chat(max_tokens=40, temperature=1.0, seed=1,
                             extra_body={"structured_outputs": constraint})
        assert one(choice=["yes", "no \"way\"", "für"]).choices[0].message.content in (
            "yes", "no \"way\"", "für")
        text = one(regex="[a-c]{4}").choices[0].message.content
        assert len(text) == 4 and set(text) <= set("abc"), text
        text = one(grammar='root ::= "x" ("y" | "z")').choices[0].message.content
        assert text in ("xy", "xz"), text
        text = one(grammar='start: "x" /[yz]/').choices[0].message.content
        assert text in ("xy", "xz"), text
        text = one(json={"type": "object", "properties": {"a": {"type": "boolean"}},
                         "required": ["a"]}, disable_any_whitespace=True).choices[0].message.content
        assert text in ('{"a":true}', '{"a":false}'), text

    def refusals(self):
        def refused(param, text, **more):
            for stream in (False, True):
                try:
                    self.chat(max_tokens=5, stream=stream, **more)
                except openai.BadRequestError as error:
                    assert error.param == param and text in error.message, error
                else:
                    raise AssertionError(f"{more} was taken")

        def schema(schema, strict=True):
            return {"response_format": {"type": "json_schema", "json_schema": {
                "name": "s", "strict": strict, "schema": schema}}}
        unique = {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True}}}
        refused("response_format", "unsupported keyword 'uniqueItems' at #/properties/tags",
                **schema(unique))
        self.chat(max_tokens=5, **schema(unique, strict=False))  # left out there
        refused("response_format", "circle", **schema({"$ref": "#"}))
        refused("structured_outputs", "deeper", extra_body={"structured_outputs": {
            "json": '{"items":' * 70 + "{}" + "}" * 70}})
        refused("structured_outputs", "", extra_body={"structured_outputs": {"regex": "("}})
        refused("structured_outputs", "",
                extra_body={"structured_outputs": {"grammar": "root ::= root"}})
        refused("guided_json", "structured_outputs", extra_body={"guided_json": ITEM})

    def hostile_grammars_leave_others_alone(self):
        bad = "((((a{1,1000}){1,1000}){1,1000}){1,1000}){1,1000}"
        before, numbers = self.server.rss(), itertools.count()

        def own_time():
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                hostile = [pool.submit(self.chat, max_tokens=2, extra_body={
                    "structured_outputs": {"regex": bad + "b" * next(numbers)}}) for _ in range(3)]
                started = time.monotonic()
                self.chat(max_tokens=4)
                own = time.monotonic() - started
                for one in hostile:
                    with contextlib.suppress(openai.BadRequestError):
                        one.result()
            return own

        own = least(own_time, 5)
        assert own < 5, own
        assert self.server.rss() - before < 512 << 20, "the memory is the child's"
        self.chat(max_tokens=4, response_format={"type": "json_object"})


def main(binary, model):
    server = Server(binary, os.environ.get("SLUICE_SMOLLM2", model))
    tests = Structured(server)
    run_checks(server, [(name, getattr(tests, name)) for name in (
        "answers_are_valid", "client_parses", "streams_are_the_same", "constraints", "refusals",
        "hostile_grammars_leave_others_alone")])


if __name__ == "__main__":
    main(*sys.argv[1:])
