"""Answers: responses whose bodies are read as they come, over a connection of ours or over the client library.

Uses _connection; used by _pool, _endpoint, _adapter and _incoming.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Protocol, final

import attrs
import trio

from ._connection import Connection, close_all
from ._http import httpx
from ._idle import Origin

__all__ = ["Answer", "Owner", "PooledAnswer", "client_answer", "close_response", "readable"]


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


class Owner(Protocol):
    """Where a connection goes when its answer ends."""

    def give_back(self, origin: Origin, connection: Connection) -> list[Connection]:
        """Count the request as over and keep its connection if it can be used again; returns what is to be closed."""
        ...


@final
class PooledAnswer:
    """An answer over a connection of ours. Its `aclose` is what ends the request for the owner."""

    __slots__ = ("_closed", "_connection", "_headers", "_limit", "_origin", "_owner", "_raw", "over", "status_code")

    def __init__(
        self,
        owner: Owner,
        origin: Origin,
        connection: Connection,
        status: int,
        raw: list[tuple[bytes, bytes]],
        limit: float | None,
    ) -> None:
        self._owner = owner
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
        connection = self._connection
        while not (data := connection.ready()) and not connection.over:
            await connection.receive(self._limit)
        self.over = connection.over
        return data

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        closing = self._owner.give_back(self._origin, self._connection)
        if closing:
            await close_all(closing)

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


def readable(answer: Answer) -> Answer:
    """Return an answer whose body is read as it was meant: the client library undoes a compression."""
    if isinstance(answer, PooledAnswer) and answer.headers.get("content-encoding", "identity") != "identity":
        return client_answer(answer.as_response())
    return answer


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


def _text(value: bytes) -> str:
    for encoding in ("ascii", "utf-8"):
        try:
            return value.decode(encoding)
        except UnicodeDecodeError:
            pass
    return value.decode("latin-1")
