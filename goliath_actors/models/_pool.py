"""Connections to one provider: a stack of idle ones per origin, at the same cost whatever is in flight.

Uses _connection; used by _exchange and http_fallback.

Why not the client library's own pool: it walks all its connections at every request, so a thousand conversations
spend most of their time in it. Here a request pops the connection that was used last and pushes it back afterwards;
nothing is ever searched. Concurrency is not limited here: a runtime has its own, fair limits.

How a connection lives: *decide synchronously, then do*. `_lease`, `give_back` and `_distrust` change the state and
return what must be closed; the closing happens outside of them, under a shield.
"""

from __future__ import annotations

import ssl
import weakref
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from typing import Protocol, TypeAlias, final

import attrs
import trio

from ._connection import NO_LIMITS, Connection, Head, Limits, connect
from ._http import USER_AGENT, httpx, ssl_context

__all__ = [
    "KEEPALIVE",
    "MAX_IDLE",
    "Answer",
    "Endpoint",
    "Pool",
    "PoolStatistics",
    "StaleConnection",
    "client_answer",
    "close_response",
]

MAX_IDLE = 64
"""Idle connections kept per origin; one more closes the one that has been idle for longest."""

KEEPALIVE = 30.0
"""Seconds that an idle connection is kept. Servers close theirs after 5 s or more; one that they closed is noticed
before use, so a longer wait here costs nothing and saves handshakes between the turns of a conversation."""

_MAX_HEADS = 16  # heads of requests that an endpoint keeps; one is used unless headers differ from call to call

