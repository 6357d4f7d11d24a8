"""The scripts of a checkout: set up once whatever comes between, and run in the caller's folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"

# Stands for Python, and once `-m venv` has copied it there, for the environment's own. It notes what it was asked to
# do; `slow` is a named pipe whose reading holds the installation up, `broken` ends it.
FAKE = """\
#!/bin/sh
here="{folder}"
case "$*" in
  --version) echo "Python 3.11.0" ;;
  -c*) exec {python} "$@" ;;
  "-m venv .venv") echo venv >>"$here/log"; mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
  "-m pip --version") [ -e .venv/pip ] ;;
  "-m pip install"*"-e .")
    printf '#!/bin/sh\\npwd; printf "%%s\\\\n" "$@"\\n' >.venv/bin/goliath-actors; chmod +x .venv/bin/goliath-actors ;;
  "-m pip install"*)
    echo install >>"$here/log"; : >.venv/pip
    [ ! -p "$here/slow" ] || cat "$here/slow" >/dev/null
    [ ! -e "$here/broken" ] ;;
  "-m coverage erase"*|"-m coverage combine"*) ;;
  "-m coverage run"*) echo "the tests"; exit "$TESTS" ;;
  "-m coverage report"*) echo "the coverage"; exit "$COVERAGE" ;;
  *) echo "unknown: $*" >&2; exit 64 ;;
esac
"""


@attrs.frozen
class Checkout:
    """A checkout of the scripts alone, with a Python that only pretends."""

    folder: Path

    @property
    def log(self) -> list[str]:
        return (self.folder / "log").read_text().split()

    def start(self, script: str, *arguments: str, folder: Path | None = None, **environ: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.folder / "scripts" / script, *arguments],
            cwd=folder or self.folder,
            env={**os.environ, "PYTHON": str(self.folder / "python"), **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, script: str, *arguments: str, folder: Path | None = None, **environ: str) -> tuple[int, str, str]:
        with self.start(script, *arguments, folder=folder, **environ) as process:
            out, err = process.communicate(timeout=60)
        return process.returncode, out, err


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    folder = tmp_path / "check out"  # with a space, as folders may have
    (folder / "scripts").mkdir(parents=True)
    for name in ("_env.sh", "goliath-actors", "test"):
        shutil.copy(SCRIPTS / name, folder / "scripts" / name)
    for name in ("requirements.lock", "requirements-dev.lock"):
        (folder / name).write_text("as locked\n")
    python = folder / "python"
    python.write_text(FAKE.format(folder=folder, python=sys.executable))
    python.chmod(0o755)
    return Checkout(folder)


def test_the_command_line_runs_in_the_folder_of_its_caller(checkout: Checkout, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    code, out, _ = checkout.run("goliath-actors", "tools", "a b", folder=elsewhere)
    assert (code, out.splitlines()) == (0, [str(elsewhere), "tools", "a b"])
    assert list(elsewhere.iterdir()) == []


def test_what_is_set_up_is_not_set_up_again_until_its_lock_changes(checkout: Checkout) -> None:
    assert checkout.run("goliath-actors")[0] == 0
    assert checkout.run("goliath-actors")[0] == 0
    assert checkout.log == ["venv", "install"]
    (checkout.folder / "requirements.lock").write_text("as locked anew\n")
    code, _, err = checkout.run("goliath-actors")
    assert (code, err) == (0, "adding what requirements.lock names to .venv (once, a minute or two)\n")
    assert checkout.log == ["venv", "install", "install"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_set_up_is_made_anew_by_the_next_command(checkout: Checkout, number: signal.Signals) -> None:
    slow = checkout.folder / "slow"
    os.mkfifo(slow)
    with checkout.start("goliath-actors") as process:
        with slow.open("w"):  # waits until somebody reads: the installation is in the middle
            os.killpg(process.pid, number)
            process.communicate(timeout=60)
    assert process.returncode != 0
    slow.unlink()
    code, _, err = checkout.run("goliath-actors")
    assert code == 0
    assert err.splitlines() == [
        "making .venv anew: its set-up was interrupted, or it has no pip",
        "setting up .venv with Python 3.11.0 (once)",
    ]
    assert checkout.log == ["venv", "install", "venv", "install"]


def test_an_environment_without_pip_is_made_anew(checkout: Checkout) -> None:
    assert checkout.run("goliath-actors")[0] == 0
    (checkout.folder / ".venv" / "pip").unlink()
    (checkout.folder / ".venv" / ".stamp-requirements.lock").unlink()
    assert checkout.run("goliath-actors")[0] == 0
    assert checkout.log == ["venv", "install", "venv", "install"]


def test_a_failed_installation_fails_the_command_and_is_tried_again(checkout: Checkout) -> None:
    broken = checkout.folder / "broken"
    broken.touch()
    assert checkout.run("goliath-actors")[:2] == (1, "")
    broken.unlink()
    assert checkout.run("goliath-actors")[0] == 0


def test_of_two_first_commands_at_once_one_sets_up_and_the_other_waits(checkout: Checkout) -> None:
    slow = checkout.folder / "slow"
    os.mkfifo(slow)
    with checkout.start("goliath-actors") as first, slow.open("w") as held:
        with checkout.start("goliath-actors") as second:
            assert second.stderr is not None
            assert second.stderr.readline() == "waiting for another command that sets up .venv\n"
            held.close()
            second.communicate(timeout=60)
        first.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (0, 0)
    assert checkout.log == ["venv", "install"]


def test_coverage_is_reported_also_when_tests_fail(checkout: Checkout) -> None:
    shown = "the tests\nthe coverage\n"
    assert checkout.run("test", TESTS="0", COVERAGE="0")[:2] == (0, shown)
    assert checkout.run("test", TESTS="1", COVERAGE="0")[:2] == (1, shown)
    assert checkout.run("test", TESTS="3", COVERAGE="2")[:2] == (3, shown)
    assert checkout.run("test", TESTS="0", COVERAGE="2")[:2] == (2, shown)
