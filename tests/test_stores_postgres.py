"""Conversations in a real PostgreSQL: the rules of every store, and what a network and a server add."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import attrs
import psycopg
import pytest
import trio
from psycopg import sql

from goliath_actors._conformance import StoreCheck, store_conformance
from goliath_actors.abc import Change, Entry
from goliath_actors.errors import ConfigError, StoreConflict, StoreCorrupt, StoreError, StoreTooNew
from goliath_actors.stores import PostgresStore
from goliath_actors.stores import _postgres_work as work
from goliath_actors.stores._codec import encode_change
from goliath_actors.values import Memory, Message

from .postgres_server import Server, running_server

pytestmark = pytest.mark.postgres
_schemas = count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server() as server:
        yield server


@pytest.fixture
def schema() -> str:
    return f"s{next(_schemas)}"


@pytest.fixture
def make(server: Server, schema: str) -> Callable[..., PostgresStore]:
    def make(address: str = server.address, **options: Any) -> PostgresStore:
        return PostgresStore(address, schema=schema, **options)

    return make


Make = Callable[..., PostgresStore]


def entry(id: str, text: str = "x") -> Entry:
    return Entry(id, 1.0, "user", Message("user", text))


async def ids(store: PostgresStore, key: str) -> list[str]:
    return [entry.id for entry in (await store.entries(key, after=0, limit=1000)).entries]


@contextmanager
def directly(server: Server, schema: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection beside the store's."""
    with psycopg.connect(server.address, autocommit=True) as connection:
        connection.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(schema)))
        yield connection


@pytest.mark.parametrize("check", store_conformance)
async def test_the_store_passes(check: StoreCheck, make: Make) -> None:
    await check(make)


async def test_the_whole_suite_runs_on_one_database(make: Make) -> None:
    await store_conformance(make)


async def test_several_stores_on_one_database_lose_nothing_and_meet_no_deadlock(make: Make) -> None:
    """Each commits to all conversations, in another order, at the same time."""

    async def write(store: PostgresStore, who: int) -> None:
        async with trio.open_nursery() as nursery:
            for turn in range(8):
                for number in range(8):
                    key = f"k{(number * (who + 1) + turn) % 8}"
                    change = Change(append=[entry(f"{who}-{turn}-{number}")])
                    nursery.start_soon(store.commit, key, change)

    async with make() as one, make() as two, make() as three:
        async with trio.open_nursery() as nursery:
            for who, store in enumerate((one, two, three)):
                nursery.start_soon(write, store, who)
        records = [await one.load(f"k{number}") for number in range(8)]
        assert sum(record.entries_count for record in records) == 3 * 64
        assert sum(record.version for record in records) == 3 * 64


async def test_a_commit_looks_at_as_many_entries_however_long_its_conversation_is(
    make: Make, server: Server, schema: str
) -> None:
    seen: dict[str, int] = {}
    async with make() as store:
        for key, length in (("short", 5), ("long", 500)):
            await store.commit(key, Change(append=[entry(f"{number}") for number in range(length)]))
        for key in ("short", "long"):
            with directly(server, schema) as connection:
                change = Change(append=[entry("new"), entry("newer")], visibility={"3": (True, False)})
                wanted = work.commit(key, encode_change(change), 1, None)
                with connection.transaction():
                    row = connection.execute(wanted.statement, wanted.values).fetchone()
                    assert row is not None
                    assert wanted.read(row).version == 2
                    found = connection.execute(
                        "SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables "
                        "WHERE relid = 'entries'::regclass"
                    ).fetchone()
                    assert found is not None
                    seen[key] = found[0]
    assert seen == {"short": 2, "long": 2}  # the entry that is shown, when it is looked for and when it is changed


async def test_a_schema_of_a_newer_version_is_left_untouched(make: Make, server: Server, schema: str) -> None:
    async with make() as store:
        await store.commit("k", Change(append=[entry("1")]))
    with directly(server, schema) as connection:
        connection.execute("UPDATE meta SET version = 999")
    store = make()
    with pytest.raises(StoreTooNew, match="update goliath_actors"):
        await store.__aenter__()
    with pytest.raises(StoreTooNew):
        await make().load("k")
    with directly(server, schema) as connection:
        assert connection.execute("SELECT version FROM meta").fetchone() == (999,)


async def test_many_who_open_a_new_database_at_once_make_its_tables_once(make: Make) -> None:
    async def use(number: int) -> None:
        async with make() as store:
            await store.commit("k", Change(append=[entry(f"{number}")]))

    async with trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(use, number)
    async with make() as store:
        assert sorted(await ids(store, "k")) == [f"{number}" for number in range(6)]


