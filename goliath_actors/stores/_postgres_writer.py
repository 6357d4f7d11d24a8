"""Group commit over the network: what waits to be written travels in one pipeline and commits in one transaction."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar, final

import attrs
import psycopg

from goliath_actors.errors import StoreError

from ._postgres_link import Link, Unreachable, is_broken, may_be_repeated
from ._postgres_schema import Connection
from ._postgres_work import Work
from ._trouble import BadRecord
from ._write_queue import Ticket, WriteQueue, fail

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


# Any: pieces of work differ in what they return.
_Ticket: TypeAlias = Ticket[Work[Any]]
_Batch: TypeAlias = Sequence[_Ticket]


@attrs.define(eq=False)
class _Unsure(Exception):
    """The connection was lost while the transaction `number` of this writer committed: it is there or it is not."""

    number: int
    error: psycopg.Error


@final
@attrs.define(eq=False)
class Writer(WriteQueue[Work[Any]]):
    """The one connection of this process that writes.

    `limit` is the number of pieces of work in one transaction; `patience`, in seconds, how long a server that went away
    is waited for. If a transaction fails, nothing of it is in the database.
    """

    _link: Link
    _patience: float
    # Only the thread touches these. Until a first connection was there, nothing is waited for.
    _connection: Connection | None = attrs.field(default=None, init=False)
    _was_there: bool = attrs.field(default=False, init=False)
    # What tells the transactions of this writer from all others, and each of them from the one before.
    _id: uuid.UUID = attrs.field(factory=uuid.uuid4, init=False)
    _number: int = attrs.field(default=0, init=False)

    # --- in the thread ----------------------------------------------------------------------------------------------

    def _shut(self, batch: _Batch) -> None:
        self._drop()
        self._was_there = False

    def _write(self, batch: _Batch) -> None:
        # Rows are locked in the order of keys, whatever the order of arrival; a key's own changes keep theirs.
        writing = sorted((ticket for ticket in batch if ticket.work is not None), key=_key)
        try:
            patiently(self._connected, self._patience if self._was_there else 0.0)
            if writing:
                self._settle(writing)
        except Exception as error:  # noqa: BLE001  (a child hands its error over, whatever it is)
            fail(batch, error)

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
                fail([ticket], error)

    def _transact(self, connection: Connection, batch: _Batch) -> _Batch:
        """Write the batch in one transaction, and return those of it that are to be written again.

        Raises: `_Unsure`; `psycopg.Error`, with nothing written.
        """
        self._number += 1
        with connection.pipeline():
            connection.execute("BEGIN")
            connection.execute("SELECT note_writer(%s, %s)", (self._id, self._number))
            cursors = [connection.execute(_work(ticket).statement, _work(ticket).values) for ticket in batch]
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
                raise _Unsure(self._number, error) from error
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
                row = connection.execute("SELECT last_of_writer(%s)", (self._id,)).fetchone()
                return row is not None and row[0] == unsure.number
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


def _work(ticket: _Ticket) -> Work[Any]:
    assert ticket.work is not None
    return ticket.work


def _key(ticket: _Ticket) -> bytes:
    return _work(ticket).key
