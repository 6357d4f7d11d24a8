"""Texts that must fit: estimating tokens, clipping at grapheme boundaries, summarising tool results.

Nothing here looks at a text one character at a time in Python, so half a megabyte of
anything takes milliseconds.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, Final, cast

from ._json import dumps, snapshot

__all__ = ["clip", "clip_tokens", "estimate", "fit_content", "grapheme_boundary", "summarise"]

_HIGH_BYTES: Final = bytes(range(0x80, 0x100))
_FLAG_PARTS: Final = "".join(map(chr, range(0x1F1E6, 0x1F200)))  # regional indicators: two of them are one flag

# Limits of `summarise`, in code points and lines.
_SCALAR: Final = 80
_LOOK: Final = 400
_SHOWN_WHOLE: Final = 7
_HEAD: Final = 5
_TAIL: Final = 2
_ERROR_WORDS: Final = re.compile(r"\b(?:error|exception|failed|fatal|denied|timed out|timeout)\b", re.IGNORECASE)
_ERROR_LINES: Final = 20
_TEXT_LINES: Final = 2_000


def estimate(text: str) -> int:
    """Return an estimate of the tokens in `text` that errs on the high side.

    It is ceil(ASCII characters / 4 × 1.15) plus the UTF-8 bytes of all other characters (rule C8): about 4 characters
    of English make a token, and a byte is the most that a byte-level tokenizer can spend on anything else. Linear time.
    """
    if text.isascii():
        ascii_count = len(text)
        rest = 0
    else:
        encoded = text.encode("utf-8", "surrogatepass")
        ascii_count = len(encoded.translate(None, _HIGH_BYTES))
        rest = len(encoded) - ascii_count
    return -(-ascii_count * 23 // 80) + rest  # 23/80 = 1.15/4, exactly


# --- grapheme boundaries --------------------------------------------------------------------------------------------


@functools.cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    # Imported here: it takes time to load, and ASCII texts never need it.
    import regex  # type: ignore[import-untyped]  # the distribution carries no type information

    # Between these two classes there is always a boundary, whatever stands around them (Unicode Annex 29, rules GB4 to
    # GB13: neither side extends, prepends or joins). Searched backwards from the cut.
    certain = (
        r"(?r)[\p{GCB=XX}\p{GCB=CN}\p{GCB=LF}\p{GCB=LV}\p{GCB=LVT}\p{GCB=RI}]"
        r"(?=[\p{GCB=XX}\p{GCB=CN}\p{GCB=CR}\p{GCB=LF}\p{GCB=L}\p{GCB=LV}\p{GCB=LVT}])|\p{GCB=RI}(?=\p{GCB=RI})"
    )
    # Compiled patterns of both modules offer the methods used here.
    return cast("tuple[re.Pattern[str], re.Pattern[str]]", (regex.compile(certain), regex.compile(r"\X")))


def grapheme_boundary(text: str, position: int) -> int:
    """Return the last position not after `position`, in code points, where a cut splits no grapheme cluster."""
    if position <= 0:
        return 0
    if position >= len(text):
        return len(text)
    before, after = text[position - 1], text[position]
    if before.isascii() and after.isascii():
        return position - 1 if before == "\r" and after == "\n" else position
    certain, cluster = _patterns()
    start = 0
    end = position + 1
    while end > 0:
        match = certain.search(text, 0, end)
        if match is None:
            break
        cut = match.start() + 1
        if not (text[cut - 1] in _FLAG_PARTS and text[cut] in _FLAG_PARTS):
            start = cut
            break
        # Inside a run of regional indicators, which pair up from the run's beginning. Counted here because a matcher
        # that counts them again for each flag takes quadratic time.
        run = len(text[:cut].rstrip(_FLAG_PARTS))
        if (cut - run) % 2:
            cut -= 1
        if cut > run:
            start = cut
            break
        end = run  # one flag only: what stands before it may still join it
    # Whether `position` is a boundary depends on what precedes it and on one character after it.
    last = 0
    for found in cluster.finditer(text[start : position + 1]):
        last = found.start()
    return start + last


def _next_boundary(text: str, position: int) -> int:
    """Return the first position not before `position` where a cut splits no grapheme cluster."""
    before = grapheme_boundary(text, position)
    if before == position or position >= len(text):
        return before
    found = _patterns()[1].match(text[before:])
    return before + (found.end() if found else 0)


# --- clipping -------------------------------------------------------------------------------------------------------


def clip(text: str, limit: int, ellipsis: str = "…") -> str:
    """Return `text`, or as much of its beginning as fits with `ellipsis` into `limit` code points.

    The cut splits no grapheme cluster, and no white space is left before the ellipsis. If not even the ellipsis fits,
    the result is empty.
    """
    if len(text) <= limit:
        return text
    room = limit - len(ellipsis)
    if room < 0:
        return ""
    head = text[: grapheme_boundary(text, room)]
    stripped = head.rstrip()
    if len(stripped) != len(head):
        head = text[: grapheme_boundary(text, len(stripped))]
    return head + ellipsis


def clip_tokens(text: str, limit: int, count: Callable[[str], int] = estimate, ellipsis: str = "…") -> str:
    """Return `text`, or its longest beginning that fits with `ellipsis` into `limit` tokens as `count` counts them.

    The cut splits no grapheme cluster. If not even the ellipsis fits, the result is empty. `count` is asked a
    logarithmic number of times about texts not much longer than the result, however long `text` is.
    """
    head = _longest(text, limit, count, lambda position: text[:position], ellipsis)
    if head == len(text):
        return text
    if head < 0:
        return ""
    return text[:head] + ellipsis


def _longest(text: str, limit: int, count: Callable[[str], int], piece: Callable[[int], str], ellipsis: str) -> int:
    """Return the longest length whose piece fits into `limit` tokens: -1 if none does, the whole length uncut."""
    size = len(text)
    if limit <= 0:
        return size if not text else -1
    # Gallop first, so that a small limit never has the whole of a huge text counted.
    low, high = 0, min(size, max(64, limit * 4))
    while True:
        if high >= size:
            if count(text) <= limit:
                return size
            high = size
            break
        if count(piece(high) + ellipsis) > limit:
            break
        low, high = high, min(size, high * 2)
    if low == 0 and count(ellipsis) > limit:
        return -1
    # Invariant: a piece of `low` fits, one of `high` does not (or is the whole text, which needs no ellipsis).
    while high - low > 1:
        middle = (low + high) // 2
        if count(piece(middle) + ellipsis) <= limit:
            low = middle
        else:
            high = middle
    best = grapheme_boundary(text, low)
    # A tokenizer may need more tokens for a shorter text, so what the boundary gave is counted again.
    back = 1
    while best > 0 and count(piece(best) + ellipsis) > limit:
        best = grapheme_boundary(text, best - back)
        back *= 2
    return best


def fit_content(text: str, limit: int, count: Callable[[str], int] = estimate) -> str:
    """Return `text`, or its beginning and end around a line that says what was left out, within `limit` tokens.

    Three quarters of the room go to the beginning. If the marker line does not fit, the text is clipped with an
    ellipsis alone.
    """
    if limit > 0 and len(text) <= max(64, limit * 128) and count(text) <= limit:
        return text
    room = limit - count(_marker(len(text), len(text)))
    if room < 8:
        return clip_tokens(text, limit, count)
    tail_room = room // 4
    head_room = room - tail_room
    while head_room > 0:
        head = clip_tokens(text, head_room, count, "")
        tail = _tail(text[len(head) :], tail_room, count)
        fitted = head + _marker(len(head) + len(tail), len(text)) + tail
        excess = count(fitted) - limit
        if excess <= 0:
            return fitted
        # Tokens of the parts do not add up to those of the whole to the last one.
        head_room -= max(1, excess)
    return clip_tokens(text, limit, count)


def _marker(shown: int, size: int) -> str:
    return f"\n[truncated: {shown} of {size} characters shown]\n"


def _tail(text: str, limit: int, count: Callable[[str], int]) -> str:
    """Return the longest end of `text` within `limit` tokens, begun at a grapheme boundary."""
    size = len(text)
    low, high = 0, min(size, max(64, limit * 4))
    while high < size and count(text[size - high :]) <= limit:
        low, high = high, min(size, high * 2)
    while high - low > 1:
        middle = (low + high) // 2
        if count(text[size - middle :]) <= limit:
            low = middle
        else:
            high = middle
    return text[_next_boundary(text, size - low) :]


# --- tool results ---------------------------------------------------------------------------------------------------


def summarise(output: Any, limit: int = 600) -> str:
    """Return a tool's raw output as a short text for the model, at most `limit` code points.

    Nothing is "done", a blank text "(no output)", an empty list "none". Records become "key: value" lines, lists
    numbered lines; of a long list the first 5, the last 2 and lines between them that speak of errors are kept, with
    their own numbers. Never raises.
    """
    return clip(_render(output if isinstance(output, str) else snapshot(output)), limit)


def _render(value: Any) -> str:
    if value is None:
        return "done"
    if isinstance(value, str):
        return value if value.strip() else "(no output)"
    if isinstance(value, list):
        return _render_list(value)
    if isinstance(value, dict):
        lines = [f"{key}: {_one_line(item)}" for key, item in value.items()]
        return "\n".join(lines) if lines else "none"
    return _scalar(value)


def _render_list(items: list[Any]) -> str:
    if not items:
        return "none"

    def line(position: int) -> str:
        return f"{position + 1}. {_item(items[position])}"

    size = len(items)
    if size <= _SHOWN_WHOLE:
        return "\n".join(line(position) for position in range(size))
    between = [line(position) for position in range(_HEAD, min(size - _TAIL, _TEXT_LINES))]
    errors = [text for text in between if _ERROR_WORDS.search(text)][:_ERROR_LINES]
    lines = [line(position) for position in range(_HEAD)]
    lines.append(f"{size - _HEAD - _TAIL - len(errors)} omitted")
    lines += errors
    lines += [line(position) for position in range(size - _TAIL, size)]
    return "\n".join(lines)


def _item(value: Any) -> str:
    if isinstance(value, dict):
        fields = [
            f"{key}: {_scalar(item)}"
            for key, item in value.items()
            if item is not None and not isinstance(item, (dict, list))
        ]
        return ", ".join(fields) if fields else _one_line(value)
    return _one_line(value)


def _one_line(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return clip(dumps(value), _SCALAR)
    return _scalar(value)


def _scalar(value: Any) -> str:
    text = value if isinstance(value, str) else dumps(value)
    # A few words are kept of it, so a few hundred characters are looked at.
    words = " ".join(text[:_LOOK].split()) + ("…" if len(text) > _LOOK else "")
    return clip(words, _SCALAR) or "(blank)"
