"""What comes over the wire: whatever bytes a connection brings, and however it ends, the server goes on."""

from __future__ import annotations

import errno
import os
import random
import socket
import struct
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from goliath_actors import Agent, ToolLoop
from goliath_actors.server import ServerConfig
from goliath_actors.server._listen import accept
from goliath_actors.testing import Gate, ScriptedModel

from .web import Raw, Web, open_web

H = b"Host: localhost\r\n"
WIRE: list[bytes] = [
    b"\x00\x01\x02\x03\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n" + H + b"\r\n",
    b"GET /\xff\xfe HTTP/1.1\r\n" + H + b"\r\n",
    b"GET /%ff%00%2f HTTP/1.1\r\n" + H + b"\r\n",
    b"GET http://[::1/ HTTP/1.1\r\n" + H + b"\r\n",
    b"GET /?" + b"a" * 10000 + b" HTTP/1.1\r\n" + H + b"\r\n",
    b"GET / HTTP/1.1\r\n" + b"X: " + b"a" * 100_000,
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"POST /v1/conversations/c/runs HTTP/1.1\r\n"
    + H
    + b"content-type: application/json\r\ncontent-length: 10\r\ncontent-length: 11\r\n\r\n{}",
    b"POST /v1/conversations/c/runs HTTP/1.1\r\n"
    + H
    + b"content-type: application/json\r\ncontent-length: -1\r\n\r\n{}",
    b"POST /v1/conversations/c/runs HTTP/1.1\r\n"
    + H
    + b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n",
    b"POST /v1/conversations/c/runs HTTP/1.1\r\n"
    + H
    + b"content-type: application/json\r\ntransfer-encoding: gzip\r\n\r\n",
    b"POST /v1/conversations/c/runs HTTP/1.1\r\n"
    + H
    + b"expect: 100-continue\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00" * 100,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00" + b"\xff" * 200,
    b"GET / HTTP/1.1\r\n" + H + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: !!!!\r\n\r\n",
    b"GET / HTTP/1.1\r\n"
    + H
    + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
    + b"\xff" * 50,
    b"GET / HTTP/1.1\r\n" + H + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n\xff\xff\xff",
    b"GET / HTTP/1.1\r\n" + H + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\n" + H + b"\r\n" + b"GET /healthz HTTP/1.1\r\n" + H + b"\r\n" + b"garbage\r\n\r\n",
    b"GET /v1/conversations/c/runs/r/events HTTP/1.1\r\n" + H + b"\r\n" * 3 + b"\x16\x03\x01",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"OPTIONS * HTTP/1.1\r\n" + H + b"\r\n",
    b"CONNECT a:1 HTTP/1.1\r\n" + H + b"\r\n",
    b"GET / HTTP/1.0\r\n\r\n",
    b"HEAD /v1/agents HTTP/1.1\r\n" + H + b"\r\n",
    b"DELETE /v1/conversations/c HTTP/1.1\r\n" + H + b"content-length: 5\r\n\r\nxx",
    b"GET / HTTP/1.1\r\nHost: \xc3\xa9\r\n\r\n",
    b"GET / HTTP/1.1\r\n"
    + H
    + b"Authorization: Bearer \xff\xff\r\nOrigin: \xff\r\nAccept: \xff\r\nLast-Event-ID: \xff\r\n\r\n",
    b"GET /v1/conversations/c HTTP/1.1\r\n" + H + b"Origin: http://[\r\n\r\n",
    b"POST /v1/conversations/c/regenerate HTTP/1.1\r\n" + H + b"Origin: http://[\r\ncontent-length: 0\r\n\r\n",
]


def agent(*replies: Any) -> Agent[Any]:
    return Agent(model=ScriptedModel(list(replies)), loop=ToolLoop())


async def send(web: Web, content: bytes, leave: str) -> None:
    raw = await web.connect()
    try:
        await raw.stream.send_all(content)
        if leave == "later":
            with trio.move_on_after(0.02):
                await raw.read_to_end()
        elif leave == "reset":
            raw.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except trio.BrokenResourceError:  # it was thrown out first
        pass
    await raw.stream.aclose()


@pytest.mark.parametrize("leave", ["at once", "later", "reset"])
async def test_no_bytes_end_the_server_or_another_connection(leave: str) -> None:
    gate = Gate()
    async with open_web(agent(gate.then("Done."))) as web:
        other = await web.connect()
        await other.send("POST", "/v1/conversations/other/runs", {"ask": "Hi."}, accept="text/event-stream")
        await gate.wait_reached()
        for content in WIRE:
            await send(web, content, leave)
            assert (await web.client.get("/healthz")).status_code == 200, content
        gate.open()
        assert b'"text":"Done."' in await other.read_until(b"event: run-finished")


