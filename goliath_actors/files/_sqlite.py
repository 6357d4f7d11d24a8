"""Files in one SQLite file.

Each operation has a connection and a worker thread of its own, so there is nothing to close.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final, TypeVar, final

import attrs
import trio

from goliath_actors.errors import ConfigError, StoreError, StoreTooNew

from ._contract import DEFAULT_LIST, File, FileEntry, FilePage, check_limit, check_text, encode, refuse_stale
from ._paths import file_path, normalise

__all__ = ["SqliteFiles"]

T = TypeVar("T")
_SCHEMA: Final = 1
_THREADS: Final = 4


def _file(path: str | os.PathLike[str]) -> Path:
    if str(path) in ("", ":memory:") or "\0" in str(path):
        raise ConfigError(f"SqliteFiles keeps a file and {str(path)!r} names none; use MemoryFiles() to keep nothing")
    return Path(path).expanduser().absolute()


def _limiter() -> trio.CapacityLimiter:
    return trio.CapacityLimiter(_THREADS)


@final
@attrs.define(eq=False)
class SqliteFiles:
    """Files in one SQLite file, apart from those of other namespaces in the same one.

    Arguments:
      path: the file, made on first use; one of its own, never that of a `SqliteStore`. Not on a network disk.
      namespace: whose files these are, a conversation id for instance.
      busy_timeout: seconds to wait for another process that writes.

    Raises: StoreError if the file cannot be used, or is another program's; StoreTooNew if a newer version wrote it.

    Cancellation: every method is a checkpoint before it does anything. What is under way is waited for, so `Cancelled`
    means that nothing was changed. A clock that jumps when all tasks wait does not see these threads.
    """

    path: Path = attrs.field(converter=_file)
    namespace: str = "default"
    busy_timeout: float = attrs.field(default=5.0, kw_only=True)
    _threads: trio.CapacityLimiter = attrs.field(factory=_limiter, init=False, repr=False)

    @property
    def _key(self) -> bytes:
        # Bytes, since a conversation id may be any string, also one that SQLite has no text for.
        return encode(self.namespace)

    async def list(self, under: str = "/", after: str | None = None, limit: int = DEFAULT_LIST) -> FilePage:
        """Return a page of the files at or below a path; see `Files.list`."""
        check_limit(limit)
        base = normalise(under).rstrip("/")

        def work(db: sqlite3.Connection) -> FilePage:
            # What begins with `base/` lies between it and `base0`, the character behind the slash.
            rows = db.execute(
                "SELECT path, revision, size FROM files WHERE namespace = ? AND path > ?"
                " AND (path = ? OR (path > ? AND path < ?)) ORDER BY path LIMIT ?",
                (self._key, after or "", base, base + "/", base + "0", limit + 1),
            ).fetchall()
            entries = tuple(FileEntry(path, str(revision), size) for path, revision, size in rows[:limit])
            return FilePage(entries, entries[-1].path if len(rows) > limit else None)

        return await self._do(work)

    async def read(self, path: str) -> File | None:
        """Return a file, or None if there is none."""
        wanted = file_path(path)

        def work(db: sqlite3.Connection) -> File | None:
            row = db.execute(
                "SELECT text, revision FROM files WHERE namespace = ? AND path = ?", (self._key, wanted)
            ).fetchone()
            return None if row is None else File(wanted, row[0].decode("utf-8", "surrogatepass"), str(row[1]))

        return await self._do(work)

    async def write(self, path: str, text: str, expect: str | None = None) -> File:
        """Create a file, or replace the revision `expect`; see `WritableFiles.write`."""
        wanted = file_path(path)
        data = check_text(wanted, text)

        def work(db: sqlite3.Connection) -> File:
            refuse_stale(wanted, self._revision(db, wanted), expect)
            # Counted for ever, so that no revision is given out again after a delete.
            (revision,) = db.execute(
                "INSERT INTO revisions VALUES (?, 1) ON CONFLICT (namespace) DO UPDATE SET last = last + 1"
                " RETURNING last",
                (self._key,),
            ).fetchone()
            db.execute(
                "INSERT OR REPLACE INTO files (namespace, path, revision, size, text) VALUES (?, ?, ?, ?, ?)",
                (self._key, wanted, revision, len(data), data),
            )
            return File(wanted, text, str(revision))

        return await self._do(work, writes=True)

    async def delete(self, path: str, expect: str) -> None:
        """Delete one file of the revision `expect`; see `WritableFiles.delete`."""
        wanted = file_path(path)

        def work(db: sqlite3.Connection) -> None:
            refuse_stale(wanted, self._revision(db, wanted), expect)
            db.execute("DELETE FROM files WHERE namespace = ? AND path = ?", (self._key, wanted))

        await self._do(work, writes=True)

    def _revision(self, db: sqlite3.Connection, path: str) -> str | None:
        row = db.execute("SELECT revision FROM files WHERE namespace = ? AND path = ?", (self._key, path)).fetchone()
        return None if row is None else str(row[0])

    async def _do(self, work: Callable[[sqlite3.Connection], T], *, writes: bool = False) -> T:
        return await trio.to_thread.run_sync(self._with_connection, work, writes, limiter=self._threads)

    def _with_connection(self, work: Callable[[sqlite3.Connection], T], writes: bool) -> T:
        try:
            with closing(sqlite3.connect(self.path, timeout=self.busy_timeout, isolation_level=None)) as db:
                self._prepare(db)
                # Immediate: between looking at a revision and replacing it nobody else may write.
                db.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
                result = work(db)
                db.execute("COMMIT")
                return result  # after an exception, closing rolls back
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: {error}") from error

    def _prepare(self, db: sqlite3.Connection) -> None:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version == _SCHEMA:
            if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'revisions'").fetchone() is None:
                raise StoreError(f"{self.path} is no file of SqliteFiles; choose another")
            return
        if version > _SCHEMA:
            raise StoreTooNew(f"{self.path} was written by a newer version, or by another program")
        db.execute("BEGIN IMMEDIATE")
        # Again, under the lock: another may have made the tables meanwhile.
        if db.execute("PRAGMA user_version").fetchone() == (0,):
            if db.execute("SELECT 1 FROM sqlite_master").fetchone() is not None:
                raise StoreError(f"{self.path} is no file of SqliteFiles; choose another")
            db.execute(
                "CREATE TABLE files (namespace BLOB NOT NULL, path TEXT NOT NULL, revision INTEGER NOT NULL,"
                " size INTEGER NOT NULL, text BLOB NOT NULL, PRIMARY KEY (namespace, path))"
            )
            db.execute("CREATE TABLE revisions (namespace BLOB PRIMARY KEY, last INTEGER NOT NULL)")
            db.execute(f"PRAGMA user_version = {_SCHEMA}")
        db.execute("COMMIT")
