"""HttpFallback: what it sends, what it takes for an answer, what it shows of it."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from goliath_actors.errors import ConfigError, FallbackError
from goliath_actors.models import HttpFallback
from goliath_actors.models._http import httpx
from goliath_actors.values import Exchange, FallbackRequest, Step

from ._provider_server import Script, head, provider


class Opaque:
    """A raw output that nothing can serialise."""


STEP = Step(0, "tool", "list", "list_tasks", "c1", {"day": "today"}, result="none", output=Opaque(), writes=True)
REQUEST = FallbackRequest(
    "What is on today?",
    "They plan their week.",
    (Exchange("Hi", "Hello.", 12.5, True, (STEP,)),),
    (STEP,),
    "max-steps",
    "five steps were not enough",
)


def answer(payload: object, status: int = 200) -> Script:
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return Script([head(status, length=len(body)) + body])


async def test_the_request_is_sent_without_raw_output_and_the_text_comes_back() -> None:
    async with provider(answer({"text": "Nothing."})) as server:
        fallback = HttpFallback(server.url)
        assert await fallback(REQUEST) == "Nothing."
        step = {
            "index": 0,
            "kind": "tool",
            "brief": "list",
            "tool": "list_tasks",
            "call_id": "c1",
            "input": {"day": "today"},
            "status": "executed",
            "skip_reason": None,
            "extension": None,
            "from_step": None,
            "result": "none",
            "writes": True,
            "text": None,
        }
        assert server.seen[0].json == {
            "ask": "What is on today?",
            "summary": "They plan their week.",
            "recent": [{"ask": "Hi", "answer": "Hello.", "at": 12.5, "best_effort": True, "steps": [step]}],
            "steps": [step],
            "reason": "max-steps",
            "error": "five steps were not enough",
        }
        assert server.seen[0].headers["content-type"] == "application/json"
        await fallback.aclose()


async def test_headers_are_a_mapping_or_a_function_sync_or_async() -> None:
    count = 0

    def fresh() -> dict[str, str]:
        nonlocal count
        count += 1
        return {"Authorization": f"Bearer {count}"}

    async def later() -> dict[str, str]:
        await trio.lowlevel.checkpoint()
        return {"authorization": "Bearer later"}

    async with provider(answer({"text": "ok"})) as server:
        for headers in ({"AUTHORIZATION": "Bearer fixed"}, fresh, fresh, later):
            fallback = HttpFallback(server.url, headers=headers)
            await fallback(REQUEST)
            await fallback.aclose()
        sent = [seen.headers["authorization"] for seen in server.seen]
        assert sent == ["Bearer fixed", "Bearer 1", "Bearer 2", "Bearer later"]


async def test_what_a_headers_function_raises_is_passed_on_as_it_is() -> None:
    problem = LookupError("no token")

    def failing() -> dict[str, str]:
        raise problem

    with pytest.raises(LookupError) as caught:
        await HttpFallback("http://127.0.0.1:1/", headers=failing)(REQUEST)
    assert caught.value is problem


@pytest.mark.parametrize("status", [301, 400, 401, 429, 500])
async def test_another_status_is_an_error_that_names_it_and_the_address_without_secrets(status: int) -> None:
    async with provider(answer({"text": "no"}, status)) as server:
        url = server.url.replace("http://", "http://me:pa55word@") + "/ask?key=k3y#part"
        with pytest.raises(FallbackError) as caught:
            await HttpFallback(url)(REQUEST)
        assert str(caught.value) == f"the fallback at {server.url}/ask answered with HTTP {status}"
        [seen] = server.seen
        assert (seen.target, seen.headers["authorization"]) == ("/v1/ask?key=k3y", "Basic bWU6cGE1NXdvcmQ=")


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"", "not JSON"),
        (b"<html>", "not JSON"),
        (b"[" * 200_000, "not JSON"),
        (b"\xff", "not JSON"),
        (None, "without a text"),
        ({}, "without a text"),
        ({"text": None}, "without a text"),
        ({"text": 3}, "without a text"),
        ({"text": " \n"}, "without a text"),
        (["text"], "without a text"),
    ],
)
async def test_a_body_without_a_text_is_no_answer(payload: object, words: str) -> None:
    async with provider(answer(payload if payload is not None else b"null")) as server:
        fallback = HttpFallback(server.url)
        with pytest.raises(FallbackError, match=words):
            await fallback(REQUEST)
        await fallback.aclose()


async def test_a_network_that_fails_is_an_error_with_its_cause() -> None:
    async with provider(Script([head(length=100), b"{"], "close")) as server:
        with pytest.raises(FallbackError, match="could not be asked") as caught:
            await HttpFallback(server.url)(REQUEST)
        assert isinstance(caught.value.__cause__, httpx.HTTPError)


async def test_a_kept_connection_that_has_died_is_no_failure_of_the_fallback() -> None:
    async with provider(answer({"text": "1"}), Script([], "close"), answer({"text": "2"})) as server:
        fallback = HttpFallback(server.url)
        assert [await fallback(REQUEST), await fallback(REQUEST)] == ["1", "2"]
        assert [seen.connection for seen in server.seen] == [0, 0, 1]
        await fallback.aclose()


@pytest.mark.parametrize("chunks", [[], [head(length=5), b'{"t']])
async def test_a_server_that_takes_too_long_is_left(autojump_clock: MockClock, chunks: list[bytes]) -> None:
    async with provider(Script(chunks, "open")) as server:
        with pytest.raises(FallbackError, match=r"did not answer within 9 s \(timeout\)"):
            await HttpFallback(server.url, timeout=9)(REQUEST)
        assert trio.current_time() == pytest.approx(9)


async def test_an_answer_without_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("goliath_actors.models.http_fallback.MAX_ANSWER", 1000)
    async with provider(answer({"text": "x" * 2000})) as server:
        with pytest.raises(FallbackError, match="more than 1000 bytes"):
            await HttpFallback(server.url)(REQUEST)


async def test_a_client_of_the_application_is_used_and_not_closed() -> None:
    def respond(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"text": json.loads(request.content)["ask"]})

    async with httpx.AsyncClient(transport=httpx.MockTransport(respond)) as client:
        fallback = HttpFallback("https://example.org/answer", http=client)
        assert await fallback(REQUEST) == "What is on today?"
        await fallback.aclose()
        assert await fallback(REQUEST) == "What is on today?"


@pytest.mark.parametrize(
    ("url", "options", "words"),
    [
        ("example.org/answer", {}, "url needs a scheme"),
        (None, {}, "url is no address"),
        ("http://x/", {"timeout": 0}, "timeout must be a positive number of seconds"),
        ("http://x/", {"timeout": math.nan}, "timeout must be a positive number of seconds"),
        ("http://x/", {"headers": "token"}, "headers is a mapping"),
        ("http://x/", {"http": object()}, "http is an httpx2.AsyncClient"),
    ],
)
def test_wrong_configuration_is_refused_at_once(url: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        HttpFallback(url, **options)


async def test_a_headers_function_that_gives_no_mapping_is_named() -> None:
    with pytest.raises(FallbackError, match="returned str, not a mapping"):
        await HttpFallback("http://127.0.0.1:1/", headers=lambda: "token")(REQUEST)  # type: ignore[arg-type]  # what a caller does wrong


def test_its_repr_shows_the_address_alone() -> None:
    assert repr(HttpFallback("https://me:pw@example.org/answer?key=k", headers={"x": "s"})) == (
        "HttpFallback('https://example.org/answer')"
    )
