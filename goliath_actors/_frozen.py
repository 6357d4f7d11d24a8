"""Read-only JSON data that still compares, prints and serialises like plain `dict` and `list`.

Values that many hooks share (a step's input, an event's input) hold these, so nobody needs a copy to be safe
from a neighbour. `thaw` makes the plain, writable copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

__all__ = ["ATOMS", "FrozenDict", "FrozenList", "freeze", "thaw"]


def _refuse(self: object, *args: object, **kwargs: object) -> NoReturn:
    raise TypeError("this value is shared and read-only; return a changed copy from the hook instead")


# Any: JSON data is what it holds, at any depth.
class FrozenDict(dict[str, Any]):
    """A `dict` that refuses to be changed."""

    __slots__ = ()
    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = __ior__ = _refuse

    def __copy__(self) -> dict[str, Any]:
        return dict(self)

    def copy(self) -> dict[str, Any]:
        return dict(self)

    def __deepcopy__(self, memo: object) -> dict[str, Any]:
        return {key: thaw(item) for key, item in self.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return (freeze, (thaw(self),))


class FrozenList(list[Any]):
    """A `list` that refuses to be changed."""

    __slots__ = ()
    __setitem__ = __delitem__ = append = extend = insert = remove = pop = clear = sort = reverse = _refuse
    __iadd__ = __imul__ = _refuse

    def __copy__(self) -> list[Any]:
        return list(self)

    def copy(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, memo: object) -> list[Any]:
        return [thaw(item) for item in self]

    def __reduce__(self) -> tuple[Any, ...]:
        return (freeze, (thaw(self),))


# Checked first, by type: most of what data holds is one of these, and an abstract class is slow to ask.
ATOMS = frozenset({str, int, float, bool, type(None)})


def freeze(value: Any) -> Any:
    """Return `value` with every mapping and sequence inside it made read-only; other objects are passed as they are."""
    kind = type(value)
    if kind in ATOMS or kind is FrozenDict or kind is FrozenList:
        return value
    if kind is dict or isinstance(value, Mapping):
        return FrozenDict({key: freeze(item) for key, item in value.items()})
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return FrozenList([freeze(item) for item in value])
    return value


def thaw(value: Any) -> Any:
    """Return a plain, writable, independent copy of the containers in `value`; other objects are passed as they are."""
    kind = type(value)
    if kind in ATOMS:
        return value
    if kind is dict or kind is FrozenDict or isinstance(value, Mapping):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, list):
        return [thaw(item) for item in value]
    if kind is tuple:
        return tuple([thaw(item) for item in value])
    if kind is set:
        return set(value)
    return value
