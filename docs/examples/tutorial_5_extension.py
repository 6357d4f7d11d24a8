"""Step 5: an extension. It knows your application's context, adds a fact, and refuses writes for some accounts."""

import attrs
import trio

from goliath_actors import Agent, Deny, Extension, approve_all, open_runtime, tool
from goliath_actors.hooks import BeforeRun, BeforeTool, HookContext, OnFinish, RunPatch
from goliath_actors.testing import ScriptedModel


@attrs.frozen
class Account:
    """What this application knows about a caller. Any object will do."""

    name: str
    timezone: str
    can_write: bool


class Household(Extension[Account]):
    name = "household"

    def before_run(self, ctx: HookContext[Account], question: BeforeRun) -> RunPatch:
        ctx.state["who"] = ctx.context.name  # private to this extension and this run
        return RunPatch(facts={"timezone": ctx.context.timezone})

    def before_tool(self, ctx: HookContext[Account], question: BeforeTool) -> Deny | None:
        if question.tool.writes and not ctx.context.can_write:
            return Deny("this account is read-only")
        return None

    def on_finish(self, ctx: HookContext[Account], question: OnFinish) -> None:
        print(f"[{ctx.state['who']}: {question.outcome.status}]")


@tool(writes=True)
async def add_task(title: str) -> str:
    """Add a task to today's list."""
    return f"added {title}"


model = ScriptedModel(
    [
        {"kind": "tool", "tool": "add_task", "brief": "add milk"},
        {"title": "buy milk"},
        {"kind": "answer", "brief": "say that it may not be done"},
        "I am not allowed to change the list.",
    ]
)
agent = Agent(name="assistant", model=model, tools=[add_task], extensions=[Household()], confirm=approve_all)


async def main() -> None:
    bob = Account("bob", "Europe/Berlin", can_write=False)
    async with open_runtime(agent) as runtime:
        result = await runtime.run("Add milk.", conversation_id="bob", context=bob)
        print(result.steps[0].status, result.steps[0].skip_reason, result.steps[0].extension)
        print(result.text)
    print("timezone: Europe/Berlin" in model.requests[0].text)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   [bob: completed]
#   skipped policy household
#   I am not allowed to change the list.
#   True
