"""What was made of messages and tools, kept to be used again: most of them come at each call.

Uses nothing of ours; used by _wire and _values_wire.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, final

__all__ = ["KEPT_AT_MOST", "Keeper"]

KEPT_AT_MOST = 32 * 1024 * 1024
"""Bytes that one adapter keeps of messages in writing, and as many of tools.

As much as the histories that a runtime keeps need: with less, what is kept of one conversation is dropped for others
before it is used again, and all of it is written anew at each call.
"""

K = TypeVar("K")
T = TypeVar("T")


@final
class _Half(Generic[K, T]):
    """What was made of values, by their identity, and the values, so that no other can have it."""

    # Invariant: `made` has nothing of a value that is not in `held`. Threads may share an adapter, so a value is held
    # before it can be found.
    __slots__ = ("held", "made")

    def __init__(self) -> None:
        self.held: list[K] = []
        self.made: dict[int, T] = {}


@final
class Keeper(Generic[K, T]):
    """Makes something of each of the values that it is given, once as long as it is kept.

    What is kept is bounded: the newest `at_most` bytes, about half of which are dropped at a time. It is found by
    identity, since a loop hands on the values that it holds, and comparing long texts costs as much as making it
    again.

    Arguments: `make`, a function of a value, which is frozen; `size`, of what it made: in bytes.
    """

    def __init__(self, make: Callable[[K], T], size: Callable[[T], int], at_most: int = KEPT_AT_MOST) -> None:
        self._make = make
        self._size_of = size
        self._at_most = at_most // 2
        # Invariant: `_new` has at most half of the bytes, `_old` what was `_new` before; what is used again moves up.
        self._new: _Half[K, T] = _Half()
        self._old: _Half[K, T] = _Half()
        self._size = 0

    def each(self, values: Sequence[K]) -> list[T]:
        """Return what `make` makes of each of the values. Raises: what it raises."""
        # In one go, since a long history costs little more than this: nothing but the identities of most is looked at.
        found = [*map(self._new.made.get, map(id, values))]
        return [self._find(values[place]) if made is None else made for place, made in enumerate(found)]

    def kept(self) -> list[T]:
        """Return all that is kept."""
        return [*self._new.made.values(), *self._old.made.values()]

    def _find(self, value: K) -> T:
        made = self._new.made.get(id(value))
        if made is not None:
            return made  # the same value twice
        made = self._old.made.get(id(value))
        if made is None:
            made = self._make(value)
        # The value holds the same texts once more: counted as if they were as long.
        size = 2 * self._size_of(made) + 200
        if size <= self._at_most:
            self._size += size
            if self._size > self._at_most:
                self._old, self._new, self._size = self._new, _Half(), size
            half = self._new
            half.held.append(value)
            half.made[id(value)] = made
        return made
