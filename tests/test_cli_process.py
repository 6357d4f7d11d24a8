"""The real command in a process of its own: pipes, a terminal, and Ctrl-C."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest

from goliath_actors import __version__

COMMAND = (sys.executable, "-m", "goliath_actors")
SECONDS = 30.0  # generous: these bounds are reached only by a hang

# Gives the new process its standard input as its controlling terminal, so that Ctrl-C is a key there.
IN_A_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""

WITH_CLOSED_STREAMS = """
import ast, os, sys
for number in ast.literal_eval(sys.argv[1]):
    os.close(number)
os.execv(sys.argv[2], sys.argv[2:])
"""

SLOW = """
import signal, sys, trio, trio.testing
from goliath_actors import Agent, Extension, tool
from goliath_actors._cli.demo_model import DemoModel

@tool
async def wait() -> str:
    "Wait for ever."
    print("WAITING", file=sys.stderr, flush=True)
    await trio.sleep_forever()

@tool
async def block() -> str:
    "Block the whole program."
    print("BLOCKING", file=sys.stderr, flush=True)
    import threading
    threading.Event().wait()

@tool
async def linger() -> str:
    "Wait for ever, and take until SIGUSR1 to end."
    with trio.open_signal_receiver(signal.SIGUSR1) as signals:
        print("LINGERING", file=sys.stderr, flush=True)
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()
                print("ENDING", file=sys.stderr, flush=True)
                async for _ in signals:
                    break

class Watch(Extension):
    name = "watch"
    def on_finish(self, ctx, question):
        print("HEARD", ctx.ask, question.outcome.status, file=sys.stderr, flush=True)

agent = Agent(name="slow", model=DemoModel(), tools=[wait, block, linger], extensions=[Watch()])
"""


def environ(**more: str) -> dict[str, str]:
    """The environment without what would choose a model or colours."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("OPENAI_")}
    return {**kept, "NO_COLOR": "1", "COLUMNS": "80", "PYTHONPATH": str(Path(__file__).parent.parent), **more}


def ran(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=environ(),
        check=False,
    )


@attrs.define(eq=False)
class Person:
    """Somebody at a terminal in which a command runs. `seen` is all that was on the screen."""

    process: subprocess.Popen[bytes]
    terminal: int
    seen: str = ""
    _read_to: int = 0

    def presses_until(self, key: str, text: str) -> None:
        """Press a key until `text` shows up."""
        for _ in range(100):
            self.types(key)
            try:
                self.waits_for(text, 0.3)
            except AssertionError:
                continue
            return
        self.waits_for(text)

    def waits_for(self, text: str, seconds: float = SECONDS) -> str:
        """Read until `text` shows up behind what was waited for before; return what was in between, it included."""
        end = time.monotonic() + seconds
        while (place := self.seen.find(text, self._read_to)) < 0:
            left = end - time.monotonic()
            ready, _, _ = select.select([self.terminal], [], [], max(left, 0))
            if not ready:
                raise AssertionError(f"{text!r} did not show up; seen: {self.seen!r}")
            try:
                data = os.read(self.terminal, 65536)
            except OSError:  # Linux: the other side is closed
                data = b""
            if not data:
                raise AssertionError(f"the terminal closed before {text!r}; seen: {self.seen!r}")
            self.seen += data.decode().replace("\r\n", "\n")
        start, self._read_to = self._read_to, place + len(text)
        return self.seen[start : self._read_to]

    def types(self, keys: str) -> None:
        os.write(self.terminal, keys.encode())

    def leaves(self) -> int:
        return self.process.wait(SECONDS)


@contextmanager
def at_a_terminal(
    *arguments: str, folder: Path | None = None, term: str = "xterm", ends: tuple[int, int] | None = None
) -> Iterator[Person]:
    """Run the command in a terminal of its own. `ends` are those of a terminal whose other side the caller closes."""
    ours, theirs = pty.openpty() if ends is None else ends
    process = subprocess.Popen(
        [sys.executable, "-c", IN_A_TERMINAL, *COMMAND, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environ(TERM=term),
        cwd=folder,
        start_new_session=True,
    )
    if ends is None:
        os.close(theirs)
    person = Person(process, ours)
    try:
        yield person
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(person.terminal)


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """A folder with an agent whose runs last for ever."""
    (tmp_path / "slowbot.py").write_text(SLOW)
    return tmp_path


# --- pipes ----------------------------------------------------------------------------------------------------------


def test_the_command_answers_a_pipe_line_by_line() -> None:
    result = ran("chat", "--model", "demo", "--yes", stdin="add a note: milk\nlist the notes\nwhat is 6*7?")
    assert result.returncode == 0
    assert result.stdout == (
        "Demo model: add_note says: noted as number 1: milk.\n"
        "Demo model: list_notes says: 1. milk.\n"
        "Demo model: calculate says: 6*7 = 42.\n"
    )
    assert "model: demo; --model demo\n" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("closed", "said"),
    [
        ((0,), ("", "model: demo; --model demo\n")),
        ((1,), ("", "model: demo; --model demo\n")),
        ((0, 1, 2), ("", "")),
    ],
)
def test_a_stream_that_the_caller_closed_is_empty_or_takes_everything(
    closed: tuple[int, ...], said: tuple[str, str]
) -> None:
    result = subprocess.run(
        [sys.executable, "-c", WITH_CLOSED_STREAMS, repr(closed), *COMMAND, "chat", "--model", "demo"],
        input="hello\n",
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=environ(),
        check=False,
    )
    assert result.returncode == 0
    assert (result.stdout, result.stderr[: len(said[1]) or None]) == said


