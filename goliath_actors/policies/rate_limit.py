"""`RateLimit`: at most so many runs, model calls or tool calls in a time, counted across runs."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable
from fnmatch import fnmatchcase
from typing import Any, Literal

import attrs
import trio

from goliath_actors.abc import ModelResponse
from goliath_actors.errors import ConfigError
from goliath_actors.hooks import AroundModel, BeforeRun, BeforeTool, Deny, HookContext, Stop

from ._limits import Bucket, Limit, Window
from ._refusing import Refusing
from ._scope import Keyed, Scope, key_of, positive

__all__ = ["RateLimit"]


@attrs.define(eq=False)
class _Line:
    """Those who wait for one key, first come first served, and the limit that they wait for."""

    limit: Limit
    # Held by the first in line while it waits; trio's lock is fair.
    turn: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    waiting: int = attrs.field(default=0, init=False)

    def idle(self, now: float) -> bool:
        return self.waiting == 0 and self.limit.idle(now)

    async def pass_within(self, patience: float) -> float | None:
        """Wait for a place, if it is to be had within `patience` seconds.

        Returns: None with a place; without one, at once, the seconds after which there is one.

        Cancellation: no place was taken.
        """
        now = trio.current_time()
        seconds = self.limit.next(now, self.waiting) - now
        if seconds > patience:
            return seconds
        self.waiting += 1
        try:
            async with self.turn:
                # Nobody else takes a place meanwhile, so that it is free then.
                free = self.limit.next(trio.current_time())
                if free > trio.current_time():
                    await trio.sleep_until(free)
                self.limit.take(trio.current_time())
        finally:
            self.waiting -= 1
        return None


class RateLimit(Refusing):
    """At most `limit` in any `seconds`, for each key of `scope`. What is over it waits, or is refused.

    Arguments:
      limit: how many.
      seconds: in how many seconds, on trio's clock.
      of: what is counted. `runs`: asks, before anything is done for them. `model`: every attempt of a model call.
        `tools`: tool calls that reach this policy, whatever becomes of them.
      scope: whose they are: `conversation`, `agent`, `all` (of every agent that has this object), or a callable that
        takes the hook's context and returns a key, such as a user's id.
      over: `wait` for a place, in order of arrival; or `refuse` at once.
      max_wait: with `wait`, seconds after which nobody would wait any more: who would have to is refused at once.
      burst: None for a sliding window, in which the limit holds for any stretch of `seconds`; a number for a token
        bucket, which lets so many through at once and `limit` in `seconds` on average.
      tools: with `of="tools"`, names or patterns of those that are counted; nothing: all.
      text: what the asker is told of a refusal; a tool call's refusal is told to the model.
      name: the extension's name; needed where an agent has two limits.

    A refused run or model call stops the run (`result.stopped`); a refused tool call is denied. A model call that only
    tidies up, for the summary of a conversation, is left out instead. The counts outlive runs: they are on this object,
    and keys are forgotten when nothing of theirs counts any more.

    Raises: `ConfigError`.

    Cancellation: who is cancelled while waiting has taken no place.
    """

    def __init__(
        self,
        limit: int,
        seconds: float,
        *,
        of: Literal["runs", "model", "tools"] = "runs",
        scope: Scope = "conversation",
        over: Literal["wait", "refuse"] = "wait",
        max_wait: float | None = None,
        burst: int | None = None,
        tools: Iterable[str] = (),
        text: str = "Too many requests. Please try again later.",
        name: str = "rate-limit",
    ) -> None:
        positive("RateLimit(limit=...)", limit, whole=True)
        positive("RateLimit(seconds=...)", seconds)
        if burst is not None:
            positive("RateLimit(burst=...)", burst, whole=True)
        if of not in ("runs", "model", "tools"):
            raise ConfigError(f"RateLimit(of=...) must be 'runs', 'model' or 'tools', not {of!r}")
        if over not in ("wait", "refuse"):
            raise ConfigError(f"RateLimit(over=...) must be 'wait' or 'refuse', not {over!r}")
        if max_wait is not None:
            positive("RateLimit(max_wait=...)", max_wait)
            if over == "refuse":
                raise ConfigError("RateLimit(max_wait=...) means something only with over='wait'")
        if isinstance(tools, str):
            raise ConfigError(f"RateLimit(tools=...) must be a list of names; write tools=[{tools!r}]")
        self._tools = tuple(tools)
        if self._tools and of != "tools":
            raise ConfigError("RateLimit(tools=...) means something only with of='tools'")
        if not isinstance(text, str) or not text.strip():
            raise ConfigError("RateLimit(text=...) must be a string with text in it")
        self.name = name
        self._of = of
        self._key = key_of("RateLimit", scope, ("conversation", "agent", "all"))
        self._patience = 0.0 if over == "refuse" else math.inf if max_wait is None else max_wait
        self._text = text

        def line() -> _Line:
            return _Line(Window(limit, seconds) if burst is None else Bucket(limit, seconds, burst))

        self._lines: Keyed[_Line] = Keyed(line, _Line.idle)

    async def before_run(self, ctx: HookContext[Any], question: BeforeRun) -> Stop | None:
        """Count an ask. One that is resumed was counted when it was made."""
        if self._of != "runs" or question.entry == "resume":
            return None
        wait = await self._take(ctx)
        return None if wait is None else self._stop(wait)

    async def around_model(
        self, ctx: HookContext[Any], question: AroundModel, call_next: Callable[..., Awaitable[ModelResponse]]
    ) -> ModelResponse:
        """Count an attempt of a model call."""
        if self._of != "model":
            return await call_next()
        stop = self._refused(ctx)
        if stop is None:
            wait = await self._take(ctx)
            if wait is None:
                return await call_next()
            stop = self._stop(wait)
        return self._refuse_call(ctx, question.request.role, stop)

    async def before_tool(self, ctx: HookContext[Any], question: BeforeTool) -> Deny | None:
        """Count a tool call."""
        if self._of != "tools":
            return None
        if self._tools and not any(fnmatchcase(question.tool.name, pattern) for pattern in self._tools):
            return None
        wait = await self._take(ctx)
        return None if wait is None else Deny(f"too many calls; possible again in {_seconds(wait)} s")

    async def _take(self, ctx: HookContext[Any]) -> float | None:
        return await self._lines.get(self._key(ctx)).pass_within(self._patience)

    def _stop(self, wait: float) -> Stop:
        return Stop(self._text, f"rate limit: possible again in {_seconds(wait)} s")


def _seconds(wait: float) -> int:
    return max(1, math.ceil(wait - 1e-9))
