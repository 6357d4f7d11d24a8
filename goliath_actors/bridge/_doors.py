"""The doors of a bridge, as an asyncio program uses them: those of a runtime, a conversation and a run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any, Literal, TypeVar, Unpack, cast, final

import attrs

from goliath_actors import Agent, Conversation, Run, RunResult, Runtime
from goliath_actors._acceptance import AskOptions
from goliath_actors._envelope import Envelope
from goliath_actors._facade import accept_resume
from goliath_actors._face import envelope_of
from goliath_actors._runtime import doors_of
from goliath_actors.abc import Store
from goliath_actors.errors import ConfigError, RuntimeClosed
from goliath_actors.events import Event
from goliath_actors.tools import ToolOutcome
from goliath_actors.values import ConversationStatus, DrainReport, Memory, Outcome, Page, RuntimeStatistics

from ._engine import Engine

__all__ = ["Asking", "Bridge", "BridgeConversation", "BridgeRun", "BridgeStream", "open_bridge"]

T = TypeVar("T")


class Asking(AskOptions, total=False):
    """What an ask may say for itself, and who is asked. Callables are called in the trio thread."""

    conversation_id: str | None
    agent: str | Agent[Any] | None


@final
@attrs.define(eq=False, repr=False)
class BridgeRun:
    """A run, seen from an asyncio loop. Made by `submit` and `stream`."""

    _engine: Engine
    _run: Run

    def __repr__(self) -> str:
        return f"<BridgeRun of {self._run!r}>"

    @property
    def id(self) -> str:
        """The run's id."""
        return self._run.id

    @property
    def conversation_id(self) -> str | None:
        """None in the default conversation."""
        return self._run.conversation_id

    @property
    def ask(self) -> str:
        """As it was accepted."""
        return self._run.ask

    @property
    def state(self) -> Literal["queued", "running", "finishing", "done"]:
        """As it is now; it may be another in the next moment, since the run goes on in its thread."""
        return self._run.state

    @property
    def outcome(self) -> Outcome | None:
        """How it ended, once it is `done`."""
        return self._run.outcome

    def abort(self, reason: str = "") -> None:
        """Ask the run to end, cause `requested`. Never blocks."""
        self._engine.post(partial(self._run.abort, reason))

    async def wait(self) -> RunResult:
        """Wait for the run's reply, as `Run.wait`.

        Raises: as `Run.wait`; `RuntimeClosed` when the bridge's block has ended.

        Cancellation: leaves the run alone; a wait does not own it.
        """
        envelope = envelope_of(self._run)
        if envelope.replied:  # also when the thread is over
            return envelope.unwrap()
        return await self._engine.ask(lambda _: self._run, Run.wait)

    async def events(self) -> AsyncIterator[Event]:
        """Iterate over the run's events from its start, ending after `RunFinished`.

        A reader that is slow gets text deltas merged and nothing else dropped; it cannot affect the run. Leaving early
        needs no clean-up.

        Raises: `RuntimeClosed` when the bridge's block has ended.
        """
        pump = self._engine.pump(self._run)
        try:
            while batch := await pump.take():
                for event in batch:
                    yield event
        finally:
            pump.stop()


@final
class BridgeStream:
    """One ask for the length of a block: `async with bridge.stream(...) as run`. Leaving early aborts the run.

    Or iterate over it: `async for event in bridge.stream(...)` gives the run's events; leaving the loop early aborts
    it, too: at once if the iteration is closed (`contextlib.aclosing`, a cancelled task), else when it is collected.
    """

    __slots__ = ("_engine", "_run", "_submit")

    def __init__(self, engine: Engine, submit: Callable[[], Awaitable[BridgeRun]]) -> None:
        self._engine = engine
        self._submit = submit
        self._run: BridgeRun | None = None

    async def __aenter__(self) -> BridgeRun:
        if self._run is not None:
            raise ConfigError("a stream block can be entered once; call stream(...) again for another run")
        self._run = await self._submit()
        return self._run

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._run is not None
        run = self._run._run
        # A thread that is over has no run left.
        with suppress(RuntimeClosed):
            await self._engine.ask(lambda _: run, _leave, leave=lambda: None)

    async def __aiter__(self) -> AsyncIterator[Event]:
        async with self as run:
            async for event in run.events():
                yield event  # noqa: ASYNC119  # asyncio closes generators that are left; the docstring says when


async def _leave(run: Run) -> None:
    envelope = envelope_of(run)
    if not envelope.over and not envelope.replied:
        await envelope.abandon()


