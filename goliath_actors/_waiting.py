"""Calls that wait for a person, as they are kept in a record between two runs (T8).

Plain data in and out: a process may end in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs

from ._frozen import freeze, thaw
from ._json import snapshot
from ._staging import WAITING
from .values import Waiting

__all__ = ["WaitingCall", "waiting_ask", "waiting_calls", "waiting_data"]


@attrs.frozen(eq=False)
class WaitingCall:
    """One call that waits. `answers` are those that it has had before: a tool may ask more than once.

    `payload` is the application's object in the run that asked, and JSON data of it in a later one.
    """

    call_id: str
    tool: str
    input: Mapping[str, Any] = attrs.field(converter=freeze)
    kind: Literal["approval", "question"]
    # Any: what the application asks, and what it answers.
    payload: Any = None
    answers: tuple[Any, ...] = ()

    @property
    def shown(self) -> Waiting:
        """The call as results and events show it."""
        return Waiting(self.call_id, self.tool, self.input, self.payload, self.kind)

    def data(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "call_id": self.call_id,
            "tool": self.tool,
            "input": thaw(self.input),
            "kind": self.kind,
            "payload": thaw(snapshot(self.payload)),
            "answers": thaw(snapshot(list(self.answers))),
        }


def waiting_calls(private: Mapping[str, Any]) -> list[WaitingCall]:
    """Return the calls that wait, in call order, from a record's private data; what is none of them is left out."""
    return [call for call in map(_read, _data(private).get("calls") or ()) if call is not None]


def waiting_ask(private: Mapping[str, Any]) -> str | None:
    """Return the ask that led to the waiting calls."""
    ask = _data(private).get("ask")
    return ask if isinstance(ask, str) else None


def waiting_data(ask: str, calls: Sequence[WaitingCall]) -> dict[str, Any]:
    """Return what is kept in a record's private data."""
    return {"ask": ask, "calls": [call.data() for call in calls]}


def _data(private: Mapping[str, Any]) -> Mapping[str, Any]:
    data = private.get(WAITING)
    return data if isinstance(data, Mapping) else {}


def _read(data: Any) -> WaitingCall | None:
    if not isinstance(data, Mapping):
        return None
    call_id, tool, input = data.get("call_id"), data.get("tool"), data.get("input")
    if not isinstance(call_id, str) or not isinstance(tool, str) or not isinstance(input, Mapping):
        return None
    kind: Literal["approval", "question"] = "approval" if data.get("kind") == "approval" else "question"
    return WaitingCall(call_id, tool, input, kind, data.get("payload"), tuple(data.get("answers") or ()))
