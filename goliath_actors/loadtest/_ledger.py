"""The check that counts: nothing accepted is lost, nobody is left untold, nothing is left behind."""

from __future__ import annotations

import os
import threading
from typing import Any

import attrs
import trio

from goliath_actors import Extension, Run
from goliath_actors.events import Event
from goliath_actors.hooks import HookContext
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
        ]


class Observer(Extension[Any]):
    """Tells the ledger that it was told."""

    def __init__(self, ledger: Ledger, number: int) -> None:
        self.name = f"observer-{number}"
        self._ledger = ledger

    def on_finish(self, ctx: HookContext[Any], outcome: Any, /) -> None:
        """Count it."""
        self._ledger.hear(ctx.run_id)


@attrs.frozen
class Belongings:
    """What this process holds: trio tasks, open files and sockets, and threads that are not trio's spare ones."""

    tasks: int
    files: int | None
    threads: int

    @classmethod
    def now(cls) -> Belongings:
        """Count. Files are counted where the system lists them."""
        try:
            files = len(os.listdir("/proc/self/fd"))
        except OSError:
            files = None
        threads = sum(1 for thread in threading.enumerate() if not thread.name.startswith("Trio"))
        return cls(trio.lowlevel.current_statistics().tasks_living, files, threads)

    def check(self, after: Belongings) -> Check:
        """Return whether no more is held than before."""
        left = []
        if after.tasks > self.tasks:
            left.append(f"{after.tasks - self.tasks} tasks")
        if self.files is not None and after.files is not None and after.files > self.files:
            left.append(f"{after.files - self.files} files or sockets")
        if after.threads > self.threads:
            left.append(f"{after.threads - self.threads} threads")
        return Check("nothing is left behind", not left, ", ".join(left) or "no task, file, socket or thread")
