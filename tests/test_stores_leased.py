"""Several runtimes on one store: runs of a conversation never overlap, and one that is cut off does no harm."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from goliath_actors import Agent, Extension, RunAborted, Runtime, ToolLoop, approve_all, open_runtime, tool
from goliath_actors._conformance import StoreCheck, store_conformance
from goliath_actors.abc import Change, Store
from goliath_actors.errors import ConfigError, ConversationElsewhere, LeaseLost, StoreError
from goliath_actors.stores import InMemoryStore, LeasedStore
from goliath_actors.testing import FailingStore, Gate, Journal, ScriptedModel, check_events, tool_calls

from .native import native


def agent(*replies: Any, **options: Any) -> Agent[Any]:
    options.setdefault("loop", ToolLoop())
    return Agent(model=ScriptedModel(list(replies)), confirm=approve_all, **options)


@asynccontextmanager
async def process(store: Store, one: Agent[Any], **options: Any) -> AsyncIterator[tuple[Runtime, LeasedStore]]:
    """What another process would have: a runtime of its own on the shared store."""
    leased = LeasedStore(store, **options)
    async with open_runtime(one, store=leased) as runtime:
        yield runtime, leased


@pytest.mark.parametrize("check", store_conformance)
async def test_a_leased_store_is_a_store(check: StoreCheck, mock_clock: MockClock) -> None:
    async def pass_time(seconds: float) -> None:
        mock_clock.jump(seconds)

    inner = InMemoryStore()
    await check(lambda: LeasedStore(inner), pass_time=pass_time)


async def test_runs_of_one_conversation_never_overlap_whichever_process_was_asked(autojump_clock: MockClock) -> None:
    store, inside, most = InMemoryStore(), 0, 0

    class Watch(Extension[Any]):
        name = "watch"

        async def after_answer(self, ctx: Any, question: Any) -> None:
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            await trio.sleep(0.1)
            inside -= 1

    async def ask(runtime: Runtime, number: int) -> None:
        await runtime.run(f"{number}", conversation_id="c")

    one = agent(*["x"] * 10, extensions=[Watch()])
    two = agent(*["y"] * 10, extensions=[Watch()])
    async with process(store, one) as (here, _), process(store, two) as (there, _):
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(ask, here if number % 2 else there, number)
        texts = [entry.message.text for entry in (await here.conversation("c").history()).entries]
        asks = [text for text in texts if text not in ("x", "y")]
    assert most == 1
    assert sorted(asks) == [f"{number}" for number in range(10)]
    assert all(answer in ("x", "y") for answer in texts[1::2])  # each ask is followed by its answer


async def test_a_run_that_waits_for_another_process_ends_with_its_time(autojump_clock: MockClock) -> None:
    store, gate, journal = InMemoryStore(), Gate(), Journal()
    async with (
        process(store, agent(gate.then("first"))) as (here, _),
        process(store, agent("second", extensions=[journal])) as (there, _),
    ):
        first = here.submit("one", conversation_id="c")
        await gate.wait_reached()
        waiting = there.submit("two", conversation_id="c")
        await trio.sleep(1)
        assert there.conversation("c").status().phase == "lease"
        with pytest.raises(RunAborted, match="deadline"):
            await there.run("three", conversation_id="other", timeout=0)
        waiting.abort()
        with pytest.raises(RunAborted):
            await waiting.wait()
        with pytest.raises(RunAborted) as aborted:
            await there.run("four", conversation_id="c", timeout=5)
        assert (aborted.value.cause, aborted.value.phase) == ("deadline", "lease")
        gate.open()
        await first.wait()
        assert (await there.run("five", conversation_id="c")).text == "second"
    assert [row for row in journal.rows if row in ("before_run", "on_finish")][:3] == ["on_finish"] * 3


async def test_patience_ends_with_an_error_that_says_when_to_come_back(autojump_clock: MockClock) -> None:
    store, gate = InMemoryStore(), Gate()
    async with (
        process(store, agent(gate.then("first"))) as (here, _),
        process(store, agent("second"), patience=2.0, ttl=15.0) as (there, _),
    ):
        first = here.submit("one", conversation_id="c")
        await gate.wait_reached()
        began = trio.current_time()
        run = there.submit("two", conversation_id="c")
        with pytest.raises(ConversationElsewhere, match="ask again in 15 seconds") as elsewhere:
            await run.wait()
        assert trio.current_time() - began == pytest.approx(2.0)
        assert elsewhere.value.retry_after == 15.0
        assert run.outcome is not None
        assert run.outcome.origin == "memory"
        assert (await there.conversation("c").history()).entries != ()  # reading waits for nothing
        gate.open()
        await first.wait()


async def test_a_run_costs_two_writes_more_than_without_a_lease() -> None:
    asked: list[list[str]] = []
    for leased in (False, True):
        store = FailingStore(InMemoryStore(), {})
        one = agent("first", "second")
        async with open_runtime(one, store=LeasedStore(store) if leased else store) as runtime:
            await runtime.run("one", conversation_id="c")
            store.calls.clear()
            await runtime.run("two", conversation_id="c")
        asked.append(store.calls)
    without, with_one = asked
    assert with_one == ["acquire", *without, "release"]


async def test_a_long_run_keeps_its_lease(autojump_clock: MockClock) -> None:
    store, gate = InMemoryStore(), Gate()
    async with process(store, agent(gate.then("done")), ttl=3.0) as (here, leased):
        run = here.submit("one", conversation_id="c")
        await gate.wait_reached()
        for _ in range(20):
            await trio.sleep(1.0)
            assert await store.acquire("agent/c", "somebody", 1.0) is None
        gate.open()
        check_events((await run.wait()).trace)
        assert await store.acquire("agent/c", "somebody", 1.0) == 2  # given back at once
        assert "holds 0" in repr(leased)


@attrs.define(eq=False)
class Cut:
    """A store on the other side of a network that a test takes away."""

    inner: InMemoryStore
    away: bool = False
    hangs: bool = False
    # As a store in threads is, which waits for its server before it notices that it is cancelled.
    deaf: bool = False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)

        async def call(*args: Any, **options: Any) -> Any:
            if self.hangs:
                await trio.sleep_forever()
            if self.deaf:
                with trio.CancelScope(shield=True):
                    await trio.sleep(12)
            if self.away or self.deaf:
                await trio.lowlevel.checkpoint()
                raise StoreError("out of reach")
            return await method(*args, **options)

        return call


@pytest.mark.parametrize("how", ["away", "hangs", "deaf"])
async def test_a_process_that_was_cut_off_ends_its_run_before_another_one_may_begin(
    how: str, autojump_clock: MockClock
) -> None:
    shared, gate, journal = InMemoryStore(), Gate(), Journal()
    cut = Cut(shared)
    async with (
        process(cut, agent(gate.then("never"), extensions=[journal]), ttl=9.0) as (here, _),
        process(shared, agent("taken over"), ttl=9.0) as (there, _),
    ):
        first = here.submit("one", conversation_id="c")
        await gate.wait_reached()
        setattr(cut, how, True)
        began = trio.current_time()
        ended: list[float] = []

        async def wait() -> None:
            with pytest.raises(LeaseLost):
                await first.wait()
            ended.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            result = await there.run("two", conversation_id="c")
            taken_over = trio.current_time()
        assert result.text == "taken over"
        assert taken_over - began <= 9.0 + 0.5
        assert first.outcome is not None
        assert (first.outcome.status, first.outcome.origin) == ("error", "memory")
        setattr(cut, how, False)
        texts = [entry.message.text for entry in (await there.conversation("c").history()).entries]
        assert texts == ["one", "two", "taken over"]
    assert journal.heard("on_finish") == [("one", "error")]


async def test_what_a_run_commits_after_it_lost_its_lease_is_refused(autojump_clock: MockClock) -> None:
    """The other one took the conversation in the middle of a tool; its result comes too late."""
    store, gate = InMemoryStore(), Gate()

    @tool
    async def slow() -> str:
        """Take long, and not let itself be cancelled."""
        with trio.CancelScope(shield=True):
            await gate.pass_through()
        return "too late"

    async with process(store, native([tool_calls(("slow", {})), "never"], tools=[slow])) as (here, leased):
        first = here.submit("one", conversation_id="c")
        await gate.wait_reached()
        ((key, held),) = leased._held.items()
        # As if its time had run out while the whole process stood still.
        await store.release(key, leased.owner)
        async with process(store, native(["taken over"])) as (there, _):
            assert (await there.run("two", conversation_id="c")).text == "taken over"
            gate.open()
            with pytest.raises(StoreError):
                await first.wait()
            history = (await there.conversation("c").history()).entries
        assert [entry.message.text for entry in history if entry.role in ("user", "assistant")] == [
            "one",
            "",
            "two",
            "taken over",
        ]
        assert not any("too late" in entry.message.text for entry in history)
        assert held.token == 1


async def test_forgetting_waits_for_a_run_in_another_process(autojump_clock: MockClock) -> None:
    store, gate = InMemoryStore(), Gate()
    async with process(store, agent(gate.then("done"))) as (here, _), process(store, agent()) as (there, _):
        run = here.submit("one", conversation_id="c")
        await gate.wait_reached()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(there.conversation("c").forget)
            await trio.sleep(2)
            gate.open()
            assert (await run.wait()).text == "done"
        assert list((await here.conversation("c").history()).entries) == []


async def test_two_runtimes_of_one_process_may_share_a_leased_store(autojump_clock: MockClock) -> None:
    gate = Gate()
    leased = LeasedStore(InMemoryStore())
    async with (
        open_runtime(agent(gate.then("first")), store=leased) as here,
        open_runtime(agent("second"), store=leased) as there,
    ):
        first = here.submit("one", conversation_id="c")
        await gate.wait_reached()
        second = there.submit("two", conversation_id="c")
        await trio.sleep(1)
        assert there.conversation("c").status().phase == "lease"
        gate.open()
        assert [(await run.wait()).text for run in (first, second)] == ["first", "second"]


async def test_a_lease_needs_a_store_that_was_entered_and_a_time() -> None:
    with pytest.raises(ConfigError, match="entered"):
        async with LeasedStore(InMemoryStore()).hold("k"):
            raise AssertionError("never entered")
    with pytest.raises(ConfigError, match="more than 0"):
        LeasedStore(InMemoryStore(), ttl=0)


async def test_a_wait_for_a_lease_that_is_cancelled_takes_none(autojump_clock: MockClock) -> None:
    store = InMemoryStore()
    await store.acquire("k", "somebody", 100.0)
    async with LeasedStore(store) as leased:
        with trio.move_on_after(1) as scope:
            async with leased.hold("k"):
                raise AssertionError("never held")
        assert scope.cancelled_caught
        assert leased._held == {}
        await store.release("k", "somebody")
        async with leased.hold("k"):
            assert (await leased.commit("k", Change())).version == 1
            assert set(leased._held) == {"k"}
        assert leased._held == {}


@pytest.mark.parametrize("how", ["abort", "caller"])
async def test_wherever_a_run_is_cut_its_lease_is_given_back_and_its_observers_are_told(how: str) -> None:
    told = 0

    async def slow(request: Any) -> str:
        for _ in range(20):
            await trio.lowlevel.checkpoint()
        return "done"

    for patience in range(60):
        store, journal = InMemoryStore(), Journal()
        leased = LeasedStore(store)
        async with open_runtime(agent(slow, extensions=[journal]), store=leased) as runtime:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:

                    async def ask(runtime: Runtime = runtime) -> None:
                        with suppress(RunAborted):
                            await runtime.run("one", conversation_id="c")

                    nursery.start_soon(ask)
                    for _ in range(patience):
                        await trio.lowlevel.checkpoint()
                    if how == "abort":
                        runtime.conversation("c").abort()
                    else:
                        scope.cancel()
        assert leased._held == {}, patience
        assert await store.acquire("agent/c", "somebody", 1.0) is not None, patience
        ends = journal.heard("on_finish")
        assert len(ends) <= 1
        told += [status for _, status in ends] == ["aborted"]
    assert told > 10  # it was cut in many places


async def test_a_lease_that_cannot_be_given_back_runs_out_and_fails_nobody(autojump_clock: MockClock) -> None:
    shared = InMemoryStore()
    store = LeasedStore(FailingStore(shared, {"release": OSError("gone")}), ttl=6)
    async with open_runtime(native(["one"]), store=store) as runtime:
        assert (await runtime.run("go", conversation_id="c")).text == "one"
        assert await shared.acquire("agent/c", "somebody", 1.0) is None
        await trio.sleep(6)
        assert await shared.acquire("agent/c", "somebody", 1.0) == 2
