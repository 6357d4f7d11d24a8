"""The planned loop's model calls: planner, worker, answer. Each says what was wrong with a reply, and none decides.

What the provider's side cannot do ends the loop as `Escalated`; a reply that is no good is a `Malformed`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from ._budget import ContentBudgets, input_limit
from ._decisions import StreamVerdict
from ._json import parse_arguments, parse_reply
from ._judge import Escalated
from ._prompts import (
    Setting,
    answer_messages,
    arguments_messages,
    arguments_schema,
    plan_messages,
    plan_schema,
)
from ._provider import Failure, counting
from ._request import EMPTY_REPLY, Reply, Wanted, ask_model
from ._stream import Screen
from ._text import clip
from ._work import Route, Work
from .abc import ModelResponse
from .errors import ModelError, ToolInputError
from .tools import CheckedInput, Tool
from .values import Memory, Message, Plan

__all__ = ["CAPS", "Device", "Malformed", "Missing", "Replaced", "told"]

# Tokens of output by the label of the budget.
CAPS: Mapping[str, int] = {"conductor": 256, "worker": 512, "answer": 384, "scribe": 192}

INVALID_OUTPUT = "invalid-output"  # `ModelError.code` of an adapter whose provider could not keep to the schema
PROBLEM_CHARS = 300
MISSING_CHARS = 120


@attrs.frozen
class Malformed:
    """A reply that cannot be used, and why."""

    problem: str


@attrs.frozen
class Missing:
    """The worker could not fill in a required value. `input` is what it did fill in."""

    what: str
    input: Mapping[str, Any]


class Replaced(Exception):
    """A `transform_stream` ended the answer with a text of its own. Raised and caught by the planned loop only."""

    def __init__(self, verdict: StreamVerdict) -> None:
        self.verdict = verdict
        super().__init__(verdict.reason)


@attrs.define(eq=False)
class Device:
    """The run's own model, in its three roles."""

    work: Work
    setting: Setting
    screen: Screen
    strict: bool

    @classmethod
    def of(cls, work: Work, view: Memory, strict: bool) -> Device:
        """Gather what the prompts of a run share."""
        contributed = work.panel.instructions()
        setting = Setting(
            instructions="\n".join(part for part in (work.instructions, contributed) if part.strip()),
            facts=work.facts,
            examples=tuple(work.examples),
            messages=work.messages,
            ask=work.ask,
            memory=view,
            window=work.window,
            count=counting(work.counter),
            retrieved=ContentBudgets(work.window).retrieved,
            literal=frozenset(name for name, tool in work.tools.items() if tool.output_mode == "content"),
        )
        return cls(work, setting, Screen(work.journal), strict)

    async def _ask(
        self,
        role: str,
        label: str,
        render: Callable[[bool], tuple[Message, ...]],
        schema: Mapping[str, Any] | None,
        route: Route | None = None,
        compactable: bool = True,
    ) -> Reply | Malformed | StreamVerdict:
        """Make one request.

        Raises: `Escalated` for a provider failure; `GoliathBudgetError` where oversized prompts are an error (C4).
        """
        wanted = Wanted(
            role=role,
            label=label,
            render=render,
            limit=input_limit(self.work.window, CAPS[label]),
            output_cap=CAPS[label],
            route=route or Route.of(self.work),
            schema=schema,
            compactable=compactable,
        )
        self.work.journal.enter(role)
        result = await ask_model(self.work, wanted, self.screen)
        if isinstance(result, Failure):
            self.screen.retract()
            if isinstance(result.error, ModelError) and result.error.code == INVALID_OUTPUT:
                return Malformed(clip(result.detail, PROBLEM_CHARS))
            if isinstance(result.error, ModelError) and result.error.code == EMPTY_REPLY:
                return Reply(ModelResponse(Message("assistant")))  # blank, as from an adapter that lets it through
            if result.over_budget and self.strict:
                self.work.journal.blame(result.error, "budget")
                raise result.error
            raise Escalated(result.reason, result.detail)
        if isinstance(result, Reply) and result.cut_off and schema is not None:
            return Malformed("it was cut off because it was too long")
        return result

    # --- planner ----------------------------------------------------------------------------------------------------

    async def plan(
        self,
        tools: Sequence[Tool],
        *,
        context_text: str,
        max_steps: int,
        hint: str,
        extra: Sequence[Message],
        route: Route,
    ) -> Plan | Malformed:
        """Ask for the next step."""
        steps = self.work.journal.steps
        names = [tool.name for tool in tools]

        def render(compact: bool) -> tuple[Message, ...]:
            return plan_messages(
                self.setting,
                tools,
                steps,
                context_text=context_text,
                max_steps=max_steps,
                hint=hint,
                extra=extra,
                compact=compact,
            )

        reply = await self._ask("plan", "conductor", render, plan_schema(names), route)
        if isinstance(reply, Malformed):
            return reply
        assert isinstance(reply, Reply)
        return read_plan(reply.text, names)

    # --- worker -----------------------------------------------------------------------------------------------------

    async def arguments(self, tool: Tool, brief: str, hint: str = "") -> CheckedInput | Missing | Malformed:
        """Ask for the arguments of one tool and check them; a tool without parameters costs no call."""
        if tool.takes_no_input:
            return _checked(tool, {})
        steps = self.work.journal.steps

        def render(compact: bool) -> tuple[Message, ...]:
            return arguments_messages(self.setting, tool, brief, steps, hint=hint)

        schema = arguments_schema(tool.parameters)
        reply = await self._ask("arguments", "worker", render, schema, compactable=False)
        if isinstance(reply, Malformed):
            return reply
        assert isinstance(reply, Reply)
        try:
            # §P, as the native loop reads them. What was cut off did not come as far as here.
            confirms = tool.writes or bool(tool.confirm)
            parsed = parse_arguments(reply.text, no_parameters=False, confirms=confirms, reply=True)
        except ValueError as error:
            return Malformed(clip(str(error), PROBLEM_CHARS))
        data = dict(parsed.value)
        missing = data.pop("missing", None)
        if isinstance(missing, str) and missing.strip():
            return Missing(clip(missing.strip(), MISSING_CHARS), data)
        checked = _checked(tool, data)
        return checked if isinstance(checked, Malformed) else attrs.evolve(checked, repairs=parsed.repairs)

    # --- answer -----------------------------------------------------------------------------------------------------

    async def answer(self, *, unfinished: bool = False, retries: int, hook_retries: int) -> tuple[str, Any]:
        """Ask for the final text, and for the value in it if answers are structured.

        Arguments: `retries` after a blank or invalid reply, `hook_retries` after a rejected one.

        Raises: `Escalated` (`empty-answer`, `answer-invalid`, or a provider failure); `Replaced`.
        """
        output = self.work.output
        steps = self.work.journal.steps
        hint = ""

        def render(compact: bool) -> tuple[Message, ...]:
            return answer_messages(
                self.setting,
                steps,
                structured=output is not None,
                unfinished=unfinished,
                hint=hint,
                compact=compact,
            )

        while True:
            reply = await self._ask("answer", "answer", render, None if output is None else output.schema)
            if isinstance(reply, StreamVerdict):
                if reply.kind == "abort":
                    raise Replaced(reply)
                problem, reason = reply.text, "answer-invalid"
                hook_retries -= 1
                left = hook_retries
                hint = f"Your last reply was rejected: {reply.text}"
            else:
                found = _read_answer(reply, output)
                if not isinstance(found, Malformed):
                    return found
                problem, reason = found.problem, "empty-answer" if output is None else "answer-invalid"
                retries -= 1
                left = retries
                hint = f"Your last reply was not valid: {found.problem}. Reply again."
            if left < 0:
                self.screen.retract()
                raise Escalated(reason, clip(problem, PROBLEM_CHARS))
            self.screen.retract()


