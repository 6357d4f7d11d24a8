"""A terminal, a keyboard and a user, for tests of the command line."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio
from trio.testing import wait_all_tasks_blocked

from goliath_actors import Agent, Runtime, open_runtime
from goliath_actors._cli.chat import Manner, Session
from goliath_actors._cli.console import PlainPrompt
from goliath_actors._cli.screen import Screen
from goliath_actors._cli.view import View
from goliath_actors.abc import Store


class Tty(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


PLAIN = {"NO_COLOR": "1", "COLUMNS": "80"}


@attrs.define(eq=False)
class User:
    """Who sits at a session. `screen` is what is seen, `errors` the error stream."""

    session: Session
    runtime: Runtime
    out: io.StringIO
    err: io.StringIO
    keys: trio.MemorySendChannel[str]
    codes: list[int]
    shut_down: list[str]

    async def types(self, *lines: str) -> str:
        """Type lines and wait until nothing moves any more; return what is new on the screen."""
        before = len(self.out.getvalue())
        for line in lines:
            await self.keys.send(line)
        await wait_all_tasks_blocked()
        return self.out.getvalue()[before:]

    async def presses(self, action: Callable[[], Any]) -> str:
        """Do something else than typing, such as Ctrl-C; return what is new on the screen."""
        before = len(self.out.getvalue())
        action()
        await wait_all_tasks_blocked()
        return self.out.getvalue()[before:]

    async def ends_input(self) -> str:
        """Press Ctrl-D."""
        return await self.presses(self.keys.close)


async def _nothing() -> str:
    raise AssertionError("lines come out of the channel here")


@asynccontextmanager
async def sitting(
    agent: Agent[Any],
    *,
    interactive: bool = True,
    store: Store | None = None,
    conversation_id: str | None = None,
    quiet: bool = False,
    **manner: Any,
) -> AsyncIterator[User]:
    """Seat a user at a chat with `agent`; the block's end is Ctrl-D."""
    out, err = (Tty(), Tty()) if interactive else (io.StringIO(), io.StringIO())
    answers = Screen.on(out, PLAIN)
    errors = answers if interactive else Screen.on(err, PLAIN)
    view = View(answers, errors, quiet=quiet, asks=interactive)
    keys, lines = trio.open_memory_channel[str](1000)
    codes: list[int] = []
    async with open_runtime(agent, store=store) as runtime:
        shut_down: list[str] = []
        session = Session(
            runtime,
            agent,
            runtime.conversation(conversation_id),
            view,
            errors,
            lines,
            PlainPrompt(answers, _nothing),
            Manner(interactive=interactive, **manner),
            lambda: shut_down.append("now"),
        )

        async def converse() -> None:
            codes.append(await session.converse())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(converse)
            await wait_all_tasks_blocked()
            yield User(session, runtime, out, err, keys, codes, shut_down)
            keys.close()
            await wait_all_tasks_blocked()
