"""A store in one SQLite file, on disk before it says so.

One connection writes, in group commits; others only read and never wait for it.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, final

import attrs

from goliath_actors.abc import Change, Entry, Record
from goliath_actors.errors import ConfigError, StoreError
from goliath_actors.values import Page

from . import _sqlite_changes as changes
from . import _sqlite_rows as rows
from ._codec import encode_change
from ._connected import ConnectedStore, positive
from ._group_commit import GroupCommit, Work
from ._rules import check_lease, check_limit
from ._sqlite_file import Place, Synchronous, open_reader, open_writer, translate
from ._sqlite_quarantine import note_told, set_aside_entry, set_aside_record
from ._trouble import BadEntry, BadRecord
from ._write_queue import WriteQueue

__all__ = ["SqliteStore"]

T = TypeVar("T")


def _file(path: str | os.PathLike[str]) -> Path:
    if str(path) in ("", ":memory:"):
        raise ConfigError(f"SqliteStore keeps a file and {str(path)!r} names none; use InMemoryStore() to keep nothing")
    if "\0" in str(path):
        raise ConfigError(f"{str(path)!r} is no path of a file: it holds a NUL character")
    try:
        # Paths come from settings, too, where no shell has replaced the tilde.
        expanded = Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{str(path)!r} names nobody's home directory; write the path out") from error
    # Absolute from the start: connections are opened later, perhaps from another working directory.
    return expanded.absolute()


# Any: the field of a str.
def _known(instance: object, attribute: attrs.Attribute[Any], value: str) -> None:
    if value not in ("FULL", "NORMAL"):
        raise ConfigError(f'synchronous of a SqliteStore is "FULL" or "NORMAL", not {value!r}')


def _place_of(store: SqliteStore) -> Place:
    return Place(store._path)


def _writer_of(store: SqliteStore) -> GroupCommit:
    def open() -> sqlite3.Connection:
        # Again after a connection broke: then the file must be there, and no new one be made in its place.
        store._place.check()
        connection = open_writer(store._path, store._busy_timeout, store._synchronous)
        try:
            store._place.keep()
        except OSError as error:
            connection.close()
            raise StoreError(f"{store._path} vanished while it was being opened; try again") from error
        return connection

    return GroupCommit(open, partial(translate, path=store._path), store._place.check, limit=store._max_batch)


@final
@attrs.define(eq=False, repr=False)
class SqliteStore(ConnectedStore[sqlite3.Connection, Work[Any]]):
    """Conversations in one SQLite file; `commit` returns when the change is on disk.

    Enter it (`async with`), give it to a runtime, which does so, or just use it and call `aclose` in the end. The file
    is made on first use; a file of a newer schema, of another program or no database at all is refused and left alone.

    Arguments:
      path: the file; relative to the working directory at this moment, `~` being your home. SQLite keeps two more
        beside it (`-wal`, `-shm`) while it is in use; leave all three where they are meanwhile. If the file is deleted
        or replaced all the same, every call raises `StoreError` until it is back or the store was closed.
      synchronous: `"FULL"` survives a loss of power; `"NORMAL"` is quicker for single writers and may then lose the
        last commits, though never to a crash of the process. With many writers FULL costs nothing: they share it.
      busy_timeout: seconds to wait for another process that writes to the file.
      max_batch: how many changes go to disk together at most.
      max_readers: how many reads run at once; more of them wait for each other, never for a write.
      clock: what leases run on, in seconds. The default is the same in all processes of a machine and never jumps.

    Two stores on one file, also in two processes, wait for each other's transactions and harm no data, with one
    exception: SQLite 3.7.0 to 3.51.2 (but for 3.44.6 and 3.50.7) can damage a file when two connections write and empty
    the journal in the same instant. This store never does that by itself, since only one of its connections writes; let
    one process write to a file unless `sqlite3.sqlite_version` is newer. Never put the file on a network disk.

    A record that cannot be read is moved to the table `quarantine` of the file and reported as `StoreCorrupt`; the
    conversation starts empty only after somebody was told so. An unreadable entry is set aside alone. The file
    remembers what was told, so the next use goes on, in whatever process; only if that could not be written down, as
    when a process was killed in the instant of telling, is it told again.

    Cancellation: every method is a checkpoint before it does anything. A write that is under way is waited for
    (shielded, bounded by `busy_timeout` and the disk), so `Cancelled` out of one means that nothing was changed. A
    clock that jumps when all tasks wait (trio's autojump) does not see this store's threads: use InMemoryStore there.
    """

    # Aliases, since pyright does not know that attrs drops the underscore.
    _path: Path = attrs.field(alias="path", converter=_file)
    _synchronous: Synchronous = attrs.field(alias="synchronous", default="FULL", kw_only=True, validator=_known)
    _busy_timeout: float = attrs.field(alias="busy_timeout", default=5.0, kw_only=True, validator=positive)
    # 512: beyond it a batch gains nothing and its callers wait longer.
    _max_batch: int = attrs.field(alias="max_batch", default=512, kw_only=True, validator=positive)
    _clock: Callable[[], float] = attrs.field(alias="clock", default=time.monotonic, kw_only=True)

    _place: Place = attrs.field(init=False, default=attrs.Factory(_place_of, takes_self=True))
    _writer: WriteQueue[Work[Any]] = attrs.field(init=False, default=attrs.Factory(_writer_of, takes_self=True))

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    def _where(self) -> str:
        return str(self._path)

    async def load(self, key: str) -> Record:
        """Return the record, or an empty one of version 0. See `Store.load`.

        Raises: `StoreCorrupt` if it cannot be read and was set aside; `StoreError`.
        """
        return await self._telling(key, lambda told: self._read(partial(rows.load, key=key, told=told)))

    async def commit(self, key: str, change: Change, expect: int | None = None, token: int | None = None) -> Record:
        """Apply `change` atomically and return the new record once it is on disk. See `Store.commit`.

        Raises: `StoreConflict`; `StoreError` for an id that is taken (in `append`) or unknown (in `visibility` and
        `truncate_after`), for what is not JSON data, and for trouble with the file; `StoreCorrupt`. The change is not
        acknowledged then, and but for a failing disk it is known not to be in the file.
        """
        encoded = encode_change(change)

        def attempt(told: Collection[int]) -> Awaitable[Record]:
            return self._write(lambda connection: changes.commit(connection, key, encoded, expect, token, told))

        record = await self._telling(key, attempt)
        # What was told before has reached the file ahead of this change.
        self._told.pop(key, None)
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
        out again. An entry that was set aside leaves its position empty, and its page has one entry less.

        Raises: `StoreCorrupt` if an entry cannot be read and was set aside; `StoreError`.
        """
        check_limit(limit)
        work = partial(rows.entries, key=key, before=before, after=after, limit=limit, anchor=anchor)
        return await self._telling(key, lambda told: self._read(partial(work, told=told)))

    async def forget(self, key: str) -> None:
        """Delete the record, its entries, and what was set aside of it; a lease stays. See `Store.forget`."""
        await self._write(partial(changes.forget, key=key))
        self._told.pop(key, None)

    async def keys(self, prefix: str = "", after: str | None = None, limit: int = 100) -> Sequence[str]:
        """Return up to `limit` keys that begin with `prefix`, in order of code points, from behind `after`."""
        check_limit(limit)
        return await self._read(partial(rows.keys, prefix=prefix, after=after, limit=limit))

    async def find(self, key: str, idempotency_key: str) -> Entry | None:
        """Return the oldest entry whose private `idempotency_key` is this one, or None.

        Raises: `StoreCorrupt` if that entry cannot be read and was set aside; `StoreError`.
        """
        work = partial(rows.find, key=key, idempotency_key=idempotency_key)
        return await self._telling(key, lambda told: self._read(work))

    async def acquire(self, key: str, owner: str, ttl: float) -> int | None:
        """Take or renew the lease on a conversation for `ttl` seconds of the store's clock. See `Store.acquire`."""
        check_lease(owner, ttl)
        # The time of the call, not of the write: the holder counts from here, too.
        work = partial(changes.acquire, key=key, owner=owner, ttl=ttl, asked=self._clock(), since=time.monotonic())
        token: int | None = await self._write(work)
        return token

    async def release(self, key: str, owner: str) -> None:
        """Give the lease back early. See `Store.release`."""
        await self._write(partial(changes.release, key=key, owner=owner))

    def _connect(self) -> sqlite3.Connection:
        return open_reader(self._path, self._busy_timeout)

    def _is_spoiled(self, error: Exception, connection: sqlite3.Connection) -> bool:
        return isinstance(error, sqlite3.Error)

    def _with_reader(self, read: Work[T]) -> T:
        self._place.check()
        try:
            return super()._with_reader(read)
        except sqlite3.Error as error:
            raise translate(error, self._path) from error

    def _left(self) -> None:
        self._place.forget()

    def _set_aside(self, key: str, bad: BadRecord | BadEntry, at: float) -> Work[tuple[int, str] | None]:
        # Looked at again there: only what is still bad is moved.
        if isinstance(bad, BadRecord):
            return partial(set_aside_record, key=key, at=at)
        return partial(set_aside_entry, key=key, position=bad.position, at=at)

    def _note_told(self, key: str, place: int) -> Work[None]:
        return partial(note_told, key=key, place=place)
