"""How much a turn of the native tool loop does: what is made once, asked once, stored once. Counts, never times."""

from __future__ import annotations

import gc
import inspect
import socket
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from goliath_actors import Agent, Extension, Tool, ToolContext, ToolLoop, open_runtime, tool
from goliath_actors.abc import Change, Entry, ModelDone, ModelEvent, ModelRequest, ModelText, ModelToolCall, Record
from goliath_actors.errors import ToolFailure
from goliath_actors.hooks import PlanPatch, RunPatch
from goliath_actors.models import OpenAIChat
from goliath_actors.stores import InMemoryStore
from goliath_actors.testing import ScriptedModel, tool_calls
from goliath_actors.values import Message, Page, Usage

from .native import native
from .planned import ANSWER, planned, use


@tool
async def look(text: str) -> str:
    """Look something up."""
    await trio.lowlevel.checkpoint()
    return f"found {text}"


def looks_once() -> list[Any]:
    return [tool_calls(("look", {"text": "a"})), "Here it is."]


class Counted:
    """A store in memory, and how often each of its methods was called."""

    def __init__(self) -> None:
        self._store = InMemoryStore()
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if not callable(method):
            return method

        async def counted(*args: Any, **options: Any) -> Any:
            self.calls[name] += 1
            return await method(*args, **options)

        return counted


async def test_a_turn_with_a_tool_loads_the_record_once_and_commits_four_times() -> None:
    """The ask, the message with its calls, their results, the answer; nothing is read back."""
    store = Counted()
    agent = native(looks_once(), tools=[look])
    async with open_runtime(agent, store=store) as runtime:
        assert (await runtime.run("find a")).text == "Here it is."
    assert store.calls == {"load": 1, "commit": 4}


async def test_a_turn_takes_one_step_of_the_scheduler_for_each_wait_and_no_more() -> None:
    """Every room passes through but for the store, which each of its methods gives the others a turn in."""

    class Steps(trio.abc.Instrument):
        taken = 0

        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            self.taken += 1

    class AtOnce:
        """A model that waits for nothing."""

        name = "at once"

        @asynccontextmanager
        async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
            yield self._events(request.messages[-1].role == "tool")

        async def _events(self, answered: bool) -> AsyncIterator[ModelEvent]:
            yield ModelText("Here it is.") if answered else ModelToolCall(0, "1", "look", '{"text": "a"}')
            yield ModelDone()

    agent: Agent[Any] = Agent(model=AtOnce(), tools=[look], loop=ToolLoop())
    async with open_runtime(agent) as runtime:
        await runtime.run("find a", conversation_id="first")  # it also wakes up what forgets idle conversations
        await wait_all_tasks_blocked()
        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        await runtime.run("find a", conversation_id="second")
        trio.lowlevel.remove_instrument(steps)
    load, commits, tool_waits, asker = 1, 4, 1, 1
    assert steps.taken == 1 + load + commits + tool_waits + asker


async def test_the_requests_of_a_run_are_made_of_the_same_messages_and_tools() -> None:
    """What knows a message by the object, as the writing of a request does, finds it again."""
    model = ScriptedModel(looks_once())
    async with open_runtime(native(model, tools=[look])) as runtime:
        await runtime.run("find a")
    first, second = model.requests
    assert [message.role for message in second.messages] == ["system", "user", "assistant", "tool"]
    assert all(one is other for one, other in zip(first.messages, second.messages[:2], strict=True))
    assert first.tools is second.tools


async def test_the_runs_of_an_agent_send_the_same_system_message_and_tools() -> None:
    model = ScriptedModel(["one", "two"])
    async with open_runtime(native(model, tools=[look])) as runtime:
        await runtime.run("hello", conversation_id="a")
        await runtime.run("hello", conversation_id="b")
    first, second = model.requests
    assert first.messages[0].role == "system"
    assert first.messages[0] is second.messages[0]
    assert first.tools is second.tools


