"""The door for OpenAI's dialect, asked by OpenAI's own client over a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from goliath_actors import Agent, Conductor, Extension, ToolLoop, tool
from goliath_actors.abc import ModelRequest
from goliath_actors.hooks import AfterAnswer, HookContext
from goliath_actors.server import ServerConfig, Token, ask_client, hash_token
from goliath_actors.testing import Gate, ScriptedModel, tool_calls

from .web import TURN, Web, open_web

# OpenAI's client leaves the generators of a stream's connection to the collector once it has read [DONE].
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

TOKEN = "a-token-of-enough-characters"


def agent(*replies: Any, **more: Any) -> Agent[Any]:
    return Agent(**{"name": "assistant", "model": ScriptedModel(list(replies)), "loop": ToolLoop(), **more})


@asynccontextmanager
async def open_client(web: Web, key: str = "none") -> AsyncIterator[openai.AsyncOpenAI]:
    import httpx2

    async with httpx2.AsyncClient(trust_env=False, timeout=TURN) as http:
        yield openai.AsyncOpenAI(base_url=f"{web.server.url}/v1", api_key=key, http_client=http, max_retries=2)


USER: Any = [{"role": "user", "content": "Hi."}]


async def test_agents_are_models() -> None:
    own = (agent(), agent(name="planner", loop=Conductor()), agent(name="my shop/helper"))
    async with open_web(*own) as web, open_client(web) as client:
        assert [model.id async for model in client.models.list()] == ["assistant", "planner", "my shop/helper"]
        assert (await client.models.retrieve("planner")).owned_by == "goliath_actors"
        assert (await client.models.retrieve("my shop/helper")).id == "my shop/helper"
        for name in ("other", "two/names", "two\nlines", "two\nlines/and a slash\n"):
            with pytest.raises(openai.NotFoundError, match="there is no model"):
                await client.models.retrieve(name)


async def test_a_completion_has_the_answer_and_its_usage() -> None:
    async with open_web(agent("Hello Ada.")) as web, open_client(web) as client:
        done = await client.chat.completions.create(model="assistant", messages=USER)
        assert done.choices[0].message.content == "Hello Ada."
        assert done.choices[0].finish_reason == "stop"
        assert done.usage is not None
        assert done.usage.total_tokens == done.usage.prompt_tokens + done.usage.completion_tokens > 0


async def test_a_stream_has_the_same_text_in_pieces_and_then_the_usage() -> None:
    async with open_web(agent("one two three")) as web, open_client(web) as client:
        stream = await client.chat.completions.create(
            model="assistant", messages=USER, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "one two three"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None


async def test_with_a_conversation_the_last_message_is_the_ask_and_history_is_the_servers() -> None:
    own = agent("One.", "Two.", "Three.")
    async with open_web(own) as web, open_client(web) as client:
        for extra in ({"extra_headers": {"X-Conversation-Id": "c"}}, {"metadata": {"conversation_id": "c"}}):
            await client.chat.completions.create(
                model="assistant",
                messages=[{"role": "user", "content": "lost"}, {"role": "user", "content": "kept"}],
                **extra,  # type: ignore[call-overload]
            )
        entries = (await web.client.get("/v1/conversations/c/history")).json()["entries"]
        assert [one["text"] for one in entries] == ["kept", "One.", "kept", "Two."]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_may_have_an_id_of_any_alphabet(stream: bool) -> None:
    said = {"model": "assistant", "stream": stream, "messages": [{"role": "user", "content": "Hi."}]}
    async with open_web(agent("One.", "Two.")) as web:
        for more, headers in (
            ({"metadata": {"conversation_id": "日本"}}, {}),
            ({}, {b"x-conversation-id": "日本".encode()}),
        ):
            response = await web.client.post("/v1/chat/completions", json={**said, **more}, headers=headers)
            assert response.status_code == 200
            assert dict(response.headers.raw)[b"x-conversation-id"] == "日本".encode()
        listed = (await web.client.get("/v1/conversations")).json()["conversations"]
        assert [one["id"] for one in listed] == ["日本"]
        wrong = await web.client.post("/v1/chat/completions", json=said, headers={b"x-conversation-id": b"\xff"})
        assert wrong.status_code == 422


async def test_without_a_conversation_the_request_is_one_and_is_forgotten() -> None:
    own = agent("Yes.")
    async with open_web(own) as web, open_client(web) as client:
        await client.chat.completions.create(
            model="assistant",
            messages=[
                {"role": "system", "content": "Be short."},
                {"role": "user", "content": "I am Ada."},
                {"role": "assistant", "content": "Hello."},
                {"role": "user", "content": [{"type": "text", "text": "Do you know me?"}]},
            ],
        )
        for _ in range(1000):
            if not (await web.client.get("/v1/conversations")).json()["conversations"]:
                break
        else:
            pytest.fail("it is still listed")
    (request,) = own.model.requests  # type: ignore[attr-defined]
    assert request.messages[-1].text == (
        "Before this:\n\nInstructions: Be short.\n\nUser: I am Ada.\n\nAssistant: Hello.\n\n"
        "Now the user says:\n\nDo you know me?"
    )


@pytest.mark.parametrize(
    ("more", "kind", "param"),
    [
        ({"model": "other"}, openai.NotFoundError, "model"),
        ({"n": 2}, openai.UnprocessableEntityError, "n"),
        ({"messages": [{"role": "system", "content": "x"}]}, openai.UnprocessableEntityError, "messages"),
        ({"messages": [{"role": "user", "content": " "}]}, openai.UnprocessableEntityError, "messages"),
        ({"messages": "no list"}, openai.UnprocessableEntityError, "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            openai.UnprocessableEntityError,
            "messages[0].content",
        ),
        ({"tools": [{"type": "function"}]}, openai.UnprocessableEntityError, "tools"),
        ({"response_format": {"type": "json_object"}}, openai.UnprocessableEntityError, "response_format"),
    ],
)
async def test_what_cannot_be_is_refused_in_the_dialect(
    more: Any, kind: type[openai.APIStatusError], param: str
) -> None:
    async with open_web(agent()) as web, open_client(web) as client:
        with pytest.raises(kind) as caught:
            await client.chat.completions.create(**{"model": "assistant", "messages": USER, **more})
        assert caught.value.param == param


@pytest.mark.parametrize("stream", [False, True])
async def test_a_run_that_fails_is_an_error_that_no_client_asks_again(stream: bool) -> None:
    own = agent(RuntimeError("a secret"))
    async with open_web(own, config=ServerConfig(show_errors=False)) as web, open_client(web) as client:
        with pytest.raises(openai.APIError) as caught:
            answer = await client.chat.completions.create(model="assistant", messages=USER, stream=stream)
            assert stream
            async for _ in answer:  # type: ignore[union-attr]
                pass
        assert "a secret" not in str(caught.value)
        assert caught.value.code == "run_failed"
    assert len(own.model.requests) == 1  # type: ignore[attr-defined]


async def test_a_client_that_leaves_a_stream_ends_its_run() -> None:
    gate = Gate()

    async def reply(request: ModelRequest) -> Any:
        await gate.pass_through()
        return "never"

    async with open_web(agent(reply)) as web:
        raw = await web.connect()
        await raw.send("POST", "/v1/chat/completions", {"model": "assistant", "messages": USER, "stream": True})
        head = await raw.read_until(b"\r\n\r\n")
        await gate.wait_reached()
        await raw.stream.aclose()
        hosted = web.server._hosting.get(head.partition(b"x-run-id: ")[2].partition(b"\r")[0].decode())
        assert hosted is not None
        await hosted.over.wait()
        assert web.server.runtime.statistics().aborted == 1


async def test_a_text_that_was_replaced_follows_what_cannot_be_taken_back() -> None:
    class Better(Extension[Any]):
        name = "better"

        def after_answer(self, ctx: HookContext[Any], question: AfterAnswer) -> str:
            return "Good day."

    async with open_web(agent("Hi.", extensions=[Better()])) as web, open_client(web) as client:
        stream = await client.chat.completions.create(model="assistant", messages=USER, stream=True)
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hi.\n\nGood day."
        assert chunks[-1].choices[0].finish_reason == "content_filter"


async def test_nobody_can_be_asked_here_so_nothing_is_written() -> None:
    written: list[str] = []

    @tool(writes=True)
    async def save(text: str) -> str:
        """Save."""
        written.append(text)
        return "saved"

    own = agent(tool_calls(("save", {"text": "x"})), "No.", tools=[save], confirm=ask_client)
    async with open_web(own) as web, open_client(web) as client:
        done = await client.chat.completions.create(model="assistant", messages=USER)
        assert done.choices[0].message.content == "No."
    assert written == []


async def test_a_token_is_the_api_key() -> None:
    config = ServerConfig(tokens=[Token("ada", ["chat"], hash_token(TOKEN))])
    async with open_web(agent("Hello."), config=config) as web:
        async with open_client(web, TOKEN) as client:
            assert (await client.chat.completions.create(model="assistant", messages=USER)).choices
        async with open_client(web, "wrong") as client:
            with pytest.raises(openai.AuthenticationError):
                await client.chat.completions.create(model="assistant", messages=USER)
