"""A run's events on their way out of the trio thread: in order, in batches, never more than a bounded number."""

from __future__ import annotations

import asyncio
import threading
from contextvars import Context, copy_context
from typing import final

import attrs
import trio

from goliath_actors import Run
from goliath_actors.events import Event

from ._call import Side
from ._crossing import Crossing

__all__ = ["Pump"]

# Of events under way. Behind them the run's own journal merges what a slow reader has not taken.
CAPACITY = 256


@final
@attrs.define(eq=False)
class Pump:
    """Between a task that reads `run.events()` in the trio thread and a reader in an asyncio loop."""

    _run: Run
    _side: Side
    _outward: Crossing
    # The reader's: a run may be reading, and then waits for what it reads (R4, R14).
    context: Context = attrs.field(factory=copy_context, init=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    # Guarded by the lock, as is what is said below to be shared.
    _events: list[Event] = attrs.field(factory=list, init=False)
    _ended: bool = attrs.field(default=False, init=False)
    _error: Exception | None = attrs.field(default=None, init=False)
    # The reader sleeps and wants to be woken; the filler waits for room.
    _reader_waits: bool = attrs.field(default=False, init=False)
    _filler_waits: bool = attrs.field(default=False, init=False)
    # Only the reader's thread touches it.
    _woken: asyncio.Event = attrs.field(factory=asyncio.Event, init=False)
    # Only the trio thread touches these. `_hurry`: the runtime is over, so nothing grows and nobody may be waited for.
    _room: trio.Event = attrs.field(factory=trio.Event, init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _hurry: bool = attrs.field(default=False, init=False)

    # --- in the trio thread -----------------------------------------------------------------------------------------

    async def fill(self) -> None:
        """Read the run's events until they end, or until `stop`."""
        with self._scope:
            try:
                async for event in self._run.events():
                    if not self._put(event) and not self._hurry:
                        await self._room.wait()
                        self._room = trio.Event()
            except Exception as error:  # noqa: BLE001  # the reader raises it
                self._error = error
        self.end()

    def hurry(self) -> None:
        """Read the rest without waiting for the reader. In the trio thread."""
        self._hurry = True
        self._room.set()

    def _put(self, event: Event) -> bool:
        """Return False if the filler has to wait for room before the next one."""
        with self._lock:
            self._events.append(event)
            wake, self._reader_waits = self._reader_waits, False
            self._filler_waits = full = len(self._events) >= CAPACITY
        if wake:
            self._side.inward.post(self._woken.set)
        return not full

    def end(self, error: Exception | None = None) -> None:
        """There is nothing more. From any thread; the first word counts."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            self._error = self._error or error
            wake, self._reader_waits = self._reader_waits, False
        if wake:
            self._side.inward.post(self._woken.set)

    # --- in the reader's loop ---------------------------------------------------------------------------------------

    async def take(self) -> list[Event]:
        """Wait for events and take all that are there, oldest first; none are left when it returns none.

        Raises: what reading raised.

        Cancellation: takes nothing.
        """
        while True:
            with self._lock:
                batch, self._events = self._events, []
                room, self._filler_waits = self._filler_waits, False
                over = self._ended
                self._reader_waits = not batch and not over
            if room:
                self._outward.post(lambda: self._room.set())
            if batch:
                return batch
            if over:
                if self._error is not None:
                    raise self._error
                return batch
            await self._woken.wait()
            self._woken.clear()

    def stop(self) -> None:
        """The reader has left."""
        self._outward.post(self._scope.cancel)
