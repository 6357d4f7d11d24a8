"""What is bounded: worker threads (R16), observers at a shutdown (R11), and what can be seen of who waits (R8b)."""

from __future__ import annotations

import threading
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from goliath_actors import Agent, Extension, RunAborted, ToolLoop, open_runtime, tool
from goliath_actors._work import Work
from goliath_actors.events import RunFinished
from goliath_actors.hooks import RunPatch
from goliath_actors.testing import Gate, Journal, ScriptedModel, tool_calls
from goliath_actors.values import Usage

from .loops import loop_agent
from .native import native
from .planned import ANSWER, planned, requests, run, told, use

# --- threads (R16) ----------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Crowd:
    """Plain functions that stay in their threads until they are let go; `most` of them were there at once."""

    let_go: threading.Event = attrs.Factory(threading.Event)
    inside: int = 0
    most: int = 0

    def tool(self) -> Any:
        @tool
        def stay(number: int) -> str:
            """Stay in a thread."""
            trio.from_thread.run_sync(self._enter)
            self.let_go.wait(20)
            trio.from_thread.run_sync(self._leave)
            return f"{number}"

        return stay

    def _enter(self) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)

    def _leave(self) -> None:
        self.inside -= 1

    async def wait_for(self, count: int) -> None:
        with trio.fail_after(20):
            while self.inside < count:
                await trio.lowlevel.checkpoint()


@pytest.mark.parametrize(("conversations", "most"), [(1, 8), (6, 32)])
async def test_plain_tools_have_32_threads_of_a_runtime_and_8_of_a_conversation(conversations: int, most: int) -> None:
    crowd = Crowd()
    calls = tool_calls(*(("stay", {"number": number}) for number in range(12)))
    loop = ToolLoop(max_parallel_tools=12)
    agent = native([calls] * conversations + ["done"] * conversations, tools=[crowd.tool()], loop=loop)
    async with open_runtime(agent) as runtime:
        runs = [runtime.submit("go", conversation_id=str(number)) for number in range(conversations)]
        await crowd.wait_for(most)
        # Every call asked for its thread in the moment in which the first ones did; the others have none.
        await wait_all_tasks_blocked(0.05)
        seen = crowd.inside
        crowd.let_go.set()
        results = [await one.wait() for one in runs]
    assert (seen, crowd.most) == (most, most)
    assert [step.status for result in results for step in result.steps[:-1]] == ["executed"] * 12 * conversations


# --- observers at a shutdown (R11) ------------------------------------------------------------------------------------


class Hangs(Extension[Any]):
    name = "hangs"

    async def on_finish(self, ctx: Any, question: Any) -> None:
        await trio.sleep_forever()


class Writes(Extension[Any]):
    """As an observer that writes down how a run ended, which takes a moment."""

    name = "writes"

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.written: list[str] = []

    async def on_finish(self, ctx: Any, question: Any) -> None:
        await trio.sleep(self.seconds)
        self.written.append(question.outcome.status)


async def sleepy(work: Work) -> str:
    await trio.sleep(float(work.ask))
    return "done"


async def test_after_a_drain_an_unbounded_observer_gets_the_grace_again(autojump_clock: MockClock) -> None:
    journal = Journal()
    async with open_runtime(loop_agent(sleepy, extensions=(Hangs(), journal))) as runtime:
        already = runtime.submit("0", conversation_id="a")  # its observer is told when the drain begins
        running = runtime.submit("60", conversation_id="b")
        await wait_all_tasks_blocked()
        report = await runtime.drain(3)
        assert (trio.current_time(), report.finished, report.aborted) == (6, 1, 1)
    assert sorted(journal.heard("on_finish")) == [("0", "completed"), ("60", "aborted")]
    for one in (already, running):
        assert one.outcome is not None
        assert one.state == "done"


@pytest.mark.parametrize("grace", [0, 0.25])
async def test_a_drain_at_once_leaves_observers_a_second(grace: float, autojump_clock: MockClock) -> None:
    writes = Writes(0.9)
    async with open_runtime(loop_agent(sleepy, extensions=(writes, Hangs()))) as runtime:
        runtime.submit("60")
        await wait_all_tasks_blocked()
        await runtime.drain(grace)
        assert trio.current_time() == grace + 0.9 + 1
    assert writes.written == ["aborted"]


async def test_a_finish_timeout_may_be_less_than_that_second(autojump_clock: MockClock) -> None:
    writes = Writes(0.9)
    async with open_runtime(loop_agent(sleepy, extensions=(writes, Hangs())), finish_timeout=0.5) as runtime:
        runtime.submit("60")
        await wait_all_tasks_blocked()
        await runtime.drain(0)
        assert trio.current_time() == 1
    assert writes.written == []


# --- who waits (R8b) --------------------------------------------------------------------------------------------------


async def test_the_oldest_wait_is_that_of_whoever_waits_longest(autojump_clock: MockClock) -> None:
    async with open_runtime(loop_agent(sleepy), max_running=1) as runtime:
        one = runtime.conversation("one")
        assert (one.status().waiting, one.status().oldest_wait) == (0, None)
        one.submit("100")
        await trio.sleep(2)
        assert (one.status().waiting, one.status().oldest_wait) == (0, None)
        one.submit("1")
        other = runtime.conversation("other")
        other.submit("1")  # has its turn in its conversation, and waits for a slot
        await trio.sleep(3)
        one.submit("1")
        await trio.sleep(5)
        assert (one.status().waiting, one.status().oldest_wait) == (2, 8)
        assert (other.status().waiting, other.status().oldest_wait) == (1, 8)
        assert (other.status().phase, other.status().since) == ("queued", 2)
        statistics = runtime.statistics()
        assert (statistics.running, statistics.waiting, statistics.accepted) == (1, 3, 4)
        one.submit("1", when_busy="replace")  # goes before the others, which wait on
        await trio.sleep(0.5)
        assert (one.status().waiting, one.status().oldest_wait) == (3, 8.5)  # in line behind the other one


