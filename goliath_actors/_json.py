"""JSON in and out: a canonical form, plain data of anything, and parsing what a model wrote.

Floor 0. Used by the texts, the schemas and both loops. Strict throughout: NaN, infinities and halves of surrogate pairs
are not JSON, and nothing here ever completes or guesses a value.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import math
import os
import re
import uuid
from collections.abc import Callable, Mapping, Set
from typing import Any, Final, NoReturn

import attrs

__all__ = [
    "MAX_DEPTH",
    "MAX_NODES",
    "Parsed",
    "canonical",
    "dumps",
    "json_problem",
    "parse_arguments",
    "parse_reply",
    "snapshot",
]

# Deeper JSON is refused on the way in: no schema of a tool needs it, and recursive code downstream stays safe.
MAX_DEPTH: Final = 64

MAX_NODES: Final = 1_000_000

# Bounds of `snapshot`. They are far above what a prompt can hold and keep one odd tool output from eating the process.
_SNAPSHOT_DEPTH: Final = 32
_SNAPSHOT_NODES: Final = 50_000
_SNAPSHOT_TEXT: Final = 4_000_000

# How much of a text that could not be parsed is told back to the model, in code points.
_EXCERPT: Final = 300

_INT64: Final = 1 << 63


# Any, here and below: JSON data of any shape, or whatever an application's tool returned.


def dumps(value: Any) -> str:
    """Return `value`, plain JSON data, as compact JSON text with every character written as itself.

    Raises: ValueError for NaN and infinities; TypeError for what is no JSON data (use `snapshot` first).
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


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


# --- plain data of anything -----------------------------------------------------------------------------------------


def snapshot(value: Any) -> Any:
    """Return plain JSON data that stands for `value`: a copy that shares nothing with it.

    Mappings, sequences, sets, attrs and data classes, msgspec structs, named tuples and pydantic models become objects
    and lists; dates, decimals, UUIDs, paths and enums what they are written as. Documented choices: NaN and infinities
    become the words "NaN", "Infinity" and "-Infinity"; bytes become their text if they are UTF-8, else a note of their
    size; integers too long to write become a note; a container inside itself becomes "<cycle>"; everything else its
    string form. The result is bounded (32 levels, 50,000 values, 4,000,000 characters); what is left out leaves a note.

    Raises: nothing, whatever `value` does when it is looked at.
    """
    return _Snapshot().take(value, 0)


class _Snapshot:
    """One walk. Invariant: `nodes` and `text` only fall, so the walk ends on any object."""

    def __init__(self) -> None:
        self.nodes = _SNAPSHOT_NODES
        self.text = _SNAPSHOT_TEXT
        self.open: set[int] = set()

    def take(self, value: Any, depth: int) -> Any:
        self.nodes -= 1
        try:
            if value is None or value is True or value is False:
                return value
            if isinstance(value, enum.Enum):
                return self.take(value.value, depth + 1) if depth < _SNAPSHOT_DEPTH else self.string(str(value))
            if isinstance(value, str):
                return self.string(str.__str__(value))
            if isinstance(value, int):
                return _plain_int(int(value))
            if isinstance(value, float):
                return _plain_float(float(value))
            simple = _simple(value)
            if simple is not None:
                return self.string(simple)
            if depth >= _SNAPSHOT_DEPTH:
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
    from collections import deque
    from collections.abc import KeysView, Sequence, ValuesView

    return isinstance(value, (Sequence, deque, KeysView, ValuesView)) and not isinstance(value, type)


def _string_form(value: Any) -> str:
    kind = type(value)
    if all(getattr(kind, name) is getattr(object, name) for name in ("__str__", "__repr__")):
        return f"<{kind.__name__}>"  # the default form holds an address: noise to a model, different on every run
    return str(value)


# --- parsing what a model wrote -------------------------------------------------------------------------------------


@attrs.frozen
class Parsed:
    """An argument object, and the names of the light repairs that were needed to read it."""

    value: dict[str, Any]
    repairs: tuple[str, ...] = ()


_FENCE: Final = re.compile(r"\s*```[A-Za-z0-9_+-]*[ \t]*(?P<inner>.*?)\s*```\s*", re.DOTALL)
_THINKING: Final = re.compile(r"\s*<think>.*?</think>", re.DOTALL)