@final
@attrs.frozen(eq=False)
class Bridge:
    """A runtime's doors for asyncio. Made by `open_bridge`; usable from every event loop of the process."""

    _engine: Engine

    async def run(self, ask: str, **options: Unpack[Asking]) -> RunResult:
        """Ask a conversation and wait for the result, as `Runtime.run`. Asks are accepted in the order of the calls.

        Raises: as `Runtime.run`, errors of the application as the same object; `RuntimeClosed` when the bridge is over.

        Cancellation: aborts the run (cause `caller`) and goes on only when its observers were told; while it is
        queued, at once.
        """
        agent, conversation_id = options.pop("agent", None), options.pop("conversation_id", None)
        speaking = cast(AskOptions, options)
        return await self._own(
            lambda runtime: doors_of(runtime).accept(agent, conversation_id, ask, waits=True, **speaking)
        )

    async def submit(self, ask: str, **options: Unpack[Asking]) -> BridgeRun:
        """Have an ask accepted without waiting for its run. Raises as `Runtime.submit`.

        Cancellation: if it was accepted all the same, the run is aborted.
        """
        return await self._submit(lambda runtime: runtime.submit(ask, **options))

    def stream(self, ask: str, **options: Unpack[Asking]) -> BridgeStream:
        """Ask for the length of an `async with` block, or of an `async for` over the events. Raises as `run`.

        Cancellation: leaving before the run is over aborts it (cause `caller`), and goes on when observers were told.
        """
        return BridgeStream(self._engine, partial(self.submit, ask, **options))

    def conversation(
        self, conversation_id: str | None = None, agent: str | Agent[Any] | None = None
    ) -> BridgeConversation:
        """Return one conversation's doors. What is wrong with the id or the agent is raised by the doors."""
        return BridgeConversation(self, conversation_id, agent)

    async def invoke_tool(
        self,
        name: str,
        input: Mapping[str, Any],
        *,
        agent: str | Agent[Any] | None = None,
        context: Any = None,
        confirm: Callable[..., Any] | None = None,
    ) -> ToolOutcome:
        """Call one tool through the same gate as a run, as `Runtime.invoke_tool`.

        Cancellation: the tool unwinds; a write that had begun may have happened.
        """
        return await self._engine.ask(
            lambda runtime: runtime,
            lambda runtime: runtime.invoke_tool(name, input, agent=agent, context=context, confirm=confirm),
        )

    async def statistics(self) -> RuntimeStatistics:
        """Return the runtime's counts, now."""
        return await self._engine.ask(lambda runtime: runtime.statistics())

    async def drain(self, grace: float) -> DrainReport:
        """Refuse new asks, wait up to `grace` seconds for the accepted ones, abort the rest, as `Runtime.drain`.

        Cancellation: the runtime stays closed for new asks.
        """
        return await self._engine.ask(lambda runtime: runtime, lambda runtime: runtime.drain(grace))

    async def wait_closed(self) -> None:
        """Wait until the runtime is over, be it by an error of its own: a server's word to stop."""
        await self._engine.ended()

    async def _own(self, accept: Callable[[Runtime], Envelope]) -> RunResult:
        # Accepted as what its asker waits for, and awaited so: a run may be asking, through `call_asyncio` (R4, R14).
        def start(runtime: Runtime) -> tuple[Runtime, Envelope]:
            return runtime, accept(runtime)

        def wait(accepted: tuple[Runtime, Envelope]) -> Awaitable[RunResult]:
            runtime, envelope = accepted
            return doors_of(runtime).own(envelope)

        return await self._engine.ask(start, wait)

    async def _submit(self, accept: Callable[[Runtime], Run]) -> BridgeRun:
        accepted: list[Run] = []

        def start(runtime: Runtime) -> Run:
            accepted.append(accept(runtime))
            return accepted[0]

        def leave() -> None:
            for run in accepted:
                envelope_of(run).request_abort("caller")

        return BridgeRun(self._engine, await self._engine.ask(start, leave=leave))


