"""What is staged on a conversation's record before it is committed: data, so that it can be made onto a newer record.

`threads.py` hands it out; `Mutation` and `RewritingMutation` are promised there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, final

import attrs

from .abc import UNSET, Change, Entry, Record
from .errors import ConfigError, StoreConflict
from .values import Message

__all__ = [
    "APPENDED",
    "CURSOR",
    "OPEN_RUN",
    "WAITING",
    "Mutation",
    "RewritingMutation",
    "Staged",
    "Values",
    "shown",
]

# Keys of a record's private data that are the runtime's own.
WAITING = "waiting"  # calls that wait for a person: {"ask": …, "calls": […]}
CURSOR = "compaction"  # how far a summary goes: {"through": the last entry that was summarised}
OPEN_RUN = "open_run"  # a run with writes that was not closed yet
OWN = frozenset({WAITING, CURSOR, OPEN_RUN})
APPENDED = "appended"  # key of an entry's private data: no user said it, so nothing answers it anew

# Any, below: JSON data.
Values: TypeAlias = "Mapping[str, Any]"
Role: TypeAlias = Literal["user", "assistant", "summary"]


# --- what is staged -------------------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class Staged:
    """Changes that were staged, and what must still hold when they are committed."""

    metadata: Mapping[str, Any] = attrs.field(factory=dict)
    private: Mapping[str, Any] = attrs.field(factory=dict)
    no_metadata: frozenset[str] = frozenset()
    no_private: frozenset[str] = frozenset()
    append: tuple[Entry, ...] = ()
    visibility: Mapping[str, tuple[bool, bool]] = attrs.field(factory=dict)
    expect_version: int | None = None
    expect_private: Mapping[str, Any] | None = None
    token: int | None = None

    @property
    def empty(self) -> bool:
        """True if nothing was staged."""
        parts = (self.metadata, self.private, self.no_metadata, self.no_private, self.append, self.visibility)
        return not any(parts)

    def check(self, key: str, record: Record) -> None:
        """Refuse a record that has moved on.

        Raises: `StoreConflict`, saying what did.
        """
        if self.expect_version is not None and record.version != self.expect_version:
            raise StoreConflict(
                f"{key!r} has version {record.version}, the change was made against {self.expect_version}; "
                "load it again and decide anew"
            )
        if self.expect_private is not None and shown(record).private != self.expect_private:
            raise StoreConflict(f"the private data of {key!r} has changed; load it again and decide anew")

    def change(self, key: str, record: Record) -> Change:
        """Return what is to be committed onto `record`.

        Raises: `StoreConflict`.
        """
        self.check(key, record)
        return Change(
            metadata=_merged(record.metadata, self.metadata, self.no_metadata),
            private=_merged(record.private, self.private, self.no_private),
            append=self.append,
            visibility=self.visibility,
        )


def _merged(old: Values, new: Values, without: frozenset[str]) -> Any:
    if not new and not without:
        return UNSET
    return {**{key: value for key, value in old.items() if key not in without}, **new}


def shown(record: Record) -> Record:
    """Return a record without what is the runtime's own in its private data."""
    private = {key: value for key, value in record.private.items() if key not in OWN}
    return record if len(private) == len(record.private) else attrs.evolve(record, private=private)


# --- changing -------------------------------------------------------------------------------------------------------


