"""The journal of one run: its events, steps, usage, diagnostics, phase, and whose fault an error is.

Every room of a run writes here; nobody above is known here. Subscribers read at their own pace: the log is
kept once, text deltas are merged as they are appended, and a reader's position can lie inside a merged one.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

import attrs
import trio

from ._callables import discard, hears_texts
from ._leaves import bare, leaves
from .events import Answer, Event, Retraction, RunFinished, RunQueued, TextDelta
from .values import Diagnostic, Route, Step, Usage

__all__ = ["Cancellable", "EventStream", "RunJournal", "clock"]

E = TypeVar("E", bound=Event)


class Cancellable(Protocol):
    """What an abort that comes too late for the outcome still ends: a scope, or a limit on one."""

    def cancel(self) -> None:
        """End it; never blocks."""
        ...


# Roles of model calls, which are phases of their own: a model adapter is running then.
_CODE_OF_PHASE: dict[str, str] = dict.fromkeys(("plan", "arguments", "answer", "scribe", "step", "compact"), "model")

# One merged entry holds at most this many deltas, so that no list and no joined text grows with the reply's length.
MERGE_AT_MOST = 256


@attrs.define(eq=False)
class _Deltas:
    """Consecutive text deltas. Their seqs are `first`, `first + 1`, …: nothing else was emitted between them."""

    first: int
    at: float
    parts: list[str]


def clock() -> Callable[[], float]:
    """Return what tells the time of the trio run that this is called in, to be kept for as long as that goes on."""
    return trio.lowlevel.current_clock().current_time if trio.lowlevel.in_trio_run() else trio.current_time


@attrs.define(eq=False)
class RunJournal:
    """What one run has told so far. Synchronous but for its readers."""

    run_id: str
    conversation_id: str | None
    callbacks: tuple[Callable[[Event], object], ...] = ()
    steps: tuple[Step, ...] = ()
    diagnostics: list[Diagnostic] = attrs.Factory(list)
    usage: Usage = Usage()  # frozen, so it can be shared
    handled_by: Route = "device"
    phase: str = "queued"
    since: float = 0.0
    seq: int = 0
    # Invariant: once `answered`, an abort no longer decides the outcome (C10); it cancels `late_scope` instead.
    answered: bool = False
    late_scope: Cancellable | None = None
    closing: bool = False
    ended: bool = False
    # While a person is asked: how long they may take. `superseded` once a new message came instead of an answer (§P).
    question: trio.CancelScope | None = None
    superseded: bool = False
    # What a callback raised on `RunQueued`: it fails the run at its turn (E4).
    early_error: Exception | None = None
    # Whose code runs right now, where a hook is asked: what leaves the run from there unblamed (an interrupt, a group
    # made while unwinding) is theirs.
    place: str | None = None
    # Trio's clock, found once: a turn asks for the time some twenty times.
    now: Callable[[], float] = attrs.Factory(clock)
    _log: list[Event | _Deltas] = attrs.Factory(list)
    _changed: trio.lowlevel.ParkingLot | None = None
    _blame: tuple[tuple[BaseException, str], ...] = ()

    # --- writing ----------------------------------------------------------------------------------------------------

    def emit(self, kind: type[E], **fields: Any) -> E:
        """Append an event and tell the callbacks.

        Raises: what a callback raises, with origin `event`, up to and including `Answer`; later it is a diagnostic.
        """
        self.seq += 1
        event = kind(self.run_id, self.conversation_id, self.seq, time.time(), **fields)
        error = self._append(event)
        if error is not None:
            if self.closing or (self.answered and kind is not Answer):
                self.note("on_event", "on_event", error, event.kind)
            else:
                self.blame(error, "event")
                raise error
        return event

    def emit_closing(self, kind: type[E], **fields: Any) -> E:
        """Append an event in a clean-up: what a callback raises is always a diagnostic, since an exception from here
        would replace the one (or the cancellation) that is passing."""
        self.seq += 1
        event = kind(self.run_id, self.conversation_id, self.seq, time.time(), **fields)
        error = self._append(event)
        if error is not None:
            self.note("on_event", "on_event", error, event.kind)
        return event

    def queue(self) -> None:
        """Append `RunQueued`. What a callback raises fails the run at its turn; accepting the ask is untouched (E4)."""
        self.seq += 1
        error = self._append(RunQueued(self.run_id, self.conversation_id, self.seq, time.time()))
        if error is not None:
            self.blame(error, "event")
            self.early_error = error

    def delta(self, text: str) -> None:
        """Append a piece of the answer's text. Consecutive pieces are one entry of the log.

        Raises: as `emit`.
        """
        if self.ended:
            return
        self.seq += 1
        at = 0.0
        last = self._log[-1] if self._log else None
        if isinstance(last, _Deltas) and len(last.parts) < MERGE_AT_MOST:
            last.parts.append(text)
        else:
            at = time.time()
            self._log.append(_Deltas(self.seq, at, [text]))
        if self._changed is not None:
            self._wake()
        hearing = [callback for callback in self.callbacks if hears_texts(callback)] if self.callbacks else None
        if hearing:
            # The first piece of an entry has the entry's own time: a callback and a reader get the same event.
            event = TextDelta(self.run_id, self.conversation_id, self.seq, at or time.time(), text, self.seq)
            error = self._tell(event, hearing)
            if error is not None:
                self.blame(error, "event")
                raise error

    def _append(self, event: Event) -> Exception | None:
        if self.ended:  # out of a task that outlived the run: `RunFinished` stays the last word (E1)
            return None
        self._log.append(event)
        kind = type(event)
        if kind is Answer:
            self.answered = True
        elif kind is RunFinished:
            self.ended = True
        if self._changed is not None:
            self._wake()
        return self._tell(event, self.callbacks) if self.callbacks else None

    @trio.lowlevel.disable_ki_protection  # application code, also where an event is told in a protected place
    def _tell(self, event: Event, callbacks: Iterable[Callable[[Event], object]]) -> Exception | None:
        first: Exception | None = None
        before, self.place = self.place, "event"
        for callback in callbacks:
            try:
                answer = callback(event)
                if inspect.iscoroutine(answer):  # nothing may wait here, so nothing of it would ever run
                    discard(answer)
                    raise TypeError("on_event must not be async; iterate over run.events() in a task of your own")
            except Exception as error:  # noqa: BLE001  # handed to the caller, who decides
                if first is None:  # not `or`: an exception may have a length, or a truth of its own
                    first = bare(error)
        self.place = before
        return first

    def _wake(self) -> None:
        if self._changed is not None and self._changed:
            self._changed.unpark_all()

    # --- phases, blame ----------------------------------------------------------------------------------------------

    def enter(self, phase: str) -> None:
        """Say where the run stands now, as in `plan` or `tool:create_task`."""
        self.phase = phase
        self.since = self.now()
        self.place = None

    def supersede(self) -> None:
        """A new message came: a question that is open is denied, and so are those that the run has later."""
        if self.question is not None:
            self.superseded = True
            self.question.cancel()

    def blame(self, error: BaseException, origin: str) -> None:
        """Record whose fault `error` is. The first word stands: an outer room cannot take it from an inner one."""
        if all(known is not error for known, _ in self._blame):
            self._blame += ((error, origin),)

    def blame_fatal(self, error: BaseException, origin: str) -> None:
        """Of what leaves a piece of code, blame on `origin`, or on the callback that it came up in, what nobody outside
        will judge: what ends the program (R12), and an error in a group with a cancellation."""
        judged = Exception if isinstance(error, Exception) else ()
        for leaf in leaves(error):
            if not isinstance(leaf, (judged, GeneratorExit)):  # closing a generator ends no program
                self.blame(leaf, self.place or origin)

    def origin(self, origin: str) -> _Origin:
        """Return a context manager: an error that leaves its block is blamed on `origin`, and passes unchanged."""
        return _Origin(self, origin)

    def running(self, origin: str) -> _Origin:
        """Return a context manager around code of an application whose errors are somebody else's to judge: what ends
        the program and leaves the block is blamed on `origin`, or on the callback in which it came up (R12)."""
        return _Origin(self, origin, fatal=True)

    def origin_of(self, error: BaseException) -> str:
        """Return the origin blamed for `error`; else whose code was running; else `harness`."""
        for known, origin in self._blame:
            if known is error:
                return origin
        if self.place is not None or isinstance(error, Exception):
            return self.place or "harness"
        # An interrupt: nobody here catches one, so nobody has blamed it; the phase says whose code was running.
        return "tool" if self.phase.startswith("tool:") else _CODE_OF_PHASE.get(self.phase, "harness")

    def note(self, extension: str, phase: str, error: BaseException, about: str = "") -> None:
        """Record a failure that changes nothing. As `Diagnostic`."""
        if isinstance(error, Exception):
            error = bare(error)
        self.diagnostics.append(Diagnostic(extension, phase, error, about))

    def note_hook(self, owner: str, phase: str, error: Exception, about: str = "") -> None:
        """Record a failure of a row where nothing can be changed any more: of the extension that the error names,
        else `owner`'s."""
        self.note(getattr(error, "extension", owner), getattr(error, "phase", phase), error, about)

    # --- reading ----------------------------------------------------------------------------------------------------

    @property
    def trace(self) -> tuple[Event, ...]:
        """Every event so far but text deltas."""
        return tuple([entry for entry in self._log if not isinstance(entry, _Deltas)])

    @property
    def shown(self) -> str:
        """The text that a reader has before them: the answer, or the pieces of it that were not withdrawn."""
        parts: list[str] = []
        for entry in self._log:
            if isinstance(entry, _Deltas):
                parts.extend(entry.parts)
            elif isinstance(entry, Retraction | Answer):
                parts = [entry.text]
        return "".join(parts)

    def stream(
        self,
        prefix: Iterable[Event] = (),
        guard: Callable[[], AbstractContextManager[None]] = nullcontext,
        after: int = 0,
    ) -> EventStream:
        """Return a reader that begins with `prefix`, then has the run from its start, or from behind `after`.

        Arguments: `guard` gives a block around each wait for the next event, which may refuse the wait (R14).
        """
        return EventStream(self, list(prefix), guard, after)


