# SPDX-License-Identifier: Apache-2.0
"""Frameworks that people build agents and pipelines with."""
import asyncio

from cases import MODEL, OPENAI, URL, case
from cases_sdks import Trip, is_trip
from scripts import ANSWER, TEXT


def weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: Its name.
    """
    ASKED.append(city)
    return "12 degrees"


ASKED = []


@case("langchain-openai")
def langchain_openai():
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI
    for responses in (False, True):
        model = ChatOpenAI(model=MODEL, use_responses_api=responses, **OPENAI)
        state = create_agent(model, [weather]).invoke(
            {"messages": [{"role": "user", "content": "case:weather"}]})
        assert state["messages"][-1].text == ANSWER, state
        is_trip(model.with_structured_output(Trip, method="json_schema").invoke("case:json"))
        assert "".join(chunk.text for chunk in model.stream("case:text")) == TEXT
    assert ASKED == ["Köln"] * 2


@case("langchain-anthropic")
def langchain_anthropic():
    from langchain.agents import create_agent
    from langchain_anthropic import ChatAnthropic
    model = ChatAnthropic(model=MODEL, base_url=URL, api_key="none", max_tokens=200)
    state = create_agent(model, [weather]).invoke(
        {"messages": [{"role": "user", "content": "case:weather"}]})
    assert state["messages"][-1].text == ANSWER and ASKED == ["Köln"], state
    is_trip(model.with_structured_output(Trip).invoke("case:trip"))
    assert "".join(chunk.text for chunk in model.stream("case:text")) == TEXT


@case("llama-index-llms-openai-like")
def llama_index():
    from llama_index.core.agent.workflow import FunctionAgent
    from llama_index.llms.openai_like import OpenAILike
    model = OpenAILike(model=MODEL, api_base=OPENAI["base_url"], api_key="none", is_chat_model=True,
                       is_function_calling_model=True, context_window=8192)

    async def ask():
        agent = FunctionAgent(tools=[weather], llm=model, streaming=True)
        return str(await agent.run("case:weather"))
    assert asyncio.run(ask()) == ANSWER and ASKED == ["Köln"], ASKED
    assert str(model.complete("case:text")) == TEXT


@case("smolagents")
def smolagents():
    import smolagents as library
    model = library.OpenAIServerModel(model_id=MODEL, api_base=OPENAI["base_url"], api_key="none")
    agent = library.ToolCallingAgent(tools=[library.tool(weather)], model=model, verbosity_level=0)
    assert agent.run("case:answer") == ANSWER and ASKED == ["Köln"], ASKED
    coder = library.CodeAgent(tools=[], model=model, verbosity_level=0)
    assert coder.run("case:code") == 42


@case("haystack-ai")
def haystack():
    from haystack.components.agents import Agent
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.dataclasses import ChatMessage
    from haystack.tools import create_tool_from_function
    from haystack.utils import Secret
    generator = OpenAIChatGenerator(model=MODEL, api_base_url=OPENAI["base_url"],
                                    api_key=Secret.from_token("none"))
    agent = Agent(chat_generator=generator, tools=[create_tool_from_function(weather)])
    said = agent.run(messages=[ChatMessage.from_user("case:weather")])
    assert said["messages"][-1].text == ANSWER and ASKED == ["Köln"], said


@case("autogen-agentchat")
def autogen():
    from autogen_agentchat.agents import AssistantAgent
    from autogen_ext.models.openai import OpenAIChatCompletionClient
    client = OpenAIChatCompletionClient(model=MODEL, **OPENAI, model_info={
        "vision": False, "function_calling": True, "json_output": True, "family": "unknown",
        "structured_output": True})

    async def ask():
        agent = AssistantAgent("a", client, tools=[weather], reflect_on_tool_use=True)
        return (await agent.run(task="case:weather")).messages[-1].content
    assert asyncio.run(ask()) == ANSWER and ASKED == ["Köln"], ASKED


@case("dspy")
def dspy():
    import dspy as library
    library.configure(lm=library.LM("openai/scripted", api_base=OPENAI["base_url"], api_key="none",
                                    cache=False))
    assert library.Predict("question -> answer")(question="Where? case:dspy").answer == "Köln"


@case("crewai")
def crewai():
    import crewai as library
    model = library.LLM(model="openai/scripted", **OPENAI)
    agent = library.Agent(role="r", goal="g", backstory="b", llm=model)
    task = library.Task(description="case:text", expected_output="words", agent=agent)
    assert library.Crew(agents=[agent], tasks=[task]).kickoff().raw == TEXT
