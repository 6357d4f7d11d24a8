"""What a check says: data that fits, or every problem with its place.

Floor 1, at the bottom of the room.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

import attrs

from goliath_actors._text import clip

# What a model is told at most, in problems and in code points for each: enough to mend a call, not a page.
_PROBLEMS: Final = 20
_PROBLEM_CHARS: Final = 300
MISSING: Final = "required, but missing"


class InputProblems(ValueError):
    """Data does not fit a schema. `problems` names each problem with its path."""

    def __init__(self, problems: Iterable[str]) -> None:
        found = [clip(problem, _PROBLEM_CHARS) for problem in problems]
        if len(found) > _PROBLEMS:
            found[_PROBLEMS:] = [f"and {len(found) - _PROBLEMS} more problems"]
        self.problems = tuple(found)
        super().__init__("; ".join(found))


@attrs.frozen(eq=False)
class Checked:
    """Data that fits: `data` is plain JSON as it is shown, `value` what the program works with."""

    data: Any
    value: Any


class Reader(Protocol):
    """Turns plain JSON data into a checked value."""

    @property
    def schema(self) -> Mapping[str, Any]:
        """The JSON schema of that data."""
        ...

    def read(self, raw: Any, path: str) -> Checked:
        """Check `raw`, plain JSON data, once.

        Raises: InputProblems, each problem under `path`.
        """
        ...


def at(path: str, problem: str) -> str:
    """Return a problem with its place in front, the whole value having none."""
    return f"{path}: {problem}" if path else problem


def one_line(error: Exception) -> str:
    """Return an error's text without line breaks."""
    return " ".join(str(error).split())
