"""Tool calls out of pieces: which piece belongs to which call, with ids that are all different.

Uses _wire; used by _reply. The dialect ties pieces together by an index, and servers leave it
out, repeat it, send ids late, twice or never, and send names in every piece. The call's own slot is its identity here;
an id of the provider's is only a label.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Sequence
from typing import final

import attrs

from goliath_actors.abc import ModelToolCall

from ._wire import compact_json

__all__ = ["LONE", "Calls", "whole"]

_SURROGATE = re.compile(r"[\ud800-\udfff]")


LONE = "\ufffd"
"""What stands for half a surrogate pair whose other half never came."""


def whole(text: str) -> tuple[str, str]:
    """Make text of JSON escapes fit for UTF-8: halves of a surrogate pair are joined, lone ones become `LONE`.

    Returns: what is whole; and the half that the text ends in, if it does, which belongs in front of the next piece.
    """
    if text.isascii() or not _SURROGATE.search(text):
        return text, ""
    text, half = (text[:-1], text[-1]) if "\ud800" <= text[-1] <= "\udbff" else (text, "")
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"), half


@attrs.define(eq=False)
class _Call:
    slot: int
    label: str = ""  # the provider's id
    name: str = ""
    text: str = ""  # arguments so far, handed out or not
    ready: str = ""  # arguments that wait for the name
    placeholder: bool = False  # the text is a lone {}, which real arguments replace
    opened: bool = False  # id and name are handed out
    half: str = ""  # of a surrogate pair, which the next piece completes

    def is_json(self) -> bool:
        if not self.text.rstrip().endswith("}"):
            return False
        try:
            json.loads(self.text)
        except (ValueError, RecursionError):
            return False
        return True


@final
class Calls:
    """The calls of one reply. `taken` are the ids that occur in the conversation already."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        # Looked through only when a call comes: most replies have none, and a history may be long.
        self._others: Iterable[str] | None = taken
        self._taken: set[str] = set()
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._latest: _Call | None = None

    def __bool__(self) -> bool:
        return bool(self._calls)

    def feed(self, pieces: Sequence[object], *, alone: bool = False) -> list[ModelToolCall]:
        """Return what can be handed out after these pieces.

        Arguments: `alone` says that each piece is a call of its own, complete.
        """
        events: list[ModelToolCall] = []
        for piece in pieces:
            if not isinstance(piece, dict):
                continue
            function = piece.get("function")
            if not isinstance(function, dict):
                function = {}
            name, label = function.get("name"), piece.get("id")
            name = name if isinstance(name, str) else ""
            label = label if isinstance(label, str) else ""
            index = piece.get("index")
            call = self._new() if alone else self._find(index if type(index) is int else None, label, name)
            call.label = call.label or label
            if name and not call.opened and name != call.name:
                call.name += name
            self._latest = call
            events.extend(self._add(call, _arguments(function.get("arguments")), alone))
        return events

    def close(self) -> list[ModelToolCall]:
        """Return what was held back: calls without arguments, without a name, or with a placeholder only."""
        events: list[ModelToolCall] = []
        for call in self._calls:
            if call.half:
                call.ready, call.half = call.ready + LONE, ""
            if call.ready or not call.opened:
                events.append(self._hand_out(call))
        return events

    def _find(self, index: int | None, label: str, name: str) -> _Call:
        """The call that a piece belongs to; a new one where nothing else fits."""
        if index is not None:
            call = self._by_index.get(index)
            # Some servers give every call of a reply the same index: another id with a name begins another call.
            if call is None or (name and label and call.label and label != call.label):
                call = self._by_index[index] = self._new()
            return call
        latest = self._latest
        if latest is None:
            return self._new()
        if label and label != latest.label:
            for call in self._calls:
                if call.label == label:
                    return self._new() if name and call.is_json() else call
            return self._new() if name or latest.label else latest
        if name and latest.name and (name != latest.name or latest.is_json()):
            return self._new()
        return latest

    def _new(self) -> _Call:
        call = _Call(len(self._calls))
        self._calls.append(call)
        return call

    def _add(self, call: _Call, arguments: str, alone: bool) -> list[ModelToolCall]:
        arguments, call.half = whole(call.half + arguments)
        if not arguments:
            return []
        if call.placeholder and arguments.lstrip().startswith("{"):
            call.text = call.ready = ""
        call.text += arguments
        call.ready += arguments
        # An empty object may be a placeholder that the real arguments follow; it is whole only at the end.
        call.placeholder = not alone and not call.opened and call.text.strip() == "{}"
        if call.placeholder or not (call.name or call.opened):
            return []
        return [self._hand_out(call)]

    def _hand_out(self, call: _Call) -> ModelToolCall:
        arguments, call.ready = call.ready, ""
        if call.opened:
            return ModelToolCall(call.slot, arguments=arguments)
        call.opened = True
        if self._others is not None:
            self._taken.update(self._others)
            self._others = None
        identity = call.label
        if not identity.strip() or identity in self._taken:
            identity = f"call_{uuid.uuid4().hex}"
        self._taken.add(identity)
        return ModelToolCall(call.slot, identity, call.name, arguments)


def _arguments(value: object) -> str:
    """Arguments as text; some servers send the object itself."""
    if value is None or isinstance(value, str):
        return value or ""
    return compact_json(value)
