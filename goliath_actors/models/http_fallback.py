"""A second brain behind an address: gets the ask and the step log as JSON, answers with a text.

Uses _endpoint and the public contracts only.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeAlias, final

import attrs
import trio

from goliath_actors._numbers import check_seconds
from goliath_actors.errors import ConfigError, FallbackError
from goliath_actors.values import Exchange, FallbackRequest, Step

from ._answer import readable
from ._endpoint import Endpoint
from ._http import httpx, parse_url, place
from ._pool import StaleConnection
from ._wire import encode

__all__ = ["HeaderSource", "HttpFallback"]

HeaderSource: TypeAlias = Mapping[str, str] | Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]]

MAX_ANSWER = 16 * 1024 * 1024
"""Bytes of an answer."""


@final
@attrs.define(eq=False, repr=False)
class HttpFallback:
    """An agent's `fallback` that asks a server: `fallback=HttpFallback("https://example.org/answer")`.

    Arguments:
      url: where to POST; a user and password in it are sent as basic authorization. The body has the fields `ask`,
        `summary`, `recent`, `steps`, `reason` and `error`; steps come without the raw output of their tools.
      headers: a mapping, or a function that gives one for each request, sync or async (fresh tokens).
      timeout: seconds for the whole exchange, on trio's clock.
      http: a client of the application's own; never closed here.

    Raises: `ConfigError` at once for an address without scheme or a time-out that is none.
    """

    _address: str = attrs.field(alias="url")
    _headers: HeaderSource | None = attrs.field(alias="headers", default=None, kw_only=True)
    timeout: float = attrs.field(default=60.0, kw_only=True)
    _http: httpx.AsyncClient | None = attrs.field(alias="http", default=None, kw_only=True)
    _url: httpx.URL = attrs.field(init=False)
    _basic: str | None = attrs.field(init=False)
    _endpoint: Endpoint = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._url, self._basic = parse_url("url", self._address)
        check_seconds("timeout", self.timeout, none=False)
        if self._headers is not None and not isinstance(self._headers, Mapping) and not callable(self._headers):
            raise ConfigError("headers is a mapping, or a function that returns one")
        if self._http is not None and not isinstance(self._http, httpx.AsyncClient):
            raise ConfigError(f"http is an httpx2.AsyncClient, not {type(self._http).__name__}")
        self._endpoint = Endpoint(self._http)

    def __repr__(self) -> str:
        return f"HttpFallback({place(self._url)!r})"

    async def __call__(self, request: FallbackRequest) -> str:
        """Send `request` once and return the answer's text.

        Raises: `FallbackError` for a status that is not 2xx (redirects are not followed), for an answer without a
        non-blank `text`, for a time-out, and, with the cause, for a failing network. What a `headers` function raises
        is passed on as it is.

        Cancellation: the connection is closed; the server may have worked all the same.
        """
        where = place(self._url)
        try:
            content = encode(_body(request))
        except (TypeError, ValueError) as error:
            raise FallbackError(f"the request to the fallback cannot be written as JSON: {error}") from error
        headers = await self._current_headers()
        answer: bytes | None = None
        with trio.move_on_after(self.timeout):
            try:
                answer = await self._exchange(headers, content)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise FallbackError(f"the fallback at {where} could not be asked: {error}") from error
        if answer is None:
            raise FallbackError(f"the fallback at {where} did not answer within {self.timeout:g} s (timeout)")
        return _text_of(answer, where)

    async def aclose(self) -> None:
        """Close the idle connections of the current trio loop. The fallback stays usable.

        Cancellation: they are closed nevertheless.
        """
        await self._endpoint.aclose()

    async def _current_headers(self) -> dict[str, str]:
        source = self._headers
        if source is None:
            found: object = {}
        elif isinstance(source, Mapping):
            found = source
        else:
            found = source()
            if inspect.isawaitable(found):
                found = await found
        if not isinstance(found, Mapping):
            raise FallbackError(f"the function given as headers returned {type(found).__name__}, not a mapping")
        headers = {"accept": "application/json"}
        if self._basic is not None:
            headers["authorization"] = self._basic
        headers.update({str(name).lower(): str(value) for name, value in found.items()})
        return headers

    async def _exchange(self, headers: dict[str, str], content: bytes) -> bytes:
        try:
            answer = await self._endpoint.post(self._url, headers, content, None)
        except StaleConnection:
            # No byte of an answer came, and nothing above repeats a fallback: once more, on a new connection.
            answer = await self._endpoint.post(self._url, headers, content, None)
        response = readable(answer)
        where = place(self._url)
        parts: list[bytes] = []
        try:
            if not response.is_success:
                raise FallbackError(f"the fallback at {where} answered with HTTP {response.status_code}")
            size = 0
            while chunk := await response.read():
                parts.append(chunk)
                size += len(chunk)
                if size > MAX_ANSWER:
                    raise FallbackError(f"the fallback at {where} answered with more than {MAX_ANSWER} bytes")
        finally:
            await response.aclose()
        return b"".join(parts)


def _body(request: FallbackRequest) -> dict[str, object]:
    return {
        "ask": request.ask,
        "summary": request.summary,
        "recent": [_exchange(exchange) for exchange in request.recent],
        "steps": _steps(request.steps),
        "reason": request.reason,
        "error": request.error,
    }


def _exchange(exchange: Exchange) -> dict[str, object]:
    return {**attrs.asdict(exchange, recurse=False), "steps": _steps(exchange.steps)}


def _steps(steps: Iterable[Step]) -> list[dict[str, object]]:
    # The raw output is for hooks and tools of this process (C2); it may be any object, and anything may be in it.
    return [attrs.asdict(step, recurse=False, filter=lambda field, _: field.name != "output") for step in steps]


def _text_of(answer: bytes, where: str) -> str:
    try:
        payload: object = json.loads(answer)
    except (ValueError, RecursionError) as error:
        raise FallbackError(f"the fallback at {where} answered with something that is not JSON") from error
    text = payload.get("text") if isinstance(payload, Mapping) else None
    if not isinstance(text, str) or not text.strip():
        raise FallbackError(f"the fallback at {where} answered without a text; it must send {{'text': ...}}")
    return text
