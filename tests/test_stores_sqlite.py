"""What is particular to the store in a file: group commit, readers, other processes, cancellation, quarantine."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from goliath_actors.abc import Change, Entry, Record
from goliath_actors.errors import ConfigError, StoreConflict, StoreError
from goliath_actors.stores import SqliteStore
from goliath_actors.stores import _sqlite_rows as rows
from goliath_actors.stores._group_commit import GroupCommit
from goliath_actors.stores._sqlite_file import open_reader
from goliath_actors.stores._write_queue import Ticket, _tell
from goliath_actors.values import Message, Page


def entry(id: str, **private: object) -> Entry:
    return Entry(id, 1.0, "user", Message("user", f"text of {id}"), private=private)


def files(directory: Path) -> list[str]:
    return sorted(file.name for file in directory.iterdir())


@asynccontextmanager
async def busy_writer(store: SqliteStore) -> AsyncIterator[threading.Event]:
    """Inside the block the thread that writes is stuck in a transaction, until the event is set or the block ends."""
    reached, release = threading.Event(), threading.Event()

    def work(connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM leases")
        reached.set()
        release.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(store._writer.run, work)
        await trio.to_thread.run_sync(reached.wait)
        try:
            yield release
        finally:
            release.set()


async def test_reads_do_not_wait_for_a_busy_writer(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "chat.db") as store:
        first = entry("1", idempotency_key="i")
        await store.commit("k", Change(failures=1, append=[first]))
        async with busy_writer(store) as release:
            assert await store.load("k") == Record(1, failures=1, entries_count=1)
            assert await store.entries("k") == Page([first], 1)
            assert await store.find("k", "i") == first
            assert await store.keys() == ["k"]
            assert not release.is_set()


@pytest.mark.parametrize(("max_batch", "failing"), [(512, ["k0", "k1", "k2", "k3"]), (2, ["k2"]), (1, [])])
async def test_changes_that_wait_go_to_disk_in_one_transaction(
    max_batch: int, failing: list[str], tmp_path: Path
) -> None:
    failed: list[str] = []
    async with SqliteStore(tmp_path / "chat.db", max_batch=max_batch) as store:

        async def commit(key: str) -> None:
            try:
                await store.commit(key, Change(failures=1))
            except StoreError as error:
                failed.append(f"{key}: {str(error).rpartition(': ')[2]}")

        async def end_it() -> None:
            with pytest.raises(StoreError, match="made up"):
                await store._writer.run(end_the_transaction)

        def end_the_transaction(connection: sqlite3.Connection) -> None:
            # As SQLite does when there is no space, no memory, or no disk any more.
            connection.execute("ROLLBACK")
            raise sqlite3.OperationalError("made up")

        async with trio.open_nursery() as nursery, busy_writer(store):
            for key in ("k0", "k1", None, "k2", "k3"):
                if key is None:
                    nursery.start_soon(end_it)
                else:
                    nursery.start_soon(commit, key)
                await wait_all_tasks_blocked()
        # What shares a transaction shares its end, and nothing of it is in the file.
        assert sorted(failed) == [f"{key}: made up" for key in failing]
        assert await store.keys() == [key for key in ("k0", "k1", "k2", "k3") if key not in failing]
        assert (await store.commit("k2", Change(), expect=0 if "k2" in failing else 1)).failures == (
            "k2" not in failing
        )


async def test_one_conflict_in_a_batch_harms_no_neighbour(tmp_path: Path) -> None:
    conflicts: list[int] = []
    async with SqliteStore(tmp_path / "chat.db") as store:

        async def commit(number: int) -> None:
            # Numbers 3 and 7 are stale; 5 fails in the middle of its change, after it has written.
            id = "1" if number != 5 else "0"
            change = Change(failures=number, append=[entry("0"), entry(id)])
            try:
                await store.commit(f"k{number}", change, expect=9 if number in (3, 7) else 0)
            except StoreError:
                conflicts.append(number)

        async with trio.open_nursery() as nursery, busy_writer(store):
            for number in range(10):
                nursery.start_soon(commit, number)
            await wait_all_tasks_blocked()
        assert sorted(conflicts) == [3, 5, 7]
        for number in range(10):
            expected = Record() if number in (3, 5, 7) else Record(1, failures=number, entries_count=2)
            assert await store.load(f"k{number}") == expected


async def test_a_batch_asks_three_statements_of_each_commit_and_savepoints_only_when_one_fails_midway(
    tmp_path: Path,
) -> None:
    async with SqliteStore(tmp_path / "chat.db") as store:
        for number in range(3):
            await store.commit(f"k{number}", Change(append=[entry("0")]))

        async def batch(ids: list[str], expect: int) -> tuple[Counter[str], list[int]]:
            """Commit an entry to each of three conversations, in one batch; return its statements and who failed."""
            words: Counter[str] = Counter()
            failed: list[int] = []

            async def commit(number: int) -> None:
                change = Change(failures=number, append=[entry(ids[number]), entry("last" + ids[number])])
                try:
                    await store.commit(f"k{number}", change, expect=expect)
                except StoreError:
                    failed.append(number)

            def count(statement: str) -> None:
                words[statement.split()[0]] += 1

            def watch(connection: sqlite3.Connection) -> None:
                connection.set_trace_callback(count)

            def end(connection: sqlite3.Connection) -> None:
                connection.set_trace_callback(None)

            await store._writer.run(watch)
            async with trio.open_nursery() as nursery, busy_writer(store):
                words.clear()
                for number in range(3):
                    nursery.start_soon(commit, number)
                    await wait_all_tasks_blocked()
            await store._writer.run(end)
            # Without the end of what kept the writer busy, and the beginning of what ended the watch.
            return words - Counter(BEGIN=1, COMMIT=1), sorted(failed)

        each = Counter(SELECT=3, UPDATE=3, INSERT=6)
        assert await batch(["a", "b", "c"], 1) == (Counter(BEGIN=1, COMMIT=1) + each, [])
        # A conflict has changed nothing.
        words, failed = await batch(["d", "e", "f"], 1)
        assert (words, failed) == (Counter(BEGIN=1, COMMIT=1, SELECT=3), [0, 1, 2])
        # The second one is refused when it has written something: all is undone, and done once more.
        words, failed = await batch(["g", "0", "h"], 2)
        assert (words["ROLLBACK"], words["SAVEPOINT"], words["COMMIT"], failed) == (2, 3, 1, [1])
        assert [(await store.load(f"k{number}")).version for number in range(3)] == [3, 2, 3]


async def test_a_commit_that_is_under_way_is_waited_for_and_known(tmp_path: Path) -> None:
    record: Record | None = None
    async with SqliteStore(tmp_path / "chat.db") as store:
        async with busy_writer(store) as release, trio.open_nursery() as nursery:

            async def commit() -> None:
                nonlocal record
                with scope:
                    record = await store.commit("k", Change(failures=1))
                    await trio.lowlevel.checkpoint()

            scope = trio.CancelScope()
            nursery.start_soon(commit)
            await wait_all_tasks_blocked()
            scope.cancel()
            await wait_all_tasks_blocked()
            assert record is None
            release.set()
        assert scope.cancelled_caught
        assert record == Record(1, failures=1) == await store.load("k")


async def test_a_commit_that_was_cancelled_before_has_changed_nothing(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "chat.db") as store:
        with trio.CancelScope() as scope:
            scope.cancel()
            await store.commit("k", Change())
        assert scope.cancelled_caught
        assert await store.load("k") == Record()


async def test_another_process_that_writes_is_waited_for(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "chat.db") as store:
        await store.commit("k", Change())
        with closing(sqlite3.connect(tmp_path / "chat.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(store.commit, "k", Change(failures=1))
                await wait_all_tasks_blocked()
                # Meanwhile everybody reads.
                assert await store.load("k") == Record(1)
                other.execute("COMMIT")
        assert await store.load("k") == Record(2, failures=1)


async def test_another_process_that_writes_too_long_is_an_error_that_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    async with SqliteStore(path, busy_timeout=0.01) as store:
        await store.commit("k", Change())
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreError, match=r"chat\.db is busy: another process .* raise busy_timeout$"):
                await store.commit("k", Change(failures=1))
            other.execute("ROLLBACK")
        assert (await store.commit("k", Change(failures=2), expect=1)).version == 2


async def test_two_stores_on_one_new_file_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    stores = [SqliteStore(path) for _ in range(4)]

    async def write(number: int) -> None:
        async with stores[number % 4] as store:
            for turn in range(10):
                await store.commit("shared", Change(append=[entry(f"{number}-{turn}")]))
                await store.commit(f"own {number}", Change(append=[entry(f"{turn}")]), expect=turn)

    async with trio.open_nursery() as nursery:
        for number in range(16):
            nursery.start_soon(write, number)
    async with SqliteStore(path) as store:
        assert await store.load("shared") == Record(160, entries_count=160)
        page = await store.entries("shared", limit=200)
        assert sorted(entry.id for entry in page.entries) == sorted(f"{n}-{t}" for n in range(16) for t in range(10))
        assert [await store.load(f"own {n}") for n in range(16)] == [Record(10, entries_count=10)] * 16


async def test_no_space_is_an_error_that_changes_nothing_and_reads_go_on(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "chat.db") as store:
        await store.commit("k", Change(append=[entry("1")]))

        def limit(pages: int) -> Any:
            return lambda connection: connection.execute(f"PRAGMA max_page_count={pages}").fetchall()

        # One page more than there are: as on a disk that is nearly full. The limit is this connection's own.
        await store._writer.run(limit(1))
        big = Change(append=[Entry("2", 1.0, "user", Message("user", "x" * 100_000))])
        with pytest.raises(StoreError, match=r"no space left for .*chat\.db, nothing was changed"):
            await store.commit("k", big)
        assert await store.load("k") == Record(1, entries_count=1)
        await store._writer.run(limit(1_000_000))
        assert await store.commit("k", big) == Record(2, entries_count=2)


async def test_a_store_works_without_being_entered_and_closes_for_good(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    store = SqliteStore(path)
    assert repr(store) == f"<SqliteStore {path}: not opened>"
    assert files(tmp_path) == []
    assert await store.load("k") == Record()
    await store.commit("k", Change())
    assert repr(store) == f"<SqliteStore {path}: open>"
    await store.aclose()
    await store.aclose()
    assert repr(store) == f"<SqliteStore {path}: closed>"
    # The last connection to close takes the journal with it.
    assert files(tmp_path) == ["chat.db"]
    for refused in (store.load("k"), store.commit("k", Change())):
        with pytest.raises(StoreError, match="is closed; enter it again"):
            await refused
    async with store:
        assert await store.load("k") == Record(1)


async def test_a_store_that_was_entered_twice_closes_with_the_last(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "chat.db")
    async with store:
        async with store:
            await store.commit("k", Change())
        assert await store.load("k") == Record(1)
    with pytest.raises(StoreError, match="is closed"):
        await store.load("k")


async def test_closing_in_a_cancelled_scope_writes_what_waits_and_closes(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    with trio.CancelScope() as scope:
        async with SqliteStore(path) as store:
            async with trio.open_nursery() as nursery, busy_writer(store) as release:
                nursery.start_soon(store.commit, "k", Change())
                await wait_all_tasks_blocked()
                release.set()
            scope.cancel()
    assert scope.cancelled_caught
    assert files(tmp_path) == ["chat.db"]
    async with SqliteStore(path) as store:
        assert await store.load("k") == Record(1)


async def test_closing_waits_for_who_reads_and_for_who_closes_too(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "chat.db", max_readers=3)
    await store.commit("k", Change())
    reached, release = threading.Event(), threading.Event()
    order: list[str] = []

    def slow(connection: sqlite3.Connection) -> int:
        reached.set()
        release.wait()
        return len(connection.execute("SELECT * FROM records").fetchall())

    async def read() -> None:
        assert await store._read(slow) == 1
        order.append("read")

    async def close() -> None:
        await store.aclose()
        order.append("closed")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.to_thread.run_sync(reached.wait)
        nursery.start_soon(close)
        nursery.start_soon(close)
        await wait_all_tasks_blocked()
        assert order == []
        release.set()
    assert order == ["read", "closed", "closed"]
    assert files(tmp_path) == ["chat.db"]


def test_a_store_serves_one_trio_run_after_another(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "chat.db")
    assert trio.run(store.commit, "k", Change()) == Record(1)
    assert trio.run(store.commit, "k", Change()) == Record(2)
    assert trio.run(store.load, "k") == Record(2)
    trio.run(store.aclose)


async def test_a_lease_of_a_clock_that_began_anew_is_over(tmp_path: Path, mock_clock: MockClock) -> None:
    path = tmp_path / "chat.db"
    async with SqliteStore(path, clock=lambda: 1_000_000.0) as store:
        assert await store.acquire("k", "here", 60) == 1
        assert await store.acquire("k", "there", 60) is None
    async with SqliteStore(path, clock=lambda: 5.0) as store:
        assert await store.acquire("k", "there", 60) == 2


async def test_a_lease_that_was_taken_while_one_waited_for_the_file_is_not_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "chat.db"
    async with SqliteStore(path, clock=lambda: 100.0) as here, SqliteStore(path, clock=lambda: 95.0) as there:
        assert await here.acquire("k", "here", 60) == 1
        # It asked five seconds before the other one, and only now it has the file.
        monkeypatch.setattr("goliath_actors.stores._sqlite_changes.monotonic", lambda: time.monotonic() + 5)
        assert await there.acquire("k", "there", 60) is None
        await here.commit("k", Change(), token=1)


async def test_two_stores_on_one_file_never_take_a_lease_from_each_other(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    inside = 0

    async def work(store: SqliteStore, owner: str) -> None:
        nonlocal inside
        done = 0
        while done < 8:
            token = await store.acquire("k", owner, 60)
            if token is None:
                await trio.lowlevel.checkpoint()
                continue
            inside += 1
            assert inside == 1
            await store.commit("k", Change(failures=done), token=token)
            assert inside == 1
            inside -= 1
            await store.release("k", owner)
            done += 1

    async with SqliteStore(path) as here, SqliteStore(path) as there:
        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(work, here, f"here-{number}")
                nursery.start_soon(work, there, f"there-{number}")
        assert (await here.load("k")).version == 48


async def test_an_error_for_want_of_a_thread_changes_nothing_and_passes(tmp_path: Path) -> None:
    starts = 0

    def start(work: Any, deliver: Any, name: str) -> None:
        nonlocal starts
        starts += 1
        if starts == 1:
            raise RuntimeError("can't start new thread")
        trio.lowlevel.start_thread_soon(work, deliver, name)

    writer = GroupCommit(
        lambda: sqlite3.connect(":memory:", check_same_thread=False), StoreError, limit=10, start=start
    )
    with pytest.raises(StoreError, match="no thread to write with"):
        await writer.run(lambda connection: None)
    assert await writer.run(lambda connection: connection.execute("SELECT 7").fetchone()) == (7,)
    await writer.close()


async def test_an_unexpected_error_of_one_piece_of_work_comes_out_as_it_is(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "chat.db") as store:
        mistake = KeyError("mistake")

        def work(connection: sqlite3.Connection) -> None:
            raise mistake

        with pytest.raises(KeyError) as caught:
            await store._writer.run(work)
        assert caught.value is mistake


def test_a_program_that_is_over_is_not_told() -> None:
    async def ticket() -> Ticket[None]:
        return Ticket(None)

    tickets = [trio.run(ticket), trio.run(ticket)]
    _tell(tickets)
    assert [ticket.error for ticket in tickets] == [None, None]


@pytest.mark.parametrize("path", ["", ":memory:"])
def test_a_path_that_names_no_file_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match=r"names none; use InMemoryStore\(\)"):
        SqliteStore(path)


@pytest.mark.parametrize(
    "options",
    [{"busy_timeout": 0}, {"busy_timeout": float("inf")}, {"max_batch": 0}, {"max_readers": 0}, {"synchronous": "OFF"}],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"^{next(iter(options))} of a SqliteStore"):
        SqliteStore(tmp_path / "chat.db", **options)


async def test_a_conflict_is_told_apart_from_damage(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "chat.db") as store:
        await store.commit("k", Change())
        with pytest.raises(StoreConflict):
            await store.commit("k", Change(), expect=0)


async def test_one_entry_one_page_and_the_record_cost_the_same_however_long_a_conversation_is(tmp_path: Path) -> None:
    def steps(read: Callable[[sqlite3.Connection], object]) -> int:
        """Count the steps that SQLite's machine makes."""
        made = 0

        def count() -> None:
            nonlocal made
            made += 1

        with closing(open_reader(tmp_path / "chat.db", 1.0)) as connection:
            read(connection)  # what it reads of the schema once
            connection.set_progress_handler(count, 1)
            read(connection)
        return made

    async with SqliteStore(tmp_path / "chat.db") as store:
        for key, length in (("short", 60), ("long", 2000)):
            await store.commit(key, Change(append=[entry(f"{n}", idempotency_key=f"i{n}") for n in range(length)]))
        for read in (
            partial(rows.find, idempotency_key="i59"),
            partial(rows.find, idempotency_key="none"),
            partial(rows.entries, before=None, after=None, limit=50, anchor=None, told=()),
            partial(rows.entries, before=55, after=None, limit=50, anchor=60, told=()),
            partial(rows.load, told=()),
        ):
            short, long = (steps(partial(read, key=key)) for key in ("short", "long"))
            assert abs(long - short) <= 1  # one step for a table that ends there
