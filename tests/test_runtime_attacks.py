"""Attacks on the runtime that once succeeded: each is one fault of a kind, held down by the rule that it broke."""

from __future__ import annotations

import dis
import functools
import gc
import itertools
import signal
import sys
import types
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock, wait_all_tasks_blocked

from goliath_actors import Agent, Extension, RunAborted, ToolFailure, approve_all, open_runtime, tool
from goliath_actors._envelope import Run
from goliath_actors._work import Work
from goliath_actors.abc import Change
from goliath_actors.errors import (
    ConfigError,
    ConversationBusy,
    GoliathExtensionError,
    MailboxFull,
    ReentrantRun,
    RuntimeClosed,
)
from goliath_actors.events import Answer
from goliath_actors.stores import InMemoryStore, SqliteStore
from goliath_actors.testing import Gate, Journal, ScriptedModel, check_events
from goliath_actors.tools import ToolOutcome
from goliath_actors.values import Memory

from .loops import loop_agent


async def sleepy(work: Work) -> str:
    await trio.sleep(float(work.ask))
    return f"slept {work.ask}"


async def for_ever(work: Work) -> str:
    await trio.sleep_forever()
    raise AssertionError("unreachable: nothing wakes it")


def shuffled(seed: int) -> None:
    """Let trio shuffle its tasks in a way that a failing test can repeat."""
    trio._core._run._r.seed(seed)  # type: ignore[attr-defined]  # trio has no public name for it


def waiter_of(run: Any, found: list[BaseException | Any]) -> Any:
    """Return a task, for a nursery outside the runtime's, that writes down what the run answers."""

    async def wait() -> None:
        try:
            found.append(await run.wait())
        except (Exception, Odd, SystemExit) as error:
            found.append(error)

    return wait


class Odd(BaseException):
    """What nobody names: neither an `Exception` nor what ends the program."""


# --- odd errors: every run is answered, every observer told -----------------------------------------------------------


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Truthless(Exception):
    def __bool__(self) -> bool:
        raise RuntimeError("neither true nor false")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("equal to nothing")

    __hash__ = None  # type: ignore[assignment]  # nothing that is told may need a hash


class Sealed(Exception):
    def __setattr__(self, name: str, value: object) -> None:
        raise TypeError("no attributes")


class Empty(Exception):
    def __len__(self) -> int:
        return 0


ODD_ERRORS = [Speechless, Truthless, Sealed, Empty]


def same(found: object, error: object) -> bool:
    """Say whether it is the same object; in a function, so that no failing assertion has to print it."""
    return found is error


@pytest.mark.parametrize("kind", ODD_ERRORS)
async def test_an_error_that_cannot_speak_compare_or_take_attributes_is_an_error_like_any_other(
    kind: type[Exception],
) -> None:
    error, journal = kind(), Journal()

    async def action(work: Work) -> str:
        await trio.lowlevel.checkpoint()
        raise error

    async with open_runtime(loop_agent(action, extensions=(journal,))) as runtime:
        run, found = runtime.submit("hi"), []
        await waiter_of(run, found)()
        assert same(found[0], error)
        assert run.outcome is not None
        assert run.outcome.status == "error"
    assert journal.rows == ["before_run", "on_error", "on_finish"]


@pytest.mark.parametrize("kind", ODD_ERRORS)
@pytest.mark.parametrize("lenient", [False, True])
async def test_an_odd_error_out_of_a_hook_is_that_extensions(kind: type[Exception], lenient: bool) -> None:
    error, journal = kind(), Journal()

    class Raises(Extension[Any]):
        name = "raises"

        def before_run(self, ctx: Any, question: Any) -> None:
            raise error

    extension = Raises()
    extension.lenient = lenient
    async with open_runtime(loop_agent(extensions=(extension, journal))) as runtime:
        run, found = runtime.submit("hi"), []
        await waiter_of(run, found)()
        assert run.outcome is not None
        if lenient:
            assert run.outcome.status == "completed"
            assert same(run._envelope.journal.diagnostics[0].error, error)
        else:
            assert type(found[0]) is GoliathExtensionError
            assert same(found[0].__cause__, error)
            assert run.outcome.origin == "extension"
    assert journal.rows[-1] == "on_finish"


@pytest.mark.parametrize("kind", ODD_ERRORS)
async def test_odd_errors_of_observers_and_late_callbacks_are_diagnostics_the_first_of_an_event_counts(
    kind: type[Exception],
) -> None:
    errors = [kind(), kind()]

    class Raises(Extension[Any]):
        name = "raises"

        def on_finish(self, ctx: Any, question: Any) -> None:
            raise errors[0]

    def first(event: Any) -> None:
        if event.kind == "run-finished":
            raise errors[1]

    def second(event: Any) -> None:
        if event.kind == "run-finished":
            raise ValueError("the second callback")

    async with open_runtime(loop_agent(extensions=(Raises(),), on_event=first)) as runtime:
        run = runtime.submit("hi", on_event=second)
        assert (await run.wait()).status == "completed"
        assert [same(d.error, error) for d, error in zip(run._envelope.journal.diagnostics, errors, strict=True)] == [
            True,
            True,
        ]


# --- what is no Exception ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ["on_error", "on_finish"])
@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("kind", [SystemExit, Odd])
async def test_what_ends_the_program_out_of_an_observer_waits_until_everybody_was_told(
    row: str, plain: bool, kind: type[BaseException], autojump_clock: MockClock
) -> None:
    journal = Journal()
    fatal = kind()

    def raising(ctx: Any, question: Any) -> None:
        if ctx.ask == "first":
            raise fatal

    async def raising_later(ctx: Any, question: Any) -> None:
        await trio.lowlevel.checkpoint()
        raising(ctx, question)

    class Observer(Extension[Any]):
        name = "observer"

    observer = Observer()
    setattr(observer, row, raising if plain else raising_later)

    async def action(work: Work) -> str:
        await trio.sleep(1)
        raise ValueError("no")

    found: list[Any] = []
    async with trio.open_nursery() as nursery:
        with pytest.raises(kind) as caught:
            async with open_runtime(loop_agent(action, extensions=(observer, journal))) as runtime:
                nursery.start_soon(waiter_of(runtime.submit("first"), found))
                second = runtime.submit("second")
                await trio.sleep_forever()
    assert caught.value is fatal
    assert [type(answer) for answer in found] == [ValueError]
    assert second.state == "done"
    assert journal.heard("on_finish") == [("first", "error"), ("second", "aborted")]


