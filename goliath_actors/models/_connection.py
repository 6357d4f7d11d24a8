"""One connection to a provider: connecting, TLS, and requests in HTTP/1.1, one after another.

Uses _http, _response, _socket; used by _pool. The head of a request is checked by h11 and written once: all of one
adapter have the same, but for the length of their body.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias, final

import attrs
import h11
import trio

from ._http import httpx
from ._response import Malformed, ResponseHead, Responses
from ._socket import Socket

__all__ = ["Connection", "Head", "Limits", "close_all", "connect"]

_Stream: TypeAlias = Socket | trio.SSLStream[Socket]

_READ = 64 * 1024
_TOLD = frozenset({b"connection", b"content-length", b"expect", b"host", b"upgrade"})
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})


class Limits(NamedTuple):
    """Seconds for connecting (TLS included), for each read and for the write; None for no limit."""

    connect: float | None = None
    read: float | None = None
    write: float | None = None


@attrs.frozen(eq=False)
class Head:
    """The head of a request, but for the length of its body; made once for requests that are alike.

    `request` is what h11 is told of it at each call: only the headers that have to do with how a response is read.
    """

    before_length: bytes
    request: h11.Request

    @classmethod
    def of(cls, method: bytes, target: bytes, headers: Iterable[tuple[bytes, bytes]]) -> Head:
        """Write a head. Headers that say how the body is framed are left out: its length is.

        Raises: `httpx.LocalProtocolError` for what no request may hold.
        """
        kept = [(name, value) for name, value in headers if name.lower() not in _FRAMING]
        kept.sort(key=lambda header: header[0].lower() != b"host")
        try:
            event = h11.Request(method=method, target=target, headers=[*kept, (b"content-length", b"0")])
        except h11.LocalProtocolError as error:
            raise httpx.LocalProtocolError(str(error)) from error
        lines = [b"%s %s HTTP/1.1" % (event.method, event.target), *(b"%s: %s" % header for header in kept)]
        told = [(name, value) for name, value in event.headers if name in _TOLD]
        request = h11.Request(method=method, target=b"/", headers=told)
        return cls(b"\r\n".join([*lines, b"content-length: "]), request)


@final
class Connection:
    """A connection that carries one request at a time. `received` counts the bytes that came in."""

    __slots__ = ("_responses", "_stream", "expires_at", "received")

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream
        self._responses = Responses()
        self.received = 0
        self.expires_at = math.inf

    @property
    def socket(self) -> Socket:
        """The socket, TLS or not."""
        stream = self._stream
        return stream if isinstance(stream, Socket) else stream.transport_stream

    async def send(self, head: Head, content: bytes, limit: float | None) -> None:
        """Send one request. Its response is there to be read after `receive`: first `head`, then what `ready` gives.

        Arguments: `limit`, seconds, or None.

        Raises: the client library's transport errors.

        Cancellation: the connection cannot be used again.
        """
        self._responses.begin(head.request)
        data = b"%s%d\r\n\r\n%s" % (head.before_length, len(content), content)
        # Sending need not be a checkpoint, and a request of somebody who was cancelled is not sent.
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            if limit is None:
                await self._stream.send_all(data)
            else:
                with trio.fail_after(limit):
                    await self._stream.send_all(data)
        except trio.TooSlowError as error:
            raise httpx.WriteTimeout(f"not sent within {limit} s") from error
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # a server may refuse a request before it has read it all: what it says tells more than this

    def head(self) -> ResponseHead | None:
        """Return the head of the response once all of it has come, else None.

        Raises: `httpx.RemoteProtocolError`.
        """
        try:
            return self._responses.head()
        except Malformed as error:
            raise httpx.RemoteProtocolError(str(error)) from error

    def ready(self) -> bytes:
        """Return what has come of the body and was not returned yet, without waiting; empty if nothing has.

        Raises: `httpx.RemoteProtocolError`, once all in front of what is no HTTP was returned.
        """
        try:
            return self._responses.body()
        except Malformed as error:
            raise httpx.RemoteProtocolError(str(error)) from error

    @property
    def over(self) -> bool:
        """True once the body was returned to its end."""
        return self._responses.over

    @property
    def reusable(self) -> bool:
        """True if the connection can carry another request."""
        return self._responses.reusable

    async def aclose(self) -> None:
        """Close the connection."""
        await self._stream.aclose()

    async def receive(self, limit: float | None) -> int:
        """Wait for what comes next, and return how many bytes it is: 0 if no more will come. A checkpoint.

        Arguments: `limit`, seconds, or None.

        Raises: the client library's transport errors.

        Cancellation: the connection cannot be used again.
        """
        try:
            if limit is None:
                data = await self._stream.receive_some(_READ)
            else:
                with trio.fail_after(limit):
                    data = await self._stream.receive_some(_READ)
        except trio.TooSlowError as error:
            raise httpx.ReadTimeout(f"no data within {limit} s") from error
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise httpx.ReadError(_words(error, "the connection broke off")) from error
        self.received += len(data)
        self._responses.receive(bytes(data))
        return len(data)


async def connect(
    scheme: bytes, host: str, port: int, timeout: float | None, context: ssl.SSLContext | None
) -> Connection:
    """Open one connection.

    Arguments: `timeout` in seconds for everything up to the end of the TLS handshake (None: no limit); `context` is
    used for https only.

    Raises: `httpx.ConnectTimeout`, `httpx.ConnectError`.

    Cancellation: nothing stays open.
    """
    try:
        with trio.fail_after(math.inf if timeout is None else timeout):
            plain = Socket(await trio.open_tcp_stream(host, port))
            return Connection(plain if scheme != b"https" or context is None else await _secure(plain, host, context))
    except trio.TooSlowError as error:
        raise httpx.ConnectTimeout(f"no connection within {timeout:g} s") from error
    except (OSError, trio.BrokenResourceError) as error:
        raise httpx.ConnectError(_words(error, "the connection was refused")) from error


async def _secure(stream: Socket, host: str, context: ssl.SSLContext) -> trio.SSLStream[Socket]:
    secured = trio.SSLStream(stream, context, server_hostname=host, https_compatible=True)
    ready = False
    try:
        await secured.do_handshake()
        ready = True
    finally:
        if not ready:
            with trio.CancelScope(shield=True):
                await stream.aclose()
    return secured


async def close_all(connections: Iterable[Connection]) -> None:
    """Close connections. Cancellation: is done nevertheless."""
    with trio.CancelScope(shield=True):
        for connection in connections:
            await connection.aclose()


def _words(error: BaseException, otherwise: str) -> str:
    """What an error says; the innermost cause has the system's own words ("connection reset by peer")."""
    said = str(error)
    cause = error.__cause__
    while not said and cause is not None:
        said, cause = str(cause), cause.__cause__
    return said or otherwise
