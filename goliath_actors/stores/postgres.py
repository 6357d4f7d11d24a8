"""A store in a PostgreSQL database, shared by as many processes as you like (extra `postgres`).

Synchronous psycopg in worker threads: its asynchronous half, like every other asynchronous client
of Postgres, needs asyncio.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, TypeVar, final

import attrs
import psycopg
import trio

from goliath_actors.abc import Change, Entry, Record
from goliath_actors.errors import ConfigError, StoreCorrupt, StoreError
from goliath_actors.values import Page

from . import _postgres_rows as rows
from . import _postgres_work as work
from ._codec import encode_change
from ._postgres_link import Link, is_broken
from ._postgres_schema import Connection
from ._postgres_writer import Writer, patiently
from ._rules import check_lease, check_limit

__all__ = ["PostgresStore"]

T = TypeVar("T")


# Any: one validator for fields of whole numbers and of seconds.
def _positive(instance: object, attribute: attrs.Attribute[Any], value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{attribute.name.lstrip('_')} of a PostgresStore has to be more than 0, not {value}")


def _link_of(store: PostgresStore) -> Link:
    return Link.to(store._address, store._schema, store._connect_timeout, store._statement_timeout)


def _writer_of(store: PostgresStore) -> Writer:
    return Writer(store._link, store._max_batch, store._patience)


def _limiter_of(store: PostgresStore) -> trio.CapacityLimiter:
    return trio.CapacityLimiter(store._max_readers)


@final
@attrs.define(eq=False, repr=False)
class PostgresStore:
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

    durable = True

    # Aliases, since pyright does not know that attrs drops the underscore.
    _address: str = attrs.field(alias="address", default="")
    _schema: str = attrs.field(alias="schema", default="goliath_actors", kw_only=True)
    _max_readers: int = attrs.field(alias="max_readers", default=4, kw_only=True, validator=_positive)
    # 256: beyond it a batch gains nothing, and its callers wait longer.
    _max_batch: int = attrs.field(alias="max_batch", default=256, kw_only=True, validator=_positive)
    _connect_timeout: float = attrs.field(alias="connect_timeout", default=5.0, kw_only=True, validator=_positive)
    _statement_timeout: float = attrs.field(alias="statement_timeout", default=10.0, kw_only=True, validator=_positive)
    _patience: float = attrs.field(alias="patience", default=10.0, kw_only=True, validator=_positive)

    _link: Link = attrs.field(init=False, default=attrs.Factory(_link_of, takes_self=True))
    _writer: Writer = attrs.field(init=False, default=attrs.Factory(_writer_of, takes_self=True))
    _reading: trio.CapacityLimiter = attrs.field(init=False, default=attrs.Factory(_limiter_of, takes_self=True))
    # Connections that nobody reads with at the moment. Threads push and pop; both are atomic.
    _readers: list[Connection] = attrs.field(factory=list, init=False)
    # Two who close at once would each hold some of the places that the other one needs.
    _closing: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _entered: int = attrs.field(default=0, init=False)
    _opened: bool = attrs.field(default=False, init=False)
    _closed: bool = attrs.field(default=False, init=False)
    # Rows of the quarantine that this object has told of; the note in the table may still be on its way.
    _told: set[int] = attrs.field(factory=set, init=False)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open" if self._opened else "not opened"
        return f"<PostgresStore {self._link.place}: {state}>"

    async def __aenter__(self) -> PostgresStore:
        """Connect, or raise what is wrong. Entered twice, it closes with the last one who leaves."""
        await self._writer.open()
        self._opened, self._closed = True, False
        self._entered += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave the store; the last one closes it."""
        self._entered -= 1
        if self._entered == 0:
            await self.aclose()
        else:
            await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """Write what waits, then close all connections. Closing what is closed is no error; entering opens it again.

        Cancellation: a checkpoint after all is closed.
        """
        self._closed, self._opened = True, False
        with trio.CancelScope(shield=True):
            async with self._closing:
                # Whoever holds all places knows that nobody reads.
                places = [object() for _ in range(self._max_readers)]
                for place in places:
                    await self._reading.acquire_on_behalf_of(place)
                self._drop_readers()
                for place in places:
                    self._reading.release_on_behalf_of(place)
                await self._writer.close()
        await trio.lowlevel.checkpoint()

    async def load(self, key: str) -> Record:
        """Return the record, or an empty one of version 0. See `Store.load`.

        Raises: `StoreCorrupt` if it cannot be read and was set aside; `StoreError`.
        """
        return await self._telling(key, lambda: self._read(partial(rows.load, key=key)))

    async def commit(self, key: str, change: Change, expect: int | None = None, token: int | None = None) -> Record:
        """Apply `change` atomically and return the new record once it is on the server's disk. See `Store.commit`.

        Raises: `StoreConflict`; `StoreError` for an id that is taken (in `append`) or unknown (in `visibility` and
        `truncate_after`), for what is not JSON data, and for trouble with the server; `StoreCorrupt`. The change is not
        acknowledged then, and known not to be there unless the error says otherwise.
        """
        wanted = work.commit(key, encode_change(change), expect, token)
        return await self._telling(key, lambda: self._write(wanted))

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
        return await self._telling(key, lambda: self._read(wanted))

    async def forget(self, key: str) -> None:
        """Delete the record, its entries, and what was set aside of it; a lease stays. See `Store.forget`."""
        await self._write(work.forget(key))

    async def keys(self, prefix: str = "", after: str | None = None, limit: int = 100) -> Sequence[str]:
        """Return up to `limit` keys that begin with `prefix`, in order of code points, from behind `after`."""
        check_limit(limit)
        return await self._read(partial(rows.keys, prefix=prefix, after=after, limit=limit))

    async def find(self, key: str, idempotency_key: str) -> Entry | None:
        """Return the oldest entry whose private `idempotency_key` is this one, or None.

        Raises: `StoreCorrupt` if that entry cannot be read and was set aside; `StoreError`.
        """
        wanted = partial(rows.find, key=key, idempotency_key=idempotency_key)
        return await self._telling(key, lambda: self._read(wanted))

    async def acquire(self, key: str, owner: str, ttl: float) -> int | None:
        """Take or renew the lease on a conversation for `ttl` seconds of the server's clock. See `Store.acquire`."""
        check_lease(owner, ttl)
        return await self._write(work.acquire(key, owner, ttl))

    async def release(self, key: str, owner: str) -> None:
        """Give the lease back early. See `Store.release`."""
        await self._write(work.release(key, owner))

    async def _write(self, wanted: work.Work[T]) -> T:
        self._check_open()
        self._opened = True
        return await self._writer.run(wanted)

    async def _read(self, read: Callable[[Connection], T]) -> T:
        self._check_open()
        if not self._opened:
            await self._writer.open()  # makes the tables, and says what is wrong
            self._opened = True
        return await trio.to_thread.run_sync(self._with_reader, read, limiter=self._reading)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"the store {self._link.place} is closed; enter it again to go on")

    # In a worker thread.
    def _with_reader(self, read: Callable[[Connection], T]) -> T:
        return patiently(partial(self._try_reading, read), self._patience)

    def _try_reading(self, read: Callable[[Connection], T]) -> T:
        self._check_open()
        try:
            connection = self._readers.pop()
        except IndexError:
            connection = self._link.open()
        try:
            value = read(connection)
        except psycopg.Error as error:
            if is_broken(error, connection):
                # The others will be broken, too: the server was restarted, or is gone.
                self._drop_readers()
            connection.close()
            raise self._link.translate(error) from self._link.cause(error)
        except Exception:
            self._readers.append(connection)
            raise
        self._readers.append(connection)
        return value

    def _drop_readers(self) -> None:
        while True:
            try:
                connection = self._readers.pop()
            except IndexError:
                return
            connection.close()

    async def _telling(self, key: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return what `attempt` returns; what it cannot read is set aside, and told.

        Invariant: nobody goes on without what was set aside before somebody was told. Setting aside and telling are two
        steps, and a process can die between them: hence `reported` in the table, which is written behind the error,
        never before it.
        """
        for _ in range(3):
            try:
                return await attempt()
            except work.BadRecord as bad:
                place, reason = await self._writer.run(work.set_aside_record(key, bad)), bad.reason
                what, then = "its record", "with its entries; the conversation starts empty from its next use on"
            except work.BadEntry as bad:
                place, reason = await self._writer.run(work.set_aside_entry(key, bad)), bad.reason
                what, then = f"its entry {bad.position}", "the rest of the conversation stays"
            except work.Untold as untold:
                if untold.place in self._told:
                    await self._writer.open()  # behind the note that says so
                    continue
                place, reason = untold.place, untold.reason
                what, then = "something of it", "earlier; the conversation goes on without it from its next use on"
            if place is not None:
                # Not waited for: should it fail, then the next one who comes hears it once more.
                self._told.add(place)
                self._writer.post(work.note_told(key, place))
                raise StoreCorrupt(
                    f"{key!r} at {self._link.place}: {what} could not be read ({reason}) and was set aside as row "
                    f"{place} of the table quarantine, {then}"
                )
        raise StoreError(f"{key!r} at {self._link.place} changes while it is being read; try again")
