"""The extensions of one run, with their private state, and the ways to ask them.

Floor 2. The dispatcher: it knows the six compositions and reads everything else off the hook table. A `Roster` is made
once per agent; a `Panel` once per run.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from types import CoroutineType
from typing import Any, TypeVar

import attrs
import trio

from ._journal import RunJournal, bare, in_words
from ._roster import Hook, Roster
from .errors import GoliathExtensionError
from .events import Event, HookDecision
from .hooks import (
    HOOKS,
    Ask,
    Complete,
    Composition,
    Continue,
    Decline,
    Deny,
    Extension,
    NextStep,
    Question,
    Respond,
    Retry,
    Row,
    RunPatch,
    Skip,
    Stop,
)
from .values import Stopped

__all__ = ["Decision", "Panel", "RunStopped", "StreamVerdict", "combine", "snapshots"]

T = TypeVar("T")

_VERDICTS = (Stop, Respond, Deny, Ask, Retry, Skip, Decline, NextStep, Complete, Continue)


class RunStopped(Exception):  # not an error: the way out of any depth of rooms
    """A `Stop` was honoured. Raised and caught by rooms only; it never crosses an application's frame."""

    def __init__(self, stopped: Stopped, text: str) -> None:
        self.stopped = stopped
        self.text = text
        super().__init__(stopped.reason)


@attrs.frozen(eq=False)
class Decision:
    """What a deciding row came to: the question with every answer applied, and the verdict that ended it, if any."""

    question: Any
    verdict: Any = None
    extension: str = ""
    asks: tuple[tuple[str, str], ...] = ()
    patches: tuple[Any, ...] = ()


@attrs.frozen
class StreamVerdict:
    """What a `transform_stream` said through its control."""

    extension: str
    kind: str  # "abort" or "retry"
    text: str  # replacement or feedback
    reason: str = ""
    outcome: str = "blocked"


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


class _Control:
    """`StreamControl` for one extension. Cancelling the pipe's scope is how nothing returns to the transform."""

    __slots__ = ("_extension", "_scope", "verdicts")

    def __init__(self, extension: str, scope: trio.CancelScope, verdicts: list[StreamVerdict]) -> None:
        self._extension = extension
        self._scope = scope
        self.verdicts = verdicts

    async def abort(self, reason: str, outcome: str = "blocked", replacement: str = "") -> None:
        self.verdicts.append(StreamVerdict(self._extension, "abort", replacement, reason, outcome))
        self._scope.cancel()
        await trio.sleep_forever()

    async def retry(self, feedback: str) -> None:
        self.verdicts.append(StreamVerdict(self._extension, "retry", feedback))
        self._scope.cancel()
        await trio.sleep_forever()


