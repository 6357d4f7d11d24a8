"""What users of such runtimes report, as scenarios: each names the fault that is ruled out."""

from __future__ import annotations

import contextvars
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from goliath_actors import Agent, Extension, RunAborted, ToolContext, approve_all, open_runtime, tool
from goliath_actors._work import Work
from goliath_actors.abc import ModelRequest
from goliath_actors.stores import SqliteStore
from goliath_actors.testing import Gate, Journal, ScriptedModel, check_events

from .loops import loop_agent


def answering(text: str = "done") -> list[Any]:
    return [{"kind": "answer", "brief": "say"}, text]


async def test_a_finish_observer_that_waits_before_it_writes_is_not_cut_off_by_an_abort(
    autojump_clock: MockClock,
) -> None:
    rows: list[str] = []

    class Billing(Extension[Any]):
        name = "billing"

        async def on_finish(self, ctx: Any, question: Any) -> None:
            await trio.sleep(0.2)
            rows.append(question.outcome.status)

    gate = Gate()
    agent: Agent[Any] = Agent(model=ScriptedModel([gate.then("never")]), extensions=[Billing()])
    async with open_runtime(agent) as runtime:
        run = runtime.submit("hi")
        await gate.wait_reached()
        start = trio.current_time()
        run.abort()
        with pytest.raises(RunAborted):
            await run.wait()
        assert (rows, trio.current_time() - start) == (["aborted"], 0.2)


@pytest.mark.parametrize("ending", ["ok", "raises", "deadline", "abort"])
async def test_the_reader_of_a_runs_events_never_hangs_whatever_ends_the_run(
    autojump_clock: MockClock, ending: str
) -> None:
    async def action(work: Work) -> str:
        await trio.sleep(0.5)
        if ending == "raises":
            raise LookupError("k")
        if ending in ("deadline", "abort"):
            await trio.sleep_forever()
        return "ok"

    async with open_runtime(loop_agent(action)) as runtime:
        run = runtime.submit("hi", timeout=1 if ending == "deadline" else None)
        async with trio.open_nursery() as nursery:

            async def abort() -> None:
                await trio.sleep(0.7)
                run.abort()

            nursery.start_soon(abort)
            with trio.fail_after(5):
                events = check_events([event async for event in run.events()])
    status = {"ok": "completed", "raises": "error"}.get(ending, "aborted")
    assert events[-1].status == status  # type: ignore[attr-defined]


async def test_after_a_stop_no_text_comes_any_more(autojump_clock: MockClock) -> None:
    script = ScriptedModel([{"kind": "answer", "brief": "say"}, "x" * 1000], chunk=1)
    async with open_runtime(Agent(model=script)) as runtime:
        run = runtime.submit("hi")
        texts = 0
        async for event in run.events():
            if event.kind == "text-delta":
                texts += 1
                if texts == 5:
                    run.abort()
                    break
        later = [event.kind async for event in run.events()]
        assert later[-1] == "run-finished"
        assert later.count("text-delta") <= 1  # what had been said before, in one piece


async def test_leaving_a_loop_over_events_early_two_hundred_times_leaves_nothing_behind() -> None:
    async with open_runtime(loop_agent()) as runtime:
        before = trio.lowlevel.current_statistics().tasks_living
        for n in range(200):
            run = runtime.submit("hi", conversation_id=str(n % 5))
            with pytest.raises(LookupError) if n % 2 else trio.CancelScope():
                async for _event in run.events():
                    if n % 2:
                        raise LookupError("the reader's own")
                    break
            await run.wait()
        assert trio.lowlevel.current_statistics().tasks_living == before


async def test_twenty_messages_in_one_tick_are_twenty_turns_in_order(autojump_clock: MockClock) -> None:
    rng = random.Random(7)
    active = 0
    seen: list[int] = []

    async def action(work: Work) -> str:
        nonlocal active
        active += 1
        assert active == 1
        seen.append(len(seen))
        await trio.sleep(rng.random() / 20)
        active -= 1
        return work.ask

    async with open_runtime(loop_agent(action)) as runtime:
        runs = [runtime.submit(f"u{n}", conversation_id="c") for n in range(20)]
        assert [(await run.wait()).text for run in runs] == [f"u{n}" for n in range(20)]
    assert seen == list(range(20))


