"""Connections to one provider, at the same cost whatever is in flight.

Uses _idle, _connection, _answer; used by _endpoint.

Why not the client library's own pool: it walks all its connections at every request, so a thousand conversations
spend most of their time in it. Here a request pops the connection that was used last and pushes it back afterwards;
nothing is ever searched. Concurrency is not limited here: a runtime has its own, fair limits.

How a connection lives: *decide synchronously, then do*. What changes the state returns what must be closed; the closing
happens outside of it, under a shield.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from typing import final

import attrs
import trio

from ._answer import PooledAnswer
from ._connection import Connection, Head, Limits, close_all, connect
from ._http import httpx, ssl_context
from ._idle import KEEPALIVE, MAX_IDLE, Idle, Origin
from ._response import ResponseHead

__all__ = ["Pool", "PoolStatistics", "StaleConnection", "origin_of"]

_PORTS = {"http": 80, "https": 443}
_BROKEN = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)


class StaleConnection(httpx.RemoteProtocolError):
    """A kept connection was dead before any byte of the response came. The next request gets a new one."""


@attrs.frozen
class PoolStatistics:
    """Counts of one pool: requests now in flight, connections now idle, and all opened and reused so far."""

    in_flight: int
    idle: int
    opened: int
    reused: int


@final
class Pool(httpx.AsyncBaseTransport):
    """A transport of the client library that keeps idle HTTP/1.1 connections, for one trio loop.

    Arguments: `max_idle`, connections kept per origin; `keepalive`, seconds on trio's clock; `context`, the TLS
    context (None: the shared one).
    """

    def __init__(
        self, *, max_idle: int = MAX_IDLE, keepalive: float = KEEPALIVE, context: ssl.SSLContext | None = None
    ) -> None:
        self._context = context
        self._idle = Idle(max_idle, keepalive)
        self._in_flight = 0
        self._opened = 0
        self._reused = 0
        self._closed = False

    def statistics(self) -> PoolStatistics:
        """Return the counts as they are now."""
        return PoolStatistics(self._in_flight, len(self._idle), self._opened, self._reused)

    def __repr__(self) -> str:
        now = self.statistics()
        return f"<Pool {now.in_flight} in flight, {now.idle} idle, {now.opened} opened, {now.reused} reused>"

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request on the connection that was used last, or on a new one, and return the response unread.

        The response's stream must be closed (`aclose`): that gives the connection back if the body was read to its
        end, and closes it otherwise. The body of the request is read whole before it is sent.

        Raises: `StaleConnection`; the client library's transport errors.

        Cancellation: the connection is closed and no longer counted.
        """
        content = await request.aread()
        head = Head.of(request.method.encode("ascii"), request.url.raw_path, request.headers.raw)
        limits: Mapping[str, float | None] = request.extensions.get("timeout", {})
        answer = await self.send(
            origin_of(request.url),
            head,
            content,
            Limits(limits.get("connect"), limits.get("read"), limits.get("write")),
        )
        return answer.as_response()

    async def send(self, origin: Origin, head: Head, content: bytes, limits: Limits) -> PooledAnswer:
        """Send a request on the connection that was used last, or on a new one, and return the answer unread.

        The answer must be closed. Raises and cancellation: as for `handle_async_request`.
        """
        if self._closed:
            raise RuntimeError("this pool was closed")
        closing: Sequence[Connection]
        kept, closing = self._idle.take(origin)
        # Invariant: from here to the end of the answer this request is counted, however it ends.
        self._in_flight += 1
        answered = False
        try:
            if closing:
                await close_all(closing)
                closing = ()
            before = 0
            if kept is None:
                kept = await self._open(origin, limits.connect)
            else:
                self._reused += 1
                before = kept.received
            try:
                await kept.send(head, content, limits.write)
                del content  # not kept while its answer is waited for
                response: ResponseHead | None = None
                while response is None:
                    if not await kept.receive(limits.read):
                        raise httpx.RemoteProtocolError("Server disconnected without sending a response.")
                    response = kept.head()
            except _BROKEN as error:
                if before and kept.received == before:
                    closing = self._idle.distrust(origin)
                    raise StaleConnection("the server had closed the kept connection before it answered") from error
                raise
            answered = True
            return PooledAnswer(self, origin, kept, response.status, response.fields, limits.read)
        finally:
            if not answered:
                self._in_flight -= 1
                await close_all(closing if kept is None else [*closing, kept])

    async def aclose(self) -> None:
        """Close every idle connection, and every other one as soon as its response is closed.

        Cancellation: everything idle is closed nevertheless.
        """
        self._closed = True
        await close_all(self._idle.clear())
        await trio.lowlevel.checkpoint()

    def give_back(self, origin: Origin, connection: Connection) -> list[Connection]:
        """Count the request as over and keep its connection if it can be used again; returns what is to be closed."""
        self._in_flight -= 1
        if self._closed or not connection.reusable:
            return [connection]
        return self._idle.put(origin, connection)

    async def _open(self, origin: Origin, timeout: float | None) -> Connection:
        scheme, host, port = origin
        context = (self._context or ssl_context()) if scheme == b"https" else None
        connection = await connect(scheme, host, port, timeout, context)
        self._opened += 1
        return connection


def origin_of(url: httpx.URL) -> Origin:
    """Return where an address leads. Raises: `httpx.UnsupportedProtocol`."""
    if url.scheme not in _PORTS:
        raise httpx.UnsupportedProtocol(f"{url.scheme!r} is neither http nor https")
    return url.raw_scheme, url.raw_host.decode("ascii"), url.port or _PORTS[url.scheme]
