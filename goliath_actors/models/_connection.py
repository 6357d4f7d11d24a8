"""One connection to a provider: connecting, TLS, and a trio stream in the shape that the client library wants.

Uses _http; used by _pool.
"""

from __future__ import annotations

import math
import ssl
from typing import Any, TypeAlias, final

import trio

from ._http import httpcore, httpx

__all__ = ["CORE_ERRORS", "Wire", "connect", "translate"]

_Stream: TypeAlias = trio.SocketStream | trio.SSLStream[trio.SocketStream]

CORE_ERRORS = (
    httpcore.TimeoutException,
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.UnsupportedProtocol,
)


@final
class Wire(httpcore.AsyncNetworkStream):
    """A trio stream in the shape that the connection class wants; `received` counts the bytes that came in."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream
        self.received = 0

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            if timeout is None:
                data = bytes(await self._stream.receive_some(max_bytes))
            else:
                with trio.fail_after(timeout):
                    data = bytes(await self._stream.receive_some(max_bytes))
        except trio.TooSlowError as error:
            raise httpcore.ReadTimeout(f"no data within {timeout} s") from error
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise httpcore.ReadError(_words(error, "the connection broke off")) from error
        self.received += len(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if not buffer:
            return
        try:
            if timeout is None:
                await self._stream.send_all(buffer)
            else:
                with trio.fail_after(timeout):
                    await self._stream.send_all(buffer)
        except trio.TooSlowError as error:
            raise httpcore.WriteTimeout(f"not sent within {timeout} s") from error
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise httpcore.WriteError(_words(error, "the connection broke off")) from error

    async def aclose(self) -> None:
        await self._stream.aclose()

    # Any: the interface of the client library says so.
    def get_extra_info(self, info: str) -> Any:
        return self.socket.is_readable() if info == "is_readable" else None

    @property
    def socket(self) -> trio.socket.SocketType:
        stream = self._stream
        return (stream.transport_stream if isinstance(stream, trio.SSLStream) else stream).socket


async def connect(where: httpcore.Origin, timeout: float | None, context: ssl.SSLContext | None) -> Wire:
    """Open one connection.

    Arguments: `timeout` in seconds for everything up to the end of the TLS handshake (None: no limit); `context` is
    used for https only.

    Raises: `httpx.ConnectTimeout`, `httpx.ConnectError`.

    Cancellation: nothing stays open.
    """
    host = where.host.decode("ascii")
    try:
        with trio.fail_after(math.inf if timeout is None else timeout):
            plain = await trio.open_tcp_stream(host, where.port)
            return Wire(plain if context is None else await _secure(plain, host, context))
    except trio.TooSlowError as error:
        raise httpx.ConnectTimeout(f"no connection within {timeout:g} s") from error
    except (OSError, trio.BrokenResourceError) as error:
        raise httpx.ConnectError(_words(error, "the connection was refused")) from error


async def _secure(stream: trio.SocketStream, host: str, context: ssl.SSLContext) -> trio.SSLStream[trio.SocketStream]:
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


def translate(error: Exception) -> httpx.TransportError:
    """The same error in the words of the upper half, where each has the same name."""
    kind = getattr(httpx, type(error).__name__, httpx.TransportError)
    assert issubclass(kind, httpx.TransportError)
    return kind(_words(error, "the connection failed"))


def _words(error: BaseException, otherwise: str) -> str:
    """What an error says; the innermost cause has the system's own words ("connection reset by peer")."""
    said = str(error)
    cause = error.__cause__
    while not said and cause is not None:
        said, cause = str(cause), cause.__cause__
    return said or otherwise
