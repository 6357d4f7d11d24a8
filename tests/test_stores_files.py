"""The file of a SqliteStore: what is refused and left alone, how a schema grows, and what a crash leaves behind."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import trio

from goliath_actors.abc import Change, Entry, Record
from goliath_actors.errors import StoreCorrupt, StoreError, StoreTooNew
from goliath_actors.stores import SqliteStore
from goliath_actors.stores._sqlite_file import APPLICATION_ID, MIGRATIONS, Look, _use_wal, look_at, migrate
from goliath_actors.values import Exchange, Memory, Message


def contents(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(directory.iterdir()) if file.is_file()}


def turn(number: int) -> Change:
    name = f"turn {number}"
    return Change(
        memory=Memory(name, (Exchange(name, name, float(number)),)),
        failures=number,
        append=[
            Entry(f"{number} ask", 1.0, "user", Message("user", name)),
            Entry(f"{number} answer", 2.0, "assistant", Message("assistant", name * 200)),
        ],
    )


def make_file(path: Path, turns: int = 3) -> None:
    async def main() -> None:
        async with SqliteStore(path) as store:
            for number in range(1, turns + 1):
                await store.commit("k", turn(number))

    trio.run(main)


async def load(path: Path, key: str = "k") -> Record:
    async with SqliteStore(path, busy_timeout=0.5) as store:
        return await store.load(key)


def refusal(path: Path, kind: type[StoreError], match: str) -> StoreError:
    """Open the file twice, expecting the error each time, and nothing in the directory to change."""
    before = contents(path.parent) if path.parent.is_dir() else {}
    errors: list[StoreError] = []
    for _ in range(2):
        with pytest.raises(StoreError, match=match) as caught:
            trio.run(load, path)
        errors.append(caught.value)
        assert (contents(path.parent) if path.parent.is_dir() else {}) == before
    first, second = errors
    assert type(first) is kind
    assert str(path) in str(first)
    assert str(first) == str(second)
    return first


def test_a_directory_that_does_not_exist_is_named(tmp_path: Path) -> None:
    refusal(tmp_path / "no" / "chat.db", StoreError, r"the directory .*/no does not exist; create it first$")


def test_a_path_that_is_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chat.db").mkdir()
    refusal(tmp_path / "chat.db", StoreError, "it is a directory; name a file in it$")


def test_a_path_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    refusal(tmp_path / "file" / "chat.db", StoreError, "Not a directory; check its name and the permissions on it$")


@contextmanager
def without_privileges() -> Iterator[None]:
    """Permissions do not bind root, as whom tests run in many containers."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that everybody may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


posix = pytest.mark.skipif(not hasattr(os, "seteuid"), reason="needs POSIX permissions")


@posix
@pytest.mark.parametrize("mode", [0o000, 0o444])
def test_a_file_without_permissions_is_refused(mode: int, open_directory: Path) -> None:
    path = open_directory / "chat.db"
    make_file(path)
    path.chmod(mode)
    with without_privileges(), pytest.raises(StoreError, match=r"check .*permissions on it"):
        trio.run(load, path)
    path.chmod(0o644)
    assert list(contents(open_directory)) == ["chat.db"]
    assert trio.run(load, path).version == 3


@posix
def test_a_directory_without_permissions_is_refused(open_directory: Path) -> None:
    directory = open_directory / "shut"
    directory.mkdir(mode=0o555)
    with without_privileges(), pytest.raises(StoreError, match=r"check .*permissions on it"):
        trio.run(load, directory / "chat.db")
    assert contents(directory) == {}


@pytest.mark.parametrize(
    "content", [b"{}", b"SQLite format 2\x00" + b"\x00" * 5000, b"SQLite format 3\x00", b"\x00" * 9000]
)
def test_a_file_that_is_no_database_is_left_alone(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    path.write_bytes(content)
    refusal(
        path, StoreCorrupt, r"is no SQLite database, .* restore it from a copy, move it away, or choose another path$"
    )


def test_an_empty_file_is_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "chat.db").write_bytes(b"")
    assert trio.run(load, tmp_path / "chat.db") == Record()


def test_a_damaged_file_is_named_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    make_file(path)
    content = bytearray(path.read_bytes())
    # Everything behind the header: the tables are gone.
    content[108:] = b"\x5a" * (len(content) - 108)
    path.write_bytes(content)
    before = bytes(content)
    with pytest.raises(StoreCorrupt, match=r"chat\.db is damaged \(.*\); it was left as it is: restore it"):
        trio.run(load, path)
    assert path.read_bytes()[108:] == before[108:]


def test_a_damaged_file_with_a_journal_is_named_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    make_file(path)
    path.write_bytes(path.read_bytes()[:108] + b"\x5a" * 8084)
    (tmp_path / "chat.db-wal").write_bytes(b"left behind")
    with pytest.raises(StoreCorrupt, match=r"chat\.db is damaged"):
        trio.run(load, path)
    assert path.read_bytes()[108:] == b"\x5a" * 8084


def test_a_place_that_cannot_hold_a_journal_is_refused(tmp_path: Path) -> None:
    # A database in memory stands in for a file system without shared memory: both decline the change of mode.
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.text_factory = bytes
        with pytest.raises(StoreError, match=r"lies on a file system without shared memory, .* use a local disk$"):
            _use_wal(connection, tmp_path / "chat.db", 0.1)


