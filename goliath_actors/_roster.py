"""Which extension of an agent implements which row of the hook table, read once per agent.

Floor 1½, above the table and below the panel.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from .errors import ConfigError
from .hooks import HOOKS, Extension

__all__ = ["Hook", "Roster"]

_HOOK_LIKE = ("before_", "after_", "around_", "on_", "transform_", "resolve_")


@attrs.frozen(eq=False)
class Hook:
    """One extension's implementation of one row. `index` is its place in registration order; `is_async` is true if
    calling it makes a coroutine and runs nothing of it yet."""

    index: int
    extension: str
    lenient: bool
    call: Callable[..., Any]
    is_async: bool = False


@attrs.frozen(eq=False)
class Roster:
    """Which extension of an agent implements which row, in registration order."""

    extensions: tuple[Extension[Any], ...]
    rows: Mapping[str, tuple[Hook, ...]]
    names: tuple[str, ...]

    @classmethod
    def of(cls, extensions: Sequence[Extension[Any]]) -> Roster:
        """Read the extensions.

        Raises: `ConfigError` for a blank or repeated name, or a method that looks like a hook but is none.
        """
        names: list[str] = []
        rows: dict[str, list[Hook]] = {name: [] for name in HOOKS}
        for index, extension in enumerate(extensions):
            if isinstance(extension, type):
                raise ConfigError(f"extension {extension.__name__} is a class; pass an instance of it")
            name = getattr(extension, "name", None)
            if not isinstance(name, str) or not name.strip():
                raise ConfigError(f"an extension of type {type(extension).__name__} needs a `name` with text in it")
            if name in names:
                raise ConfigError(f"two extensions are named {name!r}; names must be unique within an agent")
            names.append(name)
            _refuse_misspelt(extension, name)
            lenient = bool(getattr(extension, "lenient", False))
            for row in HOOKS:
                method = getattr(extension, row, None)
                if method is None or getattr(method, "__func__", None) is getattr(Extension, row):
                    continue
                if not callable(method):
                    raise ConfigError(f"extension {name!r}: {row} must be a method, not {type(method).__name__}")
                rows[row].append(Hook(index, name, lenient, method, inspect.iscoroutinefunction(method)))
        return cls(tuple(extensions), {row: tuple(hooks) for row, hooks in rows.items()}, tuple(names))


def _refuse_misspelt(extension: object, name: str) -> None:
    for attribute in dir(extension):
        if attribute.startswith("_") or attribute in HOOKS or hasattr(Extension, attribute):
            continue
        close = difflib.get_close_matches(attribute, HOOKS, n=1, cutoff=0.8)
        if not close and not attribute.startswith(_HOOK_LIKE):
            continue
        if not callable(getattr(extension, attribute, None)):
            continue
        hint = difflib.get_close_matches(attribute, HOOKS, n=1, cutoff=0.5)
        meant = f"; did you mean {hint[0]!r}?" if hint else f"; the hooks are {', '.join(HOOKS)}"
        raise ConfigError(
            f"extension {name!r}: method {attribute!r} looks like a hook but is none{meant} "
            "(a helper of your own may begin with an underscore)"
        )
