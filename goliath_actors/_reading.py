"""What a model wrote as a call becomes a call on its way: its tool found, its arguments read, or what is wrong with it.

Nothing is guessed (T4): what is wrong becomes words for the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NoReturn

from ._call import Call, decline
from ._callables import alone, below
from ._composition import tool_name
from ._frozen import FrozenDict, freeze, thaw
from ._judge import unmet
from ._provider import describe
from ._waiting import WaitingCall
from ._work import Work
from .errors import ConfigError, ToolFailure, ToolInputError
from .events import Confirm
from .tools import CheckedInput, Confirmed, Tool, ToolOutcome
from .values import ToolCall

__all__ = ["UNREAD", "dismissed_call", "explained", "fail", "read_call", "resumed_call"]

UNREAD = CheckedInput(FrozenDict(), {})  # of a call whose arguments could not be read, or were not


def read_call(work: Work, made: ToolCall, offered: Mapping[str, Tool], refusal: str | None) -> Call:
    """Make of what a model wrote a call that can go through the gate, or one that says what is wrong with it."""
    tool = offered.get(made.name)
    if tool is None:
        call = _call(work, made, _no_tool(made.name), UNREAD)
        names = ", ".join(offered) or "none"
        call.skip_reason = None
        fail(call, ToolInputError(made.name, (f"there is no tool of this name; the tools are: {names}",)))
        call.result = f"There is no tool named {tool_name(made.name)!r}. The tools are: {names}."
        return call
    confirms = tool.writes or bool(tool.confirm)
    problem: ToolInputError | None = None
    checked = UNREAD
    try:
        if refusal is None:
            checked = alone(partial(tool.read, made.arguments, confirms=confirms))
    except ToolInputError as error:
        problem = below(error)
    call = _call(work, made, tool, checked)
    if refusal is not None:
        call.outcome = ToolOutcome("failed", error=ToolInputError(tool.name, (refusal,)))
        call.result = refusal
    elif problem is not None:
        fail(call, problem)
    elif needs := unmet(tool, work.journal.steps):
        call.skip("missing", f"Not done: {tool.name} needs a result of {', '.join(needs)} first.")
    return call


def _call(work: Work, made: ToolCall, tool: Tool, checked: CheckedInput) -> Call:
    call = Call(made.id, tool, "", checked)
    call.explain = partial(explained, work)
    call.repairs, call.written = checked.repairs, checked.data
    return call


def fail(call: Call, error: ToolInputError) -> None:
    """Decide that a call is not executed, since its input is wrong."""
    call.outcome = ToolOutcome("failed", error=error)
    call.result = f"Not executed: {error}"


def _no_tool(name: str) -> Tool:
    """Return what stands for a tool that does not exist, in the step log and for hooks."""
    return Tool(name=tool_name(name), description="Not a tool of this agent.", execute=_never)


def _never(input: object) -> NoReturn:
    raise AssertionError("unreachable: a call of an unknown tool has an outcome from the start")


def resumed_call(work: Work, one: WaitingCall, answer: Any) -> Call:
    """Make of a call that has waited one that goes on with the answer to it.

    Raises: `ConfigError` for an answer to an approval that is none.
    """
    tool = work.tools.get(one.tool)
    if tool is None:
        call = _call(work, ToolCall(one.call_id, one.tool), _no_tool(one.tool), UNREAD)
        fail(call, ToolInputError(one.tool, ("there is no tool of this name any more",)))
        return call
    checked, problem = CheckedInput(freeze(one.input), {}), ""
    try:
        checked = tool.check(thaw(one.input))
        if checked.data != one.input:  # invariant 10: what was approved is what is executed
            problem = "they would not be what was approved any more"
    except ToolInputError as error:
        problem = "; ".join(error.problems)
    call = _call(work, ToolCall(one.call_id, one.tool), tool, checked)
    call.passed, call.answers, call.asked = True, one.answers, one.payload
    if problem:
        fail(call, ToolInputError(tool.name, (problem,)))
    elif one.kind == "question":
        call.answers = (*one.answers, answer)
    else:
        _approve(work, call, answer)
    return call


def dismissed_call(work: Work, one: WaitingCall) -> Call:
    """Make of a call that is to wait no longer one that is over: a tool that asks a question has begun."""
    tool = work.tools.get(one.tool) or _no_tool(one.tool)
    call = _call(work, ToolCall(one.call_id, one.tool), tool, CheckedInput(freeze(one.input), {}))
    asks = one.kind == "question"
    call.outcome = ToolOutcome("unknown") if asks else ToolOutcome("skipped", reason="confirmation")
    return call


def _approve(work: Work, call: Call, answer: Any) -> None:
    reason = ""
    if isinstance(answer, Confirmed):
        answer, reason = answer.approved, answer.reason
    if not isinstance(answer, bool):
        raise ConfigError(f"the answer to an approval must be a bool or a Confirmed, not {answer!r}")
    work.journal.emit(Confirm, tool=call.tool.name, approved=answer, reason=reason or None)
    if not answer:
        decline(call, reason)


def explained(work: Work, call: Call, error: Exception) -> str:
    """T5: the model is told a tool's own words, and of anything else only that it happened, under an id."""
    if isinstance(error, ToolFailure):
        return error.text if error.text.strip() else f"{call.tool.name} failed and did not say why."
    call.reported = describe(error)
    where = f"{work.journal.run_id}/{call.call_id}"
    return f"{call.tool.name} failed with an internal error ({type(error).__name__}, error id {where})."
