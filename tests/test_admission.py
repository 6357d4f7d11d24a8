"""Admission: runs begin as fast as the event loop can follow, in their order, and every one of them does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat
from random import Random

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock, wait_all_tasks_blocked

from goliath_actors import RunAborted, _admission, open_runtime
from goliath_actors._admission import BATCH, FREE, HURRIED, PASS, STEADY, Admission
from goliath_actors._work import Work
from goliath_actors.testing import Gate, Journal

from .loops import loop_agent
from .runtime_stage import gated, shuffled
from .test_runtime_storm import Storm


class Crowd:
    """Who began, pass by pass. It is the clock that is looked at once a pass, too, and says how long that one took."""

    def __init__(self, passes: Iterator[float], leave: Callable[[], None] = lambda: None) -> None:
        self.passes, self.leave = passes, leave
        self.now = 0.0
        self.batches: list[list[int]] = [[]]

    def clock(self) -> float:
        self.now += next(self.passes)
        self.batches.append([])
        self.leave()
        return self.now

    def one(self, number: int) -> Callable[[], None]:
        return lambda: self.batches[-1].append(number)

    @property
    def sizes(self) -> list[int]:
        return [len(batch) for batch in self.batches if batch]

    @property
    def order(self) -> list[int]:
        return [number for batch in self.batches for number in batch]


async def sizes(crowd: int, passes: Iterable[float], leaving: int = 0, inside: int = FREE) -> list[int]:
    """Return how many begin in each pass, of a crowd that comes where `inside` are already, `leaving` in every pass."""

    def leave() -> None:
        for _ in range(leaving):
            admission.leave()

    async with trio.open_nursery() as nursery:
        began = Crowd(iter(passes), leave)
        admission = Admission(nursery.start_soon, clock=began.clock)
        for _ in range(inside):
            admission.pass_by()
        for number in range(crowd):
            assert not admission.enter()
            admission.wait(number, began.one(number))
    assert began.order == list(range(crowd))
    return began.sizes


SLOW = 2 * PASS


async def test_the_first_begin_at_once_whatever_the_loop_does() -> None:
    async with trio.open_nursery() as nursery:
        admission = Admission(nursery.start_soon, clock=Crowd(repeat(SLOW)).clock)
        assert [admission.enter() for _ in range(FREE + 1)] == [True] * FREE + [False]
        admission.leave()
        assert admission.enter()


async def test_nobody_overtakes_who_waits() -> None:
    async with trio.open_nursery() as nursery:
        began = Crowd(repeat(SLOW))
        admission = Admission(nursery.start_soon, clock=began.clock)
        for _ in range(FREE):
            admission.enter()
        admission.wait(0, began.one(0))
        for _ in range(FREE):
            admission.leave()
        assert not admission.enter()  # there is room, and somebody is before it
        admission.wait(1, began.one(1))
        admission.pass_by()  # but for what others wait for
    assert began.order == [0, 1]


async def test_while_the_loop_keeps_up_a_batch_begins_in_every_pass() -> None:
    assert await sizes(10 * BATCH, repeat(0.0)) == [BATCH] * 10


async def test_a_loop_that_has_too_much_to_do_lets_in_half_as_many_as_leave() -> None:
    assert await sizes(100, repeat(SLOW), leaving=11, inside=1000) == [5] * 20


async def test_a_loop_that_is_busy_all_the_time_still_lets_in_so_many_a_second() -> None:
    assert await sizes(STEADY, repeat(0.25)) == [STEADY // 4] * 4


async def test_a_loop_with_too_much_to_do_lets_in_one_in_a_pass_at_the_least() -> None:
    assert await sizes(20, repeat(SLOW)) == [1] * 20


async def test_however_busy_a_loop_is_there_is_room_for_so_few_as_are_no_crowd() -> None:
    # Three leave at each look at the clock, of which there is one before the first pass.
    assert await sizes(99, repeat(SLOW), leaving=3) == [6, *[3] * 31]


async def test_batches_grow_again_as_soon_as_the_loop_keeps_up() -> None:
    passes = chain([SLOW] * 7, repeat(0.0))
    assert await sizes(200, passes) == [1, 1, 1, 1, 1, 1, 2, 4, 8, 16, *[BATCH] * 5, 4]


async def test_what_is_aborted_does_not_wait_for_a_loop_that_is_busy_all_the_time(crowded: None) -> None:
    passes: list[None] = []

    async def count() -> None:
        while True:
            passes.append(None)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        async with open_runtime(loop_agent(gated(Gate()))) as runtime:
            for number in range(4 * HURRIED):
                runtime.submit("hi", conversation_id=f"{number}")
            await trio.lowlevel.checkpoint()
            nursery.start_soon(count)
            report = await runtime.drain(0)
        nursery.cancel_scope.cancel()
    assert report.aborted == 4 * HURRIED
    assert len(passes) < 50  # a few for each batch; one by one it was a thousand


async def test_nothing_lives_on_when_nobody_waits() -> None:
    agent = loop_agent(gated(gate := Gate()))
    async with open_runtime(agent) as runtime:
        tasks = trio.lowlevel.current_statistics().tasks_living
        runs = [runtime.submit("hi", conversation_id=f"{number}") for number in range(3 * FREE)]
        await wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().tasks_living == tasks + len(runs)
        assert {run.state for run in runs} == {"running"}
        gate.open()
    assert {run.state for run in runs} == {"done"}


@pytest.fixture
def crowded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run waits for admission, and the loop has too much to do all the time."""
    monkeypatch.setattr(_admission, "FREE", 0)
    monkeypatch.setattr(_admission, "PASS", -1.0)


