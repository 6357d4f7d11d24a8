"""Several server processes on one PostgreSQL serve the same conversations, also when one of them is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import attrs
import httpx2 as httpx
import psycopg
import pytest
import trio

from .postgres_server import Server, running_server
from .test_server_process import serving

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(180)]

ROOT = Path(__file__).parent.parent
TTL = 3.0


@pytest.fixture(scope="module")
def database() -> Iterator[Server]:
    with running_server() as server:
        yield server


@attrs.define(eq=False)
class Backend:
    """One process."""

    process: subprocess.Popen[str]
    url: str


@contextmanager
def backends(database: Server, effects: Path, number: int, ttl: float = TTL) -> Iterator[list[Backend]]:
    """Start processes side by side; what is left of them is killed."""
    with psycopg.connect(database.address, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS goliath_actors CASCADE")
    command = [sys.executable, "-W", "error", "-m", "tests.cluster_process", database.address, str(effects), str(ttl)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True) for _ in range(number)
    ]
    try:
        found = []
        for process in processes:
            assert process.stdout is not None
            found.append(Backend(process, process.stdout.readline().strip()))
        yield found
    finally:
        for process in processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


@attrs.define(eq=False)
class Client:
    """Asks one process after the other, as a balancer without memory does; asks again, with the same key, whatever
    became of the process."""

    http: httpx.AsyncClient
    urls: Iterator[str]

    async def ask(self, conversation: str, text: str) -> dict[str, Any]:
        """Ask until there is an end of the run."""
        while True:
            url = f"{next(self.urls)}/v1/conversations/{conversation}/runs"
            try:
                response = await self.http.post(url, json={"ask": text}, headers={"idempotency-key": text})
            except httpx.TransportError:
                await trio.sleep(0.05)
                continue
            body: dict[str, Any] = response.json()
            if response.status_code == 200:
                return body
            # Elsewhere, or not to be recorded for the moment: later. Anything else is wrong.
            assert (response.status_code, body["type"].rpartition(":")[2]) in ((409, "conflict"), (503, "store")), body
            await trio.sleep(0.1)

    async def history(self, conversation: str) -> list[tuple[str, str]]:
        response = await self.http.get(f"{next(self.urls)}/v1/conversations/{conversation}/history?limit=200")
        return [(entry["role"], entry["text"]) for entry in response.json()["entries"]]


def begun(effects: Path) -> Counter[str]:
    """How often each ask began, by its text."""
    return Counter(line.split(" ", 2)[2] for line in effects.read_text().splitlines())


async def test_one_of_three_processes_is_killed_and_nothing_that_counts_is_lost(
    database: Server, tmp_path: Path
) -> None:
    effects = tmp_path / "effects"
    conversations, turns = 8, 12
    ends: dict[str, dict[str, Any]] = {}
    killed = trio.Event()

    async def talk(client: Client, conversation: str) -> None:
        for turn in range(turns):
            text = f"{conversation}:{turn}"
            ends[text] = await client.ask(conversation, text)

    async def cut(client: Client, conversation: str, recovered: dict[str, float]) -> None:
        """Have a run going on in the process that is about to die, and be answered by another one soon after."""
        response = client.http.post(
            f"{victim.url}/v1/conversations/{conversation}/runs",
            json={"ask": f"slow {conversation}", "wait": False, "detach": True},
        )
        assert (await response).status_code == 202
        await killed.wait()
        began = trio.current_time()
        end = await client.ask(conversation, f"{conversation}:after")
        recovered[conversation] = trio.current_time() - began
        assert end["result"]["text"] == f"re: {conversation}:after"

    with backends(database, effects, 3) as running:
        victim = running[1]
        recovered: dict[str, float] = {}
        async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
            client = Client(http, cycle(backend.url for backend in running))
            with trio.fail_after(120):
                async with trio.open_nursery() as nursery:
                    for number in range(3):
                        nursery.start_soon(cut, client, f"cut{number}", recovered)
                    for number in range(conversations):
                        nursery.start_soon(talk, client, f"c{number}")
                    while len(ends) < conversations * turns // 3:  # noqa: ASYNC110  # in the middle of the work
                        await trio.sleep(0.01)
                    while sum(text.startswith("slow") for text in begun(effects)) < 3:  # noqa: ASYNC110
                        await trio.sleep(0.01)
                    victim.process.kill()
                    killed.set()
                living = Client(http, cycle(backend.url for backend in running if backend is not victim))
                histories = {name: await living.history(name) for name in (f"c{n}" for n in range(conversations))}
                slow = [await living.history(f"cut{number}") for number in range(3)]
        for backend in running:
            if backend is not victim:
                backend.process.send_signal(signal.SIGTERM)
        codes = [backend.process.wait(30) for backend in running if backend is not victim]

    assert codes == [0, 0]
    counts = begun(effects)
    # No run began twice, whatever became of its process.
    assert {text: count for text, count in counts.items() if count != 1} == {}
    completed = {text for text, end in ends.items() if end["status"] == "completed"}
    assert len(ends) == conversations * turns
    # What did not complete was cut by the death of its process, and is said to be.
    cut_off = set(ends) - completed
    assert all(ends[text]["abort"]["reason"] == "restart" for text in cut_off), [ends[text] for text in cut_off]
    assert len(cut_off) <= conversations
    for name, history in histories.items():
        asks = [text for role, text in history if role == "user"]
        # In order, and nothing that was acknowledged is missing: each completed ask is followed by its answer.
        assert asks == sorted(asks, key=lambda text: int(text.split(":")[1]))
        assert completed & {f"{name}:{turn}" for turn in range(turns)} <= set(asks)
        answered = {ask for (_, ask), (role, text) in pairwise(history) if text == f"re: {ask}"}
        assert {text for text in completed if text.startswith(f"{name}:")} <= answered
    # A conversation whose run was cut is taken over within the time of its lease.
    assert set(recovered) == {"cut0", "cut1", "cut2"}
    assert max(recovered.values()) < TTL + 2.0
    assert all([text for _, text in history][::2] for history in slow)
    # More than one process has worked: else nothing was proven.
    assert len({line.split(" ", 1)[0] for line in effects.read_text().splitlines()}) == 3


async def test_the_same_key_in_two_processes_at_once_is_one_run(database: Server, tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    with backends(database, effects, 2) as running:
        async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
            runs: dict[str, set[str]] = {}

            async def ask(url: str, key: str) -> None:
                client = Client(http, cycle([url]))
                runs.setdefault(key, set()).add((await client.ask("c", key))["run_id"])

            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    for number in range(10):
                        for backend in running:
                            nursery.start_soon(ask, backend.url, f"k{number}")
        assert [key for key, found in runs.items() if len(found) != 1] == []
        assert set(begun(effects).values()) == {1}


async def test_a_process_that_ends_in_order_leaves_nothing_to_be_taken_over(database: Server, tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    with backends(database, effects, 2) as running:
        async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
            first, second = (Client(http, cycle([backend.url])) for backend in running)
            await first.ask("c", "one")
            running[0].process.send_signal(signal.SIGTERM)
            assert await trio.to_thread.run_sync(running[0].process.wait, 30) == 0
            began = trio.current_time()
            assert (await second.ask("c", "two"))["result"]["text"] == "re: two"
            assert trio.current_time() - began < TTL / 2  # nobody had to wait for a lease
            assert (await second.ask("c", "one"))["result"]["text"] == "re: one"  # on record, whoever had it


async def test_a_process_that_stood_still_finds_its_run_ended_and_its_late_commit_refused(
    database: Server, tmp_path: Path
) -> None:
    effects = tmp_path / "effects"
    with backends(database, effects, 2) as running:
        frozen, other = running
        async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
            path = "/v1/conversations/c/runs"
            asked = await http.post(f"{frozen.url}{path}", json={"ask": "slow", "wait": False, "detach": True})
            with trio.fail_after(60):
                both = Client(http, cycle([frozen.url, other.url]))
                while await both.history("c") != [("user", "slow")]:  # noqa: ASYNC110
                    await trio.sleep(0.01)
                frozen.process.send_signal(signal.SIGSTOP)
                end = await Client(http, cycle([other.url])).ask("c", "after")
                assert end["result"]["text"] == "re: after"
                frozen.process.send_signal(signal.SIGCONT)
                run = f"{frozen.url}{path}/{asked.json()['run_id']}"
                while (last := (await http.get(run)).json())["state"] != "done":  # noqa: ASYNC110
                    await trio.sleep(0.05)
            assert (last["status"], last["error"]["type"]) == ("error", "LeaseLost")
            history = await both.history("c")
    assert history == [("user", "slow"), ("user", "after"), ("assistant", "re: after")]
    assert begun(effects) == {"slow": 1, "after": 1}


def test_the_command_serves_from_a_database_and_shows_no_password(database: Server, tmp_path: Path) -> None:
    with serving(tmp_path, "--model", "demo", "--store", database.address) as process:
        assert process.call("POST", "/v1/conversations/c/runs", {"ask": "hello", "agent": "planner"}).status == 200
        assert process.end() == 0
    said = "\n".join(process.lines)
    assert f"store: PostgreSQL at 127.0.0.1:{database.port}/postgres; more servers may share it" in said
    assert "s3cret" not in said
