"""`before_plan`: show the planner fewer tools, and tell it something for this attempt only."""

import attrs
import trio

from goliath_actors import Agent, Extension, approve_all, open_runtime, tool
from goliath_actors.hooks import BeforePlan, HookContext, PlanPatch
from goliath_actors.testing import ScriptedModel


@attrs.frozen
class Account:
    can_write: bool


@tool
async def list_tasks() -> list[str]:
    """List today's tasks."""
    return ["water the plants"]


@tool(writes=True)
async def add_task(title: str) -> str:
    """Add a task."""
    return f"added {title}"


class OnlyReading(Extension[Account]):
    """A tool that the planner does not see costs no tokens and no denied steps."""

    name = "only-reading"

    def before_plan(self, ctx: HookContext[Account], question: BeforePlan) -> PlanPatch | None:
        if ctx.context.can_write:
            return None
        return PlanPatch(
            tools=[tool.name for tool in question.tools if not tool.writes],
            context_text="This account may only read.",
        )


model = ScriptedModel([{"kind": "answer", "brief": "say so"}, "I can only read your list."])
agent = Agent(model=model, tools=[list_tasks, add_task], extensions=[OnlyReading()], confirm=approve_all)


async def main() -> None:
    async with open_runtime(agent) as runtime:
        result = await runtime.run("Add milk.", context=Account(can_write=False))
        print(result.text)
    prompt = model.requests[0].text
    print("list_tasks" in prompt, "add_task" in prompt, "This account may only read." in prompt)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   I can only read your list.
#   True False True
