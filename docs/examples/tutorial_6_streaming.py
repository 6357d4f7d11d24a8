"""Step 6: see the run while it goes."""

import trio

from goliath_actors import Agent, open_runtime, tool
from goliath_actors.events import Answer, PlanMade, RunFinished, TextDelta, ToolFinished
from goliath_actors.testing import ScriptedModel


@tool
async def list_tasks() -> list[str]:
    """List today's tasks."""
    return ["water the plants"]


model = ScriptedModel(
    [
        {"kind": "tool", "tool": "list_tasks", "brief": "read the list"},
        {"kind": "answer", "brief": "say what is on"},
        "Only the plants today.",
    ],
    chunk=8,  # characters of one piece of streamed text
)
agent = Agent(name="assistant", model=model, tools=[list_tasks])


async def main() -> None:
    async with open_runtime(agent) as runtime:
        async with runtime.stream("What is on today?", conversation_id="ada") as run:
            async for event in run.events():
                match event:
                    case PlanMade():
                        print("plan:", event.tool or event.plan_kind)
                    case ToolFinished():
                        print("tool:", event.tool, event.status, "|", event.result)
                    case TextDelta():
                        print(event.text, end="", flush=True)
                    case Answer():
                        print()
                    case RunFinished():
                        print("end:", event.status)
            result = await run.wait()
    print(result.usage.estimated)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   plan: list_tasks
#   tool: list_tasks executed | 1. water the plants
#   plan: answer
#   Only the plants today.
#   end: completed
#   True
