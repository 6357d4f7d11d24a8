"""A runtime in an asyncio program: ask, stream, leave early, and reach asyncio code from a tool."""

import asyncio

from goliath_actors import Agent, ToolLoop, tool
from goliath_actors.bridge import call_asyncio, open_bridge
from goliath_actors.testing import Gate, ScriptedModel, tool_calls

gate = Gate()


async def look_up(order: int) -> str:
    """Asyncio code, say of a database's client: it runs in the loop that asked."""
    await asyncio.sleep(0)
    return f"order {order} is on its way"


@tool
async def order_status(order: int) -> str:
    """Say where an order is. Tools run on trio, in the bridge's thread."""
    return await call_asyncio(look_up, order)


agent = Agent(
    model=ScriptedModel([tool_calls(("order_status", {"order": 7})), "On its way.", "Hello!", gate.then("never said")]),
    tools=[order_status],
    loop=ToolLoop(),
)


async def main() -> None:
    async with open_bridge(agent) as bridge:
        result = await bridge.run("Where is order 7?", conversation_id="ada", timeout=30)
        print(result.steps[0].result, "|", result.text)

        async with bridge.stream("Hi.", conversation_id="bob") as run:  # leaving the block early aborts the run
            async for event in run.events():
                print(event.kind, end=" ")
        print("|", (await run.wait()).text)

        try:
            async with asyncio.timeout(0.1):  # or any cancellation: observers are told, then it passes
                await bridge.run("Tell me everything.", conversation_id="eve")
        except TimeoutError:
            counts = await bridge.statistics()
            print("completed:", counts.completed, "aborted:", counts.aborted)


if __name__ == "__main__":
    asyncio.run(main())

# Prints:
#   order 7 is on its way | On its way.
#   run-queued run-started budget model-started text-delta model-finished plan-made answer run-finished | Hello!
#   completed: 2 aborted: 1