async def test_what_nobody_names_out_of_a_run_ends_the_others_by_their_own_scopes(autojump_clock: MockClock) -> None:
    journal, odd = Journal(), Odd()

    async def action(work: Work) -> str:
        await trio.sleep(1)
        if work.ask == "odd":
            raise odd
        return await for_ever(work)

    with pytest.raises(Odd) as caught:
        async with open_runtime(loop_agent(action, extensions=(journal,))) as runtime:
            failed = runtime.submit("odd", conversation_id="a")
            others = [runtime.submit(ask, conversation_id="b") for ask in ("other", "queued")]
            await trio.sleep_forever()
    assert caught.value is odd
    assert failed.outcome is not None
    assert (failed.outcome.status, failed.outcome.error) == ("error", odd)
    assert [run._envelope.scope.cancelled_caught for run in others] == [True, True]
    assert journal.heard("on_finish") == [("odd", "error"), ("other", "aborted"), ("queued", "aborted")]


@pytest.mark.parametrize("kind", ["run-started", "run-finished"])
async def test_an_event_callback_that_exits_leaves_nobody_unanswered(kind: str, autojump_clock: MockClock) -> None:
    journal = Journal()

    def on_event(event: Any) -> None:
        if event.kind == kind:
            raise SystemExit(3)

    found: list[Any] = []
    async with trio.open_nursery() as nursery:
        with pytest.raises(SystemExit):
            async with open_runtime(loop_agent(extensions=(journal,))) as runtime:
                nursery.start_soon(waiter_of(runtime.submit("hi", on_event=on_event), found))
                await trio.sleep_forever()
    status = "error" if kind == "run-started" else "completed"
    assert journal.heard("on_finish") == [("hi", status)]
    assert [getattr(answer, "status", type(answer)) for answer in found] == [
        SystemExit if kind == "run-started" else "completed"
    ]


