"""From one thread's event loop into another's: calls in order, waking the other loop once for many.

Two loops talk through two of these. Waking a loop costs a system call and a turn of it, handing over costs an append:
under load a turn of the one loop takes everything that gathered while it was busy with the last.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeAlias, final

import attrs

__all__ = ["Crossing", "Thunk"]

Thunk: TypeAlias = Callable[[], object]


@final
@attrs.define(eq=False)
class Crossing:
    """Calls into one event loop, from any thread, made there in order.

    `wake` is that loop's own way to be called from elsewhere: `loop.call_soon_threadsafe` or `token.run_sync_soon`.
    What is posted must not raise.
    """

    _wake: Callable[[Thunk], object]
    # Held for a few instructions only, and so may be taken in an event loop.
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    # Invariant: while it holds something, the loop has been woken and will come by, or is over.
    _waiting: list[Thunk] = attrs.field(factory=list, init=False)

    def post(self, thunk: Thunk) -> bool:
        """Have `thunk` called in the other loop. Never blocks.

        Returns: False if that loop is known to be over; then it is never called.
        """
        with self._lock:
            first = not self._waiting
            self._waiting.append(thunk)
        if first:
            try:
                self._wake(self._take)
            except RuntimeError:  # the loop is closed; trio's RunFinishedError is one, too
                with self._lock:
                    self._waiting.clear()
                return False
        return True

    def _take(self) -> None:
        with self._lock:
            batch, self._waiting = self._waiting, []
        for thunk in batch:
            thunk()