# Possessive, so that a string that never ends costs one scan and no backtracking.
_TOKEN: Final = re.compile(
    r"""(?P<double>"(?:[^"\\]|\\.)*+")"""
    r"""|(?P<single>'(?:[^'\\]|\\.)*+')"""
    r"""|(?P<open_quote>["'])"""
    r"""|(?P<comma>,\s*+(?=[}\]]))"""
    r"""|(?P<other>[^"',]++|,)""",
    re.DOTALL,
)


def parse_reply(text: str) -> Any:
    """Return the JSON value that is the whole of `text`.

    Strict JSON is tried first. Only wrapping with nothing beside it is taken off: a thinking block in front, a code
    fence around the whole rest. JSON inside prose is an example as likely as an answer and is never looked for.

    Raises: ValueError that says what is wrong and quotes at most 300 characters.
    """
    try:
        return _strict(text)[0]
    except ValueError as error:
        first = error
    thinking = _THINKING.match(text)
    rest = text[thinking.end() :] if thinking else text
    inner = _unfence(rest)
    if inner is None and thinking is None:
        raise ValueError(_complaint(first, text)) from None
    try:
        return _strict(rest if inner is None else inner)[0]
    except ValueError as error:
        raise ValueError(_complaint(error, text)) from None


def parse_arguments(text: str | None, *, no_parameters: bool, confirms: bool) -> Parsed:
    """Return the argument object that a model wrote as `text`; None stands for an absent text.

    Arguments: `no_parameters`, whether the tool can run with none: then empty, blank and null text mean `{}`;
    `confirms`, whether a person confirms the call: then nothing is repaired at all.

    Returns: the object and the repairs, of `"code-fence"`, `"single-quotes"`, `"trailing-comma"`, `"string-encoded"`,
    `"repeated-object"` and `"duplicate-keys"`. A repair is tried only after strict parsing has failed and only if
    the whole text is one value (rule P). The caller must not pass output that was cut off by a length limit.

    Raises: ValueError, for the model: what is wrong, with at most 300 characters of the text.
    """
    if text is None or text.strip() in ("", "null"):
        if no_parameters:
            return Parsed({})
        raise ValueError("no arguments were given; they must be a JSON object")
    try:
        value, repairs = _read_arguments(text, confirms)
    except ValueError as error:
        raise ValueError(_complaint(error, text)) from None
    if not isinstance(value, dict):
        raise ValueError(_complaint(ValueError(f"arguments must be a JSON object, not {_kind(value)}"), text))
    if confirms and repairs:
        raise ValueError(_complaint(ValueError(f"not accepted for a call that is confirmed: {repairs[0]}"), text))
    return Parsed(value, repairs)


def _read_arguments(text: str, confirms: bool) -> tuple[Any, tuple[str, ...]]:
    try:
        return _unpack(*_strict(text))
    except ValueError as error:
        if confirms:
            raise
        first = error
    glued = _glued(text)
    if glued is not None:
        return glued
    repairs: tuple[str, ...] = ()
    inner = _unfence(text)
    if inner is not None:
        repairs = ("code-fence",)
        try:
            return _unpack(*_strict(inner), repairs)
        except ValueError as error:
            first = error
    mended, mends = _mend(text if inner is None else inner)
    if not mends:
        raise first
    return _unpack(*_strict(mended), repairs + mends)


