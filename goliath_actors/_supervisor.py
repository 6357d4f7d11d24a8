"""One run inside its cancel scope, and the observers that hear how it ended.

Read top to bottom it is: the scope, the proof, the shield.
"""

# Why the observers get a shield of their own: the scope may be the very reason the run ended, and inside a
# cancelled scope the first await of on_finish would raise before it told anybody anything.
#
# Why "aborted" is read off `cancelled_caught` and not off `cancel_called`: a run that was asked to end may still have
# come to its own end, or to an error of its own, before it noticed; then that is how it ended (invariant 6).

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Literal

import attrs
import trio

from ._envelope import Envelope
from ._journal import RunJournal, single
from ._panel import Panel
from ._roster import Hook
from ._run import Finished
from .errors import ObserverTimeout, RunAborted
from .events import HookDecision, RunFinished
from .hooks import OnError, OnFinish, Question
from .values import Abort, Outcome

__all__ = ["ObserverLimits", "supervise"]


# A shutdown at once (`drain(0)`) must not cut every observer off at its first checkpoint: they would be told nothing.
LEAST_SECONDS = 1.0


@attrs.define(eq=False)
class ObserverLimits:
    """How long each observer of a runtime may take. Shared by its runs, so that a shutdown can hurry all of them."""

    seconds: float | None = None
    hurry: float | None = None
    _open: set[trio.CancelScope] = attrs.Factory(set)

    def shield(self) -> trio.CancelScope:
        """Return a shield for an observer, to be given back with `done`: bounded by `finish_timeout`, else by the
        shutdown's grace once there is a shutdown."""
        limit = self.limit
        deadline = math.inf if limit is None else trio.current_time() + limit
        scope = trio.CancelScope(shield=True, deadline=deadline)
        self._open.add(scope)
        return scope

    def renew(self, scope: trio.CancelScope) -> None:
        """Another observer begins under this shield, and has its own time."""
        limit = self.limit
        if limit is not None:
            scope.deadline = trio.current_time() + limit

    def done(self, scope: trio.CancelScope) -> None:
        """The observer is over."""
        self._open.discard(scope)

    @property
    def limit(self) -> float | None:
        """Seconds for an observer that begins now, None for no limit."""
        return self.hurry if self.seconds is None else self.seconds

    def hurry_up(self, grace: float) -> None:
        """From now on an unbounded observer gets `grace` seconds (R11), but no less than it takes to say something."""
        grace = self.hurry = max(grace, LEAST_SECONDS)
        if self.seconds is None:
            for scope in self._open:
                scope.deadline = min(scope.deadline, trio.current_time() + grace)


class _Witness:
    """Sees what leaves a run inside its scope, such as the error that a cancellation replaced in a `finally` (§P).

    Two things go no further: what is no `Exception`, until everybody was told (R12), and a `Cancelled` that is no
    cancellation.
    """

    __slots__ = ("passed", "replaced")

    def __init__(self) -> None:
        self.replaced: Exception | None = None
        self.passed: BaseException | None = None

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if error is None:
            return False
        if _only_cancelled(error):
            if trio.current_effective_deadline() != -math.inf:
                self.passed = _stray()
                return True
            self.replaced = _replaced(error)
            return False
        if isinstance(error, BaseExceptionGroup):  # the run's own cancellation may be in it, which its scope takes out
            return False
        self.passed = error
        return True


class _Held:
    """Holds back what leaves an observer until everybody was told: `fatal` if it ends the program (R12).

    A cancellation is let through to the `shield` inside which it came, if that cuts the observer off.
    """

    __slots__ = ("_shield", "fatal", "raised")

    def __init__(self, shield: trio.CancelScope | None = None) -> None:
        self._shield = shield
        self.raised: BaseException | None = None
        self.fatal: BaseException | None = None

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if error is None:
            return False
        if self._shield is not None and self._shield.cancel_called and _has_cancelled(error):
            return False
        # Observers are told under a shield, where no cancellation arrives from outside.
        self.raised = _stray() if _only_cancelled(error) else single(error)
        if not isinstance(self.raised, Exception):
            self.fatal = self.raised
        return True


def _only_cancelled(error: BaseException) -> bool:
    real = single(error)
    return real is None or isinstance(real, trio.Cancelled)


