"""Setting aside what a `SqliteStore` cannot read, so that nothing is lost and the rest goes on.

All functions are pieces of work of a group commit. Those that set aside look again before they
act: another process may have repaired or deleted the row meanwhile.
"""

from __future__ import annotations

import sqlite3

from ._sqlite_rows import check_entry, check_record, pack
from ._trouble import BadEntry, BadRecord

__all__ = ["note_told", "set_aside_entry", "set_aside_record"]


def set_aside_record(connection: sqlite3.Connection, key: str, at: float) -> tuple[int, str] | None:
    """Move the record of `key` and its entries to the quarantine, as they are.

    Arguments: `at`, the time now in seconds since the epoch.

    Returns: the row of the quarantine and what was wrong; None if nothing is wrong any more.
    """
    packed = pack(key)
    try:
        check_record(connection, packed)
        return None
    except BadRecord as error:
        reason = error.reason
    place = connection.execute(
        "INSERT INTO quarantine (key, at, reason, reported, version, entries, failures, memory, metadata, private) "
        "SELECT key, ?, ?, 0, version, entries, failures, memory, metadata, private FROM records WHERE key = ?",
        (at, reason, packed),
    ).lastrowid
    assert place is not None
    (record,) = connection.execute("SELECT id FROM records WHERE key = ?", (packed,)).fetchone()
    connection.execute(
        "INSERT INTO quarantine (key, at, reason, reported, part_of, position, entry_id, body) "
        "SELECT ?, ?, ?, 1, ?, position, id, body FROM entries WHERE record = ? ORDER BY position",
        (packed, at, reason, place, record),
    )
    connection.execute("DELETE FROM entries WHERE record = ?", (record,))
    connection.execute("DELETE FROM records WHERE id = ?", (record,))
    return place, reason


def set_aside_entry(connection: sqlite3.Connection, key: str, position: int, at: float) -> tuple[int, str] | None:
    """Move one entry's text to the quarantine; its position stays taken, so that no page shifts.

    Arguments and result as for `set_aside_record`.
    """
    packed = pack(key)
    try:
        check_entry(connection, packed, position)
        return None
    except BadEntry as error:
        reason = error.reason
    where = "record = (SELECT id FROM records WHERE key = ?) AND position = ?"
    place = connection.execute(
        "INSERT INTO quarantine (key, at, reason, reported, position, entry_id, body) "
        f"SELECT ?, ?, ?, 0, position, id, body FROM entries WHERE {where}",
        (packed, at, reason, packed, position),
    ).lastrowid
    assert place is not None
    connection.execute(f"UPDATE entries SET body = NULL, idempotency_key = NULL WHERE {where}", (packed, position))
    return place, reason


def note_told(connection: sqlite3.Connection, key: str, place: int) -> None:
    """Write down that somebody was told of the row `place` of the quarantine, so that later processes go on."""
    connection.execute("UPDATE quarantine SET reported = 1 WHERE id = ? AND key = ?", (place, pack(key)))
