"""What is kept of a run beside its memory: writes whose run did not end well, and the mark of a run in progress (S7).

Everything that a conversation writes goes through `commit`, which applies itself a second time, onto what is
there now, if somebody else has written meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import attrs
import trio

from ._frozen import thaw
from ._provider import describe
from ._staging import OPEN_RUN
from ._work import Work
from .abc import UNSET, Change, Entry, Record
from .errors import StoreConflict
from .events import MemoryError
from .values import Exchange, Memory, Message, Step

__all__ = [
    "RECENT_EXCHANGES",
    "close_interrupted",
    "commit",
    "entries_of",
    "forget_open_run",
    "keep_writes",
    "kept_steps",
    "open_run",
    "saving_seconds",
    "settle",
    "without_open",
]

RECENT_EXCHANGES = 3
CONFLICTS = 8  # how often a commit is tried while an application writes to the same record
SAVE_SECONDS = 10.0  # C10: the bound on saving where `finish_timeout` is None

INTERRUPTED = "(No answer: this run ended early. What it did, or may have done, is listed.)"


async def close_interrupted(work: Work) -> None:
    """Close a run that was in progress when its process ended: its writes become one flagged exchange (S7)."""
    left: Any = work.record.private.get(OPEN_RUN)
    if left is None:
        return
    exchange = _interrupted(left)

    def change(record: Record) -> Change:
        return _kept(record, exchange, record.failures, "" if not isinstance(left, Mapping) else left.get("run_id"))

    with work.journal.origin("memory"):
        await commit(work, change)


def _interrupted(left: Any) -> Exchange:
    data = left if isinstance(left, Mapping) else {}
    ask, at = data.get("ask"), data.get("at")
    steps = [step for step in map(_step, data.get("steps") or ()) if step is not None]
    return Exchange(
        ask if isinstance(ask, str) else "",
        INTERRUPTED,
        at if isinstance(at, int | float) else time.time(),
        True,
        tuple(steps),
    )


# --- steps as data --------------------------------------------------------------------------------------------------

_STEP_FIELDS = tuple(field.name for field in attrs.fields(Step) if field.name != "output")


def kept_steps(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps without their raw output, which lives only as long as the run (C2)."""
    return tuple(step if step.output is None else attrs.evolve(step, output=None) for step in steps)


def _data(step: Step) -> dict[str, Any]:
    return {name: thaw(getattr(step, name)) for name in _STEP_FIELDS}


def _step(data: Any) -> Step | None:
    """Return the step, None if this is none: a newer or older version wrote the record."""
    if not isinstance(data, Mapping) or not isinstance(data.get("index"), int) or not isinstance(data.get("kind"), str):
        return None
    return Step(**{name: data[name] for name in _STEP_FIELDS if name in data})


# --- writing --------------------------------------------------------------------------------------------------------


async def commit(
    work: Work, make: Callable[[Record], Change], look: Callable[[Record], Awaitable[None]] | None = None
) -> None:
    """Commit what `make` says of the record; if the record has moved on, load it and try again, a few times.

    Arguments: `look` is called before another try, with the record that is there no more.

    Raises: `StoreConflict` if others keep writing, or if `make` says so of what is there now; what `look` raises.
    """
    for _ in range(CONFLICTS - 1):
        try:
            work.record = await work.store.commit(work.key, make(work.record), expect=work.record.version)
            return
        except StoreConflict:
            work.history = None  # somebody else has written, perhaps entries
            before, work.record = work.record, await work.store.load(work.key)
            if look is not None:
                await look(before)
    work.record = await work.store.commit(work.key, make(work.record), expect=work.record.version)


def without_open(record: Record) -> Any:
    if OPEN_RUN not in record.private:
        return UNSET
    return {key: value for key, value in record.private.items() if key != OPEN_RUN}


_SHOWN = ("call_id", "tool", "input", "status", "result")


def entries_of(
    run_id: str, exchange: Exchange, flags: Mapping[str, Any] | None = None, steps: Sequence[Step] = ()
) -> tuple[Entry, ...]:
    """Return the transcript's two entries for an exchange (S1): shown to readers, no part of any prompt.

    Arguments: `flags` are the answer's private metadata, by default what the exchange says; `steps` are put there too,
    so that whoever shows the conversation again can show what was done for the answer.
    """
    if flags is None:
        flags = {"best_effort": True} if exchange.best_effort else {}
    shown = [{name: thaw(getattr(step, name)) for name in _SHOWN} for step in steps if step.kind == "tool"]
    if shown:
        flags = {**flags, "steps": shown}
    ask, answer = Message("user", exchange.ask), Message("assistant", exchange.answer)
    return (
        Entry(f"{run_id}-ask", exchange.at, "user", ask, context_visible=False),
        Entry(f"{run_id}-answer", exchange.at, "assistant", answer, context_visible=False, private=flags),
    )


