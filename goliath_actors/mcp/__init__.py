"""Tools of servers that speak the Model Context Protocol (extra `mcp`)."""

from ._server import McpProgress
from ._words import McpOutput
from .tools import McpTools

__all__ = ["McpOutput", "McpProgress", "McpTools"]
