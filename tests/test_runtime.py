"""Acceptance, order, limits, causes, waits, shutdown: the rules R1 to R17 that lie in the runtime."""

from __future__ import annotations

import contextvars
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock, wait_all_tasks_blocked

from goliath_actors import Agent, Extension, RunAborted, open_runtime, serve_runtime
from goliath_actors._work import Work
from goliath_actors.errors import (
    ConfigError,
    ConversationBusy,
    GoliathExtensionError,
    MailboxFull,
    ObserverTimeout,
    ReentrantRun,
    RuntimeClosed,
)
from goliath_actors.testing import Gate, Journal, ScriptedModel, check_events
from goliath_actors.values import ConversationStatus

from .loops import ScriptedLoop, echo, loop_agent


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


# --- R1, R2: identity and acceptance --------------------------------------------------------------------------------


async def test_a_run_gives_its_result_to_the_asker() -> None:
    async with open_runtime(loop_agent()) as runtime:
        result = await runtime.run("hello", conversation_id="c1")
    assert (result.status, result.text, result.conversation_id) == ("completed", "echo hello", "c1")
    assert [event.kind for event in check_events(result.trace)] == ["run-queued", "run-started", "run-finished"]


@pytest.mark.parametrize("bad", ["", "   ", "x" * 513, 7, b"c1"])
async def test_a_bad_conversation_id_raises_before_anything_exists(bad: Any) -> None:
    async with open_runtime(loop_agent()) as runtime:
        with pytest.raises(ConfigError, match="conversation_id"):
            runtime.submit("hello", conversation_id=bad)
        with pytest.raises(ConfigError, match="conversation_id"):
            runtime.conversation(bad)
        assert runtime.statistics().accepted == 0
        assert runtime.statistics().conversations == 0


async def test_an_id_is_used_as_given_and_none_is_not_the_word_default() -> None:
    async with open_runtime(loop_agent()) as runtime:
        for name in ("default", " c ", "c", None, "x" * 512):
            assert (await runtime.run("hi", conversation_id=name)).conversation_id == name
        assert runtime.statistics().conversations == 5


async def test_a_bad_ask_is_refused_and_says_what_to_do() -> None:
    async with open_runtime(loop_agent()) as runtime:
        for bad, words in ((None, "string"), ("  ", "blank")):
            with pytest.raises(ConfigError, match=words):
                runtime.submit(bad)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="when_busy"):
            runtime.submit("hi", when_busy="never")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="timeout"):
            runtime.submit("hi", timeout=-1)
        with pytest.raises(ConfigError, match="on_event"):
            runtime.submit("hi", on_event=3)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="no agent 'nobody'"):
            runtime.submit("hi", agent="nobody")


async def test_with_several_agents_one_must_be_named() -> None:
    one, two = loop_agent(name="one"), loop_agent(name="two")
    async with open_runtime(one, two) as runtime:
        with pytest.raises(ConfigError, match="several agents"):
            runtime.submit("hi")
        assert (await runtime.run("hi", agent="two")).text == "echo hi"
        assert (await runtime.run("hi", agent=one)).text == "echo hi"
        assert runtime.statistics().conversations == 2


