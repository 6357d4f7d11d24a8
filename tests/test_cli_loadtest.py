"""`goliath-actors loadtest` from its arguments to its exit code."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from goliath_actors._cli.command import Terminal, run_command
from goliath_actors._cli.loadtest import check_host
from goliath_actors._cli.parser import build_parser
from goliath_actors.errors import ConfigError

SCENARIO = """
[load]
duration = "10s"
conversations = 5
max_asks = 10
think = "10ms"
[provider]
first_token = "1ms"
tokens = 2
"""


def loadtest(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Run the command; return its exit code, its output and its errors."""
    (folder / "s.toml").write_text(SCENARIO)
    out, errors = io.StringIO(), io.StringIO()
    terminal = Terminal(io.StringIO(), out, errors, {}, str(folder))
    code = run_command(build_parser().parse_args(["loadtest", *arguments]), terminal)
    return code, out.getvalue(), errors.getvalue()


def test_a_scenario_is_driven_and_told_as_table_data_and_page(tmp_path: Path) -> None:
    code, out, errors = loadtest(tmp_path, "--scenario", "s.toml", "--json", "r.json", "--html", "r.html")
    assert code == 0, out + errors
    assert "s: in-process runtime, simulated model" in out
    assert "sent 10   completed 10" in out
    assert "FAIL" not in out
    data = json.loads((tmp_path / "r.json").read_text())
    assert (data["ok"], data["figures"]["counts"]["completed"], data["name"]) == (True, 10, "s")
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")
    assert "page: r.html" in errors


def test_data_for_a_program_are_printed_alone(tmp_path: Path) -> None:
    code, out, errors = loadtest(tmp_path, "--scenario", "s.toml", "--json", "-")
    assert (code, json.loads(out)["ok"]) == (0, True), errors
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.toml"]


def test_a_broken_threshold_is_exit_code_1(tmp_path: Path) -> None:
    broken = ("max>1us", "errors<50%", "completed>9")
    code, out, _ = loadtest(
        tmp_path, "--scenario", "s.toml", *(word for text in broken for word in ("--fail-if", text))
    )
    assert code == 1
    assert re.search(r"FAIL  max <= 1us: it is [\d.]+ (us|ms|s)\n", out), out
    assert "FAIL  errors >= 50%: it is 0.0%\n" in out
    assert "FAIL  completed <= 9: it is 10\n" in out


def test_a_wrong_key_of_a_scenario_is_told_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[load]\nduraton = 1\n")
    code, _, errors = loadtest(tmp_path, "--scenario", "bad.toml")
    assert (code, errors.startswith("error: bad.toml: load has no 'duraton'; there are mode, ")) == (2, True)


def test_options_say_otherwise_than_the_file(tmp_path: Path) -> None:
    code, out, errors = loadtest(
        tmp_path, "--scenario", "s.toml", "--rate", "200", "--max-asks", "4", "--duration", "2s", "--seed", "3"
    )
    assert code == 0, out
    assert "200 asks a second for 2 s" in errors
    assert "sent 4 " in out


def test_the_scenario_that_would_run_is_shown_as_a_file_and_nothing_is_run(tmp_path: Path) -> None:
    code, out, errors = loadtest(
        tmp_path, "--scenario", "s.toml", "--rate", "7", "--arrivals", "fixed", "--show-scenario"
    )
    assert (code, errors) == (0, "")
    shown = tomllib.loads(out)["load"]
    assert (shown["mode"], shown["rate"], shown["arrivals"]) == ("open", 7, "fixed")
    assert (shown["duration"], shown["max_asks"]) == (10, 10)
    (tmp_path / "again.toml").write_text(out)
    assert loadtest(tmp_path, "--scenario", "again.toml", "--show-scenario")[1] == out


def test_a_trace_says_when_asks_are_sent_and_how_long_it_takes(tmp_path: Path) -> None:
    (tmp_path / "starts.txt").write_text("0\n10ms\n0.02\n")
    (tmp_path / "plain.toml").write_text('[provider]\nfirst_token = "1ms"\ntokens = 2\n')
    code, out, errors = loadtest(tmp_path, "--scenario", "plain.toml", "--trace", "starts.txt")
    assert code == 0, out + errors
    assert "sent 3   completed 3" in out
    assert "3 asks of a trace over 1.02 s" in errors