async def test_a_server_that_was_restarted_is_found_again(make: Make, server: Server) -> None:
    async with make() as store:
        await store.commit("k", Change(append=[entry("1")]))
        await store.load("k")  # a connection that reads is open, too
        await trio.to_thread.run_sync(server.restart)
        assert (await store.load("k")).version == 1
        assert (await store.commit("k", Change(append=[entry("2")]))).version == 2
        assert await ids(store, "k") == ["1", "2"]


async def test_a_server_that_is_away_is_waited_for(make: Make, server: Server) -> None:
    async with make(patience=30.0) as store:
        await store.commit("k", Change(append=[entry("1")]))
        await trio.to_thread.run_sync(server.stop)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, server.start)
            nursery.start_soon(store.commit, "k", Change(append=[entry("2")]))
            nursery.start_soon(store.load, "k")
        assert await ids(store, "k") == ["1", "2"]


@pytest.mark.parametrize("crash_number", range(4))
async def test_what_was_acknowledged_survives_a_crash_of_the_server(
    make: Make, server: Server, crash_number: int
) -> None:
    """Each crash takes transactions along that had not reached the disk; whether one was just committing is chance."""
    acknowledged: list[str] = []

    async def write(store: PostgresStore, who: int) -> None:
        for turn in range(40):
            await store.commit(f"k{who}", Change(append=[entry(f"{turn}")]), expect=turn)
            acknowledged.append(f"{who}-{turn}")

    def crash() -> None:
        server.kill()
        server.start()

    async with make(patience=30.0) as store:
        async with trio.open_nursery() as nursery:
            for who in range(5):
                nursery.start_soon(write, store, who)
            while len(acknowledged) < 20:  # noqa: ASYNC110  # a server has no event for it
                await trio.sleep(0.001)
            await trio.to_thread.run_sync(crash)
        # Each change was made exactly once, though some had to be made again: `expect` would have told.
        for who in range(5):
            assert await ids(store, f"k{who}") == [f"{turn}" for turn in range(40)]


# --- a connection that is lost in the middle of a commit --------------------------------------------------------------


@attrs.define(eq=False)
class Wire:
    """Between a store and its server; cuts one connection where a test says."""

    port: int
    # "before": the server never hears COMMIT. "after": it does, and its answer is lost.
    cut: str = ""
    cuts: int = 0
    refusing: bool = False
    listener: socket.socket = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            if self.refusing:
                client.close()
                continue
            upstream = socket.create_connection(("127.0.0.1", self.port))
            silent = threading.Event()
            threading.Thread(target=self.forth, args=(client, upstream, silent), daemon=True).start()
            threading.Thread(target=self.back, args=(client, upstream, silent), daemon=True).start()

    def forth(self, client: socket.socket, upstream: socket.socket, silent: threading.Event) -> None:
        try:
            while data := client.recv(65536):
                if self.cut and b"COMMIT" in data:
                    self.cuts += 1
                    how, self.cut = self.cut, ""
                    if how == "before":
                        break
                    silent.set()
                upstream.sendall(data)
        except OSError:
            pass
        close(upstream, client)

    def back(self, client: socket.socket, upstream: socket.socket, silent: threading.Event) -> None:
        try:
            while data := upstream.recv(65536):
                if silent.is_set():  # the server has answered COMMIT: so it is done
                    break
                client.sendall(data)
        except OSError:
            pass
        close(client, upstream)


def close(*sockets: socket.socket) -> None:
    for one in sockets:
        try:
            one.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        one.close()


@pytest.mark.parametrize("how", ["before", "after"])
async def test_a_change_whose_commit_was_lost_on_the_way_is_made_exactly_once(
    how: str, make: Make, server: Server
) -> None:
    wire = Wire(server.port)
    address = f"postgresql://tester:s3cret@127.0.0.1:{wire.listener.getsockname()[1]}/postgres?sslmode=disable"
    try:
        async with make(address) as store:
            await store.commit("k", Change(append=[entry("1")]))
            wire.cut = how
            record = await store.commit("k", Change(append=[entry("2")], failures=3), expect=1)
            assert wire.cuts == 1
            assert (record.version, record.failures) == (2, 3)
            assert await ids(store, "k") == ["1", "2"]
    finally:
        wire.listener.close()


