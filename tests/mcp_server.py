"""A real MCP server for the tests: `python mcp_server.py stdio`, or `http PORT`.

Its tools let a test see what reaches a server: when a call began, whether it was cancelled, in which process it ran.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import anyio
import pydantic
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

READS = ToolAnnotations(read_only_hint=True)


class Sum(pydantic.BaseModel):
    total: int


def make() -> MCPServer:
    server = MCPServer("tests", instructions="Count slowly.")

    @server.tool(annotations=READS)
    def add(a: int, b: int) -> Sum:
        """Add two numbers."""
        return Sum(total=a + b)

    @server.tool(annotations=READS, structured_output=False)
    def echo(text: str) -> str:
        """Say it again."""
        return text

    @server.tool(structured_output=False)
    def write(path: str, text: str) -> str:
        """Write a file."""
        Path(path).write_text(text, encoding="utf-8")
        return f"wrote {len(text)}"

    @server.tool(annotations=READS, structured_output=False)
    def pid() -> str:
        """Tell the process id."""
        return str(os.getpid())

    @server.tool(annotations=READS, structured_output=False)
    def environment(name: str) -> str:
        """Tell a variable."""
        return os.environ.get(name, "not set")

    @server.tool(annotations=READS, structured_output=False)
    async def hang(path: str) -> str:
        """Work for ever; `path` says how far it came."""
        await _hang(path)
        return "never"

    @server.tool(structured_output=False)
    async def hang_writing(path: str) -> str:
        """Likewise, and it writes."""
        await _hang(path)
        return "never"

    @server.tool(annotations=READS, structured_output=False)
    async def count(to: int, ctx: Context) -> str:
        """Count and say so."""
        for number in range(1, to + 1):
            await ctx.report_progress(number, to, f"at {number}")
        return "counted"

    @server.tool(annotations=READS, structured_output=False)
    def fail(why: str) -> str:
        """Fail."""
        raise ToolError(why)

    @server.tool(annotations=READS, structured_output=False)
    def picture() -> list[Any]:
        """Show a picture."""
        return ["look:", Image(data=b"\x89PNG" * 10, format="png")]

    @server.tool(annotations=READS, structured_output=False)
    def large(size: int) -> str:
        """Say a lot."""
        return "x" * size

    @server.tool(annotations=READS, structured_output=False)
    def trace(ctx: Context) -> str:
        """Tell the trace that the call belongs to."""
        return str((ctx.request_context.meta or {}).get("traceparent"))

    @server.tool(annotations=READS, structured_output=False)
    async def learn(name: str, ctx: Context) -> str:
        """Have one more tool."""
        server.add_tool(lambda: name, name=name, description=f"Say {name}.", annotations=READS, structured_output=False)
        await ctx.notify_tools_changed()
        return "learnt"

    return server


async def _hang(path: str) -> None:
    try:
        _say(path, "begun")
        await anyio.sleep_forever()
    finally:
        _say(path, "cancelled")


def _say(path: str, text: str) -> None:
    Path(path).write_text(text, encoding="utf-8")


def main() -> None:
    if sys.argv[1] == "stdio":
        anyio.run(make().run_stdio_async, backend=sys.argv[2] if len(sys.argv) > 2 else "asyncio")
    elif sys.argv[1] == "http":
        import uvicorn

        app = make().streamable_http_app()
        uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="error")


if __name__ == "__main__":
    main()
