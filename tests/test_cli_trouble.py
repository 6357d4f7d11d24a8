"""Errors in one line each, with what to do."""

from __future__ import annotations

import pytest

from goliath_actors import RunAborted, ToolFailure
from goliath_actors._cli.trouble import exit_code, explain, explain_reason, without_type
from goliath_actors.errors import (
    BadRequest,
    ConfigError,
    ContextOverflow,
    ModelUnavailable,
    RateLimited,
    Refused,
    StoreConflict,
    StoreCorrupt,
    StoreError,
    StoreTooNew,
)

URL = "http://127.0.0.1:1/v1"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ConfigError("say which"), "say which"),
        (ModelUnavailable("no answer."), f"no answer; is the server at {URL} running? Start it, name another with"),
        (RateLimited("slow down"), "slow down; wait a little and ask again"),
        (RateLimited("spent", retryable=False), "spent; look at the account's quota"),
        (ContextOverflow("too long"), "too long; start afresh with /new, or serve the model with a larger context"),
        (Refused("no"), "no; ask differently"),
        (BadRequest("bad key", status=401), "bad key; check OPENAI_API_KEY"),
        (BadRequest("no model", status=404), "no model; check --model and --model-url"),
        (BadRequest("odd", status=400), "odd"),
        (StoreTooNew("newer"), "newer; update goliath_actors, or name another file with --store"),
        (StoreConflict("moved on"), "moved on; somebody else uses this conversation, ask again"),
        (StoreCorrupt("set aside"), "set aside"),
        (StoreError("full"), "full; name another file with --store"),
        (ToolFailure("nothing there"), "nothing there"),
        (
            RunAborted("deadline", "", "plan"),
            "the run was aborted (deadline) in plan; raise --timeout, or leave",
        ),
        (RunAborted("shutdown"), "the run was aborted (shutdown)"),
        (KeyError("user"), "KeyError: 'user'"),
        (ValueError(), "ValueError"),
        (OSError("two\nlines \x1b[2J"), "OSError: two lines ␛[2J"),
    ],
)
def test_an_error_is_one_line_with_what_to_do(error: Exception, line: str) -> None:
    told = explain(error, URL)
    assert told.startswith(line)
    assert "\n" not in told


@pytest.mark.parametrize(
    "text",
    [
        "cannot open x: it is a directory; name a file in it",
        "x has schema 9, known up to 2; update goliath_actors or choose another path",
    ],
)
def test_advice_that_the_error_gives_itself_is_not_given_twice(text: str) -> None:
    assert explain(StoreError(text)) == explain(StoreTooNew(text)) == text
    told = explain(ModelUnavailable(f"cannot connect to {URL}; is the server running?"), URL)
    assert told.startswith(f"cannot connect to {URL}; is the server at {URL} running? Start it, name another")


def test_a_model_without_an_address_has_none_in_its_advice() -> None:
    assert explain(ModelUnavailable("gone")).startswith("gone; is the server running? Start it,")


def test_only_what_the_user_got_wrong_is_exit_code_2() -> None:
    assert [exit_code(error) for error in (ConfigError(""), StoreError(""), ModelUnavailable(""), KeyError())] == [
        2,
        1,
        1,
        1,
    ]


@pytest.mark.parametrize(
    ("reason", "error", "line"),
    [
        ("model-unavailable", None, f"the model at {URL} is unavailable; start its server, name another"),
        ("model-unavailable", f"ModelUnavailable: {URL}/chat: refused; is the server running?", f"{URL}/chat: refused"),
        ("model-error", "BadRequest: no such model", f"the model at {URL} failed: no such model; check --model and"),
        ("context-budget", None, "the ask does not fit the model's window; ask with fewer words, or start afresh"),
        ("guardrail", None, "the model's provider refused the ask; ask differently"),
        ("answer-invalid", None, "the model gave no answer of the wanted shape; ask again, or use a larger model"),
        ("some-day", "odd", "no answer (some-day): odd; ask again in other words"),
    ],
)
def test_a_run_without_an_answer_is_one_line_with_what_to_do(reason: str, error: str | None, line: str) -> None:
    assert explain_reason(reason, error, URL).startswith(line)


def test_the_type_in_front_of_an_errors_text_is_no_news_to_a_user() -> None:
    assert without_type("ModelUnavailable: gone") == "gone"
    assert without_type("Note: this stays") == "Note: this stays"