async def test_a_system_message_follows_what_is_said_in_it() -> None:
    class Speaking(Extension[Any]):
        name = "speaking"
        instructions = "Speak up."

        async def before_run(self, ctx: Any, question: Any) -> RunPatch:
            return RunPatch(facts={"mood": question.ask})

        async def before_plan(self, ctx: Any, question: Any) -> PlanPatch:
            return PlanPatch(context_text=f"attempt {question.attempt}")

    model = ScriptedModel(["one", "two"])
    speaking = Speaking()
    async with open_runtime(native(model, extensions=[speaking])) as runtime:
        await runtime.run("glad")
        speaking.instructions = "Whisper."
        await runtime.run("sad")
    assert [request.messages[0].text for request in model.requests] == [
        "Be brief.\n\nSpeak up.\n\nKnown facts:\n- mood: glad\n\nattempt 0",
        "Be brief.\n\nWhisper.\n\nKnown facts:\n- mood: sad\n\nattempt 0",
    ]


async def test_a_system_message_tells_facts_in_their_order_whatever_another_run_was_told() -> None:
    orders = [{"a": "1", "b": "2"}, {"b": "2", "a": "1"}]
    model = ScriptedModel(["one", "two"])
    async with open_runtime(native(model, facts=lambda: orders.pop(0))) as runtime:
        await runtime.run("hello", conversation_id="a")
        await runtime.run("hello", conversation_id="b")
    assert [request.messages[0].text for request in model.requests] == [
        "Be brief.\n\nKnown facts:\n- a: 1\n- b: 2",
        "Be brief.\n\nKnown facts:\n- b: 2\n- a: 1",
    ]


@attrs.define(eq=False)
class Counting:
    """Counts words, and remembers what it was asked."""

    name: str = "counting"
    exact: bool = True
    asked: list[str] = attrs.Factory(list)

    def count(self, text: str) -> int:
        self.asked.append(text)
        return len(text.split())


async def test_the_tools_and_the_instructions_of_an_agent_are_counted_once_for_all_its_conversations() -> None:
    counter = Counting()
    model = ScriptedModel(["one", "two"], usage=Usage(1, 1))
    agent = native(model, tools=[look], token_counter=counter)
    async with open_runtime(agent) as runtime:
        await runtime.run("hello", conversation_id="a")
        assert sorted(counter.asked) == sorted(["Be brief.", look.spec.words, "hello"])
        counter.asked.clear()
        await runtime.run("good day", conversation_id="b")
    assert counter.asked == ["good day"]


async def test_a_message_is_counted_once_though_a_step_counts_its_prompt_twice() -> None:
    counter = Counting()
    async with open_runtime(native(looks_once(), tools=[look], token_counter=counter)) as runtime:
        await runtime.run("find a")
    assert max(Counter(counter.asked).values()) == 1


async def test_the_store_in_memory_shares_texts_and_copies_what_can_be_changed() -> None:
    store, text, private = InMemoryStore(), "a text " * 100, {"list": [1]}
    entries: Sequence[Entry] = [Entry("e", 1.0, "user", Message("user", text), private=private)]
    record: Record = await store.commit("key", Change(append=entries))
    assert record.entries_count == 1
    private["list"].append(2)
    page: Page = await store.entries("key")
    assert page.entries[0].message.text is text
    assert page.entries[0].private == {"list": [1]}
    page.entries[0].private["list"].append(3)
    assert (await store.entries("key")).entries[0].private == {"list": [1]}


@tool
async def look_closely(ctx: ToolContext[Any], text: str) -> str:
    """Look something up and tell how far it is."""
    ctx.report(1, 2, "half of it")
    await trio.lowlevel.checkpoint()
    return f"found {text}"


@tool
def look_aside(text: str) -> str:
    """Look something up in a thread."""
    return f"found {text}"


class Everywhere(Extension[Any]):
    name = "everywhere"

    async def before_tool(self, ctx: Any, question: Any) -> None:
        ctx.state["seen"] = question.input

    async def around_tool(self, ctx: Any, question: Any, call_next: Any) -> Any:
        return await call_next()

    async def around_model(self, ctx: Any, question: Any, call_next: Any) -> Any:
        return await call_next()

    async def transform_stream(self, ctx: Any, events: AsyncIterator[Any], control: Any) -> AsyncIterator[Any]:
        async for event in events:
            yield event

    async def on_finish(self, ctx: Any, question: Any) -> None:
        await trio.lowlevel.checkpoint()


