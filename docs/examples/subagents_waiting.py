"""A sub-agent that waits for a person lets the run that called it wait too; one answer takes up both."""

import trio

from goliath_actors import Agent, ToolLoop, open_runtime, tool
from goliath_actors.testing import ScriptedModel, tool_calls
from goliath_actors.tools import ConfirmRequest, Suspend


@tool(writes=True)
async def lend(book: str, to: str) -> str:
    """Lend a book."""
    await trio.lowlevel.checkpoint()
    return f"{book} is lent to {to}"


async def ask_later(request: ConfirmRequest) -> Suspend:
    await trio.lowlevel.checkpoint()
    return Suspend()


librarian = Agent(
    name="librarian",
    model=ScriptedModel([tool_calls(("lend", {"book": "the field guide", "to": "Ada"})), "Ada has it."]),
    tools=[lend],
    confirm=ask_later,
    loop=ToolLoop(),
)
desk = Agent(
    name="desk",
    model=ScriptedModel([tool_calls(("librarian", {"ask": "Lend Ada the field guide."})), "Done."]),
    tools=[librarian.as_tool()],
    loop=ToolLoop(),
)


async def main() -> None:
    async with open_runtime(desk) as runtime:
        conversation = runtime.conversation("ada")
        result = await conversation.run("I want the field guide.")
        (call,) = result.waiting
        (asked,) = call.payload["waiting"]
        print(call.tool, "waits:", asked["kind"], asked["tool"], asked["input"])
        result = await conversation.resume({call.call_id: {asked["call_id"]: True}})
        print(result.text, "|", result.steps[0].result)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   librarian waits: approval lend {'book': 'the field guide', 'to': 'Ada'}
#   Done. | Ada has it.
