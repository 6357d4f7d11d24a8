"""`Conductor`: the loop that plans one step at a time, for small context windows.

Read top to bottom it is one run: recall, route, plan, tool, …, answer or escalation, remembering.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, final

import attrs
import trio

from ._budget import input_limit
from ._call import Cached, Call
from ._callables import CALLBACKS, check_takes
from ._decisions import RunStopped, combine
from ._endings import Endings
from ._frozen import freeze
from ._judge import Escalated, find_identical, two_failures, unmet
from ._kept import forget_open_run, open_run, settle
from ._memory import recall
from ._roles import CAPS, Device, Malformed, Missing, Replaced, told
from ._session import Session, SessionFallback, check_int
from ._tools import dispatch, run_call
from ._work import Ending, Route, Work
from .errors import ConfigError, ToolFailure
from .events import PlanMade
from .hooks import AfterPlan, BeforePlan, PlanPatch, Respond, Retry, Stop
from .tools import CheckedInput, Tool
from .values import Plan, Responded

__all__ = ["Conductor", "SessionFallback", "check_window"]

Window: TypeAlias = "int | Callable[[], int | Awaitable[int]]"


@final
@attrs.frozen(kw_only=True)
class Conductor:
    """Plans one step at a time: plan, arguments, tool, and again, until there is an answer.

    Arguments:
      window: tokens of input and output together, or a callable (sync or async) that says so once a run.
      max_steps: tool and answer steps of a run; 0 escalates at once.
      plan_retries: how often, in each step, a plan that is no good is asked for again.
      argument_retries: the same for the arguments of each call.
      answer_retries: the same for a blank or, with `output=`, an invalid answer.
      hook_retries: how often, in each step, an extension may reject a plan or an answer.
      strict_budget: True makes a prompt that does not fit a `GoliathBudgetError`, False an escalation; None is True
        exactly for agents with extensions.
      save_best_effort: remember answers of runs that were not finished.
      session_fallback: when to stop asking a device that keeps failing; None: never.

    Raises: `ConfigError`.
    """

    window: Window = 4096
    max_steps: int = 5
    plan_retries: int = 1
    argument_retries: int = 1
    answer_retries: int = 1
    hook_retries: int = 2
    strict_budget: bool | None = None
    save_best_effort: bool = False
    session_fallback: SessionFallback | None = attrs.Factory(SessionFallback)

    def __attrs_post_init__(self) -> None:
        if callable(self.window):
            check_takes("Conductor(window=...)", self.window, *CALLBACKS["window"])
        else:
            check_window(self.window)
        for name in ("max_steps", "plan_retries", "argument_retries", "answer_retries", "hook_retries"):
            check_int(f"Conductor({name}=...)", getattr(self, name), 0)
        if self.strict_budget is not None and not isinstance(self.strict_budget, bool):
            raise ConfigError(f"Conductor(strict_budget=...) must be True, False or None, not {self.strict_budget!r}")
        if not isinstance(self.save_best_effort, bool):
            raise ConfigError(f"Conductor(save_best_effort=...) must be a bool, not {self.save_best_effort!r}")
        if self.session_fallback is not None and not isinstance(self.session_fallback, SessionFallback):
            raise ConfigError(
                "Conductor(session_fallback=...) must be a SessionFallback or None, "
                f"not {type(self.session_fallback).__name__}"
            )

    async def drive(self, work: Work, responded: tuple[Respond, Responded] | None = None) -> Ending:
        """Take a run from its ask to its end. As `Loop.drive`."""
        with work.journal.origin("config"):
            check_window(work.window)
        try:
            return await self._drive(work, responded)
        except RunStopped as stop:
            stopped = stop
        await forget_open_run(work)
        raise stopped

    async def _drive(self, work: Work, responded: tuple[Respond, Responded] | None) -> Ending:
        work.journal.enter("recall")
        view = await recall(work)
        device = Device.of(work, view, work.extended if self.strict_budget is None else self.strict_budget)
        session = Session(self.session_fallback, work, work.record.failures)
        endings = Endings(work, device, session, view, self.answer_retries, self.hook_retries, self.save_best_effort)
        if responded is not None:
            session.asks_device = False
            ending = await endings.finish(responded[0].text, brief=responded[0].reason, responded=responded[1])
        elif session.skips_device():
            session.asks_device = False
            ending = await endings.escalate("model-error", "session fallback")
        else:
            ending = await _Run(self, work, device, endings).go()
        await settle(work, session.failures())
        return ending


def check_window(window: object) -> None:
    """Refuse a window that has no room for the prompts of every role beside what is reserved for their replies.

    Raises: `ConfigError`.
    """
    check_int("Conductor(window=...)", window, 1)
    assert isinstance(window, int)
    short = [label for label, cap in CAPS.items() if input_limit(window, cap) <= 0]
    if short:
        raise ConfigError(
            f"a window of {window} tokens is too small for the loop's own reserves: no room is left for the prompts of "
            f"{', '.join(short)}; use at least {_least_window()}"
        )


def _least_window() -> int:
    window = 1
    while any(input_limit(window, cap) <= 0 for cap in CAPS.values()):
        window += 1
    return window


# --- one run --------------------------------------------------------------------------------------------------------


class _Answered(Exception):
    """`after_plan` answered in the model's place."""

    def __init__(self, respond: Respond, extension: str) -> None:
        self.respond = respond
        self.extension = extension
        super().__init__(respond.reason)


