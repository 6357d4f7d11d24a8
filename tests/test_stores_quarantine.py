"""What a SqliteStore cannot read is set aside, and told before anybody goes on without it."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
import trio

from goliath_actors.abc import Change, Entry, Record, Store
from goliath_actors.errors import StoreCorrupt, StoreError
from goliath_actors.stores import SqliteStore
from goliath_actors.values import Exchange, Memory, Message, Page


def entry(id: str, **private: object) -> Entry:
    return Entry(id, 1.0, "user", Message("user", f"text of {id}"), private=private)


FULL = Change(
    Memory("s", (Exchange("q", "a", 1.0),)), {"a": 1}, {"b": 2}, 3, [entry("1"), entry("2", idempotency_key="i")]
)

damages = [
    ("UPDATE records SET memory = '{\"summary\": 5}'", r"memory: Expected `str`, got `int`"),
    ("UPDATE records SET memory = '{'", "memory: Input data was truncated"),
    ("UPDATE records SET metadata = '[]'", "metadata: Expected `object`, got `array`"),
    ("UPDATE records SET private = CAST(X'7B22FF223A317D' AS TEXT)", "private metadata: "),
    ("UPDATE records SET private = 7.5", "private metadata: Expected `object`, got `float`"),
    ("UPDATE records SET version = 'many'", "a number of the record is none"),
    ("UPDATE records SET version = -1", "the record has version -1 and 2 entries"),
]


async def damaged(path: Path, *statements: str) -> None:
    async with SqliteStore(path) as store:
        await store.commit("k", FULL)
        await store.commit("fine", FULL)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def died_before_telling(path: Path) -> None:
    """Make the file what a process leaves that died between setting something aside and telling of it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE quarantine SET reported = 0 WHERE part_of IS NULL")


