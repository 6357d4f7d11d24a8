"""Pages of results that fit a budget in tokens, and the cursors between them.

A cursor is an offset and a digest of everything that it belongs to: short, since a small model has
to copy it, and worthless for another file, revision or query. It is no secret; what it leads to is checked again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Final

from goliath_actors._text import clip_tokens, grapheme_boundary
from goliath_actors.errors import ToolFailure

__all__ = ["digest", "excerpt", "fit_text", "make_cursor", "read_cursor", "shrink"]

Count = Callable[[str], int]

_CURSOR: Final = re.compile(r"(\d{1,9})-([0-9a-f]{12})-([0-9a-f]{12})", re.ASCII)
MAX_CURSOR: Final = 4096
CANDIDATE: Final = 16_384  # characters that are looked at for one page
EXCERPT: Final = 100  # code points around a match
BEFORE: Final = 30  # of these, in front of it


def digest(*parts: str) -> str:
    """Return 12 hexadecimal digits that stand for these texts in this order."""
    # The length in front of each: ("ab", "c") is not ("a", "bc").
    joined = "".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.sha256(joined.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def make_cursor(offset: int, place: str, query: str) -> str:
    """Return a cursor to `offset` in the file whose digest is `place`, good for `query` alone."""
    return f"{offset}-{place}-{digest(str(offset), place, query)}"


def read_cursor(cursor: str, query: str) -> tuple[int, str]:
    """Return the offset and the digest of the place.

    Raises: ToolFailure if this is no cursor, or one for another query.
    """
    match = _CURSOR.fullmatch(cursor.strip()) if len(cursor) <= MAX_CURSOR else None
    if match is None:
        raise ToolFailure("this is no cursor; copy it as it was given, or leave it out to start anew")
    offset, place, proof = int(match[1]), match[2], match[3]
    if proof != digest(str(offset), place, query):
        raise ToolFailure("the cursor belongs to another query, file or revision; leave it out to start anew")
    return offset, place


def fit_text(text: str, start: int, end: int, page: Callable[[int], str], limit: int, count: Count) -> int:
    """Return the last position up to `end` for which `page(position)` fits into `limit` tokens.

    The position splits no grapheme cluster, and stands behind a line's end if a whole line fits. `start` is returned
    if nothing fits.
    """
    end = grapheme_boundary(text, end)
    if end <= start:
        return start
    if count(page(end)) <= limit:
        return end
    low, high = start, end
    while high - low > 1:
        middle = (low + high) // 2
        if count(page(middle)) <= limit:
            low = middle
        else:
            high = middle
    line_end = text.rfind("\n", start, low) + 1
    cut = line_end if line_end > start else grapheme_boundary(text, low)
    # A shorter text can count more by a token or two, where a cut parts what was one token.
    while cut > start and count(page(cut)) > limit:
        cut = grapheme_boundary(text, cut - 1)
    return max(cut, start)


def excerpt(text: str, hit: int, length: int) -> tuple[int, int, str]:
    """Return where the line of a match begins and ends, and up to 100 code points of it around the match."""
    line_start = text.rfind("\n", 0, hit) + 1
    line_end = text.find("\n", hit + length)
    if line_end < 0:
        line_end = len(text)
    begin = max(line_start, grapheme_boundary(text, max(line_start, hit - BEFORE)))
    stop = max(begin, grapheme_boundary(text, min(line_end, begin + EXCERPT)))
    shown = ("…" if begin > line_start else "") + text[begin:stop] + ("…" if stop < line_end else "")
    return line_start, line_end, shown.rstrip("\r")


def shrink(path: str, line: int, shown: str, limit: int, count: Count) -> str:
    """Return the words for one match, path and excerpt cut down so that they take at most `limit` tokens."""
    whole = f"{path}:{line}: {shown}"
    if count(whole) <= limit:
        return whole
    short = clip_tokens(path, limit // 2, count)
    head = f"{short}:{line}: "
    room = limit - count(head)
    while room > 0:
        words = head + clip_tokens(shown, room, count)
        if count(words) <= limit:
            return words
        room -= 1
    return clip_tokens(whole, limit, count)
