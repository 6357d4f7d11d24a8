"""What a runtime accepts at present, what is live in it, and when it is over. Counts and states."""

from __future__ import annotations

from typing import Literal, final

import attrs
import trio
from trio_util import AsyncBool

from .errors import RuntimeClosed
from .values import Outcome, RunResult

__all__ = ["Life"]

_WORDS = {"open": "is open", "draining": "drains", "closing": "is closing", "closed": "is closed"}


@final
@attrs.define(eq=False)
class Life:
    """The life of one runtime: open, then draining or closing, then closed; over once nothing is live any more."""

    # open: accepts. draining: accepts what runs make and wait for; closing: what they make. closed: nothing.
    state: Literal["open", "draining", "closing", "closed"] = "open"
    # Why it is closed, in words.
    reason: str = ""
    # True once the user's block has ended: then the runtime is over as soon as nothing is live.
    left: bool = False
    # What ends the program and came out of a run: the host raises it at its end.
    fatal: BaseException | None = None
    accepted: int = 0
    running: int = 0
    # How many of those that wait were aborted meanwhile.
    gone: int = 0
    # Runs that are over, by status; and how many of them a shutdown ended.
    ended: dict[str, int] = attrs.Factory(lambda: {"completed": 0, "stopped": 0, "error": 0, "aborted": 0})
    shut_down: int = 0
    # Invariant: live counts the envelopes accepted and not over; `_quiet` is true while it is 0.
    live: int = 0
    # Made for the first drain: keeping a watched value costs more than the counting.
    _quiet: AsyncBool | None = None
    finished: trio.Event = attrs.Factory(trio.Event)
    drained: trio.Event = attrs.Factory(trio.Event)

    @property
    def over(self) -> int:
        """How many runs are over."""
        return sum(self.ended.values())

    @property
    def waiting(self) -> int:
        """How many accepted runs have not begun."""
        return self.accepted - self.running - self.over

    def crowd(self, limit: int) -> int:
        """Return how many of those that wait count for a limit. As `Actor.crowd`."""
        return self.waiting - min(self.gone, limit)

    def enter(self) -> None:
        """An envelope was accepted."""
        self.live += 1
        if self._quiet is not None:
            self._quiet.value = False

    def leave(self) -> None:
        """An envelope is over."""
        self.live -= 1
        if not self.live:
            if self._quiet is not None:
                self._quiet.value = True
            if self.left or self.state == "closed":
                self.settle()

    def count(self, how: RunResult | Outcome) -> None:
        """A run has ended so."""
        self.ended[how.status] += 1
        if isinstance(how, Outcome) and how.abort is not None and how.abort.cause == "shutdown":
            self.shut_down += 1

    def settle(self) -> None:
        """See whether the runtime is over."""
        if (self.left or self.state == "closed") and not self.live:
            self.state = "closed"
            self.finished.set()

    def close(self, reason: str) -> None:
        """Accept nothing more. The first reason stands."""
        self.state = "closed"
        self.reason = self.reason or reason

    def refusal(self) -> RuntimeClosed:
        """Return the error of what comes too late."""
        return RuntimeClosed(f"the runtime {_WORDS[self.state]} and accepts no new asks; open another one")

    async def wait_quiet(self) -> None:
        """Wait until nothing is live.

        Cancellation: changes nothing.
        """
        if self._quiet is None:
            self._quiet = AsyncBool(not self.live)
        await self._quiet.wait_value(True)
