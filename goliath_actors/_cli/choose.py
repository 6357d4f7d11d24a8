"""Which model the command line talks to, and why that one.

What is heavy (an HTTP client, a model server) is imported by the branch that needs it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import attrs
import trio

from goliath_actors.abc import Model
from goliath_actors.errors import BadRequest, ConfigError, ModelError, ModelUnavailable

from .assistant import DEMO_HINT
from .demo_model import DemoModel

__all__ = ["LOOPBACK", "Choice", "Place", "Wish", "list_models", "open_choice"]

PUBLIC_URL = "https://api.openai.com/v1"
PROBE_SECONDS = 1.0  # a server on loopback answers within milliseconds; one that loads a model may not
LIST_SECONDS = 10.0
MAX_LIST = 2_000_000  # bytes of a list of models
SHOWN = 6  # names of models in a message

# Models that only make vectors or scores: a chat with the first listed model must not meet one.
_NO_CHAT = ("embed", "rerank", "whisper", "tts", "moderation", "bge-", "minilm")


@attrs.frozen
class Place:
    """A server that may run on this machine."""

    label: str
    url: str


# The addresses that these servers have unless they are told otherwise.
LOOPBACK = (Place("Ollama", "http://127.0.0.1:11434/v1"), Place("llama.cpp", "http://127.0.0.1:8080/v1"))


@attrs.frozen
class Wish:
    """What the user said about the model. `own` is the agent's own model, None for the built-in assistant."""

    name: str | None = None
    url: str | None = None
    own: Model | None = None
    hint: str = DEMO_HINT
    pace: float = 0.0


@attrs.frozen
class Choice:
    """The model taken, and why. `where` is its address, None if it has none; `notes` are lines worth a look."""

    model: Model
    why: str
    where: str | None = None
    notes: tuple[str, ...] = ()


@asynccontextmanager
async def open_choice(
    wish: Wish,
    environ: Mapping[str, str],
    tell: Callable[[str], None],
    places: Sequence[Place] = LOOPBACK,
) -> AsyncIterator[Choice]:
    """Choose a model, first match wins as `chat --help` lists them, for the length of the block.

    Arguments: `tell` is called with one line before anything that takes seconds.

    Raises: `ConfigError` for a model that nobody serves, or a missing extra; `ModelError` if a server that the user
    named does not answer.

    Cancellation: servers that were started are stopped, connections closed.
    """
    if wish.url is None and wish.name == "local":
        async with _local(tell) as choice:
            yield choice
        return
    choice = await _choose(wish, environ, tell, places)
    try:
        yield choice
    finally:
        close = getattr(choice.model, "aclose", None)
        if close is not None and choice.model is not wish.own:
            with trio.CancelScope(shield=True):
                await close()


@asynccontextmanager
async def _local(tell: Callable[[str], None]) -> AsyncIterator[Choice]:
    from goliath_actors.models import OpenAIChat
    from goliath_actors.models.local import open_local_server

    tell("starting the local model server; the first time it unpacks about 240 MB")
    async with open_local_server(n_parallel=1) as server:
        # A model this small repeats itself for ever unless repeating costs it something.
        settings = {"temperature": 0.2, "repeat_penalty": 1.2}
        model = OpenAIChat(server.model, base_url=server.base_url, api_key="", settings=settings)
        try:
            note = "this is a very small base model: it shows that everything works, not how well"
            yield Choice(model, "--model local", server.base_url, (note,))
        finally:
            with trio.CancelScope(shield=True):
                await model.aclose()


async def _choose(
    wish: Wish, environ: Mapping[str, str], tell: Callable[[str], None], places: Sequence[Place]
) -> Choice:
    key = environ.get("OPENAI_API_KEY", "")
    base = environ.get("OPENAI_BASE_URL", "")
    if wish.url is not None:
        return await _at(wish.url, wish.name, key, "--model-url", tell)
    if wish.name == "demo":
        return _demo(wish, "--model demo")
    if wish.name is None and wish.own is not None:
        return Choice(wish.own, "the agent's own", getattr(wish.own, "base_url", None))
    if base:
        return await _at(base, wish.name, key, "OPENAI_BASE_URL", tell)
    if key and wish.name is not None:
        return await _at(PUBLIC_URL, wish.name, key, "OPENAI_API_KEY", tell)
    notes = ("OPENAI_API_KEY is set; to use it, name a model with --model",) if key else ()
    return await _on_this_machine(wish, places, notes)


async def _at(url: str, name: str | None, key: str, because: str, tell: Callable[[str], None]) -> Choice:
    """Take the model at an address that the user named; without a name, the first that the server lists."""
    from goliath_actors.models import OpenAIChat

    if name is not None:
        return Choice(OpenAIChat(name, base_url=url, api_key=key), because, shown(url))
    OpenAIChat("any", base_url=url, api_key=key)  # refuses a bad address, with its own words, before anything is sent
    tell(f"asking {shown(url)} which models it has")
    names = [listed for listed in await list_models(url, key, LIST_SECONDS) if can_chat(listed)]
    if not names:
        raise ConfigError(f"the server at {shown(url)} lists no model; load one there, or name it with --model")
    return Choice(OpenAIChat(names[0], base_url=url, api_key=key), f"{because}, {_first(names)}", shown(url))


