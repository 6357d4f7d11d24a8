"""`Conductor`: the loop that plans one step at a time, for small context windows.

Floor 4. Read top to bottom it is one run: recall, route, plan, tool, …, answer or escalation, remembering.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, final

import attrs
import trio

from ._budget import input_limit
from ._frozen import freeze
from ._judge import Escalated, find_identical, two_failures, unmet
from ._memory import forget_open_run, kept_steps, open_run, recall, remember, settle
from ._panel import RunStopped, combine
from ._request import Route
from ._roles import CAPS, Device, Malformed, Missing, Replaced, told
from ._tools import Cached, Call, dispatch, run_call
from ._work import Ending, Work
from .errors import ConfigError, FallbackError, ToolFailure
from .events import Answer, Escalate, PlanMade
from .hooks import AfterAnswer, AfterPlan, BeforeFallback, BeforePlan, PlanPatch, Respond, Retry, Stop
from .tools import CheckedInput, Tool
from .values import FallbackAnswer, FallbackRequest, Memory, Plan, Responded, Step

__all__ = ["Conductor", "FallbackContext", "SessionFallback"]

Window: TypeAlias = "int | Callable[[], int | Awaitable[int]]"

# Reasons for which a best-effort answer makes no sense: the device that would give it is what failed.
NO_BEST_EFFORT = frozenset({"model-error", "model-unavailable", "context-budget", "answer-invalid"})
# Reasons after which the device is not asked to summarise either.
DEVICE_FAILED = frozenset({"model-error", "model-unavailable", "context-budget"})
# Reasons that count towards a session fallback (C7).
COUNTED = frozenset({"model-error", "model-unavailable"})


# --- configuration --------------------------------------------------------------------------------------------------


@final
@attrs.frozen(kw_only=True)
class SessionFallback:
    """When a conversation stops asking a device that keeps failing.

    Arguments:
      after: runs in a row whose model failed before the fallback is asked at once.
      probe_every: seconds after which one run is let through to the device again; when it succeeds, all are.

    Raises: `ConfigError`.
    """

    after: int = 3
    probe_every: float = 300.0

    def __attrs_post_init__(self) -> None:
        _check_int("SessionFallback(after=...)", self.after, 1)
        seconds = self.probe_every
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
            raise ConfigError(
                f"SessionFallback(probe_every=...) must be a number of seconds, 0 or more, not {seconds!r}"
            )


def _check_int(what: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        kind = "a positive integer" if least == 1 else f"an integer of at least {least}"
        raise ConfigError(f"{what} must be {kind}, not {value!r}")


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
        if not callable(self.window):
            check_window(self.window)
        for name in ("max_steps", "plan_retries", "argument_retries", "answer_retries", "hook_retries"):
            _check_int(f"Conductor({name}=...)", getattr(self, name), 0)
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
        check_window(work.window)
        run = _Run(self, work)
        try:
            return await run.go(responded)
        except RunStopped:
            await forget_open_run(work)
            raise


def check_window(window: object) -> None:
    """Refuse a window that has no room for the prompts of every role beside what is reserved for their replies.

    Raises: `ConfigError`.
    """
    _check_int("Conductor(window=...)", window, 1)
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


@attrs.frozen
class FallbackContext:
    """What a fallback gets as its second parameter, if it takes one."""

    run_id: str
    conversation_id: str | None
    context: Any


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
    view: Memory = Memory()  # noqa: RUF009  # frozen, so it can be shared
    device: Device = attrs.field(init=False)
    # The first escalation reason is the result's (C11).
    reason: str | None = None
    counted: bool = False
    # False: this run says nothing about the device (session fallback, or an extension answered).
    asks_device: bool = True
    # The counter as it was recalled: saving it changes the record, and must not count twice.
    failures_before: int = 0
    # Failed reads that their tool allows to repeat (C12).
    repeatable: set[int] = attrs.Factory(set)

    # --- top --------------------------------------------------------------------------------------------------------

    async def go(self, responded: tuple[Respond, Responded] | None) -> Ending:
        work, loop = self.work, self.loop
        work.journal.enter("recall")
        self.view = await recall(work)
        self.failures_before = work.record.failures
        self.device = Device.of(work, self.view, work.extended if loop.strict_budget is None else loop.strict_budget)
        ending = await self._answer(responded)
        await settle(work, self._failures())
        return ending

    async def _answer(self, responded: tuple[Respond, Responded] | None) -> Ending:
        if responded is not None:
            self.asks_device = False
            return await self._finish(responded[0].text, brief=responded[0].reason, responded=responded[1])
        if self._skips_device():
            self.asks_device = False
            return await self._escalate("model-error", "session fallback")
        out: _Answered | Replaced | Escalated
        try:
            return await self._step_loop()
        except (_Answered, Replaced, Escalated) as way:
            out = way
        # Why out here: what an application raises from now on must not carry our own signal as its context.
        if isinstance(out, _Answered):
            respond = out.respond
            who = Responded(out.extension, "after_plan", respond.reason, respond.outcome)
            return await self._finish(respond.text, brief=respond.reason, responded=who)
        if isinstance(out, Replaced):
            return await self._replaced(out)
        return await self._escalate(out.reason, out.detail)

    def _skips_device(self) -> bool:
        """C7: decide the route from the record, and let a probe through when it is time."""
        session, health = self.loop.session_fallback, self.work.health
        if session is None or self.work.fallback is None or self.failures_before < session.after:
            return False
        now = trio.current_time()
        if health.probed_at is None or now - health.probed_at >= session.probe_every:
            health.probed_at = now
            return False
        return True

    def _failures(self) -> int | None:
        """Return the conversation's counter after this run, None if the run says nothing about the device."""
        session = self.loop.session_fallback
        if session is None or not self.asks_device:
            return None
        if not self.counted:
            return 0
        failures = self.failures_before + 1
        if failures >= session.after:
            self.work.health.probed_at = trio.current_time()
        return failures

    # --- steps ------------------------------------------------------------------------------------------------------

    async def _step_loop(self) -> Ending:
        """Plan and do, a step at a time, until there is an answer.

        Raises: `Escalated`, `Replaced`, `_Answered`: the other ways out.
        """
        work, loop = self.work, self.loop
        steps = work.journal.steps
        while True:
            await trio.lowlevel.checkpoint_if_cancelled()
            if len(steps) >= loop.max_steps:
                raise Escalated("too-many-steps", f"{len(steps)} steps were taken")
            plan = await self._next_plan()
            self._tell(plan)
            if plan.kind == "escalate":
                raise Escalated("conductor-asked", plan.brief or plan.why)
            if plan.kind == "answer":
                text, output = await self.device.answer(retries=loop.answer_retries, hook_retries=loop.hook_retries)
                return await self._finish(text, output=output, brief=plan.brief)
            await self._tool_step(plan)
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
        question = BeforePlan(work.ask, descriptors, "", tuple(work.journal.steps), attempt, work.known)
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
        question = AfterPlan(plan, descriptors, tuple(work.journal.steps), attempt)
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
            call = Call(call_id, tool, plan.brief, checked, self.view.recent)
            call.skip("missing", f"Not done: {found.what} is not known. Ask the user for it, or use another tool.")
            await dispatch(work, call)
            return
        call = Call(call_id, tool, plan.brief, found, self.view.recent)
        await run_call(work, call, duplicate=self._identical, before_write=self._before_write)
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

    async def _before_write(self, work: Work, step: Step) -> None:
        await open_run(work, step)

    # --- ways to an end ---------------------------------------------------------------------------------------------

    async def _escalate(self, reason: str, detail: str | None) -> Ending:
        """Give up on the device: hand over to the fallback, say the best that can be said, or end without a text."""
        work = self.work
        self.reason = reason
        self.counted = reason in COUNTED
        work.journal.emit(Escalate, reason=reason, error=detail)
        if reason == "guardrail":  # a refusal stays on the device (C9)
            return Ending("", reason=reason)
        if work.fallback is not None:
            return await self._fall_back(work.fallback, reason, detail)
        if reason in NO_BEST_EFFORT:
            return Ending("", reason=reason)
        return await self._best_effort()

    async def _best_effort(self) -> Ending:
        work, loop = self.work, self.loop
        text, output, replaced = "", None, None
        try:
            text, output = await self.device.answer(
                unfinished=True,
                retries=0 if work.output is None else loop.answer_retries,
                hook_retries=loop.hook_retries,
            )
        except Replaced as verdict:
            replaced = verdict
        except Escalated as again:
            if again.reason in ("guardrail", "answer-invalid"):
                work.journal.emit(Escalate, reason=again.reason, error=again.detail)
        if replaced is not None:
            return await self._replaced(replaced)
        if not text:
            return Ending("", reason=self.reason, best_effort=True)
        return await self._finish(text, output=output, best_effort=True, persist=loop.save_best_effort)

    async def _fall_back(self, fallback: Callable[..., Any], reason: str, detail: str | None) -> Ending:
        work = self.work
        journal = work.journal
        request = FallbackRequest(
            work.ask, self.view.summary, self.view.recent, kept_steps(journal.steps), reason, detail
        )
        if work.panel.hears("before_fallback"):
            decision = await work.panel.decide("before_fallback", BeforeFallback(request))
            if isinstance(decision.verdict, Stop):
                raise work.panel.stop("before_fallback", decision)
            request = decision.question.request
        await trio.lowlevel.checkpoint_if_cancelled()
        journal.enter("fallback")
        journal.handled_by = "cloud"
        with journal.origin("fallback"):
            text = await self._ask_fallback(fallback, request)
        return await self._finish(text, device_failed=reason in DEVICE_FAILED)

    async def _ask_fallback(self, fallback: Callable[..., Any], request: FallbackRequest) -> str:
        journal = self.work.journal
        about = FallbackContext(journal.run_id, journal.conversation_id, self.work.context)
        args, kwargs = _with_context(fallback, request, about)
        answer: Any = fallback(*args, **kwargs)
        if inspect.isawaitable(answer):
            answer = await answer
        text: Any = answer.text if isinstance(answer, FallbackAnswer) else answer
        if not isinstance(text, str):
            raise FallbackError(f"the fallback must return a str or a FallbackAnswer, not {type(answer).__name__}")
        if not text.strip():
            raise FallbackError("the fallback answered with blank text")
        return text

    async def _replaced(self, replaced: Replaced) -> Ending:
        """A transform ended the answer with a text of its own: an answer like any other from here on."""
        verdict = replaced.verdict
        who = Responded(verdict.extension, "transform_stream", verdict.reason, verdict.outcome)
        self.device.screen.retract(verdict.text)
        if not verdict.text.strip():
            self.reason = self.reason or verdict.outcome or "blocked"  # C11: an empty text says why
            return Ending("", reason=self.reason, responded=who)
        return await self._finish(verdict.text, brief=verdict.reason, responded=who)

    async def _finish(
        self,
        text: str,
        *,
        output: Any = None,
        brief: str | None = None,
        best_effort: bool = False,
        persist: bool = True,
        device_failed: bool = False,
        responded: Responded | None = None,
    ) -> Ending:
        """Take a text that is not blank through `after_answer`, its step and event, and into memory.

        Arguments: `brief`, of the answer step; None: this answer is no step (best effort, fallback).
        """
        work = self.work
        journal = work.journal
        if work.panel.hears("after_answer"):
            question = AfterAnswer(text, journal.handled_by, best_effort, tuple(journal.steps))
            decision = await work.panel.decide("after_answer", question)
            if isinstance(decision.verdict, Stop):
                raise work.panel.stop("after_answer", decision)
            text = decision.question.text
        journal.enter("answer")
        # C10: an abort that came before the answer is honoured here; behind the event it comes too late.
        await trio.lowlevel.checkpoint_if_cancelled()
        if brief is not None:
            journal.steps.append(Step(len(journal.steps), "answer", brief, text=text))
        journal.emit(Answer, text=text)
        if persist:
            await remember(work, text, best_effort=best_effort, device_failed=device_failed, failures=self._failures())
        return Ending(text, output, self.reason, best_effort, responded)


def _with_context(
    fallback: Callable[..., Any], request: FallbackRequest, about: FallbackContext
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments for a fallback: the request, and the context if its signature has a place for one."""
    try:
        parameters = list(inspect.signature(fallback).parameters.values())
    except (TypeError, ValueError):  # a callable without a signature
        return (request,), {}
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) > 1 and (positional[1].name == "ctx" or positional[1].default is positional[1].empty):
        return (request, about), {}
    if any(p.name == "ctx" and p.kind is p.KEYWORD_ONLY for p in parameters):
        return (request,), {"ctx": about}
    return (request,), {}
