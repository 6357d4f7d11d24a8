"""What a SqliteStore does when its file gets into trouble while it is open: no room, deleted, replaced, emptied.

This file is also the program that runs out of room: the limit on the size of its files is its own, not pytest's.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

import goliath_actors
from goliath_actors import Agent, open_runtime
from goliath_actors.abc import Change, Entry, Record
from goliath_actors.errors import ConfigError, StoreError
from goliath_actors.events import MemoryError as SavingFailed
from goliath_actors.stores import SqliteStore
from goliath_actors.testing import ScriptedModel
from goliath_actors.values import Message

# Bytes. The journal reaches this after a few answers, long before it would be emptied into the file.
ROOM = 400_000
ANSWER = "answer" * 300

posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX files, which can be deleted while open")


def entry(id: str) -> Entry:
    return Entry(id, 1.0, "user", Message("user", f"text of {id}"))


# --- no room --------------------------------------------------------------------------------------------------------


def limit_files(size: int | None) -> None:
    """Let no file of this process grow beyond `size` bytes; None lifts the limit."""
    import resource  # not on Windows

    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard if size is None else size, hard))


async def run_out_of_room(path: str) -> None:
    agent = Agent(model=ScriptedModel([ANSWER] * 100))
    asked = saved = 0
    async with open_runtime(agent, store=SqliteStore(path)) as runtime:
        await runtime.run("ask 0")
        asked = saved = 1
        limit_files(ROOM)
        problems: list[str | None] = []
        while not problems:
            result = await runtime.run(f"ask {asked}")
            assert result.text == ANSWER, "an answer does not depend on being saved"
            problems = [event.error for event in result.trace if isinstance(event, SavingFailed)]
            asked += 1
            saved += not problems
        print(problems[0])
        page = await runtime.conversation().history(limit=100)
        print("still readable:", len(page.entries) == 2 * saved)
        limit_files(None)
        result = await runtime.run("and on")
        print("goes on:", [event for event in result.trace if isinstance(event, SavingFailed)] == [])
    print("kept", saved, "of", asked)


@posix
def test_a_runtime_without_room_answers_on_and_keeps_what_it_saved(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    environment = dict(os.environ, PYTHONPATH=str(Path(goliath_actors.__file__).parent.parent))
    program = [sys.executable, "-m", "tests.test_stores_trouble", str(path)]
    done = subprocess.run(program, capture_output=True, text=True, env=environment, cwd=Path(__file__).parent.parent)
    problem, *lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert problem == (
        f"StoreError: reading or writing {path} failed (disk I/O error); what was acknowledged before is kept: "
        "look at the disk, its quota and the process's limits, and try again"
    )
    saved = int(lines[-1].split()[1])
    assert saved > 2
    assert lines == ["still readable: True", "goes on: True", f"kept {saved} of {saved + 1}"]

    async def asks() -> list[str]:
        async with open_runtime(Agent(model=ScriptedModel([])), store=SqliteStore(path)) as runtime:
            page = await runtime.conversation().history(limit=100)
        return [entry.message.text for entry in page.entries if entry.role == "user"]

    assert trio.run(asks) == [*(f"ask {number}" for number in range(saved)), "and on"]


@posix
async def test_a_process_with_too_many_open_files_is_told_so(tmp_path: Path) -> None:
    import resource  # not on Windows

    path = tmp_path / "chat.db"
    other = SqliteStore(tmp_path / "other.db")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    async with SqliteStore(path) as store:
        await store.commit("k", Change(failures=1))
        # Threads and their wake-ups are there; from here on only files are missing.
        await trio.to_thread.run_sync(int)
        held.append(os.open(os.devnull, os.O_RDONLY))
        resource.setrlimit(resource.RLIMIT_NOFILE, (held[0] + 20, limits[1]))
        try:
            with contextlib.suppress(OSError):
                while True:
                    held.append(os.open(os.devnull, os.O_RDONLY))
            words = r"cannot open .*\.db: this process has as many open files as it may have, nothing was"
            for _ in range(2):  # none is left, then one is
                with pytest.raises(StoreError, match=words):
                    await store.load("k")
                with pytest.raises(StoreError, match=words):
                    await other.commit("k", Change())
                os.close(held.pop())
        finally:
            for file in held:
                os.close(file)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert (await store.load("k")).failures == 1
        assert (await other.commit("k", Change())).version == 1
        await other.aclose()


# --- deleted, moved, replaced, emptied ------------------------------------------------------------------------------


def delete(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


def replace(path: Path) -> None:
    shutil.copy(path, path.with_suffix(".copy"))
    path.with_suffix(".copy").replace(path)


def empty(path: Path) -> None:
    os.truncate(path, 0)


losses = pytest.mark.parametrize(
    ("lose", "words"),
    [
        (delete, r"cannot be found any more \(No such file or directory\) while it was open"),
        (replace, "was replaced by another file while it was open"),
        (empty, "was emptied by another program while it was open"),
    ],
)


@posix
@losses
async def test_every_call_on_a_file_that_was_lost_says_so(
    lose: Callable[[Path], None], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "chat.db"
    async with SqliteStore(path) as store:
        await store.commit("k", Change(append=[entry("1")]))
        await store.load("k")
        lose(path)
        for call in (
            lambda: store.commit("k", Change(append=[entry("2")])),
            lambda: store.load("k"),
            lambda: store.entries("k"),
            store.keys,
            lambda: store.find("k", "i"),
            lambda: store.acquire("k", "here", 60.0),
            lambda: store.release("k", "here"),
            lambda: store.forget("k"),
        ):
            with pytest.raises(StoreError, match=rf"chat\.db {words}; nothing was changed: put it back, or close"):
                await call()
        # Nothing new was made in its place behind anybody's back.
        assert path.exists() is (lose is not delete)


@posix
async def test_a_file_that_is_put_back_goes_on_with_all_that_was_acknowledged(tmp_path: Path) -> None:
    path, aside = tmp_path / "chat.db", tmp_path / "aside.db"
    async with SqliteStore(path) as store:
        await store.commit("k", Change(append=[entry("1")]))
        path.rename(aside)
        with pytest.raises(StoreError, match="cannot be found any more"):
            await store.commit("k", Change(append=[entry("2")]))
        aside.rename(path)
        assert await store.commit("k", Change(append=[entry("3")]), expect=1) == Record(2, entries_count=2)
    async with SqliteStore(path) as store:
        assert [entry.id for entry in (await store.entries("k")).entries] == ["1", "3"]


@posix
async def test_a_store_whose_file_was_deleted_begins_anew_once_it_was_closed(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    store = SqliteStore(path)
    async with store:
        await store.commit("k", Change())
        delete(path)
    async with store:
        assert await store.load("k") == Record()
        assert (await store.commit("k", Change())).version == 1


@posix
async def test_a_runtime_whose_file_was_deleted_fails_its_runs_and_makes_no_new_one(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    async with open_runtime(Agent(model=ScriptedModel(["one", "never said"])), store=SqliteStore(path)) as runtime:
        assert (await runtime.run("first")).text == "one"
        delete(path)
        with pytest.raises(StoreError, match="cannot be found any more"):
            await runtime.run("second")
    assert not path.exists()


# --- the path -------------------------------------------------------------------------------------------------------


async def test_a_tilde_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    async with SqliteStore("~/chat.db") as store:
        await store.commit("k", Change())
        assert repr(store) == f"<SqliteStore {tmp_path / 'chat.db'}: open>"
    assert (tmp_path / "chat.db").stat().st_size > 0


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("~nobody-of-that-name/chat.db", r"^'~nobody-of-that-name/chat\.db' names nobody's home directory"),
        ("chat\0.db", r"^'chat\\x00\.db' is no path of a file: it holds a NUL character$"),
    ],
)
def test_a_path_that_cannot_be_one_is_refused_at_once(path: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SqliteStore(path)


if __name__ == "__main__":
    trio.run(run_out_of_room, sys.argv[1])
