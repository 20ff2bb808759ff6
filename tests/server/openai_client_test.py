#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The official client against a running server: openai_client_test.py BASE_URL [API_KEY].

BASE_URL ends in /v1. Needs the `openai` package. Exits non-zero at the first broken expectation.
"""
import sys

import openai


def chat(client, model, **more):
    return client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Say hello."}], **more
    )


def check_models(client):
    models = client.models.list().data
    assert models and models[0].object == "model"
    assert client.models.retrieve(models[0].id).id == models[0].id
    return models[0].id


def check_chat(client, model):
    first = chat(client, model, max_tokens=8, temperature=0, seed=1)
    choice = first.choices[0]
    assert choice.message.role == "assistant" and isinstance(choice.message.content, str)
    assert choice.finish_reason in ("stop", "length")
    usage = first.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens >= 0
    again = chat(client, model, max_tokens=8, temperature=0, seed=2)
    assert again.choices[0].message.content == choice.message.content, "greedy differs"
    assert again.system_fingerprint == first.system_fingerprint


def check_stream(client, model):
    whole = chat(client, model, max_tokens=12, temperature=0.8, seed=5)
    events = list(
        chat(
            client,
            model,
            max_tokens=12,
            temperature=0.8,
            seed=5,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert events[0].choices[0].delta.role == "assistant"
    assert len({event.id for event in events}) == 1
    text = "".join(e.choices[0].delta.content or "" for e in events if e.choices)
    assert text == whole.choices[0].message.content, "stream and whole answer differ"
    finishes = [e.choices[0].finish_reason for e in events if e.choices]
    assert finishes[-1] in ("stop", "length") and not any(finishes[:-1])
    assert events[-1].choices == [] and events[-1].usage.completion_tokens > 0


def check_stream_helper(client, model):
    messages = [{"role": "user", "content": "Hi"}]
    with client.chat.completions.stream(model=model, messages=messages, max_tokens=4) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.current_completion_snapshot  # the parsing getter refuses finish "length"
    assert final.choices[0].finish_reason in ("stop", "length")
    assert final.choices[0].message.content == text


def check_logprobs(client, model):
    answer = chat(client, model, max_tokens=3, temperature=0, logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    for item in content:
        assert item.logprob <= 0 and len(item.top_logprobs) == 2
        assert item.top_logprobs[0].logprob >= item.top_logprobs[1].logprob
        assert item.top_logprobs[0].token == item.token, "greedy takes the best token"
    events = chat(client, model, max_tokens=3, temperature=0, logprobs=True, top_logprobs=2,
                  stream=True)
    streamed = []
    for event in events:
        streamed += (event.choices[0].logprobs.content or []) if event.choices[0].logprobs else []
    assert streamed == content, "stream and whole answer differ"


def check_choices(client, model):
    answer = chat(client, model, max_tokens=4, n=3, seed=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]


def check_completions(client, model):
    answer = client.completions.create(model=model, prompt=["One two", "A b"], max_tokens=3)
    assert [choice.index for choice in answer.choices] == [0, 1]
    events = list(client.completions.create(model=model, prompt="One two", max_tokens=3, stream=True))
    assert events[-1].choices[0].finish_reason in ("stop", "length")


def expect(error, call):
    try:
        call()
    except error as caught:
        return caught
    raise AssertionError(f"{error.__name__} expected")


def check_errors(client, model):
    expect(openai.NotFoundError, lambda: chat(client, "no-such-model"))
    bad = expect(openai.BadRequestError, lambda: chat(client, model, temperature=3))
    assert bad.param == "temperature"
    long = expect(openai.BadRequestError, lambda: chat(client, model, max_tokens=10**8))
    assert long.code == "context_length_exceeded" and "maximum context length" in long.message
    expect(openai.BadRequestError, lambda: chat(client, model, presence_penalty=3))


def main():
    base_url = sys.argv[1]
    api_key = sys.argv[2] if len(sys.argv) > 2 else "none"
    client = openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0, timeout=120)
    model = check_models(client)
    for check in (
        check_chat,
        check_stream,
        check_stream_helper,
        check_logprobs,
        check_choices,
        check_completions,
        check_errors,
    ):
        check(client, model)
        print("ok", check.__name__)


if __name__ == "__main__":
    main()
