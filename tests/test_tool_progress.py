"""What a tool reports while it works, as events of the run."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from goliath_actors import Agent, Conductor, RunResult, ToolContext, ToolLoop, open_runtime, tool
from goliath_actors.errors import ConfigError
from goliath_actors.events import Event, ToolFinished, ToolProgress, ToolStarted
from goliath_actors.testing import ScriptedModel, check_events, tool_calls

kept: list[ToolContext[Any]] = []


@tool
async def work(ctx: ToolContext[Any], times: int, seconds: float) -> str:
    """Work and say how far it is."""
    kept.append(ctx)
    for number in range(times):
        ctx.report(number, times, f"at {number}")
        await trio.sleep(seconds)
    return "done"


@tool
def plain(ctx: ToolContext[Any]) -> str:
    """Work in a thread."""
    ctx.report(0.5)
    return "done"


async def ran(*replies: Any, **options: Any) -> RunResult:
    options = {"loop": ToolLoop(), **options}
    agent = Agent(model=ScriptedModel([*replies, "ok"]), tools=[work, plain], **options)
    async with open_runtime(agent) as runtime:
        return await runtime.run("go")


def reports(result: RunResult) -> list[ToolProgress]:
    return [event for event in check_events(result.trace) if isinstance(event, ToolProgress)]


async def test_reports_are_events_between_the_start_and_the_end_of_the_call(autojump_clock: MockClock) -> None:
    result = await ran(tool_calls(("work", {"times": 2, "seconds": 1.0})))
    about = [event for event in result.trace if isinstance(event, ToolStarted | ToolProgress | ToolFinished)]
    assert [event.kind for event in about] == ["tool-started", "tool-progress", "tool-progress", "tool-finished"]
    assert len({event.call_id for event in about}) == 1
    assert [(one.tool, one.progress, one.total, one.message) for one in reports(result)] == [
        ("work", 0, 2, "at 0"),
        ("work", 1, 2, "at 1"),
    ]


async def test_the_planned_loop_tells_them_too(autojump_clock: MockClock) -> None:
    plan = {"kind": "tool", "tool": "work", "brief": "work"}
    result = await ran(plan, {"times": 1, "seconds": 1.0}, {"kind": "answer", "brief": "say"}, loop=Conductor())
    assert [one.message for one in reports(result)] == ["at 0"]


async def test_reports_that_come_too_close_are_left_out_and_a_long_call_tells_few(autojump_clock: MockClock) -> None:
    quick = await ran(tool_calls(("work", {"times": 100, "seconds": 0.01})))
    assert 10 <= len(reports(quick)) <= 11
    long = await ran(tool_calls(("work", {"times": 36_000, "seconds": 0.1})))  # an hour
    assert len(reports(long)) < 700


async def test_a_plain_tool_reports_from_its_thread() -> None:
    result = await ran(tool_calls(("plain", {})))
    assert [(one.progress, one.total, one.message) for one in reports(result)] == [(0.5, None, "")]


async def test_a_report_after_the_call_is_over_or_without_a_runtime_is_nothing(autojump_clock: MockClock) -> None:
    kept.clear()
    result = await ran(tool_calls(("work", {"times": 1, "seconds": 1.0})))
    kept[0].report(1)
    assert len(reports(result)) == 1
    ToolContext().report(1, 2, "nobody hears")


@pytest.mark.parametrize("number", [math.nan, math.inf, "3", True])
def test_what_is_no_number_is_refused(number: Any) -> None:
    with pytest.raises(ConfigError, match="finite numbers"):
        ToolContext().report(number)
    with pytest.raises(ConfigError, match="finite numbers"):
        ToolContext().report(1, number)


async def test_a_callback_that_raises_on_a_report_is_a_diagnostic_and_the_tool_goes_on(
    autojump_clock: MockClock,
) -> None:
    def on_event(event: Event) -> None:
        if isinstance(event, ToolProgress):
            raise OSError("no screen")

    result = await ran(tool_calls(("work", {"times": 1, "seconds": 1.0})), on_event=on_event)
    assert result.steps[0].result == "done"
    assert [str(one.error) for one in result.diagnostics] == ["no screen"]
