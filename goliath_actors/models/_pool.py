"""Connections to one provider: a stack of idle ones per origin, at the same cost whatever is in flight.

Uses _connection; used by openai_chat and http_fallback.

Why not the client library's own pool: it walks all its connections at every request, so a thousand conversations
spend most of their time in it. Here a request pops the connection that was used last and pushes it back afterwards;
nothing is ever searched. Concurrency is not limited here: a runtime has its own, fair limits.

How a connection lives: *decide synchronously, then do*. `_lease`, `give_back` and `_distrust` change the state and
return what must be closed; the closing happens outside of them, under a shield.
"""

from __future__ import annotations

import math
import socket
import ssl
import weakref
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from typing import TypeAlias, final

import attrs
import trio

from ._connection import CORE_ERRORS, Wire, connect, translate
from ._http import USER_AGENT, httpcore, httpx, ssl_context

__all__ = ["KEEPALIVE", "MAX_IDLE", "Endpoint", "Pool", "PoolStatistics", "StaleConnection", "close_response"]

MAX_IDLE = 64
"""Idle connections kept per origin; one more closes the one that has been idle for longest."""

KEEPALIVE = 30.0
"""Seconds that an idle connection is kept. Servers close theirs after 5 s or more; one that they closed is noticed
before use, so a longer wait here costs nothing and saves handshakes between the turns of a conversation."""

Origin: TypeAlias = tuple[bytes, bytes, int]


class StaleConnection(httpx.RemoteProtocolError):
    """A kept connection was dead before any byte of the response came. The next request gets a new one."""


@attrs.frozen
class PoolStatistics:
    """Counts of one pool: requests now in flight, connections now idle, and all opened and reused so far."""

    in_flight: int
    idle: int
    opened: int
    reused: int


@attrs.frozen(eq=False)
class _Kept:
    connection: httpcore.AsyncHTTP11Connection
    wire: Wire
    expires_at: float = math.inf


