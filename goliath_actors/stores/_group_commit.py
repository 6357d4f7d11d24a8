"""Group commit: whatever waits to be written goes to disk together, in one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar, final

import attrs

from goliath_actors.errors import StoreError

from ._write_queue import Ticket, WriteQueue, fail

__all__ = ["GroupCommit", "Work"]

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]
# Any, below: pieces of work differ in what they return.


@final
@attrs.define(eq=False)
class GroupCommit(WriteQueue[Work[Any]]):
    """The one connection that writes.

    `open` makes the connection (in the thread, when first needed, and again after it broke); `translate` turns SQLite's
    errors into ours; `limit` is the number of pieces of work in one transaction; `check` raises what speaks against it,
    and is asked as the last thing before a transaction ends.

    A piece of work runs in the thread, in order of arrival, and perhaps twice, the first time being undone. What it
    raises undoes its own changes and nobody else's. If the transaction fails, nothing of it is in the file.
    """

    _connect: Callable[[], sqlite3.Connection] = attrs.field(alias="open")
    _translate: Callable[[sqlite3.Error], StoreError]
    _check: Callable[[], None] = attrs.field(alias="check", default=lambda: None)
    # Only the thread touches it.
    _connection: sqlite3.Connection | None = attrs.field(default=None, init=False)

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
                self._connection = self._connect()
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
        # A savepoint for each costs a tenth of a batch, and is of use only for what fails in the middle of its changes,
        # which is rare: most of what fails is a conflict and has changed nothing. So a batch is done without them, and
        # once more with them if need be.
        try:
            for savepoints in (False, True):
                connection.execute("BEGIN IMMEDIATE")
                if all(self._do(connection, ticket, savepoints) for ticket in batch):
                    self._check()
                    connection.execute("COMMIT")
                    return
                connection.execute("ROLLBACK")
        except Exception:
            self._recover(connection)
            raise

    def _do(self, connection: sqlite3.Connection, ticket: Ticket[Work[Any]], savepoint: bool) -> bool:
        """Return whether all or nothing was done; with a savepoint that is so."""
        assert ticket.work is not None
        ticket.value = ticket.error = None
        if savepoint:
            connection.execute("SAVEPOINT change")
        changes = connection.total_changes
        try:
            ticket.value = ticket.work(connection)
        except Exception as error:
            if not connection.in_transaction:
                # SQLite gave up the whole transaction (no space, no memory, the disk): nobody's change is in it.
                raise
            if savepoint:
                connection.execute("ROLLBACK TO change")
            elif connection.total_changes != changes:
                return False
            if isinstance(error, sqlite3.Error):
                ticket.error = self._translate(error)
                ticket.error.__cause__ = error
            else:
                ticket.error = error
        if savepoint:
            connection.execute("RELEASE change")
        return True

    def _recover(self, connection: sqlite3.Connection) -> None:
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            # Not to be trusted any more; the next piece of work gets a new one.
            self._connection = None
            connection.close()
