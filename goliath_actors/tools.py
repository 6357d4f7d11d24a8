"""Tools: what a model may ask for, and what a person may be asked about.

Floor 1½. `@tool` makes a `Tool` from a function; `Tool(...)` by hand takes a JSON schema.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import attrs

__all__ = [
    "CheckedInput",
    "ConfirmRequest",
    "Confirmed",
    "Suspend",
    "Tool",
    "ToolContext",
    "ToolDescriptor",
    "ToolOutcome",
    "approve_all",
    "tool",
]

# Any as a default lets applications without a context type leave it out.
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
    """What a confirmation callback is asked. `input` is a copy: changing it changes nothing."""

    call_id: str
    tool: ToolDescriptor
    input: dict[str, Any]
    brief: str
    run_id: str
    conversation_id: str | None
    context: Any = None


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


class Tool: ...
