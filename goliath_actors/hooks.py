"""The one typed hook table, and `Extension`: a typed method for every row of it.

The table itself is in `_table.py`; `HOOKS` is read from here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias

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
    BeforeAppend,
    BeforeCompact,
    BeforeFallback,
    BeforePlan,
    BeforeRemember,
    BeforeRequest,
    BeforeRewrite,
    BeforeRun,
    BeforeTool,
    OnError,
    OnFinish,
    Question,
    ResolveContext,
    StreamControl,
    TransformStream,
)
from ._table import HOOKS, Composition, Row
from ._verdicts import (
    Ask,
    Complete,
    Continue,
    Decline,
    Deny,
    MetadataPatch,
    ModelPatch,
    NextStep,
    PlanPatch,
    Respond,
    Retry,
    RunPatch,
    Skip,
    Stop,
)
from .abc import ModelEvent, ModelResponse
from .tools import Tool
from .values import FallbackRequest, Memory, Message, Plan

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
      tools: tools that the agent has because of this extension. As a property it is read anew as each run begins, for
        tools that are known only inside the lifespan.
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

    def before_run(
        self, ctx: HookContext[C], question: BeforeRun, /
    ) -> MaybeAwaitable[RunPatch | Stop | Respond | None]:
        """A run begins, before memory is loaded."""

    def after_recall(self, ctx: HookContext[C], question: AfterRecall, /) -> MaybeAwaitable[Memory | None]:
        """Memory was loaded; an answer is this run's view of it."""

    def resolve_context(
        self,
        ctx: HookContext[C],
        question: ResolveContext,
        call_next: Callable[..., Awaitable[tuple[Message, ...]]],
        /,
    ) -> MaybeAwaitable[Sequence[Message] | None]:
        """Compose the messages of a tool-loop step around `call_next(base=None)`."""

    def before_plan(self, ctx: HookContext[C], question: BeforePlan, /) -> MaybeAwaitable[PlanPatch | None]:
        """A planning attempt or a tool-loop step begins."""

    def before_request(
        self, ctx: HookContext[C], question: BeforeRequest, /
    ) -> MaybeAwaitable[Sequence[Message] | None]:
        """Messages are about to be sent; an answer replaces them for this request only."""

    def around_model(
        self, ctx: HookContext[C], question: AroundModel, call_next: Callable[..., Awaitable[ModelResponse]], /
    ) -> MaybeAwaitable[ModelResponse | None]:
        """One attempt of a model call; `call_next(patch=None)` makes it and returns the assembled response."""

    def transform_stream(
        self, ctx: HookContext[C], events: AsyncIterator[ModelEvent], control: StreamControl, /
    ) -> AsyncIterator[ModelEvent] | None:
        """Rewrite a streamed reply; what is let through is what is shown, stored and returned."""

    def after_response(self, ctx: HookContext[C], question: AfterResponse, /) -> MaybeAwaitable[None]:
        """A provider message is terminal, also a failed one."""

    def after_plan(
        self, ctx: HookContext[C], question: AfterPlan, /
    ) -> MaybeAwaitable[Plan | Stop | Respond | Retry | None]:
        """A valid plan stands, before any gate."""

    def before_tool(
        self, ctx: HookContext[C], question: BeforeTool, /
    ) -> MaybeAwaitable[Mapping[str, Any] | Deny | Ask | Stop | None]:
        """Arguments are valid; a mapping replaces them and is validated by the tool's schema."""

    def around_tool(
        self, ctx: HookContext[C], question: AroundTool, call_next: Callable[[], Awaitable[Any]], /
    ) -> MaybeAwaitable[Any]:
        """One execution; what it returns is the tool's output."""

    def after_tool(self, ctx: HookContext[C], question: AfterTool, /) -> MaybeAwaitable[str | None]:
        """A tool attempt ended; an answer replaces the text that the model is told."""

    def after_tools(self, ctx: HookContext[C], question: AfterTools, /) -> MaybeAwaitable[None]:
        """Every tool of a round is terminal."""

    def after_step(
        self, ctx: HookContext[C], question: AfterStep, /
    ) -> MaybeAwaitable[NextStep | Complete | Continue | None]:
        """A tool-loop step is assembled; decide how it goes on."""

    def before_fallback(
        self, ctx: HookContext[C], question: BeforeFallback, /
    ) -> MaybeAwaitable[FallbackRequest | Stop | None]:
        """A fallback is about to be called; an answer replaces the request, reason unchanged."""

    def after_answer(self, ctx: HookContext[C], question: AfterAnswer, /) -> MaybeAwaitable[str | Stop | None]:
        """A non-blank final answer exists, of the model, a fallback or a `Respond`; what streamed of it is out."""

    def before_append(self, ctx: HookContext[C], question: BeforeAppend, /) -> MaybeAwaitable[Message | None]:
        """A message is about to be stored."""

    def before_compact(self, ctx: HookContext[C], question: BeforeCompact, /) -> MaybeAwaitable[Decline | str | None]:
        """A range was chosen; decline, or give the summary."""

    def before_remember(self, ctx: HookContext[C], question: BeforeRemember, /) -> MaybeAwaitable[Memory | Skip | None]:
        """Candidate memory is about to be saved."""

    def before_rewrite(self, ctx: HookContext[C], question: BeforeRewrite, /) -> MaybeAwaitable[MetadataPatch | None]:
        """History is about to be rewritten; a patch goes into the same commit."""

    def after_rewrite(self, ctx: HookContext[C], question: AfterRewrite, /) -> MaybeAwaitable[None]:
        """History was rewritten."""

    def on_error(self, ctx: HookContext[C], question: OnError, /) -> MaybeAwaitable[None]:
        """The run failed or was aborted. Runs under a shield, before every `on_finish`."""

    def on_finish(self, ctx: HookContext[C], question: OnFinish, /) -> MaybeAwaitable[None]:
        """The run is over, any way. Runs under a shield, exactly once."""
