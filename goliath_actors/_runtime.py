"""`open_runtime`: the nursery, the directory of conversations, limits, drain, `statistics()`.

Floor 8, the roof. The supervision skeleton: an outer nursery holds a *host* task, which keeps the runs' nursery inside
a shield until the runtime is closed and no run is left, and a *watcher*, which turns an outer cancellation into an
abort of every run. The user's block lies beside them, unshielded.
"""

from __future__ import annotations

import itertools
import math
import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import copy_context
from functools import partial
from typing import Any, Literal, final
from urllib.parse import quote

import attrs
import trio
from trio_util import AsyncBool

from ._agent import Agent, check_seconds, output_schema
from ._conversation import Actor, Turns
from ._facade import Conversation, StreamBlock
from ._journal import RunJournal, leaves
from ._lifespans import closing, hold_all, lifespans
from ._mailbox import Job, Run, current_run
from ._panel import Panel
from ._run import RunOptions, execute_run, make_work
from ._supervisor import ObserverLimits, supervise
from ._threads import ConversationThreads, ToolThreads
from ._tools import invoke
from ._waits import refuse_cycle, waiter
from ._work import Health
from .abc import Change, Store
from .errors import ConfigError, ConversationBusy, MailboxFull, ReentrantRun, RuntimeClosed
from .stores import InMemoryStore
from .tools import ToolOutcome
from .values import DrainReport, Memory, Outcome, Page, RunResult, RuntimeStatistics

__all__ = ["Runtime", "open_runtime", "serve_runtime"]

MAX_ID = 512  # R1
ABORT_BATCH = 250  # of a mass abort: bounds how long the loop stands still (measured: 0.33 s without for 10,000)
SHUTDOWN_GRACE = 10.0  # R11: seconds for an unbounded observer at a shutdown without a drain

# Run ids are unique across processes without asking the system for randomness each time.
_PREFIX = os.urandom(6).hex()
_NUMBERS = itertools.count(1)


