"""The one typed hook table: complete, self-consistent, and interpreted by its compositions alone."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import pytest

from goliath_actors import Extension
from goliath_actors.abc import ModelResponse
from goliath_actors.hooks import (
    HOOKS,
    Ask,
    Complete,
    Composition,
    Continue,
    Decline,
    Deny,
    MetadataPatch,
    NextStep,
    PlanPatch,
    Question,
    Respond,
    Retry,
    Row,
    RunPatch,
    Skip,
    Stop,
)
from goliath_actors.values import FallbackRequest, Memory, Message, Plan

ROWS = list(HOOKS.values())
BOTH, CONDUCTOR, TOOLLOOP = {"Conductor", "ToolLoop"}, {"Conductor"}, {"ToolLoop"}

# Row by row what the design promises: fields of the question, answers, composition, leniency, who asks.
PROMISED: dict[str, tuple[str, tuple[type, ...], str, str | None, set[str]]] = {
    "before_run": ("ask instructions facts entry", (RunPatch, Stop, Respond), "merge", "skip", BOTH),
    "after_recall": ("memory", (Memory,), "chain", "skip", CONDUCTOR),
    "resolve_context": ("messages history thread", (Sequence,), "nest", None, TOOLLOOP),
    "before_plan": ("ask tools context_text steps attempt", (PlanPatch,), "merge", "skip", BOTH),
    "before_request": ("messages role attempt", (Sequence,), "chain", "skip", BOTH),
    "around_model": ("request attempt", (ModelResponse,), "nest", None, BOTH),
    "transform_stream": ("role", (), "pipe", None, BOTH),
    "after_response": ("role message error usage", (), "observe", None, BOTH),
    "after_plan": ("plan tools steps attempt", (Plan, Stop, Respond, Retry), "chain", "skip", BOTH),
    "before_tool": ("call_id tool input brief steps", (Mapping, Deny, Ask, Stop), "chain", "deny", BOTH),
    "around_tool": ("call_id tool input", (object,), "nest", None, BOTH),
    "after_tool": ("call_id tool input result outcome steps", (str,), "chain", "skip", BOTH),
    "after_tools": ("calls results", (), "observe", None, BOTH),
    "after_step": ("step is_final", (NextStep, Complete, Continue), "first", "skip", TOOLLOOP),
    "before_fallback": ("request", (FallbackRequest, Stop), "chain", "skip", CONDUCTOR),
    "after_answer": ("text handled_by best_effort steps", (str, Stop), "chain", "skip", BOTH),
    "before_append": ("message", (Message,), "chain", None, TOOLLOOP),
    "before_compact": ("range messages reason instructions", (Decline, str), "first", "skip", TOOLLOOP),
    "before_remember": ("memory exchange", (Memory, Skip), "chain", "skip", CONDUCTOR),
    "before_rewrite": ("kind changes", (MetadataPatch,), "merge", None, TOOLLOOP),
    "after_rewrite": ("kind changes", (), "observe", None, TOOLLOOP),
    "on_error": ("error origin steps trace", (), "observe", None, BOTH),
    "on_finish": ("outcome diagnostics", (), "observe", None, BOTH),
}


def test_the_table_has_every_row_in_the_order_in_which_a_run_can_ask_them() -> None:
    assert list(HOOKS) == list(PROMISED)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_is_what_was_promised(row: Row) -> None:
    fields, answers, composition, lenient, asked_by = PROMISED[row.name]
    public = [name for name in fields.split() if hasattr(row.question, name) or name in attrs.fields_dict(row.question)]
    assert public == fields.split()
    assert row.answers == answers
    assert row.composition.value == composition
    assert row.lenient == lenient
    assert row.asked_by == asked_by


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_has_what_its_composition_needs(row: Row) -> None:
    assert issubclass(row.question, Question)
    if row.composition is Composition.CHAIN:
        assert row.field is not None
        assert row.field in {field.alias for field in attrs.fields(row.question)}
    if row.composition is Composition.MERGE:
        assert row.merge is not None
    if row.composition is Composition.OBSERVE:
        assert row.answers == ()
        assert row.ends == ()
    assert set(row.ends) <= set(row.answers)
    assert row.shielded == (row.name in ("on_error", "on_finish"))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_extension_has_one_documented_method_a_row_with_the_rows_parameters(row: Row) -> None:
    method = getattr(Extension, row.name)
    assert method.__doc__
    parameters = inspect.signature(method).parameters
    names = list(parameters)
    # So that a user's own hook may call them what it likes, also in the eyes of a type checker.
    assert {parameter.kind for parameter in parameters.values()} == {inspect.Parameter.POSITIONAL_ONLY}
    if row.composition is Composition.NEST:
        assert names == ["self", "ctx", "question", "call_next"]
    elif row.composition is Composition.PIPE:
        assert names == ["self", "ctx", "events", "control"]
    else:
        assert names == ["self", "ctx", "question"]


def test_every_row_is_asked_by_a_run_that_is_cut_everywhere() -> None:
    from .test_cancel_everywhere import ASKED as PLANNED
    from .test_cancel_everywhere_toolloop import ASKED as NATIVE
    from .test_cancel_everywhere_toolloop import REWRITES

    # Rewrites are cut in a file of their own (`test_toolloop_rewrite.py`).
    assert {row.name for row in ROWS} - {*PLANNED, *NATIVE} == REWRITES


def test_every_verdict_is_an_answer_of_some_row() -> None:
    answers = {answer for row in ROWS for answer in row.answers}
    assert {Stop, Respond, Deny, Ask, Retry, Skip, Decline, NextStep, Complete, Continue} <= answers


def test_stop_is_honoured_in_exactly_five_rows() -> None:
    rows = [row.name for row in ROWS if Stop in row.answers]
    assert rows == ["before_run", "after_plan", "before_tool", "before_fallback", "after_answer"]


def test_an_extension_without_overrides_answers_nothing_anywhere() -> None:
    extension: Extension[Any] = Extension()
    for row in ROWS:
        arguments: list[Any] = [None] * (len(inspect.signature(getattr(extension, row.name)).parameters))
        assert getattr(extension, row.name)(*arguments) is None
