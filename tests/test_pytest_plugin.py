"""The fixtures that come with the package, as a reader's own tests get them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
from goliath_actors import Agent
from goliath_actors.testing import ScriptedModel

async def test_that_uses_the_fixture(start_runtime):
    runtime = await start_runtime(Agent(model=ScriptedModel(["Hello."])))
    assert (await runtime.run("Hi.")).text == "Hello."
"""


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ((), 0, "1 passed"),
        (("-p", "no:trio"), 1, "goliath_actors' fixtures and async tests need pytest-trio: pip install pytest-trio"),
    ],
)
def test_without_pytest_trio_the_fixture_says_what_to_install(
    tmp_path: Path, options: tuple[str, ...], code: int, words: str
) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    if not options:
        (tmp_path / "pytest.ini").write_text("[pytest]\ntrio_mode = true\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stdout
    assert words in done.stdout
    assert "not found" not in done.stdout
