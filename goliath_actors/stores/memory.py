"""A store in this process's memory: the default, and what tests use.

What callers could change is kept as JSON text, as in a file, and what could not be written to a file is refused here,
too. Texts, which nobody can change, are shared with callers: an idle conversation costs little more than those.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence, Set
from itertools import islice
from types import MappingProxyType
from typing import final

import attrs
import trio

from goliath_actors.abc import Change, Entry, Record, Unset
from goliath_actors.values import Page

from ._codec import decode_record, encode_parts, idempotency_marks
from ._packed import Packed, has_mark, pack, reshow, unpack
from ._rules import (
    Lease,
    check_lease,
    check_limit,
    check_turn,
    duplicate_id,
    page_bounds,
    take_lease,
    unknown_id,
)

__all__ = ["InMemoryStore"]


@attrs.define(eq=False, weakref_slot=False)
class _Conversation:
    """One record. None stands for what is empty."""

    version: int = 0
    memory: bytes | None = None
    metadata: bytes | None = None
    private: bytes | None = None
    failures: int = 0
    # Invariant: in order of append, so that the n-th one has position n.
    entries: dict[str, Packed] | None = None

    def record(self) -> Record:
        count = len(self.entries) if self.entries else 0
        return decode_record(self.version, self.memory, self.metadata, self.private, self.failures, count)


@final
@attrs.define(eq=False, repr=False)
class InMemoryStore:
    """Conversations in memory, gone with the process.

    Leases run on trio's clock. Every method is a checkpoint before it does anything: one that is cancelled has done
    nothing. Metadata has to be JSON data; NaN and infinity become None on the way.
    """

    durable = False

    _conversations: dict[str, _Conversation] = attrs.field(factory=dict, init=False)
    _leases: dict[str, Lease] = attrs.field(factory=dict, init=False)
    _leases_of: trio.lowlevel.TrioToken | None = attrs.field(default=None, init=False)
    # Invariant: the keys of _conversations in order, or None since one came or went.
    _ordered: list[str] | None = attrs.field(default=None, init=False)

    def __repr__(self) -> str:
        return f"<InMemoryStore: {len(self._conversations)} conversations>"

    async def load(self, key: str) -> Record:
        """Return the record, or an empty one of version 0. See `Store.load`."""
        await trio.lowlevel.checkpoint()
        conversation = self._conversations.get(key)
        return Record() if conversation is None else conversation.record()

    async def commit(self, key: str, change: Change, expect: int | None = None, token: int | None = None) -> Record:
        """Apply `change` atomically and return the new record. See `Store.commit`.

        Raises: `StoreConflict`; `StoreError` for an id that is taken (in `append`) or unknown (in `visibility` and
        `truncate_after`) and for what is not JSON data. Nothing is changed then.
        """
        # Taken before the checkpoint: what the caller does to its containers meanwhile changes nothing.
        parts, failures = encode_parts(change), change.failures
        packed = [(entry.id, pack(entry)) for entry in change.append]
        visibility = change.visibility and {
            id: (bool(pair[0]), bool(pair[1])) for id, pair in change.visibility.items()
        }
        await trio.lowlevel.checkpoint()
        known = self._conversations.get(key)
        lease = self._leases.get(key)
        check_turn(key, known.version if known else 0, expect, lease.token if lease else 0, token)
        conversation = known or _Conversation()
        entries = conversation.entries or {}
        dropped = _NO_IDS if change.truncate_after is None else _dropped(key, entries, change.truncate_after)
        added: dict[str, Packed] = {}
        for id, entry in packed:
            if id in added or (id in entries and id not in dropped):
                raise duplicate_id(key, id)
            added[id] = entry
        changed = _changed(key, visibility, added, entries, dropped) if visibility else _NONE
        memory = conversation.memory if isinstance(parts[0], Unset) else parts[0]
        metadata = conversation.metadata if isinstance(parts[1], Unset) else parts[1]
        private = conversation.private if isinstance(parts[2], Unset) else parts[2]
        failures = conversation.failures if isinstance(failures, Unset) else failures
        count = len(entries) - len(dropped) + len(added)
        record = decode_record(conversation.version + 1, memory, metadata, private, failures, count)
        # Nothing below can fail: this is what makes the change atomic.
        conversation.version, conversation.failures = record.version, failures
        conversation.memory, conversation.metadata, conversation.private = memory, metadata, private
        for id in dropped:
            del entries[id]
        entries.update(added)
        entries.update(changed)
        conversation.entries = entries or None
        if known is None:
            self._conversations[key] = conversation
            self._ordered = None
        return record

    async def entries(
        self,
        key: str,
        before: int | None = None,
        after: int | None = None,
        limit: int = 50,
        anchor: int | None = None,
    ) -> Page:
        """Return a page of entries, oldest first. See `Store.entries`.

        The position of the last entry is the record's `entries_count`; positions that `truncate_after` freed are given
        out again.
        """
        check_limit(limit)
        await trio.lowlevel.checkpoint()
        conversation = self._conversations.get(key)
        entries = (conversation.entries if conversation else None) or {}
        count = len(entries)
        page = page_bounds(count, before, after, limit, anchor)
        size = max(0, page.last - page.first + 1)
        if page.first - 1 <= count - page.last:
            found = list(islice(entries.items(), page.first - 1, page.first - 1 + size))
        else:
            # Histories are mostly read from their end; a dict is quick to walk from there, too.
            found = list(islice(reversed(entries.items()), count - page.last, count - page.last + size))[::-1]
        return Page([unpack(id, packed) for id, packed in found], page.anchor, page.next)

    async def forget(self, key: str) -> None:
        """Delete the record and its entries; a lease on the conversation stays. See `Store.forget`."""
        await trio.lowlevel.checkpoint()
        if self._conversations.pop(key, None) is not None:
            self._ordered = None

    async def keys(self, prefix: str = "", after: str | None = None, limit: int = 100) -> Sequence[str]:
        """Return up to `limit` keys that begin with `prefix`, in order of code points, from behind `after`."""
        check_limit(limit)
        await trio.lowlevel.checkpoint()
        if self._ordered is None:
            self._ordered = sorted(self._conversations)
        start = bisect_left(self._ordered, prefix)
        if after is not None:
            start = max(start, bisect_right(self._ordered, after))
        return [key for key in self._ordered[start : start + limit] if key.startswith(prefix)]

    async def find(self, key: str, idempotency_key: str) -> Entry | None:
        """Return the oldest entry whose private `idempotency_key` is this one, or None.

        Looks through the texts of the whole conversation, about 0.1 µs an entry, instead of keeping an index.
        """
        await trio.lowlevel.checkpoint()
        conversation = self._conversations.get(key)
        marks = idempotency_marks(idempotency_key)
        for id, packed in ((conversation.entries if conversation else None) or {}).items():
            if has_mark(packed, marks):
                entry = unpack(id, packed)
                if entry.private.get("idempotency_key") == idempotency_key:
                    return entry
        return None

    async def acquire(self, key: str, owner: str, ttl: float) -> int | None:
        """Take or renew the lease on a conversation for `ttl` seconds of trio's clock. See `Store.acquire`."""
        check_lease(owner, ttl)
        await trio.lowlevel.checkpoint()
        self._end_leases_of_another_run()
        now = trio.current_time()
        lease = take_lease(self._leases.get(key), owner, ttl, now, now)
        if lease is None:
            return None
        self._leases[key] = lease
        return lease.token

    async def release(self, key: str, owner: str) -> None:
        """Give the lease back early. See `Store.release`."""
        await trio.lowlevel.checkpoint()
        lease = self._leases.get(key)
        if lease is not None and lease.owner == owner:
            self._leases[key] = attrs.evolve(lease, owner=None)

    def _end_leases_of_another_run(self) -> None:
        # Each `trio.run` has a clock of its own, so times of an earlier one mean nothing; its holders are gone as well.
        token = trio.lowlevel.current_trio_token()
        if token is not self._leases_of:
            self._leases_of = token
            self._leases = {key: attrs.evolve(lease, owner=None) for key, lease in self._leases.items()}


_NO_IDS: frozenset[str] = frozenset()
_NONE: Mapping[str, Packed] = MappingProxyType({})


def _dropped(key: str, entries: dict[str, Packed], truncate_after: str) -> set[str]:
    if not truncate_after:
        return set(entries)
    if truncate_after not in entries:
        raise unknown_id(key, truncate_after)
    dropped: set[str] = set()
    for id in reversed(entries):
        if id == truncate_after:
            break
        dropped.add(id)
    return dropped


def _changed(
    key: str,
    visibility: Mapping[str, tuple[bool, bool]],
    added: dict[str, Packed],
    entries: dict[str, Packed],
    dropped: Set[str],
) -> dict[str, Packed]:
    changed: dict[str, Packed] = {}
    for id, visible in visibility.items():
        entry = added.get(id) or (entries.get(id) if id not in dropped else None)
        if entry is None:
            raise unknown_id(key, id)
        changed[id] = reshow(entry, visible)
    return changed
