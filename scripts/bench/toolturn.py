"""What the native tool loop costs beside its model and its tools: one ask, two model calls, one tool.

    python scripts/bench/toolturn.py [--rounds 9] [--turns 200]

In this process alone, without network; it takes some seconds. A loop written by hand does the same with the same model
and the same tool: it sends messages, collects the reply, reads the arguments, calls the tool and sends the result. It
has no history, no gates, no events, no hooks, no records and no supervision; what those cost is the ratio. Times are
CPU times, as medians over interleaved rounds; only the ratios mean something on another machine.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from _figures import Figure, arguments, microseconds, multiples, show

from goliath_actors import Agent, Extension, Message, Runtime, ToolLoop, open_runtime, tool
from goliath_actors.abc import ModelDone, ModelEvent, ModelRequest, ModelText, ModelToolCall, ModelUsage
from goliath_actors.values import ToolCall, Usage

WORDS = ("It ", "is ", "sunny ", "in ", "Lisbon.")


class Model:
    """Asks for the weather once, then answers in five pieces of text. It has nothing to wait for."""

    name = "fixed"

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        yield self._events(request.messages[-1].role == "tool")

    async def _events(self, answered: bool) -> AsyncIterator[ModelEvent]:
        await trio.lowlevel.checkpoint()
        if answered:
            for word in WORDS:
                yield ModelText(word)
        else:
            yield ModelToolCall(0, "call-1", "weather", '{"city": "Lisbon"}')
        yield ModelUsage(Usage(20, 10))
        yield ModelDone("stop" if answered else "tool_calls")


@tool
async def weather(city: str) -> str:
    """Say how the weather is.

    Arguments:
      city: where.
    """
    await trio.lowlevel.checkpoint()
    return f"sunny in {city}"


class Silent(Extension[Any]):
    """Hears every row that a tool turn asks and has nothing to say."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def before_run(self, ctx: Any, question: Any) -> None: ...
    async def before_plan(self, ctx: Any, question: Any) -> None: ...
    async def before_request(self, ctx: Any, question: Any) -> None: ...
    async def after_response(self, ctx: Any, question: Any) -> None: ...
    async def after_plan(self, ctx: Any, question: Any) -> None: ...
    async def before_tool(self, ctx: Any, question: Any) -> None: ...
    async def after_tool(self, ctx: Any, question: Any) -> None: ...
    async def after_tools(self, ctx: Any, question: Any) -> None: ...
    async def after_step(self, ctx: Any, question: Any) -> None: ...
    async def before_append(self, ctx: Any, question: Any) -> None: ...
    async def after_answer(self, ctx: Any, question: Any) -> None: ...
    async def on_finish(self, ctx: Any, question: Any) -> None: ...


ROWS_ASKED = 1 + 2 + 2 + 2 + 2 + 1 + 1 + 1 + 2 + 4 + 1 + 1  # of a turn, in the order of the methods above
EXTENSIONS = 5


async def by_hand(model: Model) -> str:
    """The same turn without a runtime."""
    messages = [Message("system", "You are a careful assistant."), Message("user", "How is the weather in Lisbon?")]
    while True:
        text: list[str] = []
        calls: list[ModelToolCall] = []
        async with model.stream(ModelRequest("step", tuple(messages))) as events:
            async for event in events:
                if isinstance(event, ModelText):
                    text.append(event.text)
                elif isinstance(event, ModelToolCall):
                    calls.append(event)
        if not calls:
            return "".join(text)
        asked = [ToolCall(call.id or "", call.name or "", call.arguments) for call in calls]
        messages.append(Message("assistant", "", tuple(asked)))
        for call in asked:
            messages.append(Message("tool", await weather(**json.loads(call.arguments)), (), call.id))


def agent(name: str, extensions: int = 0) -> Agent[Any]:
    silent = [Silent(f"silent-{number}") for number in range(extensions)]
    return Agent(name=name, model=Model(), tools=[weather], extensions=silent, loop=ToolLoop())


async def main(options: Any) -> None:
    model = Model()

    async def bare(times: int) -> None:
        for _ in range(times):
            assert await by_hand(model) == "It is sunny in Lisbon."

    async with open_runtime(agent("plain"), agent("extended", EXTENSIONS)) as runtime:
        taken = await microseconds(
            {
                "a loop by hand": bare,
                "tool loop": turning(runtime, "plain"),
                f"tool loop, {EXTENSIONS} extensions": turning(runtime, "extended"),
            },
            options.rounds,
            options.turns,
        )
    row = (taken[f"tool loop, {EXTENSIONS} extensions"] - taken["tool loop"]) / (EXTENSIONS * ROWS_ASKED)
    figures = multiples(taken, "a loop by hand", {"tool loop": 5})
    figures.append(Figure("an extension with an empty hook, a row", f"{row:.1f} µs", "", "", "<= 5 µs", row <= 5))
    show("one ask, two model calls, one tool", figures, options.json)


def turning(runtime: Runtime, name: str) -> Any:
    """Return what asks this agent so many times, each time in a new conversation."""

    numbers = itertools.count()

    async def turn(times: int) -> None:
        for _ in range(times):
            where = f"{next(numbers)}"
            result = await runtime.run("How is the weather in Lisbon?", conversation_id=where, agent=name)
            assert result.text == "It is sunny in Lisbon."

    return turn


if __name__ == "__main__":
    trio.run(main, arguments(__doc__, rounds=9, turns=200))
