"""What `resolve_context` gets of its conversation: the record, and the history up to where the step began (S5)."""

from __future__ import annotations

import attrs

from ._kept import commit
from ._rewrites import asked_to_append
from ._staging import Staged
from ._transcript import Transcript
from .abc import Record
from .errors import StoreConflict
from .threads import StepThread
from .values import Page

__all__ = ["step_thread"]


def step_thread(transcript: Transcript) -> StepThread:
    """Return the facade for a step that begins now."""
    work = transcript.work
    return StepThread(_StepDoors(transcript, work.record.version), work.key, work.record.entries_count)


@attrs.frozen(eq=False)
class _StepDoors:
    """What stands behind it. `version` is the record's when the step began: it never falls while the conversation is
    the same."""

    transcript: Transcript
    version: int

    async def load(self) -> Record:
        work = self.transcript.work
        record = await work.store.load(work.key)
        if record.version < self.version:
            raise StoreConflict(f"{work.key!r} was forgotten while a run of it read it")
        return record

    async def page(self, before: int | None, after: int | None, limit: int, anchor: int | None) -> Page:
        await self.load()
        work = self.transcript.work
        return await work.store.entries(work.key, before=before, after=after, limit=limit, anchor=anchor)

    async def commit(self, staged: Staged) -> Record:
        work = self.transcript.work
        staged = await asked_to_append(work.panel, staged)
        await commit(work, lambda record: staged.change(work.key, record))
        self.transcript.add(staged.append)
        work.history = None  # its newest entry is not the one that is known: the next run reads what is there
        return work.record