async def test_two_agents_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="two agents are named 'agent'"):
        async with open_runtime(loop_agent(), loop_agent()):
            pass  # pragma: no cover


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_running": 0}, "max_running"),
        ({"mailbox_capacity": -1}, "mailbox_capacity"),
        ({"mailbox_capacity": None}, "mailbox_capacity"),
        ({"max_waiting": True}, "max_waiting"),
        ({"finish_timeout": 0}, "finish_timeout"),
        ({"idle_timeout": -1}, "idle_timeout"),
        ({"store": object()}, "store"),
    ],
)
async def test_a_wrong_limit_is_refused_on_opening(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        async with open_runtime(loop_agent(), **options):
            pass  # pragma: no cover


async def test_a_full_mailbox_refuses_says_which_and_leaves_no_trace() -> None:
    gate, journal = Gate(), Journal()
    async with open_runtime(loop_agent(gated(gate), extensions=(journal,)), mailbox_capacity=2) as runtime:
        accepted = [runtime.submit(f"a{n}", conversation_id="c") for n in range(3)]
        with pytest.raises(MailboxFull) as caught:
            runtime.submit("too much", conversation_id="c")
        assert (caught.value.scope, caught.value.waiting, caught.value.capacity) == ("conversation", 2, 2)
        assert "mailbox_capacity" in str(caught.value)
        other = runtime.submit("elsewhere", conversation_id="d")
        gate.open()
        for run in (*accepted, other):
            await run.wait()
        assert runtime.statistics().accepted == 4
    assert sorted(ask for ask, _ in journal.heard("on_finish")) == ["a0", "a1", "a2", "elsewhere"]


async def test_max_waiting_bounds_the_whole_runtime_but_not_what_starts_at_once() -> None:
    gate = Gate()
    async with open_runtime(loop_agent(gated(gate)), max_waiting=1) as runtime:
        runtime.submit("runs", conversation_id="a")
        await gate.wait_reached()
        runtime.submit("waits", conversation_id="a")
        with pytest.raises(MailboxFull) as caught:
            runtime.submit("refused", conversation_id="a")
        assert caught.value.scope == "runtime"
        assert "max_waiting" in str(caught.value)
        await wait_all_tasks_blocked()
        runtime.submit("starts at once", conversation_id="b")
        gate.open()


async def test_what_has_its_turn_is_not_waiting_even_before_its_task_has_stepped() -> None:
    gate = Gate()
    async with open_runtime(loop_agent(gated(gate)), max_running=4, max_waiting=10) as runtime:
        accepted = refused = 0
        for n in range(30):
            try:
                runtime.submit("hi", conversation_id=str(n))
                accepted += 1
            except MailboxFull:
                refused += 1
        assert (accepted, refused) == (14, 16)
        assert (runtime.statistics().running, runtime.statistics().waiting) == (4, 10)
        gate.open()


async def test_a_closed_runtime_refuses() -> None:
    async with open_runtime(loop_agent()) as runtime:
        pass
    with pytest.raises(RuntimeClosed, match="closed"):
        runtime.submit("late")
    with pytest.raises(RuntimeClosed):
        await runtime.run("late")


async def test_run_refuses_before_its_first_checkpoint() -> None:
    async with open_runtime(loop_agent()) as runtime:
        with trio.CancelScope() as scope:
            scope.cancel()
            with pytest.raises(ConfigError):
                await runtime.run("", conversation_id="c")
        assert not scope.cancelled_caught


# --- R3, R4: order and concurrency ----------------------------------------------------------------------------------


async def test_runs_of_one_conversation_never_overlap_and_keep_their_order(autojump_clock: MockClock) -> None:
    active, order = 0, []

    async def action(work: Work) -> str:
        nonlocal active
        active += 1
        assert active == 1
        order.append(work.ask)
        await trio.sleep(0.01)
        active -= 1
        return work.ask

    async with open_runtime(loop_agent(action)) as runtime:
        runs = [runtime.submit(str(n), conversation_id="c") for n in range(20)]
        for run in runs:
            await run.wait()
    assert order == [str(n) for n in range(20)]


async def test_conversations_run_concurrently(autojump_clock: MockClock) -> None:
    async with open_runtime(loop_agent(sleepy)) as runtime:
        start = trio.current_time()
        for n in range(100):
            runtime.submit("1", conversation_id=str(n))
    assert trio.current_time() - start == 1


async def test_max_running_bounds_and_turns_are_fair(autojump_clock: MockClock) -> None:
    order: list[str] = []
    active = peak = 0

    async def action(work: Work) -> str:
        nonlocal active, peak
        active += 1
        peak = max(peak, active)
        order.append(work.ask)
        await trio.sleep(1)
        active -= 1
        return ""

    async with open_runtime(loop_agent(action), max_running=1) as runtime:
        for ask in ("a1", "a2", "a3"):
            runtime.submit(ask, conversation_id="a")
        runtime.submit("b1", conversation_id="b")
        runtime.submit("c1", conversation_id="c")
    assert peak == 1
    assert order == ["a1", "b1", "c1", "a2", "a3"]


async def test_a_failed_run_does_not_block_the_next() -> None:
    async def action(work: Work) -> str:
        await trio.lowlevel.checkpoint()
        if work.ask == "bad":
            raise LookupError("k")
        return work.ask

    async with open_runtime(loop_agent(action)) as runtime:
        bad = runtime.submit("bad")
        good = runtime.submit("good")
        with pytest.raises(LookupError):
            await bad.wait()
        assert (await good.wait()).text == "good"


async def test_a_waited_for_run_uses_its_waiters_slot(autojump_clock: MockClock) -> None:
    async def action(work: Work) -> str:
        if work.ask.startswith("outer"):
            result = await runtime.run("inner", conversation_id=f"in-{work.ask}")
            return f"{work.ask}({result.text})"
        await trio.sleep(1)
        return work.ask

    async with open_runtime(loop_agent(action), max_running=1) as runtime:
        first = runtime.submit("outer1", conversation_id="a")
        second = runtime.submit("outer2", conversation_id="b")
        assert (await first.wait()).text == "outer1(inner)"
        assert (await second.wait()).text == "outer2(inner)"
        assert runtime._engine.turns.running == 0


async def test_a_waited_for_run_behind_others_that_need_slots_too_does_not_deadlock(
    autojump_clock: MockClock,
) -> None:
    async def action(work: Work) -> str:
        if work.ask == "outer":
            return (await runtime.run("inner", conversation_id="b")).text
        await trio.sleep(1)
        return work.ask

    async with open_runtime(loop_agent(action), max_running=1) as runtime:
        outer = runtime.submit("outer", conversation_id="a")
        waiting = [runtime.submit(f"b{n}", conversation_id="b") for n in range(3)]
        with trio.fail_after(20):
            assert (await outer.wait()).text == "inner"
            for run in waiting:
                await run.wait()


# --- R5: tasks and contexts -----------------------------------------------------------------------------------------


async def test_every_run_sees_its_submitters_context_variables_and_no_others() -> None:
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="nobody")
    gate = Gate()

    async def action(work: Work) -> str:
        await gate.pass_through()
        seen = user.get()
        user.set("changed inside")
        return seen

    async with open_runtime(loop_agent(action)) as runtime:
        runs = []
        for name in ("ann", "bob", "cy"):
            user.set(name)
            runs.append(runtime.submit("who", conversation_id="c"))
        gate.open()
        assert [(await run.wait()).text for run in runs] == ["ann", "bob", "cy"]
        assert user.get() == "cy"


