"""Who waits for whom, so that a wait that would never end is refused at once (R14)."""

from __future__ import annotations

from ._envelope import Envelope, Job, Line, Turn, current_run
from .errors import ReentrantRun

__all__ = ["refuse_cycle", "refuse_line", "waiter"]


def waiter() -> Envelope | None:
    """Return the run in whose context this code runs, None outside of runs or when that run is over."""
    run = current_run.get()
    return None if run is None or run.state == "done" else run


def refuse_cycle(asker: Envelope, conversation: Turn, *, lends: bool = False) -> None:
    """Refuse that `asker` waits for a turn of `conversation`, whichever it is.

    Every turn to come depends on the one that is taken now. Following "waits for" from there, reaching `asker` is a
    cycle; so is a place in line for a slot that nobody gives up who does not wait for `asker`. What is still queued
    waits for nothing yet; if it would close a cycle later, it is refused then.

    Arguments: `lends`, whether the asker lends its slot, so that the conversation needs none.

    Raises: `ReentrantRun` naming the conversations of the cycle.
    """
    way = _way(asker, conversation, frozenset(), lends)
    if way is not None:
        raise ReentrantRun((_start(asker), *way))


def refuse_line(asker: Envelope, label: str, line: Line) -> None:
    """Refuse that `asker` waits for a conversation that would get in line for a slot and never have one.

    Raises: `ReentrantRun` naming the conversations of the cycle.
    """
    way = _blocked(asker, line, frozenset())
    if way is not None:
        raise ReentrantRun((_start(asker), label, *way))


def _way(asker: Envelope, first: Turn, lines: frozenset[int], lends: bool) -> tuple[str, ...] | None:
    """Return the names on the way from `first` to the asker's conversation, None if there is none.

    Arguments: `lines`, those that are being looked at already.
    """
    path: dict[int, tuple[Turn, Turn | None]] = {id(first): (first, None)}
    pending = [first]
    while pending:
        here = pending.pop()
        current = here.current
        if isinstance(current, Job):
            current = current.run
        if current is asker:
            return _names(path, here)
        line = here.line
        if line is not None and not (lends and here is first):
            way = _blocked(asker, line, lines)
            if way is not None:
                return (*_names(path, here), *way)
        if not isinstance(current, Envelope):
            continue
        for wait in current.waits_for:
            for there in wait.turns():
                if id(there) not in path:
                    path[id(there)] = (there, here)
                    pending.append(there)
    return None


def _blocked(asker: Envelope, line: Line, lines: frozenset[int]) -> tuple[str, ...] | None:
    """Return the way from a slot's holder to the asker, None if enough holders can come to their ends without it."""
    if id(line) in lines:
        return None
    holders = line.holders
    ways = [_way(asker, holder, lines | {id(line)}, False) for holder in holders]
    blocked = [way for way in ways if way is not None]
    return blocked[0] if blocked and len(holders) - len(blocked) < line.missing else None


def _start(asker: Envelope) -> str:
    assert asker.conversation is not None  # what has its turn somewhere has its conversation
    return asker.conversation.label


def _names(path: dict[int, tuple[Turn, Turn | None]], end: Turn) -> tuple[str, ...]:
    names = []
    here: Turn | None = end
    while here is not None:
        names.append(here.label)
        here = path[id(here)][1]
    return tuple(reversed(names))
