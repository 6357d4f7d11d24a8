"""The one typed hook table, and `Extension`.

Floor 1½, on top. The dispatcher (`_panel.py`) knows compositions, never rows: everything else is read off `HOOKS`.
"""

from __future__ import annotations

import enum
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias

import attrs

from ._questions import (
    AfterAnswer,
    AfterPlan,
    AfterRecall,
    AfterResponse,
    AfterRewrite,
    AfterStep,
    AfterTool,
    AfterTools,
    AroundModel,
    AroundTool,
    Ask,
    BeforeAppend,
    BeforeCompact,
    BeforeFallback,
    BeforePlan,
    BeforeRemember,
    BeforeRequest,
    BeforeRewrite,
    BeforeRun,
    BeforeTool,
    Complete,
    Continue,
    Decline,
    Deny,
    MetadataPatch,
    ModelPatch,
    NextStep,
    OnError,
    OnFinish,
    PlanPatch,
    Question,
    ResolveContext,
    Respond,
    Retry,
    RunPatch,
    Skip,
    Stop,
    StreamControl,
    TransformStream,
)
from .abc import ModelEvent, ModelResponse
from .tools import Tool
from .values import Exchange, FallbackRequest, Memory, Message, Plan, Step

__all__ = [
    "HOOKS",
    "AfterAnswer",
    "AfterPlan",
    "AfterRecall",
    "AfterResponse",
    "AfterRewrite",
    "AfterStep",
    "AfterTool",
    "AfterTools",
    "AroundModel",
    "AroundTool",
    "Ask",
    "BeforeAppend",
    "BeforeCompact",
    "BeforeFallback",
    "BeforePlan",
    "BeforeRemember",
    "BeforeRequest",
    "BeforeRewrite",
    "BeforeRun",
    "BeforeTool",
    "Complete",
    "Composition",
    "Continue",
    "Decline",
    "Deny",
    "Extension",
    "HookContext",
    "MetadataPatch",
    "ModelPatch",
    "NextStep",
    "OnError",
    "OnFinish",
    "PlanPatch",
    "Question",
    "ResolveContext",
    "Respond",
    "Retry",
    "Row",
    "RunPatch",
    "Skip",
    "Stop",
    "StreamControl",
    "TransformStream",
]