def test_the_version_and_wrong_usage() -> None:
    version = ran("--version")
    assert (version.returncode, version.stdout) == (0, f"goliath-actors {__version__}\n")
    wrong = ran("nonsense")
    assert (wrong.returncode, wrong.stdout, wrong.stderr.count("\n")) == (2, "", 1)


def test_the_help_imports_no_http_client_and_no_tokenizer() -> None:
    code = (
        "import sys; from goliath_actors.cli import main; main(['--help']); "
        "heavy = {'httpx2', 'tiktoken', 'jsonschema', 'sqlite3', 'regex', 'goliath_actors._cli.command'}; "
        "sys.exit(','.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_reader_that_leaves_early_is_no_traceback() -> None:
    chat = subprocess.Popen(
        [*COMMAND, "chat", "--model", "demo"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environ(),
        text=True,
    )
    assert chat.stdin is not None
    assert chat.stdout is not None
    chat.stdout.close()
    _, errors = chat.communicate("hello\nhello\nhello\n", timeout=SECONDS)
    assert "Traceback" not in errors
    assert "Exception ignored" not in errors
    assert chat.returncode == 1


def test_ctrl_c_in_a_script_tells_the_observers_and_ends_with_130(slow: Path) -> None:
    chat = subprocess.Popen(
        [*COMMAND, "chat", "slowbot:agent"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environ(),
        text=True,
        cwd=slow,
    )
    assert chat.stdin is not None
    assert chat.stderr is not None
    chat.stdin.write("wait please\nwait again\n")
    chat.stdin.flush()
    read = ""
    while "WAITING" not in read:
        line = chat.stderr.readline()
        assert line, read
        read += line
    chat.send_signal(signal.SIGINT)
    _, errors = chat.communicate(timeout=SECONDS)
    assert re.findall("HEARD .*", errors) == ["HEARD wait please aborted"]
    assert "Traceback" not in errors
    assert chat.returncode == 130


# --- a terminal -----------------------------------------------------------------------------------------------------


def test_a_person_asks_confirms_and_leaves_with_ctrl_d() -> None:
    with at_a_terminal("chat", "--model", "demo") as person:
        opening = person.waits_for("you> ")
        assert f"goliath-actors {__version__}, agent 'assistant'\nmodel: demo; --model demo\n" in opening
        assert "/help lists the commands, Ctrl-C aborts a run, Ctrl-D leaves\n" in opening
        person.types("add a note: buy milk\n")
        question = person.waits_for("why not: ")
        assert '  confirm add_note wants to change data\n          text: "buy milk"\n' in question
        person.types("y\n")
        assert "Demo model: add_note says: noted as number 1: buy milk.\n\n" in person.waits_for("you> ")
        person.types("\x04")
        assert person.leaves() == 0


def test_a_line_can_be_edited_and_fetched_back() -> None:
    with at_a_terminal("chat", "--model", "demo") as person:
        person.waits_for("you> ")
        person.types("2 * 2\x7f")
        person.waits_for("2 * ")
        person.types("\x01\x1b[C1\x05" + "3\r")  # home, right, "1", end, "3"
        assert "Demo model: calculate says: 21 * 3 = 63.\n" in person.waits_for("63.\n")
        person.waits_for("you> ")
        person.types("\x1b[A")  # up
        person.waits_for("21 * 3")
        person.types("\x7f4\r")
        person.waits_for("21 * 4 = 84.\n")
        person.types("\x04")
        assert person.leaves() == 0


def test_what_is_typed_during_a_run_stands_at_the_next_prompt(slow: Path) -> None:
    with at_a_terminal("chat", "slowbot:agent", folder=slow) as person:
        person.waits_for("you> ")
        person.types("wait please\n")
        person.waits_for("WAITING")
        person.types("hello\n/abort\n")
        person.waits_for("aborted in tool:wait")
        person.waits_for("you> hello\n")
        person.waits_for("I am the demo model")
        person.types("\x04")
        assert person.leaves() == 0


def test_a_terminal_that_can_do_nothing_gets_plain_prompts() -> None:
    with at_a_terminal("chat", "--model", "demo", term="dumb") as person:
        person.waits_for("you> ")
        person.types("2 * 21\n")
        person.waits_for("= 42.\n")
        person.waits_for("you> ")
        person.types("\x04")
        assert person.leaves() == 0
    assert "\x1b" not in person.seen


def test_the_terminal_is_left_as_it_was() -> None:
    for keys, code in (("\x04", 0), ("/quit\n", 0), ("\x03", 130)):
        ours, theirs = pty.openpty()
        before = termios.tcgetattr(theirs)
        with at_a_terminal("chat", "--model", "demo", ends=(ours, theirs)) as person:
            person.waits_for("you> ")
            assert not termios.tcgetattr(theirs)[3] & termios.ICANON
            person.types(keys)
            if keys == "\x03":
                person.waits_for("you> ")
                person.types(keys)
            assert person.leaves() == code
            assert termios.tcgetattr(theirs) == before
        os.close(theirs)


def test_coming_back_from_the_shell_the_prompt_takes_keys_again() -> None:
    ours, theirs = pty.openpty()
    cooked = termios.tcgetattr(theirs)
    with at_a_terminal("chat", "--model", "demo", ends=(ours, theirs)) as person:
        person.waits_for("you> ")
        termios.tcsetattr(theirs, termios.TCSANOW, cooked)  # what a shell does when it takes over
        person.process.send_signal(signal.SIGCONT)
        person.waits_for("you> ")
        assert not termios.tcgetattr(theirs)[3] & termios.ICANON
        person.types("\x04")
        assert person.leaves() == 0
    os.close(theirs)


def test_ctrl_c_aborts_the_run_and_the_program_lives(slow: Path) -> None:
    with at_a_terminal("chat", "slowbot:agent", folder=slow) as person:
        person.waits_for("you> ")
        person.types("wait please\n")
        person.waits_for("WAITING")
        person.types("\x03")
        shown = person.waits_for("you> ")
        assert "HEARD wait please aborted\n" in shown
        assert "  aborted in tool:wait\n" in shown
        person.types("/status\n")
        assert "1 aborted" in " ".join(person.waits_for("running").split())
        person.types("\x03")
        person.waits_for("Ctrl-C again, Ctrl-D or /quit leaves")
        person.waits_for("you> ")
        person.types("\x03")
        assert person.leaves() == 130


def test_a_signal_that_ends_the_process_ends_it_in_order(slow: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        ours, theirs = pty.openpty()
        before = termios.tcgetattr(theirs)
        with at_a_terminal("chat", "slowbot:agent", folder=slow, ends=(ours, theirs)) as person:
            person.waits_for("you> ")
            person.types("wait please\n")
            person.waits_for("WAITING")
            person.process.send_signal(number)
            person.waits_for("HEARD wait please aborted")
            assert person.leaves() == 128 + number
            assert termios.tcgetattr(theirs) == before
        os.close(theirs)


def test_a_terminal_that_goes_away_is_no_endless_wait() -> None:
    with at_a_terminal("chat", "--model", "demo") as person:
        person.waits_for("you> ")
        ours, person.terminal = person.terminal, os.open(os.devnull, os.O_RDONLY)
        os.close(ours)
        assert person.leaves() in (0, 1, 129)


def test_quit_during_a_run_aborts_it_and_leaves(slow: Path) -> None:
    with at_a_terminal("chat", "slowbot:agent", folder=slow) as person:
        person.waits_for("you> ")
        person.types("wait please\n")
        person.waits_for("WAITING")
        person.types("/quit\n")
        person.waits_for("HEARD wait please aborted")
        assert person.leaves() == 0


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_what_is_typed_while_the_chat_ends_is_for_the_shell(slow: Path, term: str) -> None:
    ours, theirs = pty.openpty()
    with at_a_terminal("chat", "slowbot:agent", folder=slow, term=term, ends=(ours, theirs)) as person:
        person.waits_for("you> ")
        person.types("linger please\n")
        person.waits_for("LINGERING")
        person.types("/quit\n")
        person.waits_for("ENDING")
        person.types("ls\n")
        person.process.send_signal(signal.SIGUSR1)
        assert person.leaves() == 0
        assert select.select([theirs], [], [], 0)[0]
        assert os.read(theirs, 100) == b"ls\n"
    os.close(theirs)


def test_code_that_blocks_the_loop_cannot_take_ctrl_c_away(slow: Path) -> None:
    with at_a_terminal("chat", "slowbot:agent", folder=slow) as person:
        person.waits_for("you> ")
        person.types("block please\n")
        person.waits_for("BLOCKING")
        # Signals that come at once count as one: the key is pressed again until it was noticed.
        person.presses_until("\x03", "some code blocks the program; Ctrl-C again ends it")
        person.presses_until("\x03", "ended, since blocked code did not let go")
        assert person.leaves() == 130


def test_the_tour_runs_in_a_terminal() -> None:
    with at_a_terminal("demo") as person:
        person.waits_for("= 16 times\n      on_finish\n")
        assert person.leaves() == 0
