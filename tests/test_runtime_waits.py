"""Waiting on one another, in one runtime and across several (R14)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock, wait_all_tasks_blocked

from goliath_actors import Extension, RunAborted, open_runtime
from goliath_actors._work import Work
from goliath_actors.errors import (
    ReentrantRun,
    RuntimeClosed,
)
from goliath_actors.testing import Gate, Journal

from .loops import loop_agent
from .runtime_stage import calls_of, for_ever, shuffled, sleepy

# --- R14: waiting on one another --------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("_round", range(8))  # whether the child's task has taken its first step is trio's chance
async def test_an_owner_that_leaves_a_run_with_its_turn_still_waits_for_what_that_does(_round: int) -> None:
    heard: list[str] = []

    class Child(Extension[Any]):
        name = "child"

        async def on_finish(self, ctx: Any, question: Any) -> None:
            if ctx.ask == "child":
                with pytest.raises(ReentrantRun):
                    await parent.wait()
                heard.append(question.outcome.abort.cause)

    async def action(work: Work) -> str:
        if work.ask == "parent":
            async with runtime.stream("child", conversation_id="other"):
                pass
            with trio.move_on_after(0):
                await runtime.run("child", conversation_id="other")
        return work.ask

    async with open_runtime(loop_agent(action, extensions=(Child(),))) as runtime:
        parent = runtime.submit("parent")
        with trio.fail_after(5):
            assert (await parent.wait()).text == "parent"
    assert heard == ["caller", "caller"]


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