if TYPE_CHECKING:
    # With a default, an `Extension` may be named without its context type; typing has none before Python 3.13.
    from typing_extensions import TypeVar

    C = TypeVar("C", default=Any)
    C_co = TypeVar("C_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    C = TypeVar("C")
    C_co = TypeVar("C_co", covariant=True)
T = TypeVar("T")
MaybeAwaitable: TypeAlias = T | Awaitable[T]


# --- the hook context -----------------------------------------------------------------------------------------------


class HookContext(Protocol[C_co]):
    """What every hook gets beside its question."""

    @property
    def run_id(self) -> str:
        """The run's id."""
        ...

    @property
    def conversation_id(self) -> str | None:
        """None in the default conversation."""
        ...

    @property
    def ask(self) -> str:
        """The ask as it was accepted."""
        ...

    @property
    def agent_name(self) -> str:
        """Name of the agent."""
        ...

    @property
    def context(self) -> C_co:
        """The application's object, never copied."""
        ...

    @property
    def state(self) -> dict[str, Any]:
        """Private to this extension and this run; never serialised."""
        ...

    @property
    def abort_requested(self) -> bool:
        """True once the run is to end."""
        ...

    def submit(self, ask: str, **options: Any) -> Any:
        """Submit another ask, as `Runtime.submit` does; returns its `Run`. Never waits, so always allowed."""
        ...


# --- extensions -----------------------------------------------------------------------------------------------------


class Extension(Generic[C]):
    """A named object with optional hooks, tools, prompt text and lifespan.

    Override what you need; every hook may be a plain or an async method. A hook answers with the value to use
    instead, a verdict, or None for no opinion. Keep per-run data in `ctx.state`, never on the extension.

    Four attributes and two methods are read by the runtime, beside the hooks, so that their names are taken: an
    extension that sets `self.tools` to something of its own sets its tools.

    Fields:
      name: with text in it, and unique within an agent. Diagnostics, denials and errors name it.
      lenient: a failing hook is passed over and reported, where the table allows it.
      tools: tools that the agent has because of this extension.
      instructions: a text that is added to the agent's own in every prompt.

    A hook that raises fails the run with `GoliathExtensionError`, except in rows that only observe. With
    `lenient = True` a failing hook is skipped and reported (in `before_tool`: the call is denied), where the table
    allows it.
    """

    name: str = ""
    lenient: bool = False
    tools: Sequence[Tool] = ()
    instructions: str = ""

    def snapshot(self) -> Sequence[Any]:
        """Return events that a late subscriber of a run gets first, and nobody else."""
        return ()

    def lifespan(self, agent: Any) -> AbstractAsyncContextManager[Any] | None:
        """Return a context manager that the runtime enters when it opens and leaves, in reverse order, when it closes.

        Cancellation: an entered lifespan is always left, under a shield of the runtime's.
        """
        return None

    def before_run(self, ctx: HookContext[C], question: BeforeRun) -> MaybeAwaitable[RunPatch | Stop | Respond | None]:
        """A run begins, before memory is loaded."""

    def after_recall(self, ctx: HookContext[C], question: AfterRecall) -> MaybeAwaitable[Memory | None]:
        """Memory was loaded; an answer is this run's view of it."""

    def resolve_context(
        self,
        ctx: HookContext[C],
        question: ResolveContext,
        call_next: Callable[..., Awaitable[tuple[Message, ...]]],
    ) -> MaybeAwaitable[Sequence[Message] | None]:
        """Compose the messages of a tool-loop step around `call_next(base=None)`."""

    def before_plan(self, ctx: HookContext[C], question: BeforePlan) -> MaybeAwaitable[PlanPatch | None]:
        """A planning attempt or a tool-loop step begins."""

    def before_request(self, ctx: HookContext[C], question: BeforeRequest) -> MaybeAwaitable[Sequence[Message] | None]:
        """Messages are about to be sent; an answer replaces them for this request only."""

    def around_model(
        self, ctx: HookContext[C], question: AroundModel, call_next: Callable[..., Awaitable[ModelResponse]]
    ) -> MaybeAwaitable[ModelResponse | None]:
        """One attempt of a model call; `call_next(patch=None)` makes it and returns the assembled response."""

    def transform_stream(
        self, ctx: HookContext[C], events: AsyncIterator[ModelEvent], control: StreamControl
    ) -> AsyncIterator[ModelEvent] | None:
        """Rewrite a streamed reply; what is let through is what is shown, stored and returned."""

    def after_response(self, ctx: HookContext[C], question: AfterResponse) -> MaybeAwaitable[None]:
        """A provider message is terminal, also a failed one."""

    def after_plan(
        self, ctx: HookContext[C], question: AfterPlan
    ) -> MaybeAwaitable[Plan | Stop | Respond | Retry | None]:
        """A valid plan stands, before any gate."""

    def before_tool(
        self, ctx: HookContext[C], question: BeforeTool
    ) -> MaybeAwaitable[Mapping[str, Any] | Deny | Ask | Stop | None]:
        """Arguments are valid; a mapping replaces them and is validated by the tool's schema."""

    def around_tool(
        self, ctx: HookContext[C], question: AroundTool, call_next: Callable[[], Awaitable[Any]]
    ) -> MaybeAwaitable[Any]:
        """One execution; what it returns is the tool's output."""

    def after_tool(self, ctx: HookContext[C], question: AfterTool) -> MaybeAwaitable[str | None]:
        """A tool attempt ended; an answer replaces the text that the model is told."""

    def after_tools(self, ctx: HookContext[C], question: AfterTools) -> MaybeAwaitable[None]:
        """Every tool of a round is terminal."""

    def after_step(
        self, ctx: HookContext[C], question: AfterStep
    ) -> MaybeAwaitable[NextStep | Complete | Continue | None]:
        """A tool-loop step is assembled; decide how it goes on."""

    def before_fallback(
        self, ctx: HookContext[C], question: BeforeFallback
    ) -> MaybeAwaitable[FallbackRequest | Stop | None]:
        """A fallback is about to be called; an answer replaces the request, reason unchanged."""

    def after_answer(self, ctx: HookContext[C], question: AfterAnswer) -> MaybeAwaitable[str | Stop | None]:
        """A non-blank final answer exists, of the model, a fallback or a `Respond`; what streamed of it is out."""

    def before_append(self, ctx: HookContext[C], question: BeforeAppend) -> MaybeAwaitable[Message | None]:
        """A message is about to be stored."""

    def before_compact(self, ctx: HookContext[C], question: BeforeCompact) -> MaybeAwaitable[Decline | str | None]:
        """A range was chosen; decline, or give the summary."""

    def before_remember(self, ctx: HookContext[C], question: BeforeRemember) -> MaybeAwaitable[Memory | Skip | None]:
        """Candidate memory is about to be saved."""

    def before_rewrite(self, ctx: HookContext[C], question: BeforeRewrite) -> MaybeAwaitable[MetadataPatch | None]:
        """History is about to be rewritten; a patch goes into the same commit."""

    def after_rewrite(self, ctx: HookContext[C], question: AfterRewrite) -> MaybeAwaitable[None]:
        """History was rewritten."""

    def on_error(self, ctx: HookContext[C], question: OnError) -> MaybeAwaitable[None]:
        """The run failed or was aborted. Runs under a shield, before every `on_finish`."""

    def on_finish(self, ctx: HookContext[C], question: OnFinish) -> MaybeAwaitable[None]:
        """The run is over, any way. Runs under a shield, exactly once."""


# --- the table ------------------------------------------------------------------------------------------------------


class Composition(enum.Enum):
    """How the answers of several extensions become one."""

    MERGE = "merge"
    CHAIN = "chain"
    FIRST = "first"
    NEST = "nest"
    PIPE = "pipe"
    OBSERVE = "observe"


@attrs.frozen
class Row:
    """One hook.

    `field` is the question's field that an answer replaces (chain); `merge` folds a patch into the question and gives
    the patch with only what may be applied (merge); `check` validates and converts one answer, raising `ValueError`
    or an error of its own; `ends` are the verdicts that end the row at once; `beats` the one that wins wherever it
    stands (first); `answers` what may be returned besides None and `words` that in words, where type names say too
    little; `asked_by` the loops that ask it; `lenient` what
    becomes of a lenient extension's failure; `shielded` rows run after the run's scope.
    """

    name: str
    when: str
    question: type[Question]
    answers: tuple[type, ...]
    composition: Composition
    asked_by: frozenset[str]
    lenient: Literal["skip", "deny"] | None = None
    field: str | None = None
    ends: tuple[type, ...] = ()
    beats: type | None = None
    # Any: each row's own question and answer types; the table's test pairs them up.
    check: Callable[[Any, Any], Any] | None = None
    merge: Callable[[Any, Any], tuple[Any, Any]] | None = None
    shielded: bool = False
    words: str = ""


def _need(what: str, value: object, kinds: type | tuple[type, ...], *fields: str) -> None:
    """Refuse an answered value one of whose fields is of a wrong kind: it would fail far from the hook that made it."""
    for name in fields:
        item = getattr(value, name)
        if not isinstance(item, kinds) or (isinstance(item, bool) and kinds is not bool):
            raise ValueError(f"{what}.{name} is of type {type(item).__name__}")


def _text(question: object, answer: str) -> str:
    if not answer.strip():
        raise ValueError("the text is blank")
    return answer


def _messages(question: object, answer: Sequence[Message]) -> tuple[Message, ...]:
    messages = tuple(answer)
    for message in messages:
        if not isinstance(message, Message):
            raise ValueError(f"a list of Message is wanted, it holds {type(message).__name__}")
    if not messages:
        raise ValueError("the list of messages is empty")
    return messages


def _or(check: Callable[[Any, Any], Any], *verdicts: type) -> Callable[[Any, Any], Any]:
    def run(question: Any, answer: Any) -> Any:
        return answer if isinstance(answer, verdicts) else check(question, answer)

    return run


def _strings(name: str, value: Mapping[Any, Any]) -> dict[str, str]:
    for key, item in value.items():
        if not isinstance(key, str) or not isinstance(item, str):
            raise ValueError(f"{name} must map strings to strings, not {key!r} to {type(item).__name__}")
    return dict(value)


def _patch_fields(patch: RunPatch | PlanPatch, known: frozenset[str]) -> None:
    if patch.messages is not None:
        _messages(None, patch.messages)
    if patch.tools is not None and (
        isinstance(patch.tools, str) or any(not isinstance(name, str) for name in patch.tools)
    ):
        raise ValueError("tools must be a list of tool names")
    if patch.tools is not None and (unknown := sorted(set(patch.tools) - known)):
        raise ValueError(f"no tool of this agent is called {', '.join(map(repr, unknown))}")
    for name in ("settings", "provider_options"):
        value = getattr(patch, name)
        if value is not None and not isinstance(value, Mapping):
            raise ValueError(f"{name} must be a mapping, not {type(value).__name__}")
    if patch.model is not None and not callable(getattr(patch.model, "stream", None)):
        raise ValueError(f"model must be a Model, not {type(patch.model).__name__}")


def _check_run_patch(question: BeforeRun, answer: RunPatch) -> RunPatch:
    if answer.ask is not None and (not isinstance(answer.ask, str) or not answer.ask.strip()):
        raise ValueError("ask must be a string with text in it")
    if answer.instructions is not None and not isinstance(answer.instructions, str):
        raise ValueError("instructions must be a string")
    if answer.facts is not None:
        if not isinstance(answer.facts, Mapping):
            raise ValueError("facts must be a mapping")
        _strings("facts", answer.facts)
    _patch_fields(answer, question._known)
    return answer


def _merge_run_patch(question: BeforeRun, patch: RunPatch) -> tuple[BeforeRun, RunPatch]:
    merged = BeforeRun(
        ask=question.ask if patch.ask is None else patch.ask,
        instructions=question.instructions if patch.instructions is None else patch.instructions,
        facts=question._facts if patch.facts is None else {**question._facts, **patch.facts},
        entry=question.entry,
        known=question._known,
    )
    return merged, patch


def _check_plan_patch(question: BeforePlan, answer: PlanPatch) -> PlanPatch:
    if answer.context_text is not None and not isinstance(answer.context_text, str):
        raise ValueError("context_text must be a string")
    _patch_fields(answer, question._known)
    return answer


def _merge_plan_patch(question: BeforePlan, patch: PlanPatch) -> tuple[BeforePlan, PlanPatch]:
    tools = question.tools
    if patch.tools is not None:
        wanted = set(patch.tools)
        tools = tuple(tool for tool in tools if tool.name in wanted)
    context_text = question.context_text if patch.context_text is None else patch.context_text
    return attrs.evolve(question, tools=tools, context_text=context_text), patch


def _check_plan(question: AfterPlan, answer: Plan) -> Plan:
    names = {tool.name for tool in question.tools}
    _need("plan", answer, str, "brief", "text")
    _need("plan", answer, (str, type(None)), "tool", "why")
    if question._native:
        return _check_native_plan(question, answer, names)
    if answer.kind == "tool" and answer.tool not in names:
        known = ", ".join(sorted(names)) or "none"
        raise ValueError(f"the plan names {answer.tool!r}, which is not available (available: {known})")
    if answer.kind not in ("tool", "answer", "escalate", "tools"):
        raise ValueError(f"{answer.kind!r} is no kind of plan")
    for call in answer.calls:
        if call.name not in names:
            raise ValueError(f"the plan calls {call.name!r}, which is not available")
    return answer


def _check_native_plan(question: AfterPlan, answer: Plan, names: set[str]) -> Plan:
    if answer.kind not in ("tools", "answer"):
        raise ValueError(f"a plan of the native tool loop is 'tools' or 'answer', not {answer.kind!r}")
    if answer.kind == "tools" and not answer.calls:
        raise ValueError("a plan of kind 'tools' needs calls")
    if answer.kind == "answer" and (answer.calls or not answer.text.strip()):
        raise ValueError("a plan of kind 'answer' needs a text and no calls")
    # What the model made up is the model's to be told; a hook may not make up more.
    known = names | {call.name for call in question.plan.calls}
    for call in answer.calls:
        if call.name not in known:
            raise ValueError(f"the plan calls {call.name!r}, which is not available")
    return answer


def _check_append(question: BeforeAppend, answer: Message) -> Message:
    old = question.message
    if (answer.role, answer.tool_call_id) != (old.role, old.tool_call_id):
        raise ValueError("the role and the call id of a message must stay as they are")
    if answer.tool_calls != old.tool_calls:
        raise ValueError("the calls of a message must stay as they are; change them in after_plan")
    if not answer.text.strip() and old.text.strip():
        raise ValueError("the text is blank")
    return answer


def _check_input(question: BeforeTool, answer: Mapping[str, Any]) -> Mapping[str, Any]:
    if question._check is None:
        return dict(answer)
    return question._check(answer)


def _check_memory(question: object, answer: Memory) -> Memory:
    if not isinstance(answer.summary, str):
        raise ValueError(f"a memory's summary must be a string, not {type(answer.summary).__name__}")
    for exchange in answer.recent:
        if not isinstance(exchange, Exchange):
            raise ValueError(f"a memory's recent must hold exchanges, not {type(exchange).__name__}")
        _check_exchange("memory.recent", exchange)
    return answer


def _check_exchange(what: str, exchange: Exchange) -> None:
    _need(what, exchange, str, "ask", "answer")
    _need(what, exchange, (int, float), "at")
    if not math.isfinite(exchange.at):
        raise ValueError(f"{what}.at is {exchange.at}; use seconds since the epoch")
    _check_steps(what, exchange.steps)


def _check_steps(what: str, steps: Sequence[Step]) -> None:
    for step in steps:
        if not isinstance(step, Step):
            raise ValueError(f"{what}.steps must hold steps, not {type(step).__name__}")


def _check_request(question: BeforeFallback, answer: FallbackRequest) -> FallbackRequest:
    if answer.reason != question.request.reason:
        raise ValueError(f"the reason must stay {question.request.reason!r}")
    _need("request", answer, str, "ask", "summary")
    _need("request", answer, (str, type(None)), "error")
    for exchange in answer.recent:
        if not isinstance(exchange, Exchange):
            raise ValueError(f"request.recent must hold exchanges, not {type(exchange).__name__}")
        _check_exchange("request.recent", exchange)
    _check_steps("request", answer.steps)
    return answer


def _merge_metadata(question: BeforeRewrite, patch: MetadataPatch) -> tuple[BeforeRewrite, MetadataPatch]:
    return question, patch


_BOTH = frozenset({"Conductor", "ToolLoop"})
_CONDUCTOR = frozenset({"Conductor"})
_TOOLLOOP = frozenset({"ToolLoop"})
_MERGE, _CHAIN, _FIRST = Composition.MERGE, Composition.CHAIN, Composition.FIRST
_NEST, _PIPE, _OBSERVE = Composition.NEST, Composition.PIPE, Composition.OBSERVE

# fmt: off
_ROWS = (
    Row("before_run", "once a run, before recall", BeforeRun, (RunPatch, Stop, Respond), _MERGE, _BOTH, "skip",
        ends=(Stop, Respond), check=_or(_check_run_patch, Stop, Respond), merge=_merge_run_patch),
    Row("after_recall", "memory loaded", AfterRecall, (Memory,), _CHAIN, _CONDUCTOR, "skip", "memory",
        check=_check_memory, words="Memory, a view for this run"),
    Row("resolve_context", "each tool-loop step", ResolveContext, (Sequence,), _NEST, _TOOLLOOP,
        check=_messages, words="messages"),
    Row("before_plan", "each planning attempt or tool-loop step", BeforePlan, (PlanPatch,), _MERGE, _BOTH, "skip",
        check=_check_plan_patch, merge=_merge_plan_patch, words="PlanPatch (tools only narrow)"),
    Row("before_request", "each attempt of any model call", BeforeRequest, (Sequence,), _CHAIN, _BOTH, "skip",
        "messages", check=_messages, words="messages, for this request only"),
    Row("around_model", "each attempt", AroundModel, (ModelResponse,), _NEST, _BOTH),
    Row("transform_stream", "each streamed response (Conductor: answers only)", TransformStream, (), _PIPE, _BOTH,
        words="events"),
    Row("after_response", "each terminal provider message, failed ones too", AfterResponse, (), _OBSERVE, _BOTH),
    Row("after_plan", "a valid plan or an assembled assistant message, before any gate", AfterPlan,
        (Plan, Stop, Respond, Retry), _CHAIN, _BOTH, "skip", "plan", ends=(Stop, Respond, Retry),
        check=_or(_check_plan, Stop, Respond, Retry)),
    Row("before_tool", "arguments valid, before cache, confirm and execution", BeforeTool, (Mapping, Deny, Ask, Stop),
        _CHAIN, _BOTH, "deny", "input", ends=(Deny, Stop), check=_or(_check_input, Deny, Ask, Stop),
        words="new input · Deny · Ask (the chain goes on) · Stop"),
    Row("around_tool", "each execution", AroundTool, (object,), _NEST, _BOTH, words="output"),
    Row("after_tool", "each tool attempt, whatever its outcome", AfterTool, (str,), _CHAIN, _BOTH, "skip", "result",
        words="text"),
    Row("after_tools", "a round's tools are all terminal", AfterTools, (), _OBSERVE, _BOTH),
    Row("after_step", "a tool-loop step is assembled, before its transition", AfterStep,
        (NextStep, Complete, Continue), _FIRST, _TOOLLOOP, "skip", beats=Complete),
    Row("before_fallback", "a fallback is really about to be called", BeforeFallback, (FallbackRequest, Stop), _CHAIN,
        _CONDUCTOR, "skip", "request", ends=(Stop,), check=_or(_check_request, Stop)),
    Row("after_answer", "a non-blank final answer", AfterAnswer, (str, Stop), _CHAIN, _BOTH, "skip", "text",
        ends=(Stop,), check=_or(_text, Stop), words="text · Stop"),
    Row("before_append", "a message is about to be stored", BeforeAppend, (Message,), _CHAIN, _TOOLLOOP, None,
        "message", check=_check_append),
    Row("before_compact", "a range was chosen", BeforeCompact, (Decline, str), _FIRST, _TOOLLOOP, "skip",
        check=_or(_text, Decline), words="Decline · summary text"),
    Row("before_remember", "candidate memory", BeforeRemember, (Memory, Skip), _CHAIN, _CONDUCTOR, "skip", "memory",
        ends=(Skip,), check=_or(_check_memory, Skip)),
    Row("before_rewrite", "regenerate, retry or visibility change", BeforeRewrite, (MetadataPatch,), _MERGE, _TOOLLOOP,
        merge=_merge_metadata, words="MetadataPatch, in the same commit"),
    Row("after_rewrite", "a rewrite was committed", AfterRewrite, (), _OBSERVE, _TOOLLOOP),
    Row("on_error", "the run failed or was aborted", OnError, (), _OBSERVE, _BOTH, shielded=True),
    Row("on_finish", "the run is over, any way", OnFinish, (), _OBSERVE, _BOTH, shielded=True),
)
# fmt: on

HOOKS: Mapping[str, Row] = {row.name: row for row in _ROWS}
"""The hook table: every row by its name, in the order in which a run can ask them."""