async def test_an_idle_conversation_holds_no_task() -> None:
    async with open_runtime(loop_agent()) as runtime:
        before = trio.lowlevel.current_statistics().tasks_living
        for n in range(50):
            await runtime.run("hi", conversation_id=str(n))
        assert trio.lowlevel.current_statistics().tasks_living == before
        assert runtime.statistics().conversations == 50


# --- R6 to R10: causes and what the caller sees ---------------------------------------------------------------------


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


async def test_an_error_that_escapes_beats_the_abort_that_came_with_it() -> None:
    error = ValueError("broke while unwinding")

    async def action(work: Work) -> str:
        try:
            await trio.sleep_forever()
        finally:
            raise error

    async with open_runtime(loop_agent(action)) as runtime:
        run = runtime.submit("hi")
        await wait_all_tasks_blocked()
        run.abort()
        with pytest.raises(ValueError, match="unwinding") as caught:
            await run.wait()
        assert caught.value is error
        assert run.outcome is not None
        assert run.outcome.status == "error"


async def test_an_error_that_an_abort_replaced_is_kept_as_the_cause() -> None:
    error = ValueError("first")

    async def action(work: Work) -> str:
        try:
            raise error
        finally:
            await trio.sleep_forever()

    async with open_runtime(loop_agent(action)) as runtime:
        run = runtime.submit("hi")
        await wait_all_tasks_blocked()
        run.abort()
        with pytest.raises(RunAborted) as caught:
            await run.wait()
        assert caught.value.__cause__ is error
        assert [d.error for d in caught.value.goliath_diagnostics] == [error]  # type: ignore[attr-defined]


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

    async with open_runtime(loop_agent(action)) as runtime:
        run = runtime.submit("hi")
        await wait_all_tasks_blocked()
        run.abort()
        with pytest.raises(ValueError, match="child") as caught:
            await run.wait()
        assert caught.value is error


