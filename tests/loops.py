"""Loops for tests of the floors above the loops: they show what the runtime does without a model in the way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import trio

from goliath_actors import Agent, Extension
from goliath_actors._work import Ending, Work
from goliath_actors.hooks import Respond
from goliath_actors.testing import ScriptedModel
from goliath_actors.values import Responded


@attrs.define(eq=False)
class ScriptedLoop:
    """Calls `action(work)` and answers with what it returns."""

    action: Callable[[Work], Awaitable[str]]
    window: int = 4096

    async def drive(self, work: Work, responded: tuple[Respond, Responded] | None = None) -> Ending:
        if responded is not None:
            return Ending(responded[0].text, responded=responded[1])
        return Ending(await self.action(work))


async def echo(work: Work) -> str:
    await trio.lowlevel.checkpoint()
    return f"echo {work.ask}"


def loop_agent(
    action: Callable[[Work], Awaitable[str]] = echo, *, extensions: tuple[Extension[Any], ...] = (), **options: Any
) -> Agent[Any]:
    """Return an agent whose runs do `action`."""
    return Agent(model=ScriptedModel([]), loop=ScriptedLoop(action), extensions=extensions, **options)
