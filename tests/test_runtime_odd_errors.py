"""Errors that cannot speak, exits, interrupts, and a Cancelled that is no cancellation (R10, R12, R17)."""

from __future__ import annotations

import dis
import functools
import gc
import signal
import sys
import types
from typing import Any

import attrs
import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from goliath_actors import Extension, Run, open_runtime
from goliath_actors._work import Work
from goliath_actors.errors import (
    GoliathExtensionError,
)
from goliath_actors.testing import Gate, Journal

from .loops import loop_agent
from .runtime_stage import Odd, SlowToLive, for_ever, stray, waiter_of

# --- R12: what ends the program ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
async def test_an_interrupt_out_of_a_run_tells_every_observer_and_comes_out_bare(kind: type[BaseException]) -> None:
    journal = Journal()
    gate = Gate()

    async def action(work: Work) -> str:
        if work.ask == "interrupt":
            await gate.wait_reached()
            raise kind()
        await gate.pass_through()
        return ""

    with pytest.raises(kind):
        async with open_runtime(loop_agent(action, extensions=(journal,))) as runtime:
            runtime.submit("interrupt", conversation_id="a")
            runtime.submit("other", conversation_id="b")
            runtime.submit("queued", conversation_id="b")
            await trio.sleep_forever()
    assert sorted(journal.heard("on_finish")) == [("interrupt", "error"), ("other", "aborted"), ("queued", "aborted")]


async def test_what_is_no_exception_ends_the_runtime_as_itself_and_observers_are_told_what_it_was() -> None:
    class Unnamed(BaseException):
        """As a test framework's outcome, or another event loop's cancellation."""

    async def action(work: Work) -> str:
        await trio.lowlevel.checkpoint()
        raise Unnamed

    journal = Journal()
    with pytest.raises(Unnamed):
        async with open_runtime(loop_agent(action, extensions=(journal,))) as runtime:
            runtime.submit("hi")
            runtime.submit("queued")
            await trio.sleep_forever()
    assert journal.heard("on_finish") == [("hi", "error"), ("queued", "aborted")]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("place", ["tool:look", "plan", "event"])
async def test_an_interrupts_origin_is_the_place_it_came_from(kind: type[BaseException], place: str) -> None:
    async def action(work: Work) -> str:
        await trio.lowlevel.checkpoint()
        if place != "event":
            work.journal.enter(place)
            raise kind()
        return ""

    def on_event(event: Any) -> None:
        if place == "event" and event.kind == "run-started":
            raise kind()

    journal = Journal()
    with pytest.raises(kind):
        async with open_runtime(loop_agent(action, extensions=(journal,))) as runtime:
            runtime.submit("hi", on_event=on_event)
            await trio.sleep_forever()
    expected = {"tool:look": "tool", "plan": "model", "event": "event"}[place]
    assert journal.heard("on_error") == [("hi", expected)]


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
    living, told, runs = SlowToLive(), list[tuple[str, str]](), list[Run]()

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
