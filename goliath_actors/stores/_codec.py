"""How a conversation is written down: JSON texts for memory, metadata and entries, the same in every store.

Uses _shapes, which says what stands in them. A step's raw `output` has no place there: it lives as long as its run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar

import msgspec

from goliath_actors._frozen import ATOMS
from goliath_actors.abc import UNSET, Change, Entry, Record, Unset
from goliath_actors.errors import ConfigError, StoreError
from goliath_actors.values import Exchange, Memory, ToolCall

from ._shapes import (
    WireEntry,
    WireMemory,
    finite,
    plain_input,
    read_memory,
    read_message,
    wire_memory,
    wire_message,
)

__all__ = [
    "EncodedChange",
    "EncodedEntry",
    "Unreadable",
    "decode_entry",
    "decode_mapping",
    "decode_record",
    "encode_change",
    "encode_entry",
    "encode_input",
    "encode_mapping",
    "encode_parts",
    "idempotency_marks",
    "is_plain",
    "reencode_visibility",
]

T = TypeVar("T")


class Unreadable(Exception):
    """What is stored is not what this module writes. The text says what is wrong, not what was stored."""


def _simple(value: object) -> object:
    """Return what msgspec can write in place of what it cannot: of a subclass of a plain type, the plain value."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no JSON data")


_encoder = msgspec.json.Encoder(enc_hook=_simple)
_memory_decoder = msgspec.json.Decoder(WireMemory)
_entry_decoder = msgspec.json.Decoder(WireEntry)
_mapping_decoder: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])


# Structs, since they are made in a quarter of the time of frozen classes of attrs, a few for each commit.
class EncodedEntry(msgspec.Struct, frozen=True, gc=False):
    """An entry to append: its id, its private `idempotency_key` if that is a text, and everything else as JSON."""

    id: str
    idempotency_key: str | None
    body: bytes


class EncodedChange(msgspec.Struct, frozen=True):
    """A `Change` that owes nothing to its caller any more. None stands for the empty value, `UNSET` for no change."""

    memory: bytes | Unset | None
    metadata: bytes | Unset | None
    private: bytes | Unset | None
    failures: int | Unset
    append: tuple[EncodedEntry, ...]
    visibility: Mapping[str, tuple[bool, bool]]
    truncate_after: str | None
    # The new memory itself, if reading `memory` would make nothing else of it: then nobody has to read it.
    plain_memory: Memory | None = None


def encode_change(change: Change) -> EncodedChange:
    """Return `change` as texts, taken at this moment.

    Raises: `StoreError` if something in it is not JSON data; `ConfigError` for an entry without an id.
    """
    memory, metadata, private = encode_parts(change)
    return EncodedChange(
        memory=memory,
        metadata=metadata,
        private=private,
        failures=change.failures,
        append=tuple([encode_entry(entry) for entry in change.append]),
        visibility={id: (bool(pair[0]), bool(pair[1])) for id, pair in change.visibility.items()},
        truncate_after=change.truncate_after,
        plain_memory=_plain_memory(change.memory, memory),
    )


Part: TypeAlias = "bytes | Unset | None"


def encode_parts(change: Change) -> tuple[Part, Part, Part]:
    """Return memory, metadata and private data of a change as texts. As `encode_change`."""
    memory: Part = UNSET
    if not isinstance(change.memory, Unset):
        empty = not change.memory.summary and not change.memory.recent
        memory = None if empty else _encode(wire_memory(change.memory), "memory")
    metadata: Part = UNSET
    if not isinstance(change.metadata, Unset):
        metadata = encode_mapping(change.metadata, "metadata") if change.metadata else None
    private: Part = UNSET
    if not isinstance(change.private, Unset):
        private = encode_mapping(change.private, "private metadata") if change.private else None
    return memory, metadata, private


def decode_record(
    version: int,
    memory: bytes | None,
    metadata: bytes | None,
    private: bytes | None,
    failures: int,
    entries_count: int,
    plain_memory: Memory | None = None,
) -> Record:
    """Return the record made of its stored parts; every container in it that can be changed is new.

    Arguments: `plain_memory`, what `memory` was just made of, if that is plain: it is used as it is.

    Raises: `Unreadable`.
    """
    if plain_memory is None:
        plain_memory = _NO_MEMORY if memory is None else _read_memory(memory)
    return Record(
        version,
        plain_memory,
        {} if metadata is None else decode_mapping(metadata, "metadata"),
        {} if private is None else decode_mapping(private, "private metadata"),
        failures,
        entries_count,
    )


def _read_memory(text: bytes) -> Memory:
    return read_memory(_decode(_memory_decoder, WireMemory, text, "memory"))


def decode_entry(id: str, body: bytes) -> Entry:
    """Return the entry `id` made of its stored text.

    Raises: `Unreadable`.
    """
    wire = _decode(_entry_decoder, WireEntry, body, "entry")
    return Entry(
        id, wire.at, wire.role, read_message(wire.message), wire.transcript_visible, wire.context_visible, wire.private
    )


def reencode_visibility(body: bytes, visible: tuple[bool, bool]) -> bytes:
    """Return an entry's text with other (transcript, context) visibility.

    Raises: `Unreadable`.
    """
    wire = _decode(_entry_decoder, WireEntry, body, "entry")
    wire.transcript_visible, wire.context_visible = visible
    return _encode(wire, "entry")


def idempotency_marks(idempotency_key: str) -> tuple[bytes, ...]:
    """Return the texts of which at least one stands in the body of every entry that has this private key."""
    alone = {"idempotency_key": idempotency_key}
    return tuple({_encode(alone, "key")[1:-1], _escape(alone)[1:-1]})


