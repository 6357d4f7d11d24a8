"""Whole runs on a real model, through the public doors.

The model is tiny and writes nonsense. So nothing here looks at its words: only at how runs end, at the grammar of
events, at what was counted, and at whether the server has its slots back.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import anyio.from_thread
import attrs
import jsonschema
import pytest
import trio
from trio.testing import MockClock

from goliath_actors import (
    Agent,
    Conductor,
    Deny,
    Extension,
    Outcome,
    Run,
    RunAborted,
    RunResult,
    Runtime,
    Tool,
    approve_all,
    open_runtime,
    tool,
)
from goliath_actors.abc import ModelRequest, ModelResponse
from goliath_actors.events import (
    Answer,
    Confirm,
    Escalate,
    Event,
    ModelFinished,
    PlanMade,
    Remember,
    Retraction,
    RunFinished,
    TextDelta,
    ToolFinished,
)
from goliath_actors.hooks import (
    AroundModel,
    BeforePlan,
    BeforeRun,
    BeforeTool,
    HookContext,
    ModelPatch,
    PlanPatch,
    RunPatch,
)
from goliath_actors.models import OpenAIChat
from goliath_actors.models.local import LocalServer, Slots, missing_packages, open_local_server
from goliath_actors.testing import Journal, check_events
from goliath_actors.tools import Confirmed, ConfirmRequest
from goliath_actors.values import FallbackRequest, Usage

from .test_docs import blocks, run_block

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),  # the model shares two cores with whatever else runs, and may get a tenth of one
    pytest.mark.skipif(
        bool(missing_packages()), reason=f"the extra `local` is not installed: {', '.join(missing_packages())}"
    ),
]

# Seconds; nothing below waits that long when it works.
PATIENCE = 120.0
# A slot whose client left a stream is given back within milliseconds, else after a second of quiet.
FREED_WITHIN = 30.0
CONTEXT = 1024

# Every reason for which a planned run gives up on its model.
REASONS = {
    "answer-invalid",
    "conductor-asked",
    "context-budget",
    "empty-answer",
    "guardrail",
    "model-error",
    "model-unavailable",
    "plan-invalid",
    "repeated-tool-call",
    "too-many-steps",
    "tool-args-invalid",
    "tool-error",
    "tool-prerequisite-missing",
}

Room = Literal["kitchen", "cellar", "attic"]
ROOMS = ("kitchen", "cellar", "attic")

# They show the planner JSON without blanks; a small model that is shown none fills its reply with them.
EXAMPLES = (
    'How warm is the attic? -> {"kind":"tool","tool":"read_meter","brief":"read the attic"}',
    'Thanks. -> {"kind":"answer","brief":"reply"}',
)
LONG = "Tell a story without an end."

GUIDE = Path(__file__).parent.parent / "docs" / "guides" / "local-model.md"


# --- the server -----------------------------------------------------------------------------------------------------


class Portal(Protocol):
    def call(self, function: Any, /) -> Any: ...


@attrs.frozen
class Live:
    """A server with four slots, in a thread with a trio run of its own, so that one serves the whole module."""

    server: LocalServer
    portal: Portal

    def model(self, max_tokens: int = 24, **options: Any) -> OpenAIChat:
        return a_model(self.server, max_tokens, **options)

    async def slots(self) -> Slots:
        answer: Slots = await trio.to_thread.run_sync(self.portal.call, self.server.slots)
        return answer

    async def freed(self) -> Slots:
        """Return the slots once none is generating, which must be soon."""
        with trio.fail_after(FREED_WITHIN):
            await trio.to_thread.run_sync(self.portal.call, self.server.wait_idle, abandon_on_cancel=True)
        return await self.slots()


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with anyio.from_thread.start_blocking_portal("trio") as portal:
        with portal.wrap_async_context_manager(open_local_server(n_parallel=4, context=CONTEXT)) as server:
            yield Live(server, portal)


def a_model(server: LocalServer, max_tokens: int = 24, **options: Any) -> OpenAIChat:
    settings = {"temperature": 0, "max_tokens": max_tokens}
    return OpenAIChat(server.model, base_url=server.base_url, api_key="", settings=settings, **options)


def an_agent(model: OpenAIChat, **options: Any) -> Agent[Any]:
    options.setdefault("loop", Conductor(window=CONTEXT))
    options.setdefault("instructions", "Be short.")
    return Agent(model=model, **options)


def json_reply(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "reply", "schema": dict(schema)}}}


# --- what has to hold of every run ----------------------------------------------------------------------------------


def of_kind(end: RunResult | Outcome, kind: type[Event]) -> list[Any]:
    return [event for event in end.trace if isinstance(event, kind)]


def calls_of(end: RunResult | Outcome) -> list[Any]:
    """The model calls. This server closes a kept connection after some requests, often just when the next one is sent:
    that attempt is made again on a new one, which says nothing about what a test is about."""
    return [call for call in of_kind(end, ModelFinished) if "closed the kept connection" not in (call.error or "")]


def hold_accounts(end: RunResult | Outcome) -> None:
    """Hold the trace against the grammar, and the run's usage against what was told of each call."""
    check_events(end.trace)
    calls: list[ModelFinished] = of_kind(end, ModelFinished)
    total = Usage()
    for call in calls:
        if call.error is None:  # a complete reply: its usage is the provider's own
            assert call.usage is not None
            assert not call.usage.estimated
            assert call.usage.input_tokens > 0
            assert call.usage.output_tokens > 0
        total += call.usage or Usage()
    assert end.usage == total
    assert of_kind(end, RunFinished)[0].usage == total


