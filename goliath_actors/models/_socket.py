"""A connected socket, with as few passes through the scheduler as waiting needs.

Uses nothing of ours; used by _connection. Why not `trio.SocketStream`: there each write and each read ends in a pass
through the scheduler of its own. Here a write that the system takes at once makes none, since a wait for the response
follows; and a read waits first, since a response is never there already.
"""

from __future__ import annotations

import socket
from typing import final

import trio

__all__ = ["Socket"]

_READ = 64 * 1024


@final
class Socket(trio.abc.Stream):
    """A stream over a connected socket, which it owns."""

    def __init__(self, stream: trio.SocketStream) -> None:
        """Take the socket out of a stream of trio's, which can no longer be used."""
        self.socket = socket.socket(fileno=stream.socket.detach())
        self.socket.setblocking(False)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of `data`. Not a checkpoint if the system takes it at once.

        Raises: `trio.BrokenResourceError`, `trio.ClosedResourceError`.

        Cancellation: nobody knows how much was sent.
        """
        sent = 0
        while True:
            try:
                sent += self.socket.send(memoryview(data)[sent:] if sent else data)
            except (BlockingIOError, InterruptedError):
                pass
            except OSError as error:
                raise self._failed() from error
            if sent >= len(data):
                return
            await trio.lowlevel.wait_writable(self.socket)

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until the system would take something."""
        await trio.lowlevel.wait_writable(self.socket)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return what came, empty at the end; a checkpoint.

        Raises: `trio.BrokenResourceError`, `trio.ClosedResourceError`.

        Cancellation: nothing is lost.
        """
        while True:
            await trio.lowlevel.wait_readable(self.socket)
            try:
                return self.socket.recv(_READ if max_bytes is None else max_bytes)
            except (BlockingIOError, InterruptedError):
                pass
            except OSError as error:
                raise self._failed() from error

    @property
    def readable(self) -> bool:
        """True if a read would return at once, also with an end or an error."""
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            pass
        return True

    async def aclose(self) -> None:
        """Close the socket; a checkpoint.

        Cancellation: it is closed nevertheless.
        """
        if self.socket.fileno() != -1:
            trio.lowlevel.notify_closing(self.socket)
            self.socket.close()
        await trio.lowlevel.checkpoint()

    def _failed(self) -> Exception:
        return trio.ClosedResourceError() if self.socket.fileno() == -1 else trio.BrokenResourceError()
