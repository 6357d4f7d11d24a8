"""A run that waits for a person holds no task: another process may take it up, days later."""

import tempfile
from pathlib import Path
from typing import Any

import trio

from goliath_actors import Agent, ToolLoop, open_runtime, tool
from goliath_actors.stores import SqliteStore
from goliath_actors.testing import ScriptedModel, tool_calls
from goliath_actors.tools import ConfirmRequest, Suspend


@tool(writes=True)
async def pay(amount: int, to: str) -> str:
    """Pay somebody."""
    await trio.lowlevel.checkpoint()
    return f"paid {amount} to {to}"


async def ask_the_boss(request: ConfirmRequest) -> Suspend:
    await trio.lowlevel.checkpoint()  # a real one would send a mail here
    return Suspend({"for": "the boss"})


def agent(*script: Any) -> Agent[None]:
    return Agent(model=ScriptedModel(list(script)), tools=[pay], loop=ToolLoop(), confirm=ask_the_boss)


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "chat.db"
        first = agent(tool_calls(("pay", {"amount": 5, "to": "Ann"}), text="I ask the boss."))
        async with open_runtime(first, store=SqliteStore(path)) as runtime:
            result = await runtime.run("Pay Ann 5.", conversation_id="u1")
            waiting = result.waiting[0]
            print(result.text, "|", waiting.kind, waiting.tool, dict(waiting.input), waiting.payload)
        # Another process, later.
        async with open_runtime(agent("Done: Ann has her 5."), store=SqliteStore(path)) as runtime:
            result = await runtime.conversation("u1").resume({waiting.call_id: True})
            print(result.text, "|", result.steps[0].result)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   I ask the boss. | approval pay {'amount': 5, 'to': 'Ann'} {'for': 'the boss'}
#   Done: Ann has her 5. | paid 5 to Ann
