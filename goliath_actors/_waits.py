"""Who waits for whom, so that a wait that would never end is refused at once (R14)."""

from __future__ import annotations

from ._envelope import Envelope, Job, Turn, current_run
from .errors import ReentrantRun

__all__ = ["refuse_cycle", "waiter"]


def waiter() -> Envelope | None:
    """Return the run in whose context this code runs, None outside of runs or when that run is over."""
    run = current_run.get()
    return None if run is None or run.state == "done" else run


def refuse_cycle(asker: Envelope, conversation: Turn) -> None:
    """Refuse that `asker` waits for a turn of `conversation`, whichever it is.

    Every turn to come depends on the one that is taken now. Following "waits for" from there, reaching `asker` is a
    cycle. What is still queued waits for nothing yet; if it would close a cycle later, it is refused then.

    Raises: `ReentrantRun` naming the conversations of the cycle.
    """
    start = asker.conversation
    path: dict[int, tuple[Turn, Turn | None]] = {id(conversation): (conversation, start)}
    pending = [conversation]
    while pending:
        here = pending.pop()
        current = here.current
        if isinstance(current, Job):
            current = current.run
        if current is asker:
            assert start is not None  # what has its turn somewhere has its conversation
            raise ReentrantRun(_chain(path, start, here))
        if not isinstance(current, Envelope):
            continue
        for wait in current.waits_for:
            for there in wait.turns():
                if id(there) not in path:
                    path[id(there)] = (there, here)
                    pending.append(there)


def _chain(path: dict[int, tuple[Turn, Turn | None]], start: Turn, end: Turn) -> tuple[str, ...]:
    """Name the cycle from the asker's conversation back to it."""
    names = [end.label]
    here = path[id(end)][1]
    while here is not None and here is not start:
        names.append(here.label)
        here = path[id(here)][1]
    names.append(start.label)
    return tuple(reversed(names))
