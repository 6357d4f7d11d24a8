"""The proof for runs in several parts: cut one that suspends, one that takes up what waited, and one that is steered,
at every checkpoint, for every cause, with and without an error in place.

As `test_cancel_everywhere_toolloop.py`. Each time: observers were told once, events are well formed, what was approved
is executed at most once also if it is approved again, a text that was handed in is in the history once, the history is
closed by whoever comes next, and nothing is left.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from goliath_actors import Agent, ToolContext, ToolLoop, open_runtime, tool
from goliath_actors._envelope import Envelope
from goliath_actors._face import face_of
from goliath_actors.abc import Entry, ModelDone, ModelEvent, ModelRequest, ModelText, ModelToolCall
from goliath_actors.errors import ConfigError
from goliath_actors.hooks import HOOKS
from goliath_actors.testing import FailingStore, Journal, check_events
from goliath_actors.tools import Suspend

from .cutting import CAUSES, Asked, Cutter
from .native import check_closed, history, said
from .test_cancel_everywhere import InPlace
from .test_cancel_everywhere_toolloop import Everything, SlowStore, StepModel, World

SCENES = ("suspend", "resume", "steer")
EVERY = int(os.environ.get("CANCEL_EVERY_TOOLLOOP", os.environ.get("CANCEL_EVERY", "13")))
KEY = "agent/c"


@attrs.define(eq=False)
class Stage(World):
    """The world of one scene; nothing raises before the part that is cut begins."""

    armed: bool = False
    reached: int = 0
    on_step: Any = None

    def visit(self, place: str) -> None:
        if self.armed:
            super().visit(place)


@attrs.define(eq=False)
class SceneModel(StepModel):
    """A message with a write, a question and a read; then an answer."""

    def _events(self, request: ModelRequest) -> list[ModelEvent]:
        world: Any = self.world
        if "SECOND" in request.messages[-1].text or request.messages[-1].role == "tool":
            return [ModelText("All "), ModelText("done."), ModelDone("stop")]
        if world.steps:
            return [ModelText("Again."), ModelDone("stop")]
        world.steps += 1
        if world.on_step is not None:
            world.on_step()
        return [
            ModelText("Let me ask."),
            ModelToolCall(0, "s", "send", '{"text": "a"}'),
            ModelToolCall(1, "q", "ask_user", '{"topic": "t"}'),
            ModelToolCall(2, "l", "look", '{"text": "b"}'),
            ModelDone("tool_calls"),
        ]


def agent_of(world: Stage, journal: Journal, *, waits: bool) -> Agent[Any]:
    @tool(writes=True)
    async def send(text: str) -> str:
        """Send."""
        await trio.lowlevel.checkpoint()
        world.effects.append(text)
        await trio.lowlevel.checkpoint()
        world.visit("tool send")
        return "sent"

    @tool
    async def ask_user(ctx: ToolContext[Any], topic: str) -> str:
        """Ask."""
        await trio.lowlevel.checkpoint()
        world.visit("tool ask_user")
        return f"they said {await ctx.suspend(topic)}" if waits else "nobody asked"

    @tool
    async def look(text: str) -> str:
        """Look."""
        await trio.lowlevel.checkpoint()
        world.visit("tool look")
        return "seen"

    async def confirm(request: Any) -> Any:
        await trio.lowlevel.checkpoint()
        world.visit("confirm")
        return Suspend({"who": "boss"}) if waits else True

    def on_event(event: Any) -> None:
        world.visit(f"event {event.kind}")

    return Agent(
        model=SceneModel(world),
        tools=[send, ask_user, look],
        extensions=[Everything(world), journal],
        confirm=confirm,
        on_event=on_event,
        loop=ToolLoop(compaction=None),
    )


@attrs.define(eq=False)
class Played:
    world: Stage
    journal: Journal
    run: Envelope
    followed: Envelope | None
    steps: int
    entries: list[Entry]
    left_tasks: int
    waited: bool


def play(scene: str, *, error: str | None = None, cause: str = "", at: int | None = None) -> Played:
    world, journal, cutter = Stage(error), Journal(), Cutter(at)
    inner = SlowStore()
    planned: dict[str, Any] = {}
    if error is not None and error.startswith("store"):
        planned = {"commit": [None] * (int(error[-1]) - 1) + [InPlace("commit")]}
    fail: dict[str, Any] = {}  # filled when the part that is cut begins
    store = FailingStore(inner, fail)
    asked = Asked(cutter, cause)

    async def main() -> Played:
        agent = agent_of(world, journal, waits=scene != "steer")
        before = trio.lowlevel.current_statistics().tasks_living
        answers: dict[str, Any] = {}
        with trio.CancelScope() as outer:
            async with open_runtime(agent, store=store) as runtime:
                conversation = runtime.conversation("c")
                if scene == "resume":
                    first = await conversation.run("go")
                    answers = {one.call_id: one.kind == "approval" or "large" for one in first.waiting}
                    assert len(answers) == 2
                    journal.clear()
                fail.update(planned)
                if scene == "steer":
                    world.on_step = lambda: conversation.steer("by hand")
                world.armed = True

                async def door() -> None:
                    if scene == "resume":
                        await conversation.resume(answers, timeout=1e9)
                    else:
                        await conversation.run("go", timeout=1e9)

                await asked.ask(runtime, outer, door)
                followed = asked.run.followed_by
                if followed is not None:
                    await face_of(followed).wait_ended()
        assert cutter.problem is None
        await trio.testing.wait_all_tasks_blocked()
        record = await inner.load(KEY)
        waited = "waiting" in record.private
        # Whoever comes next, another process: the same answers again, and then a new message.
        world.armed, world.error, world.on_step = False, None, None
        later = agent_of(world, Journal("later"), waits=scene != "steer")
        async with open_runtime(later, store=inner) as again:
            conversation = again.conversation("c")
            if answers:
                try:
                    await conversation.resume(answers)
                except ConfigError:
                    assert not waited
                else:
                    assert waited
            await conversation.run("SECOND")
        left = trio.lowlevel.current_statistics().tasks_living - before
        entries = await history(inner, later, "c")
        return Played(world, journal, asked.run, asked.run.followed_by, cutter.steps, entries, left, waited)

    return trio.run(main, clock=MockClock(autojump_threshold=0), instruments=[cutter])


def check_results(entries: list[Entry]) -> None:
    """Every call has one result behind it. One that waited may have it later, behind those of its siblings."""
    calls: set[str] = set()
    results: Counter[str] = Counter()
    for entry in entries:
        for call in entry.message.tool_calls:
            assert call.id not in calls
            calls.add(call.id)
        if entry.role == "tool":
            assert entry.message.tool_call_id in calls
            assert entry.message.text.strip()
            results[entry.message.tool_call_id or ""] += 1
    assert results == Counter(calls)


def judge(played: Played, scene: str, cause: str, error: str | None) -> None:
    outcome = played.run.outcome
    assert outcome is not None
    runs = [(played.run, outcome)]
    if played.followed is not None:
        assert played.followed.outcome is not None
        runs.append((played.followed, played.followed.outcome))
    # 4, 5: each ended once, and its observers were told once, after `on_error` if it failed or was aborted.
    for run, ended in runs:
        assert run.state == "done"
        heard = [row for row, ctx, _ in played.journal.questions if ctx.run_id == run.id and row.startswith("on_")]
        failed = ended.status in ("error", "aborted")
        assert heard == (["on_error", "on_finish"] if failed else ["on_finish"])
        check_events(ended.trace)
    if outcome.status == "aborted":
        assert outcome.abort is not None
        assert outcome.abort.cause in {cause} | ({"caller"} if cause == "shutdown" else set())
    if outcome.status == "error":
        assert error is not None
    # T2, T8, 9: closed by whoever came next; executed at most once; what may have happened is not denied.
    entries = played.entries
    (check_closed if scene == "steer" else check_results)(entries)
    assert len({entry.id for entry in entries}) == len(entries)
    effects = len(played.world.effects)
    if effects:
        sent = [call.id for entry in entries for call in entry.message.tool_calls if call.name == "send"]
        told = {entry.message.tool_call_id: entry.message.text for entry in entries if entry.role == "tool"}
        kept = [told[call_id] for call_id in sent if not told[call_id].startswith("Not ")]
        assert effects <= len(kept), "an effect is not in the record, or was made twice"
    # T7: a text that was handed in is there once, whatever became of the run.
    if scene == "steer" and played.world.steps and cause != "shutdown":
        texts = [text for role, text in said(entries) if role == "user"]
        stopped = played.followed is not None and played.followed.outcome is not None
        taken = texts.count("by hand")
        assert taken <= 1
        ended_well = stopped and played.followed is not None and played.followed.outcome.status == "completed"  # type: ignore[union-attr]
        assert taken == 1 or (stopped and not ended_well) or error == "before_run"
    # 15: nothing is left.
    assert played.left_tasks == 0
    assert played.world.active == 0


@pytest.mark.parametrize("scene", SCENES)
def test_the_scene_that_is_cut_does_what_it_is_to_do(scene: str) -> None:
    played = play(scene)
    judge(played, scene, "", None)
    assert played.run.outcome is not None
    assert played.run.outcome.status == "completed"
    assert played.waited is (scene == "suspend")
    assert played.world.effects == ([] if scene == "suspend" else ["a"])
    rows = set(played.journal.rows)
    assert {"before_run", "around_model", "on_finish"} <= rows
    assert ("before_tool" in rows) is (scene != "resume")
    assert played.steps > 30


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("scene", SCENES)
def test_a_run_in_several_parts_cut_at_any_checkpoint_keeps_every_promise(scene: str, cause: str) -> None:
    total = play(scene).steps
    statuses: Counter[str] = Counter()
    for at in range(total + 1):
        played = play(scene, cause=cause, at=at)
        try:
            judge(played, scene, cause, None)
        except AssertionError as problem:
            raise AssertionError(f"{scene} cut by {cause} at step {at} of {total}: {problem}") from problem
        assert played.run.outcome is not None
        statuses[played.run.outcome.status] += 1
    assert set(statuses) == {"aborted", "completed"}


ROWS = [
    row
    for row, spec in HOOKS.items()
    if "ToolLoop" in spec.asked_by and row not in ("before_rewrite", "after_rewrite", "before_compact")
]
PLACES = [
    *ROWS,
    "tool send",
    "tool ask_user",
    "tool look",
    "model step",
    "confirm",
    *(f"store commit{number}" for number in range(1, 7)),
    "event tool-started",
    "event tool-finished",
    "event run-waiting",
    "event answer",
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("scene", SCENES)
def test_a_run_in_several_parts_cut_anywhere_with_an_error_in_place_keeps_every_promise(scene: str, place: str) -> None:
    whole = play(scene, error=place)
    judge(whole, scene, "", place)
    number_of_place = PLACES.index(place) * len(SCENES) + SCENES.index(scene)
    for number, cause in enumerate(CAUSES):
        offset = (number_of_place * len(CAUSES) + number) % EVERY
        for at in range(offset, whole.steps + 1, EVERY):
            played = play(scene, error=place, cause=cause, at=at)
            try:
                judge(played, scene, cause, place)
            except AssertionError as problem:
                raise AssertionError(
                    f"{scene} with an error in {place}, cut by {cause} at {at} of {whole.steps}: {problem}"
                ) from problem
