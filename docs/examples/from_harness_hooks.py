"""From effective-harness: a permission that blocks, a continuation that wins, observers, and a failure passed over."""

from __future__ import annotations

from typing import Any

import attrs
import trio

from goliath_actors import Agent, Deny, Extension, Message, ToolLoop, open_runtime, tool
from goliath_actors.hooks import (
    AfterResponse,
    AfterStep,
    AfterTool,
    AfterTools,
    BeforeRequest,
    BeforeTool,
    Continue,
    HookContext,
)
from goliath_actors.testing import ScriptedModel, tool_calls


@tool
async def bash(command: str) -> str:
    """Run a command."""
    return f"ran {command}"


@tool
async def read(path: str) -> str:
    """Read a file."""
    return f"{path}: 42"


class Permissions(Extension[Any]):
    name = "permissions"
    lenient = True  # a failure blocks the call with its text, instead of ending the run

    def before_tool(self, ctx: HookContext[Any], question: BeforeTool) -> Deny | dict[str, Any] | None:
        if question.tool.name == "bash":
            return Deny("needs approval")
        if question.input["path"].startswith("~"):
            raise LookupError("nobody is at home")
        return {"path": question.input["path"].lower()}

    def after_tool(self, ctx: HookContext[Any], question: AfterTool) -> str | None:
        return question.result.replace("42", "forty-two")


class Checked(Extension[Any]):
    name = "checked"

    def before_request(self, ctx: HookContext[Any], question: BeforeRequest) -> list[Message]:
        # For this request only: neither the history nor the next request has it.
        return [
            *question.messages[:-1],
            attrs.evolve(question.messages[-1], text=question.messages[-1].text + " (now)"),
        ]

    def after_step(self, ctx: HookContext[Any], question: AfterStep) -> Continue | None:
        if question.is_final and not ctx.state.get("asked"):
            ctx.state["asked"] = True
            return Continue("Are you sure?")
        return None


class Log(Extension[Any]):
    name = "log"

    def after_response(self, ctx: HookContext[Any], question: AfterResponse) -> None:
        assert question.message is not None
        print("response:", question.message.text or [call.name for call in question.message.tool_calls])

    def after_tools(self, ctx: HookContext[Any], question: AfterTools) -> None:
        for call, result in zip(question.calls, question.results, strict=True):
            print(f"  {call.name}: {result}")


model = ScriptedModel(
    [
        tool_calls(("bash", {"command": "ls"}), ("read", {"path": "/A"}), ("read", {"path": "~/b"})),
        "It is forty-two.",
        "Yes.",
    ]
)
agent = Agent(model=model, tools=[bash, read], extensions=[Permissions(), Checked(), Log()], loop=ToolLoop())


async def main() -> None:
    async with open_runtime(agent) as runtime:
        result = await runtime.run("How much is it?")
        print([(one.extension, one.phase, str(one.error)) for one in result.diagnostics])
        print([entry.message.text for entry in (await runtime.conversation().history()).entries][-3:])
    print([request.messages[-1].text for request in model.requests][-1])


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   response: ['bash', 'read', 'read']
#     bash: Denied by permissions: needs approval. Do not try it again unless the user asks for it.
#     read: /a: forty-two
#     read: Denied by permissions: nobody is at home. Do not try it again unless the user asks for it.
#   response: It is forty-two.
#   response: Yes.
#   [('permissions', 'before_tool', 'nobody is at home')]
#   ['It is forty-two.', 'Are you sure?', 'Yes.']
#   Are you sure? (now)
