"""Recall and remembering of a planned conversation.

The record is loaded once a run, and what it says is saved in one commit when the answer is out (C10).
"""

from __future__ import annotations

import time

import attrs
import trio

from ._budget import input_limit
from ._kept import (
    RECENT_EXCHANGES,
    close_interrupted,
    commit,
    entries_of,
    kept_steps,
    saving_seconds,
    without_open,
)
from ._prompts import memory_budget, scribe_messages
from ._provider import CounterFailed, counting, describe
from ._request import Reply, Wanted, ask_model
from ._stream import Screen
from ._text import clip_tokens, estimate
from ._work import Route, Work
from .abc import UNSET, Change, Record
from .events import MemoryError, Recall, Remember
from .hooks import AfterRecall, BeforeRemember, Skip
from .values import Exchange, Memory

__all__ = ["SCRIBE_CAP", "recall", "remember"]

SCRIBE_CAP = 192  # tokens of output


# --- recall ---------------------------------------------------------------------------------------------------------


async def recall(work: Work) -> Memory:
    """Return the run's view of memory, after `after_recall`, and tell of it. What is stored stays as it is.

    Raises: `GoliathExtensionError`; what the store raised while closing an earlier run, with origin `memory`.

    Cancellation: honoured; nothing is changed, or an interrupted run is closed.
    """
    await close_interrupted(work)
    view = work.record.memory
    if work.panel.hears("after_recall"):
        decision = await work.panel.decide("after_recall", AfterRecall(view))
        view = decision.question.memory
    work.journal.emit(Recall, summary=view.summary, recent=len(view.recent))
    return view


# --- remembering ----------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class _Limit:
    """Gives a hook that is being asked some more seconds, when an abort comes, instead of cutting it at once."""

    scope: trio.CancelScope
    seconds: float

    def cancel(self) -> None:
        """Let the time run."""
        self.scope.deadline = min(self.scope.deadline, trio.current_time() + self.seconds)


async def remember(
    work: Work, answer: str, *, best_effort: bool = False, device_failed: bool = False, failures: int | None = None
) -> None:
    """Save the run's exchange: fold what is evicted, ask `before_remember`, clip, commit.

    Arguments: `device_failed` keeps the summary without asking the model; `failures` is the counter to be saved in
    the same commit, None leaves it.

    Raises: `GoliathExtensionError`. A failing summary or save is a `MemoryError` event; the answer stands.

    Cancellation: shielded (C10). An abort, or the run's deadline, cuts the scribe's model call, and bounds the hooks
    and the save by `finish_timeout` or 10 seconds.
    """
    journal = work.journal
    exchange = Exchange(work.ask, answer, time.time(), best_effort, kept_steps(journal.steps))
    base = work.record.memory
    with trio.CancelScope(shield=True):
        candidate = await _fold(work, base, exchange, device_failed)
        kept = await _asked(work, candidate, exchange)
        if kept is not None:
            journal.enter("remember")
            await _save(work, base, kept, exchange, failures)


async def _fold(work: Work, base: Memory, exchange: Exchange, device_failed: bool) -> Memory:
    """Return the candidate memory: at most three exchanges, older ones folded into the summary by the scribe."""
    recent = [*base.recent, exchange]
    summary = _clip_summary(work, base.summary)
    asking = not device_failed
    if asking and len(recent) > RECENT_EXCHANGES:
        work.journal.enter("scribe")
        with trio.CancelScope(deadline=work.scope.deadline) as late:
            work.journal.late_scope = late
            if work.panel.abort_requested():  # by a callback, while it heard the answer
                late.cancel()
            while len(recent) > RECENT_EXCHANGES:
                folded = await _scribe(work, summary, recent[0])
                if folded is None:
                    break
                summary = folded
                del recent[0]
        work.journal.late_scope = None
        if late.cancelled_caught:
            work.journal.emit(MemoryError, error="the summary was cut off; the old one is kept")
    return Memory(summary, tuple(recent[-RECENT_EXCHANGES:]))


async def _scribe(work: Work, summary: str, evicted: Exchange) -> str | None:
    """Return the summary with one exchange folded in, None if the scribe failed, which has been told then."""
    wanted = Wanted(
        role="scribe",
        label="scribe",
        render=lambda compact: scribe_messages(summary, evicted),
        limit=input_limit(work.window, SCRIBE_CAP),
        output_cap=SCRIBE_CAP,
        route=Route.of(work),
    )
    reply = await ask_model(work, wanted, Screen(work.journal))
    if isinstance(reply, Reply):
        return _clip_summary(work, reply.text.strip()) or summary
    work.journal.emit(MemoryError, error=getattr(reply, "detail", "the summary was cut off"))
    return None


def _clip_summary(work: Work, summary: str) -> str:
    limit = memory_budget(work.window)
    try:
        return clip_tokens(summary, limit, counting(work.counter))
    except CounterFailed:  # nothing is sent from here, so an estimate does no harm and the exchange is saved
        return clip_tokens(summary, limit, estimate)


async def _asked(work: Work, candidate: Memory, exchange: Exchange) -> Memory | None:
    """Return the memory to be saved, None if it is not to be."""
    if not work.panel.hears("before_remember"):
        return candidate
    journal, seconds = work.journal, saving_seconds(work)
    decision = None
    with trio.CancelScope(deadline=work.scope.deadline + seconds) as scope:
        journal.late_scope = limit = _Limit(scope, seconds)
        if work.panel.abort_requested():
            limit.cancel()
        decision = await work.panel.decide("before_remember", BeforeRemember(candidate, exchange))
    journal.late_scope = None
    if decision is None:
        journal.emit(MemoryError, error="before_remember was cut off; this exchange is not saved")
        return None
    if isinstance(decision.verdict, Skip):
        work.kept = True  # somebody wants it so
        return None
    memory: Memory = decision.question.memory
    recent = tuple(attrs.evolve(known, steps=kept_steps(known.steps)) for known in memory.recent[-RECENT_EXCHANGES:])
    return Memory(_clip_summary(work, memory.summary), recent)


async def _save(work: Work, base: Memory, memory: Memory, exchange: Exchange, failures: int | None) -> None:
    # As they are remembered: what `before_remember` took out of the memory stays out of the transcript.
    steps = next((known.steps for known in reversed(memory.recent) if known.at == exchange.at), ())

    def change(record: Record) -> Change:
        saved = memory
        if record.memory != base:  # somebody else has remembered meanwhile: add to theirs
            saved = Memory(record.memory.summary, (*record.memory.recent, *memory.recent[-1:])[-RECENT_EXCHANGES:])
        return Change(
            memory=saved,
            private=without_open(record),
            failures=UNSET if failures is None else failures,
            append=entries_of(work.journal.run_id, exchange, steps=steps),
        )

    problem: str | None = None
    try:
        with trio.move_on_after(saving_seconds(work)) as saving:
            await commit(work, change)
        if saving.cancelled_caught:
            problem = f"saving took longer than {saving_seconds(work):g} s"
    except Exception as error:  # noqa: BLE001  # S6: a failing save keeps the answer
        problem = describe(error)
    if problem is not None:
        work.journal.emit(MemoryError, error=problem)
        return
    work.kept = True
    work.journal.emit(Remember, summary=work.record.memory.summary)
