"""A provider on loopback that sends exactly the bytes it is told to, cut where it is told to cut.

Each request is answered by the next script of a list (the last one is repeated). A script says what goes over the
wire; nothing is added, so that a broken reply stays broken.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import attrs
import trio
from trio.testing import wait_all_tasks_blocked

End = Literal["close", "keep", "open", "reset"]


def _as_bytes(chunks: Iterable[bytes]) -> tuple[bytes, ...]:
    return tuple(chunks)


@attrs.frozen
class Script:
    """What the server does with one request. `chunks` are sent one by one, each only when the client has taken the one
    before; `end`: `close` the connection, `keep` it for the next request, leave it `open` and silent, or `reset` it.
    `gate`, if given, is waited for after `gate_after` chunks; `pause` is seconds on trio's clock before each chunk."""

    chunks: tuple[bytes, ...] = attrs.field(converter=_as_bytes)
    end: End = "keep"
    gate: trio.Event | None = None
    gate_after: int = 0
    pause: float = 0.0


@attrs.frozen
class Seen:
    """One request as it came in; `connection` counts connections from 0."""

    connection: int
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, object]:
        payload = json.loads(self.body)
        assert isinstance(payload, dict)
        return payload


@attrs.define(eq=False)
class ProviderServer:
    """A running server. `open` counts the connections that are open now."""

    port: int
    scripts: list[Script]
    seen: list[Seen] = attrs.field(factory=list)
    connections: int = 0
    open: int = 0
    _scopes: set[trio.CancelScope] = attrs.field(factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def drop_connections(self) -> None:
        """Close every connection, as a server does that is restarted."""
        for scope in self._scopes:
            scope.cancel()

    async def serve(self, stream: trio.SocketStream) -> None:
        number, self.connections = self.connections, self.connections + 1
        self.open += 1
        scope = trio.CancelScope()
        self._scopes.add(scope)
        try:
            with scope:
                await self._serve(stream, number)
        finally:
            self._scopes.discard(scope)
            self.open -= 1
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)

    async def _serve(self, stream: trio.SocketStream, number: int) -> None:
        buffer = bytearray()
        try:
            while (request := await _read_request(stream, buffer, number)) is not None:
                script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
                self.seen.append(request)
                for index, chunk in enumerate(script.chunks):
                    if script.gate is not None and index == script.gate_after:
                        await script.gate.wait()
                    if script.pause:
                        await trio.sleep(script.pause)
                    await stream.send_all(chunk)
                    if len(script.chunks) > 1:
                        await wait_all_tasks_blocked()
                if script.gate is not None and script.gate_after >= len(script.chunks):
                    await script.gate.wait()
                if script.end == "reset":
                    # Closing with a zero linger time sends RST instead of FIN.
                    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                if script.end == "open":
                    while await stream.receive_some(4096):
                        pass
                if script.end != "keep":
                    return
        except trio.BrokenResourceError:
            pass  # the client left


@asynccontextmanager
async def provider(*scripts: Script, port: int = 0) -> AsyncIterator[ProviderServer]:
    """Run a server for the block."""
    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(port, host="127.0.0.1", backlog=4096)
        server = ProviderServer(listener.socket.getsockname()[1], list(scripts))
        # The listener takes connections from here on; the task only accepts them.
        nursery.start_soon(trio.serve_listeners, server.serve, [listener])
        yield server
        nursery.cancel_scope.cancel()


def head(status: int = 200, headers: Mapping[str, str] | None = None, length: int | None = None) -> bytes:
    """The head of a response; without a length its body ends with the connection."""
    fields = {**(headers or {})}
    if length is None:
        fields["connection"] = "close"
    else:
        fields["content-length"] = str(length)
    lines = [f"HTTP/1.1 {status} Status", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def events(*payloads: object, done: bool = True) -> bytes:
    """An event stream of these payloads, with the end marker."""
    lines = [f"data: {json.dumps(payload)}\n\n" for payload in payloads]
    return "".join([*lines, "data: [DONE]\n\n" if done else ""]).encode()


def text_reply(*pieces: str, reason: str = "stop") -> bytes:
    """The event stream of a reply in these pieces."""
    deltas = [{"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in pieces]
    return events(*deltas, {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})


def chunked(*parts: bytes, headers: Mapping[str, str] | None = None, last: bool = True) -> bytes:
    """A whole response in chunked coding, as kept connections of real servers send it."""
    fields = {"content-type": "text/event-stream", **(headers or {}), "transfer-encoding": "chunked"}
    lines = ["HTTP/1.1 200 OK", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return "\r\n".join(lines).encode() + body + (b"0\r\n\r\n" if last else b"")


def cut(data: bytes, sizes: Iterable[int]) -> Sequence[bytes]:
    """`data` in pieces of these sizes; the rest is the last one."""
    pieces: list[bytes] = []
    at = 0
    for size in sizes:
        pieces.append(data[at : at + size])
        at += size
    return [piece for piece in (*pieces, data[at:]) if piece]


async def _read_request(stream: trio.SocketStream, buffer: bytearray, number: int) -> Seen | None:
    while b"\r\n\r\n" not in buffer:
        data = await stream.receive_some(65536)
        if not data:
            return None
        buffer += data
    top, _, rest = bytes(buffer).partition(b"\r\n\r\n")
    first, *lines = top.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = int(headers.get("content-length", "0"))
    buffer[:] = rest
    while len(buffer) < length:
        data = await stream.receive_some(65536)
        if not data:
            return None
        buffer += data
    body = bytes(buffer[:length])
    del buffer[:length]
    return Seen(number, first.split(" ")[1], headers, body)
