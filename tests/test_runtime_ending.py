"""How a run ends and who is told: causes, waiters, observers, replaced errors (R6 to R11)."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock, wait_all_tasks_blocked

from goliath_actors import Agent, Extension, Run, RunAborted, open_runtime, tool
from goliath_actors._work import Work
from goliath_actors.errors import (
    ConfigError,
    GoliathExtensionError,
    ObserverTimeout,
)
from goliath_actors.events import Answer
from goliath_actors.testing import Gate, Journal, check_events, tool_calls

from .loops import loop_agent
from .native import native
from .runtime_stage import for_ever, gated, sleepy

# --- R6 to R10: causes and what the caller sees -----------------------------------------------------------------------


async def test_cancelling_the_asker_aborts_the_run_and_waits_for_its_observers(autojump_clock: MockClock) -> None:
    told: list[str] = []

    class Slow(Extension[Any]):
        name = "slow"

        async def on_finish(self, ctx: Any, question: Any) -> None:
            await trio.sleep(2)
            told.append(question.outcome.abort.cause)

    async with open_runtime(loop_agent(for_ever, extensions=(Slow(),))) as runtime:
        with trio.move_on_after(1) as scope:
            await runtime.run("hi")
        assert scope.cancelled_caught
        assert told == ["caller"]
        assert trio.current_time() == 3


async def test_abort_by_request_raises_run_aborted_with_reason_and_phase() -> None:
    async with open_runtime(loop_agent(for_ever)) as runtime:
        run = runtime.submit("hi")
        await wait_all_tasks_blocked()
        run.abort("stop button")
        with pytest.raises(RunAborted) as caught:
            await run.wait()
        assert (caught.value.cause, caught.value.reason, caught.value.phase) == ("requested", "stop button", "recall")
        assert run.outcome is not None
        assert run.outcome.status == "aborted"
        assert run.outcome.error is caught.value
        assert run.outcome.abort is not None
        assert run.outcome.abort.cause == "requested"
        assert run.state == "done"


async def test_a_timeout_is_the_cause_deadline_and_counts_from_acceptance(autojump_clock: MockClock) -> None:
    journal = Journal()
    async with open_runtime(loop_agent(sleepy, extensions=(journal,))) as runtime:
        first = runtime.submit("3")
        second = runtime.submit("9", timeout=5)
        with pytest.raises(RunAborted) as caught:
            await second.wait()
        assert caught.value.cause == "deadline"
        assert trio.current_time() == 5
        assert (await first.wait()).text == "slept 3"
    assert journal.heard("on_finish") == [("3", "completed"), ("9", "aborted")]


async def test_a_timeout_that_passes_in_the_mailbox_answers_at_once_and_observers_hear_at_the_turn(
    autojump_clock: MockClock,
) -> None:
    journal = Journal()
    async with open_runtime(loop_agent(sleepy, extensions=(journal,))) as runtime:
        runtime.submit("10")
        late = runtime.submit("1", timeout=2)
        with pytest.raises(RunAborted) as caught:
            await late.wait()
        assert (caught.value.cause, trio.current_time()) == ("deadline", 2)
        assert (late.state, late.outcome) == ("queued", None)
        assert journal.rows == ["before_run"]
    assert journal.heard("on_error") == [("1", "abort")]
    assert journal.heard("on_finish") == [("10", "completed"), ("1", "aborted")]


async def test_a_waiter_may_leave_and_a_submitted_run_goes_on(autojump_clock: MockClock) -> None:
    async with open_runtime(loop_agent(sleepy)) as runtime:
        run = runtime.submit("5")
        with trio.move_on_after(1):
            await run.wait()
        assert run.state == "running"
        assert (await run.wait()).text == "slept 5"


async def test_leaving_a_stream_early_aborts_and_waits(autojump_clock: MockClock) -> None:
    journal = Journal()
    async with open_runtime(loop_agent(for_ever, extensions=(journal,))) as runtime:
        async with runtime.stream("hi") as run:
            async for event in run.events():
                if event.kind == "run-started":
                    break
        assert run.state == "done"
        assert run.outcome is not None
        assert run.outcome.abort is not None
        assert run.outcome.abort.cause == "caller"
    assert journal.heard("on_finish") == [("hi", "aborted")]


@pytest.mark.parametrize("_round", range(8))  # whether its task has taken its first step is trio's chance
async def test_an_owner_that_leaves_at_once_finds_its_run_over_if_it_had_its_turn(
    _round: int, autojump_clock: MockClock
) -> None:
    journal = Journal()
    async with open_runtime(loop_agent(for_ever, extensions=(journal,))) as runtime:
        async with runtime.stream("left") as left:
            pass
        assert left.state == "done"
        async with runtime.stream("ended") as ended:
            ended.abort("enough")
        assert ended.state == "done"
        with trio.move_on_after(0) as scope:
            await runtime.run("cancelled")
        assert scope.cancelled_caught
        with pytest.raises(RunAborted):
            await runtime.run("no time", timeout=0)
        heard = [(ask, status) for ask, status in journal.heard("on_finish")]
    assert heard == [(ask, "aborted") for ask in ("left", "ended", "cancelled", "no time")]


async def test_a_stream_that_is_read_to_its_end_completes() -> None:
    async with open_runtime(loop_agent()) as runtime:
        async with runtime.stream("hi") as run:
            events = [event async for event in run.events()]
            result = await run.wait()
    assert [event.kind for event in check_events(events)] == ["run-queued", "run-started", "run-finished"]
    assert result.text == "echo hi"


async def test_abort_while_queued_answers_at_once_keeps_its_place_and_does_nothing_else() -> None:
    gate, journal = Gate(), Journal()
    async with open_runtime(loop_agent(gated(gate), extensions=(journal,))) as runtime:
        first = runtime.submit("long", conversation_id="c1")
        second = runtime.submit("queued", conversation_id="c1")
        third = runtime.submit("behind", conversation_id="c1")
        await gate.wait_reached()
        second.abort("changed my mind")
        with pytest.raises(RunAborted, match="changed my mind"):
            await second.wait()
        assert (second.state, second.outcome) == ("queued", None)
        gate.open()
        events = [event async for event in second.events()]
        await first.wait()
        await third.wait()
    assert [event.kind for event in check_events(events)] == ["run-queued", "run-finished"]
    assert journal.heard("on_finish") == [("long", "completed"), ("queued", "aborted"), ("behind", "completed")]
    assert [row for row, ctx, _ in journal.questions if ctx.ask == "queued"] == ["on_error", "on_finish"]


async def test_an_asker_cancelled_while_queued_leaves_at_once(autojump_clock: MockClock) -> None:
    journal = Journal()
    async with open_runtime(loop_agent(sleepy, extensions=(journal,))) as runtime:
        runtime.submit("10")
        with trio.move_on_after(1):
            await runtime.run("5")
        assert trio.current_time() == 1
        assert len(journal.heard("on_finish")) == 0
    assert journal.heard("on_finish") == [("10", "completed"), ("5", "aborted")]


async def test_the_first_cause_stands() -> None:
    async with open_runtime(loop_agent(for_ever)) as runtime:
        run = runtime.submit("hi")
        await wait_all_tasks_blocked()
        run.abort("first")
        run.abort("second")
        run._envelope.request_abort("shutdown", "third")
        with pytest.raises(RunAborted) as caught:
            await run.wait()
        assert (caught.value.cause, caught.value.reason) == ("requested", "first")


async def test_abort_after_the_end_and_during_observers_changes_nothing() -> None:
    gate = Gate()

    class Waits(Extension[Any]):
        name = "waits"

        async def on_finish(self, ctx: Any, question: Any) -> None:
            await gate.pass_through()

    async with open_runtime(loop_agent(extensions=(Waits(),))) as runtime:
        run = runtime.submit("hi")
        await gate.wait_reached()
        assert run.state == "finishing"
        run.abort("too late")
        gate.open()
        assert (await run.wait()).text == "echo hi"
        run.abort("much too late")
        assert run.outcome is not None
        assert run.outcome.status == "completed"


async def test_an_application_error_reaches_every_waiter_as_the_same_object() -> None:
    error = LookupError("k")

    async def action(work: Work) -> str:
        await trio.lowlevel.checkpoint()
        raise error

    journal = Journal()
    async with open_runtime(loop_agent(action, extensions=(journal,))) as runtime:
        run = runtime.submit("hi")
        for _ in range(2):
            with pytest.raises(LookupError) as caught:
                await run.wait()
            assert caught.value is error
    assert journal.rows == ["before_run", "on_error", "on_finish"]
    assert error.goliath_diagnostics == ()  # type: ignore[attr-defined]


E = TypeVar("E", bound=Exception)


async def abort_blocked(agent: Agent[Any], kind: type[E], words: str | None = None) -> tuple[Run, E]:
    """Abort a run where it waits; return it with what its waiter gets."""
    async with open_runtime(agent) as runtime:
        run = runtime.submit("hi")
        await wait_all_tasks_blocked()
        run.abort()
        with pytest.raises(kind, match=words) as caught:
            await run.wait()
    return run, caught.value


async def test_an_error_that_escapes_beats_the_abort_that_came_with_it() -> None:
    error = ValueError("broke while unwinding")

    async def action(work: Work) -> str:
        try:
            await trio.sleep_forever()
        finally:
            raise error

    run, raised = await abort_blocked(loop_agent(action), ValueError, "unwinding")
    assert raised is error
    assert run.outcome is not None
    assert run.outcome.status == "error"


async def fail_beside_the_abort(error: Exception) -> None:
    async def fails() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise error

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fails)
        await trio.sleep_forever()


@pytest.mark.parametrize("row", ["after_answer", "around_model", "around_tool", "transform_stream"])
async def test_what_a_nursery_of_a_hook_raises_beside_the_abort_is_the_extensions_error(row: str) -> None:
    error = ValueError("broke while unwinding")

    async def ask(self: Any, ctx: Any, question: Any, *call_next: Any) -> None:
        await fail_beside_the_abort(error)

    async def transform(self: Any, ctx: Any, stream: Any, control: Any) -> Any:
        await fail_beside_the_abort(error)
        async for event in stream:
            yield event

    async def let_through(self: Any, ctx: Any, question: Any, call_next: Any) -> Any:
        async with trio.open_nursery() as nursery:  # its own group is one more around what passes it
            nursery.start_soon(trio.lowlevel.checkpoint)
            return await call_next()

    hook = transform if row == "transform_stream" else ask
    nursery = type("Nursery", (Extension,), {"name": "nursery", row: hook})()
    outside = type("Outside", (Extension,), {"name": "outside", row: let_through})()

    @tool
    async def look() -> str:
        """Look."""
        raise AssertionError("unreachable: the hook around it never calls it")

    agent = native(
        [tool_calls(("look", {})), "hi"] if row == "around_tool" else ["hi"],
        tools=[look],
        extensions=[outside, nursery] if row.startswith("around") else [nursery],
    )
    run, raised = await abort_blocked(agent, GoliathExtensionError)
    assert (raised.extension, raised.phase) == ("nursery", row)
    assert raised.__cause__ is error
    assert run.outcome is not None
    assert run.outcome.origin == "extension"


async def test_what_a_tools_nursery_raises_beside_the_abort_passes_the_hooks_around_it_as_the_tools() -> None:
    error = ValueError("broke while unwinding")

    class Around(Extension[Any]):
        name = "around"

        async def around_tool(self, ctx: Any, question: Any, call_next: Any) -> Any:
            return await call_next()

    @tool
    async def look() -> str:
        """Look."""
        await fail_beside_the_abort(error)
        return "unreachable"

    agent = native([tool_calls(("look", {})), "hi"], tools=[look], extensions=[Around()])
    run, raised = await abort_blocked(agent, ValueError, "unwinding")
    assert raised is error
    assert run.outcome is not None
    assert run.outcome.origin == "tool"


async def test_what_a_nursery_of_an_observer_raises_beside_the_abort_is_a_diagnostic() -> None:
    error, journal = ValueError("broke while unwinding"), Journal()

    class Nursery(Extension[Any]):
        name = "nursery"

        async def after_response(self, ctx: Any, question: Any) -> None:
            await fail_beside_the_abort(error)

    async with open_runtime(native(["hi"], extensions=[Nursery(), journal])) as runtime:
        run = runtime.submit("hi")
        await wait_all_tasks_blocked()
        run.abort()
        with pytest.raises(RunAborted):
            await run.wait()
    assert journal.heard("on_finish") == [("hi", "aborted")]
    assert run.outcome is not None
    assert run.outcome.error is not None
    assert [one.error for one in run.outcome.error.goliath_diagnostics] == [error]  # type: ignore[attr-defined]


async def test_an_error_that_an_abort_replaced_is_kept_as_the_cause() -> None:
    error = ValueError("first")

    async def action(work: Work) -> str:
        try:
            raise error
        finally:
            await trio.sleep_forever()

    told = await aborted(action)
    assert told.__cause__ is error
    assert [d.error for d in told.goliath_diagnostics] == [error]  # type: ignore[attr-defined]


async def test_a_nursery_of_a_tool_that_fails_while_aborted_gives_its_single_error_bare() -> None:
    error = ValueError("child")

    async def child() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise error

    async def action(work: Work) -> str:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)
            await trio.sleep_forever()
        raise AssertionError("unreachable: nothing wakes it")

    _, raised = await abort_blocked(loop_agent(action), ValueError, "child")
    assert raised is error


# --- R11: observers ---------------------------------------------------------------------------------------------------


async def test_every_on_error_comes_before_every_on_finish_in_registration_order_whatever_they_raise() -> None:
    heard: list[str] = []

    class Observer(Extension[Any]):
        def __init__(self, name: str) -> None:
            self.name = name

        def on_error(self, ctx: Any, question: Any) -> None:
            heard.append(f"{self.name} error {question.origin}")
            raise KeyError(self.name)

        async def on_finish(self, ctx: Any, question: Any) -> None:
            await trio.lowlevel.checkpoint()
            heard.append(f"{self.name} finish {len(question.diagnostics)}")

    error = ValueError("disk full")

    async def action(work: Work) -> str:
        with work.journal.origin("tool"):
            await trio.lowlevel.checkpoint()
            raise error

    async with open_runtime(loop_agent(action, extensions=(Observer("a"), Observer("b")))) as runtime:
        with pytest.raises(ValueError, match="disk full"):
            await runtime.run("hi")
    assert heard == ["a error tool", "b error tool", "a finish 2", "b finish 2"]
    diagnostics = error.goliath_diagnostics  # type: ignore[attr-defined]
    assert [(d.extension, d.phase, str(d.error)) for d in diagnostics] == [
        ("a", "on_error", "'a'"),
        ("b", "on_error", "'b'"),
    ]


async def test_finish_timeout_cuts_an_observer_off_and_the_next_is_told(autojump_clock: MockClock) -> None:
    class Hangs(Extension[Any]):
        name = "hangs"

        async def on_finish(self, ctx: Any, question: Any) -> None:
            await trio.sleep_forever()

    journal = Journal()
    async with open_runtime(loop_agent(extensions=(Hangs(), journal)), finish_timeout=3) as runtime:
        result = await runtime.run("hi")
    assert trio.current_time() == 3
    assert journal.heard("on_finish") == [("hi", "completed")]
    (diagnostic,) = result.diagnostics
    assert (diagnostic.extension, diagnostic.phase) == ("hangs", "on_finish")
    assert isinstance(diagnostic.error, ObserverTimeout)
    assert diagnostic.error.seconds == 3
    assert [event.decision for event in result.trace if event.kind == "hook-decision"] == ["cut-off"]


async def test_a_hook_that_fails_fails_the_run_with_the_extensions_name() -> None:
    class Bad(Extension[Any]):
        name = "bad"

        def before_run(self, ctx: Any, question: Any) -> None:
            raise LookupError("no such user")

    journal = Journal()
    async with open_runtime(loop_agent(extensions=(Bad(), journal))) as runtime:
        with pytest.raises(GoliathExtensionError, match="no such user") as caught:
            await runtime.run("hi")
    assert (caught.value.extension, caught.value.phase) == ("bad", "before_run")
    assert isinstance(caught.value.__cause__, LookupError)
    assert journal.rows == ["on_error", "on_finish"]
    assert journal.heard("on_error") == [("hi", "extension")]


async def test_statistics_always_add_up(autojump_clock: MockClock) -> None:
    def check() -> None:
        now = runtime.statistics()
        ended = now.completed + now.stopped + now.errors + now.aborted
        assert now.accepted == ended + now.running + now.waiting

    async with open_runtime(loop_agent(sleepy), max_running=2) as runtime:
        for n in range(9):
            runtime.submit("1", conversation_id=str(n % 3), timeout=2.5 if n % 2 else None)
            check()
        for _ in range(12):
            await trio.sleep(0.5)
            check()
    assert math.isfinite(trio.current_time())


# --- an error that an abort replaced (§P) -----------------------------------------------------------------------------


async def aborted(action: Callable[[Work], Awaitable[str]]) -> RunAborted:
    """Abort a run of a loop that waits, and return what its asker is told."""
    _, raised = await abort_blocked(loop_agent(action), RunAborted)
    return raised


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

    assert (await aborted(action)).__cause__ is error


@pytest.mark.parametrize("error", [None, ValueError("first")])
async def test_a_wait_for_trios_own_doors_replaced_no_error_but_the_one_before_it(error: Exception | None) -> None:
    limiter = trio.CapacityLimiter(1)
    limiter.acquire_on_behalf_of_nowait("somebody else")

    async def action(work: Work) -> str:
        try:
            if error is not None:
                raise error
        finally:
            await limiter.acquire()  # inside, trio tries without waiting first, and waits as that fails
        raise AssertionError("unreachable: nothing gives the place back")

    assert (await aborted(action)).__cause__ is error


async def test_what_a_task_that_outlives_its_run_tells_comes_after_no_last_word() -> None:
    async with open_runtime(loop_agent()) as runtime:
        run = runtime.submit("hi")
        await run.wait()
        run._envelope.journal.emit(Answer, text="too late")
        run._envelope.journal.delta("much too late")
        assert [event.kind async for event in run.events()] == ["run-queued", "run-started", "run-finished"]


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
