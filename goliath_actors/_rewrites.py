"""Rewrites of a history: what hooks add to one, changes of visibility, and who hears of it afterwards (S5).

`before_rewrite` is asked before the commit, and its patches are part of it. `after_rewrite` is told beside the runs:
one rewrite after the other in each conversation, a few at a time in all. Only the end of the runtime waits for it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs
import trio

from ._envelope import current_run
from ._journal import RunJournal
from ._panel import Panel
from ._staging import CURSOR, Staged
from .abc import Entry, Record, Store
from .errors import ObserverTimeout, StoreConflict, StoreError
from .hooks import AfterRewrite, BeforeAppend, BeforeRewrite
from .values import Page

__all__ = ["Afterwards", "ApplicationDoors", "before_rewrite", "commit_staged"]

CONFLICTS = 8  # how often a change that may be made onto anything is tried, before somebody else is too busy there
AT_A_TIME = 8  # conversations whose observers are told side by side
PENDING = 16  # rewrites of one conversation that wait to be told; beyond that the last two become one
PAGE = 200  # entries read at a time

_log = logging.getLogger("goliath_actors.threads")


# --- before ---------------------------------------------------------------------------------------------------------


async def before_rewrite(
    panel: Panel, kind: str, changes: Mapping[str, Any]
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Ask `before_rewrite`.

    Returns: what is to be merged into the metadata and into the private data, in the commit of the rewrite.

    Raises: `GoliathExtensionError`; then nothing may be rewritten.
    """
    metadata: dict[str, Any] = {}
    private: dict[str, Any] = {}
    if panel.hears("before_rewrite"):
        decision = await panel.decide("before_rewrite", BeforeRewrite(kind, changes))
        for patch in decision.patches:
            metadata |= patch.metadata or {}
            private |= patch.private or {}
    return metadata, private


async def commit_staged(store: Store, key: str, staged: Staged) -> Record:
    """Commit what was staged onto what is there, as long as its expectations hold.

    Raises: `StoreConflict` if they do not, if the lease was lost, or if others keep writing; what the store raised.

    Cancellation: the change is wholly there or not at all.
    """
    record = await store.load(key)
    # By name, and only what is there to say: an application's own store may know no more of the contract than that.
    fence = {} if staged.token is None else {"token": staged.token}
    left = CONFLICTS
    while True:
        change = staged.change(key, record)
        try:
            return await store.commit(key, change, expect=record.version, **fence)
        except StoreConflict:
            left -= 1
            known, record = record.version, await store.load(key)
            if not left or record.version == known:  # nobody has written: it is the lease that was lost
                raise


# --- visibility -----------------------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class ApplicationDoors:
    """What stands behind an application's `Thread`.

    `panel` makes one for hooks that are asked outside of a run, None where the agent's loop asks none; `turn` gives a
    work its turn in the conversation, with the panel that it may ask.
    """

    store: Store
    key: str
    panel: Callable[[], Panel | None]
    turn: Callable[[Callable[[Panel | None], Awaitable[None]]], Awaitable[None]]
    later: Callable[[str, Panel, AfterRewrite], None]

    async def load(self) -> Record:
        """As `Store.load`."""
        return await self.store.load(self.key)

    async def page(self, before: int | None, after: int | None, limit: int, anchor: int | None) -> Page:
        """As `Store.entries`."""
        return await self.store.entries(self.key, before=before, after=after, limit=limit, anchor=anchor)

    async def commit(self, staged: Staged) -> Record:
        """Commit; a change of visibility in a turn of the conversation, so that it overlaps no run."""
        staged = await asked_to_append(self.panel() if staged.append else None, staged)
        if not staged.visibility:
            return await commit_staged(self.store, self.key, staged)
        made: list[Record] = []

        async def work(panel: Panel | None) -> None:
            made.append(await self._rewrite(panel, staged))

        await self.turn(work)
        return made[0]

    async def _rewrite(self, panel: Panel | None, staged: Staged) -> Record:
        record = await self.store.load(self.key)
        staged.check(self.key, record)
        known, summarised = await self._entries(record, staged)
        changes = {
            entry_id: {"before": [entry.transcript_visible, entry.context_visible], "after": list(after)}
            for entry_id, after in staged.visibility.items()
            if (entry := known[entry_id]) and (entry.transcript_visible, entry.context_visible) != after
        }
        if not changes:
            return (
                record
                if attrs.evolve(staged, visibility={}).empty
                else await commit_staged(self.store, self.key, staged)
            )
        metadata, private = ({}, {}) if panel is None else await before_rewrite(panel, "visibility", changes)
        gone = staged.no_private
        if any(entry_id in summarised and change["after"][1] for entry_id, change in changes.items()):
            gone |= {CURSOR}  # the model is to see again what a summary stands for: the history is read past it
        staged = attrs.evolve(
            staged,
            metadata={**staged.metadata, **metadata},
            private={**staged.private, **private},
            no_private=gone,
        )
        record = await commit_staged(self.store, self.key, staged)
        if panel is not None:
            self.later(self.key, panel, AfterRewrite("visibility", changes))
        return record

    async def _entries(self, record: Record, staged: Staged) -> tuple[dict[str, Entry], set[str]]:
        """Return the entries whose visibility is to change, and which of them a summary stands for.

        Raises: `StoreError` naming an id that is not there.
        """
        cursor: Any = record.private.get(CURSOR)
        through = cursor.get("through") if isinstance(cursor, Mapping) else None
        left, behind = set(staged.visibility), False
        found: dict[str, Entry] = {entry.id: entry for entry in staged.append if entry.id in left}
        summarised: set[str] = set()
        left -= set(found)
        before: int | None = None
        anchor: int | None = None
        while left:
            page = await self.store.entries(self.key, before=before, limit=PAGE, anchor=anchor)
            for entry in reversed(page.entries):
                behind = behind or entry.id == through
                if entry.id in left:
                    found[entry.id] = entry
                    left.discard(entry.id)
                    if behind:
                        summarised.add(entry.id)
            if page.next is None:
                break
            before, anchor = page.next, page.anchor
        if left:
            names = ", ".join(map(repr, sorted(left)))
            raise StoreError(f"{self.key!r} has no entry {names}; read its history again (nothing was changed)")
        return found, summarised


