"""A store as plain as can be, and programs to run on it and on a real one side by side.

For the conformance suite and for property tests. The reference keeps values in lists and dicts, and looks
through all of them each time: slow, and short enough to be read as the meaning of `abc.Store`.
"""

from __future__ import annotations

from random import Random
from typing import Any, Literal, TypeAlias

import attrs

from goliath_actors.abc import UNSET, Change, Entry, Record, Store, Unset
from goliath_actors.errors import StoreConflict, StoreError
from goliath_actors.values import Exchange, Memory, Message, Page

__all__ = [
    "Acquire",
    "Commit",
    "Find",
    "Forget",
    "Keys",
    "Op",
    "Read",
    "Reference",
    "Release",
    "random_program",
    "step",
]

LEASE_SECONDS = 1000.0


@attrs.define(eq=False)
class _Kept:
    version: int
    memory: Memory
    # Any: JSON data.
    metadata: dict[str, Any]
    private: dict[str, Any]
    failures: int
    entries: list[Entry]

    def record(self) -> Record:
        return Record(
            self.version, self.memory, self.metadata, self.private, self.failures, entries_count=len(self.entries)
        )


def _empty() -> _Kept:
    return _Kept(0, Memory(), {}, {}, 0, [])


@attrs.define(eq=False)
class Reference:
    """What `abc.Store` means, without time, tasks, or a disk. `now` is the clock of the leases, in seconds."""

    now: float = 0.0
    kept: dict[str, _Kept] = attrs.field(factory=dict)
    # owner, token, end
    leases: dict[str, tuple[str | None, int, float]] = attrs.field(factory=dict)

    def load(self, key: str) -> Record:
        return self.kept.get(key, _empty()).record()

    def commit(self, key: str, change: Change, expect: int | None = None, token: int | None = None) -> Record:
        old = self.kept.get(key, _empty())
        if expect is not None and expect != old.version:
            raise StoreConflict("version")
        if token is not None and token < self.token(key):
            raise StoreConflict("token")
        entries = list(old.entries)
        if change.truncate_after == "":
            entries = []
        elif change.truncate_after is not None:
            entries = entries[: self._index(entries, change.truncate_after) + 1]
        for entry in change.append:
            if any(entry.id == other.id for other in entries):
                raise StoreError("taken")
            entries.append(entry)
        for id, (transcript, context) in change.visibility.items():
            index = self._index(entries, id)
            entries[index] = attrs.evolve(entries[index], transcript_visible=transcript, context_visible=context)
        self.kept[key] = new = _Kept(
            old.version + 1,
            old.memory if isinstance(change.memory, Unset) else change.memory,
            old.metadata if isinstance(change.metadata, Unset) else dict(change.metadata),
            old.private if isinstance(change.private, Unset) else dict(change.private),
            old.failures if isinstance(change.failures, Unset) else change.failures,
            entries,
        )
        return new.record()

    def _index(self, entries: list[Entry], id: str) -> int:
        for index, entry in enumerate(entries):
            if entry.id == id:
                return index
        raise StoreError("unknown")

    def entries(self, key: str, before: int | None, after: int | None, limit: int, anchor: int | None) -> Page:
        numbered = list(enumerate(self.kept.get(key, _empty()).entries, 1))
        end = len(numbered) if anchor is None else min(anchor, len(numbered))
        seen = [(n, entry) for n, entry in numbered if n <= end and (before is None or n < before)]
        if after is None:
            page = seen[-limit:]
            more = page[0][0] if len(page) < len(seen) else None
        else:
            seen = [(n, entry) for n, entry in seen if n > after]
            page = seen[:limit]
            more = page[-1][0] if len(page) < len(seen) else None
        return Page([entry for _, entry in page], end, more)

    def forget(self, key: str) -> None:
        self.kept.pop(key, None)

    def keys(self, prefix: str, after: str | None, limit: int) -> list[str]:
        found = [key for key in self.kept if key.startswith(prefix) and (after is None or key > after)]
        return sorted(found)[:limit]

    def find(self, key: str, idempotency_key: str) -> Entry | None:
        for entry in self.kept.get(key, _empty()).entries:
            if entry.private.get("idempotency_key") == idempotency_key:
                return entry
        return None

    def token(self, key: str) -> int:
        return self.leases.get(key, (None, 0, 0.0))[1]

    def acquire(self, key: str, owner: str, ttl: float) -> int | None:
        holder, token, end = self.leases.get(key, (None, 0, 0.0))
        if holder != owner:
            if holder is not None and self.now < end:
                return None
            token += 1
        self.leases[key] = (owner, token, self.now + ttl)
        return token

    def release(self, key: str, owner: str) -> None:
        holder, token, _ = self.leases.get(key, (None, 0, 0.0))
        if holder == owner:
            self.leases[key] = (None, token, 0.0)


@attrs.frozen
class Commit:
    """A commit. Entries are named by number: `append` new ones, `truncate` and `show` existing ones, modulo their count
    (-1: none of that name). `expect` and `token` are chosen when it is run."""

    key: int
    append: int = 0
    number: int | None = None
    truncate: int | Literal["all", "nothing"] = "nothing"
    show: tuple[tuple[int, bool, bool], ...] = ()
    expect: Literal["any", "right", "wrong"] = "any"
    token: Literal["none", "newest", "older"] = "none"
    again: bool = False


@attrs.frozen
class Read:
    """Read a page."""

    key: int
    before: int | None = None
    after: int | None = None
    limit: int = 3
    anchor: int | None = None


@attrs.frozen
class Find:
    key: int
    number: int


