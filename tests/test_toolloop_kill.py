"""A conversation whose process is killed at any moment loses nothing that was acknowledged, does nothing twice, and
goes on (S7, T2, T8). The program that gets killed is `mortal.py`."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any

import attrs
import pytest
import trio

import goliath_actors
from goliath_actors import Agent, open_runtime
from goliath_actors.abc import Entry
from goliath_actors.errors import ConfigError
from goliath_actors.stores import SqliteStore

from .mortal import CONVERSATIONS, Hands, Parrot, key_of
from .native import history, said

# How often a program is killed. The seeds are the same each time; where exactly in a write a program is, is not.
KILLS = int(os.environ.get("TOOLLOOP_KILLS", "60"))
SECONDS = 45.0
DEEDS = 100  # so many that every program is killed
STEPS = 1200  # some ten deeds


@attrs.define(eq=False)
class Known:
    """What a conversation's clients were told, and what they were waiting for when its process was killed."""

    sure: list[tuple[str, str]] = attrs.Factory(list)
    version: int = 0
    # What was begun and not answered: the deed, and the number from which on it may be there or not.
    begun: dict[str, Any] = attrs.Factory(dict)
    # Answers that a waiting run can be given.
    answers: dict[str, Any] = attrs.Factory(dict)
    forgotten: int = -1
    regenerated: set[str] = attrs.Factory(set)

    def hear(self, line: Mapping[str, Any]) -> None:
        if "begin" in line:
            self.begun = dict(line)
            if line["begin"] == "regenerate":
                self.sure = [
                    (role, text) for role, text in self.sure if not text.startswith(f"answer to {line['ask']},")
                ]
                self.regenerated.add(line["ask"])
            elif line["begin"] not in ("resume", "forget"):
                self.answers = {}
            return
        self.begun = {}
        self.version = line["version"]
        self.answers = line.get("answers", {})
        self.sure += [(role, text) for role, text in line.get("said", ())]
        if line["done"] == "forget":
            self.forget(line["number"])

    def forget(self, number: int) -> None:
        self.sure, self.version, self.answers, self.forgotten = [], 0, {}, number

    @property
    def doubtful(self) -> str:
        return str(self.begun.get("begin", ""))


def number_of(text: str) -> int:
    """The number of an ask, also in its answer and in the tokens of its tools."""
    words = text.split()
    return int(words[words.index("ask") + 1])


