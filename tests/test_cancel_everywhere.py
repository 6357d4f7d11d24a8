"""The proof the project lives by: cancel a run at every checkpoint, for every cause, with and without errors.

A run that exercises every hook the loop asks is played once to count its steps (a trio instrument counts what the run's
own tasks do), then once more for every step and every cause of abort, cancelled exactly there. Each time every
promise is checked: one reply, observers told exactly once and in order, an abort that is proven, effects that are in
the record, a conversation that goes on, and nothing left behind.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from goliath_actors import Agent, Conductor, Extension, RunAborted, Runtime, ToolContext, open_runtime, tool
from goliath_actors._envelope import Envelope
from goliath_actors._face import Run
from goliath_actors.abc import Change, ModelDone, ModelEvent, ModelRequest, ModelText, ModelUsage
from goliath_actors.errors import ModelUnavailable
from goliath_actors.hooks import HOOKS, Composition
from goliath_actors.stores import InMemoryStore
from goliath_actors.testing import FailingStore, Journal, check_events
from goliath_actors.values import Exchange, Memory, Usage

from .cutting import CAUSES, Asked, Cutter

ASKED = [row for row, spec in HOOKS.items() if "Conductor" in spec.asked_by]

# With an error in place there are some 15,000 cases, about a minute. For a quick look CANCEL_EVERY=9 cuts every ninth
# step only, a different residue for each place and cause.
EVERY = int(os.environ.get("CANCEL_EVERY", "1"))


class InPlace(Exception):
    """Raised where a test asks for it."""


class DurableStore(InMemoryStore):
    """Says that it is durable, so that the marks of runs in progress are written too."""

    durable = True


@attrs.define(eq=False)
class World:
    """Everything one simulated run touches. `error` is the place that raises, if any."""

    error: str | None = None
    effects: list[str] = attrs.Factory(list)
    plans: int = 0
    active: int = 0
    failed: Exception | None = None

    def visit(self, place: str) -> None:
        if place == self.error:
            self.failed = ModelUnavailable("in place") if place.startswith("model") else InPlace(place)
            raise self.failed


@attrs.define(eq=False)
class RoleModel:
    """Answers by role: for the ask "go" a read, a write and an answer (or an escalation), else an answer at once."""

    world: World
    escalates: bool
    name: str = "by role"

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        await trio.lowlevel.checkpoint()
        self.world.active += 1
        try:
            yield self._reply(request)
        finally:
            self.world.active -= 1

    async def _reply(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        await trio.lowlevel.checkpoint()
        self.world.visit(f"model {request.role}")
        yield ModelUsage(Usage(5, 1))
        for piece in self._text(request):
            await trio.lowlevel.checkpoint()
            yield ModelText(piece)
        yield ModelDone("stop")

    def _text(self, request: ModelRequest) -> list[str]:
        if request.role == "arguments":
            return ['{"text": "milk"}']
        if request.role == "answer":
            return ["All ", "done."]
        if request.role == "scribe":
            return ["Goal: milk"]
        if "SECOND" in request.text:
            return ['{"kind": "answer", "brief": "say"}']
        self.world.plans += 1
        last = '{"kind": "escalate", "brief": "help"}' if self.escalates else '{"kind": "answer", "brief": "say"}'
        first = ['{"kind": "tool", "tool": "look", "brief": "look"}', '{"kind": "tool", "tool": "add", "brief": "add"}']
        return [[*first, last][min(self.world.plans, 3) - 1]]


class Everything(Extension[Any]):
    """Implements every row that the loop asks, with a checkpoint before and after the place that may raise."""

    name = "everything"

    def __init__(self, world: World) -> None:
        self.world = world

    async def transform_stream(self, ctx: Any, events: Any, control: Any) -> AsyncIterator[Any]:
        async for event in events:
            await trio.lowlevel.checkpoint()
            self.world.visit("transform_stream")
            yield event


def _hook(row: str) -> Any:
    async def deciding(self: Everything, ctx: Any, question: Any) -> None:
        await trio.lowlevel.checkpoint()
        self.world.visit(row)
        await trio.lowlevel.checkpoint()

    async def around(self: Everything, ctx: Any, question: Any, call_next: Any) -> Any:
        await trio.lowlevel.checkpoint()
        result = await call_next()
        self.world.visit(row)
        await trio.lowlevel.checkpoint()
        return result

    return around if HOOKS[row].composition is Composition.NEST else deciding


for _row in ASKED:
    if HOOKS[_row].composition is not Composition.PIPE:
        setattr(Everything, _row, _hook(_row))


def make_agent(world: World, journal: Journal, *, escalates: bool) -> Agent[Any]:
    @tool
    async def look(ctx: ToolContext[Any], text: str) -> str:
        """Look something up."""
        await trio.lowlevel.checkpoint()
        world.visit("tool look")
        return f"saw {text}"

    @tool(writes=True)
    async def add(ctx: ToolContext[Any], text: str) -> str:
        """Add something."""
        await trio.lowlevel.checkpoint()
        world.effects.append("began")
        await trio.lowlevel.checkpoint()
        world.visit("tool add")
        world.effects.append("ended")
        await trio.lowlevel.checkpoint()
        return "added"

    async def confirm(request: Any) -> bool:
        await trio.lowlevel.checkpoint()
        world.visit("confirm")
        return True

    async def facts() -> dict[str, str]:
        await trio.lowlevel.checkpoint()
        world.visit("facts")
        return {"day": "Monday"}

    async def fallback(request: Any) -> str:
        await trio.lowlevel.checkpoint()
        world.visit("fallback")
        return "from the cloud"

    def on_event(event: Any) -> None:
        world.visit(f"event {event.kind}")

    return Agent(
        model=RoleModel(world, escalates),
        tools=[look, add],
        extensions=[Everything(world), journal],
        confirm=confirm,
        facts=facts,
        fallback=fallback if escalates else None,
        on_event=on_event,
        loop=Conductor(),
    )


@attrs.define(eq=False)
class Played:
    """What came of one simulated run."""

    world: World
    journal: Journal
    run: Envelope
    second: Run
    steps: int
    asker: str
    reply: Any
    memory: Memory
    private: Any
    left_tasks: int


def play(*, escalates: bool = False, error: str | None = None, cause: str = "", at: int | None = None) -> Played:
    world, journal, cutter = World(error), Journal(), Cutter(at)
    inner = DurableStore()
    key = "agent/c"
    planned = {"store load": {"load": InPlace("load")}, "store commit": {"commit": InPlace("commit")}}
    store = FailingStore(inner, planned.get(error or "", {}))  # type: ignore[arg-type]
    asked, second = Asked(cutter, cause), list[Run]()

    async def main() -> Played:
        recent = [Exchange(f"old {n}", "answer", 0.0) for n in range(3)]
        await inner.commit(key, Change(memory=Memory("before", recent)))
        before = trio.lowlevel.current_statistics().tasks_living
        runtime: Runtime
        with trio.CancelScope() as outer:
            async with open_runtime(make_agent(world, journal, escalates=escalates), store=store) as runtime:
                await asked.ask(
                    runtime,
                    outer,
                    lambda: runtime.run("go", conversation_id="c", timeout=1e9),
                    lambda: second.append(runtime.submit("SECOND", conversation_id="c")),
                )
        await trio.testing.wait_all_tasks_blocked()
        record = await inner.load(key)
        left = trio.lowlevel.current_statistics().tasks_living - before
        assert cutter.problem is None
        assert runtime.statistics().running == runtime.statistics().waiting == 0
        return Played(
            world,
            journal,
            asked.run,
            second[0],
            cutter.steps,
            asked.asker,
            asked.reply,
            record.memory,
            record.private,
            left,
        )

    return trio.run(main, clock=MockClock(autojump_threshold=0), instruments=[cutter])


def judge_ending(played: Any, cause: str, error: str | None) -> None:
    """Hold one simulated run, of either loop, against what no loop has a part in: replies, observers, proof, grammar.

    `played` is what the loop's own `play` gave.
    """
    run, second = played.run, played.second
    outcome = run.outcome
    # 4: everybody was answered, exactly once, and with the outcome.
    assert outcome is not None
    assert second.outcome is not None
    assert run.state == second.state == "done"
    if played.asker == "answered":
        assert outcome.status in ("completed", "stopped")
        assert played.reply.text or played.reply.reason  # C11
    elif played.asker == "raised":
        assert played.reply is (outcome.error if outcome.error is not None else played.reply)
    else:
        assert cause == "caller" or (cause == "shutdown" and played.asker in ("cancelled", ""))
    # 5: every extension heard on_finish exactly once, after on_error if it failed or was aborted.
    for ask, ended in (("go", outcome), ("SECOND", second.outcome)):
        heard = [row for row, ctx, _ in played.journal.questions if ctx.ask == ask and row.startswith("on_")]
        failed = ended.status in ("error", "aborted")
        assert heard == (["on_error", "on_finish"] if failed else ["on_finish"])
    asks = [ctx.ask for row, ctx, _ in played.journal.questions if row == "on_finish"]
    assert asks == ["go", "SECOND"]
    assert not run.journal.diagnostics or error is not None or outcome.error is not None
    # 6: an abort is proven by the scope; the first cause stands; an error that escaped is the very object.
    if outcome.status == "aborted":
        assert run.scope.cancelled_caught
        assert outcome.abort is not None
        allowed = {cause} | ({"caller"} if cause == "shutdown" else set())
        assert outcome.abort.cause in allowed
        assert outcome.origin == "abort"
        assert isinstance(outcome.error, RunAborted)
    elif outcome.status == "error":
        causes, link = [], outcome.error
        while link is not None:
            causes.append(link)
            link = link.__cause__
        assert error is not None
        assert played.world.failed in causes or any(isinstance(link, InPlace) for link in causes)
    # Grammar: everything that started was finished, RunFinished is last.
    trace = check_events(outcome.trace)
    assert trace[-1].status == outcome.status  # type: ignore[attr-defined]
    check_events(second.outcome.trace)


def judge(played: Played, cause: str, error: str | None) -> None:
    """Hold one simulated run against the invariants of docs/design.md."""
    judge_ending(played, cause, error)
    outcome = played.run.outcome
    assert outcome is not None
    # 9: an effect is in the step log, and, where the store works, in the record.
    writes = [step for step in outcome.steps if step.writes]
    assert len(writes) <= 1
    if played.world.effects:
        assert len(writes) == 1
        assert writes[0].status in ("executed", "unknown", "failed")
        if "ended" in played.world.effects:
            assert writes[0].status in ("executed", "unknown")
        if error not in ("store commit", "store load") and writes[0].status in ("executed", "unknown"):
            kept = [step for exchange in played.memory.recent for step in exchange.steps if step.writes]
            assert [step.tool for step in kept] == ["add"]
    elif writes:
        assert writes[0].status in ("unknown", "skipped", "failed")
    if error != "store commit":
        assert "open_run" not in played.private
    # 15: nothing is left.
    assert played.left_tasks == 0
    assert played.world.active == 0


@pytest.mark.parametrize("escalates", [False, True], ids=["device", "fallback"])
def test_the_run_that_is_cut_exercises_every_hook_the_loop_asks(escalates: bool) -> None:
    played = play(escalates=escalates)
    judge(played, "", None)
    assert played.run.outcome is not None
    assert played.run.outcome.status == "completed"
    heard = Counter(played.journal.rows)
    optional = {"on_error"} | (set() if escalates else {"before_fallback"}) | {"transform_stream"}
    assert {row for row in ASKED if row not in optional} <= set(heard)
    assert played.world.effects == ["began", "ended"]
    assert played.steps > 100


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("escalates", [False, True], ids=["device", "fallback"])
def test_a_run_cut_at_any_checkpoint_keeps_every_promise(cause: str, escalates: bool) -> None:
    total = play(escalates=escalates).steps
    statuses: Counter[str] = Counter()
    for at in range(total + 1):
        played = play(escalates=escalates, cause=cause, at=at)
        try:
            judge(played, cause, None)
        except AssertionError as problem:
            raise AssertionError(f"cut by {cause} at step {at} of {total}: {problem}") from problem
        assert played.run.outcome is not None
        statuses[played.run.outcome.status] += 1
        if cause != "shutdown":
            assert played.second.outcome is not None
            assert played.second.outcome.status == "completed"
    assert set(statuses) == {"aborted", "completed"}
    assert statuses["aborted"] > total / 2


PLACES = [
    *ASKED,
    "tool look",
    "tool add",
    "model plan",
    "model arguments",
    "model answer",
    "model scribe",
    "store load",
    "store commit",
    "confirm",
    "facts",
    "fallback",
    "event run-queued",
    "event tool-started",
    "event tool-finished",
    "event model-finished",
    "event answer",
    "event remember",
    "event run-finished",
]


@pytest.mark.parametrize("place", PLACES)
def test_a_run_cut_anywhere_with_an_error_in_place_keeps_every_promise(place: str) -> None:
    escalates = place in ("fallback", "before_fallback")
    whole = play(escalates=escalates, error=place)
    judge(whole, "", place)
    assert whole.world.failed is not None or place.startswith(("store", "on_error"))
    for number, cause in enumerate(CAUSES):
        offset = (PLACES.index(place) * len(CAUSES) + number) % EVERY
        for at in range(offset, whole.steps + 1, EVERY):
            played = play(escalates=escalates, error=place, cause=cause, at=at)
            try:
                judge(played, cause, place)
            except AssertionError as problem:
                where = f"error in {place}, cut by {cause} at {at} of {whole.steps}"
                raise AssertionError(f"{where}: {problem}") from problem
