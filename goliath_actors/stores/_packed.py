"""How the store in memory keeps an entry: texts, numbers, and JSON bytes of what could be changed.

Nothing in it can be changed, so texts are shared with whoever passed or gets them instead of being written and read
again. `gc=False`: nothing in it can be part of a cycle, so a process may hold millions without a collector that looks
at each.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from goliath_actors.abc import Entry
from goliath_actors.values import Message, ToolCall

from ._codec import decode_entry, decode_mapping, encode_entry, encode_input, encode_mapping, is_plain

__all__ = ["Packed", "has_mark", "pack", "reshow", "unpack"]


class _Call(msgspec.Struct, frozen=True, gc=False):
    id: str
    name: str
    arguments: str
    input: bytes | None


class Packed(msgspec.Struct, frozen=True, gc=False):
    """One entry; its id is the store's key for it. None stands for what is empty."""

    at: float
    role: Literal["user", "assistant", "tool", "summary"]
    transcript_visible: bool
    context_visible: bool
    message_role: Literal["system", "user", "assistant", "tool"]
    text: str
    calls: tuple[_Call, ...]
    tool_call_id: str | None
    name: str | None
    private: bytes | None


def pack(entry: Entry) -> Packed:
    """Return an entry as it is kept.

    Raises: `StoreError` if something in it is not JSON data, or of another type than an entry has; `ConfigError` for an
    entry without an id.
    """
    if not is_plain(entry):
        # What writing and reading makes of it, as in a file; or it is refused.
        entry = decode_entry(entry.id, encode_entry(entry).body)
    message, calls = entry.message, entry.message.tool_calls
    what = f"entry {entry.id!r}"
    return Packed(
        entry.at,
        entry.role,
        entry.transcript_visible,
        entry.context_visible,
        message.role,
        message.text,
        tuple([_pack(call, what) for call in calls]) if calls else (),
        message.tool_call_id,
        message.name,
        encode_mapping(entry.private, what) if entry.private else None,
    )


def _pack(call: ToolCall, what: str) -> _Call:
    input = None if call.input is None else encode_input(call.input, what)
    return _Call(call.id, call.name, call.arguments, input)


def unpack(id: str, packed: Packed) -> Entry:
    """Return the entry; every container in it that can be changed is new."""
    calls = tuple([_unpack(call) for call in packed.calls])
    return Entry(
        id,
        packed.at,
        packed.role,
        Message(packed.message_role, packed.text, calls, packed.tool_call_id, packed.name),
        packed.transcript_visible,
        packed.context_visible,
        {} if packed.private is None else decode_mapping(packed.private, "entry"),
    )


def _unpack(call: _Call) -> ToolCall:
    input = None if call.input is None else decode_mapping(call.input, "entry")
    return ToolCall(call.id, call.name, call.arguments, input)


def reshow(packed: Packed, visible: tuple[bool, bool]) -> Packed:
    """Return the entry with other (transcript, context) visibility."""
    return msgspec.structs.replace(packed, transcript_visible=visible[0], context_visible=visible[1])


def has_mark(packed: Packed, marks: tuple[bytes, ...]) -> bool:
    """Say whether the private data may hold one of these texts."""
    private = packed.private
    return private is not None and any(mark in private for mark in marks)
