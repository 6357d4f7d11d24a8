"""What goes to a tool and comes from it: descriptors, outcomes, confirmations, and the context of a call.

`tools.py` exports what is promised of these.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, cast, final

import attrs

from ._frozen import FrozenDict
from .errors import ConfigError
from .values import Exchange, Outcome, Step, _exchanges, _steps

__all__ = [
    "CheckedInput",
    "ConfirmRequest",
    "Confirmed",
    "Delegating",
    "Suspend",
    "ToolContext",
    "ToolDescriptor",
    "ToolOutcome",
    "approve_all",
]

# Any, below: the application's context, what its tools take and return, and JSON data.
if TYPE_CHECKING:
    # With a default, a `ToolContext` may be named without its context type; typing has none before Python 3.13.
    from typing_extensions import TypeVar

    C = TypeVar("C", default=Any)
else:
    from typing import TypeVar

    C = TypeVar("C")


@attrs.frozen
class ToolDescriptor:
    """A tool as hooks and confirmations see it: nothing executable."""

    name: str
    description: str
    writes: bool = False


@attrs.frozen
class ToolOutcome:
    """How a tool attempt ended. `output` is the raw output of an `executed` one; `reason` the skip reason."""

    status: Literal["executed", "cached", "skipped", "failed", "unknown"]
    # Any: whatever the tool returned.
    output: Any = None
    from_step: int | None = None
    reason: str | None = None
    extension: str | None = None
    error: BaseException | None = None


@attrs.frozen
class ConfirmRequest:
    """What a confirmation callback is asked. `input` is a copy: changing it changes nothing; `agent` is the name of the
    agent that has the tool."""

    call_id: str
    tool: ToolDescriptor
    input: dict[str, Any]
    brief: str
    run_id: str
    conversation_id: str | None
    context: Any = None
    agent: str = ""


@attrs.frozen
class Confirmed:
    """An answer to a confirmation, with a reason that the model is told."""

    approved: bool
    reason: str = ""


@attrs.frozen
class Suspend:
    """Let the run wait for the approval instead of the callback (native tool loop)."""

    payload: Any = None


def approve_all(request: ConfirmRequest) -> bool:
    """A `confirm` that approves everything. Naming it is how an application says that it means it."""
    return True


# --- what a tool gets -----------------------------------------------------------------------------------------------


class Delegating(Protocol):
    """How a tool that is an agent has it run, as a child of the run that called it. A runtime is one."""

    async def delegate(
        self, agent: Any, conversation_id: str, ask: str, context: Any, answers: Mapping[str, Any] | None
    ) -> tuple[str, Outcome]:
        """Run one ask, or take up waiting calls with `answers`, and wait for the end.

        Returns: the run's id, and how it ended.

        Raises: what refuses an ask. What the run raised is in its outcome.

        Cancellation: aborts the run, and goes on once its observers were told.
        """
        ...


@final
@attrs.frozen(eq=False, kw_only=True)
class ToolContext(Generic[C]):
    """What a tool may know and do besides its arguments. Read-only; made by the runtime, or by a test with defaults.

    `context` is the application's object of this run; `steps` are the run's steps so far, `recent` the remembered
    exchanges; `result_budget` is what a result may take in tokens, in content mode.
    """

    context: C = attrs.field(default=cast(Any, None))
    run_id: str = "run"
    conversation_id: str | None = None
    call_id: str = "call"
    steps: tuple[Step, ...] = attrs.field(default=(), converter=_steps)
    recent: tuple[Exchange, ...] = attrs.field(default=(), converter=_exchanges)
    result_budget: int = 512
    # Aliases, since pyright does not know that attrs drops the underscore.
    _submit: Callable[..., Any] | None = attrs.field(default=None, repr=False, alias="submit")
    _suspend: Callable[[Any], Awaitable[Any]] | None = attrs.field(default=None, repr=False, alias="suspend")
    _report: Callable[[float, float | None, str], None] | None = attrs.field(default=None, repr=False, alias="report")
    # For agents as tools: how they are run; of a call that had waited, its answers so far and what it asked last.
    _delegating: Delegating | None = attrs.field(default=None, repr=False, alias="delegating")
    _answers: tuple[Any, ...] = attrs.field(default=(), repr=False, alias="answers")
    _asked: Any = attrs.field(default=None, repr=False, alias="asked")

    def submit(self, ask: str, **options: Any) -> Any:
        """Submit another ask, as `Runtime.submit` does, and return its `Run`. Never waits. Plain tools may, too.

        Raises: what `Runtime.submit` raises; ConfigError where no runtime stands behind this context.
        """
        if self._submit is None:
            raise ConfigError("submit: no runtime stands behind this context; pass `submit=` when making one by hand")
        return self._submit(ask, **options)

    async def suspend(self, payload: Any = None) -> Any:
        """Let the run wait for an answer from outside, holding no task; `payload` says what is asked.

        Returns: the answer, when the conversation is resumed; the tool is entered again from its beginning for that.

        Raises: ConfigError where the run cannot wait.

        Cancellation: passes; suspending itself ends the run in good order, nothing is left behind.
        """
        if self._suspend is None:
            raise ConfigError("suspend works only under a ToolLoop: a planned run cannot wait for an answer")
        return await self._suspend(payload)

    def report(self, progress: float, total: float | None = None, message: str = "") -> None:
        """Say how far the tool is: a `ToolProgress` event for whoever follows the run. Also from a plain tool's thread.

        Arguments: `progress` in a measure of the tool's own, up to `total` where that is known.

        Reports that come less than 0.1 s behind the one before are left out, and fewer are taken the longer a call
        lasts; so are those of a call that is over, and all where no run stands behind this context.

        Raises: ConfigError for numbers that are none.
        """
        for number in (progress, 0 if total is None else total):
            if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
                raise ConfigError(f"report takes finite numbers, not {number!r}")
        if self._report is not None:
            self._report(progress, total, str(message))


@attrs.frozen(eq=False)
class CheckedInput:
    """Arguments that fit. `data` is the plain, coerced JSON that is shown everywhere; `kwargs` are the typed values.

    `repairs` names the light repairs that a text needed before it could be read (rule P).
    """

    data: FrozenDict
    kwargs: Mapping[str, Any] = attrs.field(repr=False)
    repairs: tuple[str, ...] = ()
