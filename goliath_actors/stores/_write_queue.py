"""A queue in front of the one connection that writes: tasks put work in, a thread does it in batches.

A thread works only while there is something to do; between bursts it belongs to trio's cache of threads, so an idle
store holds neither a thread nor a task and can be used from one `trio.run` after another. What a batch becomes is said
by who derives from this: a transaction in SQLite, a pipeline to PostgreSQL.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import attrs
import trio

from goliath_actors.errors import StoreError

__all__ = ["Start", "Ticket", "WriteQueue", "fail"]

W = TypeVar("W")
# Any: trio's own signature, in which the result's type is free.
Start = Callable[[Callable[[], None], Callable[[Any], object], str], None]


@attrs.define(eq=False)
class Ticket(Generic[W]):
    """One piece of work, and where its end is told."""

    # None: nothing is to be written; the connection is opened, or, with `close`, closed.
    work: W | None
    close: bool = False
    loop: trio.lowlevel.TrioToken = attrs.Factory(trio.lowlevel.current_trio_token)
    # None: nobody waits for it.
    task: trio.lowlevel.Task | None = attrs.Factory(trio.lowlevel.current_task)
    # Any: pieces of work differ in what they return; who asked knows.
    value: Any = None
    error: Exception | None = None


@attrs.define(eq=False)
class WriteQueue(ABC, Generic[W]):
    """The queue. `limit` is the number of pieces of work in one batch."""

    _limit: int = attrs.field(alias="limit", kw_only=True)
    _start: Start = attrs.field(alias="start", default=trio.lowlevel.start_thread_soon, kw_only=True)
    # Guards _pending and _running, is held for a few instructions only, and so may be taken in the event loop.
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    _pending: deque[Ticket[W]] = attrs.field(factory=deque, init=False)
    # Invariant: while _pending holds something, _running is True and a thread will come by.
    _running: bool = attrs.field(default=False, init=False)

    @abstractmethod
    def _write(self, batch: list[Ticket[W]]) -> None:
        """Do a batch, in the thread, and give its tickets their values and errors; those without work only want the
        connection to be open."""

    @abstractmethod
    def _shut(self, batch: list[Ticket[W]]) -> None:
        """Close the connection, in the thread, for these tickets."""

    async def run(self, work: W) -> Any:
        """Have `work` done, together with its neighbours, and return its value once that is on disk.

        Raises: the error that its ticket was given; `StoreError` if there is no thread to do it.

        Cancellation: a checkpoint, cancelled only before the work is queued. From then on the wait is bounded by the
        disk or the server and its time-outs and cannot be cancelled: `Cancelled` out of here means that nothing was
        done.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        return await self._through(Ticket(work))

    def post(self, work: W) -> None:
        """Have `work` done in its turn without waiting for it; whether it succeeds is told to nobody.

        What is posted before `close` is called is done before the connection closes.
        """
        with contextlib.suppress(StoreError):  # without a thread it is dropped, as if it had failed
            self._put(Ticket(work, task=None))

    async def open(self) -> None:
        """Have the connection open. Raises and is cancelled as `run`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        await self._through(Ticket[W](None))

    async def close(self) -> None:
        """Let everything that waits be written, then close the connection. Cannot be cancelled."""
        await self._through(Ticket[W](None, close=True))

    # Protected, since a KeyboardInterrupt between the two steps would leave a ticket that wakes a task elsewhere.
    @trio.lowlevel.enable_ki_protection
    async def _through(self, ticket: Ticket[W]) -> Any:
        self._put(ticket)
        await trio.lowlevel.wait_task_rescheduled(_go_on)
        if ticket.error is not None:
            raise ticket.error
        return ticket.value

    @trio.lowlevel.enable_ki_protection
    def _put(self, ticket: Ticket[W]) -> None:
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

    # In the thread.
    def _work_off(self) -> None:
        while True:
            with self._lock:
                batch = [self._pending.popleft() for _ in range(min(self._limit, len(self._pending)))]
                if not batch:
                    self._running = False
                    return
            writing, closing = ([ticket for ticket in batch if ticket.close is close] for close in (False, True))
            if writing:
                self._write(writing)
            if closing:
                self._shut(closing)
            _tell(batch)


def fail(batch: Sequence[Ticket[Any]], error: Exception) -> None:
    """Give all tickets of a batch the error that came instead of it."""
    for ticket in batch:
        # One object each where we can make one: it is raised in several tasks, and raising writes into it.
        ticket.error = type(error)(*error.args) if isinstance(error, StoreError) else error
        ticket.error.__cause__ = error.__cause__


def _go_on(raise_cancel: Callable[[], object]) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED


def _tell(batch: Sequence[Ticket[Any]]) -> None:
    # All tickets are of one loop but in a program that runs trio several times; then each wave is told apart.
    for loop in {id(ticket.loop): ticket.loop for ticket in batch}.values():
        mine = [ticket for ticket in batch if ticket.loop is loop]
        # That program may be over, crashed, with its tasks: then nobody is left to be told.
        with contextlib.suppress(trio.RunFinishedError):
            loop.run_sync_soon(_wake, mine)


def _wake(tickets: Sequence[Ticket[Any]]) -> None:
    for ticket in tickets:
        if ticket.task is not None:
            trio.lowlevel.reschedule(ticket.task)
