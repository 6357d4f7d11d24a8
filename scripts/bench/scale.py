"""How throughput, delay and memory go with the number of conversations, and with the number of runs in flight.

    python scripts/bench/scale.py [--most 100000] [--flight 10000] [--svg FILE]

In one process a point, without network: an agent with a `ToolLoop`, one tool, history in memory. First, so many
conversations with one turn each, 10 at a time, by a model that answers at once; then so many turns in flight, three one
after another each, by a model that takes 200 ms a call: with two calls a turn that asks for 2.5 turns a second of each,
and where the processor cannot do so many, turns wait for it. Delay is wall time; on a busy machine only the shape of
the curves means something. The garbage collector is set as the guide to embedding advises. Ends by itself.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import trio
from _fakes import Instant
from _figures import Figure, show

from goliath_actors import Agent, ToolLoop, open_runtime, tool

PAUSE = 0.2
TITLES = ("conversations, each with one turn", "turns in flight at once")
AT_ONCE = 10


@tool
async def weather(city: str) -> str:
    """Tell the weather of a city."""
    await trio.lowlevel.checkpoint()
    return f"sunny in {city}"


@attrs.frozen
class Point:
    """One measurement. Rates in turns a second, delays in seconds, `cpu` in seconds a turn, memory in bytes."""

    kind: str
    size: int
    rate: float
    p99: float
    cpu: float
    memory: float


async def measure(kind: str, size: int) -> Point:
    """Run one point in this process."""
    gc.set_threshold(50_000, 20, 100)
    model = Instant("weather", PAUSE if kind == "in flight" else 0.0)
    agent: Any = Agent(name="bench", model=model, tools=[weather], loop=ToolLoop())
    tasks, turns = (min(AT_ONCE, size), 1) if kind == "conversations" else (size, 3)
    took: list[float] = []
    async with open_runtime(agent) as runtime:
        await runtime.run("warm up", conversation_id="warm up")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

        async def talk(first: int) -> None:
            for number in range(first, size, tasks):
                for _ in range(turns):
                    start = time.perf_counter()
                    await runtime.run("What is the weather in Lund?", conversation_id=f"c{number}")
                    took.append(time.perf_counter() - start)

        cpu, wall = time.process_time(), time.perf_counter()
        async with trio.open_nursery() as nursery:
            for number in range(tasks):
                nursery.start_soon(talk, number)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        held = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    took.sort()
    return Point(kind, size, len(took) / wall, took[int(len(took) * 0.99)], cpu / len(took), held)


def sizes(first: int, most: int) -> list[int]:
    found = []
    while first <= most:
        found.append(first)
        first *= 10
    return found


def points(most: int, flight: int) -> list[Point]:
    """Measure every point, each in a process of its own."""
    found = []
    for kind, wanted in (("conversations", sizes(100, most)), ("in flight", sizes(1, flight))):
        for size in wanted:
            command = [sys.executable, __file__, "--point", kind, "--size", str(size)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found.append(Point(**json.loads(done.stdout)))
    return found


def figures(found: list[Point]) -> list[Figure]:
    """As lines of a table."""
    return [
        Figure(
            f"{point.size:,} {point.kind}",
            f"{point.rate:,.0f} turns/s",
            f"p99 {point.p99 * 1e3:,.0f} ms, {point.memory / 2**20:,.0f} MB",
            f"{point.cpu * 1e3:.2f} ms CPU",
            "",
            None,
        )
        for point in found
    ]


def short(number: float) -> str:
    """A number as an axis shows it: 0.45, 12, 340, 12k."""
    if number >= 10_000:
        return f"{number / 1000:,.0f}k"
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def plot(found: list[Point], file: Path) -> None:
    """Draw the curves."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter, LogLocator

    mpl.rcParams["svg.hashsalt"] = "scale"
    mpl.rcParams["svg.fonttype"] = "none"
    # From zero where level curves are good news; by powers of ten where growth is expected.
    columns: list[tuple[str, str, Callable[[Point], float]]] = [
        ("turns a second", "linear", lambda point: point.rate),
        ("CPU of a turn, ms", "linear", lambda point: point.cpu * 1e3),
        ("99th percentile of a turn, ms", "log", lambda point: point.p99 * 1e3),
        ("memory, MB", "log", lambda point: max(point.memory / 2**20, 0.1)),
    ]
    figure, axes = pyplot.subplots(2, 4, figsize=(14, 6.4), layout="constrained")
    for row, kind, title in zip(axes, ("conversations", "in flight"), TITLES, strict=True):
        ours = [point for point in found if point.kind == kind]
        for axis, (name, scale, value) in zip(row, columns, strict=True):
            drawn = [(point.size, value(point)) for point in ours]
            axis.plot(*zip(*drawn, strict=True), marker="o", color="#2a6f97", clip_on=False)
            for size, height in drawn:
                axis.annotate(
                    short(height), (size, height), xytext=(0, 7), textcoords="offset points", ha="center", fontsize=8
                )
            axis.set_xscale("log")
            axis.set_xticks([size for size, _ in drawn], [short(size) for size, _ in drawn])
            axis.set_yscale(scale)
            heights = [height for _, height in drawn]
            if scale == "linear":
                axis.set_ylim(0, max(heights) * 1.25)
            else:
                axis.set_ylim(min(heights) / 2.5, max(heights) * 2.5)
                axis.yaxis.set_major_locator(LogLocator(subs=(1.0,) if max(heights) > 20 * min(heights) else (1, 2, 5)))
            axis.yaxis.set_major_formatter(FuncFormatter(lambda height, _: short(height)))
            axis.minorticks_off()
            axis.set_xlabel(title, fontsize=9)
            axis.set_title(name, fontsize=10)
            axis.grid(visible=True, alpha=0.3)
            axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=100_000, help="conversations (default: %(default)s)")
    parser.add_argument("--flight", type=int, default=10_000, help="turns in flight (default: %(default)s)")
    parser.add_argument("--svg", type=Path, metavar="FILE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="add the figures to this file")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point:
        print(json.dumps(attrs.asdict(trio.run(measure, options.point, options.size))))
        return
    found = points(options.most, options.flight)
    show("scale", figures(found), options.json)
    if options.svg is not None:
        plot(found, options.svg)


if __name__ == "__main__":
    main()
