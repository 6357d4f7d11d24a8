"""goliath_actors: an agent with a ToolLoop, one tool, history kept in memory, replies streamed."""

from __future__ import annotations

import trio
from _turns import INSTRUCTIONS, QUESTION, Clock

from goliath_actors import Agent, ToolLoop, open_runtime, tool
from goliath_actors.models import OpenAIChat


@tool
async def weather(city: str) -> str:
    """Tell the weather of a city."""
    await trio.lowlevel.checkpoint()
    return f"sunny in {city}"


async def main() -> None:
    clock = Clock()
    model = OpenAIChat("fake", base_url=clock.url)
    agent = Agent(name="bench", model=model, tools=[weather], instructions=INSTRUCTIONS, loop=ToolLoop())
    warm = trio.Event()

    async def ready() -> None:
        if clock.all_warm:
            warm.set()
        await warm.wait()

    async with open_runtime(agent) as runtime:

        async def conversation(number: int) -> None:
            async def turn() -> str:
                return (await runtime.run(QUESTION, conversation_id=f"c{number}")).text

            await clock.talk(turn, ready)

        async with trio.open_nursery() as nursery:
            for number in range(clock.conversations):
                nursery.start_soon(conversation, number)
        clock.tell()


trio.run(main)
