"""Which model is taken, why, and what is said when none is."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio

from goliath_actors._cli.choose import Choice, Place, Wish, can_chat, list_models, open_choice, shown
from goliath_actors._cli.demo_model import DemoModel
from goliath_actors.errors import BadRequest, ConfigError, ModelUnavailable
from goliath_actors.models import OpenAIChat
from goliath_actors.testing import ScriptedModel


def listing(*names: str) -> bytes:
    return json.dumps({"object": "list", "data": [{"id": name} for name in names]}).encode()


@asynccontextmanager
async def serving(body: bytes, status: int = 200) -> AsyncIterator[tuple[str, list[str]]]:
    """Serve one body at `/v1/models` on loopback; the value is (address up to /v1, heads of the requests)."""
    heads: list[str] = []

    async def answer(stream: trio.SocketStream) -> None:
        head = b""
        async for piece in stream:
            head += piece
            if b"\r\n\r\n" in head:
                break
        heads.append(head.decode())
        lines = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        await stream.send_all(lines.encode() + body)

    async with trio.open_nursery() as nursery:
        listeners: list[trio.SocketListener] = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        yield f"http://127.0.0.1:{port}/v1", heads
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def silent() -> AsyncIterator[str]:
    """An address at which nobody listens."""
    with trio.socket.socket() as socket:
        await socket.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{socket.getsockname()[1]}/v1"


async def choose(
    wish: Wish, environ: Mapping[str, str] | None = None, places: tuple[Place, ...] = ()
) -> tuple[Choice, list[str]]:
    told: list[str] = []
    async with open_choice(wish, environ or {}, told.append, places) as choice:
        return choice, told


def name_of(choice: Choice) -> str:
    assert isinstance(choice.model, OpenAIChat)
    return choice.model.name


# --- first match wins -----------------------------------------------------------------------------------------------


async def test_with_nothing_given_and_nothing_found_it_is_the_labelled_demo_model() -> None:
    async with silent() as url:
        choice, told = await choose(Wish(), places=(Place("Ollama", url), Place("llama.cpp", url)))
    assert isinstance(choice.model, DemoModel)
    assert choice.why == f"no model server was found (looked for Ollama at {url} and llama.cpp at {url})"
    assert choice.notes[0].startswith("the demo model follows fixed rules and understands nothing")
    assert told == []


async def test_the_demo_model_can_be_asked_for() -> None:
    choice, _ = await choose(Wish(name="demo", own=ScriptedModel([])), {"OPENAI_BASE_URL": "http://h/v1"})
    assert isinstance(choice.model, DemoModel)
    assert choice.why == "--model demo"


async def test_a_named_model_at_a_named_address_is_taken_without_asking_anybody() -> None:
    choice, told = await choose(Wish("m", "http://user:secret@127.0.0.1:1/v1?key=hidden"))
    assert (name_of(choice), choice.why, choice.where, told) == ("m", "--model-url", "http://127.0.0.1:1/v1", [])


async def test_an_address_without_a_name_gives_its_first_model_that_can_chat() -> None:
    async with serving(listing("nomic-embed-text", "big", "small")) as (url, heads):
        choice, told = await choose(Wish(url=url), {"OPENAI_API_KEY": "sk-secret"})
    assert name_of(choice) == "big"
    assert choice.why == "--model-url, the first of 2 models (--model takes another: small)"
    assert told == [f"asking {url} which models it has"]
    assert "authorization: bearer sk-secret" in heads[0].lower()


async def test_the_environment_names_a_server() -> None:
    async with serving(listing("only")) as (url, _):
        choice, _ = await choose(Wish(), {"OPENAI_BASE_URL": url})
        assert (name_of(choice), choice.why) == ("only", "OPENAI_BASE_URL, its only model")
        choice, _ = await choose(Wish(name="mine"), {"OPENAI_BASE_URL": url})
        assert (name_of(choice), choice.why) == ("mine", "OPENAI_BASE_URL")


async def test_a_key_alone_needs_a_name_and_says_so_when_it_has_none() -> None:
    choice, _ = await choose(Wish(name="gpt"), {"OPENAI_API_KEY": "sk-secret"})
    assert (name_of(choice), choice.where) == ("gpt", "https://api.openai.com/v1")
    assert "sk-secret" not in repr(choice)
    choice, _ = await choose(Wish(), {"OPENAI_API_KEY": "sk-secret"})
    assert isinstance(choice.model, DemoModel)
    assert choice.notes[0] == "OPENAI_API_KEY is set; to use it, name a model with --model"


async def test_an_agent_brings_its_own_model_unless_one_is_named() -> None:
    own = ScriptedModel([])
    choice, _ = await choose(Wish(own=own), {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"})
    assert (choice.model, choice.why) == (own, "the agent's own")
    choice, _ = await choose(Wish(name="m", own=own), {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"})
    assert name_of(choice) == "m"


async def test_a_server_on_this_machine_is_found_and_gets_no_key() -> None:
    async with silent() as nobody, serving(listing("qwen3:4b", "gemma")) as (url, heads):
        places = (Place("Ollama", nobody), Place("llama.cpp", url))
        choice, _ = await choose(Wish(), {"OPENAI_API_KEY": "sk-secret"}, places)
    assert name_of(choice) == "qwen3:4b"
    assert choice.why == "found llama.cpp on this machine, the first of 2 models (--model takes another: gemma)"
    assert "sk-secret" not in heads[0]


async def test_a_named_model_is_looked_for_on_this_machine_with_and_without_its_tag() -> None:
    async with serving(listing("a", "qwen3:latest")) as (url, _):
        for name in ("qwen3", "qwen3:latest"):
            choice, _ = await choose(Wish(name=name), places=(Place("Ollama", url),))
            assert (name_of(choice), choice.why) == ("qwen3:latest", "found Ollama on this machine")


async def test_a_server_without_models_is_passed_by_and_mentioned() -> None:
    async with serving(b'{"object": "list", "data": null}') as (url, _):
        choice, _ = await choose(Wish(), places=(Place("Ollama", url),))
    assert isinstance(choice.model, DemoModel)
    assert choice.notes[0] == f"Ollama answers at {url} and has no model"


async def test_another_program_on_the_port_is_no_model_server() -> None:
    async with serving(b"<html>hello</html>") as (url, _):
        choice, _ = await choose(Wish(), places=(Place("llama.cpp", url),))
    assert isinstance(choice.model, DemoModel)


# --- what goes wrong ------------------------------------------------------------------------------------------------


async def test_a_model_that_nobody_has_names_everybody_who_was_asked() -> None:
    async with silent() as nobody, serving(listing(*"abcdefgh")) as (url, _):
        with pytest.raises(ConfigError) as caught:
            await choose(Wish(name="gpt-9"), places=(Place("Ollama", url), Place("llama.cpp", nobody)))
    assert str(caught.value) == (
        f"no model 'gpt-9' was found: Ollama at {url} has a, b, c, d, e, f and 2 more, llama.cpp at {nobody} does not "
        "answer; name its server with --model-url, or use --model demo"
    )


async def test_an_address_at_which_nobody_listens_is_unavailable() -> None:
    async with silent() as url:
        with pytest.raises(ModelUnavailable, match=f"{url}/models cannot be reached"):
            await choose(Wish(url=url))


async def test_a_bad_address_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(ConfigError, match="scheme"):
        await choose(Wish(url="127.0.0.1:8000"))


async def test_a_server_that_lists_nothing_says_what_to_do() -> None:
    async with serving(listing("text-embedding-3")) as (url, _):
        with pytest.raises(ConfigError, match="lists no model; load one there, or name it with --model"):
            await choose(Wish(url=url))


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_key_is_told_without_the_key(status: int) -> None:
    async with serving(b"{}", status) as (url, _):
        with pytest.raises(BadRequest, match=f"refuses the key \\(HTTP {status}\\)") as caught:
            await list_models(url, "sk-secret", 5.0)
    assert caught.value.status == status
    assert "sk-secret" not in str(caught.value)


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"data": 3}', b'{"data": [{"name": "x"}]}', b"\xff"])
async def test_what_is_no_list_of_models_is_unavailable(body: bytes) -> None:
    async with serving(body) as (url, _):
        with pytest.raises(ModelUnavailable, match="is no OpenAI-compatible server"):
            await list_models(url, "", 5.0)


async def test_a_status_that_is_no_success_is_unavailable() -> None:
    async with serving(b"{}", 500) as (url, _):
        with pytest.raises(ModelUnavailable, match="does not list models \\(HTTP 500\\)"):
            await list_models(url, "", 5.0)


async def test_an_endless_list_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    from goliath_actors._cli import choose as room

    monkeypatch.setattr(room, "MAX_LIST", 1000)
    async with serving(b" " * 5000) as (url, _):
        with pytest.raises(ModelUnavailable, match="answers with more than 1000 bytes"):
            await list_models(url, "", 5.0)


async def test_a_server_that_says_nothing_is_given_up_in_time() -> None:
    async def hang(stream: trio.SocketStream) -> None:
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        listeners: list[Any] = await nursery.start(partial(trio.serve_tcp, hang, 0, host="127.0.0.1"))
        url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/v1"
        with pytest.raises(ModelUnavailable, match=r"did not answer within 0\.05 s"):
            await list_models(url, "", 0.05)
        nursery.cancel_scope.cancel()


def test_models_that_only_make_vectors_or_scores_are_no_chat_models() -> None:
    assert [name for name in ("qwen3:4b", "mxbai-embed-large", "bge-m3", "gpt-x", "whisper-1") if can_chat(name)] == [
        "qwen3:4b",
        "gpt-x",
    ]


def test_addresses_are_shown_without_secrets() -> None:
    assert shown("https://u:p@host:1/v1/?key=k#f") == "https://host:1/v1"
