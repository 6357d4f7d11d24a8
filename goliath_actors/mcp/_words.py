"""What a server answered, put into words for a model, and kept whole for the application."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from mcp_types import CallToolResult

__all__ = ["McpOutput", "output_of"]

NOTHING = "Done; the tool returned nothing."

# Any, below: JSON data.


@attrs.frozen
class McpOutput:
    """What a tool of a server returned: the raw output that hooks, `on_output` and `invoke_tool` see.

    Fields:
      text: all of it in words, as the model is told, before any cap. Of images, sounds and binary files it names kind
        and size.
      structured: the JSON data that came beside the text, None if there was none.
      content: the blocks as the protocol has them, plain JSON; images and sounds are in base64.
    """

    text: str
    structured: Any = None
    content: tuple[Mapping[str, Any], ...] = attrs.field(default=(), repr=False)


def output_of(result: CallToolResult) -> McpOutput:
    """Return the result of a call as plain data."""
    blocks = [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in result.content]
    structured = result.structured_content
    parts = [part for part in map(_in_words, blocks) if part.strip()]
    if not parts and structured is not None:
        parts = [json.dumps(structured, ensure_ascii=False)]
    return McpOutput("\n".join(parts) or NOTHING, structured, tuple(blocks))


def _in_words(block: Mapping[str, Any]) -> str:
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text", ""))
    if kind in ("image", "audio"):
        return f"[{kind}: {block.get('mimeType', 'unknown type')}, {_size(block.get('data'))}]"
    if kind == "resource_link":
        said = [block.get("title") or block.get("name"), block.get("uri"), block.get("description")]
        return f"[resource: {_joined(said)}]"
    if kind == "resource":
        return _resource(block.get("resource"))
    return f"[{kind}: not shown]"


def _resource(resource: Any) -> str:
    if not isinstance(resource, Mapping):
        return "[resource: not shown]"
    uri = resource.get("uri", "")
    if isinstance(resource.get("text"), str):
        return f"[resource: {uri}]\n{resource['text']}"
    return f"[resource: {_joined([uri, resource.get('mimeType'), _size(resource.get('blob'))])}]"


def _joined(parts: Sequence[Any]) -> str:
    return ", ".join(str(part) for part in parts if part)


def _size(data: Any) -> str:
    """How large the bytes behind a base64 text are."""
    if not isinstance(data, str):
        return "size unknown"
    count = len(data) * 3 // 4 - data[-2:].count("=")
    return f"{count} bytes" if count < 1000 else f"{count / 1000:.1f} kB"
