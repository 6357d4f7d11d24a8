"""The actor: takes an envelope, has it supervised, takes the next. It costs nothing while idle.

`Actor` is a slotted object without a task; `Turns` gives actors their turns up to `max_running`.
"""

# Why one task a run and none while idle (`chain`): a parked task costs 3 to 5 kB a conversation; a lock held by the
# caller stays held when the caller simply walks away; a task per ask that then queues loses the order, since trio
# shuffles runnable tasks; one drainer task would run everybody in the first caller's context. So the finishing run
# starts the next one, in that envelope's own context.

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, final

import attrs
import trio

from ._agent import Agent, Parts, parts_of
from ._envelope import Envelope, Job, Wait
from ._mailbox import Mailbox
from ._threads import ConversationThreads, ToolThreads
from ._work import Health
from .values import ConversationStatus

__all__ = ["Actor", "Entry", "Turns", "label_of"]


@attrs.frozen(eq=False)
class Entry:
    """An agent within a runtime, with its conversations."""

    agent: Agent[Any]
    # The agent's name as part of a store's key, escaped so that it holds no slash.
    prefix: str
    threads: ToolThreads = attrs.Factory(ToolThreads)
    # What is made of the agent's definition.
    parts: Parts = attrs.field(default=attrs.Factory(lambda self: parts_of(self.agent), takes_self=True), init=False)
    actors: dict[str | None, Actor] = attrs.Factory(dict)

    def key(self, conversation_id: str | None) -> str:
        """Return the store's key: the agent's name, escaped, then a slash and the id as given."""
        return self.prefix if conversation_id is None else f"{self.prefix}/{conversation_id}"


def label_of(entry: Entry, conversation_id: str | None) -> str:
    """Return the name of a conversation, for people."""
    return f"{entry.agent.name}/{'(default)' if conversation_id is None else conversation_id}"


@final
@attrs.define(eq=False, repr=False)
class Actor:
    """One conversation: (agent, conversation id). Holds what has its turn and what waits behind it, and no task."""

    entry: Entry
    conversation_id: str | None
    # Invariant: at most one envelope has its turn (1); it is set before its task starts and cleared by that task.
    current: Envelope | Job | None = None
    mailbox: Mailbox | None = None
    # How many runs of this runtime wait for a turn here: they lend their slots (R4).
    sponsors: int = 0
    # Where the head, which is ready, queues for a slot.
    line: Turns | None = None
    has_slot: bool = False
    idle_since: float = 0.0
    # How many of those that wait were aborted meanwhile: they keep their places until their turns (R7).
    gone: int = 0
    # Neighbours among the idle, longest idle first.
    before: Actor | None = None
    after: Actor | None = None
    _health: Health | None = None
    _threads: ConversationThreads | None = None

    def __repr__(self) -> str:
        return f"<Actor {self.label} current={self.current!r} waiting={self.waiting}>"

    @property
    def label(self) -> str:
        """Name of the conversation, for people."""
        return label_of(self.entry, self.conversation_id)

    @property
    def in_line(self) -> bool:
        """True while the head is ready and queues for a slot."""
        return self.line is not None

    @property
    def waiting(self) -> int:
        """How many accepted envelopes have not begun: those behind the head, a head that waits for a slot, and texts
        that the head has not taken."""
        steers = len(self.current.steers) if isinstance(self.current, Envelope) else 0
        return (0 if self.mailbox is None else len(self.mailbox)) + (1 if self.in_line else 0) + steers

    def crowd(self, capacity: int) -> int:
        """Return how many of those that wait count for a limit: not those that were aborted meanwhile, up to as many
        again, so that who gives up does not keep others out, and what is kept is bounded all the same."""
        return self.waiting - min(self.gone, capacity)

    @property
    def health(self) -> Health:
        """The small counters that live in memory alone."""
        if self._health is None:
            self._health = Health()
        return self._health

    @property
    def threads(self) -> ConversationThreads:
        """This conversation's share of the worker threads."""
        if self._threads is None:
            self._threads = ConversationThreads(self.entry.threads)
        return self._threads

    def envelopes(self) -> Iterator[Envelope | Job]:
        """Yield what has its turn, then what waits, oldest first."""
        if self.current is not None:
            yield self.current
        if self.mailbox is not None:
            yield from self.mailbox

    def runs(self) -> list[Envelope]:
        """Return the runs among the envelopes, oldest first, with those that texts not taken become behind the head."""
        runs: list[Envelope] = []
        for envelope in self.envelopes():
            if isinstance(envelope, Envelope):
                runs += [envelope, *envelope.steers]
        return runs

    def post(self, envelope: Envelope | Job, *, next_turn: bool = False) -> None:
        """Accept an envelope behind the head."""
        if self.mailbox is None:
            self.mailbox = Mailbox()
        if next_turn and isinstance(envelope, Envelope):
            self.mailbox.post_next(envelope)
        else:
            self.mailbox.post(envelope)

    def follow(self) -> list[Envelope]:
        """The head is about to be over: texts that it has not taken come next, as runs of their own (T7)."""
        head = self.current
        if not isinstance(head, Envelope) or not head.steers:
            return []
        left, head.steers = list(head.steers), ()
        # One after the other, and then those that were left by an earlier run: from each one the next can be found.
        for earlier, later in pairwise(left):
            earlier.followed_by = later
        left[-1].followed_by = head.followed_by
        head.followed_by = left[0]
        if self.mailbox is None:
            self.mailbox = Mailbox()
        for run in left:  # each goes behind the one before it
            run.waits = True
            self.mailbox.post_next(run)
        return left

    def advance(self) -> bool:
        """The head is over: make the next envelope the head. Returns False if there is none."""
        self.current = None if self.mailbox is None else self.mailbox.take()
        if self.mailbox is not None and not len(self.mailbox):
            self.mailbox = None
        return self.current is not None

    def rest(self) -> None:
        """Give up what only a running conversation needs; what it remembers in memory alone stays."""
        if self._health is not None and self._health.probed_at is None:
            self._health = None
        if self._threads is not None and self._threads.unused:
            self._threads = None

    def status(self) -> ConversationStatus:
        """Say what the conversation does now (R8b)."""
        current = self.current
        now = trio.current_time()
        waits = [None if self.mailbox is None else self.mailbox.oldest]
        if current is not None and self.in_line:
            waits.append(current.accepted_at)
        if isinstance(current, Envelope) and current.steers:
            waits.append(current.steers[0].accepted_at)
        oldest = max((now - since for since in waits if since is not None), default=None)
        if not isinstance(current, Envelope):
            phase = None if current is None else current.phase
            return ConversationStatus(None, phase, None, self.waiting, oldest)
        journal = current.journal
        since = journal.since if current.state != "queued" else current.accepted_at
        return ConversationStatus(current.id, journal.phase, since, self.waiting, oldest)


