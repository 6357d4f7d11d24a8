"""What the native tool loop costs beside its model and its tools: one ask, two model calls, one tool.

    python scripts/bench/toolturn.py [--rounds 9] [--turns 200] [--peers 1]

Without network. A loop written by hand does the same with the same model and the same tool: it sends messages, collects
the reply, reads the arguments, calls the tool, sends the result, and keeps the messages by conversation. It has no
gates, no events, no hooks, no records and no supervision; what those cost is the ratio. Replies of many pieces tell
what one piece costs. The other frameworks take the same turn, each in an environment of its own and with a model that
answers inside its own process; with `--peers 0` they are left out. They take replies whole, ours in pieces. Times are
CPU times, as medians over interleaved rounds; only the ratios mean something on another machine.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from _environments import python_of
from _figures import Figure, Found, NoFigure, arguments, microseconds, multiples, process, show

from goliath_actors import Agent, Extension, Message, Runtime, ToolLoop, open_runtime, tool
from goliath_actors.abc import ModelDone, ModelEvent, ModelRequest, ModelText, ModelToolCall, ModelUsage
from goliath_actors.values import ToolCall, Usage

WORDS = ("It ", "is ", "sunny ", "in ", "Lisbon.")
LONGEST = 600  # seconds for one of the other frameworks
MANY_WORDS = tuple(f"{number} " for number in range(500))
PEERS = {
    "autogen-agentchat": "autogen_within.py",
    "openai-agents": "openai_agents_within.py",
    "langgraph": "langgraph_within.py",
    "pydantic-ai": "pydantic_ai_within.py",
}


class Model:
    """Asks for the weather once, then answers in pieces of text. It has nothing to wait for."""

    name = "fixed"

    def __init__(self, words: tuple[str, ...] = WORDS) -> None:
        self.words = words

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        yield self._events(request.messages[-1].role == "tool")

    async def _events(self, answered: bool) -> AsyncIterator[ModelEvent]:
        await trio.lowlevel.checkpoint()
        if answered:
            for word in self.words:
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


async def by_hand(model: Model, histories: dict[str, list[Message]], conversation: str) -> str:
    """The same turn without a runtime."""
    messages = histories.setdefault(conversation, [Message("system", "You are a careful assistant.")])
    messages.append(Message("user", "How is the weather in Lisbon?"))
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
            messages.append(Message("assistant", "".join(text)))
            return messages[-1].text
        asked = [ToolCall(call.id or "", call.name or "", call.arguments) for call in calls]
        messages.append(Message("assistant", "", tuple(asked)))
        for call in asked:
            messages.append(Message("tool", await weather(**json.loads(call.arguments)), (), call.id))


def agent(name: str, extensions: int = 0, words: tuple[str, ...] = WORDS) -> Agent[Any]:
    silent = [Silent(f"silent-{number}") for number in range(extensions)]
    return Agent(name=name, model=Model(words), tools=[weather], extensions=silent, loop=ToolLoop())


async def main(options: Any) -> None:
    async with open_runtime(agent("plain"), agent("extended", EXTENSIONS), agent("long", 0, MANY_WORDS)) as runtime:
        taken = await microseconds(
            {
                "a loop by hand": bare(WORDS),
                "a turn of the tool loop": turning(runtime, "plain", WORDS),
                f"a turn of the tool loop, {EXTENSIONS} extensions": turning(runtime, "extended", WORDS),
            },
            options.rounds,
            options.turns,
        )
        long = await microseconds(
            {"hand": bare(MANY_WORDS), "loop": turning(runtime, "long", MANY_WORDS)},
            options.rounds,
            max(1, options.turns // 8),
        )
    figures = multiples(taken, "a loop by hand", {"a turn of the tool loop": 5})
    row = (taken[f"a turn of the tool loop, {EXTENSIONS} extensions"] - taken["a turn of the tool loop"]) / (
        EXTENSIONS * ROWS_ASKED
    )
    figures.append(Figure("an extension with an empty hook, a row", f"{row:.1f} µs", "", "", "<= 5 µs", row <= 5))
    more = len(MANY_WORDS) - len(WORDS)
    ours, hand = (
        (long["loop"] - taken["a turn of the tool loop"]) / more,
        (long["hand"] - taken["a loop by hand"]) / more,
    )
    figures.append(
        Figure("a piece of text", f"{ours:.2f} µs", f"a loop by hand {hand:.2f} µs", f"{ours / hand:.2f}", "", None)
    )
    if options.peers:
        figures += await others(options.turns)
    show("one ask, two model calls, one tool", figures, options.json)


def bare(words: tuple[str, ...]) -> Any:
    """Return what takes so many turns by hand, each in a new conversation."""
    model, histories, numbers = Model(words), dict[str, list[Message]](), itertools.count()

    async def turn(times: int) -> None:
        for _ in range(times):
            assert await by_hand(model, histories, f"{next(numbers)}") == "".join(words)

    return turn


def turning(runtime: Runtime, name: str, words: tuple[str, ...]) -> Any:
    """Return what asks this agent so many times, each time in a new conversation."""
    numbers = itertools.count()

    async def turn(times: int) -> None:
        for _ in range(times):
            where = f"{next(numbers)}"
            result = await runtime.run("How is the weather in Lisbon?", conversation_id=where, agent=name)
            assert result.text == "".join(words)

    return turn


async def others(turns: int) -> list[Figure]:
    """Return a line for each framework, all of them in turns with ours; the goal is set by the quickest."""
    mine: list[float] = []
    taken: dict[str, list[float]] = {name: [] for name in PEERS}
    failed: dict[str, str] = {}
    async with open_runtime(agent("plain")) as runtime:
        contestant = {"ours": turning(runtime, "plain", WORDS)}
        for _ in range(3):
            mine.append((await microseconds(contestant, 1, turns))["ours"])
            for name in [name for name in PEERS if name not in failed]:
                try:
                    taken[name].append(_turns_of(name, turns))
                except NoFigure as error:
                    failed[name] = str(error)
    median = {name: statistics.median(values) for name, values in taken.items() if name not in failed}
    found = Found({"ours": statistics.median(mine), **median}, failed)
    order = sorted(median, key=median.__getitem__)
    what, shown = "a turn of the tool loop, CPU", "{:.1f} µs".format
    figures = [found.line(what, name, shown, "<= 0.33", most=1 / 3) for name in order[:1]]
    return figures + [found.line(what, name, shown) for name in [*order[1:], *failed]]


def _turns_of(name: str, turns: int) -> float:
    """Return the CPU time of a framework's turn, in microseconds.

    Raises: `NoFigure`.
    """
    script = Path(__file__).parent / "peers" / PEERS[name]
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"OPENAI_API_KEY": "none"}
    found = process([python_of(name), script, turns], LONGEST, environ)
    return float(found["cpu"] / found["turns"] * 1e6)


if __name__ == "__main__":
    trio.run(main, arguments(__doc__, rounds=9, turns=200, peers=1))
