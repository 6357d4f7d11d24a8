"""Catalogue of the planned loop's behaviour: tool arguments (ARG) and tasks in context (TASK).

Where a rule of ours overrules a line of the catalogue, the test holds our rule and its comment names it.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio

from goliath_actors import Conductor, Extension, RunAborted, Tool, ToolContext, ToolFailure, open_runtime, tool
from goliath_actors._prompts import recent_block
from goliath_actors._text import estimate
from goliath_actors.errors import GoliathExtensionError
from goliath_actors.events import MemoryError, PlanMade, ToolFinished, ToolStarted
from goliath_actors.stores import InMemoryStore
from goliath_actors.testing import FailingStore, Gate, Journal, check_events
from goliath_actors.values import Exchange, FallbackRequest, Step

from .planned import (
    ANSWER,
    end,
    memory_of,
    planned,
    prompt,
    requests,
    roles,
    run,
    stored,
    told,
    use,
)


class Cloud:
    """A fallback that counts."""

    def __init__(self) -> None:
        self.requests: list[FallbackRequest] = []

    async def __call__(self, request: FallbackRequest) -> str:
        await trio.lowlevel.checkpoint()
        self.requests.append(request)
        return "cloud"


def finder(found: list[str]) -> Tool:
    @tool
    async def find(name: str) -> dict[str, str]:
        """Find a thing by name."""
        found.append(name)
        return {"name": name, "place": "attic"}

    return find


def creator(made: list[str], error: Exception | None = None) -> Tool:
    @tool(writes=True)
    async def create(title: str) -> str:
        """Create a task."""
        made.append(title)
        if error is not None:
            raise error
        return "created"

    return create


# --- ARG ------------------------------------------------------------------------------------------------------------


class _Adder:
    """A schema whose transform adds one, and counts how often it ran."""

    def __init__(self) -> None:
        self.runs = 0
        self.executed: list[int] = []
        self.tool = Tool(
            name="add",
            description="Add.",
            writes=True,
            parameters={"properties": {"value": {"type": "integer"}}, "required": ["value"]},
            parse=self._parse,
            execute=self._execute,
        )

    def _parse(self, data: dict[str, Any]) -> dict[str, Any]:
        self.runs += 1
        return {"value": data["value"] + 1}

    async def _execute(self, input: dict[str, Any]) -> str:
        self.executed.append(input["value"])
        return "ok"


@pytest.mark.parametrize(("kind", "value", "runs"), [("none", 2, 1), ("observing", 2, 1), ("rewriting", 11, 2)])
async def test_arg_01_confirmation_execution_and_record_agree(kind: str, value: int, runs: int) -> None:
    seen: list[Any] = []
    asked: list[Any] = []

    class Hook(Extension[Any]):
        name = "hook"

        def before_tool(self, ctx: Any, question: Any) -> dict[str, Any] | None:
            seen.append(question.input)
            return {"value": 10} if kind == "rewriting" else None

    adder = _Adder()
    agent = planned(
        [use("add"), {"value": 1}, ANSWER, "done"],
        tools=[adder.tool],
        extensions=[] if kind == "none" else [Hook()],
        confirm=lambda request: asked.append(request.input) or True,
    )
    result = await run(agent)
    assert asked == [{"value": value}]
    assert adder.executed == [value]
    assert result.steps[0].input == {"value": value}
    assert adder.runs == runs
    assert seen == ([] if kind == "none" else [{"value": 2}])


async def test_arg_02_a_tool_without_arguments_costs_no_worker_call() -> None:
    @tool
    async def ping() -> str:
        """Ping."""
        return "pong"

    agent = planned([use("ping"), ANSWER, "done"], tools=[ping])
    await run(agent)
    assert roles(agent) == ["plan", "plan", "answer"]


async def test_arg_03a_arguments_that_stay_invalid_reach_nobody() -> None:
    # C3: the worker is told every problem and asked once more.
    made: list[str] = []
    asked: list[Any] = []
    agent = planned(
        [use("create"), {"titel": "x"}, {"title": 7}, "sorry"],
        tools=[creator(made)],
        confirm=lambda request: asked.append(request) or True,
    )
    result = await run(agent)
    assert (result.reason, made, asked) == ("tool-args-invalid", [], [])
    again = requests(agent)[2].text
    assert "titel" in again
    assert "title" in again
    assert "was not valid" in again


async def test_arg_03b_a_check_without_arguments_that_fails_escalates_at_once() -> None:
    def refuse(data: dict[str, Any]) -> None:
        raise ValueError("never")

    done: list[Any] = []
    never = Tool(name="never", description="Never works.", parse=refuse, execute=lambda input: done.append(input))
    result = await run(planned([use("never"), "sorry"], tools=[never]))
    assert (result.reason, done, result.steps) == ("tool-args-invalid", [], ())


# --- TASK -----------------------------------------------------------------------------------------------------------


async def test_task_01_the_next_run_sees_the_first_exchange() -> None:
    agent = planned(["The rent is due.", "Yes."])
    async with open_runtime(agent) as runtime:
        await runtime.run("What is due today?")
        await runtime.run("Sure?")
    assert "User: What is due today?\nAssistant: The rent is due." in prompt(agent, 1)
    assert len(requests(agent)) == 2


async def test_task_02_a_write_is_never_repeated() -> None:
    made: list[str] = []
    asked: list[Any] = []
    agent = planned(
        [use("create"), {"title": "x"}, use("create"), {"title": "x"}, "done once"],
        tools=[creator(made)],
        confirm=lambda request: asked.append(request) or True,
    )
    result = await run(agent)
    assert (len(asked), made, len(result.steps)) == (1, ["x"], 1)
    assert (result.reason, result.text) == ("repeated-tool-call", "done once")


async def test_task_05_a_repeated_read_is_answered_from_the_log_once() -> None:
    found: list[str] = []
    agent = planned([use("find"), {"name": "a"}, use("find"), {"name": "a"}, ANSWER, "done"], tools=[finder(found)])
    result = await run(agent)
    assert found == ["a"]
    first, second = result.steps[:2]
    assert (second.status, second.from_step, second.output) == ("cached", 0, first.output)
    assert second.result == f"Same as step 1: {first.result}"
    assert [event.ms for event in told(result, ToolFinished)][1] == 0

    agent = planned([x for _ in range(3) for x in (use("find"), {"name": "a"})] + ["enough"], tools=[finder([])])
    result = await run(agent)
    assert (result.reason, len(result.steps)) == ("repeated-tool-call", 2)


async def test_task_05_a_write_makes_older_reads_stale() -> None:
    found: list[str] = []
    script = [use("find"), {"name": "a"}, use("create"), {"title": "x"}, use("find"), {"name": "a"}, ANSWER, "done"]
    result = await run(planned(script, tools=[finder(found), creator([])]))
    assert found == ["a", "a"]
    assert [step.status for step in result.steps] == ["executed"] * 4


async def test_task_05_a_declined_write_proposed_again_is_not_asked_again() -> None:
    asked: list[Any] = []
    agent = planned(
        [use("create"), {"title": "x"}, use("create"), {"title": "x"}, "you said no"],
        tools=[creator([])],
        confirm=lambda request: bool(asked.append(request)),
    )
    result = await run(agent)
    assert (len(asked), result.reason) == (1, "repeated-tool-call")


async def test_c12_a_failed_read_is_repeated_once_if_its_tool_allows_it() -> None:
    tries: list[str] = []

    @tool
    async def fetch(name: str) -> str:
        """Fetch."""
        tries.append(name)
        if len(tries) == 1:
            raise ToolFailure("busy", retryable=True)
        return "here"

    script = [use("fetch"), {"name": "a"}, use("fetch"), {"name": "a"}, ANSWER, "done"]
    result = await run(planned(script, tools=[fetch]))
    assert [step.status for step in result.steps] == ["failed", "executed", "executed"]

    @tool
    async def stuck(name: str) -> str:
        """Fetch."""
        raise ToolFailure("broken")

    script = [use("stuck"), {"name": "a"}, use("stuck"), {"name": "a"}, "sorry"]
    assert (await run(planned(script, tools=[stuck]))).reason == "repeated-tool-call"


async def test_c12_a_second_identical_repeat_escalates() -> None:
    tries: list[str] = []

    @tool
    async def fetch(name: str) -> str:
        """Fetch."""
        tries.append(name)
        raise ToolFailure("busy", retryable=True)

    @tool
    async def other() -> str:
        """Do something else."""
        return "ok"

    call = [use("fetch"), {"name": "a"}]
    script = [*call, use("other"), *call, use("other"), *call, "no luck"]
    result = await run(planned(script, tools=[fetch, other]))
    assert (result.reason, tries) == ("repeated-tool-call", ["a", "a"])


async def test_task_06_a_resolver_restores_what_the_prompts_never_showed() -> None:
    exact = "id-" + "9" * 1005
    opened: list[str] = []
    asked: list[Any] = []

    @tool(to_model_output=lambda output: "reference A")
    async def look_up() -> dict[str, str]:
        """Look up the document."""
        return {"id": exact}

    def resolve(input: dict[str, Any], ctx: Any) -> dict[str, Any]:
        assert input == {"document": "reference A"}
        return {"document": next(step.output["id"] for step in ctx.steps if step.tool == "look_up")}

    @tool(writes=True, requires=["look_up"], resolve_input=resolve)
    async def open_it(document: str) -> str:
        """Open the document."""
        opened.append(document)
        return "opened"

    agent = planned(
        [use("look_up"), use("open_it"), {"document": "reference A"}, ANSWER, "done"],
        tools=[look_up, open_it],
        confirm=lambda request: asked.append(request.input) or True,
    )
    store = InMemoryStore()
    result = await run(agent, store=store)
    assert opened == [exact]
    assert asked == [{"document": exact}]
    assert result.steps[0].output == {"id": exact}
    assert "reference A" in prompt(agent, 2)
    for request in requests(agent):
        assert exact not in request.text
    # C2 overrules: raw output is not kept in memory.
    assert (await memory_of(store, agent)).recent[0].steps[0].output is None


@pytest.mark.parametrize("answer", [{"title": 7}, {"other": 1}, None, "x", LookupError("no such task")])
async def test_task_07_a_resolver_that_gives_no_valid_arguments_stops_before_approval(answer: Any) -> None:
    made: list[str] = []
    asked: list[Any] = []

    async def resolve(input: dict[str, Any], ctx: Any) -> Any:
        await trio.lowlevel.checkpoint()
        if isinstance(answer, Exception):
            raise answer
        return answer

    @tool(writes=True, resolve_input=resolve)
    async def create(title: str) -> str:
        """Create."""
        made.append(title)
        return "ok"

    cloud = Cloud()
    agent = planned(
        [use("create"), {"title": "x"}],
        tools=[create],
        confirm=lambda request: asked.append(request) or True,
        fallback=cloud,
    )
    result = await run(agent)
    assert (result.reason, made, asked, result.steps) == ("tool-args-invalid", [], [], ())
    if isinstance(answer, Exception):
        assert cloud.requests[0].error == "no such task"


async def test_task_08_an_unsatisfied_requirement_executes_nothing() -> None:
    done: list[str] = []

    @tool(requires=["find"])
    async def close(name: str) -> str:
        """Close."""
        done.append(name)
        return "ok"

    result = await run(planned([use("close"), use("close"), "cannot"], tools=[finder([]), close], loop=Conductor()))
    assert (result.reason, done, result.steps) == ("tool-prerequisite-missing", [], ())
    assert [event.tool for event in told(result, PlanMade)] == ["close"]


async def test_task_09_an_abort_inside_a_confirmation_executes_nothing() -> None:
    made: list[str] = []
    gate = Gate()

    async def confirm(request: Any) -> bool:
        await gate.pass_through()
        return True

    agent = planned([use("create"), {"title": "x"}], tools=[creator(made)], confirm=confirm)
    async with open_runtime(agent) as runtime:
        envelope = runtime.submit("hello")
        await gate.wait_reached()
        assert runtime.conversation().status().phase == "confirm"
        envelope.abort("changed my mind")
        with pytest.raises(RunAborted) as caught:
            await envelope.wait()
    assert caught.value.phase == "confirm"
    assert made == []
    assert envelope.outcome is not None
    assert envelope.outcome.steps == ()
    check_events(envelope.outcome.trace)


async def test_task_10_a_formatter_that_fails_after_a_write_loses_nothing() -> None:
    made: list[str] = []

    def broken(output: Any) -> str:
        raise RuntimeError("no")

    @tool(writes=True, to_model_output=broken)
    async def create(title: str) -> dict[str, str]:
        """Create."""
        made.append(title)
        return {"id": "7"}

    result = await run(planned([use("create"), {"title": "x"}, ANSWER, "done"], tools=[create]))
    assert (result.text, made) == ("done", ["x"])
    assert result.steps[0].output == {"id": "7"}
    assert result.steps[0].result == "Completed. The output could not be put into words."
    assert [(d.extension, d.phase) for d in result.diagnostics] == [("create", "to_model_output")]


async def test_task_11_a_failing_save_is_told_and_the_answer_stands() -> None:
    cloud = Cloud()
    store = FailingStore(InMemoryStore(), {"commit": OSError("disk full")})
    result = await run(planned(["done"], fallback=cloud), store=store)
    assert (result.text, cloud.requests) == ("done", [])
    assert [event.error for event in told(result, MemoryError)] == ["OSError: disk full"]


async def test_task_12_a_failing_fallback_is_asked_once() -> None:
    calls: list[Any] = []

    def offline(request: Any) -> str:
        calls.append(request)
        raise ConnectionError("offline")

    ending = await end(planned([], loop=Conductor(max_steps=0), fallback=offline))
    assert str(ending.error) == "offline"
    assert len(calls) == 1


async def test_task_13_two_default_runs_take_turns() -> None:
    agent = planned(["first answer", "second answer"])
    async with open_runtime(agent) as runtime:
        runs = [runtime.submit("first ask"), runtime.submit("second ask")]
        for envelope in runs:
            await envelope.wait()
    assert "first answer" in prompt(agent, 1)


def test_task_14_an_oversized_exchange_still_shows_its_answer_and_actions() -> None:
    done = Step(0, "tool", "b", "create", "c", {"title": "x"}, result="created", output={"raw": "secret"}, writes=True)
    exchange = Exchange("q" * 20_000, "the answer", 1.0, steps=(done,))
    block = recent_block([exchange], 512, estimate)
    assert estimate(block) <= 512
    assert "the answer" in block
    assert 'create({"title": "x"}) [completed] -> created' in block
    assert "secret" not in block


async def test_task_17_the_scribe_sees_actions_and_results_but_no_raw_output() -> None:
    done = Step(0, "tool", "b", "create", "c", {"title": "x"}, result="created it", writes=True)
    store = await stored(Exchange("old ask", "old answer", 1.0, steps=(done,)), ("b", "2"), ("c", "3"))
    agent = planned(["done", "Goal: x"])
    await run(agent, store=store)
    assert roles(agent) == ["answer", "scribe"]
    assert 'create({"title": "x"}) [completed] -> created it' in prompt(agent, 1)
    assert "old ask" in prompt(agent, 1)


# --- rules of ours on the same ground -------------------------------------------------------------------------------


async def test_a_write_that_raised_may_have_happened_unless_the_tool_says_it_failed() -> None:
    script = [use("create"), {"title": "x"}, ANSWER, "done"]
    unsure = await run(planned(script, tools=[creator([], OSError("connection lost"))]))
    assert unsure.steps[0].status == "unknown"
    assert "may have taken effect" in (unsure.steps[0].result or "")
    sure = await run(planned(script, tools=[creator([], ToolFailure("Title taken."))]))
    assert (sure.steps[0].status, sure.steps[0].result) == ("failed", "Title taken.")


async def test_two_failures_in_a_row_escalate_also_when_their_effect_is_unknown() -> None:
    script = [use("create"), {"title": "x"}, use("create"), {"title": "y"}, "it broke"]
    result = await run(planned(script, tools=[creator([], OSError("lost"))]))
    assert (result.reason, len(result.steps)) == ("tool-error", 2)


async def test_a_tool_that_takes_too_long_fails_a_read_and_leaves_a_write_unknown(
    autojump_clock: trio.testing.MockClock,
) -> None:
    @tool(timeout=5)
    async def slow(name: str) -> str:
        """Read slowly."""
        await trio.sleep(60)
        return name

    @tool(timeout=5, writes=True)
    async def slow_write(name: str) -> str:
        """Write slowly."""
        await trio.sleep(60)
        return name

    script = [use("slow"), {"name": "a"}, use("slow_write"), {"name": "a"}, "too slow"]
    result = await run(planned(script, tools=[slow, slow_write]))
    assert [step.status for step in result.steps] == ["failed", "unknown"]
    assert [event.ms for event in told(result, ToolFinished)] == [5000, 5000]
    assert result.steps[0].result == "slow did not finish within 5 s."


async def test_an_abort_in_the_middle_of_a_write_leaves_its_step_unknown_and_keeps_it() -> None:
    gate = Gate()

    @tool(writes=True)
    async def create(title: str) -> str:
        """Create."""
        await gate.pass_through()
        return "created"

    store = InMemoryStore()
    agent = planned([use("create"), {"title": "x"}], tools=[create])
    async with open_runtime(agent, store=store) as runtime:
        envelope = runtime.submit("make it")
        await gate.wait_reached()
        assert runtime.conversation().status().phase == "tool:create"
        envelope.abort()
        await envelope.wait_ended()
    outcome = envelope.outcome
    assert outcome is not None
    assert [(step.status, step.writes) for step in outcome.steps] == [("unknown", True)]
    check_events(outcome.trace)
    finished = told(outcome, ToolFinished)
    assert [event.status for event in finished] == ["unknown"]
    memory = await memory_of(store, agent)
    assert [(e.ask, e.best_effort, [s.status for s in e.steps]) for e in memory.recent] == [
        ("make it", True, ["unknown"])
    ]


async def test_every_attempt_has_a_start_and_an_end_whatever_became_of_it() -> None:
    made: list[str] = []
    script = [
        use("create"),
        {"missing": "the title"},
        use("create"),
        {"title": "x"},
        use("find"),
        {"name": "a"},
        use("find"),
        {"name": "a"},
        ANSWER,
        "done",
    ]
    agent = planned(script, tools=[creator(made), finder([])], confirm=lambda request: False)
    result = await run(agent)
    assert [(event.tool, event.status) for event in told(result, ToolFinished)] == [
        ("create", "skipped"),
        ("create", "skipped"),
        ("find", "executed"),
        ("find", "cached"),
    ]
    assert [event.call_id for event in told(result, ToolStarted)] == [
        event.call_id for event in told(result, ToolFinished)
    ]
    assert [step.index for step in result.steps] == [0, 1, 2, 3, 4]


async def test_plain_functions_run_in_threads_and_get_their_own_arguments() -> None:
    import threading

    threads: list[bool] = []

    @tool
    def sort(items: list[int]) -> list[int]:
        """Sort."""
        threads.append(threading.current_thread() is threading.main_thread())
        items.sort()
        return items

    result = await run(planned([use("sort"), {"items": [3, 1, 2]}, ANSWER, "done"], tools=[sort]))
    assert threads == [False]
    assert result.steps[0].input == {"items": [3, 1, 2]}
    assert result.steps[0].output == [1, 2, 3]


async def test_after_tools_hears_every_round() -> None:
    journal = Journal()
    agent = planned([use("find"), {"name": "a"}, ANSWER, "done"], tools=[finder([])], extensions=[journal])
    result = await run(agent)
    questions = [question for row, _, question in journal.questions if row == "after_tools"]
    assert [(q.calls[0].name, q.calls[0].input, q.results) for q in questions] == [
        ("find", {"name": "a"}, (result.steps[0].result,))
    ]


async def test_a_hooks_own_error_around_a_tool_fails_the_run_and_a_tools_error_does_not() -> None:
    class Around(Extension[Any]):
        name = "around"

        def __init__(self, own: bool) -> None:
            self.own = own

        async def around_tool(self, ctx: Any, question: Any, call_next: Any) -> Any:
            output = await call_next()
            if self.own:
                raise LookupError("mine")
            return output

    script = [use("create"), {"title": "x"}, ANSWER, "done"]
    ending = await end(planned(script, tools=[creator([])], extensions=[Around(True)]))
    assert isinstance(ending.error, GoliathExtensionError)
    assert (ending.error.extension, ending.error.phase) == ("around", "around_tool")
    assert [step.status for step in ending.steps] == ["executed"]
    result = await run(planned(script, tools=[creator([], ToolFailure("taken"))], extensions=[Around(False)]))
    assert result.steps[0].result == "taken"


async def test_an_extension_may_replace_a_tools_output() -> None:
    class Around(Extension[Any]):
        name = "around"

        async def around_tool(self, ctx: Any, question: Any, call_next: Any) -> Any:
            await call_next()
            return "instead"

    agent = planned([use("find"), {"name": "a"}, ANSWER, "done"], tools=[finder([])], extensions=[Around()])
    assert (await run(agent)).steps[0].result == "instead"


async def test_on_output_hears_the_output_and_its_failure_is_a_diagnostic() -> None:
    heard: list[Any] = []

    async def on_output(output: Any, ctx: Any) -> None:
        heard.append((output, ctx.context))
        raise RuntimeError("not listening")

    @tool(on_output=on_output)
    async def look() -> int:
        """Look."""
        return 7

    result = await run(planned([use("look"), ANSWER, "done"], tools=[look]), context="app")
    assert heard == [(7, "app")]
    assert [(d.extension, d.phase) for d in result.diagnostics] == [("look", "on_output")]
    assert result.steps[0].status == "executed"


async def test_what_a_tool_is_told_of_the_run() -> None:
    got: list[Any] = []

    @tool
    async def look(ctx: ToolContext[Any]) -> str:
        """Look."""
        got.append((ctx.conversation_id, ctx.context, len(ctx.steps), [e.ask for e in ctx.recent], ctx.result_budget))
        assert ctx.call_id.startswith(ctx.run_id)
        return "ok"

    store = await stored(("old", "1"), key="agent/c1")
    await run(planned([use("look"), ANSWER, "done"], tools=[look]), store=store, conversation_id="c1", context="app")
    assert got == [("c1", "app", 0, ["old"], 512)]


async def test_content_results_are_quoted_and_bounded_in_tokens() -> None:
    @tool(output_mode="content")
    async def page() -> str:
        """Read the page."""
        return "\n".join(f"line {number}" for number in range(2000))

    result = await run(planned([use("page"), ANSWER, "done"], tools=[page]))
    text = result.steps[0].result or ""
    assert 400 < estimate(text) <= 512
    assert text.startswith("line 0\nline 1\n")
