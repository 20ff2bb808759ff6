# SPDX-License-Identifier: Apache-2.0
"""SDKs and thin layers over them: tools that run, structured output, streams."""
import asyncio
import typing

import pydantic

from cases import MODEL, OPENAI, URL, case
from scripts import ANSWER, TEXT, TRIP


class Trip(pydantic.BaseModel):
    """A trip to a city."""
    city: str
    days: int


def is_trip(value):
    assert isinstance(value, Trip) and value.model_dump() == TRIP, value


def user(script):
    return [{"role": "user", "content": f"Go on. case:{script}"}]


@case("openai")
def openai():
    import openai as sdk
    client = sdk.OpenAI(**OPENAI)
    parsed = client.chat.completions.parse(model=MODEL, messages=user("json"), response_format=Trip)
    is_trip(parsed.choices[0].message.parsed)
    is_trip(client.responses.parse(model=MODEL, input="case:json", text_format=Trip).output_parsed)
    tools = [sdk.pydantic_function_tool(Trip)]
    with client.chat.completions.stream(model=MODEL, messages=user("trip"), tools=tools) as stream:
        call = stream.get_final_completion().choices[0].message.tool_calls[0]
    is_trip(call.function.parsed_arguments)
    assert client.responses.create(model=MODEL, input="case:text").output_text == TEXT


@case("anthropic")
def anthropic():
    import anthropic as sdk
    client = sdk.Anthropic(base_url=URL, api_key="none")
    asked = []

    @sdk.beta_tool
    def weather(city: str) -> str:
        """The weather of a city."""
        asked.append(city)
        return "12 degrees"

    for stream in (False, True):
        runner = client.beta.messages.tool_runner(
            model=MODEL, max_tokens=200, tools=[weather], messages=user("weather"), stream=stream)
        last = runner.until_done()
        last = last.get_final_message() if hasattr(last, "get_final_message") else last
        assert last.content[0].text == ANSWER, last
    assert asked == ["Köln"] * 2, asked
    is_trip(client.messages.parse(model=MODEL, max_tokens=200, messages=user("json"),
                                  output_format=Trip).parsed_output)


@case("openai-agents")
def openai_agents():
    import agents
    import openai as sdk
    asked = []

    @agents.function_tool
    def weather(city: str) -> str:
        """The weather of a city."""
        asked.append(city)
        return "12 degrees"

    agents.set_tracing_disabled(True)
    client = sdk.AsyncOpenAI(**OPENAI)
    for kind in (agents.OpenAIResponsesModel, agents.OpenAIChatCompletionsModel):
        agent = agents.Agent(name="a", tools=[weather], model=kind(MODEL, client))
        assert agents.Runner.run_sync(agent, "case:weather").final_output == ANSWER
        typed = agents.Agent(name="a", tools=[weather], output_type=Trip, model=kind(MODEL, client))
        is_trip(agents.Runner.run_sync(typed, "case:weatherthenjson").final_output)
    assert asked == ["Köln"] * 4, asked


@case("instructor")
def instructor():
    import anthropic as claude
    import instructor as sdk
    import openai as gpt
    for mode in (sdk.Mode.TOOLS, sdk.Mode.TOOLS_STRICT, sdk.Mode.JSON_SCHEMA):
        script = "json" if mode == sdk.Mode.JSON_SCHEMA else "trip"
        client = sdk.from_openai(gpt.OpenAI(**OPENAI), mode=mode)
        is_trip(client.chat.completions.create(model=MODEL, response_model=Trip, max_retries=0,
                                               messages=user(script)))
    client = sdk.from_anthropic(claude.Anthropic(base_url=URL, api_key="none"))
    is_trip(client.messages.create(model=MODEL, max_tokens=200, response_model=Trip, max_retries=0,
                                   messages=user("trip")))


@case("litellm")
def litellm():
    import litellm as sdk
    for model, base in (("openai/scripted", URL + "/v1"), ("hosted_vllm/scripted", URL + "/v1"),
                        ("anthropic/scripted", URL)):
        whole = sdk.completion(model=model, api_base=base, api_key="none", messages=user("text"),
                               max_tokens=200)
        assert whole.choices[0].message.content == TEXT, whole
        chunks = sdk.completion(model=model, api_base=base, api_key="none", messages=user("text"),
                                max_tokens=200, stream=True)
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == TEXT


@case("outlines")
def outlines():
    import openai as sdk
    import outlines as library
    for maker in (library.from_vllm, library.from_openai):
        model = maker(sdk.OpenAI(**OPENAI), MODEL)
        is_trip(Trip.model_validate_json(model("case:json", Trip)))
    model = library.from_vllm(sdk.OpenAI(**OPENAI), MODEL)
    assert model("case:text", typing.Literal["The words", TEXT]) == TEXT


@case("magentic")
def magentic():
    import magentic as library
    from magentic.chat_model.openai_chat_model import OpenaiChatModel

    with OpenaiChatModel(MODEL, base_url=OPENAI["base_url"], api_key="none"):
        chat = library.Chat([library.UserMessage("case:text")]).submit()
        assert str(chat.last_message.content) == TEXT


@case("mirascope")
def mirascope():
    from mirascope import llm
    llm.register_provider("openai:completions", scope="openai/", **OPENAI)

    @llm.call("openai/scripted:completions")
    def ask():
        return "case:text"

    assert ask().text() == TEXT


@case("pydantic-ai-slim")
def pydantic_ai():
    # Not its AnthropicModel: 2.31.1 does not work with the anthropic package of its day.
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider
    provider = OpenAIProvider(**OPENAI)
    asked = []

    def weather(city: str) -> str:
        """The weather of a city."""
        asked.append(city)
        return "12 degrees"

    models = (OpenAIChatModel(MODEL, provider=provider),
              OpenAIResponsesModel(MODEL, provider=provider))
    for model in models:
        agent = Agent(model, tools=[weather], output_type=Trip)
        is_trip(agent.run_sync("case:weatherthenfinal").output)
        is_trip(Agent(model, output_type=NativeOutput(Trip)).run_sync("case:json").output)

        async def streamed(model=model):
            async with Agent(model).run_stream("case:text") as result:
                return await result.get_output()
        assert asyncio.run(streamed()) == TEXT
    assert asked == ["Köln"] * len(models), asked
