"""What every adapter over HTTP has to do alike, whatever its dialect: one set of stories, told in each."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
from trio.testing import MockClock

from goliath_actors.abc import Model, ModelDone, ModelEvent, ModelRequest, ModelText, ModelToolCall, ModelUsage
from goliath_actors.errors import ModelError, ModelUnavailable, RateLimited, Refused
from goliath_actors.models import AnthropicMessages, OpenAIChat
from goliath_actors.values import Message, Usage

from ._provider_server import ProviderServer, Script, cut, head, provider

ASK = ModelRequest("answer", (Message("user", "Hello?"),))
STREAM = head(headers={"content-type": "text/event-stream"})


@attrs.frozen
class Dialect:
    """One adapter, and how its provider says things. Pieces of a stream are joined."""

    adapter: type[OpenAIChat] | type[AnthropicMessages]
    text: tuple[str, ...]
    call: tuple[str, ...]
    stop: str
    cut_short: str
    called: str
    refused: str
    usage: str
    mark: str
    overload: str
    rate: str

    def connect(self, server: ProviderServer) -> OpenAIChat | AnthropicMessages:
        return self.adapter("m", base_url=server.url, api_key="sk-secret-1", first_token_timeout=5, idle_timeout=3)


def chat(delta: dict[str, Any], reason: str | None = None) -> str:
    return f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta, 'finish_reason': reason}]})}\n\n"


def function(**fields: Any) -> str:
    return chat({"tool_calls": [{"index": 0, **fields}]})


def event(kind: str, **fields: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"


def piece(kind: str, **fields: str) -> str:
    return event("content_block_delta", index=0, delta={"type": kind, **fields})


def ended(reason: str) -> str:
    return event("message_delta", delta={"stop_reason": reason})


TOOL = {"type": "tool_use", "id": "t", "name": "look", "input": {}}

DIALECTS = [
    Dialect(
        OpenAIChat,
        (chat({"content": "Hel"}), chat({"content": "lo"})),
        (
            function(id="t", type="function", function={"name": "look", "arguments": ""}),
            function(function={"arguments": '{"q"'}),
            function(function={"arguments": ": 1}"}),
        ),
        chat({}, "stop"),
        chat({}, "length"),
        chat({}, "tool_calls"),
        chat({}, "content_filter"),
        'data: {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 7}}\n\n',
        "data: [DONE]\n\n",
        'data: {"error": {"message": "Overloaded sk-secret-1", "type": "server_error"}}\n\n',
        'data: {"error": {"message": "Slow down", "code": "rate_limit_exceeded"}}\n\n',
    ),
    Dialect(
        AnthropicMessages,
        (
            event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
            piece("text_delta", text="Hel"),
            piece("text_delta", text="lo"),
        ),
        (
            event("content_block_start", index=0, content_block=TOOL),
            piece("input_json_delta", partial_json='{"q"'),
            piece("input_json_delta", partial_json=": 1}"),
        ),
        ended("end_turn"),
        ended("max_tokens"),
        ended("tool_use"),
        ended("refusal"),
        event("message_delta", delta={}, usage={"input_tokens": 5, "output_tokens": 7}),
        event("message_stop"),
        event("error", error={"type": "overloaded_error", "message": "Overloaded sk-secret-1"}),
        event("error", error={"type": "rate_limit_error", "message": "Slow down"}),
    ),
]
each_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.adapter.__name__)


async def hear(model: Model) -> tuple[list[ModelEvent], ModelError | None]:
    heard: list[ModelEvent] = []
    try:
        async with model.stream(ASK) as events:
            async for one in events:
                heard.append(one)  # what came before an error is part of the story
    except ModelError as error:
        return heard, error
    return heard, None


async def tell(dialect: Dialect, *pieces: str, end: Any = "close") -> tuple[list[ModelEvent], ModelError | None]:
    """Tell a story in several cuttings; it has to be heard the same way each time."""
    body = "".join(pieces).encode()
    stories: list[tuple[list[ModelEvent], ModelError | None]] = []
    for sizes in ([], [1] * len(body), [7] * (len(body) // 7), [len(body) - 3]):
        async with provider(Script([STREAM, *cut(body, sizes)], end)) as server:
            model = dialect.connect(server)
            stories.append(await hear(model))
            assert model._endpoint.pool.statistics().in_flight == 0
            await model.aclose()
    assert all(repr(story) == repr(stories[0]) for story in stories)
    return stories[0]


@each_dialect
async def test_text_comes_in_pieces_and_usage_and_end_behind_it(dialect: Dialect) -> None:
    heard, error = await tell(dialect, *dialect.text, dialect.stop, dialect.usage, dialect.mark)
    assert error is None
    assert heard == [ModelText("Hel"), ModelText("lo"), ModelUsage(Usage(5, 7)), ModelDone("stop")]


@each_dialect
async def test_a_call_comes_in_pieces_with_its_name_first(dialect: Dialect) -> None:
    heard, error = await tell(dialect, *dialect.call, dialect.called, dialect.mark)
    assert error is None
    assert heard == [
        ModelToolCall(0, "t", "look", '{"q"'),
        ModelToolCall(0, arguments=": 1}"),
        ModelDone("tool_calls"),
    ]


@each_dialect
async def test_a_reply_at_its_limit_says_length(dialect: Dialect) -> None:
    heard, error = await tell(dialect, *dialect.text, dialect.cut_short, dialect.mark)
    assert (heard[-1], error) == (ModelDone("length"), None)


@each_dialect
async def test_a_reason_alone_or_a_mark_alone_is_an_end(dialect: Dialect) -> None:
    assert (await tell(dialect, *dialect.text, dialect.stop))[0][-1] == ModelDone("stop")
    assert (await tell(dialect, *dialect.text, dialect.mark))[0][-1] == ModelDone("unknown")


@each_dialect
async def test_neither_is_a_reply_that_was_cut_off(dialect: Dialect) -> None:
    heard, error = await tell(dialect, *dialect.text)
    assert heard == [ModelText("Hel"), ModelText("lo")]
    assert isinstance(error, ModelUnavailable)
    assert (error.code, error.partial, error.retryable) == ("truncated", "Hello", True)


@each_dialect
async def test_nothing_is_an_empty_reply(dialect: Dialect) -> None:
    for pieces in ((), (dialect.stop, dialect.mark)):
        heard, error = await tell(dialect, *pieces)
        assert isinstance(error, ModelUnavailable)
        assert (heard, error.code) == ([], "empty")


@each_dialect
async def test_a_refusal_is_one_and_keeps_what_was_said(dialect: Dialect) -> None:
    _, error = await tell(dialect, *dialect.text, dialect.refused, dialect.mark)
    assert isinstance(error, Refused)
    assert (error.partial, error.retryable) == ("Hello", False)


@each_dialect
async def test_a_provider_that_gives_up_in_the_middle_is_believed_and_the_key_stays_hidden(dialect: Dialect) -> None:
    _, error = await tell(dialect, *dialect.text, dialect.overload)
    assert type(error) is ModelUnavailable
    assert (str(error), error.partial, error.retryable) == ("Overloaded [secret]", "Hello", True)
    _, error = await tell(dialect, dialect.rate)
    assert type(error) is RateLimited
    assert (str(error), error.retryable) == ("Slow down", True)


@each_dialect
async def test_silence_is_noticed_and_what_was_said_is_kept(dialect: Dialect, autojump_clock: MockClock) -> None:
    async with provider(Script([STREAM, "".join(dialect.text).encode()], "open", pause=0.1)) as server:
        _, error = await hear(dialect.connect(server))
    assert isinstance(error, ModelUnavailable)
    assert (error.code, error.partial) == ("timeout", "Hello")
