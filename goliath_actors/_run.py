"""What one run does, from ask to answer: before_run, recall, a loop, remembering.

Configuration stops here: rooms below get the pieces they use (`Work`), never the whole agent.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Literal

import attrs
import trio

from ._agent import Agent, check_facts, parts_of
from ._callables import call_with
from ._decisions import RunStopped
from ._entrance import before_run
from ._envelope import Envelope
from ._frozen import FrozenDict
from ._history import Histories
from ._journal import RunJournal
from ._kept import keep_writes, saving_seconds
from ._panel import Panel
from ._toolloop import ToolLoop
from ._waiting import waiting_ask
from ._work import CallbackContext, Corner, Ending, Work
from .abc import Model, Store
from .errors import ConfigError, LeaseLost
from .events import Escalate, Event, RunStarted
from .hooks import Respond
from .values import Responded, RunResult, Stopped

__all__ = ["Finished", "execute_run", "make_work"]


_NO_FACTS: Mapping[str, str] = FrozenDict()


@attrs.define
class Finished:
    """How a run came to its own end, before its observers are told."""

    status: Literal["completed", "stopped"]
    ending: Ending
    stopped: Stopped | None = None

    def result(self, journal: RunJournal, trace: tuple[Event, ...]) -> RunResult:
        """Return the result with everything that the journal has by now."""
        ending = self.ending
        return RunResult(
            run_id=journal.run_id,
            conversation_id=journal.conversation_id,
            status=self.status,
            text=ending.text,
            output=ending.output,
            handled_by=journal.handled_by,
            reason=ending.reason,
            best_effort=ending.best_effort,
            steps=journal.steps,
            trace=trace,
            stopped=self.stopped,
            responded=ending.responded,
            waiting=ending.waiting,
            usage=journal.usage,
            diagnostics=tuple(journal.diagnostics),
            error=None if ending.reason is None else _first_escalation(journal),
        )


def _first_escalation(journal: RunJournal) -> str | None:
    return next((event.error for event in journal.trace if isinstance(event, Escalate)), None)


# The turn around these is protected from Ctrl-C; application code is not: an endless loop in a tool can be interrupted.
@trio.lowlevel.disable_ki_protection
def execute_run(
    agent: Agent[Any],
    run: Envelope,
    panel: Panel,
    store: Store,
    key: str,
    corner: Corner,
    histories: Histories | None = None,
) -> Awaitable[Finished]:
    """Begin a run, and return what does everything of it that lies inside its scope.

    Not async, as a run would be one coroutine deeper: each costs at every step.

    Raises, on the call or when awaited: application errors as the same object; `GoliathExtensionError`,
    `GoliathBudgetError`.

    Cancellation: writes that were executed, or may have been, and text that was shown are kept in the record (S7, §P),
    within `finish_timeout` or 10 seconds; then it passes.
    """
    journal = run.journal
    if journal.early_error is not None:
        raise journal.early_error
    journal.emit(RunStarted)
    journal.place = "extension"  # whose `tools` may be a property
    work = make_work(agent, run, panel, store, key, corner)
    journal.place = None
    work.histories = histories
    hold = getattr(store, "hold", None)
    return _execute(agent, work) if hold is None else _execute_held(agent, work, hold)


@trio.lowlevel.disable_ki_protection
async def _execute_held(agent: Agent[Any], work: Work, hold: Callable[[str], Any]) -> Finished:
    """Execute a run in its conversation's turn among processes."""
    work.journal.enter("lease")
    try:
        async with AsyncExitStack() as turn:
            with work.journal.origin("memory"):
                await turn.enter_async_context(hold(work.key))
            return await _execute(agent, work)
    except LeaseLost as error:
        work.journal.blame(error, "memory")
        raise


@trio.lowlevel.disable_ki_protection
async def _execute(agent: Agent[Any], work: Work) -> Finished:
    finished: Finished | None = None
    responded: tuple[Respond, Responded] | None = None
    try:
        if not work.window or callable(agent.facts):
            await _configure(agent, work)
        known = work.entry == "resume" or work.rewrite is not None
        if known:  # what it is about stands in the record
            await _load(work)
            work.ask = await _ask_of(agent, work)
        if work.panel.hears("before_run"):
            work.ask, verdict, who = await before_run(work, work.ask, work.entry)
            if isinstance(verdict, Respond):
                responded = verdict, Responded(who, "before_run", verdict.reason, verdict.outcome)
        if not known and getattr(agent.loop, "recalls", True):
            await _load(work)
        finished = Finished("completed", await agent.loop.drive(work, responded))
    except RunStopped as stop:
        # C11: an empty text says why.
        reason = None if stop.text.strip() else stop.stopped.reason
        finished = Finished("stopped", Ending(stop.text, reason=reason), stop.stopped)
    finally:
        if finished is None:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + saving_seconds(work)):
                await keep_writes(work)
        if work.history is not None and work.histories is not None:
            work.histories.keep(work.key, work.history, work.record)
    assert finished is not None  # else something is passing
    return finished


async def _ask_of(agent: Agent[Any], work: Work) -> str:
    """Return the ask that an episode goes on with, as the record has it."""
    if work.rewrite is not None and isinstance(agent.loop, ToolLoop):
        return await agent.loop.last_ask(work)
    return waiting_ask(work.record.private) or work.ask


async def _load(work: Work) -> None:
    work.journal.enter("recall")
    with work.journal.origin("memory"):
        work.record = await work.store.load(work.key)


async def _configure(agent: Agent[Any], work: Work) -> None:
    """Resolve what is asked once a run: facts and window. Failures have origin `config`."""
    facts, window = agent.facts, getattr(agent.loop, "window", None)
    work.journal.enter("config")
    with work.journal.origin("config"):
        if callable(facts):
            answer: Any = call_with(facts, (), CallbackContext.of(work), rest=True)
            if inspect.isawaitable(answer):
                answer = await answer
            work.facts = dict(check_facts(answer))
        if callable(window):
            size: Any = window()
            if inspect.isawaitable(size):
                size = await size
            if not isinstance(size, int) or isinstance(size, bool) or size <= 0:
                raise ConfigError(f"window must be a positive integer, the callable gave {size!r}")
            work.window = _narrowed(size, work.model)


def _narrowed(window: int, model: Model) -> int:
    """Return the loop's window, or the model's own where that is smaller and it says so."""
    own: Any = getattr(model, "window", None)
    return min(window, own) if isinstance(own, int) and not isinstance(own, bool) and own > 0 else window


def make_work(
    agent: Agent[Any],
    run: Envelope,
    panel: Panel,
    store: Store,
    key: str,
    corner: Corner,
) -> Work:
    """Gather the pieces of a run: the agent's, with what the ask says for itself in front."""
    options, parts, tools = run.options, parts_of(agent), agent.tool_table
    window = getattr(agent.loop, "window", None)
    return Work(
        run=run,
        journal=run.journal,
        panel=panel,
        ask=run.ask,
        instructions=agent.instructions,
        facts=_NO_FACTS if callable(agent.facts) else agent.facts,
        examples=agent.examples,
        model=agent.model,
        tools=tools,
        all_tools=tools,
        counter=parts.counter,
        window=_narrowed(window, agent.model) if isinstance(window, int) else 0,
        store=store,
        key=key,
        corner=corner,
        standing=parts.standing,
        confirm=agent.confirm if options.confirm is None else options.confirm,
        confirm_timeout=agent.confirm_timeout if options.confirm_timeout is None else options.confirm_timeout,
        fallback=agent.fallback,
        output=parts.schema if options.output is None else options.output,
        entry="run" if options.answers is None else "resume",
    )