@final
class Pool(httpx.AsyncBaseTransport):
    """A transport of the client library that keeps idle HTTP/1.1 connections, for one trio loop.

    Arguments: `max_idle`, connections kept per origin; `keepalive`, seconds on trio's clock; `context`, the TLS
    context (None: the shared one).
    """

    def __init__(
        self, *, max_idle: int = MAX_IDLE, keepalive: float = KEEPALIVE, context: ssl.SSLContext | None = None
    ) -> None:
        self._max_idle = max_idle
        self._keepalive = keepalive
        self._context = context
        # Invariant: what lies here is idle and in nobody's hands; a lease takes it out before anybody awaits.
        self._idle: dict[Origin, deque[_Kept]] = {}
        self._fresh: dict[Origin, int] = {}
        self._in_flight = 0
        self._opened = 0
        self._reused = 0
        self._closed = False
        # A pool that nobody closed (its loop has ended, or its model was dropped) must not leak file descriptors.
        weakref.finalize(self, _abandon, self._idle)

    def statistics(self) -> PoolStatistics:
        """Return the counts as they are now."""
        return PoolStatistics(
            self._in_flight, sum(len(stack) for stack in self._idle.values()), self._opened, self._reused
        )

    def __repr__(self) -> str:
        now = self.statistics()
        return f"<Pool {now.in_flight} in flight, {now.idle} idle, {now.opened} opened, {now.reused} reused>"

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request on the connection that was used last, or on a new one, and return the response unread.

        The response's stream must be closed (`aclose`): that gives the connection back if the body was read to its
        end, and closes it otherwise.

        Raises: `StaleConnection`; the client library's transport errors.

        Cancellation: the connection is closed and no longer counted.
        """
        if self._closed:
            raise RuntimeError("this pool was closed")
        assert isinstance(request.stream, httpx.AsyncByteStream)
        url = httpcore.URL(
            scheme=request.url.raw_scheme,
            host=request.url.raw_host,
            port=request.url.port,
            target=request.url.raw_path,
        )
        where = url.origin
        origin: Origin = (where.scheme, where.host, where.port)
        core = httpcore.Request(
            request.method, url, headers=request.headers.raw, content=request.stream, extensions=request.extensions
        )
        kept, closing = self._lease(origin)
        # Invariant: from here to the end of the response's stream this request is counted, however it ends.
        self._in_flight += 1
        answered = False
        try:
            if closing:
                await _close(closing)
                closing = []
            before = 0
            if kept is None:
                kept = await self._open(where, request.extensions.get("timeout", {}).get("connect"))
            else:
                self._reused += 1
                before = kept.wire.received
            try:
                response = await kept.connection.handle_async_request(core)
            except _BROKEN as error:
                if before and kept.wire.received == before:
                    closing = self._distrust(origin)
                    raise StaleConnection("the server had closed the kept connection before it answered") from error
                raise
            answered = True
            return httpx.Response(
                response.status,
                headers=response.headers,
                stream=_Body(self, origin, kept, response),
                extensions=response.extensions,
            )
        except CORE_ERRORS as error:
            raise translate(error) from error
        finally:
            if not answered:
                self._in_flight -= 1
                await _close(closing if kept is None else [*closing, kept])

    async def aclose(self) -> None:
        """Close every idle connection, and every other one as soon as its response is closed.

        Cancellation: everything idle is closed nevertheless.
        """
        self._closed = True
        closing = [kept for stack in self._idle.values() for kept in stack]
        self._idle.clear()
        await _close(closing)
        await trio.lowlevel.checkpoint()

    def _lease(self, origin: Origin) -> tuple[_Kept | None, list[_Kept]]:
        """Take the connection used last if one is alive; also returns what was found dead on the way."""
        if origin in self._fresh:
            self._fresh[origin] -= 1
            if not self._fresh[origin]:
                del self._fresh[origin]
            return None, []
        stack = self._idle.get(origin)
        if stack is None:
            return None, []
        dead = self._expired(stack)
        found: _Kept | None = None
        while stack and found is None:
            kept = stack.pop()
            # Readable while idle can only mean that the server closed it, or sent what nobody asked for.
            if kept.wire.socket.is_readable():
                dead.append(kept)
            else:
                found = kept
        if not stack:
            del self._idle[origin]
        return found, dead

    def give_back(self, origin: Origin, kept: _Kept) -> list[_Kept]:
        """Count the request as over and keep its connection if it can be used again; returns what is to be closed."""
        self._in_flight -= 1
        if not kept.connection.is_idle() or self._closed:
            return [kept]
        stack = self._idle.setdefault(origin, deque())
        surplus = self._expired(stack)
        if len(stack) >= self._max_idle:
            surplus.append(stack.popleft())
        stack.append(attrs.evolve(kept, expires_at=trio.current_time() + self._keepalive))
        return surplus

    def _expired(self, stack: deque[_Kept]) -> list[_Kept]:
        now = trio.current_time()
        expired: list[_Kept] = []
        # The stack is in order of use, so the oldest lie at the bottom: each is looked at once more than it is kept.
        while stack and stack[0].expires_at <= now:
            expired.append(stack.popleft())
        return expired

    def _distrust(self, origin: Origin) -> list[_Kept]:
        """After one stale connection: drop the others of its age, and open a new one for the next request."""
        self._fresh[origin] = self._fresh.get(origin, 0) + 1
        return list(self._idle.pop(origin, ()))

    async def _open(self, where: httpcore.Origin, timeout: float | None) -> _Kept:
        context = (self._context or ssl_context()) if where.scheme == b"https" else None
        wire = await connect(where, timeout, context)
        self._opened += 1
        return _Kept(httpcore.AsyncHTTP11Connection(where, wire), wire)


@final
class _Body(httpx.AsyncByteStream):
    """The body of one response. Its `aclose` is what ends the request for the pool."""

    def __init__(self, pool: Pool, origin: Origin, kept: _Kept, response: httpcore.Response) -> None:
        self._pool = pool
        self._origin = origin
        self._kept = kept
        self._response = response
        self._closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        assert not isinstance(self._response.stream, Iterable)
        chunks = self._response.stream.__aiter__()
        assert isinstance(chunks, AsyncGenerator)
        try:
            async for chunk in chunks:
                yield chunk
        except CORE_ERRORS as error:
            raise translate(error) from error
        finally:
            # Also when this generator is closed half-way: the inner one must not be left to the garbage collector.
            with trio.CancelScope(shield=True):
                await chunks.aclose()

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        with trio.CancelScope(shield=True):
            try:
                await self._response.aclose()
            finally:
                await _close(self._pool.give_back(self._origin, self._kept))


@final
@attrs.define(eq=False)
class Endpoint:
    """Where requests to one provider go: the application's own client, or one pool per trio loop.

    A pool belongs to the loop it was made in. Another loop (a later `trio.run`, or another thread's) gets another one,
    and a loop that has ended takes its pool with it.
    """

    _http: httpx.AsyncClient | None = attrs.field(default=None, alias="http")
    _pools: weakref.WeakKeyDictionary[trio.lowlevel.TrioToken, Pool] = attrs.field(
        factory=weakref.WeakKeyDictionary, init=False
    )

    @property
    def pool(self) -> Pool:
        """The pool of the current loop, made when it is first asked for."""
        token = trio.lowlevel.current_trio_token()
        pool = self._pools.get(token)
        if pool is None:
            pool = self._pools[token] = Pool()
        return pool

    async def post(
        self, url: httpx.URL, headers: dict[str, str], content: bytes, connect_timeout: float | None
    ) -> httpx.Response:
        """Send one POST and return the response unread. Redirects are never followed: they would carry the key along.

        Arguments: `connect_timeout` in seconds; every other limit is the caller's own cancel scope.

        Raises: the client library's transport errors.

        Cancellation: the connection is closed.
        """
        headers = {"user-agent": USER_AGENT, "content-type": "application/json", **headers}
        if self._http is not None:
            request = self._http.build_request(
                "POST", url, headers=headers, content=content, timeout=httpx.Timeout(None, connect=connect_timeout)
            )
            return await self._http.send(request, stream=True, follow_redirects=False)
        request = httpx.Request(
            "POST", url, headers=headers, content=content, extensions={"timeout": {"connect": connect_timeout}}
        )
        return await self.pool.handle_async_request(request)

    async def aclose(self) -> None:
        """Close the current loop's pool. A later request makes a new one; a client of the application's stays open.

        Cancellation: everything idle is closed nevertheless.
        """
        pool = self._pools.pop(trio.lowlevel.current_trio_token(), None)
        if pool is not None:
            await pool.aclose()
        else:
            await trio.lowlevel.checkpoint()


async def close_response(response: httpx.Response, chunks: AsyncGenerator[bytes, None]) -> None:
    """End a response and the iteration over its body, wherever they stand.

    Cancellation: is done nevertheless.
    """
    with trio.CancelScope(shield=True):
        if isinstance(response.stream, _Body):
            await chunks.aclose()
            await response.aclose()
            return
        # The streams of the client library are generators inside generators that do not close each other. Once the
        # connection is closed, the next read fails, and that ends them all from the inside.
        await response.aclose()
        with trio.move_on_after(1):
            try:
                while await anext(chunks, None) is not None:
                    pass
            except (httpx.HTTPError, httpx.StreamError):
                pass


async def _close(closing: Iterable[_Kept]) -> None:
    with trio.CancelScope(shield=True):
        for kept in closing:
            await kept.connection.aclose()


def _abandon(idle: dict[Origin, deque[_Kept]]) -> None:
    # No loop runs here, so nothing may be awaited and trio may not be told; nobody waits on an idle socket anyway.
    for stack in idle.values():
        for kept in stack:
            socket.socket(fileno=kept.wire.socket.detach()).close()
    idle.clear()


_BROKEN = (httpcore.RemoteProtocolError, httpcore.ReadError, httpcore.WriteError)
