"""Group commit over the network: whatever waits to be written travels in one pipeline and commits in one transaction.

A thread works only while there is something to write; between bursts it belongs to trio's
cache of threads, so an idle store holds a connection and no thread.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, cast, final

import attrs
import psycopg
import trio

from goliath_actors.errors import StoreError

from ._postgres_link import Link, Unreachable, is_broken, may_be_repeated
from ._postgres_schema import Connection
from ._postgres_work import BadRecord, Work

__all__ = ["Writer", "patiently"]

T = TypeVar("T")

# Between attempts to reach a server that went away, in seconds; the last one repeats.
PAUSES = (0.0, 0.05, 0.1, 0.2, 0.4)


def patiently(attempt: Callable[[], T], patience: float) -> T:
    """Return what `attempt` returns, trying again for `patience` seconds while the server cannot be reached.

    Blocks; for worker threads.
    """
    deadline = time.monotonic() + patience
    tries = 0
    while True:
        try:
            return attempt()
        except Unreachable:
            if time.monotonic() > deadline:
                raise
        time.sleep(PAUSES[min(tries, len(PAUSES) - 1)])
        tries += 1


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


# Any: pieces of work differ in what they return.
_Batch = Sequence["_Ticket[Any]"]


@attrs.define(eq=False)
class _Unsure(Exception):
    """The connection was lost while the transaction `xid` committed: it is there or it is not."""

    xid: str
    error: psycopg.Error


@final
@attrs.define(eq=False)
class Writer:
    """The one connection of this process that writes, and the queue in front of it.

    `limit` is the number of pieces of work in one transaction; `patience`, in seconds, how long a server that went away
    is waited for.
    """

    _link: Link
    _limit: int
    _patience: float
    # Any: trio's own signature, in which the result's type is free.
    _start: Callable[[Callable[[], None], Callable[[Any], object], str], None] = attrs.field(
        alias="start", default=trio.lowlevel.start_thread_soon
    )
    # Guards _pending and _running, is held for a few instructions only, and so may be taken in the event loop.
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    _pending: deque[_Ticket[Any]] = attrs.field(factory=deque, init=False)
    # Invariant: while _pending holds something, _running is True and a thread will come by.
    _running: bool = attrs.field(default=False, init=False)
    # Only the thread touches these. Until a first connection was there, nothing is waited for.
    _connection: Connection | None = attrs.field(default=None, init=False)
    _was_there: bool = attrs.field(default=False, init=False)

    async def run(self, work: Work[T]) -> T:
        """Do `work` in a transaction together with its neighbours, and return what it returns once that is on disk.

        Raises: what its `read` raises; `StoreError` if the transaction failed, with nothing of it in the database.

        Cancellation: a checkpoint, cancelled only before the work is queued. From then on the wait is bounded by the
        time-outs and cannot be cancelled: `Cancelled` out of here means that nothing was done.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        ticket = _Ticket(work)
        await self._through(ticket)
        # It is set now; None may be the value.
        return cast(T, ticket.value)

    def post(self, work: Work[Any]) -> None:
        """Have `work` done in its turn without waiting for it; whether it succeeds is told to nobody."""
        with contextlib.suppress(StoreError):  # without a thread it is dropped, as if it had failed
            self._queue(_Ticket(work, task=None))

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

    # --- in the thread ----------------------------------------------------------------------------------------------

    def _work_off(self) -> None:
        while True:
            with self._lock:
                batch = [self._pending.popleft() for _ in range(min(self._limit, len(self._pending)))]
                if not batch:
                    self._running = False
                    return
            self._write([ticket for ticket in batch if not ticket.close])
            if any(ticket.close for ticket in batch):
                self._drop()
                self._was_there = False
            _tell(batch)

    def _write(self, batch: _Batch) -> None:
        # Rows are locked in the order of keys, whatever the order of arrival; a key's own changes keep theirs.
        writing = sorted((ticket for ticket in batch if ticket.work is not None), key=_key)
        try:
            if batch:
                patiently(self._connected, self._patience if self._was_there else 0.0)
            if writing:
                self._settle(writing)
        except Exception as error:  # noqa: BLE001  (a child hands its error over, whatever it is)
            _fail(batch, error)

    def _settle(self, batch: _Batch) -> None:
        """Have the batch written, or its tickets hold their errors. Raises what concerns all of them alike."""
        deadline = time.monotonic() + self._patience
        while batch:
            connection = patiently(self._connected, self._patience)
            try:
                batch = self._transact(connection, batch)
                continue
            except _Unsure as unsure:
                self._drop()
                if self._committed(unsure):
                    return
                error = unsure.error
            except psycopg.Error as trouble:
                error = trouble
                if is_broken(trouble, connection) or not self._undo(connection):
                    self._drop()
                elif not may_be_repeated(trouble):
                    if len(batch) == 1:
                        raise self._link.translate(trouble) from self._link.cause(trouble)
                    self._one_by_one(batch)
                    return
            # Nothing of it is there: again, for a while.
            if time.monotonic() > deadline:
                raise self._link.translate(error) from self._link.cause(error)

    def _one_by_one(self, batch: _Batch) -> None:
        """One of them cannot be written: the others are not to pay for it."""
        for ticket in batch:
            try:
                self._settle([ticket])
            except Exception as error:  # noqa: BLE001
                _fail([ticket], error)

    def _transact(self, connection: Connection, batch: _Batch) -> _Batch:
        """Write the batch in one transaction, and return those of it that are to be written again.

        Raises: `_Unsure`; `psycopg.Error`, with nothing written.
        """
        with connection.pipeline():
            connection.execute("BEGIN")
            marked = connection.execute("SELECT pg_current_xact_id()::text")
            cursors = [connection.execute(_work(ticket).statement, _work(ticket).values) for ticket in batch]
        row = marked.fetchone()
        assert row is not None
        bad = False
        for ticket, cursor in zip(batch, cursors, strict=True):
            answer = cursor.fetchone()
            assert answer is not None
            ticket.value = ticket.error = None
            try:
                ticket.value = _work(ticket).read(answer)
            except BadRecord as error:
                bad, ticket.error = True, error
            except Exception as error:  # noqa: BLE001  (handed to whoever waits for it)
                ticket.error = error
        if bad:
            connection.execute("ROLLBACK")
            return [ticket for ticket in batch if not isinstance(ticket.error, BadRecord)]
        try:
            connection.execute("COMMIT")
        except psycopg.Error as error:
            if is_broken(error, connection):
                raise _Unsure(row[0], error) from error
            raise
        return ()

    def _committed(self, unsure: _Unsure) -> bool:
        """Ask the server, once it is back, what became of a transaction.

        Raises: `StoreError` if that cannot be found out in time.
        """
        deadline = time.monotonic() + self._patience
        while True:
            try:
                connection = patiently(self._connected, self._patience)
                row = connection.execute("SELECT pg_xact_status(%s::xid8)", (unsure.xid,)).fetchone()
                status = None if row is None else row[0]
                if status in ("committed", "aborted"):
                    return bool(status == "committed")
            except psycopg.Error:
                self._drop()
            except StoreError as error:
                raise self._in_doubt() from error
            if time.monotonic() > deadline:
                raise self._in_doubt() from self._link.cause(unsure.error)
            time.sleep(PAUSES[-1] / 4)

    def _in_doubt(self) -> StoreError:
        return StoreError(
            f"the connection to {self._link.place} was lost while a change was committed, and did not come back in "
            "time: the change is wholly there or not at all; load again to know"
        )

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = self._link.open()
            self._was_there = True
        return self._connection

    def _undo(self, connection: Connection) -> bool:
        try:
            connection.execute("ROLLBACK")
        except psycopg.Error:
            return False
        return True

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()


def _work(ticket: _Ticket[T]) -> Work[T]:
    assert ticket.work is not None
    return ticket.work


def _key(ticket: _Ticket[Any]) -> bytes:
    return _work(ticket).key


def _fail(batch: _Batch, error: Exception) -> None:
    for ticket in batch:
        # One object each where we can make one: it is raised in several tasks, and raising writes into it.
        ticket.error = type(error)(*error.args) if isinstance(error, StoreError) else error
        ticket.error.__cause__ = error.__cause__


def _tell(batch: _Batch) -> None:
    # All tickets are of one loop but in a program that runs trio several times; then each wave is told apart.
    for loop in {id(ticket.loop): ticket.loop for ticket in batch}.values():
        mine = [ticket for ticket in batch if ticket.loop is loop]
        # That program may be over, crashed, with its tasks: then nobody is left to be told.
        with contextlib.suppress(trio.RunFinishedError):
            loop.run_sync_soon(_wake, mine)


def _wake(tickets: _Batch) -> None:
    for ticket in tickets:
        if ticket.task is not None:
            trio.lowlevel.reschedule(ticket.task)