_NOTHING: Any = object()


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
    # Invariant (11): an extension's state lives here, one mapping per extension and run.
    _contexts: dict[int, _Context] = attrs.Factory(dict)

    def hears(self, row: str) -> bool:
        """Say whether any extension implements the row: if not, the question need not be made."""
        return bool(self.roster.rows[row])

    def hooks(self, row: str) -> tuple[Hook, ...]:
        """Return the row's hooks in registration order."""
        return self.roster.rows[row]

    def _context(self, hook: Hook) -> _Context:
        context = self._contexts.get(hook.index)
        if context is None:
            context = self._contexts[hook.index] = _Context(self)
        return context

    def close(self) -> None:
        """Nothing is asked any more: let the contexts go, which know this panel, so that all is freed at once."""
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
                if spec.beats is not None and isinstance(answer, spec.beats):
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
            if answer is not None and _awaitable(answer):
                answer = await answer
            if answer is not None:
                answer = _validated(row, question, answer)
        except Exception as error:  # noqa: BLE001  # H4: it becomes the extension's error, or a lenient one's skip
            journal.place = None
            answer = self._failed(row, hook, bare(error))
        journal.place = None
        await trio.lowlevel.checkpoint_if_cancelled()
        return answer

    def _failed(self, row: Row, hook: Hook, error: Exception) -> Any:
        if hook.lenient and row.lenient is not None:
            self.journal.note(hook.extension, row.name, error)
            if row.lenient == "deny":
                return Deny(in_words(error))
            self.journal.emit(
                HookDecision, extension=hook.extension, phase=row.name, decision="skipped", reason=in_words(error)
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
        return await self._layer(HOOKS[row], hooks, 0, question, inner, patched, memoised)

    async def _layer(
        self,
        row: Row,
        hooks: tuple[Hook, ...],
        depth: int,
        question: Any,
        inner: Callable[[Any], Awaitable[T]],
        patched: Callable[[Any, Any], Any] | None,
        memoised: bool,
    ) -> T:
        if depth == len(hooks):
            return await inner(question)
        hook = hooks[depth]
        passed: list[BaseException] = []
        result: T = _NOTHING
        called = over = False

        async def call_next(patch: Any = None) -> T:
            nonlocal result, called
            if over:  # it would act behind the back of a run that has gone on, or is over
                raise RuntimeError(f"call_next of {row.name} is good only while its hook runs")
            following = question
            if patch is None and memoised and result is not _NOTHING:
                await trio.lowlevel.checkpoint()
                return result
            if patch is not None:
                if patched is None:
                    raise TypeError(f"call_next of {row.name} takes no argument")
                following = patched(question, patch)
            called, result = True, _NOTHING
            try:
                result = await self._layer(row, hooks, depth + 1, following, inner, patched, memoised)
            except Exception as error:
                passed.append(error)
                raise
            return result

        out_of_group: Exception | None = None
        answer: Any = None
        try:
            answer = hook.call(self._context(hook), question.fork(), call_next)
            if answer is not None and _awaitable(answer):
                answer = await answer
            if answer is not None:
                answer = _validated(row, question, answer)
        except Exception as error:
            if any(error is known for known in passed):
                raise
            only = bare(error)
            if all(only is not known for known in passed):
                raise self._extension_error(row.name, hook, only) from only
            out_of_group = only
        finally:
            over = True
        if out_of_group is not None:
            raise out_of_group
        await trio.lowlevel.checkpoint_if_cancelled()
        if answer is not None:
            value: T = answer
            return value
        # No opinion: what came of the last call stands, and a hook that made none gets out of the way. Nothing is done
        # a second time because a hook kept an error, or its own time limit, to itself.
        if result is not _NOTHING:
            return result
        if not called:
            return await self._layer(row, hooks, depth + 1, question, inner, patched, memoised)
        if passed:
            raise passed[-1]
        problem = TypeError(f"it cut {row.name} short and returned nothing in its place")
        raise self._extension_error(row.name, hook, problem) from problem

    # --- pipe -------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def pipe(
        self, row: str, events: AsyncIterator[T], scope: trio.CancelScope, verdicts: list[StreamVerdict]
    ) -> AsyncIterator[AsyncIterator[T]]:
        """Send `events` through every hook of a pipe row, in registration order.

        Arguments: `scope` is cancelled when a hook ends the stream through its control; `verdicts` then holds what
        it said (the first counts).
        """
        async with AsyncExitStack() as stack:
            stream = events
            for hook in self.roster.rows[row]:
                passed: list[BaseException] = []
                control = _Control(hook.extension, scope, verdicts)
                upstream = await stack.enter_async_context(aclosing(_letting_through(stream, passed)))
                try:
                    out = hook.call(self._context(hook), upstream, control)
                except Exception as error:
                    raise self._extension_error(row, hook, error) from error
                if out is None:
                    continue
                if not hasattr(out, "__aiter__"):
                    problem = TypeError(f"an async generator is wanted, not {type(out).__name__}")
                    raise self._extension_error(row, hook, problem) from problem
                if hasattr(out, "aclose"):
                    await stack.enter_async_context(aclosing(out))
                stream = await stack.enter_async_context(aclosing(self._guarded(row, hook, out, passed)))
            yield stream

    async def _guarded(
        self, row: str, hook: Hook, stream: Any, passed: list[BaseException]
    ) -> AsyncGenerator[Any, None]:
        out_of_group: Exception | None = None
        try:
            async for event in stream:
                yield event
        except Exception as error:
            if any(error is known for known in passed):
                raise
            only = bare(error)
            if all(only is not known for known in passed):
                raise self._extension_error(row, hook, only) from only
            out_of_group = only
        if out_of_group is not None:
            raise out_of_group

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
        if answer is None or _awaitable(answer):
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
                events.extend(snapshot())
        except Exception as error:  # noqa: BLE001  # a subscriber cannot affect the run
            journal.note(extension.name, "snapshot", error)
    return events


def _awaitable(answer: Any) -> bool:
    return type(answer) is CoroutineType or hasattr(answer, "__await__")


def _validated(row: Row, question: Question, answer: Any) -> Any:
    if not row.answers:
        raise TypeError(f"{row.name} only observes and must return nothing, not {type(answer).__name__}")
    right = isinstance(answer, row.answers) and not (isinstance(answer, str) and str not in row.answers)
    if object in row.answers:  # any output will do, but a verdict is none: here it has no effect
        right = not isinstance(answer, _VERDICTS)
    if not right:
        allowed = row.words or " · ".join(kind.__name__ for kind in row.answers)
        raise TypeError(f"{row.name} may answer {allowed} or None, not {type(answer).__name__}")
    if isinstance(answer, Stop | Respond | Deny | Retry | Ask):
        _check_verdict(answer)
    return answer if row.check is None else row.check(question, answer)


def _check_verdict(verdict: Stop | Respond | Deny | Retry | Ask) -> None:
    for field in attrs.fields(type(verdict)):
        value = getattr(verdict, field.name)
        if field.name != "whole_batch" and not isinstance(value, str):
            raise TypeError(f"{type(verdict).__name__}.{field.name} must be a string, not {type(value).__name__}")
    if isinstance(verdict, Respond) and not verdict.text.strip():
        raise ValueError("the text of a Respond is blank")


async def _letting_through(stream: AsyncIterator[T], passed: list[BaseException]) -> AsyncGenerator[T, None]:
    try:
        async for event in stream:
            yield event
    except Exception as error:
        passed.append(error)
        raise


def combine(patches: Iterable[Any]) -> RunPatch:
    """Fold run, plan or model patches into one: settings merge by field, options by key; a patch with a model starts
    afresh, so what earlier ones set of both is dropped (T10); messages are appended in order."""
    model = None
    settings: dict[str, Any] = {}
    options: dict[str, Any] = {}
    messages: list[Any] = []
    tools: list[str] | None = None
    for patch in patches:
        if patch.model is not None:
            model, settings, options = patch.model, {}, {}
        settings.update(patch.settings or {})
        options.update(patch.provider_options or {})
        messages.extend(patch.messages or ())
        wanted = getattr(patch, "tools", None)
        if wanted is not None:
            tools = list(wanted) if tools is None else [name for name in tools if name in set(wanted)]
    return RunPatch(
        messages=messages or None,
        tools=tools,
        model=model,
        settings=settings or None,
        provider_options=options or None,
    )