async def test_a_run_that_is_aborted_before_it_is_let_in_is_answered_at_once_and_observed(crowded: None) -> None:
    journal = Journal()

    async def action(work: Work) -> str:
        await trio.lowlevel.checkpoint()
        return "done"

    async with open_runtime(loop_agent(action, extensions=(journal,))) as runtime:
        runs = [runtime.submit(f"{number}", conversation_id=f"{number}") for number in range(5)]
        runs[3].abort("not any more")
        with pytest.raises(RunAborted, match="not any more"):
            await runs[3].wait()
        assert runs[3].state == "queued"
        assert runtime.statistics().running == 5  # each has its turn: `max_running` counts it
    assert journal.heard("on_finish") == [
        (f"{number}", "aborted" if number == 3 else "completed") for number in range(5)
    ]


async def test_a_shutdown_tells_everyone_who_was_not_let_in(crowded: None) -> None:
    journal = Journal()

    async def action(work: Work) -> str:
        await trio.sleep_forever()
        raise AssertionError("unreachable: nothing wakes it")

    async with open_runtime(loop_agent(action, extensions=(journal,))) as runtime:
        for number in range(200):
            runtime.submit(f"{number}", conversation_id=f"{number}")
        await trio.lowlevel.checkpoint()
        report = await runtime.drain(0)
    assert (report.finished, report.aborted) == (0, 200)
    assert sorted(journal.heard("on_finish")) == sorted((f"{number}", "aborted") for number in range(200))


async def test_what_a_run_asks_for_does_not_wait_behind_those_outside(
    crowded: None,
) -> None:
    order: list[str] = []

    async def action(work: Work) -> str:
        order.append(work.ask)
        if work.ask == "0":
            await runtime.run("asked inside", conversation_id="inner")
        return work.ask

    async with open_runtime(loop_agent(action)) as runtime:
        for number in range(10):
            runtime.submit(f"{number}", conversation_id=f"{number}")
    assert order.index("asked inside") <= 3  # one is let in a pass, and this one takes two
    assert [ask for ask in order if ask != "asked inside"] == [f"{number}" for number in range(10)]


async def test_a_conversation_that_a_run_waits_for_is_let_in_at_once(crowded: None) -> None:
    order: list[str] = []

    async def action(work: Work) -> str:
        order.append(work.ask)
        if work.ask == "0":
            await runtime.run("asked inside", conversation_id="9")  # whose head has not begun
        return work.ask

    async with open_runtime(loop_agent(action)) as runtime:
        for number in range(10):
            runtime.submit(f"{number}", conversation_id=f"{number}")
    assert order.index("9") <= 3
    assert order.index("9") < order.index("asked inside")
    assert sorted(order) == [*map(str, range(10)), "asked inside"]


@pytest.mark.parametrize("end", ["left", "drained", "failed", "cancelled"])
@pytest.mark.parametrize("seed", range(10))
async def test_in_a_crowd_every_promise_is_kept(end: str, seed: int, crowded: None, autojump_clock: MockClock) -> None:
    shuffled(seed)
    await Storm(Random(f"crowded {end} {seed}")).rage(end)
