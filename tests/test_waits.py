"""Runs that wait on one another across runtimes, out of threads, and by leaving a block (R3, R4, R14)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from goliath_actors import Extension, Run, RunAborted, Runtime, ToolContext, open_runtime, tool
from goliath_actors._work import Work
from goliath_actors.errors import ConfigError, ReentrantRun
from goliath_actors.testing import Gate, Journal, tool_calls

from .loops import loop_agent
from .native import native
from .runtime_stage import for_ever

# --- a runtime inside a run -------------------------------------------------------------------------------------------


async def test_leaving_an_inner_runtime_whose_runs_wait_for_this_one_is_refused(autojump_clock: MockClock) -> None:
    outer: Runtime
    inner_journal = Journal()
    refused: list[ReentrantRun] = []

    async def ask_back(work: Work) -> str:
        return (await outer.run("again", conversation_id="c")).text

    async def action(work: Work) -> str:
        if work.ask == "again":
            return "never"
        try:
            async with open_runtime(loop_agent(ask_back, name="inner", extensions=(inner_journal,))) as inner:
                inner.submit("go")
                await wait_all_tasks_blocked()  # it waits for this very conversation by now
        except ReentrantRun as error:
            refused.append(error)
        return "done"

    async with open_runtime(loop_agent(action, name="outer")) as outer:
        with trio.fail_after(5):
            assert (await outer.run("start", conversation_id="c")).text == "done"
    (error,) = refused
    assert error.chain[0] == error.chain[-1] == "outer/c"
    assert inner_journal.heard("on_finish") == [("go", "aborted")]


async def test_an_inner_run_that_asks_back_while_its_block_is_being_left_is_refused(autojump_clock: MockClock) -> None:
    outer: Runtime
    refused: list[ReentrantRun] = []

    async def ask_back(work: Work) -> str:
        await trio.sleep(3)  # the block is being left by then
        try:
            await outer.run("again", conversation_id="c")
        except ReentrantRun as error:
            refused.append(error)
        return "inner"

    async def action(work: Work) -> str:
        if work.ask == "again":
            return "never"
        async with open_runtime(loop_agent(ask_back, name="inner")) as inner:
            inner.submit("go")
        return "done"

    async with open_runtime(loop_agent(action, name="outer")) as outer:
        with trio.fail_after(5):
            assert (await outer.run("start", conversation_id="c")).text == "done"
    (error,) = refused
    assert set(error.chain) == {"inner/(default)", "outer/c"}


async def test_an_inner_runtime_that_waits_for_nobody_is_left_as_ever(autojump_clock: MockClock) -> None:
    async def sleepy(work: Work) -> str:
        await trio.sleep(2)
        return "slept"

    async def action(work: Work) -> str:
        async with open_runtime(loop_agent(sleepy, name="inner")) as inner:
            run = inner.submit("go")
        return (await run.wait()).text

    async with open_runtime(loop_agent(action, name="outer")) as outer:
        assert (await outer.run("start")).text == "slept"
    assert trio.current_time() == 2


# --- out of a thread --------------------------------------------------------------------------------------------------


def asking(runtimes: list[Runtime], door: str, conversation_id: str) -> Any:
    """A plain tool that asks from its thread."""

    async def ask() -> str:
        runtime = runtimes[0]
        if door == "stream":
            async with runtime.stream("child", conversation_id=conversation_id, agent="helper") as run:
                return (await run.wait()).text
        return (await runtime.run("child", conversation_id=conversation_id, agent="helper")).text

    @tool
    def delegate(text: str) -> str:
        """Ask another agent."""
        return trio.from_thread.run(ask)

    return delegate


@pytest.mark.parametrize("door", ["run", "stream"])
async def test_what_a_plain_tool_asked_from_its_thread_is_aborted_with_its_run(door: str) -> None:
    runtimes: list[Runtime] = []
    gate, journal = Gate(), Journal()

    async def help_out(work: Work) -> str:
        await gate.pass_through()
        return "helped"

    helper = loop_agent(help_out, name="helper", extensions=(journal,))
    agent = native([tool_calls(("delegate", {"text": "x"}))], tools=[asking(runtimes, door, "h")])
    async with open_runtime(agent, helper) as runtime:
        runtimes.append(runtime)
        parent = runtime.submit("go", agent=agent)
        with trio.fail_after(20):
            await gate.wait_reached()
            parent.abort("enough")
            with pytest.raises(RunAborted):
                await parent.wait()
            while not journal.heard("on_finish"):
                await trio.lowlevel.checkpoint()
    assert journal.heard("on_finish") == [("child", "aborted")]


async def test_a_plain_tool_submits_from_its_thread_as_any_tool_does() -> None:
    submitted: list[Run] = []

    @tool
    def later(ctx: ToolContext[Any], text: str) -> str:
        """Ask for more, and do not wait."""
        submitted.append(ctx.submit(text, conversation_id="other"))
        with pytest.raises(ConfigError):
            ctx.submit(" ")
        return "asked"

    agent = native([tool_calls(("later", {"text": "more"})), "done", "much more"], tools=[later])
    async with open_runtime(agent) as runtime:
        result = await runtime.run("go")
        assert result.steps[0].result == "asked"
        (run,) = submitted
        assert (run.ask, run.conversation_id) == ("more", "other")
        assert (await run.wait()).status == "completed"
    assert runtime.statistics().accepted == 2


async def test_what_a_plain_tool_asks_from_its_thread_is_refused_where_it_would_wait_for_itself() -> None:
    runtimes: list[Runtime] = []

    @tool
    def again(text: str) -> str:
        """Ask one's own conversation."""
        try:
            trio.from_thread.run(runtimes[0].run, "again")
        except ReentrantRun as error:
            return f"refused {error.chain}"
        return "asked"

    agent = native([tool_calls(("again", {"text": "x"})), "done"], tools=[again])
    async with open_runtime(agent) as runtime:
        runtimes.append(runtime)
        with trio.fail_after(20):
            result = await runtime.run("go")
    assert (result.steps[0].result or "").startswith("refused")