def _unpack(value: Any, duplicates: bool, repairs: tuple[str, ...] = ()) -> tuple[Any, tuple[str, ...]]:
    """Read an object that arrived as a JSON string of its own text, one level deep and strictly."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value, inner_duplicates = _strict(value)
        repairs += ("string-encoded",)
        duplicates = duplicates or inner_duplicates
    return value, repairs + (("duplicate-keys",) if duplicates else ())


def _glued(text: str) -> tuple[Any, tuple[str, ...]] | None:
    """Read several objects in a row: equal ones are one, different ones are refused. None if `text` is not that."""
    decoder, flag = _decoder()
    found: list[Any] = []
    position = 0
    try:
        while position < len(text):
            position = _skip_space(text, position)
            if position == len(text):
                break
            value, position = decoder.raw_decode(text, position)
            found.append(value)
    except (ValueError, RecursionError):
        return None
    if len(found) < 2 or not all(isinstance(value, dict) for value in found):
        return None
    if len({canonical(value) for value in found}) > 1:
        raise ValueError(f"{len(found)} different argument objects in one call; send one")
    _refuse_deep(found[0])
    return found[0], ("repeated-object", *(("duplicate-keys",) if flag else ()))


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _unfence(text: str) -> str | None:
    """Return what a code fence around the whole text holds, or None."""
    match = _FENCE.fullmatch(text)
    return match["inner"] if match and "```" not in match["inner"] else None


def _mend(text: str) -> tuple[str, tuple[str, ...]]:
    """Rewrite single-quoted strings and drop commas before a closing bracket; say which of both was done."""
    out: list[str] = []
    mends: set[str] = set()
    for token in _TOKEN.finditer(text):
        kind, piece = token.lastgroup, token[0]
        if kind == "open_quote":
            return text, ()  # a string that never ends: cut off, or not quoted the way it looks
        if kind == "single":
            mends.add("single-quotes")
            body = re.sub(r'\\.|"', _requote, piece[1:-1], flags=re.DOTALL)
            out.append(f'"{body}"')
        elif kind == "comma" and out and out[-1].rstrip()[-1:] not in ("", "{", "[", ",", ":"):
            mends.add("trailing-comma")
        else:
            out.append(piece)
    return "".join(out), tuple(sorted(mends))


def _requote(match: re.Match[str]) -> str:
    piece = match[0]
    return '\\"' if piece == '"' else "'" if piece == "\\'" else piece


# --- strict reading -------------------------------------------------------------------------------------------------


def _strict(text: str) -> tuple[Any, bool]:
    """Return the JSON value that is the whole of `text`, and whether an object in it had a key twice."""
    decoder, flag = _decoder()
    try:
        start = _skip_space(text, 0)
        value, end = decoder.raw_decode(text, start)
        if _skip_space(text, end) != len(text):
            raise ValueError(f"more text follows after the JSON value, from character {end}")
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    _refuse_deep(value)
    return value, bool(flag)


def _refuse_deep(value: Any) -> None:
    problem = json_problem(value)
    if problem is not None:
        raise ValueError(problem)


def json_problem(value: Any) -> str | None:
    """Return why `value` cannot be JSON, or None.

    Finds numbers that are not finite, halves of surrogate pairs, nesting deeper than `MAX_DEPTH` (so also a container
    inside itself) and more than `MAX_NODES` values. Says nothing about objects that are no JSON data.
    """
    # Iterative: the point is to be safe on data that recursion would not survive.
    level: list[Any] = [value]
    depth = nodes = 0
    while level:
        nodes += len(level)
        if depth > MAX_DEPTH:
            return f"nested deeper than {MAX_DEPTH} levels"
        if nodes > MAX_NODES:
            return f"more than {MAX_NODES} values"
        below: list[Any] = []
        for item in level:
            if isinstance(item, str):
                if not _is_text(item):
                    return "a string holds half of a surrogate pair, which is not text"
            elif isinstance(item, float):
                if not math.isfinite(item):
                    return f"{item!r} is not a JSON number"
            elif isinstance(item, Mapping):
                below.extend(item.values())
                below.extend(item)
            elif isinstance(item, (list, tuple)):
                below.extend(item)
        level = below
        depth += 1
    return None


def _is_text(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _decoder() -> tuple[json.JSONDecoder, list[str]]:
    """Return a strict decoder, and a list that becomes non-empty when an object has a key twice."""
    twice: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        built = dict(items)
        if len(built) != len(items):
            twice.append("")
        return built

    return json.JSONDecoder(object_pairs_hook=pairs, parse_float=_finite, parse_constant=_no_constant), twice


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {digits[:40]} is out of range")
    return number


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON value")


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "a list" if isinstance(value, list) else "a string" if isinstance(value, str) else "a number"


def _complaint(error: ValueError, text: str) -> str:
    excerpt = text if len(text) <= _EXCERPT else text[: _EXCERPT - 1] + "…"
    return f"{error}: {excerpt}"
