# SPDX-License-Identifier: Apache-2.0
"""The fields of requests by the types of openai's and anthropic's clients, and their closed sets."""
import types
import typing

from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_count_tokens_params as beta_count_tokens_params
from anthropic.types.beta import message_create_params as beta_create_params
from anthropic.types.beta import BetaContentBlockParam, BetaToolUnionParam
from openai.types import completion_create_params
from openai.types.chat import (ChatCompletionContentPartParam, ChatCompletionMessageParam,
                               ChatCompletionToolUnionParam)
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import (ResponseInputContentParam, ResponseInputItemParam, ToolParam,
                                    input_token_count_params, response_create_params)
from typing_extensions import (Annotated, Literal, NotRequired, Required, TypeAliasType, get_args,
                               get_origin, get_type_hints, is_typeddict)

# API: (path, what a request needs, types of its requests).
APIS = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]},
             [chat_create_params.CompletionCreateParamsNonStreaming,
              chat_create_params.CompletionCreateParamsStreaming]),
    "completions": ("/v1/completions", {"prompt": "a"},
                    [completion_create_params.CompletionCreateParamsNonStreaming,
                     completion_create_params.CompletionCreateParamsStreaming]),
    "responses": ("/v1/responses", {"input": "a"},
                  [response_create_params.ResponseCreateParamsNonStreaming,
                   response_create_params.ResponseCreateParamsStreaming]),
    "input_tokens": ("/v1/responses/input_tokens", {"input": "a"},
                     [input_token_count_params.InputTokenCountParams]),
    "messages": ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4},
                 [message_create_params.MessageCreateParamsNonStreaming,
                  message_create_params.MessageCreateParamsStreaming,
                  beta_create_params.MessageCreateParamsNonStreaming,
                  beta_create_params.MessageCreateParamsStreaming]),
    "count_tokens": ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "a"}]},
                     [message_count_tokens_params.MessageCountTokensParams,
                      beta_count_tokens_params.MessageCountTokensParams]),
}


def content_of_user(given):
    return {"messages": [{"role": "user", "content": [given]}]}


def block(given):
    """A block where its role puts it; a result behind its call."""
    user, call = {"role": "user", "content": "a"}, {"type": "tool_use", "id": "t", "name": "f",
                                                    "input": {}}
    if given["type"] in ("thinking", "redacted_thinking", "tool_use"):
        answer = [given] if given["type"] == "tool_use" else [given, {"type": "text", "text": "b"}]
        return {"messages": [user, {"role": "assistant", "content": answer}, *(
            [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": given["id"]}]}]
            if given["type"] == "tool_use" else [user])]}
    called = [user, {"role": "assistant", "content": [call]}]
    return {"messages": [*(called if given["type"] == "tool_result" else []),
                         {"role": "user", "content": [given]}]}


# Where objects of several kinds stand: {API: {place: (their types, the member that tells them apart,
# what makes a request's fields of one)}}.
KINDS = {
    "chat": {
        "messages[]": (ChatCompletionMessageParam, "role",
                       lambda given: {"messages": [{"role": "user", "content": "a"}, given]}),
        "messages[].content[]": (ChatCompletionContentPartParam, "type", content_of_user),
        "tools[]": (ChatCompletionToolUnionParam, "type", lambda given: {"tools": [given]})},
    "responses": {
        "input[]": (ResponseInputItemParam, "type",
                    lambda given: {"input": [{"role": "user", "content": "a"}, given]}),
        "input[].content[]": (ResponseInputContentParam, "type",
                              lambda given: {"input": [{"role": "user", "content": [given]}]}),
        "tools[]": (ToolParam, "type", lambda given: {"tools": [given]})},
    "messages": {
        "messages[].content[]": (BetaContentBlockParam, "type", block),
        "tools[]": (BetaToolUnionParam, "type", lambda given: {"tools": [given]})},
}


def kinds_of(given, member):
    """The values of `member` that tell the types of a union apart."""
    if isinstance(given, TypeAliasType):
        return kinds_of(given.__value__, member)
    if get_origin(given) is Annotated:
        return kinds_of(get_args(given)[0], member)
    if get_origin(given) in (typing.Union, types.UnionType):
        return sum((kinds_of(one, member) for one in get_args(given)), [])
    return closed_set(get_type_hints(given, include_extras=True)[member]) if is_typeddict(given) else []


def closed_set(given):
    """The values that a field may have besides null, or none where it takes others too."""
    if isinstance(given, TypeAliasType):
        return closed_set(given.__value__)
    origin, inner = get_origin(given), get_args(given)
    if origin is Literal:
        return [value for value in inner if value is not None]
    if origin in (Required, NotRequired, Annotated, list):
        return closed_set(inner[0])
    if origin in (typing.Union, types.UnionType):
        sets = [closed_set(one) for one in inner if one is not type(None)]
        return sum(sets, []) if all(sets) else []
    return []


def fields_of(api):
    """"FIELD" or, for each value of a closed set, "FIELD=VALUE", and "PLACE.MEMBER=KIND"; once each."""
    found = {}
    for given in APIS[api][2]:
        for name, hint in get_type_hints(given, include_extras=True).items():
            for value in closed_set(hint) or [None]:
                found[name if value is None else f"{name}={value}"] = None
    for place, (given, member, _) in KINDS.get(api, {}).items():
        found |= dict.fromkeys(f"{place}.{member}={kind}" for kind in kinds_of(given, member))
    return list(found)


if __name__ == "__main__":  # prints what the table must name
    print("\n".join(f"{api} {field}" for api in APIS for field in fields_of(api)))
