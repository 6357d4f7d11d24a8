"""From PAI: passages for each model step, a canonical redaction and a standing wish, as three extensions."""

from __future__ import annotations

import re
from typing import Any

import attrs
import trio

from goliath_actors import Agent, Extension, Message, ToolLoop, open_runtime, tool
from goliath_actors.hooks import BeforePlan, BeforeRun, HookContext, PlanPatch, RunPatch
from goliath_actors.policies import Redact
from goliath_actors.testing import ScriptedModel, tool_calls


@attrs.frozen
class Workspace:
    documents: dict[str, str]

    async def similar(self, query: str) -> list[str]:
        await trio.lowlevel.checkpoint()  # a real one would search
        words = set(re.findall(r"\w+", query.lower()))
        return [text for topic, text in self.documents.items() if topic in words]


class WorkspaceRag(Extension[Workspace]):
    """The query is what the user asked, in every step: never a tool's result or a half-written answer."""

    name = "workspace-rag"

    async def before_plan(self, ctx: HookContext[Workspace], question: BeforePlan) -> PlanPatch | None:
        found = await ctx.context.similar(question.ask)
        # For this step's model call only: it does not become part of the conversation.
        return PlanPatch(messages=[Message("system", "Workspace: " + " ".join(found))]) if found else None


class Concise(Extension[Any]):
    name = "concise"

    def before_run(self, ctx: HookContext[Any], question: BeforeRun) -> RunPatch:
        return RunPatch(messages=[Message("system", "Prefer concise answers.")])  # for all of this run's steps


@tool
async def look_up(name: str) -> str:
    """Look somebody up."""
    return f"{name} has the key sk-123abc"


model = ScriptedModel(
    [tool_calls(("look_up", {"name": "Ada"})), "Ada's key is sk-123abc, and lunch is at noon."], chunk=5
)
agent = Agent(
    model=model,
    tools=[look_up],
    extensions=[WorkspaceRag(), Concise(), Redact(re.compile(r"sk-[A-Za-z0-9_-]+"), replacement="[redacted secret]")],
    loop=ToolLoop(),
)


async def main() -> None:
    workspace = Workspace({"lunch": "Lunch is at noon.", "tea": "Tea is at five."})
    async with open_runtime(agent) as runtime:
        result = await runtime.run("When is lunch, and what is Ada's key?", context=workspace)
        print(result.text)
        # Not only on its way: what is stored, and later sent to the model, has no secret either.
        for entry in (await runtime.conversation().history()).entries:
            print(entry.role, "|", entry.message.text or "(a call)")
    for request in model.requests:
        print([message.text for message in request.messages if message.role == "system"][1:])


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   Ada's key is [redacted secret], and lunch is at noon.
#   user | When is lunch, and what is Ada's key?
#   assistant | (a call)
#   tool | Ada has the key [redacted secret]
#   assistant | Ada's key is [redacted secret], and lunch is at noon.
#   ['Prefer concise answers.', 'Workspace: Lunch is at noon.']
#   ['Prefer concise answers.', 'Workspace: Lunch is at noon.']
