"""The mailbox: the envelopes that one conversation has accepted and not yet begun, in the order of their turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import final

import attrs

from ._envelope import Envelope, Job

__all__ = ["Mailbox"]


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
        self._waiting.append(envelope)
        if isinstance(envelope, Job):
            self._front = len(self._waiting)

    def post_next(self, envelope: Envelope) -> None:
        """Put a replacement, or a text that was not taken, in front of everything but earlier ones (R8a, T7) and jobs
        with what is before them."""
        if self._waiting is None:
            self._waiting = deque()
        self._waiting.insert(self._front, envelope)
        self._front += 1
        if envelope.replaces:
            self.replacement = envelope

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
