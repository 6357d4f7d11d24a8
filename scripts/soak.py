"""Hours of mixed load in one process: nothing may be lost, left behind or grow.

    python scripts/soak.py [--seconds 1800] [--conversations 60] [--seed 1] [--json FILE]

Asks come in a closed loop to a runtime with a simulated model; clients abort, leave, or read slowly; the model fails,
refuses and stalls; the store, a database in a temporary folder, fails, too. The resident memory is taken twice a second
and a line is fitted to it, the first quarter left out. Once the run is long enough for that to mean anything
(`JUDGED`), its slope must not be told from zero, by twice its error, or be a trifle (`MEANT`). Exit status 1 if any
account is not settled, or if memory grows. Ends by itself; no network.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import attrs
import trio

from goliath_actors.abc import Store
from goliath_actors.loadtest import (
    Clients,
    Dice,
    InProcess,
    LoadReport,
    Provider,
    Recorder,
    RuntimeShape,
    Scenario,
    Turn,
    run_load,
)
from goliath_actors.loadtest._faulty import FaultyStore
from goliath_actors.stores import SqliteStore

JUDGED = 300.0
"""Seconds. What a shorter run shows is how an allocator fills up."""

BLOCKS = 20
"""Stretches of time whose means are fitted: samples that lie close together are not independent of each other, and an
error computed from them would be far too small."""

KEPT = 16
"""Latencies of each stretch of time that the report's plots are made from."""

MEANT = 0.02
"""Share of the memory. A drift that would take 50 times the run to double it is no leak, however sure it is."""


@attrs.frozen
class Slope:
    """A line through samples of memory: bytes a second, its standard error, and the mean in bytes."""

    rate: float
    error: float
    mean: float
    seconds: float

    @property
    def grows(self) -> bool:
        """True if the memory grows for sure, and by more than a trifle."""
        return self.rate > 2 * self.error and self.rate * self.seconds > MEANT * self.mean

    @property
    def verdict(self) -> str:
        """What that means, in words."""
        if abs(self.rate) <= 2 * self.error:
            return "not to be told from zero"
        if self.rate < 0:
            return "it shrinks"
        return "it grows" if self.grows else f"it grows by less than {MEANT:.0%} in this run, which is let pass"

    def __str__(self) -> str:
        rate, error = self.rate * 3600 / 2**20, self.error * 3600 / 2**20
        return f"{rate:+.1f} ± {2 * error:.1f} MB an hour, at {self.mean / 2**20:.0f} MB"


def fit(samples: Sequence[tuple[float, float]], blocks: int = BLOCKS) -> Slope:
    """Fit a line by least squares to the means of `blocks` stretches of `samples`, pairs of seconds and bytes.

    Raises: `ValueError` for fewer than three samples.
    """
    count = min(blocks, len(samples))
    if count < 3:
        raise ValueError("a line and its error need three samples")
    edges = [round(number * len(samples) / count) for number in range(count + 1)]
    means = [
        tuple(math.fsum(column) / (end - begin) for column in zip(*samples[begin:end], strict=True))
        for begin, end in itertools.pairwise(edges)
    ]
    middle, mean = (math.fsum(column) / count for column in zip(*means, strict=True))
    spread = math.fsum((at - middle) ** 2 for at, _ in means)
    rate = math.fsum((at - middle) * (size - mean) for at, size in means) / spread
    left = math.fsum((size - mean - rate * (at - middle)) ** 2 for at, size in means)
    return Slope(rate, math.sqrt(left / (count - 2) / spread), mean, samples[-1][0] - samples[0][0])


def resident() -> int:
    """Return this process's resident memory in bytes, 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


@attrs.define(eq=False)
class Soaked(InProcess):
    """A runtime on a database whose commits fail now and then."""

    def _store(self) -> Store:
        dice = random.Random(self.scenario.seed)
        return FaultyStore(SqliteStore(Path(self.scenario.runtime.store)), {}, share=0.01, dice=dice)


def scenario_for(seconds: float, conversations: int, seed: int, store: str) -> Scenario:
    """Return the mixed load. Conversations are replaced after some turns, and forgotten soon after."""
    return Scenario(
        name="soak",
        seed=seed,
        mode="closed",
        duration=seconds,
        max_asks=10_000_000,
        conversations=conversations,
        turns=8,
        think=Dice("exponential", 0.3),
        timeout=5.0,
        mix=[Turn(weight=3), Turn("Look it up.", weight=2, tools=1), Turn("Do both.", tools=2)],
        clients=Clients(abandon=0.05, abort=0.05, slow=0.1),
        provider=Provider(
            first_token=Dice("exponential", 0.02),
            tokens=Dice("uniform", 5, 60),
            tokens_per_second=400,
            errors=0.01,
            rate_limited=0.01,
            retry_after=0.05,
            stalls=0.005,
        ),
        runtime=RuntimeShape(store=store, idle_timeout=min(seconds / 10, 20.0)),
    )


async def soak(seconds: float, conversations: int, seed: int) -> tuple[LoadReport, Slope]:
    """Run it, and return what came of it and how the memory went."""
    samples: list[tuple[float, float]] = []

    def look(record: Recorder) -> None:
        # The plots over time would hold some hundred latencies for each of their points: memory that grows, and not
        # what is looked for.
        for bucket in record.buckets.values():
            del bucket.latencies[KEPT:], bucket.firsts[KEPT:]
        now = trio.current_time() - record.start
        if seconds / 4 <= now <= seconds:
            samples.append((now, float(resident())))

    with tempfile.TemporaryDirectory() as folder:
        scenario = scenario_for(seconds, conversations, seed, str(Path(folder) / "soak.db"))
        report = await run_load(scenario, Soaked(scenario), on_progress=look)
    return report, fit(samples)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1800.0, help="default: %(default)s")
    parser.add_argument("--conversations", type=int, default=60, help="clients at once (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what came of it to this file")
    options = parser.parse_args()
    report, slope = trio.run(soak, options.seconds, options.conversations, options.seed)
    print(report.as_text())
    judged = options.seconds >= JUDGED
    verdict = slope.verdict if judged else "too short to judge"
    print(f"memory: {slope}: {verdict}")
    if options.json is not None:
        data = {"report": report.as_data(), "memory": attrs.asdict(slope), "verdict": verdict}
        options.json.write_text(json.dumps(data, indent=2) + "\n")
    return 0 if report.ok and not (judged and slope.grows) else 1


if __name__ == "__main__":
    sys.exit(main())
