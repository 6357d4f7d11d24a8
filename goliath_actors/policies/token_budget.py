"""`TokenBudget`: so many tokens for a run, for a conversation in a time, or for any other key in a time."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import trio

from goliath_actors.abc import ModelRequest, ModelResponse, TokenCounter
from goliath_actors.errors import ConfigError
from goliath_actors.hooks import AfterResponse, AroundModel, BeforeRun, HookContext, OnFinish, Stop
from goliath_actors.tokens import EstimateCounter
from goliath_actors.values import Usage

from ._refusing import Refusing
from ._scope import Keyed, Scope, key_of, positive

__all__ = ["TokenBudget"]


@attrs.define(eq=False)
class _Account:
    """What one key has spent in the last `seconds` (None: ever), and what is set aside for calls under way."""

    seconds: float | None
    spent: int = 0
    reserved: int = 0
    # Runs under way: their account must not be forgotten while they hold it.
    runs: int = 0
    # When what of it was spent, oldest first.
    _log: deque[tuple[float, int]] = attrs.field(factory=deque, init=False)

    def used(self, now: float) -> int:
        """Return what is spent or set aside."""
        while self.seconds is not None and self._log and self._log[0][0] + self.seconds <= now:
            self.spent -= self._log.popleft()[1]
        return self.spent + self.reserved

    def spend(self, tokens: int, now: float) -> None:
        if tokens:
            self.spent += tokens
            if self.seconds is not None:
                self._log.append((now, tokens))

    def idle(self, now: float) -> bool:
        return self.runs == 0 and self.used(now) == 0


@attrs.define(eq=False)
class _Tab:
    """One run's part: its account, what was booked for it, and what is set aside for its call."""

    account: _Account
    booked: int = 0
    reserved: int = 0

    def reserve(self, tokens: int) -> None:
        self.reserved += tokens
        self.account.reserved += tokens

    def release(self) -> None:
        self.account.reserved -= self.reserved
        self.reserved = 0

    def book(self, tokens: int) -> None:
        self.booked += tokens
        self.account.spend(tokens, trio.current_time())


class TokenBudget(Refusing):
    """At most `limit` tokens of input and output together. Who would need more is stopped before the call is made.

    Arguments:
      limit: tokens.
      scope: whose they are: `run`, `conversation`, `agent`, `all` (of every agent that has this object), or a callable
        that takes the hook's context and returns a key, such as a user's id.
      seconds: tokens count for so long, on trio's clock. None exactly for `run`.
      output: tokens of output that are expected of a call that does not say how many it may have at most.
      counter: counts what a call will need; None: the library's estimate.
      text: what the asker is told when the run is stopped.
      name: the extension's name; needed where an agent has two budgets.

    Before each call its prompt and its largest output are set aside, so that runs at the same time cannot spend the
    same tokens; after it the provider's own count is booked, that of failed and aborted calls too. So the limit is
    passed only by as much as a prompt was underestimated. Where another extension makes a call twice, both are
    booked. A call that only tidies up, for the summary of a conversation, is left out where it does not fit.

    Raises: `ConfigError`. What the counter raises fails the run.

    Cancellation: what an aborted call had used is booked when the run is over; until then, what was set aside for it.
    """

    def __init__(
        self,
        limit: int,
        *,
        scope: Scope = "run",
        seconds: float | None = None,
        output: int = 1024,
        counter: TokenCounter | None = None,
        text: str = "The token budget is used up. Please try again later.",
        name: str = "token-budget",
    ) -> None:
        positive("TokenBudget(limit=...)", limit, whole=True)
        positive("TokenBudget(output=...)", output, whole=True)
        self._key = key_of("TokenBudget", scope, ("run", "conversation", "agent", "all"))
        if scope == "run":
            if seconds is not None:
                raise ConfigError("TokenBudget(seconds=...) means nothing for a single run")
        elif seconds is None:
            raise ConfigError("TokenBudget(seconds=...) must say for how long tokens count, unless scope is 'run'")
        else:
            positive("TokenBudget(seconds=...)", seconds)
        if counter is not None and not callable(getattr(counter, "count", None)):
            raise ConfigError(f"TokenBudget(counter=...) must have a count method, {type(counter).__name__} has none")
        if not isinstance(text, str) or not text.strip():
            raise ConfigError("TokenBudget(text=...) must be a string with text in it")
        self.name = name
        self._limit = limit
        self._output = output
        self._counter = EstimateCounter() if counter is None else counter
        self._text = text
        # A run's own account is kept with the run alone.
        self._accounts: Keyed[_Account] | None = None
        if scope != "run":
            self._accounts = Keyed(lambda: _Account(seconds), _Account.idle)

    def before_run(self, ctx: HookContext[Any], question: BeforeRun) -> Stop | None:
        """Stop a run for which nothing is left, before anything is done for it."""
        used = self._tab(ctx).account.used(trio.current_time())
        return self._stop(used, 0) if used >= self._limit else None

    async def around_model(
        self, ctx: HookContext[Any], question: AroundModel, call_next: Callable[..., Awaitable[ModelResponse]]
    ) -> ModelResponse:
        """Set aside what the call may need, or refuse it."""
        request, tab = question.request, self._tab(ctx)
        stop = self._refused(ctx)
        if stop is None:
            need = self._need(request)
            used = tab.account.used(trio.current_time())
            if used + need <= self._limit:
                tab.reserve(need)
                return await self._call(tab, call_next)
            stop = self._stop(used, need)
        await trio.lowlevel.checkpoint()
        return self._refuse_call(ctx, request.role, stop)

    async def _call(self, tab: _Tab, call_next: Callable[..., Awaitable[ModelResponse]]) -> ModelResponse:
        try:
            response = await call_next()
        except Exception:
            tab.release()
            raise
        # Not when cancelled: what was used is known, and booked, only in `on_finish`.
        tab.release()
        return response

    def after_response(self, ctx: HookContext[Any], question: AfterResponse) -> None:
        """Book what a call used."""
        if question.usage is not None:
            self._tab(ctx).book(_total(question.usage))

    def on_finish(self, ctx: HookContext[Any], question: OnFinish) -> None:
        """Book what is not booked yet, and give back what was set aside."""
        tab = self._tab(ctx)
        tab.release()
        tab.book(max(0, _total(question.outcome.usage) - tab.booked))
        tab.account.runs -= 1

    def _tab(self, ctx: HookContext[Any]) -> _Tab:
        tab: _Tab | None = ctx.state.get("tab")
        if tab is None:
            account = _Account(None) if self._accounts is None else self._accounts.get(self._key(ctx))
            account.runs += 1
            tab = ctx.state["tab"] = _Tab(account)
        return tab

    def _need(self, request: ModelRequest) -> int:
        tokens = self._counter.count(_all_text(request))
        return tokens + (self._output if request.max_output_tokens is None else request.max_output_tokens)

    def _stop(self, used: int, need: int) -> Stop:
        more = f", {need} more are needed" if need else ""
        return Stop(self._text, f"token budget: {used} of {self._limit} are used{more}")


def _all_text(request: ModelRequest) -> str:
    """Return everything of a request that a provider counts as input."""
    parts = [request.text]
    parts += [f"{call.name}{call.arguments}" for message in request.messages for call in message.tool_calls]
    parts += [f"{spec.name}{spec.description}{json.dumps(spec.parameters)}" for spec in request.tools]
    if request.schema is not None:
        parts.append(json.dumps(request.schema))
    return "\n".join(parts)


def _total(usage: Usage) -> int:
    return usage.input_tokens + usage.output_tokens
