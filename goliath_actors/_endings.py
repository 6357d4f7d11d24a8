"""The ways a planned run comes to its end: an answer, a hand-over, the best that can be said, or nothing and a reason.

Used by the Conductor.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import attrs
import trio

from ._callables import call_with
from ._final import settle_answer
from ._judge import Escalated
from ._kept import kept_steps
from ._memory import remember
from ._roles import Device, Replaced
from ._session import Session
from ._work import CallbackContext, Ending, Work
from .errors import FallbackError
from .events import Answer, Escalate
from .hooks import BeforeFallback, Stop
from .values import FallbackAnswer, FallbackRequest, Memory, Responded, Step

__all__ = ["Endings"]

# Reasons for which a best-effort answer makes no sense: the device that would give it is what failed.
NO_BEST_EFFORT = frozenset({"model-error", "model-unavailable", "context-budget", "answer-invalid"})
# Reasons after which the device is not asked to summarise either.
DEVICE_FAILED = frozenset({"model-error", "model-unavailable", "context-budget"})


@attrs.define(eq=False)
class Endings:
    """The last part of one run. `view` is the memory that `after_recall` let stand."""

    work: Work
    device: Device
    session: Session
    view: Memory
    answer_retries: int
    hook_retries: int
    save_best_effort: bool
    # The first escalation reason is the result's (C11).
    reason: str | None = None

    async def escalate(self, reason: str, detail: str | None) -> Ending:
        """Give up on the device: hand over to the fallback, say the best that can be said, or end without a text."""
        work = self.work
        self.reason = reason
        self.session.escalated(reason)
        work.journal.emit(Escalate, reason=reason, error=detail)
        if reason == "guardrail":  # a refusal stays on the device (C9)
            return Ending("", reason=reason)
        if work.fallback is not None:
            return await self._fall_back(work.fallback, reason, detail)
        if reason in NO_BEST_EFFORT:
            return Ending("", reason=reason)
        return await self._best_effort()

    async def _best_effort(self) -> Ending:
        work = self.work
        text, output, replaced = "", None, None
        try:
            text, output = await self.device.answer(
                unfinished=True,
                retries=0 if work.output is None else self.answer_retries,
                hook_retries=self.hook_retries,
            )
        except Replaced as verdict:
            replaced = verdict
        except Escalated as again:
            if again.reason in ("guardrail", "answer-invalid"):
                work.journal.emit(Escalate, reason=again.reason, error=again.detail)
        if replaced is not None:
            return await self.replaced(replaced)
        if not text:
            return Ending("", reason=self.reason, best_effort=True)
        return await self.finish(text, output=output, best_effort=True, persist=self.save_best_effort)

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
        return await self.finish(text, device_failed=reason in DEVICE_FAILED)

    async def _ask_fallback(self, fallback: Callable[..., Any], request: FallbackRequest) -> str:
        answer: Any = call_with(fallback, (request,), CallbackContext.of(self.work))
        if inspect.isawaitable(answer):
            answer = await answer
        text: Any = answer.text if isinstance(answer, FallbackAnswer) else answer
        if not isinstance(text, str):
            raise FallbackError(f"the fallback must return a str or a FallbackAnswer, not {type(answer).__name__}")
        if not text.strip():
            raise FallbackError("the fallback answered with blank text")
        return text

    async def replaced(self, replaced: Replaced) -> Ending:
        """A transform ended the answer with a text of its own: an answer like any other from here on."""
        verdict = replaced.verdict
        who = Responded(verdict.extension, "transform_stream", verdict.reason, verdict.outcome)
        self.device.screen.retract(verdict.text)
        if not verdict.text.strip():
            self.reason = self.reason or verdict.outcome or "blocked"  # C11: an empty text says why
            return Ending("", reason=self.reason, responded=who)
        return await self.finish(verdict.text, brief=verdict.reason, responded=who)

    async def finish(
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
        text = await settle_answer(work, text, best_effort)
        if brief is not None:
            journal.steps += (Step(len(journal.steps), "answer", brief, text=text),)
        journal.emit(Answer, text=text)
        if persist:
            await remember(
                work, text, best_effort=best_effort, device_failed=device_failed, failures=self.session.failures()
            )
        return Ending(text, output, self.reason, best_effort, responded)