@attrs.define(eq=False)
class _Run:
    loop: Conductor
    work: Work
    device: Device
    endings: Endings
    # Failed reads that their tool allows to repeat (C12).
    repeatable: set[int] = attrs.Factory(set)

    async def go(self) -> Ending:
        """Plan and do until there is an answer, or another way out."""
        out: _Answered | Replaced | Escalated
        try:
            return await self._step_loop()
        except (_Answered, Replaced, Escalated) as way:
            out = way.with_traceback(None)  # it would know this frame, which keeps it
        # Why out here: what an application raises from now on must not carry our own signal as its context.
        if isinstance(out, _Answered):
            respond = out.respond
            who = Responded(out.extension, "after_plan", respond.reason, respond.outcome)
            return await self.endings.finish(respond.text, brief=respond.reason, responded=who)
        if isinstance(out, Replaced):
            return await self.endings.replaced(out)
        return await self.endings.escalate(out.reason, out.detail)

    # --- steps ------------------------------------------------------------------------------------------------------

    async def _step_loop(self) -> Ending:
        """Plan and do, a step at a time, until there is an answer.

        Raises: `Escalated`, `Replaced`, `_Answered`: the other ways out.
        """
        work, loop = self.work, self.loop
        while True:
            await trio.lowlevel.checkpoint_if_cancelled()
            steps = work.journal.steps
            if len(steps) >= loop.max_steps:
                raise Escalated("too-many-steps", f"{len(steps)} steps were taken")
            plan = await self._next_plan()
            self._tell(plan)
            if plan.kind == "escalate":
                raise Escalated("conductor-asked", plan.brief or plan.why)
            if plan.kind == "answer":
                text, output = await self.device.answer(retries=loop.answer_retries, hook_retries=loop.hook_retries)
                return await self.endings.finish(text, output=output, brief=plan.brief)
            await self._tool_step(plan)
            steps = work.journal.steps
            if two_failures(steps):
                raise Escalated("tool-error", steps[-1].result)

    def _tell(self, plan: Plan) -> None:
        index = len(self.work.journal.steps)
        self.work.journal.emit(
            PlanMade, index=index, plan_kind=plan.kind, tool=plan.tool, why=plan.why, brief=plan.brief
        )

    async def _next_plan(self) -> Plan:
        """Return a valid plan that the hooks let stand, asking again within the budgets of this step (C3, C5, H8)."""
        plans, rejections = self.loop.plan_retries, self.loop.hook_retries
        hint, attempt, knows_order = "", 0, False
        while True:
            await trio.lowlevel.checkpoint_if_cancelled()
            tools, plan = await self._draft(attempt, hint)
            attempt += 1
            if isinstance(plan, Malformed):
                if plans == 0:
                    raise Escalated("plan-invalid", plan.problem)
                plans -= 1
                hint = told(plan.problem, [tool.name for tool in tools])
                continue
            reviewed = await self._review(plan, tools, attempt - 1)
            if isinstance(reviewed, Retry):
                if rejections == 0:
                    raise Escalated("plan-invalid", reviewed.feedback)
                rejections -= 1
                hint = f"Your last plan was rejected: {reviewed.feedback}"
                continue
            needs = self._unmet(reviewed)
            if not needs:
                return reviewed
            order = f"{reviewed.tool} needs a result of {', '.join(needs)} first"
            if plans == 0 or knows_order:
                self._tell(reviewed)
                raise Escalated("tool-prerequisite-missing", order)
            plans, knows_order = plans - 1, True
            hint = told(order)

    async def _draft(self, attempt: int, hint: str) -> tuple[list[Tool], Plan | Malformed]:
        """Ask `before_plan`, then the planner; without any tool there is nothing to plan."""
        work = self.work
        descriptors = tuple(tool.descriptor for tool in work.tools.values())
        question = BeforePlan(work.ask, descriptors, "", work.journal.steps, attempt, work.known)
        patches: Sequence[PlanPatch] = ()
        if work.panel.hears("before_plan"):
            decision = await work.panel.decide("before_plan", question)
            question, patches = decision.question, decision.patches
        tools = [work.tools[descriptor.name] for descriptor in question.tools]
        if not tools:
            return tools, Plan("answer", "reply")
        patch = combine(patches)
        plan = await self.device.plan(
            tools,
            context_text=question.context_text,
            max_steps=self.loop.max_steps,
            hint=hint,
            extra=patch.messages or (),
            route=Route.of(work).patched(patch),
        )
        return tools, plan

    async def _review(self, plan: Plan, tools: Sequence[Tool], attempt: int) -> Plan | Retry:
        work = self.work
        if not work.panel.hears("after_plan"):
            return plan
        descriptors = tuple(tool.descriptor for tool in tools)
        question = AfterPlan(plan, descriptors, work.journal.steps, attempt)
        decision = await work.panel.decide("after_plan", question)
        verdict = decision.verdict
        if isinstance(verdict, Stop):
            raise work.panel.stop("after_plan", decision)
        if isinstance(verdict, Respond):
            raise _Answered(verdict, decision.extension)
        if isinstance(verdict, Retry):
            return verdict
        reviewed: Plan = decision.question.plan
        return reviewed

    def _unmet(self, plan: Plan) -> list[str]:
        if plan.kind != "tool" or plan.tool is None:
            return []
        return unmet(self.work.tools[plan.tool], self.work.journal.steps)

    async def _tool_step(self, plan: Plan) -> None:
        work = self.work
        assert plan.tool is not None
        tool = work.tools[plan.tool]
        found = await self._arguments(tool, plan.brief)
        call_id = f"{work.journal.run_id}.{len(work.journal.steps) + 1}"
        if isinstance(found, Missing):
            checked = CheckedInput(data=freeze(found.input), kwargs={})
            call = Call(call_id, tool, plan.brief, checked, self.endings.view.recent)
            call.skip("missing", f"Not done: {found.what} is not known. Ask the user for it, or use another tool.")
            await dispatch(work, call)
            return
        call = Call(call_id, tool, plan.brief, found, self.endings.view.recent, repairs=found.repairs)
        await run_call(work, call, duplicate=self._identical, before_write=open_run)
        if call.invalid is not None:
            raise Escalated("tool-args-invalid", call.invalid)
        assert call.outcome is not None
        error = call.outcome.error
        if not tool.writes and isinstance(error, ToolFailure) and error.retryable and call.index is not None:
            self.repeatable.add(call.index)

    async def _arguments(self, tool: Tool, brief: str) -> CheckedInput | Missing:
        retries = 0 if tool.takes_no_input else self.loop.argument_retries
        hint = ""
        while True:
            found = await self.device.arguments(tool, brief, hint)
            if not isinstance(found, Malformed):
                return found
            if retries == 0:
                raise Escalated("tool-args-invalid", found.problem)
            retries -= 1
            hint = told(found.problem)

    def _identical(self, call: Call) -> Cached | None:
        return find_identical(call.tool, call.input, self.work.journal.steps, self.repeatable)
