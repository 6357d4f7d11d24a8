"""Both stores do what `abc.Store` says: every check of the suite, and programs made by hypothesis."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from goliath_actors._conformance import StoreCheck, store_conformance
from goliath_actors.abc import Change, Entry, Record, Store
from goliath_actors.errors import StoreConflict, StoreError
from goliath_actors.stores import InMemoryStore, SqliteStore
from goliath_actors.stores._reference import (
    Acquire,
    Commit,
    Find,
    Forget,
    Keys,
    Op,
    Read,
    Reference,
    Release,
    random_program,
    step,
)
from goliath_actors.values import Message, Page

MakeStore = Callable[[Path], Store]


def in_memory(directory: Path) -> Store:
    return InMemoryStore()


def in_sqlite(directory: Path) -> Store:
    return SqliteStore(directory / "chat.db", synchronous="NORMAL", clock=trio.current_time)


both = pytest.mark.parametrize("make", [in_memory, in_sqlite])


@both
@pytest.mark.parametrize("check", store_conformance)
async def test_the_store_passes(check: StoreCheck, make: MakeStore, tmp_path: Path, mock_clock: MockClock) -> None:
    kept: list[Store] = []

    def make_store() -> Store:
        kept.append(make(tmp_path))
        return kept[-1]

    async def pass_time(seconds: float) -> None:
        mock_clock.jump(seconds)

    await check(make_store, pass_time=pass_time)
    assert kept, "the check made no store"


@both
async def test_the_whole_suite_runs_on_one_database(make: MakeStore, tmp_path: Path, mock_clock: MockClock) -> None:
    async def pass_time(seconds: float) -> None:
        mock_clock.jump(seconds)

    await store_conformance(lambda: make(tmp_path), pass_time=pass_time)


# Any: what the types of an entry forbid.
BAD: list[dict[str, Any]] = [
    {"role": "banana"},
    {"role": None},
    {"at": True},
    {"at": "noon"},
    {"at": 10**400},
    {"transcript_visible": "yes"},
    {"context_visible": None},
    {"message": Message("banana", "hello")},  # type: ignore[arg-type]
    {"message": Message("user", None)},  # type: ignore[arg-type]
]


@both
@pytest.mark.parametrize("bad", BAD)
async def test_what_could_not_be_read_again_is_refused(make: MakeStore, bad: dict[str, Any], tmp_path: Path) -> None:
    good = Entry("1", 1.0, "user", Message("user", "hello"))
    async with AsyncExitStack() as stack:
        store = make(tmp_path)
        if isinstance(store, SqliteStore):
            await stack.enter_async_context(store)
        with pytest.raises(StoreError, match=r"^the entry '1' cannot be stored"):
            await store.commit("k", Change(append=[attrs.evolve(good, **bad)]))
        assert await store.load("k") == Record()
        await store.commit("k", Change(append=[good]))
        assert (await store.entries("k")).entries == [good]


class Faulty:
    """A store that does one thing wrong. Any: what it wraps is reached by name, which no type checker follows."""

    def __init__(self, **methods: Any) -> None:
        self.inner: Any = InMemoryStore()
        self.methods = methods

    def __getattr__(self, name: str) -> Any:
        if name in self.methods:
            return partial(self.methods[name], self.inner)
        return getattr(self.inner, name)


def faulty(**methods: Any) -> Any:
    return Faulty(**methods)


async def forget_the_lease(store: Any, key: str) -> None:
    await store.forget(key)
    store._leases.pop(key, None)


async def no_checkpoint(store: Any, key: str, owner: str) -> None:
    store._leases.pop(key, None)


async def anything_goes(store: Any, key: str, change: Change, expect: object = None, token: object = None) -> Record:
    try:
        return await store.commit(key, change, expect, token)  # type: ignore[no-any-return]
    except StoreConflict:
        return await store.commit(key, change)  # type: ignore[no-any-return]


async def lose_a_part(store: Any, key: str, change: Change, expect: object = None, token: object = None) -> Record:
    record: Record = await store.commit(key, attrs.evolve(change, append=()), expect, token)
    await trio.lowlevel.checkpoint()
    return await store.commit(key, Change(append=change.append)) if change.append else record


async def newest(store: Any, key: str, before: int | None = None, limit: int = 50, **where: Any) -> Page:
    where["anchor"] = None
    return await store.entries(key, before, limit=limit, **where)  # type: ignore[no-any-return]


async def backwards(store: Any, *args: Any, **where: Any) -> list[str]:
    return sorted(await store.keys(*args, **where), reverse=True)


async def found_anywhere(store: Any, key: str, idempotency_key: str) -> Entry | None:
    return next(iter((await store.entries(key)).entries), None)


@pytest.mark.parametrize(
    ("fault", "failing"),
    [
        ({"commit": anything_goes}, "a_conflict_changes_nothing"),
        ({"commit": anything_goes}, "one_of_many_writers_with_the_same_version_wins"),
        ({"commit": anything_goes}, "an_older_token_is_refused"),
        ({"commit": lose_a_part}, "a_cancelled_commit_is_there_wholly_or_not_at_all"),
        ({"commit": lose_a_part}, "it_agrees_with_a_plain_reference"),
        ({"forget": forget_the_lease}, "leases_are_exclusive_and_their_tokens_grow"),
        ({"release": no_checkpoint}, "every_method_is_a_checkpoint"),
        ({"entries": newest}, "an_anchor_keeps_pages_from_shifting"),
        ({"keys": backwards}, "keys_come_in_order_page_by_page"),
        ({"find": found_anywhere}, "entries_are_found_by_their_idempotency_key"),
        ({"durable": lambda store: True}, "a_durable_store_is_found_again"),
    ],
)
async def test_a_store_with_a_fault_fails(fault: dict[str, Any], failing: str, mock_clock: MockClock) -> None:
    check = next(check for check in store_conformance if check.__name__ == failing)
    with pytest.raises((AssertionError, StoreConflict)):
        await check(lambda: faulty(**fault))


async def wrong_before_late(
    store: Any, key: str, change: Change, expect: object = None, token: object = None
) -> Record:
    try:
        return await store.commit(key, change, expect, token)  # type: ignore[no-any-return]
    except StoreConflict:
        trial = InMemoryStore()
        await trial.commit(key, Change(append=(await store.entries(key)).entries))
        await trial.commit(key, change)
        raise


async def test_a_store_that_looks_at_ids_before_the_version_fails(mock_clock: MockClock) -> None:
    check = next(check for check in store_conformance if check.__name__ == "a_conflict_changes_nothing")
    with pytest.raises(StoreError, match="already has an entry '1'"):
        await check(lambda: faulty(commit=wrong_before_late))


async def test_programs_only_show_tokens_that_were_given_out() -> None:
    shown: list[tuple[int | None, int]] = []

    async def watched(store: Any, key: str, change: Change, expect: object = None, token: int | None = None) -> Record:
        shown.append((token, reference.token(key)))
        return await store.commit(key, change, expect, token)  # type: ignore[no-any-return]

    for seed in range(8):
        reference, store = Reference(), faulty(commit=watched)
        for serial, op in enumerate(random_program(Random(seed), 40)):
            await step(store, reference, op, serial, "k")
    assert [pair for pair in shown if pair[0] is not None and not 1 <= pair[0] <= pair[1]] == []
    assert {newest - token for token, newest in shown if token is not None} == {0, 1}


async def test_the_suite_names_the_check_that_failed(mock_clock: MockClock) -> None:
    with pytest.raises(AssertionError) as caught:
        await store_conformance(lambda: faulty(keys=backwards))
    assert caught.value.__notes__ == ["in the store check every_text_comes_back_as_it_was"]


keys = st.integers(0, 3)
positions = st.none() | st.integers(0, 12)
numbers = st.integers(-1, 6)
owners = st.sampled_from(["here", "there"])
operations: st.SearchStrategy[Op] = st.one_of(
    st.builds(
        Commit,
        keys,
        append=st.integers(0, 3),
        number=st.none() | st.integers(0, 9),
        truncate=st.sampled_from(["nothing", "all"]) | numbers,
        show=st.lists(st.tuples(numbers, st.booleans(), st.booleans()), max_size=2).map(tuple),
        expect=st.sampled_from(["any", "right", "wrong"]),
        token=st.sampled_from(["none", "newest", "older"]),
        again=st.booleans(),
    ),
    st.builds(Read, keys, positions, positions, st.integers(1, 5), positions),
    st.builds(Find, keys, st.integers(0, 4)),
    st.builds(Forget, keys),
    st.builds(Keys, st.sampled_from(["", "0", "01"]), st.none() | keys, st.integers(1, 4)),
    st.builds(Acquire, keys, owners),
    st.builds(Release, keys, owners),
)
# A number instead of an operation lets that many seconds pass; leases last a thousand.
programs = st.lists(operations | st.sampled_from([1.0, 600.0, 1001.0]), max_size=25)


@both
@settings(max_examples=60, deadline=None)
@given(program=programs)
def test_any_program_does_the_same_as_on_a_plain_reference(make: MakeStore, program: list[Any]) -> None:
    async def main(store: Any, clock: MockClock) -> None:
        reference = Reference()
        for serial, op in enumerate(program):
            if isinstance(op, float):
                clock.jump(op)
                reference.now += op
                continue
            real, right = await step(store, reference, op, serial, "k")
            assert real == right, op
        if isinstance(store, SqliteStore):
            await store.aclose()

    with tempfile.TemporaryDirectory() as directory:
        clock = MockClock()
        trio.run(main, make(Path(directory)), clock, clock=clock)
