"""A request in the chat-completions dialect: what is sent, as plain JSON data.

Uses the public contracts only; used by openai_chat.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from goliath_actors.abc import ModelRequest, ToolSpec
from goliath_actors.values import Message, ToolCall

__all__ = ["arguments_text", "compact_json", "encode", "request_body"]


def request_body(model: str, request: ModelRequest, settings: Mapping[str, object]) -> dict[str, object]:
    """Return the body of one request.

    Arguments: `settings`, the adapter's sampling parameters; the request's own go over them, field by field, and a
    value of None takes a field out. The request's provider options come last, key by key, as they are.
    """
    body: dict[str, object] = {
        "model": model,
        "messages": _messages(request.messages),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
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
    return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")


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
    kept = [entry for entry in written if entry["role"] == "tool" or "tool_calls" in entry or _has_text(entry)]
    return kept or written


def _has_text(entry: Mapping[str, object]) -> bool:
    content = entry["content"]
    return isinstance(content, str) and bool(content.strip())


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