@attrs.frozen(eq=False)
class _Entry:
    """An agent within this runtime."""

    agent: Agent[Any]
    prefix: str
    index: int

    def key(self, conversation_id: str | None) -> str:
        """Return the store's key: the agent's name, escaped so that it holds no slash, then the id as given."""
        return self.prefix if conversation_id is None else f"{self.prefix}/{conversation_id}"


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
        self._entries = {
            agent.name: _Entry(agent, quote(agent.name, safe=""), index) for index, agent in enumerate(agents)
        }
        self._store = store
        self._mailbox_capacity = mailbox_capacity
        self._max_waiting = max_waiting
        self._finish_timeout = finish_timeout
        self._idle_timeout = math.inf if idle_timeout is None else idle_timeout
        self._limits = ObserverLimits(finish_timeout)
        self._threads = ToolThreads()
        self._turns = Turns(max_running, self._start)
        self._actors: dict[tuple[int, str | None], Actor] = {}
        # Idle actors, longest idle first.
        self._idle: OrderedDict[Actor, None] = OrderedDict()
        self._idle_added = trio.Event()
        self._nursery: trio.Nursery | None = None
        # open: accepts. draining, closing: accepts what runs make. closed: accepts nothing.
        self._state: Literal["open", "draining", "closing", "closed"] = "open"
        self._fatal: BaseException | None = None
        # Invariant: _live counts the envelopes accepted and not over; _quiet is true exactly while it is 0.
        self._live = 0
        self._quiet = AsyncBool(True)
        self._finished = trio.Event()
        self._drained = trio.Event()
        self._accepted = self._running = 0
        self._ended = {"completed": 0, "stopped": 0, "error": 0, "aborted": 0}
        self._shut_down = 0

    def __repr__(self) -> str:
        return f"<Runtime {self._state} agents={list(self._entries)} live={self._live}>"

    # --- doors ------------------------------------------------------------------------------------------------------

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
        run = self._accept(
            ask,
            conversation_id,
            agent,
            context,
            timeout,
            RunOptions(confirm, confirm_timeout, output_schema(output), self._finish_timeout),
            on_event,
            when_busy,
            waits=True,
        )
        asker = waiter()
        if asker is None:
            return await run.own()
        with self._waiting(asker, run):
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
            RunOptions(confirm, confirm_timeout, output_schema(output), self._finish_timeout),
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
                RunOptions(confirm, confirm_timeout, output_schema(output), self._finish_timeout),
                on_event,
                when_busy,
                waits=True,
            )
        )

    def conversation(self, conversation_id: str | None = None, agent: str | Agent[Any] | None = None) -> Conversation:
        """Return one conversation's doors.

        Raises: `ConfigError` for a bad id or an unknown agent.
        """
        entry = self._entry(agent)
        return Conversation(self, entry.agent, _checked_id(conversation_id))

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
        `GoliathExtensionError`, `RuntimeClosed`.

        Cancellation: the tool unwinds; a write that had begun may have happened.
        """
        entry = self._entry(agent)
        if self._state not in ("open", "draining") and waiter() is None:
            raise self._closed()
        if name not in entry.agent.tool_table:
            raise ConfigError(
                f"agent {entry.agent.name!r} has no tool {name!r} (it has {_listed(entry.agent.tool_table)})"
            )
        options = RunOptions(confirm, finish_timeout=self._finish_timeout)
        run = self._make_run(entry, None, f"invoke {name}", context, math.inf, options, None)
        panel = self._panel(entry, run)
        threads = ConversationThreads(self._threads)
        work = make_work(entry.agent, run, panel, self._store, entry.key(None), Health(), threads)
        with run.scope:
            return await invoke(work, name, input)
        raise AssertionError("unreachable: nobody else has this scope")  # pragma: no cover

    async def drain(self, grace: float) -> DrainReport:
        """Refuse new asks, wait up to `grace` seconds for the accepted ones, abort the rest.

        Asks that a run makes and waits for are accepted until the grace is over.

        Returns: how many runs finished by themselves and how many were aborted.

        Raises: `ReentrantRun` inside a run.

        Cancellation: the runtime stays closed for new asks; runs go on until the block ends.
        """
        check_seconds("drain(grace=...)", grace, zero=True)
        asker = waiter()
        if asker is not None:
            label = asker.conversation.label
            raise ReentrantRun((label, "drain", label))
        if self._state == "open":
            self._state = "draining"
        ended, shut_down = sum(self._ended.values()), self._shut_down
        with trio.move_on_after(grace):
            await self._quiet.wait_value(True)
        if self._state == "draining":
            self._state = "closed"
        if self._live:
            self._limits.hurry_up(grace)
            await self._abort_all("the runtime was drained")
            await self._quiet.wait_value(True)
        self._settle()
        self._drained.set()
        aborted = self._shut_down - shut_down
        return DrainReport(sum(self._ended.values()) - ended - aborted, aborted)

    def statistics(self) -> RuntimeStatistics:
        """Return the counts of this runtime, now."""
        self._forget_idle()
        ended = self._ended
        waiting = self._accepted - self._running - sum(ended.values())
        return RuntimeStatistics(
            conversations=len(self._actors),
            running=self._running,
            waiting=waiting,
            accepted=self._accepted,
            completed=ended["completed"],
            stopped=ended["stopped"],
            errors=ended["error"],
            aborted=ended["aborted"],
        )

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
        _checked_id(conversation_id)
        _check_ask(ask, options, on_event, when_busy)
        check_seconds("timeout", timeout, zero=True)
        asker = waiter()
        if self._state != "open":
            self._refuse_late(asker, waits=waits)
        self._forget_idle()
        place = (entry.index, conversation_id)
        actor = self._actors.get(place)
        if actor is not None:
            if asker is not None and waits:
                refuse_cycle(asker, actor)
            if actor.current is not None:
                if when_busy == "refuse":
                    raise ConversationBusy(conversation_id)
                if when_busy == "queue" and actor.waiting >= self._mailbox_capacity:
                    raise MailboxFull("conversation", actor.waiting, self._mailbox_capacity)
        self._refuse_waiting(actor, when_busy)
        if actor is None:
            actor = self._actors[place] = Actor(entry, conversation_id)
        deadline = math.inf if timeout is None else trio.current_time() + timeout
        run = self._make_run(entry, conversation_id, ask, context, deadline, options, on_event)
        run.conversation = actor
        self._accepted += 1
        self._enter()
        if when_busy == "replace" and actor.current is not None:
            self._replace(actor, run)
        run.journal.queue()
        if actor.post(run, next_turn=run.replaces):
            self._idle.pop(actor, None)
            self._turns.ready(actor)
        return run

    def _refuse_late(self, asker: Run | None, *, waits: bool) -> None:
        """Refuse an ask that comes after the runtime began to close, but for those that its runs may still make."""
        accepts = asker is not None and (self._state == "closing" or (self._state == "draining" and waits))
        if not accepts:
            raise self._closed()

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
        for other in actor.runs():
            if other is actor.current or other.replaces:
                other.request_abort("requested", "replaced by a newer ask")

    def _make_run(
        self,
        entry: _Entry,
        conversation_id: str | None,
        ask: str,
        context: Any,
        deadline: float,
        options: RunOptions,
        on_event: Callable[[Any], object] | None,
    ) -> Run:
        run_id = f"run-{_PREFIX}-{next(_NUMBERS):x}"
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

    def _entry(self, agent: str | Agent[Any] | None) -> _Entry:
        if agent is None:
            if len(self._entries) == 1:
                return next(iter(self._entries.values()))
            raise ConfigError(f"this runtime has several agents; say agent=... (one of {_listed(self._entries)})")
        if isinstance(agent, str):
            entry = self._entries.get(agent)
        else:
            entry = next((entry for entry in self._entries.values() if entry.agent is agent), None)
        if entry is None:
            raise ConfigError(f"no agent {agent!r} in this runtime (it has {_listed(self._entries)})")
        return entry

    # --- turns ------------------------------------------------------------------------------------------------------

    def _start(self, actor: Actor) -> None:
        """Start the task of the actor's head, in that envelope's own context (R5)."""
        envelope = actor.current
        assert envelope is not None
        assert self._nursery is not None
        start = self._nursery.start_soon
        envelope.context_vars.run(lambda: start(self._turn, actor, envelope, name=actor.label))

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
        self._running += 1
        entry: _Entry = actor.entry
        panel = self._panel(entry, run)
        run.snapshots = panel.snapshots
        execute = partial(
            execute_run,
            entry.agent,
            run,
            panel,
            self._store,
            entry.key(actor.conversation_id),
            actor.health,
            actor.threads(self._threads),
        )
        try:
            await supervise(run, execute, panel, self._limits, self._report_fatal)
        finally:
            self._running -= 1
            self._count(run.outcome)

    def _panel(self, entry: _Entry, run: Run) -> Panel:
        return Panel(
            entry.agent.roster,
            run.journal,
            run.ask,
            entry.agent.name,
            run.context,
            self.submit,
            lambda: run.abort_state is not None or run.scope.cancel_called,
        )

    def _count(self, outcome: Outcome | None) -> None:
        assert outcome is not None
        self._ended[outcome.status] += 1
        if outcome.abort is not None and outcome.abort.cause == "shutdown":
            self._shut_down += 1

    def _over(self, actor: Actor, envelope: Run | Job) -> None:
        """The head is over: the next envelope has its turn, or the conversation is idle."""
        more = actor.advance()
        self._turns.over(actor, envelope)
        if more:
            self._turns.ready(actor)
        else:
            actor.idle_since = trio.current_time()
            self._idle[actor] = None
            if len(self._idle) == 1:
                self._idle_added.set()
        self._leave()

    def _enter(self) -> None:
        self._live += 1
        if self._live == 1:
            self._quiet.value = False

    def _leave(self) -> None:
        self._live -= 1
        if not self._live:
            self._quiet.value = True
            self._settle()

    def _settle(self) -> None:
        if self._state in ("closing", "closed") and not self._live:
            self._state = "closed"
            self._finished.set()

    # --- waits ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _guard(self, run: Run) -> Iterator[None]:
        """Let the run in whose context this is called wait for `run`."""
        asker = waiter()
        if asker is None or run.state == "done":
            yield
            return
        if run.conversation is not None:
            refuse_cycle(asker, run.conversation, run)
        with self._waiting(asker, run):
            yield

    @contextmanager
    def _waiting(self, asker: Run, run: Run) -> Iterator[None]:
        asker.waits_for.append(run)
        lends = run.state != "done" and asker.conversation is not None and self._actor_is_ours(asker.conversation)
        if lends:
            self._turns.lend(run)
        try:
            yield
        finally:
            asker.waits_for.remove(run)
            if lends:
                self._turns.unlend(run)

    def _actor_is_ours(self, actor: Actor) -> bool:
        return self._actors.get((actor.entry.index, actor.conversation_id)) is actor

    # --- idling -----------------------------------------------------------------------------------------------------

    def _forget_idle(self) -> None:
        """Forget the conversations that have been idle for `idle_timeout` (R15)."""
        if not self._idle:
            return
        limit = trio.current_time() - self._idle_timeout
        while self._idle:
            actor = next(iter(self._idle))
            if actor.idle_since > limit:
                return
            del self._idle[actor]
            del self._actors[actor.entry.index, actor.conversation_id]

    async def _sweep(self) -> None:
        """Forget idle conversations also while nobody asks anything."""
        if self._idle_timeout == math.inf:
            return
        while True:
            if self._idle:
                await trio.sleep_until(next(iter(self._idle)).idle_since + self._idle_timeout)
                self._forget_idle()
            else:
                self._idle_added = trio.Event()
                await self._idle_added.wait()

    # --- what conversations read and write --------------------------------------------------------------------------

    def find(self, agent: Any, conversation_id: str | None) -> Actor | None:
        """Return the actor, if the conversation is in memory."""
        return self._actors.get((self._entry(agent).index, conversation_id))

    async def read_memory(self, agent: Any, conversation_id: str | None) -> Memory:
        """Return the stored memory."""
        record = await self._store.load(self._entry(agent).key(conversation_id))
        return record.memory

    async def read_history(self, agent: Any, conversation_id: str | None, **page: Any) -> Page:
        """Return a page of entries."""
        return await self._store.entries(self._entry(agent).key(conversation_id), **page)

    async def write_visibility(
        self, agent: Any, conversation_id: str | None, changes: Mapping[str, tuple[bool, bool]]
    ) -> None:
        """Change entries' visibility in one commit."""
        await self._store.commit(self._entry(agent).key(conversation_id), Change(visibility=dict(changes)))

    async def forget(self, agent: Any, conversation_id: str | None) -> None:
        """Abort what the conversation has, then delete its record, as a turn of its own."""
        entry = self._entry(agent)
        place = (entry.index, conversation_id)
        actor = self._actors.get(place)
        asker = waiter()
        if self._state == "closed" or (self._state != "open" and asker is None):
            raise self._closed()
        if actor is None:
            actor = self._actors[place] = Actor(entry, conversation_id)
        elif asker is not None:
            refuse_cycle(asker, actor)
        for run in actor.runs():
            run.request_abort("requested", "the conversation was forgotten")
        job = Job(partial(self._store.forget, entry.key(conversation_id)), copy_context())
        self._enter()
        if actor.post(job):
            self._idle.pop(actor, None)
            self._turns.ready(actor)
        await job.done.wait()
        if job.error is not None:
            raise job.error

    # --- the skeleton -----------------------------------------------------------------------------------------------

    async def host(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the runs' nursery, shielded, until the runtime is closed and nothing is left."""
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                task_status.started()
                await self._finished.wait()
        if self._fatal is not None:
            raise self._fatal

    async def watch(self) -> None:
        """Sleep until the outer nursery is cancelled; then abort every run. Nothing is caught."""
        try:
            await trio.sleep_forever()
        finally:
            self.shut_down("the runtime was cancelled")

    async def sweep(self) -> None:
        """Forget idle conversations as their time runs out."""
        await self._sweep()

    def shut_down(self, reason: str) -> None:
        """Accept nothing more and abort everything, cause `shutdown`. Synchronous: the aborting has a task."""
        if self._state == "closed" and self._finished.is_set():
            return
        self._state = "closed"
        if self._limits.hurry is None:
            self._limits.hurry_up(SHUTDOWN_GRACE)
        if self._live and self._nursery is not None:
            self._nursery.start_soon(self._abort_all, reason)
        self._settle()

    async def close(self) -> None:
        """Accept only what runs still make, and wait for every accepted run."""
        if self._state != "closed":
            self._state = "closing"
        self._settle()
        await self._finished.wait()

    async def wait_drained(self) -> None:
        """Wait until a drain is over."""
        await self._drained.wait()

    async def _abort_all(self, reason: str) -> None:
        runs = [run for actor in self._actors.values() for run in actor.runs()]
        for index, run in enumerate(runs, 1):
            run.request_abort("shutdown", reason)
            if index % ABORT_BATCH == 0:
                await trio.lowlevel.cancel_shielded_checkpoint()

    def _report_fatal(self, fatal: BaseException) -> None:
        """A `KeyboardInterrupt` or `SystemExit` came out of a run: end everything; the host raises it at its end."""
        if self._fatal is None:
            self._fatal = fatal
        self.shut_down(f"{type(fatal).__name__} in a run")


async def _work_turn(job: Job) -> None:
    try:
        await job.work()
    except Exception as error:  # noqa: BLE001  # handed to whoever waits for the job
        job.error = error
    finally:
        job.done.set()


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, names)) or "none"


