"""Plain JSON data of anything, bounded and total; and a text that two values share if they are the same data."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import math
import os
import uuid
from collections import deque
from collections.abc import Callable, KeysView, Mapping, Sequence, Set, ValuesView
from typing import Any, Final

import attrs

from ._strict import dumps

# Any, below: JSON data of any shape, or whatever an application's tool returned.

# Far above what a prompt can hold; they keep one odd tool output from eating the process.
_DEPTH: Final = 32
_NODES: Final = 50_000
_TEXT: Final = 4_000_000
_INT64: Final = 1 << 63


def snapshot(value: Any) -> Any:
    """Return plain JSON data that stands for `value`: a copy that shares nothing with it.

    Mappings, sequences, sets, attrs and data classes, msgspec structs, named tuples and pydantic models become objects
    and lists; dates, decimals, UUIDs, paths and enums what they are written as. Documented choices: NaN and infinities
    become the words "NaN", "Infinity" and "-Infinity"; bytes become their text if they are UTF-8, else a note of their
    size; integers too long to write become a note; a container inside itself becomes "<cycle>"; everything else its
    string form. The result is bounded (32 levels, 50,000 values, 4,000,000 characters); what is left out leaves a note.

    Raises: nothing, whatever `value` does when it is looked at.
    """
    if value is None or (type(value) is str and len(value) <= _TEXT and value.isascii()):
        return value  # what most tools return stands for itself
    return _Snapshot().take(value, 0)


class _Snapshot:
    """One walk. Invariant: `nodes` and `text` only fall, so the walk ends on any object."""

    def __init__(self) -> None:
        self.nodes = _NODES
        self.text = _TEXT
        self.open: set[int] = set()

    def take(self, value: Any, depth: int) -> Any:
        self.nodes -= 1
        try:
            if value is None or value is True or value is False:
                return value
            if isinstance(value, enum.Enum):
                return self.take(value.value, depth + 1) if depth < _DEPTH else self.string(str(value))
            if isinstance(value, str):
                return self.string(str.__str__(value))
            if isinstance(value, int):
                return _plain_int(int(value))
            if isinstance(value, float):
                return _plain_float(float(value))
            simple = _simple(value)
            if simple is not None:
                return self.string(simple)
            if depth >= _DEPTH:
                return "<nested too deeply>"
            if id(value) in self.open:
                return "<cycle>"
            self.open.add(id(value))
            try:
                return self.container(value, depth)
            finally:
                self.open.discard(id(value))
        except Exception:  # noqa: BLE001 - total by contract, whatever an application's object raises when looked at
            return f"<{type(value).__name__}>"

    def container(self, value: Any, depth: int) -> Any:
        fields = _fields_of(value)
        if fields is not None:
            return self.mapping(fields, depth)
        if isinstance(value, Mapping):
            return self.mapping(value, depth)
        if isinstance(value, Set):
            # Sets have no order of their own that two processes agree on.
            return sorted(self.sequence(value, depth), key=canonical)
        if _is_sequence(value):
            return self.sequence(value, depth)
        return self.string(_string_form(value))

    def mapping(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, item in value.items():
            if self.nodes <= 0:
                out["…"] = f"<{len(value) - len(out)} more>"
                break
            name = self.string(_key(key))
            while name in out:  # 1 and "1" are two keys of one dict, and one key in JSON
                name += "'"
            out[name] = self.take(item, depth + 1)
        return out

    def sequence(self, value: Any, depth: int) -> list[Any]:
        out: list[Any] = []
        for item in value:
            if self.nodes <= 0:
                out.append(f"<{len(value) - len(out)} more>")
                break
            out.append(self.take(item, depth + 1))
        return out

    def string(self, text: str) -> str:
        if not text.isascii():
            # Half a surrogate pair is no text: it could be neither sent nor stored.
            text = text.encode("utf-8", "replace").decode("utf-8")
        if len(text) > self.text:
            text = text[: self.text] + "…"
        self.text = max(0, self.text - len(text))
        return text


def _plain_int(value: int) -> int | str:
    if -_INT64 <= value < 2 * _INT64:
        return value
    # Beyond 64 bits other JSON readers lose digits; as text none is lost.
    return str(value) if value.bit_length() <= 4096 else f"<integer of {value.bit_length()} bits>"


def _plain_float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _key(key: Any) -> str:
    """Return a mapping's key as a JSON name."""
    if isinstance(key, str) and not isinstance(key, enum.Enum):
        return str.__str__(key)
    plain = key.value if isinstance(key, enum.Enum) else key
    if plain is None or isinstance(plain, bool):
        return dumps(plain)
    if isinstance(plain, int):
        return str(_plain_int(int(plain)))
    return _simple(plain) or _string_form(plain)


