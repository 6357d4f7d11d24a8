"""The Conductor's own rules: configuration, verdicts of hooks, retries, routes and escalation."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from goliath_actors import (
    Agent,
    Conductor,
    Extension,
    Memory,
    Respond,
    Retry,
    RunAborted,
    SessionFallback,
    Stop,
    ToolLoop,
    open_runtime,
    tool,
)
from goliath_actors.abc import ModelDone, ModelText
from goliath_actors.errors import ConfigError, GoliathExtensionError, ModelError, ModelUnavailable, Refused
from goliath_actors.events import HookDecision, PlanMade, ToolStarted
from goliath_actors.hooks import PlanPatch, RunPatch
from goliath_actors.stores import InMemoryStore
from goliath_actors.testing import Gate, Journal, ScriptedModel, check_events, tool_calls
from goliath_actors.values import FallbackAnswer, FallbackRequest, Message, Plan, ToolCall

from .planned import (
    ANSWER,
    GIVE_UP,
    end,
    kinds,
    memory_of,
    planned,
    prompt,
    reasons,
    requests,
    roles,
    run,
    stored,
    system,
    told,
    use,
)


@tool
async def read() -> str:
    """Read the list."""
    return "milk"


@tool
async def find(name: str) -> str:
    """Find a thing."""
    return f"found {name}"


# --- configuration --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["max_steps", "plan_retries", "argument_retries", "answer_retries", "hook_retries"])
@pytest.mark.parametrize("bad", [-1, 1.5, "2", None, True])
def test_counts_are_integers_from_0(field: str, bad: Any) -> None:
    with pytest.raises(ConfigError, match=field):
        Conductor(**{field: bad})
    assert getattr(Conductor(**{field: 0}), field) == 0  # type: ignore[arg-type]  # one field at a time


@pytest.mark.parametrize(
    "options",
    [
        {"strict_budget": "yes"},
        {"strict_budget": 1},
        {"save_best_effort": None},
        {"session_fallback": 3},
        {"session_fallback": {"after": 3}},
    ],
)
def test_other_settings_are_checked_at_once(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ConfigError, match=name):
        Conductor(**options)


@pytest.mark.parametrize("bad", [{"after": 0}, {"after": True}, {"probe_every": -1}, {"probe_every": "x"}])
def test_a_session_fallback_is_checked_at_once(bad: dict[str, Any]) -> None:
    (name,) = bad
    with pytest.raises(ConfigError, match=name):
        SessionFallback(**bad)


def test_the_defaults_are_the_promised_ones() -> None:
    assert attrs.asdict(Conductor()) == {
        "window": 4096,
        "max_steps": 5,
        "plan_retries": 1,
        "argument_retries": 1,
        "answer_retries": 1,
        "hook_retries": 2,
        "strict_budget": None,
        "save_best_effort": False,
        "session_fallback": {"after": 3, "probe_every": 300.0},
    }


# --- after_plan -----------------------------------------------------------------------------------------------------


class _AfterPlan(Extension[Any]):
    name = "reviewer"

    def __init__(self, answers: list[Any]) -> None:
        self.answers = answers
        self.seen: list[tuple[str, int]] = []

    def after_plan(self, ctx: Any, question: Any) -> Any:
        self.seen.append((question.plan.kind, question.attempt))
        return self.answers.pop(0) if self.answers else None


async def test_a_stop_after_the_plan_leaves_no_plan_event() -> None:
    store = InMemoryStore()
    agent = planned([use("read")], tools=[read], extensions=[_AfterPlan([Stop("no", "policy")])])
    result = await run(agent, store=store)
    assert (result.status, result.text, result.handled_by) == ("stopped", "no", "device")
    assert told(result, PlanMade) == []
    assert [(e.decision, e.reason) for e in told(result, HookDecision)] == [("stop", "policy")]
    assert (await store.load("agent")).version == 0


@pytest.mark.parametrize(
    "plan",
    [
        Plan("tools"),
        Plan("tools", calls=[ToolCall("1", "read")]),
        Plan("answer", calls=[ToolCall("1", "read")]),
        Plan("answer", text="I know this."),
        Plan("tool"),
        Plan("tool", tool="nothing"),
        Plan("dance"),  # type: ignore[arg-type]
    ],
)
async def test_a_plan_that_is_none_of_this_loop_is_the_extensions_error(plan: Plan) -> None:
    agent = planned([use("read")], tools=[read], extensions=[_AfterPlan([plan])], fallback=lambda request: "cloud")
    ending = await end(agent)
    assert isinstance(ending.error, GoliathExtensionError)
    assert (ending.error.extension, ending.error.phase, ending.origin) == ("reviewer", "after_plan", "extension")


async def test_an_extension_may_answer_in_the_models_place_after_the_plan() -> None:
    store = InMemoryStore()
    respond = Respond("I know this.", "cached", "allowed")
    journal = Journal()
    agent = planned([use("read")], tools=[read], extensions=[_AfterPlan([respond]), journal])
    result = await run(agent, store=store)
    assert (result.status, result.text, result.reason) == ("completed", "I know this.", None)
    assert result.responded is not None
    assert attrs.astuple(result.responded) == ("reviewer", "after_plan", "cached", "allowed")
    assert journal.heard("after_answer") == [("hello", "I know this.")]
    assert [step.text for step in result.steps] == ["I know this."]
    assert [e.answer for e in (await memory_of(store, agent)).recent] == ["I know this."]


async def test_a_rejected_plan_is_made_again_with_the_feedback() -> None:
    reviewer = _AfterPlan([Retry("Read first."), Retry("Really.")])
    agent = planned([ANSWER, ANSWER, use("read"), ANSWER, "done"], tools=[read], extensions=[reviewer])
    result = await run(agent)
    assert result.text == "done"
    assert "Your last plan was rejected: Read first." in prompt(agent, 1)
    assert "Your last plan was rejected: Really." in prompt(agent, 2)
    assert reviewer.seen == [("answer", 0), ("answer", 1), ("tool", 2), ("answer", 0)]


async def test_rejections_have_a_budget_of_their_own_and_then_escalate() -> None:
    reviewer = _AfterPlan([Retry("No.")] * 9)
    agent = planned([ANSWER, "no plan", ANSWER, ANSWER, "so far"], tools=[read], extensions=[reviewer])
    result = await run(agent)
    assert (result.reason, result.text) == ("plan-invalid", "so far")
    assert roles(agent) == ["plan"] * 4 + ["answer"]
    agent = planned(
        [ANSWER, "so far"], tools=[read], extensions=[_AfterPlan([Retry("No.")])], loop=Conductor(hook_retries=0)
    )
    assert (await run(agent)).reason == "plan-invalid"


async def test_a_replaced_plan_is_what_is_told_and_done() -> None:
    agent = planned([ANSWER, ANSWER, "done"], tools=[read], extensions=[_AfterPlan([Plan("tool", "read it", "read")])])
    result = await run(agent)
    assert [(e.plan_kind, e.tool, e.brief) for e in told(result, PlanMade)] == [
        ("tool", "read", "read it"),
        ("answer", None, "reply"),
    ]


async def test_a_hooks_escalation_is_the_conductors() -> None:
    agent = planned(["sorry"], extensions=[_AfterPlan([Plan("escalate", "too hard")])])
    result = await run(agent)
    assert (result.reason, result.text, result.best_effort) == ("conductor-asked", "sorry", True)


# --- before_plan and before_run -------------------------------------------------------------------------------------


class _Plan(Extension[Any]):
    name = "plan"

    def __init__(self, patch: PlanPatch) -> None:
        self.patch = patch

    def before_plan(self, ctx: Any, question: Any) -> PlanPatch:
        return self.patch


async def test_a_narrowed_menu_is_all_the_planner_sees() -> None:
    agent = planned([use("read"), ANSWER, "done"], tools=[read, find], extensions=[_Plan(PlanPatch(tools=["find"]))])
    result = await run(agent)
    assert "- find:" in system(requests(agent)[0])
    assert "- read:" not in system(requests(agent)[0])
    assert "'read' is no tool; the tools are find" in prompt(agent, 1)
    assert result.text == "done"


async def test_a_filter_with_a_name_that_is_no_tool_is_an_error() -> None:
    ending = await end(planned([], tools=[read], extensions=[_Plan(PlanPatch(tools=["reed"]))]))
    assert isinstance(ending.error, GoliathExtensionError)
    assert "'reed'" in str(ending.error)


async def test_a_filter_may_name_a_tool_that_before_run_took_away() -> None:
    class Take(Extension[Any]):
        name = "take"

        def before_run(self, ctx: Any, question: Any) -> RunPatch:
            return RunPatch(tools=["read"])

    patch = PlanPatch(tools=["read", "find"])
    agent = planned([ANSWER, "done"], tools=[read, find], extensions=[Take(), _Plan(patch)])
    assert (await run(agent)).text == "done"
    assert "- find:" not in system(requests(agent)[0])


async def test_messages_of_the_run_stand_in_every_device_prompt() -> None:
    class Add(Extension[Any]):
        name = "add"

        def before_run(self, ctx: Any, question: Any) -> RunPatch:
            return RunPatch(messages=[Message("user", "mind the gap")])

    agent = planned([use("find"), {"name": "x"}, ANSWER, "done"], tools=[find], extensions=[Add()])
    await run(agent)
    assert [request.messages[1].text for request in requests(agent)] == ["mind the gap"] * 4


async def test_before_run_may_answer_without_any_model() -> None:
    class Answerer(Extension[Any]):
        name = "answerer"

        def before_run(self, ctx: Any, question: Any) -> Respond:
            return Respond("No need to ask.", "cached")

    store = await stored(failures=2)
    agent = planned([], extensions=[Answerer()])
    result = await run(agent, store=store)
    assert (result.text, requests(agent)) == ("No need to ask.", [])
    assert result.responded is not None
    assert result.responded.phase == "before_run"
    assert kinds(result) == ["hook-decision", "recall", "answer", "remember"]
    assert [e.answer for e in (await memory_of(store, agent)).recent] == ["No need to ask."]
    assert (await store.load("agent")).failures == 2  # nothing was learnt about the device


async def test_extensions_contribute_prompt_text_to_planner_worker_and_answer() -> None:
    class Contribute(Extension[Any]):
        name = "contribute"
        instructions = "Use short words."

    agent = planned([use("find"), {"name": "x"}, ANSWER, "done"], tools=[find], extensions=[Contribute()])
    await run(agent)
    assert ["Use short words." in system(request) for request in requests(agent)] == [True] * 4


# --- retries and replies --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ("[1]", "a JSON object is wanted"),
        ({"kind": "dance"}, "kind must be"),
        ({"kind": "tool", "brief": "x"}, "no tool is named"),
        ({"kind": "tool", "tool": 7, "brief": "x"}, "'7' is no tool"),
        ({"kind": "answer", "brief": 7}, "brief must be a string"),
        ('To list, send {"kind": "tool", "tool": "read", "brief": "x"}', "was not valid"),
    ],
)
async def test_what_is_wrong_with_a_plan_is_told(reply: Any, problem: str) -> None:
    agent = planned([reply, ANSWER, "done"], tools=[read])
    result = await run(agent)
    assert result.text == "done"
    assert problem in prompt(agent, 1)
    assert len(result.steps) == 1


@pytest.mark.parametrize(
    "reply",
    [
        '```json\n{"kind": "tool", "tool": "read", "brief": "x"}\n```',
        '<think>maybe {"kind": "answer"}</think>{"kind": "tool", "tool": "read", "brief": "x", "more": 1}',
        {"kind": "tool", "tool": "read"},
    ],
)
async def test_wrappings_are_taken_off_when_nothing_else_is_there(reply: Any) -> None:
    result = await run(planned([reply, ANSWER, "done"], tools=[read]))
    assert [step.tool for step in result.steps] == ["read", None]


async def test_a_thinking_block_before_a_structured_answer_is_no_part_of_it() -> None:
    result = await run(planned(['<think>two?</think>{"n": 2}'], output={"type": "object"}))
    assert result.output == {"n": 2}


@pytest.mark.parametrize(
    "reply",
    ['```json\n{"title": "x"}\n```', '{"title": "x", "title": "y"}', "{'title': 'x'}", '"{}"', "[]", ""],
)
async def test_arguments_of_a_call_that_is_confirmed_are_taken_to_the_letter(reply: str) -> None:
    # §P
    made: list[str] = []

    @tool(writes=True)
    async def create(title: str) -> str:
        """Create."""
        made.append(title)
        return "ok"

    script = [use("create"), reply, '<think>x or y?</think>{"title": "z"}', ANSWER, "done"]
    agent = planned(script, tools=[create])
    result = await run(agent)
    assert (result.text, made) == ("done", ["z"])
    assert "was not valid" in prompt(agent, 2)


async def test_arguments_of_a_read_may_come_in_a_fence() -> None:
    result = await run(planned([use("find"), '```json\n{"name": "x"}\n```', ANSWER, "done"], tools=[find]))
    assert result.steps[0].result == "found x"


MENDED = [
    ('{"name": "x"}', ()),
    ('<think>x?</think>{"name": "x"}', ()),
    ('```json\n{"name": "x"}\n```', ("code-fence",)),
    ("{'name': 'x'}", ("single-quotes",)),
    ('{"name": "x",}', ("trailing-comma",)),
    ('"{\\"name\\": \\"x\\"}"', ("string-encoded",)),
    ('{"name": "x"} {"name": "x"}', ("repeated-object",)),
    ('{"name": "y", "name": "x"}', ("duplicate-keys",)),
    ("<think>x?</think>```\n{'name': 'x',}\n```", ("code-fence", "single-quotes", "trailing-comma")),
]


@pytest.mark.parametrize("loop", ["planned", "native"])
@pytest.mark.parametrize(("reply", "repairs"), MENDED)
async def test_light_repairs_of_a_read_are_made_and_told_in_both_loops(
    reply: str, repairs: tuple[str, ...], loop: str
) -> None:
    # §P, by the same reader; a thinking block in front is the worker's alone, where a whole reply is read.
    if loop == "planned":
        agent = planned([use("find"), reply, ANSWER, "done"], tools=[find])
    elif "<think>" in reply:
        return
    else:
        agent = planned([tool_calls(("find", reply)), "done"], tools=[find], loop=ToolLoop())
    result = await run(agent)
    assert result.steps[0].result == "found x"
    (started,) = told(result, ToolStarted)
    assert (dict(started.input), started.repairs) == ({"name": "x"}, repairs)


@pytest.mark.parametrize("reply", ['{"name": "x"}{"name": "y"}', 'Here: {"name": "x"}', '["x"]', "null", ""])
async def test_what_is_not_one_object_is_asked_for_again(reply: str) -> None:
    agent = planned([use("find"), reply, {"name": "z"}, ANSWER, "done"], tools=[find])
    assert (await run(agent)).steps[0].result == "found z"
    assert "was not valid" in prompt(agent, 2)


async def test_arguments_that_were_cut_off_are_never_mended() -> None:
    from .test_request import Played, PlayedModel

    plan = [ModelText('{"kind": "tool", "tool": "find"}'), ModelDone()]
    cut = [ModelText('{"name": "x",}'), ModelDone("length")]
    whole = [ModelText('{"name": "z"}'), ModelDone()]
    model = PlayedModel([Played(plan), Played(cut), Played(whole), Played([ModelText("sorry"), ModelDone()])])
    agent = attrs.evolve(planned([], tools=[find], loop=Conductor(max_steps=1)), model=model)
    assert (await run(agent)).steps[0].result == "found z"


async def test_with_all_retries_at_0_the_first_bad_reply_escalates() -> None:
    loop = Conductor(plan_retries=0, argument_retries=0, answer_retries=0)
    for script, reason in (
        (["no plan", "sorry"], "plan-invalid"),
        ([use("find"), "no", "sorry"], "tool-args-invalid"),
        ([ANSWER, "  ", "sorry"], "empty-answer"),
    ):
        result = await run(planned(script, tools=[find], loop=loop))
        assert (result.reason, result.text) == (reason, "sorry")


async def test_argument_retries_are_per_call() -> None:
    agent = planned([use("find"), "no", {"name": "a"}, use("find"), "no", {"name": "b"}, ANSWER, "done"], tools=[find])
    assert (await run(agent)).reason is None


async def test_a_plan_that_was_cut_off_is_not_used() -> None:
    from .test_request import Played, PlayedModel, agent_of

    cut = [ModelText('{"kind": "answer", "brief": "x"}'), ModelDone("length")]
    whole = [ModelText('{"kind": "answer", "brief": "x"}'), ModelDone("stop")]
    model = PlayedModel([Played(cut), Played(whole), Played([ModelText("done"), ModelDone("length")])])
    result = await run(agent_of(model, tools=[read]))
    assert result.text == "done"
    assert "it was cut off because it was too long" in model.requests[1].text


async def test_the_last_of_five_steps_may_be_the_answer_and_a_sixth_is_not_taken() -> None:
    calls = [item for n in range(4) for item in (use("find"), {"name": str(n)})]
    result = await run(planned([*calls, ANSWER, "done"], tools=[find]))
    assert (result.reason, len(result.steps)) == (None, 5)
    calls = [item for n in range(5) for item in (use("find"), {"name": str(n)})]
    result = await run(planned([*calls, "so far"], tools=[find]))
    assert (result.reason, len(result.steps), result.best_effort) == ("too-many-steps", 5, True)


# --- escalation -----------------------------------------------------------------------------------------------------


async def test_the_first_escalation_reason_is_the_results() -> None:
    result = await run(planned([GIVE_UP, Refused("no")], tools=[read]))
    assert (result.reason, result.text) == ("conductor-asked", "")
    assert reasons(result) == ["conductor-asked", "guardrail"]


@pytest.mark.parametrize("last", [ModelError("down"), "", "  "])
async def test_a_best_effort_that_comes_to_nothing_is_empty_and_has_a_reason(last: Any) -> None:
    result = await run(planned([GIVE_UP, last], tools=[read]))
    assert (result.text, result.best_effort, result.reason) == ("", True, "conductor-asked")
    assert kinds(result)[:5] == ["recall", "budget", "plan-made", "escalate", "budget"]
    assert not {"answer", "remember"} & set(kinds(result))


async def test_before_fallback_may_stop_the_handover() -> None:
    class Local(Extension[Any]):
        name = "local"

        def before_fallback(self, ctx: Any, question: Any) -> Stop:
            return Stop("Cloud processing is off.", "cloud-disabled")

    asked: list[Any] = []
    agent = planned(
        [GIVE_UP], tools=[read], extensions=[Local()], fallback=lambda request: asked.append(request) or "x"
    )
    result = await run(agent)
    assert (result.status, result.text, result.handled_by, asked) == (
        "stopped",
        "Cloud processing is off.",
        "device",
        [],
    )


async def test_a_stop_after_a_cloud_answer_says_that_the_cloud_handled_it() -> None:
    class Halt(Extension[Any]):
        name = "halt"

        def after_answer(self, ctx: Any, question: Any) -> Stop:
            return Stop("stopped", "policy")

    result = await run(planned([GIVE_UP], tools=[read], extensions=[Halt()], fallback=lambda request: "x"))
    assert (result.status, result.handled_by) == ("stopped", "cloud")


async def test_before_fallback_may_not_change_the_reason() -> None:
    class Change(Extension[Any]):
        name = "change"

        def before_fallback(self, ctx: Any, question: Any) -> FallbackRequest:
            return attrs.evolve(question.request, reason="other")

    ending = await end(planned([GIVE_UP], tools=[read], extensions=[Change()], fallback=lambda request: "x"))
    assert isinstance(ending.error, GoliathExtensionError)


async def test_a_fallback_may_answer_with_a_value_or_be_any_callable() -> None:
    async def answer(request: FallbackRequest) -> FallbackAnswer:
        await trio.lowlevel.checkpoint()
        return FallbackAnswer("from the cloud")

    assert (await run(planned([GIVE_UP], tools=[read], fallback=answer))).text == "from the cloud"

    class Odd:
        """A callable without a signature that can be read."""

        @property
        def __signature__(self) -> Any:
            raise ValueError("none")

        def __call__(self, request: FallbackRequest) -> str:
            return "odd"

    assert (await run(planned([GIVE_UP], tools=[read], fallback=Odd()))).text == "odd"


async def test_the_fallback_sees_the_view_the_steps_and_no_raw_output() -> None:
    got: list[FallbackRequest] = []

    class View(Extension[Any]):
        name = "view"

        def after_recall(self, ctx: Any, question: Any) -> Memory:
            return attrs.evolve(question.memory, summary="a view")

    def cloud(request: FallbackRequest) -> str:
        got.append(request)
        return "ok"

    store = await stored(("old", "1"), summary="original")
    agent = planned([use("read"), GIVE_UP], tools=[read], extensions=[View()], fallback=cloud)
    await run(agent, "my ask", store=store)
    (request,) = got
    assert (request.ask, request.summary, [e.ask for e in request.recent]) == ("my ask", "a view", ["old"])
    assert (request.reason, request.error) == ("conductor-asked", "beyond me")
    assert [(step.tool, step.result, step.output) for step in request.steps] == [("read", "milk", None)]


async def test_an_abort_inside_the_fallback_is_an_abort() -> None:
    gate = Gate()

    async def cloud(request: FallbackRequest) -> str:
        await gate.pass_through()
        return "late"

    agent = planned([GIVE_UP], tools=[read], fallback=cloud)
    async with open_runtime(agent) as runtime:
        envelope = runtime.submit("hello")
        await gate.wait_reached()
        envelope.abort()
        with pytest.raises(RunAborted) as caught:
            await envelope.wait()
    assert caught.value.phase == "fallback"
    assert envelope.outcome is not None
    check_events(envelope.outcome.trace)


async def test_a_run_of_an_extension_with_every_hook_hears_the_rows_in_order() -> None:
    journal = Journal()
    store = await stored(("a", "1"), ("b", "2"), ("c", "3"))
    script = [use("find"), {"name": "x"}, ANSWER, "done", "Goal: y"]
    await run(planned(script, tools=[find], extensions=[journal]), store=store)
    request = ["before_request", "around_model", "after_response"]
    assert journal.rows == [
        "before_run",
        "after_recall",
        "before_plan",
        *request,
        "after_plan",
        *request,
        "before_tool",
        "around_tool",
        "after_tool",
        "after_tools",
        "before_plan",
        *request,
        "after_plan",
        "before_request",
        "around_model",
        "transform_stream",
        "after_response",
        "after_answer",
        *request,
        "before_remember",
        "on_finish",
    ]


async def test_phases_are_named_where_they_begin(autojump_clock: MockClock) -> None:
    phases: list[str | None] = []

    def confirm(request: Any) -> bool:
        phases.append(runtime.conversation().status().phase)
        return True

    @tool(writes=True)
    async def put() -> str:
        """Put."""
        phases.append(runtime.conversation().status().phase)
        return "ok"

    def reply(value: Any) -> Any:
        def play(request: Any) -> Any:
            phases.append(runtime.conversation().status().phase)
            return value

        return play

    store = await stored(("a", "1"), ("b", "2"), ("c", "3"))
    script = [reply(use("find")), reply({"name": "x"}), reply(use("put")), reply(ANSWER), reply("done"), reply("Goal")]
    agent = planned(script, tools=[find, put], confirm=confirm)
    async with open_runtime(agent, store=store) as runtime:
        await runtime.run("hello")
    assert phases == ["plan", "arguments", "plan", "confirm", "tool:put", "plan", "answer", "scribe"]


async def test_tools_that_are_all_filtered_away_leave_an_answer() -> None:
    agent = planned(["done"], tools=[read], extensions=[_Plan(PlanPatch(tools=[]))])
    result = await run(agent)
    assert (roles(agent), result.text) == (["answer"], "done")
    assert [(e.plan_kind, e.brief) for e in told(result, PlanMade)] == [("answer", "reply")]


async def test_a_window_callable_may_be_plain_and_is_asked_once_a_run() -> None:
    sizes = [4096, 2048]
    agent = planned(["a", "b"], loop=Conductor(window=lambda: sizes.pop(0)))
    async with open_runtime(agent) as runtime:
        await runtime.run("one")
        await runtime.run("two")
    assert sizes == []


async def test_a_reply_that_an_adapter_calls_empty_is_a_blank_one() -> None:
    """A blank plan is malformed, a blank answer is nudged once: neither is an outage, nor sent again as it was."""
    empty = ModelUnavailable("the reply is empty", retryable=True, code="empty")
    model = ScriptedModel([empty, {"kind": "answer", "brief": "say"}, empty, "There you are."], retries=2)
    journal = Journal()

    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    async with open_runtime(Agent(model=model, tools=[look], extensions=[journal])) as runtime:
        result = await runtime.run("hi")
    assert (result.text, result.reason) == ("There you are.", None)
    assert [request.role for request in model.requests] == ["plan", "plan", "answer", "answer"]
    assert [request.attempt for request in model.requests] == [0, 0, 0, 0]
    assert model.requests[3].text != model.requests[2].text
    model = ScriptedModel([empty] * 2)
    async with open_runtime(Agent(model=model, fallback=lambda request: request.reason)) as runtime:
        assert (await runtime.run("hi")).text == "empty-answer"
