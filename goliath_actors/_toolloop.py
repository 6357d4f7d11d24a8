"""`ToolLoop`: native tool calling on a transcript, for large context windows.

Floor 4. Read top to bottom it is one run: the ask, then steps of a message and its tools, until there is an answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeAlias, final

import attrs
import trio

from ._batch import CUT_OFF, Round
from ._budget import count_prompt
from ._compact import Compaction, compact, step_limit
from ._composition import compose, system_text, unique_calls
from ._kept import saving_seconds
from ._panel import RunStopped, StreamVerdict, combine
from ._provider import Failure, prompt_parts
from ._request import Reply, Route, Wanted, ask_model, say
from ._session import check_int
from ._stream import Screen
from ._text import clip
from ._transcript import Draft, Transcript
from ._work import Ending, Work
from .abc import ToolSpec
from .errors import ConfigError, GoliathExtensionError, ModelError, ModelUnavailable
from .events import Answer, PlanMade
from .hooks import (
    AfterAnswer,
    AfterPlan,
    AfterStep,
    AfterTools,
    BeforePlan,
    Complete,
    Continue,
    NextStep,
    ResolveContext,
    Respond,
    Retry,
    Stop,
)
from .tools import Tool
from .values import Message, Plan, Responded, Step

__all__ = ["Compaction", "ToolLoop", "check_tool_window"]

Window: TypeAlias = "int | Callable[[], int | Awaitable[int]]"

REPLY_RETRIES = 1  # in each step, after a reply without text and calls, or a structured answer that is not valid
PROBLEM_CHARS = 300

LAST_STEP = (
    "This is the last step: no tools can be used any more. Answer now, with what is known, and say what is missing."
)
NO_STEPS_LEFT = "Not executed: no steps are left."
OUT_OF_STEPS = "I could not finish this within the steps that one run may take."
EMPTY_REPLY = "Your last reply was empty. Answer, or call a tool."
GO_ON = "Go on."


@final
@attrs.frozen(kw_only=True)
class ToolLoop:
    """Native tool calling on a transcript: the model is sent the conversation and calls tools until it answers.

    Arguments:
      window: tokens of input and output together, or a callable (sync or async) that says so once a run.
      max_steps: model calls of a run; the last one is told to answer.
      max_parallel_tools: how many tools of one message run side by side.
      hook_retries: how often, in each step, an extension may reject a reply.
      compaction: when old history is summarised; None: never.

    Raises: `ConfigError`.
    """

    window: Window = 128_000
    max_steps: int = 20
    max_parallel_tools: int = 8
    hook_retries: int = 2
    compaction: Compaction | None = attrs.Factory(Compaction)

    def __attrs_post_init__(self) -> None:
        if not callable(self.window):
            check_tool_window(self.window)
        check_int("ToolLoop(max_steps=...)", self.max_steps, 1)
        check_int("ToolLoop(max_parallel_tools=...)", self.max_parallel_tools, 1)
        check_int("ToolLoop(hook_retries=...)", self.hook_retries, 0)
        if self.compaction is not None and not isinstance(self.compaction, Compaction):
            raise ConfigError(
                f"ToolLoop(compaction=...) must be a Compaction or None, not {type(self.compaction).__name__}"
            )

    async def drive(self, work: Work, responded: tuple[Respond, Responded] | None = None) -> Ending:
        """Take a run from its ask to its end. As `Loop.drive`.

        Raises: also the provider's error, as the same object; `GoliathBudgetError` for a prompt that does not fit.

        Cancellation: the history is closed: results of tools that had finished, for all other calls a result that
        says so, and the text that was shown, marked partial. Within `finish_timeout` or 10 seconds.
        """
        check_tool_window(work.window)
        work.kept = True  # what this run does is in the transcript, never in an exchange
        transcript = await Transcript.load(work)
        run = _Run(self, work, transcript, Screen(work.journal))
        done, ask = False, True
        stopped: RunStopped | None = None
        try:
            try:
                ending = await run.go(responded)
                done = True
                return ending
            except GoliathExtensionError:
                ask = False  # no later hook of the row
                raise
            except RunStopped as stop:
                stopped = stop
            # Out here, so that what a callback raises does not carry our own signal as its context.
            run.screen.retract(stopped.text)
            raise stopped
        finally:
            if not done:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + saving_seconds(work)):
                    await run.close(ask and stopped is None)


def check_tool_window(window: object) -> None:
    """Refuse a window that has no room for a prompt beside what is reserved.

    Raises: `ConfigError`.
    """
    check_int("ToolLoop(window=...)", window, 1)
    assert isinstance(window, int)
    if step_limit(window) <= 0:
        raise ConfigError(f"a window of {window} tokens leaves no room for a prompt; a ToolLoop needs far more")


# --- one run --------------------------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class _Thought:
    """An assembled message that the hooks let stand. `output` is the typed value of a structured answer."""

    plan: Plan
    offered: dict[str, Tool]
    refusal: str | None = None
    output: Any = None
    private: dict[str, Any] = attrs.field(factory=dict)


@attrs.frozen(eq=False)
class _Said:
    """An answer in the model's place: an extension's, or what a transform put there."""

    text: str
    by: Responded
    transform: bool


@attrs.frozen(eq=False)
class _Resolving(ResolveContext):
    _base: tuple[Message, ...] | None = attrs.field(default=None, alias="base", repr=False)


@attrs.define(eq=False)
class _Run:
    loop: ToolLoop
    work: Work
    transcript: Transcript
    screen: Screen
    calls: int = 0
    round: Round | None = None
    # A compaction that did not help is not repeated in this run.
    compacts: bool = True

    async def go(self, responded: tuple[Respond, Responded] | None) -> Ending:
        """Store the ask, then take steps until there is an answer."""
        await self._store(Message("user", self.work.ask))
        if responded is not None:
            return await self._said(_Said(responded[0].text, responded[1], True))
        while True:
            ending = await self._step()
            if ending is not None:
                return ending

    async def _store(self, message: Message, private: dict[str, Any] | None = None) -> Message:
        draft = await self.transcript.asked(Draft(message, private or {}))
        await self.transcript.append([draft])
        return draft.message

    @property
    def _last(self) -> bool:
        return self.calls >= self.loop.max_steps

    # --- one step ---------------------------------------------------------------------------------------------------

    async def _step(self) -> Ending | None:
        """Take one step; the ending if it was the last."""
        await trio.lowlevel.checkpoint_if_cancelled()
        thought = await self._think()
        if isinstance(thought, _Said):
            return await self._said(thought)
        if thought.plan.kind == "tools":
            return await self._tool_step(thought)
        draft = await self.transcript.asked(Draft(Message("assistant", thought.plan.text), thought.private))
        text = draft.message.text
        self._correct(text)
        way = await self._way(attrs.evolve(thought.plan, text=text), True)
        if isinstance(way, NextStep | Continue) and not self._last:
            await self.transcript.append([draft])
            self.screen.keep()
            await self._follow(way)
            return None
        return await self._finish(text, draft, output=thought.output)

    async def _tool_step(self, thought: _Thought) -> Ending | None:
        """Store the message, run its calls, store their results in call order (T2)."""
        work, plan = self.work, thought.plan
        work.journal.enter("step")
        tools = Round.of(work, plan.calls, thought.offered, thought.refusal)
        message = Message("assistant", plan.text, tools.described)
        message = await self._store(message, thought.private)
        self._correct(message.text)
        self.screen.keep()
        self.round = tools
        await tools.run(self.loop.max_parallel_tools)
        drafts = []
        for made, call in zip(tools.made, tools.calls, strict=True):
            drafts.append(await self.transcript.asked(Draft(tools.message(made, call), tools.private(call))))
            call.result = drafts[-1].message.text
        await self.transcript.append(drafts)
        self.round = None
        if work.panel.hears("after_tools"):
            results = tuple(draft.message.text for draft in drafts)
            await work.panel.observe("after_tools", AfterTools(tools.described, results))
        way = await self._way(attrs.evolve(plan, text=message.text), self._last)
        if isinstance(way, Complete):
            return await self._complete(message.text)
        if self._last:
            return await self._out_of_steps(message.text)
        await self._follow(way)
        return None

    async def _way(self, plan: Plan, is_final: bool) -> Any:
        if not self.work.panel.hears("after_step"):
            return None
        decision = await self.work.panel.decide("after_step", AfterStep(plan, is_final))
        way = decision.verdict
        if isinstance(way, Continue) and not way.text.strip():
            problem = ValueError("the text of a Continue is blank")
            raise self._blame(GoliathExtensionError(decision.extension, "after_step", str(problem)))
        return way

    async def _follow(self, way: Any) -> None:
        if isinstance(way, Continue):
            await self._store(Message("user", way.text), {"continued": True})

    def _correct(self, text: str) -> None:
        """What is out and is not what was stored is replaced before the reader's eyes (T9)."""
        if self.screen.out and self.screen.shown != text:
            self.screen.retract(text)

    def _blame(self, error: GoliathExtensionError) -> GoliathExtensionError:
        self.work.journal.blame(error, "extension")
        return error

    # --- thinking ---------------------------------------------------------------------------------------------------

    async def _think(self) -> _Thought | _Said:
        """Get a message that the hooks let stand, asking again within the budgets of this step (H8).

        Raises: the provider's error; `GoliathExtensionError` once `hook_retries` are used up.
        """
        await self._shrink("threshold")
        context = await self._resolve()
        rejections, retries, attempt = self.loop.hook_retries, REPLY_RETRIES, 0
        overflow = True
        notes: list[Message] = []
        while True:
            await trio.lowlevel.checkpoint_if_cancelled()
            result = await self._ask(context, attempt, notes)
            attempt += 1
            if isinstance(result, Failure):
                if overflow and result.reason == "context-budget" and await self._shrink("overflow"):
                    overflow, context = False, await self._resolve()
                    continue
                raise self._failed(result)
            found = result if isinstance(result, _Said) else await self._reviewed(result, attempt - 1)
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
                    raise self._blame(
                        GoliathExtensionError(found.extension, found.phase, f"hook_retries used up: {found.feedback}")
                    )
            self.screen.retract()
            notes = [Message("user", found.feedback)]

    def _failed(self, failure: Failure) -> Exception:
        self.work.journal.blame(failure.error, "budget" if failure.over_budget else "model")
        return failure.error

    async def _resolve(self) -> tuple[Message, ...]:
        """Compose the step's context around `resolve_context`; what was said for this run only comes behind it."""
        history = self.transcript.messages()
        messages = history
        if self.work.panel.hears("resolve_context"):
            question = _Resolving(None, history)
            made: list[_Resolving] = [question]

            async def inner(asked: _Resolving) -> tuple[Message, ...]:
                await trio.lowlevel.checkpoint_if_cancelled()
                base = history if asked._base is None else asked._base
                for known in made:  # from here on every layer's question shows them
                    object.__setattr__(known, "messages", base)
                return base

            def patched(asked: _Resolving, base: Any) -> _Resolving:
                if isinstance(base, str) or not all(isinstance(message, Message) for message in base) or not base:
                    raise ValueError("call_next takes a list of Message with something in it")
                made.append(attrs.evolve(asked, base=tuple(base)))
                return made[-1]

            messages = tuple(await self.work.panel.nest("resolve_context", question, inner, patched, memoised=True))
        return (*messages, *self.work.messages)

    async def _ask(
        self, context: tuple[Message, ...], attempt: int, notes: Sequence[Message]
    ) -> _Asked | _Rejected | _Said | Failure:
        """Ask `before_plan`, then the model."""
        work = self.work
        self.calls += 1
        # On the last step nothing is offered, so that there is nothing left to do but to answer.
        tools = {} if self._last and self.loop.max_steps > 1 else dict(work.tools)
        question = BeforePlan(
            work.ask,
            tuple(tool.descriptor for tool in tools.values()),
            "",
            tuple(work.journal.steps),
            attempt,
            work.known,
        )
        patches: Sequence[Any] = ()
        if work.panel.hears("before_plan"):
            decision = await work.panel.decide("before_plan", question)
            question, patches = decision.question, decision.patches
        patch = combine(patches)
        offered = {descriptor.name: tools[descriptor.name] for descriptor in question.tools}
        messages = compose([*self._system(question.context_text), *context, *(patch.messages or ()), *notes])
        if messages and messages[-1].role == "assistant":
            messages = (*messages, Message("user", GO_ON))
        wanted = Wanted(
            role="step",
            label="step",
            render=lambda short: messages,
            limit=step_limit(work.window),
            output_cap=None,
            route=Route.of(work).patched(patch),
            schema=None if work.output is None else work.output.schema,
            tools=_specs(offered),
        )
        work.journal.enter("step")
        result = await ask_model(work, wanted, self.screen)
        if isinstance(result, Reply):
            return _Asked(result, offered)
        if isinstance(result, Failure):
            return result
        if result.kind == "retry":
            return _Rejected(f"Your last reply was rejected: {result.text}", result.extension, "transform_stream")
        return self._replaced(result)

    def _replaced(self, verdict: StreamVerdict) -> _Said:
        self.screen.retract(verdict.text)
        by = Responded(verdict.extension, "transform_stream", verdict.reason, verdict.outcome)
        return _Said(verdict.text, by, False)

    def _system(self, context_text: str) -> tuple[Message, ...]:
        work = self.work
        note = LAST_STEP if self._last and self.loop.max_steps > 1 else ""
        text = system_text((work.instructions, work.panel.instructions()), work.facts, context_text, note)
        return (Message("system", text),) if text else ()

    async def _reviewed(self, asked: _Asked | _Rejected, attempt: int) -> _Thought | _Said | _Rejected:
        """Make a plan of a reply, ask `after_plan`, and check a structured answer."""
        if isinstance(asked, _Rejected):
            return asked
        work, message = self.work, asked.reply.response.message
        calls = unique_calls(message.tool_calls, self.transcript.taken)
        if not calls and not message.text.strip():
            error: ModelError = ModelUnavailable("the model gave neither text nor calls", code="empty")
            return _Rejected(EMPTY_REPLY, error=error)
        plan = Plan("tools" if calls else "answer", calls=calls, text=message.text)
        if work.panel.hears("after_plan"):
            descriptors = tuple(tool.descriptor for tool in asked.offered.values())
            question = AfterPlan(plan, descriptors, tuple(work.journal.steps), attempt, native=True)
            decision = await work.panel.decide("after_plan", question)
            verdict = decision.verdict
            if isinstance(verdict, Stop):
                raise work.panel.stop("after_plan", decision)
            if isinstance(verdict, Respond):
                self.screen.retract()
                by = Responded(decision.extension, "after_plan", verdict.reason, verdict.outcome)
                return _Said(verdict.text, by, True)
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
        refusal = CUT_OFF if asked.reply.cut_off else None
        if self._last and refusal is None:
            refusal = NO_STEPS_LEFT
        finish = asked.reply.response.finish_reason
        return _Thought(plan, asked.offered, refusal, output, {"finish_reason": finish})

    # --- compaction -------------------------------------------------------------------------------------------------

    async def _shrink(self, reason: Literal["threshold", "overflow"]) -> bool:
        """Compact the history if it has passed the threshold, or because it is known to be too long (T12)."""
        settings = self.loop.compaction
        if settings is None or not self.compacts:
            return False
        before = self._size()
        if before is None:
            return False
        if reason == "threshold" and before <= min(settings.at * self.work.window, step_limit(self.work.window)):
            return False
        shorter = await compact(self.work, self.transcript, settings.keep_turns, reason)
        after = self._size()
        shrank = shorter and after is not None and after < before
        if not shrank and (shorter or reason == "overflow"):
            self.compacts = False
        return shrank

    def _size(self) -> int | None:
        """Count what a plain step would send; None if the counter fails, which the request itself will tell."""
        work = self.work
        messages = (*self._system(""), *self.transcript.messages(), *work.messages)
        schema = None if work.output is None else work.output.schema
        try:
            return count_prompt(work.counter, *prompt_parts(messages, schema, _specs(work.tools)))
        except Exception:  # noqa: BLE001  # the counter is the application's
            return None

    # --- endings ----------------------------------------------------------------------------------------------------

    async def _said(self, said: _Said) -> Ending:
        """Answer with a text that the model did not write: like any other, but for the streaming of what is out."""
        by = said.by
        text = said.text
        if said.transform:
            shown = await say(self.work, self.screen, text)
            if isinstance(shown, StreamVerdict):
                if shown.kind == "retry":
                    problem = "a text that no model wrote cannot be asked for again"
                    raise self._blame(GoliathExtensionError(shown.extension, "transform_stream", problem))
                replaced = self._replaced(shown)
                text, by = replaced.text, replaced.by
            else:
                text = shown
        if not text.strip():
            self.screen.retract()
            return Ending("", reason=by.outcome or "blocked", responded=by)
        draft = await self.transcript.asked(Draft(Message("assistant", text), {"responded": by.extension}))
        self._correct(draft.message.text)
        return await self._finish(draft.message.text, draft, responded=by)

    async def _complete(self, text: str) -> Ending:
        """An extension ended the run behind a round of tools: the text beside the calls is its answer."""
        if not text.strip():
            return Ending("", reason="completed")
        return await self._finish(text, None)

    async def _out_of_steps(self, text: str) -> Ending:
        """The last model call asked for tools nevertheless (S43)."""
        reason = "too-many-steps"
        if text.strip():
            return await self._finish(text, None, reason=reason, best_effort=True)
        draft = await self.transcript.asked(Draft(Message("assistant", OUT_OF_STEPS), {"out_of_steps": True}))
        return await self._finish(draft.message.text, draft, reason=reason, best_effort=True)

    async def _finish(
        self,
        text: str,
        draft: Draft | None,
        *,
        output: Any = None,
        reason: str | None = None,
        best_effort: bool = False,
        responded: Responded | None = None,
    ) -> Ending:
        """Take a text that is not blank through `after_answer`, its step and event, and into the history.

        Arguments: `draft`, the message to be stored with it; None if it is stored already.
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
        journal.steps.append(Step(len(journal.steps), "answer", text=text))
        self.screen.keep()
        journal.emit(Answer, text=text)
        if draft is not None:
            journal.enter("remember")
            await self.transcript.answer(attrs.evolve(draft, message=attrs.evolve(draft.message, text=text)))
        return Ending(text, output, reason, best_effort, responded)

    async def close(self, ask: bool) -> None:
        """In a clean-up, under a shield: close the history. Never raises an `Exception`.

        Arguments: `ask`, whether hooks may still be asked about what there is to store.
        """
        results: dict[str, Draft] = {}
        if self.round is not None:
            await self.round.salvage(ask)
            for made, call in zip(self.round.made, self.round.calls, strict=True):
                draft = Draft(self.round.message(made, call), self.round.private(call))
                results[made.id] = await self._checked(draft, ask)
        last: list[Draft] = []
        if self.screen.shown.strip():
            draft = Draft(Message("assistant", self.screen.shown), {"partial": True})
            last = [draft] if ask or not self.work.panel.hears("before_append") else []
            if last:
                checked = await self._checked(draft, ask)
                last = [checked] if checked.message.text.strip() else []
        await self.transcript.close(results, last)

    async def _checked(self, draft: Draft, ask: bool) -> Draft:
        """Pass a message through `before_append` where it may still be asked; without it nothing is stored of a text
        that it would have seen."""
        if not self.work.panel.hears("before_append"):
            return draft
        problem: Exception | None = None
        if ask:
            try:
                return await self.transcript.asked(draft)
            except Exception as error:  # noqa: BLE001  # what is passing must not be replaced
                problem = error
        if problem is not None:
            self.work.journal.note("before_append", "before_append", problem)
        text = "" if draft.message.role != "tool" else f"This result was not kept (status: {draft.private['status']})."
        return attrs.evolve(draft, message=attrs.evolve(draft.message, text=text))


@attrs.frozen(eq=False)
class _Asked:
    """A complete reply, and the tools that the model had been told about."""

    reply: Reply
    offered: dict[str, Tool]


@attrs.frozen(eq=False)
class _Rejected:
    """A reply that is asked for again: by an extension, or, where that is None, because it cannot be used."""

    feedback: str
    extension: str | None = None
    phase: str = "after_plan"
    error: ModelError | None = None


def _specs(tools: Any) -> tuple[ToolSpec, ...]:
    return tuple(ToolSpec(tool.name, tool.description, tool.parameters) for tool in tools.values())
