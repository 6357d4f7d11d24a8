"""Both stores do what `abc.Store` says: every check of the suite, and programs made by hypothesis."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from goliath_actors._conformance import StoreCheck, store_conformance
from goliath_actors.abc import Store
from goliath_actors.stores import InMemoryStore, SqliteStore
from goliath_actors.stores._reference import Acquire, Commit, Find, Forget, Keys, Op, Read, Reference, Release, step

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
