"""A native conversation's history: loaded once a run, appended to as it goes, and closed whatever happens (T2).

Every stored call gets exactly one stored result: from its round, from the run's own end, or, after a crash,
when the conversation is loaded again.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Literal, TypeAlias

import attrs
import trio

from ._budget import PromptCounts
from ._composition import NOT_EXECUTED, sendable
from ._drafts import INTERRUPTED, STEER, Draft, appending, cursor_of, is_ask, not_waiting, result_of, taken_elsewhere
from ._history import History
from ._kept import commit, saving_seconds
from ._provider import describe
from ._staging import CURSOR, WAITING
from ._waiting import WaitingCall, waiting_calls, waiting_data
from ._work import Work
from .abc import UNSET, Change, Entry, Record
from .events import MemoryError
from .hooks import BeforeAppend
from .values import Message, ToolCall

__all__ = ["Transcript"]

PAGE = 200  # entries read at a time

_NONE: frozenset[str] = frozenset()  # one for all: each `frozenset()` is another

EntryRole: TypeAlias = Literal["user", "assistant", "tool", "summary"]


@attrs.define(eq=False)
class Transcript:
    """The part of a history that a model may see, and what of it is not stored yet."""

    work: Work
    history: History
    # Invariant: entries of a commit that was cut or failed: they are all in the store, or none of them is.
    _unsure: tuple[Entry, ...] = ()
    _number: int = 0
    # True once it turned out that a message of the model's, whose commit was cut, is stored.
    _replied: bool = False
    # Calls that go on waiting whatever becomes of this run.
    waits: frozenset[str] = _NONE

    # --- reading ----------------------------------------------------------------------------------------------------

    @classmethod
    async def load(cls, work: Work) -> Transcript:
        """Read what a model may see, and close calls that a crash left open.

        Raises: what the store raised, with origin `memory`.

        Cancellation: honoured; calls that were left open are closed or not.
        """
        with work.journal.origin("memory"):
            transcript = await cls._known(work) or await cls._read(work)
            work.history = transcript.history
            if transcript.history.open:
                await transcript._close_left()
        return transcript

    async def _close_left(self) -> None:
        self.waits = frozenset([call.call_id for call in self.waiting])
        left = [
            result_of(call, INTERRUPTED, {"interrupted": True})
            for call in self.history.open.values()
            if call.id not in self.waits
        ]
        if left:
            await self._commit(self._entries(left))

    @classmethod
    async def _known(cls, work: Work) -> Transcript | None:
        """Return what an earlier run has read, if the store has still the same; None if it must be read anew."""
        history = work.history  # of this run, which looked before
        if history is None and work.histories is not None:
            history = work.histories.take(work.key, work.known, work.record)
        if history is None:
            return None
        # A record that was deleted and made again can be of the same version; its newest entry is another one.
        page = await work.store.entries(work.key, limit=1)
        if [entry.id for entry in page.entries] != [history.last_id]:
            return None
        if history.counts is None or history.counts.counter is not work.counter:
            history.counts = PromptCounts(work.counter, work.standing.fixed)
        return cls(work, history)

    @property
    def _memory(self) -> AbstractContextManager[None]:
        """A block whose errors are the store's."""
        return self.work.journal.origin("memory")

    @property
    def kept(self) -> list[Entry]:
        """What the store has, from the newest summary on, which comes first; hidden entries are left out."""
        return self.history.kept

    @property
    def taken(self) -> Collection[str]:
        """Ids of calls that are taken, in what was loaded and in this run."""
        return self.history.taken

    @property
    def counts(self) -> PromptCounts:
        """Counts prompts that begin with this history."""
        assert self.history.counts is not None
        return self.history.counts

    @property
    def waiting(self) -> list[WaitingCall]:
        """The calls that wait for a person, as the record has them."""
        if WAITING not in self.work.record.private:
            return []
        return [call for call in waiting_calls(self.work.record.private) if call.call_id in self.history.open]

    def round_of(self, call_id: str) -> tuple[str, tuple[ToolCall, ...], tuple[str, ...]]:
        """Return the text, the calls and the results, in call order, of the message that made a call."""
        made = next(
            (entry.message for entry in self.kept if any(call.id == call_id for call in entry.message.tool_calls)),
            Message("assistant"),
        )
        results = {entry.message.tool_call_id: entry.message.text for entry in self.kept if entry.role == "tool"}
        return made.text, made.tool_calls, tuple(results.get(call.id, "") for call in made.tool_calls)

    @classmethod
    async def _read(cls, work: Work) -> Transcript:
        """Read from the newest summary on."""
        transcript = cls(work, History(work.known, counts=PromptCounts(work.counter, work.standing.fixed)))
        if work.record.entries_count:
            newest_first = await transcript._back_to(cursor_of(work.record.private).get("through"))
            transcript.history.last_id = newest_first[0].id if newest_first else None
            for entry in reversed(newest_first):
                transcript._take(entry)
        return transcript

    async def _back_to(self, entry_id: str | None) -> list[Entry]:
        """Return what the store has behind an entry, newest first, the hidden as well as the shown; all if there is no
        such entry."""
        work, found = self.work, list[Entry]()
        before: int | None = None
        anchor: int | None = None
        while True:
            page = await work.store.entries(work.key, before=before, limit=PAGE, anchor=anchor)
            for entry in reversed(page.entries):
                if entry.id == entry_id:
                    return found
                found.append(entry)
            if page.next is None:
                return found
            before, anchor = page.next, page.anchor

    def _take(self, entry: Entry) -> None:
        self.history.add(entry, self._shown(entry))

    def _shown(self, entry: Entry) -> Message:
        message = entry.message
        if entry.role == "summary":
            return Message("user", f"Summary of the conversation so far:\n{message.text}")
        return sendable(message, self.work.known) if message.tool_calls or message.role == "tool" else message

    @property
    def open_calls(self) -> tuple[ToolCall, ...]:
        """Stored calls that have no stored result yet, in the order in which they were made."""
        return tuple(self.history.open.values())

    # --- writing ----------------------------------------------------------------------------------------------------

    async def asked(self, draft: Draft) -> Draft:
        """Pass a message through `before_append`.

        Raises: `GoliathExtensionError`.
        """
        if not self.work.panel.hears("before_append"):
            return draft
        decision = await self.work.panel.decide("before_append", BeforeAppend(draft.message))
        return attrs.evolve(draft, message=decision.question.message)

    async def append(self, drafts: Sequence[Draft]) -> None:
        """Store messages that have passed `before_append`, in one commit.

        Raises: what the store raised, with origin `memory`.

        Cancellation: honoured; whether they are stored is found out by `close`.
        """
        with self._memory:
            await self._commit(self._entries(drafts))

    def add(self, entries: Iterable[Entry]) -> None:
        """Take entries into account that were stored beside this run's own."""
        for entry in entries:
            self._take(entry)

    async def wait(self, calls: Sequence[WaitingCall]) -> None:
        """Keep calls that wait for a person, in one commit, beside those that wait already.

        Raises: what the store raised, with origin `memory`.

        Cancellation: as `append`.
        """
        new = {call.call_id: call for call in calls}
        known = [call for call in self.waiting if call.call_id not in new]
        data = waiting_data(self.work.ask, (*known, *calls))
        with self._memory:
            await commit(self.work, lambda record: Change(private={**record.private, WAITING: data}))

    async def take_up(self, call_ids: Collection[str]) -> None:
        """Let calls wait no more, in one commit, before they are executed.

        A process that ends in the middle of one must not leave it to be approved and executed a second time: whoever
        loads the conversation then finds a call without a result, and closes it (S7).

        Raises: `StoreConflict` if somebody else has taken one of them up meanwhile, and what the store raised, with
        origin `memory`; the calls must not be executed then.

        Cancellation: as `append`.
        """

        def take(record: Record) -> Change:
            gone = set(call_ids).difference(call.call_id for call in waiting_calls(record.private))
            if gone:
                self.history.drop_calls(gone)  # whoever has them gives them their results
                raise taken_elsewhere(self.work.key, gone)
            return Change(private=not_waiting(record, call_ids))

        self.waits = self.waits.difference(call_ids)
        with self._memory:
            await commit(self.work, take)

    async def refuse(self, calls: Sequence[WaitingCall], text: str, texts: Mapping[str, str]) -> None:
        """Give calls that wait, or were about to, a result that says why they do not, in one commit.

        Arguments: `texts`, by call id, in place of `text` for some of them.

        Raises: `GoliathExtensionError`, and then they wait as before; what the store raised, with origin `memory`.

        Cancellation: as `append`.
        """
        drafts = []
        for call in calls:
            made = self.history.open[call.call_id]
            drafts.append(await self.asked(result_of(made, texts.get(call.call_id, text), {"status": "skipped"})))
        self.waits = _NONE
        await self.append(drafts)

    async def answer(self, draft: Draft) -> None:
        """Store the answer, which is out already: shielded, for `finish_timeout` or 10 seconds (C10).

        Raises: nothing; a failing save is a `MemoryError` event (S6).
        """
        problem: str | None = None
        seconds = saving_seconds(self.work)
        try:
            with trio.CancelScope(shield=True, deadline=self.work.journal.now() + seconds) as saving:
                await self._commit(self._entries([draft]))
            if saving.cancelled_caught:
                problem = f"saving took longer than {seconds:g} s"
        except Exception as error:  # noqa: BLE001  # S6: a failing save keeps the answer
            problem = describe(error)
        if problem is not None:
            self.work.journal.emit(MemoryError, error=problem)

    def _entries(self, drafts: Iterable[Draft]) -> tuple[Entry, ...]:
        entries, run_id, now = [], self.work.journal.run_id, time.time()
        for draft in drafts:
            self._number += 1
            role: EntryRole = draft.message.role  # type: ignore[assignment]  # what the system says is never stored
            entries.append(Entry(f"{run_id}-{self._number}", now, role, draft.message, True, True, dict(draft.private)))
        return tuple(entries)

    async def _commit(self, entries: tuple[Entry, ...]) -> None:
        self._unsure = entries
        await commit(self.work, partial(appending, entries), partial(self._look_for_results, entries))
        self._unsure = ()
        self._stored(entries)

    async def _look_for_results(self, entries: tuple[Entry, ...], before: Record) -> None:
        """Raise `StoreConflict` if somebody else has given one of these calls its result, for it has one only, or has
        taken the call away, for there is no result without one (T2)."""
        work, known = self.work, before.entries_count
        made = {call.id for entry in entries for call in entry.message.tool_calls}
        closed = {entry.message.tool_call_id for entry in entries if entry.role == "tool"} - made
        # From the last entry that is known: where there is another one now, what was in front of it may have changed.
        after = max(0, known - 1)
        if closed and known:
            page = await work.store.entries(work.key, after=after, limit=1)
            if [entry.id for entry in page.entries] != [self.history.last_id]:
                after = 0
        found: set[str] = set()
        lost = set() if after else set(closed)
        while closed:
            page = await work.store.entries(work.key, after=after, limit=PAGE)
            lost.difference_update(call.id for entry in page.entries for call in entry.message.tool_calls)
            results = [entry.message.tool_call_id for entry in page.entries if entry.role == "tool"]
            found.update(id for id in results if isinstance(id, str) and id in closed)
            if page.next is None:
                break
            after = page.next
        if gone := found.union(id for id in lost if isinstance(id, str)):
            self.history.drop_calls(gone)
            raise taken_elsewhere(work.key, gone)

    def _stored(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self.history.add(entry, self._shown(entry))
            self.history.last_id = entry.id

    async def replace(self, summary: Draft, through: int) -> None:
        """Put a summary in the place of the first `through` kept entries, in one commit (T12).

        Raises: what the store raised.

        Cancellation: honoured; it is wholly there or not at all, which `close` finds out.
        """
        gone = self.kept[:through]
        message = summary.message
        self._number += 1
        entry_id = f"{self.work.journal.run_id}-{self._number}"
        entry = Entry(entry_id, time.time(), "summary", message, private=dict(summary.private))
        hidden = {known.id: (known.transcript_visible, False) for known in gone}
        cursor = {"through": gone[-1].id}
        self._unsure = (entry,)
        await commit(
            self.work,
            lambda record: Change(append=(entry,), visibility=hidden, private={**record.private, CURSOR: cursor}),
        )
        self._unsure = ()
        self.history.cut(0, through)
        self._stored((entry,))

    @property
    def last_ask(self) -> Entry | None:
        """The last message that a user sent, None if there is none; texts of hooks do not count."""
        return next((entry for entry in reversed(self.kept) if is_ask(entry)), None)

    def behind(self, entry: Entry) -> list[Entry]:
        """Return what was said after an entry."""
        return self.kept[self.kept.index(entry) + 1 :]

    async def regenerate(self, ask: Entry, metadata: Mapping[str, Any], private: Mapping[str, Any]) -> None:
        """Drop everything behind an ask, in one commit with what `before_rewrite` wants stored (T12).

        A summary that was made behind the ask stays: it is of older turns. So does the result of an older call.

        Raises: what the store raised, with origin `memory`.

        Cancellation: honoured; it is wholly done or not at all.
        """
        with self._memory:
            gone = await self._back_to(ask.id)
        summaries = [entry for entry in self.kept[:1] if entry.role == "summary" and entry in gone]
        made = {call.id for entry in gone for call in entry.message.tool_calls}
        # Where two processes wrote at once, results of calls before the ask lie behind it.
        results = [entry for entry in reversed(gone) if entry.role == "tool" and entry.message.tool_call_id not in made]
        stay = (*summaries, *results)
        copies = tuple(
            attrs.evolve(
                copy,
                role=entry.role,
                transcript_visible=entry.transcript_visible,
                context_visible=entry.context_visible,
            )
            for copy, entry in zip(self._entries([Draft(one.message, one.private) for one in stay]), stay, strict=True)
        )

        def change(record: Record) -> Change:
            kept = {key: value for key, value in {**record.private, **private}.items() if key != WAITING}
            merged = {**record.metadata, **metadata} if metadata else UNSET
            return Change(metadata=merged, private=kept, append=copies, truncate_after=ask.id)

        self._unsure = copies
        with self._memory:
            await commit(self.work, change)
        self._unsure = ()
        self.history.cut(self.kept.index(ask) + 1, None)
        self.history.drop_calls(made)
        self.waits = _NONE  # what waited has gone
        self.history.last_id = ask.id
        if summaries:
            self.history.cut(0, 1)
        self._stored(copies)

    async def is_last(self, ask: Entry) -> bool:
        """In a clean-up: say whether nothing but a summary stands behind an entry in the store; False if that cannot be
        found out. Never raises an `Exception`."""
        behind: list[Entry] | None = None
        try:
            behind = await self._back_to(ask.id)
        except Exception as error:  # noqa: BLE001  # an exception from here would replace the one that is passing
            self.work.journal.emit_closing(MemoryError, error=describe(error))
        return behind is not None and all(entry.role == "summary" for entry in behind)

    # --- the end ----------------------------------------------------------------------------------------------------

    async def close(self, results: Mapping[str, Draft], last: Sequence[Draft]) -> None:
        """Give every open call its result, and store what else the run leaves. Call it under a shield with a deadline.

        Arguments: `results` by call id, for calls about which more is known than that they have none; `last`, the
        messages behind them. Both have passed `before_append`.

        Never raises an `Exception`: what goes wrong is told as a `MemoryError` event.

        Cancellation: told as a `MemoryError` event too; what is missing then is closed on the next load.
        """
        problem: str | None = "the end of this run could not be recorded in time"
        try:
            left = await self._settle()
            if self._replied:  # the message whose text `last` would repeat is there
                last = ()
            drafts = [
                results.get(call.id, result_of(call, NOT_EXECUTED, {}))
                for call in self.history.open.values()
                if call.id in results or call.id not in self.waits
            ]
            entries = (*left, *self._entries((*drafts, *last)))
            if entries:
                await self._commit(entries)
            problem = None
        except Exception as error:  # noqa: BLE001  # an exception from here would replace the one that is passing
            problem = describe(error)
        finally:
            if problem is not None:
                self.work.journal.emit_closing(MemoryError, error=problem)

    async def _settle(self) -> tuple[Entry, ...]:
        """Find out what became of a commit that was cut or failed.

        Returns: the user's messages among it, if it is not there; calls that were not stored were never begun.
        """
        unsure = self._unsure
        if not unsure:
            return ()
        work = self.work
        work.history = None  # what is known of the store is guessed from here on: it is read anew by the next run
        work.record = await work.store.load(work.key)
        page = await work.store.entries(work.key, limit=len(unsure) + PAGE)
        there = {entry.id for entry in page.entries}
        self._unsure = ()
        if all(entry.id in there for entry in unsure):
            for entry in unsure:
                self._replied = self._replied or entry.role == "assistant"
                if entry.role != "summary":
                    self._take(entry)
            return ()
        # A text that was handed in and is not there becomes a run of its own, so it is not stored here.
        return tuple(entry for entry in unsure if entry.role == "user" and STEER not in entry.private)
