"""What was made of messages and tools, kept to be used again: most of them come at each call.

Uses nothing of ours; used by _wire and _values_wire.
"""

from __future__ import annotations

from collections.abc import Callable
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
        self._new: dict[int, tuple[K, T]] = {}
        self._old: dict[int, tuple[K, T]] = {}
        self._size = 0

    def get(self, value: K) -> T:
        """Return what `make` makes of a value. Raises: what it raises."""
        kept = self._new.get(id(value))
        if kept is None or kept[0] is not value:
            kept = self._old.get(id(value))
            if kept is None or kept[0] is not value:
                kept = value, self._make(value)
            self._keep(kept)
        return kept[1]

    def kept(self) -> list[T]:
        """Return all that is kept."""
        return [made for _, made in [*self._new.values(), *self._old.values()]]

    def _keep(self, kept: tuple[K, T]) -> None:
        # The value holds the same texts once more: counted as if they were as long.
        size = 2 * self._size_of(kept[1]) + 200
        if size > self._at_most:
            return
        self._size += size
        if self._size > self._at_most:
            self._old, self._new, self._size = self._new, {}, size
        self._new[id(kept[0])] = kept
