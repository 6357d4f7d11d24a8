"""Group commit: whatever waits to be written goes to disk together, in one transaction.

A thread works only while there is something to write; between bursts it belongs to trio's
cache of threads, so an idle store holds neither a thread nor a task and can be used from one `trio.run` after another.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast, final

import attrs
import trio

from goliath_actors.errors import StoreError

__all__ = ["GroupCommit", "Work"]

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]


@attrs.define(eq=False)
class _Ticket(Generic[T]):
    """One piece of work, and where its end is told."""

    # None: nothing is to be written; the connection is opened, or, with `close`, closed.
    work: Work[T] | None
    close: bool = False
    loop: trio.lowlevel.TrioToken = attrs.Factory(trio.lowlevel.current_trio_token)
    # None: nobody waits for it.
    task: trio.lowlevel.Task | None = attrs.Factory(trio.lowlevel.current_task)
    value: T | None = None
    error: Exception | None = None


@final
@attrs.define(eq=False)
class GroupCommit:
    """The one connection that writes, and the queue in front of it.

    `open` makes the connection (in the thread, when first needed, and again after it broke); `translate` turns SQLite's
    errors into ours; `limit` is the number of pieces of work in one transaction; `check` raises what speaks against it,
    and is asked as the last thing before a transaction ends.
    """

    _open: Callable[[], sqlite3.Connection]
    _translate: Callable[[sqlite3.Error], StoreError]
    _limit: int
    _check: Callable[[], None] = attrs.field(alias="check", default=lambda: None)
    # Any: trio's own signature, in which the result's type is free.
    _start: Callable[[Callable[[], None], Callable[[Any], object], str], None] = attrs.field(
        alias="start", default=trio.lowlevel.start_thread_soon
    )
    # Guards _pending and _running, is held for a few instructions only, and so may be taken in the event loop.
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    # Any: pieces of work differ in what they return.
    _pending: deque[_Ticket[Any]] = attrs.field(factory=deque, init=False)
    # Invariant: while _pending holds something, _running is True and a thread will come by.
    _running: bool = attrs.field(default=False, init=False)
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
        await trio.lowlevel.checkpoint_if_cancelled()
        ticket = _Ticket(work)
        await self._through(ticket)
        # It is set now; None may be the value.
        return cast(T, ticket.value)

    def post(self, work: Work[object]) -> None:
        """Have `work` done in its turn without waiting for it; whether it succeeds is told to nobody.

        What is posted before `close` is called is done before the connection closes.
        """
        ticket = _Ticket(work, task=None)
        # Without a thread it is dropped, as if it had failed.
        with contextlib.suppress(StoreError):
            self._queue(ticket)

    async def open(self) -> None:
        """Have the connection open. Raises and is cancelled as `run`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        await self._through(_Ticket[None](None))

    async def close(self) -> None:
        """Let everything that waits be written, then close the connection. Cannot be cancelled."""
        await self._through(_Ticket[None](None, close=True))

    # Protected, since a KeyboardInterrupt between the two steps would leave a ticket that wakes a task elsewhere.
    @trio.lowlevel.enable_ki_protection
    async def _through(self, ticket: _Ticket[Any]) -> None:
        self._queue(ticket)
        await trio.lowlevel.wait_task_rescheduled(lambda raise_cancel: trio.lowlevel.Abort.FAILED)
        if ticket.error is not None:
            raise ticket.error

    @trio.lowlevel.enable_ki_protection
    def _queue(self, ticket: _Ticket[Any]) -> None:
        with self._lock:
            self._pending.append(ticket)
            start, self._running = not self._running, True
        if start:
            try:
                self._start(self._work_off, lambda result: result.unwrap(), "goliath_actors store")
            except RuntimeError as error:
                with self._lock:
                    self._pending.remove(ticket)
                    self._running = False
                raise StoreError(f"no thread to write with ({error}); nothing was changed, try again") from error

    def _work_off(self) -> None:
        while True:
            with self._lock:
                batch = [self._pending.popleft() for _ in range(min(self._limit, len(self._pending)))]
                if not batch:
                    self._running = False
                    return
            self._write([ticket for ticket in batch if not ticket.close])
            self._close([ticket for ticket in batch if ticket.close])
            _tell(batch)

    def _close(self, batch: list[_Ticket[Any]]) -> None:
        if not batch or self._connection is None:
            return
        connection, self._connection = self._connection, None
        try:
            connection.close()
        except sqlite3.Error as error:
            for ticket in batch:
                ticket.error = self._translate(error)
                ticket.error.__cause__ = error

    def _write(self, batch: list[_Ticket[Any]]) -> None:
        try:
            if self._connection is None and batch:
                self._connection = self._open()
            writing = [ticket for ticket in batch if ticket.work is not None]
            if self._connection is not None and writing:
                self._transact(self._connection, writing)
        except sqlite3.Error as error:
            for ticket in batch:
                ticket.error = self._translate(error)
                ticket.error.__cause__ = error
        except Exception as error:  # noqa: BLE001  (a child hands its error over, whatever it is)
            for ticket in batch:
                # One object each where we can make one: it is raised in several tasks, and raising writes into it.
                ticket.error = type(error)(*error.args) if isinstance(error, StoreError) else error
                ticket.error.__cause__ = error.__cause__

    def _transact(self, connection: sqlite3.Connection, batch: list[_Ticket[Any]]) -> None:
        try:
            connection.execute("BEGIN IMMEDIATE")
            for ticket in batch:
                self._do(connection, ticket)
            self._check()
            connection.execute("COMMIT")
        except Exception:
            self._recover(connection)
            raise

    def _do(self, connection: sqlite3.Connection, ticket: _Ticket[Any]) -> None:
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


def _tell(batch: list[_Ticket[Any]]) -> None:
    # All tickets are of one loop but in a program that runs trio several times; then each wave is told apart.
    for loop in {id(ticket.loop): ticket.loop for ticket in batch}.values():
        mine = [ticket for ticket in batch if ticket.loop is loop]
        try:
            loop.run_sync_soon(_wake, mine)
        except trio.RunFinishedError:
            # That program is over, crashed, with its tasks: nobody is left to be told.
            continue


def _wake(tickets: list[_Ticket[Any]]) -> None:
    for ticket in tickets:
        if ticket.task is not None:
            trio.lowlevel.reschedule(ticket.task)
