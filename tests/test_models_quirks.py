"""Every reply in data/provider_quirks.jsonl, byte for byte over loopback, in several cuttings."""

from __future__ import annotations

import base64
import email.utils
import json
import random
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from goliath_actors.abc import ModelDone, ModelRequest, ModelText, ModelToolCall, ModelUsage
from goliath_actors.errors import BadRequest, ContextOverflow, ModelError, ModelUnavailable, RateLimited, Refused
from goliath_actors.models import OpenAIChat
from goliath_actors.values import Message, Usage

from ._provider_server import Script, chunked, cut, head, provider, text_reply

# Any: lines of JSON data.
Line = dict[str, Any]

LINES: list[Line] = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "provider_quirks.jsonl").read_text("utf-8").splitlines()
]
REQUEST = ModelRequest("answer", (Message("user", "Hello?"),))
SMALL = 1000  # bytes; up to here a body is also sent one byte at a time


def lines(kind: str) -> list[Any]:
    return [pytest.param(line, id=f"{line['id']} {line['title']}") for line in LINES if line["kind"] == kind]


@attrs.define
class Heard:
    """What one request came to."""

    text: str = ""
    calls: dict[int, list[str]] = attrs.field(factory=dict)
    usage: Usage | None = None
    finish: str | None = None
    error: ModelError | None = None
    seconds: float = 0.0

    @property
    def tool_calls(self) -> list[list[str]]:
        return [call for _, call in sorted(self.calls.items())]


async def listen(model: OpenAIChat) -> Heard:
    heard = Heard()
    began = trio.current_time()
    try:
        async with model.stream(REQUEST) as events:
            async for event in events:
                match event:
                    case ModelText(text):
                        heard.text += text
                    case ModelUsage(usage):
                        heard.usage = usage
                    case ModelToolCall(index, id, name, arguments):
                        call = heard.calls.setdefault(index, ["", "", ""])
                        assert not (id and call[0])
                        assert not (name and call[1])
                        call[0] += id or ""
                        call[1] += name or ""
                        call[2] += arguments
                    case ModelDone(reason):
                        assert heard.finish is None
                        heard.finish = reason
    except ModelError as error:
        heard.error = error
        assert heard.finish is None
    heard.seconds = trio.current_time() - began
    return heard


def body_of(line: Line) -> bytes:
    given = line["input"]
    if "body_parts" in given:
        return b"".join(base64.b64decode(part) * count for part, count in given["body_parts"])
    return base64.b64decode(given["body_b64"])


