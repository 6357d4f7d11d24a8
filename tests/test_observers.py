"""Observers of a run's end, told one after the other under a shield that they share: each has its own time (R11)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from goliath_actors import Agent, Extension, RunAborted, open_runtime
from goliath_actors._work import Ending, Work
from goliath_actors.errors import ObserverTimeout
from goliath_actors.testing import ScriptedModel
from goliath_actors.values import RunResult

from .loops import loop_agent
from .runtime_stage import stray


@attrs.define(eq=False)
class Watching(Extension[Any]):
    """Does something at the end of a run, and notes when it was done."""

    name: str
    act: Callable[[], Awaitable[None]]
    heard: list[tuple[str, float]]

    async def on_finish(self, ctx: Any, question: Any) -> None:
        await self.act()
        self.heard.append((self.name, trio.current_time()))


async def nothing() -> None:
    """An observer that waits for nothing."""


async def two_seconds() -> None:
    await trio.sleep(2)


async def too_long() -> None:
    await trio.sleep(50)


async def too_long_behind_a_shield() -> None:
    with trio.CancelScope(shield=True):
        await trio.sleep(5)


def cut_off(result: RunResult) -> list[tuple[str, float]]:
    found = []
    for diagnostic in result.diagnostics:
        assert isinstance(diagnostic.error, ObserverTimeout)
        assert diagnostic.phase == "on_finish"
        found.append((diagnostic.extension, diagnostic.error.seconds))
    return found


async def watched(*acts: Callable[[], Awaitable[None]], **options: Any) -> tuple[RunResult, list[tuple[str, float]]]:
    """Run one ask; return its result, and which observer was done when."""
    heard: list[tuple[str, float]] = []
    extensions = tuple([Watching(name, act, heard) for name, act in zip("abcdef", acts, strict=False)])
    async with open_runtime(loop_agent(extensions=extensions), **options) as runtime:
        return await runtime.run("hi"), heard


async def test_each_observer_has_its_own_time_from_when_it_begins(autojump_clock: MockClock) -> None:
    result, heard = await watched(two_seconds, two_seconds, two_seconds, finish_timeout=3)
    assert heard == [("a", 2), ("b", 4), ("c", 6)]
    assert result.diagnostics == ()


async def test_observers_behind_one_that_is_cut_off_have_their_own_time(autojump_clock: MockClock) -> None:
    result, heard = await watched(two_seconds, too_long, two_seconds, too_long, nothing, finish_timeout=3)
    assert heard == [("a", 2), ("c", 7), ("e", 10)]
    assert cut_off(result) == [("b", 3), ("d", 3)]


async def test_the_last_observer_is_cut_off_like_any_other(autojump_clock: MockClock) -> None:
    result, heard = await watched(nothing, too_long, finish_timeout=3)
    assert heard == [("a", 0)]
    assert cut_off(result) == [("b", 3)]


async def test_an_observer_that_outlasts_its_time_unnoticed_takes_none_from_the_next(autojump_clock: MockClock) -> None:
    result, heard = await watched(too_long_behind_a_shield, two_seconds, nothing, finish_timeout=3)
    assert heard == [("a", 5), ("b", 7), ("c", 7)]
    assert result.diagnostics == ()


async def test_plain_methods_are_told_in_their_place_among_those_that_wait(autojump_clock: MockClock) -> None:
    told: list[tuple[str, float]] = []

    class Plain(Extension[Any]):
        def __init__(self, name: str) -> None:
            self.name = name

        def on_finish(self, ctx: Any, question: Any) -> None:
            told.append((self.name, trio.current_time()))

    extensions: tuple[Extension[Any], ...] = (
        Plain("first"),
        Watching("a", two_seconds, told),
        Plain("second"),
        Watching("b", too_long, told),
        Plain("third"),
        Watching("c", two_seconds, told),
        Plain("last"),
    )
    async with open_runtime(loop_agent(extensions=extensions), finish_timeout=3) as runtime:
        result = await runtime.run("hi")
    assert told == [("first", 0), ("a", 2), ("second", 2), ("third", 5), ("c", 7), ("last", 7)]
    assert cut_off(result) == [("b", 3)]


async def test_a_shutdown_hurries_the_observer_that_is_being_told_and_those_behind_it(
    autojump_clock: MockClock,
) -> None:
    heard: list[tuple[str, float]] = []
    acts = (two_seconds, too_long, two_seconds, too_long, nothing)
    extensions = tuple([Watching(name, act, heard) for name, act in zip("abcde", acts, strict=True)])
    async with open_runtime(loop_agent(extensions=extensions)) as runtime:
        run = runtime.submit("hi")
        await trio.sleep(3)  # the second one is being told, without a limit so far
        await runtime.drain(4)
        result = await run.wait()
    assert heard == [("a", 2), ("c", 13), ("e", 17)]
    assert cut_off(result) == [("b", 9), ("d", 4)]


async def test_a_cancelled_kept_by_an_observer_is_its_fault_and_the_next_is_told(autojump_clock: MockClock) -> None:
    kept = await stray()

    async def raises_a_kept_one() -> None:
        raise kept

    result, heard = await watched(two_seconds, raises_a_kept_one, two_seconds, finish_timeout=3)
    assert heard == [("a", 2), ("c", 4)]
    (diagnostic,) = result.diagnostics
    assert (diagnostic.extension, type(diagnostic.error)) == ("b", RuntimeError)


@pytest.mark.parametrize("observers", [0, 1, 6])
async def test_a_run_takes_one_task_and_two_steps_of_the_scheduler_whoever_observes(observers: int) -> None:
    """The run's own, which is its only one where the loop waits for nothing, and the one in which its asker goes on."""

    class Steps(trio.abc.Instrument):
        spawned = 0
        taken = 0

        def task_spawned(self, task: trio.lowlevel.Task) -> None:
            self.spawned += 1

        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            self.taken += 1

    @attrs.define(eq=False)
    class AtOnce:
        window: int = 4096
        recalls: bool = False

        async def drive(self, work: Work, responded: object = None) -> Ending:
            return Ending("done")

    heard: list[tuple[str, float]] = []
    extensions = tuple([Watching(str(number), nothing, heard) for number in range(observers)])
    agent = Agent(model=ScriptedModel([]), loop=AtOnce(), extensions=extensions)
    async with open_runtime(agent) as runtime:
        await runtime.run("hi")  # the first one also wakes up what forgets idle conversations
        await wait_all_tasks_blocked()
        heard.clear()
        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        await runtime.run("hi")
        trio.lowlevel.remove_instrument(steps)
    assert [name for name, _ in heard] == [str(number) for number in range(observers)]
    assert (steps.spawned, steps.taken) == (1, 2)


