"""A runtime used from asyncio: the same promises, whichever loop asks."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar
from random import Random
from typing import Any

import anyio
import pytest
import trio

from goliath_actors import (
    Agent,
    Extension,
    Memory,
    RunAborted,
    RunResult,
    ToolContext,
    ToolLoop,
    approve_all,
    tool,
)
from goliath_actors.bridge import Bridge, BridgeRun, call_asyncio, open_bridge
from goliath_actors.bridge._crossing import Crossing
from goliath_actors.errors import ConfigError, ConversationBusy, MailboxFull, ReentrantRun, RuntimeClosed
from goliath_actors.events import TextDelta
from goliath_actors.stores import InMemoryStore
from goliath_actors.testing import Gate, Journal, ScriptedModel, check_events, tool_calls

LIMIT = 30.0  # reached only by a hang


def asyncio_run(body: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(body, LIMIT)

    asyncio.run(limited())


async def until(seen: Callable[[], object]) -> None:
    """Wait for something that the trio thread does."""
    while not seen():  # noqa: ASYNC110  # another thread does it
        await asyncio.sleep(0.001)


def open_gate(bridge: Bridge, gate: Gate) -> None:
    bridge._engine.post(gate.open)


def agent(*replies: Any, **options: Any) -> Agent[Any]:
    model = ScriptedModel(list(replies), chunk=options.pop("chunk", 0))
    return Agent(model=model, confirm=approve_all, loop=ToolLoop(), **options)


def test_an_ask_is_answered() -> None:
    async def main() -> None:
        journal = Journal()
        async with open_bridge(agent("hello", extensions=[journal])) as bridge:
            result = await bridge.run("hi", conversation_id="c")
            assert (result.text, result.conversation_id) == ("hello", "c")
            assert (await bridge.statistics()).completed == 1
        assert journal.heard("on_finish") == [("hi", "completed")]
        assert not [thread for thread in threading.enumerate() if thread.name == "goliath_actors bridge"]

    asyncio_run(main())


def test_an_application_error_is_the_same_object() -> None:
    async def main() -> None:
        error = KeyError("mine")

        class Broken(Extension[Any]):
            name = "broken"

            def on_event(self, event: Any) -> None:
                raise error

        broken = Broken()
        async with open_bridge(agent("hello")) as bridge:
            with pytest.raises(KeyError) as raised:
                await bridge.run("hi", on_event=broken.on_event)
            run = await bridge.submit("again", on_event=broken.on_event)
            with pytest.raises(KeyError) as again:
                await run.wait()
        assert raised.value is error
        assert again.value is error

    asyncio_run(main())


def test_refusals_are_raised_by_the_door() -> None:
    async def main() -> None:
        gate = Gate()
        async with open_bridge(agent(gate.then("a"), "b"), mailbox_capacity=1) as bridge:
            await bridge.submit("one")
            await until(lambda: gate.reached)
            with pytest.raises(ConversationBusy):
                await bridge.run("two", when_busy="refuse")
            second = await bridge.submit("two")
            with pytest.raises(MailboxFull):
                await bridge.submit("three")
            with pytest.raises(ConfigError, match="blank"):
                await bridge.run(" ")
            with pytest.raises(ConfigError):
                await bridge.conversation("").status()
            open_gate(bridge, gate)
            assert (await second.wait()).text == "b"

    asyncio_run(main())


def test_asks_are_accepted_in_the_order_of_the_calls() -> None:
    async def main() -> None:
        journal = Journal()
        async with open_bridge(agent(*"abcdefghij" * 3, extensions=[journal])) as bridge:
            results = await asyncio.gather(*(bridge.run(f"{number}") for number in range(30)))
        assert [result.text for result in results] == list("abcdefghij" * 3)
        assert [ask for ask, _ in journal.heard("on_finish")] == [f"{number}" for number in range(30)]

    asyncio_run(main())


def test_a_cancelled_asker_goes_on_when_the_observers_were_told() -> None:
    async def main() -> None:
        told: list[Any] = []
        model, observer = Gate(), Gate()

        class Slow(Extension[Any]):
            name = "slow"

            async def on_finish(self, ctx: Any, question: Any) -> None:
                await observer.pass_through()
                told.append((question.outcome.status, question.outcome.abort.cause))

        async with open_bridge(agent(model.then("never"), extensions=[Slow()])) as bridge:
            task = asyncio.create_task(bridge.run("hi"))
            await until(lambda: model.reached)
            task.cancel()
            await until(lambda: observer.reached)
            task.cancel()  # an impatient one changes nothing
            await asyncio.sleep(0)
            assert not task.done()
            open_gate(bridge, observer)
            with pytest.raises(asyncio.CancelledError):
                await task
            assert told == [("aborted", "caller")]

    asyncio_run(main())


def test_a_time_limit_of_asyncio_aborts_the_run() -> None:
    async def main() -> None:
        gate, journal = Gate(), Journal()
        async with open_bridge(agent(gate.then("never"), extensions=[journal])) as bridge:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await bridge.run("hi")
            assert journal.heard("on_finish") == [("hi", "aborted")]

    asyncio_run(main())


def test_an_asker_that_is_cancelled_while_queued_leaves_at_once() -> None:
    async def main() -> None:
        gate, journal = Gate(), Journal()
        async with open_bridge(agent(gate.then("first"), extensions=[journal])) as bridge:
            first = await bridge.submit("one")
            await until(lambda: gate.reached)
            task = asyncio.create_task(bridge.run("two"))
            await bridge.statistics()  # behind it, so it was accepted
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert journal.heard("on_finish") == []
            open_gate(bridge, gate)
            await first.wait()
        assert journal.heard("on_finish") == [("one", "completed"), ("two", "aborted")]

    asyncio_run(main())


def test_a_wait_does_not_own_the_run() -> None:
    async def main() -> None:
        gate = Gate()
        async with open_bridge(agent(gate.then("done"))) as bridge:
            run = await bridge.submit("hi")
            waiter = asyncio.create_task(run.wait())
            await until(lambda: gate.reached)
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
            open_gate(bridge, gate)
            assert (await run.wait()).text == "done"
            assert run.outcome is not None
            assert run.outcome.status == "completed"

    asyncio_run(main())


def test_a_run_is_aborted_by_hand() -> None:
    async def main() -> None:
        gate = Gate()
        async with open_bridge(agent(gate.then("never"), gate.then("never"))) as bridge:
            run = await bridge.submit("hi")
            await until(lambda: gate.reached)
            run.abort("enough")
            with pytest.raises(RunAborted) as aborted:
                await run.wait()
            assert (aborted.value.cause, aborted.value.reason) == ("requested", "enough")
            other = await bridge.conversation().submit("again")
            await until(lambda: gate.reached == 2)
            await bridge.conversation().abort("of the conversation")
            with pytest.raises(RunAborted, match="of the conversation"):
                await other.wait()

    asyncio_run(main())


def test_a_stream_gives_every_event_in_order() -> None:
    async def main() -> None:
        async with open_bridge(agent("hello there", chunk=1)) as bridge:
            async with bridge.stream("hi") as run:
                events = [event async for event in run.events()]
                result = await run.wait()
            check_events(events)
            assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "hello there"
            late = [event async for event in run.events()]
            check_events(late)
            assert (late[0], late[-1]) == (events[0], events[-1])
            assert result.text == "hello there"

    asyncio_run(main())


@pytest.mark.parametrize("how", ["block", "closing", "dropped"])
def test_leaving_a_stream_early_aborts_its_run(how: str) -> None:
    async def main() -> None:
        gate, journal = Gate(), Journal()
        async with open_bridge(agent(gate.then("never"), extensions=[journal])) as bridge:
            if how == "block":
                async with bridge.stream("hi") as run:
                    async for event in run.events():
                        if event.kind == "run-started":
                            break
                assert run.state == "done"
            elif how == "closing":
                async with aclosing(aiter(bridge.stream("hi"))) as events:  # type: ignore[type-var]  # a generator
                    async for event in events:
                        if event.kind == "run-started":
                            break
            else:
                async for event in bridge.stream("hi"):
                    if event.kind == "run-started":
                        break
                await until(lambda: journal.heard("on_finish"))
            assert journal.heard("on_finish") == [("hi", "aborted")]

    asyncio_run(main())


def test_a_stream_block_is_for_one_run() -> None:
    async def main() -> None:
        async with open_bridge(agent("a")) as bridge:
            stream = bridge.stream("hi")
            async with stream as run:
                await run.wait()
            with pytest.raises(ConfigError, match="entered once"):
                await stream.__aenter__()

    asyncio_run(main())


def test_a_reader_that_is_slow_holds_up_neither_the_run_nor_memory() -> None:
    text = "".join(chr(97 + number % 26) for number in range(20_000))

    async def main() -> None:
        async with open_bridge(agent(text, chunk=1)) as bridge:
            run = await bridge.submit("hi")
            events = run.events()
            seen = [await anext(events)]
            await run.wait()  # though nobody reads
            pump = next(iter(bridge._engine._pumps))
            assert len(pump._events) <= 256
            seen += [event async for event in events]
            check_events(seen)
            deltas = [event for event in seen if isinstance(event, TextDelta)]
            assert "".join(event.text for event in deltas) == text
            assert len(deltas) < 2_000  # merged behind the bound
            await until(lambda: not bridge._engine._pumps)

    asyncio_run(main())


def test_a_reader_that_never_comes_back_does_not_hold_up_the_end() -> None:
    async def main() -> None:
        async with open_bridge(agent("x" * 2000, chunk=1)) as bridge:
            run = await bridge.submit("hi")
            events = run.events()
            await anext(events)
            await run.wait()
        rest = [event async for event in events]
        assert rest[-1].kind == "run-finished"  # what was on its way is not lost

    asyncio_run(main())


def test_callers_context_variables_are_seen_by_hooks_and_tools() -> None:
    request: ContextVar[str] = ContextVar("request", default="none")
    seen: list[str] = []

    class Look(Extension[Any]):
        name = "look"

        def before_run(self, ctx: Any, question: Any) -> None:
            seen.append(request.get())

    async def one(bridge: Bridge, name: str) -> None:
        request.set(name)
        await bridge.run(name, conversation_id=name)

    async def main() -> None:
        async with open_bridge(agent("a", "b", extensions=[Look()])) as bridge:
            await asyncio.gather(one(bridge, "r1"), one(bridge, "r2"))
        assert sorted(seen) == ["r1", "r2"]

    asyncio_run(main())


@pytest.mark.parametrize("grace", [None, 0.0])
def test_the_end_of_the_block_waits_or_aborts_as_told(grace: float | None) -> None:
    async def main() -> None:
        gate, journal = Gate(), Journal()
        async with open_bridge(agent(gate.then("done"), extensions=[journal]), grace=grace) as bridge:
            run = await bridge.submit("hi")
            await until(lambda: gate.reached)
            if grace is None:
                asyncio.get_running_loop().call_later(0.01, open_gate, bridge, gate)
        if grace is None:
            assert (await run.wait()).text == "done"
            assert journal.heard("on_finish") == [("hi", "completed")]
        else:
            with pytest.raises(RunAborted, match="drained"):
                await run.wait()
            assert journal.heard("on_finish") == [("hi", "aborted")]

    asyncio_run(main())


def test_an_exception_out_of_the_block_aborts_all_and_comes_out_bare() -> None:
    async def main() -> None:
        gate, journal = Gate(), Journal()
        error = ValueError("of the block")
        waiting: list[asyncio.Task[Any]] = []
        with pytest.raises(ValueError) as raised:
            async with open_bridge(agent(gate.then("never"), extensions=[journal])) as bridge:
                waiting.append(asyncio.create_task(bridge.run("hi")))
                await until(lambda: gate.reached)
                raise error
        assert raised.value is error
        with pytest.raises(RunAborted) as aborted:
            await waiting[0]
        assert aborted.value.cause == "shutdown"
        assert journal.heard("on_finish") == [("hi", "aborted")]

    asyncio_run(main())


@pytest.mark.parametrize("where", ["block", "exit"])
def test_cancelling_the_block_aborts_all_and_waits_for_the_end(where: str) -> None:
    async def main() -> None:
        gate, journal = Gate(), Journal()
        reached = asyncio.Event()

        async def host() -> None:
            async with open_bridge(agent(gate.then("never"), extensions=[journal])) as bridge:
                await bridge.submit("hi")
                await until(lambda: gate.reached)
                reached.set()
                if where == "block":
                    await asyncio.Event().wait()

        task = asyncio.create_task(host())
        await reached.wait()
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert journal.heard("on_finish") == [("hi", "aborted")]
        assert not [thread for thread in threading.enumerate() if thread.name == "goliath_actors bridge"]

    asyncio_run(main())


def test_doors_of_a_bridge_that_is_over_say_so() -> None:
    async def main() -> None:
        async with open_bridge(agent("a", "b")) as bridge:
            run = await bridge.submit("hi")
            await run.wait()
        assert (await run.wait()).text == "a"  # the reply was there
        for ask in (bridge.run("x"), bridge.submit("x"), bridge.statistics(), bridge.conversation("c").history()):
            with pytest.raises(RuntimeClosed, match="over"):
                await ask
        with pytest.raises(RuntimeClosed):
            await anext(run.events())
        run.abort()  # too late for anything
        await bridge.wait_closed()

    asyncio_run(main())


def test_what_ends_the_runtime_reaches_every_waiter_and_the_block() -> None:
    async def main() -> None:
        gate = Gate()

        class Fatal(Extension[Any]):
            name = "fatal"

            def before_run(self, ctx: Any, question: Any) -> None:
                if ctx.ask == "die":
                    raise SystemExit(3)

        results: list[Any] = []
        with pytest.raises(SystemExit) as raised:
            async with open_bridge(agent(gate.then("never"), extensions=[Fatal()])) as bridge:
                waiting = asyncio.create_task(bridge.run("wait", conversation_id="w"))
                await until(lambda: gate.reached)
                fatal = asyncio.create_task(bridge.run("die"))
                results += await asyncio.gather(waiting, fatal, return_exceptions=True)
                await bridge.wait_closed()
        assert raised.value.code == 3
        assert all(isinstance(result, RunAborted | RuntimeClosed) for result in results), results
        with pytest.raises(RuntimeClosed) as closed:
            await bridge.run("later")
        assert closed.value.__cause__ is raised.value

    asyncio_run(main())


def test_what_opening_raises_comes_out_of_the_block() -> None:
    class Broken(Extension[Any]):
        name = "broken"

        @asynccontextmanager
        async def lifespan(self, agent: Any) -> AsyncIterator[None]:
            raise OSError("no disk")
            yield

    async def main() -> None:
        with pytest.raises(OSError, match="no disk"):
            async with open_bridge(agent("a", extensions=[Broken()])):
                raise AssertionError("never opened")
        with pytest.raises(ConfigError, match="at least one agent"):
            async with open_bridge():
                raise AssertionError("never opened")
        assert not [thread for thread in threading.enumerate() if thread.name == "goliath_actors bridge"]

    asyncio_run(main())


def test_opening_can_be_cancelled() -> None:
    entered = threading.Event()

    class Slow(Extension[Any]):
        name = "slow"

        @asynccontextmanager
        async def lifespan(self, agent: Any) -> AsyncIterator[None]:
            entered.set()
            await trio.sleep_forever()
            yield

    async def main() -> None:
        async def host() -> None:
            async with open_bridge(agent("a", extensions=[Slow()])):
                raise AssertionError("never opened")

        for patience in (lambda: True, entered.is_set):
            task = asyncio.create_task(host())
            await asyncio.sleep(0)
            await until(patience)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio_run(main())


def test_several_loops_in_several_threads_use_one_bridge() -> None:
    async def main() -> None:
        texts: list[str] = []
        async with open_bridge(agent(*["x"] * 20)) as bridge:

            async def other() -> None:
                for number in range(5):
                    async with bridge.stream(f"{number}", conversation_id=threading.current_thread().name) as run:
                        events = [event async for event in run.events()]
                        check_events(events)
                        texts.append((await run.wait()).text)

            threads = [threading.Thread(target=asyncio.run, args=(other(),)) for _ in range(4)]
            for thread in threads:
                thread.start()
            await until(lambda: not any(thread.is_alive() for thread in threads))
            assert texts == ["x"] * 20
            assert (await bridge.statistics()).conversations == 4

    asyncio_run(main())


def test_a_loop_that_ended_in_the_middle_of_a_call_harms_nobody() -> None:
    async def main() -> None:
        gate = Gate()
        async with open_bridge(agent(gate.then("late"), "b")) as bridge:
            run: list[BridgeRun] = []

            def other() -> None:
                loop = asyncio.new_event_loop()
                run.append(loop.run_until_complete(bridge.submit("hi")))
                task = loop.create_task(run[0].wait())
                loop.run_until_complete(asyncio.sleep(0))
                loop.close()  # the task is destroyed while it waits
                task._log_destroy_pending = False  # type: ignore[attr-defined]

            await asyncio.get_running_loop().run_in_executor(None, other)
            await until(lambda: gate.reached)
            open_gate(bridge, gate)
            assert (await run[0].wait()).text == "late"
            assert (await bridge.run("more")).text == "b"

    asyncio_run(main())


def test_a_conversation_has_all_its_doors() -> None:
    async def main() -> None:
        gate = Gate()

        @tool
        async def ask_them(ctx: ToolContext[Any]) -> str:
            """Ask."""
            return str(await ctx.suspend({"q": 1}))

        model = ScriptedModel([gate.then("one"), "two", "anew", tool_calls(("ask_them", {})), "answered", "b"])
        native = Agent(name="n", model=model, tools=[ask_them], loop=ToolLoop())
        async with open_bridge(native, store=InMemoryStore()) as bridge:
            talk = bridge.conversation("c", "n")
            run = await talk.submit("hi")
            await until(lambda: gate.reached)
            assert (await talk.status()).run_id == run.id
            assert (await talk.steer("and this")).id == run.id
            open_gate(bridge, gate)
            assert (await run.wait()).text == "two"
            assert (await talk.rewrite("regenerate")).text == "anew"
            texts = [entry.message.text for entry in (await talk.history()).entries]
            assert texts == ["hi", "one", "and this", "anew"]
            assert await talk.memory() == Memory()
            last = (await talk.history()).entries[-1]
            await talk.set_visibility({last.id: (False, True)})
            assert (await talk.history()).entries[-1].transcript_visible is False
            waiting = (await talk.run("ask")).waiting
            assert (await talk.resume({waiting[0].call_id: "yes"})).text == "answered"
            async with talk.stream("bye") as last_run:
                assert (await last_run.wait()).text == "b"
            await talk.forget()
            assert list((await talk.history()).entries) == []
            outcome = await bridge.invoke_tool("ask_them", {}, agent="n")
            assert outcome.status == "failed"
            assert (await bridge.drain(1)).aborted == 0

    asyncio_run(main())


# --- the way back ---------------------------------------------------------------------------------------------------


def test_tools_reach_the_loop_that_asked() -> None:
    async def main() -> None:
        where: list[Any] = []
        request: ContextVar[str] = ContextVar("request", default="none")

        async def in_asyncio(number: int) -> str:
            await asyncio.sleep(0)
            where.append((asyncio.get_running_loop(), request.get()))
            return f"{number + 1}"

        @tool
        async def add(number: int) -> str:
            """Add one."""
            return await call_asyncio(in_asyncio, number)

        replies: list[Any] = [tool_calls(("add", {"number": 1})), "two"] * 2
        native = Agent(model=ScriptedModel(replies), tools=[add], loop=ToolLoop())
        async with open_bridge(native) as bridge:
            request.set("mine")
            result = await bridge.run("hi")
            assert result.steps[0].result == "2"
            others: list[Any] = []

            async def other() -> None:
                others.append(asyncio.get_running_loop())
                await bridge.run("hi", conversation_id="other")

            await asyncio.get_running_loop().run_in_executor(None, lambda: asyncio.run(other()))
            assert where[0] == (asyncio.get_running_loop(), "mine")
            assert where[1][0] is others[0]

    asyncio_run(main())


@pytest.mark.parametrize("door", ["run", "conversation", "resume"])
def test_a_run_that_would_wait_for_itself_through_asyncio_is_refused(door: str) -> None:
    async def main() -> None:
        bridges: list[Bridge] = []

        async def again() -> RunResult:
            (bridge,) = bridges
            talk = bridge.conversation("c")
            if door == "run":
                return await bridge.run("again", conversation_id="c")
            return await (talk.run("again") if door == "conversation" else talk.resume({"x": True}))

        @tool
        async def back() -> str:
            """Ask the same conversation."""
            with pytest.raises(ReentrantRun, match="this would wait for itself"):
                await call_asyncio(again)
            return "refused"

        async with open_bridge(agent(tool_calls(("back", {})), "done", tools=[back])) as bridge:
            bridges.append(bridge)
            assert (await bridge.run("go", conversation_id="c")).steps[0].result == "refused"
            assert (await bridge.statistics()).accepted == 1

    asyncio_run(main())


def test_a_run_that_would_read_behind_itself_through_asyncio_is_refused() -> None:
    async def main() -> None:
        bridges: list[Bridge] = []
        runs: list[BridgeRun] = []

        async def again() -> None:
            async with bridges[0].stream("again", conversation_id="c") as run:
                runs.append(run)
                async for _ in run.events():
                    pass

        @tool
        async def back() -> str:
            """Read the same conversation."""
            with pytest.raises(ReentrantRun, match="this would wait for itself"):
                await call_asyncio(again)
            return "refused"

        async with open_bridge(agent(tool_calls(("back", {})), "done", tools=[back])) as bridge:
            bridges.append(bridge)
            assert (await bridge.run("go", conversation_id="c")).steps[0].result == "refused"
            with pytest.raises(RunAborted, match="caller"):
                await runs[0].wait()

    asyncio_run(main())


@pytest.mark.parametrize("reads", [False, True])
def test_a_run_that_is_waited_for_through_asyncio_uses_its_waiters_slot(reads: bool) -> None:
    async def main() -> None:
        bridges: list[Bridge] = []

        async def other() -> str:
            if not reads:
                return (await bridges[0].run("hi", conversation_id="other")).text
            async with bridges[0].stream("hi", conversation_id="other") as run:
                return "".join([event.text async for event in run.events() if isinstance(event, TextDelta)])

        @tool
        async def ask_other() -> str:
            """Ask another conversation."""
            return await call_asyncio(other)

        own = agent(tool_calls(("ask_other", {})), "from there", "done", tools=[ask_other])
        async with open_bridge(own, max_running=1) as bridge:
            bridges.append(bridge)
            result = await bridge.run("go")
            assert (result.steps[0].result, result.text) == ("from there", "done")

    asyncio_run(main())


def test_asyncio_code_raises_and_is_cancelled_through_the_bridge() -> None:
    async def main() -> None:
        error = LookupError("mine")
        ended: list[str] = []
        started = asyncio.Event()

        async def fails() -> None:
            raise error

        async def hangs() -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.01)
                ended.append("hangs")

        async def is_cancelled() -> None:
            raise asyncio.CancelledError

        caught: list[Exception] = []

        class Calls(Extension[Any]):
            name = "calls"

            async def before_run(self, ctx: Any, question: Any) -> None:
                for function in (fails, is_cancelled):
                    try:
                        await call_asyncio(function)
                    except (LookupError, RuntimeClosed) as what:
                        caught.append(what)
                await call_asyncio(hangs)

        async with open_bridge(agent("never", extensions=[Calls()])) as bridge:
            task = asyncio.create_task(bridge.run("hi"))
            await started.wait()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            assert ended == ["hangs"]
        assert caught[0] is error
        assert isinstance(caught[1], RuntimeClosed)

    asyncio_run(main())


async def test_call_asyncio_needs_a_bridge() -> None:
    with pytest.raises(ConfigError, match="open_bridge"):
        await call_asyncio(asyncio.sleep, 0)


def test_call_asyncio_in_asyncio_itself_is_told_the_same() -> None:
    async def main() -> None:
        with pytest.raises(ConfigError, match="open_bridge"):
            await call_asyncio(asyncio.sleep, 0)

    asyncio_run(main())


async def test_a_bridge_is_not_for_trio() -> None:
    with pytest.raises(ConfigError, match="on trio use open_runtime"):
        async with open_bridge(agent("a")):
            raise AssertionError("never opened")


def test_ctrl_c_ends_the_program_once_the_observers_were_told() -> None:
    code = """
