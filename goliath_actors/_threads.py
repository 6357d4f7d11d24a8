"""Worker threads for plain functions, bounded for the runtime and for each conversation (R16).

A thread cannot be interrupted: when its run is cancelled it is abandoned, keeps its places until it really
ends, and its late result is dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import attrs
import trio

from ._callables import alone

__all__ = ["ConversationThreads", "ToolThreads"]

T = TypeVar("T")

RUNTIME_THREADS = 32  # R16
CONVERSATION_THREADS = 8  # R16


@attrs.define(eq=False)
class ToolThreads:
    """The limiter that all tools of one runtime share; the program's other threads are not behind it."""

    limiter: trio.CapacityLimiter = attrs.Factory(lambda: trio.CapacityLimiter(RUNTIME_THREADS))


@attrs.define(eq=False)
class ConversationThreads:
    """One conversation's share. Made on first use, so a conversation without plain tools has none."""

    shared: ToolThreads
    _own: trio.CapacityLimiter | None = None

    @property
    def unused(self) -> bool:
        """True if no thread of this conversation is still at work."""
        return self._own is None or not self._own.borrowed_tokens

    async def run(self, function: Callable[[], T]) -> T:
        """Call `function` in a worker thread, in this task's context.

        Cancellation: the thread is abandoned; it keeps its places until it ends, and what it returns is dropped.
        """
        if self._own is None:
            self._own = trio.CapacityLimiter(CONVERSATION_THREADS)
        own = self._own
        place = object()  # a borrower of its own: one run may have several calls in threads
        await own.acquire_on_behalf_of(place)
        token = trio.lowlevel.current_trio_token()
        settled = threading.Lock()
        started = abandoned = False

        def work() -> T:
            nonlocal started
            with settled:
                if abandoned:  # the run was cancelled before this thread began: the function never runs
                    raise trio.RunFinishedError("abandoned before it began")
                started = True
            try:
                return alone(function)
            finally:
                try:
                    token.run_sync_soon(own.release_on_behalf_of, place)
                except trio.RunFinishedError:
                    pass  # the loop has gone, and its limiters with it

        try:
            return await trio.to_thread.run_sync(work, limiter=self.shared.limiter, abandon_on_cancel=True)
        finally:
            # A thread that never began has nobody else to give its place back.
            with settled:
                abandoned = not started
            if abandoned:
                own.release_on_behalf_of(place)