@pytest.mark.parametrize(("damage", "reason"), damages)
async def test_a_record_that_cannot_be_read_is_set_aside_and_told_before_it_is_empty(
    damage: str, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "chat.db"
    await damaged(path, f"{damage} WHERE key = CAST('k' AS BLOB)")
    async with SqliteStore(path) as store:
        with pytest.raises(
            StoreCorrupt, match=rf"^the record of 'k' in .*chat\.db could not be read .*{reason}"
        ) as told:
            await store.load("k")
        assert "set aside as row 1 of the table quarantine, with its entries" in str(told.value)
        assert await store.load("fine") == Record(1, FULL.memory, {"a": 1}, {"b": 2}, 3, 2)  # type: ignore[arg-type]
    # It was told, and the file knows so: whoever comes next goes on.
    async with SqliteStore(path) as store:
        assert await store.load("k") == Record()
        assert await store.commit("k", Change(append=[entry("1")]), expect=0) == Record(1, entries_count=1)
    async with SqliteStore(path) as store:
        assert await store.load("k") == Record(1, entries_count=1)
    with closing(sqlite3.connect(path)) as connection:
        kept = connection.execute("SELECT part_of, entry_id, body IS NULL FROM quarantine ORDER BY id").fetchall()
    assert kept == [(None, None, 1), (1, b"1", 0), (1, b"2", 0)]


@pytest.mark.parametrize("method", ["commit", "entries"])
async def test_every_door_tells_of_a_record_that_cannot_be_read(method: str, tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    await damaged(path, "UPDATE records SET version = 0 WHERE key = CAST('k' AS BLOB)")

    async def use(store: Store) -> object:
        return await (store.entries("k") if method == "entries" else store.commit("k", Change()))

    async with SqliteStore(path) as store:
        with pytest.raises(StoreCorrupt, match="row 1 of the table quarantine, with its entries"):
            await use(store)
    died_before_telling(path)
    async with SqliteStore(path) as store:
        with pytest.raises(StoreCorrupt, match="row 1 of the table quarantine, earlier"):
            await use(store)
        assert await use(store) == (Page([], 0) if method == "entries" else Record(1))


async def test_processes_that_each_use_a_conversation_once_hear_of_its_damage_once(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    await damaged(path, "UPDATE records SET memory = '{nonsense' WHERE key = CAST('k' AS BLOB)")
    heard: list[str] = []
    for _ in range(3):
        async with SqliteStore(path) as store:
            try:
                heard.append(f"version {(await store.load('k')).version}")
            except StoreCorrupt:
                heard.append("told")
    assert heard == ["told", "version 0", "version 0"]


async def test_the_file_knows_of_a_telling_also_if_the_store_is_never_closed(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    await damaged(path, "UPDATE records SET memory = '{nonsense' WHERE key = CAST('k' AS BLOB)")
    killed = SqliteStore(path)
    with pytest.raises(StoreCorrupt):
        await killed.load("k")
    # A write behind the mark, so that the mark is known to be on disk; nothing else is done by `killed` before the end.
    await killed.release("other", "nobody")
    async with SqliteStore(path) as store:
        assert await store.load("k") == Record()
    await killed.aclose()


async def test_a_telling_that_could_not_be_written_down_is_repeated_to_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    await damaged(
        path,
        "UPDATE records SET memory = '{nonsense' WHERE key = CAST('k' AS BLOB)",
        "CREATE TRIGGER full BEFORE UPDATE ON quarantine BEGIN SELECT RAISE(FAIL, 'no space'); END",
    )
    for where in ("with its entries", "earlier"):
        async with SqliteStore(path) as store:
            with pytest.raises(StoreCorrupt, match=f"row 1 of the table quarantine, {where}"):
                await store.load("k")
            assert await store.load("k") == Record()


async def test_each_thing_that_was_set_aside_is_told_of(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    await damaged(path, "UPDATE entries SET body = '{}'")
    for position in (1, 2):
        async with SqliteStore(path) as store:
            with pytest.raises(StoreCorrupt, match=f"^entry {position} of 'k' .* row {position} of"):
                await store.entries("k")
    died_before_telling(path)
    async with SqliteStore(path) as store:
        for row in (1, 2):
            with pytest.raises(StoreCorrupt, match=f"row {row} of the table quarantine, earlier"):
                await store.entries("k")
        assert await store.entries("k") == Page([], 2)
    async with SqliteStore(path) as store:
        assert await store.entries("k") == Page([], 2)


@pytest.mark.parametrize("damage", ["body = '{}'", "body = 5", "id = 5", "id = X'FF'", "body = X'7B22FF'"])
async def test_an_entry_that_cannot_be_read_is_set_aside_alone(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    await damaged(path, f"UPDATE entries SET {damage} WHERE position = 2")
    async with SqliteStore(path) as store:
        with pytest.raises(StoreCorrupt, match=r"^entry 2 of 'k' in .* row 1 .*, the rest of the conversation stays$"):
            await store.entries("k")
        page = Page([entry("1")], 2)
        assert await store.entries("k") == page
        assert (await store.load("k")).entries_count == 2
    died_before_telling(path)
    async with SqliteStore(path) as store:
        with pytest.raises(StoreCorrupt, match="earlier"):
            await store.entries("k")
        assert await store.entries("k") == page
        # Positions stay, so that no page shifts; the entry can still be dropped.
        assert (await store.commit("k", Change(append=[entry("3")]))).entries_count == 3
        assert await store.entries("k", limit=1, after=2) == Page([entry("3")], 3)
        with pytest.raises(StoreError, match="has no entry '2'"):
            await store.commit("k", Change(visibility={"2": (True, True)}))
        assert (await store.commit("k", Change(truncate_after="1"))).entries_count == 1
    async with SqliteStore(path) as store:
        assert await store.entries("k") == Page([entry("1")], 1)


@pytest.mark.parametrize("method", ["find", "visibility"])
async def test_an_entry_that_cannot_be_read_is_told_of_by_whoever_meets_it(method: str, tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    await damaged(path, "UPDATE entries SET body = '{}' WHERE position = 2")
    async with SqliteStore(path) as store:
        with pytest.raises(StoreCorrupt, match=r"^entry 2 of 'k'"):
            if method == "find":
                await store.find("k", "i")
            else:
                await store.commit("k", Change(failures=9, visibility={"1": (False, False), "2": (False, False)}))
        assert (await store.load("k")).version == 1
        assert await store.find("k", "i") is None


async def test_a_record_that_counts_less_entries_than_it_has_is_set_aside_and_not_stuck(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    await damaged(path, "UPDATE records SET entries = 1")
    async with SqliteStore(path) as store:
        assert (await store.load("k")).entries_count == 1
        with pytest.raises(StoreCorrupt, match=r"^the record of 'k' .* \(the record counts 1 entries and has 2\)"):
            await store.commit("k", Change(append=[entry("3")]))
        assert await store.commit("k", Change(append=[entry("3")])) == Record(1, entries_count=1)


async def test_a_key_that_is_no_text_does_not_spoil_the_list(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    await damaged(
        path, "UPDATE records SET key = X'6BFF' WHERE id = 1", "INSERT INTO records VALUES (9, 7, 1, 0, 0, '', '', '')"
    )
    async with SqliteStore(path) as store:
        assert await store.keys() == ["fine"]


async def test_forgetting_deletes_what_was_set_aside_too(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    await damaged(path, "UPDATE records SET memory = 'x' WHERE key = CAST('k' AS BLOB)")
    async with SqliteStore(path) as store:
        with pytest.raises(StoreCorrupt):
            await store.load("k")
        await store.forget("k")
    async with SqliteStore(path) as store:
        assert await store.load("k") == Record()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM quarantine").fetchone() == (0,)


async def test_a_record_that_was_repaired_meanwhile_is_not_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    await damaged(path, "UPDATE records SET memory = 'x' WHERE key = CAST('k' AS BLOB)")
    async with SqliteStore(path) as store:
        await store.load("fine")

        def repair(connection: sqlite3.Connection) -> None:
            reached.set()
            repaired.wait()
            connection.execute("UPDATE records SET memory = NULL WHERE key = CAST('k' AS BLOB)")

        reached, repaired = threading.Event(), threading.Event()
        found: list[Record] = []

        async def load() -> None:
            found.append(await store.load("k"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(store._writer.run, repair)
            await trio.to_thread.run_sync(reached.wait)
            nursery.start_soon(load)
            # The reader has seen the damage, and its wish to set it aside waits behind the repair.
            while not store._writer._pending:
                await trio.lowlevel.checkpoint()
            repaired.set()
        assert found == [Record(1, Memory(), {"a": 1}, {"b": 2}, 3, 2)]
