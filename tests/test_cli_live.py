"""A chat with a real model in a server of our own (needs the extra `local`)."""

from __future__ import annotations

import io

import pytest

from goliath_actors._cli.command import Terminal, run_command
from goliath_actors._cli.parser import build_parser
from goliath_actors.models.local import missing_packages

MISSING = missing_packages()


@pytest.mark.live
@pytest.mark.skipif(bool(MISSING), reason=f"the extra `local` is not installed ({', '.join(MISSING)})")
def test_a_real_model_on_this_machine_answers_a_pipe() -> None:
    out, err = io.StringIO(), io.StringIO()
    terminal = Terminal(io.StringIO("hello\n"), out, err, {}, ".", ())
    arguments = build_parser().parse_args(["chat", "--model", "local", "--timeout", "100"])
    code = run_command(arguments, terminal)
    assert "starting the local model server" in err.getvalue()
    assert "--model local\n" in err.getvalue()
    assert "ask     hello\n" in err.getvalue()
    # A model this small may answer anything, or give up; it must have been asked, and nothing may be left unsaid.
    assert code in (0, 1)
    assert out.getvalue().strip() or "error: " in err.getvalue()
