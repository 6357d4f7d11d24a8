"""One run inside its cancel scope, and the observers that hear how it ended.

Read top to bottom it is: the scope, the proof, the shield.
"""

# Why "aborted" is read off `cancelled_caught` and not off `cancel_called`: a run that was asked to end may still have
# come to its own end, or to an error of its own, before it noticed; then that is how it ended (invariant 6).

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Literal

import attrs
import trio

from ._envelope import Envelope
from ._journal import RunJournal
from ._leaves import single
from ._observers import ObserverLimits, tell
from ._panel import Panel
from ._run import Finished
from ._witness import Held, Witness
from .errors import RunAborted
from .events import RunFinished
from .hooks import OnError, OnFinish, Question
from .values import Abort, Outcome

__all__ = ["supervise"]


async def supervise(
    run: Envelope,
    execute: Callable[[], Awaitable[Finished]],
    panel: Panel,
    limits: ObserverLimits,
    report_fatal: Callable[[BaseException], None],
) -> None:
    """Run `execute` in the run's scope, tell the observers how it ended, and end the run.

    Arguments: `report_fatal` gets what is no `Exception`, to be raised by the runtime after every run has been told.

    Cancellation: of the run's scope, is the run's abort. From outside, it passes on after the observers were told.
    """
    finished: Finished | None = None
    error: BaseException | None = None
    witness = Witness()
    try:
        try:
            with run.scope:
                with witness:
                    try:
                        await trio.lowlevel.checkpoint_if_cancelled()
                        run.state = "running"
                        finished = await execute()
                    except Exception as failure:  # noqa: BLE001  # kept as the same object; the reply raises it
                        error = failure
        except BaseExceptionGroup as group:
            # A nursery of an application's own, left with an error while the run was aborted: the error counts.
            error = group
    finally:
        # Invariant 7: no checkpoint between leaving the scope and the shield.
        run.state = "finishing"
        if run.waits_for and run.is_ending():
            run.release()
        error = witness.passed if error is None else single(error)
        fatal_error = await _conclude(run, finished, error, witness.replaced, panel, limits)
        if fatal_error is not None:
            report_fatal(fatal_error)


async def _conclude(
    run: Envelope,
    finished: Finished | None,
    error: BaseException | None,
    replaced: Exception | None,
    panel: Panel,
    limits: ObserverLimits,
) -> BaseException | None:
    journal = run.journal
    phase = journal.phase
    journal.closing = True
    abort: Abort | None = None
    origin: str | None = None
    fatal: BaseException | None = None
    if error is not None:
        origin = journal.origin_of(error)
        fatal = None if isinstance(error, Exception) else error
    elif finished is None:
        abort = _abort_of(run, phase)
        error = _aborted(run, abort, replaced, journal)
        origin = "abort"

    # Every observer that waits is under a shield; from one to the next there is no checkpoint either.
    try:
        if error is not None:
            ask = partial(_on_error, error, origin or "harness", journal)
            told = await tell("on_error", ask, panel, limits)
            fatal = fatal if told is None else told
        if panel.hears("on_finish"):
            ask = partial(_on_finish, _outcome(finished, error, origin, abort, journal), journal)
            told = await tell("on_finish", ask, panel, limits)
            fatal = fatal if told is None else told
        status, reason = _words(finished, error, abort)
        where = None if error is None else (abort.phase if abort is not None else phase)
        if journal.callbacks:
            held = Held()
            with held:
                journal.emit_closing(RunFinished, status=status, reason=reason, phase=where, usage=journal.usage)
            if held.raised is not None:
                journal.note("on_event", "on_event", held.raised, RunFinished.kind)
            fatal = fatal if held.fatal is None else held.fatal
        else:
            journal.emit_closing(RunFinished, status=status, reason=reason, phase=where, usage=journal.usage)
    finally:
        # Invariant (4): whatever happened, whoever waits is answered.
        if error is None:
            assert finished is not None
            run.end(finished.result(journal, journal.trace))
        else:
            if not run.replied:
                _attach(error, journal)
            run.end(_outcome(finished, error, origin, abort, journal))
    return fatal


def _on_error(error: BaseException, origin: str, journal: RunJournal) -> Question:
    return OnError(error, origin, journal.steps, journal.trace)


def _on_finish(outcome: Outcome, journal: RunJournal) -> Question:
    diagnostics = tuple(journal.diagnostics)
    if outcome.result is not None and len(outcome.result.diagnostics) != len(diagnostics):
        # An observer before this one failed or was cut off: the result is told with that, too.
        result = attrs.evolve(outcome.result, diagnostics=diagnostics, trace=journal.trace)
        outcome = attrs.evolve(outcome, result=result, trace=journal.trace)
    return OnFinish(outcome, diagnostics)


def _abort_of(run: Envelope, phase: str) -> Abort:
    """Return why the run's scope ended it. Without anybody's word it was the scope's own deadline."""
    abort = run.abort_state
    if abort is not None:
        return abort
    if run.scope.deadline != math.inf and run.scope.cancelled_caught:
        return Abort("deadline", "", phase)
    # A cancellation that came from outside the run's scope: the nursery of all runs is being torn down.
    return Abort("shutdown", "", phase)


def _aborted(run: Envelope, abort: Abort, replaced: Exception | None, journal: RunJournal) -> RunAborted:
    reply = run.early_reply
    error = reply if isinstance(reply, RunAborted) else RunAborted(abort.cause, abort.reason, abort.phase)
    if replaced is not None:
        error.__cause__ = replaced
        journal.note("run", journal.phase, replaced)
    return error


def _words(finished: Finished | None, error: BaseException | None, abort: Abort | None) -> tuple[str, str | None]:
    if abort is not None:
        return "aborted", abort.cause
    if error is not None:
        return "error", type(error).__name__
    assert finished is not None
    if finished.stopped is not None:
        return "stopped", finished.stopped.reason
    return "completed", finished.ending.reason


def _outcome(
    finished: Finished | None,
    error: BaseException | None,
    origin: str | None,
    abort: Abort | None,
    journal: RunJournal,
) -> Outcome:
    steps, trace, usage = journal.steps, journal.trace, journal.usage
    if error is not None:
        status: Literal["aborted", "error"] = "error" if abort is None else "aborted"
        return Outcome(status, None, error, origin, abort, steps, trace, usage)
    assert finished is not None
    return Outcome(finished.status, finished.result(journal, trace), None, None, None, steps, trace, usage)


def _attach(error: BaseException, journal: RunJournal) -> None:
    """Hang the diagnostics on an error that its caller will see (design §4)."""
    try:
        error.goliath_diagnostics = tuple(journal.diagnostics)  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001  # an application's class: some take no attributes, and each says so in its way
        pass  # its diagnostics are in the run's journal
