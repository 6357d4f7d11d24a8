"""A tool that takes long says how far it is; whoever follows the run sees it."""

from typing import Any

import trio

from goliath_actors import Agent, ToolContext, ToolLoop, open_runtime, tool
from goliath_actors.events import ToolProgress
from goliath_actors.testing import ScriptedModel, tool_calls


@tool
async def index(ctx: ToolContext[Any], folders: list[str]) -> str:
    """Index folders."""
    for number, folder in enumerate(folders, 1):
        ctx.report(number, len(folders), folder)
        await trio.sleep(0.2)  # reports that come within 0.1 s of the last one are left out
    return f"{len(folders)} folders"


model = ScriptedModel([tool_calls(("index", {"folders": ["plays", "poems"]})), "All is indexed."])
agent = Agent(model=model, tools=[index], loop=ToolLoop())


async def main() -> None:
    async with open_runtime(agent) as runtime:
        async with runtime.stream("Index my texts.") as run:
            async for event in run.events():
                if isinstance(event, ToolProgress):
                    print(f"{event.tool}: {event.progress:g} of {event.total:g}, {event.message}")
            print((await run.wait()).text)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   index: 1 of 2, plays
#   index: 2 of 2, poems
#   All is indexed.
