"""Lifespans, opening and closing, whatever cancels it (H11, R13)."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock, wait_all_tasks_blocked

from goliath_actors import Agent, Extension, Run, open_runtime
from goliath_actors._work import Work
from goliath_actors.errors import (
    ConfigError,
    RuntimeClosed,
)
from goliath_actors.stores import SqliteStore
from goliath_actors.testing import Journal, ScriptedModel

from .loops import ScriptedLoop, echo, loop_agent
from .runtime_stage import Odd, SlowToLive, for_ever, shuffled, waiter_of

# --- H11: lifespans ---------------------------------------------------------------------------------------------------


class Living(Extension[Any]):
    """Writes down when its lifespan is entered and left; may fail at either."""

    def __init__(self, name: str, log: list[str], fail: str = "") -> None:
        self.name = name
        self.log = log
        self.fail = fail

    @asynccontextmanager
    async def lifespan(self, agent: Any) -> AsyncIterator[None]:
        await trio.lowlevel.checkpoint()
        if self.fail == "enter":
            raise OSError(f"{self.name} cannot start")
        self.log.append(f"enter {self.name}")
        try:
            yield
        finally:
            await trio.lowlevel.checkpoint()
            self.log.append(f"leave {self.name}")
            if "leave" in self.fail:
                raise OSError(f"{self.name} cannot stop")

    async def on_finish(self, ctx: Any, question: Any) -> None:
        self.log.append(f"{self.name} heard {question.outcome.status}")


async def test_lifespans_are_entered_in_order_and_left_in_reverse_after_every_run() -> None:
    log: list[str] = []
    async with open_runtime(loop_agent(extensions=(Living("a", log), Living("b", log)))) as runtime:
        assert log == ["enter a", "enter b"]
        runtime.submit("hi")
    assert log == ["enter a", "enter b", "a heard completed", "b heard completed", "leave b", "leave a"]


async def test_lifespans_are_left_in_full_under_an_outer_cancellation() -> None:
    log: list[str] = []
    with trio.CancelScope() as scope:
        async with open_runtime(loop_agent(for_ever, extensions=(Living("a", log),))) as runtime:
            runtime.submit("hi")
            await wait_all_tasks_blocked()
            scope.cancel()
            await trio.sleep_forever()
    assert log == ["enter a", "a heard aborted", "leave a"]


async def test_a_lifespan_that_cannot_start_leaves_those_before_it_and_opening_fails_bare() -> None:
    log: list[str] = []
    extensions = (Living("a", log), Living("b", log, "enter"), Living("c", log))
    with pytest.raises(OSError, match="b cannot start"):
        async with open_runtime(loop_agent(extensions=extensions)):
            pass  # pragma: no cover
    assert log == ["enter a", "leave a"]


async def test_every_lifespan_is_left_and_errors_are_collected() -> None:
    log: list[str] = []
    with pytest.raises(OSError, match="a cannot stop"):
        async with open_runtime(loop_agent(extensions=(Living("a", log, "leave"), Living("b", log)))):
            pass
    assert log == ["enter a", "enter b", "leave b", "leave a"]
    log.clear()
    with pytest.RaisesGroup(OSError, OSError):
        async with open_runtime(loop_agent(extensions=(Living("a", log, "leave"), Living("b", log, "leave")))):
            pass
    assert log == ["enter a", "enter b", "leave b", "leave a"]


async def test_an_error_of_the_block_beats_errors_of_leaving_which_stay_in_sight() -> None:
    log: list[str] = []
    with pytest.raises(RuntimeError, match="body") as caught:
        async with open_runtime(loop_agent(extensions=(Living("a", log, "leave"),))):
            raise RuntimeError("body")
    assert isinstance(caught.value.__context__, OSError)


async def test_an_error_of_leaving_after_a_failed_start_is_a_note_on_it() -> None:
    log: list[str] = []
    with pytest.raises(OSError, match="b cannot start") as caught:
        async with open_runtime(loop_agent(extensions=(Living("a", log, "leave"), Living("b", log, "enter")))):
            pass  # pragma: no cover
    assert caught.value.__notes__ == ["while leaving a resource of the runtime: OSError: a cannot stop"]


async def test_one_extension_object_lives_in_one_runtime_at_a_time() -> None:
    log: list[str] = []
    shared = Living("a", log)
    async with open_runtime(loop_agent(extensions=(shared,))):
        with pytest.raises(ConfigError, match="already in use"):
            async with open_runtime(loop_agent(extensions=(shared,))):
                pass  # pragma: no cover
    async with open_runtime(loop_agent(extensions=(shared,))):
        pass
    assert log == ["enter a", "leave a"] * 2


async def test_a_lifespan_whose_background_task_fails_ends_the_runtime_with_its_error() -> None:
    class Crashing(Extension[Any]):
        name = "crashing"

        @asynccontextmanager
        async def lifespan(self, agent: Any) -> AsyncIterator[None]:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._work)
                yield

        async def _work(self) -> None:
            await wait_all_tasks_blocked()
            raise LookupError("lost its connection")

    journal = Journal()
    with pytest.raises(LookupError, match="lost its connection"):
        async with open_runtime(loop_agent(for_ever, extensions=(Crashing(), journal))) as runtime:
            runtime.submit("hi")
            await trio.sleep_forever()
    assert journal.heard("on_finish") == [("hi", "aborted")]


async def test_models_and_fallbacks_that_can_be_closed_are_closed_once_at_the_end() -> None:
    closed: list[str] = []

    class Closable(ScriptedModel):
        async def aclose(self) -> None:
            await trio.lowlevel.checkpoint()
            closed.append(self.name)

    model = Closable([], name="shared")
    one, two = (Agent(name=name, model=model, loop=ScriptedLoop(echo)) for name in ("one", "two"))
    async with open_runtime(one, two) as runtime:
        runtime.submit("hi", agent="one")
        assert closed == []
    assert closed == ["shared"]


# --- H11, R13: opening and leaving ------------------------------------------------------------------------------------


async def test_a_lifespan_that_enters_although_opening_was_cancelled_is_left_again(autojump_clock: MockClock) -> None:
    before, slow, never = SlowToLive(), SlowToLive(entering=2), SlowToLive()
    slow.name, never.name = "slow", "never"
    with trio.fail_after(60), trio.move_on_after(1) as scope:
        async with open_runtime(loop_agent(extensions=(before, slow, never))):
            raise AssertionError("the block began in a cancelled scope")
    assert scope.cancelled_caught
    assert trio.current_time() == 2
    assert (before.log, slow.log, never.log) == (["entered", "left"], ["entered", "left"], [])


@pytest.mark.parametrize("steps", range(6))
async def test_opening_a_file_can_be_cancelled_at_any_step(steps: int, tmp_path: Path) -> None:
    with trio.fail_after(10), trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def cancel() -> None:
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                scope.cancel()

            nursery.start_soon(cancel)
            async with open_runtime(loop_agent(), store=SqliteStore(tmp_path / "chat.db")):
                await trio.sleep_forever()
    assert scope.cancelled_caught
    async with open_runtime(loop_agent(), store=SqliteStore(tmp_path / "chat.db")) as runtime:
        assert (await runtime.run("hi")).text == "echo hi"


@attrs.define(eq=False)
class CancelsAfter(trio.abc.Instrument):
    """Cancels a scope after the n-th step of any task."""

    steps: int
    scope: trio.CancelScope = attrs.Factory(trio.CancelScope)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps -= 1
        if self.steps == 0:
            self.scope.cancel()


@pytest.mark.parametrize("seed", range(3))
def test_a_runtime_can_be_cancelled_at_any_step_of_its_life(seed: int) -> None:
    ways: set[tuple[bool, str]] = set()
    for steps in range(1, 60):
        living, cutter = SlowToLive(), CancelsAfter(steps)
        runs: list[Run] = []

        async def main(living: SlowToLive, cutter: CancelsAfter, runs: list[Run]) -> None:
            shuffled(seed)
            with cutter.scope:
                async with open_runtime(loop_agent(extensions=(living,))) as runtime:
                    await trio.lowlevel.checkpoint()
                    runs.append(runtime.submit("one"))
                    runs.append(runtime.submit("two"))

        trio.run(main, living, cutter, runs, instruments=[cutter])
        assert living.log in ([], ["entered", "left"])
        assert all(run.state == "done" for run in runs)
        ways.add((cutter.scope.cancelled_caught, runs[-1].outcome.status if runs and runs[-1].outcome else "never"))
    assert {(True, "never"), (True, "aborted"), (False, "completed")} <= ways


@pytest.mark.parametrize("door", ["run", "stream", "forget"])
async def test_a_caller_whose_cancellation_closed_the_runtime_is_cancelled_and_not_refused(door: str) -> None:
    late = trio.Event()

    async def handler(runtime: Any) -> None:
        await late.wait()
        if door == "run":
            await runtime.run("late")
        elif door == "stream":
            async with runtime.stream("late"):
                pass  # pragma: no cover
        else:
            await runtime.conversation("c").forget()

    for seed in range(8):
        shuffled(seed)
        late = trio.Event()
        with trio.CancelScope() as scope:
            async with open_runtime(loop_agent()) as runtime, trio.open_nursery() as nursery:
                nursery.start_soon(handler, runtime)
                await wait_all_tasks_blocked()
                late.set()  # the handler is going to ask, without having been cancelled while it waited
                scope.cancel()
        assert scope.cancelled_caught
    with pytest.raises(RuntimeClosed):
        await handler(runtime)


async def asking_until_the_end(way: str, seed: int, cutter: CancelsAfter) -> list[tuple[str, str | None]]:
    """Let two runs ask again and again until the runtime ends; return how they ended."""
    shuffled(seed)

    async def action(work: Work) -> str:
        while work.ask == "outer":
            await runtime.run("leaf", conversation_id=f"leaf of {work.journal.conversation_id}")
        await trio.lowlevel.checkpoint()
        return ""

    with cutter.scope if way == "cancelled" else nullcontext():
        async with open_runtime(loop_agent(action)) as runtime:
            runs = [runtime.submit("outer", conversation_id=name) for name in "ab"]
            with cutter.scope if way == "drained" else nullcontext():
                await trio.sleep_forever()
            await runtime.drain(0)
    outcomes = [run.outcome for run in runs if run.outcome is not None]
    return [(outcome.status, None if outcome.abort is None else outcome.abort.cause) for outcome in outcomes]


@pytest.mark.parametrize("way", ["cancelled", "drained"])
def test_a_run_that_asks_while_all_are_aborted_is_aborted_itself_and_no_failure(way: str) -> None:
    for steps in range(30, 80):
        cutter = CancelsAfter(steps)
        ends = trio.run(asking_until_the_end, way, steps, cutter, instruments=[cutter])
        assert (steps, ends) == (steps, [("aborted", "shutdown")] * 2)


async def test_an_error_of_leaving_comes_out_of_a_cancelled_runtime(autojump_clock: MockClock) -> None:
    error = OSError("not flushed")
    living = SlowToLive(leaving=error)
    with pytest.raises(OSError, match="not flushed") as caught, trio.move_on_after(1):
        async with open_runtime(loop_agent(extensions=(living,))):
            await trio.sleep_forever()
    assert caught.value is error


async def test_a_lifespan_that_ends_by_itself_ends_the_runtime_with_a_word(autojump_clock: MockClock) -> None:
    journal, living = Journal(), SlowToLive(ends_after=3)
    with pytest.raises(RuntimeClosed, match="ended before the runtime did"):
        async with open_runtime(loop_agent(for_ever, extensions=(living, journal))) as runtime:
            runtime.submit("hi")
            await trio.sleep_forever()
    assert journal.heard("on_finish") == [("hi", "aborted")]
    assert living.log == ["entered", "left"]
    assert trio.current_time() == 3


@pytest.mark.parametrize("plain", [True, False])
async def test_a_lifespan_that_is_no_context_manager_says_what_to_do(plain: bool) -> None:
    class Bare(Extension[Any]):
        name = "bare"

    async def coroutine(agent: Any) -> None:
        raise AssertionError("unreachable: never awaited")

    async def generator(agent: Any) -> AsyncIterator[None]:
        yield

    bare = Bare()
    bare.lifespan = generator if plain else coroutine  # type: ignore[assignment,method-assign]
    with pytest.raises(ConfigError, match="'bare': lifespan must give an async context manager"):
        async with open_runtime(loop_agent(extensions=(bare,))):
            pass  # pragma: no cover
    gc.collect()  # a coroutine that was left unawaited would warn now


@pytest.mark.parametrize("leaving", [None, OSError("not flushed")])
async def test_an_exit_out_of_a_run_is_not_replaced_by_an_error_of_the_block(leaving: Exception | None) -> None:
    fatal = SystemExit(3)

    async def action(work: Work) -> str:
        await trio.lowlevel.checkpoint()
        raise fatal

    with pytest.raises(SystemExit) as caught:
        async with open_runtime(loop_agent(action, extensions=(SlowToLive(leaving=leaving),))) as runtime:
            found: list[Any] = []
            await waiter_of(runtime.submit("exit"), found)()
            raise ValueError("the block")
    assert caught.value is fatal
    if leaving is not None:
        assert fatal.__notes__ == ["while leaving a resource of the runtime: OSError: not flushed"]


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, Odd])
async def test_what_the_block_raises_keeps_its_own_cause_and_context(kind: type[BaseException]) -> None:
    cause, error = LookupError("why"), kind()
    with pytest.raises(kind) as caught:
        async with open_runtime(loop_agent(for_ever)) as runtime:
            runtime.submit("hi")
            raise error from cause
    assert caught.value is error
    assert error.__cause__ is cause
    assert error.__context__ is None
