"""A person is asked for what a sub-agent wants to do, in a program of your own."""

import trio

from goliath_actors import Agent, ToolLoop, open_runtime, tool
from goliath_actors.testing import ScriptedModel, tool_calls
from goliath_actors.tools import Confirmed, ConfirmRequest, answered_by, ask_client


@tool(writes=True)
async def lend(book: str, to: str) -> str:
    """Lend a book."""
    await trio.lowlevel.checkpoint()
    return f"{book} is lent to {to}"


librarian = Agent(
    name="librarian",
    model=ScriptedModel([tool_calls(("lend", {"book": "the field guide", "to": "Ada"})), "Not today."]),
    tools=[lend],
    confirm=ask_client,
    loop=ToolLoop(),
)
desk = Agent(
    name="desk",
    model=ScriptedModel([tool_calls(("librarian", {"ask": "Lend Ada the field guide."})), "Come back tomorrow."]),
    tools=[librarian.as_tool()],
    loop=ToolLoop(),
)


async def person(request: ConfirmRequest) -> Confirmed:
    await trio.lowlevel.checkpoint()  # here somebody thinks about it
    print(request.agent, "wants to call", request.tool.name, request.input)
    return Confirmed(False, "it is promised to somebody else")


async def main() -> None:
    async with open_runtime(desk) as runtime:
        with answered_by(person):
            run = runtime.submit("I want the field guide.", conversation_id="ada")
        print((await run.wait()).text)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   librarian wants to call lend {'book': 'the field guide', 'to': 'Ada'}
#   Come back tomorrow.
