"""One run inside its cancel scope, and the observers that hear how it ended.

Floor 6. Uses _run and below; used by _conversation. Read top to bottom it is: the scope, the proof, the shield.
"""

# Why the observers get a shield of their own: the scope may be the very reason the run ended, and inside a
# cancelled scope the first await of on_finish would raise before it told anybody anything.
#
# Why "aborted" is read off `cancelled_caught` and not off `cancel_called`: a run that was asked to end may still have
# come to its own end, or to an error of its own, before it noticed; then that is how it ended (invariant 6).

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Literal

import attrs
import trio

from ._journal import RunJournal, leaves
from ._mailbox import Run
from ._panel import Panel
from ._roster import Hook
from ._run import Finished
from .errors import ObserverTimeout, RunAborted
from .events import HookDecision, RunFinished
from .hooks import OnError, OnFinish, Question
from .values import Abort, Outcome

__all__ = ["ObserverLimits", "supervise"]


@attrs.define(eq=False)
class ObserverLimits:
    """How long each observer of a runtime may take. Shared by its runs, so that a shutdown can hurry all of them."""

    seconds: float | None = None
    hurry: float | None = None
    _open: set[trio.CancelScope] = attrs.Factory(set)

    def shield(self) -> trio.CancelScope:
        """Return a shield for one observer, to be given back with `done`: bounded by `finish_timeout`, else by the
        shutdown's grace once there is a shutdown."""
        limit = self.limit
        deadline = math.inf if limit is None else trio.current_time() + limit
        scope = trio.CancelScope(shield=True, deadline=deadline)
        self._open.add(scope)
        return scope

    def done(self, scope: trio.CancelScope) -> None:
        """The observer is over."""
        self._open.discard(scope)

    @property
    def limit(self) -> float | None:
        """Seconds for an observer that begins now, None for no limit."""
        return self.hurry if self.seconds is None else self.seconds

    def hurry_up(self, grace: float) -> None:
        """From now on an unbounded observer gets `grace` seconds (R11)."""
        self.hurry = grace
        if self.seconds is None:
            for scope in self._open:
                scope.deadline = min(scope.deadline, trio.current_time() + grace)


class _Witness:
    """Sees what passes, without catching it: the error that a cancellation replaced in a `finally` (§P), and what is no
    `Exception` and nobody here may name."""

    __slots__ = ("passed", "replaced")

    def __init__(self) -> None:
        self.replaced: Exception | None = None
        self.passed: BaseException | None = None

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, trio.Cancelled):
            if isinstance(error.__context__, Exception):
                self.replaced = error.__context__
        elif error is not None and not isinstance(error, BaseExceptionGroup):
            self.passed = error


async def supervise(
    run: Run,
    execute: Callable[[], Awaitable[Finished]],
    panel: Panel,
    limits: ObserverLimits,
    report_fatal: Callable[[BaseException], None],
) -> None:
    """Run `execute` in the run's scope, tell the observers how it ended, and end the run.

    Arguments: `report_fatal` gets a `KeyboardInterrupt` or `SystemExit`, to be raised by the runtime after every run
    has been told.

    Cancellation: of the run's scope, is the run's abort. From outside, it passes on after the observers were told.
    """
    finished: Finished | None = None
    error: BaseException | None = None
    witness = _Witness()
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
        except (KeyboardInterrupt, SystemExit) as fatal:
            error = fatal
        except BaseExceptionGroup as group:
            # A nursery of an application's own, left with an error while the run was aborted: the error counts.
            error = group
    finally:
        # Invariant 7: no checkpoint between leaving the scope and the shield.
        run.state = "finishing"
        fatal_error = await _conclude(run, finished, _single(error) or witness.passed, witness.replaced, panel, limits)
        if fatal_error is not None:
            report_fatal(fatal_error)


