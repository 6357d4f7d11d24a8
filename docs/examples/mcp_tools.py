"""The tools of an MCP server as an agent's own: started as a process, confirmed like any other tool."""

import sys
from typing import Any

import trio

from goliath_actors import Agent, ToolLoop, open_runtime
from goliath_actors.mcp import McpTools
from goliath_actors.testing import ScriptedModel, tool_calls

# The other side: a program of somebody else's, in a process of its own.
SERVER = """
from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

server = MCPServer("library")
shelf = {"emma": "Jane Austen"}

@server.tool(annotations=ToolAnnotations(read_only_hint=True), structured_output=False)
def author_of(title: str) -> str:
    "Say who wrote a book."
    return shelf.get(title.lower(), "We do not have it.")

@server.tool(structured_output=False)
def lend(title: str, reader: str) -> str:
    "Lend a book to a reader."
    return f"{title} is with {reader} now."

server.run()
"""


def confirm(request: Any) -> bool:
    print(f"may {request.tool.name} go ahead with {request.input}?")
    return True


library = McpTools(stdio=[sys.executable, "-c", SERVER], name="library", prefix="library_")
model = ScriptedModel(
    [
        tool_calls(("library_author_of", {"title": "Emma"}), ("library_lend", {"title": "Emma", "reader": "Ada"})),
        "It is by Jane Austen, and yours now.",
    ]
)
agent = Agent(model=model, extensions=[library], loop=ToolLoop(), confirm=confirm)


async def main() -> None:
    async with open_runtime(agent) as runtime:
        print({name: "writes" if tool.writes else "reads" for name, tool in agent.tool_table.items()})
        result = await runtime.run("Who wrote Emma? Lend it to me.", conversation_id="ada")
        for step in result.steps:
            print(f"{step.tool}: {step.result}" if step.tool else step.text)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   {'library_author_of': 'reads', 'library_lend': 'writes'}
#   may library_lend go ahead with {'title': 'Emma', 'reader': 'Ada'}?
#   library_author_of: Jane Austen
#   library_lend: Emma is with Ada now.
#   It is by Jane Austen, and yours now.
