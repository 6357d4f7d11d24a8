"""What a check says: data that fits, or every problem with its place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

import attrs

from goliath_actors._text import clip

# What a model is told at most, in problems and in code points for each: enough to mend a call, not a page.
_PROBLEMS: Final = 20
_PROBLEM_CHARS: Final = 300
MISSING: Final = "required, but missing"


@attrs.frozen
class Problem:
    """One problem and its place in the data, as in `steps[0].title`; empty for the whole."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}" if self.path else self.text

    def under(self, path: str) -> Problem:
        """Return the problem as it is called from further outside."""
        dot = "." if path and self.path and not self.path.startswith("[") else ""
        return Problem(path + dot + self.path, self.text)


class InputProblems(ValueError):
    """Data does not fit a schema. `problems` names each problem with its path, `found` are the same, uncut."""

    def __init__(self, found: Iterable[Problem]) -> None:
        self.found = tuple(found)
        problems = [clip(str(problem), _PROBLEM_CHARS) for problem in self.found]
        if len(problems) > _PROBLEMS:
            problems[_PROBLEMS:] = [f"and {len(problems) - _PROBLEMS} more problems"]
        self.problems = tuple(problems)
        super().__init__("; ".join(problems))

    @classmethod
    def one(cls, text: str, path: str = "") -> InputProblems:
        """Return the error for a single problem."""
        return cls([Problem(path, text)])


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


def one_line(error: Exception) -> str:
    """Return an error's text without line breaks."""
    return " ".join(str(error).split())
