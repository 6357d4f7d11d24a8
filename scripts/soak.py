"""Mixed load in one process for as long as you like: nothing may be lost, left behind or grow.

    python scripts/soak.py [--seconds 1800] [--rate N] [--seed 1] [--json FILE]

First it looks for the highest rate that a runtime with a simulated model sustains here: asks a second in an open loop,
doubled and then halved in between, for as long as the median latency stays near that of a calm runtime. Then it asks at
`SHARE` of that rate. Clients abort, leave, or read slowly; the model fails, refuses and stalls; the store, a database
in a temporary folder, fails, too.

The load pauses at fixed points. There every ask has ended, every idle conversation is forgotten, trio has let go of
deadlines that were called off, and the collector has run: the process holds what a runtime without work holds, and
that must be the same every time. At each point three things are read: the blocks that Python has given out, the bytes
that the C library has, and the resident memory. A line is fitted to each over the number of asks, the first quarter
left out. The most that were in flight until then is a second cause beside it: what allocators take for a crowd they do
not give back in full, so a crowd larger than any before makes a step, which is no leak. Memory grows if such a line
rises for certain (its 99.9 % interval lies above zero), over all points and also over the last half of them: what fills
up and then stays, as a cache does, is no leak. What is printed says with each slope its interval, and so the smallest
leak that this run would have found. A run of less than a minute is not judged.

Exit status 1 if an account is not settled, if a point holds a conversation, if the later points hold more tasks or
files than the earlier ones (but for a store's connections), or if memory grows. Ends by itself; no network.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import math
import os
import random
import sqlite3
import statistics
import sys
import tempfile
import weakref
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import attrs
import trio

from goliath_actors.abc import Store
from goliath_actors.loadtest import (
    Burst,
    Check,
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
from goliath_actors.loadtest._drive import Driver
from goliath_actors.loadtest._faulty import FaultyStore
from goliath_actors.loadtest._ledger import Belongings
from goliath_actors.loadtest._measure import Observation
from goliath_actors.loadtest.report import make_report
from goliath_actors.loadtest.targets import Order
from goliath_actors.stores import SqliteStore

SHARE = 0.75
"""Of the rate that was found: on a machine that others use, what was sustained a minute ago may be too much now."""

CALM = 10.0
"""Asks a second that any machine takes: what a median latency is without a queue."""

SLOWED = 1.5
"""A rate is sustained while the median latency is at most so many times that of a calm runtime: a queue that grows has
no bound, and shows in seconds."""

MOST_RATE = 5000.0
POOL = 16
"""Files more that later points may hold: a store opens its connections, five of three files each, as it comes to need
them. A file that an ask leaves behind is found all the same: there are thousands of asks, and a last count."""

CACHES = 512 * 1024
"""Bytes that SQLite keeps in all."""

CONFIDENCE = 0.999
JUDGED = 60.0
"""Seconds. What a shorter run shows is how caches and allocators fill up."""

KEPT = 16
"""Latencies of each stretch of time that the report's plots are made from: more would be memory that grows."""


# --- judging ----------------------------------------------------------------------------------------------------------


@attrs.frozen
class Slope:
    """A line through samples: its rise for each ask, and the half-width of the interval that holds the true one."""

    rate: float
    margin: float

    @property
    def rises(self) -> bool:
        """True if it rises for certain."""
        return self.rate > self.margin


def fit(samples: Sequence[tuple[float, float]], beside: Sequence[float] = ()) -> Slope:
    """Fit a line by least squares, with Student's interval for its slope at `CONFIDENCE`.

    Arguments: `beside`, for each sample a second cause, whose share is taken out of both columns first (Frisch, Waugh
    and Lovell: the slope is then that of a fit over both).

    Raises: `ValueError` for fewer than four samples, or if all lie above one place.
    """
    count = len(samples)
    if count < 4:
        raise ValueError("a line and its error need four samples")
    places, sizes = (_centred(column) for column in zip(*samples, strict=True))
    freedom = count - 2
    if count > 4 and beside and any(cause := _centred(beside)):
        places, sizes, freedom = _without(places, cause), _without(sizes, cause), count - 3
    spread = math.fsum(place**2 for place in places)
    if not spread:
        raise ValueError("all samples lie above one place")
    rate = math.fsum(place * size for place, size in zip(places, sizes, strict=True)) / spread
    left = math.fsum((size - rate * place) ** 2 for place, size in zip(places, sizes, strict=True))
    return Slope(rate, math.sqrt(left / freedom / spread) * student(CONFIDENCE, freedom))


