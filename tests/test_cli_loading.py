"""`module:agent`: what is taken, and what is said of everything else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from goliath_actors import Agent
from goliath_actors._cli.loading import load_agent
from goliath_actors.errors import ConfigError

MODULE = """
from goliath_actors import Agent
from goliath_actors.testing import ScriptedModel

agent = Agent(name="mine", model=ScriptedModel([]))
class inner:
    other = Agent(name="other", model=ScriptedModel([]))
def make():
    return agent
number = 7
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[str]:
    """A folder with modules in it, forgotten afterwards."""
    (tmp_path / "cli_bot.py").write_text(MODULE)
    (tmp_path / "cli_broken.py").write_text("1 / 0\n")
    (tmp_path / "cli_typo.py").write_text("def f(:\n")
    (tmp_path / "cli_needy.py").write_text("import cli_not_there\n")
    (tmp_path / "cli_script.py").write_text("import sys\nsys.exit(3)\n")
    path, modules = list(sys.path), set(sys.modules)
    yield str(tmp_path)
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith("cli_"):
            del sys.modules[name]


def test_an_agent_is_found_by_module_and_attribute(folder: str) -> None:
    agent = load_agent("cli_bot:agent", folder)
    assert isinstance(agent, Agent)
    assert agent.name == "mine"
    assert load_agent("cli_bot:inner.other", folder).name == "other"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("cli_bot", "'cli_bot' names no agent; write module:agent, such as myapp.bot:agent"),
        (":agent", "':agent' names no agent"),
        ("cli_bot:", "'cli_bot:' names no agent"),
        ("cli_bot.py:agent", "'cli_bot.py:agent' names a file; write cli_bot:agent"),
        ("./cli_bot:agent", "'./cli_bot:agent' names a file; write cli_bot:agent"),
        ("app/cli_bot.py:agent", "'app/cli_bot.py:agent' names a file; write app.cli_bot:agent"),
        ("app\\cli_bot.py:agent", "names a file; write app.cli_bot:agent"),
        ("../cli_bot:agent", "'../cli_bot:agent' names a file; go to its folder and write cli_bot:agent"),
        ("/srv/app/cli_bot.py:agent", "names a file; go to its folder and write cli_bot:agent"),
        (".cli_bot:agent", "'.cli_bot:agent' names a file; write cli_bot:agent"),
        ("./:agent", "'./:agent' names a file; write module:agent"),
        ("cli_nowhere:agent", "there is no module 'cli_nowhere' in this folder or among the installed packages"),
        ("cli_nowhere.deeper:agent", "there is no module 'cli_nowhere'"),
        ("cli_bot.deeper:agent", "there is no module 'cli_bot.deeper'"),
        ("cli_bot:agnet", "module 'cli_bot' has no 'agnet' (agents in it: agent)"),
        ("cli_bot:number", "cli_bot:number is of type int, not an Agent (agents in it: agent)"),
        (
            "cli_bot:make",
            "is of type function, not an Agent; call it in the module and name what it returns",
        ),
        ("json:dumps", "(there is no Agent in it)"),
        ("cli_broken:agent", "module 'cli_broken' cannot be imported: ZeroDivisionError: division by zero"),
        ("cli_typo:agent", "module 'cli_typo' cannot be imported: SyntaxError"),
        ("cli_needy:agent", "module 'cli_needy' imports 'cli_not_there', which is not installed"),
        ("cli_script:agent", "module 'cli_script' ends the program when it is imported"),
    ],
)
def test_what_is_no_agent_is_told_in_words(folder: str, spec: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_agent(spec, folder)
    assert words in str(caught.value)


def test_the_error_of_the_module_is_the_cause(folder: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_agent("cli_broken:agent", folder)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
