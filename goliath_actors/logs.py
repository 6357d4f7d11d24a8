"""`Logs`: a line for each run, model call and tool call, through the standard `logging`, with ids in `extra`.

A side door: built on the public hooks alone.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, final

import trio

from goliath_actors.abc import ModelResponse
from goliath_actors.errors import ConfigError
from goliath_actors.events import RunStarted
from goliath_actors.hooks import (
    AfterResponse,
    AfterTool,
    AroundModel,
    AroundTool,
    BeforeFallback,
    BeforeRun,
    Extension,
    HookContext,
    OnFinish,
)
from goliath_actors.values import Outcome, Usage

__all__ = ["Logs"]

CONTENT_CHARS = 2000  # of one text in a record, when contents are logged: a line of a log is no place for a book

# Any, below: the application's context, what tools take and return, and fields of log records.


@final
class Logs(Extension[Any]):
    """Writes a log record as each run begins and ends, each model call ends and each tool call ends.

    The message is for people. For programs everything is in `extra`, as attributes of the record: `event`
    (`run-started`, `run-finished`, `model-finished`, `tool-finished`, `fallback-started`), `run_id`, `conversation_id`
    (None in the default conversation), `agent`, and what belongs to the event:

    - `run-finished`: `status`, `reason`, `cause` of an abort, `error_type`, `origin`, `handled_by`, `seconds` of work,
      `waited` seconds before it, `input_tokens`, `output_tokens`, `cached_tokens`, `reasoning_tokens`.
    - `model-finished`: `role`, `model`, `attempt`, `seconds`, `error_type`, and the tokens.
    - `tool-finished`: `tool`, `call_id`, `status`, `reason` (of a skip), `seconds` of execution, `error_type`.
    - `fallback-started`: `reason`.

    Runs that failed are logged as errors; aborts by a deadline or a shutdown, and failed calls, as warnings; other runs
    at `level`, other calls and beginnings at `DEBUG`. Seconds are on trio's clock, but for `waited`.

    What was asked, said and raised is not logged, unless `contents=True`: then `ask`, `text`, `input`, `result` and
    `error` are there too, as texts of at most 2,000 characters. What a logger raises changes nothing about the run; the
    first of it is among the run's diagnostics.

    Register it first. Handlers run inline: for a slow one take `logging.handlers.QueueHandler`.

    Arguments:
      logger: a logger or its name.
      level: of runs that went well.
      contents: whether texts are logged.
      name: the extension's name.

    Raises: `ConfigError`.
    """

    def __init__(
        self,
        logger: logging.Logger | str = "goliath_actors.logs",
        *,
        level: int = logging.INFO,
        contents: bool = False,
        name: str = "logs",
    ) -> None:
        if not isinstance(logger, str | logging.Logger):
            raise ConfigError(f"Logs takes a logger or its name, not {logger!r}")
        if isinstance(level, bool) or not isinstance(level, int):
            raise ConfigError(f"Logs(level=...) must be a number such as logging.INFO, not {level!r}")
        if not isinstance(contents, bool):
            raise ConfigError(f"Logs(contents=...) must be True or False, not {contents!r}")
        self.name = name
        self._logger = logging.getLogger(logger) if isinstance(logger, str) else logger
        self._level = level
        self._contents = contents

    # --- runs -------------------------------------------------------------------------------------------------------

    def before_run(self, ctx: HookContext[Any], question: BeforeRun) -> None:
        """A run began; one that is handed a text goes on."""
        if "began" in ctx.state:
            return
        ctx.state["began"] = trio.current_time()
        fields = {"event": "run-started", "entry": question.entry, **self._texts(ask=question.ask)}
        self._tell(ctx, logging.DEBUG, "run %s began", (ctx.run_id,), fields)

    def before_fallback(self, ctx: HookContext[Any], question: BeforeFallback) -> None:
        """The run is handed over."""
        reason = question.request.reason
        fields = {"event": "fallback-started", "reason": reason}
        self._tell(ctx, logging.DEBUG, "run %s asks the fallback: %s", (ctx.run_id, reason), fields)

    def on_finish(self, ctx: HookContext[Any], question: OnFinish) -> None:
        """A run is over, any way."""
        outcome = question.outcome
        began = ctx.state.get("began")
        seconds = 0.0 if began is None else trio.current_time() - began
        fields = {
            "event": "run-finished",
            "status": outcome.status,
            "reason": _reason(outcome),
            "cause": None if outcome.abort is None else outcome.abort.cause,
            "error_type": _kind(outcome.error),
            "origin": outcome.origin,
            "handled_by": None if outcome.result is None else outcome.result.handled_by,
            "seconds": seconds,
            "waited": _waited(outcome),
            **_tokens(outcome.usage),
            **self._texts(text=None if outcome.result is None else outcome.result.text, error=outcome.error),
        }
        why = fields["cause"] or fields["error_type"] or fields["reason"]
        words = "run %s: %s in %.3f s" if why is None else "run %s: %s (%s) in %.3f s"
        values = (ctx.run_id, outcome.status, *(() if why is None else (why,)), seconds)
        self._tell(ctx, self._level_of(outcome), words, values, fields)
        if "problem" in ctx.state:
            raise ctx.state["problem"]

    def _level_of(self, outcome: Outcome) -> int:
        if outcome.abort is not None:
            return logging.WARNING if outcome.abort.cause in ("deadline", "shutdown") else self._level
        return logging.ERROR if outcome.error is not None else self._level

    # --- calls ------------------------------------------------------------------------------------------------------

    async def around_model(
        self, ctx: HookContext[Any], question: AroundModel, call_next: Callable[..., Awaitable[ModelResponse]]
    ) -> ModelResponse:
        """A model call begins."""
        ctx.state["model"] = (trio.current_time(), question.attempt)
        return await call_next()

    def after_response(self, ctx: HookContext[Any], question: AfterResponse) -> None:
        """A model call is over."""
        began, attempt = ctx.state.get("model", (trio.current_time(), 0))
        seconds = trio.current_time() - began
        fields = {
            "event": "model-finished",
            "role": question.role,
            "model": question.model,
            "attempt": attempt,
            "seconds": seconds,
            "error_type": _kind(question.error),
            **_tokens(question.usage or Usage()),
            **self._texts(text=None if question.message is None else question.message.text, error=question.error),
        }
        ended = _kind(question.error) or "ok"
        level = logging.DEBUG if question.error is None else logging.WARNING
        words = "run %s: model %s, %s: %s in %.3f s"
        self._tell(ctx, level, words, (ctx.run_id, question.model, question.role, ended, seconds), fields)

    async def around_tool(
        self, ctx: HookContext[Any], question: AroundTool, call_next: Callable[[], Awaitable[Any]]
    ) -> Any:
        """A tool is executed."""
        began = trio.current_time()
        try:
            return await call_next()
        finally:
            ctx.state[f"tool:{question.call_id}"] = trio.current_time() - began

    def after_tool(self, ctx: HookContext[Any], question: AfterTool) -> None:
        """A tool call is over, executed or not."""
        outcome = question.outcome
        seconds = ctx.state.pop(f"tool:{question.call_id}", 0.0)
        fields = {
            "event": "tool-finished",
            "tool": question.tool.name,
            "call_id": question.call_id,
            "status": outcome.status,
            "reason": outcome.reason,
            "seconds": seconds,
            "error_type": _kind(outcome.error),
            **self._texts(input=question.input, result=question.result, error=outcome.error),
        }
        ended = f"{outcome.status} ({fields['error_type'] or outcome.reason})" if outcome.error else outcome.status
        level = logging.WARNING if outcome.status in ("failed", "unknown") else logging.DEBUG
        self._tell(
            ctx, level, "run %s: tool %s: %s in %.3f s", (ctx.run_id, question.tool.name, ended, seconds), fields
        )

    # --- records ----------------------------------------------------------------------------------------------------

    def _texts(self, **texts: Any) -> dict[str, str]:
        if not self._contents:
            return {}
        return {name: str(text)[:CONTENT_CHARS] for name, text in texts.items() if text is not None}

    def _tell(
        self, ctx: HookContext[Any], level: int, words: str, values: tuple[Any, ...], fields: dict[str, Any]
    ) -> None:
        extra = {"run_id": ctx.run_id, "conversation_id": ctx.conversation_id, "agent": ctx.agent_name, **fields}
        try:
            self._logger.log(level, words, *values, extra=extra)
        except Exception as error:  # noqa: BLE001  # a log changes nothing; `on_finish` reports it
            ctx.state.setdefault("problem", error)


def _kind(error: BaseException | None) -> str | None:
    return None if error is None else type(error).__qualname__


def _tokens(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cached_tokens": usage.cached_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
    }


def _reason(outcome: Outcome) -> str | None:
    result = outcome.result
    if result is None:
        return None
    return result.reason or (None if result.stopped is None else result.stopped.reason)


def _waited(outcome: Outcome) -> float:
    """Seconds between acceptance and the turn, as the events tell; all there was of a run that never had one."""
    trace = outcome.trace
    if not trace:
        return 0.0
    started = next((event for event in trace if isinstance(event, RunStarted)), trace[-1])
    return max(0.0, float(started.at - trace[0].at))
