"""The check that counts: nothing accepted is lost, nobody is left untold, nothing is left behind."""

from __future__ import annotations

import gc
import os
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import trio

from goliath_actors import Extension, Run
from goliath_actors._conversation import Actor
from goliath_actors.events import Event
from goliath_actors.hooks import HookContext, OnFinish
from goliath_actors.testing import check_events
from goliath_actors.values import RuntimeStatistics

__all__ = ["Belongings", "Check", "Ledger", "Observer"]

_SHOWN = 20  # pieces of evidence kept of each check; the rest is counted


@attrs.frozen
class Check:
    """One thing that must hold after a load test. `evidence` says what did not, for the first few cases."""

    name: str
    ok: bool
    detail: str
    evidence: tuple[str, ...] = ()


@attrs.define(eq=False)
class Ledger:
    """Who was accepted, and who has been told of it. Holds only the runs that are not over."""

    observers: int
    accepted: int = 0
    heard: int = 0
    # run id -> how many observers have still to hear. Below zero: heard more often than there are observers.
    _open: dict[str, int] = attrs.field(factory=dict)
    # Heard before the ask's own task went on: a run may be over before a stream's block is entered.
    _early: dict[str, int] = attrs.field(factory=dict)
    _grammar: list[str] = attrs.field(factory=list)
    broken: int = 0
    noted: int = 0
    _notes: Counter[str] = attrs.field(factory=Counter)

    def accept(self, run: Run) -> None:
        """Count a run that was accepted."""
        self.accepted += 1
        self._settle(run.id, self.observers - self._early.pop(run.id, 0))

    def hear(self, run_id: str) -> None:
        """Count an observer that was told of a run's end."""
        self.heard += 1
        if run_id in self._open:
            self._settle(run_id, self._open[run_id] - 1)
        else:
            self._early[run_id] = self._early.get(run_id, 0) + 1

    def _settle(self, run_id: str, left: int) -> None:
        if left:
            self._open[run_id] = left
        else:
            self._open.pop(run_id, None)

    def read(self, trace: tuple[Event, ...]) -> None:
        """Hold a finished run's events against the grammar (E1)."""
        try:
            check_events(trace)
        except AssertionError as error:
            self.broken += 1
            if len(self._grammar) < _SHOWN:
                self._grammar.append(f"{trace[0].run_id if trace else 'a run without events'}: {error}")

    def note(self, question: OnFinish) -> None:
        """Count what extensions raised without changing anything: nobody else would see it."""
        for found in question.diagnostics:
            self.noted += 1
            words = f"{found.extension} in {found.phase}: {type(found.error).__name__}: {found.error}"[:200]
            if words in self._notes or len(self._notes) < _SHOWN:
                self._notes[words] += 1

    def checks(self, before: RuntimeStatistics, after: RuntimeStatistics) -> list[Check]:
        """Return what must hold, given the runtime's own counts at the start and when nothing is in flight any more."""
        ended = {
            name: getattr(after, name) - getattr(before, name) for name in ("completed", "stopped", "errors", "aborted")
        }
        accepted = after.accepted - before.accepted
        total = sum(ended.values())
        words = " + ".join(f"{count} {name}" for name, count in ended.items())
        told = self.accepted * self.observers
        untold = [f"{run_id}: {left} not told" for run_id, left in list(self._open.items())[:_SHOWN]]
        strange = [
            f"{run_id}: told, {count} more than accepted" for run_id, count in list(self._early.items())[:_SHOWN]
        ]
        return [
            Check("every accepted ask ended once", accepted == total, f"{accepted} accepted = {words} = {total}"),
            Check(
                "the runtime and its askers count the same",
                accepted == self.accepted,
                f"{accepted} and {self.accepted}",
            ),
            Check(
                "every observer heard every end",
                self.heard == told and not untold and not strange,
                f"{self.heard} heard of {told}",
                (*untold, *strange),
            ),
            Check(
                "events keep their grammar",
                not self.broken,
                f"{self.broken} of {self.accepted} runs break it",
                tuple(self._grammar),
            ),
            Check(
                "nothing runs or waits any more",
                not after.running and not after.waiting,
                f"{after.running} running, {after.waiting} waiting",
            ),
            *self._noted(),
        ]

    def _noted(self) -> Iterator[Check]:
        if self.noted:
            evidence = tuple(f"{count} times {words}" for words, count in self._notes.most_common())
            yield Check("what extensions raised changed nothing", True, f"{self.noted} diagnostics", evidence)


class Observer(Extension[Any]):
    """Tells the ledger that it was told; the last one also what others raised until then."""

    def __init__(self, ledger: Ledger, number: int) -> None:
        self.name = f"observer-{number}"
        self._ledger = ledger
        self._last = number == ledger.observers - 1

    def on_finish(self, ctx: HookContext[Any], question: OnFinish, /) -> None:
        """Count it."""
        self._ledger.hear(ctx.run_id)
        if self._last:
            self._ledger.note(question)


@attrs.frozen
class Belongings:
    """What this process holds, by name: conversations of any runtime, trio tasks, open files and sockets (None where
    the system does not list them), and threads that are not trio's spare ones."""

    conversations: Counter[str]
    tasks: Counter[str]
    files: Counter[str] | None
    threads: Counter[str]

    @classmethod
    def now(cls) -> Belongings:
        """Count."""
        # Collected first: what only a cycle holds is not held any more.
        gc.collect()
        held = gc.get_objects()
        return cls(
            Counter(repr(actor.conversation_id) for actor in held if isinstance(actor, Actor)),
            Counter(_tasks()),
            _files(),
            Counter(thread.name for thread in threading.enumerate() if not thread.name.startswith("Trio")),
        )

    def check(self, after: Belongings) -> Check:
        """Return whether no more is held than before, and what it is."""
        left, evidence = [], []
        kinds: Mapping[str, tuple[Counter[str], Counter[str]]] = {
            "conversations": (self.conversations, after.conversations),
            "tasks": (self.tasks, after.tasks),
            "files or sockets": (self.files or Counter(), after.files or Counter()),
            "threads": (self.threads, after.threads),
        }
        for kind, (earlier, later) in kinds.items():
            # By number, not by name: one that was closed and opened anew is another one, and none more.
            if (more := later.total() - earlier.total()) > 0:
                left.append(f"{more} {kind}")
                evidence += [f"{name}, {count} more" for name, count in (later - earlier).most_common(_SHOWN)]
        detail = ", ".join(left) or "no conversation, task, file, socket or thread"
        return Check("nothing is left behind", not left, detail, tuple(evidence[:_SHOWN]))


def _tasks() -> Iterator[str]:
    """Yield the names of all of trio's tasks."""
    pending = [trio.lowlevel.current_root_task()]
    while pending:
        task = pending.pop()
        if task is not None:
            yield task.name
            pending += [child for nursery in task.child_nurseries for child in nursery.child_tasks]


def _files() -> Counter[str] | None:
    folder = "/proc/self/fd"
    names: Counter[str] = Counter()
    try:
        descriptors = os.listdir(folder)
    except OSError:
        return None
    for descriptor in descriptors:
        try:
            names[re.sub(r":\[\d+\]$", "", os.readlink(f"{folder}/{descriptor}"))] += 1
        except OSError:  # the listing's own
            continue
    return names