def hold_end(result: RunResult) -> None:
    """Hold a run that ended by itself: there is text, or a reason, and the events say the same."""
    hold_accounts(result)
    assert result.status == "completed"
    assert (result.handled_by, result.diagnostics) == ("device", ())
    answers = [event.text for event in of_kind(result, Answer)]
    assert answers == ([result.text] if result.text else [])
    given_up = [event.reason for event in of_kind(result, Escalate)]
    if result.reason is None:
        assert given_up == []
        assert not result.best_effort
        assert result.text.strip()
        assert (result.steps[-1].kind, result.steps[-1].text) == ("answer", result.text)
    else:
        assert result.reason in REASONS
        assert given_up[0] == result.reason


@pytest.fixture(scope="module")
def guide() -> dict[str, Any]:
    """What the guide to this model defines."""
    namespace: dict[str, Any] = {"__name__": "guide"}
    for line, _, code in blocks(GUIDE):
        run_block(code, namespace, GUIDE.name, line)
    return namespace


async def first_text(run: Run) -> str:
    """Return the first piece of text of a run, which is in the middle of an answer then."""
    with trio.fail_after(PATIENCE):
        async for event in run.events():
            if isinstance(event, TextDelta):
                return event.text
    raise AssertionError("the run ended without a word")


# --- extensions -----------------------------------------------------------------------------------------------------


class Calls(Extension[Any]):
    """Keeps every request with its reply, and counts how many are under way."""

    name = "calls"

    def __init__(self) -> None:
        self.made: list[tuple[ModelRequest, ModelResponse]] = []
        self.active = self.most = 0

    async def around_model(
        self, ctx: HookContext[Any], question: AroundModel, call_next: Callable[..., Awaitable[ModelResponse]]
    ) -> ModelResponse:
        self.active += 1
        self.most = max(self.most, self.active)
        try:
            response = await call_next()
        finally:
            self.active -= 1
        self.made.append((question.request, response))
        return response

    def of(self, role: str) -> list[tuple[ModelRequest, ModelResponse]]:
        return [(request, response) for request, response in self.made if request.role == role]


