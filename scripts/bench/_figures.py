"""Side by side: contestants take turns within one run, and only the ratios of their medians are worth reading."""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

__all__ = [
    "Figure",
    "Found",
    "NoFigure",
    "arguments",
    "cpu_name",
    "last_word",
    "microseconds",
    "multiples",
    "process",
    "show",
]


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


class NoFigure(Exception):
    """Why a contestant could not be measured, in a line. The others are, and its line says so."""


@attrs.frozen
class Found:
    """What each contestant came to, by name, why others came to nothing, and what is to be said beside a value."""

    values: Mapping[str, float]
    failed: Mapping[str, str]
    beside: Mapping[str, str] = attrs.Factory(dict)

    def said(self, name: str, shown: Callable[[float], str]) -> str:
        """Return a contestant's value, or why there is none."""
        if name not in self.values:
            return f"no figure: {self.failed[name]}"
        return shown(self.values[name]) + self.beside.get(name, "")

    def line(
        self,
        what: str,
        name: str,
        shown: Callable[[float], str],
        goal: str = "",
        *,
        most: float | None = None,
        least: float | None = None,
        label: str | None = None,
        ratio: Callable[[float], str] = "{:.2f}".format,
    ) -> Figure:
        """Return ours against another, with the ratio of the two if both are there. Without ours, a goal is missed.

        Arguments: `goal` in words; `most` and `least`, what the ratio must come to for it.
        """
        words = (what, self.said("ours", shown), f"{name if label is None else label} {self.said(name, shown)}")
        if "ours" not in self.values:
            return Figure(*words, "", goal, False if goal else None)
        if name not in self.values:
            return Figure(*words, "", "", None)
        found = self.values["ours"] / self.values[name]
        ok = None if most is None and least is None else (least or 0) <= found <= (math.inf if most is None else most)
        return Figure(*words, ratio(found), goal, ok)


def last_word(error: Exception) -> str:
    """Return why a process did not work, in a line: the last one that it said."""
    said = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
    return ((said or "").strip().splitlines() or [f"{type(error).__name__}, no reason given"])[-1][:200]


def process(command: Sequence[object], seconds: float, environ: Mapping[str, str]) -> dict[str, Any]:
    """Run a contestant in a process of its own; what it measured, which is the last line of what it says.

    Raises: `NoFigure` if it cannot be started, fails, says something else, or takes longer than `seconds`.
    """
    try:
        done = subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, timeout=seconds, env=environ, check=True
        )
        found = json.loads(done.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired as error:
        raise NoFigure(f"took longer than {seconds:.0f} s") from error
    except (ValueError, IndexError) as error:
        raise NoFigure(f"said no figure at its end: {done.stdout.strip()[-100:]!r}") from error
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoFigure(last_word(error)) from error
    if not isinstance(found, dict):
        raise NoFigure(f"said no figure at its end: {found!r}")
    return found


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