@contextmanager
def server() -> Iterator[tuple[IO[str], IO[str]]]:
    path = os.pathsep.join([str(Path(goliath_actors.__file__).parent.parent), str(Path(__file__).parent.parent)])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    command = [sys.executable, "-m", "tests.mortal"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment | {"PYTHONPATH": path}, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.stdin, process.stdout
        process.stdin.close()


def live_and_die(pipes: tuple[IO[str], IO[str]], known: Mapping[str, Known], **program: Any) -> bool:
    """Have a program live until it is killed or done; True if it was killed."""
    write, read = pipes
    write.write(json.dumps(program) + "\n")
    write.flush()
    for text in read:
        line = json.loads(text)
        if "ended" in line:
            assert line["ended"] in (0, -9), line
            return bool(line["ended"] == -9)
        assert "fault" not in line, line
        known[line["at"]].hear(line)
    raise AssertionError("the server of programs is gone")


# --- what is checked ------------------------------------------------------------------------------------------------


def check_sure(entries: Sequence[Entry], known: Known) -> None:
    """Everything that was acknowledged is there, once, in order; nothing that was forgotten is."""
    assert len({entry.id for entry in entries}) == len(entries)
    there = [(role, text) for role, text in said(entries) if role in ("user", "assistant")]
    if known.doubtful == "forget" and not there:
        known.forget(known.begun["number"])
    left = iter(there)
    for wanted in known.sure:
        assert wanted in left, f"{wanted} was acknowledged and is not where it was"
    count = Counter(there)
    assert all(count[wanted] == 1 for wanted in known.sure)
    assert all(number_of(text) > known.forgotten for role, text in there if role == "user" and "ask" in text)


def check_calls(entries: Sequence[Entry]) -> None:
    """Every call has exactly one result behind it, and no two calls share an id that a model sees at the same time: one
    that was summarised away may be given again."""
    waiting: set[str] = set()
    for entry in entries:
        if entry.role == "tool":
            assert entry.message.tool_call_id in waiting, f"a second result, or one of nobody: {entry}"
            assert entry.message.text.strip()
            waiting.discard(entry.message.tool_call_id or "")
        for call in entry.message.tool_calls:
            assert call.id not in waiting
            waiting.add(call.id)
    assert waiting == set(), "calls without a result"
    seen = [call.id for entry in entries if entry.context_visible for call in entry.message.tool_calls]
    assert len(set(seen)) == len(seen)


def results_of(entries: Sequence[Entry]) -> dict[str, tuple[str, Entry]]:
    """The call's id and its result, by the token that the call was made with."""
    tokens: dict[str, str] = {}
    found: dict[str, tuple[str, Entry]] = {}
    for entry in entries:
        for call in entry.message.tool_calls:
            tokens[call.id] = str((call.input or {}).get("token", ""))
        if entry.role == "tool":
            found[tokens[entry.message.tool_call_id or ""]] = (entry.message.tool_call_id or "", entry)
    return found


def check_marks(marks: Sequence[Mapping[str, Any]], entries: Sequence[Entry], name: str, known: Known) -> None:
    """No write was made twice for one call; each is in the history, and not as one that was not made."""
    own = [mark for mark in marks if mark["in"] == name]
    assert set(Counter((mark["run"], mark["call"]) for mark in own).values()) <= {1}
    paid = Counter(mark["token"] for mark in own if " pay" in mark["token"])
    assert set(paid.values()) <= {1}, "what was approved once was done twice"
    results = results_of(entries)
    for mark in own:
        token = mark["token"]
        if number_of(token) <= known.forgotten or token.rpartition("/")[0] in known.regenerated:
            continue
        assert token in results, f"{token} was done and its call was not stored before"
        call_id, result = results[token]
        assert call_id == mark["call"]
        assert not result.message.text.startswith("Not "), result
        assert result.private.get("status", "unknown") in ("executed", "unknown"), result


async def use(store: SqliteStore, agent: Agent[Any], name: str, known: Known, dice: random.Random) -> None:
    """Use a conversation once more: take up what waits, or ask; either completes."""
    async with open_runtime(agent, store=store) as runtime:
        conversation = runtime.conversation(name)
        if known.answers and dice.random() < 0.7:
            try:
                result = await conversation.resume(known.answers)
            except ConfigError:
                # It had been taken up before; without that it would still have to wait.
                assert known.doubtful in ("resume", "forget")
            else:
                assert result.text.startswith("answer to")
                known.sure.append(("assistant", result.text))
        ask = f"ask {10**9 + dice.randrange(10**9)} plain"
        result = await conversation.run(ask)
        assert result.text.startswith(f"answer to {ask},")
        known.sure += [("user", ask), ("assistant", result.text)]


async def check(path: Path, marks_path: str, known: Mapping[str, Known], seed: int) -> None:
    dice = random.Random(seed)
    async with SqliteStore(path) as store:
        for name in CONVERSATIONS:
            model = Parrot(f"after {seed}")
            agent = Hands(marks_path).agent(model)
            record = await store.load(key_of(agent, name))
            check_sure(await history(store, agent, name), known[name])
            assert record.version >= known[name].version
            await use(store, agent, name, known[name], dice)
            marks = [json.loads(line) for line in (await trio.Path(marks_path).read_text()).splitlines()]
            entries = await history(store, agent, name)
            check_sure(entries, known[name])
            check_calls(entries)
            assert model.faults == []
            check_marks(marks, entries, name, known[name])
            after = await store.load(key_of(agent, name))
            assert after.version > record.version
            assert "waiting" not in after.private
            known[name].version, known[name].begun, known[name].answers = after.version, {}, {}


@pytest.mark.timeout(300)
def test_a_conversation_whose_process_is_killed_loses_nothing_and_does_nothing_twice(tmp_path: Path) -> None:
    path, marks = tmp_path / "chat.db", tmp_path / "marks"
    marks.touch()
    known = {name: Known() for name in CONVERSATIONS}
    killed: Counter[str] = Counter()
    dice = random.Random(7)
    end = time.monotonic() + SECONDS * max(1.0, KILLS / 60)
    with server() as pipes:
        for seed in range(KILLS):
            if seed > 20 and time.monotonic() > end:
                break
            by_steps = dice.random() < 0.6
            steps = dice.randrange(1, STEPS) if by_steps else 0
            seconds = 0.0 if by_steps else dice.random() * 0.4
            program = {"path": str(path), "marks": str(marks), "deeds": DEEDS, "steps": steps, "seconds": seconds}
            try:
                if live_and_die(pipes, known, seed=seed, **program):
                    killed.update(known[name].doubtful for name in CONVERSATIONS)
                trio.run(check, path, str(marks), known, seed)
            except Exception as problem:
                problem.add_note(f"in life {seed}, of {program}, with {known}")
                raise
            if seed % 20 == 0:
                with closing(sqlite3.connect(path)) as connection:
                    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    # Two conversations at a time; a slow machine does not come to all.
    assert sum(killed.values()) >= 2 * min(KILLS, 20)
    if sum(killed.values()) >= 300:
        assert {"ask", "steer", "regenerate", "suspend", "resume", "abort", "forget"} <= set(killed)