class Mutation:
    """What a function that is given to `mutate` stages its changes on. Nothing is written until it has returned.

    `record` is what is stored, without anything that was staged.
    """

    def __init__(self, record: Record) -> None:
        self.record = record
        self._open = True
        self._parts: dict[str, dict[str, Any]] = {"metadata": {}, "private": {}}
        self._gone: dict[str, set[str]] = {"metadata": set(), "private": set()}
        self._append: list[Entry] = []
        self._visibility: dict[str, tuple[bool, bool]] = {}

    def merge_metadata(self, values: Mapping[str, Any]) -> None:
        """Set keys of the metadata, which clients may read. JSON data.

        Raises: `ConfigError` for what is no mapping with string keys, and once the function has returned.
        """
        self._merge("metadata", values)

    def merge_private(self, values: Mapping[str, Any]) -> None:
        """Set keys of the private data, which never leaves the server. JSON data.

        Raises: as `merge_metadata`; `ConfigError` also for a key that is the runtime's own.
        """
        self._merge("private", values)

    def drop_metadata(self, *keys: str) -> None:
        """Remove keys of the metadata; one that is not there is no error. Raises: as `merge_metadata`."""
        self._drop("metadata", keys)

    def drop_private(self, *keys: str) -> None:
        """Remove keys of the private data; one that is not there is no error. Raises: as `merge_private`."""
        self._drop("private", keys)

    def append(
        self,
        text: str,
        *,
        role: Role = "user",
        transcript: bool = True,
        context: bool = True,
        private: Mapping[str, Any] | None = None,
    ) -> str:
        """Add an entry behind the last one. No run is started by it.

        Arguments: `transcript` and `context`, whether readers of the history and the model see it; `private`, JSON data
        that only the server reads.

        Returns: the id that the entry will have.

        Raises: `ConfigError` for a blank text, another role, and once the function has returned.
        """
        self._check_open()
        if not isinstance(text, str) or not text.strip():
            raise ConfigError("append takes a text that is not blank")
        if role not in ("user", "assistant", "summary"):
            raise ConfigError(f'append(role=...) must be "user", "assistant" or "summary", not {role!r}')
        speaker: Literal["user", "assistant"] = "assistant" if role == "assistant" else "user"
        entry_id = f"app-{os.urandom(8).hex()}"
        facts = {**(private or {}), APPENDED: True}
        entry = Entry(entry_id, time.time(), role, Message(speaker, text), bool(transcript), bool(context), facts)
        self._append.append(entry)
        return entry_id

    def _merge(self, part: str, values: Any) -> None:
        self._check_open()
        if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
            raise ConfigError(f"merge_{part} takes a mapping with string keys, not {values!r}")
        self._check_keys(part, values)
        self._parts[part].update(values)
        self._gone[part].difference_update(values)

    def _drop(self, part: str, keys: Sequence[str]) -> None:
        self._check_open()
        self._check_keys(part, keys)
        self._gone[part].update(keys)
        for key in keys:
            self._parts[part].pop(key, None)

    @staticmethod
    def _check_keys(part: str, keys: Any) -> None:
        taken = sorted(OWN.intersection(keys)) if part == "private" else []
        if taken:
            raise ConfigError(
                f"{', '.join(map(repr, taken))} in the private data is the runtime's own; take another key"
            )

    def _check_open(self) -> None:
        if not self._open:
            raise ConfigError(
                "this mutation is over: its function has returned, and what it staged was committed or not"
            )

    def _staged(self, expect_version: int | None, expect_private: Values | None, token: int | None) -> Staged:
        self._open = False
        return Staged(
            self._parts["metadata"],
            self._parts["private"],
            frozenset(self._gone["metadata"]),
            frozenset(self._gone["private"]),
            tuple(self._append),
            dict(self._visibility),
            expect_version,
            expect_private,
            token,
        )


@final
class RewritingMutation(Mutation):
    """A `Mutation` for applications: it may also change what is visible."""

    def set_visibility(self, changes: Mapping[str, tuple[bool, bool]]) -> None:
        """Set entries' visibility: entry id to (in the transcript, in the model's context).

        A change that has any waits for a turn of the conversation, and `before_rewrite` is asked about it.

        Raises: `ConfigError` for what is no such mapping, and once the function has returned.
        """
        self._check_open()
        if not isinstance(changes, Mapping):
            raise ConfigError(f"set_visibility takes a mapping of entry ids to pairs of bools, not {changes!r}")
        for entry_id, pair in changes.items():
            good = isinstance(pair, tuple | list) and len(pair) == 2 and all(isinstance(value, bool) for value in pair)
            if not isinstance(entry_id, str) or not good:
                raise ConfigError(
                    f"set_visibility takes a mapping of entry ids to pairs of bools, not {entry_id!r}: {pair!r}"
                )
            self._visibility[entry_id] = (pair[0], pair[1])
