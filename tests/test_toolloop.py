"""The native tool loop: its configuration, the order of a step, its transitions and its ends."""

from __future__ import annotations

import math
from contextlib import aclosing
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from goliath_actors import (
    Agent,
    Compaction,
    Deny,
    Extension,
    Respond,
    RunAborted,
    Stop,
    ToolContext,
    ToolLoop,
    open_runtime,
    tool,
)
from goliath_actors.abc import ModelRequest
from goliath_actors.errors import ConfigError, GoliathBudgetError, GoliathExtensionError, ModelError, ModelUnavailable
from goliath_actors.events import Answer, Budget, PlanMade, TextDelta, ToolFinished
from goliath_actors.hooks import Complete, Continue, NextStep, RunPatch
from goliath_actors.stores import InMemoryStore
from goliath_actors.testing import FailingStore, Gate, Journal, ScriptedModel, check_events, tool_calls
from goliath_actors.values import Message, Usage

from .native import check_closed, check_requests, history, native, said
from .planned import end, requests, run, told


@tool
async def look(text: str) -> str:
    """Look something up."""
    await trio.lowlevel.checkpoint()
    return f"saw {text}"


def looking(text: str = "a") -> Any:
    return tool_calls(("look", {"text": text}))


# --- configuration --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"window": 0},
        {"window": True},
        {"window": 140},
        {"max_steps": 0},
        {"max_steps": 2.0},
        {"max_parallel_tools": 0},
        {"hook_retries": -1},
        {"compaction": 0.75},
    ],
)
def test_a_loop_that_could_not_work_is_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ToolLoop(**options)


@pytest.mark.parametrize("options", [{"at": 0}, {"at": 1.5}, {"at": math.nan}, {"at": True}, {"keep_turns": 0}])
def test_a_compaction_that_could_not_work_is_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Compaction(**options)


def test_a_fallback_belongs_to_a_conductor() -> None:
    with pytest.raises(ConfigError, match="a fallback belongs to a Conductor"):
        native([], fallback=lambda request: "cloud")


async def test_the_window_may_be_asked_for_once_a_run() -> None:
    asked: list[str] = []

    async def window() -> int:
        await trio.lowlevel.checkpoint()
        asked.append("window")
        return 8000

    agent = native([looking(), "done"], tools=[look], loop=ToolLoop(window=window))
    result = await run(agent)
    assert (result.text, asked) == ("done", ["window"])
    assert {budget.limit for budget in told(result, Budget)} == {8000 - 1000 - 800}


@pytest.mark.parametrize("size", [0, 100, "large", None])
async def test_a_window_that_is_too_small_fails_the_run(size: Any) -> None:
    ending = await end(native(["done"], loop=ToolLoop(window=lambda: size)))
    assert (ending.status, ending.origin) == ("error", "config") or isinstance(ending.error, ConfigError)


# --- one run --------------------------------------------------------------------------------------------------------


async def test_a_run_asks_its_rows_in_the_promised_order() -> None:
    journal = Journal()
    result = await run(native([looking(), "done"], tools=[look], extensions=[journal]))
    assert result.text == "done"
    model = ["before_request", "around_model", "transform_stream", "after_response", "after_plan", "before_append"]
    assert journal.rows == [
        "before_run",
        "before_append",
        "resolve_context",
        "before_plan",
        *model,
        "before_tool",
        "around_tool",
        "after_tool",
        "before_append",
        "after_tools",
        "after_step",
        "resolve_context",
        "before_plan",
        *model,
        "after_step",
        "after_answer",
        "on_finish",
    ]
    assert [message.role for _, message in journal.heard("before_append")] == ["user", "assistant", "tool", "assistant"]
    assert [question.is_final for row, _, question in journal.questions if row == "after_step"] == [False, True]


async def test_a_conversation_goes_on_where_it_was() -> None:
    store = InMemoryStore()
    agent = native([looking(), "first", "second"], tools=[look])
    async with open_runtime(agent, store=store) as runtime:
        assert (await runtime.run("one", conversation_id="c")).text == "first"
        assert (await runtime.run("two", conversation_id="c")).text == "second"
        page = await runtime.conversation("c").history()
    assert said(page.entries) == [
        ("user", "one"),
        ("assistant", ""),
        ("tool", "saw a"),
        ("assistant", "first"),
        ("user", "two"),
        ("assistant", "second"),
    ]
    check_closed(page.entries)
    last = requests(agent)[-1]
    assert [message.role for message in last.messages] == ["system", "user", "assistant", "tool", "assistant", "user"]
    check_requests(requests(agent))