async def asked_to_append(panel: Panel | None, staged: Staged) -> Staged:
    """Pass the messages that are to be appended through `before_append`.

    Raises: `GoliathExtensionError`.
    """
    if panel is None or not panel.hears("before_append"):
        return staged
    entries = []
    for entry in staged.append:
        decision = await panel.decide("before_append", BeforeAppend(entry.message))
        entries.append(attrs.evolve(entry, message=decision.question.message))
    return attrs.evolve(staged, append=tuple(entries))


# --- afterwards -----------------------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class _Fact:
    panel: Panel
    question: AfterRewrite


@attrs.define(eq=False)
class Afterwards:
    """Tells `after_rewrite`. `start` starts a task beside the runs; `enter` and `leave` count what the runtime's end
    waits for."""

    start: Callable[..., None]
    enter: Callable[[], None]
    leave: Callable[[], None]
    _limit: trio.CapacityLimiter = attrs.Factory(lambda: trio.CapacityLimiter(AT_A_TIME))
    # Invariant: a key is here exactly while a task tells of its rewrites.
    _pending: dict[str, deque[_Fact]] = attrs.Factory(dict)
    _scopes: set[trio.CancelScope] = attrs.Factory(set)
    _deadline: float | None = None

    def tell(self, key: str, panel: Panel, question: AfterRewrite) -> None:
        """Tell the extensions of a rewrite that was committed, later. Never blocks."""
        if not panel.hears("after_rewrite"):
            return
        # The run goes on meanwhile: its phase, and whose code it is in, are not touched from here. Diagnostics are
        # shared, and so is the extensions' state.
        journal = RunJournal(panel.journal.run_id, panel.journal.conversation_id)
        journal.diagnostics = panel.journal.diagnostics
        own = panel.beside("after_rewrite", journal)
        facts = self._pending.get(key)
        if facts is None:
            self._pending[key] = deque([_Fact(own, question)])
            self.enter()
            self.start(self._tell_all, key)
        elif len(facts) < PENDING:
            facts.append(_Fact(own, question))
        else:
            facts.append(_Fact(own, _merged(facts.pop().question, question)))

    def hurry(self, deadline: float) -> None:
        """Let nobody take longer than until `deadline`, on trio's clock."""
        self._deadline = deadline
        for scope in self._scopes:
            scope.deadline = min(scope.deadline, deadline)

    async def _tell_all(self, key: str) -> None:
        """Tell of one conversation's rewrites, in order, until there are none left."""
        current_run.set(None)  # it is no part of the run that rewrote, and may wait for the conversation
        facts = self._pending[key]
        try:
            while facts:
                fact = facts[0]
                await self._tell(fact)
                facts.popleft()
        finally:
            del self._pending[key]
            self.leave()

    async def _tell(self, fact: _Fact) -> None:
        diagnostics = fact.panel.journal.diagnostics
        known = len(diagnostics)
        scope = trio.CancelScope()
        if self._deadline is not None:
            scope.deadline = self._deadline
        self._scopes.add(scope)
        start = trio.current_time()
        try:
            with scope:
                async with self._limit:
                    await fact.panel.observe("after_rewrite", fact.question)
        finally:
            self._scopes.discard(scope)
        if scope.cancelled_caught:
            fact.panel.journal.note("after_rewrite", "after_rewrite", ObserverTimeout(trio.current_time() - start))
        for diagnostic in diagnostics[known:]:
            if diagnostic.phase == "after_rewrite":  # its run may be over, so that nobody reads its diagnostics
                error = diagnostic.error
                _log.warning("after_rewrite of %s failed: %r", diagnostic.extension, error, exc_info=error)


def _merged(one: AfterRewrite, two: AfterRewrite) -> AfterRewrite:
    """Return one question for two rewrites: what the later one was, and how many are left out before it.

    What is done about a rewrite looks at what is stored now, so the last one is enough to hear of.
    """
    earlier = one._changes.get("merged", 0)
    return AfterRewrite(two.kind, {**two._changes, "merged": earlier + 1})
