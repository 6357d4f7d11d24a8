"""Who waits, and who counts: asks that were given up, replaced and forgotten keep their places and keep nobody out."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from goliath_actors import Agent, RunAborted, open_runtime
from goliath_actors._conversation import Actor
from goliath_actors._work import Work
from goliath_actors.errors import MailboxFull
from goliath_actors.testing import Gate, Journal

from .loops import loop_agent
from .native import native


def holding(gate: Gate, **options: Any) -> Agent[Any]:
    """An agent whose runs end at once, but for the ask "hold"."""

    async def action(work: Work) -> str:
        await trio.lowlevel.checkpoint()
        if work.ask.startswith("hold"):
            await gate.pass_through()
        return work.ask

    return loop_agent(action, **options)


async def test_asks_that_were_given_up_keep_nobody_out() -> None:
    gate, journal = Gate(), Journal()
    agent = holding(gate, extensions=(journal,))
    async with open_runtime(agent, mailbox_capacity=3) as runtime:
        runtime.submit("hold")
        await gate.wait_reached()
        for number in range(3):
            runtime.submit(f"gone {number}").abort()
        assert runtime.conversation().status().waiting == 3  # each keeps its place, and its observers their turn
        others = [runtime.submit(f"other {number}") for number in range(3)]
        with pytest.raises(MailboxFull) as caught:
            runtime.submit("one too many")
        assert (caught.value.waiting, caught.value.capacity) == (3, 3)
        gate.open()
        assert [(await one.wait()).text for one in others] == ["other 0", "other 1", "other 2"]
    assert journal.heard("on_finish") == [
        ("hold", "completed"),
        *((f"gone {number}", "aborted") for number in range(3)),
        *((f"other {number}", "completed") for number in range(3)),
    ]


async def test_what_was_given_up_is_bounded_too() -> None:
    gate = Gate()
    async with open_runtime(holding(gate), mailbox_capacity=3) as runtime:
        runtime.submit("hold")
        await gate.wait_reached()
        accepted = 0
        with pytest.raises(MailboxFull):
            for _ in range(100):
                runtime.submit("gone").abort()
                accepted += 1
        assert accepted == 6
        gate.open()
    assert runtime.statistics().aborted == 6


async def test_a_caller_that_leaves_its_place_counts_as_one_that_gave_up() -> None:
    gate = Gate()
    async with open_runtime(holding(gate), mailbox_capacity=1) as runtime:
        runtime.submit("hold")
        await gate.wait_reached()
        with trio.move_on_after(0):
            await runtime.run("gone")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.run, "mine")
            await wait_all_tasks_blocked()
            with pytest.raises(MailboxFull):
                runtime.submit("one too many")
            gate.open()
    assert runtime.statistics().completed == 2


async def test_who_gives_up_keeps_nobody_out_of_the_whole_runtime() -> None:
    gate = Gate()
    async with open_runtime(holding(gate), max_waiting=2, mailbox_capacity=10) as runtime:
        runtime.submit("hold")
        await gate.wait_reached()
        accepted = 0
        with pytest.raises(MailboxFull) as caught:
            for _ in range(100):
                runtime.submit("gone").abort()
                accepted += 1
        assert (accepted, caught.value.scope, caught.value.capacity) == (4, "runtime", 2)
        gate.open()
    async with open_runtime(holding(other := Gate()), max_waiting=2) as runtime:
        runtime.submit("hold")
        await other.wait_reached()
        for _ in range(2):
            runtime.submit("gone").abort()
        for _ in range(2):
            runtime.submit("mine")
        other.open()
    assert (runtime.statistics().completed, runtime.statistics().aborted) == (3, 2)


async def test_replacements_of_replacements_are_bounded(autojump_clock: MockClock) -> None:
    gate = Gate()

    async def action(work: Work) -> str:
        with trio.CancelScope(shield=True):  # as a tool that takes long to unwind
            await gate.pass_through()
        return ""

    async with open_runtime(loop_agent(action), mailbox_capacity=0) as runtime:
        runtime.submit("hold")
        await gate.wait_reached()
        accepted = 0
        with pytest.raises(MailboxFull):
            for _ in range(2000):
                runtime.submit("instead", when_busy="replace")
                accepted += 1
        assert accepted == 1000
        gate.open()


async def test_forgetting_again_before_anything_came_is_the_same_turn() -> None:
    gate = Gate()
    async with open_runtime(holding(gate), mailbox_capacity=2) as runtime:
        runtime.submit("hold")
        await gate.wait_reached()
        talk = runtime.conversation()
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(talk.forget)
            await wait_all_tasks_blocked()
            assert talk.status().waiting == 0  # the aborted run has unwound, and one turn has forgotten it all
        assert (await talk.run("again")).text == "again"


async def test_a_text_that_was_given_up_before_it_became_a_run_keeps_nobody_out() -> None:
    gate = Gate()
    agent = native([gate.then("x"), "mine"])
    async with open_runtime(agent, mailbox_capacity=2) as runtime:
        talk = runtime.conversation()
        first = talk.submit("hold")
        await gate.wait_reached()
        talk.steer("one")
        talk.abort(queued=True)
        await first.wait_ended()
        followed = first.followed_by
        assert followed is not None
        with pytest.raises(RunAborted):
            await followed.wait()
        assert (await talk.run("mine")).text == "mine"
    assert runtime.statistics().aborted == 2


ACTIONS = st.lists(
    st.sampled_from(["ask", "replace", "abort-first", "abort-last", "forget", "sleep", "end"]), max_size=30
)


@given(actions=ACTIONS)
@settings(max_examples=60, deadline=None)
def test_whatever_happens_what_is_seen_of_the_queue_is_true(actions: list[str]) -> None:
    """Against the plain definition: count and look at every envelope."""

    async def main() -> None:
        release = trio.Event()

        async def action(work: Work) -> str:
            await release.wait()
            return ""

        async with open_runtime(loop_agent(action), mailbox_capacity=4) as runtime:
            talk = runtime.conversation()
            runs: list[Any] = []
            async with trio.open_nursery() as nursery:
                for what in actions:
                    if what in ("ask", "replace"):
                        try:
                            runs.append(talk.submit(what, when_busy="replace" if what == "replace" else "queue"))
                        except MailboxFull:
                            pass
                    elif what.startswith("abort") and runs:
                        runs[0 if what == "abort-first" else -1].abort()
                    elif what == "forget":
                        nursery.start_soon(talk.forget)
                    elif what == "sleep":
                        await trio.sleep(1)
                    elif what == "end":
                        release.set()
                        release = trio.Event()
                    await wait_all_tasks_blocked()
                    check(runtime, talk)
                release.set()
                for run in runs:
                    await run.wait_ended()
            check(runtime, talk)

    def check(runtime: Any, talk: Any) -> None:
        actor = runtime._engine.directory.entries["agent"].actors.get(None)
        status = talk.status()
        if actor is None:
            return
        assert isinstance(actor, Actor)
        waiting = [*(actor.mailbox or ()), *([actor.current] if actor.in_line else [])]
        assert status.waiting == len(waiting)
        ages = [trio.current_time() - one.accepted_at for one in waiting]
        assert status.oldest_wait == (max(ages) if ages else None)
        gone = sum(getattr(one, "abort_state", None) is not None for one in waiting)
        assert actor.gone == gone
        assert runtime._engine.life.gone == gone

    trio.run(main, clock=MockClock(autojump_threshold=0))
