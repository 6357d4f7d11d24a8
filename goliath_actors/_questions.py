"""What hooks are asked: one question a row, and the control that `transform_stream` gets.

`hooks.py` exports all of these.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Generic, Literal, NoReturn, Protocol, TypeVar

import attrs

from ._frozen import thaw
from .abc import ModelRequest
from .threads import StepThread
from .tools import ToolDescriptor, ToolOutcome
from .values import (
    Diagnostic,
    Exchange,
    FallbackRequest,
    Memory,
    Message,
    Outcome,
    Plan,
    Step,
    ToolCall,
    Usage,
)

T = TypeVar("T")


# Why copies on first access: most hooks look at one field, and copying a large tool input for a hook that never reads
# it is work for nobody. A container field `x` is stored as `_x`; the property makes this hook's own copy.


class _OwnCopy(Generic[T]):
    """A container field of a question: `x` reads `_x` through a copy that belongs to this hook alone."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._raw = f"_{name}"
        self.__doc__ = f"This hook's own copy of `{name}`, made on first access."

    def __get__(self, instance: Any, owner: type[Any] | None = None) -> T:
        if instance is None:
            return self  # type: ignore[return-value]  # on the class itself: the descriptor, as properties do
        own = instance._own
        if own is None:
            own = {}
            object.__setattr__(instance, "_own", own)
        if self._name not in own:
            value = getattr(instance, self._raw)
            if isinstance(value, ToolOutcome):
                own[self._name] = attrs.evolve(value, output=thaw(value.output))
            else:
                own[self._name] = thaw(value)
        copy: T = own[self._name]
        return copy


@attrs.frozen(eq=False)
class Question:
    """Base of all questions. A hook gets one of its own; what it does to containers in it changes nothing."""

    _own: dict[str, Any] | None = attrs.field(default=None, init=False, repr=False)

    def fork(self) -> Question:
        """Return a question for another hook, sharing nothing that can be changed: itself, if it is frozen through
        and through, else one with the same fields and no copies made yet."""
        cls: Any = type(self)  # Any: a class is hashable, whatever the class says of its instances
        if not _has_containers(cls):
            return self
        new: Question = object.__new__(cls)
        put = object.__setattr__
        for name in _field_names(cls):
            put(new, name, getattr(self, name))
        put(new, "_own", None)
        return new


@functools.cache
def _has_containers(cls: type[Any]) -> bool:
    return any(isinstance(value, _OwnCopy) for value in vars(cls).values())


@functools.cache
def _field_names(cls: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in attrs.fields(cls))


@attrs.frozen(eq=False)
class BeforeRun(Question):
    """A run begins. `entry` is `run`, `resume` or `steer`."""

    ask: str
    instructions: str
    _facts: Mapping[str, str] = attrs.field(alias="facts")
    entry: Literal["run", "resume", "steer"] = "run"
    # Names of all the agent's tools, so that a filter with a misspelt name is an error (H9).
    _known: frozenset[str] = attrs.field(default=frozenset(), alias="known", repr=False)
    facts = _OwnCopy[dict[str, str]]("facts")


@attrs.frozen(eq=False)
class AfterRecall(Question):
    """Memory as loaded. An answer is a view for this run; what is stored stays."""

    memory: Memory


@attrs.frozen(eq=False)
class ResolveContext(Question):
    """A step's model context is being composed. `messages` is None until `call_next` has run."""

    messages: tuple[Message, ...] | None = None
    history: tuple[Message, ...] = ()
    # None only where a test makes the question by hand.
    thread: StepThread | None = None
    # True where messages for this run only come behind the context, so that it may be empty.
    _overlaid: bool = attrs.field(default=False, alias="overlaid", repr=False)


@attrs.frozen(eq=False)
class BeforePlan(Question):
    """A planning attempt begins. `attempt` counts from 0 within a step."""

    ask: str
    tools: tuple[ToolDescriptor, ...]
    context_text: str
    steps: tuple[Step, ...]
    attempt: int
    _known: frozenset[str] = attrs.field(default=frozenset(), alias="known", repr=False)


@attrs.frozen(eq=False)
class BeforeRequest(Question):
    """Messages about to be sent, for this attempt only."""

    messages: tuple[Message, ...]
    role: str
    attempt: int


@attrs.frozen(eq=False)
class AroundModel(Question):
    """One attempt of a model call. `model` is the name of the model that is about to be asked."""

    request: ModelRequest
    attempt: int
    model: str = ""


@attrs.frozen(eq=False)
class TransformStream(Question):
    """A reply streams."""

    role: str


