"""Histories that were read already, kept between runs within a bound, and proven before they are used again.

A long conversation's next turn then costs what a short one's does. Nothing depends on it: whatever does not match the
record is read anew.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import Final, NamedTuple

import attrs

from ._budget import PromptCounts
from ._composition import compose
from .abc import Entry, Record
from .values import Message, ToolCall

__all__ = ["Composed", "Histories", "History"]

ENTRY_WEIGHT: Final = 500  # what an entry takes beside its text, in characters: measured, some 400 to 600 bytes
LEAST_ENTRIES: Final = 32  # shorter ones are read anew: that is quick, and an idle conversation stays small (R15)
MOST_WEIGHT: Final = 16_000_000  # characters of all histories of a runtime together


class Composed(NamedTuple):
    """Messages as a model is shown them, and how many of them will stay as they are.

    `whole`: they are composed, all of them, as long as nothing comes behind them.
    """

    messages: tuple[Message, ...]
    settled: int
    whole: bool = True


@attrs.define(eq=False)
class History:
    """What a model may see of a conversation, as a run has read it and added to it."""

    # Names of the agent's tools, by which entries were made sendable.
    known: frozenset[str]
    # Invariant: what the store has, as far as is known, from the newest summary on, which comes first; hidden entries
    # are left out.
    kept: list[Entry] = attrs.Factory(list)
    sendable: list[Message] = attrs.Factory(list)
    # Stored calls without a stored result, in the order in which they were made.
    open: dict[str, ToolCall] = attrs.Factory(dict)
    counts: PromptCounts | None = None
    # Which state of the record this is: set when the run is over.
    version: int = 0
    entries_count: int = 0
    # The newest entry in the store, shown or not.
    last_id: str | None = None
    weight: int = 0
    # Invariant: compose(sendable) == (*_settled, *compose(sendable[_split:])), whatever is appended.
    _settled: tuple[Message, ...] = ()
    _split: int = 0
    # None until a call is made, as in most conversations.
    _taken: set[str] | None = None
    # What `messages` gave last, None since something came or went: a step asks for it more than once.
    _shown: Composed | None = None

    @property
    def taken(self) -> Collection[str]:
        """Ids of calls that are taken."""
        return () if self._taken is None else self._taken

    def add(self, entry: Entry, shown: Message) -> None:
        """Take an entry in, a summary in front of everything; `shown` is the message that a model sees of it."""
        message = entry.message
        if message.tool_calls:
            self._taken = self._taken or set()
            self._taken.update([call.id for call in message.tool_calls])
            self.open.update({call.id: call for call in message.tool_calls})
        if entry.role == "tool" and message.tool_call_id is not None:
            self.open.pop(message.tool_call_id, None)
        if entry.context_visible:
            self._shown = None
            self.weight += _weight(message)
            if entry.role == "summary":
                self.kept.insert(0, entry)
                self.sendable.insert(0, shown)
                self._unsettle()
            else:
                self.kept.append(entry)
                self.sendable.append(shown)

    def cut(self, begin: int, end: int | None) -> None:
        """Leave out the entries from `begin` up to `end`."""
        self.weight -= sum(_weight(entry.message) for entry in self.kept[begin:end])
        del self.kept[begin:end], self.sendable[begin:end]
        self._unsettle()

    def drop_calls(self, call_ids: Collection[str]) -> None:
        """Forget calls whose messages were deleted."""
        for call_id in call_ids:
            self.open.pop(call_id, None)

    def _unsettle(self) -> None:
        self._shown = None
        self._settled = ()
        self._split = 0

    def messages(self) -> Composed:
        """Return the messages as a model is shown them."""
        if self._shown is None:
            self._settle()
            shown = (*self._settled, *compose(self.sendable[self._split :]))
            self._shown = Composed(shown, len(self._settled))
        return self._shown

    def _settle(self) -> None:
        """Compose once what lies before the last ask: its message ends what went before, if its calls are closed."""
        place = len(self.sendable) - 1
        while place > self._split and not _begins(self.sendable[place]):
            place -= 1
        if place <= self._split:
            return
        chunk = self.sendable[self._split : place]
        called = {call.id for message in chunk for call in message.tool_calls}
        closed = {message.tool_call_id for message in chunk if message.role == "tool"}
        made = compose(chunk)
        if made and made[-1].role != "user" and called <= closed:
            self._settled = (*self._settled, *made)
            self._split = place


def _weight(message: Message) -> int:
    weight = ENTRY_WEIGHT + len(message.text)
    for call in message.tool_calls:
        weight += len(call.arguments)
    return weight


def _begins(message: Message) -> bool:
    return message.role == "user" and bool(message.text.strip())


@attrs.define(eq=False)
class Histories:
    """The histories of a runtime, those used last, within a bound. A run takes one out and puts it back."""

    most: int = MOST_WEIGHT
    _held: OrderedDict[str, History] = attrs.Factory(OrderedDict)
    _weight: int = 0

    def take(self, key: str, known: frozenset[str], record: Record) -> History | None:
        """Return the history of a conversation, and hold it no more; None if there is none of just this record.

        That the record's newest entry is the history's own is left to the caller to prove.
        """
        history = self._held.pop(key, None)
        if history is None:
            return None
        self._weight -= history.weight
        same = (history.version, history.entries_count) == (record.version, record.entries_count)
        return history if same and history.known == known else None

    def keep(self, key: str, history: History, record: Record) -> None:
        """Hold a history that is in the state of `record`, unless it is short; the oldest make room for it."""
        self.drop(key)
        if len(history.kept) < LEAST_ENTRIES or history.weight > self.most // 4:
            return
        history.version, history.entries_count = record.version, record.entries_count
        self._held[key] = history
        self._weight += history.weight
        while self._weight > self.most:
            self._weight -= self._held.popitem(last=False)[1].weight

    def drop(self, key: str) -> None:
        """Hold a conversation's history no more."""
        history = self._held.pop(key, None)
        if history is not None:
            self._weight -= history.weight