async def test_an_event_callback_that_raises_on_queued_fails_the_run_at_its_turn() -> None:
    error = RuntimeError("callback")

    def on_event(event: Any) -> None:
        if event.kind == "run-queued":
            raise error

    journal = Journal()
    async with open_runtime(loop_agent(extensions=(journal,))) as runtime:
        run = runtime.submit("hi", on_event=on_event)
        with pytest.raises(RuntimeError, match="callback") as caught:
            await run.wait()
        assert caught.value is error
    assert journal.heard("on_error") == [("hi", "event")]


# --- R8a, R8b: busy and seen ----------------------------------------------------------------------------------------


async def test_when_busy_refuse_raises_and_leaves_no_trace() -> None:
    gate = Gate()
    async with open_runtime(loop_agent(gated(gate))) as runtime:
        runtime.submit("one", conversation_id="c")
        with pytest.raises(ConversationBusy, match="'c' is busy"):
            runtime.submit("two", conversation_id="c", when_busy="refuse")
        gate.open()
        assert runtime.statistics().accepted == 1


async def test_when_busy_replace_aborts_what_runs_and_goes_before_what_waits() -> None:
    journal = Journal()
    gate = Gate()

    async def action(work: Work) -> str:
        if work.ask == "old":
            await trio.sleep_forever()
        await gate.pass_through()
        return work.ask

    async with open_runtime(loop_agent(action, extensions=(journal,)), mailbox_capacity=1) as runtime:
        old = runtime.submit("old", conversation_id="c")
        await wait_all_tasks_blocked()
        waits = runtime.submit("waits", conversation_id="c")
        new = runtime.submit("new", conversation_id="c", when_busy="replace")
        newer = runtime.submit("newer", conversation_id="c", when_busy="replace")
        gate.open()
        for run in (old, new):
            with pytest.raises(RunAborted) as caught:
                await run.wait()
            assert caught.value.cause == "requested"
        assert (await newer.wait()).text == "newer"
        assert (await waits.wait()).text == "waits"
    assert journal.heard("on_finish") == [
        ("old", "aborted"),
        ("new", "aborted"),
        ("newer", "completed"),
        ("waits", "completed"),
    ]


async def test_status_says_what_runs_where_since_when_and_what_waits(autojump_clock: MockClock) -> None:
    async def action(work: Work) -> str:
        work.journal.enter("tool:create_task")
        await trio.sleep(10)
        return ""

    async with open_runtime(loop_agent(action)) as runtime:
        conversation = runtime.conversation("c")
        assert conversation.status() == ConversationStatus()
        await trio.sleep(1)
        run = conversation.submit("one")
        await trio.sleep(2)
        conversation.submit("two")
        await trio.sleep(3)
        status = conversation.status()
        assert status == ConversationStatus(run.id, "tool:create_task", 1.0, 1, 3.0)
        conversation.abort("enough", queued=True)


async def test_conversation_abort_spares_the_queue_unless_told_otherwise(autojump_clock: MockClock) -> None:
    async with open_runtime(loop_agent(sleepy)) as runtime:
        conversation = runtime.conversation("c")
        first, second = conversation.submit("5"), conversation.submit("1")
        await wait_all_tasks_blocked()
        conversation.abort("first only")
        with pytest.raises(RunAborted):
            await first.wait()
        assert (await second.wait()).text == "slept 1"
        third, fourth = conversation.submit("5"), conversation.submit("1")
        conversation.abort("all", queued=True)
        for run in (third, fourth):
            with pytest.raises(RunAborted, match="all"):
                await run.wait()


