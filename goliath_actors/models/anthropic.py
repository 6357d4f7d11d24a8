"""A model behind the messages interface: Anthropic's, and servers and proxies that speak it.

Uses the other modules of this package.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, final

import attrs

from goliath_actors.abc import ModelRequest
from goliath_actors.errors import ConfigError

from ._adapter import Adapter, Dialect
from ._messages_reply import MessagesReply
from ._messages_wire import BlockWriter, messages_body
from ._wire import encode

__all__ = ["AnthropicMessages"]

PUBLIC_URL = "https://api.anthropic.com"

VERSION = "2023-06-01"
"""The version of the interface, which every request names; from its documentation."""

_OWN_END = re.compile(r"(?:/+v1)?(?:/+messages)?/*$", re.IGNORECASE)
_OTHER_END = re.compile(
    r"/(?P<end>chat/+completions|v\d\w*/+(?:chat|completions|embeddings|models|responses))/*$", re.I
)


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


def _credentials(key: str, basic: str | None) -> Mapping[str, str]:
    return {**({"x-api-key": key} if key else {}), **({"authorization": basic} if basic else {})}


@final
@attrs.define(eq=False, repr=False)
class AnthropicMessages(Adapter):
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

    _dialect: ClassVar[Dialect] = Dialect(
        ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"),
        PUBLIC_URL,
        _base_path,
        "/v1/messages",
        _credentials,
        {"anthropic-version": VERSION},
    )

    max_tokens: int = attrs.field(default=4096, kw_only=True)
    _writer: BlockWriter = attrs.field(factory=BlockWriter, init=False)

    def __attrs_post_init__(self) -> None:
        if type(self.max_tokens) is not int or self.max_tokens < 1:
            raise ConfigError(f"max_tokens is {self.max_tokens!r}; it is a number of tokens above 0")
        super().__attrs_post_init__()

    def _question(self, request: ModelRequest) -> tuple[bytes, MessagesReply]:
        body, reply_tool = messages_body(self.model, request, self._settings, self.max_tokens, self._writer)
        return encode(body), MessagesReply(self._exchange.scrub, request.messages, reply_tool)