def _checked_id(conversation_id: object) -> str | None:
    if conversation_id is None:
        return None
    if not isinstance(conversation_id, str):
        raise ConfigError(f"conversation_id must be a string or None, not {type(conversation_id).__name__}")
    if not conversation_id.strip():
        raise ConfigError("conversation_id must be a nonempty string, not blank; None is the default conversation")
    if len(conversation_id) > MAX_ID:
        raise ConfigError(f"conversation_id has {len(conversation_id)} characters, at most {MAX_ID} are allowed")
    return conversation_id


def _check_ask(ask: object, options: RunOptions, on_event: object, when_busy: object) -> None:
    if not isinstance(ask, str):
        raise ConfigError(f"ask must be a string, not {type(ask).__name__}")
    if not ask.strip():
        raise ConfigError("ask is blank; there is nothing to answer")
    if when_busy not in ("queue", "refuse", "replace"):
        raise ConfigError(f'when_busy must be "queue", "refuse" or "replace", not {when_busy!r}')
    for name, value in (("confirm", options.confirm), ("on_event", on_event)):
        if value is not None and not callable(value):
            raise ConfigError(f"{name} must be callable, not {type(value).__name__}")
    check_seconds("confirm_timeout", options.confirm_timeout)


def _check_count(what: str, value: object, least: int, *, none: bool = True) -> None:
    if value is None and none:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{what} must be an integer of at least {least}{' or None' if none else ''}, not {value!r}")