async def test_instructions_facts_and_contributions_are_composed_for_each_request_and_never_stored() -> None:
    class Polite(Extension[Any]):
        name = "polite"
        instructions = "Say please."

        def before_run(self, ctx: Any, question: Any) -> Any:
            return RunPatch(facts={"day": "Monday"}, messages=[Message("user", "(it rains)")])

        def before_plan(self, ctx: Any, question: Any) -> Any:
            from goliath_actors.hooks import PlanPatch

            return PlanPatch(context_text=f"step {len(question.steps)}")

    store = InMemoryStore()
    agent = native([looking(), "done"], tools=[look], extensions=[Polite()], facts={"user": "Ann"})
    await run(agent, "hi", store=store)
    first, second = requests(agent)
    assert first.messages[0].text == ("Be brief.\n\nSay please.\n\nKnown facts:\n- user: Ann\n- day: Monday\n\nstep 0")
    assert second.messages[0].text.endswith("step 1")
    assert first.messages[1].text == "hi\n\n(it rains)"
    assert second.messages[-1] == Message("user", "(it rains)")
    assert [text for _, text in said(await history(store, agent))] == ["hi", "", "saw a", "done"]


async def test_tools_are_offered_as_schemas_and_text_streams_in_every_step() -> None:
    model = ScriptedModel([tool_calls(("look", {"text": "a"}), text="let me see"), "all done"], chunk=4)
    agent = native(model, tools=[look])
    async with open_runtime(agent) as runtime:
        envelope = runtime.submit("hi")
        events = check_events([event async for event in envelope.events()])
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "let me seeall done"
    assert [spec.name for spec in model.requests[0].tools] == ["look"]
    assert model.requests[0].role == "step"
    assert [plan.plan_kind for plan in events if isinstance(plan, PlanMade)] == ["tools", "answer"]


async def test_usage_is_counted_once_for_each_model_call() -> None:
    model = ScriptedModel([looking(), "done"], usage=Usage(10, 2))
    assert (await run(native(model, tools=[look]))).usage == Usage(20, 4)


async def test_a_structured_answer_is_typed_and_asked_for_once_more() -> None:
    agent = native([looking(), "nonsense", {"n": 3}], tools=[look], output=dict[str, int])
    result = await run(agent)
    assert (result.output, result.text) == ({"n": 3}, '{"n": 3}')
    assert all(request.schema is not None for request in requests(agent))
    assert requests(agent)[2].messages[-1].text.startswith("Your last reply was not valid:")


async def test_a_structured_answer_that_stays_invalid_fails_the_run() -> None:
    store = InMemoryStore()
    agent = native(["nonsense", "more of it"], output=dict[str, int])
    ending = await end(agent, store=store)
    assert isinstance(ending.error, ModelError)
    assert (ending.error.code, ending.origin) == ("invalid-output", "model")


async def test_a_providers_error_reaches_the_caller_as_it_is_and_leaves_the_ask() -> None:
    store, error = InMemoryStore(), ModelUnavailable("down")
    agent = native([error, "better now"])
    async with open_runtime(agent, store=store) as runtime:
        with pytest.raises(ModelUnavailable) as raised:
            await runtime.run("one")
        assert raised.value is error
        result = await runtime.run("two")
    assert result.text == "better now"
    assert said(await history(store, agent)) == [("user", "one"), ("user", "two"), ("assistant", "better now")]
    assert requests(agent)[1].messages[-1] == Message("user", "one\n\ntwo")


async def test_a_prompt_that_does_not_fit_is_a_budget_error() -> None:
    agent = native(["never"], loop=ToolLoop(window=400, compaction=None), instructions="x" * 4000)
    ending = await end(agent)
    assert isinstance(ending.error, GoliathBudgetError)
    assert (ending.error.phase, ending.origin) == ("step", "budget")


async def test_the_text_of_a_reply_that_broke_off_is_kept_and_marked_partial(autojump_clock: MockClock) -> None:
    store, gate = InMemoryStore(), Gate()

    class Slow(ScriptedModel):
        async def _play(self, request: ModelRequest) -> Any:
            async with aclosing(super()._play(request)) as events:  # type: ignore[type-var]
                async for event in events:
                    yield event
                    if len(self.requests) == 1:
                        await gate.pass_through()

    agent = native(Slow(["Half an answer", "whole"], chunk=4))
    async with open_runtime(agent, store=store) as runtime:
        first = runtime.submit("one")
        await gate.wait_reached()
        first.abort()
        with pytest.raises(RunAborted):
            await first.wait()
        gate.open()
        await runtime.run("two")
    entries = await history(store, agent)
    assert said(entries) == [("user", "one"), ("assistant", "Half"), ("user", "two"), ("assistant", "whole")]
    assert [entry.private.get("partial") for entry in entries] == [None, True, None, None]