@pytest.mark.parametrize("place", ["hear_out", "tell"])
def test_an_observer_hears_also_when_an_interrupt_comes_just_before_it_begins(place: str) -> None:
    told: list[tuple[str, str]] = []

    class Told(Extension[Any]):
        name = "told"

        async def on_finish(self, ctx: Any, question: Any) -> None:
            await trio.lowlevel.checkpoint()
            told.append((ctx.ask, question.outcome.status))

    def interrupt(frame: Any, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_name == place:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)

    async def main() -> None:
        async with open_runtime(loop_agent(extensions=(Told(),))) as runtime:
            runtime.submit("hi")
            await trio.sleep_forever()

    before = sys.getprofile()
    sys.setprofile(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            trio.run(main)
    finally:
        sys.setprofile(before)
    assert told == [("hi", "completed")]
    gc.collect()  # a coroutine that was never awaited would warn now


@functools.cache
def beginnings(code: types.CodeType) -> frozenset[int]:
    """Return where in a function CPython looks for signals as it begins, or goes on after a `yield`."""
    return frozenset(
        step.offset for step in dis.get_instructions(code) if step.opname == "RESUME" and step.arg in (0, 1)
    )


@attrs.define(eq=False)
class Interrupts:
    """Presses Ctrl-C where the n-th Python function begins, but not in code of an application: that may break off."""

    at: int
    calls: int = 0
    pressed: bool = False

    def profile(self, frame: types.FrameType, event: str, argument: object) -> None:
        if event != "call" or not any(abs(frame.f_lasti - place) <= 2 for place in beginnings(frame.f_code)):
            return
        self.calls += 1
        if self.calls != self.at:
            return
        above: types.FrameType | None = frame
        while above is not None:
            if (
                above.f_code.co_name in ("lifespan", "on_error", "on_finish", "action")
                or above.f_code.co_name == "_remove"
            ):
                return
            above = above.f_back
        self.pressed = True
        sys.setprofile(None)
        signal.raise_signal(signal.SIGINT)


def interrupted(interrupts: Interrupts) -> tuple[list[str], list[tuple[str, str]], list[Run]]:
    """Open a runtime, run something, leave it, all under `interrupts`; return what was told and the runs."""
    living, told, runs = Living(), list[tuple[str, str]](), list[Run]()

    class Hears(Extension[Any]):
        name = "hears"

        async def on_finish(self, ctx: Any, question: Any) -> None:
            await trio.lowlevel.checkpoint()
            told.append((ctx.ask, question.outcome.status))

    async def action(work: Work) -> str:
        await trio.lowlevel.checkpoint()
        return ""

    async def main() -> None:
        sys.setprofile(interrupts.profile)
        async with open_runtime(agent) as runtime:
            runs.append(runtime.submit("one"))
            async with runtime.stream("two", conversation_id="c") as run:
                runs.append(run)
                async for _ in run.events():
                    pass
            with trio.move_on_after(0):
                await runtime.run("three")
            await runtime.conversation("c").forget()
            runs.append(runtime.submit("four"))
            await runs[-1].wait()
            await runtime.drain(1)
        sys.setprofile(None)  # what comes now is trio's own end

    agent = loop_agent(action, extensions=(living, Hears()))
    before = sys.getprofile()
    try:
        trio.run(main)
    except KeyboardInterrupt:
        assert interrupts.pressed
    else:
        assert not interrupts.pressed
    finally:
        sys.setprofile(before)
    return living.log, told, runs


def test_ctrl_c_wherever_it_comes_leaves_everything_in_order() -> None:
    whole = Interrupts(0)
    interrupted(whole)
    assert whole.calls > 1000
    pressed = 0
    for at in range(1, whole.calls, 29):
        interrupts = Interrupts(at)
        log, told, runs = interrupted(interrupts)
        pressed += interrupts.pressed
        assert (at, log) in ((at, []), (at, ["entered", "left"]))
        assert [run.state for run in runs] == ["done"] * len(runs)
        ends = [(run.ask, run.outcome.status) for run in runs if run.outcome is not None]
        assert len(told) == len(set(told))
        assert set(ends) <= set(told)  # Ctrl-C may have come between accepting a run and handing it over
    assert pressed > 50


# --- a Cancelled that is no cancellation (R12, R17) -------------------------------------------------------------------


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


@pytest.mark.parametrize("grouped", [False, True])
async def test_a_stray_cancelled_fails_its_own_run_and_no_other(grouped: bool, autojump_clock: MockClock) -> None:
    journal = Journal()

    async def action(work: Work) -> str:
        if work.ask == "bad":
            cancelled = await stray()
            raise BaseExceptionGroup("kept", [cancelled]) if grouped else cancelled
        await trio.sleep(1)
        return "fine"

    async with open_runtime(loop_agent(action, extensions=(journal,))) as runtime:
        good, bad = runtime.submit("good", conversation_id="g"), runtime.submit("bad", conversation_id="b")
        with pytest.raises(RuntimeError, match="belongs to no cancel scope"):
            await bad.wait()
        assert (await good.wait()).text == "fine"
        assert (await runtime.run("again", conversation_id="b")).text == "fine"
    assert journal.heard("on_finish") == [("bad", "error"), ("good", "completed"), ("again", "completed")]


@pytest.mark.parametrize("plain", [False, True])
async def test_a_stray_cancelled_of_an_observer_is_a_diagnostic(plain: bool) -> None:
    journal = Journal()
    cancelled = await stray()

    async def raising(ctx: Any, question: Any) -> None:
        await trio.lowlevel.checkpoint()
        raise cancelled

    def raising_at_once(ctx: Any, question: Any) -> None:
        raise cancelled

    class Observer(Extension[Any]):
        name = "observer"

    observer = Observer()
    observer.on_finish = raising_at_once if plain else raising  # type: ignore[assignment,method-assign]
    async with open_runtime(loop_agent(extensions=(observer, journal))) as runtime:
        result = await runtime.run("hi")
        assert (await runtime.run("again")).status == "completed"
    assert [(d.extension, d.phase, type(d.error)) for d in result.diagnostics] == [
        ("observer", "on_finish", RuntimeError)
    ]
    assert journal.heard("on_finish") == [("hi", "completed"), ("again", "completed")]


# --- an error that an abort replaced (§P) -----------------------------------------------------------------------------


@pytest.mark.parametrize("nursery_around", [False, True])
async def test_a_replaced_error_is_kept_however_often_a_cancellation_took_its_place(nursery_around: bool) -> None:
    error = ValueError("first")

    async def replaced() -> None:
        try:
            try:
                raise error
            finally:
                await trio.sleep_forever()
        finally:
            await trio.sleep_forever()

    async def action(work: Work) -> str:
        if nursery_around:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(replaced)
                nursery.start_soon(trio.sleep_forever)
        await replaced()
        raise AssertionError("unreachable: nothing wakes it")

    async with open_runtime(loop_agent(action)) as runtime:
        run = runtime.submit("hi")
        await wait_all_tasks_blocked()
        run.abort()
        with pytest.raises(RunAborted) as caught:
            await run.wait()
    assert caught.value.__cause__ is error


# --- hooks around a call: an effect is never silently repeated --------------------------------------------------------


async def invoked(around: Any, failure: Exception | None = None) -> tuple[int, ToolOutcome | Exception]:
    """Call a write inside one hook; return how often it was executed and what came of it."""
    executed = 0

    @tool(writes=True)
    async def pay(to: str) -> str:
        """Pay somebody."""
        nonlocal executed
        executed += 1
        if failure is not None:
            raise failure
        await trio.sleep(10)
        return "paid"

    class Around(Extension[Any]):
        name = "around"

        async def around_tool(self, ctx: Any, question: Any, call_next: Any) -> Any:
            return await around(call_next)

    agent = Agent(model=ScriptedModel([]), tools=[pay], confirm=approve_all, extensions=(Around(),))
    async with open_runtime(agent) as runtime:
        try:
            return executed, await runtime.invoke_tool("pay", {"to": "ann"})
        except Exception as error:
            return executed, error
        finally:
            assert executed == 1


async def test_a_hook_that_keeps_a_failure_to_itself_does_not_make_the_call_a_second_time() -> None:
    failure = ToolFailure("no money")

    async def around(call_next: Any) -> None:
        try:
            await call_next()
        except ToolFailure:
            pass

    _, outcome = await invoked(around, failure)
    assert isinstance(outcome, ToolOutcome)
    assert (outcome.status, outcome.error) == ("failed", failure)


async def test_a_hook_whose_time_limit_cut_the_call_does_not_make_it_a_second_time(autojump_clock: MockClock) -> None:
    async def around(call_next: Any) -> Any:
        with trio.move_on_after(1):
            return await call_next()

    _, outcome = await invoked(around)
    assert isinstance(outcome, GoliathExtensionError)
    assert (outcome.extension, outcome.phase) == ("around", "around_tool")
    assert "cut around_tool short" in str(outcome)
    assert trio.current_time() == 1


async def test_a_hook_with_a_nursery_lets_the_tools_failure_through_as_it_was(autojump_clock: MockClock) -> None:
    failure = ToolFailure("no money")

    async def around(call_next: Any) -> Any:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 5)
            return await call_next()

    _, outcome = await invoked(around, failure)
    assert isinstance(outcome, ToolOutcome)
    assert (outcome.status, outcome.error) == ("failed", failure)


async def test_an_error_of_a_hooks_own_nursery_is_the_cause_without_its_group() -> None:
    own = LookupError("watchdog")

    async def watchdog() -> None:
        await trio.lowlevel.checkpoint()
        raise own

    async def around(call_next: Any) -> Any:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watchdog)
            return await call_next()

    _, outcome = await invoked(around)
    assert isinstance(outcome, GoliathExtensionError)
    assert outcome.__cause__ is own
    assert "watchdog" in str(outcome)


@pytest.mark.parametrize("row", ["around_tool", "around_model"])
async def test_a_call_next_that_was_kept_is_good_for_nothing_once_its_hook_is_over(row: str) -> None:
    executed, kept = 0, []

    @tool
    async def look(at: str) -> str:
        """Look at something."""
        nonlocal executed
        executed += 1
        return "seen"

    async def keeping(ctx: Any, question: Any, call_next: Any) -> Any:
        kept.append(call_next)
        return await call_next()

    class Keeps(Extension[Any]):
        name = "keeps"

    keeps = Keeps()
    setattr(keeps, row, keeping)
    model = ScriptedModel([{"kind": "tool", "tool": "look", "brief": "look"}, {"at": "it"}, "{}", "{}", "{}"])
    async with open_runtime(Agent(model=model, tools=[look], extensions=(keeps,))) as runtime:
        run = runtime.submit("hi")
        await run.wait_ended()
        requests = len(model.requests)
        for call_next in kept:
            with pytest.raises(RuntimeError, match="only while its hook runs"):
                await call_next()
        assert [event.kind async for event in run.events()][-1] == "run-finished"
    assert executed == 1
    assert len(model.requests) == requests
    assert kept


