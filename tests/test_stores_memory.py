"""What is particular to the store in memory; what all stores do is in test_stores_conformance."""

from __future__ import annotations

import tracemalloc
from collections.abc import Awaitable, Callable

import attrs
import pytest
import trio
from trio.testing import MockClock

from goliath_actors.abc import Change, Entry, Record
from goliath_actors.errors import ConfigError, StoreError
from goliath_actors.stores import InMemoryStore
from goliath_actors.values import Message


def entry(id: str) -> Entry:
    return Entry(id, 1.0, "user", Message("user", "hello"))


@pytest.mark.parametrize(
    "method",
    [
        lambda store: store.commit("k", Change(append=[entry("2")])),
        lambda store: store.forget("k"),
        lambda store: store.acquire("k", "there", 60),
        lambda store: store.release("k", "here"),
    ],
)
async def test_what_is_cancelled_has_done_nothing(method: Callable[[InMemoryStore], Awaitable[object]]) -> None:
    store = InMemoryStore()
    await store.commit("k", Change(append=[entry("1")]))
    await store.acquire("k", "here", 60)
    with trio.CancelScope() as scope:
        scope.cancel()
        await method(store)
    assert scope.cancelled_caught
    assert await store.load("k") == Record(1, entries_count=1)
    assert await store.acquire("k", "there", 60) is None


async def test_a_lease_ends_exactly_when_its_time_is_over(mock_clock: MockClock) -> None:
    store = InMemoryStore()
    await store.acquire("k", "here", 10)
    mock_clock.jump(9.5)
    assert await store.acquire("k", "there", 10) is None
    mock_clock.jump(0.5)
    assert await store.acquire("k", "there", 10) == 2


def test_a_lease_does_not_outlive_the_trio_run_whose_clock_it_is_on() -> None:
    store = InMemoryStore()
    assert trio.run(store.acquire, "k", "here", 60.0) == 1
    assert trio.run(store.acquire, "k", "there", 60.0) == 2


async def test_an_idle_conversation_costs_less_than_two_hundred_bytes() -> None:
    store = InMemoryStore()
    await store.commit("conversation 0000", Change(failures=1))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(1, 2001):
            await store.commit(f"conversation {number:04}", Change(failures=1))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / 2000 < 200


async def test_arguments_that_make_no_sense_are_refused_before_anything_happens() -> None:
    store = InMemoryStore()
    with pytest.raises(ConfigError, match="a page needs a limit of at least 1, not 0"):
        await store.entries("k", limit=0)
    with pytest.raises(ConfigError, match="a page needs a limit of at least 1, not -1"):
        await store.keys(limit=-1)
    with pytest.raises(ConfigError, match="a lease needs an owner"):
        await store.acquire("k", "", 1.0)
    for ttl in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="a lease needs a time of more than 0 seconds"):
            await store.acquire("k", "here", ttl)
    with pytest.raises(StoreError, match="keep only JSON data"):
        await store.commit("k", Change(metadata={"a": object()}))
    assert await store.keys() == []
    assert repr(store) == "<InMemoryStore: 0 conversations>"


async def test_a_whole_number_of_seconds_is_a_time() -> None:
    store = InMemoryStore()
    await store.commit("k", Change(append=[attrs.evolve(entry("1"), at=5)]))
    (kept,) = (await store.entries("k")).entries
    assert (kept.at, type(kept.at)) == (5.0, float)


async def test_errors_say_what_to_do() -> None:
    store = InMemoryStore()
    await store.commit("k", Change(append=[entry("1")]))
    with pytest.raises(StoreError, match=r"^'k' has version 1, the change was made against 0; load it again"):
        await store.commit("k", Change(), expect=0)
    with pytest.raises(StoreError, match=r"^'k' already has an entry '1'; ids are unique"):
        await store.commit("k", Change(append=[entry("1")]))
    with pytest.raises(StoreError, match=r"^'k' has no entry '2'; load its entries again"):
        await store.commit("k", Change(truncate_after="2"))
    await store.acquire("k", "here", 60)
    with pytest.raises(StoreError, match=r"^the lease on 'k' was lost: token 1 is newer than 0; stop writing to it"):
        await store.commit("k", Change(), token=0)


@pytest.mark.parametrize(("now", "ttl"), [(0.1, 0.2), (1e9 + 0.1, 0.3), (0.7, 1e-9), (53_000.123, 5.1)])
async def test_a_lease_is_kept_at_the_instant_in_which_it_was_taken(
    mock_clock: MockClock, now: float, ttl: float
) -> None:
    # The sum of a time and a span is rounded: less the time it may be more than the span.
    mock_clock.jump(now)
    store = InMemoryStore()
    assert await store.acquire("k", "here", ttl) == 1
    assert await store.acquire("k", "there", ttl) is (None if now + ttl > now else 2)
    mock_clock.jump(ttl * 1.5 + 1e-6)
    assert await store.acquire("k", "there", ttl) == 2
