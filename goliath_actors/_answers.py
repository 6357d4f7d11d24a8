"""What hooks answer, checked before it is used, and patches folded into their questions: one function a kind of answer.

The hook table names them. A check gets the question and the answer, and returns what is used in its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from ._questions import (
    AfterPlan,
    BeforeAppend,
    BeforeFallback,
    BeforePlan,
    BeforeRewrite,
    BeforeRun,
    BeforeTool,
)
from ._verdicts import (
    MetadataPatch,
    PlanPatch,
    RunPatch,
)
from .abc import ModelResponse
from .values import Exchange, FallbackRequest, Memory, Message, Plan, Step, ToolCall, Usage

__all__ = [
    "check_append",
    "check_context",
    "check_input",
    "check_memory",
    "check_messages",
    "check_metadata",
    "check_plan",
    "check_plan_patch",
    "check_request",
    "check_response",
    "check_run_patch",
    "check_text",
    "either",
    "merge_metadata",
    "merge_plan_patch",
    "merge_run_patch",
]


def _need(what: str, value: object, kinds: type | tuple[type, ...], *fields: str) -> None:
    """Refuse an answered value one of whose fields is of a wrong kind: it would fail far from the hook that made it."""
    for name in fields:
        item = getattr(value, name)
        if not isinstance(item, kinds) or (isinstance(item, bool) and kinds is not bool):
            raise ValueError(f"{what}.{name} is of type {type(item).__name__}")


def check_text(question: object, answer: str) -> str:
    """Refuse a blank text."""
    if not answer.strip():
        raise ValueError("the text is blank")
    return answer


def check_messages(question: object, answer: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages as a tuple; refuse anything else in the list, and an empty one."""
    messages = tuple(answer)
    for message in messages:
        if not isinstance(message, Message):
            raise ValueError(f"a list of Message is wanted, it holds {type(message).__name__}")
        _check_message(message)
    if not messages:
        raise ValueError("the list of messages is empty")
    return messages


def _check_message(message: Message) -> None:
    if message.role not in ("system", "user", "assistant", "tool"):
        raise ValueError(f"message.role is {message.role!r}, which is none")
    _need("message", message, str, "text")
    _need("message", message, (str, type(None)), "tool_call_id", "name")
    _check_calls("message.tool_calls", message.tool_calls)


def _check_calls(what: str, calls: Sequence[ToolCall]) -> None:
    for call in calls:
        if not isinstance(call, ToolCall):
            raise TypeError(f"{what} holds ToolCall only, not {type(call).__name__}")
        _need("call", call, str, "id", "name", "arguments")


def check_response(question: object, answer: ModelResponse) -> ModelResponse:
    """Refuse a response that could be neither shown nor stored."""
    if not isinstance(answer.message, Message):
        raise ValueError(f"response.message must be a Message, not {type(answer.message).__name__}")
    _check_message(answer.message)
    _need("response", answer, str, "finish_reason")
    _need("response", answer, (Usage, type(None)), "usage")
    if answer.usage is not None:
        _need("usage", answer.usage, int, "input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens")
    return answer


def check_context(question: Any, answer: Sequence[Message]) -> tuple[Message, ...]:
    """As `check_messages`; nothing is enough where messages of this run alone come behind it."""
    return () if question._overlaid and not answer else check_messages(question, answer)


def either(check: Callable[[Any, Any], Any], *verdicts: type) -> Callable[[Any, Any], Any]:
    """Return a check that lets these verdicts through and puts anything else to `check`."""

    def run(question: Any, answer: Any) -> Any:
        return answer if isinstance(answer, verdicts) else check(question, answer)

    return run


def _strings(name: str, value: Mapping[Any, Any]) -> dict[str, str]:
    for key, item in value.items():
        if not isinstance(key, str) or not isinstance(item, str):
            raise ValueError(f"{name} must map strings to strings, not {key!r} to {type(item).__name__}")
    return dict(value)


def _patch_fields(patch: RunPatch | PlanPatch, known: frozenset[str]) -> None:
    if patch.messages is not None:
        check_messages(None, patch.messages)
    if patch.tools is not None and (
        isinstance(patch.tools, str) or any(not isinstance(name, str) for name in patch.tools)
    ):
        raise ValueError("tools must be a list of tool names")
    if patch.tools is not None and (unknown := sorted(set(patch.tools) - known)):
        raise ValueError(f"no tool of this agent is called {', '.join(map(repr, unknown))}")
    for name in ("settings", "provider_options"):
        value = getattr(patch, name)
        if value is not None and not isinstance(value, Mapping):
            raise ValueError(f"{name} must be a mapping, not {type(value).__name__}")
    if patch.model is not None and not callable(getattr(patch.model, "stream", None)):
        raise ValueError(f"model must be a Model, not {type(patch.model).__name__}")


def check_run_patch(question: BeforeRun, answer: RunPatch) -> RunPatch:
    """Refuse a patch one of whose fields is of a wrong kind, or names a tool that there is not."""
    if answer.ask is not None and (not isinstance(answer.ask, str) or not answer.ask.strip()):
        raise ValueError("ask must be a string with text in it")
    if answer.instructions is not None and not isinstance(answer.instructions, str):
        raise ValueError("instructions must be a string")
    if answer.facts is not None:
        if not isinstance(answer.facts, Mapping):
            raise ValueError("facts must be a mapping")
        _strings("facts", answer.facts)
    _patch_fields(answer, question._known)
    return answer


def merge_run_patch(question: BeforeRun, patch: RunPatch) -> tuple[BeforeRun, RunPatch]:
    """Apply a patch to the question that later hooks see; facts by key."""
    merged = BeforeRun(
        ask=question.ask if patch.ask is None else patch.ask,
        instructions=question.instructions if patch.instructions is None else patch.instructions,
        facts=question._facts if patch.facts is None else {**question._facts, **patch.facts},
        entry=question.entry,
        known=question._known,
    )
    return merged, patch


