"""Arguments: help with examples everywhere, and one line for what is wrong."""

from __future__ import annotations

import pytest

from goliath_actors import __version__
from goliath_actors._cli.parser import build_parser
from goliath_actors.cli import main


@pytest.mark.parametrize("command", ["", "chat", "demo", "tools", "hooks"])
def test_every_command_has_a_help_with_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*([command] if command else []), "--help"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"usage: goliath-actors {command}")
    assert "examples:\n" in out
    assert f"  goliath-actors {command}" in out
    assert err == ""


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr() == (f"goliath-actors {__version__}\n", "")


def test_without_a_command_the_help_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert (out, err.partition("\n")[0]) == ("", "usage: goliath-actors [-h] [--version] COMMAND ...")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["talk"],
            "there is no command 'talk' (there are chat, serve, token, demo, tools, hooks, loadtest); "
            "see 'goliath-actors --help'",
        ),
        (["chat", "--timeout", "soon"], "argument --timeout: 'soon' is no positive number of seconds; see"),
        (["loadtest", "--rate", "0"], "argument --rate: '0' is no positive number of asks a second; see"),
        (["chat", "--timeout", "0"], "argument --timeout: '0' is no positive number of seconds; see"),
        (["chat", "--timeout", "inf"], "argument --timeout: 'inf' is no positive number of seconds; see"),
        (["chat", "--conversation", "  "], "argument --conversation: it is blank; see 'goliath-actors chat --help'"),
        (["chat", "--model"], "argument --model: expected one argument; see 'goliath-actors chat --help'"),
        (["hooks", "--yes"], "unrecognized arguments: --yes; see 'goliath-actors hooks --help'"),
        (["--yes"], "unrecognized arguments: --yes; see 'goliath-actors --help'"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"goliath-actors: {line}")
    assert err.count("\n") == 1


def test_the_options_of_a_chat_are_read() -> None:
    options = ["my.bot:agent", "--model", "m", "--model-url", "http://h/v1", "--conversation", "u1", "--timeout", "2.5"]
    read = build_parser().parse_args(["chat", *options, "--store", "f.db", "--yes", "-q", "--traceback"])
    assert vars(read) == {
        "command": "chat",
        "agent": "my.bot:agent",
        "model": "m",
        "model_url": "http://h/v1",
        "conversation": "u1",
        "store": "f.db",
        "timeout": 2.5,
        "yes": True,
        "quiet": True,
        "traceback": True,
    }
