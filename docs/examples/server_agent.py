"""An agent with tools, served over HTTP in a program of one's own."""

from functools import partial

import httpx2 as httpx
import trio

from goliath_actors import Agent, ToolContext, ToolLoop, tool
from goliath_actors.server import ServerConfig, Visitor, ask_client, serve
from goliath_actors.testing import ScriptedModel, tool_calls


@tool
async def opening_hours(day: str) -> str:
    """Say when the shop is open on a day."""
    return "9 to 17" if day.lower() not in ("saturday", "sunday") else "closed"


@tool(writes=True)
async def reserve(ctx: ToolContext[Visitor], what: str) -> str:
    """Reserve something."""
    return f"reserved {what} for {ctx.context.principal}"


agent = Agent(
    name="shop",
    model=ScriptedModel([tool_calls(("opening_hours", {"day": "Monday"})), "Yes, from 9 to 17."]),
    # or OpenAIChat("qwen3:4b", base_url="http://127.0.0.1:11434/v1")
    tools=[opening_hours, reserve],
    loop=ToolLoop(),
    confirm=ask_client,
    instructions="You work in a shop. Be short.",
)


async def main() -> None:
    async with trio.open_nursery() as nursery:
        server = await nursery.start(partial(serve, agent, config=ServerConfig(port=0)))
        async with httpx.AsyncClient(base_url=server.url, trust_env=False) as client:
            response = await client.post("/v1/conversations/ada/runs", json={"ask": "Are you open on Monday?"})
            print(response.json()["result"]["text"])
        server.shut_down()


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   Yes, from 9 to 17.
