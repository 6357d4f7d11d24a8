"""What tests of the HTTP server share: a server on a free loopback port, and a client that reads event streams."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import attrs
import httpx2 as httpx
import trio

from goliath_actors import Agent
from goliath_actors.abc import Store
from goliath_actors.server import Server, ServerConfig, serve

TURN = 20.0  # seconds that nothing in a test may take


@attrs.frozen
class Sent:
    """One event of a stream."""

    event: str
    id: int | None
    data: dict[str, Any]


async def frames(response: httpx.Response) -> AsyncIterator[Sent]:
    """Read an event stream as it is defined: fields by line, events by blank line."""
    event, number, data = "message", None, ""
    rest = b""
    async with aclosing(response.aiter_bytes()) as pieces:
        async for piece in pieces:
            rest += piece
            *lines, rest = rest.split(b"\n")
            for line in lines:
                name, _, value = line.decode().partition(": ")
                if name == "event":
                    event = value
                elif name == "id":
                    number = int(value)
                elif name == "data":
                    data += value
                elif not line and data:
                    yield Sent(event, number, json.loads(data))
                    event, number, data = "message", None, ""


async def read_all(response: httpx.Response) -> list[Sent]:
    """Read a stream to its end."""
    return [sent async for sent in frames(response)]


@attrs.define(eq=False)
class Raw:
    """A client that is nothing but a socket: it leaves, or stops reading, when it likes."""

    stream: trio.SocketStream
    read: bytes = b""

    async def send(self, method: str, path: str, body: Any = None, **headers: str) -> None:
        """Send a request."""
        content = b"" if body is None else json.dumps(body).encode()
        rows = {"host": "127.0.0.1", "content-length": str(len(content)), **headers}
        if body is not None:
            rows["content-type"] = "application/json"
        head = "".join(f"{name}: {value}\r\n" for name, value in rows.items())
        await self.stream.send_all(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + content)

    async def read_until(self, part: bytes) -> bytes:
        """Read until `part` has come; return all that was read."""
        while part not in self.read:
            piece = await self.stream.receive_some(65536)
            assert piece, f"the connection ended before {part!r}: {self.read!r}"
            self.read += piece
        return self.read

    async def read_to_end(self) -> bytes:
        """Read until the connection ends."""
        async for piece in self.stream:
            self.read += piece
        return self.read


@attrs.define(eq=False)
class Web:
    """A running server and a client of it."""

    server: Server
    client: httpx.AsyncClient
    connections: list[Raw] = attrs.Factory(list)

    async def connect(self) -> Raw:
        """Open a connection of its own."""
        raw = Raw(await trio.open_tcp_stream("127.0.0.1", self.server.port))
        self.connections.append(raw)
        return raw

    async def ask(self, ask: str, conversation: str = "c", **more: Any) -> httpx.Response:
        """Ask and wait."""
        return await self.client.post(f"/v1/conversations/{conversation}/runs", json={"ask": ask, **more})

    def stream(self, ask: str, conversation: str = "c", **more: Any) -> Any:
        """Ask for an event stream: an async context manager of the response."""
        return self.client.stream(
            "POST",
            f"/v1/conversations/{conversation}/runs",
            json={"ask": ask, **more},
            headers={"accept": "text/event-stream"},
        )

    def follow(self, run_id: str, conversation: str = "c", after: int | None = None) -> Any:
        """Follow a run: an async context manager of the response."""
        headers = {} if after is None else {"last-event-id": str(after)}
        return self.client.stream("GET", f"/v1/conversations/{conversation}/runs/{run_id}/events", headers=headers)


@asynccontextmanager
async def open_web(
    *agents: Agent[Any],
    store: Store | None = None,
    config: ServerConfig | None = None,
    token: str | None = None,
    **more: Any,
) -> AsyncIterator[Web]:
    """Serve agents on a free port for the length of the block; then shut down, which must come to an end."""
    config = attrs.evolve(config or ServerConfig(drain_grace=5), port=0)
    with trio.fail_after(TURN):
        async with trio.open_nursery() as nursery:

            async def run(task_status: trio.TaskStatus[Server] = trio.TASK_STATUS_IGNORED) -> None:
                await serve(*agents, store=store, config=config, task_status=task_status, **more)

            server: Server = await nursery.start(run)
            headers = {} if token is None else {"authorization": f"Bearer {token}"}
            client = httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=TURN, headers=headers)
            async with client:
                web = Web(server, client)
                yield web
            for raw in web.connections:
                await raw.stream.aclose()
            server.shut_down()
