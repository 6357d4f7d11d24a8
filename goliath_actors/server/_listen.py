"""Connections: a listening socket, and each connection in a task that cannot harm another.

What is known of Hypercorn's trio worker, each with a test:

- It sends inside a shield without a time-out, so a client that stops reading would hold its connection, and the end of
  the server, for ever. The kernel ends such a connection (`TCP_USER_TIMEOUT`), which the listening socket hands on.
- What its protocols raise leaves the connection's task: bytes that no client sends, behind a request for a web socket,
  would end the server. So its connections are used, and its worker, which puts them all into one nursery, is not.
- It keeps a connection whose client has left until it counts as idle for too long: so clients that come and go would
  use up the files that a process may have open.
- It reads nothing while a second request waits for the answer to the first one, and so does not see the client leave.
- Its HTTP/2 keeps what a client's window has no room for in memory, without a bound, and the kernel sees no client that
  has stopped reading. Browsers speak it over TLS alone, which this server has not, so it is not spoken.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final

import h11
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import EventWrapper, WorkerContext
from hypercorn.utils import wrap_app
from starlette.types import ASGIApp

from goliath_actors.errors import ConfigError

from ._config import ServerConfig

__all__ = ["LEAVE", "listen", "open_socket"]

log = logging.getLogger("goliath_actors.server")

BACKLOG: Final = 1024
LEAVE: Final = 5.0  # seconds for what is left to be sent, and put on record, once every run is over
SAY_AGAIN: Final = 60.0  # seconds
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_WRITES: Final = os.name == "posix"  # elsewhere a socket is no file
FULL: Final = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 2\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


async def listen(
    app: ASGIApp,
    listener: socket.socket,
    config: ServerConfig,
    end: Callable[[], Awaitable[None]],
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve an application on a socket until `end` returns; then its connections may end by themselves for a while.

    Cancellation: connections end.
    """
    own = Config()
    own.accesslog = None
    own.errorlog = logging.getLogger("goliath_actors.server.http")
    own.include_server_header = False
    own.keep_alive_timeout = 30.0
    context = WorkerContext(None)
    # Any: Hypercorn's types are for its own servers, and wider than what an application of ours is.
    wrapped: Any = wrap_app(app, own.wsgi_max_body_size, "asgi")  # type: ignore[arg-type]
    count = 0

    async def connect(stream: trio.SocketStream) -> None:
        nonlocal count
        if count >= config.max_connections:
            await _refuse(stream)
            return
        count += 1
        try:
            await _Connection(wrapped, own, context, {}, stream).run()  # type: ignore[arg-type]
        except ExceptionGroup as group:
            _note(group.exceptions[0])
        except BaseExceptionGroup as group:  # an error, and the end of the server on top of it
            _, rest = group.split(Exception)
            if rest is not None:
                raise rest from None
        except Exception as error:  # noqa: BLE001  # one connection's own: others go on
            _note(error)
        finally:
            count -= 1
            await trio.aclose_forcefully(stream)

    async with trio.open_nursery() as connections:
        async with trio.open_nursery() as accepting:
            sockets = trio.SocketListener(trio.socket.from_stdlib_socket(listener))
            accepting.start_soon(accept, sockets, connections, connect)
            task_status.started()
            await end()
            accepting.cancel_scope.cancel()
        await context.terminated.set()  # those that wait for another request end now
        # From the moment it is to end: runs get their grace, responses their time to be sent.
        connections.cancel_scope.deadline = trio.current_time() + config.drain_grace + LEAVE


async def accept(
    listener: trio.abc.Listener[trio.SocketStream],
    connections: trio.Nursery,
    connect: Callable[[trio.SocketStream], Awaitable[None]],
) -> None:
    """Start a task for each connection, for ever. While there are no files left for more, clients wait in the kernel's
    queue, and the log says so once a minute: trio's own loop logs a traceback ten times a second.

    Raises: `OSError` if nothing can be accepted any more.

    Cancellation: nothing was accepted.
    """
    said = -math.inf
    while True:
        try:
            stream = await listener.accept()
        except OSError as error:
            if error.errno not in _EXHAUSTED:
                raise
            if trio.current_time() >= said + SAY_AGAIN:
                said = trio.current_time()
                log.warning("no connection can be accepted: %s; raise the limit of open files", error.strerror)
            await trio.sleep(0.1)
        else:
            connections.start_soon(connect, stream)


