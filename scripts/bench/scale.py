"""How throughput, delay and memory go with the number of conversations, and with the number of runs in flight.

    python scripts/bench/scale.py [--most 100000] [--flight 10000] [--svg FILE]

In one process a point, without network: an agent with a `ToolLoop`, one tool, history in memory. First, so many
conversations with one turn each, 64 at a time, by a model that answers at once; then so many turns in flight, three one
after another each, by a model that takes 200 ms a call. Delay is wall time; on a busy machine only the shape of the
curves means something. Ends by itself.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import attrs
import trio
from _fakes import Instant
from _figures import Figure, show

from goliath_actors import Agent, ToolLoop, open_runtime, tool

PAUSE = 0.2
AT_ONCE = 64


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
    for kind, wanted in (("conversations", sizes(10, most)), ("in flight", sizes(1, flight))):
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


def plot(found: list[Point], file: Path) -> None:
    """Draw the curves."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    mpl.rcParams["svg.hashsalt"] = "scale"
    mpl.rcParams["svg.fonttype"] = "none"
    columns: list[tuple[str, Any]] = [
        ("turns a second", lambda point: point.rate),
        ("p99 of a turn, ms", lambda point: point.p99 * 1e3),
        ("memory, MB", lambda point: max(point.memory / 2**20, 0.1)),
    ]
    figure, axes = pyplot.subplots(2, 3, figsize=(11, 6), layout="constrained")
    for row, kind in zip(axes, ("conversations", "in flight"), strict=True):
        ours = [point for point in found if point.kind == kind]
        for axis, (title, value) in zip(row, columns, strict=True):
            axis.plot([point.size for point in ours], [value(point) for point in ours], marker="o", color="#2a6f97")
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.set_xlabel(kind)
            axis.set_title(title, fontsize=10)
            axis.grid(visible=True, alpha=0.3)
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
