"""Durable commits per second of the stores: group commit against one transaction a commit, in one run.

Both write the same turns (a memory with one exchange, a question, an answer: about 800 bytes) from the same number of
conversations, each waiting for its commit before it makes the next. Rounds alternate, so that a noisy disk hits both.

    python scripts/bench/store.py [--conversations 50] [--seconds 1.5] [--rounds 5] [--directory .]
        [--postgres postgresql://user:password@host/name]

Choose a directory on a real disk: on a RAM disk nothing is durable and both are limited by the processor alone. So are
they on a disk that syncs in less than half a millisecond. What can be had there says a third contestant, which takes
turns with them: Python's `sqlite3` writing the same rows by the same statements, as many in a transaction, with nothing
around it (no loop, no tasks, no queue, no encoding, nothing checked). With `--postgres`, `PostgresStore` is measured
too, in schemas of its own that are left behind.
"""

from __future__ import annotations

import argparse
import sqlite3
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import closing
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
MakePath: TypeAlias = Callable[[], Path]
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


@attrs.frozen
class Rate:
    """Commits per second, seconds of CPU that one took in all threads, and how long each was waited for, in order."""

    commits: float
    cpu: float
    waits: list[float] = attrs.Factory(list)

    def __str__(self) -> str:
        waits = self.waits
        late = f", {waits[len(waits) // 2] * 1e3:.1f} ms, {waits[len(waits) * 99 // 100] * 1e3:.1f} ms" if waits else ""
        return f"{self.commits:7,.0f} ({self.cpu * 1e6:.0f} µs{late})"


async def measure(make: MakeStore, max_batch: int, conversations: int, seconds: float) -> Rate:
    async with make(max_batch) as store:
        cpu = time.process_time()
        load = Load(store, time.perf_counter() + seconds)
        async with trio.open_nursery() as nursery:
            for number in range(conversations):
                nursery.start_soon(load.converse, f"c{number}")
        cpu = time.process_time() - cpu
    return Rate(len(load.waits) / seconds, cpu / len(load.waits), sorted(load.waits))


def measure_bare(path: Path, batch: int, conversations: int, seconds: float) -> Rate:
    """The statements of a commit and no more, in the tables and with the texts that a store has written."""
    keys = [f"c{number}" for number in range(conversations)]
    trio.run(_begin, path, keys)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA wal_autocheckpoint=4000")
        (memory,) = connection.execute("SELECT memory FROM records WHERE id = 1").fetchone()
        bodies = [body for (body,) in connection.execute("SELECT body FROM entries WHERE record = 1 ORDER BY position")]
        version, commits, cpu, start = 0, 0, time.process_time(), time.perf_counter()
        while time.perf_counter() < start + seconds:
            version += 1
            ids = (f"{version}q".encode(), f"{version}a".encode())
            for first in range(0, conversations, batch):
                some = keys[first : first + batch]
                connection.execute("BEGIN IMMEDIATE")
                for key in some:
                    _write(connection, key.encode(), memory, list(zip(ids, bodies, strict=True)))
                connection.execute("COMMIT")
                commits += len(some)
        return Rate(commits / (time.perf_counter() - start), (time.process_time() - cpu) / commits)


async def _begin(path: Path, keys: list[str]) -> None:
    async with SqliteStore(path) as store:
        for key in keys:
            await store.commit(key, turn(0))


def _write(connection: sqlite3.Connection, key: bytes, memory: str, new: list[tuple[bytes, str]]) -> None:
    id, version, count, *_ = connection.execute(
        "SELECT id, version, entries, failures, memory, metadata, private FROM records WHERE key = ?", (key,)
    ).fetchone()
    connection.execute(
        "UPDATE records SET version = ?, entries = ?, failures = ?, memory = ?, metadata = ?, private = ? WHERE id = ?",
        (version + 1, count + len(new), 0, memory, None, None, id),
    )
    connection.executemany(
        "INSERT INTO entries (record, position, id, idempotency_key, body) VALUES (?, ?, ?, ?, ?)",
        [(id, count + number, name, None, body) for number, (name, body) in enumerate(new, 1)],
    )


def compare(name: str, make: MakeStore, options: argparse.Namespace, bare: MakePath | None = None) -> list[Figure]:
    """Measure a store in turns, and with it the rows alone, if `bare` says in which files."""
    conversations, seconds = options.conversations, options.seconds
    contestants: dict[str, Callable[[], Rate]] = {
        "group": lambda: trio.run(measure, make, BATCH, conversations, seconds),
        "one by one": lambda: trio.run(measure, make, 1, conversations, seconds),
    }
    if bare is not None:
        contestants["sqlite3 alone, group"] = lambda: measure_bare(bare(), BATCH, conversations, seconds)
        contestants["sqlite3 alone, one by one"] = lambda: measure_bare(bare(), 1, conversations, seconds)
    print(
        f"{name}, {conversations} conversations; commits per second "
        "(CPU of one; median and 99th percentile of the wait for it)"
    )
    rounds: list[dict[str, Rate]] = []
    for _ in range(options.rounds):
        rounds.append({how: run() for how, run in contestants.items()})
        print("  ".join(f"{how}: {rate}" for how, rate in rounds[-1].items()))
    group, single, *others = ([found[how] for found in rounds] for how in contestants)
    of = f" ({name})" if name != "SQLite" else ""
    ratio = _ratio(group, single)
    figures = [
        Figure(
            f"{conversations} writers, durable commits{of}",
            f"{_median(group):,.0f}/s",
            f"one by one {_median(single):,.0f}/s",
            f"{ratio:.1f}",
            ">= 10",
            ratio >= 10,
        )
    ]
    if others:
        alone, alone_single = others
        both = f"{_median(alone):,.0f}/s, one by one {_median(alone_single):,.0f}/s"
        figures.append(
            Figure("the same rows by sqlite3 alone", "", both, f"{_ratio(alone, alone_single):.1f}", "", None)
        )
        ours, theirs = (statistics.median(rate.cpu for rate in rates) * 1e6 for rates in (group, alone))
        against = f"sqlite3 alone {theirs:.0f} µs"
        figures.append(Figure("a commit in a group, CPU", f"{ours:.0f} µs", against, f"{ours / theirs:.1f}", "", None))
    return figures


def _median(rates: list[Rate]) -> float:
    return statistics.median(rate.commits for rate in rates)


def _ratio(group: list[Rate], single: list[Rate]) -> float:
    return statistics.median(many.commits / one.commits for many, one in zip(group, single, strict=True))


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

        def path() -> Path:
            return Path(directory) / f"{next(numbers)}.db"

        def sqlite(max_batch: int) -> SqliteStore:
            return SqliteStore(path(), max_batch=max_batch)

        figures = compare("SQLite", sqlite, options, path)
    if options.postgres:
        this = f"bench_{uuid.uuid4().hex[:8]}"

        def postgres(max_batch: int) -> PostgresStore:
            return PostgresStore(options.postgres, schema=f"{this}_{next(numbers)}", max_batch=max_batch)

        figures += compare("PostgreSQL", postgres, options)
    size = trio.run(bytes_in_memory, 20_000)
    figures.append(Figure("in memory, a conversation of one turn", f"{size:,.0f} bytes", "", "", "", None))
    show("durable commits", figures, options.json)


if __name__ == "__main__":
    main()
