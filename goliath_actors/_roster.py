"""Which extension of an agent implements which row of the hook table, read once per agent."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from ._callables import check_takes
from .errors import ConfigError
from .hooks import HOOKS, Composition, Extension
from .tools import Tool

__all__ = ["Hook", "Roster"]

_HOOK_LIKE = ("before_", "after_", "around_", "on_", "transform_", "resolve_")
_ARGUMENTS: Final = {
    Composition.NEST: ("ctx", "question", "call_next"),
    Composition.PIPE: ("ctx", "events", "control"),
}


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
    # Whether any extension implements the row: asked some thirty times in a turn.
    heard: Mapping[str, bool] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "heard", {row: bool(hooks) for row, hooks in self.rows.items()})

    @classmethod
    def of(cls, extensions: Sequence[Extension[Any]]) -> Roster:
        """Read the extensions.

        Raises: `ConfigError` for a blank or repeated name, a method that looks like a hook but is none, one that
        certainly cannot be called with what its row gives, and an attribute of the wrong type.
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
            _refuse_wrong_attributes(extension, f"extension {name!r}")
            lenient = getattr(extension, "lenient", False)
            for row in HOOKS:
                method = getattr(extension, row, None)
                if method is None or getattr(method, "__func__", None) is getattr(Extension, row):
                    continue
                if not callable(method):
                    raise ConfigError(f"extension {name!r}: {row} must be a method, not {type(method).__name__}")
                arguments = _ARGUMENTS.get(HOOKS[row].composition, ("ctx", "question"))
                check_takes(f"extension {name!r}: {row}", method, arguments)
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


def _refuse_wrong_attributes(extension: object, what: str) -> None:
    """Refuse what an extension puts where the runtime looks for something else; some names are easily taken."""
    lenient = getattr(extension, "lenient", False)
    if not isinstance(lenient, bool):
        raise ConfigError(f"{what}: lenient must be True or False, not {lenient!r}")
    # A property may have its text only later: it is read for each prompt.
    if not isinstance(inspect.getattr_static(extension, "instructions", ""), property):
        instructions = getattr(extension, "instructions", "")
        if not isinstance(instructions, str):
            raise ConfigError(f"{what}: instructions must be a string, not {type(instructions).__name__}")
    # Likewise: the agent reads it.
    live = isinstance(inspect.getattr_static(extension, "tools", ()), property)
    tools = () if live else getattr(extension, "tools", ())
    if isinstance(tools, Tool):
        raise ConfigError(f"{what}: tools must be a list; write tools = [{tools.name}]")
    if not isinstance(tools, Iterable) or isinstance(tools, str | Mapping):
        raise ConfigError(f"{what}: tools must be a list of tools, not {type(tools).__name__}")
    for name, arguments in (("lifespan", ("agent",)), ("snapshot", ())):
        method = getattr(extension, name, None)
        if method is None:
            continue
        if not callable(method):
            raise ConfigError(f"{what}: {name} must be a method, not {type(method).__name__}")
        check_takes(f"{what}: {name}", method, arguments)
    lifespan = getattr(extension, "lifespan", None)
    if any(says(lifespan) for says in _NO_MANAGER):
        raise ConfigError(
            f"{what}: lifespan must give an async context manager; decorate it with contextlib.asynccontextmanager"
        )


# Calling one of these never gives a context manager.
_NO_MANAGER: Final[tuple[Callable[[object], bool], ...]] = (
    inspect.iscoroutinefunction,
    inspect.isasyncgenfunction,
    inspect.isgeneratorfunction,
)
