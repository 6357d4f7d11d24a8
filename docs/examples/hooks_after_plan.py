"""`after_plan`: judge a plan before anything is done. Here: nobody answers about tasks without having looked."""

import trio

from goliath_actors import Agent, Extension, Retry, open_runtime, tool
from goliath_actors.events import HookDecision
from goliath_actors.hooks import AfterPlan, HookContext
from goliath_actors.testing import ScriptedModel


@tool
async def list_tasks() -> list[str]:
    """List today's tasks."""
    return ["water the plants"]


class LookFirst(Extension[None]):
    name = "look-first"

    def after_plan(self, ctx: HookContext[None], question: AfterPlan) -> Retry | None:
        looked = any(step.tool == "list_tasks" for step in question.steps)
        if question.plan.kind == "answer" and "task" in ctx.ask and not looked:
            return Retry("read the list before you answer about tasks")
        return None


model = ScriptedModel(
    [
        {"kind": "answer", "brief": "say that there are none"},  # a guess
        {"kind": "tool", "tool": "list_tasks", "brief": "read the list"},
        {"kind": "answer", "brief": "say what is on"},
        "One task: water the plants.",
    ]
)
agent = Agent(model=model, tools=[list_tasks], extensions=[LookFirst()])


async def main() -> None:
    async with open_runtime(agent) as runtime:
        result = await runtime.run("Which tasks are there?")
        print(result.text)
        for event in result.trace:
            if isinstance(event, HookDecision):
                print(event.extension, event.phase, event.decision, "|", event.reason)
    print("read the list before you answer" in model.requests[1].text)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   One task: water the plants.
#   look-first after_plan retry | read the list before you answer about tasks
#   True