# --- R11: observers -------------------------------------------------------------------------------------------------


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


# --- R12: what ends the program -------------------------------------------------------------------------------------


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


# --- R13: leaving ---------------------------------------------------------------------------------------------------


async def test_a_normal_end_of_the_block_waits_for_every_accepted_run(autojump_clock: MockClock) -> None:
    async with open_runtime(loop_agent(sleepy)) as runtime:
        runs = [runtime.submit("2"), runtime.submit("3")]
    assert trio.current_time() == 5
    assert [run.state for run in runs] == ["done", "done"]


async def test_an_error_in_the_block_aborts_all_and_comes_out_bare() -> None:
    journal = Journal()
    error = RuntimeError("body")
    with pytest.raises(RuntimeError, match="body") as caught:
        async with open_runtime(loop_agent(for_ever, extensions=(journal,))) as runtime:
            running, queued = runtime.submit("a"), runtime.submit("b")
            await wait_all_tasks_blocked()
            raise error
    assert caught.value is error
    assert journal.heard("on_finish") == [("a", "aborted"), ("b", "aborted")]
    for run in (running, queued):
        assert run.outcome is not None
        assert run.outcome.abort is not None
        assert run.outcome.abort.cause == "shutdown"


async def test_an_outer_cancellation_tells_the_running_and_the_queued_in_order() -> None:
    journal = Journal()
    with trio.CancelScope() as scope:
        async with open_runtime(loop_agent(for_ever, extensions=(journal,))) as runtime:
            runs = [runtime.submit(ask) for ask in ("a", "b", "c")]
            await wait_all_tasks_blocked()
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert journal.heard("on_finish") == [("a", "aborted"), ("b", "aborted"), ("c", "aborted")]
    assert {run.outcome.abort.cause for run in runs if run.outcome and run.outcome.abort} == {"shutdown"}


async def test_at_shutdown_an_unbounded_observer_is_cut_off_after_ten_seconds(autojump_clock: MockClock) -> None:
    class Hangs(Extension[Any]):
        name = "hangs"

        async def on_finish(self, ctx: Any, question: Any) -> None:
            await trio.sleep_forever()

    journal = Journal()
    with trio.move_on_after(1):
        async with open_runtime(loop_agent(for_ever, extensions=(Hangs(), journal))) as runtime:
            runtime.submit("a")
            await trio.sleep_forever()
    assert trio.current_time() == 11
    assert journal.heard("on_finish") == [("a", "aborted")]


async def test_drain_refuses_new_asks_waits_for_the_grace_and_counts_both(autojump_clock: MockClock) -> None:
    journal = Journal()
    async with open_runtime(loop_agent(sleepy, extensions=(journal,))) as runtime:
        runtime.submit("1", conversation_id="a")
        runtime.submit("60", conversation_id="b")
        runtime.submit("60", conversation_id="b")
        async with trio.open_nursery() as nursery:

            async def refused() -> None:
                await trio.sleep(0.5)
                with pytest.raises(RuntimeClosed, match="drains"):
                    runtime.submit("1", conversation_id="c")

            nursery.start_soon(refused)
            report = await runtime.drain(5)
        assert (report.finished, report.aborted) == (1, 2)
        assert trio.current_time() == 5
        assert runtime.statistics().aborted == 2
    assert journal.heard("on_finish") == [("1", "completed"), ("60", "aborted"), ("60", "aborted")]


async def test_during_a_drain_a_run_may_still_ask_and_wait_but_not_submit(autojump_clock: MockClock) -> None:
    async def action(work: Work) -> str:
        await trio.sleep(1)
        if work.ask == "outer":
            with pytest.raises(RuntimeClosed):
                runtime.submit("more", conversation_id="x")
            return (await runtime.run("inner", conversation_id="y")).text
        return work.ask

    async with open_runtime(loop_agent(action)) as runtime:
        outer = runtime.submit("outer")
        await wait_all_tasks_blocked()
        report = await runtime.drain(10)
        assert (report.finished, report.aborted) == (2, 0)
        assert (await outer.wait()).text == "inner"