# --- transitions ----------------------------------------------------------------------------------------------------


class Steering(Extension[Any]):
    """Answers `after_step` from a list."""

    name = "steering"

    def __init__(self, *answers: Any, name: str = "steering") -> None:
        self.answers = list(answers)
        self.name = name

    def after_step(self, ctx: Any, question: Any) -> Any:
        return self.answers.pop(0) if self.answers else None


async def test_an_answer_may_be_continued_with_a_users_text() -> None:
    store = InMemoryStore()
    agent = native(["draft", "final"], extensions=[Steering(Continue("shorter"))])
    result = await run(agent, store=store)
    assert (result.text, len(told(result, Answer))) == ("final", 1)
    assert said(await history(store, agent)) == [
        ("user", "hello"),
        ("assistant", "draft"),
        ("user", "shorter"),
        ("assistant", "final"),
    ]


async def test_a_further_step_after_an_answer_leaves_the_word_to_the_model() -> None:
    agent = native(["draft", "final"], extensions=[Steering(NextStep())])
    assert (await run(agent)).text == "final"
    check_requests(requests(agent))
    assert requests(agent)[1].messages[-1] == Message("user", "Go on.")


async def test_complete_beats_all_and_ends_a_round_with_the_text_beside_its_calls() -> None:
    store = InMemoryStore()
    agent = native(
        [tool_calls(("look", {"text": "a"}), text="I looked.")],
        tools=[look],
        extensions=[Steering(Continue("more")), Steering(Complete(), name="other")],
    )
    result = await run(agent, store=store)
    assert (result.status, result.text) == ("completed", "I looked.")
    check_closed(await history(store, agent))


async def test_complete_without_a_text_says_why_there_is_none() -> None:
    result = await run(native([looking()], tools=[look], extensions=[Steering(Complete())]))
    assert (result.text, result.reason) == ("", "completed")


@pytest.mark.parametrize("text", ["  ", None, 5])
async def test_a_continuation_without_a_text_is_the_extensions_error(text: Any) -> None:
    ending = await end(native(["draft"], extensions=[Steering(Continue(text))]))
    assert isinstance(ending.error, GoliathExtensionError)
    assert (ending.error.extension, ending.error.phase, ending.origin) == ("steering", "after_step", "extension")
    lenient = Steering(Continue(text))
    lenient.lenient = True
    result = await run(native(["draft", "final"], extensions=[lenient, Steering(Continue("shorter"), name="next")]))
    assert (result.text, [problem.phase for problem in result.diagnostics]) == ("final", ["after_step"])


async def test_the_last_step_is_told_to_answer_and_offers_no_tools() -> None:
    agent = native([looking(), "so far"], tools=[look], loop=ToolLoop(max_steps=2))
    result = await run(agent)
    assert (result.text, result.reason) == ("so far", None)
    assert "last step" in requests(agent)[1].messages[0].text
    assert requests(agent)[1].tools == ()


async def test_a_run_of_one_step_is_told_that_it_is_the_last() -> None:
    agent = native(["done"], tools=[look], loop=ToolLoop(max_steps=1))
    async with open_runtime(agent) as runtime:
        await runtime.run("go")
    (request,) = requests(agent)
    assert request.tools == ()
    assert "This is the last step" in request.text
    plain = native(["done"], loop=ToolLoop(max_steps=1))
    async with open_runtime(plain) as runtime:
        await runtime.run("go")
    assert "last step" not in requests(plain)[0].text


async def test_a_model_that_never_stops_calling_is_stopped_with_a_text_and_a_closed_history() -> None:
    """S43."""
    store, journal = InMemoryStore(), Journal()
    agent = native([looking()] * 20, tools=[look], loop=ToolLoop(max_steps=8), extensions=[journal])
    result = await run(agent, store=store)
    assert len(requests(agent)) == 8
    assert (result.status, result.reason, result.best_effort) == ("completed", "too-many-steps", True)
    assert result.text == "I could not finish this within the steps that one run may take."
    assert journal.heard("on_finish") == [("hello", "completed")]
    entries = await history(store, agent)
    check_closed(entries)
    assert [step.status for step in result.steps] == ["executed"] * 7 + ["failed", "executed"]
    assert entries[-2].message.text == "Not executed: the run had no steps left."