@attrs.frozen
class Forget:
    key: int


@attrs.frozen
class Keys:
    prefix: str = ""
    after: int | None = None
    limit: int = 2


@attrs.frozen
class Acquire:
    key: int
    owner: str


@attrs.frozen
class Release:
    key: int
    owner: str


Op: TypeAlias = Commit | Read | Find | Forget | Keys | Acquire | Release


def _change(op: Commit, entries: list[Entry], serial: int) -> Change:
    def named(number: int) -> str:
        return entries[number % len(entries)].id if entries and number >= 0 else "nobody"

    new = [
        Entry(
            f"e{serial}-{n}",
            float(serial),
            "user" if n % 2 else "assistant",
            Message("user" if n % 2 else "assistant", f"text {serial} {n}"),
            private={"idempotency_key": f"i{serial % 5}"} if n % 2 else {},
        )
        for n in range(op.append)
    ]
    if op.again and new and entries:
        new[-1] = attrs.evolve(new[-1], id=entries[0].id)
    number = op.number
    recent = () if number is None else (Exchange("ask", f"{number}", float(number)),)
    return Change(
        memory=UNSET if number is None else Memory(f"summary {number}", recent),
        metadata=UNSET if number is None or number % 2 else {"number": number},
        private=UNSET if number is None or number % 3 else {"cursor": [number]},
        failures=UNSET if number is None else number,
        append=new,
        visibility={named(number): (transcript, context) for number, transcript, context in op.show},
        truncate_after=None if op.truncate == "nothing" else "" if op.truncate == "all" else named(op.truncate),
    )


def _token(op: Commit, newest: int) -> int | None:
    # Only tokens that were really given out, from 1 to `newest`: what others would mean, no store has to know.
    if op.token == "older":
        return newest - 1 if newest > 1 else None
    return newest if op.token == "newest" and newest else None


def _listed(page: Page) -> Page:
    return Page(list(page.entries), page.anchor, page.next)


async def step(store: Store, reference: Reference, op: Op, serial: int, prefix: str) -> tuple[object, object]:
    """Do `op` on both, and return (what the store did, what was right), results and errors' types alike.

    Arguments: `serial`, a number that is new in each step; `prefix`, put before every key.
    """

    def name(key: int) -> str:
        return f"{prefix}{key:02}"

    real: object
    right: object
    match op:
        case Commit():
            key = name(op.key)
            kept = reference.kept.get(key, _empty())
            change = _change(op, kept.entries, serial)
            expect = {"any": None, "right": kept.version, "wrong": kept.version + 1}[op.expect]
            token = _token(op, reference.token(key))
            try:
                right = reference.commit(key, change, expect, token)
            except StoreError as error:
                right = type(error)
            try:
                real = await store.commit(key, change, expect, token)
            except StoreError as error:
                real = type(error)
            # What an error must leave as it was is seen here.
            real = (real, await store.load(key), _listed(await store.entries(key, after=0, limit=100)))
            return real, (right, reference.load(key), reference.entries(key, None, 0, 100, None))
        case Read():
            key = name(op.key)
            real = _listed(await store.entries(key, op.before, op.after, op.limit, op.anchor))
            return real, reference.entries(key, op.before, op.after, op.limit, op.anchor)
        case Find():
            key, wanted = name(op.key), f"i{op.number}"
            return await store.find(key, wanted), reference.find(key, wanted)
        case Forget():
            await store.forget(name(op.key))
            reference.forget(name(op.key))
            return await store.load(name(op.key)), reference.load(name(op.key))
        case Keys():
            after = None if op.after is None else name(op.after)
            real = list(await store.keys(prefix + op.prefix, after, op.limit))
            return real, reference.keys(prefix + op.prefix, after, op.limit)
        case Acquire():
            real = await store.acquire(name(op.key), op.owner, LEASE_SECONDS)
            return real, reference.acquire(name(op.key), op.owner, LEASE_SECONDS)
        case Release():
            await store.release(name(op.key), op.owner)
            reference.release(name(op.key), op.owner)
            return None, None


def random_program(random: Random, length: int) -> list[Op]:
    """Return `length` operations on a few keys. The same `random` gives the same program."""
    # Two keys have had a lease before, so that there is an older token; chance alone seldom comes that far.
    leases: list[Op] = [
        op for key in (0, 1) for op in (Acquire(key, "here"), Release(key, "here"), Acquire(key, "there"))
    ]
    return [*leases, *(_random_op(random) for _ in range(length - len(leases)))]


def _random_op(random: Random) -> Op:
    key = random.randrange(4)
    some = random.choice([None, *range(8)])
    owner = random.choice(["here", "there"])
    others: list[Op] = [
        Read(key, random.choice([None, *range(8)]), some, random.randrange(1, 5), random.choice([None, *range(8)])),
        Find(key, random.randrange(5)),
        Keys(random.choice(["", "0"]), random.choice([None, key]), random.randrange(1, 4)),
        Acquire(key, owner),
        Release(key, owner),
    ]
    if random.random() < 0.03:
        return Forget(key)
    if random.random() < 0.4:
        return random.choice(others)
    return Commit(
        key,
        append=random.randrange(4),
        number=some,
        truncate=random.choice(["nothing", "nothing", "nothing", "all", -1, *range(5)]),
        show=tuple((random.randrange(-1, 6), random.random() < 0.5, random.random() < 0.5) for _ in range(some or 0))[
            :2
        ],
        expect=random.choice(["any", "right", "right", "wrong"]),
        token=random.choice(["none", "none", "newest", "older"]),
        again=random.random() < 0.1,
    )