def check_plan_patch(question: BeforePlan, answer: PlanPatch) -> PlanPatch:
    """Refuse a patch one of whose fields is of a wrong kind, or names a tool that there is not."""
    if answer.context_text is not None and not isinstance(answer.context_text, str):
        raise ValueError("context_text must be a string")
    _patch_fields(answer, question._known)
    return answer


def merge_plan_patch(question: BeforePlan, patch: PlanPatch) -> tuple[BeforePlan, PlanPatch]:
    """Apply a patch to the question that later hooks see; tools only narrow (H9)."""
    tools = question.tools
    if patch.tools is not None:
        wanted = set(patch.tools)
        tools = tuple(tool for tool in tools if tool.name in wanted)
    context_text = question.context_text if patch.context_text is None else patch.context_text
    return attrs.evolve(question, tools=tools, context_text=context_text), patch


def check_plan(question: AfterPlan, answer: Plan) -> Plan:
    """Refuse a plan that its loop could not follow."""
    names = {tool.name for tool in question.tools}
    _need("plan", answer, str, "brief", "text")
    _need("plan", answer, (str, type(None)), "tool", "why")
    _check_calls("plan.calls", answer.calls)
    if question._native:
        return _check_native_plan(question, answer, names)
    if answer.kind not in ("tool", "answer", "escalate"):
        raise ValueError(f"a Conductor's plan is 'tool', 'answer' or 'escalate', not {answer.kind!r}")
    if answer.calls or answer.text:
        raise ValueError("a Conductor's plan has neither calls nor a text; to answer in its place return Respond(text)")
    if answer.kind == "tool" and answer.tool not in names:
        known = ", ".join(sorted(names)) or "none"
        raise ValueError(f"the plan names {answer.tool!r}, which is not available (available: {known})")
    return answer


def _check_native_plan(question: AfterPlan, answer: Plan, names: set[str]) -> Plan:
    if answer.kind not in ("tools", "answer"):
        raise ValueError(f"a plan of the native tool loop is 'tools' or 'answer', not {answer.kind!r}")
    if answer.kind == "tools" and not answer.calls:
        raise ValueError("a plan of kind 'tools' needs calls")
    if answer.kind == "answer" and (answer.calls or not answer.text.strip()):
        raise ValueError("a plan of kind 'answer' needs a text and no calls")
    # What the model made up is the model's to be told; a hook may not make up more.
    known = names | {call.name for call in question.plan.calls}
    for call in answer.calls:
        if call.name not in known:
            raise ValueError(f"the plan calls {call.name!r}, which is not available")
    return answer


def check_append(question: BeforeAppend, answer: Message) -> Message:
    """Refuse a message that is no rewording of the one that is about to be stored."""
    old = question.message
    _check_message(answer)
    if (answer.role, answer.tool_call_id) != (old.role, old.tool_call_id):
        raise ValueError("the role and the call id of a message must stay as they are")
    if answer.tool_calls != old.tool_calls:
        raise ValueError("the calls of a message must stay as they are; change them in after_plan")
    if not answer.text.strip() and old.text.strip():
        raise ValueError("the text is blank")
    return answer


def check_input(question: BeforeTool, answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return replaced input as the tool's own schema coerces it."""
    if question._check is None:
        return dict(answer)
    return question._check(answer)


def check_memory(question: object, answer: Memory) -> Memory:
    """Refuse a memory that could not be stored."""
    if not isinstance(answer.summary, str):
        raise ValueError(f"a memory's summary must be a string, not {type(answer.summary).__name__}")
    for exchange in answer.recent:
        if not isinstance(exchange, Exchange):
            raise ValueError(f"a memory's recent must hold exchanges, not {type(exchange).__name__}")
        _check_exchange("memory.recent", exchange)
    return answer


def _check_exchange(what: str, exchange: Exchange) -> None:
    _need(what, exchange, str, "ask", "answer")
    _need(what, exchange, (int, float), "at")
    if not math.isfinite(exchange.at):
        raise ValueError(f"{what}.at is {exchange.at}; use seconds since the epoch")
    _check_steps(what, exchange.steps)


def _check_steps(what: str, steps: Sequence[Step]) -> None:
    for step in steps:
        if not isinstance(step, Step):
            raise ValueError(f"{what}.steps must hold steps, not {type(step).__name__}")


def check_request(question: BeforeFallback, answer: FallbackRequest) -> FallbackRequest:
    """Refuse a fallback request with another reason, or with fields of a wrong kind."""
    if answer.reason != question.request.reason:
        raise ValueError(f"the reason must stay {question.request.reason!r}")
    _need("request", answer, str, "ask", "summary")
    _need("request", answer, (str, type(None)), "error")
    for exchange in answer.recent:
        if not isinstance(exchange, Exchange):
            raise ValueError(f"request.recent must hold exchanges, not {type(exchange).__name__}")
        _check_exchange("request.recent", exchange)
    _check_steps("request", answer.steps)
    return answer


def check_metadata(question: object, answer: MetadataPatch) -> MetadataPatch:
    """Refuse a patch whose fields are no mappings; what is in them is the store's to refuse."""
    for name in ("metadata", "private"):
        value = getattr(answer, name)
        if value is not None and not isinstance(value, Mapping):
            raise ValueError(f"{name} must be a mapping, not {type(value).__name__}")
    return answer


def merge_metadata(question: BeforeRewrite, patch: MetadataPatch) -> tuple[BeforeRewrite, MetadataPatch]:
    """Leave the question as it is: the patch is for the commit."""
    return question, patch
