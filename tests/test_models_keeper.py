"""What adapters keep of messages: found by identity, so nothing may be kept of a value that is not held."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from goliath_actors.models._keeper import Keeper


class Value:
    """Found by identity alone."""


def keeper(made: list[Value]) -> Keeper[Value, str]:
    """Return one that has room for two values in each half."""

    def make(value: Value) -> str:
        made.append(value)
        return f"{made.index(value)}"

    return Keeper(make, lambda _: 100, at_most=1600)


@contextmanager
def between_two_lines(function: Callable[..., Any], number: int, act: Callable[[], object]) -> Iterator[None]:
    """Call `act` before the line of `function` that is the `number`th to be executed, as another thread might."""
    lines = 0

    def each_line(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        if event == "line":
            lines += 1
            if lines == number:
                sys.settrace(None)
                act()
        return each_line

    def each_call(frame: FrameType, event: str, argument: object) -> Any:
        return each_line if frame.f_code is function.__code__ else None

    before = sys.gettrace()
    sys.settrace(each_call)
    try:
        yield
    finally:
        sys.settrace(before)


def test_a_value_is_made_once_for_as_long_as_it_is_used() -> None:
    made: list[Value] = []
    kept = keeper(made)
    first = Value()
    for _ in range(6):
        assert kept.each([first, Value()])[0] == "0"
    assert made.count(first) == 1
    assert len(kept.kept()) <= 4


@pytest.mark.parametrize("number", range(1, 40))
@pytest.mark.parametrize("others", range(1, 6))
def test_nothing_is_kept_of_a_value_that_is_not_held_whatever_another_thread_does_meanwhile(
    number: int, others: int
) -> None:
    kept = keeper([])
    kept.each([Value(), Value()])
    with between_two_lines(Keeper._find, number, lambda: kept.each([Value() for _ in range(others)])):
        kept.each([Value(), Value(), Value()])
    for _ in range(3):
        for half in (kept._new, kept._old):
            assert set(half.made) <= {id(value) for value in half.held}
        kept.each([Value()])
