"""The hooks of the native loop: context, plans, streams and what is stored."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from goliath_actors import Extension, Respond, Retry, RunAborted, Stop, ToolLoop, open_runtime, tool
from goliath_actors.abc import ModelText
from goliath_actors.errors import GoliathExtensionError
from goliath_actors.events import HookDecision
from goliath_actors.hooks import PlanPatch, RunPatch
from goliath_actors.stores import InMemoryStore
from goliath_actors.testing import Journal, ScriptedModel, check_events, tool_calls
from goliath_actors.values import Message, Plan, ToolCall

from .native import check_closed, history, native, said
from .planned import end, requests, run, told


@tool
async def look(text: str) -> str:
    """Look something up."""
    await trio.lowlevel.checkpoint()
    return f"saw {text}"


class Hooks(Extension[Any]):
    """An extension whose hooks are given as functions."""

    def __init__(self, name: str = "hooks", **hooks: Any) -> None:
        self.name = name
        for row, function in hooks.items():
            setattr(self, row, function)


class Resolver(Extension[Any]):
    """Asks `resolve_context` through a function of its own."""

    def __init__(self, name: str, compose: Any) -> None:
        self.name = name
        self.compose = compose

    async def resolve_context(self, ctx: Any, question: Any, call_next: Any) -> Any:
        return await self.compose(question, call_next)


class AfterPlans(Extension[Any]):
    """Answers `after_plan` from a list."""

    name = "planner"

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.seen: list[Plan] = []

    def after_plan(self, ctx: Any, question: Any) -> Any:
        self.seen.append(question.plan)
        answer = self.answers.pop(0) if self.answers else None
        return answer(question) if callable(answer) else answer


class Appends(Extension[Any]):
    """Answers `before_append` through a function."""

    name = "appends"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def before_append(self, ctx: Any, question: Any) -> Any:
        return self.answer(question.message)


# --- resolve_context ------------------------------------------------------------------------------------------------


async def test_context_layers_nest_and_an_inner_one_may_be_given_another_base() -> None:
    log: list[Any] = []

    async def outer(question: Any, call_next: Any) -> Any:
        assert question.messages is None
        messages = await call_next([*question.history, Message("user", "(base)")])
        assert await call_next() == messages
        log.append(("outer", [message.text for message in question.messages]))
        return [*messages, Message("user", "(outer)")]

    async def inner(question: Any, call_next: Any) -> Any:
        log.append("inner")
        return [*await call_next(), Message("user", "(inner)")]

    agent = native(["done"], extensions=[Resolver("outer", outer), Resolver("inner", inner)])
    await run(agent, "hi")
    assert requests(agent)[0].messages[1].text == "hi\n\n(base)\n\n(inner)\n\n(outer)"
    assert log == ["inner", ("outer", ["hi", "(base)"])]


async def test_a_context_is_composed_once_a_step_and_never_stored() -> None:
    calls: list[int] = []

    async def compose(question: Any, call_next: Any) -> Any:
        calls.append(len(question.history))
        return (await call_next())[-1:]

    store = InMemoryStore()
    agent = native([tool_calls(("look", {"text": "a"})), "done"], tools=[look], extensions=[Resolver("r", compose)])
    await run(agent, store=store)
    assert calls == [1, 3]
    assert len(await history(store, agent)) == 4
    # A result without its call is none, and a request of instructions alone is none either.
    assert [(one.role, one.text) for one in requests(agent)[1].messages][1:] == [("user", "Go on.")]


async def test_a_run_that_is_ended_while_its_context_is_composed_says_so(autojump_clock: MockClock) -> None:
    async def compose(question: Any, call_next: Any) -> Any:
        if len(question.history) > 1:
            await trio.sleep(60)
        return await call_next()

    agent = native([tool_calls(("look", {"text": "a"}))], tools=[look], extensions=[Resolver("r", compose)])
    ending = await end(agent, timeout=5)
    assert isinstance(ending.error, RunAborted)
    assert ending.error.phase == "resolve_context"


@pytest.mark.parametrize("through", [True, False])
async def test_a_context_may_be_empty_where_messages_of_the_run_come_behind_it(through: bool) -> None:
    async def compose(question: Any, call_next: Any) -> Any:
        return await call_next([]) if through else []

    def overlay(ctx: Any, question: Any) -> RunPatch:
        return RunPatch(messages=[Message("user", "(for this run)")])

    resolver = Resolver("r", compose)
    agent = native(["done"], extensions=[Hooks(before_run=overlay), resolver])
    assert (await run(agent, "hi")).text == "done"
    assert [message.text for message in requests(agent)[0].messages[1:]] == ["(for this run)"]
    ending = await end(native(["never"], extensions=[resolver]))
    assert isinstance(ending.error, GoliathExtensionError)
    assert str(ending.error) == "extension 'r' in resolve_context: the list of messages is empty"


@pytest.mark.parametrize("base", ["text", [], ["x"], 3])
async def test_a_base_that_is_no_list_of_messages_is_the_extensions_error(base: Any) -> None:
    async def compose(question: Any, call_next: Any) -> Any:
        return await call_next(base)

    ending = await end(native(["never"], extensions=[Resolver("r", compose)]))
    assert isinstance(ending.error, GoliathExtensionError)
    assert (ending.error.extension, ending.error.phase) == ("r", "resolve_context")


# --- after_plan -----------------------------------------------------------------------------------------------------


async def test_a_rejected_reply_is_withdrawn_kept_out_of_history_and_asked_for_again() -> None:
    store = InMemoryStore()
    agent = native(["rude", "kind"], extensions=[AfterPlans(Retry("be kind"))])
    async with open_runtime(agent, store=store) as runtime:
        envelope = runtime.submit("hi")
        events = check_events([event async for event in envelope.events()])
        assert (await envelope.wait()).text == "kind"
    assert [event.kind for event in events if event.kind in ("text-delta", "retraction")] == [
        "text-delta",
        "retraction",
        "text-delta",
    ]
    assert said(await history(store, agent)) == [("user", "hi"), ("assistant", "kind")]
    assert requests(agent)[1].messages[-1].text == "hi\n\nYour last reply was rejected: be kind"


async def test_rejections_have_a_budget_in_each_step_and_then_fail_the_run() -> None:
    store = InMemoryStore()
    planner = AfterPlans(Retry("no"), None, Retry("no"), Retry("no"))
    agent = native(
        ["x", tool_calls(("look", {"text": "a"})), "y", "z"],
        tools=[look],
        extensions=[planner],
        loop=ToolLoop(hook_retries=1),
    )
    ending = await end(agent, store=store)
    assert isinstance(ending.error, GoliathExtensionError)
    assert (ending.error.extension, ending.error.phase, ending.origin) == ("planner", "after_plan", "extension")
    check_closed(await history(store, agent))


async def test_a_plan_may_be_replaced_before_anything_is_stored_or_gated() -> None:
    store = InMemoryStore()

    def other(question: Any) -> Plan:
        return attrs.evolve(question.plan, calls=[ToolCall("", "look", '{"text": "b"}')], text="changed")

    planner = AfterPlans(other)
    agent = native([tool_calls(("look", {"text": "a"})), "done"], tools=[look], extensions=[planner])
    result = await run(agent, store=store)
    assert [step.result for step in result.steps[:1]] == ["saw b"]
    entries = await history(store, agent)
    check_closed(entries)
    assert entries[1].message.text == "changed"


async def test_a_plan_may_turn_calls_into_an_answer() -> None:
    agent = native(
        [tool_calls(("look", {"text": "a"}))], tools=[look], extensions=[AfterPlans(Plan("answer", text="no need"))]
    )
    result = await run(agent)
    assert (result.text, len(result.steps)) == ("no need", 1)


@pytest.mark.parametrize(
    "plan",
    [
        Plan("tool", tool="look"),
        Plan("escalate"),
        Plan("answer", text=" "),
        Plan("answer", text="x", calls=[ToolCall("1", "look")]),
        Plan("tools"),
        Plan("tools", calls=[ToolCall("1", "nothing")]),
        Plan("tools", calls=[ToolCall("1", "look", {"text": "a"})]),  # type: ignore[arg-type]  # an easy slip
        Plan("tools", calls=[ToolCall(1, "look")]),  # type: ignore[arg-type]
        Plan("tools", calls=["look"]),  # type: ignore[list-item]
        Plan("dance", text="x"),  # type: ignore[arg-type]
    ],
)
async def test_a_plan_that_is_none_of_this_loop_is_the_extensions_error(plan: Plan) -> None:
    ending = await end(native(["hi"], tools=[look], extensions=[AfterPlans(plan)]))
    assert isinstance(ending.error, GoliathExtensionError)
    assert (ending.error.extension, ending.error.phase) == ("planner", "after_plan")


async def test_what_the_model_made_up_may_stay_in_a_hooks_plan() -> None:
    planner = AfterPlans(lambda question: attrs.evolve(question.plan, text="changed"))
    result = await run(native([tool_calls(("nope", {})), "done"], tools=[look], extensions=[planner]))
    assert (result.text, result.steps[0].status) == ("done", "failed")


async def test_a_respond_in_the_place_of_a_reply_is_stored_as_the_answer() -> None:
    store = InMemoryStore()
    agent = native(["secret"], extensions=[AfterPlans(Respond("I may not say.", "policy", "filtered"))])
    result = await run(agent, store=store)
    assert (result.text, result.status) == ("I may not say.", "completed")
    assert result.responded is not None
    assert (result.responded.phase, result.responded.outcome) == ("after_plan", "filtered")
    assert said(await history(store, agent)) == [("user", "hello"), ("assistant", "I may not say.")]


# --- transform_stream -----------------------------------------------------------------------------------------------


class Upper(Extension[Any]):
    name = "upper"

    async def transform_stream(self, ctx: Any, events: Any, control: Any) -> Any:
        async for event in events:
            yield ModelText(event.text.upper()) if isinstance(event, ModelText) else event


class Watch(Extension[Any]):
    """Ends the first replies through its control once a word is out."""

    name = "watch"

    def __init__(self, word: str, *actions: Any) -> None:
        self.word = word
        self.actions = list(actions)

    async def transform_stream(self, ctx: Any, events: Any, control: Any) -> Any:
        async for event in events:
            if isinstance(event, ModelText) and self.word in event.text and self.actions:
                await self.actions.pop(0)(control)
            yield event


async def test_what_a_transform_lets_through_is_shown_stored_returned_and_sent() -> None:
    store = InMemoryStore()
    agent = native([tool_calls(("look", {"text": "a"}), text="let me"), "done"], tools=[look], extensions=[Upper()])
    result = await run(agent, store=store)
    assert result.text == "DONE"
    assert [text for role, text in said(await history(store, agent)) if role == "assistant"] == ["LET ME", "DONE"]
    assert requests(agent)[1].messages[2].text == "LET ME"


async def test_a_stream_that_is_aborted_is_replaced_retracted_and_stored() -> None:
    async def abort(control: Any) -> None:
        await control.abort("unsafe", replacement="I stop here.")

    store = InMemoryStore()
    agent = native(ScriptedModel(["fine bad"], chunk=5), extensions=[Watch("bad", abort)])
    result = await run(agent, store=store)
    assert result.text == "I stop here."
    assert result.responded is not None
    assert result.responded.phase == "transform_stream"
    assert [event.text for event in result.trace if event.kind == "retraction"] == ["I stop here."]
    assert said(await history(store, agent)) == [("user", "hello"), ("assistant", "I stop here.")]


async def test_a_stream_that_is_aborted_without_a_replacement_ends_empty_and_says_why() -> None:
    async def abort(control: Any) -> None:
        await control.abort("unsafe", "filtered")

    store = InMemoryStore()
    agent = native(["bad"], extensions=[Watch("bad", abort)])
    result = await run(agent, store=store)
    assert (result.text, result.reason) == ("", "filtered")
    assert said(await history(store, agent)) == [("user", "hello")]


async def test_a_stream_that_is_rejected_is_asked_for_again_within_the_budget() -> None:
    async def retry(control: Any) -> None:
        await control.retry("no bad words")

    agent = native(["bad", "good"], extensions=[Watch("bad", retry)])
    result = await run(agent)
    assert result.text == "good"
    assert requests(agent)[1].messages[-1].text.endswith("Your last reply was rejected: no bad words")

    ending = await end(native(["bad"] * 3, extensions=[Watch("bad", *[retry] * 3)]))
    assert isinstance(ending.error, GoliathExtensionError)
    assert (ending.error.extension, ending.error.phase) == ("watch", "transform_stream")


async def test_a_text_that_no_model_wrote_cannot_be_asked_for_again() -> None:
    async def retry(control: Any) -> None:
        await control.retry("again")

    agent = native(["x"], extensions=[AfterPlans(Respond("bad")), Watch("bad", retry)])
    ending = await end(agent)
    assert isinstance(ending.error, GoliathExtensionError)
    assert ending.error.phase == "transform_stream"


async def test_a_respond_may_itself_be_replaced_by_a_transform() -> None:
    async def abort(control: Any) -> None:
        await control.abort("unsafe", replacement="softer")

    agent = native(["x"], extensions=[AfterPlans(Respond("bad")), Watch("bad", abort)])
    result = await run(agent)
    assert result.text == "softer"
    assert [(e.phase, e.decision) for e in told(result, HookDecision)] == [
        ("after_plan", "respond"),
        ("transform_stream", "abort"),
    ]


# --- before_append --------------------------------------------------------------------------------------------------


async def test_what_before_append_makes_of_a_message_is_stored_sent_and_returned() -> None:
    def mask(message: Message) -> Message:
        return attrs.evolve(message, text=message.text.replace("4711", "****"))

    store = InMemoryStore()
    agent = native([tool_calls(("look", {"text": "4711"})), "it is 4711"], tools=[look], extensions=[Appends(mask)])
    result = await run(agent, "my pin is 4711", store=store)
    assert result.text == "it is ****"
    texts = [text for _, text in said(await history(store, agent))]
    assert texts == ["my pin is ****", "", "saw ****", "it is ****"]
    assert "4711" not in requests(agent)[0].text


@pytest.mark.parametrize(
    "answer",
    [
        lambda message: Message("system", "x"),
        lambda message: attrs.evolve(message, text=""),
        lambda message: attrs.evolve(message, tool_calls=[ToolCall("1", "look")]),
        lambda message: attrs.evolve(message, tool_call_id="9"),
        lambda message: "text",
    ],
)
async def test_a_message_may_not_become_another_one(answer: Any) -> None:
    store = InMemoryStore()
    ending = await end(native(["never"], extensions=[Appends(answer)]), store=store)
    assert isinstance(ending.error, GoliathExtensionError)
    assert (ending.error.extension, ending.error.phase) == ("appends", "before_append")


async def test_a_partial_text_passes_before_append_and_is_left_out_if_that_fails(autojump_clock: Any) -> None:
    def answer(message: Message) -> Any:
        if message.role == "assistant":
            raise ValueError("no")
        return None

    async def wait(control: Any) -> None:
        await trio.sleep_forever()

    store = InMemoryStore()
    agent = native(ScriptedModel(["fine wait"], chunk=5), extensions=[Appends(answer), Watch("wait", wait)])
    ending = await end(agent, store=store, timeout=1)
    assert ending.status == "aborted"
    assert said(await history(store, agent)) == [("user", "hello")]


async def test_a_stop_after_the_answer_stores_nothing() -> None:
    class Last(Extension[Any]):
        name = "last"

        def after_answer(self, ctx: Any, question: Any) -> Any:
            return Stop("no", "policy")

    store = InMemoryStore()
    agent = native(["hi"], extensions=[Last()])
    result = await run(agent, store=store)
    assert (result.status, result.text) == ("stopped", "no")
    assert said(await history(store, agent)) == [("user", "hello")]


async def test_a_patch_with_a_model_routes_one_step() -> None:
    other = ScriptedModel(["from the other"], name="other")

    class Router(Extension[Any]):
        name = "router"

        def before_plan(self, ctx: Any, question: Any) -> Any:
            return PlanPatch(model=other, settings={"temperature": 0}) if question.steps else None

    agent = native([tool_calls(("look", {"text": "a"}))], tools=[look], extensions=[Router()])
    assert (await run(agent)).text == "from the other"
    assert other.requests[0].settings == {"temperature": 0}


async def test_a_journal_hears_that_a_stream_was_asked_about_and_lets_everything_pass() -> None:
    journal = Journal()
    result = await run(native(["It is done."], extensions=[journal]))
    assert result.text == "It is done."
    asked = journal.heard("before_run")[0][0]
    assert journal.heard("transform_stream") == [(asked, None)]
    assert [event.text for event in result.trace if event.kind == "answer"] == ["It is done."]
