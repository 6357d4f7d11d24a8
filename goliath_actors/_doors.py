"""The doors of a runtime, for one agent's conversations: what `Runtime` and `Conversation` show to users.

Asking is accepting, then waiting as the ask's owner; everything else is a turn, a call of a tool, or a read of the
store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Literal, TypeAlias, Unpack, final

import trio

from ._acceptance import RESUMED, Acceptance, AskOptions, listed
from ._agent import Agent
from ._arguments import hint
from ._conversation import Actor, Entry
from ._engine import Engine
from ._envelope import Envelope, Job, RunOptions, Wait
from ._face import Run, face_of
from ._panel import Panel
from ._rewrites import ApplicationDoors
from ._run import make_work
from ._tools import invoke
from ._waits import waiter
from .errors import ConfigError, RunAborted
from .threads import Thread
from .tools import ToolOutcome
from .values import Memory, Page, RunResult

__all__ = ["Doors", "StreamBlock"]


# An agent as users name it: None is the only one.
Named: TypeAlias = str | Agent[Any] | None


@final
class Doors:
    """Every door, with the agent and the conversation as arguments."""

    def __init__(self, engine: Engine, acceptance: Acceptance) -> None:
        self.engine = engine
        self.acceptance = acceptance
        # What every ask goes through. Not methods that pass arguments on: each layer of those packs and unpacks all.
        self.accept = acceptance.accept
        self.own = engine.own
        self.life = engine.life

    # --- asking -----------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """True once nothing is accepted any more: then a caller is to `notice` first."""
        return self.life.state == "closed"

    async def notice(self) -> None:
        """Let a caller that is cancelled notice it before it is refused: what closed the runtime may be what cancelled
        the caller, who then is to see `Cancelled` and no error (R10). No checkpoint where asks are accepted (R2)."""
        life = self.engine.life
        if not self.closed:
            return
        asker = self.engine.asker()
        if asker is not None:  # a run: its turn in the abort of all may be yet to come
            asker.request_abort("shutdown", life.reason)
        await trio.lowlevel.checkpoint_if_cancelled()

    def submit(self, agent: Named, conversation_id: str | None, ask: str, **options: Unpack[AskOptions]) -> Run:
        """As `Runtime.submit`."""
        return face_of(self.accept(agent, conversation_id, ask, waits=False, **options))

    def stream(self, agent: Named, conversation_id: str | None, ask: str, **options: Unpack[AskOptions]) -> StreamBlock:
        """As `Runtime.stream`."""
        return StreamBlock(lambda: self.accept(agent, conversation_id, ask, waits=True, **options), self.notice)

    def steer(self, agent: Agent[Any], conversation_id: str | None, text: str, **options: Unpack[AskOptions]) -> Run:
        """Hand a text to the running run, or accept it as a new one. Never blocks."""
        head = self.acceptance.hand(agent, conversation_id, text, **options)
        return self.submit(agent, conversation_id, text, **options) if head is None else face_of(head)

    def submit_resume(
        self,
        agent: Agent[Any],
        conversation_id: str | None,
        answers: Mapping[str, Any],
        **options: Unpack[AskOptions],
    ) -> Run:
        """Accept an episode that takes up waiting calls (T8). As `submit`."""
        return face_of(self.accept_resume(agent, conversation_id, answers, waits=False, **options))

    def accept_resume(
        self,
        agent: Agent[Any],
        conversation_id: str | None,
        answers: Mapping[str, Any],
        *,
        waits: bool,
        **options: Unpack[AskOptions],
    ) -> Envelope:
        """As `accept`, of an episode that takes up waiting calls; `waits` if its asker waits for it."""
        return self.accept(agent, conversation_id, RESUMED, waits=waits, answers=dict(answers), **options)

    @trio.lowlevel.enable_ki_protection
    async def resume(
        self,
        agent: Agent[Any],
        conversation_id: str | None,
        answers: Mapping[str, Any],
        **options: Unpack[AskOptions],
    ) -> RunResult:
        """As `submit_resume`, and wait. As `run`.

        Cancellation: as of `run`.
        """
        await self.notice()
        return await self.own(self.accept_resume(agent, conversation_id, answers, waits=True, **options))

    def submit_rewrite(
        self,
        agent: Agent[Any],
        conversation_id: str | None,
        kind: Literal["regenerate"],
        **options: Unpack[AskOptions],
    ) -> Run:
        """Accept a run that rewrites a history and answers anew. As `submit`."""
        return face_of(self.accept(agent, conversation_id, f"({kind})", waits=False, rewrite=kind, **options))

    @trio.lowlevel.enable_ki_protection
    async def rewrite(
        self,
        agent: Agent[Any],
        conversation_id: str | None,
        kind: Literal["regenerate"],
        **options: Unpack[AskOptions],
    ) -> RunResult:
        """As `submit_rewrite`, and wait. As `run`.

        Cancellation: as of `run`.
        """
        await self.notice()
        return await self.own(self.accept(agent, conversation_id, f"({kind})", waits=True, rewrite=kind, **options))

    # --- a tool without a run ---------------------------------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    async def invoke_tool(
        self,
        agent: Named,
        name: str,
        input: Mapping[str, Any],
        context: Any,
        confirm: Callable[..., Any] | None,
    ) -> ToolOutcome:
        """As `Runtime.invoke_tool`.

        Cancellation: the tool unwinds; a write that had begun may have happened.
        """
        await self.notice()
        engine = self.engine
        entry = self.acceptance.entry(agent)
        if engine.life.state not in ("open", "draining") and engine.asker() is None:
            raise engine.life.refusal()
        tools = entry.agent.tool_table
        if name not in tools:
            known = f"{hint(name, tools)} (it has {listed(tools)})"
            raise ConfigError(f"agent {entry.agent.name!r} has no tool {name!r}{known}")
        options = RunOptions(confirm, finish_timeout=self.acceptance.finish_timeout)
        run = self.acceptance.make(entry, None, f"invoke {name}", context, None, options, None)
        run.journal.callbacks = ()  # there is no run, so there are no events of one; hooks are asked all the same
        panel = engine.panel(entry, run)
        nowhere = Actor(entry, None)  # in no directory: it is no conversation's
        work = make_work(entry.agent, run, panel, engine.store, entry.key(None), nowhere)
        with engine.invoking(run), run.scope:
            return await _interruptibly(invoke, work, name, input)
        error = run.early_reply
        assert isinstance(error, RunAborted)
        raise error

    # --- what is kept of a conversation -----------------------------------------------------------------------------

    def find(self, agent: Agent[Any], conversation_id: str | None) -> Actor | None:
        """Return the actor, if the conversation is in memory."""
        return self.acceptance.entry(agent).actors.get(conversation_id)

    async def memory(self, agent: Agent[Any], conversation_id: str | None) -> Memory:
        """Return the stored memory."""
        record = await self.engine.store.load(self._key(agent, conversation_id))
        return record.memory

    async def history(
        self,
        agent: Agent[Any],
        conversation_id: str | None,
        before: int | None,
        after: int | None,
        limit: int,
        anchor: int | None,
    ) -> Page:
        """Return a page of entries. As `Store.entries`."""
        key = self._key(agent, conversation_id)
        return await self.engine.store.entries(key, before=before, after=after, limit=limit, anchor=anchor)

    def thread(self, agent: Agent[Any], conversation_id: str | None) -> Thread:
        """Return what an application may do with a conversation's record and history (S5)."""
        engine, acceptance = self.engine, self.acceptance
        entry = acceptance.entry(agent)
        key = entry.key(conversation_id)

        async def turn(work: Callable[[Panel | None], Awaitable[None]]) -> None:
            await self._rewrite(entry, conversation_id, work)

        panel = partial(acceptance.outside, entry, conversation_id)
        return Thread(ApplicationDoors(engine.store, key, lambda: panel()[1], turn, engine.afterwards.tell), key)

    @trio.lowlevel.enable_ki_protection
    async def _rewrite(
        self, entry: Entry, conversation_id: str | None, work: Callable[[Panel | None], Awaitable[None]]
    ) -> None:
        """Change what is visible, as a turn of its own.

        Cancellation: it is not made, unless it was being made: then it is wholly there or not at all.
        """
        await self.notice()
        job = self.acceptance.post_rewrite(entry, conversation_id, work)
        done = False
        try:
            await self._wait_for(job)
            done = True
        finally:
            if not done:
                job.scope.cancel()

    def _key(self, agent: Agent[Any], conversation_id: str | None) -> str:
        return self.acceptance.entry(agent).key(conversation_id)

    @trio.lowlevel.enable_ki_protection
    async def forget(self, agent: Agent[Any], conversation_id: str | None) -> None:
        """Abort what the conversation has, then delete its record, as a turn of its own.

        Cancellation: only the wait ends.
        """
        await self.notice()
        await self._wait_for(self.acceptance.post_forget(agent, conversation_id))

    async def _wait_for(self, job: Job) -> None:
        asker = waiter()
        if asker is None:
            await job.done.wait()
        else:
            with self.engine.waiting(asker, Wait(job)):
                await job.done.wait()
        if job.error is not None:
            raise job.error


