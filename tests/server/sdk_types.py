# SPDX-License-Identifier: Apache-2.0
"""The types of openai's and anthropic's clients, made strict: nothing unknown, nothing missing."""
import types
import typing

import anthropic.types
import anthropic.types.shared
import openai.types
import openai.types.shared
import pydantic
from openai.types import completion_choice, responses
from openai.types.chat import chat_completion, chat_completion_chunk
from typing_extensions import Annotated, Literal, TypeAliasType, get_args, get_origin

# Fields that the types lack or take less for, and what they may hold: vLLM's (its clients read
# them), `timings`, which is ours, and what the API itself gives.
STOP = {"stop_reason": typing.Union[int, str]}
TIMED = {"timings": typing.Dict[str, typing.Any]}
THOUGHT = {"reasoning": str, "reasoning_content": str}
EXTENSIONS = {
    chat_completion.Choice: STOP,
    chat_completion_chunk.Choice: STOP,
    openai.types.chat.ChatCompletionMessage: THOUGHT,
    chat_completion_chunk.ChoiceDelta: THOUGHT,
    openai.types.CompletionUsage: TIMED,
    # The reason is null until the end, and an echoed prompt's first token has no log-probability.
    completion_choice.CompletionChoice: {**STOP, "finish_reason": str},
    completion_choice.Logprobs: {
        "token_logprobs": typing.List[typing.Optional[float]],
        "top_logprobs": typing.List[typing.Optional[typing.Dict[str, float]]]},
    responses.Response: {"store": bool},
    # Openai 2's type has it.
    responses.ResponseFunctionCallArgumentsDoneEvent: {"name": str},
    responses.ResponseCustomToolCall: {  # as in the list of a request's items
        "status": Literal["in_progress", "completed", "incomplete"]},
    openai.types.shared.ErrorObject: {"code": typing.Union[int, str]},  # vLLM's is the status
    # What the client falls back by: `thread_unsupported_request`.
    anthropic.types.shared.InvalidRequestError: {"details": typing.Dict[str, typing.Any]},
}
MADE = {}


def kinds_of(model):
    """The values of its field `type`, where that is a closed set."""
    field = getattr(model, "model_fields", {}).get("type")
    return get_args(field.annotation) if field and get_origin(field.annotation) is Literal else ()


def union_of(members):
    """One whose errors are those of the member that `type` names, where that tells them apart."""
    models = [one for one in members if one is not type(None)]
    kinds = [kind for one in models for kind in kinds_of(one)]
    union = typing.Union[tuple(models)]
    if len(models) > 1 and all(map(kinds_of, models)) and len(set(kinds)) == len(kinds):
        union = Annotated[union, pydantic.Field(discriminator="type")]
    return union if len(models) == len(members) else typing.Optional[union]


def strict(given):
    """The type that takes what `given` says and nothing else."""
    if isinstance(given, TypeAliasType):
        return strict(given.__value__)
    origin, inner = get_origin(given), get_args(given)
    if origin is Annotated:
        return strict(inner[0])
    if origin in (typing.Union, types.UnionType):
        return union_of([strict(one) for one in inner])
    if origin is list:
        return typing.List[strict(inner[0])]
    if origin is dict:
        return typing.Dict[inner[0], strict(inner[1])]
    if not (isinstance(given, type) and issubclass(given, pydantic.BaseModel)):
        return typing.Any if given is object else given
    if given not in MADE:
        MADE[given] = given  # a type within itself is checked once
        fields = {name: (strict(field.annotation), pydantic.Field(
            ... if field.is_required() else field.default, alias=field.alias))
            for name, field in given.model_fields.items()}
        for name, extension in EXTENSIONS.get(given, {}).items():
            fields[name] = (typing.Optional[extension], None)
        MADE[given] = pydantic.create_model(given.__name__, __config__=pydantic.ConfigDict(
            extra="forbid", strict=True, protected_namespaces=()), **fields)
    return MADE[given]


def by_kind(union):
    """{the value of `type`: the strict type} of a union of events."""
    made = map(strict, get_args(get_args(union)[0]))
    return {kind: one for one in made for kind in kinds_of(one)}


RESPONSE_EVENTS = by_kind(responses.ResponseStreamEvent)
MESSAGE_EVENTS = by_kind(anthropic.types.RawMessageStreamEvent)
WHOLE = {"/v1/chat/completions": openai.types.chat.ChatCompletion,
         "/v1/completions": openai.types.Completion,
         "/v1/responses": responses.Response,
         "/v1/messages": anthropic.types.Message,
         "/v1/messages/count_tokens": anthropic.types.MessageTokensCount}
CHUNK = {"/v1/chat/completions": openai.types.chat.ChatCompletionChunk,
         "/v1/completions": openai.types.Completion}


class OpenAiError(pydantic.BaseModel):
    error: openai.types.shared.ErrorObject


def error_faults(path, value):
    """What the client's types have against an answer that is an error, a line each."""
    is_anthropic = path.startswith("/v1/messages")
    given = anthropic.types.shared.ErrorResponse if is_anthropic else OpenAiError
    return against(strict(given), value, f"{path} error")


def against(model, value, what):
    try:
        model.model_validate(value)
    except pydantic.ValidationError as error:
        return [f"{what} {'.'.join(map(str, one['loc']))}: {one['msg']}, got {one['input']!r:.60}"
                for one in error.errors()]
    return []


def type_of(path, event):
    """The strict type of an answer (`event` is none) or of one event of a stream."""
    if event is None:
        return strict(WHOLE[path])
    if path in CHUNK:
        return strict(CHUNK[path])
    return (RESPONSE_EVENTS if path == "/v1/responses" else MESSAGE_EVENTS)[event["type"]]


def faults(path, value, is_event):
    """What the client's types have against an answer or one event of it, a line each."""
    try:
        model = type_of(path, value if is_event else None)
    except KeyError as unknown:
        return [f"{path}: no event {unknown}"]
    return against(model, value, f"{path} {value['type']}" if is_event and "type" in value else path)
