"""Loops, waiters and errors that the tests of the runtime share."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio.lowlevel

from goliath_actors import Extension
from goliath_actors._work import Work
from goliath_actors.testing import Gate


def gated(gate: Gate, answer: str = "done") -> Any:
    async def action(work: Work) -> str:
        await gate.pass_through()
        return answer

    return action


async def sleepy(work: Work) -> str:
    await trio.sleep(float(work.ask))
    return f"slept {work.ask}"


async def for_ever(work: Work) -> str:
    await trio.sleep_forever()
    raise AssertionError("unreachable: nothing wakes it")


class Odd(BaseException):
    """What nobody names: neither an `Exception` nor what ends the program."""


def waiter_of(run: Any, found: list[BaseException | Any]) -> Any:
    """Return a task, for a nursery outside the runtime's, that writes down what the run answers."""

    async def wait() -> None:
        try:
            found.append(await run.wait())
        except (Exception, Odd, SystemExit) as error:
            found.append(error)

    return wait


def shuffled(seed: int) -> None:
    """Let trio shuffle its tasks in a way that a failing test can repeat."""
    trio._core._run._r.seed(seed)  # type: ignore[attr-defined]  # trio has no public name for it


def calls_of(function: Callable[[], object]) -> int:
    """Count the Python functions that a call enters: what walks over a queue enters more the longer it is."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(before)
    return calls


class SlowToLive(Extension[Any]):
    """Takes `entering` seconds to enter, whatever is cancelled, and may fail on leaving or end by itself."""

    name = "living"

    def __init__(self, *, entering: float = 0.0, leaving: Exception | None = None, ends_after: float = 1e9) -> None:
        self.log: list[str] = []
        self.entering = entering
        self.leaving = leaving
        self.ends_after = ends_after

    @asynccontextmanager
    async def lifespan(self, agent: Any) -> AsyncIterator[None]:
        with trio.CancelScope(shield=True):
            await trio.sleep(self.entering)
        self.log.append("entered")
        try:
            with trio.move_on_after(self.ends_after):
                yield
        finally:
            await trio.lowlevel.checkpoint()
            self.log.append("left")
            if self.leaving is not None:
                raise self.leaving


async def stray() -> trio.Cancelled:
    """Return a `Cancelled` whose scope is long gone."""
    kept: list[trio.Cancelled] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as cancelled:
            kept.append(cancelled)
            raise
    return kept[0]