def _read_answer(reply: Reply | Malformed, output: Any) -> tuple[str, Any] | Malformed:
    if isinstance(reply, Malformed):
        return reply
    if output is None:
        return (reply.text, None) if reply.text.strip() else Malformed("it was empty")
    try:
        return reply.text, output.parse(reply.text)
    except ValueError as error:
        return Malformed(clip(str(error), PROBLEM_CHARS))


def _checked(tool: Tool, data: Mapping[str, Any]) -> CheckedInput | Malformed:
    try:
        return tool.check(data)
    except ToolInputError as error:
        return Malformed(clip(str(error), PROBLEM_CHARS))


# --- reading replies ------------------------------------------------------------------------------------------------


def read_plan(text: str, names: Sequence[str]) -> Plan | Malformed:
    """Return the plan in a planner's reply, or what is wrong with it."""
    try:
        data = parse_reply(text)
    except ValueError as error:
        return Malformed(clip(str(error), PROBLEM_CHARS))
    if not isinstance(data, dict):
        return Malformed("a JSON object is wanted")
    kind, tool, why, brief = (data.get(name) for name in ("kind", "tool", "why", "brief"))
    if kind not in ("tool", "answer", "escalate"):
        return Malformed('kind must be "tool", "answer" or "escalate"')
    if brief is not None and not isinstance(brief, str):
        return Malformed("brief must be a string")
    if kind == "tool" and (not isinstance(tool, str) or tool not in names):
        named = f"{clip(str(tool), 60)!r} is no tool" if tool else "kind is tool and no tool is named"
        return Malformed(f"{named}; the tools are {', '.join(names)}")
    return Plan(
        kind, brief or "", tool if kind == "tool" else None, why if isinstance(why, str) and why.strip() else None
    )


def told(problem: str, names: Sequence[str] = ()) -> str:
    """Return the hint that follows a reply that was no good."""
    allowed = f" The tools are: {', '.join(names)}." if names else ""
    return f"Your last reply was not valid: {problem.rstrip('.')}.{allowed} Reply again."
