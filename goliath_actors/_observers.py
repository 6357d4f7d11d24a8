"""The observers of a run's end, told one after the other under a shield, each with its own time."""

# Why the observers get a shield of their own: the scope may be the very reason the run ended, and inside a
# cancelled scope the first await of on_finish would raise before it told anybody anything.

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Iterator

import attrs
import trio

from ._panel import Panel
from ._roster import Hook
from ._witness import Held
from .errors import ObserverTimeout
from .events import HookDecision
from .hooks import Question

__all__ = ["ObserverLimits", "tell"]


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


async def tell(
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
            held = Held()
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
        outside = Held()
        with outside, scope:
            while True:
                held = Held(scope)
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
        journal, cut, held = self.panel.journal, ObserverTimeout(seconds), Held()
        journal.note(hook.extension, self.row, cut)
        with held:
            journal.emit_closing(
                HookDecision, extension=hook.extension, phase=self.row, decision="cut-off", reason=str(cut)
            )
        self._note(hook, held)

    def _note(self, hook: Hook, held: Held) -> None:
        if held.raised is not None:
            self.panel.journal.note(hook.extension, self.row, held.raised)
        if held.fatal is not None:
            self.fatal = held.fatal


def _unbegun(waiting: object) -> bool:
    return inspect.iscoroutine(waiting) and inspect.getcoroutinestate(waiting) == inspect.CORO_CREATED
