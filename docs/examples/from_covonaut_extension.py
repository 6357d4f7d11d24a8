"""From covonaut: one extension with everything that an extension may contribute, and a tool called without a model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from goliath_actors import Agent, Extension, Message, ToolLoop, open_runtime, tool
from goliath_actors.events import HookDecision
from goliath_actors.hooks import AroundTool, BeforeRequest, BeforeTool, HookContext, OnFinish
from goliath_actors.testing import ScriptedModel


@tool
async def hello() -> str:
    """Return a greeting."""
    return "Hello from an extension!"


class Greetings(Extension[Any]):
    name = "greetings"
    tools = (hello,)  # registered tools
    instructions = "Greet politely."  # added to the agent's prompt

    @asynccontextmanager
    async def lifespan(self, agent: Any) -> AsyncIterator[None]:
        print("opened for", agent.name)  # what is acquired here is given back below, however the runtime ends
        yield
        print("closed")

    def before_tool(self, ctx: HookContext[Any], question: BeforeTool) -> None:
        print("before", question.tool.name)  # a global hook around every tool

    async def around_tool(
        self, ctx: HookContext[Any], question: AroundTool, call_next: Callable[[], Awaitable[Any]]
    ) -> Any:
        return f"<{await call_next()}>"  # middleware of the execution

    def before_request(self, ctx: HookContext[Any], question: BeforeRequest) -> Sequence[Message]:
        return [
            attrs.evolve(m, text=m.text.replace("secret", "***")) for m in question.messages
        ]  # what a provider sees

    def snapshot(self) -> Sequence[Any]:
        # For whoever subscribes to a run late, and for them alone.
        return [HookDecision("", None, 0, 0.0, extension=self.name, phase="snapshot", decision="ready")]

    def on_finish(self, ctx: HookContext[Any], question: OnFinish) -> None:
        print("finished:", question.outcome.status)  # part of the lifecycle


model = ScriptedModel(["Good day."])
agent = Agent(name="host", model=model, extensions=[Greetings()], loop=ToolLoop())


async def main() -> None:
    async with open_runtime(agent) as runtime:
        outcome = await runtime.invoke_tool("hello", {})  # passes the same hooks as a model's call
        print(outcome.status, outcome.output)
        run = runtime.submit("It is a secret.")
        await run.wait()
        events = [event async for event in run.events()]
        print([event.kind for event in events[:3]])
        print([message.text for message in model.requests[0].messages])


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   opened for host
#   before hello
#   executed <Hello from an extension!>
#   finished: completed
#   ['hook-decision', 'run-queued', 'run-started']
#   ['You are a careful assistant. Be short and exact, and say so when you do not know.\n\nGreet politely.', 'It \
#     is a ***.']
#   closed
