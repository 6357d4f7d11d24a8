"""`Runtime`: the doors that are promised. What moves behind them is the engine's (`_engine.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, final

import trio

from ._agent import Agent
from ._arguments import checked_id
from ._doors import Doors, StreamBlock
from ._engine import Engine
from ._facade import Conversation
from ._face import Run, face_of
from ._numbers import check_seconds
from .abc import Store
from .tools import ToolOutcome
from .values import DrainReport, RunResult, RuntimeStatistics

__all__ = ["Runtime", "doors_of"]


@final
class Runtime:
    """Runs the conversations of some agents. Made by `open_runtime` or `serve_runtime`."""

    __slots__ = ("__weakref__", "_doors", "_engine")

    def __init__(self, engine: Engine, doors: Doors) -> None:
        self._engine = engine
        self._doors = doors

    def __repr__(self) -> str:
        life = self._engine.life
        return f"<Runtime {life.state} agents={list(self._engine.directory.entries)} live={life.live}>"

    @property
    def agents(self) -> tuple[Agent[Any], ...]:
        """The agents whose conversations this runtime holds, in the order in which they were given; behind them those
        that are tools of theirs."""
        return tuple([entry.agent for entry in self._engine.directory.entries.values()])

    @property
    def store(self) -> Store:
        """Where the conversations live between runs."""
        return self._engine.store

    @trio.lowlevel.enable_ki_protection  # as the waits of an `Envelope`
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
        doors = self._doors
        if doors.life.state == "closed":
            await doors.notice()
        run = doors.accept(
            agent,
            conversation_id,
            ask,
            waits=True,
            context=context,
            timeout=timeout,
            confirm=confirm,
            confirm_timeout=confirm_timeout,
            output=output,
            on_event=on_event,
            when_busy=when_busy,
        )
        return await doors.own(run)

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
        run = self._doors.accept(
            agent,
            conversation_id,
            ask,
            waits=False,
            context=context,
            timeout=timeout,
            confirm=confirm,
            confirm_timeout=confirm_timeout,
            output=output,
            on_event=on_event,
            when_busy=when_busy,
        )
        return face_of(run)

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
        return self._doors.stream(
            agent,
            conversation_id,
            ask,
            context=context,
            timeout=timeout,
            confirm=confirm,
            confirm_timeout=confirm_timeout,
            output=output,
            on_event=on_event,
            when_busy=when_busy,
        )

    def conversation(self, conversation_id: str | None = None, agent: str | Agent[Any] | None = None) -> Conversation:
        """Return one conversation's doors.

        Raises: `ConfigError` for a bad id or an unknown agent.
        """
        entry = self._doors.acceptance.entry(agent)
        return Conversation(self._doors, entry.agent, checked_id(conversation_id))

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
        return await self._doors.invoke_tool(agent, name, input, context, confirm)

    @trio.lowlevel.enable_ki_protection
    async def drain(self, grace: float) -> DrainReport:
        """Refuse new asks, wait up to `grace` seconds for the accepted ones, abort the rest.

        Asks that a run makes and waits for are accepted until the grace is over.

        Returns: how many runs finished by themselves and how many were aborted.

        Raises: `ReentrantRun` inside a run.

        Cancellation: the runtime stays closed for new asks; runs go on until the block ends.
        """
        check_seconds("drain(grace=...)", grace, zero=True, none=False)
        return await self._engine.drain(grace)

    def statistics(self) -> RuntimeStatistics:
        """Return the counts of this runtime, now."""
        engine, life = self._engine, self._engine.life
        engine.directory.forget_idle()
        return RuntimeStatistics(
            conversations=len(engine.directory),
            running=life.running,
            waiting=life.waiting,
            accepted=life.accepted,
            completed=life.ended["completed"],
            stopped=life.ended["stopped"],
            errors=life.ended["error"],
            aborted=life.ended["aborted"],
        )


def doors_of(runtime: Runtime) -> Doors:
    """Return what is behind a runtime, for doors that wait in another place."""
    return runtime._doors
