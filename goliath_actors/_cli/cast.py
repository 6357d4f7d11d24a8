"""Who plays in the guided tour: agents with scripted models, their tools, their extensions.

Used by scenes, tour.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from goliath_actors import Agent, Deny, Extension, Stop, Tool, ToolContext, tool
from goliath_actors.abc import ModelEvent, ModelRequest
from goliath_actors.hooks import BeforeRun, BeforeTool, HookContext, OnError, OnFinish
from goliath_actors.testing import Gate, ScriptedModel
from goliath_actors.tools import Confirmed, ConfirmRequest
from goliath_actors.values import FallbackRequest

__all__ = ["Cast", "Observer", "Tasks", "Weather", "make_cast"]

_ANSWER = {"kind": "answer", "brief": "say it"}


@attrs.define(eq=False)
class _Demo:
    """A scripted model that says what it is by its name, and streams word by word."""

    script: ScriptedModel
    pace: float
    name: str = "demo (scripted)"

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        async with self.script.stream(request) as events:
            yield self._slowly(events) if request.role == "answer" else events

    async def _slowly(self, events: AsyncIterator[ModelEvent]) -> AsyncIterator[ModelEvent]:
        async for event in events:
            yield event
            await trio.sleep(self.pace)


@attrs.define(eq=False)
class Tasks:
    """The tour's to-do list. `reads` counts how often it was really read."""

    titles: list[str]
    reads: int = 0

    def tools(self) -> list[Tool]:
        @tool
        async def list_tasks(ctx: ToolContext[Any]) -> list[str]:
            """List the tasks."""
            self.reads += 1
            return list(self.titles)

        @tool(writes=True)
        async def add_task(ctx: ToolContext[Any], title: str) -> str:
            """Add a task."""
            self.titles.append(title)
            return f"added: {title}"

        return [list_tasks, add_task]


class ReadOnly(Extension[Any]):
    """Denies every tool that changes data while its user may not."""

    name = "read-only"

    def before_tool(self, ctx: HookContext[Any], question: BeforeTool) -> Deny | None:
        """Deny what writes."""
        return Deny("this account is read-only") if question.tool.writes and ctx.context == "guest" else None


class NoSecrets(Extension[Any]):
    """Ends a run before anything happens if its ask holds a password."""

    name = "no-secrets"

    def before_run(self, ctx: HookContext[Any], question: BeforeRun) -> Stop | None:
        """Stop at a password."""
        return Stop("I keep no passwords.", "a password in the ask") if "password" in question.ask else None


class Broken(Extension[Any]):
    """An application's mistake."""

    name = "broken"

    def before_run(self, ctx: HookContext[Any], question: BeforeRun) -> None:
        """Raise, as code with a bug does."""
        raise LookupError("there is no user 7")


@attrs.frozen
class Weather:
    """The wanted shape of a structured answer."""

    city: str
    degrees: int


async def _second_brain(request: FallbackRequest) -> str:
    await trio.lowlevel.checkpoint()
    return f"The second brain answers, told why it was asked: {request.reason}."


def _use(tool_name: str, why: str) -> dict[str, str]:
    return {"why": why, "kind": "tool", "tool": tool_name, "brief": why}


@attrs.define(eq=False)
class _Both:
    """Two parties that each wait until the other is there: proof that they were there at the same time."""

    parties: int = 2
    _there: int = 0
    _all: trio.Event = attrs.Factory(trio.Event)

    async def meet(self) -> None:
        self._there += 1
        if self._there == self.parties:
            self._all.set()
        await self._all.wait()


def _refuse(request: ConfirmRequest) -> Confirmed:
    return Confirmed(False, "nobody was asked")


class Observer(Extension[Any]):
    """Notes how runs ended, as every extension can: it is asked exactly once a run, whatever became of it."""

    name = "observer"

    def __init__(self) -> None:
        self.finished: list[tuple[str, str]] = []
        self.failed: list[tuple[str, str]] = []

    def on_error(self, ctx: HookContext[Any], question: OnError) -> None:
        """Note where the error came from."""
        self.failed.append((ctx.ask, question.origin))

    def on_finish(self, ctx: HookContext[Any], question: OnFinish) -> None:
        """Note how the run ended."""
        self.finished.append((ctx.ask, question.outcome.status))


@attrs.frozen
class Cast:
    """Everybody in the tour. `slow` and `full` are the gates at which the models of those agents wait."""

    agents: Mapping[str, Agent[Any]]
    observer: Observer
    tasks: Tasks
    slow: Gate
    full: Gate


def make_cast(pace: float) -> Cast:
    """Return the tour's agents, each with a script of its own. `pace` is seconds between pieces of an answer."""
    observer, both, slow, full = Observer(), _Both(), Gate(), Gate()
    tasks = Tasks(["water the plants", "call Ada"])

    async def meet(request: ModelRequest) -> str:
        await both.meet()
        return "met"

    def made(name: str, replies: Sequence[Any], *extensions: Extension[Any], **options: Any) -> Agent[Any]:
        model = _Demo(ScriptedModel(replies, chunk=6), pace)
        return Agent(name=name, model=model, extensions=[observer, *extensions], **options)

    listing = _use("list_tasks", "the list is asked for")
    adding = _use("add_task", "a task is to be added")
    with_tasks: dict[str, Any] = {"tools": tasks.tools(), "confirm": _refuse}
    agents = (
        made("plan", [listing, _ANSWER, "Two things: water the plants, and call Ada."], **with_tasks),
        made("write", [adding, {"title": "buy milk"}, _ANSWER, "Milk is on the list."], **with_tasks),
        made("twice", [listing, listing, _ANSWER, "It says the same as before."], **with_tasks),
        made(
            "deny", [adding, {"title": "paint it red"}, _ANSWER, "I may not add tasks here."], ReadOnly(), **with_tasks
        ),
        made("stop", [], NoSecrets()),
        made("cloud", [{"kind": "escalate", "brief": "too hard"}], fallback=_second_brain, tools=tasks.tools()[:1]),
        made("shape", [{"city": "Oslo", "degrees": -3}], output=Weather),
        made("slow", [slow.then("never said")]),
        made("error", [], Broken()),
        made("pair", [meet, meet, "second", "second"]),
        made("full", [full.then("first"), "later", "later"]),
    )
    return Cast({agent.name: agent for agent in agents}, observer, tasks, slow, full)
