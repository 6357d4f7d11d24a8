"""Admission: tasks of runs begin as fast as the event loop can follow, so that a crowd costs what a few cost.

While the loop keeps up, nothing waits here for longer than one pass of it. When it has more to do than it can, what
has begun goes first: more runs in flight would not be answered sooner, but each holds memory that the garbage collector
looks through again and again, and everybody's next step waits for everybody else's. What waits has its turn already;
there is no limit here on how many run (that is `max_running`), and no order but that of their turns.
"""

# Why passes are measured and not runs in flight: thousands that wait for slow models cost a loop nothing, and dozens
# that compute are too many. The time of a pass grows with what is ready at once, whatever it is. Measured with 2,000
# conversations at once and a model that takes 0.2 s (scripts/bench/turns.py --fleet): a quarter less CPU, and a third
# less memory.

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from itertools import islice
from time import perf_counter
from typing import final

import attrs
import trio

__all__ = ["Admission"]

FREE = 32  # so many have begun and are not over, whatever the loop does: so few are no crowd
PASS = 0.002  # seconds: a pass of the loop that takes longer has more to do than it should
BATCH = 32  # at most so many begin in one pass
# A second, at the least, however long passes take: an application that computes much beside its runs may have long
# passes all the time, and its runs are to begin all the same.
STEADY = 100
# What ends at once costs little: enough in one pass that a mass of them is soon over, few enough that others get on.
HURRIED = 250


@final
@attrs.define(eq=False)
class Admission:
    """Lets the tasks of one runtime begin. Its own task lives while something waits, and never longer."""

    # Starts a task in the nursery that the runs have, too: nobody else may end it.
    spawn: Callable[[Callable[[], Awaitable[None]]], object]
    # Tasks that have begun and are not over, and how many of them ended since the last look.
    inside: int = 0
    left: int = 0
    # Whether everything that waits is aborted: it ends as soon as it has begun, and somebody waits for that.
    hurried: bool = False
    clock: Callable[[], float] = perf_counter
    # Who waits, in order, and how each begins.
    _line: OrderedDict[object, Callable[[], object]] = attrs.Factory(OrderedDict)
    _since: float | None = None  # when the pass began that is measured; None while nobody waits

    def enter(self) -> bool:
        """Say whether a task begins now; if not, it is to `wait`."""
        if self._since is None and self.inside < FREE:
            self.inside += 1
            return True
        return False

    def pass_by(self) -> None:
        """A task begins now, whoever waits."""
        self.inside += 1

    def wait(self, who: object, begin: Callable[[], object]) -> None:
        """Call `begin` once the loop can follow, after all that wait already, or when told to `let_in`."""
        self._line[who] = begin
        if self._since is None:
            self._since, self.left = self.clock(), 0
            self.spawn(self._usher)

    def let_in(self, who: object) -> None:
        """Somebody who is inside waits for this one now: it begins at once, if it waits here."""
        if (begin := self._line.pop(who, None)) is not None:
            self.pass_by()
            begin()

    def leave(self) -> None:
        """A task is over."""
        self.inside -= 1
        self.left += 1

    @trio.lowlevel.enable_ki_protection
    async def _usher(self) -> None:
        """Let in who waits, a batch each pass of the loop, until nobody does. Not to be cancelled: all must begin."""
        batch, line = FREE, self._line
        while line:
            assert self._since is not None
            now = self.clock()
            taken, left = now - self._since, self.left
            batch = min(2 * batch, BATCH) if taken < PASS else max(1, batch // 2)
            least = max(left // 2, int(taken * STEADY), FREE - self.inside, HURRIED if self.hurried else 1)
            self._since, self.left = now, 0
            for who in [*islice(line, max(batch, least) if taken < PASS else least)]:
                self.let_in(who)
            await trio.lowlevel.cancel_shielded_checkpoint()
        self._since = None
