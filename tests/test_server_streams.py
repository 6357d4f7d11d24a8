"""Event streams over real sockets: merged, taken up again, and slow or silent readers that cost nobody anything."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from goliath_actors import Agent, ToolLoop
from goliath_actors._journal import RunJournal
from goliath_actors.abc import ModelDone, ModelEvent, ModelRequest, ModelText
from goliath_actors.events import RunFinished, ToolStarted
from goliath_actors.server import ServerConfig
from goliath_actors.server._wire import events_size
from goliath_actors.testing import Gate, ScriptedModel

from .web import Raw, frames, open_web, read_all


@attrs.define(eq=False)
class Talker:
    """A model that sends pieces at a pace, then waits for a gate, if it has one."""

    pieces: list[str]
    pace: float = 0.0
    gate: Gate | None = None
    name: str = "talker"

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        yield self._talk()

    async def _talk(self) -> AsyncIterator[ModelEvent]:
        for piece in self.pieces:
            await trio.sleep(self.pace)
            yield ModelText(piece)
        if self.gate is not None:
            await self.gate.pass_through()
        yield ModelDone()


def talker(*pieces: str, pace: float = 0.0, gate: Gate | None = None) -> Agent[Any]:
    return Agent(model=Talker(list(pieces), pace, gate), loop=ToolLoop())


async def test_pieces_that_come_fast_are_merged_and_none_is_lost() -> None:
    pieces = [f"{number} " for number in range(300)]
    async with open_web(talker(*pieces, pace=0.0005)) as web, web.stream("Hi.") as response:
        sent = await read_all(response)
    deltas = [one for one in sent if one.event == "text-delta"]
    assert "".join(one.data["text"] for one in deltas) == "".join(pieces)
    assert len(deltas) < len(pieces) / 2
    numbers = [number for one in deltas for number in range(one.data["seq"], one.data["through"] + 1)]
    assert numbers == list(range(numbers[0], numbers[0] + len(pieces)))


async def test_a_reader_that_comes_back_in_the_middle_of_merged_pieces_gets_the_rest_of_them() -> None:
    pieces = [f"{number} " for number in range(20)]
    gate = Gate()
    async with open_web(talker(*pieces, gate=gate)) as web:
        run_id = (await web.ask("Hi.", wait=False)).json()["run_id"]
        await gate.wait_reached()
        gate.open()
        async with web.follow(run_id) as stream:
            whole = await read_all(stream)
        (merged,) = [one for one in whole if one.event == "text-delta"]
        first, last = merged.data["seq"], merged.data["through"]
        assert last - first == 19
        for after in range(first - 1, last + 1):
            async with web.follow(run_id, after=after) as stream:
                rest = await read_all(stream)
            text = "".join(one.data["text"] for one in rest if one.event == "text-delta")
            assert text == "".join(pieces[after - first + 1 :])


async def test_a_silent_stream_says_that_it_lives() -> None:
    gate = Gate()
    own = Agent(model=ScriptedModel([gate.then("Done.")]), loop=ToolLoop())
    async with open_web(own, config=ServerConfig(keep_alive=0.02)) as web:
        raw = await web.connect()
        await raw.send("POST", "/v1/conversations/c/runs", {"ask": "Hi."}, accept="text/event-stream")
        await raw.read_until(b": keep-alive\n\n")
        gate.open()
        await raw.read_until(b"event: run-finished")


async def test_two_readers_get_the_same_events() -> None:
    gate = Gate()
    own = Agent(model=ScriptedModel([gate.then("Done.")]), loop=ToolLoop())
    async with open_web(own) as web:
        run_id = (await web.ask("Hi.", wait=False)).json()["run_id"]
        heard: list[Any] = []

        async def read() -> None:
            async with web.follow(run_id) as stream:
                heard.append(await read_all(stream))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            nursery.start_soon(read)
            await gate.wait_reached()
            gate.open()
    assert heard[0] == heard[1]


async def test_line_ends_of_other_alphabets_and_halves_of_characters_break_no_stream() -> None:
    text = "a\u2028b\u2029c\x85d\ud800e\r\nf\U0001f600"
    async with open_web(talker(text)) as web:
        async with web.stream("Hi.") as response:
            body = await response.aread()
    assert b"\xe2\x80\xa8" not in body
    assert b"\xc2\x85" not in body
    from .web import Sent, httpx

    sent: list[Sent] = [one async for one in frames(httpx.Response(200, content=body))]
    delta = next(one for one in sent if one.event == "text-delta")
    assert delta.data["text"] == text.replace("\ud800", "\ufffd")


async def stopped_reader(web: Any, path: str, body: Any) -> Raw:
    """Ask through a socket with small buffers, and read nothing but the head."""
    stream = trio.socket.socket()
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await stream.connect(("127.0.0.1", web.server.port))
    raw = Raw(trio.SocketStream(stream))
    web.connections.append(raw)
    await raw.send("POST", path, body, accept="text/event-stream")
    head = b""
    while b"\r\n\r\n" not in head:
        head += await stream.recv(1)
    raw.read = head
    return raw


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/conversations/c/runs", {"ask": "Hi."}),
        ("/v1/chat/completions", {"model": "agent", "stream": True, "messages": [{"role": "user", "content": "Hi."}]}),
    ],
)
async def test_a_connection_that_is_to_close_behind_a_stream_closes(path: str, body: Any) -> None:
    """Proxies that speak HTTP/1.0, or close behind each request, take the end of the connection for the stream's."""
    async with open_web(talker("Hello.")) as web:
        raw = await web.connect()
        await raw.send("POST", path, body, accept="text/event-stream", connection="close")
        with trio.fail_after(10):
            assert (await raw.read_to_end()).endswith(b"0\r\n\r\n")


