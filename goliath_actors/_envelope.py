"""Envelopes: an ask that was accepted, with the scope that it will run in and its one-shot reply.

Making one does nothing; the mailbox and the actor above decide when it has its turn. Rooms work with the `Envelope`,
users with its face, the `Run`.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import Context, ContextVar
from functools import partial
from typing import Any, Literal, Protocol, final

import attrs
import trio

from ._journal import EventStream, RunJournal
from ._schema import OutputSchema
from ._tool_words import Delegating
from .errors import RunAborted
from .events import Event
from .values import Abort, AbortCause, Outcome, RunResult

__all__ = [
    "Envelope",
    "Job",
    "Line",
    "RunOptions",
    "Ties",
    "Turn",
    "Wait",
    "WaitForAll",
    "current_run",
]

current_run: ContextVar[Envelope | None] = ContextVar("goliath_actors_current_run", default=None)
"""The run in whose context this code runs, also in tasks that its tools start (R14)."""


# Why waits are kept from Ctrl-C between their steps: nothing of an application runs in them, and half a wait leaves
# traces, here and in trio. It arrives all the same, wherever they really wait.


class Turn(Protocol):
    """What a conversation shows to its envelopes, and to whoever waits for one."""

    @property
    def label(self) -> str:
        """Name of the conversation, for people."""
        ...

    @property
    def current(self) -> Envelope | Job | None:
        """What has its turn."""
        ...

    @property
    def line(self) -> Line | None:
        """Where what has its turn stands in line for a slot, None if it does not."""
        ...


class Line(Protocol):
    """What stands in line for a slot of a runtime (R4)."""

    @property
    def holders(self) -> Sequence[Turn]:
        """The conversations that have a slot."""
        ...

    @property
    def missing(self) -> int:
        """How many of them must give theirs up before one is free."""
        ...


@attrs.frozen(eq=False)
class Ties:
    """What an envelope reaches of its runtime: the same for all runs of an agent."""

    # Registers a wait with the runtime (R14: refuses one that would never end) while its block lasts.
    guarded: Callable[..., AbstractContextManager[None]]
    # Submits another ask, as hooks and tools of a run may.
    submit: Callable[..., object]
    # How agents that are tools of this one are run (T14).
    delegating: Delegating
    # Told when a run is aborted while it waits: it keeps its place, and is nobody's ask any more.
    gave_up: Callable[[Envelope], None]
    # Tells of a rewrite of a run, beside it.
    later: Callable[..., None]


@attrs.frozen
class RunOptions:
    """What one ask may say for itself; None leaves the agent's word."""

    # Any: an application's callable, whose results are checked where they are used, and what it answers.
    confirm: Callable[..., Any] | None = None
    confirm_timeout: float | None = None
    output: OutputSchema | None = None
    finish_timeout: float | None = None
    # Of a run that takes up waiting calls: what they are answered, by call id.
    answers: Mapping[str, Any] | None = None
    # Of a run that rewrites history first: how.
    rewrite: Literal["regenerate"] | None = None


