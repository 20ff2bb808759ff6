# SPDX-License-Identifier: Apache-2.0
"""The fields of requests by the types of openai's and anthropic's clients, and their closed sets.

A field is a path: `a.b` is a member, `a[]` an object in a list, `a:K` one of kind K where several
kinds of objects stand at a place.
"""
import collections.abc
import types
import typing

from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_count_tokens_params as beta_count_tokens_params
from anthropic.types.beta import message_create_params as beta_create_params
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import input_token_count_params, response_create_params
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


USER = {"role": "user", "content": "a"}


def user_block(given):
    """A block of a user's message; a result behind its call."""
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    called = [USER, {"role": "assistant", "content": [call]}]
    return {"messages": [*(called if given["type"] == "tool_result" else []),
                         {"role": "user", "content": [given]}]}


def assistant_block(given):
    """A block of an answer that another message follows: a call's result, or a user's."""
    if given["type"] == "tool_use":
        later = [{"type": "tool_result", "tool_use_id": given.get("id", "t")}]
        return {"messages": [USER, {"role": "assistant", "content": [given]},
                             {"role": "user", "content": later}]}
    answer = [given, *([] if given["type"] == "text" else [{"type": "text", "text": "b"}])]
    return {"messages": [USER, {"role": "assistant", "content": answer}, USER]}


def tool_message(given):
    """A message in a chat; a tool's behind its call."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    return {"messages": [USER, *([called] if given["role"] == "tool" else []), given]}


# Objects that need others around them: {API: {place: what makes a request's fields of one}}.
AROUND = {
    "chat": {"messages[]": tool_message},
    "responses": {"input[]": lambda given: {"input": [USER, given]}},
    "messages": {"messages[]": lambda given: {"messages": [USER, given, USER]},
                 "messages[]:user.content[]": user_block,
                 "messages[]:assistant.content[]": assistant_block},
}

# The bodies of these are read as those of their neighbours: the members stand with them.
COUNTS = ("input_tokens", "count_tokens")


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


def inner_types(given):
    """(how deep in lists, type) of each object that a field may be or hold."""
    if isinstance(given, TypeAliasType):
        return inner_types(given.__value__)
    origin, inner = get_origin(given), get_args(given)
    if origin in (Required, NotRequired, Annotated):
        return inner_types(inner[0])
    if origin in (typing.Union, types.UnionType):
        return sum(map(inner_types, inner), [])
    if origin in (list, collections.abc.Iterable, collections.abc.Sequence):
        return [("[]" + depth, one) for depth, one in inner_types(inner[0])]
    return [("", given)] if is_typeddict(given) else []


def kinds_of(given):
    """The member that tells the types of a union apart, and its values for one of them."""
    hints = get_type_hints(given, include_extras=True)
    for member in ("type", "role"):
        if closed_set(hints.get(member)):
            return [(member, kind) for kind in closed_set(hints[member])]
    return [(None, None)]


def name_of(given):
    """The same for a type and for what it is in the beta API."""
    module = given.__module__.rpartition(".")[2]
    return module.removeprefix("beta_"), given.__name__.removeprefix("Beta")


class Fields:
    """Of one API. `is_closed(path)`: nothing inside matters, as the whole is refused or left out."""

    def __init__(self, is_closed):
        self.is_closed, self.found, self.seen = is_closed, {}, set()

    def add(self, given, place="", kind=None):
        """The members of types that are alternatives at one place, but for the one that tells their
        kind. A type within itself, or in a second place, has its members once."""
        members = {}
        for one in given:
            if name_of(one) not in self.seen:
                for name, hint in get_type_hints(one, include_extras=True).items():
                    members.setdefault(name, []).append(hint)
        self.seen |= set(map(name_of, given))
        members.pop(kind, None)
        for name, hints in members.items():
            for value in sum(map(closed_set, hints), []) or [None]:
                self.found[f"{place}{name}" + ("" if value is None else f"={value}")] = None
        return [(f"{place}{name}", hints) for name, hints in members.items()]

    def objects(self, path, hints):
        """(types, place, the member that tells their kind) of what a field holds."""
        places = {}
        for depth, one in sum(map(inner_types, hints), []):
            places.setdefault(path + depth, []).append(one)
        for place, given in places.items():
            kinds = {}
            for one in given:
                for kind in kinds_of(one):
                    kinds.setdefault(kind, []).append(one)
            for (member, kind), ones in kinds.items():
                if len(kinds) == 1 or len(set(map(name_of, given))) == 1 or member is None:
                    yield given, place + ".", None
                    break
                name = f"{place}.{member}={kind}"
                self.found[name] = None
                if not self.is_closed(name):
                    yield ones, f"{place}:{kind}.", member

    def walk(self, given):
        """All of them, those that are less deep first."""
        waiting = self.add(given)
        while waiting:
            later = []
            for path, hints in waiting:
                if not self.is_closed(path):
                    for found in self.objects(path, hints):
                        later += self.add(*found)
            waiting = later
        return list(self.found)


def fields_of(api, is_closed):
    """"FIELD" or, for each value of a closed set, "FIELD=VALUE", and "PLACE.MEMBER=KIND"; once each."""
    if api in COUNTS:
        return Fields(lambda _: True).walk(APIS[api][2])
    return Fields(lambda path: is_closed(f"{api} {path}")).walk(APIS[api][2])


if __name__ == "__main__":  # prints what the table must name, without what is closed
    print("\n".join(f"{api} {field}" for api in APIS for field in fields_of(api, lambda _: False)))
