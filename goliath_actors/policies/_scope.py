"""What a policy counts by, and what it keeps of each key between runs.

Used by the policies that outlive a run. Everything is timed on trio's clock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import trio

from goliath_actors.errors import ConfigError
from goliath_actors.hooks import HookContext

__all__ = ["Keyed", "Scope", "key_of", "positive"]

# Any: a policy looks at the application's context only through the application's own callables.
Scope: TypeAlias = 'Literal["run", "conversation", "agent", "all"] | Callable[[HookContext[Any]], Hashable]'
V = TypeVar("V")

_KEYS: dict[str, Callable[[HookContext[Any]], Hashable]] = {
    "run": lambda ctx: ctx.run_id,
    "conversation": lambda ctx: (ctx.agent_name, ctx.conversation_id),
    "agent": lambda ctx: ctx.agent_name,
    "all": lambda ctx: None,
}


def key_of(who: str, scope: object, allowed: tuple[str, ...]) -> Callable[[HookContext[Any]], Hashable]:
    """Return what makes a key of a hook's context.

    Raises: `ConfigError` for a word that is not allowed, and for what is neither a word nor callable.
    """
    if isinstance(scope, str) and scope in allowed:
        return _KEYS[scope]
    if callable(scope):
        key: Callable[[HookContext[Any]], Hashable] = scope
        return key
    words = ", ".join(map(repr, allowed))
    raise ConfigError(f"{who}(scope=...) must be {words} or a callable that takes the hook's context, not {scope!r}")


def positive(what: str, value: object, *, whole: bool = False) -> None:
    """Refuse what is no finite number above 0.

    Raises: `ConfigError`.
    """
    right = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not right or not 0 < value < float("inf"):  # type: ignore[operator]  # a number, by the line above
        kind = "a whole number" if whole else "a finite number"
        raise ConfigError(f"{what} must be {kind} above 0, not {value!r}")


class Keyed(Generic[V]):
    """One value for each key, on one clock. Keys that have nothing left to remember are forgotten by and by.

    `make()` makes the value of a new key; `idle(value, now)` says that forgetting it would change nothing.
    """

    def __init__(self, make: Callable[[], V], idle: Callable[[V, float], bool]) -> None:
        self._make = make
        self._idle = idle
        # Least recently used first.
        self._values: OrderedDict[Hashable, V] = OrderedDict()
        self._clock: object = None

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable) -> V:
        """Return the value of a key, a new one if nothing is known. Forgets up to two idle keys."""
        # Why: each `trio.run` has a clock with a zero of its own, so that times of an earlier one mean nothing.
        clock = trio.lowlevel.current_clock()
        if clock is not self._clock:
            self._clock = clock
            self._values.clear()
        self._sweep(trio.current_time())
        if key not in self._values:
            self._values[key] = self._make()
        self._values.move_to_end(key)
        return self._values[key]

    def forget(self, key: Hashable) -> None:
        """Drop a key; one that is not there is no error."""
        self._values.pop(key, None)

    def _sweep(self, now: float) -> None:
        # Two for each one that comes, so that the number of keys never runs away from those in use.
        for _ in range(min(2, len(self._values))):
            key, value = next(iter(self._values.items()))
            if self._idle(value, now):
                del self._values[key]
            else:
                # One that is busy must not hide idle ones behind it.
                self._values.move_to_end(key)
