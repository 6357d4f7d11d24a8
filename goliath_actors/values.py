"""The frozen words of the domain. They cross rooms; nothing in them can be changed.

Mappings inside values are read-only (`_frozen.freeze`), so a value can be shared by every hook and observer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import attrs

from ._frozen import freeze

__all__ = [
    "Abort",
    "AbortCause",
    "ConversationStatus",
    "Diagnostic",
    "DrainReport",
    "Exchange",
    "FallbackAnswer",
    "FallbackRequest",
    "Memory",
    "Message",
    "Outcome",
    "Page",
    "Plan",
    "Responded",
    "Route",
    "RunResult",
    "RuntimeStatistics",
    "Status",
    "Step",
    "Stopped",
    "SubAgentOutcome",
    "ToolCall",
    "Usage",
    "Waiting",
]

AbortCause: TypeAlias = Literal["caller", "requested", "deadline", "shutdown"]
Status: TypeAlias = Literal["completed", "stopped", "error", "aborted"]
Route: TypeAlias = Literal["device", "cloud"]
StepStatus: TypeAlias = Literal["executed", "cached", "skipped", "failed", "unknown"]
SkipReason: TypeAlias = Literal["policy", "confirmation", "missing", "batch"]
Role: TypeAlias = Literal["system", "user", "assistant", "tool"]


@attrs.frozen
class ToolCall:
    """One call as the model wrote it. `arguments` is its text; `input` is the parsed object, once there is one."""

    id: str
    name: str
    arguments: str = "{}"
    input: Mapping[str, Any] | None = attrs.field(default=None, converter=freeze)


# Why converters with names: for `converter=tuple` type checkers do not see what a class may be made from.
def _calls(calls: Iterable[ToolCall]) -> tuple[ToolCall, ...]:
    return tuple(calls)


def _steps(steps: Iterable[Step]) -> tuple[Step, ...]:
    return tuple(steps)


def _exchanges(exchanges: Iterable[Exchange]) -> tuple[Exchange, ...]:
    return tuple(exchanges)


@attrs.frozen
class Message:
    """One message of a transcript or a request."""

    role: Role
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = attrs.field(default=(), converter=_calls)
    tool_call_id: str | None = None
    name: str | None = None


@attrs.frozen
class Plan:
    """What comes next. `kind` is `tool`, `answer` or `escalate` (Conductor), `tools` or `answer` (ToolLoop)."""

    kind: Literal["tool", "answer", "escalate", "tools"]
    brief: str = ""
    tool: str | None = None
    why: str | None = None
    calls: tuple[ToolCall, ...] = attrs.field(default=(), converter=_calls)
    text: str = ""


@attrs.frozen
class Step:
    """One entry of a run's step log: a tool attempt or an answer. `index` counts from 0 and is never restarted.

    Fields:
      status: `executed`; `cached`, an earlier result was used instead; `skipped`, it was not called; `failed`, it
        raised, or its result could not be had; `unknown`, it was begun and may have taken effect.
      skip_reason: of a skipped one: `policy`, an extension, which `extension` names, denied it; `confirmation`, it was
        declined; `missing`, values that the ask does not give; `batch`, another call of its batch was denied
        (ToolLoop).
      from_step: of a cached one, the `index` of the step that the result is from. Texts for the model count steps
        from 1: there index 0 is "step 1".
      result: what the model was told.
      output: the tool's raw output; it lives only as long as the run and never enters prompts, memory or events.
      writes: the tool may change data.
      text: of an answer, what was said.
    """

    index: int
    kind: Literal["tool", "answer"]
    brief: str = ""
    tool: str | None = None
    call_id: str | None = None
    input: Mapping[str, Any] | None = attrs.field(default=None, converter=freeze)
    status: StepStatus = "executed"
    skip_reason: SkipReason | None = None
    extension: str | None = None
    from_step: int | None = None
    result: str | None = None
    # Any: whatever the tool returned.
    output: Any = None
    writes: bool = False
    text: str | None = None


@attrs.frozen
class Exchange:
    """One remembered ask and answer. `at` is seconds since the epoch; `best_effort` flags an unfinished one."""

    ask: str
    answer: str
    at: float
    best_effort: bool = False
    steps: tuple[Step, ...] = attrs.field(default=(), converter=_steps)


@attrs.frozen
class Memory:
    """What a planned conversation keeps: a running summary and at most three recent exchanges."""

    summary: str = ""
    recent: tuple[Exchange, ...] = attrs.field(default=(), converter=_exchanges)


@attrs.frozen
class Usage:
    """Tokens of a call, or the sum over a run's calls. `estimated`: a provider did not report all of them."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    estimated: bool = False

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.estimated or other.estimated,
        )


@attrs.frozen
class FallbackRequest:
    """What the second brain gets. `reason` is the escalation reason; `error` says more where there is more."""

    ask: str
    summary: str = ""
    recent: tuple[Exchange, ...] = attrs.field(default=(), converter=_exchanges)
    steps: tuple[Step, ...] = attrs.field(default=(), converter=_steps)
    reason: str = ""
    error: str | None = None


@attrs.frozen
class FallbackAnswer:
    """The second brain's reply."""

    text: str


@attrs.frozen
class Stopped:
    """Who ended the run with a `Stop`, where and why."""

    extension: str
    phase: str
    reason: str


