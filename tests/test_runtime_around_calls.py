"""Hooks around a call: an effect is never silently repeated."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from goliath_actors import Agent, Extension, ToolFailure, approve_all, open_runtime, tool
from goliath_actors.errors import (
    GoliathExtensionError,
)
from goliath_actors.testing import ScriptedModel
from goliath_actors.tools import ToolOutcome

# --- hooks around a call: an effect is never silently repeated --------------------------------------------------------


async def invoked(around: Any, failure: Exception | None = None) -> tuple[int, ToolOutcome | Exception]:
    """Call a write inside one hook; return how often it was executed and what came of it."""
    executed = 0

    @tool(writes=True)
    async def pay(to: str) -> str:
        """Pay somebody."""
        nonlocal executed
        executed += 1
        if failure is not None:
            raise failure
        await trio.sleep(10)
        return "paid"

    class Around(Extension[Any]):
        name = "around"

        async def around_tool(self, ctx: Any, question: Any, call_next: Any) -> Any:
            return await around(call_next)

    agent = Agent(model=ScriptedModel([]), tools=[pay], confirm=approve_all, extensions=(Around(),))
    async with open_runtime(agent) as runtime:
        try:
            return executed, await runtime.invoke_tool("pay", {"to": "ann"})
        except Exception as error:
            return executed, error
        finally:
            assert executed == 1


async def test_a_hook_that_keeps_a_failure_to_itself_does_not_make_the_call_a_second_time() -> None:
    failure = ToolFailure("no money")

    async def around(call_next: Any) -> None:
        try:
            await call_next()
        except ToolFailure:
            pass

    _, outcome = await invoked(around, failure)
    assert isinstance(outcome, ToolOutcome)
    assert (outcome.status, outcome.error) == ("failed", failure)


async def test_a_hook_whose_time_limit_cut_the_call_does_not_make_it_a_second_time(autojump_clock: MockClock) -> None:
    async def around(call_next: Any) -> Any:
        with trio.move_on_after(1):
            return await call_next()

    _, outcome = await invoked(around)
    assert isinstance(outcome, GoliathExtensionError)
    assert (outcome.extension, outcome.phase) == ("around", "around_tool")
    assert "cut around_tool short" in str(outcome)
    assert trio.current_time() == 1


async def test_a_hook_with_a_nursery_lets_the_tools_failure_through_as_it_was(autojump_clock: MockClock) -> None:
    failure = ToolFailure("no money")

    async def around(call_next: Any) -> Any:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 5)
            return await call_next()

    _, outcome = await invoked(around, failure)
    assert isinstance(outcome, ToolOutcome)
    assert (outcome.status, outcome.error) == ("failed", failure)


async def test_an_error_of_a_hooks_own_nursery_is_the_cause_without_its_group() -> None:
    own = LookupError("watchdog")

    async def watchdog() -> None:
        await trio.lowlevel.checkpoint()
        raise own

    async def around(call_next: Any) -> Any:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watchdog)
            return await call_next()

    _, outcome = await invoked(around)
    assert isinstance(outcome, GoliathExtensionError)
    assert outcome.__cause__ is own
    assert "watchdog" in str(outcome)


@pytest.mark.parametrize("row", ["around_tool", "around_model"])
async def test_a_call_next_that_was_kept_is_good_for_nothing_once_its_hook_is_over(row: str) -> None:
    executed, kept = 0, []

    @tool
    async def look(at: str) -> str:
        """Look at something."""
        nonlocal executed
        executed += 1
        return "seen"

    async def keeping(ctx: Any, question: Any, call_next: Any) -> Any:
        kept.append(call_next)
        return await call_next()

    class Keeps(Extension[Any]):
        name = "keeps"

    keeps = Keeps()
    setattr(keeps, row, keeping)
    model = ScriptedModel([{"kind": "tool", "tool": "look", "brief": "look"}, {"at": "it"}, "{}", "{}", "{}"])
    async with open_runtime(Agent(model=model, tools=[look], extensions=(keeps,))) as runtime:
        run = runtime.submit("hi")
        await run.wait_ended()
        requests = len(model.requests)
        for call_next in kept:
            with pytest.raises(RuntimeError, match="only while its hook runs"):
                await call_next()
        assert [event.kind async for event in run.events()][-1] == "run-finished"
    assert executed == 1
    assert len(model.requests) == requests
    assert kept