def _single(error: BaseException | None) -> BaseException | None:
    """Reduce a group of one real error to that error; of several, prefer what ends the program."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    real = list(leaves(error))
    for leaf in real:
        if not isinstance(leaf, Exception):
            return leaf
    return real[0] if len(real) == 1 else error


async def _conclude(
    run: Run,
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
        if isinstance(error, KeyboardInterrupt | SystemExit):
            fatal = error
    elif finished is None:
        abort = _abort_of(run, phase)
        error = _aborted(run, abort, replaced, journal)
        origin = "abort"

    # Every observer that waits has a shield of its own; from one to the next there is no checkpoint either.
    if error is not None:
        for hook in panel.hooks("on_error"):
            question: Question = OnError(error, origin or "harness", tuple(journal.steps), journal.trace)
            fatal = await _tell("on_error", hook, question, panel, limits) or fatal
    hooks = panel.hooks("on_finish")
    if hooks:
        outcome = _outcome(finished, error, origin, abort, journal)
        for hook in hooks:
            question = OnFinish(outcome, tuple(journal.diagnostics))
            fatal = await _tell("on_finish", hook, question, panel, limits) or fatal

    status, reason = _words(finished, error, abort)
    where = None if error is None else (abort.phase if abort is not None else phase)
    journal.emit_closing(RunFinished, status=status, reason=reason, phase=where, usage=journal.usage)
    outcome = _outcome(finished, error, origin, abort, journal)
    if error is not None and not run.replied:
        _attach(error, journal)
    run.end(outcome)
    return fatal


async def _tell(row: str, hook: Hook, question: Question, panel: Panel, limits: ObserverLimits) -> BaseException | None:
    """Tell one observer; return a `KeyboardInterrupt` or `SystemExit` out of it, so that the next is told too."""
    journal = panel.journal
    journal.enter(row)
    limit, start, scope = limits.limit, journal.since, None
    try:
        waiting = panel.tell(row, hook, question)
        if waiting is None:  # a plain method: it never waits, so there is nothing to shield or to cut off
            return None
        with limits.shield() as scope:
            await panel.hear_out(row, hook, waiting)
    except (KeyboardInterrupt, SystemExit) as fatal:
        journal.note(hook.extension, row, fatal)
        return fatal
    except BaseExceptionGroup as group:
        journal.note(hook.extension, row, _single(group) or group)
        return None
    finally:
        if scope is not None:
            limits.done(scope)
    if scope is not None and scope.cancelled_caught:
        cut = ObserverTimeout(limit if limit is not None else trio.current_time() - start)
        journal.note(hook.extension, row, cut)
        journal.emit_closing(HookDecision, extension=hook.extension, phase=row, decision="cut-off", reason=str(cut))
    return None


def _abort_of(run: Run, phase: str) -> Abort:
    """Return why the run's scope ended it. Without anybody's word it was the scope's own deadline."""
    abort = run.abort_state
    if abort is not None:
        return abort
    if run.scope.deadline != math.inf and run.scope.cancelled_caught:
        return Abort("deadline", "", phase)
    # A cancellation that came from outside the run's scope: the nursery of all runs is being torn down.
    return Abort("shutdown", "", phase)


def _aborted(run: Run, abort: Abort, replaced: Exception | None, journal: RunJournal) -> RunAborted:
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
    steps, trace, usage = tuple(journal.steps), journal.trace, journal.usage
    if error is not None:
        status: Literal["aborted", "error"] = "error" if abort is None else "aborted"
        return Outcome(status, None, error, origin, abort, steps, trace, usage)
    assert finished is not None
    return Outcome(finished.status, finished.result(journal), None, None, None, steps, trace, usage)


def _attach(error: BaseException, journal: RunJournal) -> None:
    """Hang the diagnostics on an error that its caller will see (design §4)."""
    try:
        error.goliath_diagnostics = tuple(journal.diagnostics)  # type: ignore[attr-defined]
    except AttributeError:
        pass  # an exception class with slots takes no attributes; its diagnostics are in the outcome's trace
