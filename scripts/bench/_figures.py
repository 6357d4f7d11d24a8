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

__all__ = ["Figure", "arguments", "cpu_name", "microseconds", "multiples", "show"]


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


async def microseconds(
    contestants: Mapping[str, Callable[[int], Awaitable[None]]], rounds: int, times: int
) -> dict[str, float]:
    """Return the median over `rounds` of the CPU time of one turn, in microseconds, by contestant.

    Arguments: each contestant is called with `times`, how many turns it does in one round.
    """
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for contestant in contestants.values():
        await contestant(max(1, times // 10))
    for turn in range(rounds):
        order = list(contestants)
        for name in order if turn % 2 else reversed(order):
            gc.collect()
            start = time.process_time()
            await contestants[name](times)
            taken[name].append((time.process_time() - start) / times * 1e6)
    return {name: statistics.median(values) for name, values in taken.items()}


def multiples(taken: Mapping[str, float], base: str, goals: Mapping[str, float]) -> list[Figure]:
    """Return a line for each contestant but `base`, as a multiple of it. `goals` are the most that it may be."""
    figures = []
    for name in [name for name in taken if name != base]:
        ratio, goal = taken[name] / taken[base], goals.get(name)
        shown, ok = ("", None) if goal is None else (f"<= {goal:g}", ratio <= goal)
        figures.append(
            Figure(f"{name}, CPU", f"{taken[name]:.1f} µs", f"{base} {taken[base]:.1f} µs", f"{ratio:.2f}", shown, ok)
        )
    return figures


def cpu_name() -> str:
    """Return the processor's model, where the system says it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
