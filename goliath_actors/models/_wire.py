"""A request in the chat-completions dialect: what is sent, as plain JSON data.

Uses _keeper; used by openai_chat, and its JSON by all.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import attrs
import msgspec

from goliath_actors.abc import ModelRequest, ToolSpec
from goliath_actors.values import Message, ToolCall

from ._keeper import KEPT_AT_MOST, Keeper

__all__ = ["Writer", "Written", "arguments_text", "compact_json", "encode", "encode_value", "read_json", "request_body"]

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_LOADS = msgspec.json.Decoder().decode
_DUMPS = msgspec.json.Encoder().encode


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


_STRICT = json.JSONDecoder(parse_constant=_refuse_constant)


@attrs.frozen(eq=False)
class Written:
    """A part of a body that is JSON already."""

    data: bytes


@final
class Writer:
    """Writes the messages and tools of requests, and keeps what it wrote, at most `at_most` bytes of messages."""

    def __init__(self, at_most: int = KEPT_AT_MOST) -> None:
        self.kept: Keeper[Message, bytes] = Keeper(_worthy_bytes, len, at_most)
        self._specs: Keeper[ToolSpec, bytes] = Keeper(lambda tool: _dump(_tool(tool)), len)

    def messages(self, messages: Sequence[Message]) -> Written:
        """Return a JSON array of the messages."""
        written = [*filter(None, self.kept.each(messages))] or [_write(_message(message)) for message in messages]
        return Written(b"[%s]" % b",".join(written))

    def tools(self, tools: Sequence[ToolSpec]) -> Written:
        """Return a JSON array of the tools. Raises: as `encode`."""
        return Written(b"[%s]" % b",".join(self._specs.each(tools)))


_USAGE_TOO = {"include_usage": True}
_USAGE_TOO_WRITTEN = Written(b'{"include_usage":true}')


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
        "stream_options": _USAGE_TOO if writer is None else _USAGE_TOO_WRITTEN,
    }
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools] if writer is None else writer.tools(request.tools)
    if request.schema is not None:
        # No "strict": providers refuse it for schemas with optional fields. What comes back is validated locally.
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "reply", "schema": request.schema}}
    for name, value in {**settings, **request.settings}.items() if settings or request.settings else ():
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
    return b"{%s}" % b",".join([_name(name) + encode_value(value) for name, value in body.items()])


def encode_value(value: object) -> bytes:
    """Return a value as `encode` writes it. Raises: as `encode`."""
    if isinstance(value, Written):
        return value.data
    return b"true" if value is True else _dump(value)


# The names of fields are a handful, written at each call; an application's options are few, too.
@functools.lru_cache(maxsize=256)
def _name(name: str) -> bytes:
    return _dump(name) + b":"


def _dump(value: object) -> bytes:
    return _ENCODER.encode(value).encode("utf-8", "replace")


def read_json(text: str, otherwise: Callable[[str], Any]) -> object:
    """Return what `otherwise`, a reader of the standard library's kind, would; sooner for what is strictly JSON.

    Raises: what `otherwise` raises; `RecursionError`.
    """
    try:
        value: object = _LOADS(text)
    except (msgspec.DecodeError, ValueError, TypeError):
        # Also what is no JSON and read nevertheless: NaN, lone halves of surrogate pairs; and subclasses of str.
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


def _messages(messages: Sequence[Message]) -> list[dict[str, object]]:
    return [_message(message) for message in messages if _is_worthy(message)] or [*map(_message, messages)]


def _is_worthy(message: Message) -> bool:
    """Servers refuse a whole request for one message without content, so those are left out if there are others. A
    tool's answer must stay, its call asks for it."""
    return message.role == "tool" or bool(message.tool_calls or message.text.strip())


def _worthy_bytes(message: Message) -> bytes:
    return _write(_message(message)) if _is_worthy(message) else b""


def _write(entry: Mapping[str, object]) -> bytes:
    """Return what `_dump` does, sooner: of an entry that holds nothing but text."""
    try:
        return _DUMPS(entry)
    except (UnicodeEncodeError, TypeError):
        return _dump(entry)  # half a surrogate pair, or a subclass of str


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
        value = read_json(text, _STRICT.decode)
    except (ValueError, RecursionError):
        value = None
    return text if isinstance(value, dict) else compact_json({"not_an_object": text})


def _tool(tool: ToolSpec) -> dict[str, object]:
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
    }
