"""A process that is killed at any moment loses nothing that was acknowledged, and leaves nothing half done (S7).

This file is also the program that gets killed: it commits, and prints each commit once it has returned.
"""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import trio

import goliath_actors
from goliath_actors.abc import Change, Entry, Record
from goliath_actors.stores import SqliteStore
from goliath_actors.values import Exchange, Memory, Message

CONVERSATIONS = 50
COMMITS = 1000
ROUNDS = 8
SECONDS = 15.0


def change(version: int) -> Change:
    """A change whose every part says which version it makes, so that a half of it would show."""
    return Change(
        memory=Memory(f"{version}", (Exchange("q", f"{version}", float(version)),)),
        metadata={"version": version},
        private={"version": version},
        failures=version,
        append=entries(version),
    )


def entries(version: int) -> list[Entry]:
    return [
        Entry(f"{version} ask", float(version), "user", Message("user", "question " * 20)),
        Entry(f"{version} answer", float(version), "assistant", Message("assistant", "answer " * 50)),
    ]


def expected(version: int) -> Record:
    if version == 0:
        return Record()
    made = change(version)
    assert isinstance(made.memory, Memory)
    return Record(version, made.memory, {"version": version}, {"version": version}, version, 2 * version)


async def converse(store: SqliteStore, key: str) -> None:
    version = (await store.load(key)).version
    for _ in range(COMMITS // CONVERSATIONS):
        record = await store.commit(key, change(version + 1), expect=version)
        version = record.version
        # One system call a line, past all buffers: a line that can be read was acknowledged before.
        os.write(1, f"{key} {version}\n".encode())


async def write(path: str) -> None:
    async with SqliteStore(path) as store, trio.open_nursery() as nursery:
        for number in range(CONVERSATIONS):
            nursery.start_soon(converse, store, f"c{number}")


async def check(path: Path, acknowledged: dict[str, int]) -> None:
    async with SqliteStore(path) as store:
        for number in range(CONVERSATIONS):
            key = f"c{number}"
            record = await store.load(key)
            known = acknowledged.get(key, 0)
            # One more may have reached the disk before the process could say so.
            assert record.version in (known, known + 1)
            assert record == expected(record.version)
            page = await store.entries(key, after=0, limit=100_000)
            assert list(page.entries) == [entry for n in range(1, record.version + 1) for entry in entries(n)]
            acknowledged[key] = record.version


def run_and_kill(path: Path, lines: int) -> tuple[dict[str, int], bool]:
    """Run this file, kill it once it has printed `lines`; return what it acknowledged, and whether it was killed."""
    environment = dict(os.environ, PYTHONPATH=str(Path(goliath_actors.__file__).parent.parent))
    acknowledged: dict[str, int] = {}
    with subprocess.Popen([sys.executable, __file__, path], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        for count, line in enumerate(process.stdout, 1):
            if line.endswith(b"\n"):
                key, version = line.decode().split()
                acknowledged[key] = int(version)
            if count == lines:
                process.kill()
    return acknowledged, process.returncode < 0


def test_a_killed_process_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    acknowledged: dict[str, int] = {}
    kills = 0
    end = time.monotonic() + SECONDS
    moments = random.Random()
    for round in range(ROUNDS):
        if round > 2 and time.monotonic() > end:
            break
        told, killed = run_and_kill(path, moments.randrange(1, COMMITS))
        acknowledged |= told
        kills += killed
        trio.run(check, path, acknowledged)
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert kills >= 2


if __name__ == "__main__":
    trio.run(write, sys.argv[1])