async def test_an_abort_while_observers_share_a_shield_silences_none(autojump_clock: MockClock) -> None:
    heard: list[tuple[str, float]] = []
    extensions = tuple([Watching(name, two_seconds, heard) for name in "abc"])

    async def for_ever(work: Work) -> str:
        await trio.sleep_forever()
        raise AssertionError("unreachable: nothing wakes it")

    async with open_runtime(loop_agent(for_ever, extensions=extensions)) as runtime:
        run = runtime.submit("hi")
        await wait_all_tasks_blocked()
        run.abort("enough")
        await trio.sleep(3)
        run.abort("again")
        with pytest.raises(RunAborted):
            await run.wait()
    assert heard == [("a", 2), ("b", 4), ("c", 6)]


async def test_a_result_has_what_the_observers_before_this_one_left_behind(autojump_clock: MockClock) -> None:
    seen: list[tuple[tuple[str, ...], tuple[str, ...], str]] = []

    class Last(Extension[Any]):
        name = "last"

        def on_finish(self, ctx: Any, question: Any) -> None:
            result = question.outcome.result
            named = tuple([diagnostic.extension for diagnostic in result.diagnostics])
            told = tuple([diagnostic.extension for diagnostic in question.diagnostics])
            seen.append((named, told, result.trace[-1].kind))
            assert result.trace == question.outcome.trace

    async with open_runtime(
        loop_agent(extensions=(Watching("slow", too_long, []), Last(), Watching("fine", nothing, []))), finish_timeout=3
    ) as runtime:
        result = await runtime.run("hi")
    assert seen == [(("slow",), ("slow",), "hook-decision")]
    assert [diagnostic.extension for diagnostic in result.diagnostics] == ["slow"]