def _centred(column: Sequence[float]) -> list[float]:
    mean = math.fsum(column) / len(column)
    return [value - mean for value in column]


def _without(column: Sequence[float], cause: Sequence[float]) -> list[float]:
    """Take out of a centred column what goes with another one."""
    share = math.fsum(map(math.prod, zip(column, cause, strict=True))) / math.fsum(value**2 for value in cause)
    return [value - share * other for value, other in zip(column, cause, strict=True)]


def student(confidence: float, freedom: int) -> float:
    """Return the two-sided quantile of Student's distribution, by the expansion of Cornish and Fisher (Abramowitz and
    Stegun 26.7.5): right to a hundredth from five degrees of freedom."""
    z = statistics.NormalDist().inv_cdf(0.5 + confidence / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / freedom**power for power, term in enumerate(terms, 1))


@attrs.frozen
class Growth:
    """How one measure went: over all points that count, and over the last half of them."""

    what: str
    unit: str
    whole: Slope
    late: Slope

    @property
    def grows(self) -> bool:
        """True if it rose for certain, and was still rising at the end."""
        return self.whole.rises and self.late.rises

    @property
    def verdict(self) -> str:
        """What that means, in words."""
        found = f"a leak of {self.whole.rate + self.whole.margin:.2g} {self.unit} an ask would have been seen"
        if self.grows:
            return "IT GROWS"
        if self.whole.rises:
            return "rose at first, and not in the last half"
        if self.whole.rate < -self.whole.margin:
            return "falls"
        return f"not to be told from zero; {found}"

    def __str__(self) -> str:
        slope = self.whole
        return f"{self.what}: {slope.rate:+.3g} ± {slope.margin:.2g} {self.unit} an ask: {self.verdict}"


