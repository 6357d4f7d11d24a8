"""Order, concurrency, slots and tasks (R3 to R5), and replacements that keep their place (R8a)."""

from __future__ import annotations

import contextvars
from typing import Any

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock, wait_all_tasks_blocked

from goliath_actors import Extension, RunAborted, open_runtime
from goliath_actors._work import Work
from goliath_actors.stores import InMemoryStore
from goliath_actors.testing import Gate

from .loops import loop_agent
from .runtime_stage import calls_of, sleepy

# --- R3, R4: order and concurrency ------------------------------------------------------------------------------------


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


# --- R5: tasks and contexts -------------------------------------------------------------------------------------------


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
