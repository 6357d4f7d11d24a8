"""The file of a `SqliteStore`: looked at before it is touched, opened, brought to the current schema.

Everything here blocks and runs in a worker thread.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Literal, final

import attrs

from goliath_actors.errors import StoreCorrupt, StoreError, StoreTooNew

__all__ = [
    "APPLICATION_ID",
    "MIGRATIONS",
    "Look",
    "Place",
    "Synchronous",
    "look_at",
    "migrate",
    "open_reader",
    "open_writer",
    "translate",
]

Synchronous = Literal["FULL", "NORMAL"]

# "GolA": marks the file as ours in its header, so that another program's database is never written into.
APPLICATION_ID = 0x476F6C41

# One tuple of statements a version; `PRAGMA user_version` says how many a file has had. Never change one: add one.
#
# Names that come from users (keys, ids, owners) are UTF-8 in BLOBs, since a TEXT cannot hold every string of Python and
# stops at a NUL in many tools; JSON is TEXT, for SQLite's own functions. `records.id` stands in for the key in entries.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE records (
            id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, version INTEGER NOT NULL, entries INTEGER NOT NULL,
            failures INTEGER NOT NULL, memory TEXT, metadata TEXT, private TEXT)""",
        # A body that is NULL belongs to an entry that was set aside; its position stays taken.
        """CREATE TABLE entries (
            record INTEGER NOT NULL, position INTEGER NOT NULL, id BLOB NOT NULL, idempotency_key BLOB, body TEXT,
            PRIMARY KEY (record, position))""",
        "CREATE UNIQUE INDEX entries_by_id ON entries (record, id)",
        """CREATE INDEX entries_by_idempotency_key ON entries (record, idempotency_key)
            WHERE idempotency_key IS NOT NULL""",
        """CREATE TABLE leases (
            key BLOB PRIMARY KEY, owner BLOB, token INTEGER NOT NULL, expires REAL NOT NULL, ttl REAL NOT NULL)""",
        # What could not be read, as it was: a whole record (with its entries, as rows that are `part_of` it), or one
        # entry. `reported` is 0 until somebody was told.
        """CREATE TABLE quarantine (
            id INTEGER PRIMARY KEY, key BLOB NOT NULL, at REAL NOT NULL, reason TEXT NOT NULL,
            reported INTEGER NOT NULL, part_of INTEGER, version, entries, failures, memory, metadata, private,
            position, entry_id, body)""",
        "CREATE INDEX quarantine_unreported ON quarantine (key) WHERE reported = 0",
    ),
)

_MAGIC = b"SQLite format 3\x00"
_HEADER = 108


@attrs.frozen
class Look:
    """What a file says about itself."""

    application_id: int = 0
    version: int = 0
    has_tables: bool = False


@final
@attrs.define(eq=False)
class Place:
    """Which file the path led to when it was opened, so that one deleted, replaced or emptied since is noticed.

    A file that lost its name can still be written to, and all that was acknowledged would be gone with the last handle;
    one that was put in its place would be mixed with the journal of the old one.
    """

    path: Path
    # Device, number, and whether it held something; None: not open. Set by the thread that writes, read by all. Not the
    # size, which a VACUUM in another process makes smaller.
    _was: tuple[int, int, bool] | None = attrs.field(default=None, init=False)

    def keep(self) -> None:
        """Remember the file that was opened just now. Raises `OSError`."""
        self._was = self._is()

    def forget(self) -> None:
        """The file is closed; the next one may be another."""
        self._was = None

    def check(self) -> None:
        """Raise `StoreError` if there was a file, and the path does not lead to it any more."""
        if self._was is None:
            return
        try:
            device, number, filled = self._is()
            if (device, number) != self._was[:2]:
                what = "was replaced by another file"
            elif self._was[2] and not filled:
                what = "was emptied by another program"
            else:
                return
        except OSError as error:
            what = f"cannot be found any more ({error.strerror})"
        raise StoreError(
            f"{self.path} {what} while it was open; nothing was changed: "
            "put it back, or close the store and open it again to go on with what is there"
        )

    def _is(self) -> tuple[int, int, bool]:
        status = self.path.stat()
        return status.st_dev, status.st_ino, status.st_size > 0


