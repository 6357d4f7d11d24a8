"""The proof of the native tool loop: cancel a run at every checkpoint, for every cause, with and without errors.

As `test_cancel_everywhere.py`, for a run with parallel tools, a compaction and a store that may be cut on either side
of a commit. Each time every promise is checked, and that the history is closed: every stored call has exactly one
stored result, and what the next run sends is what the strictest provider takes.
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

from goliath_actors import Agent, Compaction, Extension, Runtime, ToolContext, ToolLoop, _history, open_runtime, tool
from goliath_actors._envelope import Envelope
from goliath_actors._face import Run
from goliath_actors._staging import CURSOR
from goliath_actors.abc import (
    Change,
    Entry,
    ModelDone,
    ModelEvent,
    ModelRequest,
    ModelText,
    ModelToolCall,
    ModelUsage,
    Record,
)
from goliath_actors.errors import ModelUnavailable
from goliath_actors.hooks import HOOKS, Composition
from goliath_actors.stores import InMemoryStore
from goliath_actors.testing import FailingStore, Journal
from goliath_actors.values import Message, Usage

from .cutting import CAUSES, Asked, Cutter
from .native import check_closed, check_valid, history
from .test_cancel_everywhere import InPlace, judge_ending

REWRITES = {"before_rewrite", "after_rewrite"}
ASKED = [row for row, spec in HOOKS.items() if "ToolLoop" in spec.asked_by and row not in REWRITES]

# With an error in place, every how many steps a run is cut; a different residue for each place and cause.
EVERY = int(os.environ.get("CANCEL_EVERY_TOOLLOOP", os.environ.get("CANCEL_EVERY", "7")))


class SlowStore(InMemoryStore):
    """Durable, and cut on either side of a commit: what was cut may be there or not."""

    durable = True

    async def commit(self, key: str, change: Change, expect: int | None = None, token: int | None = None) -> Record:
        record = await super().commit(key, change, expect, token)
        await trio.lowlevel.checkpoint()
        return record


@attrs.define(eq=False)
class World:
    """Everything one simulated run touches. `error` is the place that raises, if any."""

    error: str | None = None
    effects: list[str] = attrs.Factory(list)
    steps: int = 0
    active: int = 0
    failed: Exception | None = None

    def visit(self, place: str) -> None:
        if place == self.error:
            error = ModelUnavailable("in place") if place.startswith("model") else InPlace(place)
            self.failed = self.failed or error
            raise error


@attrs.define(eq=False)
class StepModel:
    """For the ask "go" two rounds of tools and an answer, else an answer at once. Refuses what is not valid."""

    world: World
    name: str = "by step"

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        check_valid(request.messages)
        await trio.lowlevel.checkpoint()
        self.world.active += 1
        try:
            yield self._reply(request)
        finally:
            self.world.active -= 1

    async def _reply(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        await trio.lowlevel.checkpoint()
        yield ModelUsage(Usage(5, 1))
        for event in self._events(request):
            await trio.lowlevel.checkpoint()
            yield event
            self.world.visit(f"model {request.role}")

    def _events(self, request: ModelRequest) -> list[ModelEvent]:
        if request.role == "compact":
            return [ModelText("They spoke."), ModelDone("stop")]
        if "SECOND" in request.text:
            return [ModelText("second"), ModelDone("stop")]
        self.world.steps += 1
        if self.world.steps == 1:
            return [
                ModelText("Let me "),
                ModelText("look."),
                ModelToolCall(0, "x", "look", '{"text": "milk"}'),
                ModelToolCall(1, "x", "add", '{"text": "milk"}'),
                ModelToolCall(2, "", "nothing", "{"),
                ModelDone("stop"),
            ]
        if self.world.steps == 2:
            return [ModelToolCall(0, "x", "alone", ""), ModelToolCall(1, "y", "look", '{"text": 1}'), ModelDone("stop")]
        return [ModelText("All "), ModelText("done."), ModelDone("stop")]


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


def make_agent(world: World, journal: Journal) -> Agent[Any]:
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

    @tool(sequential=True)
    async def alone() -> str:
        """Needs the place for itself."""
        await trio.lowlevel.checkpoint()
        return ""

    async def confirm(request: Any) -> bool:
        await trio.lowlevel.checkpoint()
        world.visit("confirm")
        return True

    def on_event(event: Any) -> None:
        world.visit(f"event {event.kind}")

    return Agent(
        model=StepModel(world),
        tools=[look, add, alone],
        extensions=[Everything(world), journal],
        confirm=confirm,
        on_event=on_event,
        loop=ToolLoop(compaction=Compaction(at=0.0001, keep_turns=1)),
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
    entries: list[Entry]
    private: Any
    left_tasks: int


OLD = [
    Entry("old-1", 0.0, "user", Message("user", "once")),
    Entry("old-2", 0.0, "assistant", Message("assistant", "upon")),
    Entry("old-3", 0.0, "user", Message("user", "a time")),
]


@pytest.fixture(autouse=True)
def hold_histories_of_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run then works on what the first one, cut, has held."""
    monkeypatch.setattr(_history, "LEAST_ENTRIES", 0)


async def check_held(runtime: Runtime, store: InMemoryStore, key: str) -> None:
    """What is held of a history of the store's newest version is what the store has."""
    held, record = runtime._engine.histories._held.get(key), await store.load(key)
    if held is None or held.version != record.version:
        return
    entries = list((await store.entries(key, after=0, limit=1000)).entries)
    cursor = record.private.get(CURSOR, {})
    ids = [entry.id for entry in entries]
    behind = entries[ids.index(cursor["through"]) + 1 :] if cursor else entries
    shown = [entry.id for entry in behind if entry.context_visible]
    assert held.last_id == ids[-1]
    assert sorted(entry.id for entry in held.kept) == sorted(shown)
    assert [entry.id for entry in held.kept if entry.role != "summary"] == [
        entry.id for entry in behind if entry.context_visible and entry.role != "summary"
    ]


