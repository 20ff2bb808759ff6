#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""LangChain's client against a running server: langchain_client_test.py BASE_URL [API_KEY].

BASE_URL ends in /v1. Needs the `langchain-openai` package, which is too much to install for every
run of the tests: serving_test.py calls this where SLUICE_TEST_PYTHON has it. Exits non-zero at the
first broken expectation.
"""
import asyncio
import sys

import openai
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI

MESSAGES = [SystemMessage("Be brief."), HumanMessage("Say hello.")]


def check_usage(usage):
    assert usage["input_tokens"] > 0 and usage["output_tokens"] > 0
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def check_invoke(make):
    answer = make().invoke(MESSAGES)
    assert isinstance(answer, AIMessage) and isinstance(answer.content, str)
    assert answer.response_metadata["finish_reason"] in ("stop", "length")
    check_usage(answer.usage_metadata)
    assert answer.content == make().invoke(MESSAGES).content, "greedy differs"


def check_stream(make):
    whole = make().invoke(MESSAGES)
    chunks = list(make(stream_usage=True).stream(MESSAGES))
    joined = chunks[0]
    for chunk in chunks[1:]:
        joined += chunk
    assert joined.content == whole.content, "stream and whole answer differ"
    assert joined.response_metadata["finish_reason"] == whole.response_metadata["finish_reason"]
    assert joined.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]


def check_logprobs(make):
    chat = make(logprobs=True, top_logprobs=2)
    whole = chat.invoke(MESSAGES)
    content = whole.response_metadata["logprobs"]["content"]
    assert len(content) == whole.usage_metadata["output_tokens"]
    assert all(len(item["top_logprobs"]) == 2 and item["logprob"] <= 0 for item in content)
    streamed = []
    for chunk in chat.stream(MESSAGES):
        streamed += (chunk.response_metadata.get("logprobs") or {}).get("content") or []
    assert [item["token"] for item in streamed] == [item["token"] for item in content]


def check_stop_and_conversation(make):
    text = make().invoke(MESSAGES).content
    stop = text[1:3]
    if stop and stop.isascii():  # a random model's text may hold characters that are none
        cut = make().invoke(MESSAGES, stop=[stop])
        assert cut.content == text[:text.index(stop)]
        assert cut.response_metadata["finish_reason"] == "stop"
    longer = make().invoke([*MESSAGES, AIMessage("Hello."), HumanMessage("Again.")])
    assert longer.usage_metadata["input_tokens"] > make().invoke(MESSAGES).usage_metadata[
        "input_tokens"]


def check_async_and_batch(make):
    alone = make().invoke(MESSAGES).content
    assert [answer.content for answer in make().batch([MESSAGES] * 3)] == [alone] * 3

    async def ask():  # in one event loop, which the client's connections belong to
        whole = await make().ainvoke(MESSAGES)
        return whole.content, "".join([chunk.content async for chunk in make().astream(MESSAGES)])

    assert asyncio.run(ask()) == (alone, alone)


def check_errors(make):
    try:
        make(temperature=3).invoke(MESSAGES)
    except openai.BadRequestError as error:
        assert error.param == "temperature"
    else:
        raise AssertionError("a temperature of 3 is refused")


def main():
    base_url = sys.argv[1]
    api_key = sys.argv[2] if len(sys.argv) > 2 else "none"
    client = openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0)
    model = client.models.list().data[0].id

    def make(**more):
        return ChatOpenAI(**{"model": model, "base_url": base_url, "api_key": api_key,
                             "max_retries": 0, "timeout": 120, "max_tokens": 12, "temperature": 0,
                             **more})

    for check in (
        check_invoke,
        check_stream,
        check_logprobs,
        check_stop_and_conversation,
        check_async_and_batch,
        check_errors,
    ):
        check(make)
        print("ok", check.__name__)


if __name__ == "__main__":
    main()