async def test_what_a_task_that_outlives_its_run_tells_comes_after_no_last_word() -> None:
    async with open_runtime(loop_agent()) as runtime:
        run = runtime.submit("hi")
        await run.wait()
        run._envelope.journal.emit(Answer, text="too late")
        run._envelope.journal.delta("much too late")
        assert [event.kind async for event in run.events()] == ["run-queued", "run-started", "run-finished"]


# --- accepting: whatever a callback on RunQueued does -----------------------------------------------------------------


async def test_an_event_callback_that_exits_on_queued_leaves_no_run_that_nobody_could_end(
    autojump_clock: MockClock,
) -> None:
    journal = Journal()

    def on_event(event: Any) -> None:
        if event.kind == "run-queued":
            raise SystemExit(3)

    async with open_runtime(loop_agent(for_ever, extensions=(journal,))) as runtime:
        with pytest.raises(SystemExit):
            runtime.submit("hi", on_event=on_event)
    assert journal.heard("on_finish") == [("hi", "aborted")]
    assert runtime.statistics().aborted == 1


async def test_an_ask_out_of_an_event_callback_goes_behind_the_one_that_was_being_accepted() -> None:
    order: list[str] = []

    async def action(work: Work) -> str:
        await trio.lowlevel.checkpoint()
        order.append(work.ask)
        return ""

    def on_event(event: Any) -> None:
        if event.kind == "run-queued":
            runtime.submit("inner", conversation_id="c")

    async with open_runtime(loop_agent(action)) as runtime:
        runtime.submit("outer", conversation_id="c", on_event=on_event)
    assert order == ["outer", "inner"]


async def test_a_callback_that_looks_at_the_runtime_cannot_have_the_new_conversation_forgotten(
    autojump_clock: MockClock,
) -> None:
    active = peak = 0

    async def action(work: Work) -> str:
        nonlocal active, peak
        active += 1
        peak = max(peak, active)
        await trio.sleep(1)
        active -= 1
        return ""

    async with open_runtime(loop_agent(action), idle_timeout=0) as runtime:
        for ask in ("one", "two", "three"):
            runtime.submit(ask, conversation_id="c", on_event=lambda event: runtime.statistics())
        assert runtime.conversation("c").status().waiting == 2
        await trio.sleep(5)
        assert runtime.statistics().conversations == 0
    assert peak == 1


# --- R15: the sweeper -------------------------------------------------------------------------------------------------


async def test_the_sweeper_agrees_with_itself_about_when_time_has_run_out(autojump_clock: MockClock) -> None:
    # 0.1 + 0.7 - 0.7 is less than 0.1: told apart by rounding, the sweeper would spin and the clock stand still.
    with trio.fail_after(60):
        async with open_runtime(loop_agent(sleepy), idle_timeout=0.7) as runtime:
            await runtime.run("0.1", conversation_id="c")
            assert trio.current_time() == 0.1
            await trio.sleep(5)
            assert list(runtime._engine.directory) == []


async def test_many_that_fell_idle_at_once_are_not_forgotten_in_one_stroke(autojump_clock: MockClock) -> None:
    async with open_runtime(loop_agent(), idle_timeout=10) as runtime:
        for number in range(4000):
            runtime.submit("hi", conversation_id=str(number))
        await trio.sleep(9.9)
        sizes = [len(runtime._engine.directory)]
        await trio.sleep(0.1)
        while sizes[-1]:
            sizes.append(len(runtime._engine.directory))
            await trio.lowlevel.checkpoint()
    assert sizes[0] == 4000
    # Trio shuffles: between two looks the sweeper may have had two steps.
    assert max(before - after for before, after in itertools.pairwise(sizes)) <= 2000


# --- R14: every wait is seen ------------------------------------------------------------------------------------------


async def test_reading_the_events_of_a_run_behind_oneself_is_refused_at_once() -> None:
    async def action(work: Work) -> str:
        if work.ask == "first":
            behind = work.submit("behind", conversation_id="c")
            behind.abort()  # its waiters were answered, but its events end at its turn
            with pytest.raises(ReentrantRun):
                async for _ in behind.events():
                    pass
        await trio.lowlevel.checkpoint()
        return work.ask

    async with open_runtime(loop_agent(action)) as runtime:
        with trio.fail_after(5):
            assert (await runtime.run("first", conversation_id="c")).text == "first"


async def test_a_run_that_reads_anothers_events_lends_its_slot() -> None:
    async def action(work: Work) -> str:
        if work.ask == "outer":
            return " ".join([event.kind async for event in work.submit("inner", conversation_id="b").events()])
        await trio.lowlevel.checkpoint()
        return work.ask

    async with open_runtime(loop_agent(action), max_running=1) as runtime:
        with trio.fail_after(5):
            result = await runtime.run("outer", conversation_id="a")
        assert runtime._engine.turns.running == 0
    assert result.text == "run-queued run-started run-finished"


async def test_waiting_for_a_run_behind_oneself_that_was_answered_already_is_no_cycle() -> None:
    async def action(work: Work) -> str:
        behind = work.submit("behind", conversation_id="c")
        behind.abort("not needed")
        with pytest.raises(RunAborted, match="not needed"):
            await behind.wait()
        return "fine"

    async with open_runtime(loop_agent(action)) as runtime:
        assert (await runtime.run("first", conversation_id="c")).text == "fine"


async def test_a_run_that_forgets_another_conversation_lends_its_slot() -> None:
    async def action(work: Work) -> str:
        await runtime.conversation("b").forget()
        return "forgotten"

    async with open_runtime(loop_agent(action), max_running=1) as runtime:
        with trio.fail_after(5):
            assert (await runtime.run("go", conversation_id="a")).text == "forgotten"
        assert runtime._engine.turns.running == 0


async def test_a_cycle_through_a_conversation_that_is_being_forgotten_is_refused(autojump_clock: MockClock) -> None:
    class Asks(Extension[Any]):
        name = "asks"

        async def on_finish(self, ctx: Any, question: Any) -> None:
            if ctx.conversation_id == "b":
                await runtime.run("too late", conversation_id="a")

    async def action(work: Work) -> str:
        if work.ask == "forget":
            await trio.sleep(1)
            await runtime.conversation("b").forget()
            return "forgotten"
        return await for_ever(work)

    async with open_runtime(loop_agent(action, extensions=(Asks(),))) as runtime:
        long = runtime.submit("long", conversation_id="b")
        with trio.fail_after(5):
            assert (await runtime.run("forget", conversation_id="a")).text == "forgotten"
        assert [type(diagnostic.error) for diagnostic in long._envelope.journal.diagnostics] == [ReentrantRun]


