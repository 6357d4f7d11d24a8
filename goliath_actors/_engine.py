"""The engine of a runtime: gives accepted envelopes their turns, lends slots to what is waited for, and ends them all.

A *host* task keeps the runs' nursery inside a shield until the runtime is closed and no run is left; a *watcher* turns
an outer cancellation into an abort of every run. `_open.py` puts them beside the user's block. Nothing is accepted
here: that is the floor above.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from functools import partial
from typing import Any, final

import trio

from ._admission import Admission
from ._agent import Agent
from ._conversation import Actor, Entry, Turns, label_of
from ._directory import Directory, with_subagents
from ._envelope import Envelope, Job, Wait, WaitForAll, current_run
from ._history import Histories
from ._life import Life
from ._observers import ObserverLimits
from ._panel import Panel, snapshots
from ._rewrites import Afterwards
from ._run import execute_run
from ._supervisor import supervise
from ._waits import refuse_cycle, waiter
from .abc import Store
from .errors import ReentrantRun, RuntimeClosed
from .values import DrainReport, RunResult

__all__ = ["Engine"]

ABORT_BATCH = 250  # of a mass abort: bounds how long the loop stands still (measured: 0.33 s without for 10,000)
SHUTDOWN_GRACE = 10.0  # R11: seconds for an unbounded observer at a shutdown without a drain


@final
class Engine:
    """What moves in a runtime. Its rooms above decide what is accepted; this gives it a turn and an end."""

    def __init__(
        self,
        agents: tuple[Agent[Any], ...],
        store: Store,
        max_running: int | None,
        finish_timeout: float | None,
        idle_timeout: float | None,
    ) -> None:
        self.histories = Histories()
        idle_seconds = math.inf if idle_timeout is None else idle_timeout
        self.directory = Directory(with_subagents(agents), idle_seconds, self.histories.drop)
        self.store = store
        self.life = Life()
        self.turns = Turns(max_running, self._start)
        self.admission = Admission(self._start_beside)
        self._limits = ObserverLimits(finish_timeout)
        self._nursery: trio.Nursery | None = None
        self._hosted = trio.Event()
        # What calls a tool without a conversation. Live like an accepted envelope.
        self._invoked: set[Envelope] = set()
        self.afterwards = Afterwards(self._start_beside, self.life.enter, self.life.leave)

    # --- turns ------------------------------------------------------------------------------------------------------

    def post(self, actor: Actor, envelope: Envelope | Job) -> None:
        """Put an accepted envelope into its conversation's mailbox; an idle conversation gets a turn for it."""
        self.life.enter()
        envelope.waits = True
        if actor.current is not None:
            actor.post(envelope, next_turn=isinstance(envelope, Envelope) and envelope.replaces)
        else:
            actor.current = envelope
            self.directory.busy(actor)
            self.turns.ready(actor)

    def gave_up(self, run: Envelope) -> None:
        """A run was aborted while it waits."""
        if isinstance(run.conversation, Actor):
            run.conversation.gone += 1
            self.life.gone += 1

    def _start(self, actor: Actor) -> None:
        """Start the task of the actor's head, in that envelope's own context (R5), as soon as the loop can follow."""
        envelope = actor.current
        assert envelope is not None
        envelope.waits = False
        context, envelope.context_vars = envelope.context_vars, None
        assert context is not None
        if isinstance(envelope, Envelope):
            if envelope.abort_state is not None:
                actor.gone -= 1
                self.life.gone -= 1
            self.life.running += 1  # it has its turn from here on, though its task takes its first step later
        if not self.admission.enter():
            if context.get(current_run) is None:
                self.admission.wait(actor, partial(self._begin, actor, envelope, context))
                return
            self.admission.pass_by()
        self._begin(actor, envelope, context)

    def _begin(self, actor: Actor, envelope: Envelope | Job, context: Context) -> None:
        assert self._nursery is not None
        start, label = self._nursery.start_soon, label_of(actor.entry, actor.conversation_id)
        if isinstance(envelope, Envelope):
            context.run(start, partial(self._run_turn, actor, envelope), name=label)
        else:
            context.run(start, partial(self._job_turn, actor, envelope), name=label)

    @trio.lowlevel.enable_ki_protection
    async def _run_turn(self, actor: Actor, run: Envelope) -> None:
        entry = actor.entry
        try:
            current_run.set(run)
            panel = self.panel(entry, run)
            if panel.roster.extensions:
                run.snapshots = partial(snapshots, panel.roster, panel.journal)  # no way to the panel: it knows the run
            key = entry.key(actor.conversation_id)
            execute = partial(execute_run, entry.agent, run, panel, self.store, key, actor, self.histories)
            try:
                await supervise(run, execute, panel, self._limits, self._report_fatal)
            finally:
                panel.close()
                self.life.running -= 1
                assert run.how is not None
                self.life.count(run.how)
        finally:
            self._over(actor, run)

    @trio.lowlevel.enable_ki_protection
    async def _job_turn(self, actor: Actor, job: Job) -> None:
        try:
            current_run.set(job.run)
            await _work_turn(job)
        finally:
            self._over(actor, job)

    def panel(self, entry: Entry, run: Envelope) -> Panel:
        """Return the extensions of a run."""
        agent, roster = entry.agent, entry.parts.roster
        heard = roster.heard.__getitem__
        return Panel(roster, run.journal, run.ask, agent.name, run.context, run.ties.submit, run.is_ending, heard)

    def _over(self, actor: Actor, envelope: Envelope | Job) -> None:
        """The head is over: the next envelope has its turn, or the conversation is idle."""
        life = self.life
        for run in actor.follow() if isinstance(envelope, Envelope) and envelope.steers else ():
            life.accepted += 1
            life.enter()
            if run.abort_state is not None:
                self.gave_up(run)
            run.journal.queue()
            if life.state == "closed":
                run.request_abort("shutdown", "the runtime was closed")
        more = actor.advance()
        self.admission.leave()
        self.turns.over(actor, envelope)
        if more:
            self.turns.ready(actor)
        else:
            self.directory.idle(actor)
        life.leave()

    @contextmanager
    @trio.lowlevel.enable_ki_protection
    def invoking(self, run: Envelope) -> Iterator[None]:
        """Return a block in which a tool is called without a conversation: the runtime's end waits for it."""
        self._invoked.add(run)
        self.life.enter()
        try:
            yield
        finally:
            self._invoked.discard(run)
            self.life.leave()

    # --- waits ------------------------------------------------------------------------------------------------------

    def owns(self, run: Envelope) -> bool:
        """Say whether it is a run of this runtime, in a conversation that is not forgotten."""
        return isinstance(run.conversation, Actor) and self.directory.knows(run.conversation)

    def asker(self) -> Envelope | None:
        """Return the run of this runtime in whose context this code runs: another runtime's is an outsider here."""
        asker = waiter()
        return asker if asker is not None and self.owns(asker) else None

    @contextmanager
    def guard(self, run: Envelope, *, to_end: bool = False, owned: bool = False) -> Iterator[None]:
        """Let the run in whose context this is called wait for `run`: for its reply, or for its last event.

        Raises: `ReentrantRun`, if it would never come (R14).
        """
        asker = waiter()
        wait = Wait(run, to_end, owned)
        if asker is None or wait.over or run.conversation is None:
            yield
            return
        refuse_cycle(asker, run.conversation, lends=self.owns(asker))
        with self.waiting(asker, wait):
            yield

    def own(self, run: Envelope) -> Awaitable[RunResult]:
        """Return what waits for an accepted run as its owner, and as the run in whose context this is called, if any.

        Cancellation: aborts the run, cause `caller`, and goes on when it is over, unless it never began (R7).
        """
        asker = waiter()
        return run.own() if asker is None else self._own_from(asker, run)

    @trio.lowlevel.enable_ki_protection
    async def _own_from(self, asker: Envelope, run: Envelope) -> RunResult:
        with self.waiting(asker, Wait(run, owned=True)):
            return await run.own()

    @contextmanager
    @trio.lowlevel.enable_ki_protection
    def waiting(self, asker: Envelope, wait: Wait) -> Iterator[None]:
        """Return a block in which `asker` waits and lends its slot to what it waits for (R4)."""
        asker.waits_for.append(wait)
        child = wait.child
        if child is not None:
            child.owner = asker
        if self.owns(asker) and not wait.target.over:
            wait.lent = True
            self.turns.lend(wait.target)
            self.admission.let_in(wait.target.conversation)
        try:
            yield
        finally:
            asker.waits_for.remove(wait)
            if child is not None:
                child.owner = None
            if wait.lent:
                wait.lent = False
                self.turns.unlend(wait.target)

    # --- the end ----------------------------------------------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    async def drain(self, grace: float) -> DrainReport:
        """As `Runtime.drain`.

        Cancellation: the runtime stays closed for new asks; runs go on until the block ends.
        """
        self._refuse_drain()
        life = self.life
        if life.state in ("open", "closing"):
            life.state = "draining"
        over, shut_down = life.over, life.shut_down
        with trio.move_on_after(grace):
            await life.wait_quiet()
        life.close("the runtime was drained")
        if life.live:
            self._limits.hurry_up(grace)
            await self._abort_all()
            await life.wait_quiet()
        life.settle()
        life.drained.set()
        aborted = life.shut_down - shut_down
        return DrainReport(life.over - over - aborted, aborted)

    def _refuse_drain(self) -> None:
        """Refuse a drain inside a run of this runtime, or inside one of another that such a run waits for."""
        asker = waiter()
        if asker is None:
            return
        if self.owns(asker):
            assert asker.conversation is not None
            label = asker.conversation.label
            raise ReentrantRun((label, "drain", label))
        for actor in self.directory:
            refuse_cycle(asker, actor)

    def shut_down(self, reason: str) -> None:
        """Accept nothing more and abort everything, cause `shutdown`. Synchronous: the aborting has a task."""
        life = self.life
        if life.state == "closed" and life.finished.is_set():
            return
        life.close(reason)
        if self._limits.hurry is None:
            self._limits.hurry_up(SHUTDOWN_GRACE)
        if life.live and self._nursery is not None:
            self._nursery.start_soon(self._abort_all)
        life.settle()

    async def close(self) -> None:
        """Accept only what runs still make, and wait for every accepted run.

        Raises: `ReentrantRun` inside a run of another runtime that a run of this one waits for.

        Cancellation: the runtime stays closed for new asks.
        """
        life = self.life
        life.left = True
        if life.state == "open":  # a drain goes on
            life.state = "closing"
        life.settle()
        asker = waiter()
        if asker is not None:
            for actor in self.directory:
                refuse_cycle(asker, actor)
        await life.finished.wait()

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """Return a block in which the user's block is left, in whatever way: a run that does so waits for all runs."""
        asker = waiter()
        if asker is None:
            yield
            return
        wait = WaitForAll(lambda: [actor for actor in self.directory if actor.current is not None])
        asker.waits_for.append(wait)
        try:
            yield
        finally:
            asker.waits_for.remove(wait)

    def _start_beside(self, task: Callable[..., Awaitable[None]], *args: Any) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(task, *args)

    @trio.lowlevel.enable_ki_protection
    async def _abort_all(self) -> None:
        self.afterwards.hurry(trio.current_time() + (self._limits.hurry or 0))
        self.admission.hurried = True
        envelopes = [envelope for actor in self.directory for envelope in actor.envelopes()]
        envelopes += self._invoked
        for index, envelope in enumerate(envelopes, 1):
            if isinstance(envelope, Envelope):
                envelope.request_abort("shutdown", self.life.reason)
            else:
                envelope.scope.deadline = trio.current_time() + (self._limits.hurry or 0)
            if index % ABORT_BATCH == 0:
                await trio.lowlevel.cancel_shielded_checkpoint()

    def _report_fatal(self, fatal: BaseException) -> None:
        """What ends the program came out of a run: end everything; the host raises it at its end."""
        if self.life.fatal is None:
            self.life.fatal = fatal
        self.shut_down(f"{type(fatal).__name__} in a run")

    # --- the tasks beside the user's block --------------------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    async def host(self) -> None:
        """Keep the runs' nursery, shielded, until the runtime is closed and nothing is left."""
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._hosted.set()
                await self.life.finished.wait()
        if self.life.fatal is not None:
            raise self.life.fatal

    async def wait_hosted(self) -> None:
        """Wait until runs have a nursery."""
        await self._hosted.wait()

    @trio.lowlevel.enable_ki_protection
    async def watch(self) -> None:
        """Sleep until the outer nursery is cancelled; then abort every run. Nothing is caught."""
        try:
            await trio.sleep_forever()
        finally:
            self.shut_down("the runtime was cancelled")

    @trio.lowlevel.enable_ki_protection
    async def sweep(self) -> None:
        """Forget idle conversations as their time runs out."""
        await self.directory.sweep()


async def _work_turn(job: Job) -> None:
    try:
        with job.scope:
            await job.work()
        if job.scope.cancelled_caught:
            job.error = RuntimeClosed(f"the runtime shut down before the conversation's turn to {job.phase} was over")
    except Exception as error:  # noqa: BLE001  # handed to whoever waits for the job
        job.error = error
    finally:
        job.done.set()
