"""What a `SqliteStore` says to SQLite: every statement, as functions of a connection.

Floor 2, under `sqlite`. They run in worker threads: those that change something as pieces of work of a group commit,
in a savepoint; those that read on a connection that cannot write.
"""

from __future__ import annotations

import sqlite3
from typing import TypeAlias

import attrs

from goliath_actors.abc import Entry, Record, Unset
from goliath_actors.values import Page

from ._codec import EncodedChange, EncodedEntry, Unreadable, decode_entry, decode_record, reencode_visibility
from ._rules import Lease, check_turn, duplicate_id, page_bounds, take_lease, unknown_id

__all__ = [
    "BadEntry",
    "BadRecord",
    "Untold",
    "acquire",
    "check_entry",
    "check_record",
    "commit",
    "entries",
    "find",
    "forget",
    "keys",
    "load",
    "pack",
    "release",
    "unpack",
]


class BadRecord(Exception):
    """A record cannot be read; the text says why."""


@attrs.define(eq=False)
class BadEntry(Exception):
    """An entry cannot be read."""

    position: int
    reason: str


@attrs.define(eq=False)
class Untold(Exception):
    """Something was set aside earlier, as the row `place` of the quarantine, and perhaps nobody heard of it."""

    place: int
    reason: str


# id, version, entries, failures, memory, metadata, private. A TEXT column makes texts of numbers, so that we get bytes
# whatever a damaged file holds; an INTEGER column does nothing of that kind.
_Head: TypeAlias = tuple[int, object, object, object, bytes | None, bytes | None, bytes | None]


@attrs.define(eq=False)
class _Known:
    """The head of a record, its numbers being numbers."""

    id: int
    version: int = 0
    entries: int = 0
    failures: int = 0
    memory: bytes | None = None
    metadata: bytes | None = None
    private: bytes | None = None

    def record(self) -> Record:
        try:
            return decode_record(self.version, self.memory, self.metadata, self.private, self.failures, self.entries)
        except Unreadable as error:
            raise BadRecord(str(error)) from error


# No record has this id: SQLite counts from 1.
_NOTHING = _Known(0)


def pack(text: str) -> bytes:
    """Return a key, id or owner as it is stored: any `str`, in the order of code points."""
    return text.encode("utf-8", "surrogatepass")


def _packed(text: str | None) -> bytes | None:
    return None if text is None else pack(text)


def unpack(stored: bytes) -> str:
    """Return what `pack` was given."""
    return stored.decode("utf-8", "surrogatepass")


def _head(connection: sqlite3.Connection, key: bytes) -> _Known | None:
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
    return _Known(id, version, entries, failures, memory, metadata, private)


def load(connection: sqlite3.Connection, key: str, told: bool) -> Record:
    """Return the record of `key`. `told`: the caller has been told of what was set aside under this key.

    Raises: `BadRecord`; `Untold`.
    """
    packed = pack(key)
    head = _head(connection, packed)
    if head is not None:
        return head.record()
    if not told:
        _tell_of_quarantine(connection, packed)
    return Record()


def check_record(connection: sqlite3.Connection, key: bytes) -> None:
    """Raise `BadRecord` if there is a record that cannot be read, or that counts less entries than it has."""
    head = _head(connection, key)
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
        _entry(*row)


def _tell_of_quarantine(connection: sqlite3.Connection, key: bytes) -> None:
    row = connection.execute(
        "SELECT id, reason FROM quarantine WHERE key = ? AND reported = 0 AND part_of IS NULL ORDER BY id", (key,)
    ).fetchone()
    if row is not None:
        raise Untold(row[0], row[1].decode(errors="replace"))


def commit(
    connection: sqlite3.Connection, key: str, change: EncodedChange, expect: int | None, token: int | None, told: bool
) -> Record:
    """Apply `change` and return the new record.

    Raises: `StoreConflict` and `StoreError` as `Store.commit`; `BadRecord`; `BadEntry`; `Untold`.
    """
    packed = pack(key)
    head = _head(connection, packed)
    if head is None and not told:
        _tell_of_quarantine(connection, packed)
    old = head or _NOTHING
    newest = 0
    if token is not None:
        lease = connection.execute("SELECT token FROM leases WHERE key = ?", (packed,)).fetchone()
        newest = lease[0] if lease else 0
    check_turn(key, old.version, expect, newest, token)
    kept = _kept(connection, key, old, change.truncate_after)
    new = _Known(
        old.id,
        old.version + 1,
        kept + len(change.append),
        old.failures if isinstance(change.failures, Unset) else change.failures,
        old.memory if isinstance(change.memory, Unset) else change.memory,
        old.metadata if isinstance(change.metadata, Unset) else change.metadata,
        old.private if isinstance(change.private, Unset) else change.private,
    )
    record = new.record()
    id = _put(connection, packed, new)
    if kept < old.entries:
        connection.execute("DELETE FROM entries WHERE record = ? AND position > ?", (id, kept))
    if change.append:
        _append(connection, key, id, kept, change.append)
    for entry_id, visible in change.visibility.items():
        _set_visibility(connection, key, id, entry_id, visible)
    if told:
        connection.execute("UPDATE quarantine SET reported = 1 WHERE key = ? AND reported = 0", (packed,))
    return record


def _kept(connection: sqlite3.Connection, key: str, old: _Known, truncate_after: str | None) -> int:
    if truncate_after is None:
        return old.entries
    if not truncate_after:
        return 0
    row = connection.execute(
        "SELECT position FROM entries WHERE record = ? AND id = ?", (old.id, pack(truncate_after))
    ).fetchone()
    if row is None:
        raise unknown_id(key, truncate_after)
    position: int = row[0]
    return position


