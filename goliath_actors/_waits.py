"""Who waits for whom, so that a wait that would never end is refused at once (R14).

Floor 6½, above the mailbox and below the conversations.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ._mailbox import Job, Run, current_run
from .errors import ReentrantRun

__all__ = ["Turn", "refuse_cycle", "waiter"]


class Turn(Protocol):
    """What a conversation shows to this room: what has its turn, and what waits behind it."""

    @property
    def label(self) -> str:
        """Name of the conversation, for people."""
        ...

    def envelopes(self) -> Iterable[Run | Job]:
        """Return what has its turn, then what waits, oldest first."""
        ...


def waiter() -> Run | None:
    """Return the run in whose context this code runs, None outside of runs or when that run is over."""
    run = current_run.get()
    return None if run is None or run.state == "done" else run


def refuse_cycle(asker: Run, conversation: Turn, until: Run | None = None) -> None:
    """Refuse that `asker` waits for a turn of `conversation` (up to `until`, or for a new one behind all others).

    A wait depends on every envelope before its own. Following "waits for" from there, reaching `asker` is a cycle.

    Raises: `ReentrantRun` naming the conversations of the cycle.
    """
    start = asker.conversation
    path: dict[int, tuple[Turn, Turn | None]] = {id(conversation): (conversation, start)}
    pending: list[tuple[Turn, Run | None]] = [(conversation, until)]
    while pending:
        here, limit = pending.pop()
        for envelope in here.envelopes():
            if envelope is asker:
                raise ReentrantRun(_chain(path, start, here))
            if isinstance(envelope, Run):
                for target in envelope.waits_for:
                    there = target.conversation
                    if id(there) not in path:
                        path[id(there)] = (there, here)
                        pending.append((there, target))
            if envelope is limit:
                break


def _chain(path: dict[int, tuple[Turn, Turn | None]], start: Turn, end: Turn) -> tuple[str, ...]:
    """Name the cycle from the asker's conversation back to it."""
    names = [end.label]
    here = path[id(end)][1]
    while here is not None and here is not start:
        names.append(here.label)
        here = path[id(here)][1]
    names.append(start.label)
    return tuple(reversed(names))
