"""The scenes of the guided tour. Each says what it shows, plays it, and returns whether it held.

Uses cast, view, screen; used by tour.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import trio

from goliath_actors import RunAborted, RunResult, Runtime
from goliath_actors.errors import GoliathExtensionError, MailboxFull
from goliath_actors.events import Event, RunStarted
from goliath_actors.tools import Confirmed, ConfirmRequest

from .cast import Cast, Weather
from .screen import Screen
from .view import View, json_line

__all__ = ["SCENES", "Scene", "Stage"]

_INDENT = "    "


@attrs.define(eq=False)
class Stage:
    """Where scenes play: one runtime for all of them."""

    screen: Screen
    runtime: Runtime
    cast: Cast

    def say(self, text: str, *styles: str) -> None:
        """Print one line of a scene."""
        self.screen.wrapped(text, *styles, first=f"{_INDENT}  ", indent=f"{_INDENT}  ")

    def you(self, ask: str, who: str = "you") -> None:
        """Print an ask as a user would have typed it."""
        self.screen.spans((f"{_INDENT}{who}> ", "bold"), (ask, ""))

    async def ask(self, name: str, ask: str, **options: Any) -> RunResult:
        """Ask an agent of the cast, its steps shown as they happen. Options as those of `Runtime.run`."""
        self.you(ask)
        view = View(self.screen, self.screen, asks="confirm" in options, indent=_INDENT)
        result = await self.runtime.run(ask, agent=name, on_event=view.on_event, **options)
        view.finish(result)
        return result


@attrs.frozen
class Scene:
    """One thing that is shown. `play` returns whether `holds` is true."""

    title: str
    shows: str
    holds: str
    play: Callable[[Stage], Awaitable[bool]]


async def _plan(stage: Stage) -> bool:
    result = await stage.ask("plan", "what is on my list?")
    return [(step.kind, step.tool) for step in result.steps] == [("tool", "list_tasks"), ("answer", None)]


async def _write(stage: Stage) -> bool:
    asked: list[str] = []

    async def person(request: ConfirmRequest) -> Confirmed:
        asked.append(json_line(request.input))
        stage.say(f"confirm {request.tool.name} {asked[-1]}? a person says: yes", "yellow")
        await trio.lowlevel.checkpoint()
        return Confirmed(True)

    result = await stage.ask("write", "add: buy milk", confirm=person)
    done = [json_line(step.input) for step in result.steps if step.tool == "add_task" and step.status == "executed"]
    return asked == done == ['{"title": "buy milk"}'] and stage.cast.tasks.titles[-1] == "buy milk"


async def _twice(stage: Stage) -> bool:
    before = stage.cast.tasks.reads
    result = await stage.ask("twice", "look at the list, and look again")
    statuses = [step.status for step in result.steps if step.kind == "tool"]
    return statuses == ["executed", "cached"] and stage.cast.tasks.reads == before + 1


async def _deny(stage: Stage) -> bool:
    before = list(stage.cast.tasks.titles)
    result = await stage.ask("deny", "add: paint it red", context="guest")
    step = result.steps[0]
    return (step.status, step.skip_reason, step.extension) == ("skipped", "policy", "read-only") and (
        stage.cast.tasks.titles == before
    )


async def _stop(stage: Stage) -> bool:
    result = await stage.ask("stop", "remember my password: hunter2")
    return result.status == "stopped" and result.stopped is not None and result.stopped.extension == "no-secrets"


async def _cloud(stage: Stage) -> bool:
    result = await stage.ask("cloud", "prove the four colour theorem")
    return (result.handled_by, result.reason) == ("cloud", "conductor-asked")


async def _shape(stage: Stage) -> bool:
    result = await stage.ask("shape", "how cold is it in Oslo?")
    stage.say(f"as a value: {result.output!r}", "dim")
    return bool(result.output == Weather("Oslo", -3))


async def _abort(stage: Stage) -> bool:
    ask = "think for ever"
    stage.you(ask)
    run = stage.runtime.submit(ask, agent="slow")
    await stage.cast.slow.wait_reached()
    stage.say("the model thinks; the user changes their mind", "dim")
    run.abort("changed my mind")
    try:
        await run.wait()
    except RunAborted as aborted:
        stage.say(f"the asker gets: {aborted}", "yellow")
    heard = stage.cast.observer
    return (ask, "abort") in heard.failed and (ask, "aborted") in heard.finished


async def _error(stage: Stage) -> bool:
    ask = "hello"
    stage.you(ask)
    try:
        await stage.runtime.run(ask, agent="error")
    except GoliathExtensionError as error:
        stage.say(f"the asker gets: {error}", "yellow")
        heard = stage.cast.observer
        right = (error.extension, error.phase, type(error.__cause__)) == ("broken", "before_run", LookupError)
        return right and (ask, "extension") in heard.failed and (ask, "error") in heard.finished
    return False


async def _pair(stage: Stage) -> bool:
    started: list[str] = []
    runs = []
    for ask in ("1", "2"):
        for who in ("ada", "bob"):
            name = f"{who} {ask}"
            stage.you(ask, who)

            def note(event: Event, name: str = name) -> None:
                if isinstance(event, RunStarted):
                    started.append(name)

            runs.append(stage.runtime.submit(name, agent="pair", conversation_id=who, on_event=note))
    for run in runs:
        await run.wait()
    for who in ("ada", "bob"):
        order = [name.removeprefix(f"{who} ") for name in started if name.startswith(who)]
        stage.say(f"{who}'s began in the order {', '.join(order)}", "dim")
    return all(started.index(f"{who} 1") < started.index(f"{who} 2") for who in ("ada", "bob"))


async def _full(stage: Stage) -> bool:
    asks = ("first", "second", "third", "fourth")
    before = stage.runtime.statistics().accepted
    runs = []
    refused = 0
    for ask in asks:
        stage.you(ask)
        try:
            runs.append(stage.runtime.submit(ask, agent="full"))
        except MailboxFull as full:
            refused += 1
            stage.say(f"refused: {full}", "yellow")
    stage.cast.full.open()
    for run in runs:
        await run.wait()
    accepted = stage.runtime.statistics().accepted - before
    return (accepted, refused) == (3, 1)


SCENES = (
    Scene(
        "A plan, a tool, an answer",
        "The model plans one step at a time; the tool runs; the answer streams.",
        "one tool step and one answer step are in the run's record",
        _plan,
    ),
    Scene(
        "A write asks first",
        "What changes data is confirmed before it happens.",
        "what was confirmed, what was executed and what was recorded are the same",
        _write,
    ),
    Scene(
        "A read is not made twice",
        "The same read in one run is served from the run's own record.",
        "two calls, and the list was read once",
        _twice,
    ),
    Scene(
        "An extension denies",
        "A guest may not write: the tool is skipped, the model told, the run goes on.",
        "the list is as it was",
        _deny,
    ),
    Scene(
        "An extension stops",
        "A run that must not happen ends with a text of the extension's.",
        "no model was asked, and the result says who stopped it and why",
        _stop,
    ),
    Scene(
        "A second brain",
        "The model gives up; the fallback gets the ask and what was done so far.",
        "the result says that it was handled elsewhere, and why",
        _cloud,
    ),
    Scene(
        "A structured answer",
        "The answer is checked against a type and comes back as a value.",
        "the value equals the one expected",
        _shape,
    ),
    Scene(
        "An abort, and who hears of it",
        "The run is cancelled in the middle of a model call.",
        "on_error and on_finish heard of it all the same",
        _abort,
    ),
    Scene(
        "A bug in an extension",
        "It fails this run alone, and reaches the asker typed, its place named.",
        "the error names the extension and the hook, and its cause is the bug itself",
        _error,
    ),
    Scene(
        "Two conversations at once",
        "Each keeps its order; neither waits for the other.",
        "both kept their order, and their first runs met each other in the middle",
        _pair,
    ),
    Scene(
        "A full mailbox",
        "Two asks may wait here. A further one is refused at once instead of piling up.",
        "three were accepted and answered, one was refused and left no trace",
        _full,
    ),
)
"""Every scene, in the order in which they are shown. Later ones need nothing of earlier ones but the task list."""