async def test_what_a_task_asks_that_outlives_its_run_goes_on_after_a_good_end() -> None:
    gate = Gate()
    results: list[str] = []

    async def action(work: Work) -> str:
        if work.ask == "child":
            await gate.pass_through()
            return "child done"

        async def later() -> None:
            results.append((await runtime.run("child", conversation_id="other")).text)

        nursery.start_soon(later)
        await gate.wait_reached()
        return "done"

    async with trio.open_nursery() as nursery, open_runtime(loop_agent(action)) as runtime:
        assert (await runtime.run("go")).text == "done"
        gate.open()
    assert results == ["child done"]


# --- slots of two runtimes (R4, R14) ----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["error", "abort"])
async def test_an_observer_that_asks_back_while_its_runtime_is_left_in_haste_is_refused_at_once(
    way: str, autojump_clock: MockClock
) -> None:
    refused: list[ReentrantRun] = []

    class AsksBack(Extension[Any]):
        name = "asks-back"

        async def on_finish(self, ctx: Any, question: Any) -> None:
            try:
                await run.wait()
            except ReentrantRun as error:
                refused.append(error)

    async def action(work: Work) -> str:
        async with open_runtime(loop_agent(for_ever, name="inner", extensions=(AsksBack(),))) as inner:
            inner.submit("go")
            await trio.sleep(1)
            if way == "error":
                raise LookupError("left")
            await trio.sleep_forever()
        raise AssertionError("left without a word")  # pragma: no cover

    async with open_runtime(loop_agent(action)) as outer:
        run = outer.submit("x", timeout=2)
        with pytest.raises(LookupError if way == "error" else RunAborted):
            await run.wait()
        assert trio.current_time() == (1 if way == "error" else 2)
    assert [error.chain for error in refused] == [("inner/(default)", "agent/(default)", "inner/(default)")]


async def test_two_runtimes_that_wait_for_each_others_only_slot_are_refused() -> None:
    runtimes: dict[str, Runtime] = {}
    refused: list[ReentrantRun] = []
    started: dict[str, trio.Event] = {"one": trio.Event(), "two": trio.Event()}

    def crossing(mine: str, other: str) -> Any:
        async def action(work: Work) -> str:
            if work.ask == "plain":
                return mine
            started[mine].set()
            await started[other].wait()
            try:
                return (await runtimes[other].run("plain", conversation_id="x")).text
            except ReentrantRun as error:
                refused.append(error)
                return "refused"

        return loop_agent(action, name=mine)

    async with (
        open_runtime(crossing("one", "two"), max_running=1) as runtimes["one"],
        open_runtime(crossing("two", "one"), max_running=1) as runtimes["two"],
    ):
        runs = [runtimes[name].submit("cross", conversation_id="a") for name in ("one", "two")]
        with trio.fail_after(20):
            texts = [(await run.wait()).text for run in runs]
    assert sorted(texts) in (["one", "refused"], ["refused", "two"])
    (error,) = refused
    assert error.chain[0] == error.chain[-1]
    assert {"one/a", "two/a"} <= set(error.chain)


async def test_a_slot_that_somebody_else_gives_up_is_worth_waiting_for(autojump_clock: MockClock) -> None:
    runtimes: dict[str, Runtime] = {}

    async def first(work: Work) -> str:
        if work.ask == "cross":
            await trio.sleep(1)
            return (await runtimes["two"].run("plain", conversation_id="x")).text
        return "one"

    async def second(work: Work) -> str:
        if work.ask == "cross":
            await trio.sleep(2)
            return (await runtimes["one"].run("plain", conversation_id="x")).text
        await trio.sleep(5)
        return "two"

    async with (
        open_runtime(loop_agent(first, name="one"), max_running=1) as runtimes["one"],
        open_runtime(loop_agent(second, name="two"), max_running=2) as runtimes["two"],
    ):
        one = runtimes["one"].submit("cross", conversation_id="a")
        two = runtimes["two"].submit("cross", conversation_id="a")
        busy = runtimes["two"].submit("plain", conversation_id="busy")  # ends by itself at 5, and its slot is free
        assert [(await run.wait()).text for run in (one, two, busy)] == ["two", "one", "two"]
    assert trio.current_time() == 10


async def test_a_run_lends_its_slot_in_its_own_runtime_whatever_is_in_line() -> None:
    gate = Gate()

    async def action(work: Work) -> str:
        if work.ask == "outer":
            await gate.pass_through()
            return (await runtime.run("inner", conversation_id="b")).text
        return work.ask

    async with open_runtime(loop_agent(action), max_running=1) as runtime:
        run = runtime.submit("outer", conversation_id="a")
        await gate.wait_reached()
        runtime.submit("queued", conversation_id="b")
        gate.open()
        with trio.fail_after(20):
            assert (await run.wait()).text == "inner"
