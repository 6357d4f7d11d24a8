"""How a `SqliteStore` reads: records, entries and keys, as functions of a connection.

They run in worker threads, on a connection that cannot write; changes use some of them too.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from typing import TypeAlias

import attrs

from goliath_actors.abc import Entry, Record
from goliath_actors.values import Memory, Page

from ._codec import Unreadable, decode_entry, decode_record
from ._rules import page_bounds
from ._trouble import BadEntry, BadRecord, Untold

__all__ = [
    "NOTHING",
    "Known",
    "check_entry",
    "check_record",
    "entries",
    "find",
    "head_of",
    "keys",
    "load",
    "pack",
    "tell_of_quarantine",
    "unpack",
]


# id, version, entries, failures, memory, metadata, private. A TEXT column makes texts of numbers, so that we get bytes
# whatever a damaged file holds; an INTEGER column does nothing of that kind.
_Head: TypeAlias = tuple[int, object, object, object, bytes | None, bytes | None, bytes | None]


@attrs.define(eq=False)
class Known:
    """The head of a record, its numbers being numbers."""

    id: int
    version: int = 0
    entries: int = 0
    failures: int = 0
    memory: bytes | None = None
    metadata: bytes | None = None
    private: bytes | None = None

    def record(self, plain_memory: Memory | None = None) -> Record:
        texts = self.memory, self.metadata, self.private
        try:
            return decode_record(self.version, *texts, self.failures, self.entries, plain_memory)
        except Unreadable as error:
            raise BadRecord(str(error)) from error


# No record has this id: SQLite counts from 1.
NOTHING = Known(0)


def pack(text: str) -> bytes:
    """Return a key, id or owner as it is stored: any `str`, in the order of code points."""
    return text.encode("utf-8", "surrogatepass")


def unpack(stored: bytes) -> str:
    """Return what `pack` was given."""
    return stored.decode("utf-8", "surrogatepass")


def head_of(connection: sqlite3.Connection, key: bytes) -> Known | None:
    """Return the head of the record, or None. Raises `BadRecord`."""
    row: _Head | None = connection.execute(
        "SELECT id, version, entries, failures, memory, metadata, private FROM records WHERE key = ?", (key,)
    ).fetchone()
    if row is None:
        return None
    id, version, entries, failures, memory, metadata, private = row
    if not (isinstance(version, int) and isinstance(entries, int) and isinstance(failures, int)):
        raise BadRecord("a number of the record is none")
    if version < 1 or entries < 0:
        raise BadRecord(f"the record has version {version} and {entries} entries")
    return Known(id, version, entries, failures, memory, metadata, private)


def load(connection: sqlite3.Connection, key: str, told: Collection[int]) -> Record:
    """Return the record of `key`. `told`: the rows of the quarantine that the caller has been told of.

    Raises: `BadRecord`; `Untold`.
    """
    packed = pack(key)
    head = head_of(connection, packed)
    if head is not None:
        return head.record()
    tell_of_quarantine(connection, packed, told)
    return Record()


def check_record(connection: sqlite3.Connection, key: bytes) -> None:
    """Raise `BadRecord` if there is a record that cannot be read, or that counts less entries than it has."""
    head = head_of(connection, key)
    if head is None:
        return
    head.record()
    (last,) = connection.execute("SELECT max(position) FROM entries WHERE record = ?", (head.id,)).fetchone()
    if last is not None and last > head.entries:
        raise BadRecord(f"the record counts {head.entries} entries and has {last}")


def check_entry(connection: sqlite3.Connection, key: bytes, position: int) -> None:
    """Raise `BadEntry` if there is an entry that cannot be read."""
    row = connection.execute(
        "SELECT position, id, body FROM entries WHERE record = (SELECT id FROM records WHERE key = ?) "
        "AND position = ? AND body IS NOT NULL",
        (key, position),
    ).fetchone()
    if row is not None:
        entry_of(*row)


def tell_of_quarantine(connection: sqlite3.Connection, key: bytes, told: Collection[int]) -> None:
    """Raise `Untold` if something was set aside under this key that nobody is known to have been told of."""
    rows = connection.execute(
        "SELECT id, reason FROM quarantine WHERE key = ? AND reported = 0 AND part_of IS NULL ORDER BY id", (key,)
    ).fetchall()
    for place, reason in rows:
        if place not in told:
            raise Untold(place, _words(reason))


def _words(reason: object) -> str:
    # The connection that reads gets texts as bytes, and a damaged file may hold anything.
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)


def entries(
    connection: sqlite3.Connection,
    key: str,
    before: int | None,
    after: int | None,
    limit: int,
    anchor: int | None,
    told: Collection[int],
) -> Page:
    """Return a page, as of one moment. An entry that was set aside leaves its position empty.

    Raises: `BadRecord`; `BadEntry`; `Untold`.
    """
    packed = pack(key)
    connection.execute("BEGIN")
    try:
        head = head_of(connection, packed)
        tell_of_quarantine(connection, packed, told)
        old = head or NOTHING
        page = page_bounds(old.entries, before, after, limit, anchor)
        rows = connection.execute(
            "SELECT position, id, body FROM entries WHERE record = ? AND position BETWEEN ? AND ? AND body IS NOT NULL "
            "ORDER BY position",
            (old.id, page.first, page.last),
        ).fetchall()
    finally:
        if connection.in_transaction:
            connection.execute("COMMIT")
    return Page([entry_of(position, id, body) for position, id, body in rows], page.anchor, page.next)


def entry_of(position: int, id: object, body: object) -> Entry:
    if not (isinstance(id, bytes) and isinstance(body, bytes)):
        raise BadEntry(position, "entry: its id or its body is no text")
    try:
        return decode_entry(unpack(id), body)
    except (Unreadable, UnicodeDecodeError) as error:
        raise BadEntry(position, str(error)) from error


def find(connection: sqlite3.Connection, key: str, idempotency_key: str) -> Entry | None:
    """Return the oldest entry with this idempotency key. Raises `BadEntry`."""
    # The + keeps SQLite from walking the whole conversation in the order of positions instead of using the index.
    row = connection.execute(
        "SELECT position, id, body FROM entries WHERE record = (SELECT id FROM records WHERE key = ?) "
        "AND idempotency_key = ? AND body IS NOT NULL ORDER BY +position LIMIT 1",
        (pack(key), pack(idempotency_key)),
    ).fetchone()
    return None if row is None else entry_of(*row)


def keys(connection: sqlite3.Connection, prefix: str, after: str | None, limit: int) -> list[str]:
    """Return keys in order of code points."""
    start = pack(prefix)
    where, values = ["key >= ?"], [start]
    if after is not None:
        where.append("key > ?")
        values.append(pack(after))
    # The smallest key behind everything with this prefix. UTF-8 has no byte FF, so the last one can be raised.
    if start:
        where.append("key < ?")
        values.append(start[:-1] + bytes([start[-1] + 1]))
    rows = connection.execute(
        f"SELECT key FROM records WHERE {' AND '.join(where)} ORDER BY key LIMIT ?", (*values, limit)
    )
    found = [key for (key,) in rows]
    # A key that is no text (a damaged file) is nobody's: no name leads to it.
    return [text for key in found if (text := _text_of(key)) is not None]


def _text_of(key: object) -> str | None:
    try:
        return unpack(key) if isinstance(key, bytes) else None
    except UnicodeDecodeError:
        return None
