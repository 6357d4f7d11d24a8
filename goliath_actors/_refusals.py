"""What keeps an ask from being accepted: a runtime that ends, a wait without an end, a conversation or a runtime that
is full. Each is asked before anything exists of the ask, so that a refusal leaves no trace (R2)."""

from __future__ import annotations

from typing import final

import attrs

from ._conversation import Actor, Entry, label_of
from ._engine import Engine
from ._envelope import Envelope
from ._waits import refuse_cycle, refuse_line
from .errors import ConversationBusy, MailboxFull

__all__ = ["Refusals"]

# Replacements that were replaced before they began, beyond what a full mailbox holds: each keeps its place (R7).
REPLACED_AT_MOST = 1000


@final
@attrs.frozen(eq=False)
class Refusals:
    """The questions, one a reason. Each raises what refuses the ask, or returns."""

    engine: Engine
    mailbox_capacity: int
    max_waiting: int | None

    def late(self, *, waits: bool) -> None:
        """Refuse an ask that comes after the runtime began to close, but for those that its runs may still make."""
        state = self.engine.life.state
        if not (state == "closing" or (state == "draining" and waits)) or self.engine.asker() is None:
            raise self.engine.life.refusal()

    def busy(self, actor: Actor, when_busy: str, asker: Envelope | None) -> None:
        """Refuse an ask for a conversation that has something to do, as the asker wants it, or for want of room.

        Arguments: `asker`, the run that waits for it.
        """
        if asker is not None:
            refuse_cycle(asker, actor, lends=self.engine.owns(asker))
        if actor.current is None:
            return
        if when_busy == "refuse":
            raise ConversationBusy(actor.conversation_id)
        if when_busy == "queue":
            self.crowd(actor)
        elif actor.waiting >= 2 * self.mailbox_capacity + REPLACED_AT_MOST:
            raise MailboxFull("conversation", actor.waiting, self.mailbox_capacity)

    def line(self, entry: Entry, conversation_id: str | None, actor: Actor | None, asker: Envelope) -> None:
        """Refuse a run of another runtime, which has no slot here to lend, a wait for one that never comes free."""
        turns = self.engine.turns
        free = turns.limit is None or turns.running < turns.limit
        if free or self.engine.owns(asker) or (actor is not None and actor.sponsors):
            return
        refuse_line(asker, label_of(entry, conversation_id), turns)

    def crowd(self, actor: Actor) -> None:
        """Refuse what finds the conversation's mailbox full."""
        crowd = actor.crowd(self.mailbox_capacity)
        if crowd >= self.mailbox_capacity:
            raise MailboxFull("conversation", crowd, self.mailbox_capacity)

    def waiting(self, actor: Actor | None, at_most: int) -> None:
        """Refuse what would wait where as many wait in the whole runtime as may."""
        waiting = self.engine.life.crowd(at_most)
        if waiting < at_most:
            return
        turns = self.engine.turns
        if actor is not None and actor.current is not None:
            starts = False
        elif actor is not None:
            starts = turns.would_start(actor)
        else:
            starts = turns.limit is None or turns.running < turns.limit
        if not starts:
            raise MailboxFull("runtime", waiting, at_most)

    def turn(self, actor: Actor) -> None:
        """Refuse a turn that is no run where as many wait as may, those that were aborted meanwhile included."""
        if actor.current is not None and actor.waiting >= self.mailbox_capacity:
            raise MailboxFull("conversation", actor.waiting, self.mailbox_capacity)
