"""Streams that nobody would write, cut anywhere: they mean what they mean in one piece, or are the same typed error.

The whole way behind the connection is driven (`Incoming`: time-outs, framing, decoding), on a response whose body is
made here; a sample goes over loopback.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from goliath_actors.abc import ModelDone, ModelEvent, ModelRequest, ModelText, ModelToolCall, ModelUsage
from goliath_actors.errors import ModelError, ModelUnavailable
from goliath_actors.models import AnthropicMessages, OpenAIChat
from goliath_actors.models import _incoming as incoming
from goliath_actors.models._answer import client_answer
from goliath_actors.models._errors import Scrubber
from goliath_actors.models._http import httpx
from goliath_actors.models._incoming import Decoder, Incoming, Patience
from goliath_actors.models._messages_reply import MessagesReply
from goliath_actors.models._reply import Reply
from goliath_actors.models._sse import FrameTooLarge, JsonLines, ServerSentEvents
from goliath_actors.values import Message

from ._provider_server import Script, cut, head, provider

KEY = "sk-fuzz-0123456789"
SCRUB = Scrubber((KEY,))
PATIENCE = Patience(60.0, 60.0, "the server")
MADE_UP = re.compile(r"call_[0-9a-f]{32}")

# --- streams --------------------------------------------------------------------------------------------------------

# What is special to the format, what looks like a line end and is none, characters of one to four bytes, half a pair.
texts = st.text(
    st.sampled_from('ab: 你é🌍\u2028\u2029\x85\x0b\x0c\ufeff\x00\ud83d\n\r\t"\\{}[<'), max_size=8
) | st.just(KEY)
numbers = st.sampled_from([0, 1, 2, -1, 1.5, True, None, "0", 10**30, "x"])
ids = st.sampled_from(["", "a", "b", "call_1", None, 7])
names = st.sampled_from(["look", "add", "", None, ["x"]])
arguments = st.sampled_from(
    ["", "{", '{"a"', ":1}", "{}", '{"a": "\\ud83d', '\\ude80"}', "}", "null", None, {"a": 1}, 5]
)
counts = st.fixed_dictionaries(
    {},
    optional={
        "prompt_tokens": numbers,
        "completion_tokens": numbers,
        "input_tokens": numbers,
        "output_tokens": numbers,
    },
)
problems = st.sampled_from(
    [
        {"error": {"message": f"no {KEY}", "type": "overloaded_error"}},
        {"error": {"message": "slow down", "code": 429}},
        {"error": "plain"},
        {"error": None},
        {"type": "error", "error": {"type": "api_error", "message": "oops"}},
        {"error": {"code": "context_length_exceeded"}},
    ]
)
junk = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)


def _maybe(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


pieces = _maybe(index=numbers, id=ids, type=texts, function=_maybe(name=names, arguments=arguments) | junk)
deltas = _maybe(
    role=texts,
    content=texts | junk,
    refusal=texts,
    reasoning_content=texts,
    tool_calls=st.lists(pieces, max_size=3) | junk,
)
reasons = st.sampled_from(["stop", "tool_calls", "length", "content_filter", "error", "", None, 3])
choices = st.lists(_maybe(index=numbers, delta=deltas, message=deltas, finish_reason=reasons), max_size=2) | junk
chat_payloads = st.one_of(
    st.fixed_dictionaries({"choices": choices}, optional={"usage": counts | junk}),
    st.builds(lambda text: {"choices": [{"index": 0, "delta": {"content": text}}]}, texts),
    st.builds(lambda text, done: {"message": {"content": text}, "done": done}, texts, st.booleans()),
    problems,
    junk,
)
blocks = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "tool_use", "thinking", "x"])},
    optional={"text": texts, "id": ids, "name": names | st.just("reply"), "input": junk},
)
block_deltas = st.fixed_dictionaries(
    {"type": st.sampled_from(["text_delta", "input_json_delta", "thinking_delta", "x"])},
    optional={"text": texts, "partial_json": arguments, "thinking": texts},
)
stops = _maybe(stop_reason=st.sampled_from(["end_turn", "tool_use", "max_tokens", "refusal", "pause_turn", "", None]))
messages_payloads = st.one_of(
    st.fixed_dictionaries({"type": st.just("message_start"), "message": _maybe(usage=counts | junk)}),
    st.fixed_dictionaries(
        {"type": st.just("content_block_start"), "content_block": blocks}, optional={"index": numbers}
    ),
    st.fixed_dictionaries({"type": st.just("content_block_delta"), "delta": block_deltas}, optional={"index": numbers}),
    st.fixed_dictionaries({"type": st.just("message_delta"), "delta": stops}, optional={"usage": counts | junk}),
    st.just({"type": "message_stop"}),
    st.just({"type": "ping"}),
    problems,
    junk,
)


def _written(payload: Any, ascii: bool) -> bytes:
    # A lone half of a pair has no UTF-8: a server that writes it unescaped sends what is none.
    return json.dumps(payload, ensure_ascii=ascii).encode("utf-8", "surrogatepass")


# Well-formed events, so that most of a stream is understood before something odd comes.
good_texts = st.text(st.sampled_from('ab 你é🌍\u2028\x85\n\r\t"\\{<'), min_size=1, max_size=6)
good_arguments = st.sampled_from(["{", '{"a": ', "1}", "{}", '{"a": 1}', '{"b": "你', '🌍"}', "}"])


def _call(index: int, id: str, name: str, arguments: str, bare: bool) -> dict[str, Any]:
    piece: dict[str, Any] = {"index": index, "function": {"arguments": arguments}}
    if not bare:
        piece |= {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"choices": [{"index": 0, "delta": {"tool_calls": [piece]}}]}


good_chat = st.one_of(
    st.builds(lambda text: {"choices": [{"index": 0, "delta": {"content": text}}]}, good_texts),
    st.builds(_call, st.integers(0, 2), st.sampled_from("xyz"), st.just("look"), good_arguments, st.booleans()),
    st.builds(lambda n: {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": n}}, st.integers(1, 9)),
    st.builds(
        lambda reason: {"choices": [{"delta": {}, "finish_reason": reason}]}, st.sampled_from(["stop", "tool_calls"])
    ),
)
good_messages = st.one_of(
    st.builds(
        lambda n, text: {"type": "content_block_delta", "index": n, "delta": {"type": "text_delta", "text": text}},
        st.integers(0, 2),
        good_texts,
    ),
    st.builds(
        lambda n, id, name: {
            "type": "content_block_start",
            "index": n,
            "content_block": {"type": "tool_use", "id": id, "name": name, "input": {}},
        },
        st.integers(0, 2),
        st.sampled_from("xyz"),
        st.sampled_from(["look", "add", "reply"]),
    ),
    st.builds(
        lambda n, text: {
            "type": "content_block_delta",
            "index": n,
            "delta": {"type": "input_json_delta", "partial_json": text},
        },
        st.integers(0, 2),
        good_arguments,
    ),
    st.builds(
        lambda n: {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": n}},
        st.integers(1, 9),
    ),
)


def streams(good: st.SearchStrategy[Any], payloads: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    """Streams of events and of lines, whole bodies, and what came of them on the way."""
    names = [b"data: ", b"data:", b"data", b"event: ", b"event: error", b"id: 1", b": ", b"", b"retry: 5", b"x"]
    field = st.sampled_from(names)
    plain = st.builds(lambda data, ascii: b"data: " + _written(data, ascii), good, st.booleans())
    line = st.one_of(
        st.builds(lambda data, ascii: b"data: " + _written(data, ascii), payloads, st.booleans()),
        st.builds(_written, payloads | good, st.booleans()),
        st.builds(lambda name, data: name + _written(data, False), field, payloads),
        st.builds(lambda name, data: name + data, field, st.binary(max_size=6)),
        st.builds(lambda count: b"data: " + b"x" * count, st.integers(0, 400)),
        plain,
    )
    end = st.sampled_from([b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n"])
    odd_end = end | st.sampled_from([b"\n", b"\r\n", b"\r", b""])
    idle = st.sampled_from([b": keep-alive", b"", b"event: ping", b"data:"])
    tame = st.lists(st.tuples(st.one_of(plain, plain, plain, idle), end), max_size=8).map(_glued)
    wild = st.lists(st.tuples(line, odd_end), max_size=5).map(_glued)
    tail = st.sampled_from(
        [b"data: [DONE]\n\n", b"data: [DONE]\n\n", b"data: [DONE]", b'data: {"type": "message_stop"}\r\n\r\n', b""]
    )
    mark = st.sampled_from([b"", b"", b"\xef\xbb\xbf", b" \n"])
    body = st.one_of(
        st.tuples(mark, tame, tail),
        st.tuples(mark, tame, tail, tame),
        st.tuples(mark, tame, wild, tail),
        st.tuples(mark, wild),
    ).map(b"".join)
    return st.one_of(
        body, body, st.builds(_spoiled, body, st.integers(0, 600), st.binary(max_size=3), st.integers(0, 5))
    )


def _glued(lines: Sequence[tuple[bytes, bytes]]) -> bytes:
    return b"".join(part for pair in lines for part in pair)


def _spoiled(stream: bytes, at: int, put: bytes, drop: int) -> bytes:
    at = min(at, len(stream))
    return stream[:at] + put + (stream[at + drop :] if put else b"")


sizes = st.lists(st.integers(1, 7) | st.integers(1, 80), max_size=60) | st.just([1] * 2000)
kinds = st.sampled_from(["text/event-stream"] * 5 + ["application/json", "application/x-ndjson", ""])
breaks = st.sampled_from([False, False, True])

# --- reading them ---------------------------------------------------------------------------------------------------


class Body(httpx.AsyncByteStream):
    def __init__(self, chunks: Sequence[bytes], breaks: bool) -> None:
        self.chunks, self.breaks = chunks, breaks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.chunks:
            await trio.lowlevel.checkpoint()
            yield chunk
        if self.breaks:
            raise httpx.ReadError("gone")


Heard = tuple[list[ModelEvent], tuple[Any, ...] | None]


def _plain(events: Sequence[ModelEvent]) -> list[ModelEvent]:
    """The events with ids that were made up told by their order."""
    known: dict[str, str] = {}

    def name(id: str) -> str:
        return known.setdefault(id, f"made up {len(known)}") if MADE_UP.fullmatch(id) else id

    return [
        ModelToolCall(event.index, name(event.id), event.name, event.arguments)
        if isinstance(event, ModelToolCall) and event.id is not None
        else event
        for event in events
    ]


def read(chunks: Sequence[bytes], kind: str, breaks: bool, decoder: Decoder) -> Heard:
    async def main() -> Heard:
        response = httpx.Response(200, headers={"content-type": kind} if kind else {}, stream=Body(chunks, breaks))
        reply = Incoming(client_answer(response), decoder, SCRUB, PATIENCE, 60.0)
        heard: list[ModelEvent] = []
        try:
            try:
                async for event in reply:
                    heard.append(event)
                await reply.drain()
            finally:
                await reply.aclose()
        except ModelError as error:
            told = (type(error), str(error), error.code, error.partial, error.retryable, error.retry_after)
            return _plain(heard), told
        return _plain(heard), None

    return trio.run(main, clock=MockClock(autojump_threshold=0))


def check(heard: Heard) -> None:
    """What holds for any reply."""
    events, error = heard
    for event in events:
        assert isinstance(event, ModelText | ModelToolCall | ModelUsage | ModelDone)
        if isinstance(event, ModelText):
            assert event.text
            event.text.encode()  # no half of a pair comes through
    ends = [place for place, event in enumerate(events) if isinstance(event, ModelDone)]
    assert ends == ([] if error is not None else [len(events) - 1])
    begun: dict[int, ModelToolCall] = {}
    for event in events:
        if isinstance(event, ModelToolCall):
            assert (event.id is None) == (event.index in begun)
            if event.id is not None:
                assert event.id.strip()
                begun[event.index] = event
    assert len({call.id for call in begun.values()}) == len(begun)
    # A call whose name has not come is held back, so their order may be another.
    assert error is not None or set(begun) == set(range(len(begun)))
    if error is not None:
        said = "".join(event.text for event in events if isinstance(event, ModelText))
        assert error[3] == said or error[0].__name__ == "Refused" or not said.strip()
        assert KEY not in error[1]
        assert 1 <= len(error[1]) <= 500


DECODERS: dict[str, tuple[Callable[[], Decoder], st.SearchStrategy[bytes]]] = {
    "chat": (lambda: Reply(SCRUB), streams(good_chat, chat_payloads)),
    "messages": (lambda: MessagesReply(SCRUB), streams(good_messages, messages_payloads)),
    "messages with a schema": (
        lambda: MessagesReply(SCRUB, reply_tool="reply"),
        streams(good_messages, messages_payloads),
    ),
}


@pytest.mark.parametrize("dialect", DECODERS)
@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_any_stream_in_any_cutting_means_what_it_means_in_one_piece(dialect: str, data: st.DataObject) -> None:
    make, bodies = DECODERS[dialect]
    stream, kind, broken = data.draw(bodies), data.draw(kinds), data.draw(breaks)
    whole = read([stream] if stream else [], kind, broken, make())
    check(whole)
    assert read(cut(stream, data.draw(sizes)), kind, broken, make()) == whole


lines = st.lists(
    st.builds(
        lambda name, count, end: name + b"y" * count + end,
        st.sampled_from([b"data: ", b": ", b"event: ", b"", b"data"]),
        st.integers(0, 60),
        st.sampled_from([b"\n", b"\r\n", b"\r", b"\n\n"]),
    ),
    max_size=12,
).map(b"".join)


def _frames(framer: ServerSentEvents | JsonLines, chunks: Sequence[bytes]) -> tuple[list[Any], bool]:
    frames: list[Any] = []
    try:
        for chunk in chunks:
            frames.extend(framer.feed(chunk))
        frames.extend(framer.close())
    except FrameTooLarge:
        return frames, True
    return frames, False


@settings(max_examples=300)
@given(lines, sizes, st.integers(10, 120), st.booleans())
def test_what_is_too_large_is_too_large_in_any_cutting_and_what_came_before_it_is_given_out(
    stream: bytes, chunk_sizes: list[int], limit: int, events: bool
) -> None:
    make = ServerSentEvents if events else JsonLines
    whole = _frames(make(limit), [stream])
    assert _frames(make(limit), cut(stream, chunk_sizes)) == whole
    assert all(len(frame.data) <= limit for frame in whole[0])


async def test_a_reply_that_never_ends_is_given_up_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "MAX_REPLY", 2000)
    event = b'data: {"choices":[{"delta":{"content":"more"}}]}\n\n'
    response = httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Body([event] * 1000, False))
    reply = Incoming(client_answer(response), Reply(SCRUB), SCRUB, PATIENCE, 60.0, 2000)
    heard: list[Any] = []
    with pytest.raises(ModelUnavailable, match="more than 2000 bytes") as caught:
        async for told in reply:
            heard.append(told)
    await reply.aclose()
    assert (caught.value.code, caught.value.partial) == ("bad-response", "more" * len(heard))
    assert len(heard) == 2000 // len(event)


# --- over loopback --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", ["chat", "messages"])
@settings(deadline=None, max_examples=15)
@given(data=st.data())
async def test_any_stream_over_a_connection_is_an_answer_or_a_typed_error(dialect: str, data: st.DataObject) -> None:
    stream = data.draw(DECODERS[dialect][1])
    kind = data.draw(kinds)
    request = ModelRequest("step", (Message("user", "Hello?"),))
    heard: list[Heard] = []
    for chunks in ([stream], cut(stream, data.draw(sizes)[:40])):
        script = Script([head(200, {"content-type": kind} if kind else {}), *chunks], "close")
        async with provider(script) as server:
            model: OpenAIChat | AnthropicMessages
            if dialect == "chat":
                model = OpenAIChat("m", base_url=server.url, api_key=KEY)
            else:
                model = AnthropicMessages("m", base_url=server.url, api_key=KEY)
            events: list[ModelEvent] = []
            error: tuple[Any, ...] | None = None
            with trio.fail_after(20):
                try:
                    async with model.stream(request) as reply:
                        events.extend([event async for event in reply])
                except ModelError as raised:
                    # Where the address stands in the message, it has another port each time.
                    text = str(raised).replace(str(server.port), "PORT")
                    error = (type(raised), text, raised.code, raised.partial, raised.retryable, raised.retry_after)
            await model.aclose()
        heard.append((_plain(events), error))
        check(heard[-1])
    assert heard[0] == heard[1]