def _made(
    agents: tuple[Agent[Any], ...],
    store: Store | None,
    max_running: int | None,
    mailbox_capacity: int,
    max_waiting: int | None,
    finish_timeout: float | None,
    idle_timeout: float | None,
) -> Runtime:
    if not agents:
        raise ConfigError("open_runtime needs at least one agent")
    names: set[str] = set()
    for agent in agents:
        if not isinstance(agent, Agent):
            raise ConfigError(f"open_runtime takes agents, not {type(agent).__name__}")
        if agent.name in names:
            raise ConfigError(f"two agents are named {agent.name!r}; give each a name=...")
        names.add(agent.name)
    _check_count("max_running", max_running, 1)
    _check_count("mailbox_capacity", mailbox_capacity, 0, none=False)
    _check_count("max_waiting", max_waiting, 0)
    check_seconds("finish_timeout", finish_timeout)
    check_seconds("idle_timeout", idle_timeout, zero=True)
    if store is None:
        store = InMemoryStore()
    for method in ("load", "commit", "entries", "forget"):
        if not callable(getattr(store, method, None)):
            raise ConfigError(f"store={type(store).__name__} has no method {method!r}; see goliath_actors.abc.Store")
    return Runtime(agents, store, max_running, mailbox_capacity, max_waiting, finish_timeout, idle_timeout)