@final
@attrs.frozen(eq=False)
class BridgeConversation:
    """One conversation's doors for asyncio, as `Conversation`'s. Making this object does nothing."""

    _bridge: Bridge
    id: str | None
    _agent: str | Agent[Any] | None

    def _find(self, runtime: Runtime) -> Conversation:
        return runtime.conversation(self.id, self._agent)

    async def run(self, ask: str, **options: Unpack[AskOptions]) -> RunResult:
        """Ask and wait, as `Bridge.run`.

        Cancellation: aborts the run and goes on once its observers were told.
        """
        return await self._bridge._own(
            lambda runtime: doors_of(runtime).accept(self._agent, self.id, ask, waits=True, **options)
        )

    async def submit(self, ask: str, **options: Unpack[AskOptions]) -> BridgeRun:
        """Ask without waiting, as `Bridge.submit`."""
        return await self._bridge._submit(lambda runtime: self._find(runtime).submit(ask, **options))

    def stream(self, ask: str, **options: Unpack[AskOptions]) -> BridgeStream:
        """Ask for the length of a block, as `Bridge.stream`."""
        return BridgeStream(self._bridge._engine, partial(self.submit, ask, **options))

    async def abort(self, reason: str = "", queued: bool = False) -> None:
        """End what has its turn, cause `requested`; with `queued` what waits, too. Does not wait for the end."""
        await self._bridge._engine.ask(lambda runtime: self._find(runtime).abort(reason, queued))

    async def status(self) -> ConversationStatus:
        """Say what runs, in which phase and since when, and how many wait and how long."""
        return await self._bridge._engine.ask(lambda runtime: self._find(runtime).status())

    async def memory(self) -> Memory:
        """Return the memory as it is stored. Never waits for a run."""
        return await self._bridge._engine.ask(self._find, Conversation.memory)

    async def history(
        self, before: int | None = None, after: int | None = None, limit: int = 50, anchor: int | None = None
    ) -> Page:
        """Return a page of what was said, oldest first, as `Conversation.history`. Never waits for a run."""
        return await self._bridge._engine.ask(
            self._find, lambda conversation: conversation.history(before, after, limit, anchor)
        )

    async def set_visibility(self, changes: Mapping[str, tuple[bool, bool]]) -> None:
        """Set entries' visibility, as `Conversation.set_visibility`. One atomic commit."""
        await self._bridge._engine.ask(self._find, lambda conversation: conversation.set_visibility(changes))

    async def forget(self) -> None:
        """Abort what runs and what waits, each with its observers, then delete the record.

        Cancellation: only the wait ends; the conversation is forgotten all the same.
        """
        await self._bridge._engine.ask(self._find, Conversation.forget)

    async def steer(self, text: str, **options: Unpack[AskOptions]) -> BridgeRun:
        """Hand a text to the running run, or start one, as `Conversation.steer`. Needs a `ToolLoop`.

        Cancellation: changes nothing; the text was handed over, or refused.
        """
        run: Run = await self._bridge._engine.ask(
            lambda runtime: self._find(runtime).steer(text, **options), leave=lambda: None
        )
        return BridgeRun(self._bridge._engine, run)

    async def resume(self, answers: Mapping[str, Any], **options: Unpack[AskOptions]) -> RunResult:
        """Answer calls that wait and go on with their run, as `Conversation.resume`. Needs a `ToolLoop`.

        Cancellation: as of `run`.
        """
        return await self._bridge._own(lambda runtime: accept_resume(self._find(runtime), answers, **options))

    async def submit_resume(self, answers: Mapping[str, Any], **options: Unpack[AskOptions]) -> BridgeRun:
        """As `resume`, without waiting."""
        return await self._bridge._submit(lambda runtime: self._find(runtime).submit_resume(answers, **options))

    async def rewrite(self, kind: Literal["regenerate"], **options: Unpack[AskOptions]) -> RunResult:
        """Drop what was said behind the last ask and answer it anew, as `Conversation.rewrite`. Needs a `ToolLoop`.

        Cancellation: as of `run`.
        """
        return await self._bridge._engine.ask(self._find, lambda conversation: conversation.rewrite(kind, **options))


@asynccontextmanager
async def open_bridge(
    *agents: Agent[Any],
    store: Store | None = None,
    max_running: int | None = None,
    mailbox_capacity: int = 64,
    max_waiting: int | None = None,
    finish_timeout: float | None = None,
    idle_timeout: float | None = 300.0,
    grace: float | None = None,
) -> AsyncIterator[Bridge]:
    """Open a runtime in a trio thread of its own, for the length of an `async with` block of an asyncio program.

    Arguments: as `open_runtime`; `grace`, how many seconds runs that were accepted have when the block ends, before
    they are aborted (cause `shutdown`); None waits for all of them.

    Agents, their tools, hooks and callbacks run in that thread, on trio; they reach asyncio code with `call_asyncio`.

    Raises: what opening the runtime raises, and when the block ends what ended the runtime.

    Cancellation: of the block aborts every run (cause `shutdown`), and passes once all observers were told and the
    thread has ended. So does an exception out of it.
    """
    engine = Engine(
        agents,
        {
            "store": store,
            "max_running": max_running,
            "mailbox_capacity": mailbox_capacity,
            "max_waiting": max_waiting,
            "finish_timeout": finish_timeout,
            "idle_timeout": idle_timeout,
        },
        grace,
    )
    await engine.start()
    at_once = True
    try:
        yield Bridge(engine)
        at_once = False
    finally:
        await engine.stop(at_once=at_once)
    if engine.error is not None:
        raise engine.error