def look_at(path: Path) -> Look | None:
    """Return what the file says about itself without changing anything beside or in it; None if there is no file.

    The header is read as bytes (offsets from SQLite's file format, sections 1.3 and 1.6). Only a file with a journal
    that was left behind is asked through SQLite, read-only: the truth may stand in the journal.

    Raises: `StoreError` if the path cannot be used; `StoreCorrupt` if the file is no SQLite database.
    """
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER)
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise StoreError(
                f"cannot open {path}: the directory {path.parent} does not exist; create it first"
            ) from None
        return None
    except IsADirectoryError:
        raise StoreError(f"cannot open {path}: it is a directory; name a file in it") from None
    except OSError as error:
        if _few_files_are_left():
            raise StoreError(_too_many_files(path)) from error
        raise StoreError(f"cannot open {path}: {error.strerror}; check its name and the permissions on it") from error
    if not header:
        return Look()
    if not header.startswith(_MAGIC) or len(header) < _HEADER:
        raise StoreCorrupt(
            f"{path} is no SQLite database, or what is left of one; it was left as it is: "
            "restore it from a copy, move it away, or choose another path"
        )
    journal = path.with_name(path.name + "-wal")
    if journal.exists() and journal.stat().st_size:
        return _ask(path)
    return Look(
        application_id=int.from_bytes(header[68:72], "big"),
        version=int.from_bytes(header[60:64], "big"),
        # Page 1 is the root of the table of tables: an inner page, or a leaf with cells.
        has_tables=header[100] == 5 or header[103:105] != b"\x00\x00",
    )


def _ask(path: Path) -> Look:
    try:
        with closing(open_reader(path, 1.0)) as connection:
            return _look(connection)
    except sqlite3.OperationalError:
        # Another process is just removing the journal, or changing the mode. The writer's connection looks once more.
        return Look()
    except sqlite3.Error as error:
        raise translate(error, path) from error


