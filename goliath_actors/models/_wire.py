"""A request in the chat-completions dialect: what is sent, as plain JSON data.

Uses the public contracts only; used by openai_chat.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, final

import attrs
import msgspec

from goliath_actors.abc import ModelRequest, ToolSpec
from goliath_actors.values import Message, ToolCall

__all__ = ["Writer", "Written", "arguments_text", "compact_json", "encode", "read_json", "request_body"]

WRITTEN_AT_MOST = 8 * 1024 * 1024
"""Bytes of messages that a `Writer` keeps in writing."""

_TOOLS_AT_MOST = 256  # descriptions of tools that a `Writer` keeps in writing; an agent's are the same at each call

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_LOADS = msgspec.json.Decoder().decode


@attrs.frozen(eq=False)
class Written:
    """A part of a body that is JSON already."""

    data: bytes


_Kept: TypeAlias = tuple[Message, bytes, bool]


@final
class Writer:
    """Writes the messages and tools of requests, and keeps what it wrote: most of a history comes at each call.

    What is kept is bounded: the newest `at_most` bytes of messages, about half of which are dropped at a time. It is
    found by identity, since a loop hands on the messages that it holds, and comparing long texts costs as much as
    writing them; what is kept holds its message, so that no other can have its identity.
    """

    def __init__(self, at_most: int = WRITTEN_AT_MOST) -> None:
        self._at_most = at_most // 2
        # Invariant: `_new` has at most half of the bytes, `_old` what was `_new` before; what is used again moves up.
        self._new: dict[int, _Kept] = {}
        self._old: dict[int, _Kept] = {}
        self._size = 0
        self._tools: dict[int, tuple[ToolSpec, bytes]] = {}

    def messages(self, messages: Iterable[Message]) -> Written:
        """Return a JSON array of the messages."""
        written: list[bytes] = []
        unworthy: list[bytes] = []
        for message in messages:
            kept = self._new.get(id(message))
            if kept is None or kept[0] is not message:
                kept = self._write(message)
            (written if kept[2] else unworthy).append(kept[1])
        return Written(b"[%s]" % b",".join(written or unworthy))

    def tools(self, tools: Iterable[ToolSpec]) -> Written:
        """Return a JSON array of the tools. Raises: as `encode`."""
        return Written(b"[%s]" % b",".join([self._spec(tool) for tool in tools]))

    def _write(self, message: Message) -> _Kept:
        kept = self._old.get(id(message))
        if kept is None or kept[0] is not message:
            entry = _message(message)
            kept = message, _dump(entry), _worthy(entry)
        # The message holds the same texts once more: counted as if they were as long.
        size = 2 * len(kept[1]) + 200
        if size <= self._at_most:
            self._size += size
            if self._size > self._at_most:
                self._old, self._new, self._size = self._new, {}, size
            self._new[id(message)] = kept
        return kept

    def _spec(self, tool: ToolSpec) -> bytes:
        known = self._tools.get(id(tool))
        if known is None or known[0] is not tool:
            if len(self._tools) >= _TOOLS_AT_MOST:
                self._tools.clear()
            known = self._tools[id(tool)] = tool, _dump(_tool(tool))
        return known[1]


def request_body(
    model: str, request: ModelRequest, settings: Mapping[str, object], writer: Writer | None = None
) -> dict[str, object]:
    """Return the body of one request, for `encode`.

    Arguments: `settings`, the adapter's sampling parameters; the request's own go over them, field by field, and a
    value of None takes a field out. The request's provider options come last, key by key, as they are. With a `writer`
    messages and tools are `Written`, else plain data.

    Raises: with a `writer`, as `encode`.
    """
    body: dict[str, object] = {
        "model": model,
        "messages": _messages(request.messages) if writer is None else writer.messages(request.messages),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools] if writer is None else writer.tools(request.tools)
    if request.schema is not None:
        # No "strict": providers refuse it for schemas with optional fields. What comes back is validated locally.
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "reply", "schema": request.schema}}
    for name, value in {**settings, **request.settings}.items():
        if value is None:
            body.pop(name, None)
        else:
            body[name] = value
    if request.max_output_tokens is not None:
        _cap(body, request.max_output_tokens)
    body.update(request.provider_options)
    if not body.get("stream") and "stream_options" not in request.provider_options:
        # Servers refuse options of a stream that is none.
        body.pop("stream_options", None)
    return body


def encode(body: Mapping[str, object]) -> bytes:
    """Return the body as UTF-8 JSON; half a surrogate pair becomes a question mark.

    Raises: `ValueError`, `TypeError` for what JSON does not have (NaN, objects).
    """
    if not any(isinstance(value, Written) for value in body.values()):
        return _dump(body)
    parts = [
        b"%s:%s" % (_dump(name), value.data if isinstance(value, Written) else _dump(value))
        for name, value in body.items()
    ]
    return b"{%s}" % b",".join(parts)


def _dump(value: object) -> bytes:
    return _ENCODER.encode(value).encode("utf-8", "replace")


def read_json(text: str, otherwise: Callable[[str], Any]) -> object:
    """Return what `otherwise`, a reader of the standard library's kind, would; sooner for what is strictly JSON.

    Raises: what `otherwise` raises; `RecursionError`.
    """
    try:
        value: object = _LOADS(text)
    except (msgspec.DecodeError, ValueError):
        # Also what is no JSON and read nevertheless: NaN, lone halves of surrogate pairs.
        value = otherwise(text)
    return value


def compact_json(value: object) -> str:
    """Return `value` as JSON text without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _cap(body: dict[str, object], limit: int) -> None:
    # Newer models of the dialect's owner know only the second name; who configures it gets the cap under it.
    name = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
    configured = body.get(name)
    body[name] = min(configured, limit) if isinstance(configured, int) else limit


def _messages(messages: Iterable[Message]) -> list[dict[str, object]]:
    written = [_message(message) for message in messages]
    # Servers refuse a whole request for one message without content. A tool's answer must stay, its call asks for it.
    return [entry for entry in written if _worthy(entry)] or written


def _worthy(entry: Mapping[str, object]) -> bool:
    content = entry["content"]
    return entry["role"] == "tool" or "tool_calls" in entry or (isinstance(content, str) and bool(content.strip()))


def _message(message: Message) -> dict[str, object]:
    entry: dict[str, object] = {"role": message.role, "content": message.text}
    if message.name is not None and message.role != "tool":
        entry["name"] = message.name
    if message.role == "tool":
        entry["tool_call_id"] = message.tool_call_id or ""
        entry["content"] = message.text if message.text.strip() else "(no output)"
    if message.tool_calls:
        entry["tool_calls"] = [_call(call) for call in message.tool_calls]
        entry["content"] = message.text if message.text.strip() else None
    return entry


def _call(call: ToolCall) -> dict[str, object]:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": arguments_text(call.arguments)},
    }


def arguments_text(text: str) -> str:
    """What the model wrote, if it is a JSON object. Templates of local servers parse it and fail on anything else, so
    arguments that were refused at their time are shown inside an object."""
    if not text.strip():
        return "{}"
    try:
        value: object = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        value = None
    return text if isinstance(value, dict) else compact_json({"not_an_object": text})


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _tool(tool: ToolSpec) -> dict[str, object]:
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
    }