async def test_a_connection_takes_another_request_behind_a_stream() -> None:
    async with open_web(talker("Hello.")) as web:
        raw = await web.connect()
        for count in (1, 2, 3):
            await raw.send("POST", "/v1/conversations/c/runs", {"ask": "Hi."}, accept="text/event-stream")
            while raw.read.count(b"\r\n0\r\n\r\n") < count:
                piece = await raw.stream.receive_some(65536)
                assert piece, "the connection ended"
                raw.read += piece


BIG = "x" * 100_000


async def test_a_reader_that_stops_holds_back_neither_its_run_nor_the_servers_end() -> None:
    """Hypercorn sends under a shield without a time-out: the kernel ends such a connection in its place."""
    own = talker(*[BIG] * 100)
    config = ServerConfig(send_timeout=0.5, drain_grace=5, delta_interval=0.001)
    with trio.fail_after(15):
        async with open_web(own, config=config) as web:
            raw = await stopped_reader(web, "/v1/conversations/c/runs", {"ask": "Hi.", "detach": True})
            run_id = raw.read.partition(b"x-run-id: ")[2].partition(b"\r")[0].decode()
            hosted = web.server._hosting.get(run_id)
            assert hosted is not None
            await hosted.over.wait()  # ten megabytes that nobody reads do not stop it
            assert hosted.run.outcome is not None
            assert hosted.run.outcome.status == "completed"
            assert (await web.ask("Hi.", "other")).json()["status"] == "completed"
            web.server.shut_down()


async def test_a_reader_that_stops_for_too_long_aborts_its_own_run() -> None:
    gate = Gate()
    own = talker(*[BIG] * 100, gate=gate)
    async with open_web(own, config=ServerConfig(send_timeout=0.5, delta_interval=0.001)) as web:
        raw = await stopped_reader(web, "/v1/conversations/c/runs", {"ask": "Hi."})
        run_id = raw.read.partition(b"x-run-id: ")[2].partition(b"\r")[0].decode()
        hosted = web.server._hosting.get(run_id)
        assert hosted is not None
        await hosted.over.wait()
        assert hosted.run.outcome is not None
        assert hosted.run.outcome.abort is not None
        assert (hosted.run.outcome.abort.cause, hosted.run.outcome.abort.reason) == ("caller", "the client left")


async def test_a_slow_reader_gets_everything_and_a_fast_one_does_not_wait_for_it() -> None:
    gate = Gate()
    own = talker(*[BIG] * 30, gate=gate)
    async with open_web(own, config=ServerConfig(delta_interval=0.001)) as web:
        slow = await stopped_reader(web, "/v1/conversations/c/runs", {"ask": "Hi.", "detach": True})
        run_id = slow.read.partition(b"x-run-id: ")[2].partition(b"\r")[0].decode()
        gate.open()
        async with web.follow(run_id) as stream:
            fast = await read_all(stream)
        assert sum(len(one.data["text"]) for one in fast if one.event == "text-delta") == 30 * len(BIG)
        await slow.read_until(b"event: run-finished")
        assert slow.read.count(b"x" * 1000) > 0


@pytest.mark.parametrize("keep", [0, 2])
async def test_runs_that_are_over_can_be_followed_for_a_while_and_then_only_their_end(keep: int) -> None:
    own = Agent(model=ScriptedModel(["One.", "Two.", "Three."]), loop=ToolLoop())
    async with open_web(own, config=ServerConfig(keep_runs=keep)) as web:
        ids = [(await web.ask("Hi.")).headers["x-run-id"] for _ in range(3)]
        for run_id, text in zip(ids, ("One.", "Two.", "Three."), strict=True):
            hosted = web.server._hosting.get(run_id)
            if hosted is not None:
                await hosted.kept.wait()
            async with web.follow(run_id) as stream:
                sent = await read_all(stream)
            assert sent[-1].data["result"]["text"] == text
            whole = keep > 0 and run_id in ids[-keep:]
            assert (len(sent) > 1) == whole


async def test_runs_that_are_over_are_kept_as_long_as_their_events_have_room_together() -> None:
    own = Agent(model=ScriptedModel(["a" * 30_000, "b" * 30_000, "c", "d" * 200_000]), loop=ToolLoop())
    async with open_web(own, config=ServerConfig(keep_bytes=150_000)) as web:
        hosting = web.server._hosting
        ids: list[str] = []

        async def kept_after_another() -> list[bool]:
            ids.append((await web.ask("Hi.")).headers["x-run-id"])
            last = hosting.get(ids[-1])
            if last is not None:
                await last.kept.wait()
            return [hosting.get(run_id) is not None for run_id in ids]

        # Each text is in its events twice: piece by piece, and whole in the answer.
        assert await kept_after_another() == [True]
        assert await kept_after_another() == [True, True]
        assert await kept_after_another() == [True, True, True]
        assert await kept_after_another() == [False, False, False, False]
        async with web.follow(ids[-1]) as stream:
            (end,) = await read_all(stream)
        assert len(end.data["result"]["text"]) == 200_000


def test_what_has_no_form_of_its_own_can_be_measured() -> None:
    journal = RunJournal("r", None)
    journal.queue()
    journal.delta("x" * 1000)
    for odd in ({"\ud800": "y" * 1000}, {"a": object(), "b": ["z" * 1000]}):
        journal.emit(ToolStarted, call_id="c", tool="t", input=odd)
    journal.emit(RunFinished, status="completed")
    size = events_size(Readable(journal))  # type: ignore[arg-type]
    assert 3000 < size < 5000


@attrs.frozen
class Readable:
    """As much of a run as is measured."""

    journal: RunJournal

    def events(self, after: int) -> Any:
        return self.journal.stream(after=after)
