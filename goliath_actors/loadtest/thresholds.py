"""Thresholds such as `p99>2s`: when a load test has failed although nothing broke."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import attrs

from goliath_actors.errors import ConfigError

from ._dice import read_seconds, show_seconds

__all__ = ["Judged", "Threshold", "read_threshold"]

_FORM = re.compile(r"\s*(?:(latency|first|queued|lag)\.)?([a-z_][a-z0-9_.]*)\s*(>=|<=|>|<)\s*(\S+)\s*")
_TIMES = re.compile(r"p\d+(\.\d+)?|mean|max")
_OTHERWISE = {">": "<=", "<": ">=", ">=": "<", "<=": ">"}
_COUNTS = ("errors", "refused", "aborted", "completed", "not_sent", "rate")
_KNOWN = "p50, p75, p90, p95, p99, p99.9, mean, max (of latency, or first.p99, queued.p99, lag.p99), " + ", ".join(
    _COUNTS
)


@attrs.frozen
class Judged:
    """A threshold held against a report's figures. `text`, as it was written; `value`, the figure, in seconds where it
    is a time and a share where the limit is one; `shown`, the same for people; `wanted`, what should be so, such as
    `p99 <= 2s` where the test fails if `p99>2s`; `held`, whether it is."""

    text: str
    held: bool
    value: float
    shown: str
    wanted: str


@attrs.frozen
class Threshold:
    """A condition that fails a load test."""

    text: str
    track: str
    figure: str
    relation: str
    limit: float
    share: bool = False

    def value(self, figures: Mapping[str, Any]) -> float:
        """Return the figure that this looks at, from a report's figures."""
        if self.track:
            return float(figures[self.track][self.figure])
        value = float(figures["rate"] if self.figure == "rate" else figures["counts"][self.figure])
        return value / max(figures["counts"]["sent"], 1) if self.share else value

    def broken(self, figures: Mapping[str, Any]) -> bool:
        """Return whether the condition holds, so that the load test has failed."""
        value = self.value(figures)
        match self.relation:
            case ">":
                return value > self.limit
            case "<":
                return value < self.limit
            case ">=":
                return value >= self.limit
            case _:
                return value <= self.limit

    def judge(self, figures: Mapping[str, Any]) -> Judged:
        """Return whether a load test stayed clear of this condition, and by what figure."""
        value = self.value(figures)
        number = f"{value:.1%}" if self.share else f"{value:.4g}"
        shown = show_seconds(value) if self.track else number
        figure, limit = self.text.split(self.relation, 1)
        wanted = f"{figure.strip()} {_OTHERWISE[self.relation]} {limit.strip()}"
        return Judged(self.text, not self.broken(figures), value, shown, wanted)


def read_threshold(text: str) -> Threshold:
    """Return the condition in a text such as `p99>2s`, `first.p95>500ms`, `errors>1%`, `rate<40`.

    Raises: `ConfigError` saying what there is to compare.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text!r} is no condition; write one such as 'p99>2s', 'first.p95>500ms' or 'errors>1%'")
    track, figure, relation, limit = match.groups()
    if _TIMES.fullmatch(figure):
        if figure.startswith("p") and figure not in ("p50", "p75", "p90", "p95", "p99", "p99.9"):
            raise ConfigError(f"{text!r}: there is no {figure}; there are {_KNOWN}")
        return Threshold(text, track or "latency", figure, relation, read_seconds(f"the limit of {text!r}", limit))
    if track is not None or figure not in _COUNTS:
        raise ConfigError(f"{text!r}: there is no {figure}; there are {_KNOWN}")
    share = limit.endswith("%")
    try:
        number = float(limit.removesuffix("%"))
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise ConfigError(f"{text!r}: {limit!r} is no number of 0 or more")
    if share and figure == "rate":
        raise ConfigError(f"{text!r}: a rate is a number of answers a second")
    return Threshold(text, "", figure, relation, number / 100 if share else number, share)