@pytest.mark.parametrize("seed", range(4))
async def test_no_mangled_request_ends_the_server(seed: int) -> None:
    whole = WIRE[19] + WIRE[14] + b'{"ask": "Hi."}' + WIRE[17]
    numbers = random.Random(seed)
    async with open_web(agent()) as web:
        for _ in range(30):
            content = bytearray(whole[numbers.randrange(len(whole)) :][: numbers.randrange(400)])
            for _ in range(numbers.randrange(4)):
                if content:
                    content[numbers.randrange(len(content))] = numbers.randrange(256)
            await send(web, bytes(content), numbers.choice(["at once", "later", "reset"]))
        assert (await web.client.get("/healthz")).status_code == 200


async def test_more_connections_than_there_may_be_are_refused_and_others_go_on() -> None:
    gate = Gate()
    async with open_web(agent(gate.then("Done.")), config=ServerConfig(max_connections=1, drain_grace=5)) as web:
        first = await web.connect()
        await first.send("POST", "/v1/conversations/c/runs", {"ask": "Hi."}, accept="text/event-stream")
        await gate.wait_reached()
        second = await web.connect()
        assert (await second.read_to_end()).startswith(b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 2\r\n")
        gate.open()
        await first.read_until(b"event: run-finished")


async def test_a_client_that_leaves_while_a_second_request_of_its_own_waits_is_noticed() -> None:
    gate = Gate()
    async with open_web(agent(gate.then("never"), "Next.")) as web:
        raw = await web.connect()
        await raw.send("POST", "/v1/conversations/c/runs", {"ask": "Hi."}, accept="text/event-stream")
        await raw.send("GET", "/healthz")
        run_id = (await raw.read_until(b"event: run-started")).partition(b"x-run-id: ")[2].partition(b"\r")[0].decode()
        await gate.wait_reached()
        hosted = web.server._hosting.get(run_id)
        assert hosted is not None
        assert not hosted.over.is_set()
        await raw.stream.aclose()
        await hosted.over.wait()
        assert hosted.run.outcome is not None
        assert hosted.run.outcome.abort is not None
        assert (hosted.run.outcome.abort.cause, hosted.run.outcome.abort.reason) == ("caller", "the client left")
        assert (await web.ask("Hi.")).json()["result"]["text"] == "Next."


async def ask_and_ask_again(web: Web, gate: Gate) -> Raw:
    """Follow a run that waits at a gate, and send a second request behind it on the same connection."""
    raw = await web.connect()
    await raw.send("POST", "/v1/conversations/c/runs", {"ask": "Hi."}, accept="text/event-stream")
    await raw.send("GET", "/healthz")
    await gate.wait_reached()
    return raw


async def test_a_second_request_that_waits_is_answered_behind_the_first() -> None:
    gate = Gate()
    async with open_web(agent(gate.then("Done."))) as web:
        raw = await ask_and_ask_again(web, gate)
        await raw.send("GET", "/v1/agents")
        gate.open()
        read = await raw.read_until(b'{"agents":')
    assert read.index(b"event: run-finished") < read.index(b'{"status":"ok"}') < read.index(b'{"agents":')


async def test_a_second_request_that_waits_when_the_server_ends_is_dropped_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "goliath_actors.server")
    gate = Gate()
    async with open_web(agent(gate.then("Done."))) as web:
        raw = await ask_and_ask_again(web, gate)
        web.server.shut_down()
        await trio.testing.wait_all_tasks_blocked()
        gate.open()
        read = await raw.read_to_end()
    assert b"event: run-finished" in read
    assert read.endswith(b"0\r\n\r\n")
    assert [record.message for record in caplog.records if "a connection ended" in record.message] == []


@attrs.define(eq=False)
class Full(trio.abc.Listener[trio.SocketStream]):
    """A socket on a machine that has no files left, for so many tries."""

    left: int
    number: int = errno.EMFILE

    async def accept(self) -> trio.SocketStream:
        await trio.lowlevel.checkpoint()
        if self.left:
            self.left -= 1
            raise OSError(self.number, os.strerror(self.number))
        await trio.sleep_forever()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_a_server_without_files_left_says_so_once_a_minute_and_goes_on(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    listener = Full(left=605)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept, listener, nursery, trio.aclose_forcefully)
        await trio.sleep(100)
        nursery.cancel_scope.cancel()
    assert listener.left == 0
    words = "no connection can be accepted: Too many open files; raise the limit of open files"
    assert [(record.levelname, record.message, record.exc_info) for record in caplog.records] == [
        ("WARNING", words, None)
    ] * 2


async def test_a_listening_socket_that_is_broken_is_no_matter_of_files() -> None:
    with pytest.RaisesGroup(OSError):
        async with trio.open_nursery() as nursery:
            await accept(Full(1, errno.EBADF), nursery, trio.aclose_forcefully)
