"""A model that answers at once and keeps nothing, so that what is measured is the runtime."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

from goliath_actors.abc import ModelDone, ModelEvent, ModelRequest, ModelText, ModelToolCall, ModelUsage
from goliath_actors.values import Usage


@attrs.define(eq=False)
class Instant:
    """Calls `tool` once for each ask, if one is named, and then answers. `seconds` is how long each call takes."""

    tool: str | None = None
    seconds: float = 0.0
    name: str = "instant"

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        yield self._play(request)

    async def _play(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        await trio.sleep(self.seconds)
        if self.tool is not None and request.messages[-1].role != "tool":
            yield ModelToolCall(0, "call-1", self.tool, '{"city": "Lund"}')
            yield ModelUsage(Usage(input_tokens=20, output_tokens=8))
            yield ModelDone("tool_calls")
            return
        yield ModelText("It is sunny in Lund.")
        yield ModelUsage(Usage(input_tokens=30, output_tokens=6))
        yield ModelDone("stop")
