"""Paths of virtual files, and patterns for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from goliath_actors.errors import ConfigError

__all__ = ["Glob", "beneath", "normalise"]

MAX_PATH: Final = 512
MAX_PATTERN: Final = 512


def normalise(path: str) -> str:
    """Return the path in its one form: from `/`, no `.`, no doubled and no final slash.

    Raises: ConfigError for `..`, a backslash, control characters, half surrogate pairs, and more than 512 code points.
    """
    if not isinstance(path, str):
        raise ConfigError(f"a path must be a string, not {type(path).__name__}")
    if len(path) > MAX_PATH:
        raise ConfigError(f"a path may have {MAX_PATH} characters, this one has {len(path)}")
    if not path.startswith("/"):
        raise ConfigError(f"{path!r} is no absolute path; begin it with a slash")
    for character in path:
        if character < " " or character == "\x7f" or "\ud800" <= character <= "\udfff" or character == "\\":
            raise ConfigError(f"a path may not contain {character!r}")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ConfigError(f"{path!r} leads upwards; a path may not contain '..'")
    return "/" + "/".join(parts)


def file_path(path: str) -> str:
    """Return a path of a file in its one form; raise ConfigError for the root, which cannot be one."""
    normal = normalise(path)
    if normal == "/":
        raise ConfigError("the root is no file")
    return normal


def beneath(path: str, under: str) -> bool:
    """Say whether a path is `under` or lies below it; both in their one form."""
    return under == "/" or path == under or path.startswith(under + "/")


class Glob:
    """A pattern for paths: `*` and `?` stay within one part of a path, `**` as a part stands for any number of parts.

    A pattern without a slash in front counts from `root`. Nothing else is special.

    Matching is by tables instead of a regular expression: patterns come from a model, and one with many stars would
    keep a backtracking matcher busy for years.
    """

    def __init__(self, pattern: str, root: str = "/") -> None:
        if not isinstance(pattern, str) or not pattern.strip() or len(pattern) > MAX_PATTERN:
            raise ConfigError(f"a pattern has 1 to {MAX_PATTERN} characters")
        whole = pattern if pattern.startswith("/") else f"{root}/{pattern}"
        parts = [part for part in whole.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise ConfigError(f"{pattern!r} leads upwards; a pattern may not contain '..'")
        self._parts = tuple(
            part for index, part in enumerate(parts) if part != "**" or parts[index - 1 : index] != ["**"]
        )

    def matches(self, path: str) -> bool:
        """Say whether the pattern is about a path in its one form."""
        names = [part for part in path.split("/") if part]
        # reached[i]: the pattern so far can have used up the first i names.
        reached = [True] + [False] * len(names)
        for part in self._parts:
            following = [False] * (len(names) + 1)
            if part == "**":
                any_before = False
                for index, here in enumerate(reached):
                    any_before = any_before or here
                    following[index] = any_before
            else:
                for index, name in enumerate(names):
                    following[index + 1] = reached[index] and _part_matches(part, name)
            reached = following
        return reached[-1]


@lru_cache(maxsize=1024)
def _part_matches(pattern: str, name: str) -> bool:
    return _wild(pattern, name)


def _wild(pattern: Sequence[str], name: Sequence[str]) -> bool:
    """Match one part, going back to the last star only: that is enough, and takes at most length times length steps."""
    at = used = 0
    star, star_used = -1, 0
    while used < len(name):
        if at < len(pattern) and pattern[at] == "*":
            star, star_used = at, used
            at += 1
        elif at < len(pattern) and pattern[at] in ("?", name[used]):
            at += 1
            used += 1
        elif star >= 0:
            star_used += 1
            at, used = star + 1, star_used
        else:
            return False
    return all(character == "*" for character in pattern[at:])
