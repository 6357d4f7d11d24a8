"""From what a server lists to tools of ours: names, who may be asked about them, and what is left out and why."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal

import attrs

from goliath_actors._text import clip
from goliath_actors.errors import ConfigError
from goliath_actors.tools import Tool, ToolContext

from ._words import McpOutput

if TYPE_CHECKING:
    from mcp_types import Tool as Listed

__all__ = ["Selection", "tools_of"]

NAME_CHARS = 64  # what the large providers accept as the name of a function: ^[a-zA-Z0-9_-]{1,64}$
DESCRIPTION_CHARS = 2000  # a description is part of every prompt; a server's may be any length
MOST_TOOLS = 1000  # of one server; nobody sends so many to a model

# Any, below: JSON data, and the application's context.
Call = Callable[[str, dict[str, Any], ToolContext[Any]], Awaitable[McpOutput]]


@attrs.frozen
class Selection:
    """Which of a server's tools an agent has, under which names, and which of them write. Patterns as in `fnmatch`."""

    server: str
    prefix: str
    allow: tuple[str, ...] | None
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    timeout: float | None
    output_mode: Literal["summary", "content"]

    def allows(self, name: str) -> bool:
        """Say whether the agent may have the server's tool `name` at all."""
        return self.allow is None or _matches(name, self.allow)

    def tool_writes(self, tool: Listed) -> bool:
        """Say whether a tool is taken for one that writes: unless somebody says that it only reads."""
        if _matches(tool.name, self.writes):
            return True
        says_reads = tool.annotations is not None and tool.annotations.read_only_hint is True
        return not (says_reads or _matches(tool.name, self.reads))


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def tools_of(listed: Sequence[Listed], selection: Selection, call: Call) -> tuple[tuple[Tool, ...], Mapping[str, str]]:
    """Return the tools that can be used, in the server's order, and why each of the others cannot, by the server's
    name for it. What the selection does not allow is in neither."""
    tools: dict[str, Tool] = {}
    refused: dict[str, str] = {}
    for tool in listed:
        if not selection.allows(tool.name):
            continue
        name = _our_name(selection.prefix + tool.name)
        if len(tools) >= MOST_TOOLS:
            refused[tool.name] = f"the server lists more than {MOST_TOOLS} tools"
        elif name in tools:
            refused[tool.name] = f"another tool of the server is called {name!r} too"
        else:
            try:
                tools[name] = _tool(tool, name, selection, call)
            except ConfigError as error:
                refused[tool.name] = str(error)
    return tuple(tools.values()), refused


def _tool(listed: Listed, name: str, selection: Selection, call: Call) -> Tool:
    async def execute(input: dict[str, Any], ctx: ToolContext[Any]) -> McpOutput:
        return await call(listed.name, input, ctx)

    described = (listed.description or listed.title or "").strip()
    return Tool(
        name=name,
        description=clip(described, DESCRIPTION_CHARS) or f"The tool {listed.name!r} of {selection.server}.",
        parameters={"type": "object", "properties": {}, **listed.input_schema},
        execute=execute,
        writes=selection.tool_writes(listed),
        to_model_output=_words,
        output_mode=selection.output_mode,
        timeout=selection.timeout,
    )


def _words(output: Any) -> str:
    # An `around_tool` hook may have put something else in its place.
    return output.text if isinstance(output, McpOutput) else str(output)


def _our_name(name: str) -> str:
    """Return a name that every provider takes. A shortened one ends in a digest of all of it, so that it stays unique
    and the same from run to run."""
    safe = re.sub(r"[^a-zA-Z0-9_-]", "_", name)
    if len(safe) <= NAME_CHARS:
        return safe
    return f"{safe[: NAME_CHARS - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
