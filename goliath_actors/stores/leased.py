"""A store for several processes: a run has its conversation's lease, and what it commits is fenced by it.

A lease is the right to change a conversation for a while. It is taken before a run does anything,
renewed while the run goes on, and given back at its end; one that was not renewed, since its process died or hung, runs
out. Each new lease has a larger token (the fence): a change that comes with an older one is refused by the store, so
that a process that only seemed dead does no harm.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, final

import attrs
import trio

from goliath_actors.abc import Change, Entry, Record, Store
from goliath_actors.errors import ConfigError, ConversationElsewhere, LeaseLost
from goliath_actors.values import Page

from ._rules import check_lease

__all__ = ["LeasedStore"]

# Between two looks at a lease that another process has, in seconds; jittered, so that waiters do not march in step.
FIRST_PAUSE, LONGEST_PAUSE, GROWTH = 0.02, 0.5, 1.5
# Of a lease's time: a run is ended so much earlier than the lease runs out, for its tasks to unwind.
MARGIN = 1 / 6
# Seconds for giving a lease back; one that is not given back runs out.
GIVE_BACK = 5.0


def _owner() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{os.urandom(6).hex()}"


@attrs.define(eq=False)
class _Held:
    """A lease that this process has, or is asking for (its token is 0)."""

    key: str
    # Around the run. Invariant: its deadline lies before the time at which the store may give the lease to another one,
    # so that a run ends in time whatever keeps a renewal from its answer.
    scope: trio.CancelScope = attrs.Factory(trio.CancelScope)
    token: int = 0
    renewing: bool = False

    @property
    def lost(self) -> bool:
        return self.scope.cancel_called

    def lasts(self, asked: float, ttl: float) -> None:
        """The store has given it for `ttl` seconds, at some time after `asked`, on trio's clock."""
        self.scope.deadline = asked + ttl * (1 - MARGIN)


