"""How a `PostgresStore` reads: records, entries and keys, as functions of a connection.

They run in worker threads and change nothing.
"""

from __future__ import annotations

from goliath_actors.abc import Entry, Record
from goliath_actors.values import Page

from ._postgres_schema import Connection
from ._postgres_work import entry_of, pack, record_of, unpack
from ._rules import page_bounds
from ._trouble import Untold

__all__ = ["entries", "find", "keys", "load"]


def load(connection: Connection, key: str) -> Record:
    """Return the record of `key`. Raises `BadRecord`; `Untold`."""
    packed = pack(key)
    row = connection.execute(
        "SELECT version, entries, failures, memory, metadata, private FROM records WHERE key = %s", (packed,)
    ).fetchone()
    if row is None:
        _tell_of_quarantine(connection, packed)
        return Record()
    version, entries, failures, memory, metadata, private = row
    return record_of(version, entries, failures, memory, metadata, private)


def _tell_of_quarantine(connection: Connection, key: bytes) -> None:
    row = connection.execute(
        "SELECT id, reason FROM quarantine WHERE key = %s AND NOT reported ORDER BY id LIMIT 1", (key,)
    ).fetchone()
    if row is not None:
        raise Untold(row[0], row[1])


def entries(
    connection: Connection, key: str, before: int | None, after: int | None, limit: int, anchor: int | None
) -> Page:
    """Return a page, as of one moment. An entry that was set aside leaves its position empty.

    Raises: `BadEntry`; `Untold`.
    """
    packed = pack(key)
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        head = connection.execute("SELECT id, entries FROM records WHERE key = %s", (packed,)).fetchone()
        _tell_of_quarantine(connection, packed)
        record, count = head or (0, 0)
        page = page_bounds(count, before, after, limit, anchor)
        rows = connection.execute(
            "SELECT record, position, id, transcript, context, body FROM entries "
            "WHERE record = %s AND position BETWEEN %s AND %s AND body IS NOT NULL ORDER BY position",
            (record, page.first, page.last),
        ).fetchall()
    return Page([entry_of(*row) for row in rows], page.anchor, page.next)


def find(connection: Connection, key: str, idempotency_key: str) -> Entry | None:
    """Return the oldest entry with this idempotency key. Raises `BadEntry`."""
    row = connection.execute(
        "SELECT record, position, e.id, transcript, context, body FROM entries e JOIN records r ON r.id = e.record "
        "WHERE r.key = %s AND idempotency_key = %s AND body IS NOT NULL ORDER BY position LIMIT 1",
        (pack(key), pack(idempotency_key)),
    ).fetchone()
    return None if row is None else entry_of(*row)


def keys(connection: Connection, prefix: str, after: str | None, limit: int) -> list[str]:
    """Return keys in order of code points."""
    start = pack(prefix)
    # The smallest key behind everything with this prefix. UTF-8 has no byte FF, so the last one can be raised.
    end = start[:-1] + bytes([start[-1] + 1]) if start else None
    rows = connection.execute(
        "SELECT key FROM records WHERE key >= %(start)s AND (%(after)s::bytea IS NULL OR key > %(after)s) "
        "AND (%(end)s::bytea IS NULL OR key < %(end)s) ORDER BY key LIMIT %(limit)s",
        {"start": start, "after": None if after is None else pack(after), "end": end, "limit": limit},
    )
    return [unpack(key) for (key,) in rows]
