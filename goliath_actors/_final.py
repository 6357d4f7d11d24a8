"""The last word on a text that is to be a run's answer, for both loops: `after_answer`, and the last abort."""

from __future__ import annotations

import trio

from ._work import Work
from .hooks import AfterAnswer, Stop

__all__ = ["settle_answer"]


async def settle_answer(work: Work, text: str, best_effort: bool) -> str:
    """Ask `after_answer` about a text that is not blank. The caller tells it at once, without a checkpoint.

    Returns: the text that is the answer.

    Raises: `RunStopped`; `GoliathExtensionError`.

    Cancellation: honoured, for the last time: behind the answer's event it comes too late (C10).
    """
    journal = work.journal
    if work.panel.hears("after_answer"):
        question = AfterAnswer(text, journal.handled_by, best_effort, journal.steps)
        decision = await work.panel.decide("after_answer", question)
        if isinstance(decision.verdict, Stop):
            raise work.panel.stop("after_answer", decision)
        text = decision.question.text
    journal.enter("answer")
    await trio.lowlevel.checkpoint_if_cancelled()
    return text
