"""Idle conversations are forgotten, and what nobody holds is freed (R15)."""

from __future__ import annotations

import gc
import itertools
import weakref

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock, wait_all_tasks_blocked

from goliath_actors import Run, RunAborted, open_runtime
from goliath_actors._work import Work
from goliath_actors.testing import Journal

from .loops import loop_agent
from .runtime_stage import sleepy

# --- R15: idling, forgetting ------------------------------------------------------------------------------------------


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
