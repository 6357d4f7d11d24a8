"""AnthropicMessages: what it sends, and what every shape of reply comes to, byte for byte over loopback."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from goliath_actors import Agent, Conductor, open_runtime
from goliath_actors.abc import (
    Model,
    ModelDone,
    ModelEvent,
    ModelRequest,
    ModelText,
    ModelToolCall,
    ModelUsage,
    ToolSpec,
)
from goliath_actors.errors import (
    BadRequest,
    ConfigError,
    ContextOverflow,
    ModelError,
    ModelUnavailable,
    RateLimited,
    Refused,
)
from goliath_actors.models import AnthropicMessages, Fallbacks
from goliath_actors.models._errors import Scrubber
from goliath_actors.models._messages_reply import MessagesReply
from goliath_actors.models._messages_wire import BlockWriter, messages_body
from goliath_actors.models._sse import ServerSentEvents
from goliath_actors.models._wire import encode
from goliath_actors.testing import ScriptedModel
from goliath_actors.values import Message, ToolCall, Usage

from ._provider_server import ProviderServer, Script, chunked, cut, head, provider

ASK = ModelRequest("answer", (Message("user", "Hello?"),))
STREAM = head(headers={"content-type": "text/event-stream; charset=utf-8"})
OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}}
SMALL = 600  # bytes; up to here a body is also sent one byte at a time
# Any: JSON data.
Json = dict[str, Any]


# --- streams of our own making --------------------------------------------------------------------------------------


def sse(*payloads: Json) -> bytes:
    lines = [f"event: {payload['type']}\ndata: {json.dumps(payload, ensure_ascii=False)}\n\n" for payload in payloads]
    return "".join(lines).encode()


def start(**usage: int) -> Json:
    message: Json = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": "m",
        "stop_reason": None,
    }
    return {"type": "message_start", "message": {**message, "usage": usage}}


def block(index: int, **content: Any) -> Json:
    return {"type": "content_block_start", "index": index, "content_block": content}


def delta(index: int, kind: str, piece: str) -> Json:
    field = {"text_delta": "text", "input_json_delta": "partial_json", "thinking_delta": "thinking"}.get(kind, kind)
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, field: piece}}


def close(index: int) -> Json:
    return {"type": "content_block_stop", "index": index}


def stop(reason: str | None, details: Json | None = None, **usage: int) -> Json:
    fields = {"stop_reason": reason, "stop_sequence": None, "stop_details": details}
    return {"type": "message_delta", "delta": fields, "usage": usage}


def failed(kind: str, message: str) -> Json:
    return {"type": "error", "error": {"type": kind, "message": message}}


PING: Json = {"type": "ping"}
END: Json = {"type": "message_stop"}


def text(*pieces: str, index: int = 0) -> list[Json]:
    return [block(index, type="text", text=""), *(delta(index, "text_delta", piece) for piece in pieces), close(index)]


def call(index: int, id: str, name: str, *pieces: str) -> list[Json]:
    opened = block(index, type="tool_use", id=id, name=name, input={})
    return [opened, *(delta(index, "input_json_delta", piece) for piece in ("", *pieces)), close(index)]


def reply(*pieces: str) -> bytes:
    return sse(start(input_tokens=5, output_tokens=1), *text(*pieces), stop("end_turn", output_tokens=7), END)


# --- what a reply comes to ------------------------------------------------------------------------------------------


@attrs.define
class Heard:
    text: str = ""
    calls: dict[int, tuple[str, str, str]] = attrs.field(factory=dict)
    usage: Usage | None = None
    finish: str | None = None
    error: ModelError | None = None

    def take(self, event: ModelEvent) -> None:
        assert self.finish is None
        match event:
            case ModelText(piece):
                assert piece
                self.text += piece
            case ModelToolCall(index, id, name, arguments):
                before = self.calls.get(index, ("", "", ""))
                assert not (id and before[0])
                self.calls[index] = (before[0] + (id or ""), before[1] + (name or ""), before[2] + arguments)
            case ModelUsage(usage):
                self.usage = usage
            case ModelDone(reason):
                self.finish = reason


async def listen(model: Model, request: ModelRequest = ASK) -> Heard:
    heard = Heard()
    try:
        async with model.stream(request) as events:
            async for event in events:
                heard.take(event)
    except ModelError as error:
        heard.error = error
    return heard


def messages(server: ProviderServer, **options: Any) -> AnthropicMessages:
    url = server.url.removesuffix("/v1")
    return AnthropicMessages(
        "m", base_url=url, **{"api_key": "", "first_token_timeout": 5, "idle_timeout": 5, **options}
    )


def cuttings(body: bytes) -> list[Sequence[bytes]]:
    ways = [cut(body, []), cut(body, [1] * len(body))] if len(body) < SMALL else [cut(body, [])]
    for seed in range(3):
        generator = random.Random(seed)
        ways.append(cut(body, [generator.randint(1, 60) for _ in range(len(body) // 30)]))
    return ways


WHOLE: dict[str, tuple[bytes, Heard]] = {
    "text": (
        sse(
            start(input_tokens=5, output_tokens=1),
            PING,
            *text("Hel", "lo 你好 👩‍👧"),
            stop("end_turn", output_tokens=7),
            END,
        ),
        Heard("Hello 你好 👩‍👧", usage=Usage(5, 7), finish="stop"),
    ),
    "several blocks of text": (
        sse(start(), *text("one, "), *text("two", index=1), stop("stop_sequence"), END),
        Heard("one, two", finish="stop"),
    ),
    "text that stands in the start of its block": (
        sse(start(), block(0, type="text", text="Hi"), close(0), stop("end_turn"), END),
        Heard("Hi", finish="stop"),
    ),
    "usage with a cache": (
        sse(
            start(input_tokens=3, cache_creation_input_tokens=20, cache_read_input_tokens=100, output_tokens=1),
            *text("Hi"),
            stop("end_turn", output_tokens=9),
            END,
        ),
        Heard("Hi", usage=Usage(123, 9, cached_tokens=100), finish="stop"),
    ),
    "usage that is said again at the end": (
        sse(
            start(input_tokens=3, output_tokens=1), *text("Hi"), stop("end_turn", input_tokens=4, output_tokens=9), END
        ),
        Heard("Hi", usage=Usage(4, 9), finish="stop"),
    ),
    "no usage": (sse(start(), *text("Hi"), stop("end_turn"), END), Heard("Hi", finish="stop")),
    "the limit": (sse(start(), *text("Hi"), stop("max_tokens"), END), Heard("Hi", finish="length")),
    "a full window": (
        sse(start(), *text("Hi"), stop("model_context_window_exceeded"), END),
        Heard("Hi", finish="length"),
    ),
    "another reason": (sse(start(), *text("Hi"), stop("pause_turn"), END), Heard("Hi", finish="pause_turn")),
    "no reason": (sse(start(), *text("Hi"), stop(None), END), Heard("Hi", finish="unknown")),
    "no end marker": (sse(start(), *text("Hi"), stop("end_turn")), Heard("Hi", finish="stop")),
    "a marker of the other dialect": (sse(start(), *text("Hi")) + b"data: [DONE]\n\n", Heard("Hi", finish="unknown")),
    "events that nobody knows": (
        sse({"type": "vendor"}, start(), delta(0, "vendor_delta", "x"), *text("Hi"), stop("end_turn"), END),
        Heard("Hi", finish="stop"),
    ),
    "no names of events, comments, and CR LF": (
        b": hello\r\n\r\n"
        + b"".join(
            b"data: " + json.dumps(payload).encode() + b"\r\n\r\n"
            for payload in (start(), *text("Hi"), stop("end_turn"), END)
        ),
        Heard("Hi", finish="stop"),
    ),
    "half a surrogate pair in each of two pieces": (
        sse(start(), block(0, type="text"))
        + b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"\\ud83d"}}\n\n'
        + b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"\\ude00"}}\n\n'
        + sse(stop("end_turn"), END),
        Heard("😀", finish="stop"),
    ),
    "thinking before the text": (
        sse(
            start(),
            block(0, type="thinking", thinking=""),
            delta(0, "thinking_delta", "Hm."),
            delta(0, "signature", "abc"),
            close(0),
            *text("Hi", index=1),
            stop("end_turn"),
            END,
        ),
        Heard("Hi", finish="stop"),
    ),
    "a call": (
        sse(start(), *text("Let me see."), *call(1, "toolu_1", "look", '{"q"', ': "x"}'), stop("tool_use"), END),
        Heard("Let me see.", {0: ("toolu_1", "look", '{"q": "x"}')}, finish="tool_calls"),
    ),
    "a call without input": (
        sse(start(), *call(0, "toolu_1", "now"), stop("tool_use"), END),
        # An object, and no empty text: a tool whose parameters are all optional can run with it.
        Heard(calls={0: ("toolu_1", "now", "{}")}, finish="tool_calls"),
    ),
    "calls without input, and without a word of it": (
        sse(
            start(),
            block(0, type="tool_use", id="a", name="f", input={}),
            close(0),
            block(1, type="tool_use", id="b", name="f", input={}),
            delta(1, "input_json_delta", ' {"n": 2}'),
            stop("tool_use"),
            END,
        ),
        Heard(calls={0: ("a", "f", "{}"), 1: ("b", "f", ' {"n": 2}')}, finish="tool_calls"),
    ),
    "a call whose input comes at once": (
        sse(start(), block(0, type="tool_use", id="t", name="f", input={"a": 1}), close(0), stop("tool_use"), END),
        Heard(calls={0: ("t", "f", '{"a":1}')}, finish="tool_calls"),
    ),
    "calls side by side": (
        sse(
            start(),
            block(0, type="tool_use", id="a", name="f", input={}),
            block(1, type="tool_use", id="b", name="f", input={}),
            delta(1, "input_json_delta", '{"n": 2}'),
            delta(0, "input_json_delta", '{"n": 1}'),
            close(0),
            close(1),
            stop("tool_use"),
            END,
        ),
        Heard(calls={0: ("a", "f", '{"n": 1}'), 1: ("b", "f", '{"n": 2}')}, finish="tool_calls"),
    ),
}


@pytest.mark.parametrize("title", WHOLE)
async def test_a_reply_means_the_same_however_it_is_cut(title: str) -> None:
    body, expected = WHOLE[title]
    for chunks in cuttings(body):
        async with provider(Script([STREAM, *chunks], "close")) as server:
            model = messages(server)
            assert await listen(model) == expected
            assert model._endpoint.pool.statistics().in_flight == 0
            await model.aclose()


BROKEN: dict[str, tuple[bytes, type[ModelError], str | None, bool, str, str]] = {
    "cut off": (sse(start(), *text("Hel")), ModelUnavailable, "truncated", True, "Hel", "ended the stream"),
    "cut off inside an event": (reply("Hel")[:-150], ModelUnavailable, "truncated", True, "Hel", "ended the stream"),
    "nothing at all": (b"", ModelUnavailable, "empty", True, "", "empty reply"),
    "only pings": (sse(PING, PING), ModelUnavailable, "truncated", True, "", "ended the stream"),
    "no content": (sse(start(), stop("end_turn"), END), ModelUnavailable, "empty", True, "", "reply is empty"),
    "only thinking": (
        sse(start(), block(0, type="thinking"), delta(0, "thinking_delta", "Hm"), stop("max_tokens"), END),
        ModelUnavailable,
        "empty",
        True,
        "",
        "raise max_tokens",
    ),
    "no JSON": (
        sse(start(), *text("Hel")) + b"event: x\ndata: {oops\n\n",
        ModelUnavailable,
        "bad-response",
        True,
        "Hel",
        "not JSON",
    ),
    "overload": (
        sse(start(), *text("Hel"), failed("overloaded_error", "Overloaded")),
        ModelUnavailable,
        "overloaded_error",
        True,
        "Hel",
        "Overloaded",
    ),
    "a fault": (sse(failed("api_error", "Oh no")), ModelUnavailable, "api_error", True, "", "Oh no"),
    "an error without words": (b"event: error\ndata: {}\n\n", ModelUnavailable, None, True, "", "without saying which"),
    "too many requests": (
        sse(start(), failed("rate_limit_error", "Slow down")),
        RateLimited,
        "rate_limit_error",
        True,
        "",
        "Slow down",
    ),
    "a bad request": (
        sse(failed("invalid_request_error", "tools.0: no")),
        BadRequest,
        "invalid_request_error",
        False,
        "",
        "tools.0",
    ),
    "too long": (
        sse(failed("invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum")),
        ContextOverflow,
        "invalid_request_error",
        False,
        "",
        "210000",
    ),
    "a refusal": (
        sse(start(), *text("I"), stop("refusal", {"type": "refusal", "explanation": "Not <b>this</b>."}), END),
        Refused,
        "refusal",
        False,
        "I",
        "Not this .",
    ),
    "a refusal without words": (
        sse(start(), stop("refusal"), END),
        Refused,
        "refusal",
        False,
        "",
        "declined",
    ),
}


@pytest.mark.parametrize("title", BROKEN)
async def test_what_is_no_answer_is_a_typed_error_however_it_is_cut(title: str) -> None:
    body, kind, code, retryable, partial, words = BROKEN[title]
    for chunks in cuttings(body):
        async with provider(Script([STREAM, *chunks], "close")) as server:
            model = messages(server)
            error = (await listen(model)).error
            assert type(error) is kind
            assert (error.code, error.retryable, error.partial) == (code, retryable, partial)
            assert words in str(error)
            await model.aclose()


RESPONSES: dict[str, tuple[int, Json | bytes, type[ModelError], str | None, bool]] = {
    "key": (401, failed("authentication_error", "invalid x-api-key"), BadRequest, "authentication_error", False),
    "permission": (403, failed("permission_error", "no"), BadRequest, "permission_error", False),
    "unknown": (404, failed("not_found_error", "model: m"), BadRequest, "not_found_error", False),
    "parameter": (400, failed("invalid_request_error", "max_tokens: no"), BadRequest, "invalid_request_error", False),
    "prompt": (
        400,
        failed("invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"),
        ContextOverflow,
        "invalid_request_error",
        False,
    ),
    "prompt and reply": (
        400,
        failed("invalid_request_error", "input length and `max_tokens` exceed context limit: 195000 + 8000 > 200000"),
        ContextOverflow,
        "invalid_request_error",
        False,
    ),
    "bytes": (413, failed("request_too_large", "too many bytes"), ContextOverflow, "request_too_large", False),
    "rate": (429, failed("rate_limit_error", "slow down"), RateLimited, "rate_limit_error", True),
    "billing": (402, failed("billing_error", "no credit"), RateLimited, "insufficient_quota", False),
    "fault": (500, failed("api_error", "oh no"), ModelUnavailable, "api_error", True),
    "time": (504, failed("timeout_error", "too slow"), ModelUnavailable, "timeout_error", True),
    "overload": (529, failed("overloaded_error", "Overloaded"), ModelUnavailable, "overloaded_error", True),
    "page": (502, b"<html><h1>Bad gateway</h1></html>", ModelUnavailable, None, True),
}


@pytest.mark.parametrize("title", RESPONSES)
async def test_a_response_that_is_an_error_is_typed_and_hides_the_key(title: str) -> None:
    status, payload, kind, code, retryable = RESPONSES[title]
    body = payload if isinstance(payload, bytes) else json.dumps({**payload, "echo": "sk-secret-1"}).encode()
    headers = {"content-type": "application/json", "retry-after": "7"}
    async with provider(Script([head(status, headers, len(body)) + body])) as server:
        model = messages(server, api_key="sk-secret-1")
        error = (await listen(model)).error
        assert type(error) is kind
        assert (error.status, error.code, error.retryable) == (status, code, retryable)
        assert "<" not in str(error)
        assert "sk-secret" not in f"{error!r} {error} {model!r} {model._exchange!r}"
        if kind is RateLimited:
            assert error.retry_after == 7
        assert len(server.seen) == 1  # an adapter never retries
        await model.aclose()


async def test_a_key_that_an_error_repeats_is_hidden() -> None:
    body = sse(failed("api_error", "no luck with sk-secret-1"))
    async with provider(Script([STREAM, body], "close")) as server:
        error = (await listen(messages(server, api_key="sk-secret-1"))).error
        assert str(error) == "no luck with [secret]"


async def test_a_reply_in_one_body_is_read_like_a_stream() -> None:
    content = [
        {"type": "thinking", "thinking": "Hm."},
        {"type": "text", "text": "Look: "},
        {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
    ]
    usage = {"input_tokens": 2, "output_tokens": 3}
    whole = {"type": "message", "content": content, "stop_reason": "tool_use", "usage": usage}
    for payload, words in ((whole, ""), (failed("api_error", "Oh"), "Oh"), ({"ok": 1}, "no reply"), ([], "no reply")):
        body = json.dumps(payload).encode()
        async with provider(Script([head(200, {"content-type": "application/json"}, len(body)) + body])) as server:
            model = messages(server, settings={"stream": False})
            heard = await listen(model)
            assert server.seen[0].json["stream"] is False
            if words:
                assert isinstance(heard.error, ModelUnavailable)
                assert words in str(heard.error)
            else:
                assert heard == Heard("Look: ", {0: ("t", "f", '{"a":1}')}, Usage(2, 3), "tool_calls")
            await model.aclose()


async def test_a_web_page_is_no_reply() -> None:
    page = b"<html>login</html>"
    async with provider(Script([head(200, {"content-type": "text/html"}, len(page)) + page])) as server:
        error = (await listen(messages(server))).error
        assert isinstance(error, ModelUnavailable)
        assert (error.code, "a web page" in str(error)) == ("bad-response", True)


# Time, connections, cancellation: the rooms are shared with OpenAIChat, these see that they are used.


async def test_pings_do_not_count_as_pieces(autojump_clock: MockClock) -> None:
    chunks = [STREAM, sse(start(input_tokens=1)), *([sse(PING)] * 10)]
    async with provider(Script(chunks, "open", pause=1)) as server:
        model = messages(server, first_token_timeout=8.5)
        began = trio.current_time()
        error = (await listen(model)).error
        assert isinstance(error, ModelUnavailable)
        assert (error.code, "first_token_timeout" in str(error)) == ("timeout", True)
        assert trio.current_time() - began == pytest.approx(8.5, abs=0.2)


async def test_silence_in_the_middle_is_noticed_and_thinking_is_none(autojump_clock: MockClock) -> None:
    thinking = [sse(delta(0, "thinking_delta", "Hm."))] * 5
    async with provider(Script([STREAM, *thinking, sse(*text("Hi"))], "open", pause=2)) as server:
        error = (await listen(messages(server, idle_timeout=3))).error
        assert isinstance(error, ModelUnavailable)
        assert (error.code, error.partial, "idle_timeout" in str(error)) == ("timeout", "Hi", True)


async def test_a_kept_connection_is_used_again_and_leaving_early_closes_it() -> None:
    whole, open_ended = Script([chunked(reply("Hi"))]), Script([STREAM, sse(start(), *text("Hi"))], "open")
    async with provider(whole, whole, open_ended) as server:
        model = messages(server)
        assert [(await listen(model)).text, (await listen(model)).text] == ["Hi", "Hi"]
        assert server.connections == 1
        async with model.stream(ASK) as events:
            await anext(events)
        with trio.fail_after(5):
            while server.open:
                await wait_all_tasks_blocked(0.001)
        assert model._endpoint.pool.statistics().in_flight == 0
        await model.aclose()


# --- configuration --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (" ", {}, "name is blank"),
        ("m", {"base_url": "127.0.0.1"}, "base_url needs a scheme"),
        ("m", {"base_url": "http://x/v1/chat/completions"}, "ends in /chat/completions"),
        ("m", {"base_url": "http://x/v1/models/"}, "ends in /v1/models"),
        ("m", {"max_tokens": 0}, "max_tokens is 0"),
        ("m", {"max_tokens": 1.5}, "max_tokens is 1.5"),
        ("m", {"max_tokens": None}, "max_tokens is None"),
        ("m", {"connect_timeout": 0}, "connect_timeout must be a positive number of seconds"),
        ("m", {"first_token_timeout": -1}, "first_token_timeout must be a positive number of seconds"),
        ("m", {"idle_timeout": None}, "idle_timeout must be a positive number of seconds"),
        ("m", {"retries": -1}, "retries is -1"),
        ("m", {"window": 0}, "window is 0"),
        ("m", {"settings": []}, "settings is a mapping"),
        ("m", {"http": 3}, "http is an httpx2.AsyncClient, not int"),
        ("m", {"api_key": "two words"}, "api_key holds characters"),
    ],
)
def test_wrong_configuration_is_refused_at_once(model: Any, options: Json, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        AnthropicMessages(model, **{"base_url": "http://x", "api_key": "", **options})


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/", "/v1/messages", "/V1/Messages/", "/messages"])
def test_an_address_is_the_same_with_and_without_its_well_known_end(path: str) -> None:
    model = AnthropicMessages("m", base_url=f"http://x/proxy{path}", api_key="")
    assert (repr(model), model._url.path) == ("AnthropicMessages('m', base_url='http://x/proxy')", "/proxy/v1/messages")


async def test_address_and_key_come_from_the_environment_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    async with provider(Script([chunked(reply("Hi"))])) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url.removesuffix("/v1"))
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-from-env\n")
        model = AnthropicMessages("m", window=10, retries=1)
        await listen(model)
        [seen] = server.seen
        assert (seen.target, seen.headers["x-api-key"]) == ("/v1/messages", "sk-from-env")
        assert seen.headers["anthropic-version"] == "2023-06-01"
        assert "authorization" not in seen.headers
        await model.aclose()
    assert isinstance(model, Model)
    assert (model.name, model.window, model.retries) == ("m", 10, 1)
    monkeypatch.delenv("ANTHROPIC_BASE_URL")
    assert repr(AnthropicMessages("m")) == "AnthropicMessages('m', base_url='https://api.anthropic.com')"


# --- what is sent ---------------------------------------------------------------------------------------------------


def body(*turns: Message, adapter: Json | None = None, **fields: Any) -> Json:
    made, _ = messages_body("m", ModelRequest("answer", turns, **fields), adapter or {}, 4096, BlockWriter())
    sent: Json = json.loads(encode(made))
    return sent


def test_what_a_writer_keeps_makes_the_same_turns_whatever_comes_next() -> None:
    call = Message("assistant", "Well. ", (ToolCall("a", "list", "{}"),))
    history = [
        *(
            Message("user", "one"),
            call,
            Message("tool", "done", tool_call_id="a"),
            Message("tool", "x", tool_call_id="b"),
        ),
        *(Message("user", "two"), Message("assistant", "end  "), Message("assistant", " "), call),
    ]
    writer = BlockWriter()
    for count in [*range(1, len(history) + 1), 3, 1]:
        request = ModelRequest("step", tuple(history[:count]), tools=(ToolSpec("list", "d", OBJECT),))
        kept, anew = (messages_body("m", request, {}, 10, each)[0] for each in (writer, BlockWriter()))
        assert encode(kept) == encode(anew)
    assert len(writer.kept.kept()) == len(history) - 1  # one message is there twice


def said(words: str) -> Json:
    return {"type": "text", "text": words}


async def test_a_request_becomes_the_body_of_the_dialect() -> None:
    request = ModelRequest(
        "step",
        (
            Message("system", "Be brief."),
            Message("user", "Add 你好"),
            Message(
                "assistant", "Well. ", (ToolCall("a", "note_add", '{"text": "你好"}'), ToolCall("b:1", "list", ""))
            ),
            Message("tool", "", tool_call_id="a"),
            Message("tool", "none", tool_call_id="b:1"),
        ),
        tools=(ToolSpec("note_add", "Add a note.", OBJECT),),
        settings={"temperature": 0.5},
        provider_options={"metadata": {"user_id": "u"}},
        max_output_tokens=300,
    )
    async with provider(Script([chunked(reply("Hi"))])) as server:
        model = messages(server, settings={"temperature": 0.1, "top_k": 5})
        await listen(model, request)
        await model.aclose()
        assert server.seen[0].json == {
            "model": "m",
            "max_tokens": 300,
            "stream": True,
            "system": "Be brief.",
            "temperature": 0.5,
            "top_k": 5,
            "metadata": {"user_id": "u"},
            "tools": [{"name": "note_add", "description": "Add a note.", "input_schema": OBJECT}],
            "messages": [
                {"role": "user", "content": [said("Add 你好")]},
                {
                    "role": "assistant",
                    "content": [
                        said("Well. "),
                        {"type": "tool_use", "id": "a", "name": "note_add", "input": {"text": "你好"}},
                        {"type": "tool_use", "id": "b_3a1", "name": "list", "input": {}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "a", "content": "(no output)"},
                        {"type": "tool_result", "tool_use_id": "b_3a1", "content": "none"},
                    ],
                },
            ],
        }


def test_turns_alternate_and_begin_with_the_user() -> None:
    made = body(
        Message("system", "One."),
        Message("assistant", "Hi"),
        Message("user", " "),
        Message("user", "A"),
        Message("system", "Two."),
        Message("user", "B"),
        Message("assistant", "So: "),
    )
    assert made["system"] == "One.\n\nTwo."
    assert made["messages"] == [
        {"role": "user", "content": [said("(The beginning is left out.)")]},
        {"role": "assistant", "content": [said("Hi")]},
        {"role": "user", "content": [said("A"), said("B")]},
        {"role": "assistant", "content": [said("So:")]},
    ]
    assert body(Message("system", "Only this."))["messages"] == [{"role": "user", "content": [said("Only this.")]}]
    assert "system" not in body(Message("system", "Only this."))


def test_every_call_has_one_result_right_behind_it_and_other_results_are_text() -> None:
    calls = (ToolCall("a", "f", "[1]"), ToolCall("b", "f", "{}"))
    made = body(
        Message("user", "Go"),
        Message("assistant", "", calls),
        Message("user", "Wait"),
        Message("tool", "late", tool_call_id="b"),
        Message("tool", "again", tool_call_id="b"),
        Message("assistant", "", (ToolCall("c", "f"),)),
    )
    unanswered = {"type": "tool_result", "content": "(The call was not answered.)", "is_error": True}
    assert made["messages"][1]["content"][0]["input"] == {"not_an_object": "[1]"}
    assert made["messages"][2]["content"] == [
        {**unanswered, "tool_use_id": "a"},
        {"type": "tool_result", "tool_use_id": "b", "content": "late"},
        said("Wait"),
        said("Result of an earlier call: again"),
    ]
    assert made["messages"][4] == {"role": "user", "content": [{**unanswered, "tool_use_id": "c"}]}


@pytest.mark.parametrize(
    ("configured", "cap", "sent"),
    [({}, None, 4096), ({}, 100, 100), ({}, 9999, 4096), ({"max_tokens": 50}, 100, 50), ({"max_tokens": None}, 9, 9)],
)
def test_the_smallest_cap_is_sent(configured: Json, cap: int | None, sent: int) -> None:
    assert body(*ASK.messages, adapter=configured, max_output_tokens=cap)["max_tokens"] == sent


@settings(deadline=None)
@given(
    st.lists(
        st.builds(
            Message,
            st.sampled_from(["system", "user", "assistant", "tool"]),
            st.sampled_from(["", " ", "x", "y "]),
            st.lists(st.builds(ToolCall, st.sampled_from("abc"), st.just("f")), max_size=2, unique_by=lambda c: c.id),
            st.sampled_from([None, *"abc"]),
        ),
        max_size=10,
    )
)
def test_whatever_the_messages_are_the_provider_would_take_the_turns(given_messages: list[Message]) -> None:
    turns = body(*given_messages)["messages"]
    assert [turn["role"] for turn in turns] == ["user", "assistant"] * (len(turns) // 2) + ["user"] * (len(turns) % 2)
    open_calls: list[str] = []
    for turn in turns:
        assert turn["content"]
        assert all(block["text"].strip() for block in turn["content"] if block["type"] == "text")
        results = [block["tool_use_id"] for block in turn["content"] if block["type"] == "tool_result"]
        assert set(results) == set(open_calls)
        assert [block["type"] for block in turn["content"]][: len(results)] == ["tool_result"] * len(results)
        open_calls = [block["id"] for block in turn["content"] if block["type"] == "tool_use"]
    assert open_calls == []
    if turns[-1]["role"] == "assistant" and turns[-1]["content"][-1]["type"] == "text":
        assert not turns[-1]["content"][-1]["text"].endswith(" ")


# --- replies that fit a schema --------------------------------------------------------------------------------------


def test_a_schema_for_an_object_is_a_tool_that_has_to_be_called() -> None:
    tool = ToolSpec("reply", "Write back.", OBJECT)
    made = body(*ASK.messages, schema=OBJECT)
    assert made["tools"] == [
        {"name": "reply", "description": "Give the reply by calling this.", "input_schema": OBJECT}
    ]
    assert made["tool_choice"] == {"type": "tool", "name": "reply"}
    made = body(*ASK.messages, schema=OBJECT, tools=(tool,))
    assert [entry["name"] for entry in made["tools"]] == ["reply", "reply_"]
    assert made["tool_choice"] == {"type": "any"}
    made = body(*ASK.messages, schema=OBJECT, settings={"thinking": {"type": "adaptive"}})
    assert made["tool_choice"] == {"type": "auto"}
    made = body(*ASK.messages, schema=OBJECT, provider_options={"output_config": {"format": {}}})
    assert "tools" not in made
    made = body(*ASK.messages, schema={"type": "array"})
    assert made["system"] == 'Reply with JSON alone that is valid by this schema: {"type":"array"}'


SCHEMA_REPLIES: dict[str, tuple[bytes, Heard]] = {
    "the input alone": (
        sse(start(), *call(0, "t", "reply", '{"a"', ": 1}"), stop("tool_use"), END),
        Heard('{"a": 1}', finish="stop"),
    ),
    "text beside it": (
        sse(start(), *text("Here: "), *call(1, "t", "reply", '{"a": 1}'), *text("So.", index=2), stop("tool_use"), END),
        Heard('{"a": 1}', finish="stop"),
    ),
    "text instead": (sse(start(), *text('{"a": ', "1}"), stop("end_turn"), END), Heard('{"a": 1}', finish="stop")),
    "cut by the limit": (
        sse(start(), *call(0, "t", "reply", '{"a"'), stop("max_tokens"), END),
        Heard('{"a"', finish="length"),
    ),
    "an empty input": (
        sse(start(), *text("Here: "), *call(1, "t", "reply"), stop("tool_use"), END),
        Heard("{}", finish="stop"),
    ),
    "another tool": (
        sse(start(), *text("See: "), *call(1, "t", "f", "{}"), stop("tool_use"), END),
        Heard("See: ", {0: ("t", "f", "{}")}, finish="tool_calls"),
    ),
}


@pytest.mark.parametrize("title", SCHEMA_REPLIES)
async def test_the_input_of_that_tool_is_the_text_of_the_reply(title: str) -> None:
    stream, expected = SCHEMA_REPLIES[title]
    request = attrs.evolve(ASK, schema=OBJECT)
    for chunks in cuttings(stream):
        async with provider(Script([STREAM, *chunks], "close")) as server:
            model = messages(server)
            assert await listen(model, request) == expected
            await model.aclose()


async def test_ids_that_the_conversation_has_already_are_replaced() -> None:
    request = ModelRequest("step", (Message("user", "Go"), Message("assistant", "", (ToolCall("t", "f"),))))
    stream = sse(start(), *call(0, "t", "f", "{}"), *call(1, "u", "f", "{}"), stop("tool_use"), END)
    async with provider(Script([STREAM, stream], "close")) as server:
        model = messages(server)
        heard = await listen(model, request)
        await model.aclose()
    assert heard.calls[0][0].startswith("call_")
    assert heard.calls[1] == ("u", "f", "{}")


@settings(deadline=None)
@given(st.lists(st.text(min_size=1), min_size=1, max_size=5), st.data())
def test_text_survives_any_cutting(pieces: list[str], data: st.DataObject) -> None:
    stream = reply(*pieces)
    at = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    framer, decoder, heard = ServerSentEvents(), MessagesReply(Scrubber()), Heard()
    for begin, end in zip([0, *at], [*at, len(stream)], strict=True):
        for frame in framer.feed(stream[begin:end]):
            for event in decoder.feed(frame):
                heard.take(event)
    events, error = decoder.end("cut")
    whole = "".join(pieces)
    if whole.strip():
        assert error is None
        for event in events:
            heard.take(event)
        assert heard == Heard(whole, usage=Usage(5, 7), finish="stop")
    else:
        assert error is not None
        assert error.code == "empty"


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    ["type", "index", "delta", "content_block", "message", "usage", "text", "name", "id", "input"]
                ),
                inner,
            )
        ),
    ),
    st.sampled_from(["message_start", "content_block_start", "content_block_delta", "message_delta", "error", "x"]),
)
def test_no_shape_of_an_event_raises_anything_but_a_model_error(payload: Any, kind: str) -> None:
    fields = payload if isinstance(payload, dict) else {"delta": payload, "content_block": payload, "usage": payload}
    decoder = MessagesReply(Scrubber(), reply_tool="reply")
    try:
        for frame in ServerSentEvents().feed(sse({**fields, "type": kind})):
            decoder.feed(frame)
        decoder.end("cut")
    except ModelError:
        assert kind == "error" or "error" in fields


# --- in a run -------------------------------------------------------------------------------------------------------


async def test_a_run_answers_through_it_and_an_overload_goes_to_the_next_model() -> None:
    overload = json.dumps(failed("overloaded_error", "Overloaded")).encode()
    async with provider(
        Script([chunked(reply("Hello ", "there."))]), Script([head(529, {}, len(overload)) + overload])
    ) as server:
        model = messages(server)
        agent = Agent(model=Fallbacks([model, ScriptedModel(["From the other one."])]), loop=Conductor())
        async with open_runtime(agent) as runtime:
            texts = [(await runtime.run("Hello?")).text for _ in range(2)]
        assert texts == ["Hello there.", "From the other one."]
        await model.aclose()


async def test_headers_of_the_application_go_with_the_request_and_stay_out_of_its_errors() -> None:
    body = b"bad team s3cret-value"
    reply = Script([head(401, headers={"content-type": "text/plain"}, length=len(body)), body])
    async with provider(reply) as server:
        model = AnthropicMessages("m", base_url=server.url, api_key="k", headers={"X-Team": "s3cret-value"})
        with pytest.raises(ModelError, match=r"bad team \[secret\]"):
            async with model.stream(ModelRequest("answer", (Message("user", "Hi"),))) as stream:
                assert [event async for event in stream] == []
    assert server.seen[0].headers["x-team"] == "s3cret-value"
    assert server.seen[0].headers["x-api-key"] == "k"