def _put(connection: sqlite3.Connection, key: bytes, new: _Known) -> int:
    values = (new.version, new.entries, new.failures, _text(new.memory), _text(new.metadata), _text(new.private))
    if new.id:
        connection.execute(
            "UPDATE records SET version = ?, entries = ?, failures = ?, memory = ?, metadata = ?, private = ? "
            "WHERE id = ?",
            (*values, new.id),
        )
        return new.id
    cursor = connection.execute(
        "INSERT INTO records (version, entries, failures, memory, metadata, private, key) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (*values, key),
    )
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def _text(stored: bytes | None) -> str | None:
    return None if stored is None else stored.decode()


def _append(connection: sqlite3.Connection, key: str, record: int, kept: int, append: tuple[EncodedEntry, ...]) -> None:
    rows = [
        (record, position, pack(entry.id), _packed(entry.idempotency_key), entry.body.decode())
        for position, entry in enumerate(append, kept + 1)
    ]
    try:
        connection.executemany(
            "INSERT INTO entries (record, position, id, idempotency_key, body) VALUES (?, ?, ?, ?, ?)", rows
        )
    except sqlite3.IntegrityError:
        seen: set[str] = set()
        taken = "SELECT 1 FROM entries WHERE record = ? AND id = ? AND position <= ?"
        for entry in append:
            if entry.id in seen or connection.execute(taken, (record, pack(entry.id), kept)).fetchone():
                raise duplicate_id(key, entry.id) from None
            seen.add(entry.id)
        raise BadRecord("the record counts less entries than it has") from None


def _set_visibility(connection: sqlite3.Connection, key: str, record: int, id: str, visible: tuple[bool, bool]) -> None:
    row = connection.execute(
        "SELECT position, body FROM entries WHERE record = ? AND id = ?", (record, pack(id))
    ).fetchone()
    if row is None or row[1] is None:
        raise unknown_id(key, id)
    try:
        body = reencode_visibility(row[1], visible)
    except Unreadable as error:
        raise BadEntry(row[0], str(error)) from error
    connection.execute("UPDATE entries SET body = ? WHERE record = ? AND position = ?", (body.decode(), record, row[0]))


def entries(
    connection: sqlite3.Connection,
    key: str,
    before: int | None,
    after: int | None,
    limit: int,
    anchor: int | None,
    told: bool,
) -> Page:
    """Return a page, as of one moment. An entry that was set aside leaves its position empty.

    Raises: `BadRecord`; `BadEntry`; `Untold`.
    """
    packed = pack(key)
    connection.execute("BEGIN")
    try:
        head = _head(connection, packed)
        if not told:
            _tell_of_quarantine(connection, packed)
        old = head or _NOTHING
        page = page_bounds(old.entries, before, after, limit, anchor)
        rows = connection.execute(
            "SELECT position, id, body FROM entries WHERE record = ? AND position BETWEEN ? AND ? AND body IS NOT NULL "
            "ORDER BY position",
            (old.id, page.first, page.last),
        ).fetchall()
    finally:
        if connection.in_transaction:
            connection.execute("COMMIT")
    return Page([_entry(position, id, body) for position, id, body in rows], page.anchor, page.next)


def _entry(position: int, id: object, body: object) -> Entry:
    if not (isinstance(id, bytes) and isinstance(body, bytes)):
        raise BadEntry(position, "entry: its id or its body is no text")
    try:
        return decode_entry(unpack(id), body)
    except (Unreadable, UnicodeDecodeError) as error:
        raise BadEntry(position, str(error)) from error


def find(connection: sqlite3.Connection, key: str, idempotency_key: str) -> Entry | None:
    """Return the oldest entry with this idempotency key. Raises `BadEntry`."""
    row = connection.execute(
        "SELECT position, id, body FROM entries WHERE record = (SELECT id FROM records WHERE key = ?) "
        "AND idempotency_key = ? AND body IS NOT NULL ORDER BY position LIMIT 1",
        (pack(key), pack(idempotency_key)),
    ).fetchone()
    return None if row is None else _entry(*row)


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


def forget(connection: sqlite3.Connection, key: str) -> None:
    """Delete everything that is kept of a conversation, also what was set aside; only its lease stays."""
    packed = pack(key)
    connection.execute("DELETE FROM entries WHERE record = (SELECT id FROM records WHERE key = ?)", (packed,))
    connection.execute("DELETE FROM records WHERE key = ?", (packed,))
    connection.execute("DELETE FROM quarantine WHERE key = ?", (packed,))


def acquire(connection: sqlite3.Connection, key: str, owner: str, ttl: float, now: float) -> int | None:
    """Take or renew a lease; `now` and its times are seconds on the store's clock."""
    packed = pack(key)
    row = connection.execute("SELECT owner, token, expires, ttl FROM leases WHERE key = ?", (packed,)).fetchone()
    held = None if row is None else Lease(None if row[0] is None else unpack(row[0]), *row[1:])
    lease = take_lease(held, owner, ttl, now)
    if lease is None:
        return None
    connection.execute(
        "INSERT OR REPLACE INTO leases (key, owner, token, expires, ttl) VALUES (?, ?, ?, ?, ?)",
        (packed, pack(owner), lease.token, lease.expires, lease.ttl),
    )
    return lease.token


def release(connection: sqlite3.Connection, key: str, owner: str) -> None:
    """Give a lease back; its token stays, so that the next one is larger."""
    connection.execute("UPDATE leases SET owner = NULL WHERE key = ? AND owner = ?", (pack(key), pack(owner)))