class _Connection(TCPServer):
    """A connection that ends with its client, and stays with HTTP/1.1, whatever that would like to change to."""

    _left = False

    async def protocol_send(self, event: Event) -> None:
        """As its base; nobody waits for another request of a client that has left.

        Cancellation: as of its base.
        """
        if self._left and isinstance(event, Updated):
            return
        if isinstance(event, RawData) and not self.send_lock.locked():
            rest = self._write(event.data)
            if not rest:
                return
            event = RawData(rest)
        await super().protocol_send(event)

    def _write(self, data: bytes) -> bytes:
        """Write what the connection takes at once; return the rest."""
        # Why: a stream's piece fits nearly always. The base's way (a lock, a cancel scope, two checkpoints) is three
        # times the work of all else that a piece takes, and whoever sends many pieces waits for events between them.
        # Not before the request has been read: an answer without a checkpoint would be over before that, and Hypercorn
        # closes a connection on which it then still finds a body.
        protocol: Any = self.protocol.protocol
        if not _WRITES or protocol.connection.their_state is not h11.DONE:
            return data
        try:
            return data[os.write(self.stream.socket.fileno(), data) :]
        except OSError:  # full, or closed: the base knows what to do
            return data

    async def _read_data(self) -> None:
        protocol: Any = self.protocol.protocol
        protocol._check_protocol = _stay
        protocol.can_read = _Pause(self.stream.socket)
        try:
            await super()._read_data()
        except _Gone:
            await self.protocol.handle(Closed())
        self._left = True
        await self.idle_task.stop()


class _Gone(Exception):
    """The client has left while a request of its own waited."""


class _Pause(EventWrapper):
    """What a second request waits for, while the first one is answered; meanwhile nothing is read.

    Raises: `_Gone` out of the wait if the connection ends, behind a second request at most.
    """

    def __init__(self, socket: trio.socket.SocketType) -> None:
        super().__init__()
        self._socket = socket

    async def wait(self) -> None:
        gone = False

        async def watch() -> None:
            nonlocal gone
            gone = await self._ends()
            if gone:
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await super().wait()
            nursery.cancel_scope.cancel()
        if gone:
            raise _Gone

    async def _ends(self) -> bool:
        try:
            return not await self._socket.recv(1, socket.MSG_PEEK)
        except (OSError, trio.ClosedResourceError):  # also by the server itself, behind the last answer
            return True


async def _stay(request: Any) -> None:
    """In the place of what looks for a wish for HTTP/2."""


def _note(error: BaseException) -> None:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    log.info("a connection ended with %s", type(error).__name__)


async def _refuse(stream: trio.SocketStream) -> None:
    """Tell a client that there are too many, without reading what it wants."""
    try:
        with trio.move_on_after(1):
            await stream.send_all(FULL)
    except trio.BrokenResourceError:
        pass
    await trio.aclose_forcefully(stream)


def open_socket(config: ServerConfig) -> socket.socket:
    """Return a listening socket.

    Raises: `ConfigError` for an address that cannot be had.
    """
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"host {config.host!r} is no address of this machine ({error.strerror})") from error
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(config.send_timeout * 1000))
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ConfigError(_unavailable(config, error)) from error
    return listener


def _unavailable(config: ServerConfig, error: OSError) -> str:
    where = f"{config.host}:{config.port}"
    if error.errno == errno.EADDRINUSE:
        return f"{where} is in use by another program; take another port, or 0 for any free one"
    if error.errno == errno.EACCES:
        return f"this user may not listen on {where}; take a port above 1023"
    return f"{where} cannot be listened on: {error.strerror}"