@pytest.mark.parametrize("seed", range(8))
async def test_a_wait_that_has_just_ended_closes_no_cycle(seed: int, autojump_clock: MockClock) -> None:
    shuffled(seed)

    class Asks(Extension[Any]):
        name = "asks"

        async def before_run(self, ctx: Any, question: Any) -> None:
            if ctx.ask == "next":  # in its very first step, while "waits" may not have noticed yet
                await runtime.run("leaf", conversation_id="a")

    async def action(work: Work) -> str:
        if work.ask == "waits":
            first = work.submit("first", conversation_id="b")
            work.submit("next", conversation_id="b")
            await first.wait()
        await trio.sleep(1)
        return work.ask

    async with open_runtime(loop_agent(action, extensions=(Asks(),))) as runtime:
        runtime.submit("waits", conversation_id="a")
    assert runtime.statistics().completed == 4


# --- several runtimes -------------------------------------------------------------------------------------------------


async def test_a_tool_may_open_drain_and_leave_a_runtime_of_its_own() -> None:
    async def action(work: Work) -> str:
        async with open_runtime(loop_agent(name="inner")) as inner:
            text = (await inner.run("hi")).text
            report = await inner.drain(5)
        return f"{text} {report}"

    async with open_runtime(loop_agent(action)) as runtime:
        assert (await runtime.run("go")).text == "echo hi DrainReport(finished=0, aborted=0)"


async def test_a_run_of_another_runtime_is_refused_like_anybody_while_one_drains(autojump_clock: MockClock) -> None:
    async with open_runtime(loop_agent(sleepy, name="drains")) as drains:

        async def action(work: Work) -> str:
            await trio.sleep(1)
            with pytest.raises(RuntimeClosed, match="drains"):
                await drains.run("1", conversation_id="new")
            return "refused"

        async with open_runtime(loop_agent(action, name="asks")) as asks:
            drains.submit("5")
            asking = asks.submit("go")
            report = await drains.drain(20)
            assert (await asking.wait()).text == "refused"
    assert (report.finished, report.aborted) == (1, 0)


async def test_a_drain_by_a_run_of_another_runtime_that_one_of_this_waits_for_is_refused() -> None:
    async def drains(work: Work) -> str:
        with pytest.raises(ReentrantRun) as caught:
            await outer.drain(1)
        return " > ".join(caught.value.chain)

    async def asks(work: Work) -> str:
        return (await inner.run("drain")).text

    async with (
        open_runtime(loop_agent(drains, name="in")) as inner,
        open_runtime(loop_agent(asks, name="out")) as outer,
    ):
        with trio.fail_after(5):
            assert (await outer.run("go")).text == "in/(default) > out/(default) > in/(default)"
        assert (await outer.run("still open")).text


# --- R13: draining and leaving at the same time -----------------------------------------------------------------------


async def test_a_drain_keeps_its_word_when_the_block_ends_meanwhile(autojump_clock: MockClock) -> None:
    heard: list[str] = []

    class Asks(Extension[Any]):
        name = "asks"

        async def on_finish(self, ctx: Any, question: Any) -> None:
            if ctx.conversation_id == "c":
                await attempt("after the grace", runtime.run)

    async def attempt(when: str, door: Any) -> None:
        try:
            answer = door("0", conversation_id="other")
            await (answer.wait() if isinstance(answer, Run) else answer)
        except RuntimeClosed:
            heard.append(f"{when}: refused")
        else:
            heard.append(f"{when}: accepted")

    async def action(work: Work) -> str:
        if work.ask == "go":
            await trio.sleep(2)
            await attempt("submitted", runtime.submit)
            await attempt("waited for", runtime.run)
            await trio.sleep_forever()
        return ""

    async with trio.open_nursery() as nursery:
        async with open_runtime(loop_agent(action, extensions=(Asks(),))) as runtime:
            runtime.submit("go", conversation_id="c")
            await wait_all_tasks_blocked()
            nursery.start_soon(runtime.drain, 5)
            await trio.sleep(1)
    assert heard == ["submitted: refused", "waited for: accepted", "after the grace: refused"]
    assert trio.current_time() == 5


async def test_a_drain_without_a_grace_is_refused_before_anything_closes() -> None:
    async with open_runtime(loop_agent()) as runtime:
        with pytest.raises(ConfigError, match="grace"):
            await runtime.drain(None)  # type: ignore[arg-type]
        assert (await runtime.run("still open")).text == "echo still open"


async def test_a_store_that_hangs_while_forgetting_does_not_hold_up_a_shutdown(autojump_clock: MockClock) -> None:
    class Hangs(InMemoryStore):
        async def forget(self, key: str) -> None:
            await trio.sleep_forever()

    found: list[BaseException] = []

    async def forget(conversation: Any) -> None:
        try:
            await conversation.forget()
        except RuntimeClosed as error:
            found.append(error)

    async with trio.open_nursery() as nursery:
        with trio.move_on_after(1):
            async with open_runtime(loop_agent(), store=Hangs()) as runtime:
                nursery.start_soon(forget, runtime.conversation("c"))
                await wait_all_tasks_blocked()
                behind = runtime.submit("behind", conversation_id="c")
                await trio.sleep_forever()
    assert trio.current_time() == 11
    assert "turn to forget was over" in str(found[0])
    assert behind.outcome is not None
    assert behind.outcome.status == "aborted"


@pytest.mark.parametrize("way", ["left", "drained", "cancelled"])
async def test_a_tool_that_is_invoked_without_a_conversation_ends_before_what_it_may_use(
    way: str, autojump_clock: MockClock
) -> None:
    living = Living()

    @tool
    async def slow(seconds: int) -> str:
        """Take some time."""
        try:
            await trio.sleep(seconds)
        finally:
            living.log.append("tool over")
        return "done"

    found: list[Any] = []

    async def invoke(runtime: Any) -> None:
        try:
            found.append((await runtime.invoke_tool("slow", {"seconds": 5})).status)
        except RunAborted as error:
            found.append((error.cause, error.phase))

    agent = Agent(model=ScriptedModel([]), tools=[slow], extensions=(living,))
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            async with open_runtime(agent) as runtime:
                nursery.start_soon(invoke, runtime)
                await trio.sleep(1)
                if way == "drained":
                    await runtime.drain(1)
                elif way == "cancelled":
                    scope.cancel()
    assert living.log == ["entered", "tool over", "left"]
    assert found == ["executed" if way == "left" else ("shutdown", "tool:slow")]
    assert trio.current_time() == {"left": 5, "drained": 2, "cancelled": 1}[way]


