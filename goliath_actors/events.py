"""What a run tells while it goes. The grammar is `RunQueued`, `RunStarted`, …, `RunFinished`; `testing.check_events`
holds it.

Every event has `run_id`, `conversation_id`, `seq` (1, 2, 3 … within the run), `at` (seconds since the
epoch) and a `kind`, which is its name on the wire. Durations are on trio's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

import attrs

from ._frozen import freeze
from .values import Usage

__all__ = [
    "EVENTS",
    "Answer",
    "Budget",
    "Confirm",
    "Escalate",
    "Event",
    "HookDecision",
    "MemoryError",
    "ModelFinished",
    "ModelStarted",
    "PlanMade",
    "Recall",
    "Remember",
    "Retraction",
    "RunEvent",
    "RunFinished",
    "RunQueued",
    "RunStarted",
    "RunWaiting",
    "Steered",
    "TextDelta",
    "ToolFinished",
    "ToolProgress",
    "ToolStarted",
]


@attrs.frozen
class Event:
    """Base of all events."""

    kind: ClassVar[str] = ""

    run_id: str
    conversation_id: str | None
    seq: int
    at: float


@attrs.frozen
class RunQueued(Event):
    """The ask was accepted."""

    kind: ClassVar[str] = "run-queued"


@attrs.frozen
class RunStarted(Event):
    """The run has its turn. Missing if it was aborted before that."""

    kind: ClassVar[str] = "run-started"


@attrs.frozen
class Recall(Event):
    """Memory was loaded; `recent` counts exchanges. Shows the view after `after_recall`."""

    kind: ClassVar[str] = "recall"
    summary: str
    recent: int


@attrs.frozen
class Budget(Event):
    """A prompt was counted. `source` is `tokenizer` or `estimate`; `counter` names which."""

    kind: ClassVar[str] = "budget"
    label: str
    tokens: int
    limit: int
    source: str
    counter: str = ""


@attrs.frozen
class ModelStarted(Event):
    """An attempt of a model call began."""

    kind: ClassVar[str] = "model-started"
    role: str
    attempt: int = 0


@attrs.frozen
class TextDelta(Event):
    """A piece of the answer. Merged pieces keep the first `seq`; `through` is the last one merged in."""

    kind: ClassVar[str] = "text-delta"
    text: str
    through: int


@attrs.frozen
class ModelFinished(Event):
    """The attempt ended. `seconds` from start to end, `error` as text if it failed or was cut."""

    kind: ClassVar[str] = "model-finished"
    role: str
    attempt: int
    usage: Usage | None = None
    error: str | None = None
    seconds: float = 0.0


@attrs.frozen
class PlanMade(Event):
    """A plan stands, after `after_plan`. `index` is the number of steps before it."""

    kind: ClassVar[str] = "plan-made"
    index: int
    # `kind` is every event's own name, so the plan's kind (`tool`, `answer`, `escalate`) needs another.
    plan_kind: str
    tool: str | None = None
    why: str | None = None
    brief: str = ""


@attrs.frozen
class Confirm(Event):
    """A person or a rule decided on a call."""

    kind: ClassVar[str] = "confirm"
    tool: str
    approved: bool
    reason: str | None = None


@attrs.frozen
class ToolStarted(Event):
    """A tool attempt was recorded. Every attempt has one, also one that is denied, cached or declined.

    `repairs` names what had to be mended in the model's text before its arguments could be read.
    """

    kind: ClassVar[str] = "tool-started"
    call_id: str
    tool: str
    input: Mapping[str, Any] = attrs.field(converter=freeze)
    repairs: tuple[str, ...] = ()


@attrs.frozen
class ToolProgress(Event):
    """A tool says how far it is (`ToolContext.report`), in its own measure; `total` is None where it does not know.
    Those that come too close behind each other are left out."""

    kind: ClassVar[str] = "tool-progress"
    call_id: str
    tool: str
    progress: float
    total: float | None = None
    message: str = ""


@attrs.frozen
class ToolFinished(Event):
    """The attempt is over. `ms` is execution alone; `status` as in `Step`. `error` says what went wrong where `result`,
    which the model is told, does not."""

    kind: ClassVar[str] = "tool-finished"
    call_id: str
    tool: str
    input: Mapping[str, Any] = attrs.field(converter=freeze)
    status: str
    result: str
    ms: float = 0.0
    error: str | None = None


@attrs.frozen
class HookDecision(Event):
    """An extension stopped, answered, denied, asked, skipped or retried, or a lenient one failed and was skipped."""

    kind: ClassVar[str] = "hook-decision"
    extension: str
    phase: str
    decision: str
    reason: str | None = None


@attrs.frozen
class Answer(Event):
    """The final text, after `after_answer`."""

    kind: ClassVar[str] = "answer"
    text: str


@attrs.frozen
class Retraction(Event):
    """Text that was already shown is withdrawn; `text` replaces it."""

    kind: ClassVar[str] = "retraction"
    text: str


@attrs.frozen
class Escalate(Event):
    """The loop gave up on the device for `reason`."""

    kind: ClassVar[str] = "escalate"
    reason: str
    error: str | None = None


@attrs.frozen
class Remember(Event):
    """Memory was saved."""

    kind: ClassVar[str] = "remember"
    summary: str


@attrs.frozen
class MemoryError(Event):
    """Summarising or saving failed; the answer is kept."""

    kind: ClassVar[str] = "memory-error"
    error: str


@attrs.frozen
class Steered(Event):
    """A text was handed to the running run."""

    kind: ClassVar[str] = "steered"
    text: str


@attrs.frozen
class RunWaiting(Event):
    """The run ends with calls that wait for a person."""

    kind: ClassVar[str] = "run-waiting"
    entries: tuple[Any, ...]


@attrs.frozen
class RunFinished(Event):
    """Always the last event, exactly once.

    `reason` is the abort's cause, the escalation reason or the stop's reason; of an error it is the name of its class
    alone: the error itself, with its message, is `run.outcome.error`, and what waiting for the run raises.
    """

    kind: ClassVar[str] = "run-finished"
    status: str
    reason: str | None = None
    phase: str | None = None
    usage: Usage = Usage()


RunEvent: TypeAlias = (
    RunQueued
    | RunStarted
    | Recall
    | Budget
    | ModelStarted
    | TextDelta
    | ModelFinished
    | PlanMade
    | Confirm
    | ToolStarted
    | ToolProgress
    | ToolFinished
    | HookDecision
    | Answer
    | Retraction
    | Escalate
    | Remember
    | MemoryError
    | Steered
    | RunWaiting
    | RunFinished
)

EVENTS: Mapping[str, type[Event]] = {
    cls.kind: cls
    for cls in (
        RunQueued,
        RunStarted,
        Recall,
        Budget,
        ModelStarted,
        TextDelta,
        ModelFinished,
        PlanMade,
        Confirm,
        ToolStarted,
        ToolProgress,
        ToolFinished,
        HookDecision,
        Answer,
        Retraction,
        Escalate,
        Remember,
        MemoryError,
        Steered,
        RunWaiting,
        RunFinished,
    )
}
"""Every event type by its name on the wire."""
