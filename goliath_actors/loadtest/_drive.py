"""Sending asks: when the clock says so (open loop), or when the one before is answered (closed loop)."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterator

import attrs
import trio

from ._measure import Observation, Recorder
from ._simulated import Part
from .scenario import Scenario
from .targets import Client, Order, Target

__all__ = ["MOST_IN_FLIGHT", "Driver", "starts"]

# Open loop: clients in flight at once. What comes beyond is counted as not sent, and fails the load test: an answer
# that nobody could wait for is no good figure.
MOST_IN_FLIGHT = 20_000
# Seconds for what is in flight when a load test is told to stop: somebody waits in front of it.
HURRY = 10.0


def starts(scenario: Scenario) -> Iterator[float]:
    """Yield the intended starts of an open loop, in seconds after the beginning, in order, up to its duration."""
    dice = random.Random(f"{scenario.seed}/arrivals")

    def steady() -> Iterator[float]:
        if scenario.arrivals == "trace":
            yield from scenario.trace
            return
        at = 0.0
        for number in itertools.count(1):
            yield at
            at = number / scenario.rate if scenario.arrivals == "fixed" else at + dice.expovariate(scenario.rate)

    bursts = [burst.at for burst in sorted(scenario.bursts, key=lambda burst: burst.at) for _ in range(burst.asks)]
    for at in heapq.merge(steady(), bursts):
        if at >= scenario.duration:
            return
        yield at


@attrs.define(eq=False)
class Driver:
    """Sends a scenario's asks to a target. Bounded by the scenario's duration and number of asks.

    Once `stop` is set nothing more is sent.
    """

    scenario: Scenario
    target: Target
    record: Recorder
    stop: trio.Event = attrs.field(factory=trio.Event)
    _numbers: Iterator[int] = attrs.field(factory=itertools.count, init=False)
    _asked: list[int] = attrs.field(init=False)
    _dice: random.Random = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Give every conversation its count of asks."""
        self._asked = [0] * self.scenario.conversations
        self._dice = random.Random(f"{self.scenario.seed}/driver")

    async def run(self) -> None:
        """Send everything and wait for the answers, `settle` seconds longer than the duration at most.

        Returns: when the last answer has come. Behind a stop that is waited for as long, and for `HURRY` at most.

        Cancellation: the asks in flight are left by their clients; the target decides what that means.
        """
        end = self.record.start + self.scenario.duration
        with trio.move_on_at(end + self.scenario.settle) as whole:
            async with trio.open_nursery() as beside:
                beside.start_soon(self._hurry, whole)
                async with trio.open_nursery() as nursery:
                    if self.scenario.mode == "open":
                        await self._open_loop(nursery)
                    else:
                        for place in range(self.scenario.conversations):
                            nursery.start_soon(self._closed_client, place, end)
                beside.cancel_scope.cancel()

    async def _hurry(self, whole: trio.CancelScope) -> None:
        await self.stop.wait()
        whole.deadline = min(whole.deadline, trio.current_time() + min(self.scenario.settle, HURRY))

    async def _stopped_before(self, time: float) -> bool:
        """Wait until `time`, or until there is a stop, and say whether there is one. Always a checkpoint."""
        with trio.move_on_at(time):
            await self.stop.wait()
        return self.stop.is_set()

    async def _open_loop(self, nursery: trio.Nursery) -> None:
        for at in itertools.islice(starts(self.scenario), self.scenario.max_asks):
            intended = self.record.start + at
            if await self._stopped_before(intended):
                return
            if self.record.in_flight >= MOST_IN_FLIGHT:
                self.record.not_sent += 1
                continue
            place = self._dice.randrange(self.scenario.conversations)
            # Counted before its task begins: tasks that are still to start are in flight, too.
            nursery.start_soon(self._one, self._order(place), self._begin(intended))

    async def _closed_client(self, place: int, end: float) -> None:
        dice = random.Random(f"{self.scenario.seed}/client/{place}")
        while True:
            pause = self.scenario.think.draw(dice)
            if trio.current_time() + pause >= end or self.record.sent >= self.scenario.max_asks:
                return
            if await self._stopped_before(trio.current_time() + pause) or self.record.sent >= self.scenario.max_asks:
                return
            await self._one(self._order(place), self._begin(trio.current_time()))

    def _begin(self, intended: float) -> Observation:
        seen = Observation(intended, trio.current_time())
        self.record.began(seen)
        return seen

    async def _one(self, order: Order, seen: Observation) -> None:
        try:
            await self.target.ask(order, seen)
        finally:
            if seen.ended is None:
                seen.ended = trio.current_time()
            self.record.over_with(seen)

    def _order(self, place: int) -> Order:
        scenario = self.scenario
        number = next(self._numbers)
        asked, self._asked[place] = self._asked[place], self._asked[place] + 1
        turn = asked // scenario.turns if scenario.turns else 0
        dice = random.Random(f"{scenario.seed}/ask/{number}")
        kind = dice.choices(scenario.mix, [turn.weight for turn in scenario.mix])[0]
        return Order(
            number=number,
            conversation_id=f"load-{place}" if not turn else f"load-{place}.{turn}",
            ask=kind.ask.replace("{n}", str(number)),
            client=self._client(dice.random()),
            part=Part(kind, dice, number),
            timeout=scenario.timeout,
            slow_pause=scenario.clients.slow_pause,
        )

    def _client(self, fate: float) -> Client:
        clients = self.scenario.clients
        shares: tuple[tuple[Client, float], ...] = (
            ("abandons", clients.abandon),
            ("aborts", clients.abort),
            ("slow", clients.slow),
        )
        for client, share in shares:
            if fate < share:
                return client
            fate -= share
        return "patient"
