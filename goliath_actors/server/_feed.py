"""What a stream sends next, and when: all that is there at once, and texts at a pace that all streams share.

A stream that has sent nothing for a while sends at once. One that has just sent text waits for the next tick, takes
what has come meanwhile, and sends it as one piece. With many streams the cost of a piece (a task's turn, a frame, a
system call) is what matters, so ticks become rarer as sending takes longer: see `Pace`.
"""

from __future__ import annotations

from typing import Final, final

import attrs
import trio

from goliath_actors._journal import EventStream
from goliath_actors.events import Event, RunFinished, TextDelta

from ._hosted import Hosted

__all__ = ["Feed", "Pace"]

SHARE: Final = 3.0  # a tick is at least this many times as long as the sending of the last one took
SLOWEST: Final = 0.075  # seconds: a longer tick would be seen by who reads
MANY: Final = 64  # events in one piece
LONG: Final = 65_536  # characters of text in one piece, before another event is added


@final
@attrs.define(eq=False)
class Pace:
    """The ticks at which streams send text that came since their last piece.

    A tick takes `least` seconds, and more once sending takes more than a third of the time: up to 75 ms, so that a
    server with little to spare spends it on what models say, and not on more and smaller pieces.
    """

    # Why no task of its own: the first stream that waits is who sleeps, and wakes the others. Nothing has to be started
    # or stopped, and if that stream's client leaves, the others merely send a little early.
    least: float
    _asleep: bool = False
    _others: trio.lowlevel.ParkingLot = attrs.Factory(trio.lowlevel.ParkingLot)
    _ticked: float = 0.0
    # How long the last tick took, from waking the streams to the turn of the last one.
    _took: float = 0.0
    _length: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._length = self.least

    @property
    def length(self) -> float:
        """Seconds between two ticks as they are now."""
        return self._length

    async def wait(self) -> None:
        """Wait for the next tick.

        Cancellation: the tick comes early for who else waits.
        """
        if self._asleep:
            await self._others.park()
            self._took = trio.current_time() - self._ticked
            return
        self._asleep = True
        try:
            await trio.sleep(self._length)
        finally:
            self._asleep = False
            self._length = max(self.least, min(SLOWEST, SHARE * self._took))
            self._took = 0.0
            self._ticked = trio.current_time()
            self._others.unpark_all()


@final
@attrs.define(eq=False)
class Feed:
    """One stream's way through the events of a run."""

    _hosted: Hosted
    _pace: Pace
    _keep_alive: float
    _events: EventStream
    # How many of the run's asides the stream has been told.
    _told: int = attrs.field(init=False)
    # Whether text was taken last, of which more may come within the tick.
    _wrote: bool = False

    def __attrs_post_init__(self) -> None:
        self._told = len(self._hosted.asides)

    async def take(self) -> list[Event] | None:
        """Return what has happened since, all that is there at once; None behind the run's end.

        Nothing (an empty list) if there is an aside to be told, or if the time of a keep-alive has passed.

        Cancellation: nothing was taken.
        """
        if self._wrote:
            await self._pace.wait()
        else:
            await trio.lowlevel.checkpoint()
        events = self.take_nowait()
        if not events and not self.has_asides:
            with trio.move_on_after(self._keep_alive) as scope:
                self._hosted.waiting.add(scope)
                try:
                    events = self.take_nowait(await anext(self._events))
                except StopAsyncIteration:
                    return None
                finally:
                    self._hosted.waiting.discard(scope)
        return events

    def take_nowait(self, first: Event | None = None) -> list[Event]:
        """Return what is there already, behind a `first` event that was taken out of the run before. Never blocks."""
        events: list[Event] = []
        size = 0
        event = self._events.next_nowait() if first is None else first
        self._wrote = False
        while event is not None:
            events.append(event)
            if isinstance(event, TextDelta):
                size += len(event.text)
                self._wrote = True
            elif isinstance(event, RunFinished):  # nothing comes any more
                self._wrote = False
            if len(events) >= MANY or size >= LONG:
                break
            event = self._events.next_nowait()
        return events

    @property
    def has_asides(self) -> bool:
        """Whether the run has asides that this stream was not told."""
        return len(self._hosted.asides) > self._told

    def asides(self) -> list[tuple[str, dict[str, object]]]:
        """Return the asides that are new."""
        new = self._hosted.asides[self._told :]
        self._told += len(new)
        return new