def _kept(record: Record, exchange: Exchange, failures: int, run_id: Any) -> Change:
    """The change that keeps a flagged exchange: nothing is folded, since no model is asked on this path."""
    change = Change(private=without_open(record), failures=UNSET if failures == record.failures else failures)
    known = {step.call_id for known in record.memory.recent for step in known.steps}
    if any(step.call_id in known for step in exchange.steps):
        return change  # a save that was cut off had arrived after all
    recent = (*record.memory.recent, exchange)[-RECENT_EXCHANGES:]
    return attrs.evolve(
        change,
        memory=Memory(record.memory.summary, recent),
        append=entries_of(str(run_id or "interrupted"), exchange, {"interrupted": True}),
    )


async def open_run(work: Work, step: Step) -> None:
    """Before a write starts: where the store is durable, commit that this run is in progress and what it did (S7).

    Raises: what the store raised, with origin `memory`; the write must not start then.

    Cancellation: honoured; the mark may be there or not, and whoever closes the run takes it away.
    """
    if not getattr(work.store, "durable", False):
        return
    steps = [_data(known) for known in (*work.journal.steps, step) if known.kind == "tool"]
    mark = {"run_id": work.journal.run_id, "ask": work.ask, "at": time.time(), "steps": steps}

    def change(record: Record) -> Change:
        return Change(private={**record.private, OPEN_RUN: mark})

    with work.journal.origin("memory"):
        await commit(work, change)


def _is_open(work: Work) -> bool:
    mark = work.record.private.get(OPEN_RUN)
    return isinstance(mark, Mapping) and mark.get("run_id") == work.journal.run_id


def _written(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The writes that were executed or may have been."""
    return tuple(step for step in kept_steps(steps) if step.writes and step.status in ("executed", "unknown"))


def saving_seconds(work: Work) -> float:
    return SAVE_SECONDS if work.finish_timeout is None else work.finish_timeout


async def keep_writes(work: Work) -> None:
    """Keep what a run that failed or was aborted has done: executed or unknown writes as one flagged exchange (S7),
    and, of an aborted one, the text that a reader has seen, marked partial in the transcript (§P).

    Does nothing if there is neither. Never raises an `Exception`: what goes wrong is told as a `MemoryError` event.
    Call it under a shield that has a deadline.

    Cancellation: told as a `MemoryError` event; the change is there or not.
    """
    if work.kept:
        return
    steps = _written(work.journal.steps)
    aborted = work.panel.abort_requested() or work.scope.cancel_called
    text = work.journal.shown if aborted else ""
    if not steps and not text.strip() and not _is_open(work):
        return
    exchange = Exchange(work.ask, text if text.strip() else INTERRUPTED, time.time(), True, steps)
    run_id = work.journal.run_id
    problem: str | None = "what this run has done could not be kept in time"

    def change(record: Record) -> Change:
        if steps:
            return _kept(record, exchange, record.failures, run_id)
        entries = entries_of(run_id, exchange, {"partial": True}) if text.strip() else ()
        return Change(private=without_open(record), append=entries)

    try:
        await commit(work, change)
        work.kept = True
        problem = None
    except Exception as error:  # noqa: BLE001  # an exception from here would replace the one that is passing
        problem = describe(error)
    finally:
        if problem is not None:
            work.journal.emit_closing(MemoryError, error=problem)


async def forget_open_run(work: Work) -> None:
    """A run that was stopped saves nothing (H8); only the mark that it is in progress goes. Never raises."""
    if not _is_open(work):
        return
    problem: str | None = "the end of this run could not be recorded in time"
    try:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + saving_seconds(work)):
            await commit(work, lambda record: Change(private=without_open(record)))
            problem = None
    except Exception as error:  # noqa: BLE001  # the stop is what the run came to
        problem = describe(error)
    if problem is not None:
        work.journal.emit_closing(MemoryError, error=problem)


async def settle(work: Work, failures: int | None) -> None:
    """Commit what a completed run leaves beside its memory: the failure counter, and, if nothing was saved, its writes.

    Arguments: `failures`, the counter, None to leave it.

    Raises: nothing; a failing commit is a `MemoryError` event.

    Cancellation: after the answer shielded and bounded as saving is; before it, honoured.
    """
    steps = () if work.kept else _written(work.journal.steps)
    counted = failures is not None and failures != work.record.failures
    if not steps and not counted and not _is_open(work):
        return
    exchange = Exchange(work.ask, INTERRUPTED, time.time(), True, steps)

    def change(record: Record) -> Change:
        now = record.failures if failures is None else failures
        if steps:
            return _kept(record, exchange, now, work.journal.run_id)
        return Change(private=without_open(record), failures=now)

    problem: str | None = None
    try:
        with trio.CancelScope(shield=work.journal.answered) as scope:
            scope.deadline = trio.current_time() + saving_seconds(work)
            await commit(work, change)
            work.kept = True
        if scope.cancelled_caught:
            problem = f"saving took longer than {saving_seconds(work):g} s"
    except Exception as error:  # noqa: BLE001  # S6
        problem = describe(error)
    if problem is not None:
        work.journal.emit(MemoryError, error=problem)
