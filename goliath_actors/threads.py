"""A conversation's record and history, to be read and to be changed in one commit (S5).

Applications get a `Thread` from `Conversation.thread`; `resolve_context` gets a `StepThread`, which is fixed to what
was there when its step began and cannot touch visibility. Neither leads to the store.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, final

from ._staging import Mutation, RewritingMutation, Staged, Values, shown
from .abc import Entry, Record
from .errors import ConfigError
from .values import Message, Page

__all__ = ["Mutation", "RewritingMutation", "StepThread", "Thread"]

# Any, below: JSON data, and what an application's functions take and return.


class ThreadDoors(Protocol):
    """What stands behind a thread."""

    async def load(self) -> Record:
        """Return the record as it is stored."""
        ...

    async def page(self, before: int | None, after: int | None, limit: int, anchor: int | None) -> Page:
        """Return a page of entries."""
        ...

    async def commit(self, staged: Staged) -> Record:
        """Commit what was staged, or nothing of it, and return the new record."""
        ...


async def _mutate(
    doors: ThreadDoors,
    key: str,
    mutation: Callable[[Record], Mutation],
    fn: Callable[[Any], object],
    expect_version: int | None,
    expect_private: Values | None,
    token: int | None,
) -> Record:
    record = await doors.load()
    Staged(expect_version=expect_version, expect_private=expect_private).check(key, record)
    changes = mutation(shown(record))
    try:
        answer: Any = fn(changes)
        if inspect.isawaitable(answer):
            await answer
    finally:
        staged = changes._staged(expect_version, expect_private, token)
    if staged.empty:
        return shown(record)
    return shown(await doors.commit(staged))


# --- the facades ----------------------------------------------------------------------------------------------------


@final
class StepThread:
    """One conversation as a step of a run sees it: what is appended later is not there. `anchor` is its last entry."""

    __slots__ = ("_doors", "_key", "anchor")

    def __init__(self, doors: ThreadDoors, key: str, anchor: int) -> None:
        self._doors = doors
        self._key = key
        self.anchor = anchor

    def __repr__(self) -> str:
        return f"<StepThread of {self.anchor} entries>"

    async def load(self) -> Record:
        """Return the record as it is stored now, without what is the runtime's own in its private data.

        Raises: what the store raised; `StoreConflict` if the conversation was forgotten meanwhile.
        """
        return shown(await self._doors.load())

    async def history(self, before: int | None = None, after: int | None = None, limit: int = 50) -> Page:
        """Return a page of entries, oldest first, hidden ones too, up to the anchor.

        Arguments: as `Conversation.history`; `before` and `after` are exclusive, so the newest page has the anchor.

        Raises: as `load`.
        """
        return await self._doors.page(before, after, limit, self.anchor)

    async def collect(self) -> tuple[Entry, ...]:
        """Return every entry up to the anchor, which is the last one: all of them, however many.

        Raises: as `load`.
        """
        return await _collect(lambda **page: self._doors.page(page.get("before"), None, page["limit"], self.anchor))

    async def messages(self) -> tuple[Message, ...]:
        """Return the messages of all entries up to the anchor that are in the model's context, as they are stored.

        Raises: as `load`.
        """
        return tuple([entry.message for entry in await self.collect() if entry.context_visible])

    async def mutate(
        self,
        fn: Callable[[Mutation], object],
        *,
        expect_version: int | None = None,
        expect_private: Mapping[str, Any] | None = None,
    ) -> Record:
        """Stage changes and commit them in one piece. As `Thread.mutate`, without visibility.

        What is appended passes `before_append`, and is in the context from the next step on.

        Raises: as `Thread.mutate`.

        Cancellation: the change is wholly there or not at all.
        """
        return await _mutate(self._doors, self._key, Mutation, fn, expect_version, expect_private, None)


@final
class Thread:
    """One conversation's record and history, for its application. Reading never waits for a run."""

    __slots__ = ("_doors", "_key")

    def __init__(self, doors: ThreadDoors, key: str) -> None:
        self._doors = doors
        self._key = key

    def __repr__(self) -> str:
        return f"<Thread {self._key}>"

    async def load(self) -> Record:
        """Return the record as it is stored, without what is the runtime's own in its private data.

        Raises: what the store raised.

        Cancellation: changes nothing.
        """
        return shown(await self._doors.load())

    async def history(
        self, before: int | None = None, after: int | None = None, limit: int = 50, anchor: int | None = None
    ) -> Page:
        """Return a page of entries, oldest first, hidden ones too. As `Conversation.history`."""
        return await self._doors.page(before, after, limit, anchor)

    async def collect(self) -> tuple[Entry, ...]:
        """Return every entry: all of them, however many. What is appended meanwhile is left out.

        Raises: what the store raised.

        Cancellation: changes nothing.
        """
        return await _collect(self.history)

    async def mutate(
        self,
        fn: Callable[[RewritingMutation], object],
        *,
        expect_version: int | None = None,
        expect_private: Mapping[str, Any] | None = None,
        token: int | None = None,
    ) -> Record:
        """Stage changes and commit them in one piece, or nothing of them.

        Arguments:
          fn: sync or async; gets a `RewritingMutation` to stage changes on. What it reads is what is stored. If it
            raises, nothing is written.
          expect_version: the record's version that the changes were made against: any other is a conflict.
          expect_private: the private data that they were made against, as `load` gives it. What else happened to the
            record meanwhile is no conflict.
          token: the fencing token of a lease on the conversation, if the caller holds one.

        Without expectations the changes are merged into what is there. Texts that are appended pass `before_append`,
        and a change of visibility passes `before_rewrite`, under a `ToolLoop`.

        Returns: the record as it is now; unchanged if nothing was staged.

        Raises: `StoreConflict` if an expectation does not hold or the lease was lost; `StoreError` for an unknown entry
        and for what is no JSON data; `GoliathExtensionError`; what `fn` raised. A change of visibility also raises
        `ReentrantRun` inside a run of the conversation, and `RuntimeClosed`. Whatever is raised, nothing is written.

        Cancellation: the change is wholly there or not at all; one that waited for its turn is not made.
        """
        if fn is None or not callable(fn):
            raise ConfigError(f"mutate takes a function of one argument, not {fn!r}")
        return await _mutate(self._doors, self._key, RewritingMutation, fn, expect_version, expect_private, token)


async def _collect(history: Callable[..., Awaitable[Page]]) -> tuple[Entry, ...]:
    found: list[Entry] = []
    page = await history(limit=_PAGE)
    found.extend(reversed(page.entries))
    anchor = page.anchor
    while page.next is not None:
        page = await history(before=page.next, limit=_PAGE, anchor=anchor)
        found.extend(reversed(page.entries))
    return tuple(found[::-1])


_PAGE = 200  # entries read at a time
