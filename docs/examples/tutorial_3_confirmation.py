"""Step 3: a tool that writes. Somebody is asked first, and a "no" is a result, not an error."""

import trio

from goliath_actors import Agent, open_runtime, tool
from goliath_actors.testing import ScriptedModel
from goliath_actors.tools import Confirmed, ConfirmRequest

TASKS = ["water the plants"]


@tool(writes=True)
async def add_task(title: str) -> str:
    """Add a task to today's list.

    Args:
        title: what is to be done, in a few words
    """
    TASKS.append(title)
    return f"added {title}"


async def ask_ada(request: ConfirmRequest) -> Confirmed:
    """Stand for a person. A real one would be asked in a window, and could take her time."""
    print(f"{request.tool.name} {request.input}?")
    if "homework" in request.input["title"]:
        return Confirmed(False, "no homework today")
    return Confirmed(True)


model = ScriptedModel(
    [
        {"kind": "tool", "tool": "add_task", "brief": "add milk to the list"},
        {"title": "buy milk"},
        {"kind": "answer", "brief": "say that it is done"},
        "Milk is on the list.",
        {"kind": "tool", "tool": "add_task", "brief": "add homework to the list"},
        {"title": "do homework"},
        {"kind": "answer", "brief": "say that it was declined"},
        "I left the list as it is.",
    ]
)
agent = Agent(name="assistant", model=model, tools=[add_task], confirm=ask_ada)


async def main() -> None:
    async with open_runtime(agent) as runtime:
        for ask in ("Add milk.", "Add homework."):
            result = await runtime.run(ask, conversation_id="ada")
            step = result.steps[0]
            print(step.status, step.skip_reason, "|", step.result)
            print(result.text)
    print(TASKS)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   add_task {'title': 'buy milk'}?
#   executed None | added buy milk
#   Milk is on the list.
#   add_task {'title': 'do homework'}?
#   skipped confirmation | Declined by the user: no homework today. Do not try it again unless the user asks for it.
#   I left the list as it is.
#   ['water the plants', 'buy milk']
