"""A provider that exists only in this process: it takes its time, talks at its speed, and fails as often as it is told.

Every number is drawn from the ask's own dice, so that what one ask meets does not depend on how others are scheduled.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import attrs
import trio

from goliath_actors import Agent, Conductor, Extension, ToolContext, ToolFailure, ToolLoop, tool
from goliath_actors.abc import ModelDone, ModelEvent, ModelRequest, ModelText, ModelToolCall, ModelUsage
from goliath_actors.errors import ModelUnavailable, RateLimited
from goliath_actors.values import Usage

from .scenario import Provider, RuntimeShape, Turn

__all__ = ["PART", "Part", "SimulatedModel", "make_agent"]

_WORD = "word "
_LEAST_GAP = 0.02  # seconds between two deltas; more tokens a second come in larger pieces, as from a real provider


@attrs.define(eq=False)
class Part:
    """What one ask will meet at the provider: how many tool calls, and its own dice."""

    turn: Turn
    random: random.Random
    number: int = 0
    planned: int = 0


# A run starts in a copy of its submitter's context (R5), so what is set here before an ask is what its model calls see.
PART: ContextVar[Part | None] = ContextVar("part", default=None)


@attrs.frozen
class SimulatedModel:
    """A `Model` without a network. Bounded by the scenario's own numbers."""

    provider: Provider
    name: str = "simulated"

    @property
    def retries(self) -> int:
        """How often a call that failed before any output is made again."""
        return self.provider.retries

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        """Answer a request. Raises what the scenario's shares say. Cancellation leaves nothing behind."""
        yield self._play(request, PART.get() or Part(Turn(), random.Random(0)))

    async def _play(self, request: ModelRequest, part: Part) -> AsyncIterator[ModelEvent]:
        provider, dice = self.provider, part.random
        fate = dice.random()
        await trio.sleep(provider.first_token.draw(dice))
        if fate < provider.errors:
            raise ModelUnavailable("the simulated provider failed, as the scenario says")
        if fate < provider.errors + provider.rate_limited:
            raise RateLimited("the simulated provider's limit is reached", retry_after=provider.retry_after)
        if fate < provider.errors + provider.rate_limited + provider.stalls:
            await trio.sleep(provider.stall)
        call = _call(request, part)
        if call is not None:
            yield call
            yield ModelUsage(Usage(input_tokens=len(request.text) // 4, output_tokens=12))
            yield ModelDone("tool_calls" if isinstance(call, ModelToolCall) else "stop")
            return
        left = max(int(provider.tokens.draw(dice)), 1)
        tokens = left
        piece = max(int(provider.tokens_per_second * _LEAST_GAP), 1)
        while left > 0:
            now = min(piece, left)
            await trio.sleep(now / provider.tokens_per_second)
            yield ModelText(_WORD * now)
            left -= now
        yield ModelUsage(Usage(input_tokens=len(request.text) // 4, output_tokens=tokens))
        yield ModelDone("stop")


def _call(request: ModelRequest, part: Part) -> ModelText | ModelToolCall | None:
    """Return the tool call, or the planned loop's JSON, that comes now; None for an answer in words."""
    match request.role:
        case "plan":
            part.planned += 1
            if part.planned <= part.turn.tools:
                return ModelText('{"kind": "tool", "tool": "look_up", "brief": "look it up"}')
            return ModelText('{"kind": "answer", "brief": "reply"}')
        case "arguments":
            return ModelText(f'{{"topic": "topic {part.number}.{part.planned}"}}')
        case "step" if request.tools:
            made = 0
            for message in reversed(request.messages):
                if message.role == "user":
                    break
                made += message.role == "tool"
            if made < part.turn.tools:
                return ModelToolCall(0, f"call-{part.number}-{made}", "look_up", f'{{"topic": "topic {made}"}}')
    return None


def make_agent(
    provider: Provider,
    shape: RuntimeShape,
    model: Any,  # Any: whatever has the methods of a Model
    observers: Callable[[int], Extension[Any]],
) -> Agent[Any]:
    """Return the agent that a load test in this process drives, with its one tool and its observers."""

    @tool
    async def look_up(ctx: ToolContext[Any], topic: str) -> str:
        """Look a topic up."""
        part = PART.get() or Part(Turn(), random.Random(0))
        await trio.sleep(provider.tool_time.draw(part.random))
        if not topic:
            raise ToolFailure("the topic is empty")
        return f"{topic}: all is well"

    return Agent(
        name="load",
        model=model,
        tools=[look_up],
        extensions=[observers(number) for number in range(shape.observers)],
        loop=Conductor(max_steps=20) if shape.loop == "conductor" else ToolLoop(),
    )
