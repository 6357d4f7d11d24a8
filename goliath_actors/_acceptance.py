"""Accepting and refusing: decided synchronously, before any checkpoint, and a refused ask leaves no trace (R2)."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import copy_context
from functools import partial
from typing import Any, Literal, TypedDict, Unpack, final

import trio

from ._agent import Agent, is_same, output_schema
from ._arguments import check_ask, checked_id, hint
from ._conversation import Actor, Entry
from ._engine import Engine
from ._envelope import Envelope, Job, RunOptions, Ties, Wait
from ._face import Run, face_of
from ._history import Histories
from ._journal import RunJournal, clock
from ._numbers import check_seconds
from ._panel import Panel
from ._refusals import Refusals
from ._toolloop import ToolLoop
from ._waits import refuse_cycle, waiter
from .abc import Store
from .errors import ConfigError, RunAborted
from .values import Outcome

__all__ = ["RESUMED", "Acceptance", "AskOptions", "listed"]

REWRITE = "(rewrite)"  # the ask of what changes visibility, as the hooks that it asks see it

RESUMED = "(resume)"  # the ask of an episode that takes up waiting calls, as observers see it


class AskOptions(TypedDict, total=False):
    """What an ask may say for itself, as in `Runtime.run`."""

    # Any: the application's own object, callables and type.
    context: Any
    timeout: float | None
    confirm: Callable[..., Any] | None
    confirm_timeout: float | None
    output: Any
    on_event: Callable[[Any], object] | None
    when_busy: Literal["queue", "refuse", "replace"]


@final
class Acceptance:
    """Makes envelopes of asks and hands them to the engine, or refuses them."""

    def __init__(
        self,
        engine: Engine,
        only: str | None,
        mailbox_capacity: int,
        max_waiting: int | None,
        finish_timeout: float | None,
    ) -> None:
        self._engine = engine
        # The agent that an ask means that names none: sub-agents came along, nobody gave them.
        self._only = only
        self._refuse = Refusals(engine, mailbox_capacity, max_waiting)
        self.finish_timeout = finish_timeout
        self._plain = RunOptions(finish_timeout=finish_timeout)
        self._entries = engine.directory.entries
        self._now = clock()
        # Run ids are unique across processes, forked ones too, without asking the system for randomness each time.
        self._ids = map(f"run-{os.urandom(6).hex()}-{{:x}}".format, itertools.count(1))
        # Hooks and tools submit to their own agent where they name none.
        self._ties = {
            name: Ties(engine.guard, partial(self._submit, entry.agent), self, engine.gave_up, engine.afterwards.tell)
            for name, entry in self._entries.items()
        }

    def entry(self, agent: str | Agent[Any] | None) -> Entry:
        """Return the agent's entry; None is the only agent.

        Raises: `ConfigError`.
        """
        entries = self._entries
        if isinstance(agent, str) and agent in entries:
            return entries[agent]
        if agent is None:
            if self._only is not None:
                return entries[self._only]
            raise ConfigError(f"this runtime has several agents; say agent=... (one of {listed(entries)})")
        entry = entries.get(agent.name) if isinstance(agent, Agent) else None
        if entry is None or not isinstance(agent, Agent) or not is_same(entry.agent, agent):
            raise ConfigError(f"no agent {agent!r} in this runtime{hint(agent, entries)} (it has {listed(entries)})")
        return entry

    @trio.lowlevel.enable_ki_protection
    def accept(
        self,
        agent: str | Agent[Any] | None,
        conversation_id: str | None,
        ask: str,
        *,
        waits: bool,
        context: Any = None,
        timeout: float | None = None,
        confirm: Callable[..., Any] | None = None,
        confirm_timeout: float | None = None,
        output: Any = None,
        on_event: Callable[[Any], object] | None = None,
        when_busy: Literal["queue", "refuse", "replace"] = "queue",
        answers: Mapping[str, Any] | None = None,
        rewrite: Literal["regenerate"] | None = None,
    ) -> Envelope:
        """Accept an ask, or refuse it.

        Arguments: as `Runtime.run`; `waits` if the asker waits for it; `answers` and `rewrite` as `RunOptions`.

        Raises: the refusals of `Runtime.run`.
        """
        entry = self.entry(agent)
        checked_id(conversation_id)
        options = self._options(confirm, confirm_timeout, output, answers, rewrite)
        check_ask(ask, options, on_event, when_busy)
        if timeout is not None:
            check_seconds("timeout", timeout, zero=True)
        engine, refuse = self._engine, self._refuse
        if engine.life.state != "open":
            refuse.late(waits=waits)
        actor = entry.actors.get(conversation_id)
        asker = waiter() if waits else None
        if actor is not None and (asker is not None or actor.current is not None):
            refuse.busy(actor, when_busy, asker)
        if asker is not None and (actor is None or actor.current is None):
            refuse.line(entry, conversation_id, actor, asker)
        if when_busy != "replace" and refuse.max_waiting is not None:
            refuse.waiting(actor, refuse.max_waiting)
        if actor is None:
            actor = engine.directory.make(entry, conversation_id)
        run = self.make(entry, conversation_id, ask, context, timeout, options, on_event)
        run.conversation = actor
        engine.life.accepted += 1
        if when_busy == "replace" and actor.current is not None:
            _replace(actor, run)
        if actor.current is not None and answers is None and rewrite is None:
            _supersede(actor)
        engine.post(actor, run)
        # Last, since a callback may do anything: ask, abort, raise what is no `Exception`.
        told = False
        try:
            run.journal.queue()
            told = True
        finally:
            if not told:  # nobody will get this run, so nobody could end it
                run.request_abort("caller")
        return run

    def hand(
        self,
        agent: Agent[Any],
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
    ) -> Envelope | None:
        """Hand a text to the running run, as a run that was prepared and not accepted (T7).

        Returns: the running run; None if there is none that takes texts, so that the text is an ask like any other.

        Raises: the refusals of `Runtime.submit`.
        """
        entry = self.entry(agent)
        actor = entry.actors.get(conversation_id)
        head = None if actor is None else actor.current
        if actor is None or not isinstance(head, Envelope) or head.state != "running":
            return None
        if head.journal.answered or head.abort_state is not None:
            return None
        options = self._options(confirm, confirm_timeout, output)
        check_ask(text, options, on_event, when_busy)
        check_seconds("timeout", timeout, zero=True)
        if self._engine.life.state != "open":
            self._refuse.late(waits=False)
        self._refuse.crowd(actor)
        own = head.context if context is None else context
        run = self.make(entry, conversation_id, text, own, timeout, options, on_event)
        run.conversation = actor
        _supersede(actor)
        head.steers += (run,)
        return head

    @trio.lowlevel.enable_ki_protection
    def post_forget(self, agent: Agent[Any], conversation_id: str | None) -> Job:
        """Abort what the conversation has, and give it a turn that deletes its record.

        Raises: `RuntimeClosed`, `ReentrantRun`.
        """
        entry = self.entry(agent)
        actor = self._actor_for_job(entry, conversation_id)
        for run in actor.runs():
            run.request_abort("requested", "the conversation was forgotten")
        last = None if actor.mailbox is None else actor.mailbox.last
        if isinstance(last, Job) and last.phase == "forget":  # nothing was accepted since: that one does it
            return last
        work = partial(_forget, self._engine.store, self._engine.histories, entry.key(conversation_id))
        job = Job(work, actor, copy_context())
        self._engine.post(actor, job)
        return job

    def _actor_for_job(self, entry: Entry, conversation_id: str | None) -> Actor:
        engine = self._engine
        if engine.life.state == "closed" or (engine.life.state != "open" and engine.asker() is None):
            raise engine.life.refusal()
        actor = engine.directory.make(entry, conversation_id)
        asker = waiter()
        if asker is not None:
            refuse_cycle(asker, actor)
        return actor

    def outside(self, entry: Entry, conversation_id: str | None) -> tuple[Envelope | None, Panel | None]:
        """Return a panel for hooks that an application's change of a history asks, and what stands for the run that it
        is none of; None and None where the loop asks none of them."""
        if not isinstance(entry.agent.loop, ToolLoop):
            return None, None
        run = self.make(entry, conversation_id, REWRITE, None, None, self._plain, None)
        run.journal.callbacks = ()  # there is no run, so there are no events of one
        return run, self._engine.panel(entry, run)

    @trio.lowlevel.enable_ki_protection
    def post_rewrite(
        self, entry: Entry, conversation_id: str | None, work: Callable[[Panel | None], Awaitable[None]]
    ) -> Job:
        """Give a change of what is visible a turn, so that it overlaps no run.

        Raises: `RuntimeClosed`, `ReentrantRun`, `MailboxFull`.
        """
        actor = self._actor_for_job(entry, conversation_id)
        self._refuse.turn(actor)
        run, panel = self.outside(entry, conversation_id)
        job = Job(partial(work, panel), actor, copy_context(), "rewrite", run)
        if run is not None:
            run.conversation = actor
        self._engine.post(actor, job)
        return job

    def make(
        self,
        entry: Entry,
        conversation_id: str | None,
        ask: str,
        context: Any,
        timeout: float | None,
        options: RunOptions,
        on_event: Callable[[Any], object] | None,
    ) -> Envelope:
        """Return a new envelope that nobody has yet. `timeout` is in seconds from now."""
        run_id = next(self._ids)
        agent = entry.agent
        callbacks: tuple[Callable[[Any], object], ...] = ()
        if agent.on_event is not None or on_event is not None:
            callbacks = tuple([callback for callback in (agent.on_event, on_event) if callback is not None])
        now = self._now()
        deadline = math.inf if timeout is None else now + timeout
        return Envelope(
            run_id,
            conversation_id,
            ask,
            context,
            options,
            RunJournal(run_id, conversation_id, callbacks, now=self._now),
            self._ties[agent.name],
            copy_context(),
            now,
            deadline,
            trio.CancelScope() if timeout is None else trio.CancelScope(deadline=deadline),
        )

    def _submit(
        self,
        own: Agent[Any],
        ask: str,
        *,
        agent: str | Agent[Any] | None = None,
        conversation_id: str | None = None,
        **given: Unpack[AskOptions],
    ) -> Run:
        return face_of(self.accept(own if agent is None else agent, conversation_id, ask, waits=False, **given))

    @trio.lowlevel.enable_ki_protection
    async def delegate(
        self,
        agent: Agent[Any],
        conversation_id: str,
        ask: str,
        context: Any,
        answers: Mapping[str, Any] | None,
    ) -> tuple[str, Outcome]:
        """Run an agent for a tool of the run in whose context this is called. As `tools.Delegating`.

        Cancellation: as of `Runtime.run`.
        """
        text, given = (ask, None) if answers is None else (RESUMED, dict(answers))
        run = self.accept(agent, conversation_id, text, waits=True, context=context, answers=given)
        try:
            await self._engine.own(run)
        except Exception:  # noqa: BLE001  # how it ended is in its outcome, whatever it raised
            if run.outcome is None:  # aborted while it was queued: its observers are told at its turn (R7)
                error = run.early_reply if isinstance(run.early_reply, RunAborted) else None
                return run.id, Outcome("aborted", None, error, "abort", run.abort_state)
        assert run.outcome is not None
        return run.id, run.outcome

    def _options(
        self,
        confirm: Callable[..., Any] | None,
        confirm_timeout: float | None,
        output: Any,
        answers: Mapping[str, Any] | None = None,
        rewrite: Literal["regenerate"] | None = None,
    ) -> RunOptions:
        if confirm is None and confirm_timeout is None and output is None and answers is None and rewrite is None:
            return self._plain
        return RunOptions(confirm, confirm_timeout, output_schema(output), self.finish_timeout, answers, rewrite)


def _replace(actor: Actor, run: Envelope) -> None:
    run.replaces = True
    earlier = None if actor.mailbox is None else actor.mailbox.replacement
    for other in (actor.current, earlier):
        if isinstance(other, Envelope):
            other.request_abort("requested", "replaced by a newer ask")


def _supersede(actor: Actor) -> None:
    """A message came: a question that the conversation's run has asked, or one that it has asked for an answer, is
    denied (§P). Messages of runs deny nothing."""
    if not isinstance(actor.current, Envelope) or waiter() is not None:
        return
    asking = [actor.current]
    for run in asking:  # grows: nobody waits in a circle (R14)
        run.journal.supersede()
        asking += [wait.child for wait in run.waits_for if isinstance(wait, Wait) and wait.child is not None]


def listed(names: Iterable[str]) -> str:
    """Return the names, for an error message."""
    return ", ".join(map(repr, names)) or "none"


async def _forget(store: Store, histories: Histories, key: str) -> None:
    """Delete a record; where processes share the store, once no other one has a run of the conversation."""
    histories.drop(key)
    hold = getattr(store, "hold", None)
    if hold is None:
        await store.forget(key)
        return
    async with hold(key):
        await store.forget(key)
