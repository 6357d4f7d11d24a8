"""`Runtime`: the doors, acceptance, turns, limits, drain, `statistics()`.

Floor 8. A *host* task keeps the runs' nursery inside a shield until the runtime is closed and no run is left; a
*watcher* turns an outer cancellation into an abort of every run. `_open.py` puts them beside the user's block.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import Any, Literal, final

import attrs
import trio
from trio_util import AsyncBool

from ._agent import Agent, check_seconds, output_schema
from ._arguments import check_ask, checked_id, hint
from ._conversation import Actor, Turns
from ._directory import Directory, Entry, with_subagents
from ._facade import Conversation, StreamBlock
from ._journal import RunJournal
from ._mailbox import Job, Run, Wait, current_run
from ._panel import Panel, snapshots
from ._run import RunOptions, execute_run, make_work
from ._supervisor import ObserverLimits, supervise
from ._threads import ConversationThreads, ToolThreads
from ._tools import invoke
from ._waits import refuse_cycle, waiter
from ._work import Health
from .abc import Change, Store
from .errors import ConfigError, ConversationBusy, MailboxFull, ReentrantRun, RunAborted, RuntimeClosed
from .tools import ToolOutcome
from .values import DrainReport, Memory, Outcome, Page, RunResult, RuntimeStatistics

__all__ = ["Runtime"]

ABORT_BATCH = 250  # of a mass abort: bounds how long the loop stands still (measured: 0.33 s without for 10,000)
RESUMED = "(resume)"  # the ask of an episode that takes up waiting calls, as observers see it
SHUTDOWN_GRACE = 10.0  # R11: seconds for an unbounded observer at a shutdown without a drain


@final
class Runtime:
    """Runs the conversations of some agents. Made by `open_runtime` or `serve_runtime`."""

    def __init__(
        self,
        agents: tuple[Agent[Any], ...],
        store: Store,
        max_running: int | None,
        mailbox_capacity: int,
        max_waiting: int | None,
        finish_timeout: float | None,
        idle_timeout: float | None,
    ) -> None:
        self._directory = Directory(with_subagents(agents), math.inf if idle_timeout is None else idle_timeout)
        # The agent that an ask means that names none: sub-agents came along, nobody gave them.
        self._only = agents[0].name if len(agents) == 1 else None
        self.store = store
        self._mailbox_capacity = mailbox_capacity
        self._max_waiting = max_waiting
        self._finish_timeout = finish_timeout
        self._plain = RunOptions(finish_timeout=finish_timeout)
        self._limits = ObserverLimits(finish_timeout)
        self._threads = ToolThreads()
        self._turns = Turns(max_running, self._start)
        self._nursery: trio.Nursery | None = None
        # Run ids are unique across processes, forked ones too, without asking the system for randomness each time.
        self._ids = map(f"run-{os.urandom(6).hex()}-{{:x}}".format, itertools.count(1))
        # open: accepts. draining: accepts what runs make and wait for; closing: what they make. closed: nothing.
        self._state: Literal["open", "draining", "closing", "closed"] = "open"
        # True once the user's block has ended: then the runtime is over as soon as nothing is live.
        self._left = False
        self._reason = ""
        self._fatal: BaseException | None = None
        # Invariant: _live counts the envelopes accepted and not over; a drain watches _quiet, true while it is 0.
        self._live = 0
        self._quiet: AsyncBool | None = None
        # What calls a tool without a conversation. Counted in _live.
        self._invoked: set[Run] = set()
        self._hosted = trio.Event()
        self._finished = trio.Event()
        self._drained = trio.Event()
        self._accepted = self._running = 0
        self._ended = {"completed": 0, "stopped": 0, "error": 0, "aborted": 0}
        self._shut_down = 0

    def __repr__(self) -> str:
        return f"<Runtime {self._state} agents={list(self._directory.entries)} live={self._live}>"

    @property
    def agents(self) -> tuple[Agent[Any], ...]:
        """The agents whose conversations this runtime holds, in the order in which they were given."""
        return tuple([entry.agent for entry in self._directory.entries.values()])

    # --- doors ------------------------------------------------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection  # as the waits of a `Run`
    async def run(
        self,
        ask: str,
        *,
        conversation_id: str | None = None,
        agent: str | Agent[Any] | None = None,
        context: Any = None,
        timeout: float | None = None,
        confirm: Callable[..., Any] | None = None,
        confirm_timeout: float | None = None,
        output: Any = None,
        on_event: Callable[[Any], object] | None = None,
        when_busy: Literal["queue", "refuse", "replace"] = "queue",
    ) -> RunResult:
        """Ask a conversation and wait for the result.

        Arguments:
          ask: what the user says.
          conversation_id: any string that is not blank, at most 512 characters; None is the agent's default one.
          agent: its name or the agent itself; may be left out if the runtime has only one.
          context: the application's object, given to hooks and tools as it is.
          timeout: seconds from now to the end of the run, time spent in confirmations left out.
          confirm, confirm_timeout, output: in place of the agent's.
          on_event: called with every event, after the agent's own callback.
          when_busy: "queue" (default), "refuse" (raise `ConversationBusy`) or "replace" (abort what runs and go next).

        Returns: the result, `completed` or `stopped`.

        Raises: `MailboxFull`, `ConversationBusy`, `RuntimeClosed`, `ReentrantRun` or `ConfigError` before anything
        has happened; `RunAborted` if the run was ended by somebody else; application errors as the same object.

        Cancellation: aborts the run (cause `caller`) and goes on only when its observers were told; while it is
        queued, at once: then its observers are told at its turn.
        """
        await self.notice()
        run = self._accept(
            ask,
            conversation_id,
            agent,
            context,
            timeout,
            self._options(confirm, confirm_timeout, output),
            on_event,
            when_busy,
            waits=True,
        )
        return await self._own(run)

    async def _own(self, run: Run) -> RunResult:
        asker = waiter()
        if asker is None:
            return await run.own()
        with self._waiting(asker, Wait(run, owned=True)):
            return await run.own()

    def submit(
        self,
        ask: str,
        *,
        conversation_id: str | None = None,
        agent: str | Agent[Any] | None = None,
        context: Any = None,
        timeout: float | None = None,
        confirm: Callable[..., Any] | None = None,
        confirm_timeout: float | None = None,
        output: Any = None,
        on_event: Callable[[Any], object] | None = None,
        when_busy: Literal["queue", "refuse", "replace"] = "queue",
    ) -> Run:
        """Ask a conversation without waiting. Arguments and refusals as `run`.

        Returns: the `Run`: nobody owns it, and it goes on whoever waits or leaves.
        """
        return self._accept(
            ask,
            conversation_id,
            agent,
            context,
            timeout,
            self._options(confirm, confirm_timeout, output),
            on_event,
            when_busy,
            waits=False,
        )

    def stream(
        self,
        ask: str,
        *,
        conversation_id: str | None = None,
        agent: str | Agent[Any] | None = None,
        context: Any = None,
        timeout: float | None = None,
        confirm: Callable[..., Any] | None = None,
        confirm_timeout: float | None = None,
        output: Any = None,
        on_event: Callable[[Any], object] | None = None,
        when_busy: Literal["queue", "refuse", "replace"] = "queue",
    ) -> StreamBlock:
        """Ask a conversation for the length of an `async with` block, whose value is the `Run`.

        The ask is accepted on entering. Arguments and refusals as `run`.

        Cancellation: leaving the block before the run is over aborts it (cause `caller`), as cancelling `run` does.
        """
        return StreamBlock(
            lambda: self._accept(
                ask,
                conversation_id,
                agent,
                context,
                timeout,
                self._options(confirm, confirm_timeout, output),
                on_event,
                when_busy,
                waits=True,
            ),
            self.notice,
        )

    def conversation(self, conversation_id: str | None = None, agent: str | Agent[Any] | None = None) -> Conversation:
        """Return one conversation's doors.

        Raises: `ConfigError` for a bad id or an unknown agent.
        """
        entry = self._entry(agent)
        return Conversation(self, entry.agent, checked_id(conversation_id))

    @trio.lowlevel.enable_ki_protection
    async def invoke_tool(
        self,
        name: str,
        input: Mapping[str, Any],
        *,
        agent: str | Agent[Any] | None = None,
        context: Any = None,
        confirm: Callable[..., Any] | None = None,
    ) -> ToolOutcome:
        """Call one tool through the same gate as a run: validation, `before_tool`, confirmation, `after_tool` (H12).

        Returns: how it went; a denial or a refusal is an outcome, not an error.

        Raises: `ConfigError` for an unknown tool, `ToolInputError` for arguments that do not fit its schema,
        `GoliathExtensionError`, `RuntimeClosed`; `RunAborted` (cause `shutdown`) if the runtime ended it.

        Cancellation: the tool unwinds; a write that had begun may have happened. The runtime's block, and a drain, wait
        for it as for a run.
        """
        await self.notice()
        entry = self._entry(agent)
        if self._state not in ("open", "draining") and self._asker() is None:
            raise self._closed()
        tools = entry.agent.tool_table
        if name not in tools:
            known = f"{hint(name, tools)} (it has {_listed(tools)})"
            raise ConfigError(f"agent {entry.agent.name!r} has no tool {name!r}{known}")
        options = RunOptions(confirm, finish_timeout=self._finish_timeout)
        run = self._make_run(entry, None, f"invoke {name}", context, math.inf, options, None)
        run.journal.callbacks = ()  # there is no run, so there are no events of one; hooks are asked all the same
        panel = self._panel(entry, run)
        threads = ConversationThreads(self._threads)
        work = make_work(entry.agent, run, panel, self.store, entry.key(None), Health(), threads, self)
        with self._invoking(run), run.scope:
            return await _interruptibly(invoke, work, name, input)
        error = run.early_reply
        assert isinstance(error, RunAborted)
        raise error

    @contextmanager
    @trio.lowlevel.enable_ki_protection
    def _invoking(self, run: Run) -> Iterator[None]:
        self._invoked.add(run)
        self._enter()
        try:
            yield
        finally:
            self._invoked.discard(run)
            self._leave()

    @trio.lowlevel.enable_ki_protection
    async def drain(self, grace: float) -> DrainReport:
        """Refuse new asks, wait up to `grace` seconds for the accepted ones, abort the rest.

        Asks that a run makes and waits for are accepted until the grace is over.

        Returns: how many runs finished by themselves and how many were aborted.

        Raises: `ReentrantRun` inside a run.

        Cancellation: the runtime stays closed for new asks; runs go on until the block ends.
        """
        check_seconds("drain(grace=...)", grace, zero=True, none=False)
        self._refuse_drain()
        if self._state in ("open", "closing"):
            self._state = "draining"
        ended, shut_down = sum(self._ended.values()), self._shut_down
        quiet = self._quiet = self._quiet or AsyncBool(not self._live)
        with trio.move_on_after(grace):
            await quiet.wait_value(True)
        self._close("the runtime was drained")
        if self._live:
            self._limits.hurry_up(grace)
            await self._abort_all()
            await quiet.wait_value(True)
        self._settle()
        self._drained.set()
        aborted = self._shut_down - shut_down
        return DrainReport(sum(self._ended.values()) - ended - aborted, aborted)

    def statistics(self) -> RuntimeStatistics:
        """Return the counts of this runtime, now."""
        self._directory.forget_idle()
        ended = self._ended
        waiting = self._accepted - self._running - sum(ended.values())
        return RuntimeStatistics(
            conversations=len(self._directory),
            running=self._running,
            waiting=waiting,
            accepted=self._accepted,
            completed=ended["completed"],
            stopped=ended["stopped"],
            errors=ended["error"],
            aborted=ended["aborted"],
        )

    async def notice(self) -> None:
        """Let a caller that is cancelled notice it before it is refused: what closed the runtime may be what cancelled
        the caller, who then is to see `Cancelled` and no error (R10). No checkpoint where asks are accepted (R2)."""
        if self._state != "closed":
            return
        asker = self._asker()
        if asker is not None:  # a run: its turn in the abort of all may be yet to come
            asker.request_abort("shutdown", self._reason)
        await trio.lowlevel.checkpoint_if_cancelled()

    # --- accepting: decide synchronously ----------------------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    def _accept(
        self,
        ask: str,
        conversation_id: str | None,
        agent: str | Agent[Any] | None,
        context: Any,
        timeout: float | None,
        options: RunOptions,
        on_event: Callable[[Any], object] | None,
        when_busy: str,
        *,
        waits: bool,
    ) -> Run:
        """Accept or refuse, before any checkpoint (R2). A refused ask leaves no trace."""
        entry = self._entry(agent)
        checked_id(conversation_id)
        check_ask(ask, options, on_event, when_busy)
        check_seconds("timeout", timeout, zero=True)
        asker = waiter()
        if self._state != "open":
            self._refuse_late(waits=waits)
        actor = entry.actors.get(conversation_id)
        if actor is not None:
            if asker is not None and waits:
                refuse_cycle(asker, actor)
            if actor.current is not None:
                if when_busy == "refuse":
                    raise ConversationBusy(conversation_id)
                if when_busy == "queue" and actor.waiting >= self._mailbox_capacity:
                    raise MailboxFull("conversation", actor.waiting, self._mailbox_capacity)
        self._refuse_waiting(actor, when_busy)
        actor = self._directory.make(entry, conversation_id)
        deadline = math.inf if timeout is None else trio.current_time() + timeout
        run = self._make_run(entry, conversation_id, ask, context, deadline, options, on_event)
        run.conversation = actor
        self._accepted += 1
        self._enter()
        if when_busy == "replace" and actor.current is not None:
            self._replace(actor, run)
        if options.answers is None and options.rewrite is None:
            self._supersede(actor, asker)
        self._post(actor, run)
        # Last, since a callback may do anything: ask, abort, raise what is no `Exception`.
        told = False
        try:
            run.journal.queue()
            told = True
        finally:
            if not told:  # nobody will get this run, so nobody could end it
                run.request_abort("caller")
        return run

    @staticmethod
    def _supersede(actor: Actor, asker: Run | None) -> None:
        """A message came: a question that the conversation's run has asked, or one that it has asked for an answer, is
        denied (§P). Messages of runs deny nothing."""
        if asker is not None or not isinstance(actor.current, Run):
            return
        asking = [actor.current]
        for run in asking:  # grows: nobody waits in a circle (R14)
            run.journal.supersede()
            asking += [wait.target for wait in run.waits_for if wait.owned and isinstance(wait.target, Run)]

    def _post(self, actor: Actor, envelope: Run | Job) -> None:
        if actor.post(envelope, next_turn=isinstance(envelope, Run) and envelope.replaces):
            self._directory.busy(actor)
            self._turns.ready(actor)

    def _options(self, confirm: Callable[..., Any] | None, confirm_timeout: float | None, output: Any) -> RunOptions:
        if confirm is None and confirm_timeout is None and output is None:
            return self._plain
        return RunOptions(confirm, confirm_timeout, output_schema(output), self._finish_timeout)

    def _asker(self) -> Run | None:
        """Return the run of this runtime in whose context this code runs: another runtime's is an outsider here."""
        asker = waiter()
        return asker if asker is not None and self._owns(asker) else None

    def _owns(self, run: Run) -> bool:
        return run.conversation is not None and self._directory.knows(run.conversation)

    def _refuse_late(self, *, waits: bool) -> None:
        """Refuse an ask that comes after the runtime began to close, but for those that its runs may still make."""
        if not (self._state == "closing" or (self._state == "draining" and waits)) or self._asker() is None:
            raise self._closed()

    def _refuse_drain(self) -> None:
        """Refuse a drain inside a run of this runtime, or inside one of another that such a run waits for."""
        asker = waiter()
        if asker is None:
            return
        if self._owns(asker):
            label = asker.conversation.label
            raise ReentrantRun((label, "drain", label))
        for actor in self._directory:
            refuse_cycle(asker, actor)

    def _closed(self) -> RuntimeClosed:
        words = {"draining": "drains", "closing": "is closing", "closed": "is closed", "open": "is open"}
        return RuntimeClosed(f"the runtime {words[self._state]} and accepts no new asks; open another one")

    def _refuse_waiting(self, actor: Actor | None, when_busy: str) -> None:
        if self._max_waiting is None or when_busy == "replace":
            return
        waiting = self._accepted - self._running - sum(self._ended.values())
        if waiting < self._max_waiting:
            return
        if actor is not None and actor.current is not None:
            starts = False
        elif actor is not None:
            starts = self._turns.would_start(actor)
        else:
            starts = self._turns.limit is None or self._turns.running < self._turns.limit
        if not starts:
            raise MailboxFull("runtime", waiting, self._max_waiting)

    @staticmethod
    def _replace(actor: Actor, run: Run) -> None:
        run.replaces = True
        earlier = None if actor.mailbox is None else actor.mailbox.replacement
        for other in (actor.current, earlier):
            if isinstance(other, Run):
                other.request_abort("requested", "replaced by a newer ask")

    def _make_run(
        self,
        entry: Entry,
        conversation_id: str | None,
        ask: str,
        context: Any,
        deadline: float,
        options: RunOptions,
        on_event: Callable[[Any], object] | None,
    ) -> Run:
        run_id = next(self._ids)
        first = entry.agent.on_event
        callbacks = tuple([callback for callback in (first, on_event) if callback is not None])
        return Run(
            run_id,
            conversation_id,
            ask,
            context,
            options,
            RunJournal(run_id, conversation_id, callbacks),
            self._guard,
            copy_context(),
            trio.current_time(),
            deadline,
            trio.CancelScope(deadline=deadline),
        )

    def _entry(self, agent: str | Agent[Any] | None) -> Entry:
        if agent is None:
            if self._only is not None:
                return self._directory.entries[self._only]
            raise ConfigError(
                f"this runtime has several agents; say agent=... (one of {_listed(self._directory.entries)})"
            )
        name = agent.name if isinstance(agent, Agent) else agent
        entry = self._directory.entries.get(name) if isinstance(name, str) else None
        if entry is not None and isinstance(agent, Agent) and entry.agent is not agent:
            entry = None  # another one of the same name
        if entry is None:
            known = f"{hint(agent, self._directory.entries)} (it has {_listed(self._directory.entries)})"
            raise ConfigError(f"no agent {agent!r} in this runtime{known}")
        return entry

    # --- turns ------------------------------------------------------------------------------------------------------

    def _start(self, actor: Actor) -> None:
        """Start the task of the actor's head, in that envelope's own context (R5)."""
        envelope = actor.current
        assert envelope is not None
        assert self._nursery is not None
        if isinstance(envelope, Run):
            self._running += 1  # it has its turn from here on, though its task takes its first step a tick later
        start = self._nursery.start_soon
        context, envelope.context_vars = envelope.context_vars, None
        assert context is not None
        context.run(lambda: start(self._turn, actor, envelope, name=actor.label))

    @trio.lowlevel.enable_ki_protection
    async def _turn(self, actor: Actor, envelope: Run | Job) -> None:
        try:
            if isinstance(envelope, Run):
                await self._run_turn(actor, envelope)
            else:
                current_run.set(None)
                await _work_turn(envelope)
        finally:
            self._over(actor, envelope)

    async def _run_turn(self, actor: Actor, run: Run) -> None:
        current_run.set(run)
        entry: Entry = actor.entry
        panel = self._panel(entry, run)
        run.snapshots = partial(snapshots, panel.roster, panel.journal)  # no way to the panel: it knows the run
        execute = partial(
            execute_run,
            entry.agent,
            run,
            panel,
            self.store,
            entry.key(actor.conversation_id),
            actor.health,
            actor.threads(self._threads),
            self,
        )
        try:
            await supervise(run, execute, panel, self._limits, self._report_fatal)
        finally:
            panel.close()
            self._running -= 1
            self._count(run.outcome)

    def _panel(self, entry: Entry, run: Run) -> Panel:
        def submit(ask: str, **options: Any) -> Run:
            """As `submit`, to this run's own agent where none is named."""
            return self.submit(ask, **{"agent": entry.agent, **options})

        return Panel(
            entry.agent.roster,
            run.journal,
            run.ask,
            entry.agent.name,
            run.context,
            submit,
            lambda: run.abort_state is not None or run.scope.cancel_called,
        )

    def _count(self, outcome: Outcome | None) -> None:
        assert outcome is not None
        self._ended[outcome.status] += 1
        if outcome.abort is not None and outcome.abort.cause == "shutdown":
            self._shut_down += 1

    def _over(self, actor: Actor, envelope: Run | Job) -> None:
        """The head is over: the next envelope has its turn, or the conversation is idle."""
        for run in actor.follow():
            self._accepted += 1
            self._enter()
            run.journal.queue()
            if self._state == "closed":
                run.request_abort("shutdown", "the runtime was closed")
        more = actor.advance()
        self._turns.over(actor, envelope)
        if more:
            self._turns.ready(actor)
        else:
            self._directory.idle(actor)
        self._leave()

    def _enter(self) -> None:
        self._live += 1
        if self._quiet is not None:
            self._quiet.value = False

    def _leave(self) -> None:
        self._live -= 1
        if not self._live:
            if self._quiet is not None:
                self._quiet.value = True
            self._settle()

    def _settle(self) -> None:
        if (self._left or self._state == "closed") and not self._live:
            self._state = "closed"
            self._finished.set()

    # --- waits ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _guard(self, run: Run, *, to_end: bool = False) -> Iterator[None]:
        """Let the run in whose context this is called wait for `run`: for its reply, or for its last event."""
        asker = waiter()
        wait = Wait(run, to_end)
        if asker is None or wait.over:
            yield
            return
        refuse_cycle(asker, run.conversation)
        with self._waiting(asker, wait):
            yield

    @contextmanager
    @trio.lowlevel.enable_ki_protection
    def _waiting(self, asker: Run, wait: Wait) -> Iterator[None]:
        asker.waits_for.append(wait)
        if self._owns(asker) and not wait.target.over:
            wait.lent = True
            self._turns.lend(wait.target)
        try:
            yield
        finally:
            asker.waits_for.remove(wait)
            if wait.lent:
                wait.lent = False
                self._turns.unlend(wait.target)

    # --- handing a text to the running run (T7) ----------------------------------------------------------------------

    def steer(
        self,
        agent: Any,
        conversation_id: str | None,
        text: str,
        *,
        context: Any = None,
        timeout: float | None = None,
        confirm: Callable[..., Any] | None = None,
        confirm_timeout: float | None = None,
        output: Any = None,
        on_event: Callable[[Any], object] | None = None,
        when_busy: Literal["queue", "refuse", "replace"] = "queue",
    ) -> Run:
        """Hand a text to the running run, or accept it as a new one. Never blocks."""
        options = self._options(confirm, confirm_timeout, output)
        entry = self._entry(agent)
        actor = entry.actors.get(conversation_id)
        head = None if actor is None else actor.current
        takes = isinstance(head, Run) and head.state == "running" and not head.journal.answered
        if actor is None or not isinstance(head, Run) or not takes or head.abort_state is not None:
            return self._accept(
                text, conversation_id, agent, context, timeout, options, on_event, when_busy, waits=False
            )
        check_ask(text, options, on_event, when_busy)
        check_seconds("timeout", timeout, zero=True)
        if self._state != "open":
            self._refuse_late(waits=False)
        if actor.waiting >= self._mailbox_capacity:
            raise MailboxFull("conversation", actor.waiting, self._mailbox_capacity)
        deadline = math.inf if timeout is None else trio.current_time() + timeout
        own = head.context if context is None else context
        run = self._make_run(entry, conversation_id, text, own, deadline, options, on_event)
        run.conversation = actor
        self._supersede(actor, waiter())
        head.steers.append(run)
        return head

    # --- taking up what waits (T8) ----------------------------------------------------------------------------------

    def submit_resume(
        self,
        agent: Any,
        conversation_id: str | None,
        answers: Mapping[str, Any],
        *,
        context: Any = None,
        timeout: float | None = None,
        confirm: Callable[..., Any] | None = None,
        confirm_timeout: float | None = None,
        output: Any = None,
        on_event: Callable[[Any], object] | None = None,
        when_busy: Literal["queue", "refuse", "replace"] = "queue",
        waits: bool = False,
    ) -> Run:
        """Accept an episode that takes up waiting calls. As `submit`."""
        options = attrs.evolve(self._options(confirm, confirm_timeout, output), answers=dict(answers))
        return self._accept(
            RESUMED, conversation_id, agent, context, timeout, options, on_event, when_busy, waits=waits
        )

    async def resume(
        self, agent: Any, conversation_id: str | None, answers: Mapping[str, Any], **options: Any
    ) -> RunResult:
        """As `submit_resume`, and wait. As `run`.

        Cancellation: as of `run`.
        """
        return await self._own(self.submit_resume(agent, conversation_id, answers, waits=True, **options))

    def submit_rewrite(
        self,
        agent: Any,
        conversation_id: str | None,
        kind: Literal["regenerate"],
        *,
        context: Any = None,
        timeout: float | None = None,
        confirm: Callable[..., Any] | None = None,
        confirm_timeout: float | None = None,
        output: Any = None,
        on_event: Callable[[Any], object] | None = None,
        when_busy: Literal["queue", "refuse", "replace"] = "queue",
        waits: bool = False,
    ) -> Run:
        """Accept a run that rewrites a history and answers anew. As `submit`."""
        given = attrs.evolve(self._options(confirm, confirm_timeout, output), rewrite=kind)
        ask = f"({kind})"
        return self._accept(ask, conversation_id, agent, context, timeout, given, on_event, when_busy, waits=waits)

    async def rewrite(
        self, agent: Any, conversation_id: str | None, kind: Literal["regenerate"], **options: Any
    ) -> RunResult:
        """As `submit_rewrite`, and wait. As `run`.

        Cancellation: as of `run`.
        """
        return await self._own(self.submit_rewrite(agent, conversation_id, kind, waits=True, **options))

    # --- agents as tools (T14) --------------------------------------------------------------------------------------

    async def delegate(
        self, agent: Any, conversation_id: str, ask: str, context: Any, answers: Mapping[str, Any] | None
    ) -> tuple[str, Outcome]:
        """Run an agent for a tool of the run in whose context this is called. As `tools.Delegating`.

        Cancellation: as of `run`.
        """
        options = self._plain if answers is None else attrs.evolve(self._plain, answers=dict(answers))
        text = ask if answers is None else RESUMED
        run = self._accept(text, conversation_id, agent, context, None, options, None, "queue", waits=True)
        try:
            await self._own(run)
        except Exception:  # noqa: BLE001  # how it ended is in its outcome, whatever it raised
            if run.outcome is None:  # aborted while it was queued: its observers are told at its turn (R7)
                error = run.early_reply
                abort = run.abort_state
                return run.id, Outcome(
                    "aborted", None, error if isinstance(error, RunAborted) else None, "abort", abort
                )
        assert run.outcome is not None
        return run.id, run.outcome

    # --- what conversations read and write --------------------------------------------------------------------------

    def find(self, agent: Any, conversation_id: str | None) -> Actor | None:
        """Return the actor, if the conversation is in memory."""
        return self._entry(agent).actors.get(conversation_id)

    async def read_memory(self, agent: Any, conversation_id: str | None) -> Memory:
        """Return the stored memory."""
        record = await self.store.load(self._entry(agent).key(conversation_id))
        return record.memory

    async def read_history(self, agent: Any, conversation_id: str | None, **page: Any) -> Page:
        """Return a page of entries."""
        return await self.store.entries(self._entry(agent).key(conversation_id), **page)

    async def write_visibility(
        self, agent: Any, conversation_id: str | None, changes: Mapping[str, tuple[bool, bool]]
    ) -> None:
        """Change entries' visibility in one commit."""
        await self.store.commit(self._entry(agent).key(conversation_id), Change(visibility=dict(changes)))

    @trio.lowlevel.enable_ki_protection
    async def forget(self, agent: Any, conversation_id: str | None) -> None:
        """Abort what the conversation has, then delete its record, as a turn of its own."""
        await self.notice()
        job = self._post_forget(self._entry(agent), conversation_id)
        asker = waiter()
        if asker is None:
            await job.done.wait()
        else:
            with self._waiting(asker, Wait(job)):
                await job.done.wait()
        if job.error is not None:
            raise job.error

    @trio.lowlevel.enable_ki_protection
    def _post_forget(self, entry: Entry, conversation_id: str | None) -> Job:
        if self._state == "closed" or (self._state != "open" and self._asker() is None):
            raise self._closed()
        actor = self._directory.make(entry, conversation_id)
        asker = waiter()
        if asker is not None:
            refuse_cycle(asker, actor)
        for run in actor.runs():
            run.request_abort("requested", "the conversation was forgotten")
        job = Job(partial(self.store.forget, entry.key(conversation_id)), actor, copy_context())
        self._enter()
        self._post(actor, job)
        return job

    # --- the skeleton -----------------------------------------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    async def host(self) -> None:
        """Keep the runs' nursery, shielded, until the runtime is closed and nothing is left."""
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._hosted.set()
                await self._finished.wait()
        if self._fatal is not None:
            raise self._fatal

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
        await self._directory.sweep()

    def shut_down(self, reason: str) -> None:
        """Accept nothing more and abort everything, cause `shutdown`. Synchronous: the aborting has a task."""
        if self._state == "closed" and self._finished.is_set():
            return
        self._close(reason)
        if self._limits.hurry is None:
            self._limits.hurry_up(SHUTDOWN_GRACE)
        if self._live and self._nursery is not None:
            self._nursery.start_soon(self._abort_all)
        self._settle()

    def _close(self, reason: str) -> None:
        self._state = "closed"
        self._reason = self._reason or reason

    async def close(self) -> None:
        """Accept only what runs still make, and wait for every accepted run."""
        self._left = True
        if self._state == "open":  # a drain goes on
            self._state = "closing"
        self._settle()
        await self._finished.wait()

    async def wait_drained(self) -> None:
        """Wait until a drain is over."""
        await self._drained.wait()

    @trio.lowlevel.enable_ki_protection
    async def _abort_all(self) -> None:
        envelopes = [envelope for actor in self._directory for envelope in actor.envelopes()]
        envelopes += self._invoked
        for index, envelope in enumerate(envelopes, 1):
            if isinstance(envelope, Run):
                envelope.request_abort("shutdown", self._reason)
            else:
                envelope.scope.deadline = trio.current_time() + (self._limits.hurry or 0)
            if index % ABORT_BATCH == 0:
                await trio.lowlevel.cancel_shielded_checkpoint()

    def _report_fatal(self, fatal: BaseException) -> None:
        """What ends the program came out of a run: end everything; the host raises it at its end."""
        if self._fatal is None:
            self._fatal = fatal
        self.shut_down(f"{type(fatal).__name__} in a run")


@trio.lowlevel.disable_ki_protection  # an application's code, as in execute_run
async def _interruptibly(function: Callable[..., Awaitable[ToolOutcome]], *args: Any) -> ToolOutcome:
    return await function(*args)


async def _work_turn(job: Job) -> None:
    try:
        with job.scope:
            await job.work()
        if job.scope.cancelled_caught:
            job.error = RuntimeClosed("the runtime shut down before the store had forgotten the conversation")
    except Exception as error:  # noqa: BLE001  # handed to whoever waits for the job
        job.error = error
    finally:
        job.done.set()


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, names)) or "none"
