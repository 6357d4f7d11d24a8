"""Everything at once: whatever happens together, every promise is kept."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import attrs
import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from goliath_actors import Extension, Run, RunAborted, open_runtime
from goliath_actors._face import face_of
from goliath_actors._work import Work
from goliath_actors.errors import (
    ConversationBusy,
    GoliathExtensionError,
    MailboxFull,
    ReentrantRun,
    RuntimeClosed,
)
from goliath_actors.testing import check_events

from .loops import loop_agent
from .runtime_stage import shuffled

# --- everything at once -----------------------------------------------------------------------------------------------


class StormError(Exception):
    """What code in a storm raises."""


REFUSALS = (RunAborted, ReentrantRun, RuntimeClosed, MailboxFull, ConversationBusy, GoliathExtensionError, StormError)


class Told(Extension[Any]):
    """Hears every run's end, with a checkpoint after each word."""

    name = "told"

    def __init__(self) -> None:
        self.heard: dict[str, list[str]] = {}

    async def on_error(self, ctx: Any, question: Any) -> None:
        self.heard.setdefault(ctx.run_id, []).append("on_error")
        await trio.lowlevel.checkpoint()

    async def on_finish(self, ctx: Any, question: Any) -> None:
        self.heard.setdefault(ctx.run_id, []).append(question.outcome.status)
        await trio.lowlevel.checkpoint()


def judge(runtime: Any, told: Told, runs: list[Run]) -> None:
    """Hold a runtime that is over against its invariants."""
    for run in runs:
        assert run.state == "done"
        assert run.outcome is not None
        failed = run.outcome.status in ("error", "aborted")
        assert told.heard[run.id] == (["on_error"] if failed else []) + [run.outcome.status]
        assert run._envelope.scope.cancelled_caught or run.outcome.status != "aborted"
        assert (run._envelope.waits_for, run._envelope.lenders) == ([], 0)
        check_events(run.outcome.trace)
    turns, statistics = runtime._engine.turns, runtime.statistics()
    assert (turns.running, list(turns._line), runtime._engine.life.live) == (0, [], 0)
    assert (statistics.accepted, statistics.running, statistics.waiting) == (len(runs), 0, 0)
    idle, actor = 0, runtime._engine.directory._first
    while actor is not None:
        assert (actor.current, actor.mailbox, actor.sponsors, actor.in_line, actor.has_slot) == (
            None,
            None,
            0,
            False,
            False,
        )
        idle, actor = idle + 1, actor.after
    assert idle == len(runtime._engine.directory)