async def test_serve_runtime_gives_the_runtime_and_returns_after_a_drain(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        runtime = await nursery.start(serve_runtime, loop_agent())
        assert (await runtime.run("hi")).text == "echo hi"
        report = await runtime.drain(1)
        assert (report.finished, report.aborted) == (0, 0)


async def test_after_the_block_submit_from_a_run_is_accepted_while_runs_remain() -> None:
    gate = Gate()
    followers: list[Any] = []

    async def action(work: Work) -> str:
        if work.ask == "first":
            await gate.pass_through()
            followers.append(runtime.submit("second", conversation_id="other"))
        await trio.lowlevel.checkpoint()
        return work.ask

    async with trio.open_nursery() as nursery:

        async def open_gate() -> None:
            await wait_all_tasks_blocked()
            gate.open()

        async with open_runtime(loop_agent(action)) as runtime:
            runtime.submit("first")
            nursery.start_soon(open_gate)
    assert followers[0].outcome.status == "completed"


# --- R14: waiting on one another ------------------------------------------------------------------------------------


async def test_waiting_for_ones_own_conversation_is_refused_at_once_by_every_door() -> None:
    refused: list[tuple[str, ...]] = []

    async def action(work: Work) -> str:
        conversation = runtime.conversation("c")
        other = runtime.submit("later", conversation_id="c") if work.ask == "first" else None
        if other is None:
            return "later"
        for door in (
            lambda: runtime.run("x", conversation_id="c"),
            lambda: conversation.run("x"),
            other.wait,
            conversation.forget,
            lambda: runtime.drain(1),
        ):
            with pytest.raises(ReentrantRun) as caught:
                await door()
            refused.append(caught.value.chain)
        with pytest.raises(ReentrantRun):
            async with runtime.stream("x", conversation_id="c"):
                pass  # pragma: no cover
        return "first"

    async with open_runtime(loop_agent(action)) as runtime:
        with trio.fail_after(5):
            assert (await runtime.run("first", conversation_id="c")).text == "first"
        assert runtime.statistics().accepted == 2
    assert refused[:4] == [("agent/c", "agent/c")] * 4


async def test_a_cycle_through_three_conversations_is_refused_and_named() -> None:
    async def action(work: Work) -> str:
        following = {"a": "b", "b": "c", "c": "a"}[work.ask]
        return (await runtime.run(following, conversation_id=following)).text

    async with open_runtime(loop_agent(action)) as runtime:
        with trio.fail_after(5), pytest.raises(ReentrantRun) as caught:
            await runtime.run("a", conversation_id="a")
    assert caught.value.chain == ("agent/c", "agent/a", "agent/b", "agent/c")


async def test_two_conversations_that_ask_each_other_do_not_hang() -> None:
    gate = Gate()

    async def action(work: Work) -> str:
        if work.ask == "leaf":
            await trio.lowlevel.checkpoint()
            return "leaf"
        await gate.pass_through()
        other = {"a": "b", "b": "a"}[work.ask]
        return (await runtime.run("leaf", conversation_id=other)).text

    async with open_runtime(loop_agent(action)) as runtime:
        a, b = runtime.submit("a", conversation_id="a"), runtime.submit("b", conversation_id="b")
        await wait_all_tasks_blocked()
        gate.open()
        ends: list[str] = []
        for run in (a, b):
            try:
                ends.append((await run.wait()).text)
            except ReentrantRun:
                ends.append("refused")
        assert sorted(ends) == ["leaf", "refused"]


async def test_a_task_that_a_run_starts_inherits_its_chain() -> None:
    async def action(work: Work) -> str:
        caught: list[BaseException] = []

        async def child() -> None:
            try:
                await runtime.run("x", conversation_id="c")
            except ReentrantRun as error:
                caught.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)
        return type(caught[0]).__name__

    async with open_runtime(loop_agent(action)) as runtime:
        assert (await runtime.run("go", conversation_id="c")).text == "ReentrantRun"


