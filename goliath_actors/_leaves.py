"""The real errors inside of groups, and the words for an error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import trio

__all__ = ["apart", "bare", "in_words", "leaves", "of_its_own", "single"]


def leaves(error: BaseException) -> Iterable[BaseException]:
    """Yield the errors inside a group (at any depth) that are no cancellation; a bare error is its own leaf."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    elif not isinstance(error, trio.Cancelled):
        yield error


def single(error: BaseException) -> BaseException | None:
    """Reduce a group to its one real error; of several, prefer what ends the program, else keep a group of them.

    Returns: None if nothing but cancellations is in the group; what is no group as it is.
    """
    if not isinstance(error, BaseExceptionGroup):
        return error
    real = list({id(leaf): leaf for leaf in leaves(error)}.values())
    for leaf in real:
        if not isinstance(leaf, Exception):
            return leaf
    return real[0] if len(real) == 1 else error.split(trio.Cancelled)[1]


def apart(group: BaseExceptionGroup[BaseException]) -> tuple[Exception, BaseExceptionGroup[trio.Cancelled]] | None:
    """Return the error in a group and the cancellation beside it, which goes on to its scope; None of any other group.

    A nursery of a hook's own, left with an error while the run is cancelled, makes a group of both, and that is no
    `Exception`.
    """
    error, cancelled = single(group), group.subgroup(trio.Cancelled)
    return (error, cancelled) if isinstance(error, Exception) and cancelled is not None else None


def of_its_own(
    group: BaseExceptionGroup[BaseException], passed: Sequence[BaseException], fault: Callable[[Exception], Exception]
) -> BaseExceptionGroup[BaseException] | None:
    """Return a group as `apart` takes it to pieces, with what `fault` makes of its error in the error's place; None for
    any other group, and where the error is one of `passed`, which came through from inside."""
    parts = apart(group)
    if parts is None or any(parts[0] is known for known in passed):
        return None
    error, cancelled = parts
    instead = fault(error)
    instead.__cause__ = error
    return BaseExceptionGroup(group.message, [instead, cancelled])


def bare(error: Exception) -> Exception:
    """Return the single real error inside a group, at any depth; what is no such group as it is (R10)."""
    real = single(error)
    return real if isinstance(real, Exception) else error


def in_words(error: BaseException) -> str:
    """Return an error's text, or the name of its type where it has none, or where its `__str__` fails."""
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001  # an application's class: that it cannot speak must not hide that it was raised
        return type(error).__name__
