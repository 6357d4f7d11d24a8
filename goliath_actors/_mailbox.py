"""The mailbox: the envelopes that one conversation has accepted and not yet begun, in the order of their turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import final

import attrs

from ._envelope import Envelope, Job

__all__ = ["Mailbox"]

SPARE = 16  # entries of envelopes that have begun, that a small mailbox keeps without looking for them


@final
@attrs.define(eq=False)
class Mailbox:
    """The envelopes one conversation has accepted and not yet begun, oldest first.

    The queue is made on first need: an idle conversation, and one that is asked now and then, has none.
    """

    # Invariant: an envelope in _waiting has not begun; leaving _waiting is the only way to begin.
    _waiting: deque[Envelope | Job] | None = None
    # Invariant: no replacement overtakes the first _front envelopes: earlier ones, and everything up to the last job.
    _front: int = 0
    # Invariant: every envelope in _waiting is in _ages, a heap by when it was accepted: others may go before old ones,
    # and who waits longest is to be seen at any time. What has begun stays in it until it comes to the top.
    _ages: list[tuple[float, int, Envelope | Job]] = attrs.Factory(list)
    _count: int = 0
    # The latest replacement, if it has not begun. Those before it were aborted when it came.
    replacement: Envelope | None = None

    def __len__(self) -> int:
        return 0 if self._waiting is None else len(self._waiting)

    def __iter__(self) -> Iterator[Envelope | Job]:
        return iter(self._waiting or ())

    def post(self, envelope: Envelope | Job) -> None:
        """Put an envelope behind all others."""
        if self._waiting is None:
            self._waiting = deque()
        self._age(envelope)
        self._waiting.append(envelope)
        if isinstance(envelope, Job):
            self._front = len(self._waiting)

    def post_next(self, envelope: Envelope) -> None:
        """Put a replacement, or a text that was not taken, in front of everything but earlier ones (R8a, T7) and jobs
        with what is before them."""
        if self._waiting is None:
            self._waiting = deque()
        self._age(envelope)
        self._waiting.insert(self._front, envelope)
        self._front += 1
        if envelope.replaces:
            self.replacement = envelope

    def _age(self, envelope: Envelope | Job) -> None:
        if len(self._ages) > 2 * len(self) + SPARE:  # somebody old waits on while others go before them
            self._ages = [entry for entry in self._ages if entry[2].waits]
            heapify(self._ages)
        self._count += 1
        heappush(self._ages, (envelope.accepted_at, self._count, envelope))

    @property
    def last(self) -> Envelope | Job | None:
        """The envelope behind all others."""
        return self._waiting[-1] if self._waiting else None

    @property
    def oldest(self) -> float | None:
        """When the envelope was accepted that has waited longest, on trio's clock; None if none waits."""
        while self._ages and not self._ages[0][2].waits:
            heappop(self._ages)
        return self._ages[0][0] if self._ages else None

    def take(self) -> Envelope | Job | None:
        """Remove and return the oldest envelope, None if there is none."""
        if not self._waiting:
            self._waiting = None
            return None
        envelope = self._waiting.popleft()
        self._front = max(0, self._front - 1)
        if envelope is self.replacement:
            self.replacement = None
        if not self._waiting:
            self._waiting = None
        return envelope