@asynccontextmanager
async def open_runtime(
    *agents: Agent[Any],
    store: Store | None = None,
    max_running: int | None = None,
    mailbox_capacity: int = 64,
    max_waiting: int | None = None,
    finish_timeout: float | None = None,
    idle_timeout: float | None = 300.0,
) -> AsyncIterator[Runtime]:
    """Open a runtime for the length of an `async with` block.

    Arguments:
      agents: one or more, with different names.
      store: where conversations live between runs; None keeps them in memory. Entered first and left last.
      max_running: how many runs may run at once, None for no limit.
      mailbox_capacity: how many asks of one conversation may wait.
      max_waiting: how many asks may wait in the whole runtime, None for no limit.
      finish_timeout: seconds for each observer, None for no limit (at a shutdown: 10 s, or the drain's grace).
      idle_timeout: seconds after which an idle conversation is forgotten in memory, None for never.

    Raises: `ConfigError` at once for wrong arguments; what a lifespan or store raised on opening.

    Cancellation: a normal end of the block waits for every accepted run. An exception in the block, or cancellation
    from outside, aborts all of them (cause `shutdown`), tells every observer, and then passes, a single error bare.
    """
    runtime = _made(agents, store, max_running, mailbox_capacity, max_waiting, finish_timeout, idle_timeout)
    held = [runtime._store] if hasattr(runtime._store, "__aenter__") else []
    failed: Exception | None = None
    try:
        async with hold_all([*held, *closing(agents), *lifespans(agents)]):  # type: ignore[list-item]  # stores may be context managers
            async with trio.open_nursery() as outer:
                await outer.start(runtime.host)
                outer.start_soon(runtime.watch)
                outer.start_soon(runtime.sweep)
                try:
                    yield runtime
                except Exception as error:  # noqa: BLE001  # raised below, bare, once every run has been told
                    failed = error
                    runtime.shut_down(f"{type(error).__name__} in the runtime's block")
                await runtime.close()
                outer.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        # Nurseries are an implementation detail: a single error comes out as itself.
        real = {id(leaf): leaf for leaf in leaves(group)}
        if len(real) != 1:
            raise
        raise next(iter(real.values())) from None
    finally:
        if failed is not None:  # also when a cancellation came after it: an error that escaped beats an abort
            raise failed


async def serve_runtime(
    *agents: Agent[Any],
    store: Store | None = None,
    max_running: int | None = None,
    mailbox_capacity: int = 64,
    max_waiting: int | None = None,
    finish_timeout: float | None = None,
    idle_timeout: float | None = 300.0,
    task_status: trio.TaskStatus[Runtime] = trio.TASK_STATUS_IGNORED,
) -> None:
    """`open_runtime` for `nursery.start`: gives the runtime to the starter, and returns after a drain.

    Cancellation: aborts every run (cause `shutdown`), tells the observers, then passes.
    """
    async with open_runtime(
        *agents,
        store=store,
        max_running=max_running,
        mailbox_capacity=mailbox_capacity,
        max_waiting=max_waiting,
        finish_timeout=finish_timeout,
        idle_timeout=idle_timeout,
    ) as runtime:
        task_status.started(runtime)
        await runtime.wait_drained()