async def _on_this_machine(wish: Wish, places: Sequence[Place], notes: tuple[str, ...]) -> Choice:
    from goliath_actors.models import OpenAIChat

    found = await _probe(places)
    for place, names in zip(places, found, strict=True):
        if names is None:
            continue
        if not names:
            notes += (f"{place.label} answers at {shown(place.url)} and has no model",)
            continue
        taken = names[0] if wish.name is None else _named(wish.name, names)
        if taken is None:
            continue
        which = f"found {place.label} on this machine"
        why = which if wish.name is not None else f"{which}, {_first(names)}"
        # Loopback servers get no key: whoever listens on that port need not be who one thinks.
        return Choice(OpenAIChat(taken, base_url=place.url, api_key=""), why, shown(place.url), notes)
    if wish.name is not None:
        raise ConfigError(_nowhere(wish.name, places, found))
    looked = " and ".join(f"{place.label} at {shown(place.url)}" for place in places)
    return _demo(wish, f"no model server was found (looked for {looked})", notes)


def _demo(wish: Wish, why: str, notes: tuple[str, ...] = ()) -> Choice:
    note = "the demo model follows fixed rules and understands nothing; --model and --model-url name a real one"
    return Choice(DemoModel(wish.hint, wish.pace), why, None, (*notes, note))


def _named(name: str, names: Sequence[str]) -> str | None:
    # Ollama lists `name:latest` for what everybody calls `name`.
    return next((listed for listed in names if listed in (name, f"{name}:latest")), None)


def _nowhere(name: str, places: Sequence[Place], found: Sequence[Sequence[str] | None]) -> str:
    told = [
        f"{place.label} at {shown(place.url)} " + ("does not answer" if names is None else f"has {_listed(names)}")
        for place, names in zip(places, found, strict=True)
    ]
    return f"no model {name!r} was found: {', '.join(told)}; name its server with --model-url, or use --model demo"


def _first(names: Sequence[str]) -> str:
    if len(names) == 1:
        return "its only model"
    return f"the first of {len(names)} models (--model takes another: {_listed(names[1:])})"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return (", ".join(names[:SHOWN]) or "no model") + more


def can_chat(name: str) -> bool:
    """Say whether a listed model is one to talk to, going by its name."""
    return not any(word in name.casefold() for word in _NO_CHAT)


def shown(url: str) -> str:
    """Return an address without what may be secret in it: user, password, query."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}".rstrip("/")


async def _probe(places: Sequence[Place]) -> list[list[str] | None]:
    """Ask every place at once; return their chat models in the places' order, None where nobody answers."""
    found: list[list[str] | None] = [None] * len(places)

    async def ask(index: int, place: Place) -> None:
        try:
            found[index] = [name for name in await list_models(place.url, "", PROBE_SECONDS) if can_chat(name)]
        except ModelError:  # nobody there, or another program: not an error, just no model
            found[index] = None

    async with trio.open_nursery() as nursery:
        for index, place in enumerate(places):
            nursery.start_soon(ask, index, place)
    return found


async def list_models(url: str, key: str, seconds: float) -> tuple[str, ...]:
    """Return the names that an OpenAI-compatible server lists, in its order.

    Arguments: `url` up to `/v1`; `key` is sent if it is not empty; `seconds` for the whole exchange.

    Raises: `ModelUnavailable` if nobody answers in time or the answer is no list of models; `BadRequest` if the
    server wants another key.

    Cancellation: the connection is closed.
    """
    with trio.move_on_after(seconds):
        status, body = await _get(f"{url.rstrip('/').removesuffix('/chat/completions')}/models", key)
        if status in (401, 403):
            raise BadRequest(f"the server at {shown(url)} refuses the key (HTTP {status})", status=status)
        if status != 200:
            raise ModelUnavailable(f"the server at {shown(url)} does not list models (HTTP {status})", status=status)
        return _names(body, url)
    raise ModelUnavailable(f"{shown(url)} did not answer within {seconds:g} s", code="timeout")


async def _get(url: str, key: str) -> tuple[int, bytes]:
    import httpx2 as httpx

    headers = {"accept": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
    body = b""
    try:
        # Certificates are loaded only where they are used; no proxy from the environment sees loopback.
        async with httpx.AsyncClient(trust_env=False, verify=url.startswith("https:"), timeout=None) as client:
            async with client.stream("GET", url, headers=headers) as response:
                # Read to the end, since leaving the loop early would leave the client's generators open; what is too
                # much is not kept, and the caller's time-out bounds the rest.
                async for piece in response.aiter_bytes():
                    if len(body) <= MAX_LIST:
                        body += piece
                if len(body) > MAX_LIST:
                    raise ModelUnavailable(f"{shown(url)} answers with more than {MAX_LIST} bytes")
                return response.status_code, body
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ModelUnavailable(f"{shown(url)} cannot be reached ({error})", code="connect") from error


def _names(body: bytes, url: str) -> tuple[str, ...]:
    # Any: whatever a stranger sent as JSON.
    try:
        payload: Any = json.loads(body)
        rows: Any = payload["data"] or ()
        return tuple(str(row["id"]) for row in rows)
    except (ValueError, KeyError, TypeError) as error:
        raise ModelUnavailable(f"{shown(url)} is no OpenAI-compatible server: it lists no models") from error