@tool
async def look_in_vain(text: str) -> str:
    """Look something up that is not there."""
    await trio.lowlevel.checkpoint()
    raise LookupError(text)


@tool
async def refuse(ctx: ToolContext[Any], text: str) -> str:
    """Say that it failed, behind a report."""
    ctx.report(1, 2, "half of it")
    await trio.lowlevel.checkpoint()
    raise ToolFailure(text)


@tool
async def look_in_parts(text: str) -> str:
    """Look something up in a nursery."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(look_in_vain.execute, text)
    return "unreachable"


@tool
def look_aside_in_vain(ctx: ToolContext[Any], text: str) -> str:
    """Look something up in a thread that is not there."""
    ctx.report(1, 2, "half of it")
    raise LookupError(text)


@tool(timeout=1)
async def look_forever(text: str) -> str:
    """Never come to an end."""
    await trio.sleep_forever()
    return text


def in_vain(*given: Any) -> Any:
    raise LookupError("in vain")


def variant(**options: Any) -> Tool:
    return attrs.evolve(look, **options)


class Insisting(Extension[Any]):
    name = "insisting"

    async def around_tool(self, ctx: Any, question: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except LookupError:
            return await call_next()


async def left_to_the_collector(agent: Agent[Any], told: str) -> int:
    """Run an ask, then another one with the collector switched off, and return how much it finds."""
    async with open_runtime(agent) as runtime:
        await runtime.run("find a", conversation_id="first")
        await wait_all_tasks_blocked()
        gc.collect()
        gc.disable()
        try:
            assert (await runtime.run("find a", conversation_id="second")).text == told
            return gc.collect()
        finally:
            gc.enable()


@pytest.mark.parametrize(
    ("chosen", "times", "extensions"),
    [(look, 1, ()), (look, 3, ()), (look_closely, 1, ()), (look_aside, 1, ()), (look, 1, (Everywhere(),))],
    ids=["a tool", "three calls at once", "a tool with a context", "a tool in a thread", "hooks around"],
)
async def test_a_turn_leaves_nothing_to_the_garbage_collector(
    chosen: Tool, times: int, extensions: tuple[Extension[Any], ...]
) -> None:
    """No part of a run knows the whole by a way round: else looking for that costs a tenth of what the run does."""
    calls = tool_calls(*[(chosen.name, {"text": str(number)}) for number in range(times)])
    agent = native([calls, "Here it is."] * 2, tools=[chosen], extensions=extensions)
    assert await left_to_the_collector(agent, "Here it is.") == 0


@pytest.mark.parametrize("extensions", [(), (Everywhere(),), (Insisting(),)], ids=["no hooks", "hooks", "a second try"])
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize(
    "chosen",
    [look_in_vain, refuse, look_in_parts, look_aside_in_vain, look_forever],
    ids=lambda chosen: str(chosen.name),
)
async def test_a_run_whose_tool_raised_leaves_nothing_for_the_garbage_collector(
    chosen: Tool, times: int, extensions: tuple[Extension[Any], ...], autojump_clock: trio.testing.MockClock
) -> None:
    """Its error is kept, and knows the tool's frames: none of ours, which know the run that keeps it."""
    calls = tool_calls(*[(chosen.name, {"text": str(number)}) for number in range(times)])
    agent = native([calls, "Sorry."] * 2, tools=[chosen], extensions=extensions)
    assert await left_to_the_collector(agent, "Sorry.") == 0


@pytest.mark.parametrize("chosen", [look_in_vain, look_aside_in_vain], ids=["async", "plain"])
async def test_a_planned_run_whose_tool_raised_leaves_nothing_for_the_garbage_collector(chosen: Tool) -> None:
    agent = planned([use(chosen.name), {"text": "a"}, ANSWER, "Sorry."] * 2, tools=[chosen])
    assert await left_to_the_collector(agent, "Sorry.") == 0


async def test_a_planned_run_that_escalated_leaves_nothing_for_the_garbage_collector() -> None:
    chosen = variant(resolve_input=in_vain)
    agent = planned([use(chosen.name), {"text": "a"}, "As far as I know."] * 2, tools=[chosen])
    assert await left_to_the_collector(agent, "As far as I know.") == 0


