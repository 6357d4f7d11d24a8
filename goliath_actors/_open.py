"""`open_runtime` and `serve_runtime`: the nursery around a runtime.

Outside in: the store, the models' connections and the extensions' lifespans; the outer nursery with
the host, the watcher and the sweeper; beside them, unshielded, the user's block.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from types import TracebackType
from typing import Any, NoReturn, final

import attrs
import trio

from ._acceptance import Acceptance
from ._agent import Agent, check_live_tools
from ._directory import check_subagents, with_subagents
from ._doors import Doors
from ._engine import Engine
from ._leaves import single
from ._lifespans import Passing, closing, hold_all, lifespans
from ._numbers import check_count, check_seconds
from ._runtime import Runtime
from .abc import Store
from .errors import ConfigError
from .stores import InMemoryStore

__all__ = ["check_agents", "open_runtime", "serve_runtime"]


def check_agents(agents: tuple[Agent[Any], ...]) -> None:
    """Refuse what is no agent, the same name twice, and none at all.

    Raises: `ConfigError`.
    """
    if not agents:
        raise ConfigError("open_runtime needs at least one agent")
    names: set[str] = set()
    for agent in agents:
        if not isinstance(agent, Agent):
            raise ConfigError(f"open_runtime takes agents, not {type(agent).__name__}")
        if agent.name in names:
            raise ConfigError(f"two agents are named {agent.name!r}; give each a name=...")
        names.add(agent.name)


def _block(
    agents: tuple[Agent[Any], ...],
    store: Store | None,
    max_running: int | None,
    mailbox_capacity: int,
    max_waiting: int | None,
    finish_timeout: float | None,
    idle_timeout: float | None,
) -> _RuntimeBlock:
    """Return the block of a runtime, once its arguments are known to be right. Raises: `ConfigError`."""
    check_agents(agents)
    check_count("max_running", max_running, 1)
    check_count("mailbox_capacity", mailbox_capacity, 0, none=False)
    check_count("max_waiting", max_waiting, 0)
    check_seconds("finish_timeout", finish_timeout)
    check_seconds("idle_timeout", idle_timeout, zero=True)
    if store is not None:
        _check_store(store)
    return _RuntimeBlock(
        _opened(agents, store, max_running, mailbox_capacity, max_waiting, finish_timeout, idle_timeout)
    )


def _check_store(store: Store) -> None:
    if isinstance(store, type):
        raise ConfigError(f"store got the class {store.__name__} itself; make one: {store.__name__}(...)")
    if isinstance(store, str | os.PathLike):
        raise ConfigError(f"store must be a store, not a path; use SqliteStore({str(store)!r})")
    for method in ("load", "commit", "entries", "forget"):
        if not callable(getattr(store, method, None)):
            raise ConfigError(f"store={type(store).__name__} has no method {method!r}; see goliath_actors.abc.Store")


def open_runtime(
    *agents: Agent[Any],
    store: Store | None = None,
    max_running: int | None = None,
    mailbox_capacity: int = 64,
    max_waiting: int | None = None,
    finish_timeout: float | None = None,
    idle_timeout: float | None = 300.0,
) -> AbstractAsyncContextManager[Runtime]:
    """Open a runtime for the length of an `async with` block.

    Arguments:
      agents: one or more, with different names.
      store: where conversations live between runs; None keeps them in memory. Entered first and left last.
      max_running: how many runs may run at once, None for no limit.
      mailbox_capacity: how many asks of one conversation may wait.
      max_waiting: how many asks may wait in the whole runtime, None for no limit.
      finish_timeout: seconds for each observer, None for no limit (at a shutdown: 10 s, or the drain's grace).
      idle_timeout: seconds after which an idle conversation is forgotten in memory, None for never.

    Raises: `ConfigError` at once for wrong arguments; what a lifespan or store raised on opening.

    Cancellation: a normal end of the block waits for every accepted run. An exception in the block, or cancellation
    from outside, aborts all of them (cause `shutdown`), tells every observer, and then passes, a single error bare.
    """
    return _block(agents, store, max_running, mailbox_capacity, max_waiting, finish_timeout, idle_timeout)


@final
@attrs.define(eq=False)
class _RuntimeBlock:
    """A block that Ctrl-C does not catch between its manager's frames, half entered or half left."""

    _manager: AbstractAsyncContextManager[tuple[Engine, Runtime]]
    _engine: Engine | None = None

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Runtime:
        self._engine, runtime = await self._manager.__aenter__()
        return runtime

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._manager.__aexit__(kind, error, traceback)

    # Both, since Python looks for both before it calls one. Type checkers see an asynchronous block and object anyway.
    def __enter__(self) -> NoReturn:
        raise TypeError("use 'async with open_runtime(...)', not 'with'")

    def __exit__(self, *told: object) -> NoReturn:
        raise AssertionError("a block that was never entered")  # pragma: no cover

    async def wait_drained(self) -> None:
        """Wait, inside the block, until a drain is over."""
        assert self._engine is not None
        await self._engine.life.drained.wait()


@asynccontextmanager
@trio.lowlevel.enable_ki_protection
async def _opened(
    agents: tuple[Agent[Any], ...],
    store: Store | None,
    max_running: int | None,
    mailbox_capacity: int,
    max_waiting: int | None,
    finish_timeout: float | None,
    idle_timeout: float | None,
) -> AsyncIterator[tuple[Engine, Runtime]]:
    if not trio.lowlevel.in_trio_run():
        raise ConfigError("goliath_actors runs on trio: open a runtime inside trio.run(main), not under another loop")
    only = agents[0].name if len(agents) == 1 else None
    engine = Engine(agents, InMemoryStore() if store is None else store, max_running, finish_timeout, idle_timeout)
    doors = Doors(engine, Acceptance(engine, only, mailbox_capacity, max_waiting, finish_timeout))
    runtime = Runtime(engine, doors)
    # Asked of the type, as `async with` does: a proxy with a `__getattr__` of its own is no context manager.
    held: list[Any] = [engine.store] if hasattr(type(engine.store), "__aenter__") else []
    failed: Exception | None = None
    bare: BaseException | None = None
    passing = Passing()
    try:
        with passing:
            everybody = with_subagents(agents)
            async with hold_all([*held, *closing(everybody), *lifespans(everybody)]):
                for agent in everybody:
                    check_live_tools(agent)
                check_subagents(everybody)
                with ExitStack() as left:
                    async with trio.open_nursery() as outer:
                        # No `outer.start`: interrupted, it waits for the host, which is shielded and ends only at the
                        # watcher's word, which has it from `outer`.
                        for task in (engine.watch, engine.host, engine.sweep):
                            outer.start_soon(task)
                        await engine.wait_hosted()
                        try:
                            yield engine, runtime
                        except Exception as error:  # noqa: BLE001  # raised below, bare, once every run has been told
                            failed = error
                            engine.shut_down(f"{type(error).__name__} in the runtime's block")
                        finally:
                            left.enter_context(engine.leaving())
                        await engine.close()
                        outer.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        # Nurseries are an implementation detail: a single error comes out as itself.
        bare = single(group)
        if bare is None or isinstance(bare, BaseExceptionGroup):
            raise
    finally:
        # Also when a cancellation came after it: an error that escaped beats an abort. Nothing beats the program's end.
        if failed is not None and passing.fatal is None:
            raise failed
    if bare is not None:  # out here, so that its cause and context stay what they were
        raise bare


async def serve_runtime(
    *agents: Agent[Any],
    store: Store | None = None,
    max_running: int | None = None,
    mailbox_capacity: int = 64,
    max_waiting: int | None = None,
    finish_timeout: float | None = None,
    idle_timeout: float | None = 300.0,
    task_status: trio.TaskStatus[Runtime] = trio.TASK_STATUS_IGNORED,
) -> None:
    """`open_runtime` for `nursery.start`: gives the runtime to the starter, and returns after a drain.

    Cancellation: aborts every run (cause `shutdown`), tells the observers, then passes.
    """
    whole = _block(agents, store, max_running, mailbox_capacity, max_waiting, finish_timeout, idle_timeout)
    async with whole as runtime:
        task_status.started(runtime)
        await whole.wait_drained()
