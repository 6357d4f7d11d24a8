"""openai-agents: an agent with one tool over the chat-completions dialect, the input list handed back each turn."""

from __future__ import annotations

import asyncio
from typing import Any

from _turns import INSTRUCTIONS, QUESTION, Clock
from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI


@function_tool
async def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"sunny in {city}"


async def main() -> None:
    clock = Clock()
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=clock.url, api_key="none", max_retries=0, timeout=600)
    model = OpenAIChatCompletionsModel(model="fake", openai_client=client)
    agent = Agent(name="bench", instructions=INSTRUCTIONS, tools=[weather], model=model)
    warm = asyncio.Event()

    async def ready() -> None:
        if clock.all_warm:
            warm.set()
        await warm.wait()

    async def conversation() -> None:
        history: list[Any] = []

        async def turn() -> str:
            nonlocal history
            result = await Runner.run(agent, [*history, {"role": "user", "content": QUESTION}])
            history = result.to_input_list()
            return str(result.final_output)

        await clock.talk(turn, ready)

    async with asyncio.TaskGroup() as group:
        for _ in range(clock.conversations):
            group.create_task(conversation())
    clock.tell()


asyncio.run(main())