@pytest.mark.parametrize(
    ("chosen", "input"),
    [
        (variant(to_model_output=in_vain), {"text": "a"}),
        (variant(on_output=in_vain), {"text": "a"}),
        (variant(resolve_input=in_vain), {"text": "a"}),
        (look, {"text": ["a"]}),
    ],
    ids=["its formatter", "its observer", "its resolver", "its arguments"],
)
async def test_a_run_with_a_tool_whose_callable_raised_leaves_nothing_for_the_garbage_collector(
    chosen: Tool, input: dict[str, Any]
) -> None:
    agent = native([tool_calls((chosen.name, input)), "Sorry."] * 2, tools=[chosen])
    assert await left_to_the_collector(agent, "Sorry.") == 0


@pytest.mark.parametrize("extensions", [(), (Insisting(),)], ids=["no hooks", "a second try"])
@pytest.mark.parametrize("chosen", [look_in_vain, look_aside_in_vain], ids=["async", "plain"])
async def test_the_traceback_of_a_tools_error_begins_in_the_tool(
    chosen: Tool, extensions: tuple[Extension[Any], ...]
) -> None:
    agent = native([tool_calls((chosen.name, {"text": "a"})), "Sorry."], tools=[chosen], extensions=extensions)
    async with open_runtime(agent) as runtime:
        (noted,) = (await runtime.run("find a")).diagnostics
    frames = [frame.name for frame in traceback.extract_tb(noted.error.__traceback__)]
    assert [name for name in frames if name != "start"] == [chosen.name]


# Of these some forty-five are trio's: two tasks that wait, their cancel scopes, and a coroutine or closure for each
# thing that they wait for. The rest is what the run needs to go on.
HELD_AT_MOST = 115


@asynccontextmanager
async def silence() -> AsyncIterator[OpenAIChat]:
    """A model that never says anything: the system accepts and keeps what is sent, and nobody reads it."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        model = OpenAIChat("m", base_url=f"http://127.0.0.1:{listening.getsockname()[1]}/v1")
        yield model
    await model.aclose()


async def test_a_run_that_waits_for_its_model_holds_few_objects() -> None:
    """The garbage collector walks everything that it tracks in each full pass, and so for all runs in flight at once:
    with thousands of them that is what a turn costs most."""
    async with silence() as model, trio.open_nursery() as nursery:
        agent = Agent(model=model, tools=[look], instructions="Be brief.", loop=ToolLoop())
        async with open_runtime(agent) as runtime:

            async def ask(number: int) -> None:
                await runtime.run("find a", conversation_id=str(number))

            async def tracked_with(numbers: range) -> int:
                for number in numbers:
                    nursery.start_soon(ask, number)
                await wait_all_tasks_blocked(0.05)
                assert model._endpoint.pool.statistics().in_flight == numbers.stop
                gc.collect()
                return len(gc.get_objects())

            first = await tracked_with(range(4))  # makes what all runs share
            second = await tracked_with(range(4, 24))
            assert 50 < (second - first) / 20 <= HELD_AT_MOST
            nursery.cancel_scope.cancel()


async def test_a_run_that_waits_for_its_model_keeps_no_copy_of_what_it_sent() -> None:
    async with silence() as model, trio.open_nursery() as nursery:
        agent = Agent(model=model, loop=ToolLoop())
        async with open_runtime(agent) as runtime:
            text = "a" * 10_000
            run = runtime.submit(text)
            await wait_all_tasks_blocked(0.05)
            assert model._endpoint.pool.statistics().in_flight == 1
            turn = next(task for task in tasks_below(nursery.parent_task) if task.name == "agent/(default)")
            waiting: Any = turn.coro
            frames, kept = 0, list[str]()
            while inspect.iscoroutine(waiting):
                frames += 1
                frame = waiting.cr_frame
                for name, value in frame.f_locals.items() if frame is not None else ():
                    if isinstance(value, bytes) and len(value) > len(text):
                        kept.append(f"{waiting.__qualname__}: {name}")
                waiting = waiting.cr_await
            assert (frames > 10, kept) == (True, [])
            run.abort()


def tasks_below(task: trio.lowlevel.Task) -> list[trio.lowlevel.Task]:
    below = [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return below + [deeper for child in below for deeper in tasks_below(child)]
