"""A tool call in the journal: recorded before it starts, brought up to date, and closed, whatever happened."""

from __future__ import annotations

from typing import Any

from ._call import Call
from ._work import Work
from .events import ToolFinished, ToolStarted
from .values import Step, StepStatus

__all__ = [
    "RESULT_CHARS",
    "UNFINISHED",
    "UNFINISHED_WRITE",
    "UNPROCESSED",
    "close",
    "pause",
    "provisional",
    "record",
    "update",
]

RESULT_CHARS = 600  # characters of a result in summary mode, whoever wrote it

UNFINISHED = "Execution did not complete."
UNFINISHED_WRITE = "Execution did not complete; it may have taken effect."
NOT_STARTED = "Not started: the run ended first."
WAITS = "Waiting for an answer."
UNPROCESSED = "Executed; its output was not processed."


def provisional(work: Work, call: Call, output: Any = None) -> Step:
    """Return the step as it stands before the tool starts: it may have happened (invariant 9).

    Arguments: `output`, that of an earlier call, of one whose result is taken from there.
    """
    outcome = call.outcome
    unfinished = UNFINISHED_WRITE if call.tool.writes else UNFINISHED
    return Step(
        index=len(work.journal.steps),
        kind="tool",
        brief=call.brief,
        tool=call.tool.name,
        call_id=call.call_id,
        input=call.input,
        status="unknown" if outcome is None else outcome.status,
        skip_reason=call.skip_reason,
        extension=None if outcome is None else outcome.extension,
        from_step=None if outcome is None else outcome.from_step,
        result=unfinished if outcome is None else call.result,
        output=output,
        writes=call.tool.writes,
    )


def record(work: Work, call: Call, output: Any = None) -> None:
    """Put the call's step into the journal and say that it began. From here on `close` must be called."""
    step = provisional(work, call, output)
    call.index = step.index
    work.journal.steps += (step,)
    work.journal.emit(ToolStarted, call_id=call.call_id, tool=call.tool.name, input=call.input, repairs=call.repairs)


def update(work: Work, call: Call, result: str, status: StepStatus | None = None, output: Any = None) -> None:
    """Put what is known by now into the call's step; what is not given stays."""
    assert call.index is not None
    journal, at = work.journal, call.index
    step = journal.steps[at]
    # Made by hand: every call of a tool comes here three times, and `attrs.evolve` takes four times as long.
    # test_what_is_not_known_yet_stays_in_a_step proves that no field is forgotten.
    updated = Step(
        index=step.index,
        kind=step.kind,
        brief=step.brief,
        tool=step.tool,
        call_id=step.call_id,
        input=step.input,
        status=step.status if status is None else status,
        skip_reason=step.skip_reason,
        extension=step.extension,
        from_step=step.from_step,
        result=result,
        output=step.output if output is None else output,
        writes=step.writes,
        text=step.text,
    )
    journal.steps = (*journal.steps[:at], updated, *journal.steps[at + 1 :])


def close(work: Work, call: Call) -> None:
    """In a clean-up: say that a recorded call is over, if nothing has said so yet. Never raises."""
    if call.index is None or call.told:
        return
    if call.outcome is None and not call.started:  # nothing of the tool ran, so nothing can have happened
        update(work, call, NOT_STARTED, "failed")
    step = work.journal.steps[call.index]
    call.told = True
    work.journal.emit_closing(
        ToolFinished,
        call_id=call.call_id,
        tool=call.tool.name,
        input=call.input,
        status=step.status,
        result=step.result or "",
        ms=call.ms,
        error=call.reported,
    )


def pause(work: Work, call: Call) -> None:
    """Say that a recorded call is over as far as this run goes: its tool waits for an answer (T8)."""
    update(work, call, WAITS, "unknown")
    call.result = WAITS
    close(work, call)