async def test_a_change_of_which_nothing_can_be_known_says_so(make: Make, server: Server) -> None:
    wire = Wire(server.port)
    address = f"postgresql://tester:s3cret@127.0.0.1:{wire.listener.getsockname()[1]}/postgres?sslmode=disable"
    async with make(address, patience=0.2) as store:
        await store.commit("k", Change(append=[entry("1")]))
        wire.cut, wire.refusing = "after", True  # and nobody gets through any more
        with pytest.raises(StoreError, match="wholly there or not at all"):
            await store.commit("k", Change(append=[entry("2")]))
    wire.listener.close()


# --- time-outs, neighbours, secrets -----------------------------------------------------------------------------------


async def test_a_lock_that_somebody_holds_costs_neither_for_ever_nor_the_neighbours(
    make: Make, server: Server, schema: str
) -> None:
    outcomes: dict[str, object] = {}

    async def write(store: PostgresStore, key: str) -> None:
        try:
            outcomes[key] = (await store.commit(key, Change(failures=1))).version
        except StoreError as error:
            outcomes[key] = str(error)

    async with make(statement_timeout=0.3) as store:
        for key in ("a", "held", "z"):
            await store.commit(key, Change())
        with directly(server, schema) as connection, connection.transaction():
            connection.execute("SELECT FROM records WHERE key = 'held' FOR UPDATE")
            async with trio.open_nursery() as nursery:
                for key in ("a", "held", "z"):
                    nursery.start_soon(write, store, key)
        assert (outcomes["a"], outcomes["z"]) == (2, 2)
        assert "took longer than 0.3 s" in str(outcomes["held"])
        assert (await store.commit("held", Change())).version == 2


async def test_no_password_is_shown_anywhere(make: Make, server: Server) -> None:
    texts: list[str] = [repr(make())]
    wrong = server.address.replace("s3cret", "hunter2")
    for address in (wrong, wrong.replace(str(server.port), "1"), "host=127.0.0.1 port=1 password=hunter2"):
        store = make(address)
        texts.append(repr(store))
        with pytest.raises(StoreError) as raised:
            await store.__aenter__()
        texts += [str(raised.value), repr(raised.value), str(raised.value.__cause__)]
    for broken in ("postgresql://user:hunter2%zz@host/db", "password=hunter2 nonsense"):
        with pytest.raises(ConfigError) as misread:
            make(broken)
        texts += [str(misread.value), repr(misread.value.__cause__), repr(misread.value.__context__)]
    assert [text for text in texts if "hunter2" in text or "s3cret" in text] == []
    assert f"127.0.0.1:{server.port}/postgres" in texts[0]


async def test_a_server_that_was_never_there_is_told_at_once(make: Make) -> None:
    with pytest.raises(StoreError, match=r"cannot reach 127\.0\.0\.1:1/postgres"):
        await make("postgresql://tester:x@127.0.0.1:1/postgres", patience=1000.0).__aenter__()


@pytest.mark.parametrize("schema", ["", "Upper", "a-b", 'x"; DROP', "9a", "a" * 64])
def test_a_schema_has_a_plain_name(schema: str) -> None:
    with pytest.raises(ConfigError, match="no name for a schema"):
        PostgresStore("", schema=schema)


@pytest.mark.parametrize(
    "options", [{"max_readers": 0}, {"max_batch": 0}, {"patience": -1.0}, {"statement_timeout": float("inf")}]
)
def test_limits_have_to_make_sense(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="more than 0"):
        PostgresStore("", **options)  # type: ignore[arg-type]


async def test_what_is_acknowledged_is_on_disk_whatever_the_servers_default(make: Make, server: Server) -> None:
    with psycopg.connect(server.address, autocommit=True) as connection:
        connection.execute("ALTER ROLE tester SET synchronous_commit = off")
        try:
            link = make()._link.open()
            assert link.execute("SHOW synchronous_commit").fetchone() == ("on",)
            link.close()
        finally:
            connection.execute("ALTER ROLE tester RESET synchronous_commit")


# --- what cannot be read ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["load", "commit"])
async def test_a_record_that_cannot_be_read_is_set_aside_and_told_once(
    how: str, make: Make, server: Server, schema: str
) -> None:
    async with make() as store:
        await store.commit("k", Change(Memory("s"), append=[entry("1")]))
        await store.commit("other", Change(append=[entry("1")]))
        with directly(server, schema) as connection:
            connection.execute("UPDATE records SET memory = 'not json' WHERE key = 'k'")

        async def use() -> object:
            return await (store.load("k") if how == "load" else store.commit("k", Change(failures=1)))

        with pytest.raises(StoreCorrupt, match="set aside as row 1 of the table quarantine"):
            await use()
        await use()
        assert await ids(store, "k") == []
        with directly(server, schema) as connection:
            assert connection.execute("SELECT count(*) FROM quarantine").fetchone() == (2,)
        assert await ids(store, "other") == ["1"]
        await store.forget("k")
        with directly(server, schema) as connection:
            assert connection.execute("SELECT count(*) FROM quarantine").fetchone() == (0,)