async def test_a_plain_tool_that_blocks_holds_up_neither_the_loop_nor_other_conversations() -> None:
    release, started = threading.Event(), threading.Event()

    @tool
    def slow(ctx: ToolContext[Any]) -> str:
        """Block a thread."""
        started.set()
        release.wait(10)
        return "slow"

    def reply(request: ModelRequest) -> Any:
        if "SLOW" in request.text and request.role == "plan" and "completed" not in request.text:
            return {"kind": "tool", "tool": "slow", "brief": "block"}
        return {"kind": "answer", "brief": "say"} if request.role == "plan" else "done"

    agent: Agent[Any] = Agent(model=ScriptedModel([reply] * 200), tools=[slow])
    async with open_runtime(agent) as runtime:
        blocked = runtime.submit("SLOW", conversation_id="a")
        with trio.fail_after(5):
            await trio.to_thread.run_sync(started.wait)
            for n in range(50):
                assert (await runtime.run("hi", conversation_id=f"b{n}")).text == "done"
        assert blocked.state == "running"
        release.set()
        assert (await blocked.wait()).status == "completed"


async def test_history_status_and_memory_are_read_while_a_run_is_inside_a_tool() -> None:
    gate = Gate()

    @tool
    async def wait(ctx: ToolContext[Any]) -> str:
        """Wait."""
        await gate.pass_through()
        return "waited"

    script = [*answering("first"), {"kind": "tool", "tool": "wait", "brief": "wait"}, *answering("second")]
    async with open_runtime(Agent(model=ScriptedModel(script), tools=[wait])) as runtime:
        conversation = runtime.conversation("c")
        await conversation.run("one")
        run = conversation.submit("two")
        await gate.wait_reached()
        with trio.fail_after(1):
            page = await conversation.history()
            memory = await conversation.memory()
        assert [entry.message.text for entry in page.entries] == ["one", "first"]
        assert [exchange.ask for exchange in memory.recent] == ["one"]
        assert conversation.status().phase == "tool:wait"
        gate.open()
        assert (await run.wait()).text == "second"


