"""What came of every ask, as numbers that stay small however long a load test runs."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs
from hdrh.histogram import HdrHistogram

__all__ = ["Bucket", "Observation", "Recorder", "Status", "Track"]

Status = Literal["completed", "stopped", "error", "aborted", "refused"]

_LONGEST = 3_600_000_000  # microseconds; longer is counted as this
_FINEST = 0.5  # seconds of one point, at least
_BUCKETS = 300  # points in the plots over time
_SAMPLES = 400  # latencies kept of each point
_EXAMPLE = 300  # characters
PERCENTILES = (50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 100.0)


@attrs.define(eq=False)
class Observation:
    """One ask. Times are seconds on trio's clock; `intended` is when it should have begun. `reason` is the kind of an
    end that was no answer, `words` what was said of it."""

    intended: float
    began: float
    first: float | None = None
    ended: float | None = None
    started: float | None = None
    status: Status = "error"
    reason: str = ""
    words: str = ""

    @property
    def latency(self) -> float:
        """Seconds from the intended start to the end."""
        return (self.began if self.ended is None else self.ended) - self.intended


@attrs.define(eq=False)
class Track:
    """Times in microseconds, as an HDR histogram: three digits, a fixed size whatever is recorded."""

    histogram: Any = attrs.field(factory=lambda: HdrHistogram(1, _LONGEST, 3))  # Any: the library has no types
    total: float = 0.0
    most: float = 0.0

    def add(self, seconds: float) -> None:
        self.histogram.record_value(min(max(int(seconds * 1e6), 1), _LONGEST))
        self.total += seconds
        self.most = max(self.most, seconds)

    @property
    def count(self) -> int:
        return int(self.histogram.get_total_count())

    def at(self, percentile: float) -> float:
        """Return the seconds that `percentile` of the values do not pass; 0 without values."""
        if not self.count:
            return 0.0
        if percentile >= 100:
            return self.most
        return min(float(self.histogram.get_value_at_percentile(percentile)) / 1e6, self.most)

    def summary(self) -> dict[str, float]:
        """Return count, mean and percentiles as plain data, in seconds."""
        mean = self.total / self.count if self.count else 0.0
        return {
            "count": self.count,
            "mean": mean,
            **{f"p{percentile:g}": self.at(percentile) for percentile in PERCENTILES[:-1]},
            "max": self.most,
        }

    def encoded(self) -> str:
        """Return the whole histogram in the standard compressed form, so that others can add and compare."""
        encoded = self.histogram.encode()
        return encoded.decode("ascii") if isinstance(encoded, bytes) else str(encoded)


@attrs.define(eq=False)
class Bucket:
    """What ended in one stretch of time: counts, a sample of the latencies, and how deep the queues were."""

    ended: int = 0
    failed: int = 0
    latencies: list[float] = attrs.field(factory=list)
    firsts: list[float] = attrs.field(factory=list)
    waiting: int = 0
    running: int = 0


@attrs.define(eq=False)
class Recorder:
    """Counts observations. `width`: seconds of one point in the plots over time."""

    start: float
    width: float
    latency: Track = attrs.field(factory=Track)
    first: Track = attrs.field(factory=Track)
    queued: Track = attrs.field(factory=Track)
    lag: Track = attrs.field(factory=Track)
    statuses: Counter[str] = attrs.field(factory=Counter)
    reasons: Counter[str] = attrs.field(factory=Counter)
    # What was said of the first end of each reason: kinds are few, texts are not.
    examples: dict[str, str] = attrs.field(factory=dict)
    buckets: dict[int, Bucket] = attrs.field(factory=dict)
    sent: int = 0
    in_flight: int = 0
    most_in_flight: int = 0
    not_sent: int = 0
    _random: random.Random = attrs.field(factory=lambda: random.Random(0))

    @classmethod
    def over(cls, start: float, seconds: float) -> Recorder:
        """Return a recorder for a load test of `seconds`."""
        return cls(start, max(seconds / _BUCKETS, _FINEST))

    def bucket(self, at: float) -> Bucket:
        """Return the stretch of time that holds `at`. Late ones share the last."""
        return self.buckets.setdefault(min(int((at - self.start) / self.width), 4 * _BUCKETS), Bucket())

    def began(self, observation: Observation) -> None:
        self.sent += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        self.lag.add(max(observation.began - observation.intended, 0.0))

    def over_with(self, observation: Observation) -> None:
        """Count one that is over. Only answers have a latency: an early refusal is not a fast answer."""
        self.in_flight -= 1
        self.statuses[observation.status] += 1
        if observation.reason:
            reason = f"{observation.status}: {observation.reason}"
            self.reasons[reason] += 1
            if observation.words:
                self.examples.setdefault(reason, observation.words[:_EXAMPLE])
        bucket = self.bucket(observation.began if observation.ended is None else observation.ended)
        if observation.status in ("completed", "stopped"):
            bucket.ended += 1
            self.latency.add(observation.latency)
            self._keep(bucket.latencies, bucket.ended, observation.latency)
        elif observation.status in ("error", "refused"):
            bucket.failed += 1
        if observation.first is not None:
            self.first.add(observation.first - observation.intended)
            self._keep(bucket.firsts, bucket.ended + bucket.failed, observation.first - observation.intended)
        if observation.started is not None:
            self.queued.add(max(observation.started - observation.began, 0.0))

    def _keep(self, kept: list[float], seen: int, value: float) -> None:
        """Keep a fair sample of a bounded size (Vitter's algorithm R)."""
        if len(kept) < _SAMPLES:
            kept.append(value)
        elif (place := self._random.randrange(max(seen, 1))) < _SAMPLES:
            kept[place] = value

    def timeline(self) -> Sequence[Mapping[str, float | None]]:
        """Return the points over time as plain data. A time is None where nothing ended: it is not 0."""
        points = []
        for index in sorted(self.buckets):
            bucket = self.buckets[index]
            latencies, firsts = sorted(bucket.latencies), sorted(bucket.firsts)
            points.append(
                {
                    "at": index * self.width,
                    "ended": bucket.ended / self.width,
                    "failed": bucket.failed / self.width,
                    "p50": _rank(latencies, 0.5),
                    "p99": _rank(latencies, 0.99),
                    "first_p50": _rank(firsts, 0.5),
                    "first_p99": _rank(firsts, 0.99),
                    "waiting": bucket.waiting,
                    "running": bucket.running,
                }
            )
        return points


def _rank(values: Sequence[float], share: float) -> float | None:
    return values[min(int(len(values) * share), len(values) - 1)] if values else None
