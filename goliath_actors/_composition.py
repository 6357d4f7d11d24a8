"""What of a history is sent to a model, in a shape that every provider takes. Pure: messages in, messages out.

Nothing here is stored: the history keeps what was said, and this makes it valid each time it is sent (T2).
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs

from ._frozen import thaw
from ._text import clip
from .abc import ToolSpec
from .values import Message, ToolCall

__all__ = [
    "NOT_EXECUTED",
    "NO_RESULT",
    "compose",
    "schemas_text",
    "sendable",
    "system_text",
    "tool_name",
    "unique_calls",
]

NO_RESULT = "No result was recorded for this call."
NO_OUTPUT = "(no output)"
NOT_EXECUTED = "Not executed: the run ended first."

NAME_CHARS = 64  # what the chat-completions dialect allows a function's name
ARGUMENT_CHARS = 300  # of a text that is no JSON object, quoted back

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]+")


# --- one message ----------------------------------------------------------------------------------------------------


def tool_name(name: str) -> str:
    """Return a name that a provider takes, for a tool that a model made up."""
    return _NOT_IN_A_NAME.sub("_", name.strip())[:NAME_CHARS] or "unknown"


def sendable(message: Message, known: Collection[str]) -> Message:
    """Return the message with calls that any provider can read: names and arguments that are none are put into words.

    Arguments: `known`, the names of the agent's tools, which are sent as they are.
    """
    if message.role == "tool" and message.name is not None and message.name not in known:
        return attrs.evolve(message, name=tool_name(message.name))
    if not message.tool_calls:
        return message
    calls = tuple([_sendable_call(call, known) for call in message.tool_calls])
    return Message(message.role, message.text, calls, message.tool_call_id, message.name)


def _sendable_call(call: ToolCall, known: Collection[str]) -> ToolCall:
    name = call.name if call.name in known else tool_name(call.name)
    arguments = call.arguments
    if not _is_object(arguments):
        if call.input is not None:
            arguments = json.dumps(thaw(call.input), ensure_ascii=False)
        else:
            arguments = json.dumps({"not_valid": clip(arguments, ARGUMENT_CHARS)}, ensure_ascii=False)
    return ToolCall(call.id, name, arguments)


def _is_object(text: str) -> bool:
    try:
        return isinstance(_STRICT.decode(text), dict)
    except (ValueError, RecursionError):
        return False


def _refuse(word: str) -> None:
    raise ValueError(word)


_STRICT = json.JSONDecoder(parse_constant=_refuse)


def unique_calls(calls: Iterable[ToolCall], taken: Collection[str]) -> tuple[ToolCall, ...]:
    """Return the calls with ids that no other call has: providers leave ids out, or repeat them over a conversation."""
    own: set[str] = set()
    result: list[ToolCall] = []
    for place, call in enumerate(calls, 1):
        wanted = call.id.strip() or f"call-{place}"
        unique, number = wanted, 2
        while unique in own or unique in taken:
            unique, number = f"{wanted}-{number}", number + 1
        own.add(unique)
        result.append(call if unique == call.id else attrs.evolve(call, id=unique))
    return tuple(result)


# --- all of them ----------------------------------------------------------------------------------------------------


def compose(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages in an order and a shape that every provider takes.

    Every call is followed by exactly one result, in call order, before anything else; results without a call and blank
    messages are left out; neighbours of one role are one message.
    """
    results = _results(messages)
    out: list[Message] = []
    for place, message in enumerate(messages):
        if message.role == "tool":
            continue
        if message.tool_calls:
            _add(out, message)
            out.extend(_result_of(call, results, place) for call in message.tool_calls)
        elif message.text.strip():
            _add(out, message)
    return tuple(out)


def _results(messages: Sequence[Message]) -> dict[str, deque[tuple[int, Message]]]:
    found: dict[str, deque[tuple[int, Message]]] = {}
    for place, message in enumerate(messages):
        if message.role == "tool" and message.tool_call_id:
            found.setdefault(message.tool_call_id, deque()).append((place, message))
    return found


def _result_of(call: ToolCall, results: dict[str, deque[tuple[int, Message]]], place: int) -> Message:
    known = results.get(call.id)
    while known and known[0][0] < place:
        known.popleft()
    if not known:
        return Message("tool", NO_RESULT, tool_call_id=call.id, name=call.name)
    message = known.popleft()[1]
    return message if message.text.strip() else attrs.evolve(message, text=NO_OUTPUT)


def _add(out: list[Message], message: Message) -> None:
    last = out[-1] if out else None
    if last is None or last.role != message.role or message.role not in ("user", "assistant") or last.tool_calls:
        out.append(message)
        return
    text = "\n\n".join(part for part in (last.text, message.text) if part.strip())
    name = last.name if last.name == message.name else None
    out[-1] = attrs.evolve(message, text=text, name=name)


# --- the system text ------------------------------------------------------------------------------------------------


def system_text(instructions: Sequence[str], facts: Mapping[str, str], context_text: str, note: str) -> str:
    """Return the text that begins a request: instructions, facts, what an extension adds to this step, and a note."""
    known = "\n".join(["Known facts:", *(f"- {key}: {value}" for key, value in facts.items())]) if facts else ""
    parts = map(str.strip, (*instructions, known, context_text, note))
    return "\n\n".join(filter(None, parts))


def schemas_text(schema: Mapping[str, Any] | None, tools: tuple[ToolSpec, ...]) -> str:
    """Return the schemas that are sent beside the messages, of the reply and of the tools."""
    schemas = [json.dumps(schema, ensure_ascii=False)] if schema is not None else []
    schemas += [tool.words for tool in tools]
    return "\n\n".join(schemas)