class Itinerary(Extension[Any]):
    """Has the model plan one tool after the other, and then the answer.

    It narrows the schema of each step's plan to what is wanted, and leaves writing it to the model. The arguments are
    the model's own.
    """

    name = "itinerary"

    def __init__(self, *tools: str) -> None:
        self._tools = tools

    def before_plan(self, ctx: HookContext[Any], question: BeforePlan) -> PlanPatch:
        done = len(question.steps)
        fields: dict[str, Any] = {"kind": {"enum": ["answer"]}}
        if done < len(self._tools):
            fields = {"kind": {"enum": ["tool"]}, "tool": {"enum": [self._tools[done]]}}
        fields["brief"] = {"type": "string", "maxLength": 5}
        schema = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
        # The menu stays whole and the slot the same, so that the server reads the beginning of these prompts only once.
        return PlanPatch(provider_options={"id_slot": 0, **json_reply(schema)})

    async def around_model(
        self, ctx: HookContext[Any], question: AroundModel, call_next: Callable[..., Awaitable[ModelResponse]]
    ) -> ModelResponse:
        if question.request.role == "plan":
            return await call_next()
        short = {"max_tokens": 8} if question.request.role == "answer" else {}
        return await call_next(ModelPatch(settings=short, provider_options={"id_slot": 1}))


class QuietHours(Extension[Any]):
    """Denies one tool."""

    name = "quiet-hours"

    def before_tool(self, ctx: HookContext[Any], question: BeforeTool) -> Deny | None:
        return Deny("it is night") if question.tool.name == "ring_bell" else None


class Endless(Extension[Any]):
    """Keeps the model generating, as far as its context goes, where the ask wants a story."""

    name = "endless"

    def before_run(self, ctx: HookContext[Any], question: BeforeRun) -> RunPatch | None:
        if question.ask != LONG:
            return None
        return RunPatch(provider_options={"ignore_eos": True, "stop": ["%%"], "max_tokens": 4 * CONTEXT})


@attrs.define(eq=False)
class House:
    """Tools, and what was really done with them."""

    done: list[tuple[str, dict[str, Any]]] = attrs.Factory(list)
    asked: list[tuple[str, dict[str, Any]]] = attrs.Factory(list)

    def tools(self) -> list[Tool]:
        @tool
        async def read_meter(room: Room) -> str:
            """Tell how warm a room is."""
            self.done.append(("read_meter", {"room": room}))
            return f"{room}: 19 degrees"

        @tool(writes=True)
        async def heat_room(room: Room) -> str:
            """Heat a room."""
            self.done.append(("heat_room", {"room": room}))
            return f"{room} is heated"

        @tool(writes=True)
        async def open_windows() -> str:
            """Open all windows."""
            self.done.append(("open_windows", {}))
            return "open"

        @tool
        async def ring_bell() -> str:
            """Ring the bell."""
            self.done.append(("ring_bell", {}))
            return "rung"

        return [read_meter, heat_room, open_windows, ring_bell]

    def confirm(self, request: ConfirmRequest) -> Confirmed:
        self.asked.append((request.tool.name, request.input))
        if request.tool.name == "heat_room":
            return Confirmed(True)
        return Confirmed(False, "it is cold outside")


# --- plans ----------------------------------------------------------------------------------------------------------


async def test_plans_of_a_real_model_obey_their_schema_and_every_run_ends_with_text_or_a_reason(live: Live) -> None:
    calls, house = Calls(), House()
    agent = an_agent(
        live.model(40),
        tools=house.tools()[:2],
        examples=EXAMPLES,
        confirm=approve_all,
        extensions=[calls],
        loop=Conductor(window=CONTEXT, max_steps=1),
    )
    asks = ["How warm is the kitchen?", "Thanks."]
    async with open_runtime(agent) as runtime:
        runs = [runtime.submit(ask, conversation_id=ask) for ask in asks]
        results = [await run.wait() for run in runs]

    plans = calls.of("plan")
    whole = [(request, response) for request, response in plans if response.finish_reason == "stop"]
    for request, response in whole:
        assert request.schema is not None
        jsonschema.validate(json.loads(response.message.text), request.schema)
    assert whole
    for result in results:
        hold_end(result)
        told = [event for event in result.trace if isinstance(event, PlanMade)]
        asked = [call for call in calls_of(result) if call.role == "plan"]
        assert 1 <= len(asked) <= 2 * max(1, len(told))  # one retry a step
        assert {event.plan_kind for event in told} <= {"tool", "answer", "escalate"}
        assert {event.tool for event in told if event.plan_kind == "tool"} <= {"read_meter", "heat_room"}
        assert bool(told) != (result.reason == "plan-invalid")
        assert len(of_kind(result, ToolFinished)) == len([step for step in result.steps if step.kind == "tool"])
    assert [step.input for result in results for step in result.steps if step.status == "executed" and step.tool] == [
        given for _, given in house.done
    ]


