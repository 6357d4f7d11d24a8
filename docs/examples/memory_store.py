"""A store of your own, as plain as can be: dicts in this process, put through the checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy

import attrs
import trio

from goliath_actors.abc import Change, Entry, Record, Unset
from goliath_actors.errors import StoreConflict, StoreError
from goliath_actors.testing import store_conformance
from goliath_actors.values import Memory, Page


class DictStore:
    """Keeps deep copies, and gives out deep copies: nobody changes what is kept."""

    durable = False

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}
        self.histories: dict[str, list[Entry]] = {}
        self.leases: dict[str, tuple[str | None, int, float]] = {}  # who (None: released), token, until when

    async def load(self, key: str) -> Record:
        await trio.lowlevel.checkpoint()
        return deepcopy(self.records.get(key, Record()))

    async def commit(self, key: str, change: Change, expect: int | None = None, token: int | None = None) -> Record:
        # All waiting comes first: from here on the change is made in one go, or not at all.
        await trio.lowlevel.checkpoint()
        old = self.records.get(key, Record())
        # Too late comes before wrong.
        if expect is not None and expect != old.version:
            raise StoreConflict(f"{key!r} has version {old.version}, not {expect}")
        if token is not None and token < self.leases.get(key, (None, 0, 0.0))[1]:
            raise StoreConflict(f"the lease on {key!r} was lost")
        # Work on a copy, so that an unknown id in the middle changes nothing.
        history = {entry.id: entry for entry in self.histories.get(key, [])}
        if change.truncate_after == "":
            history = {}
        elif change.truncate_after is not None:
            ids = list(history)
            keep = ids.index(known(history, change.truncate_after)) + 1
            history = {id: history[id] for id in ids[:keep]}
        for entry in change.append:
            if entry.id in history:
                raise StoreError(f"{key!r} already has an entry {entry.id!r}")
            history[entry.id] = deepcopy(entry)
        for id, (transcript, context) in change.visibility.items():
            entry = history[known(history, id)]
            history[id] = attrs.evolve(entry, transcript_visible=transcript, context_visible=context)
        self.records[key] = Record(
            old.version + 1,
            old.memory if isinstance(change.memory, Unset) else without_output(change.memory),
            old.metadata if isinstance(change.metadata, Unset) else deepcopy(change.metadata),
            old.private if isinstance(change.private, Unset) else deepcopy(change.private),
            old.failures if isinstance(change.failures, Unset) else change.failures,
            len(history),
        )
        self.histories[key] = list(history.values())
        return deepcopy(self.records[key])

    async def entries(
        self,
        key: str,
        before: int | None = None,
        after: int | None = None,
        limit: int = 50,
        anchor: int | None = None,
    ) -> Page:
        await trio.lowlevel.checkpoint()
        history = self.histories.get(key, [])
        anchor = len(history) if anchor is None else min(anchor, len(history))
        end = anchor if before is None else min(anchor, before - 1)
        seen = list(enumerate(history[: max(0, end)], 1))
        if after is not None:
            seen = seen[after:]
        page = seen[-limit:] if after is None else seen[:limit]
        # Going on: from the page's first entry backwards, or from its last one forwards.
        position = None if len(page) == len(seen) else page[0][0] if after is None else page[-1][0]
        return Page(deepcopy([entry for _, entry in page]), anchor, position)

    async def forget(self, key: str) -> None:
        await trio.lowlevel.checkpoint()
        self.records.pop(key, None)
        self.histories.pop(key, None)  # the lease stays

    async def keys(self, prefix: str = "", after: str | None = None, limit: int = 100) -> Sequence[str]:
        await trio.lowlevel.checkpoint()
        wanted = [key for key in self.records if key.startswith(prefix) and (after is None or key > after)]
        return sorted(wanted)[:limit]

    async def find(self, key: str, idempotency_key: str) -> Entry | None:
        await trio.lowlevel.checkpoint()
        for entry in self.histories.get(key, []):
            if entry.private.get("idempotency_key") == idempotency_key:
                return deepcopy(entry)
        return None

    async def acquire(self, key: str, owner: str, ttl: float) -> int | None:
        await trio.lowlevel.checkpoint()
        now = trio.current_time()
        holder, token, end = self.leases.get(key, (None, 0, 0.0))
        if holder != owner:
            if holder is not None and now < end:
                return None
            token += 1
        self.leases[key] = (owner, token, now + ttl)
        return token

    async def release(self, key: str, owner: str) -> None:
        await trio.lowlevel.checkpoint()
        holder, token, end = self.leases.get(key, (None, 0, 0.0))
        if holder == owner:
            self.leases[key] = (None, token, end)


def known(history: Mapping[str, Entry], id: str) -> str:
    if id not in history:
        raise StoreError(f"there is no entry {id!r}")
    return id


def without_output(memory: Memory) -> Memory:
    """A step's raw output lives only as long as its run."""
    recent = [
        attrs.evolve(exchange, steps=tuple(attrs.evolve(step, output=None) for step in exchange.steps))
        for exchange in memory.recent
    ]
    return deepcopy(attrs.evolve(memory, recent=tuple(recent)))


async def main() -> None:
    await store_conformance(DictStore)
    print(len(store_conformance), "checks passed")


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   26 checks passed
