"""Draining and leaving the block (R13)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock, wait_all_tasks_blocked

from goliath_actors import Agent, Extension, Run, RunAborted, open_runtime, serve_runtime, tool
from goliath_actors._work import Work
from goliath_actors.errors import (
    ConfigError,
    RuntimeClosed,
)
from goliath_actors.stores import InMemoryStore
from goliath_actors.testing import Gate, Journal, ScriptedModel

from .loops import loop_agent
from .runtime_stage import SlowToLive, for_ever, sleepy

# --- R13: leaving -----------------------------------------------------------------------------------------------------


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
    living = SlowToLive()

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
