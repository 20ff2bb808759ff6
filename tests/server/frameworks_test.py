#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Frameworks that people build agents with, unmodified: frameworks_test.py BINARY MODEL TEMPLATE.

langchain-openai's tools and structured output, instructor and pydantic-ai over chat, Responses and
Messages, against a model that was never taught any of it: what they ask for is forced, so that they
get it. Runs where SLUICE_TEST_PYTHON has the packages; an answer that its length cut is asked for
again with another seed.
"""
import enum
import sys

from server_process import Server, needs, run_checks

needs("langchain_openai", "instructor", "pydantic_ai", "anthropic")
import anthropic  # noqa: E402
import instructor  # noqa: E402
import openai  # noqa: E402
import pydantic  # noqa: E402
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage  # noqa: E402
from langchain_core.tools import tool  # noqa: E402
from langchain_openai import ChatOpenAI  # noqa: E402
from pydantic_ai import Agent, NativeOutput, ToolOutput  # noqa: E402
from pydantic_ai.exceptions import ModelHTTPError  # noqa: E402
from pydantic_ai.models.anthropic import AnthropicModel  # noqa: E402
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel  # noqa: E402
from pydantic_ai.providers.anthropic import AnthropicProvider  # noqa: E402
from pydantic_ai.providers.openai import OpenAIProvider  # noqa: E402

SEEDS = range(12)


class City(enum.Enum):
    PARIS = "Paris"
    ROME = "Rome"


class Trip(pydantic.BaseModel):
    """A trip to a city."""
    city: City
    days: int = pydantic.Field(ge=1, le=9)
    by_train: bool | None = None


@tool
def book(city: City, by_train: bool) -> str:
    """Books a trip."""
    return f"{city} {by_train}"


def is_refused(error):
    """Whether the server said no, behind whatever a framework makes of that."""
    while error is not None:
        if isinstance(error, (openai.APIError, anthropic.APIError, ModelHTTPError)):
            return not isinstance(error, openai.LengthFinishReasonError)
        error = error.__cause__ or error.__context__
    return False


class Frameworks:
    def __init__(self, server):
        self.server = server
        self.url = f"http://127.0.0.1:{server.port}"
        self.openai = {"base_url": self.url + "/v1", "api_key": "none", "max_retries": 0}

    def first_whole(self, ask):
        """The first of several answers that ends before its length does."""
        cut = None
        for seed in SEEDS:
            try:
                answer = ask(seed)
            except Exception as error:  # each framework has its own of an answer that was cut
                if is_refused(error):
                    raise
                cut = error
                continue
            if answer is not None:
                return answer
        raise AssertionError(f"no answer ended: {cut!r}")

    def chat(self, seed, **more):
        return ChatOpenAI(model=self.server.model, temperature=1.0, seed=seed, max_tokens=200,
                          **self.openai, **more)

    def langchain_tools(self):
        def ask(seed):
            answer = self.chat(seed).bind_tools([book], tool_choice="required").invoke("Book.")
            return answer if answer.tool_calls and not answer.invalid_tool_calls else None
        answer = self.first_whole(ask)
        call = answer.tool_calls[0]
        assert call["name"] == "book" and call["id"], call
        result = book.invoke(call)
        assert isinstance(result, ToolMessage) and result.content, result
        later = self.chat(1).bind_tools([book], tool_choice="none").invoke(
            [HumanMessage("Book."), answer, result])
        assert isinstance(later, AIMessage) and not later.tool_calls, later

        def streamed(seed):
            joined = None
            for chunk in self.chat(seed).bind_tools([book], tool_choice="book").stream("Book."):
                joined = chunk if joined is None else joined + chunk
            return joined if joined.tool_calls and not joined.invalid_tool_calls else None
        assert self.first_whole(streamed).tool_calls[0]["name"] == "book"

    def langchain_structured_output(self):
        for method in ("function_calling", "json_schema"):
            def ask(seed, method=method):
                out = self.chat(seed).with_structured_output(Trip, method=method, include_raw=True)
                return out.invoke("A trip.")["parsed"]
            assert isinstance(self.first_whole(ask), Trip), method
        responses = ChatOpenAI(model=self.server.model, use_responses_api=True, max_tokens=20,
                               **self.openai).invoke("Hello.")
        assert isinstance(responses, AIMessage) and responses.usage_metadata["output_tokens"] > 0

    def instructor_modes(self):
        client = openai.OpenAI(**self.openai)
        for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA,
                     instructor.Mode.TOOLS_STRICT):
            wrapped = instructor.from_openai(client, mode=mode)

            def ask(seed, wrapped=wrapped):
                return wrapped.chat.completions.create(
                    model=self.server.model, response_model=Trip, max_retries=0, seed=seed,
                    temperature=1.0, max_tokens=200,
                    messages=[{"role": "user", "content": "A trip."}])
            assert isinstance(self.first_whole(ask), Trip), mode

    def pydantic_ai_outputs(self):
        provider = OpenAIProvider(base_url=self.url + "/v1", api_key="none")
        claude = AnthropicProvider(anthropic_client=anthropic.AsyncAnthropic(
            base_url=self.url, api_key="none", max_retries=0))
        for model, outputs in (
                (OpenAIChatModel(self.server.model, provider=provider), (ToolOutput, NativeOutput)),
                (OpenAIResponsesModel(self.server.model, provider=provider),
                 (ToolOutput, NativeOutput)),
                (AnthropicModel(self.server.model, provider=claude), (ToolOutput,))):
            for output in outputs:
                def ask(seed, model=model, output=output):
                    agent = Agent(model, output_type=output(Trip), retries=0)
                    settings = {"temperature": 1.0, "max_tokens": 200,
                                "extra_body": {"seed": seed}}
                    return agent.run_sync("A trip.", model_settings=settings).output
                assert isinstance(self.first_whole(ask), Trip), (model, output)


def main(binary, model, template):
    server = Server(binary, model, "--chat-template", template, "--tool-call-parser", "hermes")
    tests = Frameworks(server)
    run_checks(server, [(name, getattr(tests, name)) for name in (
        "langchain_tools", "langchain_structured_output", "instructor_modes",
        "pydantic_ai_outputs")])


if __name__ == "__main__":
    main(*sys.argv[1:])