# --- tools ----------------------------------------------------------------------------------------------------------


async def test_one_run_reads_writes_with_consent_is_refused_and_is_denied(live: Live, guide: dict[str, Any]) -> None:
    house = House()
    itinerary = Itinerary("read_meter", "heat_room", "open_windows", "ring_bell")
    agent = an_agent(
        live.model(64),
        tools=house.tools(),
        examples=EXAMPLES[:1],
        confirm=house.confirm,
        extensions=[itinerary, guide["NothingMissing"](), QuietHours()],
        loop=Conductor(window=CONTEXT, max_steps=5, plan_retries=3, argument_retries=3),
    )
    async with open_runtime(agent) as runtime:
        result = await runtime.run("Heat the cellar, and open it.")

    hold_end(result)
    steps = [step for step in result.steps if step.kind == "tool"]
    assert [(step.tool, step.status, step.skip_reason, step.extension) for step in steps] == [
        ("read_meter", "executed", None, None),
        ("heat_room", "executed", None, None),
        ("open_windows", "skipped", "confirmation", None),
        ("ring_bell", "skipped", "policy", "quiet-hours"),
    ]
    inputs = [dict(step.input or {}) for step in steps]
    assert all(given["room"] in ROOMS for given in inputs[:2])
    assert inputs[2:] == [{}, {}]
    # What was confirmed is what was executed, and what is recorded.
    assert house.asked == [("heat_room", inputs[1]), ("open_windows", {})]
    assert house.done == [("read_meter", inputs[0]), ("heat_room", inputs[1])]
    assert [(event.tool, event.approved, event.reason) for event in of_kind(result, Confirm)] == [
        ("heat_room", True, None),
        ("open_windows", False, "it is cold outside"),
    ]
    assert [(event.plan_kind, event.tool) for event in of_kind(result, PlanMade)] == [
        ("tool", "read_meter"),
        ("tool", "heat_room"),
        ("tool", "open_windows"),
        ("tool", "ring_bell"),
        ("answer", None),
    ]
    roles = [event.role for event in calls_of(result)]
    # A tool without parameters costs no call.
    assert [role for role, _ in itertools.groupby(roles)] == [
        "plan",
        "arguments",
        "plan",
        "arguments",
        "plan",
        "answer",
    ]


# --- answers and memory ---------------------------------------------------------------------------------------------


async def test_an_answer_is_what_was_streamed_and_what_history_keeps(live: Live) -> None:
    agent = an_agent(live.model())
    async with open_runtime(agent) as runtime:
        async with runtime.stream("What is the capital of France?", conversation_id="c") as run:
            events = [event async for event in run.events()]
            result = await run.wait()
        page = await runtime.conversation("c").history()

    hold_end(result)
    check_events(events)
    assert [event for event in events if not isinstance(event, TextDelta)] == list(result.trace)
    assert result.reason is None
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == result.text
    assert [(entry.role, entry.message.text) for entry in page.entries] == [
        ("user", "What is the capital of France?"),
        ("assistant", result.text),
    ]
    assert [event.role for event in calls_of(result)] == ["answer"]


