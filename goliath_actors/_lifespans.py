"""Resources that live as long as a runtime: its store, its models' connections, then its extensions' lifespans.

Each is entered and left in a task of its own, so that leaving can be shielded without a scope that would
outlive the resource's own scopes.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import attrs
import trio

from ._leaves import in_words, single
from .errors import ConfigError, RuntimeClosed
from .hooks import Extension

__all__ = ["Passing", "closing", "hold_all", "lifespans"]

# Extension objects whose lifespan is entered, in this process (H11: by one runtime at a time).
_entered: set[int] = set()


class Passing:
    """Remembers what leaves its block, a cancellation too, without catching it."""

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.error = error

    @property
    def fatal(self) -> BaseException | None:
        """What ends the program, if that is what leaves: then nothing may take its place."""
        real = None if self.error is None else single(self.error)
        return None if isinstance(real, Exception | trio.Cancelled) else real


@attrs.define(eq=False)
class _Holder:
    manager: AbstractAsyncContextManager[Any]
    crashed: Callable[[], None]
    settled: trio.Event = attrs.Factory(trio.Event)  # entered, or failed to
    leave: trio.Event = attrs.Factory(trio.Event)
    left: trio.Event = attrs.Factory(trio.Event)
    entered: bool = False
    error: Exception | None = None

    # A lifespan's own code is kept from Ctrl-C like ours: it is entered whole and left whole.
    @trio.lowlevel.enable_ki_protection
    async def hold(self) -> None:
        try:
            with trio.CancelScope() as scope:
                async with self.manager:
                    self.entered = True
                    scope.shield = True  # from here on it is left in order, whatever is cancelled
                    self.settled.set()
                    await self.leave.wait()
            if self.entered and not self.leave.is_set():
                self.error = RuntimeClosed("a resource of the runtime, or a lifespan, ended before the runtime did")
        except Exception as error:  # noqa: BLE001  # handed to hold_all, which collects
            self.error = error
        finally:
            self.left.set()
            self.settled.set()
        if self.entered and not self.leave.is_set():
            self.crashed()


# Why the leaving has a task of its own: Ctrl-C is raised in the main task wherever it waits, shielded or not; a nursery
# being left only takes note of it and waits on.
@trio.lowlevel.enable_ki_protection
async def _leave_all(holders: Sequence[_Holder]) -> None:
    with trio.CancelScope(shield=True):
        for holder in reversed(holders):
            holder.leave.set()
            await holder.left.wait()


@asynccontextmanager
@trio.lowlevel.enable_ki_protection
async def hold_all(managers: Sequence[AbstractAsyncContextManager[Any]]) -> AsyncIterator[None]:
    """Enter `managers` in order and leave them in reverse, all of them, whatever fails or is cancelled.

    Raises: what an entering raised, after those already entered were left; what leaving raised (one error bare,
    several as a group), also in place of a cancellation. A resource that ends by itself cancels the block, and its
    error comes out.
    """
    holders: list[_Holder] = []
    failed: Exception | None = None
    passing = Passing()
    try:
        with passing:
            async with trio.open_nursery() as nursery:
                try:
                    for manager in managers:
                        holders.append(_Holder(manager, nursery.cancel_scope.cancel))
                        nursery.start_soon(holders[-1].hold)
                        await holders[-1].settled.wait()
                        if holders[-1].error is not None:
                            raise holders[-1].error
                        if not holders[-1].entered:
                            await trio.sleep_forever()  # it was cancelled, or what ends the program came out of it
                    yield
                except Exception as error:  # noqa: BLE001  # raised below, bare, once everything is left
                    failed = error
                finally:
                    # One that is still being entered may yet succeed, and is then left at once, like the others.
                    if holders and not holders[-1].settled.is_set():
                        nursery.cancel_scope.cancel()
                    nursery.start_soon(_leave_all, holders)
    finally:
        errors = [holder.error for holder in reversed(holders) if holder.error is not None]
        _raise_first(failed, [error for error in errors if error is not failed], passing)


def _raise_first(failed: Exception | None, errors: list[Exception], passing: Passing) -> None:
    """Raise the error that counts, with the others in sight; nothing if none does or what passes is more."""
    fatal = passing.fatal
    first = failed if fatal is None else fatal
    if first is not None:
        for late in errors:
            first.add_note(f"while leaving a resource of the runtime: {type(late).__name__}: {in_words(late)}")
    if fatal is not None:
        return
    if failed is not None:
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
        elif not hasattr(type(manager), "__aenter__"):
            if inspect.iscoroutine(manager):
                manager.close()
            raise ConfigError(
                f"extension {extension.name!r}: lifespan must give an async context manager, not "
                f"{type(manager).__name__}; decorate it with contextlib.asynccontextmanager"
            )
        else:
            async with manager:
                yield
    finally:
        _entered.discard(id(extension))