@trio.lowlevel.disable_ki_protection  # an application's code, as in execute_run
async def _interruptibly(function: Callable[..., Awaitable[ToolOutcome]], *args: Any) -> ToolOutcome:
    return await function(*args)


@final
class StreamBlock:
    """`async with runtime.stream(...) as run`: the ask is accepted on entering; leaving early aborts the run."""

    __slots__ = ("_accept", "_guard", "_notice", "_run")

    def __init__(self, accept: Callable[[], Envelope], notice: Callable[[], Awaitable[None]]) -> None:
        self._accept = accept
        self._notice = notice
        self._run: Envelope | None = None
        self._guard: Any = None

    @trio.lowlevel.enable_ki_protection  # as the waits of an `Envelope`
    async def __aenter__(self) -> Run:
        if self._run is not None:
            raise ConfigError("a stream block can be entered once; call stream(...) again for another run")
        await self._notice()
        run = self._run = self._accept()
        self._guard = run.guard(owned=True)
        self._guard.__enter__()
        entered = False
        try:
            await trio.lowlevel.checkpoint()
            entered = True
        finally:
            if not entered:
                await self._leave()
        return face_of(run)

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._leave()

    async def _leave(self) -> None:
        run = self._run
        assert run is not None
        try:
            if run.state == "done" or (run.replied and run.waits):
                # Not cancelled here: that would take the place of what the block raises.
                await trio.lowlevel.cancel_shielded_checkpoint()
            else:
                await run.abandon()
        finally:
            self._guard.__exit__(None, None, None)