async def test_a_fourth_exchange_has_the_first_folded_into_the_summary(live: Live) -> None:
    agent = an_agent(live.model(8))
    asks = ["Say hello.", "Name a colour.", "Name a city.", "Say goodbye."]
    async with open_runtime(agent) as runtime:
        conversation = runtime.conversation("c")
        results = [await conversation.run(ask) for ask in asks]
        memory = await conversation.memory()

    for result in results:
        hold_end(result)
        assert result.reason is None
    roles = [[event.role for event in calls_of(result)] for result in results]
    assert roles[:3] == [["answer"]] * 3
    assert set(roles[3]) == {"answer", "scribe"}
    assert [exchange.ask for exchange in memory.recent] == asks[1:]
    assert [exchange.answer for exchange in memory.recent] == [result.text for result in results[1:]]
    assert memory.summary.strip()
    assert of_kind(results[3], Remember)[0].summary == memory.summary


@attrs.frozen
class Report:
    room: Room
    mood: Literal["good", "bad"]


async def test_a_structured_answer_is_typed(live: Live) -> None:
    agent = an_agent(live.model(64), output=Report, loop=Conductor(window=CONTEXT, answer_retries=3))
    async with open_runtime(agent) as runtime:
        result = await runtime.run("It is warm in the kitchen.")

    hold_end(result)
    assert result.reason is None
    assert type(result.output) is Report
    assert result.output.room in ROOMS
    assert result.output.mood in ("good", "bad")
    assert json.loads(result.text) == attrs.asdict(result.output)


async def test_a_structured_answer_that_is_cut_off_is_asked_for_again_and_then_given_up(live: Live) -> None:
    agent = an_agent(live.model(3), output=Report)
    async with open_runtime(agent) as runtime:
        result = await runtime.run("It is warm in the kitchen.")

    hold_end(result)
    assert (result.reason, result.text, result.output) == ("answer-invalid", "", None)
    calls = calls_of(result)
    assert [(call.role, call.error, call.usage.output_tokens) for call in calls] == [("answer", None, 3)] * 2


# --- many at once ---------------------------------------------------------------------------------------------------


async def test_eight_conversations_share_four_slots_and_each_keeps_its_order(live: Live) -> None:
    names = ["north", "east", "south", "west", "up", "down", "in", "out"]
    calls, journal = Calls(), Journal()
    agent = an_agent(live.model(4), extensions=[calls, journal])
    async with open_runtime(agent) as runtime:
        runs = [runtime.submit(f"{verb} {name}.", conversation_id=name) for verb in ("Go", "Look") for name in names]
        with trio.fail_after(PATIENCE):
            results = [await run.wait() for run in runs]
        memories = [await runtime.conversation(name).memory() for name in names]
        statistics = runtime.statistics()

    for result in results:
        hold_end(result)
        assert result.reason is None
    assert calls.most == 8
    for name, memory in zip(names, memories, strict=True):
        asks = [f"Go {name}.", f"Look {name}."]
        heard = [ctx.ask for _, ctx, _ in journal.questions if ctx.conversation_id == name]
        assert [ask for ask, _ in itertools.groupby(heard)] == asks  # one run after the other, hooks included
        assert journal.heard("on_finish", name) == [(ask, "completed") for ask in asks]
        assert [exchange.ask for exchange in memory.recent] == asks
    assert journal.heard("on_error") == []
    assert len({result.run_id for result in results}) == 16
    assert attrs.asdict(statistics) == {
        "conversations": 8,
        "running": 0,
        "waiting": 0,
        "accepted": 16,
        "completed": 16,
        "stopped": 0,
        "errors": 0,
        "aborted": 0,
    }
    assert await live.freed() == Slots(busy=0, total=4)


# --- ended in the middle of a reply ---------------------------------------------------------------------------------


async def by_request(live: Live, runtime: Runtime, clock: MockClock) -> Run:
    run = runtime.submit(LONG, conversation_id="c")
    await first_text(run)
    assert await live.slots() == Slots(busy=1, total=4)
    run.abort("enough")
    with pytest.raises(RunAborted) as caught:
        await run.wait()
    assert (caught.value.cause, caught.value.reason, caught.value.phase) == ("requested", "enough", "answer")
    return run


