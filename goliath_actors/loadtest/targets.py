"""What a load test drives: a runtime in this process, with a simulated model or a real one behind an address."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

import attrs
import trio
import trio.testing

from goliath_actors import Agent, Run, Runtime, open_runtime
from goliath_actors.abc import Store
from goliath_actors.errors import ConfigError
from goliath_actors.events import RunStarted, TextDelta
from goliath_actors.stores import InMemoryStore, SqliteStore
from goliath_actors.values import Outcome

from ._faulty import FaultyStore
from ._ledger import Belongings, Check, Ledger, Observer
from ._measure import Observation
from ._simulated import PART, Part, SimulatedModel, make_agent
from .scenario import Scenario

__all__ = ["Client", "Depth", "InProcess", "Order", "Target"]

Client = Literal["patient", "abandons", "aborts", "slow"]

# Refusals at the door, by the names that a report shows: nothing was accepted, so nothing has to end.
_REFUSALS = ("MailboxFull", "ConversationBusy", "RuntimeClosed", "ReentrantRun", "ConfigError")


@attrs.frozen
class Order:
    """One ask as the driver sends it."""

    number: int
    conversation_id: str
    ask: str
    client: Client
    part: Part
    timeout: float | None
    slow_pause: float


@attrs.frozen
class Depth:
    """How full a target is at one moment."""

    running: int
    waiting: int


class Target(Protocol):
    """What a load test drives. `open` gives it for the length of the test; `checks` says what must hold afterwards."""

    @property
    def name(self) -> str:
        """What a report calls it."""
        ...

    def open(self) -> AbstractAsyncContextManager[None]:
        """Make it ready, and take it down again."""
        ...

    async def ask(self, order: Order, seen: Observation) -> None:
        """Send one ask, behave as its client does, and write down what came of it. Raises nothing but `Cancelled`."""
        ...

    async def depth(self) -> Depth:
        """Return how full it is now."""
        ...

    def checks(self) -> Sequence[Check]:
        """Return what must hold, once it is closed."""
        ...


@attrs.define(eq=False)
class InProcess:
    """A runtime in this process.

    Arguments: `model`, what the agent talks to (None: the scenario's simulated provider); `agent`, an agent of the
    user's own in place of the load test's (it gets the observers as further extensions).
    """

    scenario: Scenario
    model: Any = None  # Any: whatever has the methods of a Model
    agent: Agent[Any] | None = None
    name: str = "in-process runtime"
    _runtime: Runtime | None = attrs.field(default=None, init=False)
    _ledger: Ledger = attrs.field(init=False)
    _checks: list[Check] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        """Give the ledger its number of observers."""
        self._ledger = Ledger(self.scenario.runtime.observers)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Open the runtime; when it is left, wait for what is in flight, count, close, and count what is left."""
        shape = self.scenario.runtime
        before = Belongings.now()
        async with open_runtime(
            self._agent(),
            store=self._store(),
            max_running=shape.max_running,
            max_waiting=shape.max_waiting,
            mailbox_capacity=shape.mailbox_capacity,
            idle_timeout=shape.idle_timeout,
        ) as runtime:
            self._runtime = runtime
            start = runtime.statistics()
            yield
            # Nothing tells that a runtime is idle; every client has been answered or has left, so this is soon over.
            while (end := runtime.statistics()).running or end.waiting:  # noqa: ASYNC110
                await trio.sleep(0.01)
            self._checks = self._ledger.checks(start, end)
        self._runtime = None
        del runtime  # what it held is not left behind when it goes with it
        await trio.testing.wait_all_tasks_blocked()
        self._checks.append(before.check(Belongings.now()))

    def _agent(self) -> Agent[Any]:
        shape = self.scenario.runtime

        def observer(number: int) -> Observer:
            return Observer(self._ledger, number)

        if self.agent is None:
            model = self.model or SimulatedModel(self.scenario.provider)
            return make_agent(self.scenario.provider, shape, model, observer)
        watching = [observer(number) for number in range(shape.observers)]
        return self.agent.replace(extensions=(*self.agent.extensions, *watching))

    def _store(self) -> Store:
        shape = self.scenario.runtime
        if shape.store != "memory" and shape.store_errors:
            raise ConfigError("runtime.store_errors is for a store in memory; a file's own errors are real ones")
        if shape.store != "memory":
            return SqliteStore(Path(shape.store))
        if shape.store_errors:
            return FaultyStore(InMemoryStore(), {}, share=shape.store_errors, dice=random.Random(self.scenario.seed))
        return InMemoryStore()

    async def ask(self, order: Order, seen: Observation) -> None:
        """Ask through `stream`, as a chat backend does. A client that leaves waits, as trio does, for the run's end."""
        assert self._runtime is not None
        run: Run | None = None
        token = PART.set(order.part)
        try:
            async with self._runtime.stream(
                order.ask, conversation_id=order.conversation_id, timeout=order.timeout
            ) as run:
                self._ledger.accept(run)
                await self._follow(run, order, seen)
                if order.client != "abandons":
                    await run.wait()
        except Exception as error:  # noqa: BLE001  # whatever a run raises is a figure, its evidence in the outcome
            seen.reason, seen.words = type(error).__name__, str(error)
            if run is None:
                seen.status = "refused" if seen.reason in _REFUSALS else "error"
        finally:
            PART.reset(token)
            seen.ended = trio.current_time()
            # Also when this client is cancelled: its stream's block has waited for the run's end.
            if run is not None and run.outcome is not None:
                _read_outcome(run.outcome, seen)
                self._ledger.read(run.outcome.trace)

    async def _follow(self, run: Run, order: Order, seen: Observation) -> None:
        if order.client == "aborts" and order.part.random.random() < 0.5:
            run.abort("the load test's client says stop")
        async for event in run.events():
            if isinstance(event, RunStarted):
                seen.started = trio.current_time()
            elif isinstance(event, TextDelta) and seen.first is None:
                seen.first = trio.current_time()
                if order.client == "abandons":
                    return
                if order.client == "aborts":
                    run.abort("the load test's client says stop")
            if order.client == "slow":
                await trio.sleep(order.slow_pause)

    async def depth(self) -> Depth:
        """Return the runtime's own counts."""
        await trio.lowlevel.checkpoint()
        assert self._runtime is not None
        now = self._runtime.statistics()
        return Depth(now.running, now.waiting)

    def checks(self) -> Sequence[Check]:
        """Return the ledger's checks, and whether anything is left behind."""
        return self._checks


def _read_outcome(outcome: Outcome, seen: Observation) -> None:
    seen.status = outcome.status
    if outcome.status == "error":
        seen.reason, seen.words = type(outcome.error).__name__, str(outcome.error)
    elif outcome.status == "aborted":
        seen.reason, seen.words = outcome.abort.cause if outcome.abort is not None else "unknown", ""
    else:
        seen.reason = seen.words = ""
