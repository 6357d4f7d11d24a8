"""`McpTools`: the tools of a server that speaks the Model Context Protocol, as an agent's own."""

from __future__ import annotations

import importlib.util
import logging
import math
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, final

import trio

from goliath_actors.errors import ConfigError, ToolsUnavailable
from goliath_actors.hooks import Extension
from goliath_actors.tools import Tool

from ._listed import Selection, tools_of
from ._server import McpProgress, Server
from ._transports import Reach, as_command, check_reach

if TYPE_CHECKING:
    from mcp_types import Tool as Listed

__all__ = ["McpTools"]

_log = logging.getLogger("goliath_actors.mcp")


@final
class McpTools(Extension[Any]):
    """The tools of one MCP server, as tools of the agent. Needs the extra `mcp`.

    The server is reached when the runtime opens and left when it closes. Its tools are looked up then, and again when
    the server says that they changed or was lost in between; a run keeps the tools that it began with. Every call goes
    the way of all tools: arguments are checked here against the server's schema, hooks are asked, writes are confirmed.

    A tool *writes* unless the server says that it only reads (`readOnlyHint`) or `reads` names it. That a tool reads is
    the server's word: name in `writes` what you do not believe.

    Arguments:
      stdio: a program and its arguments, started as a process of ours and ended with the runtime.
      url: the address of a server over streamable HTTP.
      server: an `MCPServer` in this process, or a transport of the `mcp` library.
      name: the extension's name, and the server's in messages. Needed where an agent has two servers.
      prefix: put before the name of each tool. Characters that providers do not take in names become "_".
      allow: patterns of the server's names for the tools that the agent may have; None for all. `"search_*"`.
      reads: patterns of tools that are taken for reads although the server does not say so.
      writes: patterns of tools that are taken for writes whatever the server says.
      env: variables for the process, beside a few of ours such as PATH. Never shown.
      cwd: the directory in which the process starts.
      headers: sent with every request to `url`. Never shown, and neither are the address's query and password.
      http: an `httpx2.AsyncClient` to use for `url` instead of an own one; it is not closed.
      stderr: what becomes of the process's error output: "inherit" or "discard".
      call_timeout: seconds for one call, None for no limit.
      connect_timeout: seconds for connecting and listing the tools.
      max_parallel: calls at the server at a time, of all runs together; more wait, at most 256.
      output_mode: as of any tool: "content" (a share of the window) or "summary" (600 characters).
      required: if False, a server that cannot be reached does not keep the runtime from opening; it is tried again, and
        the agent has its tools from the first run after that succeeded.
      pass_instructions: add what the server says about its use to the agent's prompts.
      on_progress: called with each `McpProgress` that the server sends during a call. Plain and quick.

    Raises: `ConfigError`, also if the `mcp` library is missing. Opening the runtime raises `ToolsUnavailable` if the
    server cannot be reached, and `ConfigError` if one of its tools has a name that is taken or writes and the agent has
    no `confirm`.

    A server that dies fails the calls that it was working on (`ToolInterrupted`: a write may have happened), and the
    next call connects again. One that cannot be reached is left alone for a while, 0.5 s at first and 30 s at most;
    calls in that time fail at once.
    """

    def __init__(
        self,
        *,
        stdio: Sequence[str] | None = None,
        url: str | None = None,
        server: Any = None,
        name: str = "mcp",
        prefix: str = "",
        allow: Sequence[str] | None = None,
        reads: Sequence[str] = (),
        writes: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        headers: Mapping[str, str] | None = None,
        http: Any = None,
        stderr: Literal["inherit", "discard"] = "inherit",
        call_timeout: float | None = 60.0,
        connect_timeout: float = 30.0,
        max_parallel: int = 16,
        output_mode: Literal["content", "summary"] = "content",
        required: bool = True,
        pass_instructions: bool = False,
        on_progress: Callable[[McpProgress], object] | None = None,
    ) -> None:
        if importlib.util.find_spec("mcp") is None:
            raise ConfigError("McpTools needs the mcp library: pip install '/path/to/clone[mcp]'")
        if not isinstance(name, str) or not name.strip():
            raise ConfigError(f"McpTools(name=...) must be a string with text in it, not {name!r}")
        self.name = name
        reach = Reach(as_command(stdio), url, server, dict(env or {}), cwd, dict(headers or {}), http, stderr)
        check_reach(reach)
        _check_seconds("connect_timeout", connect_timeout)
        if call_timeout is not None:
            _check_seconds("call_timeout", call_timeout)
        if isinstance(max_parallel, bool) or not isinstance(max_parallel, int) or max_parallel < 1:
            raise ConfigError(f"McpTools(max_parallel=...) must be 1 or more, not {max_parallel!r}")
        if output_mode not in ("content", "summary"):
            raise ConfigError(f'McpTools(output_mode=...) must be "content" or "summary", not {output_mode!r}')
        if on_progress is not None and not callable(on_progress):
            raise ConfigError(f"McpTools(on_progress=...) must be callable, not {on_progress!r}")
        self._selection = Selection(
            server=name,
            prefix=prefix,
            allow=None if allow is None else _patterns("allow", allow),
            reads=_patterns("reads", reads),
            writes=_patterns("writes", writes),
            timeout=call_timeout,
            output_mode=output_mode,
        )
        self._server = Server(name, reach, connect_timeout, max_parallel, self._take, on_progress)
        self._required = required
        self._pass_instructions = pass_instructions
        self._tools: tuple[Tool, ...] = ()
        self._refused: Mapping[str, str] = MappingProxyType({})

    def __repr__(self) -> str:
        return f"<McpTools {self.name!r} {self._server.reach.shown} tools={len(self._tools)}>"

    @property
    def tools(self) -> Sequence[Tool]:  # type: ignore[override]  # read anew for each run; nobody sets it
        """The server's tools as they are now; none before the runtime has opened."""
        return self._tools

    @property
    def instructions(self) -> str:  # type: ignore[override]  # likewise
        """What the server says about its use, if it is to be passed on."""
        return self._server.instructions if self._pass_instructions else ""

    @property
    def refused(self) -> Mapping[str, str]:
        """Tools of the server that cannot be used, by the server's name, and why: a bad schema, a name twice."""
        return self._refused

    @asynccontextmanager
    async def lifespan(self, agent: Any) -> AsyncIterator[None]:
        """Reach the server as the runtime opens, and leave it as the runtime closes."""
        async with trio.open_nursery() as nursery:
            problem: str | None = await nursery.start(self._server.keep, self._required)
            if problem is None or not self._required:
                try:
                    yield
                finally:
                    nursery.cancel_scope.cancel()
        if problem is not None and self._required:
            raise ToolsUnavailable(f"{self.name} ({self._server.reach.shown}) cannot be reached: {problem}")

    def _take(self, listed: list[Listed]) -> None:
        tools, refused = tools_of(listed, self._selection, self._server.call)
        for name, why in refused.items():
            if self._refused.get(name) != why:
                _log.warning("%s: its tool %r is left out: %s", self.name, name, why)
        self._tools, self._refused = tools, MappingProxyType(dict(refused))


def _patterns(name: str, patterns: Sequence[str]) -> tuple[str, ...]:
    if isinstance(patterns, str) or not all(isinstance(pattern, str) for pattern in patterns):
        raise ConfigError(f'McpTools({name}=...) takes a list of names or patterns, as in ["search_*"]')
    return tuple(patterns)


def _check_seconds(name: str, value: object) -> None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
    if not good:
        raise ConfigError(f"McpTools({name}=...) must be a positive number of seconds, not {value!r}")
