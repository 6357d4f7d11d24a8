"""`Audit`: one record as something begins and one as it ends: runs, model calls, tool calls, fallbacks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, TypeAlias

import attrs
import trio

from goliath_actors.abc import ModelResponse
from goliath_actors.errors import ConfigError
from goliath_actors.hooks import (
    AfterAnswer,
    AfterTool,
    AroundModel,
    BeforeFallback,
    BeforeRun,
    BeforeTool,
    Extension,
    HookContext,
    OnFinish,
)
from goliath_actors.values import Outcome

__all__ = ["Audit", "AuditRecord"]

Of: TypeAlias = Literal["run", "model", "tool", "fallback"]


@attrs.frozen
class AuditRecord:
    """Something began or ended.

    Fields:
      of: `run`, `model`, `tool` or `fallback`.
      edge: `enter` or `exit`; to every enter there is one exit with the same `of`, `run_id` and `id`.
      id: of a run its id, of a tool call its call's; of model calls and fallbacks a number that counts from 1 in a run.
      name: the agent's, the tool's, the role of a model call, the reason for a fallback.
      at: seconds on trio's clock.
      seconds: from enter to exit; None on an enter. Of a tool call, its confirmation included.
      outcome: of an exit. Of a run its status; of a tool call its step's; of the rest `completed`, `error`, or, if the
        run ended inside it, the run's status.
      detail: what was asked, said or raised, by name: see the guide. What a redaction callback changes is this.
    """

    of: Of
    edge: Literal["enter", "exit"]
    run_id: str
    conversation_id: str | None
    agent: str
    id: str
    name: str
    at: float
    seconds: float | None = None
    outcome: str | None = None
    # Any: JSON data, and what tools take.
    detail: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.define
class _Book:
    """What is open in one run: enters without an exit, oldest first."""

    open: dict[tuple[Of, str], AuditRecord] = attrs.field(factory=dict)
    calls: int = 0
    problem: Exception | None = None


class Audit(Extension[Any]):
    """Writes a record as each run, model call, tool call and fallback begins and as it ends, whichever way.

    Arguments:
      write: called with each `AuditRecord`, in order. Plain and quick: hand records on, for example with a memory
        channel's `send_nowait`, to do more with them.
      redact: called with each record first; returns the one that is written, None for no record.
      name: the extension's name; needed where an agent has two of these.

    Register it first: then it hears of every tool call and surrounds every model call, whatever others decide. Calls
    that it hears of only when they are over have an enter just before their exit. Nothing is ever vetoed or changed.

    What the callbacks raise changes nothing about the run; the first of it is among the run's diagnostics. A record
    that could not be redacted is written without its detail.

    Raises: `ConfigError`.
    """

    def __init__(
        self,
        write: Callable[[AuditRecord], object],
        *,
        redact: Callable[[AuditRecord], AuditRecord | None] | None = None,
        name: str = "audit",
    ) -> None:
        if not callable(write):
            raise ConfigError(f"Audit takes a callable that writes records, not {write!r}")
        if redact is not None and not callable(redact):
            raise ConfigError(f"Audit(redact=...) must be callable, not {redact!r}")
        self.name = name
        self._write = write
        self._redact = redact

    # --- runs -------------------------------------------------------------------------------------------------------

    def before_run(self, ctx: HookContext[Any], question: BeforeRun) -> None:
        """A run began; a steered or resumed one goes on under the same record."""
        if ("run", ctx.run_id) not in _book(ctx).open:
            self._enter(ctx, "run", ctx.run_id, ctx.agent_name, {"ask": ctx.ask, "entry": question.entry})

    def on_finish(self, ctx: HookContext[Any], question: OnFinish) -> None:
        """A run is over, and everything in it."""
        book, outcome = _book(ctx), question.outcome
        for of, ident in reversed([key for key in book.open if key[0] != "run"]):
            self._exit(ctx, of, ident, outcome.status, {})
        if ("run", ctx.run_id) not in book.open:  # it ended before it began
            self._enter(ctx, "run", ctx.run_id, ctx.agent_name, {"ask": ctx.ask, "entry": "run"})
        self._exit(ctx, "run", ctx.run_id, outcome.status, _ending(outcome))
        if book.problem is not None:
            raise book.problem

    # --- what is in them --------------------------------------------------------------------------------------------

    async def around_model(
        self, ctx: HookContext[Any], question: AroundModel, call_next: Callable[..., Awaitable[ModelResponse]]
    ) -> ModelResponse:
        """One attempt of a model call. If the run ends inside it, so does its record."""
        request, book = question.request, _book(ctx)
        book.calls += 1
        ident = str(book.calls)
        self._enter(ctx, "model", ident, request.role, {"attempt": question.attempt, "prompt": request.text})
        try:
            response = await call_next()
        except Exception as error:
            self._exit(ctx, "model", ident, "error", {"error": _words(error)})
            raise
        usage = response.usage
        detail: dict[str, Any] = {"text": response.message.text, "finish_reason": response.finish_reason}
        if response.message.tool_calls:
            detail["tools"] = [call.name for call in response.message.tool_calls]
        if usage is not None:
            detail |= {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
        self._exit(ctx, "model", ident, "completed", detail)
        return response

    def before_tool(self, ctx: HookContext[Any], question: BeforeTool) -> None:
        """A tool call came to its gate."""
        self._enter(ctx, "tool", question.call_id, question.tool.name, {"input": question.input})

    def after_tool(self, ctx: HookContext[Any], question: AfterTool) -> None:
        """A tool call ended."""
        if ("tool", question.call_id) not in _book(ctx).open:
            self._enter(ctx, "tool", question.call_id, question.tool.name, {"input": question.input})
        outcome = question.outcome
        # The input again: those behind this extension may have rewritten it, and this is what was executed.
        detail: dict[str, Any] = {"input": question.input, "result": question.result}
        if outcome.reason is not None:
            detail["reason"] = outcome.reason
        if outcome.extension is not None:
            detail["extension"] = outcome.extension
        if outcome.error is not None:
            detail["error"] = _words(outcome.error)
        self._exit(ctx, "tool", question.call_id, outcome.status, detail)

    def before_fallback(self, ctx: HookContext[Any], question: BeforeFallback) -> None:
        """A fallback is about to be asked."""
        book, request = _book(ctx), question.request
        book.calls += 1
        self._enter(ctx, "fallback", str(book.calls), request.reason, {"ask": request.ask, "error": request.error})

    def after_answer(self, ctx: HookContext[Any], question: AfterAnswer) -> None:
        """A fallback has answered."""
        for of, ident in [key for key in _book(ctx).open if key[0] == "fallback"]:
            self._exit(ctx, of, ident, "completed", {"text": question.text})

    # --- records ----------------------------------------------------------------------------------------------------

    def _enter(self, ctx: HookContext[Any], of: Of, ident: str, name: str, detail: Mapping[str, Any]) -> None:
        record = AuditRecord(
            of,
            "enter",
            ctx.run_id,
            ctx.conversation_id,
            ctx.agent_name,
            ident,
            name,
            trio.current_time(),
            detail=detail,
        )
        _book(ctx).open[of, ident] = record
        self._put(ctx, record)

    def _exit(self, ctx: HookContext[Any], of: Of, ident: str, outcome: str, detail: Mapping[str, Any]) -> None:
        begun, now = _book(ctx).open.pop((of, ident)), trio.current_time()
        self._put(ctx, attrs.evolve(begun, edge="exit", at=now, seconds=now - begun.at, outcome=outcome, detail=detail))

    def _put(self, ctx: HookContext[Any], record: AuditRecord) -> None:
        book = _book(ctx)
        if self._redact is not None:
            try:
                redacted = self._redact(record)
            except Exception as error:  # noqa: BLE001  # as below; what cannot be redacted is not shown
                book.problem = book.problem or error
                redacted = attrs.evolve(record, detail={})
            if redacted is None:
                return
            record = redacted
        try:
            self._write(record)
        except Exception as error:  # noqa: BLE001  # an audit changes nothing; `on_finish` reports it
            book.problem = book.problem or error


def _book(ctx: HookContext[Any]) -> _Book:
    book: _Book = ctx.state.setdefault("book", _Book())
    return book


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _ending(outcome: Outcome) -> dict[str, Any]:
    usage = outcome.usage
    detail: dict[str, Any] = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
    result = outcome.result
    if result is not None:
        detail |= {"text": result.text, "handled_by": result.handled_by, "reason": result.reason}
        if result.stopped is not None:
            detail["stopped_by"] = result.stopped.extension
    if outcome.error is not None:
        detail |= {"error": _words(outcome.error), "origin": outcome.origin}
    if outcome.abort is not None:
        detail["cause"] = outcome.abort.cause
    return detail
