"""The tool room: one call through its gate, its confirmation, its record, its execution and its text (H12)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from goliath_actors import Deny, Extension, RunAborted, Stop, Tool, ToolContext, ToolFailure, open_runtime, tool
from goliath_actors._records import update
from goliath_actors.errors import ConfigError, GoliathExtensionError, ToolInputError
from goliath_actors.events import Confirm, HookDecision, ToolFinished
from goliath_actors.hooks import Ask
from goliath_actors.testing import Gate, Journal
from goliath_actors.tools import Confirmed, Suspend
from goliath_actors.values import Step

from .planned import ANSWER, end, planned, run, told, use


def creator(made: list[str]) -> Tool:
    @tool(writes=True)
    async def create(title: str) -> str:
        """Create a task."""
        made.append(title)
        return "created"

    return create


@tool
async def find(name: str) -> str:
    """Find a thing."""
    return f"found {name}"


class Before(Extension[Any]):
    """Answers `before_tool` with one value."""

    def __init__(self, answer: Any, name: str = "before", lenient: bool = False) -> None:
        self.name = name
        self.answer = answer
        self.lenient = lenient
        self.asked = 0

    def before_tool(self, ctx: Any, question: Any) -> Any:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


MAKE = [use("create"), {"title": "x"}, ANSWER, "done"]
FIND = [use("find"), {"name": "x"}, ANSWER, "done"]


# --- the gate -------------------------------------------------------------------------------------------------------


async def test_the_first_denial_ends_the_chain() -> None:
    made: list[str] = []
    later = Before(None, "later")
    agent = planned(MAKE, tools=[creator(made)], extensions=[Before(Deny("no")), later])
    result = await run(agent)
    step = result.steps[0]
    assert (step.status, step.skip_reason, step.extension, made, later.asked) == (
        "skipped",
        "policy",
        "before",
        [],
        0,
    )
    assert step.result == "Denied by before: no. Do not try it again unless the user asks for it."
    assert [(e.decision, e.reason) for e in told(result, HookDecision)] == [("deny", "no")]


@pytest.mark.parametrize(("reason", "shown"), [("", "no reason given"), ("r" * 500, "r" * 159 + "…")])
async def test_a_denials_reason_is_bounded(reason: str, shown: str) -> None:
    result = await run(planned(MAKE, tools=[creator([])], extensions=[Before(Deny(reason))]))
    assert f"Denied by before: {shown}." in (result.steps[0].result or "")


async def test_a_stop_before_a_tool_leaves_no_step() -> None:
    made: list[str] = []
    agent = planned(MAKE, tools=[creator(made)], extensions=[Before(Stop("enough", "policy"))])
    result = await run(agent)
    assert (result.status, result.steps, made) == ("stopped", (), [])
    assert result.stopped is not None
    assert result.stopped.phase == "before_tool"


async def test_a_lenient_gate_that_fails_denies_the_call() -> None:
    made: list[str] = []
    agent = planned(MAKE, tools=[creator(made)], extensions=[Before(RuntimeError("broken gate"), lenient=True)])
    result = await run(agent)
    assert (result.steps[0].skip_reason, made) == ("policy", [])
    assert "broken gate" in (result.steps[0].result or "")
    assert [(d.extension, d.phase) for d in result.diagnostics] == [("before", "before_tool")]


@pytest.mark.parametrize("bad", ["text", 7, ["x"], {"title": 7}, {"other": "x"}, {}])
async def test_a_gate_that_answers_badly_fails_the_run(bad: Any) -> None:
    made: list[str] = []
    ending = await end(planned(MAKE, tools=[creator(made)], extensions=[Before(bad)]))
    assert isinstance(ending.error, GoliathExtensionError)
    assert (ending.error.phase, made, ending.steps) == ("before_tool", [], ())


async def test_no_path_bypasses_the_gate() -> None:
    # H12: a call without arguments and a call that is answered from the log pass it like any other.
    @tool
    async def ping() -> str:
        """Ping."""
        return "pong"

    gate = Before(None)
    script = [use("ping"), use("ping"), ANSWER, "done"]
    result = await run(planned(script, tools=[ping], extensions=[gate]))
    assert [step.status for step in result.steps] == ["executed", "cached", "executed"]
    assert gate.asked == 2


async def test_changed_arguments_are_another_call() -> None:
    agent = planned(
        [use("find"), {"name": "a"}, use("find"), {"name": "b"}, ANSWER, "done"],
        tools=[find],
        extensions=[Before({"name": "same"})],
    )
    result = await run(agent)
    assert [step.status for step in result.steps] == ["executed", "cached", "executed"]
    assert [dict(step.input or {}) for step in result.steps[:2]] == [{"name": "same"}] * 2


# --- confirmation ---------------------------------------------------------------------------------------------------


async def test_an_ask_has_a_read_confirmed_and_the_chain_goes_on() -> None:
    asked: list[str] = []
    later = Before(None, "later")
    agent = planned(
        FIND,
        tools=[find],
        extensions=[Before(Ask("sensitive")), later],
        confirm=lambda request: bool(asked.append(request.tool.name)),
    )
    result = await run(agent)
    assert (asked, later.asked) == (["find"], 1)
    assert result.steps[0].skip_reason == "confirmation"
    assert [(e.decision, e.reason) for e in told(result, HookDecision)] == [("ask", "sensitive")]


async def test_a_tool_may_want_its_reads_confirmed() -> None:
    @tool(confirm=True)
    async def secret() -> str:
        """Read a secret."""
        return "s"

    asked: list[Any] = []
    await run(
        planned([use("secret"), ANSWER, "done"], tools=[secret], confirm=lambda r: asked.append(r) or True),
        context="app",
        conversation_id="c1",
    )
    (request,) = asked
    assert (request.tool.name, request.brief, request.context, request.conversation_id) == (
        "secret",
        "do it",
        "app",
        "c1",
    )


async def test_where_nobody_can_be_asked_the_call_is_refused_and_says_so() -> None:
    agent = planned(FIND, tools=[find], extensions=[Before(Ask())], confirm=None)
    result = await run(agent)
    assert result.steps[0].skip_reason == "confirmation"
    assert "nobody can be asked here" in (result.steps[0].result or "")
    assert [(e.approved, e.reason) for e in told(result, Confirm)] == [(False, "nobody can be asked here")]


@pytest.mark.parametrize("answer", [None, 1, "yes", Confirmed("yes"), Confirmed(True, 7)])  # type: ignore[arg-type]
async def test_an_answer_that_is_none_is_the_confirmations_error(answer: Any) -> None:
    made: list[str] = []
    ending = await end(planned(MAKE, tools=[creator(made)], confirm=lambda request: answer))
    assert isinstance(ending.error, ConfigError)
    assert str(ending.error) == f"confirm must return True, False or a Confirmed(approved, reason), not {answer!r}"
    assert (ending.origin, made) == ("confirm", [])


async def test_a_planned_run_cannot_wait_for_a_suspended_confirmation() -> None:
    made: list[str] = []
    ending = await end(planned(MAKE, tools=[creator(made)], confirm=lambda request: Suspend("later")))
    assert isinstance(ending.error, ConfigError)
    assert "ToolLoop" in str(ending.error)
    assert (ending.origin, made) == ("confirm", [])


async def test_a_confirmation_that_nobody_answers_expires_as_a_refusal(autojump_clock: MockClock) -> None:
    made: list[str] = []

    async def confirm(request: Any) -> bool:
        await trio.sleep_forever()
        return True

    agent = planned(MAKE, tools=[creator(made)], confirm=confirm, confirm_timeout=30)
    start = trio.current_time()
    result = await run(agent, timeout=5)
    assert trio.current_time() - start == 30
    assert (result.text, made) == ("done", [])
    assert "nobody answered within 30 s" in (result.steps[0].result or "")
    assert [(e.approved, e.reason) for e in told(result, Confirm)] == [(False, "nobody answered within 30 s")]


async def test_time_spent_in_a_confirmation_is_not_the_runs(autojump_clock: MockClock) -> None:
    made: list[str] = []

    async def confirm(request: Any) -> bool:
        await trio.sleep(100)
        return True

    result = await run(planned(MAKE, tools=[creator(made)], confirm=confirm), timeout=5)
    assert (result.text, made) == ("done", ["x"])


# --- execution ------------------------------------------------------------------------------------------------------


async def test_an_abort_between_the_gate_and_the_tool_leaves_no_step() -> None:
    made: list[str] = []

    class Late(Extension[Any]):
        name = "late"

        def before_tool(self, ctx: Any, question: Any) -> None:
            runtime.conversation().abort()

    agent = planned(MAKE, tools=[creator(made)], extensions=[Late()])
    async with open_runtime(agent) as runtime:
        envelope = runtime.submit("hello")
        with pytest.raises(RunAborted):
            await envelope.wait()
    assert envelope.outcome is not None
    assert (envelope.outcome.steps, made) == ((), [])


async def test_an_error_on_tool_started_fails_the_run_and_the_tool_never_starts() -> None:
    made: list[str] = []

    def on_event(event: Any) -> None:
        if event.kind == "tool-started":
            raise LookupError("no room")

    ending = await end(planned(MAKE, tools=[creator(made)], on_event=on_event))
    assert (str(ending.error), ending.origin, made) == ("no room", "event", [])
    assert [(event.status, event.result) for event in told(ending, ToolFinished)] == [
        ("failed", "Not started: the run ended first.")
    ]


async def test_a_hook_that_fails_before_the_tool_leaves_a_step_that_says_it_never_started() -> None:
    class Early(Extension[Any]):
        name = "early"

        async def around_tool(self, ctx: Any, question: Any, call_next: Any) -> Any:
            raise LookupError("mine")

    made: list[str] = []
    ending = await end(planned(MAKE, tools=[creator(made)], extensions=[Early()]))
    assert isinstance(ending.error, GoliathExtensionError)
    assert ([step.status for step in ending.steps], made) == (["failed"], [])


async def test_a_write_that_succeeded_once_is_never_recorded_as_failed() -> None:
    made: list[str] = []

    @tool(writes=True)
    async def create(title: str) -> str:
        """Create a task."""
        made.append(title)
        if len(made) == 2:
            raise ToolFailure("taken")
        return "created"

    class Twice(Extension[Any]):
        name = "twice"

        async def around_tool(self, ctx: Any, question: Any, call_next: Any) -> Any:
            await call_next()
            return await call_next()

    result = await run(planned(MAKE, tools=[create], extensions=[Twice()]))
    assert (result.steps[0].status, made) == ("unknown", ["x", "x"])


async def test_a_tool_that_waits_for_a_sub_run_of_itself_is_told_as_a_failure() -> None:
    @tool
    async def again() -> str:
        """Ask the same conversation."""
        return (await runtime.run("again")).text

    agent = planned([use("again"), ANSWER, "done"], tools=[again])
    async with open_runtime(agent) as runtime:
        result = await runtime.run("hello")
    assert result.steps[0].status == "failed"
    assert "this would wait for itself" in (result.steps[0].result or "")


async def test_an_extension_error_raised_inside_a_tool_is_the_tools_failure() -> None:
    @tool
    async def inner() -> str:
        """Run something that fails."""
        raise GoliathExtensionError("other", "before_run", "elsewhere")

    result = await run(planned([use("inner"), ANSWER, "done"], tools=[inner]))
    assert (result.steps[0].status, result.text) == ("failed", "done")


async def test_what_a_plain_function_returns_may_be_awaitable() -> None:
    async def later() -> str:
        await trio.lowlevel.checkpoint()
        return "later"

    lazy = Tool(name="lazy", description="Be lazy.", execute=lambda input: later())
    assert (await run(planned([use("lazy"), ANSWER, "done"], tools=[lazy]))).steps[0].result == "later"


async def test_an_abort_abandons_a_thread_and_the_step_says_so() -> None:
    import threading

    began, go_on = threading.Event(), threading.Event()

    @tool(writes=True)
    def block(title: str) -> str:
        """Block a thread."""
        began.set()
        go_on.wait(10)
        return "late"

    agent = planned([use("block"), {"title": "x"}], tools=[block])
    try:
        async with open_runtime(agent) as runtime:
            envelope = runtime.submit("hello")
            await trio.to_thread.run_sync(began.wait)
            envelope.abort()
            with pytest.raises(RunAborted):
                await envelope.wait()
    finally:
        go_on.set()
    assert envelope.outcome is not None
    assert [(step.status, step.result) for step in envelope.outcome.steps] == [
        ("unknown", "Execution did not complete; it may have taken effect.")
    ]


async def test_a_read_that_was_aborted_does_not_claim_an_effect() -> None:
    gate = Gate()

    @tool
    async def look(name: str) -> str:
        """Look for a thing."""
        await gate.pass_through()
        return "found"

    async with open_runtime(planned([use("look"), {"name": "x"}], tools=[look])) as runtime:
        looking = runtime.submit("hello")
        await gate.wait_reached()
        looking.abort()
        with pytest.raises(RunAborted):
            await looking.wait()
    assert looking.outcome is not None
    assert [(step.status, step.result) for step in looking.outcome.steps] == [
        ("unknown", "Execution did not complete.")
    ]


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("boom"), "KeyError: 'boom'"),
        (KeyError("no such room"), "KeyError: 'no such room'"),
        (ValueError("boom"), "ValueError: boom"),
        (IndexError(7), "IndexError: 7"),
        (ValueError("no such room"), "no such room"),
        (ValueError(), "ValueError"),
        (ValueError("  "), "ValueError"),
        (Speechless(), "Speechless"),
    ],
)
async def test_an_error_that_says_too_little_is_told_with_its_type(error: Exception, said: str) -> None:
    @tool
    async def look(name: str) -> str:
        """Look for a thing."""
        raise error

    result = await run(planned([use("look"), {"name": "x"}, ANSWER, "done"], tools=[look]))
    assert result.steps[0].result == f"Failed: {said}. Change the arguments or use another tool."


async def test_what_a_resolver_says_too_shortly_is_told_with_its_type() -> None:
    def resolve(input: Any, ctx: Any) -> Any:
        return {"name": {}[input["name"]]}

    @tool(resolve_input=resolve)
    async def look(name: str) -> str:
        """Look for a thing."""
        return name

    async with open_runtime(planned([], tools=[look])) as runtime:
        with pytest.raises(ToolInputError) as caught:
            await runtime.invoke_tool("look", {"name": "x"})
    assert caught.value.problems == ("KeyError: 'x'",)


async def test_a_hook_may_run_a_tool_twice_and_both_times_count() -> None:
    tries: list[str] = []

    @tool
    async def flaky(name: str) -> str:
        """Fail once."""
        await trio.lowlevel.checkpoint()
        tries.append(name)
        if len(tries) == 1:
            raise ToolFailure("busy")
        return "here"

    class Again(Extension[Any]):
        name = "again"

        async def around_tool(self, ctx: Any, question: Any, call_next: Any) -> Any:
            try:
                return await call_next()
            except ToolFailure:
                return await call_next()

    result = await run(planned([use("flaky"), {"name": "a"}, ANSWER, "done"], tools=[flaky], extensions=[Again()]))
    assert (tries, result.steps[0].result, result.steps[0].status) == (["a", "a"], "here", "executed")


async def test_a_failing_after_tool_leaves_an_executed_step_without_words() -> None:
    class After(Extension[Any]):
        name = "after"

        def after_tool(self, ctx: Any, question: Any) -> None:
            raise RuntimeError("no")

    ending = await end(planned(MAKE, tools=[creator([])], extensions=[After()]))
    assert isinstance(ending.error, GoliathExtensionError)
    assert [(step.status, step.result) for step in ending.steps] == [
        ("executed", "Executed; its output was not processed.")
    ]
    assert [event.status for event in told(ending, ToolFinished)] == ["executed"]


# --- words ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [None, 7, b"x"])
async def test_a_formatter_that_gives_no_text_is_replaced_by_a_fixed_one(answer: Any) -> None:
    @tool(to_model_output=lambda output: answer)
    async def look() -> str:
        """Look."""
        return "x"

    result = await run(planned([use("look"), ANSWER, "done"], tools=[look]))
    assert result.steps[0].result == "Completed. The output could not be put into words."


async def test_content_that_is_no_text_is_quoted_as_json() -> None:
    @tool(output_mode="content")
    async def look() -> dict[str, Any]:
        """Look."""
        return {"rooms": ["attic", "hall"]}

    result = await run(planned([use("look"), use("look"), ANSWER, "done"], tools=[look]))
    assert result.steps[0].result == '{"rooms": ["attic", "hall"]}'
    assert (result.steps[1].status, result.steps[1].result) == ("cached", result.steps[0].result)


async def test_content_is_bounded_by_the_estimate_if_the_counter_fails_there() -> None:
    broken = False

    def count(text: str) -> int:
        if broken:
            raise RuntimeError("gone")
        return 10

    @tool(output_mode="content")
    async def look() -> str:
        """Look."""
        nonlocal broken
        broken = True
        return "word " * 5000

    result = await run(planned([use("look")], tools=[look], token_counter=count))
    assert result.reason == "model-error"
    assert 1000 < len(result.steps[0].result or "") < 2000


async def test_an_output_of_any_kind_leaves_the_run_well() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError("no repr")

    loop: list[Any] = []
    loop.append(loop)
    for output in (Odd(), loop, {1: 2}, b"\xff\x00", float("nan"), {3, 1}):
        look = Tool(name="look", description="Look.", execute=lambda input, output=output: output)
        result = await run(planned([use("look"), ANSWER, "done"], tools=[look]))
        assert result.text == "done"
        assert result.steps[0].status == "executed"
        assert result.steps[0].result


# --- invoke_tool ----------------------------------------------------------------------------------------------------


async def test_a_tool_may_be_invoked_outside_a_run_through_the_same_gate() -> None:
    made: list[str] = []
    journal = Journal()
    asked: list[Any] = []
    agent = planned(
        [], tools=[creator(made)], extensions=[journal], confirm=lambda request: asked.append(request.input) or True
    )
    async with open_runtime(agent) as runtime:
        outcome = await runtime.invoke_tool("create", {"title": "x"}, context="app")
        with pytest.raises(ToolInputError):
            await runtime.invoke_tool("create", {"title": 7})
    assert (outcome.status, outcome.output, made, asked) == ("executed", "created", ["x"], [{"title": "x"}])
    assert journal.rows == ["before_tool", "around_tool", "after_tool", "after_tools"]


async def test_an_invoked_tool_may_be_denied_refused_or_stopped() -> None:
    for answer, expected in (
        (Deny("no"), ("skipped", "policy", "before")),
        (Stop("no", "policy"), ("skipped", "policy", "before")),
    ):
        async with open_runtime(planned([], tools=[creator([])], extensions=[Before(answer)])) as runtime:
            outcome = await runtime.invoke_tool("create", {"title": "x"})
        assert (outcome.status, outcome.reason, outcome.extension) == expected
    async with open_runtime(planned([], tools=[creator([])], confirm=lambda request: False)) as runtime:
        outcome = await runtime.invoke_tool("create", {"title": "x"})
        assert (outcome.status, outcome.reason) == ("skipped", "confirmation")
        outcome = await runtime.invoke_tool("create", {"title": "x"}, confirm=lambda request: True)
        assert outcome.status == "executed"


async def test_an_invoked_tools_resolver_may_refuse_its_arguments() -> None:
    def resolve(input: Any, ctx: Any) -> Any:
        raise LookupError("no such thing")

    @tool(resolve_input=resolve)
    async def look(name: str) -> str:
        """Look."""
        return name

    async with open_runtime(planned([], tools=[look])) as runtime:
        with pytest.raises(ToolInputError, match="no such thing"):
            await runtime.invoke_tool("look", {"name": "x"})


async def test_an_invoked_tool_has_a_budget_where_the_window_is_asked_by_runs_only() -> None:
    from goliath_actors import Conductor

    budgets: list[int] = []

    @tool
    async def look(ctx: ToolContext[Any]) -> str:
        """Look."""
        budgets.append(ctx.result_budget)
        return "x"

    async with open_runtime(planned([], tools=[look], loop=Conductor(window=lambda: 8192))) as runtime:
        await runtime.invoke_tool("look", {})
    assert budgets == [512]


async def test_a_tool_is_reached_while_another_conversation_confirms() -> None:
    gate = Gate()

    async def confirm(request: Any) -> bool:
        await gate.pass_through()
        return True

    made: list[str] = []
    agent = planned(MAKE, tools=[creator(made), find], confirm=confirm)
    async with open_runtime(agent) as runtime:
        envelope = runtime.submit("hello")
        await gate.wait_reached()
        outcome = await runtime.invoke_tool("find", {"name": "x"})
        assert (outcome.output, made) == ("found x", [])
        gate.open()
        assert (await envelope.wait()).text == "done"


def test_what_is_not_known_yet_stays_in_a_step() -> None:
    words: Any = {field.name: f"the {field.name}" for field in attrs.fields(Step)}
    step = Step(**words)
    work: Any = SimpleNamespace(journal=SimpleNamespace(steps=(step,)))
    call: Any = SimpleNamespace(index=0)
    update(work, call, "said", "executed", "made")
    assert work.journal.steps == (attrs.evolve(step, result="said", status="executed", output="made"),)
    update(work, call, "said again")
    assert work.journal.steps == (attrs.evolve(step, result="said again", status="executed", output="made"),)
