"""The extensions of one run, with their private state, and the ways to ask them.

The dispatcher: it knows the six compositions and reads everything else off the hook table. Rows that decide and rows
that observe are asked here; `_nest.py` and `_pipe.py` are the compositions that wrap something.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, TypeVar

import attrs
import trio

from ._callables import discard
from ._decisions import Decision, RunStopped, StreamVerdict, awaitable, validated
from ._journal import RunJournal
from ._leaves import apart, bare, in_words
from ._nest import Nest
from ._pipe import pipe
from ._roster import Hook, Roster
from .errors import GoliathExtensionError
from .events import Event, HookDecision
from .hooks import HOOKS, Ask, Composition, Deny, Extension, Question, Row
from .values import Stopped

__all__ = ["Panel", "snapshots"]

T = TypeVar("T")


class _Context:
    """`HookContext` for one extension in one run."""

    __slots__ = ("_panel", "_state")

    def __init__(self, panel: Panel) -> None:
        self._panel = panel
        self._state: dict[str, Any] | None = None

    @property
    def run_id(self) -> str:
        return self._panel.journal.run_id

    @property
    def conversation_id(self) -> str | None:
        return self._panel.journal.conversation_id

    @property
    def ask(self) -> str:
        return self._panel.ask

    @property
    def agent_name(self) -> str:
        return self._panel.agent_name

    @property
    def context(self) -> Any:
        return self._panel.context

    @property
    def state(self) -> dict[str, Any]:
        if self._state is None:
            self._state = {}
        return self._state

    @property
    def abort_requested(self) -> bool:
        return self._panel.abort_requested()

    def submit(self, ask: str, **options: Any) -> Any:
        return self._panel.submit(ask, **options)

    def __repr__(self) -> str:
        return f"<HookContext run={self.run_id}>"


@attrs.define(eq=False)
class Panel:
    """The extensions of one run. Rows are asked through `decide`, `nest`, `pipe` and `observe`."""

    roster: Roster
    journal: RunJournal
    ask: str
    agent_name: str
    context: Any
    submit: Callable[..., Any]
    abort_requested: Callable[[], bool]
    # Says whether any extension implements a row: if not, the question need not be made.
    hears: Callable[[str], bool] = attrs.Factory(lambda self: self.roster.heard.__getitem__, takes_self=True)
    # Invariant (11): an extension's state lives here, one mapping per extension and run.
    _contexts: dict[int, _Context] = attrs.Factory(dict)

    def hooks(self, row: str) -> tuple[Hook, ...]:
        """Return the row's hooks in registration order."""
        return self.roster.rows[row]

    def _context(self, hook: Hook) -> _Context:
        context = self._contexts.get(hook.index)
        if context is None:
            context = self._contexts[hook.index] = _Context(self)
        return context

    def beside(self, row: str, journal: RunJournal) -> Panel:
        """Return a panel that tells one row beside the run, with a journal of its own and the extensions' state."""
        for hook in self.hooks(row):
            self._context(hook)
        return attrs.evolve(self, journal=journal, contexts=dict(self._contexts))

    def close(self) -> None:
        """Nothing is asked any more: let the contexts go, which know this panel, so that all is freed at once."""
        if self._contexts:
            self._contexts.clear()

    # --- rows that decide -------------------------------------------------------------------------------------------

    async def decide(self, row: str, question: Question) -> Decision:
        """Ask a chain, merge or first row.

        Raises: `GoliathExtensionError` (origin `extension`) if a hook raises or answers badly.

        Cancellation: honoured before the first hook and after each; nothing is kept of an unfinished row.
        """
        hooks = self.roster.rows[row]
        if not hooks:
            return Decision(question)
        spec = HOOKS[row]
        current: Any = question
        asks: list[tuple[str, str]] = []
        patches: list[Any] = []
        first: tuple[Any, str] | None = None
        self.journal.enter(row)
        await trio.lowlevel.checkpoint_if_cancelled()
        for hook in hooks:
            answer = await self._answer(spec, hook, current)
            if answer is None:
                continue
            if isinstance(answer, spec.ends):
                self._tell(hook.extension, row, answer)
                return Decision(current, answer, hook.extension, tuple(asks), tuple(patches))
            if spec.composition is Composition.FIRST:
                if spec.beats is None or isinstance(answer, spec.beats):  # nothing that is still to come could beat it
                    return Decision(current, answer, hook.extension)
                first = first or (answer, hook.extension)
            elif isinstance(answer, Ask):
                asks.append((hook.extension, answer.reason))
                self._tell(hook.extension, row, answer)
            elif spec.merge is not None:
                current, patch = spec.merge(current, answer)
                patches.append(patch)
            else:
                assert spec.field is not None
                current = attrs.evolve(current, **{spec.field: answer})
        if first is not None:
            return Decision(current, *first)
        return Decision(current, asks=tuple(asks), patches=tuple(patches))

    async def _answer(self, row: Row, hook: Hook, question: Question) -> Any:
        """Return one hook's validated answer; None for no opinion, or for a lenient extension's failure."""
        journal = self.journal
        journal.place = "extension"
        try:
            answer = hook.call(self._context(hook), question.fork())
            if answer is not None and awaitable(answer):
                answer = await answer
            if answer is not None:
                answer = validated(row, question, answer)
        except Exception as error:  # noqa: BLE001  # H4: it becomes the extension's error, or a lenient one's skip
            journal.place = None
            answer = self._failed(row, hook, bare(error))
        except BaseExceptionGroup as group:
            parts = apart(group)
            if parts is None:
                raise
            beside, cancelled = parts
            journal.place = None
            try:
                self._failed(row, hook, beside)
            except GoliathExtensionError as fault:
                raise BaseExceptionGroup(group.message, [fault, cancelled]) from beside
            raise cancelled from None
        journal.place = None
        await trio.lowlevel.checkpoint_if_cancelled()
        return answer

    def _failed(self, row: Row, hook: Hook, error: Exception) -> Any:
        if hook.lenient and row.lenient is not None:
            self.journal.note(hook.extension, row.name, error)
            if row.lenient == "deny":
                return Deny(in_words(error))
            self.journal.emit(
                HookDecision, extension=hook.extension, phase=row.name, decision="skip", reason=in_words(error)
            )
            return None
        raise self._extension_error(row.name, hook, error) from error

    def _extension_error(self, row: str, hook: Hook, error: Exception) -> GoliathExtensionError:
        wrapped = GoliathExtensionError(hook.extension, row, in_words(error))
        self.journal.blame(wrapped, "extension")
        return wrapped

    def _tell(self, extension: str, row: str, verdict: Any) -> None:
        reason = getattr(verdict, "reason", None) or getattr(verdict, "feedback", None)
        decision = type(verdict).__name__.lower()
        self.journal.emit(HookDecision, extension=extension, phase=row, decision=decision, reason=reason)

    def stop(self, row: str, decision: Decision) -> RunStopped:
        """Return what a room raises when `decision.verdict` is a `Stop`."""
        verdict = decision.verdict
        return RunStopped(Stopped(decision.extension, row, verdict.reason), verdict.text)

    # --- nest -------------------------------------------------------------------------------------------------------

    async def nest(
        self,
        row: str,
        question: Question,
        inner: Callable[[Any], Awaitable[T]],
        patched: Callable[[Any, Any], Any] | None = None,
        memoised: bool = False,
    ) -> T:
        """Run `inner(question)` inside every hook of a nest row, the first registered outermost.

        Arguments: `patched(question, patch)` applies what a hook gave to `call_next`, raising `ValueError` if it is
        not acceptable; `memoised` makes a hook's further `call_next()` without a patch give what the last one gave.

        Raises: what `inner` raised and the hooks let through, as the same object (H4a); `GoliathExtensionError` for
        what a hook raised or answered by itself.
        """
        hooks = self.roster.rows[row]
        if not hooks:
            return await inner(question)
        await trio.lowlevel.checkpoint_if_cancelled()
        fault = partial(self._extension_error, row)
        place = partial(self.journal.running, "extension")
        return await Nest(HOOKS[row], hooks, self._context, fault, place, inner, patched, memoised).run(question)

    # --- pipe -------------------------------------------------------------------------------------------------------

    def pipe(
        self, row: str, events: AsyncIterator[T], scope: trio.CancelScope, verdicts: list[StreamVerdict]
    ) -> AbstractAsyncContextManager[AsyncIterator[T]]:
        """Send `events` through every hook of a pipe row, in registration order, while the block lasts.

        Arguments: `scope` is cancelled when a hook ends the stream through its control; `verdicts` then holds what
        it said (the first counts).

        Raises: what `events` raised, as the same object; `GoliathExtensionError` for what a hook raised by itself.
        """
        fault = partial(self._extension_error, row)
        return pipe(self.roster.rows[row], self._context, fault, events, scope, verdicts, self.journal.running)

    # --- observe ----------------------------------------------------------------------------------------------------

    async def observe(self, row: str, question: Question) -> None:
        """Tell every observer of a row that lies inside the run. What one raises is a diagnostic.

        Cancellation: honoured before the first and after each.
        """
        hooks = self.roster.rows[row]
        if not hooks:
            return
        self.journal.enter(row)
        await trio.lowlevel.checkpoint_if_cancelled()
        for hook in hooks:
            waiting = self.tell(row, hook, question)
            if waiting is not None:
                await self.hear_out(row, hook, waiting)
            await trio.lowlevel.checkpoint_if_cancelled()

    def tell(self, row: str, hook: Hook, question: Question) -> Awaitable[object] | None:
        """Tell one observer. What it raises is a diagnostic (invariant 8).

        Returns: what is to be awaited (`hear_out`); None if the observer is done, as plain methods are.
        """
        journal = self.journal
        journal.place = "extension"
        answer: Any = None
        try:
            # Making a coroutine runs nothing of it: with Ctrl-C kept out, it is either not made or handed on.
            if hook.is_async:
                answer = hook.call(self._context(hook), question.fork())
            else:
                answer = _interruptibly(hook.call, self._context(hook), question.fork())
        except Exception as error:  # noqa: BLE001  # an observer changes nothing
            journal.note(hook.extension, row, error)
        journal.place = None
        if answer is None or awaitable(answer):
            waiting: Awaitable[object] | None = answer
            return waiting
        self._not_asked(row, hook, answer)
        return None

    @trio.lowlevel.disable_ki_protection
    async def hear_out(self, row: str, hook: Hook, waiting: Awaitable[object]) -> None:
        """Await what an observer returned. What it raises is a diagnostic."""
        journal = self.journal
        journal.place = "extension"
        answer: object = None
        try:
            answer = await waiting
        except Exception as error:  # noqa: BLE001  # an observer changes nothing
            journal.note(hook.extension, row, bare(error))
        except BaseExceptionGroup as group:
            parts = apart(group)
            if parts is None:
                raise
            beside, cancelled = parts
            journal.note(hook.extension, row, beside)
            journal.place = None
            raise cancelled from None
        journal.place = None
        if answer is not None:
            self._not_asked(row, hook, answer)

    def _not_asked(self, row: str, hook: Hook, answer: object) -> None:
        problem = TypeError(f"{row} only observes and must return nothing, not {type(answer).__name__}")
        self.journal.note(hook.extension, row, problem)

    # --- contributions ----------------------------------------------------------------------------------------------

    def snapshots(self) -> list[Event]:
        """Return what the extensions want a late subscriber to see first."""
        return snapshots(self.roster, self.journal)

    def instructions(self) -> str:
        """Return the prompt text that extensions contribute, in registration order, joined by lines."""
        texts = [getattr(extension, "instructions", "") for extension in self.roster.extensions]
        return "\n".join([text for text in texts if text])


@trio.lowlevel.disable_ki_protection  # as execute_run: it is an application's code, also under a shield
def _interruptibly(call: Callable[..., T], *args: object) -> T:
    return call(*args)


def snapshots(roster: Roster, journal: RunJournal) -> list[Event]:
    """Return what the extensions want a late subscriber to see first. What one raises is a diagnostic."""
    events: list[Event] = []
    for extension in roster.extensions:
        try:
            snapshot = getattr(extension, "snapshot", None)
            if snapshot is not None and getattr(snapshot, "__func__", None) is not Extension.snapshot:
                answer: Any = snapshot()
                discard(answer)  # an async one: nothing may wait here
                events.extend(answer)
        except Exception as error:  # noqa: BLE001  # a subscriber cannot affect the run
            journal.note(extension.name, "snapshot", error)
    return events
