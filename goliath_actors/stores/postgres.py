"""A store in a PostgreSQL database, shared by as many processes as you like (extra `postgres`).

Synchronous psycopg in worker threads: its asynchronous half, like every other asynchronous client
of Postgres, needs asyncio.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar, final

import attrs
import psycopg

from goliath_actors.abc import Change, Entry, Record
from goliath_actors.values import Page

from . import _postgres_rows as rows
from . import _postgres_work as work
from ._codec import encode_change
from ._connected import ConnectedStore, positive
from ._postgres_link import Link, is_broken
from ._postgres_schema import Connection
from ._postgres_writer import Writer, patiently
from ._rules import check_lease, check_limit
from ._trouble import BadEntry, BadRecord
from ._write_queue import WriteQueue

__all__ = ["PostgresStore"]

T = TypeVar("T")


def _link_of(store: PostgresStore) -> Link:
    return Link.to(store._address, store._schema, store._connect_timeout, store._statement_timeout)


def _writer_of(store: PostgresStore) -> Writer:
    return Writer(store._link, store._patience, limit=store._max_batch)


@final
@attrs.define(eq=False, repr=False)
class PostgresStore(ConnectedStore[Connection, work.Work[Any]]):
    """Conversations in a PostgreSQL database (13 or newer); `commit` returns when the change is on the server's disk.

    Any number of processes may use one database. Changes of one process travel and commit together; two processes that
    change the same conversation are told apart by versions and by leases, which run on the server's clock. Enter the
    store (`async with`), give it to a runtime, which does so, or just use it and call `aclose` in the end.

    Arguments:
      address: a connection string, `postgresql://user:password@host:5432/name` or `host=... dbname=...`; what it leaves
        out comes from libpq's environment (`PGHOST`, `PGPASSWORD`, ...). It is never shown.
      schema: where the tables live; made on first use, and brought to the current version. A newer one is refused.
      max_readers: connections that read, at most; one more writes.
      max_batch: how many changes commit together at most.
      connect_timeout: seconds to wait for a connection.
      statement_timeout: seconds that one statement may take, waiting for locks included.
      patience: seconds to wait for a server that was there and went away, as when it is restarted.

    A connection that was lost is made anew, and what was under way is done again, unless it may have been done: then
    the server is asked what became of it. So an error means that nothing was changed, but for the one that says that it
    cannot be known. Connect directly or through a pooler in session mode: prepared statements and settings belong to a
    session.

    A record that cannot be read is moved to the table `quarantine` and reported as `StoreCorrupt`; the conversation
    starts empty only after somebody was told so. An unreadable entry is set aside alone.

    Cancellation: every method is a checkpoint before it does anything. What is under way is waited for, bounded by the
    time-outs, so `Cancelled` out of a write means that nothing was changed. A clock that jumps when all tasks wait
    (trio's autojump) does not see this store's threads: use InMemoryStore there.
    """

    # Aliases, since pyright does not know that attrs drops the underscore.
    _address: str = attrs.field(alias="address", default="")
    _schema: str = attrs.field(alias="schema", default="goliath_actors", kw_only=True)
    # 256: beyond it a batch gains nothing, and its callers wait longer.
    _max_batch: int = attrs.field(alias="max_batch", default=256, kw_only=True, validator=positive)
    _connect_timeout: float = attrs.field(alias="connect_timeout", default=5.0, kw_only=True, validator=positive)
    _statement_timeout: float = attrs.field(alias="statement_timeout", default=10.0, kw_only=True, validator=positive)
    _patience: float = attrs.field(alias="patience", default=10.0, kw_only=True, validator=positive)

    _link: Link = attrs.field(init=False, default=attrs.Factory(_link_of, takes_self=True))
    _writer: WriteQueue[work.Work[Any]] = attrs.field(init=False, default=attrs.Factory(_writer_of, takes_self=True))

    @property
    def _where(self) -> str:
        return self._link.place

    async def load(self, key: str) -> Record:
        """Return the record, or an empty one of version 0. See `Store.load`.

        Raises: `StoreCorrupt` if it cannot be read and was set aside; `StoreError`.
        """
        return await self._telling(key, lambda told: self._read(partial(rows.load, key=key)))

    async def commit(self, key: str, change: Change, expect: int | None = None, token: int | None = None) -> Record:
        """Apply `change` atomically and return the new record once it is on the server's disk. See `Store.commit`.

        Raises: `StoreConflict`; `StoreError` for an id that is taken (in `append`) or unknown (in `visibility` and
        `truncate_after`), for what is not JSON data, and for trouble with the server; `StoreCorrupt`. The change is not
        acknowledged then, and known not to be there unless the error says otherwise.
        """
        wanted = work.commit(key, encode_change(change), expect, token)
        record: Record = await self._telling(key, lambda told: self._write(wanted))
        # What was told before has reached the database ahead of this change.
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
        """Return a page of entries, oldest first. See `Store.entries`. An entry that was set aside leaves its position
        empty, and its page has one entry less.

        Raises: `StoreCorrupt` if an entry cannot be read and was set aside; `StoreError`.
        """
        check_limit(limit)
        wanted = partial(rows.entries, key=key, before=before, after=after, limit=limit, anchor=anchor)
        return await self._telling(key, lambda told: self._read(wanted))

    async def forget(self, key: str) -> None:
        """Delete the record, its entries, and what was set aside of it; a lease stays. See `Store.forget`."""
        await self._write(work.forget(key))
        self._told.pop(key, None)

    async def keys(self, prefix: str = "", after: str | None = None, limit: int = 100) -> Sequence[str]:
        """Return up to `limit` keys that begin with `prefix`, in order of code points, from behind `after`."""
        check_limit(limit)
        return await self._read(partial(rows.keys, prefix=prefix, after=after, limit=limit))

    async def find(self, key: str, idempotency_key: str) -> Entry | None:
        """Return the oldest entry whose private `idempotency_key` is this one, or None.

        Raises: `StoreCorrupt` if that entry cannot be read and was set aside; `StoreError`.
        """
        wanted = partial(rows.find, key=key, idempotency_key=idempotency_key)
        return await self._telling(key, lambda told: self._read(wanted))

    async def acquire(self, key: str, owner: str, ttl: float) -> int | None:
        """Take or renew the lease on a conversation for `ttl` seconds of the server's clock. See `Store.acquire`."""
        check_lease(owner, ttl)
        token: int | None = await self._write(work.acquire(key, owner, ttl))
        return token

    async def release(self, key: str, owner: str) -> None:
        """Give the lease back early. See `Store.release`."""
        await self._write(work.release(key, owner))

    def _connect(self) -> Connection:
        return self._link.open()

    def _is_spoiled(self, error: Exception, connection: Connection) -> bool:
        if not isinstance(error, psycopg.Error):
            return False
        if is_broken(error, connection):
            # The others will be broken, too: the server was restarted, or is gone.
            self._drop_readers()
        return True

    def _with_reader(self, read: Callable[[Connection], T]) -> T:
        return patiently(partial(self._try_reading, read), self._patience)

    def _try_reading(self, read: Callable[[Connection], T]) -> T:
        try:
            return super()._with_reader(read)
        except psycopg.Error as error:
            raise self._link.translate(error) from self._link.cause(error)

    def _set_aside(self, key: str, bad: BadRecord | BadEntry, at: float) -> work.Work[tuple[int, str] | None]:
        # The server has the time itself.
        return work.set_aside_record(key, bad) if isinstance(bad, BadRecord) else work.set_aside_entry(key, bad)

    def _note_told(self, key: str, place: int) -> work.Work[None]:
        return work.note_told(key, place)
