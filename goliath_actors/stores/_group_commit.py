"""Group commit: whatever waits to be written goes to disk together, in one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar, cast, final

import attrs
import trio

from goliath_actors.errors import StoreError

from ._write_queue import Start, Ticket, WriteQueue, fail

__all__ = ["GroupCommit", "Work"]

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]
# Any, below: pieces of work differ in what they return.


def _queue_of(commits: GroupCommit) -> WriteQueue[Work[Any]]:
    return WriteQueue(commits._limit, commits._write, commits._shut, commits._start)


@final
@attrs.define(eq=False)
class GroupCommit:
    """The one connection that writes.

    `open` makes the connection (in the thread, when first needed, and again after it broke); `translate` turns SQLite's
    errors into ours; `limit` is the number of pieces of work in one transaction; `check` raises what speaks against it,
    and is asked as the last thing before a transaction ends.
    """

    _open: Callable[[], sqlite3.Connection]
    _translate: Callable[[sqlite3.Error], StoreError]
    _limit: int
    _check: Callable[[], None] = attrs.field(alias="check", default=lambda: None)
    _start: Start = attrs.field(alias="start", default=trio.lowlevel.start_thread_soon)
    _queue: WriteQueue[Work[Any]] = attrs.field(init=False, default=attrs.Factory(_queue_of, takes_self=True))
    # Only the thread touches it.
    _connection: sqlite3.Connection | None = attrs.field(default=None, init=False)

    async def run(self, work: Work[T]) -> T:
        """Do `work` in a transaction together with its neighbours, and return what it returns once that is on disk.

        `work` runs in the thread, in order of arrival, in a savepoint of its own: what it raises undoes its own changes
        and nobody else's.

        Raises: what `work` raises; `StoreError` if the transaction failed, with nothing of it in the file.

        Cancellation: a checkpoint, cancelled only before the work is queued. From then on the wait is bounded by the
        busy time-out and the disk and cannot be cancelled: `Cancelled` out of here means that nothing was done.
        """
        return cast(T, await self._queue.run(work))

    def post(self, work: Work[object]) -> None:
        """As `WriteQueue.post`."""
        self._queue.post(work)

    async def open(self) -> None:
        """As `WriteQueue.open`."""
        await self._queue.open()

    async def close(self) -> None:
        """As `WriteQueue.close`."""
        await self._queue.close()

    # --- in the thread ----------------------------------------------------------------------------------------------

    def _shut(self, batch: list[Ticket[Work[Any]]]) -> None:
        if self._connection is None:
            return
        connection, self._connection = self._connection, None
        try:
            connection.close()
        except sqlite3.Error as error:
            for ticket in batch:
                ticket.error = self._translate(error)
                ticket.error.__cause__ = error

    def _write(self, batch: list[Ticket[Work[Any]]]) -> None:
        try:
            if self._connection is None:
                self._connection = self._open()
            writing = [ticket for ticket in batch if ticket.work is not None]
            if writing:
                self._transact(self._connection, writing)
        except sqlite3.Error as error:
            for ticket in batch:
                ticket.error = self._translate(error)
                ticket.error.__cause__ = error
        except Exception as error:  # noqa: BLE001  (a child hands its error over, whatever it is)
            fail(batch, error)

    def _transact(self, connection: sqlite3.Connection, batch: list[Ticket[Work[Any]]]) -> None:
        try:
            connection.execute("BEGIN IMMEDIATE")
            for ticket in batch:
                self._do(connection, ticket)
            self._check()
            connection.execute("COMMIT")
        except Exception:
            self._recover(connection)
            raise

    def _do(self, connection: sqlite3.Connection, ticket: Ticket[Work[Any]]) -> None:
        assert ticket.work is not None
        connection.execute("SAVEPOINT change")
        try:
            ticket.value = ticket.work(connection)
        except Exception as error:
            if not connection.in_transaction:
                # SQLite gave up the whole transaction (no space, no memory, the disk): nobody's change is in it.
                raise
            connection.execute("ROLLBACK TO change")
            if isinstance(error, sqlite3.Error):
                ticket.error = self._translate(error)
                ticket.error.__cause__ = error
            else:
                ticket.error = error
        connection.execute("RELEASE change")

    def _recover(self, connection: sqlite3.Connection) -> None:
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            # Not to be trusted any more; the next piece of work gets a new one.
            self._connection = None
            connection.close()