class _Origin:
    __slots__ = ("_fatal", "_journal", "_origin")

    def __init__(self, journal: RunJournal, origin: str, fatal: bool = False) -> None:
        self._journal = journal
        self._origin = origin
        self._fatal = fatal

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None and self._fatal:
            self._journal.blame_fatal(error, self._origin)
        elif error is not None:
            for leaf in leaves(error):
                self._journal.blame(leaf, self._origin)
            if isinstance(error, BaseExceptionGroup):
                self._journal.blame(error, self._origin)


class EventStream:
    """What `Run.events` gives: iterates over a run's events, the run so far, then the rest, ending after `RunFinished`.

    A reader that falls behind gets text deltas merged (`through` says up to which one) and everything else in full.
    Leaving it early needs no clean-up. It cannot affect the run.

    Raises: `ReentrantRun` inside a run, where the next event would wait for that run.

    Cancellation: waiting for an event is a checkpoint; a cancelled wait has taken nothing.
    """

    __slots__ = ("_after", "_guard", "_index", "_journal", "_prefix", "_taken")

    def __init__(
        self,
        journal: RunJournal,
        prefix: list[Event],
        guard: Callable[[], AbstractContextManager[None]] = nullcontext,
        after: int = 0,
    ) -> None:
        self._journal = journal
        self._prefix = prefix[::-1]
        self._guard = guard
        self._after = after  # the last `seq` that the reader has from an earlier reading
        self._index = 0  # of the log entry to read next
        self._taken = 0  # parts of it already read, if it is a merged one

    def __aiter__(self) -> EventStream:
        return self

    @trio.lowlevel.enable_ki_protection  # as the waits of a `Run`
    async def __anext__(self) -> Event:
        await trio.lowlevel.checkpoint()
        while True:
            event = self.next_nowait()
            if event is not None:
                return event
            if self._journal.ended:
                raise StopAsyncIteration
            if self._journal._changed is None:
                self._journal._changed = trio.lowlevel.ParkingLot()
            with self._guard():
                await self._journal._changed.park()

    def next_nowait(self) -> Event | None:
        """Return the next event if there is one already; None if it is yet to come, or if there is none any more.

        Texts that have come meanwhile are one event, as always. Never blocks, and is no checkpoint.
        """
        if self._prefix:
            return self._prefix.pop()
        log = self._journal._log
        while self._index < len(log):
            entry = log[self._index]
            if not isinstance(entry, _Deltas):
                self._index += 1
                if entry.seq <= self._after:
                    continue
                return entry
            if entry.first + self._taken <= self._after:
                self._taken = min(self._after - entry.first + 1, len(entry.parts))
            parts = entry.parts[self._taken :]
            if not parts:  # all read: the entry is closed if another one follows, else more may be merged into it
                if self._index + 1 == len(log):
                    return None
                self._index += 1
                self._taken = 0
                continue
            first = entry.first + self._taken
            self._taken += len(parts)
            journal = self._journal
            return TextDelta(
                journal.run_id, journal.conversation_id, first, entry.at, "".join(parts), first + len(parts) - 1
            )
        return None
