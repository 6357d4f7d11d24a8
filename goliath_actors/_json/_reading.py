"""Reading what a model wrote: a whole reply, or the arguments of one call with the light repairs of rule P."""

from __future__ import annotations

import re
from typing import Any, Final

import attrs

from ._plain import canonical
from ._strict import decoder, refuse, skip_space, strict

# Any, below: JSON data of any shape, or whatever an application's tool returned.

# How much of a text that could not be parsed is told back to the model, in code points.
_EXCERPT: Final = 300


@attrs.frozen
class Parsed:
    """An argument object, and the names of the light repairs that were needed to read it."""

    value: dict[str, Any]
    repairs: tuple[str, ...] = ()


_LANGUAGE: Final = re.compile(r"[A-Za-z0-9_+-]*")
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
        return strict(text)[0]
    except ValueError as error:
        # Its words only: an error that is kept in its own frame is kept until the garbage collector comes by.
        first = str(error)
    thinking = _THINKING.match(text)
    rest = text[thinking.end() :] if thinking else text
    inner = _unfence(rest)
    if inner is None and thinking is None:
        raise ValueError(_complaint(first, text)) from None
    try:
        return strict(rest if inner is None else inner)[0]
    except ValueError as error:
        raise ValueError(_complaint(error, text)) from None


def parse_arguments(text: str | None, *, no_parameters: bool, confirms: bool, reply: bool = False) -> Parsed:
    """Return the argument object that a model wrote as `text`; None stands for an absent text.

    Arguments: `no_parameters`, whether the tool can run with none: then empty, blank and null text mean `{}`;
    `confirms`, whether a person confirms the call: then nothing is repaired at all; `reply`, whether the text is a
    whole reply of a model that was asked for arguments: then a thinking block may stand in front, which is no repair.

    Returns: the object and the repairs, of `"code-fence"`, `"single-quotes"`, `"trailing-comma"`, `"string-encoded"`,
    `"repeated-object"` and `"duplicate-keys"`. A repair is tried only after strict parsing has failed and only if
    the whole text is one value (rule P). The caller must not pass output that was cut off by a length limit.

    Raises: ValueError, for the model: what is wrong, with at most 300 characters of the text.
    """
    thinking = _THINKING.match(text) if reply and text is not None else None
    if text is not None and thinking is not None:
        text = text[thinking.end() :]
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
        return _unpack(*strict(text))
    except ValueError as error:
        if confirms:
            raise
        first = str(error)  # as in `parse_reply`
    glued = _glued(text)
    if glued is not None:
        return glued
    repairs: tuple[str, ...] = ()
    inner = _unfence(text)
    if inner is not None:
        repairs = ("code-fence",)
        try:
            return _unpack(*strict(inner), repairs)
        except ValueError as error:
            first = str(error)
    mended, mends = _mend(text if inner is None else inner)
    if not mends:
        raise ValueError(first)
    return _unpack(*strict(mended), repairs + mends)


def _unpack(value: Any, duplicates: bool, repairs: tuple[str, ...] = ()) -> tuple[Any, tuple[str, ...]]:
    """Read an object that arrived as a JSON string of its own text, one level deep and strictly."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value, inner_duplicates = strict(value)
        repairs += ("string-encoded",)
        duplicates = duplicates or inner_duplicates
    return value, repairs + (("duplicate-keys",) if duplicates else ())


def _glued(text: str) -> tuple[Any, tuple[str, ...]] | None:
    """Read several objects in a row: equal ones are one, different ones are refused. None if `text` is not that."""
    read, flag = decoder()
    found: list[Any] = []
    position = 0
    try:
        while position < len(text):
            position = skip_space(text, position)
            if position == len(text):
                break
            value, position = read.raw_decode(text, position)
            found.append(value)
    except (ValueError, RecursionError):
        return None
    if len(found) < 2 or not all(isinstance(value, dict) for value in found):
        return None
    if len({canonical(value) for value in found}) > 1:
        raise ValueError(f"{len(found)} different argument objects in one call; send one")
    refuse(found[0])
    return found[0], ("repeated-object", *(("duplicate-keys",) if flag else ()))


def _unfence(text: str) -> str | None:
    """Return what a code fence around the whole text holds, or None."""
    bare = text.strip()
    if len(bare) < 6 or not (bare.startswith("```") and bare.endswith("```")):
        return None
    inner = bare[3:-3]
    language = _LANGUAGE.match(inner)
    return None if "```" in inner or language is None else inner[language.end() :].strip()


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


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "a list" if isinstance(value, list) else "a string" if isinstance(value, str) else "a number"


def _complaint(error: ValueError | str, text: str) -> str:
    excerpt = text if len(text) <= _EXCERPT else text[: _EXCERPT - 1] + "…"
    return f"{error}: {excerpt}"