@final
@attrs.define(eq=False, repr=False)
class LeasedStore:
    """Wraps a store that several processes share (`PostgresStore`), so that a conversation's runs never overlap,
    whichever processes were asked.

    Give it to each process's runtime in place of the store. A run waits for its conversation's lease in its own turn,
    before anything of the conversation is read; reading a history waits for nothing. Within a process asks keep their
    order; between processes whoever comes first to a free lease goes first, so a client that waits for its answer
    before it asks again is answered in order, wherever its asks arrive.

    Arguments:
      store: the shared one; it is entered and left with this one.
      ttl: seconds after which the lease of a process that died runs out; renewed three times in that time.
      patience: seconds that a run waits for a lease that another process has, in its own `timeout`; None: only that.
      owner: the name of this process in the store; the default is unique.

    A run whose lease was lost (the store was out of reach for too long, or the process stood still) is ended with
    `LeaseLost`; what it commits after that is refused. An effect of a tool outside of the store cannot be fenced:
    choose a `ttl` that is longer than any pause of your machines.

    Cancellation: as of the inner store; a wait for a lease takes none.
    """

    # Aliases, since pyright does not know that attrs drops the underscore.
    _store: Store = attrs.field(alias="store")
    _ttl: float = attrs.field(alias="ttl", default=15.0, kw_only=True)
    _patience: float | None = attrs.field(alias="patience", default=None, kw_only=True)
    _owner: str = attrs.field(alias="owner", factory=_owner, kw_only=True)
    _held: dict[str, _Held] = attrs.field(factory=dict, init=False)
    _entered: int = attrs.field(default=0, init=False)
    # Ends the task that renews; `_over` once it has ended.
    _renewing: trio.CancelScope | None = attrs.field(default=None, init=False)
    _over: trio.Event | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        check_lease(self._owner, self._ttl)

    def __repr__(self) -> str:
        return f"<LeasedStore of {self._store!r} owner={self._owner!r} holds {len(self._held)}>"

    @property
    def durable(self) -> bool:
        """As the inner store."""
        return bool(getattr(self._store, "durable", False))

    @property
    def owner(self) -> str:
        """The name of this process in the store."""
        return self._owner

    @property
    def ttl(self) -> float:
        """Seconds after which the leases of a process that died run out."""
        return self._ttl

    async def __aenter__(self) -> LeasedStore:
        """Enter the inner store, and begin to renew leases."""
        # Any: the async context manager protocol is optional for a store.
        inner: Any = self._store
        if hasattr(type(inner), "__aenter__"):
            await inner.__aenter__()
        self._entered += 1
        if self._renewing is None:
            self._renewing, self._over = trio.CancelScope(), trio.Event()
            # A system task, since a nursery held across this block would put what is raised in it into groups.
            trio.lowlevel.spawn_system_task(self._renew_for_ever, self._renewing, self._over)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave the inner store; with the last one who leaves, nothing is renewed any more."""
        self._entered -= 1
        if self._entered == 0 and self._renewing is not None and self._over is not None:
            self._renewing.cancel()
            over, self._renewing = self._over, None
            with trio.CancelScope(shield=True):
                await over.wait()
        inner: Any = self._store
        if hasattr(type(inner), "__aexit__"):
            await inner.__aexit__(kind, error, traceback)
        else:
            await trio.lowlevel.checkpoint()

    # --- leases -----------------------------------------------------------------------------------------------------

    def hold(self, key: str) -> AbstractAsyncContextManager[None]:
        """Return a block that has the lease on `key`: a runtime enters it around each run.

        Raises: `ConversationElsewhere` on entering, if another process has it for longer than `patience`; `LeaseLost`
        on leaving, if it was lost inside, where the block was cancelled then; `StoreError`.

        Cancellation: while waiting takes no lease; inside, the lease is given back.
        """
        return self._hold(key)

    @asynccontextmanager
    async def _hold(self, key: str) -> AsyncIterator[None]:
        if self._renewing is None:
            raise ConfigError("a LeasedStore has to be entered; give it to a runtime, or use `async with`")
        held = await self._take(key)
        try:
            with held.scope:
                yield
        finally:
            await self._give_back(held)
        if held.scope.cancelled_caught:
            raise LeaseLost(f"the lease on {key!r} was lost while a run had it; what it had not committed is not kept")

    async def _take(self, key: str) -> _Held:
        deadline = None if self._patience is None else trio.current_time() + self._patience
        pause = FIRST_PAUSE
        while True:
            asked = trio.current_time()
            # Another runtime of this process counts like another process.
            if key not in self._held:
                held = self._held[key] = _Held(key)
                token: int | None = None
                try:
                    token = await self._store.acquire(key, self._owner, self._ttl)
                finally:
                    if token is None:
                        del self._held[key]
                if token is not None:
                    held.token = token
                    held.lasts(asked, self._ttl)
                    return held
            if deadline is not None and asked >= deadline:
                raise ConversationElsewhere(key, self._ttl)
            wait = pause * random.uniform(0.5, 1.0)
            await trio.sleep(wait if deadline is None else min(wait, max(0.0, deadline - trio.current_time())))
            pause = min(pause * GROWTH, LONGEST_PAUSE)

    async def _give_back(self, held: _Held) -> None:
        # Under a shield, since the run may have been aborted; bounded, since the store may be the very trouble.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + GIVE_BACK):
            try:
                if not held.lost:
                    await self._store.release(held.key, self._owner)
            except Exception:  # noqa: BLE001  # a store is an application's; the run is over, and the lease runs out
                pass
            finally:
                del self._held[held.key]

    async def _renew_for_ever(self, scope: trio.CancelScope, over: trio.Event) -> None:
        with scope:
            async with trio.open_nursery() as nursery:
                while True:
                    await trio.sleep(self._ttl / 3)
                    for held in self._held.values():
                        if held.token and not held.renewing and not held.lost:
                            held.renewing = True
                            nursery.start_soon(self._renew, held)
        over.set()

    async def _renew(self, held: _Held) -> None:
        asked = trio.current_time()
        try:
            token = await self._store.acquire(held.key, self._owner, self._ttl)
        except Exception:  # noqa: BLE001  # a store is an application's; there is time for another renewal, or there is none
            token = held.token
        else:
            if token == held.token:
                held.lasts(asked, self._ttl)
        finally:
            held.renewing = False
        if token != held.token and self._held.get(held.key) is held:
            held.scope.cancel()  # another one has it

    # --- the store --------------------------------------------------------------------------------------------------

    async def load(self, key: str) -> Record:
        """As the inner store."""
        return await self._store.load(key)

    async def commit(self, key: str, change: Change, expect: int | None = None, token: int | None = None) -> Record:
        """As the inner store, fenced by this process's lease on the conversation, if it has it.

        Raises: `LeaseLost` if it had it and lost it; as the inner store.
        """
        held = self._held.get(key)
        if held is not None and token is None:
            if held.lost:
                await trio.lowlevel.checkpoint()
                raise LeaseLost(f"the lease on {key!r} was lost; nothing was changed, stop writing to it")
            token = held.token or None
        return await self._store.commit(key, change, expect=expect, token=token)

    async def entries(
        self, key: str, before: int | None = None, after: int | None = None, limit: int = 50, anchor: int | None = None
    ) -> Page:
        """As the inner store."""
        return await self._store.entries(key, before=before, after=after, limit=limit, anchor=anchor)

    async def forget(self, key: str) -> None:
        """As the inner store. A runtime holds the lease meanwhile, so it waits for a run in another process."""
        await self._store.forget(key)

    async def keys(self, prefix: str = "", after: str | None = None, limit: int = 100) -> Sequence[str]:
        """As the inner store."""
        return await self._store.keys(prefix, after, limit)

    async def find(self, key: str, idempotency_key: str) -> Entry | None:
        """As the inner store."""
        return await self._store.find(key, idempotency_key)

    async def acquire(self, key: str, owner: str, ttl: float) -> int | None:
        """As the inner store."""
        return await self._store.acquire(key, owner, ttl)

    async def release(self, key: str, owner: str) -> None:
        """As the inner store."""
        await self._store.release(key, owner)
