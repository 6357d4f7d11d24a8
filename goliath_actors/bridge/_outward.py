"""The way back: code of a run awaits asyncio code, in the event loop of whoever asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar, copy_context
from typing import TypeVar, TypeVarTuple

import attrs
import trio

from goliath_actors.errors import ConfigError, RuntimeClosed

from ._call import Side
from ._crossing import Crossing

__all__ = ["Home", "asker", "call_asyncio", "home"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@attrs.frozen(eq=False)
class Home:
    """What the code of a bridge's runtime needs to get out: the loop that opened the bridge, and the way back in."""

    side: Side
    outward: Crossing


home: trio.lowlevel.RunVar[Home | None] = trio.lowlevel.RunVar("goliath_actors_bridge_home")
asker: ContextVar[Side | None] = ContextVar("goliath_actors_bridge_asker", default=None)
"""The loop that asked for the run in whose context this code runs."""


async def call_asyncio(function: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
    """Await `function(*args)`, asyncio code, from a tool, a hook, `confirm` or `fallback` of a bridge's runtime.

    It runs as a task of the event loop that asked for the run (else of the one that opened the bridge), with the
    context variables of this call: the place where an asyncio program's database pools and clients live.

    Returns: what the function returns.

    Raises: what it raises, as the same object; `ConfigError` outside of a bridge's runtime; `RuntimeClosed` if that
    loop is over, or ended the task.

    Cancellation: cancels the task and goes on only when it has ended.
    """
    here = home.get(None) if trio.lowlevel.in_trio_run() else None
    if here is None:
        raise ConfigError("call_asyncio works inside the runtime of a bridge; open one with open_bridge")
    await trio.lowlevel.checkpoint_if_cancelled()
    side = asker.get() or here.side
    context, done = copy_context(), trio.Event()
    tasks: list[asyncio.Task[T]] = []

    async def body() -> T:
        return await function(*args)

    def begin() -> None:
        task = side.loop.create_task(body(), context=context)
        tasks.append(task)
        task.add_done_callback(lambda _: here.outward.post(done.set))

    def end() -> None:
        for task in tasks:
            task.cancel()

    if not side.inward.post(begin):
        raise RuntimeClosed("the event loop that asked for this run is over; nothing can be called in it")
    try:
        await done.wait()
    finally:
        if not done.is_set():
            side.inward.post(end)
            with trio.CancelScope(shield=True):
                await done.wait()
    (task,) = tasks
    if task.cancelled():
        raise RuntimeClosed("the asyncio task that a run had started was cancelled in its event loop")
    error = task.exception()
    if isinstance(error, Exception):
        raise error
    if error is not None:  # what ends an asyncio program is raised there already
        raise RuntimeClosed(f"the event loop that asked for this run ended with {type(error).__name__}") from error
    return task.result()
