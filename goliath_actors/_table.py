"""The hook table as data: one row a hook, and the six ways in which answers compose.

The dispatcher (`_panel.py`) knows compositions, never rows: everything else is read off `HOOKS`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import attrs

from ._answers import (
    check_append,
    check_context,
    check_input,
    check_memory,
    check_messages,
    check_metadata,
    check_plan,
    check_plan_patch,
    check_request,
    check_response,
    check_run_patch,
    check_text,
    either,
    merge_metadata,
    merge_plan_patch,
    merge_run_patch,
)
from ._questions import (
    AfterAnswer,
    AfterPlan,
    AfterRecall,
    AfterResponse,
    AfterRewrite,
    AfterStep,
    AfterTool,
    AfterTools,
    AroundModel,
    AroundTool,
    BeforeAppend,
    BeforeCompact,
    BeforeFallback,
    BeforePlan,
    BeforeRemember,
    BeforeRequest,
    BeforeRewrite,
    BeforeRun,
    BeforeTool,
    OnError,
    OnFinish,
    Question,
    ResolveContext,
    TransformStream,
)
from ._verdicts import (
    Ask,
    Complete,
    Continue,
    Decline,
    Deny,
    MetadataPatch,
    NextStep,
    PlanPatch,
    Respond,
    Retry,
    RunPatch,
    Skip,
    Stop,
)
from .abc import ModelResponse
from .values import FallbackRequest, Memory, Message, Plan

__all__ = ["HOOKS", "Composition", "Row"]


class Composition(enum.Enum):
    """How the answers of several extensions become one."""

    MERGE = "merge"
    CHAIN = "chain"
    FIRST = "first"
    NEST = "nest"
    PIPE = "pipe"
    OBSERVE = "observe"


@attrs.frozen
class Row:
    """One hook.

    `field` is the question's field that an answer replaces (chain); `merge` folds a patch into the question and gives
    the patch with only what may be applied (merge); `check` validates and converts one answer, raising `ValueError`
    or an error of its own; `ends` are the verdicts that end the row at once; `beats` the one that wins wherever it
    stands (first); `answers` what may be returned besides None and `words` that in words, where type names say too
    little; `asked_by` the loops that ask it; `lenient` what
    becomes of a lenient extension's failure; `shielded` rows run after the run's scope.
    """

    name: str
    when: str
    question: type[Question]
    answers: tuple[type, ...]
    composition: Composition
    asked_by: frozenset[str]
    lenient: Literal["skip", "deny"] | None = None
    field: str | None = None
    ends: tuple[type, ...] = ()
    beats: type | None = None
    # Any: each row's own question and answer types; the table's test pairs them up.
    check: Callable[[Any, Any], Any] | None = None
    merge: Callable[[Any, Any], tuple[Any, Any]] | None = None
    shielded: bool = False
    words: str = ""


_BOTH = frozenset({"Conductor", "ToolLoop"})
_CONDUCTOR = frozenset({"Conductor"})
_TOOLLOOP = frozenset({"ToolLoop"})
_MERGE, _CHAIN, _FIRST = Composition.MERGE, Composition.CHAIN, Composition.FIRST
_NEST, _PIPE, _OBSERVE = Composition.NEST, Composition.PIPE, Composition.OBSERVE

# fmt: off
_ROWS = (
    Row("before_run", "once a run, before recall", BeforeRun, (RunPatch, Stop, Respond), _MERGE, _BOTH, "skip",
        ends=(Stop, Respond), check=either(check_run_patch, Stop, Respond), merge=merge_run_patch),
    Row("after_recall", "memory loaded", AfterRecall, (Memory,), _CHAIN, _CONDUCTOR, "skip", "memory",
        check=check_memory, words="Memory, a view for this run"),
    Row("resolve_context", "each tool-loop step", ResolveContext, (Sequence,), _NEST, _TOOLLOOP,
        check=check_context, words="messages"),
    Row("before_plan", "each planning attempt or tool-loop step", BeforePlan, (PlanPatch,), _MERGE, _BOTH, "skip",
        check=check_plan_patch, merge=merge_plan_patch, words="PlanPatch (tools only narrow)"),
    Row("before_request", "each attempt of any model call", BeforeRequest, (Sequence,), _CHAIN, _BOTH, "skip",
        "messages", check=check_messages, words="messages, for this request only"),
    Row("around_model", "each attempt", AroundModel, (ModelResponse,), _NEST, _BOTH,
        check=check_response),
    Row("transform_stream", "each streamed response (Conductor: answers only)", TransformStream, (), _PIPE, _BOTH,
        words="events"),
    Row("after_response", "each terminal provider message, failed ones too", AfterResponse, (), _OBSERVE, _BOTH),
    Row("after_plan", "a valid plan or an assembled assistant message, before any gate", AfterPlan,
        (Plan, Stop, Respond, Retry), _CHAIN, _BOTH, "skip", "plan", ends=(Stop, Respond, Retry),
        check=either(check_plan, Stop, Respond, Retry)),
    Row("before_tool", "arguments valid, before cache, confirm and execution", BeforeTool, (Mapping, Deny, Ask, Stop),
        _CHAIN, _BOTH, "deny", "input", ends=(Deny, Stop), check=either(check_input, Deny, Ask, Stop),
        words="new input · Deny · Ask (the chain goes on) · Stop"),
    Row("around_tool", "each execution", AroundTool, (object,), _NEST, _BOTH, words="output"),
    Row("after_tool", "each tool attempt, whatever its outcome", AfterTool, (str,), _CHAIN, _BOTH, "skip", "result",
        words="text"),
    Row("after_tools", "a round's tools are all terminal", AfterTools, (), _OBSERVE, _BOTH),
    Row("after_step", "a tool-loop step is assembled, before its transition", AfterStep,
        (NextStep, Complete, Continue), _FIRST, _TOOLLOOP, "skip", beats=Complete),
    Row("before_fallback", "a fallback is really about to be called", BeforeFallback, (FallbackRequest, Stop), _CHAIN,
        _CONDUCTOR, "skip", "request", ends=(Stop,), check=either(check_request, Stop)),
    Row("after_answer", "a non-blank final answer", AfterAnswer, (str, Stop), _CHAIN, _BOTH, "skip", "text",
        ends=(Stop,), check=either(check_text, Stop), words="text · Stop"),
    Row("before_append", "a message is about to be stored", BeforeAppend, (Message,), _CHAIN, _TOOLLOOP, None,
        "message", check=check_append),
    Row("before_compact", "a range was chosen", BeforeCompact, (Decline, str), _FIRST, _TOOLLOOP, "skip",
        check=either(check_text, Decline), words="Decline · summary text"),
    Row("before_remember", "candidate memory", BeforeRemember, (Memory, Skip), _CHAIN, _CONDUCTOR, "skip", "memory",
        ends=(Skip,), check=either(check_memory, Skip)),
    Row("before_rewrite", "regenerate, retry or visibility change", BeforeRewrite, (MetadataPatch,), _MERGE, _TOOLLOOP,
        check=check_metadata, merge=merge_metadata, words="MetadataPatch, in the same commit"),
    Row("after_rewrite", "a rewrite was committed", AfterRewrite, (), _OBSERVE, _TOOLLOOP),
    Row("on_error", "the run failed or was aborted", OnError, (), _OBSERVE, _BOTH, shielded=True),
    Row("on_finish", "the run is over, any way", OnFinish, (), _OBSERVE, _BOTH, shielded=True),
)
# fmt: on

HOOKS: Mapping[str, Row] = {row.name: row for row in _ROWS}
"""The hook table: every row by its name, in the order in which a run can ask them."""