Origin: TypeAlias = tuple[bytes, str, int]


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
        self._max_idle = max_idle
        self._keepalive = keepalive
        self._context = context
        # Invariant: what lies here is idle and in nobody's hands; a lease takes it out before anybody awaits.
        self._idle: dict[Origin, deque[Connection]] = {}
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
        end, and closes it otherwise. The body of the request is read whole before it is sent.

        Raises: `StaleConnection`; the client library's transport errors.

        Cancellation: the connection is closed and no longer counted.
        """
        content = await request.aread()
        head = Head.of(request.method.encode("ascii"), request.url.raw_path, request.headers.raw)
        limits: Mapping[str, float | None] = request.extensions.get("timeout", {})
        answer = await self.send(
            _origin(request.url),
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
        kept, closing = self._lease(origin)
        # Invariant: from here to the end of the answer this request is counted, however it ends.
        self._in_flight += 1
        answered = False
        try:
            if closing:
                await _close(closing)
                closing = []
            before = 0
            if kept is None:
                kept = await self._open(origin, limits.connect)
            else:
                self._reused += 1
                before = kept.received
            try:
                response = await kept.request(head, content, limits)
            except _BROKEN as error:
                if before and kept.received == before:
                    closing = self._distrust(origin)
                    raise StaleConnection("the server had closed the kept connection before it answered") from error
                raise
            answered = True
            return PooledAnswer(self, origin, kept, response.status, response.fields, limits.read)
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

    def _lease(self, origin: Origin) -> tuple[Connection | None, list[Connection]]:
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
        found: Connection | None = None
        while stack and found is None:
            kept = stack.pop()
            # Readable while idle can only mean that the server closed it, or sent what nobody asked for.
            if kept.socket.readable:
                dead.append(kept)
            else:
                found = kept
        if not stack:
            del self._idle[origin]
        return found, dead

    def give_back(self, origin: Origin, kept: Connection) -> list[Connection]:
        """Count the request as over and keep its connection if it can be used again; returns what is to be closed."""
        self._in_flight -= 1
        if not kept.reusable or self._closed:
            return [kept]
        stack = self._idle.setdefault(origin, deque())
        surplus = self._expired(stack)
        if len(stack) >= self._max_idle:
            surplus.append(stack.popleft())
        kept.expires_at = trio.current_time() + self._keepalive
        stack.append(kept)
        return surplus

    def _expired(self, stack: deque[Connection]) -> list[Connection]:
        now = trio.current_time()
        expired: list[Connection] = []
        # The stack is in order of use, so the oldest lie at the bottom: each is looked at once more than it is kept.
        while stack and stack[0].expires_at <= now:
            expired.append(stack.popleft())
        return expired

    def _distrust(self, origin: Origin) -> list[Connection]:
        """After one stale connection: drop the others of its age, and open a new one for the next request."""
        self._fresh[origin] = self._fresh.get(origin, 0) + 1
        return list(self._idle.pop(origin, ()))

    async def _open(self, origin: Origin, timeout: float | None) -> Connection:
        scheme, host, port = origin
        context = (self._context or ssl_context()) if scheme == b"https" else None
        connection = await connect(scheme, host, port, timeout, context)
        self._opened += 1
        return connection


class Answer(Protocol):
    """A response whose body is read as it comes, by one task. `headers` has lower-case names."""

    @property
    def status_code(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def is_success(self) -> bool: ...

    def ready(self) -> bytes:
        """Return what has come of the body and was not returned yet, without waiting; empty if that cannot be said.

        Raises: the client library's transport errors.
        """
        ...

    @property
    def over(self) -> bool:
        """True if the body is known to have been returned to its end."""
        ...

    async def read(self) -> bytes:
        """Return the next bytes of the body; empty at its end.

        Raises: the client library's transport errors.

        Cancellation: the answer cannot be read on; `aclose` is still due.
        """
        ...

    async def aclose(self) -> None:
        """End the answer, wherever it stands. The connection is kept if the body was read to its end.

        Cancellation: is done nevertheless. No checkpoint if the connection is kept.
        """
        ...


@final
class PooledAnswer:
    """An answer over a connection of a pool. Its `aclose` is what ends the request for the pool."""

    __slots__ = ("_closed", "_connection", "_headers", "_limit", "_origin", "_pool", "_raw", "over", "status_code")

    def __init__(
        self,
        pool: Pool,
        origin: Origin,
        connection: Connection,
        status: int,
        raw: list[tuple[bytes, bytes]],
        limit: float | None,
    ) -> None:
        self._pool = pool
        self._origin = origin
        self._connection = connection
        self._raw = raw
        self._headers: dict[str, str] | None = None
        self._limit = limit
        self._closed = False
        self.status_code = status
        self.over = False

    @property
    def headers(self) -> Mapping[str, str]:
        if self._headers is None:
            self._headers = {}
            for name, value in self._raw:
                key, text = name.decode("ascii").lower(), _text(value)
                self._headers[key] = f"{self._headers[key]}, {text}" if key in self._headers else text
        return self._headers

    @property
    def is_success(self) -> bool:
        return 200 <= self.status_code < 300

    def ready(self) -> bytes:
        if self._closed or self.over:
            return b""
        data = self._connection.ready()
        self.over = self._connection.over
        return data

    async def read(self) -> bytes:
        if self._closed or self.over:
            await trio.lowlevel.checkpoint()
            return b""
        data = await self._connection.read(self._limit)
        self.over = self._connection.over
        return data

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        closing = self._pool.give_back(self._origin, self._connection)
        if closing:
            await _close(closing)

    def as_response(self) -> httpx.Response:
        """Return this answer as the client library's response, which decodes compressed bodies."""
        return httpx.Response(self.status_code, headers=self._raw, stream=_Body(self))


@final
class _Body(httpx.AsyncByteStream):
    def __init__(self, answer: PooledAnswer) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while data := await self._answer.read():
            yield data

    async def aclose(self) -> None:
        await self._answer.aclose()
        await trio.lowlevel.cancel_shielded_checkpoint()