async def by_leaving(live: Live, runtime: Runtime, clock: MockClock) -> Run:
    async with runtime.stream(LONG, conversation_id="c") as run:
        await first_text(run)
    return run


async def by_deadline(live: Live, runtime: Runtime, clock: MockClock) -> Run:
    run = runtime.submit(LONG, conversation_id="c", timeout=PATIENCE)
    await first_text(run)
    clock.jump(PATIENCE)
    with pytest.raises(RunAborted, match="deadline"):
        await run.wait()
    return run


@pytest.mark.parametrize(
    ("cause", "cut"), [("requested", by_request), ("caller", by_leaving), ("deadline", by_deadline)]
)
async def test_a_run_that_is_cut_in_the_middle_of_its_reply_gives_the_slot_back_and_the_next_ask_is_answered(
    live: Live,
    mock_clock: MockClock,
    cause: str,
    cut: Callable[[Live, Runtime, MockClock], Awaitable[Run]],
) -> None:
    mock_clock.rate = 1.0  # real time, that can also jump: the deadline comes when there is text, however slow that is
    journal = Journal()
    # Its own time-outs are longer than the jump, so that it is the run's deadline that ends the reply.
    model = live.model(8, first_token_timeout=10 * PATIENCE, idle_timeout=10 * PATIENCE)
    agent = an_agent(model, extensions=[Endless(), journal])
    async with open_runtime(agent) as runtime:
        run = await cut(live, runtime, mock_clock)
        assert await live.freed() == Slots(busy=0, total=4)
        result = await runtime.run("Say hello.", conversation_id="c")
        memory = await runtime.conversation("c").memory()
        statistics = runtime.statistics()

    outcome = run.outcome
    assert outcome is not None
    assert outcome.abort is not None
    assert (outcome.status, outcome.abort.cause, outcome.abort.phase) == ("aborted", cause, "answer")
    hold_accounts(outcome)
    (call,) = calls_of(outcome)
    assert (call.role, call.error, call.usage.estimated) == ("answer", "cancelled", True)
    assert call.usage.output_tokens > 0
    hold_end(result)
    assert result.reason is None
    assert journal.heard("on_error") == [(LONG, "abort")]
    assert journal.heard("on_finish") == [(LONG, "aborted"), ("Say hello.", "completed")]
    assert [exchange.ask for exchange in memory.recent] == ["Say hello."]
    assert (statistics.accepted, statistics.completed, statistics.aborted) == (2, 1, 1)


async def test_a_drain_without_grace_ends_replies_under_way_and_frees_their_slots(live: Live) -> None:
    journal = Journal()
    agent = an_agent(live.model(), extensions=[Endless(), journal])
    async with open_runtime(agent) as runtime:
        runs = [runtime.submit(LONG, conversation_id=name) for name in ("a", "b")]
        for run in runs:
            await first_text(run)
        assert await live.slots() == Slots(busy=2, total=4)
        report = await runtime.drain(0)
        assert (report.finished, report.aborted) == (0, 2)
        assert await live.freed() == Slots(busy=0, total=4)

    for run in runs:
        assert run.outcome is not None
        assert run.outcome.abort is not None
        assert run.outcome.abort.cause == "shutdown"
        hold_accounts(run.outcome)
    assert journal.heard("on_error") == [(LONG, "abort")] * 2
    assert journal.heard("on_finish") == [(LONG, "aborted")] * 2


# --- a device that cannot -------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Cloud:
    """A second brain that keeps what it was asked."""

    requests: list[FallbackRequest] = attrs.Factory(list)

    async def __call__(self, request: FallbackRequest) -> str:
        await trio.lowlevel.checkpoint()
        self.requests.append(request)
        return "the cloud knows"

    @property
    def reasons(self) -> list[str]:
        return [request.reason for request in self.requests]