# --- R4, R8a: slots and replacements ----------------------------------------------------------------------------------


async def test_a_slot_is_lent_no_longer_than_its_owner_runs(autojump_clock: MockClock) -> None:
    active = peak = 0

    async def action(work: Work) -> str:
        nonlocal active, peak
        if work.ask == "lender":
            nursery.start_soon(work.submit("child", conversation_id="child").wait)
            await trio.sleep(1)
            return ""
        active += 1
        peak = max(peak, active)
        await trio.sleep(10)
        active -= 1
        return ""

    async with trio.open_nursery() as nursery:
        async with open_runtime(loop_agent(action), max_running=1) as runtime:
            runtime.submit("lender", conversation_id="lender")
            await wait_all_tasks_blocked()
            for name in ("x", "y"):
                runtime.submit(name, conversation_id=name)
    assert peak == 1
    assert trio.current_time() == 30
    assert runtime._engine.turns.running == 0


async def test_a_conversation_that_left_the_line_early_stands_at_its_end_the_next_time(
    autojump_clock: MockClock,
) -> None:
    order: list[str] = []

    async def action(work: Work) -> str:
        order.append(work.ask)
        if work.ask == "lends":
            await runtime.run("sub", conversation_id="c")
            runtime.submit("c again", conversation_id="c")
        await trio.sleep(1)
        return ""

    async with open_runtime(loop_agent(action), max_running=1) as runtime:
        runtime.submit("lends", conversation_id="a")
        await wait_all_tasks_blocked()
        runtime.submit("b", conversation_id="b")
    assert order == ["lends", "sub", "b", "c again"]


async def test_a_replacement_does_not_overtake_a_forget(autojump_clock: MockClock) -> None:
    order: list[str] = []

    class Store(InMemoryStore):
        async def forget(self, key: str) -> None:
            order.append("forget")
            await super().forget(key)

    class Slow(Extension[Any]):
        name = "slow"

        async def on_finish(self, ctx: Any, question: Any) -> None:
            await trio.sleep(1)

    async def action(work: Work) -> str:
        order.append(work.ask)
        if work.ask == "old":
            await trio.sleep_forever()
        return ""

    async with open_runtime(loop_agent(action, extensions=(Slow(),)), store=Store()) as runtime:
        runtime.submit("old", conversation_id="c")
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.conversation("c").forget)
            await trio.sleep(0.5)
            runtime.submit("queued", conversation_id="c")
            replaced = runtime.submit("replaced", conversation_id="c", when_busy="replace")
            runtime.submit("new", conversation_id="c", when_busy="replace")
        with pytest.raises(RunAborted, match="newer"):
            await replaced.wait()
    assert order == ["old", "forget", "new", "queued"]


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


async def test_a_replacement_costs_the_same_however_many_came_before_it() -> None:
    gate = trio.Event()

    class Holds(Extension[Any]):
        name = "holds"

        async def on_finish(self, ctx: Any, question: Any) -> None:
            await gate.wait()

    async with open_runtime(loop_agent(extensions=(Holds(),))) as runtime:
        runtime.submit("first")
        await wait_all_tasks_blocked()
        costs = [calls_of(lambda: runtime.submit("next", when_busy="replace")) for _ in range(200)]
        gate.set()
    assert costs[10] == costs[199]


async def test_a_look_for_cycles_costs_the_same_however_many_wait() -> None:
    gate = trio.Event()
    costs: list[int] = []

    async def action(work: Work) -> str:
        if work.ask == "look":

            def look() -> None:
                with last._envelope.guard():
                    pass

            costs.append(calls_of(look))
        else:
            await gate.wait()
        return ""

    async with open_runtime(loop_agent(action), mailbox_capacity=500) as runtime:
        for number in (5, 400):
            for _ in range(number):
                last = runtime.submit("wait", conversation_id="busy")
            await runtime.run("look", conversation_id="other")
        gate.set()
    assert costs[0] == costs[1]


# --- memory -----------------------------------------------------------------------------------------------------------


async def test_a_run_that_nobody_holds_is_freed_at_once_with_its_journal() -> None:
    journal = Journal()
    gc.collect()
    gc.disable()
    try:
        async with open_runtime(loop_agent(extensions=(journal,))) as runtime:
            run = runtime.submit("hi")
            assert [event.kind async for event in run.events()][-1] == "run-finished"
            assert (await run.wait()).status == "completed"
            freed = [weakref.ref(run), weakref.ref(run._envelope.journal), weakref.ref(run._envelope.scope)]
            journal.clear()
            del run
            for _ in range(3):  # the tasks of both
                await trio.lowlevel.checkpoint()
            assert [reference() for reference in freed] == [None, None, None]
    finally:
        gc.enable()


async def test_a_run_does_not_keep_the_runs_that_led_to_it() -> None:
    kept: list[weakref.ref[Run]] = []
    last: list[Run] = []

    async def action(work: Work) -> str:
        await trio.lowlevel.checkpoint()
        if work.ask != "0":
            last[:] = [work.submit(str(int(work.ask) - 1))]
            kept.append(weakref.ref(last[0]))
        return ""

    async with open_runtime(loop_agent(action)) as runtime:
        runtime.submit("20")
    gc.collect()
    assert [reference() for reference in kept if reference() is not None] == last


# --- H11, R13: opening and leaving ------------------------------------------------------------------------------------


class Living(Extension[Any]):
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


async def test_a_lifespan_that_enters_although_opening_was_cancelled_is_left_again(autojump_clock: MockClock) -> None:
    before, slow, never = Living(), Living(entering=2), Living()
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
        living, cutter = Living(), CancelsAfter(steps)
        runs: list[Run] = []

        async def main(living: Living, cutter: CancelsAfter, runs: list[Run]) -> None:
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
    living = Living(leaving=error)
    with pytest.raises(OSError, match="not flushed") as caught, trio.move_on_after(1):
        async with open_runtime(loop_agent(extensions=(living,))):
            await trio.sleep_forever()
    assert caught.value is error