async def test_a_jump_of_the_wall_clock_moves_no_deadline(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for jump in (3600.0, -3600.0):
        real = time.time
        monkeypatch.setattr(time, "time", lambda jump=jump, real=real: real() + jump)

        async def action(work: Work) -> str:
            await trio.sleep(1)
            return "in time"

        async with open_runtime(loop_agent(action)) as runtime:
            assert (await runtime.run("hi", timeout=2)).text == "in time"
        monkeypatch.undo()


async def test_a_tracers_token_is_reset_in_the_context_that_set_it() -> None:
    current: contextvars.ContextVar[str] = contextvars.ContextVar("span", default="none")
    problems: list[Exception] = []
    ended: list[str] = []

    class Tracer(Extension[Any]):
        name = "tracer"

        def before_run(self, ctx: Any, question: Any) -> None:
            ctx.state["token"] = current.set(ctx.run_id)

        async def on_finish(self, ctx: Any, question: Any) -> None:
            await trio.lowlevel.checkpoint()
            try:
                current.reset(ctx.state["token"])
            except ValueError as error:
                problems.append(error)
            ended.append(question.outcome.status)

    gate = Gate()

    async def action(work: Work) -> str:
        assert current.get() == work.journal.run_id
        await gate.pass_through()
        return ""

    async with open_runtime(loop_agent(action, extensions=(Tracer(),))) as runtime:
        async with runtime.stream("left early"):
            await gate.wait_reached()
        gate.arm()
        aborted = runtime.submit("aborted")
        await gate.wait_reached()
        aborted.abort()
        gate.open()
        await runtime.run("fine", conversation_id="other")
    assert problems == []
    assert sorted(ended) == ["aborted", "aborted", "completed"]
    assert current.get() == "none"


async def test_a_run_that_a_crash_left_open_is_closed_before_the_next_message_is_answered(tmp_path: Any) -> None:
    class Crash(BaseException):
        pass

    @tool(writes=True)
    async def pay(ctx: ToolContext[Any], amount: int) -> str:
        """Pay."""
        raise Crash

    plan = [{"kind": "tool", "tool": "pay", "brief": "pay"}, {"amount": 7}]
    path = tmp_path / "chat.db"

    async def crashes() -> None:
        store = SqliteStore(path)
        agent: Agent[Any] = Agent(model=ScriptedModel(plan), tools=[pay], confirm=approve_all)
        async with open_runtime(agent, store=DeafAfter(store, commits=1)) as runtime:
            await runtime.run("pay the rent", conversation_id="c")

    class DeafAfter:
        """A store whose later commits never reach it: what a killed process leaves behind."""

        durable = True

        def __init__(self, inner: SqliteStore, commits: int) -> None:
            self.inner, self.left = inner, commits

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        async def commit(self, key: str, change: Any, expect: int | None = None, token: int | None = None) -> Any:
            self.left -= 1
            if self.left < 0:
                raise OSError("killed")
            return await self.inner.commit(key, change, expect, token)

    with pytest.raises(Crash):
        await crashes()

    journal = Journal()
    model = ScriptedModel(answering("paid already?"))
    agent: Agent[Any] = Agent(model=model, tools=[pay], confirm=approve_all, extensions=[journal])
    async with open_runtime(agent, store=SqliteStore(path)) as runtime:
        assert (await runtime.run("hello", conversation_id="c")).text == "paid already?"
        memory = await runtime.conversation("c").memory()
    interrupted, answered = memory.recent
    assert (interrupted.ask, interrupted.best_effort) == ("pay the rent", True)
    assert [(step.tool, step.status) for step in interrupted.steps] == [("pay", "unknown")]
    assert answered.ask == "hello"
    assert "unknown" in model.requests[0].text or "may have" in model.requests[0].text


async def test_nothing_of_one_conversation_is_seen_by_another() -> None:
    model = ScriptedModel([*answering("noted"), *answering("no idea")])
    async with open_runtime(Agent(model=model)) as runtime:
        await runtime.run("my code is 7431", conversation_id="a")
        await runtime.run("what is my code?", conversation_id="b")
    assert "7431" in model.requests[0].text
    assert all("7431" not in request.text for request in model.requests[2:])


async def test_a_stop_request_does_not_wait_behind_what_it_should_stop(autojump_clock: MockClock) -> None:
    async def action(work: Work) -> str:
        await trio.sleep(10)
        return work.ask

    async with open_runtime(loop_agent(action)) as runtime:
        conversation = runtime.conversation("c")
        run = conversation.submit("long")
        for n in range(3):
            conversation.submit(f"queued {n}")
        await trio.sleep(0.1)
        conversation.abort("stop")
        with pytest.raises(RunAborted):
            await run.wait()
        assert trio.current_time() == pytest.approx(0.1)
        conversation.abort("stop", queued=True)


async def test_abandoned_asks_are_skipped_and_the_mailbox_stays_bounded(autojump_clock: MockClock) -> None:
    from goliath_actors.errors import MailboxFull

    gate, done = Gate(), []

    async def action(work: Work) -> str:
        await gate.pass_through()
        done.append(work.ask)
        return work.ask

    async with open_runtime(loop_agent(action), mailbox_capacity=10) as runtime:
        refused = 0
        async with trio.open_nursery() as nursery:

            async def ask(n: int) -> None:
                nonlocal refused
                with trio.move_on_after(1 if n % 2 else 1e6):
                    try:
                        await runtime.run(str(n), conversation_id="c")
                    except MailboxFull:
                        refused += 1

            asks: list[Callable[[], Any]] = [lambda n=n: ask(n) for n in range(1000)]
            for start in asks:
                nursery.start_soon(start)
            await wait_all_tasks_blocked()
            assert runtime.conversation("c").status().waiting == 10
            await trio.sleep(2)
            gate.open()
        assert refused == 1000 - 11
        assert len(done) <= 11
        assert all(int(n) % 2 == 0 for n in done)


async def test_a_late_subscriber_alone_first_gets_what_extensions_want_it_to_see() -> None:
    from goliath_actors.events import Steered

    class Board(Extension[Any]):
        name = "board"

        def snapshot(self) -> list[Any]:
            return [Steered("board", None, 0, 0.0, text="now playing: chess")]

    gate = Gate()

    async def action(work: Work) -> str:
        await gate.pass_through()
        return "ok"

    async with open_runtime(loop_agent(action, extensions=(Board(),))) as runtime:
        run = runtime.submit("hi")
        early = run.events()
        await gate.wait_reached()
        late = run.events()
        gate.open()
        result = await run.wait()
        assert [event.kind async for event in early] == ["run-queued", "run-started", "run-finished"]
        assert [event.kind async for event in late] == ["steered", "run-queued", "run-started", "run-finished"]
    assert [event.kind for event in result.trace] == ["run-queued", "run-started", "run-finished"]
