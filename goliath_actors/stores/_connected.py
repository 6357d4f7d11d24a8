"""What stores behind connections have in common: one of these writes, others only read and never wait for it.

Entering and leaving, closing, the connections that read, and telling of what could not be read. What a connection is
and what is asked of it is said by who derives from this.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

import attrs
import trio

from goliath_actors.errors import ConfigError, StoreCorrupt, StoreError

from ._trouble import BadEntry, BadRecord, Untold
from ._write_queue import WriteQueue

__all__ = ["ConnectedStore", "positive"]

T = TypeVar("T")
W = TypeVar("W")


class _Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=_Closable)


# Any: one validator for fields of whole numbers and of seconds.
def positive(instance: object, attribute: attrs.Attribute[Any], value: float) -> None:
    """Validate a field of a store: more than 0, and finite. Raises `ConfigError`."""
    if not (math.isfinite(value) and value > 0):
        name = attribute.name.lstrip("_")
        raise ConfigError(f"{name} of a {type(instance).__name__} has to be more than 0, not {value}")


def _limiter_of(store: ConnectedStore[Any, Any]) -> trio.CapacityLimiter:
    return trio.CapacityLimiter(store._max_readers)


@attrs.define(eq=False, repr=False)
class ConnectedStore(ABC, Generic[C, W]):
    """One connection that writes (`_writer`) and up to `max_readers` that read, opened when they are needed."""

    durable = True

    _max_readers: int = attrs.field(alias="max_readers", default=4, kw_only=True, validator=positive)
    # Set by who derives from this.
    _writer: WriteQueue[W] = attrs.field(init=False)
    _reading: trio.CapacityLimiter = attrs.field(init=False, default=attrs.Factory(_limiter_of, takes_self=True))
    # Connections that nobody reads with at the moment. Threads push and pop; both are atomic.
    _readers: list[C] = attrs.field(factory=list, init=False)
    # Two who close at once would each hold some of the places that the other one needs.
    _closing: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _entered: int = attrs.field(default=0, init=False)
    _opened: bool = attrs.field(default=False, init=False)
    _closed: bool = attrs.field(default=False, init=False)
    # Rows of the quarantine, by key, that this object has told of; the note that says so may still be on its way.
    _told: dict[str, set[int]] = attrs.field(factory=dict, init=False)

    @property
    @abstractmethod
    def _where(self) -> str:
        """Where the conversations are, for people."""

    @abstractmethod
    def _connect(self) -> C:
        """Open a connection to read with, in a worker thread."""

    @abstractmethod
    def _is_spoiled(self, error: Exception, connection: C) -> bool:
        """Say, in a worker thread, whether a connection is good for nothing after a read that raised `error`."""

    @abstractmethod
    def _set_aside(self, key: str, bad: BadRecord | BadEntry, at: float) -> W:
        """Return the work that moves what is bad to the quarantine; `at` is the time in seconds since the epoch.

        Its value: the row of the quarantine and what was wrong; None if that is not as it was seen any more.
        """

    @abstractmethod
    def _note_told(self, key: str, place: int) -> W:
        """Return the work that writes down that somebody was told of a row of the quarantine."""

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open" if self._opened else "not opened"
        return f"<{type(self).__name__} {self._where}: {state}>"

    async def __aenter__(self) -> Self:
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
                # The writer goes last: SQLite empties and removes the journal when the last connection closes.
                await self._writer.close()
                self._left()
        await trio.lowlevel.checkpoint()

    def _left(self) -> None:
        """All connections are closed."""

    def _write(self, work: W) -> Awaitable[Any]:
        self._check_open()
        return self._writer.run(work)

    async def _read(self, read: Callable[[C], T]) -> T:
        self._check_open()
        if not self._opened:
            await self._writer.open()  # makes what there is to read, and says what is wrong
            self._opened = True
        return await trio.to_thread.run_sync(self._with_reader, read, limiter=self._reading)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"the store {self._where} is closed; enter it again to go on")

    # In a worker thread.
    def _with_reader(self, read: Callable[[C], T]) -> T:
        self._check_open()
        try:
            connection = self._readers.pop()
        except IndexError:
            connection = self._connect()
        try:
            value = read(connection)
        except Exception as error:
            if self._is_spoiled(error, connection):
                connection.close()
            else:
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

    async def _telling(self, key: str, attempt: Callable[[Collection[int]], Awaitable[T]]) -> T:
        """Return what `attempt` returns; what it cannot read is set aside, and told.

        `attempt` is given the rows of the quarantine that were told of, and may go on without them.

        Invariant: nobody goes on without what was set aside before somebody was told. Setting aside and telling are two
        steps, and a process can die between them: hence `reported` beside each row, which is written behind the error,
        never before it.
        """
        for _ in range(3):
            told = self._told.get(key, ())
            try:
                return await attempt(told)
            except BadRecord as bad:
                found = await self._writer.run(self._set_aside(key, bad, time.time()))
                what = "the record"
                then = "with its entries; the conversation starts empty from its next use on"
            except BadEntry as bad:
                found = await self._writer.run(self._set_aside(key, bad, time.time()))
                what = f"entry {bad.position}"
                then = "the rest of the conversation stays"
            except Untold as untold:
                if untold.place in told:
                    await self._writer.open()  # behind the note that says so
                    continue
                found = untold.place, untold.reason
                what = "something"
                then = "earlier; the conversation goes on without it from its next use on"
            if found is not None:
                place, reason = found
                self._told.setdefault(key, set()).add(place)
                # Not waited for: it is done behind the error that is on its way, and should it fail, then the next one
                # who comes hears it once more.
                self._writer.post(self._note_told(key, place))
                raise StoreCorrupt(
                    f"{what} of {key!r} in {self._where} could not be read ({reason}) and was set aside as row {place} "
                    f"of the table quarantine, {then}"
                )
        raise StoreError(f"{key!r} in {self._where} changes while it is being read; try again")
