"""What every adapter over HTTP is told of its provider, checked.

Uses _endpoint, _incoming, _errors; used by _adapter, openai_chat and anthropic.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

import attrs

from goliath_actors._numbers import check_seconds
from goliath_actors.errors import ConfigError

from ._endpoint import Endpoint
from ._errors import Scrubber
from ._http import httpx
from ._incoming import Patience

__all__ = [
    "SHORTEST_SECRET",
    "Exchange",
    "MoreHeaders",
    "as_settings",
    "check_headers",
    "check_key",
    "check_options",
    "scrubber",
]

MoreHeaders: TypeAlias = Mapping[str, str] | Callable[[], Mapping[str, str]]
"""Headers of an application's own: a mapping, or a plain function that gives one for each request."""

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # a token of RFC 9110, section 5.6.2

SHORTEST_SECRET = 4
"""Characters. Shorter values are no secrets, and hiding them everywhere would make messages unreadable."""


def as_settings(settings: Mapping[str, object] | None) -> Mapping[str, object]:
    """Return a copy of an adapter's `settings`. Raises: `ConfigError`."""
    if settings is not None and not isinstance(settings, Mapping):
        raise ConfigError("settings is a mapping of sampling parameters, such as {'temperature': 0.2}")
    return dict(settings or {})


def check_options(model: object, seconds: Mapping[str, object], retries: object, window: object, http: object) -> None:
    """Raise `ConfigError` for what no adapter can work with; `seconds` are its time-outs by name."""
    if not isinstance(model, str) or not model.strip():
        raise ConfigError("the model's name is blank; say which model the provider shall use")
    for limit, value in seconds.items():
        check_seconds(limit, value, none=False)
    if type(retries) is not int or retries < 0:
        raise ConfigError(f"retries is {retries!r}; it counts repeats, 0 or more")
    if window is not None and (type(window) is not int or window < 1):
        raise ConfigError(f"window is {window!r}; it is a number of tokens, or None if unknown")
    if http is not None and not isinstance(http, httpx.AsyncClient):
        raise ConfigError(f"http is an httpx2.AsyncClient, not {type(http).__name__}")


def check_key(given: str) -> str:
    """Return the key as a header carries it. Raises: `ConfigError`, which does not repeat it."""
    key = given.strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError("api_key holds characters that no header can carry; check how it was read")
    return key


def check_headers(headers: MoreHeaders | None) -> MoreHeaders | None:
    """Return the headers, a mapping as a checked copy. Raises: `ConfigError`, which shows no values."""
    if headers is None or (callable(headers) and not isinstance(headers, Mapping)):
        return headers
    return _as_headers(headers)


def _as_headers(headers: object) -> dict[str, str]:
    if not isinstance(headers, Mapping):
        raise ConfigError(f"headers is a mapping, or a function that returns one, not {type(headers).__name__}")
    found: dict[str, str] = {}
    for name, value in headers.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigError(f"headers: {name!r} is no name of a header")
        if not isinstance(value, str) or not value.isascii() or not value.isprintable():
            raise ConfigError(f"headers: the value of {name} holds what no header can carry")
        if name.lower() in ("content-length", "host", "transfer-encoding"):
            raise ConfigError(f"headers: {name} is made by the connection; leave it out")
        found[name.lower()] = value
    return found


def scrubber(key: str, basic: str | None, url: httpx.URL, more: MoreHeaders | None = None) -> Scrubber:
    """Return what keeps the key, the user and password of the address (`basic`), its query, and the values of headers
    out of messages."""
    # Some providers want the key in the address, so what stands in its query is as secret.
    in_address = [value for _, value in url.params.multi_items()]
    in_headers = list(more.values()) if isinstance(more, Mapping) else []
    secrets = (key, (basic or "").removeprefix("Basic "), *in_address, *in_headers)
    return Scrubber(tuple(secret for secret in secrets if len(secret) >= SHORTEST_SECRET))


@attrs.frozen(eq=False)
class Exchange:
    """One adapter's way to its provider."""

    endpoint: Endpoint
    url: httpx.URL
    headers: dict[str, str] = attrs.field(repr=False)
    scrub: Scrubber
    patience: Patience
    connect_timeout: float
    more: MoreHeaders | None = attrs.field(default=None, repr=False)

    def headed(self) -> tuple[dict[str, str], Scrubber]:
        """Return the headers of a request, and what keeps those of the application out of messages too.

        Raises: what its function raises, and `ConfigError` for what is no headers.
        """
        if self.more is None:
            return self.headers, self.scrub
        if isinstance(self.more, Mapping):
            return {**self.headers, **self.more}, self.scrub
        more = _as_headers(self.more())
        secrets = (*self.scrub.secrets, *(value for value in more.values() if len(value) >= SHORTEST_SECRET))
        return {**self.headers, **more}, Scrubber(secrets)