def test_damage_to_one_page_is_an_error_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    make_file(path)
    with closing(sqlite3.connect(path)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'entries'").fetchone()
    content = bytearray(path.read_bytes())
    content[(page - 1) * 4096 : page * 4096] = b"\x5a" * 4096
    path.write_bytes(content)

    async def main() -> None:
        async with SqliteStore(path) as store:
            assert (await store.load("k")).version == 3
            with pytest.raises(StoreCorrupt, match="is damaged"):
                await store.entries("k")
            with pytest.raises(StoreCorrupt, match="is damaged"):
                await store.commit("k", turn(4))
            assert (await store.load("k")).version == 3
            assert (await store.commit("other", Change(failures=1))).version == 1

    trio.run(main)


@pytest.mark.parametrize(
    "script",
    [
        "CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)",
        "PRAGMA user_version=7; CREATE TABLE theirs (x)",
        "PRAGMA application_id=1; CREATE TABLE theirs (x)",
        "PRAGMA journal_mode=WAL; CREATE TABLE theirs (x)",
    ],
)
def test_a_database_of_another_program_is_left_alone(script: str, tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    refusal(path, StoreError, "is a database of another program and was left untouched; choose another path$")


def test_a_file_of_a_newer_schema_is_left_untouched(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    make_file(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version=99")
    error = refusal(path, StoreTooNew, "has schema 99, this version of goliath_actors knows up to 1; update")
    assert str(error).endswith("(the file was left untouched)")


def test_a_newer_schema_that_still_stands_in_the_journal_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    make_file(path)
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA user_version=99")
        before = path.read_bytes(), (tmp_path / "chat.db-wal").read_bytes()
        with pytest.raises(StoreTooNew):
            trio.run(load, path)
        assert (path.read_bytes(), (tmp_path / "chat.db-wal").read_bytes()) == before


def test_a_new_file_says_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    assert look_at(path) is None
    make_file(path, 0)
    assert look_at(path) == Look(APPLICATION_ID, len(MIGRATIONS), True)


@pytest.mark.parametrize("name", ["a b?mode=ro&x=1#y%41.db", "日本 é.db", "'quoted';--.db"])
def test_any_file_name_will_do(name: str, tmp_path: Path) -> None:
    make_file(tmp_path / name)
    assert list(contents(tmp_path)) == [name]
    assert trio.run(load, tmp_path / name).version == 3


def test_a_relative_path_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = SqliteStore("chat.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    trio.run(store.commit, "k", turn(1))
    trio.run(store.aclose)
    assert list(contents(tmp_path)) == ["chat.db"]


FIRST = ("CREATE TABLE a (x)",)
SECOND = ("ALTER TABLE a ADD COLUMN y DEFAULT 5", "CREATE TABLE b (x)", "INSERT INTO b SELECT x FROM a")


def test_migrations_run_once_each_in_order_and_keep_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrate(connection, path, [FIRST])
        connection.execute("INSERT INTO a VALUES (1)")
        for _ in range(2):
            migrate(connection, path, [FIRST, SECOND])
        assert connection.execute("SELECT a.x, y, b.x FROM a, b").fetchall() == [(1, 5, 1)]
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)
        with pytest.raises(StoreTooNew, match=r"has schema 2, .* up to 1"):
            migrate(connection, path, [FIRST])


def test_a_migration_that_fails_leaves_the_old_schema(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrate(connection, path, [FIRST])
        with pytest.raises(sqlite3.OperationalError, match="no such table: nowhere"):
            migrate(connection, path, [FIRST, (*SECOND, "INSERT INTO nowhere VALUES (1)")])
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("a",)]
        migrate(connection, path, [FIRST, SECOND])
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)


def test_a_crash_at_any_byte_of_a_write_leaves_the_turn_wholly_there_or_wholly_absent(tmp_path: Path) -> None:
    # A process that dies in the middle of a write leaves the main file as it was and a part of the journal.
    path = tmp_path / "chat.db"
    journal = tmp_path / "chat.db-wal"

    async def write() -> tuple[bytes, bytes, int]:
        async with SqliteStore(path) as store:
            for number in (1, 2, 3):
                await store.commit("k", turn(number))
            start = len(journal.read_bytes())
            await store.commit("k", turn(4))
            return path.read_bytes(), journal.read_bytes(), start

    main_file, whole, start = trio.run(write)
    seen: list[int] = []

    async def check(copy: Path) -> int:
        async with SqliteStore(copy, synchronous="NORMAL") as store:
            record = await store.load("k")
            count = record.version
            assert record == Record(count, turn(count).memory, failures=count, entries_count=2 * count)  # type: ignore[arg-type]
            expected = [entry for number in range(1, count + 1) for entry in turn(number).append]
            assert list((await store.entries("k")).entries) == expected
            assert (await store.commit("k", turn(5), expect=count)).version == count + 1
            return count

    for cut in [*range(start, len(whole), 397), len(whole) - 1, len(whole)]:
        copy = tmp_path / f"{cut}.db"
        copy.write_bytes(main_file)
        (tmp_path / f"{cut}.db-wal").write_bytes(whole[:cut])
        seen.append(trio.run(check, copy))
    assert seen == [3] * (len(seen) - 1) + [4]
    # The last page was torn: everything has its length and not its content.
    torn = tmp_path / "torn.db"
    torn.write_bytes(main_file)
    (tmp_path / "torn.db-wal").write_bytes(whole[:-100] + b"\x00" * 100)
    assert trio.run(check, torn) == 3
