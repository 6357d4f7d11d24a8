"""A message on its way into a history, and the changes of a record that take it there. Pure: data in, data out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import attrs

from ._staging import APPENDED, CURSOR, WAITING
from ._waiting import waiting_ask, waiting_calls, waiting_data
from .abc import UNSET, Change, Entry, Record, Unset
from .errors import StoreConflict
from .values import Message, ToolCall

__all__ = [
    "CONTINUED",
    "INTERRUPTED",
    "STEER",
    "Draft",
    "appending",
    "cursor_of",
    "is_ask",
    "not_waiting",
    "result_of",
    "taken_elsewhere",
]

STEER = "steer"  # key of an entry's private data: the id of the run that a text that was handed in would have become
CONTINUED = "continued"  # key of an entry's private data: a hook goes on with this text

INTERRUPTED = (
    "Interrupted: the run ended before a result was recorded. It may have taken effect: look before doing it again."
)


@attrs.frozen(eq=False)
class Draft:
    """A message on its way into the history, with what only the server may read of it."""

    message: Message
    private: Mapping[str, Any] = attrs.field(factory=dict)


def is_ask(entry: Entry) -> bool:
    """Say whether a user said this: not a hook that goes on with a text, nor an application that notes one."""
    return entry.role == "user" and not any(map(entry.private.get, (CONTINUED, APPENDED)))


def appending(entries: tuple[Entry, ...], record: Record) -> Change:
    """Return the change that appends entries; a call that has its result now waits no more."""
    if WAITING not in record.private:
        return Change(append=entries)
    closed = {entry.message.tool_call_id for entry in entries if entry.role == "tool"}
    return Change(append=entries, private=not_waiting(record, closed))


def not_waiting(record: Record, call_ids: Collection[str | None]) -> Mapping[str, Any] | Unset:
    """Return a record's private data without calls that wait no more, `UNSET` if none of them did."""
    waiting = waiting_calls(record.private)
    left = [call for call in waiting if call.call_id not in call_ids]
    if len(left) == len(waiting):
        return UNSET
    private = {key: value for key, value in record.private.items() if key != WAITING}
    if left:
        private[WAITING] = waiting_data(waiting_ask(record.private) or "", left)
    return private


def taken_elsewhere(key: str, call_ids: Collection[str]) -> StoreConflict:
    """Return the error for calls that somebody else has gone on with meanwhile."""
    return StoreConflict(
        f"somebody else has gone on with {', '.join(sorted(call_ids))} of {key!r}, and nothing more was stored of it: "
        "let one runtime at a time have a conversation, as a LeasedStore does"
    )


def result_of(call: ToolCall, text: str, private: Mapping[str, Any]) -> Draft:
    """Return the message that closes a call with `text`."""
    return Draft(Message("tool", text, tool_call_id=call.id, name=call.name), private)


def cursor_of(private: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return how far the newest summary goes, from a record's private data."""
    cursor = private.get(CURSOR)
    return cursor if isinstance(cursor, Mapping) else {}
