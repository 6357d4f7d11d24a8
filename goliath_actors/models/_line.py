"""Who may begin, and when: one queue in front of a provider's limits.

Uses nothing of ours; used by limited. Nobody is served by a task of the room's: whoever stands at
the head of the queue sleeps until its turn has come and takes it itself, so that a cancelled one can neither lose what
it was given nor leave anything behind.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from typing import final

import attrs
import trio

__all__ = ["WINDOW", "Line", "Place"]

WINDOW = 60.0
"""Seconds of a minute in requests and tokens per minute. The window slides: what began at `t` counts until `t` + 60."""


@attrs.define(eq=False)
class Place:
    """What one request has booked. `tokens` counts from the moment it began until `ends`, on trio's clock."""

    tokens: int
    ends: float
    # Invariant: True exactly while the place stands among those whose tokens are added up.
    counted: bool


@attrs.define(eq=False)
class _Waiter:
    wake: trio.Event = attrs.field(factory=trio.Event)


@final
@attrs.define(eq=False)
class Line:
    """The requests of one trio loop: waiting, in flight, and begun within the window. None means no limit."""

    in_flight: int | None
    rpm: int | None
    tpm: int | None
    running: int = attrs.field(default=0, init=False)
    # Invariant: only the head takes its turn; whoever leaves the queue, or makes room, wakes the head.
    _queue: OrderedDict[_Waiter, None] = attrs.field(factory=OrderedDict, init=False)
    # Invariant: oldest first; when each request of the window leaves it. At most `rpm` of them.
    _begun: deque[float] = attrs.field(factory=deque, init=False)
    # Invariant: oldest first; `_tokens` is the sum over them.
    _booked: deque[Place] = attrs.field(factory=deque, init=False)
    _tokens: int = attrs.field(default=0, init=False)

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._queue)

    def window(self) -> tuple[int, int]:
        """Return the requests and the tokens of the last minute, 0 for what is not limited."""
        self._expire()
        return len(self._begun), self._tokens

    async def enter(self, tokens: int) -> Place:
        """Wait for a turn, behind all that wait already, and take it.

        Arguments: `tokens` to book. More than `tpm` allows at all are booked as that, so that the request waits for an
        empty window and not for ever.

        Returns: the place, for `correct`. `leave` is due.

        Cancellation: a checkpoint; if cancelled, nothing was taken, and nobody else has lost a place.
        """
        if self.tpm is not None:
            tokens = min(tokens, self.tpm)
        waiter = _Waiter()
        self._queue[waiter] = None
        try:
            await trio.lowlevel.checkpoint()
            while (turn := self._turn(waiter, tokens)) > trio.current_time():
                with trio.move_on_at(turn):
                    await waiter.wake.wait()
                waiter.wake = trio.Event()
            # No checkpoint from here to the return: what is taken is in the caller's hands.
            return self._take(tokens)
        finally:
            del self._queue[waiter]
            self._wake_head()

    def correct(self, place: Place, tokens: int) -> None:
        """Book the true number of tokens instead. A place that has left the window stays as it was."""
        self._expire()
        if place.counted:
            self._tokens += tokens - place.tokens
            place.tokens = tokens
            self._wake_head()

    def leave(self) -> None:
        """Give the turn back. What was booked stays in the window."""
        self.running -= 1
        self._wake_head()

    def _turn(self, waiter: _Waiter, tokens: int) -> float:
        """When to look again: now or earlier if the turn has come; infinity if somebody else's doing is needed."""
        if next(iter(self._queue)) is not waiter:
            return math.inf
        if self.in_flight is not None and self.running >= self.in_flight:
            return math.inf
        self._expire()
        turn = -math.inf
        if self.rpm is not None and len(self._begun) >= self.rpm:
            turn = self._begun[0]
        if self.tpm is not None and self._tokens + tokens > self.tpm:
            turn = max(turn, self._booked[0].ends)
        return turn

    def _take(self, tokens: int) -> Place:
        ends = trio.current_time() + WINDOW
        place = Place(tokens, ends, self.tpm is not None)
        self.running += 1
        if self.rpm is not None:
            self._begun.append(ends)
        if self.tpm is not None:
            self._booked.append(place)
            self._tokens += tokens
        return place

    def _expire(self) -> None:
        now = trio.current_time()
        while self._begun and self._begun[0] <= now:
            self._begun.popleft()
        while self._booked and self._booked[0].ends <= now:
            place = self._booked.popleft()
            place.counted = False
            self._tokens -= place.tokens

    def _wake_head(self) -> None:
        if self._queue:
            next(iter(self._queue)).wake.set()
