"""Strict JSON text: reading it, writing it, and what can be none.

At the bottom of the room.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final, NoReturn

# Any, below: JSON data of any shape, or whatever an application's tool returned.

# Deeper JSON is refused on the way in: no schema of a tool needs it, and recursive code downstream stays safe.
MAX_DEPTH: Final = 64
MAX_NODES: Final = 1_000_000


def dumps(value: Any) -> str:
    """Return `value`, plain JSON data, as compact JSON text with every character written as itself.

    Raises: ValueError for NaN and infinities; TypeError for what is no JSON data (use `snapshot` first).
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def skip_space(text: str, position: int) -> int:
    """Return the first position from `position` on that holds no white space of JSON's."""
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def strict(text: str) -> tuple[Any, bool]:
    """Return the JSON value that is the whole of `text`, and whether an object in it had a key twice."""
    twice = False
    try:
        start = skip_space(text, 0)
        try:
            value, end = _ONCE.raw_decode(text, start)
        except _KeyTwice:  # seldom: read it again, the last one wins
            twice = True
            value, end = decoder()[0].raw_decode(text, start)
        if skip_space(text, end) != len(text):
            raise ValueError(f"more text follows after the JSON value, from character {end}")
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    refuse(value)
    return value, twice


def refuse(value: Any) -> None:
    """Raise ValueError if `value`, as parsed, is more or other than JSON may be here."""
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


def decoder() -> tuple[json.JSONDecoder, list[str]]:
    """Return a strict decoder, and a list that becomes non-empty when an object has a key twice."""
    twice: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        built = dict(items)
        if len(built) != len(items):
            twice.append("")
        return built

    return json.JSONDecoder(object_pairs_hook=pairs, parse_float=_finite, parse_constant=_no_constant), twice


class _KeyTwice(Exception):
    """An object has a key twice."""


def _distinct(items: list[tuple[str, Any]]) -> dict[str, Any]:
    built = dict(items)
    if len(built) != len(items):
        raise _KeyTwice
    return built


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {digits[:40]} is out of range")
    return number


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON value")


# Made once, which takes longer than reading arguments does; it keeps nothing of what it reads.
_ONCE: Final = json.JSONDecoder(object_pairs_hook=_distinct, parse_float=_finite, parse_constant=_no_constant)
