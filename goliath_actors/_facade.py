"""`Conversation`: one conversation's doors. It holds no state of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Unpack, final

import attrs
import trio

from ._acceptance import AskOptions
from ._agent import Agent
from ._doors import Doors, StreamBlock
from ._envelope import Envelope
from ._face import Run
from ._toolloop import ToolLoop
from .errors import ConfigError
from .threads import Thread
from .values import ConversationStatus, Memory, Page, RunResult

__all__ = ["Conversation", "accept_resume"]


@final
@attrs.frozen(eq=False, repr=False)
class Conversation:
    """One conversation of one agent. Making this object does nothing; the conversation exists once it is asked."""

    _doors: Doors
    _agent: Agent[Any]
    id: str | None

    def __repr__(self) -> str:
        name = "(default)" if self.id is None else self.id
        return f"<Conversation {self._agent.name}/{name}>"

    @trio.lowlevel.enable_ki_protection
    async def run(self, ask: str, **options: Unpack[AskOptions]) -> RunResult:
        """Ask and wait, as `Runtime.run`.

        Cancellation: aborts the run and goes on once its observers were told.
        """
        doors = self._doors
        if doors.closed:
            await doors.notice()
        return await doors.own(doors.accept(self._agent, self.id, ask, waits=True, **options))

    def submit(self, ask: str, **options: Unpack[AskOptions]) -> Run:
        """Ask without waiting, as `Runtime.submit`."""
        return self._doors.submit(self._agent, self.id, ask, **options)

    def stream(self, ask: str, **options: Unpack[AskOptions]) -> StreamBlock:
        """Ask for the length of a block, as `Runtime.stream`."""
        return self._doors.stream(self._agent, self.id, ask, **options)

    def abort(self, reason: str = "", queued: bool = False) -> None:
        """End what has its turn, cause `requested`; with `queued` what waits, too. Never blocks."""
        actor = self._doors.find(self._agent, self.id)
        if actor is None:
            return
        for envelope in actor.runs() if queued else (actor.current,):
            if isinstance(envelope, Envelope):
                envelope.request_abort("requested", reason)

    def status(self) -> ConversationStatus:
        """Say what runs, in which phase and since when, and how many wait and how long."""
        actor = self._doors.find(self._agent, self.id)
        return ConversationStatus() if actor is None else actor.status()

    async def memory(self) -> Memory:
        """Return the memory as it is stored. Never waits for a run.

        Raises: what the store raised.

        Cancellation: changes nothing.
        """
        return await self._doors.memory(self._agent, self.id)

    async def history(
        self,
        before: int | None = None,
        after: int | None = None,
        limit: int = 50,
        anchor: int | None = None,
    ) -> Page:
        """Return a page of what was said, oldest first. Never waits for a run.

        Arguments: `before` and `after` are positions from an earlier page's `next`; `limit` is a number of entries;
        `anchor` an earlier page's anchor, so that what is appended meanwhile does not shift pages.

        Raises: what the store raised.

        Cancellation: changes nothing.
        """
        return await self._doors.history(self._agent, self.id, before=before, after=after, limit=limit, anchor=anchor)

    async def set_visibility(self, changes: Mapping[str, tuple[bool, bool]]) -> None:
        """Set entries' visibility: entry id to (in the transcript, in the model's context). One atomic commit.

        It is a turn of the conversation: it waits for what was accepted before it, and overlaps no run. Under a
        `ToolLoop`, `before_rewrite` is asked first, and `after_rewrite` is told later.

        Raises: `ConfigError` for what is no such mapping; `StoreError` for an unknown entry; `GoliathExtensionError`;
        `ReentrantRun` inside a run of this conversation; `MailboxFull`, `RuntimeClosed`. Then nothing is changed.

        Cancellation: it is wholly made or not at all; while it waits for its turn, not at all.
        """
        await self.thread.mutate(lambda changing: changing.set_visibility(changes))

    @property
    def thread(self) -> Thread:
        """The conversation's record and history, to be read and to be changed in one commit."""
        return self._doors.thread(self._agent, self.id)

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

        Raises: as `run`; `NotWaiting` for calls that do not wait, or not any more; `ConfigError` for answers that are
        none and for an agent with another loop.

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

        Raises: as `run`; `NothingToRegenerate` where there is no ask; `ConfigError` for another kind and for an agent
        with another loop.

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


def accept_resume(conversation: Conversation, answers: Mapping[str, Any], **options: Unpack[AskOptions]) -> Envelope:
    """As `Conversation.resume` up to where it waits, for doors that wait in another place. By `Engine.own`."""
    conversation._check_answers("resume", answers)
    return conversation._doors.accept_resume(conversation._agent, conversation.id, answers, waits=True, **options)