def growth(what: str, unit: str, samples: Sequence[tuple[float, float]], beside: Sequence[float] = ()) -> Growth:
    """Judge what was read at the points that count. `beside` as of `fit`."""
    late = -max(len(samples) // 2, 4)
    return Growth(what, unit, fit(samples, beside), fit(samples[late:], beside[late:]))


# --- reading ----------------------------------------------------------------------------------------------------------


@attrs.frozen
class Point:
    """What the process holds while nothing is asked of it, after so many asks. 0 where the system does not tell."""

    asks: int
    blocks: int
    heap: int
    resident: int
    conversations: int
    tasks: int
    files: int
    crowd: int = 0
    """The most asks that were in flight at once, until then."""

    @classmethod
    def read(cls, asks: int, conversations: int, crowd: int) -> Point:
        """Read it."""
        gc.collect()
        _trim()
        held = Belongings.now()
        files = 0 if held.files is None else held.files.total()
        heap, blocks = _heap(), sys.getallocatedblocks()
        return cls(asks, blocks, heap, _resident(), conversations, held.tasks.total(), files, crowd)

    def __str__(self) -> str:
        memory = f"{self.heap / 2**20:.2f} MB in C, {self.resident / 2**20:.1f} MB resident"
        return f"{self.asks:>9,} asks  {self.blocks:>9,} blocks  {memory}  at most {self.crowd:,} in flight"


_MALLINFO = (
    "arena",
    "ordblks",
    "smblks",
    "hblks",
    "hblkhd",
    "usmblks",
    "fsmblks",
    "uordblks",
    "fordblks",
    "keepcost",
)


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of the GNU C library, 2.33 and later."""

    _fields_ = [(name, ctypes.c_size_t) for name in _MALLINFO]


def _of_c(name: str) -> Callable[..., object] | None:
    try:
        return getattr(ctypes.CDLL(None), name)  # type: ignore[no-any-return]
    except (AttributeError, OSError, TypeError):
        return None


def _heap() -> int:
    """Return the bytes that the C library has given out: without what is fragmented, and without Python's arenas, which
    are mapped beside its heap."""
    mallinfo2 = _of_c("mallinfo2")
    if mallinfo2 is None:
        return 0
    mallinfo2.restype = _Mallinfo  # type: ignore[attr-defined]
    info = mallinfo2()
    assert isinstance(info, _Mallinfo)
    return int(info.uordblks) + int(info.hblkhd)


TUNED = "glibc.malloc.arena_max=1:glibc.malloc.tcache_count=0"
"""For the GNU C library, which reads it as a process begins: one heap for all threads, since its figures are of the
first one alone, and no caches of each thread, since what lies in them counts as given out."""


def tune() -> None:
    """Begin anew with the C library tuned so that its figures are exact, if it is not."""
    if os.environ.get("GLIBC_TUNABLES") != TUNED:
        os.environ["GLIBC_TUNABLES"] = TUNED
        os.execv(sys.executable, sys.orig_argv)


def _trim() -> None:
    malloc_trim = _of_c("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def _resident() -> int:
    """Return the bytes of this process's own memory. A mapped file, such as the index of a database's log, is none."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)


async def forget_deadlines() -> None:
    """Have trio let go of the deadlines that were called off. It does so when there are a thousand of them more than
    are in force, so that what it holds goes up and down like a saw. Public doors only: deadlines are set and called off
    until one of them is gone."""
    first: weakref.ref[trio.CancelScope] | None = None
    for _ in range(100):
        for _ in range(1001):
            with trio.CancelScope(deadline=trio.current_time() + 1e6) as scope:  # noqa: ASYNC100  # called off at once
                pass
            first = first or weakref.ref(scope)
        del scope
        await trio.lowlevel.checkpoint()  # where trio looks at how many there are
        if first is not None and first() is None:
            return


# --- asking -----------------------------------------------------------------------------------------------------------


def small_caches() -> None:
    """Have SQLite keep few pages, in the whole process. Two megabytes for each connection, as usual, would take
    thousands of asks to fill up, and look like a leak until then."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(f"PRAGMA soft_heap_limit = {CACHES}")


@attrs.define(eq=False)
class Soaked(InProcess):
    """A runtime on a database whose commits fail now and then. `segment` keeps the conversations of one apart."""

    segment: int = 0

    def _store(self) -> Store:
        dice = random.Random(self.scenario.seed)
        return FaultyStore(SqliteStore(Path(self.scenario.runtime.store)), {}, share=0.01, dice=dice)

    async def ask(self, order: Order, seen: Observation) -> None:
        """As the other targets do."""
        name = f"{self.segment}.{order.conversation_id}"
        await super().ask(attrs.evolve(order, conversation_id=name), seen)

    async def at_rest(self, asks: int, crowd: int) -> Point:
        """Wait until nothing runs and every conversation is forgotten, and read what is held.

        Raises: nothing: what does not come to rest in a minute is in the point.
        """
        assert self._runtime is not None
        with trio.move_on_after(60):
            while (now := self._runtime.statistics()).running or now.waiting or now.conversations:  # noqa: ASYNC110
                await trio.sleep(0.02)
        await forget_deadlines()
        return Point.read(asks, self._runtime.statistics().conversations, crowd)


def scenario_for(seconds: float, rate: float, seed: int, store: str) -> Scenario:
    """Return the mixed load of one stretch. Conversations are replaced after some turns, and soon forgotten."""
    return Scenario(
        name="soak",
        seed=seed,
        mode="open",
        rate=rate,
        duration=seconds,
        max_asks=10_000_000,
        conversations=max(20, math.ceil(2 * rate)),
        turns=8,
        # So that whatever is opened for many at once, such as a store's connections, is there from the first point on.
        bursts=[Burst(0.0, max(50, math.ceil(rate / 4)))],
        # A stalled call is aborted by this: the longest that an ask takes, and so the longest wait at a point.
        timeout=min(max(seconds / 4, 1.0), 5.0),
        mix=[Turn(weight=3), Turn("Look it up.", weight=2, tools=1), Turn("Do both.", tools=2)],
        clients=Clients(abandon=0.05, abort=0.05, slow=0.1, slow_pause=0.01),
        provider=Provider(
            first_token=Dice("exponential", 0.02),
            tokens=Dice("uniform", 5, 60),
            tokens_per_second=400,
            errors=0.01,
            rate_limited=0.01,
            retry_after=0.05,
            stalls=0.005,
        ),
        runtime=RuntimeShape(store=store, idle_timeout=0.5),
    )


async def find_rate(
    seconds: float, seed: int, folder: Path, say: Callable[[str], object], broken: list[Check]
) -> float:
    """Return the highest rate, in asks a second, that is sustained for `seconds`: the tries double, and then halve the
    distance between what was sustained and what was not, until that is an eighth. What does not hold meanwhile is added
    to `broken`: overload is the best time to look for it."""
    calm = 0.0

    async def sustained(rate: float) -> bool:
        nonlocal calm
        scenario = attrs.evolve(scenario_for(seconds, rate, seed, str(folder / f"rate-{rate:.0f}.db")), bursts=())
        target = Soaked(scenario)
        report = await run_load(scenario, target)
        broken.extend(check for check in target.checks() if not check.ok)
        median = float(report.figures["latency"]["p50"])
        calm = calm or median
        ok = median <= SLOWED * calm and not report.figures["counts"]["not_sent"]
        say(f"  {rate:6.0f} asks a second: median {median * 1e3:4.0f} ms, {'sustained' if ok else 'too many'}")
        return ok

    good, bad = CALM, math.inf
    await sustained(CALM)
    while bad - good > good / 8 and good < MOST_RATE:
        rate = good * 2 if bad == math.inf else (good + bad) / 2
        if await sustained(rate):
            good = rate
        else:
            bad = rate
    return good


async def soak(
    seconds: float,
    rate: float | None,
    seed: int,
    say: Callable[[str], object],
    kind: type[Soaked] = Soaked,
    count: int | None = None,
) -> tuple[LoadReport, list[Growth]]:
    """Run it, and return what came of it and how the memory went.

    Arguments: `say` is told how it goes, a line at a time; `kind`, what is asked; `count`, how many points.
    """
    count = count or min(max(int(seconds / 4), 12), 40)
    stretch = seconds / count
    broken: list[Check] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if rate is None:
            say(f"looking for the highest rate that is sustained, in steps of {min(stretch, 5.0):.0f} s")
            found = await find_rate(min(stretch, 5.0), seed, folder, say, broken)
            rate = SHARE * found
            say(f"sustained: {found:.0f} asks a second; going on with {rate:.0f}")
        scenario = scenario_for(stretch, rate, seed, str(folder / "soak.db"))
        target, record, points = kind(scenario), Recorder.over(trio.current_time(), stretch), list[Point]()
        start = trio.current_time()
        async with target.open():
            for number in range(count):
                target.segment = number
                # Every stretch is drawn over the one before: what is kept of them does not grow.
                record.start = trio.current_time()
                await Driver(attrs.evolve(scenario, seed=seed + number), target, record).run()
                for bucket in record.buckets.values():
                    del bucket.latencies[KEPT:], bucket.firsts[KEPT:]
                points.append(await target.at_rest(record.sent, record.most_in_flight))
                say(f"  {number + 1:>3}/{count}  {points[-1]}")
        report = make_report(
            scenario, target.name, record, trio.current_time() - start, [*broken, *target.checks(), *_rest(points)], ()
        )
    counted = points[count // 4 :]
    crowds = [float(point.crowd) for point in counted]
    measures = [
        growth(what, unit, [(point.asks, float(getattr(point, field))) for point in counted], crowds)
        for what, unit, field in (
            ("Python's blocks", "blocks", "blocks"),
            ("the C library's heap", "bytes", "heap"),
            ("resident memory", "bytes", "resident"),
        )
        if any(getattr(point, field) for point in points)
    ]
    return report, measures


def _rest(points: Sequence[Point]) -> list[Check]:
    """Whether the process held no more at later points than at earlier ones; of conversations none at all."""
    checks = []
    for what in ("conversations", "tasks", "files"):
        held = [getattr(point, what) for point in points]
        least = 0 if what == "conversations" else max(held[: len(held) // 2]) + POOL * (what == "files")
        wrong = [f"after {point.asks} asks: {n}" for point, n in zip(points, held, strict=True) if n > least]
        checks.append(
            Check(f"at rest no more {what} than before", not wrong, f"{held[-1]} at the end", tuple(wrong[:5]))
        )
    return checks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seconds", type=float, default=1800.0, help="of load, pauses not counted (default: %(default)s)"
    )
    parser.add_argument("--rate", type=float, metavar="N", help="asks a second (default: found)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what came of it to this file")
    options = parser.parse_args()
    tune()
    small_caches()

    def say(line: str) -> None:
        print(line, flush=True)

    report, measures = trio.run(soak, options.seconds, options.rate, options.seed, say)
    print("\n" + report.as_text())
    judged = options.seconds >= JUDGED
    grows = judged and any(measure.grows for measure in measures)
    for measure in measures:
        print(f"  {('FAIL' if measure.grows else 'ok  ') if judged else '-   '}  {measure}")
    if not judged:
        print(f"  a run of less than {JUDGED:.0f} s is not judged by its memory")
    if options.json is not None:
        memory = [{**attrs.asdict(measure), "verdict": measure.verdict} for measure in measures]
        options.json.write_text(json.dumps({"report": report.as_data(), "memory": memory}, indent=2) + "\n")
    return 0 if report.ok and not grows else 1


if __name__ == "__main__":
    sys.exit(main())
