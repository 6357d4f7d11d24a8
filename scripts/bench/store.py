"""Durable commits per second of the stores: group commit against one transaction a commit, in one run.

Both write the same turns (a memory with one exchange, a question, an answer: about 800 bytes) from the same number of
conversations, each waiting for its commit before it makes the next. Rounds alternate, so that a noisy disk hits both.

    python scripts/bench/store.py [--conversations 50] [--seconds 1.5] [--rounds 5] [--directory .]
        [--postgres postgresql://user:password@host/name]

Choose a directory on a real disk: on a RAM disk nothing is durable and both are limited by the processor alone. So are
they on a disk that syncs in less than half a millisecond: what a commit costs the processor is the same for both. With
`--postgres`, `PostgresStore` is measured too, in schemas of its own that are left behind.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import TypeAlias

import attrs
import trio
from _figures import Figure, show

from goliath_actors.abc import Change, Entry, Store
from goliath_actors.stores import InMemoryStore, PostgresStore, SqliteStore
from goliath_actors.values import Exchange, Memory, Message

# So many changes as a store takes into one transaction by itself; fewer come at once.
BATCH = 512
MakeStore: TypeAlias = Callable[[int], SqliteStore | PostgresStore]
QUESTION, ANSWER = "What is on my list for today? " * 3, "There are three tasks on your list. " * 8


@attrs.define(eq=False)
class Load:
    """Conversations that write until the time is over, and how long each commit took."""

    store: Store
    end: float
    waits: list[float] = attrs.Factory(list)

    async def converse(self, key: str) -> None:
        version = 0
        while (start := time.perf_counter()) < self.end:
            version = (await self.store.commit(key, turn(version), expect=version)).version
            self.waits.append(time.perf_counter() - start)


# Made once for all conversations, which are at the same version at about the same time: a store does not make changes.
@lru_cache(maxsize=1024)
def turn(version: int) -> Change:
    return Change(
        memory=Memory("", (Exchange(QUESTION, ANSWER, 1.7e9),)),
        append=[
            Entry(f"{version}q", 1.7e9, "user", Message("user", QUESTION)),
            Entry(f"{version}a", 1.7e9, "assistant", Message("assistant", ANSWER)),
        ],
    )


async def measure(make: MakeStore, max_batch: int, conversations: int, seconds: float) -> list[float]:
    async with make(max_batch) as store, trio.open_nursery() as nursery:
        load = Load(store, time.perf_counter() + seconds)
        for number in range(conversations):
            nursery.start_soon(load.converse, f"c{number}")
    return load.waits


def compare(name: str, make: MakeStore, options: argparse.Namespace) -> Figure:
    rates: dict[int, list[float]] = {BATCH: [], 1: []}
    print(f"{name}, {options.conversations} conversations; commits per second (median and 99th percentile of the wait)")
    for _ in range(options.rounds):
        line = []
        for max_batch, found in rates.items():
            waits = sorted(trio.run(measure, make, max_batch, options.conversations, options.seconds))
            found.append(len(waits) / options.seconds)
            middle, late = waits[len(waits) // 2] * 1e3, waits[int(len(waits) * 0.99)] * 1e3
            how = "one by one" if max_batch == 1 else "group"
            line.append(f"{how}: {found[-1]:7,.0f} ({middle:.1f} ms, {late:.1f} ms)")
        print("  ".join(line), f" ratio: {rates[BATCH][-1] / rates[1][-1]:.1f}")
    ratio = statistics.median(group / single for group, single in zip(rates[BATCH], rates[1], strict=True))
    grouped, single = statistics.median(rates[BATCH]), statistics.median(rates[1])
    what = f"{options.conversations} writers, durable commits" + (f" ({name})" if name != "SQLite" else "")
    return Figure(what, f"{grouped:,.0f}/s", f"one by one {single:,.0f}/s", f"{ratio:.1f}", ">= 10", ratio >= 10)


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
    parser.add_argument("--postgres", metavar="ADDRESS", help="measure PostgresStore at this address too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="add the figures to this file")
    options = parser.parse_args()
    numbers = count()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:

        def sqlite(max_batch: int) -> SqliteStore:
            return SqliteStore(Path(directory) / f"{next(numbers)}.db", max_batch=max_batch)

        figures = [compare("SQLite", sqlite, options)]
    if options.postgres:
        this = f"bench_{uuid.uuid4().hex[:8]}"

        def postgres(max_batch: int) -> PostgresStore:
            return PostgresStore(options.postgres, schema=f"{this}_{next(numbers)}", max_batch=max_batch)

        figures.append(compare("PostgreSQL", postgres, options))
    size = trio.run(bytes_in_memory, 20_000)
    figures.append(Figure("in memory, a conversation of one turn", f"{size:,.0f} bytes", "", "", "", None))
    show("durable commits", figures, options.json)


if __name__ == "__main__":
    main()