@attrs.define(eq=False)
class Storm:
    """A world in which code inside and outside of runs does whatever chance says, through every door."""

    random: Random
    told: Told = attrs.Factory(Told)
    runs: list[Run] = attrs.Factory(list)
    active: set[str | None] = attrs.Factory(set)
    runtime: Any = None

    def submit(self, depth: int, **options: Any) -> Run:
        run: Run = self.runtime.submit(str(depth), conversation_id=self.random.choice("abcd"), **options)
        return run

    async def act(self, depth: int) -> None:
        """Do one thing. `depth` bounds how far runs make runs."""
        chance = self.random
        doors = [self.sleep, self.fail, self.at_once, self.limited, self.forget, self.look]
        if depth < 4:
            doors += [self.ask, self.ask, self.wait, self.leave, self.stream, self.read, self.replace, self.abort]
        await chance.choice(doors)(depth + 1)

    async def sleep(self, depth: int) -> None:
        await trio.sleep(self.random.choice([0, 0.1, 0.5, 2]))

    async def fail(self, depth: int) -> None:
        raise StormError

    async def at_once(self, depth: int) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(self.random.randrange(1, 3)):
                nursery.start_soon(self.quietly, depth)

    async def limited(self, depth: int) -> None:
        with trio.move_on_after(self.random.choice([0, 0.3, 1])):
            await self.act(depth)

    async def forget(self, depth: int) -> None:
        await self.runtime.conversation(self.random.choice("abcd")).forget()

    async def look(self, depth: int) -> None:
        await self.runtime.conversation(self.random.choice("abcd")).memory()
        self.check_sums()

    async def ask(self, depth: int) -> None:
        options = {"when_busy": self.random.choice(["queue", "refuse", "replace"]), "on_event": self.callback()}
        timeout = self.random.choice([None, 0, 1, 1e6])
        await self.runtime.run(str(depth), conversation_id=self.random.choice("abcd"), timeout=timeout, **options)

    async def wait(self, depth: int) -> None:
        await self.submit(depth, timeout=self.random.choice([None, 0.7])).wait()

    async def leave(self, depth: int) -> None:
        self.submit(depth)

    async def stream(self, depth: int) -> None:
        async with self.runtime.stream(str(depth), conversation_id=self.random.choice("abcd")) as run:
            wanted = self.random.randrange(4)
            async for event in run.events():
                if event.seq > wanted:
                    break

    async def read(self, depth: int) -> None:
        check_events([event async for event in self.submit(depth).events()])

    async def replace(self, depth: int) -> None:
        self.submit(depth, when_busy="replace")

    async def abort(self, depth: int) -> None:
        self.runtime.conversation(self.random.choice("abcd")).abort(queued=self.random.random() < 0.3)

    async def quietly(self, depth: int) -> None:
        try:
            await self.act(depth)
        except (*REFUSALS, ExceptionGroup):
            pass

    def check_sums(self) -> None:
        now = self.runtime.statistics()
        ended = now.completed + now.stopped + now.errors + now.aborted
        assert now.accepted == ended + now.running + now.waiting

    def callback(self) -> Callable[[Any], None]:
        kind, does = self.random.choice(["run-queued", "run-started", "run-finished"]), self.random.randrange(4)

        def on_event(event: Any) -> None:
            if event.kind == kind:
                self.check_sums()
                if does == 0:
                    raise StormError
                if does == 1 and self.random.random() < 0.5:
                    self.submit(9)

        return on_event

    async def action(self, work: Work) -> str:
        name = work.journal.conversation_id
        assert name not in self.active
        self.active.add(name)
        try:
            for _ in range(self.random.randrange(3)):
                await self.act(int(work.ask))
        finally:
            self.active.discard(name)
        return ""

    def hooked(self, name: str) -> Extension[Any]:
        storm = self

        class Hooked(Extension[Any]):
            async def before_run(self, ctx: Any, question: Any) -> None:
                if storm.random.random() < 0.3:
                    await storm.act(int(ctx.ask))

            async def on_finish(self, ctx: Any, question: Any) -> None:
                if storm.random.random() < 0.3:
                    await storm.act(int(ctx.ask) + 1)

        hooked = Hooked()
        hooked.name, hooked.lenient = name, self.random.random() < 0.3
        return hooked

    async def outside(self) -> None:
        for _ in range(self.random.randrange(1, 6)):
            await self.quietly(0)

    async def drain(self) -> None:
        await trio.sleep(self.random.choice([0, 0.5, 2]))
        await self.runtime.drain(self.random.choice([0.1, 3]))

    async def rage(self, end: str) -> None:
        """Open a runtime, let it storm, end it in one of the ways, and judge."""
        chance = self.random
        extensions = (self.hooked("first"), self.told, self.hooked("last"))
        limits = {
            "max_running": chance.choice([None, 1, 1, 2]),
            "mailbox_capacity": chance.choice([0, 1, 64]),
            "max_waiting": chance.choice([None, None, 3]),
            "finish_timeout": chance.choice([None, 0.7]),
            "idle_timeout": chance.choice([0, 0.7, 300]),
        }
        agent = loop_agent(self.action, extensions=extensions, on_event=self.keep)
        tasks = trio.lowlevel.current_statistics().tasks_living
        with trio.fail_after(1e6), trio.CancelScope() as scope:
            try:
                async with open_runtime(agent, **limits) as self.runtime, trio.open_nursery() as nursery:
                    for _ in range(chance.randrange(2, 7)):
                        nursery.start_soon(self.outside)
                    if end == "drained":
                        nursery.start_soon(self.drain)
                    elif end != "left":
                        await trio.sleep(chance.choice([0, 0.5, 3]))
                        if end == "failed":
                            raise StormError
                        scope.cancel()
            except* StormError:
                assert end == "failed"
        judge(self.runtime, self.told, self.runs)
        assert trio.lowlevel.current_statistics().tasks_living == tasks

    def keep(self, event: Any) -> None:
        if event.kind == "run-queued":
            actors = [
                actor for actor in self.runtime._engine.directory if actor.conversation_id == event.conversation_id
            ]
            self.runs += [face_of(run) for actor in actors for run in actor.runs() if run.id == event.run_id]


@pytest.mark.parametrize("end", ["left", "drained", "failed", "cancelled"])
@pytest.mark.parametrize("seed", range(25))
async def test_whatever_happens_at_once_every_promise_is_kept(end: str, seed: int, autojump_clock: MockClock) -> None:
    shuffled(seed)
    await Storm(Random(f"{end} {seed}")).rage(end)
