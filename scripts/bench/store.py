"""Durable commits per second of `SqliteStore`: group commit against one transaction a commit, in one run.

Both write the same turns (a memory with one exchange, a question, an answer: about 800 bytes) from the same number of
conversations, each waiting for its commit before it makes the next. Rounds alternate, so that a noisy disk hits both.

    python scripts/bench/store.py [--conversations 50] [--seconds 1.5] [--rounds 5] [--directory .]

Choose a directory on a real disk: on a RAM disk nothing is durable and both are limited by the processor alone.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import attrs
import trio
from _figures import Figure, show

from goliath_actors.abc import Change, Entry
from goliath_actors.stores import InMemoryStore, SqliteStore
from goliath_actors.values import Exchange, Memory, Message

QUESTION, ANSWER = "What is on my list for today? " * 3, "There are three tasks on your list. " * 8


@attrs.define(eq=False)
class Load:
    """Conversations that write until the time is over, and how long each commit took."""

    store: SqliteStore
    end: float
    waits: list[float] = attrs.Factory(list)

    async def converse(self, key: str) -> None:
        version = 0
        while (start := time.perf_counter()) < self.end:
            version = (await self.store.commit(key, turn(version), expect=version)).version
            self.waits.append(time.perf_counter() - start)


def turn(version: int) -> Change:
    return Change(
        memory=Memory("", (Exchange(QUESTION, ANSWER, 1.7e9),)),
        append=[
            Entry(f"{version}q", 1.7e9, "user", Message("user", QUESTION)),
            Entry(f"{version}a", 1.7e9, "assistant", Message("assistant", ANSWER)),
        ],
    )


async def measure(path: Path, max_batch: int, conversations: int, seconds: float) -> list[float]:
    async with SqliteStore(path, max_batch=max_batch) as store, trio.open_nursery() as nursery:
        load = Load(store, time.perf_counter() + seconds)
        for number in range(conversations):
            nursery.start_soon(load.converse, f"c{number}")
    return load.waits


async def bytes_in_memory(conversations: int) -> float:
    """Resident bytes a conversation of one turn costs in an `InMemoryStore`, from the process's own account."""
    import tracemalloc

    store = InMemoryStore()
    tracemalloc.start()
    for number in range(conversations):
        await store.commit(f"c{number}", turn(0))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size / conversations


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure durable commits per second.")
    parser.add_argument("--conversations", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, default=Path())
    parser.add_argument("--json", type=Path, metavar="FILE", help="add the figures to this file")
    options = parser.parse_args()
    rates: dict[int, list[float]] = {512: [], 1: []}
    ratios: list[float] = []
    print(f"{options.conversations} conversations; commits per second (median and 99th percentile of the wait)")
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        for round in range(options.rounds):
            line = []
            for max_batch, found in rates.items():
                path = Path(directory) / f"{round}-{max_batch}.db"
                waits = sorted(trio.run(measure, path, max_batch, options.conversations, options.seconds))
                found.append(len(waits) / options.seconds)
                middle, late = waits[len(waits) // 2] * 1e3, waits[int(len(waits) * 0.99)] * 1e3
                name = "one by one" if max_batch == 1 else "group"
                line.append(f"{name}: {found[-1]:7,.0f} ({middle:.1f} ms, {late:.1f} ms)")
            ratios.append(rates[512][-1] / rates[1][-1])
            print("  ".join(line), f" ratio: {ratios[-1]:.1f}")
    ratio, single, grouped = statistics.median(ratios), statistics.median(rates[1]), statistics.median(rates[512])
    size = trio.run(bytes_in_memory, 20_000)
    writers = f"{options.conversations} writers, durable commits"
    against = f"one by one {single:,.0f}/s"
    show(
        "durable commits",
        [
            Figure(writers, f"{grouped:,.0f}/s", against, f"{ratio:.1f}", ">= 10", ratio >= 10),
            Figure("in memory, a conversation of one turn", f"{size:,.0f} bytes", "", "", "", None),
        ],
        options.json,
    )


if __name__ == "__main__":
    main()
