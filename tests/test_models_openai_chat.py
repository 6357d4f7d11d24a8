"""OpenAIChat: what it sends, how long it waits, what it leaves behind."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import AsyncIterator
from contextlib import nullcontext
from typing import Any

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

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
from goliath_actors.errors import BadRequest, ConfigError, ModelError, ModelUnavailable, Refused
from goliath_actors.models import OpenAIChat
from goliath_actors.models._http import httpx
from goliath_actors.models._pool import PoolStatistics
from goliath_actors.values import Message, ToolCall, Usage

from ._provider_server import ProviderServer, Script, chunked, cut, events, head, provider, text_reply

ASK = ModelRequest("answer", (Message("user", "Hello?"),))
HI = b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\n'
STREAM = head(headers={"content-type": "text/event-stream"})


def chat(server: ProviderServer, **options: Any) -> OpenAIChat:
    return OpenAIChat("m", base_url=server.url, **{"api_key": "", **options})


async def collect(model: OpenAIChat, request: ModelRequest = ASK) -> list[ModelEvent]:
    async with model.stream(request) as stream:
        return [event async for event in stream]


def said(found: list[ModelEvent]) -> str:
    return "".join(event.text for event in found if isinstance(event, ModelText))


async def closed(server: ProviderServer) -> None:
    with trio.fail_after(5):
        while server.open:
            await wait_all_tasks_blocked(0.001)


# Configuration.


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (" ", {}, "name is blank"),
        (None, {}, "name is blank"),
        ("m", {"base_url": "127.0.0.1:8080/v1"}, "base_url needs a scheme"),
        ("m", {"base_url": "localhost/v1"}, "base_url needs a scheme"),
        ("m", {"base_url": ""}, "base_url needs a scheme"),
        ("m", {"base_url": "ftp://x/v1"}, "base_url needs a scheme"),
        ("m", {"base_url": "http://x:port/"}, "base_url is no address"),
        ("m", {"base_url": 3}, "base_url is no address"),
        ("m", {"connect_timeout": 0}, "connect_timeout must be a positive number of seconds"),
        ("m", {"first_token_timeout": -1.5}, "first_token_timeout must be a positive number of seconds"),
        ("m", {"idle_timeout": math.nan}, "idle_timeout must be a positive number of seconds"),
        ("m", {"idle_timeout": None}, "idle_timeout must be a positive number of seconds"),
        ("m", {"connect_timeout": True}, "connect_timeout must be a positive number of seconds"),
        ("m", {"retries": -1}, "retries is -1"),
        ("m", {"retries": 1.5}, "retries is 1.5"),
        ("m", {"window": 0}, "window is 0"),
        ("m", {"settings": ["temperature"]}, "settings is a mapping"),
        ("m", {"http": "client"}, "http is an httpx2.AsyncClient, not str"),
        ("m", {"api_key": "two words"}, "api_key holds characters"),
        ("m", {"api_key": "schlüssel"}, "api_key holds characters"),
    ],
)
def test_wrong_configuration_is_refused_at_once(model: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        OpenAIChat(model, **{"base_url": "http://x/v1", "api_key": "", **options})


@pytest.mark.parametrize(
    "given",
    [
        "http://x/v1",
        "http://x/v1/",
        "http://x/v1//",
        "http://x/v1/chat/completions",
        "http://x/v1/chat/completions/",
        "http://x/v1//chat/completions",
        "http://x/v1/Chat/Completions",
        "http://x/v1/chat/completions?key=abcd",
    ],
)
def test_an_address_is_the_same_with_and_without_its_well_known_end(given: str) -> None:
    model = OpenAIChat("m", base_url=given, api_key="")
    assert (repr(model), model._url.path) == ("OpenAIChat('m', base_url='http://x/v1')", "/v1/chat/completions")


@pytest.mark.parametrize("end", ["chat", "chat/", "completions", "Models", "responses", "messages", "embeddings"])
@pytest.mark.parametrize("version", ["v1", "v1beta", "v3"])
def test_an_address_of_another_interface_is_refused_and_not_repeated(version: str, end: str) -> None:
    with pytest.raises(ConfigError) as caught:
        OpenAIChat("m", base_url=f"http://secret-host/{version}/{end}", api_key="")
    assert str(caught.value) == (
        f"base_url ends in /{end.rstrip('/')}; give the address in front of that, like http://127.0.0.1:11434/v1"
    )


@pytest.mark.parametrize("path", ["", "/chat", "/models/llama/v1", "/v1/models/llama", "/openai", "/v1beta/openai"])
def test_an_address_that_only_resembles_another_interface_is_taken(path: str) -> None:
    assert OpenAIChat("m", base_url=f"http://x{path}", api_key="")._url.path == f"{path}/chat/completions"


def test_a_refused_key_is_not_repeated_in_the_error() -> None:
    with pytest.raises(ConfigError) as caught:
        OpenAIChat("m", api_key="sk-secret\nsecond line")
    assert "sk-secret" not in str(caught.value)


async def test_address_and_key_come_from_the_environment_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    async with provider(Script([chunked(text_reply("Hi"))])) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url + "/")
        monkeypatch.setenv("OPENAI_API_KEY", "sk-from-env\n")
        model = OpenAIChat("m")
        await collect(model)
        other = OpenAIChat("m", base_url=server.url.replace("/v1", "/other/chat/completions"), api_key="sk-given")
        await collect(other)
        assert [(seen.target, seen.headers["authorization"]) for seen in server.seen] == [
            ("/v1/chat/completions", "Bearer sk-from-env"),
            ("/other/chat/completions", "Bearer sk-given"),
        ]
        await model.aclose()
        await other.aclose()


def test_without_any_address_it_is_the_public_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    assert repr(OpenAIChat("gpt", api_key="sk-secret-1")) == "OpenAIChat('gpt', base_url='https://api.openai.com/v1')"
    monkeypatch.setenv("OPENAI_BASE_URL", "")
    assert repr(OpenAIChat("gpt")) == "OpenAIChat('gpt', base_url='https://api.openai.com/v1')"


def test_it_is_a_model() -> None:
    model = OpenAIChat("m", base_url="http://x/v1", window=4096, retries=0)
    assert isinstance(model, Model)
    assert (model.name, model.window, model.retries) == ("m", 4096, 0)


# What is sent.


async def test_a_request_becomes_the_body_of_the_dialect() -> None:
    request = ModelRequest(
        "step",
        (
            Message("system", "Be brief."),
            Message("user", "Add 你好"),
            Message("assistant", "", (ToolCall("a", "note_add", '{"text": "你好"}'), ToolCall("b", "list", ""))),
            Message("tool", "", tool_call_id="a"),
            Message("tool", "none", tool_call_id="b"),
        ),
        tools=(ToolSpec("note_add", "Add a note.", {"type": "object", "properties": {"text": {"type": "string"}}}),),
        settings={"temperature": 0.5},
        provider_options={"chat_template_kwargs": {"enable_thinking": False}, "seed": 2},
        max_output_tokens=300,
    )
    async with provider(Script([chunked(text_reply("Hi"))])) as server:
        model = chat(server, settings={"temperature": 0.1, "top_p": 0.9, "seed": 1})
        await collect(model, request)
        [seen] = server.seen
        assert seen.json == {
            "model": "m",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Add 你好"},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "a",
                            "type": "function",
                            "function": {"name": "note_add", "arguments": '{"text": "你好"}'},
                        },
                        {"id": "b", "type": "function", "function": {"name": "list", "arguments": "{}"}},
                    ],
                },
                {"role": "tool", "content": "(no output)", "tool_call_id": "a"},
                {"role": "tool", "content": "none", "tool_call_id": "b"},
            ],
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": "note_add",
                        "description": "Add a note.",
                        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}},
                    },
                }
            ],
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0.5,
            "top_p": 0.9,
            "seed": 2,
            "max_tokens": 300,
            "chat_template_kwargs": {"enable_thinking": False},
        }
        assert seen.headers["content-type"] == "application/json"
        assert seen.headers["accept-encoding"] == "identity"
        assert seen.headers["user-agent"].startswith("goliath-actors/")
        assert "authorization" not in seen.headers
        await model.aclose()


async def test_a_schema_becomes_a_response_format() -> None:
    schema = {"type": "object", "properties": {"kind": {"enum": ["tool", "answer"]}}, "required": ["kind"]}
    async with provider(Script([chunked(text_reply("{}"))])) as server:
        model = chat(server)
        await collect(model, ModelRequest("plan", ASK.messages, schema=schema))
        assert server.seen[0].json["response_format"] == {
            "type": "json_schema",
            "json_schema": {"name": "reply", "schema": schema},
        }
        await model.aclose()


async def test_what_json_cannot_hold_is_refused_before_anything_is_sent() -> None:
    async with provider(Script([])) as server:
        model = chat(server, settings={"temperature": math.nan})
        with pytest.raises(BadRequest, match="cannot be written as JSON"):
            await collect(model)
        assert server.connections == 0


# What comes back.


async def test_the_events_of_a_reply_come_in_order_and_end() -> None:
    call = {"index": 0, "id": "a", "function": {"name": "lookup", "arguments": '{"id":'}}
    reply = events(
        {"choices": [{"index": 0, "delta": {"content": "Let me "}}]},
        {"choices": [{"index": 0, "delta": {"content": "see."}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": "5}"}}]}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
        {
            "choices": [],
            "usage": {
                "prompt_tokens": 10,
                "completion_tokens": 4,
                "prompt_tokens_details": {"cached_tokens": 8},
                "completion_tokens_details": {"reasoning_tokens": 1},
            },
        },
    )
    async with provider(Script([chunked(reply)])) as server:
        model = chat(server)
        async with model.stream(ASK) as stream:
            found = [event async for event in stream]
            with pytest.raises(StopAsyncIteration):
                await anext(stream)
        assert found == [
            ModelText("Let me "),
            ModelText("see."),
            ModelToolCall(0, "a", "lookup", '{"id":'),
            ModelToolCall(0, arguments="5}"),
            ModelUsage(Usage(10, 4, cached_tokens=8, reasoning_tokens=1)),
            ModelDone("tool_calls"),
        ]
        await model.aclose()


async def test_an_id_that_the_conversation_has_already_is_not_given_again() -> None:
    again = {"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "x", "function": {"name": "a"}}]}}]}
    history = (*ASK.messages, Message("assistant", "", (ToolCall("x", "a"),)), Message("tool", "ok", tool_call_id="x"))
    async with provider(Script([chunked(events(again))])) as server:
        model = chat(server)
        [call, done] = await collect(model, ModelRequest("step", history))
        assert isinstance(call, ModelToolCall)
        assert call.id not in (None, "", "x")
        assert (call.name, call.arguments, done) == ("a", "", ModelDone("unknown"))
        await model.aclose()


async def test_a_reply_can_be_asked_for_in_one_piece() -> None:
    body = json.dumps(
        {
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 2, "completion_tokens": 1},
        }
    ).encode()
    async with provider(
        Script([head(headers={"content-type": "application/json"}, length=len(body)) + body])
    ) as server:
        model = chat(server, settings={"stream": False})
        assert await collect(model) == [ModelText("Hi"), ModelUsage(Usage(2, 1)), ModelDone("stop")]
        assert server.seen[0].json["stream"] is False
        assert "stream_options" not in server.seen[0].json
        await model.aclose()


@pytest.mark.parametrize("named", [{}, {"content-type": "text/plain"}, {"content-type": "application/json"}])
async def test_a_stream_under_another_name_is_read_as_a_stream(named: dict[str, str]) -> None:
    async with provider(Script(cut(head(headers=named) + text_reply("Hi"), [60, 1, 1]), "close")) as server:
        assert said(await collect(chat(server))) == "Hi"


async def test_a_compressed_reply_is_read_though_it_was_not_asked_for() -> None:
    packed = gzip.compress(text_reply("Hi ", "there"))
    top = head(headers={"content-type": "text/event-stream", "content-encoding": "gzip"})
    async with provider(Script([top, *cut(packed, [10, 20])], "close")) as server:
        assert said(await collect(chat(server))) == "Hi there"


async def test_half_a_surrogate_pair_waits_for_its_other_half() -> None:
    pieces = [{"choices": [{"delta": {"content": text}}]} for text in ("a\ud83d", "\ude80b\ude80", "c\ud83d")]
    async with provider(Script([chunked(events(*pieces))])) as server:
        model = chat(server)
        assert said(await collect(model)) == "a🚀b�c�"
        await model.aclose()


deltas = st.lists(st.text(st.sampled_from("ab \n你🌍\u2028\x85<"), max_size=6), max_size=8)


@given(deltas, st.lists(st.integers(1, 40), max_size=30))
@settings(max_examples=40, deadline=None)
async def test_any_text_in_any_cutting_is_the_text(pieces: list[str], sizes: list[int]) -> None:
    payloads = [{"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in [*pieces, "end"]]
    # Unescaped, as most servers write it.
    lines = "".join(f"data: {json.dumps(payload, ensure_ascii=False)}\n\n" for payload in payloads)
    body = (lines + "data: [DONE]\n\n").encode()
    async with provider(Script([STREAM, *cut(body, sizes)], "close")) as server:
        assert said(await collect(chat(server))) == "".join(pieces) + "end"


# How long it waits.


async def test_silence_before_the_first_piece_is_a_timeout(autojump_clock: MockClock) -> None:
    async with provider(Script([STREAM], "open")) as server:
        with pytest.raises(ModelUnavailable, match=r"within 7 s \(first_token_timeout\)") as caught:
            await collect(chat(server, first_token_timeout=7, idle_timeout=1))
        assert (caught.value.code, caught.value.retryable) == ("timeout", True)
        assert trio.current_time() == pytest.approx(7)
        await closed(server)


async def test_a_server_that_sends_no_head_runs_into_the_same_timeout(autojump_clock: MockClock) -> None:
    async with provider(Script([], "open")) as server:
        with pytest.raises(ModelUnavailable, match="first_token_timeout"):
            await collect(chat(server, first_token_timeout=7))
        assert trio.current_time() == pytest.approx(7)
        await closed(server)


@pytest.mark.parametrize(
    "sign",
    [
        b": keep-alive\n\n",
        b"event: ping\ndata: {}\n\n",
        b'data: {"choices":[]}\n\n',
        b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n',
    ],
)
async def test_signs_of_life_without_a_piece_are_no_progress(autojump_clock: MockClock, sign: bytes) -> None:
    async with provider(Script([STREAM, *[sign] * 50], pause=1)) as server:
        with pytest.raises(ModelUnavailable, match="first_token_timeout"):
            await collect(chat(server, first_token_timeout=10, idle_timeout=60))
        assert trio.current_time() == pytest.approx(10)
    async with provider(Script([STREAM, HI, *[sign] * 50], pause=1)) as server:
        began = trio.current_time()
        with pytest.raises(ModelUnavailable, match=r"for 10 s in the middle of the reply \(idle_timeout\)") as caught:
            await collect(chat(server, idle_timeout=10))
        assert (caught.value.code, caught.value.partial) == ("timeout", "Hi")
        assert trio.current_time() - began == pytest.approx(12)


async def test_reasoning_is_progress_though_it_is_no_text(autojump_clock: MockClock) -> None:
    thought = b'data: {"choices":[{"delta":{"reasoning_content":"hm"}}]}\n\n'
    async with provider(Script([STREAM, *[thought] * 30, text_reply("Hi")], pause=9)) as server:
        assert await collect(chat(server, first_token_timeout=20, idle_timeout=10)) == [
            ModelText("Hi"),
            ModelDone("stop"),
        ]


async def test_time_that_the_consumer_takes_is_not_counted(autojump_clock: MockClock) -> None:
    pieces = [b'data: {"choices":[{"delta":{"content":"%d"}}]}\n\n' % n for n in range(3)]
    async with provider(Script([STREAM, *pieces, b"data: [DONE]\n\n"], "close", pause=1)) as server:
        text = ""
        async with chat(server, first_token_timeout=5, idle_timeout=5).stream(ASK) as stream:
            await trio.sleep(100)
            async for event in stream:
                text += event.text if isinstance(event, ModelText) else ""
                await trio.sleep(100)
        assert text == "012"


async def test_after_a_finish_reason_the_end_marker_is_not_waited_for_long(autojump_clock: MockClock) -> None:
    async with provider(Script([STREAM, text_reply("Hi").removesuffix(b"data: [DONE]\n\n")], "open")) as server:
        assert await collect(chat(server)) == [ModelText("Hi"), ModelDone("stop")]
        assert trio.current_time() == pytest.approx(5)
        await closed(server)


async def test_an_error_body_that_never_ends_does_not_hold_up_the_error(autojump_clock: MockClock) -> None:
    async with provider(Script([head(503), b"overloaded"], "open")) as server:
        with pytest.raises(ModelUnavailable, match=r"overloaded \(HTTP 503\)"):
            await collect(chat(server, idle_timeout=3))
        assert trio.current_time() == pytest.approx(3)
        await closed(server)


# What it leaves behind.


async def test_a_connection_is_used_again_once_the_end_of_the_body_has_come() -> None:
    whole = chunked(text_reply("Hi"))
    late = [whole[:-5], whole[-5:]]  # the end of the body comes in a packet of its own, behind [DONE]
    async with provider(Script(late)) as server:
        model = chat(server)
        for _ in range(3):
            assert said(await collect(model)) == "Hi"
        assert [seen.connection for seen in server.seen] == [0, 0, 0]
        assert model._endpoint.pool.statistics() == PoolStatistics(in_flight=0, idle=1, opened=1, reused=2)
        await model.aclose()
        await closed(server)


async def test_an_error_leaves_its_connection_usable() -> None:
    refusal = Script([head(429, length=2) + b"{}"])
    async with provider(refusal, Script([chunked(text_reply("Hi"))])) as server:
        model = chat(server)
        with pytest.raises(ModelError):
            await collect(model)
        await collect(model)
        assert [seen.connection for seen in server.seen] == [0, 0]
        await model.aclose()


async def test_cancelling_in_the_middle_closes_the_connection() -> None:
    async with provider(Script([chunked(HI, last=False)], "open")) as server:
        model = chat(server)
        with trio.CancelScope() as scope:
            async with model.stream(ASK) as stream:
                assert await anext(stream) == ModelText("Hi")
                scope.cancel()
                await anext(stream)
        assert scope.cancelled_caught
        assert model._endpoint.pool.statistics() == PoolStatistics(in_flight=0, idle=0, opened=1, reused=0)
        await closed(server)


async def test_a_reply_whose_wait_was_cancelled_says_so_when_it_is_asked_again() -> None:
    async with provider(Script([chunked(HI, last=False)], "open")) as server:
        model = chat(server)
        async with model.stream(ASK) as stream:
            await anext(stream)
            with trio.CancelScope() as scope:
                scope.cancel()
                await anext(stream)
            with trio.move_on_after(0.01):
                await anext(stream)
            with pytest.raises(ModelUnavailable, match="an earlier wait for this reply was cancelled") as caught:
                await anext(stream)
            assert caught.value.partial == "Hi"
            with pytest.raises(ModelUnavailable, match="an earlier wait"):
                await anext(stream)
        await closed(server)


@pytest.mark.parametrize("failing", [False, True])
async def test_leaving_early_closes_the_connection(failing: bool) -> None:
    async with provider(Script([chunked(HI, last=False)], "open")) as server:
        model = chat(server)
        expected = pytest.raises(LookupError, match="the application's own") if failing else nullcontext()
        with expected:
            async with model.stream(ASK) as stream:
                assert await anext(stream) == ModelText("Hi")
                if failing:
                    raise LookupError("the application's own")
        assert model._endpoint.pool.statistics() == PoolStatistics(in_flight=0, idle=0, opened=1, reused=0)
        await closed(server)


async def test_a_ready_event_does_not_hide_a_cancellation() -> None:
    async with provider(Script([chunked(text_reply("Hi", "there"))])) as server:
        model = chat(server)
        with trio.CancelScope() as scope:
            async with model.stream(ASK) as stream:
                await anext(stream)
                scope.cancel()
                await anext(stream)
                raise AssertionError("unreachable: the scope is cancelled")
        assert scope.cancelled_caught


async def test_one_model_serves_one_loop_after_another() -> None:
    # The loop of this test, and one in a thread.
    model = OpenAIChat("m", base_url="http://127.0.0.1:1/v1", api_key="")

    async def once() -> str:
        async with provider(Script([chunked(text_reply("Hi"))])) as server:
            model._exchange = attrs.evolve(model._exchange, url=httpx.URL(server.url + "/chat/completions"))
            return said([*await collect(model), *await collect(model)])

    assert await once() == "HiHi"
    assert await trio.to_thread.run_sync(trio.run, once) == "HiHi"
    assert await once() == "HiHi"
    await model.aclose()


async def test_a_client_of_the_application_is_used_with_its_headers_and_not_closed() -> None:
    async with provider(Script([chunked(text_reply("Hi"))])) as server:
        async with httpx.AsyncClient(headers={"x-tenant": "t1", "authorization": "Bearer of-the-client"}) as client:
            model = chat(server, http=client)
            assert said(await collect(model)) == "Hi"
            assert said(await collect(model)) == "Hi"
            await model.aclose()
            assert not client.is_closed
        assert [seen.headers["x-tenant"] for seen in server.seen] == ["t1", "t1"]
        assert [seen.headers["authorization"] for seen in server.seen] == ["Bearer of-the-client"] * 2
        assert [seen.connection for seen in server.seen] == [0, 0]


async def test_a_client_of_the_application_can_be_left_early_and_cancelled() -> None:
    async with provider(Script([chunked(HI, last=False)], "open")) as server:
        async with httpx.AsyncClient() as client:
            model = chat(server, http=client)
            async with model.stream(ASK) as stream:
                assert await anext(stream) == ModelText("Hi")
            await closed(server)
            with trio.CancelScope() as scope:
                async with model.stream(ASK) as stream:
                    await anext(stream)
                    scope.cancel()
                    await anext(stream)
            assert scope.cancelled_caught
            await closed(server)
            with trio.CancelScope() as scope:
                async with model.stream(ASK) as stream:
                    await anext(stream)
                    scope.cancel()
            await closed(server)


class Reluctant(httpx.AsyncByteStream):
    """A body of a foreign transport: closing it takes a checkpoint, and does not end who reads."""

    closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield HI
        await trio.sleep_forever()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
        self.closed = True


async def test_a_foreign_body_is_closed_also_where_everything_is_cancelled(autojump_clock: MockClock) -> None:
    body = Reluctant()
    headers = {"content-type": "text/event-stream"}
    transport = httpx.MockTransport(lambda request: httpx.Response(200, headers=headers, stream=body))
    async with httpx.AsyncClient(transport=transport) as client:
        model = OpenAIChat("m", base_url="http://x/v1", api_key="", http=client)
        with trio.CancelScope() as scope:
            async with model.stream(ASK) as stream:
                assert await anext(stream) == ModelText("Hi")
                scope.cancel()
        assert scope.cancelled_caught
        assert body.closed
        assert trio.current_time() == pytest.approx(1)  # and it is not read for longer


async def test_a_client_that_follows_redirects_does_not_carry_the_key_elsewhere() -> None:
    async with provider(Script([head(307, {"location": "http://other.invalid/"}, length=0)])) as server:
        async with httpx.AsyncClient(follow_redirects=True) as client:
            with pytest.raises(BadRequest, match="redirects are not followed"):
                await collect(chat(server, http=client, api_key="sk-test-12345"))
        assert len(server.seen) == 1


# Secrets.


@pytest.mark.parametrize("status", [200, 401, 404, 429, 500])
async def test_neither_key_nor_query_is_in_an_error_or_a_repr(status: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    echo = json.dumps(
        {"error": {"message": "no: sk-test-12345 Bearer sk-test-12345 qk-98765", "code": "sk-test-12345"}}
    )
    async with provider(Script([head(status, length=len(echo)) + echo.encode()])) as server:
        model = OpenAIChat("m", base_url=f"{server.url}?key=qk-98765", api_key="sk-test-12345")
        with pytest.raises(ModelError) as caught:
            await collect(model)
        assert server.seen[0].target == "/v1/chat/completions?key=qk-98765"
        assert server.seen[0].headers["authorization"] == "Bearer sk-test-12345"
        texts = [
            repr(model),
            str(caught.value),
            repr(caught.value),
            repr(caught.value.__cause__),
            str(vars(caught.value)),
        ]
        for text in [*texts, caplog.text]:
            assert "12345" not in text
            assert "98765" not in text
        await model.aclose()


@pytest.mark.parametrize(
    "body", [b"data: sk-test-12345\n\n", b"<p>sk-test-12345</p>", b"data: {\ndata: sk-test-12345\n\n"]
)
async def test_what_is_no_json_hangs_nowhere_on_the_error(body: bytes) -> None:
    async with provider(Script([head(200, length=len(body)) + body])) as server:
        model = OpenAIChat("m", base_url=server.url, api_key="sk-test-12345")
        with pytest.raises(ModelUnavailable) as caught:
            await collect(model)
        error: BaseException | None = caught.value
        while error is not None:
            assert "12345" not in f"{error!r} {vars(error)} {getattr(error, 'doc', '')}"
            error = error.__cause__ or error.__context__
        await model.aclose()


async def test_a_user_and_password_in_the_address_are_sent_and_not_shown() -> None:
    async with provider(Script([], "close")) as server:
        model = OpenAIChat("m", base_url=server.url.replace("http://", "http://me:pa55word@"), api_key="")
        with pytest.raises(ModelUnavailable) as caught:
            await collect(model)
        assert server.seen[0].headers["authorization"] == "Basic bWU6cGE1NXdvcmQ="
        assert "pa55word" not in f"{model!r} {caught.value}"


async def test_a_refusal_in_pieces_is_one_refusal() -> None:
    pieces = [{"choices": [{"delta": {"refusal": piece}}]} for piece in ("I cannot ", "do that.")]
    last = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    async with provider(Script([chunked(events(*pieces, last))])) as server:
        model = chat(server)
        with pytest.raises(Refused, match=r"^I cannot do that\.$") as caught:
            await collect(model)
        assert (caught.value.code, caught.value.partial) == ("refusal", "I cannot do that.")
        await model.aclose()


async def test_a_reply_that_spent_its_allowance_on_reasoning_says_what_to_do() -> None:
    spent = events(
        {"choices": [{"delta": {"reasoning_content": "hmm"}}]},
        {"choices": [{"delta": {}, "finish_reason": "length"}]},
    )
    async with provider(Script([chunked(spent)])) as server:
        model = chat(server)
        with pytest.raises(ModelUnavailable, match="raise max_output_tokens") as caught:
            await collect(model)
        assert caught.value.code == "empty"
        await model.aclose()


@pytest.mark.parametrize("word", ["error", "abort"])
async def test_a_reply_that_the_provider_gives_up_is_no_answer(word: str) -> None:
    async with provider(Script([chunked(text_reply("Hi", reason=word))])) as server:
        model = chat(server)
        with pytest.raises(ModelUnavailable, match=f"finish reason '{word}'") as caught:
            await collect(model)
        assert (caught.value.code, caught.value.partial, caught.value.retryable) == ("truncated", "Hi", True)
        await model.aclose()


# Headers of the application's own.


def sent(server: ProviderServer, name: str) -> list[str | None]:
    return [request.headers.get(name) for request in server.seen]


async def test_headers_of_the_application_go_with_every_request_and_a_function_gives_new_ones() -> None:
    numbers = iter(range(2))
    async with provider(Script([chunked(text_reply("Hi"))])) as server:
        await collect(chat(server, api_key="key", headers={"X-Team": "blue", "Authorization": "Basic other"}))
        model = chat(server, headers=lambda: {"x-team": f"n{next(numbers)}"})
        await collect(model)
        await collect(model)
    assert sent(server, "x-team") == ["blue", "n0", "n1"]
    assert sent(server, "authorization") == ["Basic other", None, None]


async def test_values_of_headers_are_in_no_repr_and_no_error() -> None:
    body = b"bad team s3cret-value"
    reply = Script([head(401, headers={"content-type": "text/plain"}, length=len(body)), body])
    for headers in ({"x-team": "s3cret-value"}, lambda: {"x-team": "s3cret-value"}):
        async with provider(reply) as server:
            model = chat(server, headers=headers)
            with pytest.raises(ModelError) as raised:
                await collect(model)
        assert "bad team [secret]" in str(raised.value)
        assert "s3cret" not in repr(model)


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ("x: y", "headers is a mapping"),
        ({3: "y"}, "no name of a header"),
        ({"a b": "y"}, "no name of a header"),
        ({"x": "s3cret\r\nhost: other"}, "value of x holds what no header can carry"),
        ({"x": b"s3cret"}, "value of x holds"),
        ({"Host": "other"}, "Host is made by the connection"),
    ],
)
def test_headers_that_cannot_be_sent_are_refused_without_their_values(headers: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as raised:
        OpenAIChat("m", base_url="http://127.0.0.1:9/v1", headers=headers)
    assert "s3cret" not in str(raised.value)
