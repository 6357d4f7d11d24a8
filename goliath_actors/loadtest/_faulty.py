"""A store that fails as often as a scenario says."""

from __future__ import annotations

import random
from collections.abc import Sequence

import attrs
import trio

from goliath_actors.abc import Change, Entry, Record, Store
from goliath_actors.errors import StoreError
from goliath_actors.values import Page

__all__ = ["FaultyStore"]


@attrs.define(eq=False)
class FaultyStore:
    """A store in front of another of whose commits a `share` fails, before anything is changed. Keeps no log:
    a soak test's memory is to be the runtime's."""

    inner: Store
    share: float
    dice: random.Random

    async def load(self, key: str) -> Record:
        return await self.inner.load(key)

    async def commit(self, key: str, change: Change, expect: int | None = None, token: int | None = None) -> Record:
        if self.dice.random() < self.share:
            await trio.lowlevel.checkpoint()
            raise StoreError("the simulated store failed, as the scenario says")
        return await self.inner.commit(key, change, expect, token)

    async def entries(
        self,
        key: str,
        before: int | None = None,
        after: int | None = None,
        limit: int = 50,
        anchor: int | None = None,
    ) -> Page:
        return await self.inner.entries(key, before, after, limit, anchor)

    async def forget(self, key: str) -> None:
        await self.inner.forget(key)

    async def keys(self, prefix: str = "", after: str | None = None, limit: int = 100) -> Sequence[str]:
        return await self.inner.keys(prefix, after, limit)

    async def find(self, key: str, idempotency_key: str) -> Entry | None:
        return await self.inner.find(key, idempotency_key)

    async def acquire(self, key: str, owner: str, ttl: float) -> int | None:
        return await self.inner.acquire(key, owner, ttl)

    async def release(self, key: str, owner: str) -> None:
        await self.inner.release(key, owner)
