"""Catalogue of the planned loop's behaviour: lifecycle extensions (EXT) and their context (CTX).

Where a rule of ours overrules a line of the catalogue, the test holds our rule and its comment names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import attrs
import msgspec
import pytest
import trio

from goliath_actors import (
    Agent,
    Conductor,
    Deny,
    Extension,
    Memory,
    Skip,
    ToolContext,
    open_runtime,
    tool,
)
from goliath_actors._text import estimate
from goliath_actors.errors import ConfigError, GoliathBudgetError, GoliathExtensionError, ModelError, Refused
from goliath_actors.events import Answer, Escalate, MemoryError, PlanMade
from goliath_actors.hooks import PlanPatch, RunPatch
from goliath_actors.stores import InMemoryStore
from goliath_actors.testing import FailingStore, Gate, Journal, ScriptedModel, check_events
from goliath_actors.values import Exchange, FallbackRequest, Plan

from .planned import ANSWER, end, kinds, memory_of, planned, prompt, requests, run, stored, system, told, use


class Cloud:
    """A fallback that counts."""

    def __init__(self, reply: str | Exception = "cloud") -> None:
        self.reply = reply
        self.requests: list[FallbackRequest] = []

    async def __call__(self, request: FallbackRequest) -> str:
        self.requests.append(request)
        await trio.lowlevel.checkpoint()
        if isinstance(self.reply, Exception):
            raise self.reply
        return self.reply


@tool
async def read() -> str:
    """Read the list."""
    return "milk"


# --- EXT ------------------------------------------------------------------------------------------------------------


class _Patching(Extension[Any]):
    def __init__(self, number: int, calls: list[str]) -> None:
        self.name = f"e{number}"
        self.number = number
        self.calls = calls


async def test_ext_01_hooks_run_in_registration_order_and_one_text_is_told_everywhere() -> None:
    calls: list[str] = []

    class First(_Patching):
        async def before_run(self, ctx: Any, question: Any) -> RunPatch:
            await trio.lowlevel.checkpoint()
            calls.append("start1")
            return RunPatch(ask="changed ask", instructions="Speak plainly.", facts={"zone": "east"})

        async def after_answer(self, ctx: Any, question: Any) -> str:
            calls.append("answer1")
            return question.text + " one"

    class Second(_Patching):
        def before_run(self, ctx: Any, question: Any) -> None:
            calls.append("start2")
            assert question.ask == "changed ask"
            assert question.facts == {"zone": "east"}

        def after_answer(self, ctx: Any, question: Any) -> str:
            calls.append("answer2")
            return question.text + " two"

    store = InMemoryStore()
    agent = planned([ANSWER, "done"], tools=[read], extensions=[First(1, calls), Second(2, calls)])
    result = await run(agent, store=store)
    assert calls == ["start1", "start2", "answer1", "answer2"]
    assert result.text == "done one two"
    assert [step.text for step in result.steps] == ["done one two"]
    assert [event.text for event in told(result, Answer)] == ["done one two"]
    saved = (await memory_of(store, agent)).recent
    assert [(exchange.ask, exchange.answer) for exchange in saved] == [("changed ask", "done one two")]
    assert "zone: east" in prompt(agent, 0)
    assert system(requests(agent)[0]).startswith("Speak plainly.")


async def test_ext_02_state_is_private_to_a_run_and_default_runs_take_turns() -> None:
    states: list[dict[str, Any]] = []
    ids: list[str] = []
    active = 0
    most = 0

    class Secret(Extension[str]):
        name = "secret"

        async def before_run(self, ctx: Any, question: Any) -> None:
            nonlocal active, most
            active += 1
            most = max(most, active)
            assert ctx.state == {}
            states.append(ctx.state)
            ids.append(ctx.run_id)
            ctx.state["secret"] = ctx.context
            await trio.lowlevel.checkpoint()

        def after_answer(self, ctx: Any, question: Any) -> None:
            assert ctx.state["secret"] == ctx.context

        def on_finish(self, ctx: Any, question: Any) -> None:
            nonlocal active
            active -= 1

    agent = planned(["one", "two"], extensions=[Secret()])
    async with open_runtime(agent) as runtime:
        first = runtime.submit("a", context="alpha-secret")
        second = runtime.submit("b", context="beta-secret")
        results = [await first.wait(), await second.wait()]
    assert most == 1
    assert len(set(ids)) == 2
    assert states[0] is not states[1]
    for request in requests(agent):
        assert "secret" not in request.text
    for result in results:
        assert "secret" not in repr(result)


async def test_ext_03_an_edited_recall_is_a_view_of_this_run() -> None:
    class View(Extension[Any]):
        name = "view"

        def after_recall(self, ctx: Any, question: Any) -> Memory:
            return attrs.evolve(question.memory, summary="transient")

    store = await stored(summary="original")
    agent = planned(["done"], extensions=[View()])
    await run(agent, store=store)
    assert "transient" in prompt(agent, 0)
    assert (await memory_of(store, agent)).summary == "original"


async def test_ext_04_a_filtered_tool_cannot_be_had_back_in_the_same_attempt() -> None:
    seen: list[tuple[int, str]] = []

    class Filter(Extension[Any]):
        name = "filter"

        def before_plan(self, ctx: Any, question: Any) -> PlanPatch:
            return PlanPatch(tools=[])

    class Restore(Extension[Any]):
        name = "restore"

        def before_plan(self, ctx: Any, question: Any) -> PlanPatch:
            return PlanPatch(tools=["read"])

        def after_plan(self, ctx: Any, question: Any) -> Plan:
            seen.append((len(question.tools), question.plan.kind))
            return Plan("tool", "read it", "read")

    agent = planned([], tools=[read], extensions=[Filter(), Restore()])
    ending = await end(agent)
    assert seen == [(0, "answer")]
    assert isinstance(ending.error, GoliathExtensionError)
    assert (ending.error.extension, ending.error.phase, ending.origin) == ("restore", "after_plan", "extension")
    assert requests(agent) == []


async def test_ext_05_a_second_attempt_asks_before_plan_again() -> None:
    attempts: list[int] = []

    class Context(Extension[Any]):
        name = "context"

        def before_plan(self, ctx: Any, question: Any) -> PlanPatch:
            attempts.append(question.attempt)
            return PlanPatch(context_text="The house is blue.")

    agent = planned(["no plan", ANSWER, "done"], tools=[read], extensions=[Context()])
    result = await run(agent)
    assert attempts == [0, 1]
    assert "The house is blue." in system(requests(agent)[0])
    assert "The house is blue." not in prompt(agent, 2)
    assert result.text == "done"


class _Rewrite(Extension[Any]):
    name = "rewrite"

    def __init__(self, value: Any) -> None:
        self.value = value

    def before_tool(self, ctx: Any, question: Any) -> dict[str, Any]:
        return {**question.input, "value": self.value}


def _setter(done: list[tuple[int, Any]]) -> Any:
    @tool(writes=True)
    async def put(ctx: ToolContext[Any], value: int) -> str:
        """Set the value."""
        done.append((value, ctx.context))
        return "ok"

    return put


async def test_ext_06_what_is_confirmed_is_what_is_executed() -> None:
    done: list[tuple[int, Any]] = []
    asked: list[Any] = []

    def confirm(request: Any) -> bool:
        asked.append(dict(request.input))
        request.input["value"] = 99
        return True

    script = [use("put"), {"value": 1}, ANSWER, "done"]
    agent = planned(script, tools=[_setter(done)], extensions=[_Rewrite(2)], confirm=confirm)
    result = await run(agent, context="alice")
    assert asked == [{"value": 2}]
    assert done == [(2, "alice")]
    assert result.steps[0].input == {"value": 2}


async def test_ext_07_a_replacement_that_does_not_fit_the_schema_is_the_extensions_error() -> None:
    done: list[tuple[int, Any]] = []
    asked: list[Any] = []
    cloud = Cloud()
    agent = planned(
        [use("put"), {"value": 1}],
        tools=[_setter(done)],
        extensions=[_Rewrite("many")],
        confirm=lambda request: asked.append(request) or True,
        fallback=cloud,
    )
    store = InMemoryStore()
    ending = await end(agent, store=store)
    assert isinstance(ending.error, GoliathExtensionError)
    assert (ending.error.extension, ending.error.phase) == ("rewrite", "before_tool")
    assert (done, asked, cloud.requests) == ([], [], [])
    assert (await store.load("agent")).failures == 0


async def test_ext_11_after_tool_sees_raw_output_that_nothing_else_shows() -> None:
    outputs: list[Any] = []

    @tool
    async def look() -> dict[str, Any]:
        """Look it up."""
        return {"secret": "raw-secret", "value": 7}

    class Redact(Extension[Any]):
        name = "redact"

        def after_tool(self, ctx: Any, question: Any) -> str:
            outputs.append(question.outcome.output)
            return "v" * 1400

    agent = planned([use("look"), ANSWER, "done"], tools=[look], extensions=[Redact()])
    result = await run(agent)
    assert outputs == [{"secret": "raw-secret", "value": 7}]
    assert result.steps[0].result is not None
    assert len(result.steps[0].result) == 600
    assert "raw-secret" not in repr(result.trace)
    assert all("raw-secret" not in request.text for request in requests(agent))


async def test_ext_13_a_redacted_fallback_request_leaves_the_local_record_alone() -> None:
    class Redact(Extension[Any]):
        name = "redact"

        def before_fallback(self, ctx: Any, question: Any) -> FallbackRequest:
            return attrs.evolve(question.request, ask="", summary="", recent=(), steps=())

        def after_answer(self, ctx: Any, question: Any) -> str:
            return question.text + "!"

    cloud = Cloud()
    store = await stored(summary="local secret")
    agent = planned([], loop=Conductor(max_steps=0), extensions=[Redact()], fallback=cloud)
    result = await run(agent, "my ask", store=store)
    assert cloud.requests == [FallbackRequest("", "", (), (), "too-many-steps", cloud.requests[0].error)]
    assert (result.text, result.handled_by, result.reason) == ("cloud!", "cloud", "too-many-steps")
    saved = await memory_of(store, agent)
    assert saved.summary == "local secret"
    assert [(exchange.ask, exchange.answer) for exchange in saved.recent] == [("my ask", "cloud!")]


async def test_ext_17_what_before_remember_answers_is_capped() -> None:
    class Grow(Extension[Any]):
        name = "grow"

        def before_remember(self, ctx: Any, question: Any) -> Memory:
            return Memory("s" * 10_000, [question.exchange] * 8)

    store = InMemoryStore()
    agent = planned(["done"], extensions=[Grow()])
    await run(agent, store=store)
    saved = await memory_of(store, agent)
    assert estimate(saved.summary) <= 512
    assert saved.summary.startswith("sss")
    assert len(saved.recent) == 3


async def test_ext_18_a_skip_ends_before_remember_and_nothing_is_saved() -> None:
    class First(Extension[Any]):
        name = "first"

        def before_remember(self, ctx: Any, question: Any) -> Skip:
            return Skip()

    second = Journal("second")
    store = InMemoryStore()
    agent = planned(["done"], extensions=[First(), second])
    result = await run(agent, store=store)
    assert second.heard("before_remember") == []
    assert "remember" not in kinds(result)
    assert (await store.load("agent")).version == 0


async def test_ext_19_oversized_instructions_are_a_budget_error_where_there_are_extensions() -> None:
    class Long(Extension[Any]):
        name = "long"

        def before_run(self, ctx: Any, question: Any) -> RunPatch:
            return RunPatch(instructions="x" * 20_000)

    cloud = Cloud()
    agent = planned([], extensions=[Long()], fallback=cloud)
    ending = await end(agent)
    assert isinstance(ending.error, GoliathBudgetError)
    assert (ending.error.phase, ending.error.limit, ending.origin) == ("answer", 2867, "budget")
    assert requests(agent) == []
    assert cloud.requests == []


async def test_ext_20_a_blank_answer_of_a_hook_is_its_error() -> None:
    class Blank(Extension[Any]):
        name = "blank"

        def after_answer(self, ctx: Any, question: Any) -> str:
            return " "

    cloud = Cloud()
    agent = planned(["done"], extensions=[Blank()], fallback=cloud)
    ending = await end(agent)
    assert isinstance(ending.error, GoliathExtensionError)
    assert ending.error.phase == "after_answer"
    assert len(requests(agent)) == 1
    assert cloud.requests == []


async def test_ext_22_a_run_aborted_before_it_began_is_heard_by_its_observers_only() -> None:
    journal = Journal()
    gate = Gate()
    agent = planned([gate.then("first")], extensions=[journal])
    async with open_runtime(agent) as runtime:
        first = runtime.submit("first")
        second = runtime.submit("second")
        await gate.wait_reached()
        second.abort()
        gate.open()
        await first.wait()
        await second.wait_ended()
    assert second.outcome is not None
    assert second.outcome.status == "aborted"
    assert [row for row, ctx, _ in journal.questions if ctx.ask == "second"] == ["on_error", "on_finish"]


class _BadFinish(Extension[Any]):
    name = "bad"

    def on_finish(self, ctx: Any, question: Any) -> None:
        raise RuntimeError("finish failed")


async def test_ext_23_a_failing_observer_is_a_diagnostic_that_the_next_one_sees() -> None:
    seen: list[list[tuple[str, str]]] = []

    class Second(Extension[Any]):
        name = "second"

        def on_finish(self, ctx: Any, question: Any) -> None:
            seen.append([(d.extension, d.phase) for d in question.diagnostics])

    result = await run(planned(["done"], extensions=[_BadFinish(), Second()]))
    assert seen == [[("bad", "on_finish")]]
    assert result.text == "done"
    assert [(d.extension, d.phase) for d in result.diagnostics] == [("bad", "on_finish")]


async def test_ext_25a_a_failing_save_keeps_the_answer() -> None:
    cloud = Cloud()
    journal = Journal()
    store = FailingStore(InMemoryStore(), {"commit": OSError("disk full")})
    agent = planned(["done"], extensions=[_BadFinish(), journal], fallback=cloud)
    result = await run(agent, store=store)
    assert (result.text, result.status) == ("done", "completed")
    assert journal.heard("on_error") == []
    assert [d.phase for d in result.diagnostics] == ["on_finish"]
    assert [event.error for event in told(result, MemoryError)] == ["OSError: disk full"]
    assert cloud.requests == []


async def test_ext_25b_a_failing_formatter_keeps_the_output() -> None:
    def broken(output: Any) -> str:
        raise ValueError("no words")

    @tool(to_model_output=broken)
    async def look() -> dict[str, int]:
        """Look it up."""
        return {"value": 7}

    result = await run(planned([use("look"), ANSWER, "done"], tools=[look]))
    step = result.steps[0]
    assert (step.status, step.output) == ("executed", {"value": 7})
    assert step.result == "Completed. The output could not be put into words."
    assert result.text == "done"


async def test_ext_25c_what_confirm_raises_is_the_runs_error() -> None:
    error = LookupError("who?")

    def confirm(request: Any) -> bool:
        raise error

    done: list[tuple[int, Any]] = []
    cloud = Cloud()
    agent = planned([use("put"), {"value": 1}], tools=[_setter(done)], confirm=confirm, fallback=cloud)
    ending = await end(agent)
    assert ending.error is error
    assert (ending.origin, cloud.requests, done) == ("confirm", [], [])


async def test_ext_25d_what_an_event_callback_raises_is_the_runs_error() -> None:
    error = LookupError("no room")

    def on_event(event: Any) -> None:
        if isinstance(event, PlanMade):
            raise error

    cloud = Cloud()
    ending = await end(planned([ANSWER], tools=[read], fallback=cloud), on_event=on_event)
    assert ending.error is error
    assert (ending.origin, cloud.requests) == ("event", [])


async def test_ext_25e_what_the_fallback_raises_is_the_runs_error() -> None:
    cloud = Cloud(ConnectionError("offline"))
    store = InMemoryStore()
    agent = planned([], loop=Conductor(max_steps=0), fallback=cloud)
    ending = await end(agent, store=store)
    assert ending.error is cloud.reply
    assert (ending.origin, len(cloud.requests)) == ("fallback", 1)
    assert (await store.load("agent")).failures == 0


async def test_ext_26_a_refusal_stays_on_the_device_and_asks_no_answer_hook() -> None:
    cloud = Cloud()
    journal = Journal()
    agent = planned([Refused("safety")], extensions=[journal], fallback=cloud)
    result = await run(agent)
    assert (result.text, result.reason, result.handled_by) == ("", "guardrail", "device")
    assert journal.heard("after_answer") == []
    assert cloud.requests == []
    assert journal.heard("on_finish") == [("hello", "completed")]


async def test_ext_27_a_best_effort_answer_asks_the_answer_hook() -> None:
    journal = Journal()
    result = await run(planned(["so far"], loop=Conductor(max_steps=0), extensions=[journal]))
    assert (result.text, result.best_effort, result.reason) == ("so far", True, "too-many-steps")
    assert journal.heard("after_answer") == [("hello", "so far")]
    assert journal.heard("on_finish") == [("hello", "completed")]


def test_ext_28_extension_names_are_unique() -> None:
    with pytest.raises(ConfigError, match="unique"):
        planned([], extensions=[Journal("a"), Journal("a")])


async def test_ext_30_what_a_hook_was_shown_can_be_returned_changed() -> None:
    class Everywhere(Extension[Any]):
        name = "everywhere"

        def after_recall(self, ctx: Any, question: Any) -> Memory:
            return attrs.evolve(question.memory, summary=question.memory.summary + "!")

        def before_fallback(self, ctx: Any, question: Any) -> FallbackRequest:
            return attrs.evolve(question.request, ask="redacted")

        def before_remember(self, ctx: Any, question: Any) -> Memory:
            return attrs.evolve(question.memory, summary="kept")

    store = await stored(summary="before")

    def echo(request: FallbackRequest) -> str:
        return f"{request.ask} {request.summary}"

    agent = planned([], loop=Conductor(max_steps=0), extensions=[Everywhere()], fallback=echo)
    result = await run(agent, store=store)
    assert result.text == "redacted before!"
    assert (await memory_of(store, agent)).summary == "kept"


async def test_ext_34a_a_missing_value_bypasses_before_tool() -> None:
    done: list[tuple[int, Any]] = []
    journal = Journal()
    script = [use("put"), {"missing": "the value"}, ANSWER, "which value?"]
    result = await run(planned(script, tools=[_setter(done)], extensions=[journal]))
    assert journal.heard("before_tool") == []
    assert (result.steps[0].status, result.steps[0].skip_reason) == ("skipped", "missing")
    assert done == []


async def test_ext_34b_a_refused_confirmation_comes_after_before_tool() -> None:
    done: list[tuple[int, Any]] = []
    journal = Journal()
    agent = planned(
        [use("put"), {"value": 1}, ANSWER, "fine"],
        tools=[_setter(done)],
        extensions=[journal],
        confirm=lambda request: False,
    )
    result = await run(agent)
    assert len(journal.heard("before_tool")) == 1
    assert (result.steps[0].status, result.steps[0].skip_reason) == ("skipped", "confirmation")
    assert done == []


async def test_ext_35a_a_failing_load_fails_the_run() -> None:
    error = OSError("no disk")
    journal = Journal()
    agent = planned([], extensions=[journal])
    ending = await end(agent, store=FailingStore(InMemoryStore(), {"load": error}))
    assert ending.error is error
    assert ending.origin == "memory"
    assert journal.heard("on_finish") == [("hello", "error")]
    assert requests(agent) == []


async def test_ext_35b_failing_facts_fail_the_run() -> None:
    error = OSError("no facts")

    def facts() -> Mapping[str, str]:
        raise error

    journal = Journal()
    agent = planned([], extensions=[journal], facts=facts)
    ending = await end(agent)
    assert ending.error is error
    assert ending.origin == "config"
    assert journal.heard("on_finish") == [("hello", "error")]
    assert requests(agent) == []


async def test_ext_37_a_provider_error_is_never_an_abort_whatever_its_name() -> None:
    # Invariant 6 overrules: "aborted" is proven by the run's own scope, so an error that is only called so is a
    # provider failure (C6a).
    class AbortError(Exception):
        pass

    cloud = Cloud()
    result = await run(planned([AbortError("aborted")], fallback=cloud))
    assert (result.status, result.text, result.reason) == ("completed", "cloud", "model-error")


@pytest.mark.parametrize("steps", [float("nan"), -1, 1.5, "3", True])
def test_ext_38_max_steps_must_be_an_integer_from_0(steps: Any) -> None:
    with pytest.raises(ConfigError, match="max_steps"):
        Conductor(max_steps=steps)


def test_ext_38_an_infinite_window_is_refused() -> None:
    with pytest.raises(ConfigError, match="window"):
        Conductor(window=float("inf"))  # type: ignore[arg-type]  # the mistake under test


def test_ext_39_an_agent_is_typed_by_its_context() -> None:
    # What is checked statically stands in tests/typing; here only that the parameter is accepted at run time.
    class Named(Extension[str]):
        name = "named"

    agent: Agent[str] = Agent[str](model=ScriptedModel([]), extensions=[Named()])
    assert "extensions=['named']" in repr(agent)


# --- CTX ------------------------------------------------------------------------------------------------------------


async def test_ctx_01_what_is_counted_holds_the_hooks_text_and_the_schema() -> None:
    counted: list[str] = []
    order: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return 5000 if "blue door" in text else 10

    class Context(Extension[Any]):
        name = "context"

        def before_plan(self, ctx: Any, question: Any) -> PlanPatch:
            return PlanPatch(context_text="Look for the blue door.")

        def on_error(self, ctx: Any, question: Any) -> None:
            order.append(question.origin)

        def on_finish(self, ctx: Any, question: Any) -> None:
            order.append(question.outcome.status)

    cloud = Cloud()
    agent = planned([], tools=[read], extensions=[Context()], fallback=cloud, token_counter=count)
    ending = await end(agent)
    assert isinstance(ending.error, GoliathBudgetError)
    prompts = [text for text in counted if "blue door" in text]
    assert prompts
    assert all('"kind"' in text for text in prompts)
    assert requests(agent) == []
    assert cloud.requests == []
    assert order == ["budget", "error"]


async def test_ctx_02_raw_output_is_seen_by_hooks_and_stays_out_of_prompts_memory_and_cloud() -> None:
    # C2 overrules: the catalogue keeps raw outputs in memory and sends them to the fallback.
    raw = {"id": "private-id", "payload": "p" * 4000}

    @tool(to_model_output=lambda output: "reference A")
    async def look() -> dict[str, str]:
        """Look it up."""
        return raw

    class Copy(Extension[Any]):
        name = "copy"
        remembered = 0

        def after_tool(self, ctx: Any, question: Any) -> str:
            assert question.outcome.output == raw
            return "t" * 8000

        def before_remember(self, ctx: Any, question: Any) -> Memory:
            Copy.remembered += 1
            return question.memory  # type: ignore[no-any-return]  # the question is untyped here

    cloud = Cloud()
    store = InMemoryStore()
    agent = planned(
        [use("look"), ANSWER, "done", ModelError("down")], tools=[look], extensions=[Copy()], fallback=cloud
    )
    async with open_runtime(agent, store=store) as runtime:
        first = await runtime.run("one")
        second = await runtime.run("two")
    check_events(first.trace)
    check_events(second.trace)
    assert first.steps[0].result is not None
    assert len(first.steps[0].result) == 600
    assert first.steps[0].output == raw
    assert cloud.requests[0].recent[0].steps[0].output is None
    assert Copy.remembered == 2
    memory = await memory_of(store, agent)
    assert [exchange.answer for exchange in memory.recent] == ["done", "cloud"]
    assert memory.recent[0].steps[0].output is None
    for request in requests(agent):
        assert "private-id" not in request.text
        assert "pppp" not in request.text


# --- rules of ours on the same ground -------------------------------------------------------------------------------


async def test_h8_a_denial_keeps_rewrites_made_before_it_and_still_passes_after_tool() -> None:
    done: list[tuple[int, Any]] = []
    heard: list[tuple[str, str | None]] = []

    class Refuse(Extension[Any]):
        name = "refuse"

        def before_tool(self, ctx: Any, question: Any) -> Deny:
            return Deny("This account is read-only.")

        def after_tool(self, ctx: Any, question: Any) -> None:
            heard.append((question.outcome.status, question.outcome.extension))

    script = [use("put"), {"value": 1}, ANSWER, "no"]
    result = await run(planned(script, tools=[_setter(done)], extensions=[_Rewrite(2), Refuse()]))
    step = result.steps[0]
    assert (step.status, step.skip_reason, step.extension) == ("skipped", "policy", "refuse")
    assert step.input == {"value": 2}
    assert step.result is not None
    assert "This account is read-only." in step.result
    assert heard == [("skipped", "refuse")]
    assert done == []


async def test_h6_input_is_shown_as_plain_data_and_typed_at_the_call() -> None:
    got: list[Any] = []

    class Size(msgspec.Struct):
        width: int

    @tool
    async def fit(size: Size, note: Annotated[str, msgspec.Meta(description="a note")] = "none") -> str:
        """Fit it."""
        got.append((size, note))
        return "ok"

    shown: list[Any] = []

    class Look(Extension[Any]):
        name = "look"

        def before_tool(self, ctx: Any, question: Any) -> None:
            shown.append(question.input)

    script = [use("fit"), {"size": {"width": "3"}}, ANSWER, "done"]
    await run(planned(script, tools=[fit], extensions=[Look()]))
    assert shown == [{"size": {"width": 3}}]
    assert got == [(Size(3), "none")]


async def test_an_escalation_without_a_fallback_says_why_in_the_result() -> None:
    result = await run(planned([ModelError("broken")]))
    assert (result.text, result.reason, result.best_effort) == ("", "model-error", False)
    assert [event.error for event in told(result, Escalate)] == ["ModelError: broken"]
    exchange_kinds = [kind for kind in kinds(result) if kind == "remember"]
    assert exchange_kinds == []


async def test_memory_of_an_earlier_exchange_is_shown_to_the_next_run() -> None:
    store = await stored(Exchange("What is due?", "The rent.", 1.0))
    agent = planned(["done"])
    await run(agent, store=store)
    assert "What is due?" in prompt(agent, 0)
    assert "The rent." in prompt(agent, 0)
