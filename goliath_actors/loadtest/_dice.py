"""Amounts that vary: times and counts as a scenario writes them, and the numbers drawn from them."""

from __future__ import annotations

import math
import random
import re

import attrs

from goliath_actors.errors import ConfigError

__all__ = ["Dice", "read_dice", "read_seconds", "show_dice", "show_number", "show_seconds"]

_TIME = re.compile(r"((?:\d+(?:\.\d+)?|\.\d+)(?:e[+-]?\d+)?)\s*(us|ms|s|min|m|h)?")
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, None: 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_SHAPE = re.compile(r"(\w+)\((.*)\)")
_SHAPES = {
    "uniform": "uniform(LOW, HIGH)",
    "normal": "normal(MEAN, DEVIATION)",
    "exponential": "exponential(MEAN)",
    "lognormal": "lognormal(MEDIAN, SIGMA)",
}


def read_seconds(where: str, text: object) -> float:
    """Return a time in seconds: a number, or a text such as `200ms`, `1.5s`, `10min`.

    Raises: `ConfigError` naming `where`.
    """
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        seconds = float(text)
    else:
        match = _TIME.fullmatch(text.strip()) if isinstance(text, str) else None
        if match is None:
            raise ConfigError(f"{where} is {text!r}; write a time such as 200ms, 1.5s or 10min")
        seconds = float(match[1]) * _UNITS[match[2]]
    if not math.isfinite(seconds) or seconds < 0:
        raise ConfigError(f"{where} is {text!r}; it is a time of 0 or more")
    return seconds


def show_seconds(value: float) -> str:
    """Return a time as a person reads it: three digits and a unit."""
    if value < 0.001:
        return f"{value * 1e6:.0f} us"
    return f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.2f} s"


@attrs.frozen
class Dice:
    """An amount that is drawn anew each time. `shape` is `fixed` or one of the names in a scenario; never below 0.

    Raises: `ConfigError` for another shape, numbers below 0, and a `uniform` whose first is the larger one.
    """

    shape: str
    first: float
    second: float = 0.0

    def __attrs_post_init__(self) -> None:
        """Check what is drawn from."""
        if self.shape not in ("fixed", *_SHAPES):
            raise ConfigError(f"there is no shape {self.shape!r}; there are fixed, {', '.join(_SHAPES)}")
        for number in (self.first, self.second):
            if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number < math.inf:
                raise ConfigError(f"Dice({self.shape!r}, ...) takes numbers of 0 or more, not {number!r}")
        if self.shape == "uniform" and self.first > self.second:
            raise ConfigError("the first of a uniform's two is the smaller")

    def draw(self, random: random.Random) -> float:
        """Return one amount, drawn from `random`."""
        match self.shape:
            case "uniform":
                return random.uniform(self.first, self.second)
            case "normal":
                return max(random.gauss(self.first, self.second), 0.0)
            case "exponential":
                return random.expovariate(1 / self.first) if self.first else 0.0
            case "lognormal":
                return random.lognormvariate(math.log(self.first), self.second) if self.first else 0.0
            case _:
                return self.first


def show_number(value: float) -> str:
    """Return a number as a person would write it in a file."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(value)


def show_dice(dice: Dice) -> str:
    """Return what `read_dice` reads as `dice`, in the form that stands in a TOML file."""
    if dice.shape not in _SHAPES:
        return show_number(dice.first)
    parts = (dice.first, dice.second)[: _SHAPES[dice.shape].count(",") + 1]
    return f'"{dice.shape}({", ".join(map(show_number, parts))})"'


def read_dice(where: str, text: object) -> Dice:
    """Return the amounts that a scenario writes as a number, a time, or a shape such as `lognormal(300ms, 0.4)`.

    Raises: `ConfigError` naming `where` and the shapes that there are.
    """
    match = _SHAPE.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        return Dice("fixed", read_seconds(where, text))
    shape, inside = match[1], [part.strip() for part in match[2].split(",")]
    if shape not in _SHAPES:
        raise ConfigError(f"{where} is {text!r}; the shapes are {', '.join(_SHAPES.values())}")
    if len(inside) != _SHAPES[shape].count(",") + 1:
        raise ConfigError(f"{where} is {text!r}; write {_SHAPES[shape]}")
    numbers = [read_seconds(where, part) for part in inside]
    try:
        return Dice(shape, *numbers)
    except ConfigError as error:
        raise ConfigError(f"{where} is {text!r}; {error}") from None