@attrs.define(eq=False)
class Turns:
    """Gives ready conversations their turns, at most `limit` at a time, in the order of becoming ready (R4)."""

    limit: int | None
    start: Callable[[Actor], None]
    running: int = 0
    # Invariant: exactly the actors that are `in_line`, in the order in which their heads became ready.
    _line: OrderedDict[Actor, None] = attrs.Factory(OrderedDict)
    # Invariant: with a limit, exactly the actors that have a slot.
    _holders: dict[Actor, None] = attrs.Factory(dict)

    @property
    def holders(self) -> list[Actor]:
        """As `Line.holders`. Without a limit nobody is asked, and none are noted."""
        return list(self._holders)

    @property
    def missing(self) -> int:
        """As `Line.missing`."""
        return 0 if self.limit is None else self.running - self.limit + 1

    def would_start(self, actor: Actor) -> bool:
        """Say whether a head that becomes ready now would begin at once."""
        return actor.sponsors > 0 or self.limit is None or self.running < self.limit

    def ready(self, actor: Actor) -> None:
        """The actor has a new head."""
        if self.limit is None or self.running < self.limit:
            self._hold(actor)
            self.start(actor)
        elif actor.sponsors:
            self.start(actor)
        else:
            actor.line = self
            self._line[actor] = None

    def over(self, actor: Actor, envelope: Envelope | Job) -> None:
        """The actor's head is over; its slot goes to whoever has waited longest, and what was lent to it goes back."""
        if isinstance(envelope, Envelope) and envelope.waits_for:
            for wait in envelope.waits_for:  # of tasks that outlive the run: its slot is no longer theirs to lend
                if isinstance(wait, Wait) and wait.lent:
                    wait.lent = False
                    self.unlend(wait.target)
        if envelope.lenders:
            actor.sponsors -= envelope.lenders
            envelope.lenders = 0
        if actor.has_slot:
            actor.has_slot = False
            self.running -= 1
            if self.limit is not None:
                del self._holders[actor]
        if self._line:
            self._fill()

    @trio.lowlevel.enable_ki_protection
    def lend(self, target: Envelope | Job) -> None:
        """A run waits for this one: until it does not, heads of the target's conversation need no slot of their own."""
        actor = _actor_of(target)
        target.lenders += 1
        actor.sponsors += 1
        if actor.in_line:
            del self._line[actor]
            actor.line = None
            self.start(actor)

    @trio.lowlevel.enable_ki_protection
    def unlend(self, target: Envelope | Job) -> None:
        """The wait is over. If the target goes on (its waiter left it alone), its conversation takes a slot after all,
        so that the limit holds again as soon as others finish."""
        if not target.lenders:  # it ended first: `over` gave everything back
            return
        actor = _actor_of(target)
        target.lenders -= 1
        actor.sponsors -= 1
        if not actor.sponsors and actor.current is not None and not actor.in_line and not actor.has_slot:
            self._hold(actor)

    def _hold(self, actor: Actor) -> None:
        actor.has_slot = True
        self.running += 1
        if self.limit is not None:
            self._holders[actor] = None

    def _fill(self) -> None:
        while self._line and (self.limit is None or self.running < self.limit):
            actor, _ = self._line.popitem(last=False)
            actor.line = None
            self._hold(actor)
            self.start(actor)


def _actor_of(envelope: Envelope | Job) -> Actor:
    actor = envelope.conversation
    assert isinstance(actor, Actor)  # what has no conversation is never waited for
    return actor
