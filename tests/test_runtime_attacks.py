"""Attacks on the runtime that once succeeded: each is one fault of a kind, held down by the rule that it broke."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from goliath_actors import Agent, Extension, RunAborted, ToolFailure, approve_all, open_runtime, tool
from goliath_actors._work import Work
from goliath_actors.errors import GoliathExtensionError
from goliath_actors.testing import Journal, ScriptedModel
from goliath_actors.tools import ToolOutcome

from .loops import loop_agent


async def sleepy(work: Work) -> str:
    await trio.sleep(float(work.ask))
    return f"slept {work.ask}"


async def for_ever(work: Work) -> str:
    await trio.sleep_forever()
    raise AssertionError("unreachable: nothing wakes it")


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
            assert same(run.journal.diagnostics[0].error, error)
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
        assert [same(d.error, error) for d, error in zip(run.journal.diagnostics, errors, strict=True)] == [True, True]


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