def _simple(value: Any) -> str | None:
    """Return the text of a value that has one usual way to be written, else None."""
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (decimal.Decimal, uuid.UUID, datetime.timedelta)):
        return str(value)
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, memoryview):
        return f"<{value.nbytes} bytes>"
    if isinstance(value, (bytes, bytearray)):
        try:
            return bytes(value).decode("utf-8")
        except UnicodeDecodeError:
            return f"<{len(value)} bytes>"
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    return None


def _fields_of(value: Any) -> Mapping[str, Any] | None:
    """Return the fields of a record-like object by name, else None."""
    kind = type(value)
    if isinstance(value, type):
        return None
    if attrs.has(kind):
        return {field.name: getattr(value, field.name) for field in attrs.fields(kind) if hasattr(value, field.name)}
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    names = getattr(kind, "__struct_fields__", None)  # msgspec
    if isinstance(names, tuple):
        return {name: getattr(value, name) for name in names}
    if isinstance(getattr(kind, "model_fields", None), dict) and callable(
        getattr(kind, "model_dump", None)
    ):  # pydantic
        dumped = value.model_dump()
        return dumped if isinstance(dumped, Mapping) else {"root": dumped}
    if isinstance(value, tuple) and isinstance(getattr(kind, "_fields", None), tuple):
        return dict(zip(kind._fields, value, strict=False))
    return None


def _is_sequence(value: Any) -> bool:

    return isinstance(value, (Sequence, deque, KeysView, ValuesView)) and not isinstance(value, type)


def _string_form(value: Any) -> str:
    kind = type(value)
    if all(getattr(kind, name) is getattr(object, name) for name in ("__str__", "__repr__")):
        return f"<{kind.__name__}>"  # the default form holds an address: noise to a model, different on every run
    return str(value)


# --- canonical form -------------------------------------------------------------------------------------------------


def canonical(value: Any) -> str:
    """Return a text that two values share exactly if they are the same JSON data.

    The order of keys does not matter, 1 equals 1.0, true is not 1. Keys are sorted by code point, whatever the locale.
    Objects that are no JSON data are compared by their `snapshot`. What is nested deeper than 200 levels, or contains
    itself, equals nothing but itself: for finding duplicates a miss is safe and a false hit is not.
    """
    out: list[str] = []
    _write_canonical(value, out.append, 0)
    return "".join(out)


def _write_canonical(value: Any, write: Callable[[str], None], depth: int) -> None:
    if isinstance(value, str) and not isinstance(value, enum.Enum):
        write(json.dumps(value))
    elif value is None or value is True or value is False:
        write("null" if value is None else "true" if value else "false")
    elif isinstance(value, float):
        if not math.isfinite(value):
            write(f"#{value!r}")  # no JSON text begins like this, so it equals no other value
        else:
            write(_digits(int(value)) if value.is_integer() else repr(float(value)))
    elif isinstance(value, int) and not isinstance(value, enum.Enum):
        write(_digits(value))
    elif depth >= 200:
        write(f"#{id(value)}")
    elif isinstance(value, Mapping):
        write("{")
        for position, (key, item) in enumerate(sorted(((_key(key), item) for key, item in value.items()), key=_first)):
            write(f"{',' if position else ''}{json.dumps(key)}:")
            _write_canonical(item, write, depth + 1)
        write("}")
    elif isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        write("[")
        for position, item in enumerate(value):
            if position:
                write(",")
            _write_canonical(item, write, depth + 1)
        write("]")
    else:
        _write_canonical(snapshot(value), write, depth + 1)


def _first(pair: tuple[str, Any]) -> str:
    return pair[0]


def _digits(number: int) -> str:
    # Python refuses to write out integers of more than 4,300 decimal digits; hexadecimal has no such limit.
    return str(int(number)) if number.bit_length() <= 4096 else hex(number)
