"""How a server is reached: a process of ours, or an address. What is secret about it stays in here."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import PurePath
from typing import Any, Literal
from urllib.parse import urlsplit

import attrs

from goliath_actors.errors import ConfigError

__all__ = ["Reach", "as_command", "check_reach"]

HTTP_TIMEOUT = 30.0  # seconds to connect and to send
SHORTEST_SECRET = 4  # characters; what is shorter is a word like any other, and masking it would spoil what is said
HTTP_READ_TIMEOUT = 300.0  # seconds between two pieces of a reply: a server may be silent while a tool works

# Any, below: streams and clients of the protocol's library, which is loaded only when a server is reached.


@attrs.frozen(repr=False)
class Reach:
    """Where a server is. Exactly one of `stdio`, `url` and `server` is set."""

    stdio: tuple[str, ...] = ()
    url: str | None = None
    server: Any = None
    env: Mapping[str, str] = attrs.field(factory=dict)
    cwd: str | os.PathLike[str] | None = None
    headers: Mapping[str, str] = attrs.field(factory=dict)
    http: Any = None
    stderr: Literal["inherit", "discard"] = "inherit"

    @property
    def shown(self) -> str:
        """What may be said of it: the program's name, or the address without what may be secret."""
        if self.stdio:
            return PurePath(self.stdio[0]).name
        if self.url is not None:
            parts = urlsplit(self.url)
            return f"{parts.scheme}://{(parts.netloc or '').rpartition('@')[2]}{parts.path}"
        return type(self.server).__name__

    def masked(self, text: str) -> str:
        """Return `text` without anything that was given as an argument, variable, header or part of the address."""
        secrets = [*self.stdio[1:], *self.env.values(), *self.headers.values()]
        if self.url is not None:
            parts = urlsplit(self.url)
            text = text.replace(self.url, self.shown)
            secrets += [parts.query, parts.password or "", parts.username or ""]
        for secret in sorted({secret for secret in secrets if len(secret) >= SHORTEST_SECRET}, key=len, reverse=True):
            text = text.replace(secret, "***")
        return text

    def target(self, ended: Callable[[], None]) -> Any:
        """Return what the protocol's client connects to; `ended` is called when the server's own stream ends.

        Only a process has such a stream; of an address it is each call that fails.
        """
        if self.url is not None:
            return _http(self)
        if self.stdio:
            return _stdio(self, ended)
        return self.server


def check_reach(reach: Reach) -> None:
    """Refuse what could never work.

    Raises: `ConfigError`.
    """
    if sum((bool(reach.stdio), reach.url is not None, reach.server is not None)) != 1:
        raise ConfigError('McpTools needs one of stdio=["program", "argument"], url="https://..." and server=...')
    if reach.url is not None and urlsplit(reach.url).scheme not in ("http", "https"):
        raise ConfigError(f"McpTools(url=...) must begin with http:// or https://, not {reach.shown!r}")
    for name in ("env", "headers"):
        value = getattr(reach, name)
        if not isinstance(value, Mapping) or not all(isinstance(part, str) for item in value.items() for part in item):
            raise ConfigError(f"McpTools({name}=...) must map strings to strings")  # not shown: it may be secret
    if reach.env and not reach.stdio:
        raise ConfigError("McpTools(env=...) is for a server that is started with stdio=[...]")
    if (reach.headers or reach.http is not None) and reach.url is None:
        raise ConfigError("McpTools(headers=..., http=...) are for a server behind url=...")
    if reach.stderr not in ("inherit", "discard"):
        raise ConfigError(f'McpTools(stderr=...) must be "inherit" or "discard", not {reach.stderr!r}')


def as_command(stdio: Sequence[str] | None) -> tuple[str, ...]:
    """Return the program and its arguments.

    Raises: `ConfigError`; the arguments are not shown, since they may be secret.
    """
    if stdio is None:
        return ()
    if isinstance(stdio, str) or not all(isinstance(part, str) for part in stdio) or not stdio or not stdio[0].strip():
        raise ConfigError('McpTools(stdio=...) takes a program and its arguments, as in ["server", "--verbose"]')
    return tuple(stdio)


def _http(reach: Reach) -> AbstractAsyncContextManager[Any]:
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    assert reach.url is not None
    url = reach.url

    @asynccontextmanager
    async def connect() -> AsyncIterator[Any]:
        if reach.http is not None:
            async with streamable_http_client(url, http_client=reach.http) as streams:
                yield streams
            return
        timeout = httpx2.Timeout(HTTP_TIMEOUT, read=HTTP_READ_TIMEOUT)
        async with httpx2.AsyncClient(headers=dict(reach.headers), timeout=timeout) as client:
            async with streamable_http_client(url, http_client=client) as streams:
                yield streams

    return connect()


@asynccontextmanager
async def _stdio(reach: Reach, ended: Callable[[], None]) -> AsyncIterator[Any]:
    from mcp import StdioServerParameters
    from mcp.client.stdio import stdio_client

    cwd = None if reach.cwd is None else os.fspath(reach.cwd)
    program = StdioServerParameters(
        command=reach.stdio[0], args=list(reach.stdio[1:]), env=dict(reach.env) or None, cwd=cwd
    )
    # Not what stands in `sys.stderr` now: a test or an application may have put something without a descriptor there.
    with _error_output(reach.stderr == "discard") as errors:
        async with stdio_client(program, errlog=errors) as (read, write):
            yield _Told(read, ended), write


def _error_output(discard: bool) -> Any:
    try:
        if discard:
            return open(os.devnull, "w")
        return os.fdopen(os.dup(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2), "w")
    except (OSError, ValueError):
        return open(os.devnull, "w")  # a program without an error output, as under a window system


class _Told:
    """A stream of messages that says when it has ended: the process is gone, or has closed its output."""

    def __init__(self, stream: Any, ended: Callable[[], None]) -> None:
        self._stream = stream
        self._ended = ended

    async def receive(self) -> Any:
        return await self._stream.receive()

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> _Told:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except StopAsyncIteration:
            self._ended()
            raise

    async def __aenter__(self) -> _Told:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> bool | None:
        self._ended()
        answer: bool | None = await self._stream.__aexit__(*error)
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)  # `last_context`, where the stream has it
