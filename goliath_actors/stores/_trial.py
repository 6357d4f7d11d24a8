"""What the checks of the conformance suite are written with.

No test framework: checks raise `AssertionError` by themselves and say what they expected.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import attrs

from goliath_actors.abc import Entry, Record, Store
from goliath_actors.errors import StoreError
from goliath_actors.values import Exchange, Memory, Message, Page

__all__ = ["MakeStore", "PassTime", "Trial", "entry", "everything", "ids", "raises", "remembered", "same"]

MakeStore: TypeAlias = Callable[[], Store]
PassTime: TypeAlias = Callable[[float], Awaitable[None]]


@attrs.frozen
class Trial:
    """What a check works with."""

    make_store: MakeStore
    pass_time: PassTime
    key: str

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Store]:
        # Any: the async context manager protocol is optional for a store.
        store: Any = self.make_store()
        if hasattr(store, "__aenter__"):
            async with store:
                yield store
        else:
            yield store


def same(actual: object, expected: object, what: str) -> None:
    # No `assert`: it would be gone under -O, and tells users nothing outside of pytest's own files.
    if actual != expected:
        raise AssertionError(f"{what}: expected {expected!r}, got {actual!r}")


async def raises(kind: type[StoreError], awaitable: Awaitable[object], what: str) -> None:
    try:
        value = await awaitable
    except StoreError as error:
        if not isinstance(error, kind):
            raise
    else:
        raise AssertionError(f"{what}: expected {kind.__name__}, got {value!r}")


def entry(name: str, **fields: Any) -> Entry:
    return Entry(name, 1.5, "user", Message("user", f"text of {name}"), **fields)


def ids(page: Page) -> list[str]:
    return [entry.id for entry in page.entries]


def remembered(summary: str, *exchanges: Exchange) -> Memory:
    return Memory(summary, exchanges)


async def everything(store: Store, key: str) -> tuple[Record, Sequence[Entry]]:
    return await store.load(key), list((await store.entries(key, after=0, limit=1000)).entries)
