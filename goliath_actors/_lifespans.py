"""Resources that live as long as a runtime: its store, its models' connections, then its extensions' lifespans.

Floor 7. Each is entered and left in a task of its own, so that leaving can be shielded without a scope that would
outlive the resource's own scopes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import attrs
import trio

from .errors import ConfigError
from .hooks import Extension

__all__ = ["closing", "hold_all", "lifespans"]

# Extension objects whose lifespan is entered, in this process (H11: by one runtime at a time).
_entered: set[int] = set()


@attrs.define(eq=False)
class _Holder:
    manager: AbstractAsyncContextManager[Any]
    crashed: Callable[[], None]
    settled: trio.Event = attrs.Factory(trio.Event)  # entered, or failed to
    leave: trio.Event = attrs.Factory(trio.Event)
    left: trio.Event = attrs.Factory(trio.Event)
    error: Exception | None = None

    async def hold(self) -> None:
        entered = False
        try:
            with trio.CancelScope() as scope:
                async with self.manager:
                    entered = True
                    scope.shield = True  # from here on it is left in order, whatever is cancelled
                    self.settled.set()
                    await self.leave.wait()
        except Exception as error:  # noqa: BLE001  # handed to hold_all, which collects
            self.error = error
        finally:
            self.left.set()
            self.settled.set()
        if entered and not self.leave.is_set():
            self.crashed()


@asynccontextmanager
async def hold_all(managers: Sequence[AbstractAsyncContextManager[Any]]) -> AsyncIterator[None]:
    """Enter `managers` in order and leave them in reverse, all of them, whatever fails or is cancelled.

    Raises: what an entering raised, after those already entered were left; what leaving raised (one error bare,
    several as a group). A resource that ends by itself cancels the block, and its error comes out.
    """
    holders: list[_Holder] = []
    failed: Exception | None = None
    async with trio.open_nursery() as nursery:
        try:
            for manager in managers:
                holder = _Holder(manager, nursery.cancel_scope.cancel)
                nursery.start_soon(holder.hold)
                await holder.settled.wait()
                if holder.error is not None:
                    raise holder.error
                holders.append(holder)
            yield
        except Exception as error:  # noqa: BLE001  # raised below, bare, once everything is left
            failed = error
        finally:
            with trio.CancelScope(shield=True):
                for holder in reversed(holders):
                    holder.leave.set()
                    await holder.left.wait()
    errors = [holder.error for holder in reversed(holders) if holder.error is not None]
    if failed is not None:
        for late in errors:
            failed.add_note(f"while leaving a resource of the runtime: {type(late).__name__}: {late}")
        raise failed
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ExceptionGroup("resources of the runtime failed", errors)


def closing(agents: Sequence[Any]) -> list[AbstractAsyncContextManager[Any]]:
    """Return what closes the agents' models and fallbacks at the end: those that have an `aclose`, each once.

    An adapter keeps connections between calls; closing it gives back the idle ones, and it stays usable.
    """
    managers: list[AbstractAsyncContextManager[Any]] = []
    seen: set[int] = set()
    for agent in agents:
        for adapter in (agent.model, agent.fallback):
            if callable(getattr(adapter, "aclose", None)) and id(adapter) not in seen:
                seen.add(id(adapter))
                managers.append(_closing(adapter))
    return managers


@asynccontextmanager
async def _closing(adapter: Any) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await adapter.aclose()


def lifespans(agents: Sequence[Any]) -> list[AbstractAsyncContextManager[Any]]:
    """Return the lifespans of all agents' extensions in order, each extension object once."""
    managers: list[AbstractAsyncContextManager[Any]] = []
    seen: set[int] = set()
    for agent in agents:
        for extension in agent.extensions:
            lifespan = getattr(extension, "lifespan", None)
            if lifespan is None or getattr(lifespan, "__func__", None) is Extension.lifespan or id(extension) in seen:
                continue
            seen.add(id(extension))
            managers.append(_lifespan(extension, agent))
    return managers


@asynccontextmanager
async def _lifespan(extension: Extension[Any], agent: Any) -> AsyncIterator[None]:
    if id(extension) in _entered:
        raise ConfigError(
            f"extension {extension.name!r} is already in use by another runtime; give each runtime its own instance"
        )
    _entered.add(id(extension))
    try:
        manager = extension.lifespan(agent)
        if manager is None:
            yield
        else:
            async with manager:
                yield
    finally:
        _entered.discard(id(extension))