@attrs.frozen
class Responded:
    """Who answered in the model's place with a `Respond`, where, why, and with what outcome word."""

    extension: str
    phase: str
    reason: str
    outcome: str


@attrs.frozen
class Diagnostic:
    """A failure that changed nothing: an observer's, a lenient extension's, or one of an application's callables.

    Fields:
      extension: the extension's name; of a tool's callables the tool's name; of event callbacks `on_event`; of an error
        that an abort replaced on its way out `run`.
      phase: the row's name. What is no hook has the name that it is given under: `on_event`, `to_model_output`,
        `on_output`, `resolve_input`, `snapshot`, and `tool` for a tool itself. With `run`: the phase that it was in.
      error: what was raised; the single error of a group is itself.
      about: which one, where there are many: the event's kind, or the call's id.
    """

    extension: str
    phase: str
    error: BaseException
    about: str = ""


@attrs.frozen
class Waiting:
    """A call that waits for a person. `kind` is `approval` or `question`."""

    call_id: str
    tool: str
    input: Mapping[str, Any] = attrs.field(converter=freeze)
    payload: Any = None
    kind: Literal["approval", "question"] = "question"


@attrs.frozen
class Abort:
    """Why a run's scope ended it, and in which phase it stood."""

    cause: AbortCause
    reason: str = ""
    phase: str | None = None


# `trace` holds events; they live a floor above, hence Any.
@attrs.frozen
class RunResult:
    """How a run ended well. `text` is never empty without a `reason`.

    Fields:
      status: `completed`, or `stopped` by an extension. Runs that failed or were aborted raise instead.
      text: the answer as it was shown and saved.
      output: the typed value, if the agent or the ask has an `output` type and the answer fits; else None.
      handled_by: `device`, the agent's own model, or `cloud`, its fallback.
      reason: why the loop gave up, the first reason if there were several; None if it did not.
      error: more about that reason, such as what the provider said, as in the `Escalate` event.
      best_effort: the text is the best that could be had after the loop gave up, and no full answer.
      steps: the log of tool attempts and answers, in order.
      trace: every event but text deltas.
      stopped: who stopped it, where and why.
      responded: who answered in the model's place, where and why.
      waiting: what the run waits for (ToolLoop).
      usage: tokens of all model calls together; `estimated` if a provider did not count.
      diagnostics: what observers and lenient extensions raised. It changed nothing about the run.
    """

    run_id: str
    conversation_id: str | None
    status: Literal["completed", "stopped"] = "completed"
    text: str = ""
    output: Any = None
    handled_by: Route = "device"
    reason: str | None = None
    best_effort: bool = False
    steps: tuple[Step, ...] = ()
    trace: tuple[Any, ...] = ()
    stopped: Stopped | None = None
    responded: Responded | None = None
    waiting: tuple[Waiting, ...] = ()
    usage: Usage = Usage()
    diagnostics: tuple[Diagnostic, ...] = ()
    error: str | None = None


@attrs.frozen
class Outcome:
    """What `on_finish` sees, and what `Run.outcome` keeps."""

    status: Status
    result: RunResult | None = None
    error: BaseException | None = None
    origin: str | None = None
    abort: Abort | None = None
    steps: tuple[Step, ...] = ()
    trace: tuple[Any, ...] = ()
    usage: Usage = Usage()


@attrs.frozen
class SubAgentOutcome:
    """How the run of an agent that was called as a tool ended: what `after_tool` sees of it.

    It is the `output` of an executed call; of one that failed it hangs on the error (`AgentFailed.outcome`).

    Fields:
      agent, conversation_id, run_id: which agent it was, and where its own history and events are found.
      status: `completed`, `stopped`, `error`, `aborted`; `waiting`, it waits for a person.
      text, output: its answer, and the typed value of one.
      reason: why it has no full answer: of a stop, an escalation, an abort (its cause), an error (its type).
      error: what it raised, as the same object.
      waiting: what it waits for.
      usage: tokens of its own model calls. They are no part of the calling run's usage.
      wrote: one of its tools has changed data, or may have.
    """

    agent: str
    conversation_id: str | None
    run_id: str
    status: Literal["completed", "stopped", "error", "aborted", "waiting"] = "completed"
    text: str = ""
    # Any: whatever type the agent's `output` names.
    output: Any = None
    reason: str = ""
    error: BaseException | None = None
    waiting: tuple[Waiting, ...] = ()
    usage: Usage = Usage()
    wrote: bool = False


@attrs.frozen
class Page:
    """A page of history, oldest entry first. `anchor` fixes what paging sees; `next` continues it, None at the end."""

    entries: Sequence[Any]
    anchor: int
    next: int | None = None


@attrs.frozen
class DrainReport:
    """What a drain did: runs that finished by themselves, and runs that it aborted."""

    finished: int
    aborted: int


@attrs.frozen
class ConversationStatus:
    """What a conversation does now. Times are seconds on trio's clock; `phase` as in `plan`, `tool:create_task`."""

    run_id: str | None = None
    phase: str | None = None
    since: float | None = None
    waiting: int = 0
    oldest_wait: float | None = None


@attrs.frozen
class RuntimeStatistics:
    """Counts of one runtime. accepted = completed + stopped + errors + aborted + running + waiting, at any time."""

    conversations: int
    running: int
    waiting: int
    accepted: int
    completed: int
    stopped: int
    errors: int
    aborted: int
