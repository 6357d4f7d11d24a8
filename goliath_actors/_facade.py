"""`Conversation`: one conversation's doors, and the `stream` block.

Floor 7½. They hold the runtime's doors as a protocol and no state of their own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Literal, Protocol, TypedDict, Unpack, final

import attrs
import trio

from ._conversation import Actor
from ._mailbox import Run
from ._toolloop import ToolLoop
from .errors import ConfigError
from .values import ConversationStatus, Memory, Page, RunResult

__all__ = ["AskOptions", "Conversation", "Doors", "StreamBlock"]


class Doors(Protocol):
    """What a conversation needs of its runtime."""

    @property
    def run(self) -> Callable[..., Awaitable[RunResult]]:
        """As `Runtime.run`."""
        ...

    @property
    def submit(self) -> Callable[..., Run]:
        """As `Runtime.submit`."""
        ...

    @property
    def stream(self) -> Callable[..., StreamBlock]:
        """As `Runtime.stream`."""
        ...

    @property
    def submit_rewrite(self) -> Callable[..., Run]:
        """Accept a run that rewrites a history and answers anew."""
        ...

    @property
    def rewrite(self) -> Callable[..., Awaitable[RunResult]]:
        """As `submit_rewrite`, and wait."""
        ...

    @property
    def steer(self) -> Callable[..., Run]:
        """Hand a text to the running run, or accept a new one."""
        ...

    @property
    def submit_resume(self) -> Callable[..., Run]:
        """Accept an episode that takes up waiting calls."""
        ...

    @property
    def resume(self) -> Callable[..., Awaitable[RunResult]]:
        """As `submit_resume`, and wait."""
        ...

    def find(self, agent: Any, conversation_id: str | None) -> Actor | None:
        """Return the actor, if the conversation is in memory."""
        ...

    async def read_memory(self, agent: Any, conversation_id: str | None) -> Memory:
        """Return the stored memory."""
        ...

    async def read_history(self, agent: Any, conversation_id: str | None, **page: Any) -> Page:
        """Return a page of entries."""
        ...

    async def write_visibility(
        self, agent: Any, conversation_id: str | None, changes: Mapping[str, tuple[bool, bool]]
    ) -> None:
        """Change entries' visibility in one commit."""
        ...

    async def forget(self, agent: Any, conversation_id: str | None) -> None:
        """End and delete the conversation."""
        ...


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
@attrs.frozen(eq=False, repr=False)
class Conversation:
    """One conversation of one agent. Making this object does nothing; the conversation exists once it is asked."""

    _doors: Doors
    _agent: Any
    id: str | None

    def __repr__(self) -> str:
        name = "(default)" if self.id is None else self.id
        return f"<Conversation {self._agent.name}/{name}>"

    async def run(self, ask: str, **options: Unpack[AskOptions]) -> RunResult:
        """Ask and wait, as `Runtime.run`.

        Cancellation: aborts the run and goes on once its observers were told.
        """
        return await self._doors.run(ask, conversation_id=self.id, agent=self._agent, **options)

    def submit(self, ask: str, **options: Unpack[AskOptions]) -> Run:
        """Ask without waiting, as `Runtime.submit`."""
        return self._doors.submit(ask, conversation_id=self.id, agent=self._agent, **options)

    def stream(self, ask: str, **options: Unpack[AskOptions]) -> StreamBlock:
        """Ask for the length of a block, as `Runtime.stream`."""
        return self._doors.stream(ask, conversation_id=self.id, agent=self._agent, **options)

    def abort(self, reason: str = "", queued: bool = False) -> None:
        """End what has its turn, cause `requested`; with `queued` what waits, too. Never blocks."""
        actor = self._doors.find(self._agent, self.id)
        if actor is None:
            return
        for envelope in actor.runs() if queued else (actor.current,):
            if isinstance(envelope, Run):
                envelope.abort(reason)

    def status(self) -> ConversationStatus:
        """Say what runs, in which phase and since when, and how many wait and how long."""
        actor = self._doors.find(self._agent, self.id)
        return ConversationStatus() if actor is None else actor.status()

    async def memory(self) -> Memory:
        """Return the memory as it is stored. Never waits for a run."""
        return await self._doors.read_memory(self._agent, self.id)

    async def history(
        self,
        before: int | None = None,
        after: int | None = None,
        limit: int = 50,
        anchor: int | None = None,
    ) -> Page:
        """Return a page of what was said, oldest first. Never waits for a run.

        Arguments: `before` and `after` are positions from an earlier page's `next`; `anchor` an earlier page's
        anchor, so that what is appended meanwhile does not shift pages.
        """
        return await self._doors.read_history(
            self._agent, self.id, before=before, after=after, limit=limit, anchor=anchor
        )

    async def set_visibility(self, changes: Mapping[str, tuple[bool, bool]]) -> None:
        """Set entries' visibility: entry id to (in the transcript, in the model's context). One atomic commit."""
        await self._doors.write_visibility(self._agent, self.id, changes)

    async def forget(self) -> None:
        """Abort what runs and what waits, each with its observers, then delete the record.

        Later asks start afresh, behind it. Raises: `ReentrantRun` inside a run of this conversation.

        Cancellation: only the wait ends; the conversation is forgotten all the same.
        """
        await self._doors.forget(self._agent, self.id)

    def steer(self, text: str, **options: Unpack[AskOptions]) -> Run:
        """Hand a text to the running run, or start one. Never blocks. Needs a `ToolLoop`.

        The run takes it as a user's message before its next model call, after `before_run` was asked about it. If it
        ends, any way, without having taken it, the text is the next run, with the same context: `run.followed_by`.

        Arguments: `options` are for the run that the text becomes if it is not taken; one that takes it keeps its own.

        Returns: the running run, or the new one if none was running.

        Raises: as `submit`; a text that is not taken yet counts for the mailbox's capacity. `ConfigError` for an agent
        with another loop.
        """
        if not isinstance(self._agent.loop, ToolLoop):
            raise self._needs_tool_loop("steer")
        return self._doors.steer(self._agent, self.id, text, **options)

    async def resume(self, answers: Mapping[str, Any], **options: Unpack[AskOptions]) -> RunResult:
        """Answer calls that wait, by call id, and go on with the run that they belong to. Needs a `ToolLoop`.

        Arguments: to an approval a bool or a `Confirmed`, to a question what `ctx.suspend` is to return, JSON data if
        the tool may ask again. Calls that are not answered go on waiting.

        Returns: the result of the new run, with `waiting` again if something waits. Works across a process restart.

        Raises: as `run`; `ConfigError` for an agent with another loop, where nothing waits, and for other call ids.

        Cancellation: as of `run`; calls that were answered have a result that says what became of them.
        """
        self._check_answers("resume", answers)
        return await self._doors.resume(self._agent, self.id, answers, **options)

    def submit_resume(self, answers: Mapping[str, Any], **options: Unpack[AskOptions]) -> Run:
        """As `resume`, without waiting.

        Raises: as `submit`; `ConfigError` for an agent with another loop.
        """
        self._check_answers("submit_resume", answers)
        return self._doors.submit_resume(self._agent, self.id, answers, **options)

    def _check_answers(self, door: str, answers: object) -> None:
        if not isinstance(self._agent.loop, ToolLoop):
            raise self._needs_tool_loop(door)
        if not isinstance(answers, Mapping) or not answers or not all(isinstance(key, str) for key in answers):
            raise ConfigError(f"{door} takes a mapping of call ids to answers with something in it, not {answers!r}")

    async def rewrite(self, kind: Literal["regenerate"], **options: Unpack[AskOptions]) -> RunResult:
        """Drop what was said behind the last ask and answer it anew. Needs a `ToolLoop`.

        Arguments: `kind` is "regenerate".

        Returns: the result of the new run.

        Raises: as `run`; `ConfigError` for another kind, for an agent with another loop, and where there is no ask.

        Cancellation: as of `run`; the history is as it was, or without the old answer.
        """
        self._check_kind("rewrite", kind)
        return await self._doors.rewrite(self._agent, self.id, kind, **options)

    def submit_rewrite(self, kind: Literal["regenerate"], **options: Unpack[AskOptions]) -> Run:
        """As `rewrite`, without waiting.

        Raises: as `submit`; `ConfigError` for another kind and for an agent with another loop.
        """
        self._check_kind("submit_rewrite", kind)
        return self._doors.submit_rewrite(self._agent, self.id, kind, **options)

    def _check_kind(self, door: str, kind: object) -> None:
        if not isinstance(self._agent.loop, ToolLoop):
            raise self._needs_tool_loop(door)
        if kind != "regenerate":
            raise ConfigError(f'{door} can only "regenerate", not {kind!r}')

    def _needs_tool_loop(self, door: str) -> ConfigError:
        loop = type(self._agent.loop).__name__
        return ConfigError(f"{door} needs an agent with a ToolLoop; {self._agent.name!r} has a {loop}")


@final
class StreamBlock:
    """`async with runtime.stream(...) as run`: the ask is accepted on entering; leaving early aborts the run."""

    __slots__ = ("_accept", "_guard", "_notice", "_run")

    def __init__(self, accept: Callable[[], Run], notice: Callable[[], Awaitable[None]]) -> None:
        self._accept = accept
        self._notice = notice
        self._run: Run | None = None
        self._guard: Any = None

    @trio.lowlevel.enable_ki_protection  # as the waits of a `Run`
    async def __aenter__(self) -> Run:
        if self._run is not None:
            raise ConfigError("a stream block can be entered once; call stream(...) again for another run")
        await self._notice()
        run = self._run = self._accept()
        self._guard = run.guard()
        self._guard.__enter__()
        entered = False
        try:
            await trio.lowlevel.checkpoint()
            entered = True
        finally:
            if not entered:
                await self._leave()
        return run

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._leave()

    async def _leave(self) -> None:
        run = self._run
        assert run is not None
        try:
            if run.state == "done" or run.replied:
                # Not cancelled here: that would take the place of what the block raises.
                await trio.lowlevel.cancel_shielded_checkpoint()
            else:
                await run.abandon()
        finally:
            self._guard.__exit__(None, None, None)
