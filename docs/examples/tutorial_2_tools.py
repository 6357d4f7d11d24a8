"""Step 2: a tool that reads. The model plans a step, the runtime does it, the model answers."""

import trio

from goliath_actors import Agent, open_runtime, tool
from goliath_actors.testing import ScriptedModel

TASKS = ["water the plants", "call Grace"]


@tool
async def list_tasks() -> list[str]:
    """List today's tasks."""
    return TASKS


model = ScriptedModel(
    [
        # A plan: which step is next. With a real model you never write these.
        {"kind": "tool", "tool": "list_tasks", "brief": "read the list"},
        {"kind": "answer", "brief": "say what is on"},
        "You have two tasks: water the plants and call Grace.",
    ]
)
agent = Agent(name="assistant", model=model, tools=[list_tasks])


async def main() -> None:
    async with open_runtime(agent) as runtime:
        result = await runtime.run("What is on today?", conversation_id="ada")
        for step in result.steps:
            print(step.index, step.kind, step.tool, step.status)
        print(result.text)
        print([request.role for request in model.requests])


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   0 tool list_tasks executed
#   1 answer None executed
#   You have two tasks: water the plants and call Grace.
#   ['plan', 'plan', 'answer']
