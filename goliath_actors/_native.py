"""One run of the native tool loop: the ask, then steps of a message and its tools, until there is an answer.

Read top to bottom it is the life of one run; whichever way it ends, its history can be closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import attrs
import trio

from ._batch import Round
from ._call import NEW_MESSAGE_REASON
from ._decisions import RunStopped, StreamVerdict
from ._drafts import CONTINUED, STEER, Draft
from ._entrance import before_run
from ._envelope import Envelope
from ._final import settle_answer
from ._request import say
from ._rewrites import before_rewrite as ask_before_rewrite
from ._stream import Screen
from ._thinking import Said, Thinker, Thought
from ._transcript import Transcript
from ._waiting import WaitingCall
from ._work import Ending, Work
from .abc import Entry
from .errors import NotWaiting
from .events import Answer, Confirm, RunWaiting, Steered
from .hooks import (
    AfterRewrite,
    AfterStep,
    AfterTools,
    Complete,
    Continue,
    NextStep,
    Respond,
)
from .values import Message, Plan, Responded, Step, ToolCall

__all__ = ["NativeRun"]

NEW_MESSAGE = "Not done: instead of an answer there came a new message."
# Of a call that was answered, in a run that an extension answered before it was taken up.
ANSWERED_REASON = "an extension answered before it was taken up"
ANSWERED = f"Not done: {ANSWERED_REASON}."
COMPLETED = "Not done: the run was completed without waiting for it."
OUT_OF_STEPS = "I could not finish this within the steps that one run may take."

# What extensions want to come of a step; None leaves it to the step itself.
Way: TypeAlias = NextStep | Complete | Continue | None


@attrs.define(eq=False)
class NativeRun:
    """One run on its transcript. The limits are the loop's."""

    max_parallel_tools: int
    work: Work
    transcript: Transcript
    screen: Screen
    thinker: Thinker
    round: Round | None = None
    # A text whose commit is under way.
    steer: Envelope | None = None
    # The number of steps when a user last spoke.
    since: int = 0
    # A rewrite whose commit is under way, and the ask that it keeps.
    rewriting: tuple[Entry, AfterRewrite] | None = None

    async def begin(self, responded: tuple[Respond, Responded] | None) -> Ending | None:
        """Store the ask, or take up what waited.

        Returns: the ending, if that was all; else None: then steps are taken until there is one. A step is what was
        `handed_in`, or else a thought of the model's, and then `act`.
        """
        work = self.work
        if work.rewrite is not None:
            await self._regenerate()
        elif work.entry != "resume" or responded is not None:
            answered = work.entry == "resume"
            refused = self.transcript.waiting
            await self._dismiss(refused, ANSWERED if answered else NEW_MESSAGE)
            for call in refused:
                reason = ANSWERED_REASON if answered else NEW_MESSAGE_REASON
                work.journal.emit(Confirm, tool=call.tool, approved=False, reason=reason)
        if work.entry != "resume" and work.rewrite is None:
            await self._store(Message("user", work.ask))
        if responded is not None:
            return await self._said(Said(responded[0].text, responded[1], True))
        return await self._resume() if work.entry == "resume" else None

    async def _store(self, message: Message, private: dict[str, Any] | None = None) -> Message:
        draft = await self.transcript.asked(Draft(message, private or {}))
        await self.transcript.append([draft])
        return draft.message

    # --- one step ---------------------------------------------------------------------------------------------------

    async def handed_in(self) -> Said | None:
        """Begin a step: take the texts that were handed in.

        Returns: an answer in the model's place, if an extension gave one.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        while (steer := self._next_steer()) is not None:
            said = await self._take_steer(steer)
            if said is not None:
                return said
        return None

    async def act(self, thought: Thought | Said) -> Ending | None:
        """End a step: do what was thought; the ending if it was the last."""
        if isinstance(thought, Said):
            return await self._said(thought)
        if thought.plan.kind == "tools":
            return await self._tool_step(thought)
        draft = await self.transcript.asked(Draft(Message("assistant", thought.plan.text), thought.private))
        text = draft.message.text
        self._correct(text)
        way = await self._way(thought.plan, text, thought.plan.calls, True)
        goes_on = isinstance(way, NextStep | Continue) or (self._next_steer() is not None and way is None)
        if goes_on and not self.thinker.last:
            await self.transcript.append([draft])
            self.screen.keep()
            await self._follow(way)
            return None
        return await self._finish(text, draft, output=thought.output)

    async def _regenerate(self) -> None:
        """Drop what was said behind the last ask, after `before_rewrite`; `after_rewrite` is told beside the run."""
        work, transcript = self.work, self.transcript
        ask = transcript.last_ask
        assert ask is not None  # `last_ask` has looked
        changes = {"truncate_after": ask.id, "removed": [entry.id for entry in transcript.behind(ask)]}
        metadata, private = await ask_before_rewrite(work.panel, "regenerate", changes)
        self.rewriting = ask, AfterRewrite("regenerate", changes)
        await transcript.regenerate(ask, metadata, private)
        self._tell_rewritten()

    def _tell_rewritten(self) -> None:
        """The rewrite is in the store: tell it, beside the run."""
        work, rewriting = self.work, self.rewriting
        self.rewriting = None
        if rewriting is not None:
            work.later(work.key, work.panel, rewriting[1])

    # --- texts that are handed in (T7) ------------------------------------------------------------------------------

    def _next_steer(self) -> Envelope | None:
        """Return the oldest text that is to be taken; one that was aborted keeps its place and becomes its own run."""
        if not self.work.steers:
            return None
        return next((run for run in self.work.steers if run.abort_state is None), None)

    async def _take_steer(self, steer: Envelope) -> Said | None:
        """Make a text a user's message of this run.

        Returns: an answer in the model's place, if an extension gave one.

        Cancellation: honoured; the text is in the history, or it is still to be taken.
        """
        work = self.work
        stopped: RunStopped | None = None
        text, verdict, who = steer.ask, None, ""
        try:
            text, verdict, who = await before_run(work, steer.ask, "steer")
        except RunStopped as stop:
            stopped = stop
        if stopped is not None:
            work.run.drop_steer(steer)  # an extension ended the run because of it, which is its answer
            raise stopped
        draft = await self.transcript.asked(Draft(Message("user", text), {STEER: steer.id}))
        self.steer = steer
        await self.transcript.append([draft])
        self.steer = None
        self.since = len(work.journal.steps)
        work.run.drop_steer(steer)
        work.journal.emit(Steered, text=steer.ask)
        if verdict is None:
            return None
        return Said(verdict.text, Responded(who, "before_run", verdict.reason, verdict.outcome), True)

    async def _tool_step(self, thought: Thought) -> Ending | None:
        """Store the message, run its calls, store their results in call order (T2)."""
        work, plan = self.work, thought.plan
        work.journal.enter("step")
        tools = Round.of(work, plan.calls, thought.offered, thought.refusal)
        tools.since = self.since
        message = Message("assistant", plan.text, tools.made)
        message = await self._store(message, thought.private)
        self._correct(message.text)
        self.screen.keep()
        self.round = tools
        await tools.run(self.max_parallel_tools)
        return await self._settle(tools, plan, message.text, tools.made)

    async def _resume(self) -> Ending | None:
        """Take up the calls that waited and are answered now; the others go on waiting (T8)."""
        work, transcript = self.work, self.transcript
        waiting, answers = transcript.waiting, work.answers
        with work.journal.origin("config"):
            known = tuple([call.call_id for call in waiting])
            unknown = tuple(sorted(set(answers).difference(known)))
            if unknown or not answers:
                raise NotWaiting(work.journal.conversation_id, unknown, known)
            answered = [call for call in waiting if call.call_id in answers]
            self.round = tools = Round.resumed(work, answered, answers)
        await transcript.take_up(answers)
        await tools.go(self.max_parallel_tools)
        text, calls, _ = transcript.round_of(answered[0].call_id)
        return await self._settle(tools, Plan("tools"), text, calls)

    async def _settle(self, tools: Round, plan: Plan, text: str, calls: tuple[ToolCall, ...]) -> Ending | None:
        """Store the results of a round in call order, and decide how it goes on (T6)."""
        work, transcript = self.work, self.transcript
        drafts = []
        for made, call in zip(tools.made, tools.calls, strict=True):
            if call.waiting is None:
                drafts.append(await transcript.asked(Draft(tools.message(made, call), tools.private(call))))
                call.result = drafts[-1].message.text
        if drafts:
            await transcript.append(drafts)
        waiting = tools.waiting
        waits = bool(waiting or transcript.waits)
        if not waits and work.panel.hears("after_tools"):
            if work.entry == "resume":
                _, done, results = transcript.round_of(tools.made[0].id)
            else:
                done, results = tools.executed, tuple(draft.message.text for draft in drafts)
            await work.panel.observe("after_tools", AfterTools(done, results))
        way = await self._way(plan, text, calls, self.thinker.last)
        if isinstance(way, Complete):
            if waits:
                new = {call.call_id for call in waiting}
                known = [call for call in transcript.waiting if call.call_id not in new]
                await self._dismiss((*known, *waiting), COMPLETED)
            return await self._complete(text)
        if waits:
            return await self._wait(text, waiting)
        if self.thinker.last:
            return await self._out_of_steps(text)
        await self._follow(way)
        return None

    async def _dismiss(self, waiting: Sequence[WaitingCall], text: str) -> None:
        """Let calls wait no longer: what is told of them passes `after_tool` and `before_append` like any result."""
        if waiting:
            texts = await Round.dismissing(self.work, waiting).dismissed(text)
            await self.transcript.refuse(waiting, text, texts)

    async def _wait(self, text: str, waiting: Sequence[WaitingCall]) -> Ending:
        """End the episode with calls that wait; a later one takes them up."""
        transcript, journal = self.transcript, self.work.journal
        journal.enter("remember")
        await transcript.wait(waiting)
        shown = tuple(call.shown for call in transcript.waiting)
        now = {call.call_id: call.shown for call in waiting}  # with the application's own payloads
        shown = tuple(now.get(call.call_id, call) for call in shown)
        journal.emit(RunWaiting, entries=shown)
        return Ending(text, reason="waiting", waiting=shown)

    async def _way(self, plan: Plan, text: str, calls: tuple[ToolCall, ...], is_final: bool) -> Way:
        """Ask `after_step` about a plan, with its text and its calls as they were stored."""
        if not self.work.panel.hears("after_step"):
            return None
        step = attrs.evolve(plan, text=text, calls=calls)
        decision = await self.work.panel.decide("after_step", AfterStep(step, is_final))
        way: Way = decision.verdict
        return way

    async def _follow(self, way: Way) -> None:
        if isinstance(way, Continue) and self._next_steer() is None:  # T6: users outrank hooks
            await self._store(Message("user", way.text), {CONTINUED: True})

    def _correct(self, text: str) -> None:
        """What is out and is not what was stored is replaced before the reader's eyes (T9)."""
        if self.screen.out and self.screen.shown != text:
            self.screen.retract(text)

    # --- endings ----------------------------------------------------------------------------------------------------

    async def _said(self, said: Said) -> Ending:
        """Answer with a text that the model did not write: like any other, but for the streaming of what is out."""
        by = said.by
        text = said.text
        if said.transform:
            shown = await say(self.work, self.screen, text)
            if isinstance(shown, StreamVerdict):
                if shown.kind == "retry":
                    problem = "a text that no model wrote cannot be asked for again"
                    raise self.thinker.blame(shown.extension, "transform_stream", problem)
                replaced = self.thinker.replaced(shown)
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
        text = await settle_answer(work, text, best_effort)
        journal.steps += (Step(len(journal.steps), "answer", text=text),)
        self.screen.keep()
        journal.emit(Answer, text=text)
        if draft is not None:
            journal.enter("remember")
            if text != draft.message.text:
                draft = Draft(attrs.evolve(draft.message, text=text), draft.private)
            await self.transcript.answer(draft)
        return Ending(text, output, reason, best_effort, responded)

    async def close(self, ask: bool) -> None:
        """In a clean-up, under a shield: close the history. Never raises an `Exception`.

        Arguments: `ask`, whether hooks may still be asked about what there is to store.
        """
        results: dict[str, Draft] = {}
        if self.round is not None:
            await self.round.salvage(ask)
            left = {call.id for call in self.transcript.open_calls}
            for made, call in zip(self.round.made, self.round.calls, strict=True):
                if made.id not in left:
                    continue
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
        if self.rewriting is not None and await self.transcript.is_last(self.rewriting[0]):
            self._tell_rewritten()  # the commit that was cut had arrived after all
        steer = self.steer
        if steer is not None and any(entry.private.get(STEER) == steer.id for entry in self.transcript.kept):
            self.work.run.drop_steer(steer)  # the commit that was cut had arrived after all: never given twice

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
            self.work.journal.note_hook("before_append", "before_append", problem)
        text = "" if draft.message.role != "tool" else f"This result was not kept (status: {draft.private['status']})."
        return attrs.evolve(draft, message=attrs.evolve(draft.message, text=text))
