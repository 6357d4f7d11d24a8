"""What clients are sent: events, results, runs and entries as JSON data, and the frames of an event stream."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence, Set
from typing import Any

import attrs
import msgspec

from goliath_actors import Run, RunResult
from goliath_actors.abc import Entry
from goliath_actors.events import Event, TextDelta
from goliath_actors.values import Step

from ._problems import run_problem

__all__ = [
    "dumps",
    "entry_data",
    "event_data",
    "event_id",
    "events_size",
    "frame",
    "plain",
    "result_data",
    "run_outcome",
]

# Any, in this room: JSON data, or what an application's tools put in its place.

_DEPTH = 64

# Fields of events and results with an error's own words.
_WORDS = {"error"}

# Line ends for some readers of event streams, and raw in JSON for none.
_LINE_ENDS = tuple((char.encode(), f"\\u{ord(char):04x}".encode()) for char in "\x85\u2028\u2029")

_encode = msgspec.json.Encoder().encode


def plain(value: Any, depth: int = 0) -> Any:
    """Return JSON data that stands for `value`; what has no form of its own is named by its type alone."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth >= _DEPTH:
        return None
    if attrs.has(type(value)):
        names = [field.name for field in attrs.fields(type(value))]
        return {name: plain(getattr(value, name), depth + 1) for name in names if not name.startswith("_")}
    if isinstance(value, Mapping):
        return {str(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence | Set) and not isinstance(value, bytes | bytearray | memoryview):
        return [plain(item, depth + 1) for item in value]
    fields = getattr(type(value), "__struct_fields__", None) or getattr(type(value), "__dataclass_fields__", None)
    if fields is not None:
        return {name: plain(getattr(value, name, None), depth + 1) for name in fields}
    return f"<{type(value).__name__}>"


def dumps(data: Any) -> bytes:
    """Return JSON as UTF-8. Halves of surrogate pairs, which no UTF-8 holds, become the replacement character."""
    try:
        written = _encode(data)
    except UnicodeEncodeError:
        text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
        written = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
    for raw, escaped in _LINE_ENDS:
        if raw in written:
            written = written.replace(raw, escaped)
    return written


def frame(event: str, data: Any, id: int | None = None) -> bytes:
    """Return one event of a stream. Without an `id` it changes nothing about where a reader takes up again."""
    number = b"" if id is None else b"id: %d\n" % id
    return b"event: %s\n%sdata: %s\n\n" % (event.encode(), number, dumps(data))


def event_id(event: Event) -> int:
    """Return where a reader who has this event takes up again."""
    return event.through if isinstance(event, TextDelta) else event.seq


def events_size(run: Run) -> int:
    """Return about how many bytes the events of a run hold that is over."""
    events = run.events(1)  # behind the first, which holds nothing: extensions are not asked for snapshots
    size = 0
    while (event := events.next_nowait()) is not None:
        if isinstance(event, TextDelta):
            size += len(event.text)
            continue
        try:
            size += len(_encode_any(event))
        except (UnicodeEncodeError, TypeError, RecursionError):
            size += len(dumps(event_data(event, "", True)))
    return size


def _stand_in(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, Sequence | Set) else None


_encode_any = msgspec.json.Encoder(enc_hook=_stand_in).encode


def event_data(event: Event, conversation_id: str, show_errors: bool) -> dict[str, Any]:
    """Return an event as JSON data, under the conversation's public id."""
    if isinstance(event, TextDelta):  # by far the most frequent
        return {
            "kind": event.kind,
            "run_id": event.run_id,
            "conversation_id": conversation_id,
            "seq": event.seq,
            "through": event.through,
            "at": event.at,
            "text": event.text,
        }
    data: dict[str, Any] = {"kind": event.kind, **plain(event)}
    data["conversation_id"] = conversation_id
    _hide(data, show_errors)
    return data


def _hide(data: dict[str, Any], show_errors: bool) -> None:
    for name in _WORDS & data.keys():
        if data[name] is not None and not show_errors:
            data[name] = "an error; its text is in the server's hands alone"


def step_data(step: Step) -> dict[str, Any]:
    """Return a step as JSON data, without the tool's raw output."""
    data: dict[str, Any] = plain(attrs.evolve(step, output=None))
    del data["output"]
    return data


def result_data(result: RunResult, conversation_id: str, show_errors: bool) -> dict[str, Any]:
    """Return a result as JSON data, without its trace: that is what the run's events are."""
    data: dict[str, Any] = {
        "run_id": result.run_id,
        "conversation_id": conversation_id,
        "status": result.status,
        "text": result.text,
        "output": plain(result.output),
        "handled_by": result.handled_by,
        "reason": result.reason,
        "error": result.error,
        "best_effort": result.best_effort,
        "steps": [step_data(step) for step in result.steps],
        "stopped": plain(result.stopped),
        "responded": plain(result.responded),
        "waiting": plain(result.waiting),
        "usage": plain(result.usage),
    }
    _hide(data, show_errors)
    return data


def run_outcome(run: Run, conversation_id: str, show_errors: bool) -> dict[str, Any]:
    """Return how a run ended: `status`, and `result`, or `error` and, if it was aborted, `abort`."""
    outcome = run.outcome
    if outcome is None:
        return {"status": None, "result": None, "error": None, "abort": None}
    result = None if outcome.result is None else result_data(outcome.result, conversation_id, show_errors)
    error = None if outcome.error is None else run_problem(outcome.error, show_errors)
    if error is not None and run.conversation_id:  # clients know it under the id that they gave it
        error["detail"] = error["detail"].replace(run.conversation_id, conversation_id)
    return {"status": outcome.status, "result": result, "error": error, "abort": plain(outcome.abort)}


def entry_data(entry: Entry) -> dict[str, Any]:
    """Return an entry of a history as JSON data. Of what is private in it there is only how a call ended (`status`) and
    its `input` where it was not made as written, the `steps` of a planned answer, and whether an answer is `partial`.
    """
    message = entry.message
    data: dict[str, Any] = {"id": entry.id, "at": entry.at, "role": entry.role, "text": message.text}
    if message.tool_calls:
        data["tool_calls"] = [
            {"id": call.id, "name": call.name, "arguments": call.arguments, "input": plain(call.input)}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        data["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        data["name"] = message.name
    if entry.role == "tool":
        data |= {name: plain(entry.private[name]) for name in ("status", "input") if name in entry.private}
    if entry.private.get("partial"):
        data["partial"] = True
    if "steps" in entry.private:  # what a planned answer was made from
        data["steps"] = plain(entry.private["steps"])
    return data