# --- verdicts -------------------------------------------------------------------------------------------------------


async def test_a_respond_before_the_run_is_transformed_answered_and_stored() -> None:
    class Guard(Extension[Any]):
        name = "guard"

        def before_run(self, ctx: Any, question: Any) -> Any:
            return Respond("not today", "policy")

        async def transform_stream(self, ctx: Any, events: Any, control: Any) -> Any:
            import attrs

            async for event in events:
                yield attrs.evolve(event, text=event.text.upper()) if hasattr(event, "text") else event

        def after_answer(self, ctx: Any, question: Any) -> Any:
            return question.text + "!"

    store = InMemoryStore()
    agent = native([], extensions=[Guard()])
    result = await run(agent, store=store)
    assert result.text == "NOT TODAY!"
    assert result.responded is not None
    assert (result.responded.extension, result.responded.phase) == ("guard", "before_run")
    assert said(await history(store, agent)) == [("user", "hello"), ("assistant", "NOT TODAY!")]


async def test_a_stop_stores_nothing_but_the_ask_and_withdraws_what_was_shown() -> None:
    class Stopper(Extension[Any]):
        name = "stopper"

        def after_plan(self, ctx: Any, question: Any) -> Any:
            return Stop("no", "policy")

    store = InMemoryStore()
    agent = native(["something bad"], extensions=[Stopper()])
    async with open_runtime(agent, store=store) as runtime:
        envelope = runtime.submit("hello")
        events = check_events([event async for event in envelope.events()])
        result = await envelope.wait()
    assert (result.status, result.text) == ("stopped", "no")
    assert [event.text for event in events if event.kind == "retraction"] == ["no"]  # type: ignore[attr-defined]
    assert said(await history(store, agent)) == [("user", "hello")]


async def test_a_stop_before_a_tool_closes_every_call() -> None:
    class Stopper(Extension[Any]):
        name = "stopper"

        def before_tool(self, ctx: Any, question: Any) -> Any:
            return Stop("no", "policy") if question.input["text"] == "b" else None

    store = InMemoryStore()
    agent = native([tool_calls(("look", {"text": "a"}), ("look", {"text": "b"}))], tools=[look], extensions=[Stopper()])
    result = await run(agent, store=store)
    assert (result.status, result.steps) == ("stopped", ())
    entries = await history(store, agent)
    check_closed(entries)
    assert [text for role, text in said(entries) if role == "tool"] == ["Not executed: the run ended first."] * 2


async def test_a_denial_of_the_whole_batch_starts_no_tool() -> None:
    class Denier(Extension[Any]):
        name = "denier"

        def before_tool(self, ctx: Any, question: Any) -> Any:
            return Deny("not b", whole_batch=True) if question.input["text"] == "b" else None

    calls = [("look", {"text": text}) for text in "abc"]
    result = await run(native([tool_calls(*calls), "done"], tools=[look], extensions=[Denier()]))
    assert [(step.status, step.skip_reason) for step in result.steps[:3]] == [
        ("skipped", "batch"),
        ("skipped", "policy"),
        ("skipped", "batch"),
    ]
    assert [event.status for event in told(result, ToolFinished)] == ["skipped"] * 3


# --- the store ------------------------------------------------------------------------------------------------------


async def test_a_failing_save_keeps_the_answer_and_a_failing_ask_fails_the_run() -> None:
    store = FailingStore(InMemoryStore(), {"commit": [None, OSError("full")]})
    result = await run(native(["done"]), store=store)
    assert result.text == "done"
    assert [event.error for event in result.trace if event.kind == "memory-error"] == ["OSError: full"]

    error = OSError("full")
    ending = await end(native(["done"]), store=FailingStore(InMemoryStore(), {"commit": error}))
    assert (ending.status, ending.error, ending.origin) == ("error", error, "memory")


async def test_no_tool_starts_before_its_call_is_stored() -> None:
    store, seen = InMemoryStore(), []

    @tool
    async def peek(ctx: ToolContext[Any]) -> str:
        """Look at the store."""
        seen.extend(said(await history(store, agent)))
        return "ok"

    agent: Agent[Any] = native([tool_calls(("peek", {})), "done"], tools=[peek])
    await run(agent, store=store)
    assert seen == [("user", "hello"), ("assistant", "")]
