"""How a `SqliteStore` changes things: commits, forgetting, leases, as pieces of work of a group commit.

Each runs in a savepoint: what it raises undoes what it did.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from time import monotonic

from goliath_actors.abc import Record, Unset

from ._codec import EncodedChange, EncodedEntry, Unreadable, reencode_visibility
from ._rules import Lease, check_turn, duplicate_id, take_lease, unknown_id
from ._sqlite_rows import NOTHING, Known, head_of, pack, tell_of_quarantine, unpack
from ._trouble import BadEntry, BadRecord

__all__ = ["acquire", "commit", "forget", "release"]


def commit(
    connection: sqlite3.Connection,
    key: str,
    change: EncodedChange,
    expect: int | None,
    token: int | None,
    told: Collection[int],
) -> Record:
    """Apply `change` and return the new record.

    Raises: `StoreConflict` and `StoreError` as `Store.commit`; `BadRecord`; `BadEntry`; `Untold`.
    """
    packed = pack(key)
    head = head_of(connection, packed)
    if head is None:
        tell_of_quarantine(connection, packed, told)
    old = head or NOTHING
    newest = 0
    if token is not None:
        lease = connection.execute("SELECT token FROM leases WHERE key = ?", (packed,)).fetchone()
        newest = lease[0] if lease else 0
    check_turn(key, old.version, expect, newest, token)
    kept = _kept(connection, key, old, change.truncate_after)
    new = Known(
        old.id,
        old.version + 1,
        kept + len(change.append),
        old.failures if isinstance(change.failures, Unset) else change.failures,
        old.memory if isinstance(change.memory, Unset) else change.memory,
        old.metadata if isinstance(change.metadata, Unset) else change.metadata,
        old.private if isinstance(change.private, Unset) else change.private,
    )
    record = new.record(change.plain_memory)
    id = _put(connection, packed, new)
    if kept < old.entries:
        connection.execute("DELETE FROM entries WHERE record = ? AND position > ?", (id, kept))
    if change.append:
        _append(connection, key, id, kept, change.append)
    for entry_id, visible in change.visibility.items():
        _set_visibility(connection, key, id, entry_id, visible)
    return record


def _kept(connection: sqlite3.Connection, key: str, old: Known, truncate_after: str | None) -> int:
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


def _put(connection: sqlite3.Connection, key: bytes, new: Known) -> int:
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


def forget(connection: sqlite3.Connection, key: str) -> None:
    """Delete everything that is kept of a conversation, also what was set aside; only its lease stays."""
    packed = pack(key)
    connection.execute("DELETE FROM entries WHERE record = (SELECT id FROM records WHERE key = ?)", (packed,))
    connection.execute("DELETE FROM records WHERE key = ?", (packed,))
    connection.execute("DELETE FROM quarantine WHERE key = ?", (packed,))


def acquire(connection: sqlite3.Connection, key: str, owner: str, ttl: float, asked: float, since: float) -> int | None:
    """Take or renew a lease; times are seconds on the store's clock.

    Arguments: `asked`, the time of the call; `since`, what `time.monotonic` said then. The file's lock may have been
    long in coming, and the store's clock may be one that only its loop's thread can read.
    """
    packed = pack(key)
    now = asked + (monotonic() - since)
    row = connection.execute("SELECT owner, token, expires, ttl FROM leases WHERE key = ?", (packed,)).fetchone()
    held = None if row is None else Lease(None if row[0] is None else unpack(row[0]), *row[1:])
    lease = take_lease(held, owner, ttl, asked, now)
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


def _packed(text: str | None) -> bytes | None:
    return None if text is None else pack(text)