async def test_a_lifespan_that_ends_by_itself_ends_the_runtime_with_a_word(autojump_clock: MockClock) -> None:
    journal, living = Journal(), Living(ends_after=3)
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
        async with open_runtime(loop_agent(action, extensions=(Living(leaving=leaving),))) as runtime:
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


# --- doors and fakes --------------------------------------------------------------------------------------------------


async def test_a_number_of_seconds_that_no_clock_can_add_is_refused_before_anything_exists() -> None:
    huge = 10**400
    for option in ("finish_timeout", "idle_timeout"):
        with pytest.raises(ConfigError, match=option):
            async with open_runtime(loop_agent(), **{option: huge}):
                pass  # pragma: no cover
    async with open_runtime(loop_agent()) as runtime:
        with pytest.raises(ConfigError, match="timeout"):
            runtime.submit("hi", timeout=huge)
        with pytest.raises(ConfigError, match="grace"):
            await runtime.drain(huge)
        assert runtime.statistics().conversations == 0
        assert (await runtime.run("hi", timeout=10**300)).text == "echo hi"


async def test_an_async_event_callback_is_refused_since_nothing_of_it_would_run() -> None:
    async def on_event(event: Any) -> None:
        raise AssertionError("unreachable: never awaited")

    class Callback:
        async def __call__(self, event: Any) -> None:
            raise AssertionError("unreachable: never awaited")

    for callback in (on_event, Callback()):
        with pytest.raises(ConfigError, match="must not be async"):
            loop_agent(on_event=callback)
        async with open_runtime(loop_agent()) as runtime:
            with pytest.raises(ConfigError, match="must not be async"):
                runtime.submit("hi", on_event=callback)


async def test_an_error_of_a_stream_block_comes_out_although_its_scope_is_cancelled() -> None:
    async with open_runtime(loop_agent()) as runtime:
        with pytest.raises(ValueError, match="the block"), trio.CancelScope() as scope:
            async with runtime.stream("hi") as run:
                await run.wait()
                scope.cancel()
                raise ValueError("the block")


async def test_a_stream_block_cannot_be_entered_twice() -> None:
    async with open_runtime(loop_agent()) as runtime:
        block = runtime.stream("hi")
        async with block as run:
            with pytest.raises(ConfigError, match="entered once"):
                async with block:
                    pass  # pragma: no cover
            assert (await run.wait()).text == "echo hi"
        assert runtime.statistics().accepted == 1


async def test_who_waits_at_a_gate_that_is_armed_again_is_let_through_when_it_opens() -> None:
    gate = Gate()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gate.wait_reached)
        await wait_all_tasks_blocked()
        gate.arm()
        nursery.start_soon(gate.pass_through)
        await gate.wait_reached()
        gate.arm()
        assert gate.reached == 0
        gate.open()
        nursery.cancel_scope.deadline = trio.current_time() + 5
    assert not nursery.cancel_scope.cancelled_caught


ODD_NAMES = ["\ud800", "a\0b", "a\nb", "a/b", "/", "..", "a%2Fb", "e\u0301", "\u202e", "\U0001f600" * 512]


@pytest.mark.parametrize("name", ODD_NAMES)
async def test_any_text_names_a_conversation_or_an_agent_through_to_a_file(name: str, tmp_path: Path) -> None:
    one, two = (loop_agent(name=agent_name) for agent_name in (name, f"{name}/x"[-512:]))
    async with open_runtime(one, two, store=SqliteStore(tmp_path / "chat.db")) as runtime:
        places = [
            runtime.conversation(place, agent) for agent in (one, two) for place in (None, name, f"x/{name}"[:512])
        ]
        keys = [
            runtime._doors.acceptance.entry(agent).key(place.id)
            for place, agent in zip(places, [one] * 3 + [two] * 3, strict=True)
        ]
        assert len(set(keys)) == 6
        for number, (place, key) in enumerate(zip(places, keys, strict=True)):
            assert (await place.run("hi")).conversation_id == place.id
            await runtime._engine.store.commit(key, Change(memory=Memory(f"number {number}")))
        assert [(await place.memory()).summary for place in places] == [f"number {number}" for number in range(6)]
        await places[1].forget()
        assert [(await place.memory()).summary for place in places[:3]] == ["number 0", "", "number 2"]


# --- everything at once -----------------------------------------------------------------------------------------------


class StormError(Exception):
    """What code in a storm raises."""


REFUSALS = (RunAborted, ReentrantRun, RuntimeClosed, MailboxFull, ConversationBusy, GoliathExtensionError, StormError)


class Told(Extension[Any]):
    """Hears every run's end, with a checkpoint after each word."""

    name = "told"

    def __init__(self) -> None:
        self.heard: dict[str, list[str]] = {}

    async def on_error(self, ctx: Any, question: Any) -> None:
        self.heard.setdefault(ctx.run_id, []).append("on_error")
        await trio.lowlevel.checkpoint()

    async def on_finish(self, ctx: Any, question: Any) -> None:
        self.heard.setdefault(ctx.run_id, []).append(question.outcome.status)
        await trio.lowlevel.checkpoint()


def judge(runtime: Any, told: Told, runs: list[Run]) -> None:
    """Hold a runtime that is over against its invariants."""
    for run in runs:
        assert run.state == "done"
        assert run.outcome is not None
        failed = run.outcome.status in ("error", "aborted")
        assert told.heard[run.id] == (["on_error"] if failed else []) + [run.outcome.status]
        assert run._envelope.scope.cancelled_caught or run.outcome.status != "aborted"
        assert (run._envelope.waits_for, run._envelope.lenders) == ([], 0)
        check_events(run.outcome.trace)
    turns, statistics = runtime._engine.turns, runtime.statistics()
    assert (turns.running, list(turns._line), runtime._engine.life.live) == (0, [], 0)
    assert (statistics.accepted, statistics.running, statistics.waiting) == (len(runs), 0, 0)
    idle, actor = 0, runtime._engine.directory._first
    while actor is not None:
        assert (actor.current, actor.mailbox, actor.sponsors, actor.in_line, actor.has_slot) == (
            None,
            None,
            0,
            False,
            False,
        )
        idle, actor = idle + 1, actor.after
    assert idle == len(runtime._engine.directory)


