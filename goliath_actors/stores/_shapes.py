"""The shapes of what is written down, and the way from the words of the domain to them and back.

Structs of their own, so that the frozen words of the domain can grow without a migration: unknown fields are ignored,
missing ones get their default, defaults are not written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from goliath_actors.errors import StoreError
from goliath_actors.values import Exchange, Memory, Message, Step, ToolCall

__all__ = [
    "WireEntry",
    "WireMemory",
    "WireMessage",
    "finite",
    "plain_input",
    "read_memory",
    "read_message",
    "wire_memory",
    "wire_message",
]


# Any in these structs: JSON data of the application's or of a model.
class WireCall(msgspec.Struct, omit_defaults=True, gc=False):
    id: str
    name: str
    arguments: str = "{}"
    input: dict[str, Any] | None = None


class WireMessage(msgspec.Struct, omit_defaults=True, gc=False):
    role: Literal["system", "user", "assistant", "tool"]
    text: str = ""
    tool_calls: tuple[WireCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


class WireStep(msgspec.Struct, omit_defaults=True, gc=False):
    index: int
    kind: Literal["tool", "answer"]
    brief: str = ""
    tool: str | None = None
    call_id: str | None = None
    input: dict[str, Any] | None = None
    status: Literal["executed", "cached", "skipped", "failed", "unknown"] = "executed"
    skip_reason: Literal["policy", "confirmation", "missing", "batch"] | None = None
    extension: str | None = None
    from_step: int | None = None
    result: str | None = None
    writes: bool = False
    text: str | None = None


class WireExchange(msgspec.Struct, omit_defaults=True, gc=False):
    ask: str
    answer: str
    at: float
    best_effort: bool = False
    steps: tuple[WireStep, ...] = ()


class WireMemory(msgspec.Struct, omit_defaults=True, gc=False):
    summary: str = ""
    recent: tuple[WireExchange, ...] = ()


class WireEntry(msgspec.Struct, omit_defaults=True, gc=False):
    # The id is the store's key for the entry and is kept beside this text, not in it.
    at: float
    role: Literal["user", "assistant", "tool", "summary"]
    message: WireMessage
    transcript_visible: bool = True
    context_visible: bool = True
    private: dict[str, Any] = {}


def finite(at: float, what: str) -> float:
    """Return a time of `what`.

    Raises: `StoreError` if it is none.
    """
    try:
        known = math.isfinite(at)
    except (TypeError, OverflowError) as error:  # no number, or one that no float holds
        raise StoreError(f"the {what} cannot be stored: its time is no number of seconds ({error})") from error
    if not known:
        raise StoreError(f"the {what} cannot be stored: its time is {at}; use seconds since the epoch")
    return at


def wire_memory(memory: Memory) -> WireMemory:
    """Return a memory as it is written down. Raises: `StoreError` for what cannot be."""
    return WireMemory(memory.summary, tuple([_wire_exchange(exchange) for exchange in memory.recent]))


def _wire_exchange(exchange: Exchange) -> WireExchange:
    return WireExchange(
        exchange.ask,
        exchange.answer,
        finite(exchange.at, "memory"),
        exchange.best_effort,
        tuple([_wire_step(step) for step in exchange.steps]),
    )


def _wire_step(step: Step) -> WireStep:
    return WireStep(
        step.index,
        step.kind,
        step.brief,
        step.tool,
        step.call_id,
        plain_input(step.input),
        step.status,
        step.skip_reason,
        step.extension,
        step.from_step,
        step.result,
        step.writes,
        step.text,
    )


def wire_message(message: Message) -> WireMessage:
    """Return a message as it is written down. Raises: `StoreError` for an input of a call that is no mapping."""
    calls = tuple([WireCall(one.id, one.name, one.arguments, plain_input(one.input)) for one in message.tool_calls])
    return WireMessage(message.role, message.text, calls, message.tool_call_id, message.name)


def plain_input(input: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the parsed input of a call as a dict. Raises: `StoreError` if it is no mapping."""
    if input is None:
        return None
    if not isinstance(input, Mapping):
        raise StoreError(f"the input of a call cannot be stored: it is no mapping, but a {type(input).__name__}")
    return dict(input)


def read_memory(wire: WireMemory) -> Memory:
    """Return the memory that was written down."""
    exchanges = tuple([_read_exchange(exchange) for exchange in wire.recent])
    return Memory(wire.summary, exchanges)


def _read_exchange(wire: WireExchange) -> Exchange:
    steps = tuple([_read_step(step) for step in wire.steps])
    return Exchange(wire.ask, wire.answer, wire.at, wire.best_effort, steps)


def _read_step(wire: WireStep) -> Step:
    return Step(
        index=wire.index,
        kind=wire.kind,
        brief=wire.brief,
        tool=wire.tool,
        call_id=wire.call_id,
        input=wire.input,
        status=wire.status,
        skip_reason=wire.skip_reason,
        extension=wire.extension,
        from_step=wire.from_step,
        result=wire.result,
        writes=wire.writes,
        text=wire.text,
    )


def read_message(wire: WireMessage) -> Message:
    """Return the message that was written down."""
    calls = tuple([ToolCall(call.id, call.name, call.arguments, call.input) for call in wire.tool_calls])
    return Message(wire.role, wire.text, calls, wire.tool_call_id, wire.name)
