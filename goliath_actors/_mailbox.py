"""Envelopes with their one-shot replies, and the mailbox they wait in.

Floor 2. A `Run` is the envelope: what was asked, the scope that it will run in, and the reply. Making one does nothing;
`Mailbox.post` and the actor above decide when it has its turn.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from contextvars import Context, ContextVar
from functools import partial
from typing import Any, Literal, final

import attrs
import trio

from ._journal import EventStream, RunJournal
from .errors import RunAborted
from .events import Event
from .values import Abort, AbortCause, Outcome, RunResult

__all__ = ["Job", "Mailbox", "Run", "Wait", "current_run"]

current_run: ContextVar[Run | None] = ContextVar("goliath_actors_current_run", default=None)
"""The run in whose context this code runs, also in tasks that its tools start (R14)."""


# Why waits are kept from Ctrl-C between their steps: nothing of an application runs in them, and half a wait leaves
# traces, here and in trio. It arrives all the same, wherever they really wait.


@final
@attrs.define(eq=False, repr=False)
class Run:
    """One ask going through a conversation. Made by `Runtime.submit`, `run` and `stream`."""

    id: str
    conversation_id: str | None
    ask: str
    # Any: the application's context object and run options; the floor that made the run knows them.
    context: Any
    options: Any
    journal: RunJournal
    # Registers a wait with the runtime (R14: refuses one that would never end) while its block lasts.
    _guarded: Callable[..., AbstractContextManager[None]]
    # The submitter's, given up at the start: it may hold the run that submitted this one, and so every one before.
    context_vars: Context | None
    accepted_at: float
    # Absolute, on trio's clock. Until the run begins nothing enters the scope, so waiters watch this (R7).
    deadline: float = math.inf
    scope: trio.CancelScope = attrs.Factory(trio.CancelScope)
    state: Literal["queued", "running", "finishing", "done"] = "queued"
    outcome: Outcome | None = None
    followed_by: Run | None = None
    replaces: bool = False
    conversation: Any = None
    # One entry for each wait that this run is in: a run may wait for the same one twice.
    waits_for: list[Wait] = attrs.Factory(list)
    # How many waits for this run have lent it their slots (R4).
    lenders: int = 0
    # Invariant: texts handed to this run that it has not taken, as the runs that they become if it never does (T7).
    steers: deque[Run] = attrs.Factory(deque)
    # What a subscriber that comes late gets first, and nobody else (H11).
    snapshots: Callable[[], list[Event]] | None = None
    _abort: Abort | None = None
    # Invariant: set at most once; `replied` is true from then on. A run aborted while queued is answered at once and
    # is `done` only after its observers, so the reply and the end are two things.
    _reply: RunResult | BaseException | None = None
    _replied: trio.Event | None = None
    _ended: trio.Event | None = None

    def __repr__(self) -> str:
        return f"<Run {self.id} {self.state} conversation={self.conversation_id!r}>"

    # --- for users --------------------------------------------------------------------------------------------------

    def abort(self, reason: str = "") -> None:
        """Ask the run to end, cause `requested`. Never blocks.

        A running run is cancelled; a queued one keeps its place, is answered at once and runs no hook but its
        observers at its turn. After the answer is out, or once the run is over, nothing changes.
        """
        self.request_abort("requested", reason)

    @trio.lowlevel.enable_ki_protection
    async def wait(self) -> RunResult:
        """Wait for the run's reply.

        Returns: the result of a `completed` or `stopped` run.

        Raises: `RunAborted` if it was aborted; what the application raised, as the same object; `ReentrantRun` at
        once if this wait could never end.

        Cancellation: leaves the run alone; a wait does not own it.
        """
        with self.guard():
            await self.wait_replied()
        return self.unwrap()

    def events(self, after: int = 0) -> EventStream:
        """Return an async iterator over the run's events from its start, ending after `RunFinished`.

        A reader that is slow gets text deltas merged and nothing else dropped; it cannot affect the run. Inside a run
        reading is a wait: `ReentrantRun` where it would never end.

        Arguments: `after` takes up a reading that was broken off: the `seq` of the last event that was read, the
        `through` of a text delta. Nothing is given twice and nothing is left out.
        """
        late = self.state != "queued" and self.snapshots is not None and after <= 0
        prefix = self.snapshots() if late and self.snapshots is not None else ()
        return self.journal.stream(prefix, partial(self._guarded, self, to_end=True), after)

    # --- for the floors above ---------------------------------------------------------------------------------------

    def guard(self) -> AbstractContextManager[None]:
        """Return a block during which the run in whose context this code runs, if any, waits for this one.

        Raises: `ReentrantRun` on entering, if the wait could never end.
        """
        return self._guarded(self)

    @property
    def abort_state(self) -> Abort | None:
        """Why the run is to end, if it is."""
        return self._abort

    @property
    def early_reply(self) -> RunResult | BaseException | None:
        """The reply, if one is set: before the end, that of a run that was aborted while queued."""
        return self._reply

    @property
    def replied(self) -> bool:
        """True once a reply is set."""
        return self._reply is not None

    @property
    def over(self) -> bool:
        """True once nothing of the run goes on."""
        return self.state == "done"

    def request_abort(self, cause: AbortCause, reason: str = "") -> None:
        """Cancel the run for `cause`. The first cause stands (R6); while finishing and later nothing changes."""
        if self.state in ("finishing", "done"):
            return
        if self._abort is None:
            passed = cause != "deadline" and self.deadline_passed()
            self._abort = Abort("deadline" if passed else cause, "" if passed else reason, self.journal.phase)
        if self.journal.answered:  # C10: too late for the outcome; only the summary is cut
            if self.journal.late_scope is not None:
                self.journal.late_scope.cancel()
            return
        self.scope.cancel()
        if self.state == "queued":
            abort = self._abort
            self.reply(RunAborted(abort.cause, abort.reason, abort.phase))

    def deadline_passed(self) -> bool:
        """Say whether the time that the asker gave has run out."""
        limit = self.deadline if self.state == "queued" else self.scope.deadline
        return limit <= trio.current_time()

    def reply(self, reply: RunResult | BaseException) -> None:
        """Answer every waiter. Only the first reply counts (invariant 4)."""
        if self._reply is None:
            self._reply = reply
            if self._replied is not None:
                self._replied.set()

    def end(self, outcome: Outcome) -> None:
        """The run is over: nothing of it goes on. Sets the reply too, if it has none yet."""
        self.outcome = outcome
        self.state = "done"
        final = outcome.result if outcome.result is not None else outcome.error
        assert final is not None
        self.reply(final)
        if self._ended is not None:
            self._ended.set()

    def unwrap(self) -> RunResult:
        """Return the result or raise the error."""
        reply = self._reply
        if isinstance(reply, BaseException):
            raise reply
        assert reply is not None
        return reply

    @trio.lowlevel.enable_ki_protection
    async def wait_replied(self) -> None:
        """Wait for the reply, ending the run itself if its time runs out before it has begun.

        Cancellation: changes nothing.
        """
        if self._reply is not None:
            await trio.lowlevel.checkpoint()
            return
        if self._replied is None:
            self._replied = trio.Event()
        while self._reply is None:
            if self.state == "queued" and self.deadline != math.inf:
                with trio.move_on_at(self.deadline):
                    await self._replied.wait()
                if self._reply is None and self.state == "queued" and self.deadline_passed():
                    self.request_abort("deadline")
            else:
                await self._replied.wait()

    @trio.lowlevel.enable_ki_protection
    async def wait_ended(self) -> None:
        """Wait until nothing of the run goes on, observers included.

        Cancellation: changes nothing.
        """
        if self.state == "done":
            await trio.lowlevel.checkpoint()
            return
        if self._ended is None:
            self._ended = trio.Event()
        await self._ended.wait()

    @trio.lowlevel.enable_ki_protection
    async def own(self) -> RunResult:
        """Wait as the run's owner (R8): if the waiter is cancelled, the run is aborted, cause `caller`, and the
        cancellation goes on only when the run is over, unless it never began (R7)."""
        answered = False
        try:
            await self.wait_replied()
            answered = True
        finally:
            if not answered:
                await self.abandon()
        return self.unwrap()

    @trio.lowlevel.enable_ki_protection
    async def abandon(self) -> None:
        """End the run because its owner leaves, and wait for its end, shielded, if it has begun."""
        self.request_abort("caller")
        if self.state not in ("queued", "done"):
            with trio.CancelScope(shield=True):
                await self.wait_ended()


@final
@attrs.define(eq=False)
class Job:
    """A turn of a conversation that is no run, such as forgetting it. It observes the same order."""

    work: Callable[[], Awaitable[None]]
    conversation: Any
    context_vars: Context | None
    lenders: int = 0
    # Has a deadline once the runtime shuts down.
    scope: trio.CancelScope = attrs.Factory(trio.CancelScope)
    error: Exception | None = None
    done: trio.Event = attrs.Factory(trio.Event)

    @property
    def over(self) -> bool:
        """True once it is done, or has failed."""
        return self.done.is_set()

    replied = over


@final
@attrs.define(eq=False)
class Wait:
    """One wait of a run for another run or for a job."""

    target: Run | Job
    # True if it ends with the target itself, False if with the target's reply.
    to_end: bool = False
    # True if the waiter made the target and would abort it by leaving.
    owned: bool = False
    # True while the waiter lends its slot to the target (R4).
    lent: bool = False

    @property
    def over(self) -> bool:
        """True once nothing keeps the waiter, even if its task has not noticed yet."""
        return self.target.over or (self.target.replied and not self.to_end)


@final
@attrs.define(eq=False)
class Mailbox:
    """The envelopes one conversation has accepted and not yet begun, oldest first.

    The queue is made on first need: an idle conversation, and one that is asked now and then, has none.
    """

    # Invariant: an envelope in _waiting has not begun; leaving _waiting is the only way to begin.
    _waiting: deque[Run | Job] | None = None
    # Invariant: no replacement overtakes the first _front envelopes: earlier ones, and everything up to the last job.
    _front: int = 0
    # The latest replacement, if it has not begun. Those before it were aborted when it came.
    replacement: Run | None = None

    def __len__(self) -> int:
        return 0 if self._waiting is None else len(self._waiting)

    def __iter__(self) -> Iterator[Run | Job]:
        return iter(self._waiting or ())

    def post(self, envelope: Run | Job) -> None:
        """Put an envelope behind all others."""
        if self._waiting is None:
            self._waiting = deque()
        self._waiting.append(envelope)
        if isinstance(envelope, Job):
            self._front = len(self._waiting)

    def post_next(self, envelope: Run) -> None:
        """Put a replacement in front of everything but earlier replacements (R8a) and jobs with what is before them."""
        if self._waiting is None:
            self._waiting = deque()
        self._waiting.insert(self._front, envelope)
        self._front += 1
        self.replacement = envelope

    def take(self) -> Run | Job | None:
        """Remove and return the oldest envelope, None if there is none."""
        if not self._waiting:
            self._waiting = None
            return None
        envelope = self._waiting.popleft()
        self._front = max(0, self._front - 1)
        if envelope is self.replacement:
            self.replacement = None
        if not self._waiting:
            self._waiting = None
        return envelope