def _has_cancelled(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(trio.Cancelled) is not None
    return isinstance(error, trio.Cancelled)


# Why a stray `Cancelled` goes no further: code of the run kept one to raise it later, or held a scope across a yield.
# No scope would take it but that of the nursery of all runs, which would end every one of them without a word (R17).
def _stray() -> RuntimeError:
    return RuntimeError(
        "a trio.Cancelled came out that belongs to no cancel scope around it; never keep one to raise it later, and "
        "hold no cancel scope or nursery across a yield"
    )


def _replaced(error: BaseException) -> Exception | None:
    """Return the error that was on its way out when a cancellation took its place, however often one did."""
    if isinstance(error, trio.Cancelled) and error.__context__ is None:  # as nearly always
        return None
    pending: list[BaseException] = [error]
    seen: set[int] = set()
    while pending:
        link = pending.pop()
        if id(link) in seen:
            continue
        seen.add(id(link))
        # WouldBlock is no error but how trio's own doors ask whether they have to wait: they are in its handler then.
        if isinstance(link, (trio.Cancelled, trio.WouldBlock)):
            pending.extend([] if link.__context__ is None else [link.__context__])
        elif isinstance(link, BaseExceptionGroup) and single(link) is None:
            pending.extend(reversed(link.exceptions))
        else:
            real = single(link)
            return real if isinstance(real, Exception) else None
    return None


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
            told = await _tell("on_error", ask, panel, limits)
            fatal = fatal if told is None else told
        if panel.hears("on_finish"):
            ask = partial(_on_finish, _outcome(finished, error, origin, abort, journal), journal)
            told = await _tell("on_finish", ask, panel, limits)
            fatal = fatal if told is None else told
        status, reason = _words(finished, error, abort)
        where = None if error is None else (abort.phase if abort is not None else phase)
        if journal.callbacks:
            held = _Held()
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


async def _tell(
    row: str, question: Callable[[], Question], panel: Panel, limits: ObserverLimits
) -> BaseException | None:
    """Tell every observer of a row, one after the other; return what out of the last such one ends the program."""
    hooks = panel.hooks(row)
    if not hooks:
        return None
    panel.journal.enter(row)
    telling = _Telling(row, question, panel, limits, iter(hooks))
    await telling.all()
    return telling.fatal


@attrs.define(eq=False)
class _Telling:
    """The observers of one row, being told one after the other."""

    row: str
    # Makes the question that an observer is asked now: one that was cut off before it has left a diagnostic.
    question: Callable[[], Question]
    panel: Panel
    limits: ObserverLimits
    rest: Iterator[Hook]
    fatal: BaseException | None = None

    async def all(self) -> None:
        waiting = self._next()
        while waiting is not None:
            waiting = await self._shielded(*waiting)

    def _next(self) -> tuple[Hook, Awaitable[object]] | None:
        """Tell observers until one waits for something. A plain method never does: there is nothing to shield."""
        for hook in self.rest:
            held = _Held()
            waiting: Awaitable[object] | None = None
            with held:
                waiting = self.panel.tell(self.row, hook, self.question())
            self._note(hook, held)
            if waiting is not None:
                return hook, waiting
        return None

    async def _shielded(self, hook: Hook, waiting: Awaitable[object]) -> tuple[Hook, Awaitable[object]] | None:
        """Hear an observer out, and under the same shield those behind it, until one of them is cut off or all were
        told: a shield costs more than most observers. Each has its time from when it begins.

        Returns: the one that is to be heard next, under a shield of its own.
        """
        further: tuple[Hook, Awaitable[object]] | None = None
        limit, start = self.limits.limit, trio.current_time()
        scope = self.limits.shield()
        outside = _Held()
        with outside, scope:
            while True:
                held = _Held(scope)
                with held:
                    await self.panel.hear_out(self.row, hook, waiting)
                if held.raised is not None:
                    self._note(hook, held)
                    if held.fatal is not None and _unbegun(waiting):  # Ctrl-C at the threshold
                        continue
                further = self._next()
                if further is None or (scope.deadline != math.inf and scope.cancel_called):
                    break
                hook, waiting = further
                further = None
                limit, start = self.limits.limit, trio.current_time()
                self.limits.renew(scope)
        self.limits.done(scope)
        if scope.cancelled_caught:
            self._cut_off(hook, limit if limit is not None else trio.current_time() - start)
            further = self._next()
        self._note(hook, outside)
        return further

    def _cut_off(self, hook: Hook, seconds: float) -> None:
        journal, cut, held = self.panel.journal, ObserverTimeout(seconds), _Held()
        journal.note(hook.extension, self.row, cut)
        with held:
            journal.emit_closing(
                HookDecision, extension=hook.extension, phase=self.row, decision="cut-off", reason=str(cut)
            )
        self._note(hook, held)

    def _note(self, hook: Hook, held: _Held) -> None:
        if held.raised is not None:
            self.panel.journal.note(hook.extension, self.row, held.raised)
        if held.fatal is not None:
            self.fatal = held.fatal


def _unbegun(waiting: object) -> bool:
    return inspect.iscoroutine(waiting) and inspect.getcoroutinestate(waiting) == inspect.CORO_CREATED


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