def test_a_rate_stands_in_place_of_a_files_trace(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text('[load]\nmode = "open"\narrivals = "trace"\ntrace = [0, 1]\n')
    _, out, _ = loadtest(tmp_path, "--scenario", "t.toml", "--rate", "9", "--show-scenario")
    assert tomllib.loads(out)["load"]["arrivals"] == "poisson"


def test_a_scenario_in_python_is_named_as_an_agent_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cli_load_plan.py").write_text(
        "from goliath_actors.loadtest import Scenario\n"
        "evening = Scenario(name='evening', mode='open', arrivals='trace', trace=[0, 1])\n"
        "wrong = 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    _, out, _ = loadtest(
        tmp_path, "--scenario", "cli_load_plan:evening", "--seed", "9", "--rate", "3", "--show-scenario"
    )
    shown = tomllib.loads(out)
    assert (shown["name"], shown["seed"], shown["load"]["arrivals"]) == ("evening", 9, "poisson")
    code, _, errors = loadtest(tmp_path, "--scenario", "cli_load_plan:wrong")
    assert (code, " ".join(errors.split())) == (
        2,
        "error: cli_load_plan:wrong is of type int, not a Scenario (scenarios in it: evening)",
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--backend", "http://10.1.2.3:80"], "10.1.2.3 is not this machine"),
        (["--backend", "http://example.org"], "--allow-host example.org"),
        (["--backend", "nonsense"], "--backend is 'nonsense'"),
        (["--backend", "http://127.0.0.1:9", "--model-url", "http://127.0.0.1:9/v1"], "--backend drives a server"),
        (["--backend", "http://127.0.0.1:1"], "nothing answers at http://127.0.0.1:1"),
        (["--model-url", "http://127.0.0.1:9/v1"], "--model-url needs --model"),
        (["--model", "x"], "--model names a model of the server at --model-url"),
        (["--model-url", "http://8.8.8.8/v1", "--model", "x"], "8.8.8.8 is not this machine"),
        (["--agent", "helper"], "--agent names an agent of a server"),
        (["--trace", "none.txt"], "none.txt cannot be read"),
        (["--trace", "none.txt", "--rate", "3"], "leave out --rate and --arrivals"),
        (["--scenario", "no_such_module:plan"], "there is no module 'no_such_module'"),
        (["--fail-if", "p98>1s"], "there is no p98"),
        (["--scenario", "none.toml"], "none.toml cannot be read"),
        (["--duration", "soon"], "--duration is 'soon'"),
        (["--json", "no/such/r.json"], "no/such/r.json cannot be written"),
        (["module:agent"], "module"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_sent(arguments: list[str], words: str, tmp_path: Path) -> None:
    code, out, errors = loadtest(tmp_path, *arguments)
    assert code == 2, errors
    assert words in " ".join(errors.split())
    assert out == ""


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://[::1]:1", "http://localhost", "https://127.9.9.9/v1"])
def test_this_machine_needs_no_permission(url: str) -> None:
    check_host("--backend", url, [])


def test_another_machine_is_loaded_only_if_it_is_named() -> None:
    check_host("--backend", "http://staging.example", ["staging.example"])
    with pytest.raises(ConfigError):
        check_host("--backend", "http://example", ["staging.example"])
    with pytest.raises(ConfigError):
        check_host("--backend", "http://localhost.example", [])


def test_where_somebody_watches_there_is_a_bar(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(SCENARIO)
    ours, theirs = pty.openpty()
    seen: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(ours, 65536):
                seen.append(data)
        except OSError:  # closed at the other end
            pass

    reader = threading.Thread(target=read)
    reader.start()
    with open(theirs, "w", buffering=1) as stream:
        terminal = Terminal(io.StringIO(), io.StringIO(), stream, {"TERM": "xterm", "COLUMNS": "160"}, str(tmp_path))
        code = run_command(build_parser().parse_args(["loadtest", "--scenario", "s.toml"]), terminal)
    reader.join()
    os.close(ours)
    assert code == 0
    text = b"".join(seen).decode()
    assert "10 answered" in text
    assert "\u2501" in text


# --- Ctrl-C ---------------------------------------------------------------------------------------------------------

SECONDS = 60

GATED = """
import os, sys
from contextlib import asynccontextmanager
import trio
from goliath_actors import Agent, Extension, ToolLoop
from goliath_actors.abc import ModelDone, ModelText

class Gated:
    "A model that answers once a byte has come on standard input."
    name = "gated"

    @asynccontextmanager
    async def stream(self, request):
        yield self.events()

    async def events(self):
        print("ASKED", file=sys.stderr, flush=True)
        if not await trio.to_thread.run_sync(os.read, 0, 1, abandon_on_cancel=True):
            await trio.sleep_forever()
        yield ModelText("done")
        yield ModelDone()

class Watch(Extension):
    name = "watch"
    def on_finish(self, ctx, question):
        print("HEARD", question.outcome.status, file=sys.stderr, flush=True)

agent = Agent(name="gated", model=Gated(), loop=ToolLoop(), extensions=[Watch()])
"""


class Loaded:
    """A load test in a process of its own: two conversations ask at once, and wait at their gates."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said = ""

    def read_until(self, words: str, times: int = 1) -> None:
        assert self.process.stderr is not None
        while self.said.count(words) < times:
            line = self.process.stderr.readline()
            assert line, self.said
            self.said += line

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def let_two_answers_through(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("..")
        self.process.stdin.flush()

    def end(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and the standard output. What was said is in `said`."""
        out, errors = self.process.communicate(timeout=SECONDS)
        self.said += errors
        return self.process.returncode, out


@contextmanager
def loaded(folder: Path, *arguments: str) -> Iterator[Loaded]:
    (folder / "gatedbot.py").write_text(GATED)
    (folder / "s.toml").write_text('[load]\nduration = "1h"\nconversations = 2\nthink = 0\ntimeout = "none"\n')
    environ = {**os.environ, "NO_COLOR": "1", "PYTHONPATH": str(Path(__file__).parent.parent)}
    with subprocess.Popen(
        [sys.executable, "-m", "goliath_actors", "loadtest", "gatedbot:agent", "--scenario", "s.toml", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
        cwd=folder,
    ) as process:
        try:
            yield Loaded(process)
        finally:
            process.kill()


def test_ctrl_c_ends_a_load_early_and_writes_the_reports_of_what_was_sent(tmp_path: Path) -> None:
    with loaded(tmp_path, "--json", "r.json", "--html", "r.html") as load:
        load.read_until("ASKED", 2)
        load.interrupt()
        load.read_until("stopped: waiting for what is in flight")
        load.let_two_answers_through()
        code, out = load.end()
    assert code == 130, load.said
    assert load.said.count("HEARD completed") == 2
    assert "sent 2   completed 2" in out
    assert "FAIL" not in out
    early = r"INTERRUPTED after [\d.]+ s of 3600 s"
    assert re.search(early, out.splitlines()[-1])
    data = json.loads((tmp_path / "r.json").read_text())
    assert (data["interrupted"], data["ok"], data["figures"]["counts"]["completed"]) == (True, False, 2)
    assert re.search(f'<span class="verdict bad">{early}</span>', (tmp_path / "r.html").read_text())


def test_a_second_ctrl_c_ends_a_load_at_once_without_a_report(tmp_path: Path) -> None:
    with loaded(tmp_path, "--json", "r.json") as load:
        load.read_until("ASKED", 2)
        load.interrupt()
        load.read_until("stopped: waiting for what is in flight")
        load.interrupt()
        code, out = load.end()
    assert (code, out) == (130, ""), load.said
    assert load.said.count("HEARD aborted") == 2
    assert load.said.splitlines()[-1] == "interrupted"
    assert "Traceback" not in load.said
    assert not (tmp_path / "r.json").exists()


def test_a_signal_that_ends_the_process_ends_a_load_in_order_without_a_report(tmp_path: Path) -> None:
    with loaded(tmp_path) as load:
        load.read_until("ASKED", 2)
        load.process.terminate()
        code, out = load.end()
    assert (code, out) == (128 + signal.SIGTERM, ""), load.said
    assert load.said.count("HEARD aborted") == 2