async def test_submitting_to_ones_own_conversation_without_waiting_is_always_allowed() -> None:
    async def action(work: Work) -> str:
        if work.ask == "first":
            work.submit("second", conversation_id="c")
        await trio.lowlevel.checkpoint()
        return work.ask

    journal = Journal()
    async with open_runtime(loop_agent(action, extensions=(journal,))) as runtime:
        await runtime.run("first", conversation_id="c")
    assert journal.heard("on_finish") == [("first", "completed"), ("second", "completed")]


async def test_aborting_a_parent_aborts_the_child_it_waits_for(autojump_clock: MockClock) -> None:
    journal = Journal()

    async def action(work: Work) -> str:
        if work.ask == "parent":
            return (await runtime.run("child", conversation_id="q")).text
        await trio.sleep(10)
        return ""

    async with open_runtime(loop_agent(action, extensions=(journal,))) as runtime:
        parent = runtime.submit("parent", conversation_id="p")
        await trio.sleep(0.1)
        parent.abort()
        with pytest.raises(RunAborted):
            await parent.wait()
        assert trio.current_time() == 0.1
    assert journal.heard("on_finish") == [("child", "aborted"), ("parent", "aborted")]


# --- R15: idling, forgetting ----------------------------------------------------------------------------------------


async def test_an_idle_conversation_is_forgotten_whatever_its_outcome_was(autojump_clock: MockClock) -> None:
    async def action(work: Work) -> str:
        await trio.lowlevel.checkpoint()
        if work.ask == "raise":
            raise ValueError("no")
        if work.ask == "abort":
            await trio.sleep_forever()
        return "ok"

    async with open_runtime(loop_agent(action), idle_timeout=60) as runtime:
        for n in range(30):
            run = runtime.submit(("ok", "raise", "abort")[n % 3], conversation_id=str(n))
            await wait_all_tasks_blocked()
            run.abort()
        assert runtime.statistics().conversations == 30
        await trio.sleep(61)
        assert list(runtime._engine.directory) == []
        assert runtime.statistics().conversations == 0


async def test_forget_aborts_deletes_and_later_asks_start_afresh_behind_it() -> None:
    journal = Journal()

    async def action(work: Work) -> str:
        if work.ask == "long":
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        return work.ask

    async with open_runtime(loop_agent(action, extensions=(journal,))) as runtime:
        conversation = runtime.conversation("c")
        long, queued = conversation.submit("long"), conversation.submit("queued")
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(conversation.forget)
            while long._envelope.abort_state is None:
                await trio.lowlevel.checkpoint()
            later = conversation.submit("later")
        assert (await later.wait()).text == "later"
        for run in (long, queued):
            with pytest.raises(RunAborted, match="forgotten"):
                await run.wait()
    assert journal.heard("on_finish") == [("long", "aborted"), ("queued", "aborted"), ("later", "completed")]


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


# --- H11: lifespans -------------------------------------------------------------------------------------------------


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


async def test_doors_that_need_a_tool_loop_say_so() -> None:
    async with open_runtime(loop_agent()) as runtime:
        conversation = runtime.conversation("c")
        with pytest.raises(ConfigError, match="steer needs an agent with a ToolLoop"):
            conversation.steer("left")
        with pytest.raises(ConfigError, match="submit_resume needs"):
            conversation.submit_resume({})
        with pytest.raises(ConfigError, match="resume needs"):
            await conversation.resume({})
        with pytest.raises(ConfigError, match="rewrite needs"):
            await conversation.rewrite("regenerate")


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


async def test_submitting_from_a_run_goes_to_its_own_agent_where_none_is_named() -> None:
    async def action(work: Work) -> str:
        await trio.lowlevel.checkpoint()
        if work.ask == "first":
            work.submit("second", conversation_id="other")
        return work.ask

    one, two = loop_agent(action, name="one"), loop_agent(action, name="two")
    async with open_runtime(one, two) as runtime:
        await runtime.run("first", agent="two")
        assert runtime._doors.acceptance.entry("two").actors.get("other") is not None
        assert runtime._doors.acceptance.entry("one").actors.get("other") is None


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
