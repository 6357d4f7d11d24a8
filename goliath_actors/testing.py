"""Fakes that ship to users: scripted models, gates, a journal of hooks, failing stores, and a checker of events.

Built on the public contracts only.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import attrs
import trio

from ._conformance import StoreCheck, StoreConformance, store_conformance
from ._grammar import check_events
from .abc import (
    Change,
    Entry,
    ModelDone,
    ModelEvent,
    ModelRequest,
    ModelText,
    ModelToolCall,
    ModelUsage,
    Record,
    Store,
)
from .errors import ConfigError, ScriptExhausted
from .hooks import HOOKS, Composition, Extension
from .values import Page, Usage

__all__ = [
    "FailingStore",
    "Gate",
    "Journal",
    "ScriptExhausted",
    "ScriptedModel",
    "StoreCheck",
    "StoreConformance",
    "ToolCalls",
    "check_events",
    "store_conformance",
    "tool_calls",
]


@attrs.frozen
class ToolCalls:
    """A scripted reply of native tool calls."""

    calls: tuple[tuple[str, Any], ...]
    text: str = ""


def tool_calls(*calls: tuple[str, Any], text: str = "") -> ToolCalls:
    """Return a scripted reply that calls tools: pairs of a name and arguments (a mapping, or text as it is)."""
    return ToolCalls(calls, text)


Reply: TypeAlias = "str | Mapping[str, Any] | Exception | ToolCalls | Callable[[ModelRequest], Any]"

_REPLIES = (str, Mapping, Exception, ToolCalls)
_REPLY_WORDS = "a reply is a str, a mapping, an exception instance, tool_calls(...) or a callable"


def _script(replies: object) -> list[Reply]:
    """Return the replies in order.

    Raises: `ConfigError` for a single reply in place of a list, and for what is no reply.
    """
    if isinstance(replies, _REPLIES) or not isinstance(replies, Iterable):
        raise ConfigError(f"ScriptedModel takes a list of replies; write ScriptedModel([{replies!r}])")
    script = list(replies)
    for index, reply in enumerate(script):
        if not isinstance(reply, _REPLIES) and not callable(reply):
            raise ConfigError(f"ScriptedModel: replies[{index}] is {reply!r}; {_REPLY_WORDS}")
    return script


@attrs.define(eq=False)
class ScriptedModel:
    """A model that plays a list of replies, one a call, in order.

    A `str` is text, a mapping is JSON text, an exception instance is raised, `tool_calls(...)` are native calls, a
    callable gets the request and returns (or awaits) one of these. `requests` records every request. `chunk` is the
    number of characters a piece of text has when it streams (0: all in one).

    Raises: `ConfigError` at once for what is no list of replies. While it plays, `ScriptExhausted` when it is asked
    more often than the script says, or a callable gives what is no reply.
    """

    replies: Iterable[Reply]
    retries: int = 0
    name: str = "scripted"
    chunk: int = 0
    window: int | None = None
    usage: Usage | None = None
    requests: list[ModelRequest] = attrs.field(factory=list, init=False)
    active: int = attrs.field(default=0, init=False)
    _left: list[Reply] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._left = _script(self.replies)[::-1]

    @property
    def remaining(self) -> int:
        """How many replies have not been asked for."""
        return len(self._left)

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        """Play the next reply.

        Cancellation: honoured before the reply, and between its pieces; the reply counts as played.
        """
        self.requests.append(request)
        self.active += 1
        try:
            yield self._play(request)
        finally:
            self.active -= 1

    async def _play(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        await trio.lowlevel.checkpoint()
        if not self._left:
            raise ScriptExhausted(
                f"the script has no reply for call {len(self.requests)} (role {request.role!r}); it was given "
                f"{len(self.requests) - 1}"
            )
        reply: Any = self._left.pop()
        while callable(reply):
            reply = reply(request)
            if inspect.isawaitable(reply):
                reply = await reply
        if not isinstance(reply, _REPLIES):
            # No other error: a model's would look like an outage, and this is the test's mistake.
            raise ScriptExhausted(f"the callable for call {len(self.requests)} gave {reply!r}; {_REPLY_WORDS}")
        if isinstance(reply, Exception):
            raise reply
        reason = "stop"
        if isinstance(reply, ToolCalls):
            reason = "tool_calls"
            if reply.text:
                yield ModelText(reply.text)
            for index, (name, arguments) in enumerate(reply.calls):
                text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
                yield ModelToolCall(index, f"call-{len(self.requests)}-{index + 1}", name, text)
        else:
            text = reply if isinstance(reply, str) else json.dumps(reply, ensure_ascii=False)
            size = self.chunk or max(1, len(text))
            for start in range(0, len(text), size):
                if start:
                    await trio.lowlevel.checkpoint()
                yield ModelText(text[start : start + size])
        if self.usage is not None:
            yield ModelUsage(self.usage)
        yield ModelDone(reason)


@attrs.define(eq=False)
class Gate:
    """A barrier that a test opens. Awaiting it says "somebody is here" and waits.

    Use `gate.then(reply)` as a scripted reply, `await gate.pass_through()` inside a tool or hook, and in the test
    `await gate.wait_reached()`, then `gate.open()`.
    """

    reached: int = 0
    _arrived: trio.Event = attrs.Factory(trio.Event)
    _opened: trio.Event = attrs.Factory(trio.Event)

    def arm(self) -> Gate:
        """Close the gate again and forget who was here; returns itself. Who still waits goes on waiting for `open`."""
        self.reached = 0
        # An event that was never set is kept: somebody may be waiting for it.
        if self._arrived.is_set():
            self._arrived = trio.Event()
        if self._opened.is_set():
            self._opened = trio.Event()
        return self

    def open(self) -> None:
        """Let everybody through, now and later."""
        self._opened.set()

    async def pass_through(self) -> None:
        """Say that somebody is here, and wait until the gate is open.

        Cancellation: honoured; the arrival stays counted.
        """
        self.reached += 1
        self._arrived.set()
        await self._opened.wait()

    async def wait_reached(self) -> None:
        """Wait until somebody is at the gate."""
        await self._arrived.wait()

    def then(self, reply: Any) -> Callable[[ModelRequest], Awaitable[Any]]:
        """Return a scripted reply that passes the gate first."""

        async def play(request: ModelRequest) -> Any:
            await self.pass_through()
            return reply

        return play


def _detail(row: str, question: Any) -> Any:
    if row == "on_finish":
        return question.outcome.status
    if row == "on_error":
        return question.origin
    field = HOOKS[row].field
    return getattr(question, field) if field else question


class Journal(Extension[Any]):
    """An extension that records every hook it hears, in order, and never has an opinion.

    `heard(row)` is a list of (ask, detail): the status for `on_finish`, the origin for `on_error`, else the field
    that an answer would replace, or the question; None for `transform_stream`, whose events pass unheard. `rows` is the
    order of rows, `questions` everything.
    """

    def __init__(self, name: str = "journal") -> None:
        self.name = name
        self.questions: list[tuple[str, Any, Any]] = []

    @property
    def rows(self) -> list[str]:
        """The rows heard, in order."""
        return [row for row, _, _ in self.questions]

    def heard(self, row: str, conversation_id: str | None = None) -> list[tuple[str, Any]]:
        """Return (ask, detail) of every time that `row` was heard, of one conversation if it is named."""
        return [
            (ctx.ask, _detail(row, question))
            for name, ctx, question in self.questions
            if name == row and (conversation_id is None or ctx.conversation_id == conversation_id)
        ]

    def clear(self) -> None:
        """Forget what was heard."""
        self.questions.clear()


def _recorder(row: str) -> Any:
    def record(self: Journal, ctx: Any, question: Any, *rest: Any) -> None:
        self.questions.append((row, ctx, question))

    record.__name__ = row
    record.__doc__ = f"Record `{row}`."
    return record


def _listener(row: str) -> Any:
    def listen(self: Journal, ctx: Any, events: Any, control: Any) -> None:
        self.questions.append((row, ctx, None))

    listen.__name__ = row
    listen.__doc__ = f"Record that `{row}` was asked; every event passes."
    return listen


for _row in HOOKS.values():
    _pipes = _row.composition is Composition.PIPE
    setattr(Journal, _row.name, _listener(_row.name) if _pipes else _recorder(_row.name))


@attrs.define(eq=False)
class FailingStore:
    """A store in front of another that raises what it is told to. `fail` maps a method's name to the exceptions that
    its next calls raise, in order; an exception that is not in a list is raised every time; None lets a call pass."""

    inner: Store
    fail: Mapping[str, Exception | Sequence[Exception | None]]
    calls: list[str] = attrs.field(factory=list, init=False)
    _left: dict[str, list[Exception | None]] = attrs.field(factory=dict, init=False)

    @property
    def durable(self) -> bool:
        """As the inner store."""
        return bool(getattr(self.inner, "durable", False))

    async def __aenter__(self) -> FailingStore:
        """Enter the inner store, if it can be entered."""
        if hasattr(type(self.inner), "__aenter__"):
            await self.inner.__aenter__()  # type: ignore[attr-defined]  # just asked
        return self

    async def __aexit__(self, *error: object) -> None:
        """Leave the inner store."""
        if hasattr(type(self.inner), "__aexit__"):
            await self.inner.__aexit__(*error)  # type: ignore[attr-defined]  # just asked

    async def _enter(self, method: str) -> None:
        self.calls.append(method)
        plan = self.fail.get(method)
        if plan is None:
            return
        await trio.lowlevel.checkpoint()
        if isinstance(plan, Exception):
            raise plan
        left = self._left.setdefault(method, list(plan)[::-1])
        error = left.pop() if left else None
        if error is not None:
            raise error

    async def load(self, key: str) -> Record:
        """As the inner store, or the planned error."""
        await self._enter("load")
        return await self.inner.load(key)

    async def commit(self, key: str, change: Change, expect: int | None = None, token: int | None = None) -> Record:
        """As the inner store, or the planned error; then nothing was changed."""
        await self._enter("commit")
        fence = {} if token is None else {"token": token}
        return await self.inner.commit(key, change, expect=expect, **fence)

    async def entries(
        self,
        key: str,
        before: int | None = None,
        after: int | None = None,
        limit: int = 50,
        anchor: int | None = None,
    ) -> Page:
        """As the inner store, or the planned error."""
        await self._enter("entries")
        return await self.inner.entries(key, before=before, after=after, limit=limit, anchor=anchor)

    async def forget(self, key: str) -> None:
        """As the inner store, or the planned error."""
        await self._enter("forget")
        await self.inner.forget(key)

    async def keys(self, prefix: str = "", after: str | None = None, limit: int = 100) -> Sequence[str]:
        """As the inner store, or the planned error."""
        await self._enter("keys")
        return await self.inner.keys(prefix, after, limit)

    async def find(self, key: str, idempotency_key: str) -> Entry | None:
        """As the inner store, or the planned error."""
        await self._enter("find")
        return await self.inner.find(key, idempotency_key)

    async def acquire(self, key: str, owner: str, ttl: float) -> int | None:
        """As the inner store, or the planned error."""
        await self._enter("acquire")
        return await self.inner.acquire(key, owner, ttl)

    async def release(self, key: str, owner: str) -> None:
        """As the inner store, or the planned error."""
        await self._enter("release")
        await self.inner.release(key, owner)
