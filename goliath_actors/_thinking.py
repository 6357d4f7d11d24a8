"""One thought of the native tool loop: its context, the model's reply, and what the hooks make of it.

Gives a message that may stand, or an answer in its place; acting on either is the loop's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs
import trio

from ._answers import check_context
from ._batch import CUT_OFF
from ._budget import PromptCounts
from ._compact import Compaction, compact, step_limit
from ._composition import compose, unique_calls
from ._decisions import StreamVerdict, combine
from ._frozen import FrozenDict
from ._history import Composed
from ._provider import Failure
from ._request import Reply, Wanted, ask_model
from ._step_thread import step_thread
from ._stream import Screen
from ._text import clip
from ._transcript import Transcript
from ._work import Route, Work
from .errors import GoliathExtensionError, ModelError, ModelUnavailable
from .events import PlanMade
from .hooks import AfterPlan, BeforePlan, ResolveContext, Respond, Retry, Stop
from .tools import Tool
from .values import Message, Plan, Responded

__all__ = ["Said", "Thinker", "Thought"]

REPLY_RETRIES = 1  # in each step, after a reply without text and calls, or a structured answer that is not valid
PROBLEM_CHARS = 300

LAST_STEP = (
    "This is the last step: no tools can be used any more. Answer now, with what is known, and say what is missing."
)
NO_STEPS_LEFT = "Not executed: the run had no steps left."  # read by later runs: this one asks its model no more
EMPTY_REPLY = "Your last reply was empty. Answer, or call a tool."
GO_ON = "Go on."

_NOTHING: Mapping[str, Tool] = FrozenDict()


# --- values ---------------------------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class Thought:
    """An assembled message that the hooks let stand.

    `offered` are the tools that its calls are looked up in, `refusal` why none of them may run; `output` is the typed
    value of a structured answer.
    """

    plan: Plan
    offered: Mapping[str, Tool]
    refusal: str | None = None
    output: Any = None
    private: dict[str, Any] = attrs.field(factory=dict)


@attrs.frozen(eq=False)
class Said:
    """An answer in the model's place: an extension's, or what a transform put there."""

    text: str
    by: Responded
    transform: bool


@attrs.frozen(eq=False)
class _Resolving(ResolveContext):
    """The question, with what a layer gave to `call_next`."""

    _base: tuple[Message, ...] | None = attrs.field(default=None, alias="base", repr=False)


@attrs.frozen(eq=False)
class _Rejected:
    """A reply that is asked for again: by an extension, or, where that is None, because it cannot be used."""

    feedback: str
    extension: str | None = None
    phase: str = "after_plan"
    error: ModelError | None = None


# --- thinking -------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Thinker:
    """Asks the model of one run. The limits are the loop's."""

    work: Work
    transcript: Transcript
    screen: Screen
    max_steps: int
    hook_retries: int
    compaction: Compaction | None
    limit: int = attrs.field(init=False)  # tokens of a prompt
    schema: Mapping[str, Any] | None = attrs.field(init=False)  # of a structured answer
    counts: PromptCounts = attrs.field(init=False)
    # Model calls so far, those of rejected replies included; `last` from the last one on that the run may make.
    calls: int = 0
    last: bool = attrs.field(init=False)
    # Reasons for which a compaction was tried that did not help: it is not repeated in this run.
    given_up: frozenset[str] = frozenset()

    def __attrs_post_init__(self) -> None:
        work = self.work
        self.limit = step_limit(work.window)
        self.schema = None if work.output is None else work.output.schema
        self.counts = self.transcript.counts
        self.last = self.calls >= self.max_steps

    def blame(self, extension: str, phase: str, problem: str) -> GoliathExtensionError:
        """Return an error that is the extension's."""
        error = GoliathExtensionError(extension, phase, problem)
        self.work.journal.blame(error, "extension")
        return error

    async def think(self) -> Thought | Said:
        """Get a message that the hooks let stand, asking again within the budgets of this step (H8).

        Raises: the provider's error; `GoliathExtensionError` once `hook_retries` are used up.
        """
        await self._shrink("threshold")
        context = await self._resolve()
        rejections, retries, attempt = self.hook_retries, REPLY_RETRIES, 0
        overflow = True
        notes: tuple[Message, ...] = ()
        while True:
            await trio.lowlevel.checkpoint_if_cancelled()
            wanted, offered = await self._wanted(context, attempt, notes)
            self.work.journal.enter("step")
            result = await ask_model(self.work, wanted, self.screen)
            attempt += 1
            if isinstance(result, Failure):
                if overflow and result.reason == "context-budget" and await self._shrink("overflow"):
                    overflow, context = False, await self._resolve()
                    continue
                raise self._failed(result)
            if isinstance(result, Reply):
                found = await self._reviewed(result, offered, attempt - 1)
            else:
                found = self._cut_short(result)
            if not isinstance(found, _Rejected):
                return found
            if found.extension is None:
                retries -= 1
                if retries < 0:
                    assert found.error is not None
                    self.work.journal.blame(found.error, "model")
                    raise found.error
            else:
                rejections -= 1
                if rejections < 0:
                    raise self.blame(found.extension, found.phase, f"hook_retries used up: {found.feedback}")
            self.screen.retract()
            notes = (Message("user", found.feedback),)

    def _failed(self, failure: Failure) -> Exception:
        self.work.journal.blame(failure.error, "budget" if failure.over_budget else "model")
        return failure.error

    async def _resolve(self) -> Composed:
        """Compose the step's context around `resolve_context`; what was said for this run only comes behind it."""
        known = self.transcript.history.messages()
        history, behind = known.messages, self.work.messages
        if self.work.panel.hears("resolve_context"):
            self.work.journal.enter("resolve_context")
            question = _Resolving(None, history, step_thread(self.transcript), bool(self.work.messages))
            made: list[_Resolving] = [question]

            async def inner(asked: _Resolving) -> tuple[Message, ...]:
                await trio.lowlevel.checkpoint_if_cancelled()
                base = history if asked._base is None else asked._base
                for known in made:  # from here on every layer's question shows them
                    object.__setattr__(known, "messages", base)
                return base

            def patched(asked: _Resolving, base: Any) -> _Resolving:
                if isinstance(base, str):
                    raise ValueError("call_next takes a list of Message, not a text")
                made.append(attrs.evolve(asked, base=check_context(asked, base)))
                return made[-1]

            messages = tuple(await self.work.panel.nest("resolve_context", question, inner, patched, memoised=True))
            if messages != history:
                return Composed((*messages, *behind), 0, False)
        return Composed((*history, *behind), known.settled, False) if behind else known

    async def _wanted(
        self, context: Composed, attempt: int, notes: Sequence[Message]
    ) -> tuple[Wanted, Mapping[str, Tool]]:
        """Ask `before_plan`; return what the model is then asked, and the tools that it is told about."""
        work = self.work
        self.calls += 1
        self.last = self.calls >= self.max_steps
        # On the last step nothing is offered, so that there is nothing left to do but to answer.
        tools: Mapping[str, Tool] = _NOTHING if self.last else work.tools
        context_text, patch = "", None
        if work.panel.hears("before_plan"):
            descriptors = tuple([tool.descriptor for tool in tools.values()])
            question = BeforePlan(work.ask, descriptors, "", work.journal.steps, attempt, work.known)
            decision = await work.panel.decide("before_plan", question)
            context_text = decision.question.context_text
            if decision.patches:
                patch = combine(decision.patches)
            if decision.question.tools != descriptors:
                tools = {descriptor.name: tools[descriptor.name] for descriptor in decision.question.tools}
        offer, behind = work.standing.offer(tools, self.schema), (patch.messages or ()) if patch is not None else ()
        messages = context.messages
        if notes or behind or not context.whole:
            head, tail = messages[: context.settled], messages[context.settled :]
            messages = (*head, *compose([*tail, *behind, *notes]))
        messages = (*self._system(context_text), *messages)
        # Providers refuse a request that ends with a reply, and many refuse one of instructions alone.
        last = messages[-1].role if messages else "system"
        if last == "assistant" or (last == "system" and all(one.role == "system" for one in messages)):
            messages = (*messages, Message("user", GO_ON))
        wanted = Wanted(
            role="step",
            label="step",
            limit=self.limit,
            output_cap=None,
            route=Route.of(work) if patch is None else Route.of(work).patched(patch),
            messages=messages,
            schema=offer.schema,
            tools=offer.specs,
            counts=self.counts,
            words=offer.words,
        )
        return wanted, tools

    def _cut_short(self, verdict: StreamVerdict) -> Said | _Rejected:
        if verdict.kind == "retry":
            return _Rejected(f"Your last reply was rejected: {verdict.text}", verdict.extension, "transform_stream")
        return self.replaced(verdict)

    def replaced(self, verdict: StreamVerdict) -> Said:
        """Return what a transform put in a reply's place, after what was out of that was withdrawn."""
        self.screen.retract(verdict.text)
        by = Responded(verdict.extension, "transform_stream", verdict.reason, verdict.outcome)
        return Said(verdict.text, by, False)

    def _system(self, context_text: str) -> tuple[Message, ...]:
        work = self.work
        note = LAST_STEP if self.last and (work.tools or self.max_steps > 1) else ""
        instructions = work.instructions, work.panel.instructions() if work.panel.roster.extensions else ""
        return work.standing.system(instructions, work.facts, context_text, note)

    async def _reviewed(self, reply: Reply, offered: Mapping[str, Tool], attempt: int) -> Thought | Said | _Rejected:
        """Make a plan of a reply, ask `after_plan`, and check a structured answer."""
        work, message = self.work, reply.response.message
        calls = unique_calls(message.tool_calls, self.transcript.taken)
        if not calls and not message.text.strip():
            error: ModelError = ModelUnavailable("the model gave neither text nor calls", code="empty")
            return _Rejected(EMPTY_REPLY, error=error)
        plan = Plan("tools" if calls else "answer", calls=calls, text=message.text)
        if work.panel.hears("after_plan"):
            descriptors = tuple(tool.descriptor for tool in offered.values())
            question = AfterPlan(plan, descriptors, work.journal.steps, attempt, native=True)
            decision = await work.panel.decide("after_plan", question)
            verdict = decision.verdict
            if isinstance(verdict, Stop):
                raise work.panel.stop("after_plan", decision)
            if isinstance(verdict, Respond):
                self.screen.retract()
                by = Responded(decision.extension, "after_plan", verdict.reason, verdict.outcome)
                return Said(verdict.text, by, True)
            if isinstance(verdict, Retry):
                feedback = f"Your last reply was rejected: {verdict.feedback}"
                return _Rejected(feedback, decision.extension, "after_plan")
            plan = decision.question.plan
            plan = attrs.evolve(plan, calls=unique_calls(plan.calls, self.transcript.taken))
        output = None
        if plan.kind == "answer" and work.output is not None:
            try:
                output = work.output.parse(plan.text)
            except ValueError as problem:
                words = clip(str(problem), PROBLEM_CHARS)
                error = ModelError(f"the answer is not valid: {words}", code="invalid-output", partial=plan.text)
                return _Rejected(f"Your last reply was not valid: {words}. Reply again.", error=error)
        name = plan.calls[0].name if len(plan.calls) == 1 else None
        work.journal.emit(PlanMade, index=len(work.journal.steps), plan_kind=plan.kind, tool=name)
        refusal = CUT_OFF if reply.cut_off else None
        if self.last:  # nothing was offered, and still a call of a tool that the agent has is to be told as one
            offered, refusal = work.tools, refusal or NO_STEPS_LEFT
        finish = reply.response.finish_reason
        return Thought(plan, offered, refusal, output, {"finish_reason": finish})

    # --- compaction -------------------------------------------------------------------------------------------------

    async def _shrink(self, reason: Literal["threshold", "overflow"]) -> bool:
        """Compact the history if it has passed the threshold, or because it is known to be too long (T12)."""
        settings, shrank = self.compaction, False
        if settings is None:
            return False
        goal = min(settings.at * self.work.window, self.limit)
        before, overflow = self._size(), reason == "overflow"
        while reason not in self.given_up and before is not None and (before > goal or (overflow and not shrank)):
            if not await compact(self.work, self.transcript, settings.keep_turns, reason):
                self.given_up |= {reason}
                break
            after = self._size()
            if after is None or after >= before:
                self.given_up |= {"threshold", "overflow"}
            else:
                shrank = True
            before = after
        return shrank

    def _size(self) -> int | None:
        """Count what a plain step would send; None if the counter fails, which the request itself will tell."""
        work = self.work
        messages = (*self._system(""), *self.transcript.history.messages().messages, *work.messages)
        try:
            return self.counts.count(messages, work.standing.offer(work.tools, self.schema).words)
        except Exception:  # noqa: BLE001  # the counter is the application's
            return None
