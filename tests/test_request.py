"""One model request: hooks around it, its stream, retries, usage, and whose fault a failure is."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from goliath_actors import Agent, Conductor, Extension, Message, RunAborted, ToolFailure, ToolLoop, open_runtime, tool
from goliath_actors._provider import describe
from goliath_actors._stream import Screen
from goliath_actors.abc import (
    ModelDone,
    ModelRequest,
    ModelResponse,
    ModelText,
    ModelToolCall,
    ModelUsage,
)
from goliath_actors.errors import (
    BadRequest,
    ConfigError,
    FallbackError,
    GoliathBudgetError,
    GoliathExtensionError,
    ModelError,
    ModelUnavailable,
    RateLimited,
    ReentrantRun,
    Refused,
    ScriptExhausted,
    StoreError,
)
from goliath_actors.events import (
    Answer,
    HookDecision,
    ModelFinished,
    ModelStarted,
    Retraction,
    TextDelta,
)
from goliath_actors.hooks import ModelPatch, PlanPatch, RunPatch
from goliath_actors.stores import InMemoryStore
from goliath_actors.testing import Gate, Journal, ScriptedModel, check_events
from goliath_actors.values import FallbackRequest, RunResult, ToolCall, Usage

from .planned import ANSWER, end, memory_of, planned, prompt, reasons, requests, run, told, use

DONE = ModelDone()


@attrs.define(eq=False)
class Played:
    """One generation: what it yields, and what it raises on entering, in the middle and on leaving."""

    events: Sequence[Any] = (DONE,)
    enter: Exception | None = None
    middle: Exception | None = None
    leave: Exception | None = None
    wait: Gate | None = None
    swallows: bool = False
    converts: Callable[[Exception], Exception] | None = None


@attrs.define(eq=False)
class PlayedModel:
    """A model that plays generations and records how each was left."""

    played: list[Played]
    name: str = "played"
    retries: Any = 0
    requests: list[ModelRequest] = attrs.Factory(list)
    closed: int = 0
    times: list[float] = attrs.Factory(list)

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        self.requests.append(request)
        self.times.append(trio.current_time())
        now = self.played.pop(0)
        await trio.lowlevel.checkpoint()
        if now.enter is not None:
            raise now.enter
        try:
            yield self._events(now)
        except Exception as error:
            if now.converts is not None:
                raise now.converts(error) from error
            if not now.swallows:
                raise
        finally:
            self.closed += 1
        if now.leave is not None:
            raise now.leave

    async def _events(self, now: Played) -> AsyncIterator[Any]:
        for event in now.events:
            await trio.lowlevel.checkpoint()
            yield event
        if now.wait is not None:
            await now.wait.pass_through()
        if now.middle is not None:
            raise now.middle


def agent_of(model: Any, **options: Any) -> Agent[Any]:
    return attrs.evolve(planned([], **options), model=model)


def text(*pieces: str, finish: str = "stop") -> list[Any]:
    return [*(ModelText(piece) for piece in pieces), ModelDone(finish)]


class Cloud:
    """A fallback that counts."""

    def __init__(self) -> None:
        self.requests: list[FallbackRequest] = []

    async def __call__(self, request: FallbackRequest) -> str:
        await trio.lowlevel.checkpoint()
        self.requests.append(request)
        return "cloud"


async def streamed(agent: Agent[Any], ask: str = "hello", **options: Any) -> tuple[RunResult, list[Any]]:
    """Run one ask and return its result with every event, deltas included."""
    async with open_runtime(agent) as runtime:
        async with runtime.stream(ask, **options) as envelope:
            events = [event async for event in envelope.events()]
            result = await envelope.wait()
    check_events(events)
    return result, events


def shown(events: Sequence[Any]) -> list[str]:
    """What a reader sees: pieces of text, retractions in brackets."""
    return [
        f"[{event.text}]" if isinstance(event, Retraction) else event.text
        for event in events
        if isinstance(event, TextDelta | Retraction)
    ]


@tool
async def read() -> str:
    """Read the list."""
    return "milk"


# --- streaming and usage --------------------------------------------------------------------------------------------


async def test_only_answers_stream_their_text() -> None:
    agent = planned(ScriptedModel([use("read"), ANSWER, "all done"], chunk=3), tools=[read])
    result, events = await streamed(agent)
    assert "".join(shown(events)) == "all done"
    assert [event.role for event in told(result, ModelStarted)] == ["plan", "plan", "answer"]
    assert [event.role for event in told(result, ModelFinished)] == ["plan", "plan", "answer"]


async def test_the_latest_usage_of_a_call_counts_and_calls_are_summed() -> None:
    totals = [ModelUsage(Usage(output_tokens=n)) for n in (1, 2, 3)]
    last = ModelUsage(Usage(input_tokens=10, output_tokens=3))
    model = PlayedModel([Played([ModelText("  "), *totals, last, DONE]), Played([ModelText("b"), last, DONE])])
    result = await run(agent_of(model))
    assert result.usage == Usage(input_tokens=20, output_tokens=6)
    assert [event.usage for event in told(result, ModelFinished)] == [Usage(input_tokens=10, output_tokens=3)] * 2


async def test_usage_that_is_not_reported_is_estimated_from_what_was_counted() -> None:
    result = await run(planned(["four words of text"], token_counter=lambda text: len(text.split())))
    (usage,) = [event.usage for event in told(result, ModelFinished)]
    assert usage is not None
    assert (usage.output_tokens, usage.estimated) == (4, True)
    assert usage.input_tokens == told_budget(result)
    assert result.usage == usage


def told_budget(result: RunResult) -> int:
    from goliath_actors.events import Budget

    return told(result, Budget)[0].tokens


async def test_a_call_that_failed_after_some_output_is_booked_and_one_that_never_began_is_not() -> None:
    broke = Played([ModelText("some words")], middle=ModelUnavailable("reset"))
    result = await run(agent_of(PlayedModel([broke])))
    assert result.usage.estimated
    assert result.usage.output_tokens > 0
    result = await run(agent_of(PlayedModel([Played(enter=ModelUnavailable("refused"))])))
    assert result.usage == Usage()


async def test_a_call_that_was_aborted_is_finished_and_booked() -> None:
    gate = Gate()
    model = PlayedModel([Played([ModelText("some words")], wait=gate)])
    async with open_runtime(agent_of(model)) as runtime:
        envelope = runtime.submit("hello")
        await gate.wait_reached()
        envelope.abort()
        with pytest.raises(RunAborted):
            await envelope.wait()
    outcome = envelope.outcome
    assert outcome is not None
    (finished,) = told(outcome, ModelFinished)
    assert (finished.error, model.closed) == ("cancelled", 1)
    assert outcome.usage.output_tokens > 0
    assert outcome.usage.estimated


async def test_a_counter_that_fails_while_booking_is_replaced_by_the_estimate() -> None:
    def count(text: str) -> int:
        if text == "done":
            raise RuntimeError("not now")
        return 10

    result = await run(planned(["done"], token_counter=count))
    assert result.usage == Usage(input_tokens=18, output_tokens=2, estimated=True)


# --- whose fault ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "played",
    [
        Played(enter=OSError("boom")),
        Played([ModelText("x")], middle=OSError("boom")),
        Played(text("x"), leave=OSError("boom")),
        Played([ModelText("x")], middle=ValueError("inner"), converts=lambda error: OSError("boom")),
        Played([ModelText("x")], middle=OSError("boom"), swallows=True),
        Played(enter=ExceptionGroup("one", [ExceptionGroup("two", [OSError("boom")])])),
    ],
    ids=["enter", "middle", "leave", "converted", "swallowed", "grouped"],
)
async def test_whatever_leaves_a_model_call_is_the_providers_failure(played: Played) -> None:
    cloud = Cloud()
    result = await run(agent_of(PlayedModel([played]), fallback=cloud))
    assert (result.reason, result.handled_by) == ("model-error", "cloud")
    assert cloud.requests[0].error == "OSError: boom"
    assert [event.error for event in told(result, ModelFinished)] == ["OSError: boom"]


FOREIGN = [
    GoliathBudgetError("answer", 9, 3),
    GoliathExtensionError("theirs", "before_tool", "a hook of a runtime inside the model"),
    ConfigError("no such deployment"),
    StoreError("the cache is gone"),
    ReentrantRun(("a", "b", "a")),
    RunAborted("deadline", "inner", "plan"),
    ToolFailure("no"),
    FallbackError("blank"),
    KeyError("choices"),
]


@pytest.mark.parametrize("hooked", [False, True], ids=["bare", "around_model"])
@pytest.mark.parametrize("error", FOREIGN, ids=lambda error: type(error).__name__)
async def test_an_error_of_any_type_out_of_a_model_is_the_providers_failure(error: Exception, hooked: bool) -> None:
    class Around(Extension[Any]):
        name = "around"

        async def around_model(self, ctx: Any, question: Any, call_next: Any) -> None:
            await call_next()

    around = [Around()] if hooked else []
    cloud, heard = Cloud(), Journal()
    agent = agent_of(PlayedModel([Played(enter=error)]), fallback=cloud, extensions=[*around, heard])
    result = await run(agent)
    assert (result.reason, result.handled_by) == ("model-error", "cloud")
    assert cloud.requests[0].error == describe(error)
    assert heard.rows.count("on_error") == 0

    ending = await end(attrs.evolve(agent_of(PlayedModel([Played(enter=error)]), extensions=around), loop=ToolLoop()))
    assert ending.error is error
    assert ending.origin == "model"


async def test_a_strict_budget_is_not_what_a_model_says_of_one() -> None:
    error = GoliathBudgetError("answer", 9, 3)
    result = await run(agent_of(PlayedModel([Played(enter=error)]), loop=Conductor(strict_budget=True)))
    assert (result.text, result.reason) == ("", "model-error")


async def test_what_an_extension_raises_around_a_model_stays_its_own() -> None:
    class Wrapping(Extension[Any]):
        name = "wrapping"

        async def around_model(self, ctx: Any, question: Any, call_next: Any) -> None:
            try:
                await call_next()
            except ConfigError as error:
                raise LookupError("mine") from error

    model = PlayedModel([Played(enter=ConfigError("theirs"))])
    ending = await end(agent_of(model, fallback=Cloud(), extensions=[Wrapping()]))
    assert isinstance(ending.error, GoliathExtensionError)
    assert (ending.error.extension, ending.error.phase, ending.origin) == ("wrapping", "around_model", "extension")


async def test_partial_text_before_a_models_own_extension_error_is_kept_through_the_hooks() -> None:
    heard = Journal()
    error = GoliathExtensionError("theirs", "after_plan", "inside")
    model = PlayedModel([Played([ModelText("half")], middle=error)])
    store = InMemoryStore()
    agent = attrs.evolve(agent_of(model, extensions=[heard]), loop=ToolLoop())
    ending = await end(agent, store=store)
    assert ending.error is error
    # An extension's own error would have ended the asking: nothing that it might have taken out is kept then.
    assert [entry.message.text for entry in (await store.entries("agent")).entries] == ["hello", "half"]


async def test_a_stream_that_ends_without_saying_so_was_cut_off() -> None:
    result = await run(agent_of(PlayedModel([Played([ModelText("half")])])))
    assert result.reason == "model-unavailable"


async def test_something_that_is_no_model_event_is_the_providers_failure() -> None:
    result = await run(agent_of(PlayedModel([Played(["text", DONE])])))
    assert result.reason == "model-error"
    assert "yielded str" in (told(result, ModelFinished)[0].error or "")


WRONG = {
    "text": ModelText(5),  # type: ignore[arg-type]
    "index": ModelToolCall([], "i", "look", "{}"),  # type: ignore[arg-type]
    "id": ModelToolCall(0, 5, "look", "{}"),  # type: ignore[arg-type]
    "name": ModelToolCall(0, "i", 5, "{}"),  # type: ignore[arg-type]
    "arguments": ModelToolCall(0, "i", "look", None),  # type: ignore[arg-type]
    "usage": ModelUsage("12"),  # type: ignore[arg-type]
    "count": ModelUsage(Usage(None, 2)),  # type: ignore[arg-type]
    "finish_reason": ModelDone(5),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("field", WRONG)
async def test_an_event_with_a_field_of_a_wrong_type_is_its_makers_failure(field: str) -> None:
    async def spoil(events: Any, control: Any) -> AsyncIterator[Any]:
        async for event in events:
            if isinstance(event, ModelDone):
                yield WRONG[field]
            yield event

    async def through(events: Any, control: Any) -> AsyncIterator[Any]:
        async for event in events:
            yield event

    for loop in (Conductor(), ToolLoop()):
        for extensions in ([], [_Transform(through)]):
            model = PlayedModel([Played([WRONG[field], DONE])])
            ending = await end(attrs.evolve(agent_of(model, extensions=extensions), loop=loop))
            check_events(ending.trace)
            (finished,) = [event for event in ending.trace if isinstance(event, ModelFinished)]
            assert f"whose {field} is of type" in (finished.error or "")
            if isinstance(loop, ToolLoop):
                assert (type(ending.error), ending.origin) == (ModelError, "model")
            else:
                assert ending.result is not None
                assert ending.result.reason == "model-error"
        ending = await end(attrs.evolve(planned(["x"], extensions=[_Transform(spoil)]), loop=loop))
        check_events(ending.trace)
        assert isinstance(ending.error, GoliathExtensionError)
        assert (ending.error.extension, ending.error.phase) == ("transform", "transform_stream")
        assert f"whose {field} is of type" in str(ending.error)


async def test_a_plain_iterator_without_a_close_method_will_do() -> None:
    class Plain:
        def __init__(self, events: list[Any]) -> None:
            self.left = events[::-1]

        def __aiter__(self) -> Plain:
            return self

        async def __anext__(self) -> Any:
            await trio.lowlevel.checkpoint()
            if not self.left:
                raise StopAsyncIteration
            return self.left.pop()

    class Model:
        name = "plain"

        @asynccontextmanager
        async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
            await trio.lowlevel.checkpoint()
            yield Plain(text("a", "b"))

    assert (await run(agent_of(Model()))).text == "ab"


@pytest.mark.parametrize("swallows", [False, True])
async def test_an_event_callbacks_error_is_never_taken_for_the_providers(swallows: bool) -> None:
    error = LookupError("no room")

    def on_event(event: Any) -> None:
        if isinstance(event, TextDelta):
            raise error

    cloud = Cloud()
    model = PlayedModel([Played(text("x"), swallows=swallows, leave=OSError("closing too"))])
    ending = await end(agent_of(model, fallback=cloud), on_event=on_event)
    assert ending.error is error
    assert (ending.origin, cloud.requests) == ("event", [])


@pytest.mark.parametrize("kind", ["started", "finished"])
async def test_an_error_on_a_model_event_fails_the_run_and_the_call_is_told_as_finished(kind: str) -> None:
    error = LookupError("no room")

    def on_event(event: Any) -> None:
        if event.kind == f"model-{kind}":
            raise error

    ending = await end(planned(["x"]), on_event=on_event)
    assert ending.error is error
    assert len(told(ending, ModelFinished)) == 1


async def test_an_exhausted_script_in_a_group_still_fails_the_run() -> None:
    error = ScriptExhausted("out")
    model = PlayedModel([Played(enter=ExceptionGroup("nursery", [OSError("x"), error]))])
    ending = await end(agent_of(model, fallback=Cloud()))
    assert ending.error is error


async def test_an_exhausted_script_behind_another_error_still_fails_the_run() -> None:
    error = ScriptExhausted("out")
    wrapped = ModelUnavailable("no reply")
    wrapped.__cause__ = error
    ending = await end(agent_of(PlayedModel([Played(enter=wrapped)]), fallback=Cloud()))
    assert ending.error is error


async def test_the_content_filter_is_a_refusal() -> None:
    cloud = Cloud()
    result, events = await streamed(
        agent_of(PlayedModel([Played(text("how to", finish="content_filter"))]), fallback=cloud)
    )
    assert (result.text, result.reason, cloud.requests) == ("", "guardrail", [])
    assert shown(events) == ["how to", "[]"]
    assert told(result, ModelFinished)[0].error == "Refused: the provider's filter ended the reply"


async def test_text_that_was_out_is_withdrawn_when_the_call_fails() -> None:
    cloud = Cloud()
    model = PlayedModel([Played([ModelText("half an")], middle=ModelUnavailable("reset"))], retries=3)
    result, events = await streamed(agent_of(model, fallback=cloud))
    assert shown(events) == ["half an", "[]"]
    assert [event.text for event in told(result, Answer)] == ["cloud"]
    assert len(model.requests) == 1  # never retried once text was out


def test_an_error_is_described_in_one_bounded_line() -> None:
    assert describe(ValueError("x" * 1000)) == "ValueError: " + "x" * 287 + "…"
    assert describe(ValueError()) == "ValueError"


# --- retries (T11) --------------------------------------------------------------------------------------------------


async def test_a_retryable_failure_is_retried_as_often_as_the_model_says(autojump_clock: MockClock) -> None:
    attempts: list[tuple[str, int]] = []

    class Count(Extension[Any]):
        name = "count"

        def before_request(self, ctx: Any, question: Any) -> None:
            attempts.append((question.role, question.attempt))

        async def around_model(self, ctx: Any, question: Any, call_next: Any) -> Any:
            attempts.append(("around", question.attempt))
            return await call_next()

    model = ScriptedModel([ModelUnavailable("1"), ModelUnavailable("2"), "done"], retries=2)
    result = await run(planned(model, extensions=[Count()]))
    assert result.text == "done"
    assert attempts == [(kind, n) for n in range(3) for kind in ("answer", "around")]
    assert [(event.attempt, event.error) for event in told(result, ModelFinished)] == [
        (0, "ModelUnavailable: 1"),
        (1, "ModelUnavailable: 2"),
        (2, None),
    ]
    assert [request.attempt for request in model.requests] == [0, 1, 2]


async def test_after_the_last_retry_the_failure_stands(autojump_clock: MockClock) -> None:
    model = ScriptedModel([ModelUnavailable(str(n)) for n in range(3)], retries=2)
    result = await run(planned(model))
    assert (result.reason, len(model.requests)) == ("model-unavailable", 3)


@pytest.mark.parametrize("error", [BadRequest("key"), Refused("no"), ValueError("odd"), ModelError("x")])
async def test_what_is_not_typed_as_retryable_is_not_retried(error: Exception) -> None:
    model = ScriptedModel([error], retries=5)
    await run(planned(model))
    assert len(model.requests) == 1


@pytest.mark.parametrize("retries", [0, -1, None, "3", 1.5])
async def test_without_retries_of_the_model_there_are_none(retries: Any) -> None:
    model = PlayedModel([Played(enter=ModelUnavailable("x"))], retries=retries)
    await run(agent_of(model))
    assert len(model.requests) == 1


@pytest.mark.parametrize(("after", "least", "most"), [(2, 2, 2), (30.0, 30, 30), (0, 0, 0), (60, 60, 60)])
async def test_a_pause_that_the_provider_asks_for_is_kept(
    after: float, least: float, most: float, autojump_clock: MockClock
) -> None:
    model = PlayedModel([Played(enter=RateLimited("x", retry_after=after)), Played(text("done"))], retries=1)
    result = await run(agent_of(model))
    assert result.text == "done"
    assert least <= model.times[1] - model.times[0] <= most


@pytest.mark.parametrize("after", [-5, math.nan, math.inf, None])
async def test_a_pause_that_is_none_is_replaced_by_jittered_backoff(after: Any, autojump_clock: MockClock) -> None:
    pauses: list[float] = []
    for _ in range(20):
        model = PlayedModel([Played(enter=RateLimited("x", retry_after=after)), Played(text("done"))], retries=1)
        await run(agent_of(model))
        pauses.append(model.times[1] - model.times[0])
    assert all(0 <= pause <= 0.5 for pause in pauses)
    assert max(pauses) - min(pauses) > 0.1


async def test_backoff_grows_and_is_bounded(autojump_clock: MockClock) -> None:
    model = PlayedModel([*(Played(enter=ModelUnavailable("x")) for _ in range(9)), Played(text("done"))], retries=9)
    await run(agent_of(model))
    pauses = [later - earlier for earlier, later in zip(model.times, model.times[1:], strict=False)]
    assert all(pause <= min(8, 0.5 * 2**n) for n, pause in enumerate(pauses))


async def test_a_pause_longer_than_a_minute_is_not_waited_for() -> None:
    model = PlayedModel([Played(enter=RateLimited("x", retry_after=86_400))], retries=3)
    result = await run(agent_of(model))
    assert (result.reason, len(model.requests)) == ("model-error", 1)


async def test_an_abort_during_a_pause_ends_it_at_once(autojump_clock: MockClock) -> None:
    model = PlayedModel([Played(enter=RateLimited("x", retry_after=30)), Played(text("late"))], retries=1)
    async with open_runtime(agent_of(model)) as runtime:
        envelope = runtime.submit("hello")
        await trio.sleep(5)
        envelope.abort()
        await envelope.wait_ended()
        assert trio.current_time() - model.times[0] == pytest.approx(5)
    assert len(model.requests) == 1


async def test_a_dead_kept_connection_is_tried_once_more_even_without_retries() -> None:
    stale = ModelUnavailable("server disconnected", code="stale-connection")
    model = PlayedModel([Played(enter=stale), Played(text("done"))])
    assert (await run(agent_of(model))).text == "done"
    model = PlayedModel([Played(enter=stale), Played(enter=stale)])
    result = await run(agent_of(model))
    assert (result.reason, len(model.requests)) == ("model-unavailable", 2)


async def test_plans_are_retried_too_and_usage_of_each_attempt_is_booked(autojump_clock: MockClock) -> None:
    plan = '{"kind": "answer", "brief": "x"}'
    model = PlayedModel(
        [
            Played([ModelText("{"), ModelUsage(Usage(5, 1))], middle=ModelUnavailable("reset")),
            Played([ModelText(plan), ModelUsage(Usage(5, 7)), DONE]),
            Played([ModelText("done"), ModelUsage(Usage(5, 2)), DONE]),
        ],
        retries=1,
    )
    result = await run(agent_of(model, tools=[read]))
    assert result.text == "done"
    assert result.usage == Usage(15, 10)


# --- before_request -------------------------------------------------------------------------------------------------


class _Messages(Extension[Any]):
    name = "messages"

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self.make = make

    def before_request(self, ctx: Any, question: Any) -> Any:
        return self.make(question)


async def test_messages_may_be_replaced_for_this_request_only() -> None:
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return 10

    hook = _Messages(lambda q: [*q.messages, Message("user", "extra")] if q.role == "plan" else None)
    agent = planned([ANSWER, "done"], tools=[read], extensions=[hook], token_counter=count)
    await run(agent)
    assert [request.messages[-1].text == "extra" for request in requests(agent)] == [True, False]
    assert any("extra" in text for text in counted)


async def test_messages_that_a_hook_made_too_long_are_over_budget() -> None:
    hook = _Messages(lambda q: [*q.messages, Message("user", "x" * 30_000)])
    ending = await end(planned([], extensions=[hook]))
    assert isinstance(ending.error, GoliathBudgetError)


@pytest.mark.parametrize("bad", [[], ["text"], "text", 7])
async def test_what_is_no_list_of_messages_is_the_extensions_error(bad: Any) -> None:
    ending = await end(planned([], extensions=[_Messages(lambda q: bad)]))
    assert isinstance(ending.error, GoliathExtensionError)
    assert ending.error.phase == "before_request"


async def test_calls_in_messages_are_counted_and_counter_failures_after_hooks_are_the_providers() -> None:
    from goliath_actors.values import ToolCall

    def count(text: str) -> int:
        if "attic" in text:
            raise RuntimeError("cannot count that")
        return 10

    call = Message("assistant", "", [ToolCall("c1", "find", '{"place": "attic"}')])
    hook = _Messages(lambda q: [*q.messages, call])
    result = await run(planned([], extensions=[hook], token_counter=count))
    assert result.reason == "model-error"


# --- around_model ---------------------------------------------------------------------------------------------------


class _Around(Extension[Any]):
    name = "around"

    def __init__(self, around: Callable[[Any, Any], Any]) -> None:
        self.around = around

    async def around_model(self, ctx: Any, question: Any, call_next: Any) -> Any:
        return await self.around(question, call_next)


def reply(words: str) -> ModelResponse:
    return ModelResponse(Message("assistant", words))


@pytest.mark.parametrize(
    "response",
    [
        ModelResponse("x"),  # type: ignore[arg-type]
        ModelResponse(Message("assistant", 5)),  # type: ignore[arg-type]
        ModelResponse(Message("assistant", "x", (5,))),  # type: ignore[arg-type]
        ModelResponse(Message("assistant", "x", (ToolCall("a", "look", None),))),  # type: ignore[arg-type]
        ModelResponse(Message("assistant", "x"), usage="12"),  # type: ignore[arg-type]
        ModelResponse(Message("assistant", "x"), usage=Usage(None)),  # type: ignore[arg-type]
        ModelResponse(Message("assistant", "x"), finish_reason=None),  # type: ignore[arg-type]
    ],
)
async def test_a_response_with_a_field_of_a_wrong_type_is_the_extensions_error(response: ModelResponse) -> None:
    async def around(question: Any, call_next: Any) -> ModelResponse:
        await trio.lowlevel.checkpoint()
        return response

    for loop in (Conductor(), ToolLoop()):
        ending = await end(attrs.evolve(planned([], extensions=[_Around(around)]), loop=loop))
        check_events(ending.trace)
        assert isinstance(ending.error, GoliathExtensionError)
        assert (ending.error.extension, ending.error.phase, ending.origin) == ("around", "around_model", "extension")


@pytest.mark.parametrize("message", [Message("user", None), Message("robot", "x")])  # type: ignore[arg-type]
async def test_a_message_with_a_field_of_a_wrong_type_is_the_extensions_error(message: Message) -> None:
    async def around(question: Any, call_next: Any) -> Any:
        return await call_next(ModelPatch(messages=[message]))

    class Giving(Extension[Any]):
        name = "giving"

    def gives(row: str, answer: Any) -> Extension[Any]:
        extension = Giving()
        vars(extension)[row] = lambda ctx, question: answer
        return extension

    for extension, row in (
        (_Around(around), "around_model"),
        (gives("before_request", [message]), "before_request"),
        (gives("before_run", RunPatch(messages=[message])), "before_run"),
    ):
        ending = await end(planned(["x"], extensions=[extension]))
        assert isinstance(ending.error, GoliathExtensionError)
        assert (ending.error.phase, ending.origin) == (row, "extension")


async def test_a_control_that_is_told_no_text_is_the_extensions_error() -> None:
    def saying(*said: Any, retry: bool = False) -> Extension[Any]:
        async def transform(events: Any, control: Any) -> AsyncIterator[Any]:
            async for event in events:
                await (control.retry(*said) if retry else control.abort(*said))
                yield event

        return _Transform(transform)

    for extension in (saying(None), saying("why", 5), saying("why", "blocked", 5), saying(5, retry=True)):
        ending = await end(planned(["x"], extensions=[extension]))
        assert isinstance(ending.error, GoliathExtensionError)
        assert (ending.error.phase, ending.origin) == ("transform_stream", "extension")


async def test_a_model_may_be_wrapped_observed_and_patched() -> None:
    seen: list[Any] = []

    async def around(question: Any, call_next: Any) -> Any:
        response = await call_next(
            ModelPatch(settings={"temperature": 0}, provider_options={"seed": 7}, messages=[Message("user", "short")])
        )
        seen.append((response.message.text, response.finish_reason))
        return response

    agent = planned(["done"], extensions=[_Around(around)])
    await run(agent)
    (request,) = requests(agent)
    assert (dict(request.settings), dict(request.provider_options)) == ({"temperature": 0}, {"seed": 7})
    assert [message.text for message in request.messages] == ["short"]
    assert seen == [("done", "stop")]


async def test_a_patch_with_a_model_starts_afresh_and_one_without_merges() -> None:
    # T10
    other = ScriptedModel(["from the other"])

    class Settings(Extension[Any]):
        name = "settings"

        def before_run(self, ctx: Any, question: Any) -> RunPatch:
            return RunPatch(settings={"temperature": 1, "top_p": 1}, provider_options={"a": 1})

    async def merge(question: Any, call_next: Any) -> Any:
        return await call_next(ModelPatch(settings={"temperature": 0}))

    async def route(question: Any, call_next: Any) -> Any:
        return await call_next(ModelPatch(model=other, settings={"max": 1}))

    agent = planned(["here"], extensions=[Settings(), _Around(merge)])
    await run(agent)
    assert dict(requests(agent)[0].settings) == {"temperature": 0, "top_p": 1}
    assert dict(requests(agent)[0].provider_options) == {"a": 1}

    agent = planned([], extensions=[Settings(), _Around(route)])
    assert (await run(agent)).text == "from the other"
    assert (dict(other.requests[0].settings), dict(other.requests[0].provider_options)) == ({"max": 1}, {})


async def test_a_plan_patch_may_route_one_planning_attempt() -> None:
    planner = ScriptedModel([ANSWER])

    class Route(Extension[Any]):
        name = "route"

        def before_plan(self, ctx: Any, question: Any) -> PlanPatch:
            return PlanPatch(model=planner, messages=[Message("user", "think first")])

    agent = planned(["done"], tools=[read], extensions=[Route()])
    assert (await run(agent)).text == "done"
    assert [message.text for message in planner.requests[0].messages][1] == "think first"
    assert [request.role for request in requests(agent)] == ["answer"]


@pytest.mark.parametrize(
    "patch",
    [
        "no patch",
        ModelPatch(messages=[]),
        ModelPatch(messages=["text"]),  # type: ignore[list-item]  # the mistake under test
        ModelPatch(model="gpt"),  # type: ignore[arg-type]  # the mistake under test
        ModelPatch(settings=["x"]),  # type: ignore[arg-type]  # the mistake under test
        ModelPatch(provider_options=7),  # type: ignore[arg-type]  # the mistake under test
        ModelPatch(timeout=0),
        ModelPatch(timeout=True),
        ModelPatch(timeout=math.nan),
    ],
)
async def test_a_patch_that_cannot_be_used_is_the_extensions_error(patch: Any) -> None:
    async def around(question: Any, call_next: Any) -> Any:
        return await call_next(patch)

    cloud = Cloud()
    ending = await end(planned([], extensions=[_Around(around)], fallback=cloud))
    assert isinstance(ending.error, GoliathExtensionError)
    assert isinstance(ending.error.__cause__, ValueError)
    assert (ending.error.phase, ending.origin, cloud.requests) == ("around_model", "extension", [])


async def test_patched_messages_must_fit_too() -> None:
    async def around(question: Any, call_next: Any) -> Any:
        return await call_next(ModelPatch(messages=[Message("user", "x" * 30_000)]))

    ending = await end(planned([], extensions=[_Around(around)]))
    assert isinstance(ending.error, GoliathBudgetError)
    result = await run(planned([], extensions=[_Around(around)], loop=Conductor(strict_budget=False)))
    assert result.reason == "context-budget"


async def test_patched_messages_that_cannot_be_counted_are_the_providers_failure() -> None:
    async def around(question: Any, call_next: Any) -> Any:
        return await call_next(ModelPatch(messages=[Message("user", "uncountable")]))

    def count(text: str) -> int:
        return -1 if "uncountable" in text else 10

    result = await run(planned([], extensions=[_Around(around)], token_counter=count))
    assert result.reason == "model-error"


async def test_a_patched_time_limit_makes_the_model_unavailable(autojump_clock: MockClock) -> None:
    async def around(question: Any, call_next: Any) -> Any:
        return await call_next(ModelPatch(timeout=5))

    async def slow(request: Any) -> str:
        await trio.sleep(60)
        return "late"

    result = await run(planned([slow], extensions=[_Around(around)]))
    assert result.reason == "model-unavailable"
    assert [(event.error, event.seconds) for event in told(result, ModelFinished)] == [
        ("ModelUnavailable: no complete reply within 5 s", 5)
    ]


async def test_a_hook_that_answers_alone_makes_no_call_and_its_text_streams() -> None:
    async def around(question: Any, call_next: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return reply("from the cache")

    result, events = await streamed(planned([], extensions=[_Around(around)]))
    assert result.text == "from the cache"
    assert shown(events) == ["from the cache"]
    assert told(result, ModelStarted) == []


async def test_a_different_answer_withdraws_what_was_streamed() -> None:
    async def around(question: Any, call_next: Any) -> Any:
        response = await call_next()
        return attrs.evolve(response, message=Message("assistant", response.message.text.upper()))

    result, events = await streamed(planned(["loud"], extensions=[_Around(around), _Brackets()]))
    assert shown(events) == ["<loud>", "[]", "<<LOUD>>"]
    assert result.text == "<<LOUD>>"
    assert result.usage.estimated


class _Brackets(Extension[Any]):
    name = "brackets"

    async def transform_stream(self, ctx: Any, events: Any, control: Any) -> AsyncIterator[Any]:
        async for event in events:
            yield ModelText(f"<{event.text}>") if isinstance(event, ModelText) else event


async def test_a_second_call_withdraws_what_the_first_streamed() -> None:
    async def around(question: Any, call_next: Any) -> Any:
        await call_next()
        return await call_next()

    agent = planned(["first", "second"], extensions=[_Around(around)])
    result, events = await streamed(agent)
    assert shown(events) == ["first", "[]", "second"]
    assert result.text == "second"
    assert len(told(result, ModelFinished)) == 2


async def test_a_hook_may_recover_from_a_failed_call() -> None:
    async def around(question: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except ModelError:
            return await call_next()

    agent = planned([ModelUnavailable("x"), "done"], extensions=[_Around(around)])
    assert (await run(agent)).text == "done"


async def test_an_error_of_the_hooks_own_is_the_extensions_and_no_outage() -> None:
    async def around(question: Any, call_next: Any) -> Any:
        await call_next()
        raise ModelUnavailable("I say so")

    cloud = Cloud()
    store = InMemoryStore()
    ending = await end(planned(["done"], extensions=[_Around(around)], fallback=cloud), store=store)
    assert isinstance(ending.error, GoliathExtensionError)
    assert (ending.error.extension, ending.error.phase, cloud.requests) == ("around", "around_model", [])
    assert (await store.load("agent")).failures == 0


async def test_a_models_error_that_a_hook_lets_through_stays_the_models() -> None:
    async def around(question: Any, call_next: Any) -> Any:
        return await call_next()

    result = await run(planned([ModelUnavailable("x")], extensions=[_Around(around)], fallback=Cloud()))
    assert (result.reason, result.handled_by) == ("model-unavailable", "cloud")


async def test_a_hook_cannot_make_an_event_callbacks_error_unsaid() -> None:
    async def around(question: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except LookupError:
            return reply("as if nothing had happened")

    error = LookupError("no room")

    def on_event(event: Any) -> None:
        if isinstance(event, TextDelta):
            raise error

    ending = await end(planned(["x"], extensions=[_Around(around)]), on_event=on_event)
    assert ending.error is error
    assert ending.origin == "event"


async def test_a_hook_cannot_make_a_transforms_error_unsaid() -> None:
    async def around(question: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except Exception as error:
            raise ValueError("something else") from error

    async def broken(events: Any, control: Any) -> AsyncIterator[Any]:
        async for event in events:
            raise LookupError("mine")
            yield event

    ending = await end(planned(["x"], extensions=[_Around(around), _Transform(broken)]))
    assert isinstance(ending.error, GoliathExtensionError)
    assert (ending.error.extension, ending.error.phase) == ("transform", "transform_stream")


async def test_a_transform_may_end_an_answer_that_a_hook_gave() -> None:
    async def around(question: Any, call_next: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return reply("a bad answer")

    result = await run(planned([], extensions=[_Around(around), _aborting("bad")]))
    assert result.text == "Let us not."
    assert result.responded is not None


# --- after_response -------------------------------------------------------------------------------------------------


async def test_after_response_hears_every_terminal_message_and_failure(autojump_clock: MockClock) -> None:
    journal = Journal()
    model = ScriptedModel([ModelUnavailable("x"), "done"], retries=1, usage=Usage(3, 2))
    await run(planned(model, extensions=[journal]))
    heard = [question for row, _, question in journal.questions if row == "after_response"]
    assert [(q.role, q.message, str(q.error or ""), q.usage) for q in heard] == [
        ("answer", None, "x", None),
        ("answer", Message("assistant", "done"), "", Usage(3, 2)),
    ]


# --- transform_stream -----------------------------------------------------------------------------------------------


class _Transform(Extension[Any]):
    name = "transform"

    def __init__(self, transform: Callable[[Any, Any], AsyncIterator[Any]]) -> None:
        self.transform = transform

    def transform_stream(self, ctx: Any, events: Any, control: Any) -> AsyncIterator[Any]:
        return self.transform(events, control)


async def test_what_a_transform_lets_through_is_what_is_shown_answered_and_saved() -> None:
    async def censor(events: Any, control: Any) -> AsyncIterator[Any]:
        async for event in events:
            if isinstance(event, ModelText):  # keeps usage and the end back: both are the provider's
                yield ModelText(event.text.replace("secret", "***"))

    store = InMemoryStore()
    agent = planned(ScriptedModel(["the secret word"], usage=Usage(1, 1)), extensions=[_Transform(censor)])
    async with open_runtime(agent, store=store) as runtime:
        async with runtime.stream("hello") as envelope:
            events = [event async for event in envelope.events()]
            result = await envelope.wait()
    assert shown(events) == ["the *** word"]
    assert result.text == "the *** word"
    assert result.usage == Usage(1, 1)
    assert (await memory_of(store, agent)).recent[0].answer == "the *** word"


async def test_a_transform_may_end_the_reply_early_or_have_no_opinion() -> None:
    async def first(events: Any, control: Any) -> AsyncIterator[Any]:
        async for event in events:
            yield event
            return

    model = PlayedModel([Played(text("one", "two", "three"))])
    agent = agent_of(model, extensions=[_Transform(first), _Silent(first)])
    result = await run(agent)
    assert (result.text, model.closed) == ("one", 1)


class _Silent(_Transform):
    name = "silent"

    def transform_stream(self, ctx: Any, events: Any, control: Any) -> Any:
        return None


async def test_a_transform_may_swallow_a_models_error() -> None:
    async def patient(events: Any, control: Any) -> AsyncIterator[Any]:
        try:
            async for event in events:
                yield event
        except ModelError:
            yield ModelText(" (cut off)")

    model = PlayedModel([Played([ModelText("half")], middle=ModelUnavailable("reset"))])
    result = await run(agent_of(model, extensions=[_Transform(patient)]))
    assert (result.text, result.reason) == ("half (cut off)", None)


async def test_a_transforms_error_is_the_extensions() -> None:
    async def broken(events: Any, control: Any) -> AsyncIterator[Any]:
        async for event in events:
            yield event
            raise ModelUnavailable("I say so")

    cloud = Cloud()
    model = PlayedModel([Played(text("a", "b"), swallows=True)])
    ending = await end(agent_of(model, extensions=[_Transform(broken)], fallback=cloud))
    assert isinstance(ending.error, GoliathExtensionError)
    assert (ending.error.phase, cloud.requests, model.closed) == ("transform_stream", [], 1)


async def test_a_transform_that_yields_something_else_is_the_extensions_error() -> None:
    async def odd(events: Any, control: Any) -> AsyncIterator[Any]:
        async for event in events:
            yield event.finish_reason if isinstance(event, ModelDone) else event

    ending = await end(planned(["x"], extensions=[_Transform(odd)]))
    assert isinstance(ending.error, GoliathExtensionError)
    assert "yielded str" in str(ending.error)


def _aborting(word: str, replacement: str = "Let us not.") -> Extension[Any]:
    async def guard(events: Any, control: Any) -> AsyncIterator[Any]:
        async for event in events:
            if isinstance(event, ModelText) and word in event.text:
                await control.abort("policy", replacement=replacement)
            yield event

    return _Transform(guard)


async def test_an_aborted_stream_is_replaced_retracted_transformed_and_saved() -> None:
    class Sign(Extension[Any]):
        name = "sign"

        def after_answer(self, ctx: Any, question: Any) -> str:
            return question.text + " (signed)"

    store = InMemoryStore()
    model = PlayedModel([Played(text("well, ", "bad", " more"))])
    agent = agent_of(model, extensions=[_aborting("bad"), Sign()])
    async with open_runtime(agent, store=store) as runtime:
        async with runtime.stream("hello") as envelope:
            events = [event async for event in envelope.events()]
            result = await envelope.wait()
    check_events(events)
    assert shown(events) == ["well, ", "[Let us not.]"]
    assert (result.status, result.text, result.reason) == ("completed", "Let us not. (signed)", None)
    assert result.responded is not None
    assert attrs.astuple(result.responded) == ("transform", "transform_stream", "policy", "blocked")
    assert [(e.extension, e.decision, e.reason) for e in told(result, HookDecision)] == [
        ("transform", "abort", "policy")
    ]
    assert (await memory_of(store, agent)).recent[0].answer == "Let us not. (signed)"
    assert model.closed == 1
    assert result.usage.output_tokens > 0


async def test_an_aborted_stream_with_nothing_out_retracts_nothing() -> None:
    result, events = await streamed(planned(["bad"], extensions=[_aborting("bad")]))
    assert shown(events) == []
    assert result.text == "Let us not."


async def test_an_aborted_stream_without_a_replacement_ends_empty_and_says_why() -> None:
    store = InMemoryStore()
    result = await run(planned(["bad"], extensions=[_aborting("bad", "")]), store=store)
    assert (result.text, result.reason) == ("", "blocked")
    assert result.responded is not None
    assert (await store.load("agent")).entries_count == 0


async def test_an_aborted_best_effort_is_replaced_too() -> None:
    result = await run(planned(["bad"], extensions=[_aborting("bad")], loop=Conductor(max_steps=0)))
    assert (result.text, result.reason) == ("Let us not.", "too-many-steps")


async def test_after_response_hears_a_reply_that_was_cut_short() -> None:
    journal = Journal()
    await run(planned(["bad"], extensions=[_aborting("bad"), journal]))
    heard = [question for row, _, question in journal.questions if row == "after_response"]
    assert [(q.message.text, q.error) for q in heard] == [("bad", None)]


def _rejecting(word: str) -> Extension[Any]:
    async def guard(events: Any, control: Any) -> AsyncIterator[Any]:
        async for event in events:
            if isinstance(event, ModelText) and word in event.text:
                await control.retry("Say it kindly.")
            yield event

    return _Transform(guard)


async def test_a_rejected_stream_is_asked_for_again_with_the_feedback() -> None:
    model = ScriptedModel(["so rude", "so kind"], chunk=3)
    agent = planned(model, extensions=[_rejecting("rud")])
    result, events = await streamed(agent)
    assert result.text == "so kind"
    assert shown(events)[:2] == ["so ", "[]"]
    assert "".join(shown(events)[2:]) == "so kind"
    assert "Say it kindly." in prompt(agent, 1)


async def test_rejections_have_a_budget_and_then_escalate() -> None:
    cloud = Cloud()
    agent = planned(["rude"] * 3, extensions=[_rejecting("rude")], fallback=cloud)
    result = await run(agent)
    assert (result.reason, len(requests(agent))) == ("answer-invalid", 3)
    assert cloud.requests[0].error == "Say it kindly."
    agent = planned(["rude"], extensions=[_rejecting("rude")], loop=Conductor(hook_retries=0))
    result = await run(agent)
    assert (result.text, reasons(result)) == ("", ["answer-invalid"])


async def test_a_model_that_fails_to_close_after_an_abort_changes_nothing() -> None:
    class Cross:
        name = "cross"

        @asynccontextmanager
        async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
            async def events() -> AsyncIterator[Any]:
                await trio.lowlevel.checkpoint()
                yield ModelText("bad")
                yield DONE

            await trio.lowlevel.checkpoint()
            try:
                yield events()
            finally:
                raise OSError("reset on closing")

    result = await run(agent_of(Cross(), extensions=[_aborting("bad")]))
    assert result.text == "Let us not."


# --- native calls in replies ----------------------------------------------------------------------------------------


async def test_calls_are_assembled_in_order_and_get_ids_of_their_own() -> None:
    responses: list[ModelResponse] = []

    async def around(question: Any, call_next: Any) -> Any:
        responses.append(await call_next())
        return responses[-1]

    events = [
        ModelToolCall(0, None, "find", '{"a"'),
        ModelToolCall(1, "x", "find", "{}"),
        ModelToolCall(0, None, None, ": 1}"),
        ModelToolCall(2, "x", "find", "{}"),
        ModelText("ok"),
        DONE,
    ]
    await run(agent_of(PlayedModel([Played(events)]), extensions=[_Around(around)]))
    calls = responses[0].message.tool_calls
    assert [(call.id, call.name, call.arguments) for call in calls] == [
        ("call-1", "find", '{"a": 1}'),
        ("x", "find", "{}"),
        ("x-2", "find", "{}"),
    ]


async def test_calls_in_a_hooks_answer_pass_the_transforms_as_events() -> None:
    from goliath_actors.values import ToolCall

    seen: list[Any] = []

    async def watch(events: Any, control: Any) -> AsyncIterator[Any]:
        async for event in events:
            seen.append(event)
            yield event

    async def around(question: Any, call_next: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return ModelResponse(Message("assistant", "words", [ToolCall("c", "find", "{}")]), None, "tool_calls")

    await run(planned([], extensions=[_Around(around), _Transform(watch)]))
    assert seen == [ModelText("words"), ModelToolCall(0, "c", "find", "{}"), ModelDone("tool_calls")]


def test_everything_that_costs_tokens_is_counted() -> None:
    from goliath_actors._provider import prompt_parts
    from goliath_actors.abc import ToolSpec
    from goliath_actors.values import ToolCall

    messages = [
        Message("system", "rules"),
        Message("user", "ask"),
        Message("assistant", "", [ToolCall("c", "find", '{"a": 1}')]),
        Message("tool", "found", tool_call_id="c"),
    ]
    system, schemas, text = prompt_parts(messages, {"type": "object"}, [ToolSpec("find", "Find it.", {"x": 1})])
    assert system == "rules"
    assert schemas == '{"type": "object"}\n\nfind Find it. {"x": 1}'
    assert text == 'ask\n\n\n\nfind {"a": 1}\n\nfound'


def test_a_screen_retracts_only_what_is_out() -> None:
    from goliath_actors._journal import RunJournal

    journal = RunJournal("r", None)
    screen = Screen(journal)
    screen.retract("never shown")
    screen.show("a")
    screen.retract("b")
    screen.retract("c")
    assert [event.kind for event in journal.trace] == ["retraction"]


async def test_requests_are_read_only() -> None:
    async def around(question: Any, call_next: Any) -> Any:
        with pytest.raises(TypeError):
            question.request.settings["x"] = 1
        return await call_next()

    assert (await run(planned(["done"], extensions=[_Around(around)]))).text == "done"