def play(*, error: str | None = None, cause: str = "", at: int | None = None) -> Played:
    world, journal, cutter = World(error), Journal(), Cutter(at)
    inner = SlowStore()
    key = "agent/c"
    planned: dict[str, Any] = {}
    if error is not None and error.startswith("store commit"):
        planned = {"commit": [None] * (int(error[-1]) - 1) + [InPlace("commit")]}
    elif error is not None and error.startswith("store"):
        planned = {error[6:]: InPlace(error)}
    store = FailingStore(inner, planned)
    asked, second = Asked(cutter, cause), list[Run]()

    async def main() -> Played:
        await inner.commit(key, Change(append=OLD))
        agent = make_agent(world, journal)
        before = trio.lowlevel.current_statistics().tasks_living
        runtime: Runtime
        with trio.CancelScope() as outer:
            async with open_runtime(agent, store=store) as runtime:
                await asked.ask(
                    runtime,
                    outer,
                    lambda: runtime.run("go", conversation_id="c", timeout=1e9),
                    lambda: second.append(runtime.submit("SECOND", conversation_id="c")),
                )
        await trio.testing.wait_all_tasks_blocked()
        await check_held(runtime, inner, key)
        if error is not None and error.startswith("store commit"):
            # What could not be stored at the end of a run is closed when the conversation is loaded again.
            async with open_runtime(make_agent(World(), Journal("later")), store=inner) as again:
                await again.run("SECOND", conversation_id="c")
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
            await history(inner, agent, "c"),
            record.private,
            left,
        )

    return trio.run(main, clock=MockClock(autojump_threshold=0), instruments=[cutter])


def judge(played: Played, cause: str, error: str | None) -> None:
    """Hold one simulated run against the invariants of docs/design.md."""
    judge_ending(played, cause, error)
    run, second = played.run, played.second
    outcome = run.outcome
    assert outcome is not None
    assert second.outcome is not None
    # T2: whatever happened, the history is closed, and nothing in it is there twice.
    check_closed(played.entries)
    assert len({entry.id for entry in played.entries}) == len(played.entries)
    # 9: an effect is in the step log and in the history.
    writes = [step for step in outcome.steps if step.writes]
    assert len(writes) <= 1
    results = {entry.message.tool_call_id: entry for entry in played.entries if entry.role == "tool"}
    if played.world.effects:
        assert len(writes) == 1
        assert writes[0].status in ("executed", "unknown", "failed")
        if "ended" in played.world.effects:
            assert writes[0].status in ("executed", "unknown")
        kept = results[writes[0].call_id]
        assert not kept.message.text.startswith("Not executed")
        if not kept.private.get("interrupted"):
            assert kept.private["status"] == writes[0].status
    elif writes:
        assert writes[0].status in ("unknown", "skipped", "failed")
    # T1, §P: the ask is there exactly if a model was asked; a text that is marked partial is a part of what was shown.
    asked = [entry for entry in played.entries if entry.role == "user" and entry.message.text == "go"]
    assert len(asked) <= 1
    if played.world.steps:
        assert len(asked) == 1
    for entry in played.entries:
        if entry.private.get("partial"):
            assert entry.message.text in ("Let me ", "Let me look.", "All ", "All done.", "second")
    own = [entry for entry in played.entries if entry.id.startswith(run.id) and entry.role == "assistant"]
    whole = [entry.message.text for entry in own if not entry.private.get("partial")]
    assert not [entry for entry in own if entry.private.get("partial") and entry.message.text in whole]
    # 15: nothing is left.
    assert played.left_tasks == 0
    assert played.world.active == 0


def test_the_run_that_is_cut_exercises_every_hook_the_loop_asks() -> None:
    played = play()
    judge(played, "", None)
    assert played.run.outcome is not None
    assert played.run.outcome.status == "completed"
    heard = Counter(played.journal.rows)
    assert {row for row in ASKED if row not in ("on_error", "transform_stream")} <= set(heard)
    assert played.world.effects == ["began", "ended"]
    assert [step.status for step in played.run.outcome.steps] == [
        "executed",
        "executed",
        "failed",
        "executed",
        "failed",
        "executed",
    ]
    assert [entry.role for entry in played.entries].count("summary") >= 1
    assert played.steps > 150


@pytest.mark.parametrize("cause", CAUSES)
def test_a_run_cut_at_any_checkpoint_keeps_every_promise(cause: str) -> None:
    total = play().steps
    statuses: Counter[str] = Counter()
    for at in range(total + 1):
        played = play(cause=cause, at=at)
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
    "model step",
    "model compact",
    "store load",
    "store entries",
    *(f"store commit{number}" for number in range(1, 8)),
    "confirm",
    "event run-queued",
    "event tool-started",
    "event tool-finished",
    "event model-finished",
    "event plan-made",
    "event answer",
    "event run-finished",
]


@pytest.mark.parametrize("place", PLACES)
def test_a_run_cut_anywhere_with_an_error_in_place_keeps_every_promise(place: str) -> None:
    whole = play(error=place)
    judge(whole, "", place)
    assert whole.world.failed is not None or place.startswith(("store", "on_error"))
    for number, cause in enumerate(CAUSES):
        offset = (PLACES.index(place) * len(CAUSES) + number) % EVERY
        for at in range(offset, whole.steps + 1, EVERY):
            played = play(error=place, cause=cause, at=at)
            try:
                judge(played, cause, place)
            except AssertionError as problem:
                raise AssertionError(
                    f"error in {place}, cut by {cause} at {at} of {whole.steps}: {problem}"
                ) from problem