import asyncio
from goliath_actors import Agent, Extension, ToolLoop
from goliath_actors.bridge import open_bridge
from goliath_actors.testing import Gate, ScriptedModel

class Tell(Extension):
    name = "tell"
    async def on_finish(self, ctx, question):
        print("told", question.outcome.status, question.outcome.abort.cause, flush=True)

async def never(request):
    print("running", flush=True)
    await Gate().pass_through()

async def main():
    agent = Agent(model=ScriptedModel([never]), extensions=[Tell()], loop=ToolLoop())
    async with open_bridge(agent) as bridge:
        await bridge.run("hi")

asyncio.run(main())
"""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=LIMIT)
    assert out == "told aborted caller\n"
    assert error.rstrip().endswith("KeyboardInterrupt")
    assert process.returncode == -signal.SIGINT


@pytest.mark.parametrize("seed", range(4))
def test_whoever_leaves_whenever_every_run_is_told_once_and_nothing_is_left(seed: int) -> None:
    async def main() -> None:
        random, told = Random(seed), Counter[str]()

        class Tell(Extension[Any]):
            name = "tell"

            async def on_finish(self, ctx: Any, question: Any) -> None:
                await trio.lowlevel.checkpoint()
                told[ctx.run_id] += 1

        async def use(bridge: Bridge, number: int) -> None:
            where = f"{number % 7}"
            match number % 4:
                case 0:
                    await bridge.run("x", conversation_id=where)
                case 1:
                    async with bridge.stream("x", conversation_id=where) as run:
                        async for event in run.events():
                            if event.seq == 1 + number % 9:
                                break
                case 2:
                    await (await bridge.submit("x", conversation_id=where)).wait()
                case _:
                    await bridge.conversation(where).history()

        one = agent(*["some text"] * 400, chunk=1, extensions=[Tell()])
        async with open_bridge(one, mailbox_capacity=400) as bridge:
            tasks = [asyncio.create_task(use(bridge, number)) for number in range(200)]
            for task in random.sample(tasks, 120):
                for _ in range(random.randrange(4)):
                    await asyncio.sleep(0)
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(result) for result in results} <= {type(None), asyncio.CancelledError}
            engine = bridge._engine
            accepted = (await bridge.statistics()).accepted
        assert engine._calls == set()
        assert engine._pumps == set()
        assert set(told.values()) <= {1}
        assert len(told) == accepted

    asyncio_run(main())


# --- how it is made -------------------------------------------------------------------------------------------------


def test_a_loop_is_woken_once_for_all_that_gathers() -> None:
    woken: list[Callable[[], object]] = []
    crossing = Crossing(woken.append)
    made: list[int] = []
    for number in range(5):
        assert crossing.post(lambda number=number: made.append(number))  # type: ignore[misc]
    assert len(woken) == 1
    woken.pop()()
    assert made == [0, 1, 2, 3, 4]
    assert crossing.post(lambda: made.append(5))
    assert len(woken) == 1


def test_a_loop_that_is_over_takes_nothing() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    crossing = Crossing(loop.call_soon_threadsafe)
    assert not crossing.post(lambda: None)
    assert not crossing.post(lambda: None)


def test_waiting_for_an_observer_does_not_keep_a_processor_busy_under_anyio() -> None:
    """anyio cancels again in every turn of the loop; Starlette's responses are cancelled by it."""

    async def main() -> None:
        turns: list[int] = []
        model, observer = Gate(), Gate()

        class Slow(Extension[Any]):
            name = "slow"

            async def on_finish(self, ctx: Any, question: Any) -> None:
                await observer.pass_through()

        async with open_bridge(agent(model.then("never"), extensions=[Slow()])) as bridge:
            left: list[bool] = []

            async def ask() -> None:
                try:
                    await bridge.run("hi")
                finally:
                    left.append(True)

            async with anyio.create_task_group() as group:
                group.start_soon(ask)
                await until(lambda: model.reached)
                group.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await until(lambda: observer.reached)
                    loop = asyncio.get_running_loop()
                    real = loop.call_soon

                    def counted(*args: Any, **options: Any) -> Any:
                        turns.append(1)
                        return real(*args, **options)

                    loop.call_soon = counted  # type: ignore[method-assign, assignment]
                    await asyncio.sleep(0.05)
                    del loop.call_soon
                    assert left == []
                    open_gate(bridge, observer)
            assert left == [True]
            assert len(turns) < 20

    asyncio_run(main())


def test_the_bridge_changes_nothing_of_asyncio() -> None:
    code = "import sys, goliath_actors.bridge; print('trio_asyncio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
