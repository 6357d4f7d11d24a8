"""From Goliath: an application's context, private state of a run, and how long it took, in one extension."""

from __future__ import annotations

from typing import Any, TypeAlias

import attrs
import trio

from goliath_actors import Agent, Deny, Extension, Stop, open_runtime, tool
from goliath_actors.hooks import BeforeFallback, BeforeRun, BeforeTool, HookContext, OnError, OnFinish, RunPatch
from goliath_actors.testing import ScriptedModel
from goliath_actors.values import FallbackRequest


@attrs.frozen
class Caller:
    timezone: str
    allow_cloud: bool
    can_read: bool = True


@tool
async def read_calendar(day: str) -> str:
    """Say what is on a day."""
    return f"{day}: lunch with Ada"


class ApplicationContext(Extension[Caller]):
    name = "application-context"

    def before_run(self, ctx: HookContext[Caller], question: BeforeRun) -> RunPatch:
        ctx.state["started"] = trio.current_time()  # of this run and this extension; nobody else sees it
        return RunPatch(facts={"timezone": ctx.context.timezone})

    def on_finish(self, ctx: HookContext[Caller], question: OnFinish) -> None:
        seconds = trio.current_time() - ctx.state["started"]
        print(f"[{question.outcome.status}, timed: {seconds > 0}]")


class Decisions(Extension[Caller]):
    name = "decisions"

    def before_tool(self, ctx: HookContext[Caller], question: BeforeTool) -> Deny | None:
        return None if ctx.context.can_read else Deny("read access is disabled")

    def before_fallback(self, ctx: HookContext[Caller], question: BeforeFallback) -> Stop | None:
        return None if ctx.context.allow_cloud else Stop("Cloud processing is disabled.", "cloud-disabled")

    def on_error(self, ctx: HookContext[Caller], question: OnError) -> None:
        print(f"[{question.origin}: {question.error}]")


async def cloud(request: FallbackRequest) -> str:
    await trio.lowlevel.checkpoint()
    if "tomorrow" in request.ask:
        raise OSError("the line is down")
    return "The cloud says: lunch with Ada."


# One reply of a model: a mapping is JSON, a string is text.
Reply: TypeAlias = dict[str, Any] | str

READ: list[Reply] = [{"kind": "tool", "tool": "read_calendar", "brief": "look at today"}, {"day": "today"}]
ANSWER: list[Reply] = [{"kind": "answer", "brief": "say it"}, "Lunch with Ada."]
ESCALATE: list[Reply] = [{"kind": "escalate", "brief": "too hard", "why": "too hard"}]

agent = Agent(
    model=ScriptedModel([*READ, *ANSWER, *READ, *ANSWER, *ESCALATE, *ESCALATE, *ESCALATE]),
    tools=[read_calendar],
    extensions=[ApplicationContext(), Decisions()],
    fallback=cloud,
)


async def main() -> None:
    ada = Caller("America/New_York", allow_cloud=False)
    async with open_runtime(agent) as runtime:

        async def ask(context: Caller) -> None:
            result = await runtime.run("What is on today?", context=context)
            print(f"{result.handled_by}: {result.text}", [step.result for step in result.steps if step.tool])

        await ask(ada)
        await ask(attrs.evolve(ada, can_read=False))
        await ask(ada)  # the model gives up, and the cloud is not allowed
        await ask(attrs.evolve(ada, allow_cloud=True))
        try:
            await runtime.run("And tomorrow?", context=attrs.evolve(ada, allow_cloud=True))
        except OSError as error:
            print("raised:", error)  # the same object, in no wrapping


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   [completed, timed: True]
#   device: Lunch with Ada. ['today: lunch with Ada']
#   [completed, timed: True]
#   device: Lunch with Ada. ['Denied by decisions: read access is disabled. Do not try it again unless the user \
#     asks for it.']
#   [stopped, timed: True]
#   device: Cloud processing is disabled. []
#   [completed, timed: True]
#   cloud: The cloud says: lunch with Ada. []
#   [fallback: the line is down]
#   [error, timed: True]
#   raised: the line is down
