"""Idle connections of one loop: a stack for each origin, nothing of which is ever searched.

Uses _connection; used by _pool. Everything here is decided at once: what is to be closed is returned, and closed by
whoever asked.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from typing import TypeAlias, final

import trio

from ._connection import Connection

__all__ = ["KEEPALIVE", "MAX_IDLE", "Idle", "Origin"]

MAX_IDLE = 64
"""Idle connections kept per origin; one more closes the one that has been idle for longest."""

KEEPALIVE = 30.0
"""Seconds that an idle connection is kept. Servers close theirs after 5 s or more; one that they closed is noticed
before use, so a longer wait here costs nothing and saves handshakes between the turns of a conversation."""

Origin: TypeAlias = tuple[bytes, str, int]


@final
class Idle:
    """Connections that wait for their next request. `keepalive` in seconds on trio's clock."""

    def __init__(self, max_idle: int = MAX_IDLE, keepalive: float = KEEPALIVE) -> None:
        self._max_idle = max_idle
        self._keepalive = keepalive
        # Invariant: what lies here is in nobody's hands; a lease takes it out before anybody awaits. No stack is empty.
        self._stacks: dict[Origin, deque[Connection]] = {}
        self._fresh: dict[Origin, int] = {}
        # What nobody closed (its loop has ended, or its model was dropped) must not leak file descriptors.
        weakref.finalize(self, _abandon, self._stacks)

    def __len__(self) -> int:
        return sum(map(len, self._stacks.values()))

    def take(self, origin: Origin) -> tuple[Connection | None, Sequence[Connection]]:
        """Take the connection used last if one is alive; also returns what was found dead on the way."""
        if origin in self._fresh:
            self._fresh[origin] -= 1
            if not self._fresh[origin]:
                del self._fresh[origin]
            return None, ()
        stack = self._stacks.get(origin)
        if stack is None:
            return None, ()
        dead = self._expired(stack)
        found: Connection | None = None
        while stack and found is None:
            kept = stack.pop()
            # Readable while idle can only mean that the server closed it, or sent what nobody asked for.
            if kept.socket.readable:
                dead.append(kept)
            else:
                found = kept
        if not stack:
            del self._stacks[origin]
        return found, dead or ()

    def put(self, origin: Origin, connection: Connection) -> list[Connection]:
        """Keep a connection; returns what is too old, or too much."""
        stack = self._stacks.setdefault(origin, deque())
        surplus = self._expired(stack)
        if len(stack) >= self._max_idle:
            surplus.append(stack.popleft())
        connection.expires_at = trio.current_time() + self._keepalive
        stack.append(connection)
        return surplus

    def distrust(self, origin: Origin) -> list[Connection]:
        """After one stale connection: drop the others of its age, and let the next request open a new one."""
        self._fresh[origin] = self._fresh.get(origin, 0) + 1
        return list(self._stacks.pop(origin, ()))

    def clear(self) -> list[Connection]:
        """Drop all."""
        dropped = [kept for stack in self._stacks.values() for kept in stack]
        self._stacks.clear()
        return dropped

    def _expired(self, stack: deque[Connection]) -> list[Connection]:
        now = trio.current_time()
        expired: list[Connection] = []
        # The stack is in order of use, so the oldest lie at the bottom: each is looked at once more than it is kept.
        while stack and stack[0].expires_at <= now:
            expired.append(stack.popleft())
        return expired


def _abandon(stacks: dict[Origin, deque[Connection]]) -> None:
    # No loop runs here, so nothing may be awaited and trio may not be told; nobody waits on an idle socket anyway.
    for stack in stacks.values():
        for kept in stack:
            kept.socket.socket.close()
    stacks.clear()
