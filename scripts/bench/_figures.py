"""Side by side: contestants take turns within one run, and only the ratios of their medians are worth reading."""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import trio

__all__ = ["Contest", "Figure", "arguments", "cpu_name", "show"]


@attrs.frozen
class Figure:
    """One line of a table: what was measured, against what, and the goal. `ok` is None where there is no goal."""

    what: str
    ours: str
    against: str
    ratio: str
    goal: str
    ok: bool | None

    def cells(self) -> Sequence[str]:
        mark = {True: "reached", False: "missed", None: ""}[self.ok]
        return (self.what, self.ours, self.against, self.ratio, self.goal, mark)


@attrs.define(eq=False)
class Contest:
    """Runs contestants in turn and keeps what each took, in seconds of CPU and of wall time.

    A contestant is an async function that does a fixed amount of work, under `trio.run` of its own.
    """

    rounds: int
    cpu: dict[str, list[float]] = attrs.field(factory=dict)
    wall: dict[str, list[float]] = attrs.field(factory=dict)

    def run(self, contestants: Mapping[str, Callable[[], Awaitable[object]]]) -> None:
        """Let each have `rounds` turns, after one that does not count."""
        for number in range(self.rounds + 1):
            for name, work in contestants.items():
                gc.collect()
                wall, cpu = time.perf_counter(), time.process_time()
                trio.run(work)
                cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
                if number:
                    self.cpu.setdefault(name, []).append(cpu)
                    self.wall.setdefault(name, []).append(wall)

    def median(self, name: str, *, wall: bool = False) -> float:
        return statistics.median((self.wall if wall else self.cpu)[name])

    def ratio(self, name: str, other: str, *, wall: bool = False) -> float:
        """Return the median of the rounds' own ratios: what disturbs a round disturbs both of its contestants."""
        times = self.wall if wall else self.cpu
        return statistics.median(a / b for a, b in zip(times[name], times[other], strict=True))


def arguments(doc: str | None, **counts: int) -> argparse.Namespace:
    """Return the parsed options: `--json FILE`, and one whole number for each of `counts`."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in counts.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=int, default=default, metavar="N", help=f"default {default}"
        )
    parser.add_argument("--json", type=Path, metavar="FILE", help="add the figures to this file")
    return parser.parse_args()


def show(title: str, figures: Sequence[Figure], file: Path | None = None) -> None:
    """Print a table, and put it into a JSON file beside what others put there."""
    rows = [("", "ours", "against", "ratio", "goal", ""), *(figure.cells() for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    print(f"\n{title}  ({platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} cores)")
    for row in rows:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    sys.stdout.flush()
    if file is not None:
        data: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        data[title] = [attrs.asdict(figure) for figure in figures]
        file.write_text(json.dumps(data, indent=2) + "\n")


def cpu_name() -> str:
    """Return the processor's model, where the system says it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
