"""pydantic-ai: an agent with one tool, the message history handed back each turn."""

from __future__ import annotations

import asyncio
from typing import Any

from _turns import INSTRUCTIONS, QUESTION, Clock
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


async def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"sunny in {city}"


async def main() -> None:
    clock = Clock()
    model = OpenAIChatModel("fake", provider=OpenAIProvider(base_url=clock.url, api_key="none"))
    agent = Agent(model, instructions=INSTRUCTIONS, tools=[weather])
    warm = asyncio.Event()

    async def ready() -> None:
        if clock.all_warm:
            warm.set()
        await warm.wait()

    async def conversation() -> None:
        history: list[Any] = []

        async def turn() -> str:
            nonlocal history
            result = await agent.run(QUESTION, message_history=history)
            history = result.all_messages()
            return str(result.output)

        await clock.talk(turn, ready)

    async with asyncio.TaskGroup() as group:
        for _ in range(clock.conversations):
            group.create_task(conversation())
    clock.tell()


asyncio.run(main())