# --- where a run was ended (R8b) --------------------------------------------------------------------------------------


@tool(writes=True)
async def create(title: str) -> str:
    """Create."""
    await trio.sleep_forever()
    return ""


@pytest.mark.parametrize(
    ("script", "phase"),
    [
        ([Gate()], "plan"),
        ([use("create"), Gate()], "arguments"),
        ([use("create"), {"title": "x"}], "tool:create"),
        ([ANSWER, Gate()], "answer"),
    ],
)
async def test_an_abort_and_the_last_event_name_the_phase(
    script: list[Any], phase: str, autojump_clock: MockClock
) -> None:
    replies = [reply.then("late") if isinstance(reply, Gate) else reply for reply in script]
    async with open_runtime(planned(replies, tools=[create])) as runtime:
        envelope = runtime.submit("hi")
        await trio.sleep(1)
        assert runtime.conversation().status().phase == phase
        envelope.abort()
        with pytest.raises(RunAborted) as caught:
            await envelope.wait()
        await envelope.wait_ended()
    assert caught.value.phase == phase
    assert envelope.outcome is not None
    assert envelope.outcome.abort is not None
    assert envelope.outcome.abort.phase == phase
    (finished,) = told(envelope.outcome, RunFinished)
    assert (finished.status, finished.reason, finished.phase) == ("aborted", "requested", phase)


async def test_the_last_event_names_the_phase_of_an_error_and_none_of_a_good_end() -> None:
    class Bad(Extension[Any]):
        name = "bad"

        def after_plan(self, ctx: Any, question: Any) -> None:
            raise LookupError

    async with open_runtime(planned([use("create")], tools=[create], extensions=[Bad()])) as runtime:
        envelope = runtime.submit("hi")
        await envelope.wait_ended()
    assert envelope.outcome is not None
    (finished,) = told(envelope.outcome, RunFinished)
    assert (finished.status, finished.phase) == ("error", "after_plan")
    (finished,) = told(await run(planned(["done"])), RunFinished)
    assert (finished.status, finished.phase) == ("completed", None)


async def test_an_abort_while_queued_names_that_phase() -> None:
    gate = Gate()
    async with open_runtime(planned([gate.then("one")])) as runtime:
        runtime.submit("one")
        await gate.wait_reached()
        queued = runtime.submit("two")
        queued.abort()
        with pytest.raises(RunAborted) as caught:
            await queued.wait()
        gate.open()
        await queued.wait_ended()
    assert caught.value.phase == "queued"
    assert queued.outcome is not None
    assert told(queued.outcome, RunFinished)[0].phase == "queued"


# --- what is summed ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", ["planned", "native"])
async def test_usage_is_the_sum_of_every_kind_of_token_over_the_calls_of_a_run(loop: str) -> None:
    @tool
    async def look(name: str) -> str:
        """Look."""
        return name

    usage = Usage(input_tokens=10, output_tokens=4, cached_tokens=3, reasoning_tokens=2)
    if loop == "planned":
        script = ScriptedModel([use("look"), {"name": "x"}, ANSWER, "done"], usage=usage)
        agent, calls = planned(script, tools=[look]), 4
    else:
        script = ScriptedModel([tool_calls(("look", {"name": "x"})), "done"], usage=usage)
        agent, calls = native(script, tools=[look]), 2
    result = await run(agent)
    assert result.usage == Usage(10 * calls, 4 * calls, 3 * calls, 2 * calls)
    (finished,) = told(result, RunFinished)
    assert finished.usage == result.usage


# --- routes (T10) -----------------------------------------------------------------------------------------------------


class Patches(Extension[Any]):
    def __init__(self, name: str, patch: RunPatch) -> None:
        self.name = name
        self.patch = patch

    def before_run(self, ctx: Any, question: Any) -> RunPatch:
        return self.patch


@pytest.mark.parametrize("loop", ["planned", "native"])
async def test_a_run_patch_with_a_model_starts_afresh_and_one_without_merges(loop: str) -> None:
    other = ScriptedModel(["from the other"])
    patches = [
        RunPatch(settings={"temperature": 0, "seed": 1}, provider_options={"a": 1}),
        RunPatch(settings={"temperature": 1}, provider_options={"b": 2}),
    ]
    make: Any = planned if loop == "planned" else native
    extensions = [Patches(str(number), patch) for number, patch in enumerate(patches)]
    agent: Agent[Any] = make(["done"], extensions=extensions)
    await run(agent)
    (request,) = requests(agent)
    assert (request.settings, request.provider_options) == ({"temperature": 1, "seed": 1}, {"a": 1, "b": 2})

    fresh = RunPatch(model=other, settings={"top_p": 0.5})
    later = RunPatch(provider_options={"c": 3})
    extensions = [Patches(str(number), patch) for number, patch in enumerate([*patches, fresh, later])]
    agent = make([], extensions=extensions)
    assert (await run(agent)).text == "from the other"
    (request,) = other.requests
    assert (request.settings, request.provider_options) == ({"top_p": 0.5}, {"c": 3})
