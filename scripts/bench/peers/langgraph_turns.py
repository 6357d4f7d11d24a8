"""langgraph: the prebuilt tool-calling agent with a checkpointer in memory."""

from __future__ import annotations

import asyncio

from _turns import INSTRUCTIONS, QUESTION, Clock
from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver


@tool
async def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"sunny in {city}"


async def main() -> None:
    clock = Clock()
    model = ChatOpenAI(model="fake", base_url=clock.url, api_key="none", max_retries=0, timeout=600)
    agent = create_agent(model, tools=[weather], system_prompt=INSTRUCTIONS, checkpointer=InMemorySaver())
    warm = asyncio.Event()

    async def ready() -> None:
        if clock.all_warm:
            warm.set()
        await warm.wait()

    async def conversation(number: int) -> None:
        config = {"configurable": {"thread_id": f"c{number}"}}

        async def turn() -> str:
            result = await agent.ainvoke({"messages": [{"role": "user", "content": QUESTION}]}, config)
            return str(result["messages"][-1].content)

        await clock.talk(turn, ready)

    async with asyncio.TaskGroup() as group:
        for number in range(clock.conversations):
            group.create_task(conversation(number))
    clock.tell()


asyncio.run(main())