@attrs.frozen(eq=False)
class AfterResponse(Question):
    """A terminal provider message, or the error in its place. `model` is the name of the model that it came from."""

    role: str
    message: Message | None = None
    error: BaseException | None = None
    usage: Usage | None = None
    model: str = ""


@attrs.frozen(eq=False)
class AfterPlan(Question):
    """A valid plan, before any gate."""

    plan: Plan
    tools: tuple[ToolDescriptor, ...]
    steps: tuple[Step, ...]
    attempt: int
    # True for an assembled message of the native tool loop: another plan must be one, too.
    _native: bool = attrs.field(default=False, alias="native", repr=False)


@attrs.frozen(eq=False)
class BeforeTool(Question):
    """Arguments are valid; nothing was looked up in the cache, confirmed or executed yet."""

    call_id: str
    tool: ToolDescriptor
    _input: Mapping[str, Any] = attrs.field(alias="input")
    brief: str
    steps: tuple[Step, ...]
    # Set by the tool room: validates and transforms a replacement by the tool's own schema.
    _check: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = attrs.field(
        default=None, alias="check", repr=False
    )
    input = _OwnCopy[dict[str, Any]]("input")


@attrs.frozen(eq=False)
class AroundTool(Question):
    """One execution."""

    call_id: str
    tool: ToolDescriptor
    _input: Mapping[str, Any] = attrs.field(alias="input")
    input = _OwnCopy[dict[str, Any]]("input")


@attrs.frozen(eq=False)
class AfterTool(Question):
    """A tool attempt ended, whatever way. `steps` are those before it."""

    call_id: str
    tool: ToolDescriptor
    _input: Mapping[str, Any] = attrs.field(alias="input")
    result: str
    _outcome: ToolOutcome = attrs.field(alias="outcome")
    steps: tuple[Step, ...]
    input = _OwnCopy[dict[str, Any]]("input")
    outcome = _OwnCopy[ToolOutcome]("outcome")


@attrs.frozen(eq=False)
class AfterTools(Question):
    """Every tool of a round is terminal; calls and results in call order."""

    calls: tuple[ToolCall, ...]
    results: tuple[str, ...]


@attrs.frozen(eq=False)
class AfterStep(Question):
    """A tool-loop step is assembled, before its transition."""

    step: Plan
    is_final: bool


@attrs.frozen(eq=False)
class BeforeFallback(Question):
    """A fallback is about to be called. Changing the request leaves the local log and memory alone."""

    request: FallbackRequest


@attrs.frozen(eq=False)
class AfterAnswer(Question):
    """A non-blank final answer, before its event, its step and its saving."""

    text: str
    handled_by: Literal["device", "cloud"]
    best_effort: bool
    steps: tuple[Step, ...]


@attrs.frozen(eq=False)
class BeforeAppend(Question):
    """A message is about to be stored."""

    message: Message


@attrs.frozen(eq=False)
class BeforeCompact(Question):
    """A range was chosen for compaction: first and last entry id."""

    range: tuple[str, str]
    messages: tuple[Message, ...]
    reason: str
    instructions: str | None = None


@attrs.frozen(eq=False)
class BeforeRemember(Question):
    """Candidate memory, and the exchange that is new in it."""

    memory: Memory
    exchange: Exchange


@attrs.frozen(eq=False)
class BeforeRewrite(Question):
    """History is about to be rewritten: `regenerate`, `retry` or `visibility`."""

    kind: str
    _changes: Mapping[str, Any] = attrs.field(alias="changes")
    changes = _OwnCopy[dict[str, Any]]("changes")


@attrs.frozen(eq=False)
class AfterRewrite(Question):
    """History was rewritten."""

    kind: str
    _changes: Mapping[str, Any] = attrs.field(alias="changes")
    changes = _OwnCopy[dict[str, Any]]("changes")


@attrs.frozen(eq=False)
class OnError(Question):
    """The run failed or was aborted. `error` is the original object."""

    error: BaseException
    origin: str
    steps: tuple[Step, ...]
    trace: tuple[Any, ...]


@attrs.frozen(eq=False)
class OnFinish(Question):
    """The run is over. `diagnostics` are those so far."""

    outcome: Outcome
    diagnostics: tuple[Diagnostic, ...]


class StreamControl(Protocol):
    """What a `transform_stream` may do besides letting events through. Neither method returns to the transform."""

    async def abort(self, reason: str, outcome: str = "blocked", replacement: str = "") -> NoReturn:
        """End the reply here with `replacement`; text that is already out is retracted."""
        ...

    async def retry(self, feedback: str) -> NoReturn:
        """Reject the reply; the model is told `feedback`, within `hook_retries`."""
        ...
