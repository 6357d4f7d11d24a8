"""One question to the trio thread, and its one answer in the asker's event loop."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import Context, copy_context
from typing import Any, Generic, TypeVar, cast, final

import attrs
import trio

from ._crossing import Crossing

__all__ = ["Call", "Side", "insist"]

T = TypeVar("T")


async def insist(future: asyncio.Future[None], cancel: Callable[[], object]) -> asyncio.CancelledError | None:
    """Wait for `future`, which no cancellation ends, and return the first that came, for the caller to raise.

    Arguments: `cancel`, called when that one comes.
    """
    try:
        # It never has an exception, and `wait` leaves it alone.
        await asyncio.wait((future,))
    except asyncio.CancelledError as cancelled:  # noqa: ASYNC103  # asyncio's, and the caller raises it
        cancel()
        with _deaf():
            while not future.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait((future,))
        return cancelled  # noqa: ASYNC104  # as above
    return None


def _deaf() -> AbstractContextManager[object]:
    """Return a block that anyio's cancellations do not reach, if anyone uses anyio (Starlette and FastAPI do).

    asyncio's own cancel once, but anyio's come again in each turn of the loop for as long as the task waits: without
    this, waiting for an observer would keep a processor busy.
    """
    anyio = sys.modules.get("anyio")
    return nullcontext() if anyio is None else anyio.CancelScope(shield=True)


@final
@attrs.frozen(eq=False)
class Side:
    """An asyncio event loop that asks, and the way into it."""

    loop: asyncio.AbstractEventLoop
    inward: Crossing


@final
@attrs.define(eq=False)
class Call(Generic[T]):
    """Two steps in the trio thread. `start` is synchronous and is made in the order of the calls, so that asks are
    accepted in the order in which they were made; `finish`, if there is one, may wait, in a task of its own, and makes
    the answer of what `start` returned. Both see the asker's context variables.
    """

    side: Side
    # Any: what `start` returns is `finish`'s to know.
    start: Callable[[], Any]
    finish: Callable[[Any], Awaitable[T]] | None = None
    # Entered by `finish`'s task; cancelling it earlier is legal.
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    context: Context = attrs.field(factory=copy_context, init=False)
    _future: asyncio.Future[None] = attrs.field(init=False)
    # Invariant: set before the future is, by the thread that answers; read in the asker's loop after.
    _value: T | None = attrs.field(default=None, init=False)
    _error: BaseException | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._future = self.side.loop.create_future()

    def answer(self, value: T | None = None, error: BaseException | None = None) -> None:
        """Give the answer, from the trio thread. The first one counts, and a loop that is over hears of none."""
        self._value, self._error = value, error
        self.side.inward.post(self._told)

    def _told(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    async def outcome(self, cancel: Callable[[], object]) -> T:
        """Wait for the answer, in the asker's loop. Raises what the call raised, as the same object.

        Cancellation: calls `cancel`, once, and goes on only when the answer has come: what was started in the other
        thread is over then.
        """
        cancelled = await insist(self._future, cancel)
        if cancelled is not None:
            raise cancelled
        if self._error is not None:
            raise self._error
        # It is set now; None may be the value.
        return cast(T, self._value)
