"""A model behind the messages interface: Anthropic's, and servers and proxies that speak it.

Uses the other modules of this package. One request is one attempt: nothing here retries (T11).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import final

import attrs

from goliath_actors.abc import ModelEvent, ModelRequest
from goliath_actors.errors import ConfigError

from ._exchange import Exchange, MoreHeaders, as_settings, check_headers, check_key, check_options, scrubber
from ._http import httpx, parse_url, place
from ._incoming import Incoming, Patience
from ._messages_reply import MessagesReply
from ._messages_wire import messages_body
from ._pool import Endpoint

__all__ = ["AnthropicMessages"]

PUBLIC_URL = "https://api.anthropic.com"

VERSION = "2023-06-01"
"""The version of the interface, which every request names; from its documentation."""

_OWN_END = re.compile(r"(?:/+v1)?(?:/+messages)?/*$", re.IGNORECASE)
_OTHER_END = re.compile(
    r"/(?P<end>chat/+completions|v\d\w*/+(?:chat|completions|embeddings|models|responses))/*$", re.I
)


@final
@attrs.define(eq=False, repr=False)
class AnthropicMessages:
    """A model at an address that speaks the messages interface, streaming by default.

    Arguments:
      model: its name at the provider.
      base_url: up to `/v1/messages`, which may be there; None takes `ANTHROPIC_BASE_URL`, else the provider's own
        address.
      api_key: sent in `x-api-key`; None takes `ANTHROPIC_API_KEY`; an empty one sends none.
      max_tokens: the most that one reply may have, in tokens. The interface wants it in every request; a request with a
        smaller cap of its own gets that.
      connect_timeout: seconds to connect, TLS included.
      first_token_timeout: seconds from the start of a request to the first piece of its reply.
      idle_timeout: seconds between pieces. Pings are no pieces; thinking is.
      retries: how often the request room may repeat an attempt whose error is `retryable`. Nothing here repeats.
      settings: sampling parameters in the provider's words, merged into every request body; `{"stream": False}` asks
        for the reply in one piece, a value of None leaves a field out.
      window: the model's context window in tokens, if known.
      headers: more headers for every request: a mapping, or a plain function that gives one for each, such as
        `otel.trace_headers`. They may take the place of ours. Their values are in no repr, and those of a mapping in no
        error.
      http: a client of the application's own (for a proxy, certificates, HTTP/2). It is never closed here, and its
        connection limits are its own. Without one, connections come from a pool of this model's, one per trio loop,
        which reads no proxy settings from the environment.

    Raises: `ConfigError` at once for a blank name, an address without scheme or of another interface, time-outs and
    counts that are none, a key that no header can carry.

    Where a request has a schema for an object, the model is made to call a tool with that input, and the input is the
    reply's text; text beside it is left out. `output_config` in the settings or options does it the provider's way
    instead. Thinking is not shown and not kept, so it does not go together with tools over several turns.

    Time-outs run on trio's clock. The key is in no repr, error or event.
    """

    model: str
    _base_url: str | None = attrs.field(alias="base_url", default=None, kw_only=True)
    _api_key: str | None = attrs.field(alias="api_key", default=None, kw_only=True)
    max_tokens: int = attrs.field(default=4096, kw_only=True)
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
        seconds = {name: getattr(self, name) for name in ("connect_timeout", "first_token_timeout", "idle_timeout")}
        check_options(self.model, seconds, self.retries, self.window, self._http)
        if type(self.max_tokens) is not int or self.max_tokens < 1:
            raise ConfigError(f"max_tokens is {self.max_tokens!r}; it is a number of tokens above 0")
        base = self._base_url if self._base_url is not None else os.environ.get("ANTHROPIC_BASE_URL") or PUBLIC_URL
        url, basic = parse_url("base_url", base)
        self._url = url.copy_with(path=f"{_base_path(url.path)}/v1/messages")
        headers = {
            "accept": "text/event-stream, application/json",
            "accept-encoding": "identity",
            "anthropic-version": VERSION,
        }
        key = check_key(self._api_key if self._api_key is not None else os.environ.get("ANTHROPIC_API_KEY", ""))
        if key:
            headers["x-api-key"] = key
        if basic:
            headers["authorization"] = basic
        patience = Patience(self.first_token_timeout, self.idle_timeout, place(self._url))
        self._endpoint = Endpoint(self._http)
        scrub = scrubber(key, basic, url, self._more)
        self._exchange = Exchange(self._endpoint, self._url, headers, scrub, patience, self.connect_timeout, self._more)

    @property
    def name(self) -> str:
        """The model's name at the provider."""
        return self.model

    def __repr__(self) -> str:
        return f"AnthropicMessages({self.model!r}, base_url={place(self._url).removesuffix('/v1/messages')!r})"

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent], None]:
        """Send one request and open its reply.

        Returns: an async context manager whose value iterates over the reply's events. It ends after a `ModelDone`;
        tool calls have stable indexes, and ids that differ from each other and from those in `request.messages`.

        Raises, on entering or while iterating, each with the text that had come in `partial`:
          ModelUnavailable: no connection (codes `connect`, `network`), a fault of the server (`overloaded_error`,
            `api_error`), silence (`timeout`), a reply cut off (`truncated`), one with neither text nor calls
            (`empty`), or what is no reply (`bad-response`). `stale-connection`: a kept connection was dead before it
            answered, and the next attempt opens a new one.
          RateLimited: too many requests; or, not retryable and with code `insufficient_quota`, no credit left.
          ContextOverflow: the prompt does not fit.
          Refused: the model declined, or the provider ended the reply.
          BadRequest: the provider will never take this request; also for a redirect.

        Cancellation: leaving the block, also by cancellation, closes the connection unless the reply was complete.
        """
        incoming = await self._send(request)
        try:
            yield incoming
            # Only after a normal end of the block: nobody who was cancelled or has failed waits for this.
            if not incoming.closed:
                await incoming.drain()
        finally:
            if not incoming.closed:
                await incoming.aclose()

    async def aclose(self) -> None:
        """Close the idle connections of the current trio loop. The model stays usable.

        Cancellation: they are closed nevertheless.
        """
        await self._endpoint.aclose()

    async def _send(self, request: ModelRequest) -> Incoming:
        body, reply_tool = messages_body(self.model, request, self._settings, self.max_tokens)
        taken = (call.id for message in request.messages for call in message.tool_calls)
        reply = MessagesReply(self._exchange.scrub, taken, reply_tool)
        return await self._exchange.send(lambda: body, reply, self._wall_clock)


def _base_path(path: str) -> str:
    """Return the path in front of `/v1/messages`, either of which is often copied along.

    Raises: `ConfigError` for the path of another interface, under which there is no such thing.
    """
    other = _OTHER_END.search(path)
    if other is not None:
        raise ConfigError(
            f"base_url ends in /{other['end']}; give the address in front of /v1/messages, like {PUBLIC_URL}"
        )
    return _OWN_END.sub("", path, count=1)
