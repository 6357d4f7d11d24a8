"""Whole commands in this process: what goes where, and the exit code."""

from __future__ import annotations

import argparse
import io
import json
import os
import sqlite3
import sys
import types
from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest

from goliath_actors._cli.command import Terminal, run_command
from goliath_actors._cli.parser import build_parser
from goliath_actors.cli import main
from goliath_actors.hooks import HOOKS


@attrs.frozen
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str


def ran(*arguments: str, stdin: str = "", folder: str = ".", environ: dict[str, str] | None = None) -> Ran:
    """Run a command on streams of its own; no model server is looked for."""
    terminal = Terminal(io.StringIO(stdin), io.StringIO(), io.StringIO(), environ or {}, folder, ())
    code = run_command(build_parser().parse_args(arguments), terminal)
    assert isinstance(terminal.stdout, io.StringIO)
    assert isinstance(terminal.stderr, io.StringIO)
    return Ran(code, terminal.stdout.getvalue(), terminal.stderr.getvalue())


def test_hooks_and_tools_are_printed_and_as_json() -> None:
    assert ran("hooks").out.startswith("hook ")
    assert [row["name"] for row in json.loads(ran("hooks", "--json").out)] == list(HOOKS)
    assert ran("tools").out.startswith("clock()\n")
    result = ran("tools", "--json")
    assert (result.code, result.err, len(json.loads(result.out))) == (0, "", 4)


def test_the_demo_ends_with_0_and_writes_nothing_to_standard_error() -> None:
    result = ran("demo")
    assert (result.code, result.err) == (0, "")
    assert "= 16 times on_finish\n" in result.out


def test_a_piped_chat_says_which_model_it_took_and_that_nothing_is_kept() -> None:
    result = ran("chat", stdin="2 * 21\n\nadd a note: x\n")
    assert result.code == 0
    assert result.out.startswith("Demo model: calculate says: 2 * 21 = 42.\nDemo model: add_note was not used: ")
    assert result.err.startswith(
        "model: demo; no model server was found (looked for )\n"
        "  the demo model follows fixed rules and understands nothing; --model and --model-url name a real one\n"
        "store: conversations are in memory and gone when you leave; --store FILE keeps them\n"
        "  ask     2 * 21\n"
    )


def test_a_quiet_piped_chat_gives_answers_alone() -> None:
    assert ran("chat", "-q", "--yes", stdin="add a note: milk\nlist the notes\n") == Ran(
        0, "Demo model: add_note says: noted as number 1: milk.\nDemo model: list_notes says: 1. milk.\n", ""
    )


def test_an_empty_input_asks_nothing_and_is_fine() -> None:
    assert ran("chat", "-q") == Ran(0, "", "")


def test_a_store_keeps_a_conversation_from_one_chat_to_the_next(tmp_path: Path) -> None:
    file = str(tmp_path / "chat.db")
    first = ran("chat", "--model", "demo", "--store", file, "--conversation", "u1", stdin="hello\n")
    assert f"store: {file}, conversation 'u1'\n" in first.err
    second = ran("chat", "--model", "demo", "--store", file, "--conversation", "u1", stdin="/history\n")
    assert f"store: {file}, conversation 'u1', 1 earlier exchange remembered\n" in second.err
    assert "you        hello\n" in second.err
    other = ran("chat", "--model", "demo", "--store", file, stdin="/history\n")
    assert "nothing was said yet" in other.err


def test_a_file_of_a_newer_version_is_one_line_and_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "chat.db"
    ran("chat", "-q", "--model", "demo", "--store", str(file), stdin="hello\n")
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA user_version = 9999")
    connection.close()
    before = file.read_bytes()
    result = ran("chat", "-q", "--model", "demo", "--store", str(file), stdin="hello\n")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("error: ")
    assert "update goliath_actors or choose another path" in result.err
    assert "--store" not in result.err
    assert result.err.count("\n") == 1
    assert file.read_bytes() == before


