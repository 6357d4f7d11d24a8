"""Tests of an assistant, as you would write them. `trio_mode = true` in pytest's configuration makes them run."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from trio.testing import MockClock

from goliath_actors import Agent, Deny, Extension, RunAborted, Runtime, ToolContext, approve_all, tool
from goliath_actors.hooks import BeforeTool, HookContext
from goliath_actors.stores import InMemoryStore
from goliath_actors.testing import FailingStore, Gate, Journal, ScriptedModel, check_events

StartRuntime = Callable[..., Awaitable[Runtime]]


@tool(writes=True)
async def add_task(ctx: ToolContext[str], title: str) -> str:
    """Add a task."""
    return f"{ctx.context} added {title}"


class Readers(Extension[str]):
    name = "readers"

    def before_tool(self, ctx: HookContext[str], question: BeforeTool) -> Deny | None:
        return Deny("guests only read") if ctx.context == "guest" else None


def assistant(*replies: Any, **options: Any) -> Agent[str]:
    return Agent(
        model=ScriptedModel(replies),
        tools=[add_task],
        extensions=[Readers(), *options.pop("extensions", ())],
        confirm=approve_all,
        **options,
    )


PLAN = {"kind": "tool", "tool": "add_task", "brief": "add milk"}
ARGUMENTS = {"title": "milk"}
ANSWER = {"kind": "answer", "brief": "say it"}


async def test_a_member_may_add_a_task(start_runtime: StartRuntime) -> None:
    runtime = await start_runtime(assistant(PLAN, ARGUMENTS, ANSWER, "Done."))
    result = await runtime.run("Add milk.", context="member")
    assert (result.text, result.steps[0].result) == ("Done.", "member added milk")
    check_events(result.trace)  # the grammar of events, which holds for every run


async def test_a_guest_may_not(start_runtime: StartRuntime) -> None:
    runtime = await start_runtime(assistant(PLAN, ARGUMENTS, ANSWER, "Sorry."))
    result = await runtime.run("Add milk.", context="guest")
    assert (result.steps[0].status, result.steps[0].extension) == ("skipped", "readers")


async def test_an_abort_is_heard_by_every_observer(start_runtime: StartRuntime) -> None:
    gate, journal = Gate(), Journal()
    runtime = await start_runtime(assistant(gate.then(ANSWER), extensions=[journal]))
    run = runtime.submit("Add milk.", context="member")
    await gate.wait_reached()  # a barrier, not a sleep: the model has been asked
    run.abort("not now")
    with pytest.raises(RunAborted, match="not now"):
        await run.wait()
    assert journal.heard("on_error") == [("Add milk.", "abort")]
    assert journal.heard("on_finish") == [("Add milk.", "aborted")]


async def test_an_answer_stands_when_saving_fails(start_runtime: StartRuntime) -> None:
    store = FailingStore(InMemoryStore(), {"commit": OSError("disk full")})
    runtime = await start_runtime(assistant(ANSWER, "Hello."), store=store)
    result = await runtime.run("Hello?", context="member")
    assert result.text == "Hello."
    assert "memory-error" in [event.kind for event in result.trace]


async def test_a_deadline_takes_no_time_on_a_mock_clock(start_runtime: StartRuntime, autojump_clock: MockClock) -> None:
    runtime = await start_runtime(assistant(Gate().then(ANSWER)))
    with pytest.raises(RunAborted) as caught:
        await runtime.run("Add milk.", context="member", timeout=3600)
    assert caught.value.cause == "deadline"


async def test_a_tool_is_called_like_the_function_it_was() -> None:
    assert await add_task(ToolContext(context="member"), title="milk") == "member added milk"
