"""A model behind the chat-completions dialect: OpenAI, llama.cpp, Ollama, vLLM, LM Studio, and proxies for others.

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
from ._reply import Reply
from ._wire import Writer, encode, request_body

__all__ = ["OpenAIChat"]

PUBLIC_URL = "https://api.openai.com/v1"

_OWN_END = re.compile(r"(?:/+chat/+completions)?/*$", re.IGNORECASE)
_OTHER_END = re.compile(r"/v\d\w*/+(?P<end>chat|completions|embeddings|messages|models|responses)$", re.IGNORECASE)


def _base_path(path: str) -> str:
    """Return the path in front of `/chat/completions`, which is often copied along.

    Raises: `ConfigError` for the path of another interface, under which there is no such thing.
    """
    base = _OWN_END.sub("", path, count=1)
    other = _OTHER_END.search(base)
    if other is not None:
        raise ConfigError(
            f"base_url ends in /{other['end']}; give the address in front of that, like http://127.0.0.1:11434/v1"
        )
    return base


def _credentials(key: str, basic: str | None) -> Mapping[str, str]:
    return {"authorization": f"Bearer {key}" if key else basic or ""} if key or basic else {}


@final
@attrs.define(eq=False, repr=False)
class OpenAIChat(Adapter):
    """A model at an address that speaks chat completions, streaming by default.

    Arguments:
      model: its name at the provider.
      base_url: up to `/chat/completions`, which may be there; None takes `OPENAI_BASE_URL`, else OpenAI's own address.
      api_key: sent as a bearer token; None takes `OPENAI_API_KEY`; an empty one sends none.
      connect_timeout: seconds to connect, TLS included.
      first_token_timeout: seconds from the start of a request to the first piece of its reply.
      idle_timeout: seconds between pieces. Keep-alive comments and empty events are no pieces.
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

    Raises: `ConfigError` at once for a blank name, an address without scheme or of another interface (`/v1/models`),
    time-outs and counts that are none, a key that no header can carry.

    Time-outs run on trio's clock. The key is in no repr, error or event.
    """

    _dialect: ClassVar[Dialect] = Dialect(
        ("OPENAI_BASE_URL", "OPENAI_API_KEY"), PUBLIC_URL, _base_path, "/chat/completions", _credentials
    )

    _writer: Writer = attrs.field(factory=Writer, init=False)

    def _question(self, request: ModelRequest) -> tuple[bytes, Reply]:
        body = request_body(self.model, request, self._settings, self._writer)
        return encode(body), Reply(self._exchange.scrub, request.messages)