async def test_what_was_set_aside_and_not_told_is_told_by_the_next_process(
    make: Make, server: Server, schema: str
) -> None:
    async with make() as store:
        await store.commit("k", Change(Memory("s")))
        with directly(server, schema) as connection:
            connection.execute("UPDATE records SET memory = 'not json'")
            connection.execute("SELECT set_aside_record('k', 1, 'by one who died')")
    for method in ("commit", "load", "entries"):
        async with make() as store:
            with directly(server, schema) as connection:
                connection.execute("UPDATE quarantine SET reported = false")
            with pytest.raises(StoreCorrupt, match="by one who died"):
                await (store.commit("k", Change()) if method == "commit" else getattr(store, method)("k"))
    async with make() as store:
        assert (await store.commit("k", Change(), expect=0)).version == 1


async def test_one_bad_record_costs_its_neighbours_nothing(make: Make, server: Server, schema: str) -> None:
    outcomes: dict[str, object] = {}

    async def write(store: PostgresStore, key: str) -> None:
        try:
            outcomes[key] = (await store.commit(key, Change(failures=1))).version
        except StoreCorrupt:
            outcomes[key] = "corrupt"

    async with make() as store:
        for key in "abc":
            await store.commit(key, Change(Memory("s")))
        with directly(server, schema) as connection:
            connection.execute("UPDATE records SET memory = 'not json' WHERE key = 'b'")
        async with trio.open_nursery() as nursery:
            for key in "abc":
                nursery.start_soon(write, store, key)
        assert outcomes == {"a": 2, "b": "corrupt", "c": 2}


async def test_an_entry_that_cannot_be_read_is_set_aside_alone(make: Make, server: Server, schema: str) -> None:
    async with make() as store:
        await store.commit("k", Change(append=[entry("1"), entry("2"), entry("3")]))
        with directly(server, schema) as connection:
            connection.execute("UPDATE entries SET body = '{' WHERE position = 2")
        with pytest.raises(StoreCorrupt, match="entry 2"):
            await store.entries("k")
        assert await ids(store, "k") == ["1", "3"]
        assert (await store.load("k")).entries_count == 3
        with pytest.raises(StoreError, match="no entry '2'"):
            await store.commit("k", Change(visibility={"2": (False, False)}))


# --- a life -----------------------------------------------------------------------------------------------------------


async def test_a_store_is_closed_by_the_last_who_leaves_and_can_be_opened_again(make: Make) -> None:
    store = make()
    assert repr(store).endswith("not opened>")
    async with store:
        async with store:
            await store.commit("k", Change(failures=2))
        assert (await store.load("k")).failures == 2
    assert repr(store).endswith("closed>")
    for use in (store.load("k"), store.commit("k", Change()), store.keys()):
        with pytest.raises(StoreError, match="closed"):
            await use
    async with store:
        assert (await store.load("k")).failures == 2


async def test_connections_are_bounded_and_closed(make: Make, server: Server) -> None:
    def connections() -> int:
        with psycopg.connect(server.address) as connection:
            row = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'goliath_actors'"
            ).fetchone()
        assert row is not None
        return int(row[0])

    before = connections()
    async with make(max_readers=2) as store:
        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(store.load, f"{number}")
        assert connections() <= before + 3
    with trio.fail_after(10):
        while connections() > before:  # noqa: ASYNC110
            await trio.sleep(0.01)


async def test_a_writer_that_lost_its_lease_to_another_store_is_refused(make: Make) -> None:
    async with make() as here, make() as there:
        token = await here.acquire("k", "here", 0.05)
        await here.commit("k", Change(append=[entry("1")]), token=token)
        await trio.sleep(0.06)
        assert await there.acquire("k", "there", 60) == 2
        with pytest.raises(StoreConflict, match="lease"):
            await here.commit("k", Change(append=[entry("2")]), token=token)
        assert await there.acquire("k", "there", 60) == 2
        assert await here.acquire("k", "here", 60) is None
        assert await ids(there, "k") == ["1"]
