"""What adapters for model providers have alike: sending a request, opening its reply, and closing what is idle.

Uses _exchange, _incoming, _endpoint, _answer, _errors; used by openai_chat and anthropic. One request is one attempt:
nothing here retries, since only the request room knows whether anything was released already (T11).
"""

from __future__ import annotations

import abc
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import ClassVar, final

import attrs
import trio

from goliath_actors.abc import ModelEvent, ModelRequest
from goliath_actors.errors import BadRequest

from ._answer import Answer, readable
from ._decoder import Decoder
from ._endpoint import Endpoint
from ._errors import from_exchange, from_response
from ._exchange import Exchange, MoreHeaders, as_settings, check_headers, check_key, check_options, scrubber
from ._http import httpx, parse_url, place
from ._incoming import Incoming, Patience

__all__ = ["Adapter", "Dialect"]


@attrs.frozen
class Dialect:
    """Where a dialect is spoken, and how who asks is told.

    `variables` of the environment are for the address and the key. `base` returns what of a path is in front of
    `ending`, which may have been copied along. `credentials` makes headers of the key, and of the header value for a
    user and password, if there is one in the address; `headers` go along always.
    """

    variables: tuple[str, str]
    public_url: str
    base: Callable[[str], str]
    ending: str
    credentials: Callable[[str, str | None], Mapping[str, str]]
    headers: Mapping[str, str] = attrs.Factory(dict)


@attrs.define(eq=False, repr=False)
class Adapter(abc.ABC):
    """A model behind an address, in some dialect. What its options mean stands with the classes that have them."""

    _dialect: ClassVar[Dialect]

    model: str
    _base_url: str | None = attrs.field(alias="base_url", default=None, kw_only=True)
    _api_key: str | None = attrs.field(alias="api_key", default=None, kw_only=True)
    connect_timeout: float = attrs.field(default=10.0, kw_only=True)
    first_token_timeout: float = attrs.field(default=120.0, kw_only=True)
    idle_timeout: float = attrs.field(default=60.0, kw_only=True)
    retries: int = attrs.field(default=2, kw_only=True)
    _settings: Mapping[str, object] = attrs.field(alias="settings", default=None, converter=as_settings, kw_only=True)
    window: int | None = attrs.field(default=None, kw_only=True)
    _more: MoreHeaders | None = attrs.field(alias="headers", default=None, converter=check_headers, kw_only=True)
    _http: httpx.AsyncClient | None = attrs.field(alias="http", default=None, kw_only=True)
    _url: httpx.URL = attrs.field(init=False)
    _endpoint: Endpoint = attrs.field(init=False)
    _exchange: Exchange = attrs.field(init=False)
    # For the dates in `Retry-After`; an attribute so that a test can stand at any of them.
    _wall_clock: Callable[[], float] = attrs.field(default=time.time, init=False)

    def __attrs_post_init__(self) -> None:
        dialect = self._dialect
        seconds = {name: getattr(self, name) for name in ("connect_timeout", "first_token_timeout", "idle_timeout")}
        check_options(self.model, seconds, self.retries, self.window, self._http)
        where, which = dialect.variables
        base = self._base_url if self._base_url is not None else os.environ.get(where) or dialect.public_url
        url, basic = parse_url("base_url", base)
        self._url = url.copy_with(path=f"{dialect.base(url.path)}{dialect.ending}")
        key = check_key(self._api_key if self._api_key is not None else os.environ.get(which, ""))
        headers = {
            "accept": "text/event-stream, application/json",
            "accept-encoding": "identity",
            **dialect.headers,
            **dialect.credentials(key, basic),
        }
        patience = Patience(self.first_token_timeout, self.idle_timeout, place(self._url))
        self._endpoint = Endpoint(self._http)
        scrub = scrubber(key, basic, url, self._more)
        self._exchange = Exchange(self._endpoint, self._url, headers, scrub, patience, self.connect_timeout, self._more)

    @property
    def name(self) -> str:
        """The model's name at the provider."""
        return self.model

    def __repr__(self) -> str:
        base_url = place(self._url).removesuffix(self._dialect.ending)
        return f"{type(self).__name__}({self.model!r}, base_url={base_url!r})"

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        """Send one request and open its reply.

        Returns: an async context manager whose value iterates over the reply's events. It ends after a `ModelDone`;
        tool calls have stable indexes, and ids that differ from each other and from those in `request.messages`.

        Raises, on entering or while iterating, each with the text that had come in `partial`:
          ModelUnavailable: no connection (codes `connect`, `network`), a fault of the server (its own code, such as
            `overloaded_error`), silence (`timeout`), a reply cut off (`truncated`), one with neither text nor calls
            (`empty`), or what is no reply (`bad-response`). `stale-connection`: a kept connection was dead before it
            answered, and the next attempt opens a new one.
          RateLimited: too many requests; or, not retryable and with code `insufficient_quota`, no credit left.
          ContextOverflow: the prompt does not fit.
          Refused: the model declined, or the provider or its filter ended the reply.
          BadRequest: the provider will never take this request; also for a redirect.

        Cancellation: leaving the block, also by cancellation, closes the connection unless the reply was complete.
        """
        return _Opened(self, request)

    async def aclose(self) -> None:
        """Close the idle connections of the current trio loop. The model stays usable.

        Cancellation: they are closed nevertheless.
        """
        await self._endpoint.aclose()

    @abc.abstractmethod
    def _question(self, request: ModelRequest) -> tuple[bytes, Decoder]:
        """Return the body of a request, and what reads its reply. Raises: `TypeError`, `ValueError` for no JSON."""


# Why no generator: one costs as much as a pass through the scheduler, at each call.
@final
class _Opened(AbstractAsyncContextManager[AsyncIterator[ModelEvent]]):
    """One reply: sent for on entering, closed on leaving."""

    __slots__ = ("_adapter", "_incoming", "_request")

    def __init__(self, adapter: Adapter, request: ModelRequest) -> None:
        self._adapter = adapter
        self._request = request

    async def __aenter__(self) -> AsyncIterator[ModelEvent]:
        # All of it in one coroutine: while a model is waited for, each costs the garbage collector as much as a list.
        adapter, exchange = self._adapter, self._adapter._exchange
        patience = exchange.patience
        try:
            content, reply = adapter._question(self._request)
        except (TypeError, ValueError) as error:
            raise BadRequest(f"the request cannot be written as JSON: {error}", code="not-json") from error
        headers, scrub = exchange.headed()
        began = trio.current_time()
        response: Answer | None = None
        with trio.move_on_after(patience.first):
            try:
                answer = exchange.endpoint.post(exchange.url, headers, content, exchange.connect_timeout)
                del content  # a conversation may be long, and so is the wait
                response = readable(await answer)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise from_exchange(error, patience.server, scrub, exchange.connect_timeout) from error
        if response is None:
            raise patience.first_exceeded()
        left = patience.first - (trio.current_time() - began)
        incoming = Incoming(response, reply, scrub, patience, left)
        if not response.is_success:
            try:
                error_body = await incoming.read_error()
            finally:
                await incoming.aclose()
            now = adapter._wall_clock()
            raise from_response(response.status_code, response.headers, error_body, scrub, now)
        self._incoming = incoming
        return incoming

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        incoming = self._incoming
        if incoming.closed:
            return
        try:
            if error is None:  # nobody who was cancelled or has failed waits for this
                await incoming.drain()
        finally:
            await incoming.aclose()