_NO_MEMORY = Memory()


def encode_mapping(mapping: Mapping[str, Any], what: str) -> bytes:
    """Return a mapping of `what` as a text.

    Raises: `StoreError` if something in it is not JSON data.
    """
    text = _encode(dict(mapping), what)
    _hold_json(mapping, what)
    return text


def encode_input(input: Mapping[str, Any], what: str) -> bytes:
    """Return the parsed input of a call as a text. Not held to JSON: an application's `resolve_input` may have made it.

    Raises: `StoreError` if it cannot be written.
    """
    return _encode(plain_input(input), what)


def _hold_json(mapping: Mapping[str, Any], what: str) -> None:
    """Refuse what would come back as something else, in a mapping that could be written (so it holds no circle).

    msgspec writes more than JSON has: sets as lists, dates and decimals as strings, bytes as base64, objects as their
    fields.

    Raises: `StoreError`.
    """
    rest: list[Any] = [mapping]
    while rest:
        value = rest.pop()
        kind = type(value)
        if kind in ATOMS:
            continue
        if isinstance(value, (dict, Mapping)):  # a dict first: asking an abstract class takes ten times as long
            rest.extend(value.values())
        elif isinstance(value, (list, tuple)):
            rest.extend(value)
        elif not isinstance(value, (str, int, float)):
            said = f"the {what} cannot be stored ({kind.__name__} is no JSON data); keep only JSON data in it"
            raise StoreError(said)


def decode_mapping(text: bytes, what: str) -> dict[str, Any]:
    """Return the mapping, new throughout.

    Raises: `Unreadable`.
    """
    return _decode(_mapping_decoder, dict, text, what)


_ROLES = frozenset(("user", "assistant", "tool", "summary"))
_MESSAGE_ROLES = frozenset(("system", "user", "assistant", "tool"))


def is_plain(entry: Entry) -> bool:
    """Return True if what can be read back of an entry, its private data aside, is what it holds now."""
    message = entry.message
    calls = message.tool_calls
    return bool(
        entry.id
        and type(entry.at) is float
        and math.isfinite(entry.at)
        and type(entry.role) is type(message.role) is str
        and entry.role in _ROLES
        and message.role in _MESSAGE_ROLES
        and type(entry.transcript_visible) is type(entry.context_visible) is bool
        and type(message.text) is str
        and (message.name is None or type(message.name) is str)
        and (message.tool_call_id is None or type(message.tool_call_id) is str)
        and (not calls or all(map(_is_plain, calls)))
    )


def _is_plain(call: ToolCall) -> bool:
    return type(call.id) is type(call.name) is type(call.arguments) is str


def _plain_memory(memory: Memory | Unset, text: Part) -> Memory | None:
    """Return a memory that was written as `text` if reading that makes nothing else of it, and nobody can change it.

    Steps are not plain: they have inputs, which can be changed, and outputs, which are not kept. Nor is a text with
    halves of surrogate pairs, which alone are written as such escapes: two of them come back as one character.
    """
    if isinstance(memory, Unset) or (isinstance(text, bytes) and b"\\ud" in text):
        return None
    plain = type(memory) is Memory and type(memory.summary) is str and all(map(_is_plain_exchange, memory.recent))
    return memory if plain else None


def _is_plain_exchange(exchange: Exchange) -> bool:
    return (
        type(exchange) is Exchange
        and type(exchange.ask) is type(exchange.answer) is str
        and type(exchange.at) is float
        and type(exchange.best_effort) is bool
        and not exchange.steps
    )


def encode_entry(entry: Entry) -> EncodedEntry:
    """Return an entry as texts.

    Raises: `StoreError` if something in it is not JSON data, or of another type than an entry has: it could not be read
    again; `ConfigError` for an entry without an id.
    """
    if not entry.id:
        raise ConfigError("an entry needs an id; an empty one cannot be told from 'no entry at all'")
    what = f"entry {entry.id!r}"
    private = dict(entry.private)
    key = private.get("idempotency_key")
    wire = WireEntry(
        finite(entry.at, what),
        entry.role,
        wire_message(entry.message),
        entry.transcript_visible,
        entry.context_visible,
        private,
    )
    body = _encode(wire, what)
    if private:
        _hold_json(private, what)
    if not is_plain(entry):
        try:
            decode_entry(entry.id, body)
        except Unreadable as error:
            raise StoreError(f"the {what} cannot be stored: it could not be read ({error})") from error
    return EncodedEntry(entry.id, key if isinstance(key, str) else None, body)


def _encode(value: object, what: str) -> bytes:
    try:
        try:
            return _encoder.encode(value)
        except UnicodeEncodeError:
            # Half of a surrogate pair is no UTF-8, yet users paste it and it must not cost them the conversation:
            # plain escapes keep it as it was.
            return _escape(msgspec.to_builtins(value, enc_hook=_simple))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise StoreError(f"the {what} cannot be stored ({error}); keep only JSON data in it") from error


def _escape(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


# Any: the decoder's own type parameter; `type_` repeats it for the second attempt.
def _decode(decoder: msgspec.json.Decoder[T], type_: type[Any], text: bytes, what: str) -> T:
    try:
        return decoder.decode(text)
    except RecursionError as error:
        raise StoreError(f"the {what} is nested too deeply to be read here; raise the recursion limit") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        try:
            # The counterpart of the escapes in `_encode`.
            value: T = msgspec.convert(json.loads(text), type_)
        except (ValueError, RecursionError):
            raise Unreadable(f"{what}: {error}") from error
        return value
