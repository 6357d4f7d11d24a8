"""One conversation asks another: a tool that runs a second agent of the same runtime, as a child of its run."""

import trio

from goliath_actors import Agent, Runtime, ToolContext, open_runtime, tool
from goliath_actors.errors import ReentrantRun
from goliath_actors.testing import ScriptedModel

here: Runtime


@tool
async def ask_librarian(ctx: ToolContext[None], question: str) -> str:
    """Ask the librarian about books."""
    result = await here.run(question, agent="librarian", conversation_id=ctx.conversation_id)
    return result.text


@tool
async def ask_myself(ctx: ToolContext[None]) -> str:
    """Ask this very conversation, which can never answer while this run has its turn."""
    try:
        await here.run("hello?", agent="desk", conversation_id=ctx.conversation_id)
    except ReentrantRun as error:
        return " -> ".join(error.chain)
    return "unreachable"


desk = Agent(
    name="desk",
    model=ScriptedModel(
        [
            {"kind": "tool", "tool": "ask_librarian", "brief": "ask for a book on trees"},
            {"question": "Which book is good for trees?"},
            {"kind": "tool", "tool": "ask_myself", "brief": "go in a circle"},
            {"kind": "answer", "brief": "say it"},
            "Take the field guide.",
        ]
    ),
    tools=[ask_librarian, ask_myself],
)
librarian = Agent(name="librarian", model=ScriptedModel(["The field guide."]))


async def main() -> None:
    global here
    async with open_runtime(desk, librarian, max_running=1) as here:
        result = await here.run("A book on trees, please.", agent="desk", conversation_id="ada")
        for step in result.steps[:2]:
            print(step.tool, "|", step.result)
        print(result.text)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   ask_librarian | The field guide.
#   ask_myself | desk/ada -> desk/ada
#   Take the field guide.