def _look(connection: sqlite3.Connection) -> Look:
    """Look at one moment: between two statements outside of a transaction another process may make its tables."""
    outermost = not connection.in_transaction
    if outermost:
        connection.execute("BEGIN")
    try:
        (application_id,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        tables = connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
    finally:
        if outermost and connection.in_transaction:
            connection.execute("COMMIT")
    return Look(application_id, version, tables is not None)


def _refuse_strangers(look: Look, path: Path, newest: int) -> None:
    if look.application_id == APPLICATION_ID:
        if look.version > newest:
            raise StoreTooNew(
                f"{path} has schema {look.version}, this version of goliath_actors knows up to {newest}; "
                "update goliath_actors or choose another path (the file was left untouched)"
            )
    elif look.application_id or look.version or look.has_tables:
        raise StoreError(f"{path} is a database of another program and was left untouched; choose another path")


def open_writer(path: Path, busy_timeout: float, synchronous: Synchronous) -> sqlite3.Connection:
    """Return the connection that writes, the file being made or brought to the current schema if need be.

    Arguments: `busy_timeout` in seconds, how long to wait for another process; `synchronous` as in SQLite.

    Raises: `StoreError` and its kinds, each naming the path and what to do.
    """
    look = look_at(path)
    if look is not None:
        _refuse_strangers(look, path, len(MIGRATIONS))
    try:
        connection = sqlite3.connect(
            path, timeout=busy_timeout, isolation_level=None, check_same_thread=False, cached_statements=64
        )
        try:
            connection.text_factory = bytes
            _use_wal(connection, path, busy_timeout)
            # The constant comes from a Literal; a PRAGMA takes no parameters.
            connection.execute(f"PRAGMA synchronous={synchronous}")
            # Emptying the journal into the file syncs twice and writes pages all over it. By default it comes after a
            # thousand pages: with changes of fifty conversations in each commit, with every eighth of them.
            connection.execute("PRAGMA wal_autocheckpoint=4000")
            # The same in bytes. Without a limit one burst leaves a journal of its size behind for good.
            connection.execute("PRAGMA journal_size_limit=16777216")
            migrate(connection, path, MIGRATIONS)
        except Exception:
            connection.close()
            raise
        return connection
    except sqlite3.Error as error:
        raise translate(error, path) from error


def open_reader(path: Path, busy_timeout: float) -> sqlite3.Connection:
    """Return a connection that cannot write, and so never takes part in a checkpoint. Raises `sqlite3.Error`."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro",
        uri=True,
        timeout=busy_timeout,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=16,
    )
    connection.text_factory = bytes
    return connection


def _use_wal(connection: sqlite3.Connection, path: Path, busy_timeout: float) -> None:
    # SQLite does not call its busy handler for the change of mode: several openers at once would fail with "locked".
    deadline = time.monotonic() + busy_timeout
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
            break
        except sqlite3.OperationalError as error:
            if _primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.005)  # in a worker thread; the lock may be another process's, so there is no event to wait for
    if mode != b"wal":
        raise StoreError(f"{path} lies on a file system without shared memory, which a journal needs; use a local disk")


def migrate(connection: sqlite3.Connection, path: Path, migrations: Sequence[Sequence[str]]) -> None:
    """Bring the file to the newest of `migrations`, in one transaction: a crash leaves the old schema.

    Raises: `StoreTooNew` for a file that has had more; `StoreError` for another program's; `sqlite3.Error`.
    """
    look = _look(connection)
    _refuse_strangers(look, path, len(migrations))
    if look.version == len(migrations):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have been quicker.
        look = _look(connection)
        _refuse_strangers(look, path, len(migrations))
        for statements in migrations[look.version :]:
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version={len(migrations)}")
        connection.execute("COMMIT")
    except Exception:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _primary_code(error: sqlite3.Error) -> int:
    # Extended codes carry the primary one in their low byte; an error made by the Python module has none.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def translate(error: sqlite3.Error, path: Path) -> StoreError:
    """Return the error to raise for what SQLite said about `path`: what happened, and what to do."""
    code = _primary_code(error)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreError(
            f"{path} is busy: another process has been writing to it for too long, nothing was changed; "
            "let one process write to a file, or raise busy_timeout"
        )
    if code == sqlite3.SQLITE_FULL:
        return StoreError(f"there is no space left for {path}, nothing was changed; make some and try again")
    if code == sqlite3.SQLITE_CANTOPEN and _few_files_are_left():
        return StoreError(_too_many_files(path))
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return StoreError(f"cannot open or write {path} ({error}); check the permissions on it and on its directory")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreCorrupt(
            f"{path} is damaged ({error}); it was left as it is: restore it from a copy, or move it away to start anew"
        )
    if code == sqlite3.SQLITE_IOERR:
        return StoreError(
            f"reading or writing {path} failed ({error}); what was acknowledged before is kept: "
            "look at the disk, its quota and the process's limits, and try again"
        )
    return StoreError(f"{path}: {error}")


def _too_many_files(path: Path) -> str:
    return (
        f"cannot open {path}: this process has as many open files as it may have, nothing was changed; raise its limit "
        "(ulimit -n), or let it do less at once"
    )


def _few_files_are_left() -> bool:
    """Say whether this process may open no more than a connection needs: SQLite only says that it cannot open a file.

    A connection has three: the database, its journal, and the memory that is shared.
    """
    opened: list[int] = []
    try:
        for _ in range(4):
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    finally:
        for file in opened:
            os.close(file)
    return False
