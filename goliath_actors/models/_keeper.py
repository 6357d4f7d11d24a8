"""What was made of messages and tools, kept to be used again: most of them come at each call.

Uses nothing of ours; used by _wire and _values_wire.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, final

__all__ = ["KEPT_AT_MOST", "Keeper"]

KEPT_AT_MOST = 8 * 1024 * 1024
"""Bytes that one adapter keeps of messages in writing, and as many of tools."""

K = TypeVar("K")
T = TypeVar("T")


@final
class Keeper(Generic[K, T]):
    """Makes something of each of the values that it is given, once as long as it is kept.

    What is kept is bounded: the newest `at_most` bytes, about half of which are dropped at a time. It is found by
    identity, since a loop hands on the values that it holds, and comparing long texts costs as much as making it
    again; what is kept holds its value, so that no other can have its identity.

    Arguments: `make`, a function of a value, which is frozen; `size`, of what it made: in bytes.
    """

    def __init__(self, make: Callable[[K], T], size: Callable[[T], int], at_most: int = KEPT_AT_MOST) -> None:
        self._make = make
        self._size_of = size
        self._at_most = at_most // 2
        # Invariant: `_new` has at most half of the bytes, `_old` what was `_new` before; what is used again moves up.
        # Each holds its values beside what was made of them, which is found by their identity.
        self._new: dict[int, T] = {}
        self._old: dict[int, T] = {}
        self._held: tuple[list[K], list[K]] = [], []
        self._size = 0

    def each(self, values: Sequence[K]) -> list[T]:
        """Return what `make` makes of each of the values. Raises: what it raises."""
        # In one go, since a long history costs little more than this: nothing but the identities of most is looked at.
        found = [*map(self._new.get, map(id, values))]
        return [self._find(values[place]) if made is None else made for place, made in enumerate(found)]

    def kept(self) -> list[T]:
        """Return all that is kept."""
        return [*self._new.values(), *self._old.values()]

    def _find(self, value: K) -> T:
        made = self._new.get(id(value))
        if made is not None:
            return made  # the same value twice
        made = self._old.get(id(value))
        if made is None:
            made = self._make(value)
        # The value holds the same texts once more: counted as if they were as long.
        size = 2 * self._size_of(made) + 200
        if size <= self._at_most:
            self._size += size
            if self._size > self._at_most:
                self._old, self._new, self._size = self._new, {}, size
                self._held = [], self._held[0]
            self._new[id(value)] = made
            self._held[0].append(value)
        return made
