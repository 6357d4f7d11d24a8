"""When something may happen next: a sliding window and a token bucket. Times are seconds on one clock.

Pure: they are told the time and never wait.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol, final

import attrs

__all__ = ["Bucket", "Limit", "Window"]


class Limit(Protocol):
    """What both have."""

    def next(self, now: float, ahead: int = 0) -> float:
        """Return when one more may happen, if `ahead` others go first; not before `now`."""
        ...

    def take(self, now: float) -> None:
        """Note that one happens now. Only when `next(now) <= now`."""
        ...

    def idle(self, now: float) -> bool:
        """Say that nothing of what is known matters any more."""
        ...


@final
@attrs.define(eq=False)
class Window:
    """At most `limit` in any `seconds`: of any `limit + 1` in a row, first and last are at least `seconds` apart."""

    limit: int
    seconds: float
    # Invariant: in order, and never more than `limit`.
    _taken: deque[float] = attrs.field(factory=deque, init=False)

    def next(self, now: float, ahead: int = 0) -> float:
        """As `Limit.next`."""
        self._forget(now)
        taken = self._taken
        rounds, place = divmod(len(taken) + ahead, self.limit)
        if rounds == 0:
            return now
        # Each place of the window becomes free again `seconds` after it was last taken.
        first = taken[place] if place < len(taken) else now
        return max(now, first + rounds * self.seconds)

    def take(self, now: float) -> None:
        """As `Limit.take`."""
        self._forget(now)
        self._taken.append(now)

    def idle(self, now: float) -> bool:
        """As `Limit.idle`."""
        self._forget(now)
        return not self._taken

    def _forget(self, now: float) -> None:
        # The same sum as in `next`, so that waiting until then is always enough, however floats are rounded.
        while self._taken and self._taken[0] + self.seconds <= now:
            self._taken.popleft()


@final
@attrs.define(eq=False)
class Bucket:
    """`limit` in `seconds` on average, and up to `burst` at once.

    Kept as one time, as in the generic cell rate algorithm (ITU-T recommendation I.371), which allows exactly what a
    bucket of `burst` tokens does that is refilled evenly.
    """

    limit: int
    seconds: float
    burst: int
    # When the bucket will be full again; None: it always was.
    _full: float | None = attrs.field(default=None, init=False)

    def next(self, now: float, ahead: int = 0) -> float:
        """As `Limit.next`."""
        full = now if self._full is None else max(now, self._full)
        each = self.seconds / self.limit
        return max(now, full + (ahead - (self.burst - 1)) * each)

    def take(self, now: float) -> None:
        """As `Limit.take`."""
        full = now if self._full is None else max(now, self._full)
        self._full = full + self.seconds / self.limit

    def idle(self, now: float) -> bool:
        """As `Limit.idle`."""
        return self._full is None or self._full <= now