@attrs.define(eq=False)
class Storm:
    """A world in which code inside and outside of runs does whatever chance says, through every door."""

    random: Random
    told: Told = attrs.Factory(Told)
    runs: list[Run] = attrs.Factory(list)
    active: set[str | None] = attrs.Factory(set)
    runtime: Any = None

    def submit(self, depth: int, **options: Any) -> Run:
        run: Run = self.runtime.submit(str(depth), conversation_id=self.random.choice("abcd"), **options)
        return run

    async def act(self, depth: int) -> None:
        """Do one thing. `depth` bounds how far runs make runs."""
        chance = self.random
        doors = [self.sleep, self.fail, self.at_once, self.limited, self.forget, self.look]
        if depth < 4:
            doors += [self.ask, self.ask, self.wait, self.leave, self.stream, self.read, self.replace, self.abort]
        await chance.choice(doors)(depth + 1)

    async def sleep(self, depth: int) -> None:
        await trio.sleep(self.random.choice([0, 0.1, 0.5, 2]))

    async def fail(self, depth: int) -> None:
        raise StormError

    async def at_once(self, depth: int) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(self.random.randrange(1, 3)):
                nursery.start_soon(self.quietly, depth)

    async def limited(self, depth: int) -> None:
        with trio.move_on_after(self.random.choice([0, 0.3, 1])):
            await self.act(depth)

    async def forget(self, depth: int) -> None:
        await self.runtime.conversation(self.random.choice("abcd")).forget()

    async def look(self, depth: int) -> None:
        await self.runtime.conversation(self.random.choice("abcd")).memory()
        self.check_sums()

    async def ask(self, depth: int) -> None:
        options = {"when_busy": self.random.choice(["queue", "refuse", "replace"]), "on_event": self.callback()}
        timeout = self.random.choice([None, 0, 1, 1e6])
        await self.runtime.run(str(depth), conversation_id=self.random.choice("abcd"), timeout=timeout, **options)

    async def wait(self, depth: int) -> None:
        await self.submit(depth, timeout=self.random.choice([None, 0.7])).wait()

    async def leave(self, depth: int) -> None:
        self.submit(depth)

    async def stream(self, depth: int) -> None:
        async with self.runtime.stream(str(depth), conversation_id=self.random.choice("abcd")) as run:
            wanted = self.random.randrange(4)
            async for event in run.events():
                if event.seq > wanted:
                    break

    async def read(self, depth: int) -> None:
        check_events([event async for event in self.submit(depth).events()])

    async def replace(self, depth: int) -> None:
        self.submit(depth, when_busy="replace")

    async def abort(self, depth: int) -> None:
        self.runtime.conversation(self.random.choice("abcd")).abort(queued=self.random.random() < 0.3)

    async def quietly(self, depth: int) -> None:
        try:
            await self.act(depth)
        except (*REFUSALS, ExceptionGroup):
            pass

    def check_sums(self) -> None:
        now = self.runtime.statistics()
        ended = now.completed + now.stopped + now.errors + now.aborted
        assert now.accepted == ended + now.running + now.waiting

    def callback(self) -> Callable[[Any], None]:
        kind, does = self.random.choice(["run-queued", "run-started", "run-finished"]), self.random.randrange(4)

        def on_event(event: Any) -> None:
            if event.kind == kind:
                self.check_sums()
                if does == 0:
                    raise StormError
                if does == 1 and self.random.random() < 0.5:
                    self.submit(9)

        return on_event

    async def action(self, work: Work) -> str:
        name = work.journal.conversation_id
        assert name not in self.active
        self.active.add(name)
        try:
            for _ in range(self.random.randrange(3)):
                await self.act(int(work.ask))
        finally:
            self.active.discard(name)
        return ""

    def hooked(self, name: str) -> Extension[Any]:
        storm = self

        class Hooked(Extension[Any]):
            async def before_run(self, ctx: Any, question: Any) -> None:
                if storm.random.random() < 0.3:
                    await storm.act(int(ctx.ask))

            async def on_finish(self, ctx: Any, question: Any) -> None:
                if storm.random.random() < 0.3:
                    await storm.act(int(ctx.ask) + 1)

        hooked = Hooked()
        hooked.name, hooked.lenient = name, self.random.random() < 0.3
        return hooked

    async def outside(self) -> None:
        for _ in range(self.random.randrange(1, 6)):
            await self.quietly(0)

    async def drain(self) -> None:
        await trio.sleep(self.random.choice([0, 0.5, 2]))
        await self.runtime.drain(self.random.choice([0.1, 3]))

    async def rage(self, end: str) -> None:
        """Open a runtime, let it storm, end it in one of the ways, and judge."""
        chance = self.random
        extensions = (self.hooked("first"), self.told, self.hooked("last"))
        limits = {
            "max_running": chance.choice([None, 1, 1, 2]),
            "mailbox_capacity": chance.choice([0, 1, 64]),
            "max_waiting": chance.choice([None, None, 3]),
            "finish_timeout": chance.choice([None, 0.7]),
            "idle_timeout": chance.choice([0, 0.7, 300]),
        }
        agent = loop_agent(self.action, extensions=extensions, on_event=self.keep)
        tasks = trio.lowlevel.current_statistics().tasks_living
        with trio.fail_after(1e6), trio.CancelScope() as scope:
            try:
                async with open_runtime(agent, **limits) as self.runtime, trio.open_nursery() as nursery:
                    for _ in range(chance.randrange(2, 7)):
                        nursery.start_soon(self.outside)
                    if end == "drained":
                        nursery.start_soon(self.drain)
                    elif end != "left":
                        await trio.sleep(chance.choice([0, 0.5, 3]))
                        if end == "failed":
                            raise StormError
                        scope.cancel()
            except* StormError:
                assert end == "failed"
        judge(self.runtime, self.told, self.runs)
        assert trio.lowlevel.current_statistics().tasks_living == tasks

    def keep(self, event: Any) -> None:
        if event.kind == "run-queued":
            actors = [
                actor for actor in self.runtime._engine.directory if actor.conversation_id == event.conversation_id
            ]
            self.runs += [run.face for actor in actors for run in actor.runs() if run.id == event.run_id]


@pytest.mark.parametrize("end", ["left", "drained", "failed", "cancelled"])
@pytest.mark.parametrize("seed", range(25))
async def test_whatever_happens_at_once_every_promise_is_kept(end: str, seed: int, autojump_clock: MockClock) -> None:
    shuffled(seed)
    await Storm(Random(f"{end} {seed}")).rage(end)
