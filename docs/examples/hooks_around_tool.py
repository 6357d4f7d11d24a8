"""`around_tool`: stand around each execution. Here: one retry for a flaky tool, and a count of executions."""

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from goliath_actors import Agent, Extension, open_runtime, tool
from goliath_actors.hooks import AroundTool, HookContext
from goliath_actors.testing import ScriptedModel

lines = ["bad", "good"]


@tool
async def read_weather(city: str) -> str:
    """Say what the weather is like."""
    if lines.pop(0) == "bad":
        raise ConnectionError("the line is bad")
    return "sunny"


class OnceMore(Extension[None]):
    """Reads may be repeated. A write that failed may have happened, so it is left alone."""

    name = "once-more"

    async def around_tool(
        self, ctx: HookContext[None], question: AroundTool, call_next: Callable[[], Awaitable[Any]]
    ) -> Any:
        ctx.state["calls"] = 1
        try:
            return await call_next()
        except ConnectionError:
            if question.tool.writes:
                raise
            ctx.state["calls"] += 1
            return await call_next()

    def on_finish(self, ctx: HookContext[None], question: object) -> None:
        print("executions:", ctx.state["calls"])


model = ScriptedModel(
    [
        {"kind": "tool", "tool": "read_weather", "brief": "weather in Berlin"},
        {"city": "Berlin"},
        {"kind": "answer", "brief": "say it"},
        "It is sunny in Berlin.",
    ]
)
agent = Agent(model=model, tools=[read_weather], extensions=[OnceMore()])


async def main() -> None:
    async with open_runtime(agent) as runtime:
        result = await runtime.run("What is the weather like in Berlin?")
        print(result.steps[0].status, "|", result.steps[0].result)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   executions: 2
#   executed | sunny