@final
@attrs.define(eq=False)
class _ClientAnswer:
    """An answer over the client library: from a client of the application's own, or one that is compressed."""

    _response: httpx.Response
    over: bool = attrs.field(default=False, init=False)
    _chunks: AsyncGenerator[bytes, None] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        if self._response.headers.get("content-encoding", "identity") != "identity":
            self._chunks = self._response.aiter_bytes()  # was asked not to, and compresses nevertheless
            return
        assert isinstance(self._response.stream, httpx.AsyncByteStream)
        chunks = self._response.stream.__aiter__()
        assert isinstance(chunks, AsyncGenerator)
        self._chunks = chunks

    @property
    def status_code(self) -> int:
        return self._response.status_code

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    @property
    def is_success(self) -> bool:
        return self._response.is_success

    def ready(self) -> bytes:
        return b""

    async def read(self) -> bytes:
        while (data := await anext(self._chunks, None)) is not None:
            if data:
                return data
        self.over = True
        return b""

    async def aclose(self) -> None:
        await close_response(self._response, self._chunks)


def client_answer(response: httpx.Response) -> Answer:
    """Return the client library's response as an answer."""
    return _ClientAnswer(response)


def _text(value: bytes) -> str:
    for encoding in ("ascii", "utf-8"):
        try:
            return value.decode(encoding)
        except UnicodeDecodeError:
            pass
    return value.decode("latin-1")


def _origin(url: httpx.URL) -> Origin:
    if url.scheme not in _PORTS:
        raise httpx.UnsupportedProtocol(f"{url.scheme!r} is neither http nor https")
    return url.raw_scheme, url.raw_host.decode("ascii"), url.port or _PORTS[url.scheme]


_PORTS = {"http": 80, "https": 443}


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

    _heads: dict[tuple[object, ...], tuple[httpx.URL, Origin, Head]] = attrs.field(factory=dict, init=False, repr=False)

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
    ) -> Answer:
        """Send one POST and return the answer unread. Redirects are never followed: they would carry the key along.

        Arguments: `headers`, whose names are lower-case; `connect_timeout` in seconds; every other limit is the
        caller's own cancel scope.

        Raises: the client library's transport errors.

        Cancellation: the connection is closed.
        """
        if self._http is not None:
            request = self._http.build_request(
                "POST",
                url,
                headers={**_OWN_HEADERS, **headers},
                content=content,
                timeout=httpx.Timeout(None, connect=connect_timeout),
            )
            return client_answer(await self._http.send(request, stream=True, follow_redirects=False))
        origin, head = self._head(url, headers)
        limits = NO_LIMITS if connect_timeout is None else Limits(connect=connect_timeout)
        answer = await self.pool.send(origin, head, content, limits)
        if answer.headers.get("content-encoding", "identity") != "identity":
            return client_answer(answer.as_response())
        return answer

    def _head(self, url: httpx.URL, headers: Mapping[str, str]) -> tuple[Origin, Head]:
        key = tuple(headers.items())
        known = self._heads.get(key)
        # By identity: an adapter has one address, and comparing addresses costs as much as sending a request.
        if known is None or known[0] is not url:
            own = {"host": url.netloc.decode("ascii"), **_OWN_HEADERS, **headers}
            try:
                raw = [(name.encode("ascii"), value.encode("ascii")) for name, value in own.items()]
            except UnicodeEncodeError as error:
                raise httpx.LocalProtocolError("a header holds what no header can carry") from error
            if len(self._heads) >= _MAX_HEADS:
                self._heads.clear()
            known = self._heads[key] = url, _origin(url), Head.of(b"POST", url.raw_path, raw)
        return known[1:]

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


async def _close(closing: Iterable[Connection]) -> None:
    with trio.CancelScope(shield=True):
        for kept in closing:
            await kept.aclose()


def _abandon(idle: dict[Origin, deque[Connection]]) -> None:
    # No loop runs here, so nothing may be awaited and trio may not be told; nobody waits on an idle socket anyway.
    for stack in idle.values():
        for kept in stack:
            kept.socket.socket.close()
    idle.clear()


_BROKEN = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)
_OWN_HEADERS = {"user-agent": USER_AGENT, "content-type": "application/json"}