@final
@attrs.define(eq=False, repr=False)
class Envelope:
    """One ask going through a conversation."""

    id: str
    conversation_id: str | None
    ask: str
    # Any: the application's own object.
    context: Any
    options: RunOptions
    journal: RunJournal
    ties: Ties
    # The submitter's, given up at the start: it may hold the run that submitted this one, and so every one before.
    context_vars: Context | None
    accepted_at: float
    # Absolute, on trio's clock. Until the run begins nothing enters the scope, so waiters watch this (R7).
    deadline: float = math.inf
    scope: trio.CancelScope = attrs.Factory(trio.CancelScope)
    state: Literal["queued", "running", "finishing", "done"] = "queued"
    # How it ended, once it is over: most runs are asked for their result and nothing else.
    how: RunResult | Outcome | None = None
    followed_by: Envelope | None = None
    replaces: bool = False
    # True from its acceptance until its turn begins.
    waits: bool = False
    # None for what calls a tool without a conversation.
    conversation: Turn | None = None
    # One entry for each wait that this run is in: a run may wait for the same one twice.
    waits_for: list[Wait | WaitForAll] = attrs.Factory(list)
    # The run that asked this one, while it waits for it.
    owner: Envelope | None = None
    # Questions to people that are open here or in a run that this one waits for, and the time that is left meanwhile.
    _questions: int = 0
    _time_left: float = math.inf
    # How many waits for this run have lent it their slots (R4).
    lenders: int = 0
    # Invariant: texts handed to this run that it has not taken, as the runs that they become if it never does (T7).
    steers: tuple[Envelope, ...] = ()
    # What a subscriber that comes late gets first, and nobody else (H11).
    snapshots: Callable[[], list[Event]] | None = None
    _abort: Abort | None = None
    # Invariant: set at most once; `replied` is true from then on. A run aborted while queued is answered at once and
    # is `done` only after its observers, so the reply and the end are two things.
    _reply: RunResult | BaseException | None = None
    _replied: trio.Event | None = None
    _ended: trio.Event | None = None
    # What users see of it, made once somebody looks (`_face.py`). Weak: a face knows its envelope, and neither is to
    # wait for the garbage collector.
    face: weakref.ref[object] | None = None

    def __repr__(self) -> str:
        return f"<Envelope {self.id} {self.state} conversation={self.conversation_id!r}>"

    @property
    def outcome(self) -> Outcome | None:
        """How it ended, once it is over, as observers see it."""
        how = self.how
        if isinstance(how, RunResult):
            how = self.how = Outcome(how.status, how, steps=how.steps, trace=how.trace, usage=how.usage)
        return how

    @property
    def abort_state(self) -> Abort | None:
        """Why the run is to end, if it is."""
        return self._abort

    def is_ending(self) -> bool:
        """Say whether the run is to end: by somebody's word, or by its scope alone."""
        return self._abort is not None or self.scope.cancel_called

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

    def guard(self, *, owned: bool = False) -> AbstractContextManager[None]:
        """Return a block during which the run in whose context this code runs, if any, waits for this one.

        Arguments: `owned`, whether that run is this one's asker: then it does not outlive it.

        Raises: `ReentrantRun` on entering, if the wait could never end.
        """
        return self.ties.guarded(self, owned=owned)

    def release(self) -> None:
        """The run was aborted, and what it asked and still waits for in a task that is not its own goes with it: a
        plain function's thread is abandoned, and what it asked through `trio.from_thread` has a system task."""
        for wait in tuple(self.waits_for):
            if isinstance(wait, Wait) and wait.child is not None:
                wait.child.request_abort("caller")

    @contextmanager
    def asking_a_person(self) -> Iterator[None]:
        """Return a block in which a person is asked. The time of this run stands still, and that of the run which asked
        this one and waits for it, and so on: a person does not answer sooner because more than one waits (R6)."""
        runs: list[Envelope] = [self]
        for run in runs:  # grows: nobody waits in a circle (R14)
            if run.owner is not None:
                runs.append(run.owner)
        for run in runs:
            run._hold_time()
        try:
            yield
        finally:
            for run in runs:
                run._go_on()

    def _hold_time(self) -> None:
        self._questions += 1
        if self._questions == 1 and self.scope.deadline != math.inf:
            self._time_left = self.scope.deadline - trio.current_time()
            self.scope.deadline = math.inf

    def _go_on(self) -> None:
        self._questions -= 1
        if not self._questions and self._time_left != math.inf:
            # A shutdown may have set one that is sooner.
            self.scope.deadline = min(self.scope.deadline, trio.current_time() + self._time_left)
            self._time_left = math.inf

    def drop_steer(self, steer: Envelope) -> None:
        """A text that was handed to this run is taken."""
        self.steers = tuple([one for one in self.steers if one is not steer])

    def events(self, after: int = 0) -> EventStream:
        """As `Run.events`."""
        late = self.state != "queued" and self.snapshots is not None and after <= 0
        prefix = self.snapshots() if late and self.snapshots is not None else ()
        return self.journal.stream(prefix, partial(self.ties.guarded, self, to_end=True), after)

    def request_abort(self, cause: AbortCause, reason: str = "") -> None:
        """Cancel the run for `cause`. The first cause stands (R6); while finishing and later nothing changes."""
        if self.state in ("finishing", "done"):
            return
        if self._abort is None:
            passed = cause != "deadline" and self.deadline_passed()
            self._abort = Abort("deadline" if passed else cause, "" if passed else reason, self.journal.phase)
            if self.waits:
                self.ties.gave_up(self)
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

    def end(self, how: RunResult | Outcome) -> None:
        """The run is over: nothing of it goes on. Sets the reply too, if it has none yet."""
        self.how = how
        self.state = "done"
        final = how if isinstance(how, RunResult) else how.result or how.error
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
            if self.deadline == math.inf and self._reply is None:  # as `wait_replied`, one coroutine less deep
                if self._replied is None:
                    self._replied = trio.Event()
                await self._replied.wait()
            else:
                await self.wait_replied()
            answered = True
        finally:
            if not answered:
                await self.abandon()
            elif self.state == "queued":
                await self._outlast()
        return self.unwrap()

    @trio.lowlevel.enable_ki_protection
    async def abandon(self) -> None:
        """End the run because its owner leaves, and wait for its end, shielded, if it has its turn."""
        self.request_abort("caller")
        await self._outlast()

    async def _outlast(self) -> None:
        """Wait, shielded, for the end of a run that has its turn; one that waits for it is left behind (R7).

        Its task may be yet to take its first step. That is chance, and what its owner finds when it goes on is not.
        """
        if not self.waits and self.state != "done":
            with trio.CancelScope(shield=True):
                await self.wait_ended()


@final
@attrs.define(eq=False)
class Job:
    """A turn of a conversation that is no run, such as forgetting it. It observes the same order.

    `phase` says what it does; `run` stands for it where it asks hooks, which may wait for other conversations.
    """

    work: Callable[[], Awaitable[None]]
    conversation: Turn
    context_vars: Context | None
    phase: str = "forget"
    run: Envelope | None = None
    lenders: int = 0
    accepted_at: float = attrs.Factory(trio.current_time)
    waits: bool = False
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

    target: Envelope | Job
    # True if it ends with the target itself, False if with the target's reply.
    to_end: bool = False
    # True if the waiter made the target and would abort it by leaving.
    owned: bool = False
    # True while the waiter lends its slot to the target (R4).
    lent: bool = False

    @property
    def over(self) -> bool:
        """True once nothing keeps the waiter, even if its task has not noticed yet.

        An owner does not go on before a run that has its turn is over, though it be answered already.
        """
        target = self.target
        return target.over or (target.replied and not self.to_end and (target.waits or not self.owned))

    @property
    def child(self) -> Envelope | None:
        """The run that the waiter asked, and would abort by leaving; None if it waits for something else."""
        return self.target if self.owned and isinstance(self.target, Envelope) else None

    def turns(self) -> Iterable[Turn]:
        """Yield the conversations whose turns the waiter needs."""
        return () if self.over or self.target.conversation is None else (self.target.conversation,)


@final
@attrs.frozen(eq=False)
class WaitForAll:
    """A run waits for everything that another runtime has: it leaves that runtime's block."""

    turns: Callable[[], Iterable[Turn]]