@pytest.mark.parametrize("content", [b"this is no database\n" * 60, b"SQLite format 3\x00" + b"\x00" * 5000])
def test_a_file_that_is_no_store_is_one_line(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "chat.db"
    file.write_bytes(content)
    result = ran("chat", "-q", "--model", "demo", "--store", str(file), stdin="hello\n")
    assert (result.code, result.out, result.err.count("\n")) == (1, "", 1)
    assert result.err.startswith("error: ")
    assert str(file) in result.err


def test_a_store_in_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    result = ran("chat", "--model", "demo", "--store", str(tmp_path / "no" / "chat.db"), stdin="hello\n")
    assert (result.code, result.err.count("error: ")) == (1, 1)
    assert "does not exist" in result.err


def test_a_corrupt_record_is_reported_and_the_chat_goes_on_without_it(tmp_path: Path) -> None:
    file = str(tmp_path / "chat.db")
    arguments = ("chat", "-q", "--model", "demo", "--store", file)
    ran(*arguments, stdin="hello\n")
    connection = sqlite3.connect(file)
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    for table in tables:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        if "memory" in columns:
            connection.execute(f"UPDATE {table} SET memory = ?", (b"{broken",))
    connection.commit()
    connection.close()
    result = ran(*arguments, stdin="hello\n")
    assert (result.code, result.err.count("\n")) == (1, 1)
    assert "set aside as row 1 of the table quarantine" in result.err
    assert result.out.startswith("I am the demo model")
    assert ran(*arguments, stdin="hello\n").code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("chat", "--model", "gpt-9"), "error: no model 'gpt-9' was found"),
        (("chat", "--model-url", "nonsense"), "error: base_url needs a scheme"),
        (("chat", "nowhere_at_all:agent"), "error: there is no module 'nowhere_at_all'"),
        (("chat", "json:dumps"), "error: json:dumps is of type function, not an Agent"),
        (("tools", "json"), "error: 'json' names no agent"),
        (("chat", "--model", "demo", "--conversation", "x" * 513), "error: conversation_id has 513 characters"),
    ],
)
def test_wrong_set_ups_are_one_line_and_exit_code_2(arguments: Sequence[str], words: str) -> None:
    result = ran(*arguments, stdin="hello\n")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(words)
    assert result.err.count("\n") == 1
    assert "Traceback" not in result.err


def test_a_traceback_is_shown_on_request() -> None:
    result = ran("tools", "json:nothing", "--traceback")
    assert result.err.startswith("error: module 'json' has no 'nothing'")
    assert "Traceback (most recent call last):\n" in result.err


def test_an_agent_of_ones_own_brings_its_model_and_keeps_its_tools(tmp_path: Path) -> None:
    (tmp_path / "cli_own_bot.py").write_text(
        "from goliath_actors import Agent, tool\n"
        "from goliath_actors.testing import ScriptedModel\n"
        "@tool\n"
        "async def shout(text: str) -> str:\n"
        '    """Shout a text."""\n'
        "    return text.upper()\n"
        "agent = Agent(name='own', model=ScriptedModel([{'kind': 'answer', 'brief': 'b'}, 'hello'], name='mine'),\n"
        "              tools=[shout])\n"
    )
    path = list(sys.path)
    try:
        own = ran("chat", "cli_own_bot:agent", stdin="hi\n", folder=str(tmp_path))
        demo = ran("chat", "cli_own_bot:agent", "--model", "demo", stdin="shout: hey\n", folder=str(tmp_path))
    finally:
        sys.path[:] = path
        sys.modules.pop("cli_own_bot", None)
    assert own.out == "hello\n"
    assert own.err.startswith("model: mine; the agent's own\n")
    assert demo.out == "Demo model: shout says: HEY.\n"


def test_an_unreachable_model_is_told_with_its_address_and_what_to_try() -> None:
    result = ran("chat", "-q", "--model", "m", "--model-url", "http://127.0.0.1:1/v1", stdin="hello\n")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("error: cannot connect to http://127.0.0.1:1/v1/chat/completions")
    assert result.err.endswith("; start its server, name another with --model-url, or use --model demo\n")
    assert result.err.count("\n") == 1


def test_an_interrupt_that_came_up_as_an_exception_is_130() -> None:
    class Interrupting(io.StringIO):
        def write(self, text: str) -> int:
            raise KeyboardInterrupt

    terminal = Terminal(io.StringIO(), Interrupting(), io.StringIO(), {}, ".", ())
    assert run_command(argparse.Namespace(command="hooks", json=False, traceback=False), terminal) == 130
    assert run_command(argparse.Namespace(command="demo", traceback=False), terminal) == 130


def test_an_interrupt_while_the_command_is_still_being_imported_is_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted(types.ModuleType):
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "goliath_actors._cli.command", Interrupted("goliath_actors._cli.command"))
    assert main(["hooks"]) == 130
    assert capsys.readouterr() == ("", "interrupted\n")


def test_a_reader_that_left_is_no_error_to_speak_of() -> None:
    read, write = os.pipe()
    os.close(read)
    errors = io.StringIO()
    with open(write, "w") as closed:
        terminal = Terminal(io.StringIO("hello\n"), closed, errors, {}, ".", ())
        assert run_command(argparse.Namespace(command="hooks", json=False, traceback=False), terminal) == 1
    assert errors.getvalue() == ""
