"""autogen-agentchat: an assistant agent with one tool, which keeps its own history."""

from __future__ import annotations

import asyncio

from _turns import INSTRUCTIONS, QUESTION, Clock
from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient


async def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"sunny in {city}"


async def main() -> None:
    clock = Clock()
    client = OpenAIChatCompletionClient(
        model="fake",
        base_url=clock.url,
        api_key="none",
        max_retries=0,
        timeout=600,
        model_info={
            "vision": False,
            "function_calling": True,
            "json_output": False,
            "structured_output": False,
            "family": "unknown",
        },
    )
    warm = asyncio.Event()

    async def ready() -> None:
        if clock.all_warm:
            warm.set()
        await warm.wait()

    async def conversation() -> None:
        agent = AssistantAgent("bench", client, tools=[weather], system_message=INSTRUCTIONS, reflect_on_tool_use=True)

        async def turn() -> str:
            result = await agent.run(task=QUESTION)
            return str(result.messages[-1].content)

        await clock.talk(turn, ready)

    async with asyncio.TaskGroup() as group:
        for _ in range(clock.conversations):
            group.create_task(conversation())
    clock.tell()


asyncio.run(main())
