"""The server as a process of its own: it starts, says where it is, ends in order, and loses nothing in between."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
SECONDS = 30


class Answer(NamedTuple):
    status: int
    body: Any
    headers: Any


class Process:
    """A `goliath-actors serve` and its address."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self.url = ""
        assert process.stdout is not None
        for line in process.stdout:
            self.lines.append(line.rstrip())
            found = re.match(r"open: +(http://\S+)", line)
            if found:
                self.url = found[1]
                return
        raise AssertionError("\n".join(self.lines))

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        data = None if body is None else json.dumps(body).encode()
        rows = {"content-type": "application/json", **{name.replace("_", "-"): text for name, text in headers.items()}}
        request = urllib.request.Request(self.url + path, data, rows, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=SECONDS) as response:
                content = response.read()
                return Answer(response.status, json.loads(content) if content else None, response.headers)
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, json.loads(error.read()), error.headers)

    def follow(self, run_id: str) -> Any:
        """Follow a run to its end; return what its last event says."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{self.url}/v1/conversations/c/runs/{run_id}/events", timeout=SECONDS) as stream:
            rows = stream.read().decode().splitlines()
        return json.loads([row for row in rows if row.startswith("data: ")][-1].removeprefix("data: "))

    def read_until(self, text: str) -> None:
        """Read what it prints until there is `text`."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if text in line:
                return
        raise AssertionError("\n".join(self.lines))

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        assert self.process.stdout is not None
        self.lines += [line.rstrip() for line in self.process.stdout]
        return self.process.wait(SECONDS)


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[Process]:
    command = [sys.executable, "-W", "error", "-m", "goliath_actors", "serve", "--port", "0", *arguments]
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("OPENAI", "GOLIATH"))},
        "PYTHONPATH": str(ROOT),
        "NO_COLOR": "1",
    }
    process = subprocess.Popen(
        command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield Process(process)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def refused(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run a server that does not come up; return its exit code and what it says."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "goliath_actors", "serve", "--model", "demo", *arguments],
        cwd=folder, env=environ, capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    return done.returncode, done.stderr


AGENT = """
    from pathlib import Path
    import trio
    from goliath_actors import Agent, ToolLoop, approve_all, tool
    from goliath_actors.testing import ScriptedModel

    async def reply(request):
        ask = request.messages[-1].text.splitlines()[-1]
        print("asked", ask, flush=True)
        with open("asked.txt", "a") as file:
            file.write(ask + "\\n")
        while ask == "wait" and not Path("go").exists():
            await trio.sleep(0.01)
        return "said " + ask

    agent = Agent(name="slow", model=ScriptedModel([reply] * 100), loop=ToolLoop())
"""


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    (tmp_path / "slow.py").write_text(textwrap.dedent(AGENT), encoding="utf-8")
    return tmp_path


def asked(folder: Path) -> Sequence[str]:
    file = folder / "asked.txt"
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def test_a_server_without_arguments_answers_and_ends_with_0(tmp_path: Path) -> None:
    with serving(tmp_path, "--model", "demo") as server:
        answer = server.call("POST", "/v1/conversations/c/runs", {"ask": "calculate 2 * 21"})
        assert answer.body["result"]["text"] == "Demo model: calculate says: 2 * 21 = 42."
        assert (tmp_path / "goliath-chat.db").exists()
        assert server.end() == 0
    assert any("demo model follows fixed rules" in line for line in server.lines)


def test_what_is_wrong_is_said_in_one_line(tmp_path: Path) -> None:
    with serving(tmp_path, "--model", "demo") as server:
        port = server.url.rpartition(":")[2]
        code, said = refused(tmp_path, "--port", port, "--store", "memory")
    assert (code, said.count("\n")) == (2, 1)
    assert f"127.0.0.1:{port} is in use" in said
    code, said = refused(tmp_path, "--host", "0.0.0.0")
    assert code == 2
    assert "configure tokens" in " ".join(said.split())
    code, said = refused(tmp_path, "nothing:agent")
    assert code == 2


def test_a_second_server_of_one_file_is_refused_and_one_that_crashed_is_in_nobodys_way(tmp_path: Path) -> None:
    arguments = ("--model", "demo", "--store", "chat.db")
    with serving(tmp_path, *arguments) as server:
        (tmp_path / "link.db").symlink_to("chat.db")
        for name in ("chat.db", "link.db"):
            code, said = refused(tmp_path, "--port", "0", "--store", name)
            assert code == 2
            assert f"is served by another process already (process {server.process.pid})" in " ".join(said.split())
        assert server.call("POST", "/v1/conversations/c/runs", {"ask": "2 * 21"}).status == 200
        with serving(tmp_path, "--model", "demo", "--store", "other.db") as other:
            assert other.end() == 0
        assert server.end(signal.SIGKILL) == -signal.SIGKILL
    with serving(tmp_path, *arguments) as server:
        assert server.end() == 0


@pytest.mark.parametrize(
    ("own", "thresholds"), [("", "50000 20 100"), ("gc.set_threshold(7_000, 5, 5)", "7000 5 5")], ids=["unset", "set"]
)
def test_the_collector_is_set_for_many_runs_unless_the_agents_module_has_set_it(
    tmp_path: Path, own: str, thresholds: str
) -> None:
    module = f"""
        import gc
        from goliath_actors import Agent, ToolLoop
        from goliath_actors.testing import ScriptedModel

        {own}

        async def reply(request):
            return " ".join(map(str, gc.get_threshold()))

        agent = Agent(name="collector", model=ScriptedModel([reply]), loop=ToolLoop())
    """
    (tmp_path / "collector.py").write_text(textwrap.dedent(module), encoding="utf-8")
    with serving(tmp_path, "collector:agent") as server:
        answer = server.call("POST", "/v1/conversations/c/runs", {"ask": "How?"})
        assert answer.body["result"]["text"] == thresholds
        assert server.end() == 0


# --- nothing acknowledged is lost -----------------------------------------------------------------------------------


def until_done(server: Process, run_id: str) -> Any:
    """Follow a run over restarts until it is done."""
    end = server.follow(run_id)
    return end if end["followed_by"] is None else until_done(server, end["followed_by"])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_was_acknowledged_and_had_not_begun_is_run_after_a_restart_and_what_had_begun_is_not(
    slow: Path, number: int
) -> None:
    arguments = ("slow:agent", "--drain-grace", "0")
    ask = "/v1/conversations/c/runs"
    with serving(slow, *arguments) as server:
        first = server.call("POST", ask, {"ask": "wait", "wait": False}, idempotency_key="k1")
        second = server.call("POST", ask, {"ask": "second", "wait": False}, idempotency_key="k2")
        third = server.call("POST", ask, {"ask": "third", "wait": False})
        assert [answer.status for answer in (first, second, third)] == [202, 202, 202]
        server.read_until("asked wait")
        assert server.end(number) == (0 if number == signal.SIGTERM else -number)
    (slow / "go").touch()
    with serving(slow, *arguments) as server:
        begun = server.call("GET", f"{ask}/{first.body['run_id']}").body
        assert (begun["state"], begun["status"], begun["abort"]["cause"]) == ("done", "aborted", "shutdown")
        assert begun["followed_by"] is None
        assert until_done(server, second.body["run_id"])["result"]["text"] == "said second"
        assert until_done(server, third.body["run_id"])["result"]["text"] == "said third"
        again = server.call("POST", ask, {"ask": "second", "wait": False}, idempotency_key="k2")
        assert until_done(server, again.body["run_id"])["result"]["text"] == "said second"
        again = server.call("POST", ask, {"ask": "wait", "wait": False}, idempotency_key="k1")
        assert (again.status, again.body["status"]) == (200, "aborted")
        assert server.end() == 0
    with serving(slow, *arguments) as server:  # nothing is left to be done
        assert until_done(server, second.body["run_id"])["result"]["text"] == "said second"
        assert server.end() == 0
    assert asked(slow) == ["wait", "second", "third"]


def test_a_run_is_let_go_on_for_the_grace_and_its_client_gets_the_answer(slow: Path) -> None:
    answers: list[Answer] = []
    with serving(slow, "slow:agent", "--drain-grace", "20") as server:

        def ask() -> None:
            answers.append(server.call("POST", "/v1/conversations/c/runs", {"ask": "wait"}))

        thread = Thread(target=ask)
        thread.start()
        server.read_until("asked wait")
        server.process.send_signal(signal.SIGTERM)
        server.read_until("SIGTERM, ending")
        (slow / "go").touch()
        assert server.wait() == 0
        thread.join()
    assert [(answer.status, answer.body["result"]["text"]) for answer in answers] == [(200, "said wait")]


def test_a_second_signal_does_not_wait_for_the_grace(slow: Path) -> None:
    answers: list[Answer] = []
    with serving(slow, "slow:agent", "--drain-grace", "1000") as server:

        def ask() -> None:
            answers.append(server.call("POST", "/v1/conversations/c/runs", {"ask": "wait"}))

        thread = Thread(target=ask)
        thread.start()
        server.read_until("asked wait")
        server.process.send_signal(signal.SIGTERM)
        server.read_until("SIGTERM, ending")
        assert server.end(signal.SIGINT) == 0
        thread.join()
    assert [(answer.status, answer.body["abort"]["cause"]) for answer in answers] == [(200, "shutdown")]


# Gives the new process its standard output as its controlling terminal: closing that is a SIGHUP, and writing an error.
IN_A_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(1, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def test_a_terminal_that_closes_ends_it_in_order_and_runs_get_their_grace(slow: Path) -> None:
    ours, theirs = pty.openpty()
    command = [
        sys.executable, "-c", IN_A_TERMINAL,
        "-W", "error", "-m", "goliath_actors", "serve", "slow:agent", "--port", "0", "--drain-grace", "1000",
    ]  # fmt: skip
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    process = subprocess.Popen(
        command, cwd=slow, env=environ, stdout=theirs, stderr=theirs, text=True, start_new_session=True
    )
    os.close(theirs)
    with os.fdopen(ours) as process.stdout:
        try:
            server = Process(process)
            ask = "/v1/conversations/c/runs"
            begun = server.call("POST", ask, {"ask": "wait", "wait": False}).body["run_id"]
            server.read_until("asked wait")
            process.stdout.close()
            for _ in range(3):  # as its shell does, too: told again, it still gives runs their grace
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(0.1)
                process.send_signal(signal.SIGHUP)
            (slow / "go").touch()
            assert process.wait(SECONDS) == 0
        finally:
            process.kill()
            process.wait()
    with serving(slow, "slow:agent") as server:
        assert server.call("GET", f"{ask}/{begun}").body["result"]["text"] == "said wait"
        assert server.end() == 0


def test_a_server_under_nohup_outlives_its_terminal(slow: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # children inherit it, as from nohup
    try:
        with serving(slow, "slow:agent") as server:
            server.process.send_signal(signal.SIGHUP)
            assert server.call("GET", "/readyz").status == 200
            assert server.end() == 0
            assert not [line for line in server.lines if "SIGHUP" in line]
    finally:
        signal.signal(signal.SIGHUP, before)
