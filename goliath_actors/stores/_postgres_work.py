"""What a `PostgresStore` asks of the database: one statement each, and how its one row is read.

Pure: nothing here touches a connection.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

import attrs

from goliath_actors.abc import Entry, Record, Unset
from goliath_actors.errors import StoreConflict

from ._codec import EncodedChange, Unreadable, decode_entry, decode_record
from ._rules import duplicate_id, unknown_id
from ._trouble import BadEntry, BadRecord, Untold

__all__ = [
    "Work",
    "acquire",
    "commit",
    "entry_of",
    "forget",
    "note_told",
    "pack",
    "record_of",
    "release",
    "set_aside_entry",
    "set_aside_record",
    "unpack",
]

T = TypeVar("T")


@attrs.frozen(eq=False)
class Work(Generic[T]):
    """One statement that changes something, and what its row means.

    Invariant: a statement whose row `read` refuses with an error of the store has changed nothing; only `BadRecord`
    asks for the transaction to be undone.
    """

    # Statements of one transaction go in this order, so that two processes lock rows in the same one.
    key: bytes
    statement: bytes
    # Any: whatever psycopg sends, and the columns of whatever row comes back.
    values: tuple[Any, ...]
    read: Callable[[tuple[Any, ...]], T]


def pack(text: str) -> bytes:
    """Return a key, id or owner as it is stored: any `str`, in the order of code points."""
    return text.encode("utf-8", "surrogatepass")


def unpack(stored: bytes) -> str:
    """Return what `pack` was given."""
    return stored.decode("utf-8", "surrogatepass")


_COMMIT = (
    b"SELECT status, detail, number, o_version, o_entries, o_failures, o_memory, o_metadata, o_private "
    b"FROM commit_change(%b::bytea, %s::bigint, %s::bigint, %s::boolean, %b::bytea, %s::boolean, %b::bytea, "
    b"%s::boolean, %b::bytea, %s::bigint, %b::bytea, %b::bytea[], %b::bytea[], %b::bytea[], "
)
_SHOWING = b"%b::bytea[], %b::boolean[], %b::boolean[])"
# Nearly always so; and to send an array takes psycopg longer than all other kinds of values.
_SHOWING_NOTHING = b"'{}', '{}', '{}')"


def commit(key: str, change: EncodedChange, expect: int | None, token: int | None) -> Work[Record]:
    """Apply `change` and read the new record. Raises `StoreConflict` and `StoreError` as `Store.commit`; `Untold`."""
    packed = pack(key)
    append = change.append
    values: list[Any] = [packed, expect, token]
    for part in (change.memory, change.metadata, change.private):
        values += [False, None] if isinstance(part, Unset) else [True, part]
    values += [
        None if isinstance(change.failures, Unset) else change.failures,
        None if change.truncate_after is None else pack(change.truncate_after),
        [pack(entry.id) for entry in append],
        [None if entry.idempotency_key is None else pack(entry.idempotency_key) for entry in append],
        [entry.body for entry in append],
    ]
    showing = _SHOWING_NOTHING
    if change.visibility:
        showing = _SHOWING
        values += [[pack(id) for id in change.visibility], *map(list, zip(*change.visibility.values(), strict=True))]
    return Work(packed, _COMMIT + showing, tuple(values), partial(_committed, key, change, expect, token))


def _committed(key: str, change: EncodedChange, expect: int | None, token: int | None, row: tuple[Any, ...]) -> Record:
    status, detail, number, version, entries, failures, memory, metadata, private = row
    if status == "untold":
        raise Untold(number, bytes(detail).decode(errors="replace"))
    if status == "version":
        raise StoreConflict(
            f"{key!r} has version {number}, the change was made against {expect}; load it again and decide anew"
        )
    if status == "token":
        raise StoreConflict(f"the lease on {key!r} was lost: token {number} is newer than {token}; stop writing to it")
    if status == "duplicate":
        raise duplicate_id(key, unpack(detail))
    if status == "unknown":
        raise unknown_id(key, unpack(detail))
    return record_of(
        version,
        entries,
        failures,
        memory if isinstance(change.memory, Unset) else change.memory,
        metadata if isinstance(change.metadata, Unset) else change.metadata,
        private if isinstance(change.private, Unset) else change.private,
        seen=version - 1,
    )


def record_of(
    version: int,
    entries: int,
    failures: int,
    memory: bytes | None,
    metadata: bytes | None,
    private: bytes | None,
    seen: int | None = None,
) -> Record:
    """Return the record of a row. Raises `BadRecord`, naming the version that is `seen` in the table."""
    try:
        return decode_record(version, memory, metadata, private, failures, entries)
    except Unreadable as error:
        raise BadRecord(str(error), version if seen is None else seen) from error


def entry_of(
    record: int, position: int, id: bytes, transcript: bool | None, context: bool | None, body: bytes
) -> Entry:
    """Return the entry of a row. Raises `BadEntry`."""
    try:
        entry = decode_entry(unpack(id), body)
    except (Unreadable, UnicodeDecodeError) as error:
        raise BadEntry(position, str(error), record, body) from error
    if transcript is None or context is None:
        return entry
    return attrs.evolve(entry, transcript_visible=transcript, context_visible=context)


def forget(key: str) -> Work[None]:
    """Delete everything that is kept of a conversation, also what was set aside; only its lease stays."""
    packed = pack(key)
    return Work(packed, b"SELECT forget_record(%b::bytea)", (packed,), _nothing)


def acquire(key: str, owner: str, ttl: float) -> Work[int | None]:
    """Take or renew a lease, for `ttl` seconds of the server's clock."""
    packed = pack(key)
    statement = b"SELECT acquire_lease(%b::bytea, %b::bytea, %s::double precision)"
    return Work(packed, statement, (packed, pack(owner), ttl), _first)


def release(key: str, owner: str) -> Work[None]:
    """Give a lease back; its token stays."""
    packed = pack(key)
    return Work(packed, b"SELECT release_lease(%b::bytea, %b::bytea)", (packed, pack(owner)), _nothing)


def set_aside_record(key: str, bad: BadRecord) -> Work[tuple[int, str] | None]:
    """Move a record that cannot be read.

    Its value: the row of the quarantine and what was wrong; None if it is not as it was seen any more.
    """
    packed = pack(key)
    statement = b"SELECT set_aside_record(%b::bytea, %s::bigint, %s::text)"
    return Work(packed, statement, (packed, bad.version, _printable(bad.reason)), partial(_aside, bad.reason))


def set_aside_entry(key: str, bad: BadEntry) -> Work[tuple[int, str] | None]:
    """Move one entry's text, as `set_aside_record`; its position stays taken, so that no page shifts."""
    statement = b"SELECT set_aside_entry(%s::bigint, %s::bigint, %b::bytea, %s::text)"
    values = (bad.record, bad.position, bad.body, _printable(bad.reason))
    return Work(pack(key), statement, values, partial(_aside, bad.reason))


def note_told(key: str, place: int) -> Work[None]:
    """Write down that somebody was told of a row of the quarantine."""
    return Work(pack(key), b"SELECT note_told(%s::bigint)", (place,), _nothing)


def _printable(reason: str) -> str:
    return reason.encode("utf-8", "backslashreplace").decode().replace("\0", "")


def _nothing(row: tuple[Any, ...]) -> None:
    return None


def _first(row: tuple[Any, ...]) -> int | None:
    value: int | None = row[0]
    return value


def _aside(reason: str, row: tuple[Any, ...]) -> tuple[int, str] | None:
    return None if row[0] is None else (row[0], reason)