async def test_a_prompt_that_the_server_finds_too_long_is_a_context_budget_with_or_without_a_fallback(
    live: Live,
) -> None:
    ask, cloud = "word " * (CONTEXT + 100), Cloud()
    # The window says more than the server has, so that it is the server who refuses.
    alone = an_agent(live.model(), name="alone", loop=Conductor(window=8 * CONTEXT))
    backed = an_agent(live.model(), name="backed", loop=Conductor(window=8 * CONTEXT), fallback=cloud)
    async with open_runtime(alone, backed) as runtime:
        without = await runtime.run(ask, agent=alone)
        answered = await runtime.run(ask, agent=backed)

    hold_end(without)
    assert (without.reason, without.text, without.best_effort) == ("context-budget", "", False)
    hold_accounts(answered)
    assert (answered.reason, answered.text, answered.handled_by) == ("context-budget", "the cloud knows", "cloud")
    assert cloud.reasons == ["context-budget"]
    for result in (without, answered):
        (call,) = calls_of(result)  # the same prompt would be refused again
        assert call.error.startswith("ContextOverflow: ")
        assert call.usage is None


async def test_a_server_that_dies_in_the_middle_of_a_reply_and_stays_dead_leaves_the_answer_to_the_fallback() -> None:
    cloud = Cloud()
    async with open_local_server(n_parallel=1, context=256) as server:
        agent = an_agent(
            a_model(server, retries=1), extensions=[Endless()], fallback=cloud, loop=Conductor(window=1024)
        )
        async with open_runtime(agent) as runtime:
            run = runtime.submit(LONG)
            await first_text(run)
            os.kill(server.pid, signal.SIGKILL)
            with trio.fail_after(PATIENCE):
                broken = await run.wait()
                refused = await runtime.run("Say hello.")

    for result in (broken, refused):
        hold_accounts(result)
        assert (result.status, result.reason, result.text) == ("completed", "model-unavailable", "the cloud knows")
        assert result.handled_by == "cloud"
    assert cloud.reasons == ["model-unavailable"] * 2
    # Text was out, so nothing is repeated: it is withdrawn.
    assert [event.text for event in of_kind(broken, Retraction)] == [""]
    assert [(event.role, event.attempt) for event in of_kind(broken, ModelFinished)] == [("answer", 0)]
    # Nothing was out, so the attempt is repeated as often as the model says.
    assert [(event.role, event.attempt) for event in of_kind(refused, ModelFinished)] == [("answer", 0), ("answer", 1)]
    assert all(event.error.startswith("ModelUnavailable: ") for event in of_kind(refused, ModelFinished))


# --- the guide and the command line ---------------------------------------------------------------------------------

_MODULE = """\
from goliath_actors import Agent, Conductor, Extension
from goliath_actors.hooks import RunPatch
from goliath_actors.testing import ScriptedModel


class Short(Extension):
    name = "short"

    def before_run(self, ctx, question):
        return RunPatch(settings={"temperature": 0, "max_tokens": 16})


agent = Agent(model=ScriptedModel([]), instructions="Be short.", extensions=[Short()])
"""


async def test_the_chat_command_answers_each_line_with_a_model_server_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "house.py").write_text(_MODULE)
    command = [sys.executable, "-m", "goliath_actors", "chat", "house:agent", "--model", "local"]
    with trio.fail_after(PATIENCE):
        done = await trio.run_process(
            command,
            stdin=b"Say hello.\nWhat is the capital of France?\n",
            cwd=tmp_path,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
    told = done.stderr.decode()
    assert done.returncode == 0, told
    assert len(done.stdout.decode().strip().splitlines()) >= 2
    assert "model: gemma-3-270m at http://127.0.0.1:" in told.replace("\n  ", " ")


async def test_the_program_in_the_guide_answers(guide: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    with trio.fail_after(PATIENCE):
        await guide["main"]()
    printed = capsys.readouterr().out.strip()
    assert printed
    assert printed not in REASONS
    assert not printed.startswith("install:")
