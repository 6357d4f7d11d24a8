"""What a stream sends next: all that is there in one piece, at ticks that all streams share."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from goliath_actors import Agent, ToolLoop
from goliath_actors.abc import ModelDone, ModelEvent, ModelRequest, ModelText
from goliath_actors.server import ServerConfig
from goliath_actors.server._feed import SLOWEST, Pace
from goliath_actors.server._hosted import Hosted
from goliath_actors.server._streams import RETRY, StreamResponse, follow
from goliath_actors.server._wire import dumps
from goliath_actors.testing import ScriptedModel

from .web import Web, open_web


@attrs.define(eq=False)
class Told:
    """A model that says a text for each word that it is told to say, until it is told an empty one."""

    say: trio.MemorySendChannel[str] = attrs.field(init=False)
    name: str = "told"
    _words: trio.MemoryReceiveChannel[str] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.say, self._words = trio.open_memory_channel[str](1000)

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        yield self._speak()

    async def _speak(self) -> AsyncIterator[ModelEvent]:
        while word := await self._words.receive():
            yield ModelText(word)
        yield ModelDone()


async def begin(web: Web) -> Hosted:
    run_id = (await web.ask("Hi.", wait=False)).headers["x-run-id"]
    hosted = web.server._hosting.get(run_id)
    assert hosted is not None
    return hosted


def kinds(piece: bytes) -> list[str]:
    return [line.removeprefix("event: ") for line in piece.decode().split("\n") if line.startswith("event: ")]


async def pieces_sent(response: StreamResponse) -> list[bytes]:
    """Return what an ASGI server would be given to send, body by body."""
    sent: list[bytes] = []

    async def receive() -> Any:
        await trio.sleep_forever()

    async def send(message: Any) -> None:
        await trio.lowlevel.checkpoint()
        if message["type"] == "http.response.body":
            sent.append(message["body"])

    await response({"type": "http", "method": "GET"}, receive, send)
    return sent


NO_TICK = ServerConfig(delta_interval=1000)  # more than a test may take


async def test_frames_that_are_ready_together_go_out_in_one_write_and_the_stream_ends_behind_the_last() -> None:
    async with open_web(Agent(model=ScriptedModel(["Hello."]), loop=ToolLoop()), config=NO_TICK) as web:
        hosted = await begin(web)
        await hosted.kept.wait()
        response = StreamResponse(lambda: follow(web.server._hosting, hosted), {})
        whole, end = await pieces_sent(response)
    assert whole.startswith(RETRY)
    assert kinds(whole)[0] == "run-queued"
    assert kinds(whole)[-1] == "run-finished"
    assert len(kinds(whole)) == hosted.last_seq
    assert end == b""


async def test_a_log_that_is_long_is_not_made_one_piece() -> None:
    model = ScriptedModel(["x" * 200_000])
    async with open_web(Agent(model=model, loop=ToolLoop())) as web:
        hosted = await begin(web)
        await hosted.kept.wait()
        pieces = await pieces_sent(StreamResponse(lambda: follow(web.server._hosting, hosted), {}))
    assert [kinds(piece)[-1] for piece in pieces if kinds(piece)] == ["text-delta", "run-finished"]


async def next_of(pieces: AsyncIterator[bytes], kind: str) -> bytes:
    """Read on to the first piece that has an event of this kind."""
    async for piece in pieces:
        if kind in kinds(piece):
            return piece
    raise AssertionError(f"no {kind}")


async def test_a_first_text_is_sent_at_once_and_what_comes_within_a_tick_is_one_piece() -> None:
    model = Told()
    async with open_web(Agent(model=model, loop=ToolLoop()), config=NO_TICK) as web:
        hosting = web.server._hosting
        hosted = await begin(web)
        async with aclosing(follow(hosting, hosted)) as pieces:
            model.say.send_nowait("a")
            assert b'"text":"a"' in await next_of(pieces, "text-delta")
            tick = trio.CancelScope()

            async def sleeper() -> None:
                with tick:
                    await hosting.pace.wait()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(sleeper)
                await wait_all_tasks_blocked()
                for word in ("b", "c", "d", ""):
                    model.say.send_nowait(word)
                await hosted.over.wait()
                nursery.start_soon(_soon, tick.cancel)
                piece = await anext(pieces)
        assert b'"text":"bcd"' in piece
        assert kinds(piece)[0] == "text-delta"
        assert kinds(piece)[-1] == "run-finished"


async def _soon(act: Callable[[], object]) -> None:
    await wait_all_tasks_blocked()
    act()


async def test_streams_of_one_run_that_take_the_same_encode_it_once() -> None:
    model = Told()
    async with open_web(Agent(model=model, loop=ToolLoop())) as web:
        hosted = await begin(web)
        heard: list[list[bytes]] = [[], [], []]

        async def read(pieces: list[bytes]) -> None:
            async for piece in follow(web.server._hosting, hosted):
                pieces.append(piece)

        async with trio.open_nursery() as nursery:
            for pieces in heard:
                nursery.start_soon(read, pieces)
            await wait_all_tasks_blocked()
            model.say.send_nowait("Hello.")
            await wait_all_tasks_blocked()
            assert hosted.streams == 3
            model.say.send_nowait("")
        assert hosted.streams == 0
        assert hosted.framed is None
    first, *others = ([piece for piece in pieces if "text-delta" in kinds(piece)] for pieces in heard)
    assert len(first) == 1
    assert all(pieces[0] is first[0] for pieces in others)
    assert len({b"".join(pieces) for pieces in heard}) == 1


class Turns(trio.abc.Instrument):
    """Counts the turns of tasks that answer requests."""

    count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += task.name.endswith("task_group._handle")


async def test_a_piece_takes_three_turns_of_its_stream_s_task_at_most() -> None:
    """One when the tick is over, one to see that nothing has come, one when it does; none to send it."""
    model, turns = Told(), Turns()
    config = ServerConfig(delta_interval=0.001)
    async with open_web(Agent(model=model, loop=ToolLoop()), config=config) as web:
        raw = await web.connect()
        await raw.send("POST", "/v1/conversations/c/runs", {"ask": "Hi."}, accept="text/event-stream")
        head = await raw.read_until(b"event: run-started")
        hosted = web.server._hosting.get(head.partition(b"x-run-id: ")[2].partition(b"\r")[0].decode())
        assert hosted is not None
        while not hosted.waiting:
            await trio.lowlevel.checkpoint()
        trio.lowlevel.add_instrument(turns)
        for number in range(20):
            model.say.send_nowait(f"word-{number};")
            await raw.read_until(f"word-{number};".encode())
            while not hosted.waiting:
                await trio.lowlevel.checkpoint()
        trio.lowlevel.remove_instrument(turns)
        model.say.send_nowait("")
        await raw.read_until(b"event: run-finished")
    assert 2 * 20 <= turns.count <= 3 * 20


class Ticks:
    """Streams that wait for the ticks of a pace, and how long each takes to send."""

    def __init__(self, clock: MockClock, pace: Pace, sending: float) -> None:
        self.clock, self.pace, self.sending = clock, pace, sending
        self.at: list[float] = []

    async def stream(self, count: int) -> None:
        for _ in range(count):
            await self.pace.wait()
            self.at.append(round(trio.current_time(), 6))
            if self.sending:
                self.clock.jump(self.sending)  # work, which holds everybody up


async def test_streams_that_wait_are_woken_together(autojump_clock: MockClock) -> None:
    pace = Pace(0.025)
    ticks = Ticks(autojump_clock, pace, 0)
    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(ticks.stream, 2)
    assert [round(at - start, 6) for at in ticks.at] == [0.025] * 3 + [0.05] * 3


async def test_a_tick_is_longer_while_sending_takes_more_than_a_third_of_the_time(autojump_clock: MockClock) -> None:
    pace = Pace(0.025)
    async with trio.open_nursery() as nursery:
        slow = Ticks(autojump_clock, pace, 0.004)
        for _ in range(5):
            nursery.start_soon(slow.stream, 3)
    # The last of five is woken when four have sent.
    assert pace.length == pytest.approx(3 * 4 * 0.004)
    async with trio.open_nursery() as nursery:
        slower = Ticks(autojump_clock, pace, 0.05)
        for _ in range(5):
            nursery.start_soon(slower.stream, 3)
    assert pace.length == SLOWEST
    async with trio.open_nursery() as nursery:
        quick = Ticks(autojump_clock, pace, 0)
        for _ in range(5):
            nursery.start_soon(quick.stream, 3)
    assert pace.length == 0.025


async def test_a_stream_that_leaves_takes_no_other_s_tick_along(autojump_clock: MockClock) -> None:
    pace = Pace(1000)
    ticks = Ticks(autojump_clock, pace, 0)
    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_leave, pace)
        await wait_all_tasks_blocked()
        nursery.start_soon(ticks.stream, 1)
    assert [at - start for at in ticks.at] == [1]


async def _leave(pace: Pace) -> None:
    with trio.move_on_after(1):
        await pace.wait()


async def test_chunks_of_the_dialect_are_merged_in_the_same_way() -> None:
    model = Told()
    for word in ("one ", "two ", "three", ""):
        model.say.send_nowait(word)
    body = {"model": "agent", "stream": True, "messages": [{"role": "user", "content": "Hi."}]}
    # Long enough for the model to have said all, however busy the machine is.
    async with open_web(Agent(model=model, loop=ToolLoop()), config=ServerConfig(delta_interval=0.5)) as web:
        response = await web.client.post("/v1/chat/completions", json=body)
        texts = [
            choice["delta"]["content"]
            for line in response.text.splitlines()
            if line.startswith("data: {")
            for choice in json.loads(line.removeprefix("data: "))["choices"]
            if choice["delta"].get("content")
        ]
    assert "".join(texts) == "one two three"
    assert len(texts) <= 2


json_data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(json_data)
def test_json_is_what_it_was_and_has_no_line_ends_of_other_alphabets(data: Any) -> None:
    written = dumps(data)
    assert json.loads(written) == data
    assert not set("\x85\u2028\u2029\n") & set(written.decode())


def test_a_half_of_a_pair_becomes_the_replacement_character() -> None:
    assert dumps({"a": "x\ud800\u2028y"}) == '{"a":"x\ufffd\\u2028y"}'.encode()