def cuttings(line: Line, body: bytes) -> list[Sequence[bytes]]:
    if "chunks" in line["input"]:
        return [cut(body, line["input"]["chunks"])]
    ways: list[Sequence[bytes]] = [cut(body, [])]
    if len(body) <= SMALL:
        ways.append(cut(body, [1] * len(body)))
        for seed in range(3):
            generator = random.Random(f"{line['id']} {seed}")
            ways.append(cut(body, [generator.randint(1, 60) for _ in range(len(body) // 30)]))
    elif len(body) < 1_000_000:
        ways.append(cut(body, [1, 4095, 65536, 3, 100_000]))
    return ways


def check_message(error: ModelError) -> None:
    assert 1 <= len(str(error)) <= 300
    assert "<" not in str(error)


def check_stream(line: Line, heard: Heard) -> None:
    expected = line["expect"]["accept"][0]
    match expected["outcome"]:
        case "complete":
            if heard.error is not None:
                # One line lets the stricter reading pass.
                assert {"provider_error"} & {way["outcome"] for way in line["expect"]["accept"]}
                raise heard.error
            text = expected.get("text", "".join(part * count for part, count in expected.get("text_parts", [])))
            assert heard.text == text
            assert heard.finish == (expected["finish"] or "unknown")
            check_calls(expected, heard)
            check_usage(expected, heard)
        case "truncated":
            assert isinstance(heard.error, ModelUnavailable)
            assert (heard.error.code, heard.error.partial) == ("truncated", expected["text"])
        case "empty":
            assert isinstance(heard.error, ModelUnavailable)
            assert (heard.error.code, heard.error.retryable) == ("empty", True)
            assert heard.text == ""
        case "refused":
            assert isinstance(heard.error, Refused)
            assert (heard.error.partial, heard.error.retryable) == (expected["text"], False)
        case "provider_error":
            assert isinstance(heard.error, ModelUnavailable)
            assert heard.error.partial == expected["text"]
            assert expected.get("message", "") in str(heard.error)
            assert heard.error.retryable is expected.get("retryable", True)
        case other:
            raise AssertionError(f"no such outcome: {other}")
    if heard.error is not None:
        check_message(heard.error)
    if "within_s" in expected:
        assert heard.seconds < expected["within_s"]


def check_calls(expected: Line, heard: Heard) -> None:
    wanted = expected.get("tool_calls", [])
    assert len(heard.tool_calls) == len(wanted)
    for (id, name, arguments), call in zip(heard.tool_calls, wanted, strict=True):
        assert name == call["name"]
        assert id == call["id"] if call["id"] != "*" else id
        assert arguments == call["args"] if isinstance(call["args"], str) else json.loads(arguments) == call["args"]
    assert len({id for id, _, _ in heard.tool_calls}) == len(wanted)


def check_usage(expected: Line, heard: Heard) -> None:
    usage = expected.get("usage")
    if usage in (None, "estimated"):
        assert heard.usage is None
    else:
        assert heard.usage == Usage(usage["prompt_tokens"], usage["completion_tokens"])


@pytest.mark.parametrize("line", [*lines("sse"), *lines("ndjson")])
async def test_a_stream_means_the_same_however_it_is_cut(line: Line) -> None:
    given = line["input"]
    for chunks in cuttings(line, body_of(line)):
        async with provider(Script([head(given["status"], given["headers"]), *chunks], given["end"])) as server:
            model = OpenAIChat("m", base_url=server.url, api_key="", idle_timeout=5, first_token_timeout=5)
            check_stream(line, await listen(model))
            assert model._endpoint.pool.statistics().in_flight == 0
            await model.aclose()


CLASSES: dict[str, type[ModelError]] = {
    "rate_limit": RateLimited,
    "quota": RateLimited,
    "server": ModelUnavailable,
    "provider_error": ModelUnavailable,
    "empty": ModelUnavailable,
    "network": ModelUnavailable,
    "context_overflow": ContextOverflow,
    "bad_request": BadRequest,
    "auth": BadRequest,
    "refused": Refused,
}


def check_response(line: Line, heard: Heard) -> None:
    ways = line["expect"]["accept"]
    if ways[0]["class"] == "ok":
        assert heard.error is None
        assert heard.text == ways[0].get("text", "")
        check_calls(ways[0], heard)
        check_usage(ways[0], heard)
        return
    error = heard.error
    assert error is not None
    check_message(error)
    fitting = [way for way in ways if isinstance(error, CLASSES[way["class"]])]
    fitting = [way for way in fitting if way.get("retryable", error.retryable) is error.retryable]
    assert fitting, (type(error), error.retryable)
    way = fitting[0]
    if "wait_s" in way:
        least, most = way["wait_s"]
        assert error.retry_after is not None
        assert least <= error.retry_after <= most
    elif "wait" in way:
        assert error.retry_after is None
    assert way.get("message", "") in str(error)
    for secret in way.get("message_without", []):
        assert secret not in str(error)
        assert secret not in repr(error)
    if way["class"] == "quota":
        assert error.code == "insufficient_quota"
    if way["class"] == "empty":
        assert error.code == "empty"
    if "text" in way:
        assert error.partial == way["text"]
    if isinstance(way.get("usage"), dict):
        check_usage(way, heard)


@pytest.mark.parametrize("line", [param for param in lines("http") if "status" in param.values[0]["input"]])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_response_is_classified_by_what_it_is(line: Line, stream: bool) -> None:
    given = line["input"]
    body = body_of(line)
    script = Script([head(given["status"], given["headers"], len(body)) + body])
    async with provider(script) as server:
        model = OpenAIChat("m", base_url=server.url, api_key=given.get("our_key", ""), settings={"stream": stream})
        if "now" in given:
            now = email.utils.parsedate_to_datetime(given["now"]).timestamp()
            model._wall_clock = lambda: now
        check_response(line, await listen(model))
        assert len(server.seen) == 1  # an adapter never retries, and follows no redirect
        await model.aclose()


def the_line(id: str) -> Line:
    return next(line for line in LINES if line["id"] == id)


async def test_a_kept_connection_found_dead_is_an_error_to_retry_and_the_next_request_has_a_fresh_one() -> None:
    reply = chunked(text_reply("Hi"))
    dead = Script([], "close")
    async with provider(Script([reply]), dead, Script([reply])) as server:
        model = OpenAIChat("m", base_url=server.url, api_key="")
        assert (await listen(model)).text == "Hi"
        heard = await listen(model)
        check_response(the_line("q171"), heard)
        assert heard.error is not None
        assert heard.error.code == "stale-connection"
        assert (await listen(model)).text == "Hi"
        assert [seen.connection for seen in server.seen] == [0, 0, 1]
        await model.aclose()


async def test_a_refused_connection_is_a_network_error_without_usage() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    heard = await listen(OpenAIChat("m", base_url=f"http://127.0.0.1:{port}/v1", api_key=""))
    check_response(the_line("q172"), heard)
    assert heard.error is not None
    assert heard.error.code == "connect"
    assert heard.usage is None


def test_no_line_of_the_data_is_left_out() -> None:
    assert {line["kind"] for line in LINES} == {"meta", "sse", "ndjson", "http"}
    assert {line["id"] for line in LINES if line["kind"] == "http" and "status" not in line["input"]} == {
        "q171",
        "q172",
    }
