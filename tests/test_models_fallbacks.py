"""Fallbacks: who is asked, when the next one is, and who is left alone for how long."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from goliath_actors import Agent, Conductor, open_runtime
from goliath_actors.abc import Model, ModelDone, ModelEvent, ModelRequest, ModelText, ModelToolCall, ModelUsage
from goliath_actors.errors import (
    BadRequest,
    ConfigError,
    ContextOverflow,
    GoliathExtensionError,
    ModelError,
    ModelUnavailable,
    RateLimited,
    Refused,
    ScriptExhausted,
)
from goliath_actors.models import Fallbacks
from goliath_actors.testing import Gate, ScriptedModel, tool_calls
from goliath_actors.values import Message, Usage

ASK = ModelRequest("answer", (Message("user", "Hello?"),))


async def collect(model: Model, request: ModelRequest = ASK) -> list[ModelEvent]:
    async with model.stream(request) as stream:
        return [event async for event in stream]


async def said(model: Model, request: ModelRequest = ASK) -> str:
    return "".join(event.text for event in await collect(model, request) if isinstance(event, ModelText))


def scripted(name: str, *replies: Any, **options: Any) -> ScriptedModel:
    return ScriptedModel(list(replies), name=name, **options)


@attrs.define(eq=False)
class Played:
    """A model that plays events and errors as they are, one list a call; `open` counts replies that are not closed."""

    script: list[list[ModelEvent | Exception]]
    name: str = "played"
    open: int = 0
    closed: int = 0

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent], None]:
        self.open += 1
        try:
            yield self._play(self.script.pop(0))
        finally:
            self.open -= 1

    async def _play(self, events: list[ModelEvent | Exception]) -> AsyncGenerator[ModelEvent, None]:
        try:
            for event in events:
                await trio.lowlevel.checkpoint()
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            self.closed += 1


def away() -> ModelUnavailable:
    return ModelUnavailable("away")


# Configuration.


@pytest.mark.parametrize(
    ("models", "options", "words"),
    [
        ([], {}, "at least one model"),
        (scripted("a"), {}, "a list of models, not ScriptedModel"),
        (["gpt"], {}, "'gpt' has no stream method"),
        ([ScriptedModel], {}, "has no stream method"),
        (None, {"probe_every": -1}, "probe_every is -1"),
        (None, {"probe_every": float("inf")}, "probe_every is inf"),
        (None, {"probe_every": float("nan")}, "probe_every is nan"),
        (None, {"probe_every": True}, "probe_every is True"),
        (None, {"retries": -1}, "retries is -1"),
        (None, {"retries": 1.0}, "retries is 1.0"),
        (None, {"when": "always"}, "when='always'"),
        (None, {"when": (int,)}, "made of exception types"),
        (None, {"when": (ModelUnavailable, Refused)}, "never taken to another model"),
    ],
)
def test_wrong_configuration_is_refused_at_once(models: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Fallbacks([scripted("a", "x")] if models is None else models, **options)


def test_it_is_a_model_with_the_smallest_window_and_the_largest_count() -> None:
    small, large, unknown = scripted("a", window=100), scripted("b", window=200), scripted("c")
    model = Fallbacks([unknown, large, small])
    assert isinstance(model, Model)
    assert (model.name, model.window, model.retries, model.count_tokens) == ("c", 100, 0, None)
    assert Fallbacks([unknown]).window is None

    class Counting(ScriptedModel):
        def count_tokens(self, text: str) -> int:
            return len(text)

    class Doubling(ScriptedModel):
        def count_tokens(self, text: str) -> int:
            return 2 * len(text)

    count = Fallbacks([Counting([]), unknown, Doubling([])]).count_tokens
    assert count is not None
    assert count("abc") == 6


def test_its_repr_names_the_models_in_order() -> None:
    assert repr(Fallbacks([Played([])])).startswith("Fallbacks([Played(")


# Who is asked.


async def test_the_first_model_that_can_answers_and_the_name_says_which() -> None:
    first, second, third = scripted("a", away(), "A"), scripted("b", "B"), scripted("c")
    model = Fallbacks([first, second, third], probe_every=0)
    assert (await said(model), model.name) == ("B", "b")
    assert (await said(model), model.name) == ("A", "a")
    assert (len(first.requests), len(second.requests), len(third.requests)) == (2, 1, 0)


@pytest.mark.parametrize(
    "error",
    [
        away(),
        ModelUnavailable("for good", retryable=False),
        RateLimited("slow down"),
        RateLimited("no credit", retryable=False, code="insufficient_quota"),
        ExceptionGroup("a nursery inside", [away()]),
    ],
)
async def test_an_outage_lets_the_next_model_be_asked(error: Exception) -> None:
    assert await said(Fallbacks([scripted("a", error), scripted("b", "B")])) == "B"


@pytest.mark.parametrize(
    "error",
    [
        BadRequest("wrong key", status=401),
        Refused("no"),
        ContextOverflow("too long"),
        ModelError("odd"),
        OSError("odd"),
        ScriptExhausted("a test's mistake"),
        GoliathExtensionError("x", "around_model"),
    ],
)
async def test_any_other_error_is_raised_as_the_same_object(error: Exception) -> None:
    second = scripted("b", "B")
    with pytest.raises(type(error)) as caught:
        await said(Fallbacks([scripted("a", error), second]))
    assert caught.value is error
    assert second.requests == []


async def test_types_and_functions_say_otherwise() -> None:
    bad = BadRequest("wrong key")
    assert await said(Fallbacks([scripted("a", bad), scripted("b", "B")], when=BadRequest)) == "B"
    with pytest.raises(ModelUnavailable):
        await said(Fallbacks([scripted("a", away()), scripted("b", "B")], when=(BadRequest,)))
    heard: list[tuple[str, str, str]] = []

    def rule(error: Exception, failed: Model, candidate: Model) -> bool:
        heard.append((str(error), failed.name, candidate.name))
        return candidate.name == "c"

    model = Fallbacks([scripted("a", OSError("odd")), scripted("b", "B"), scripted("c", "C")], when=rule)
    assert await said(model) == "C"
    assert heard == [("odd", "a", "b"), ("odd", "a", "c")]


async def test_an_error_of_a_runtime_inside_a_model_is_one_like_any_other() -> None:
    """C6a: whatever leaves a model is the provider's failure, whatever its type."""
    error = GoliathExtensionError("inside", "before_tool")
    assert await said(Fallbacks([scripted("a", error), scripted("b", "B")], when=GoliathExtensionError)) == "B"


async def test_a_refusal_never_goes_to_another_model_whatever_the_rule_says() -> None:
    hidden = away()
    hidden.__cause__ = ExceptionGroup("inside", [Refused("no")])
    for error in (Refused("no"), hidden, ExceptionGroup("both", [away(), Refused("no")])):
        second = scripted("b", "B")
        with pytest.raises(type(error)) as caught:
            await said(Fallbacks([scripted("a", error), second], when=lambda *_: True))
        assert caught.value is error
        assert second.requests == []


async def test_a_prompt_that_is_too_long_goes_to_a_larger_window_only_where_that_is_asked_for() -> None:
    rules = (ModelUnavailable, ContextOverflow)
    small = scripted("a", ContextOverflow("1"), ContextOverflow("2"), ContextOverflow("3"), window=100)
    same, unknown, large = scripted("b", window=100), scripted("c"), scripted("d", "D", window=101)
    assert await said(Fallbacks([small, same, unknown, large], when=rules)) == "D"
    with pytest.raises(ContextOverflow, match="2"):
        await said(Fallbacks([small, same, unknown], when=rules))
    with pytest.raises(ContextOverflow, match="3"):
        await said(Fallbacks([small, large]))
    assert same.requests == unknown.requests == []


async def test_a_model_whose_window_was_too_small_is_not_passed_over_next_time() -> None:
    small, large = scripted("a", ContextOverflow("x"), "A", window=1), scripted("b", "B", window=2)
    model = Fallbacks([small, large], when=ContextOverflow)
    assert [await said(model), await said(model)] == ["B", "A"]


async def test_the_last_error_is_raised_and_carries_the_others_as_notes() -> None:
    last = RateLimited("slow down")
    long = ModelUnavailable("x" * 400)
    model = Fallbacks([scripted("a", away(), away()), scripted("b", long, long), scripted("c", last, last)])
    for _ in range(2):
        with pytest.raises(RateLimited) as caught:
            await said(model)
        assert caught.value is last
        assert caught.value.__context__ is None
        assert last.__notes__ == [
            "asked before: a: ModelUnavailable: away",
            f"asked before: b: ModelUnavailable: {'x' * 281}…",
        ]


async def test_a_single_model_is_asked_as_if_it_stood_alone() -> None:
    error = away()
    model = Fallbacks([scripted("a", error, "A")])
    with pytest.raises(ModelUnavailable) as caught:
        await said(model)
    assert caught.value is error
    assert not hasattr(error, "__notes__")
    assert await said(model) == "A"


async def test_a_dead_kept_connection_goes_back_to_the_request_room_once() -> None:
    stale = [ModelUnavailable("dead", code="stale-connection") for _ in range(2)]
    first, second = scripted("a", *stale, "A"), scripted("b", "B")
    model = Fallbacks([first, second])
    with pytest.raises(ModelUnavailable) as caught:
        await said(model)
    assert caught.value is stale[0]
    assert await said(model, attrs.evolve(ASK, attempt=1)) == "B"
    assert await said(model) == "A"  # nothing was wrong with the model


async def test_an_empty_reply_goes_to_the_next_model_and_is_not_held_against_the_first() -> None:
    model = Fallbacks([scripted("a", ModelUnavailable("nothing", code="empty"), "A"), scripted("b", "B")])
    assert [await said(model), await said(model)] == ["B", "A"]


# What was let out stays.


@pytest.mark.parametrize("event", [ModelText("Once"), ModelToolCall(0, "1", "f"), ModelDone()])
async def test_nothing_is_asked_again_once_a_piece_of_a_reply_is_out(event: ModelEvent) -> None:
    error = away()
    first, second = Played([[event, error]], name="a"), scripted("b", "B")
    model = Fallbacks([first, second])
    heard: list[ModelEvent] = []
    with pytest.raises(ModelUnavailable) as caught:
        async with model.stream(ASK) as events:
            async for piece in events:
                heard.append(piece)  # what came before the error is the point
    assert caught.value is error
    assert heard == [event]
    assert second.requests == []
    assert (first.open, first.closed) == (0, 1)
    assert await said(model) == "B"  # and the first is passed over now


async def test_tokens_and_blank_text_are_no_piece_and_the_tokens_of_a_failed_model_are_counted() -> None:
    first = Played([[ModelUsage(Usage(5, 1)), ModelUsage(Usage(6, 1)), ModelText(""), away()]])
    second = Played([[ModelUsage(Usage(7)), ModelText("B"), ModelUsage(Usage(7, 3)), ModelDone()]])
    assert await collect(Fallbacks([first, second])) == [
        ModelUsage(Usage(13, 1)),
        ModelText("B"),
        ModelUsage(Usage(13, 4)),
        ModelDone("stop"),
    ]
    assert (first.open, first.closed, second.open, second.closed) == (0, 1, 0, 1)


async def test_a_stream_that_ends_before_it_has_begun_is_an_outage() -> None:
    assert await said(Fallbacks([Played([[]]), scripted("b", "B")])) == "B"
    with pytest.raises(ModelUnavailable) as caught:
        await said(Fallbacks([Played([[ModelUsage(Usage(1))]])]))
    assert caught.value.code == "truncated"


async def test_an_error_of_the_reader_is_no_error_of_the_model() -> None:
    first, second = scripted("a", "A", "again"), scripted("b", "B")
    model = Fallbacks([first, second])
    error = ModelUnavailable("the reader's own")
    with pytest.raises(ModelUnavailable) as caught:
        async with model.stream(ASK):
            raise error
    assert caught.value is error
    assert await said(model) == "again"


async def test_a_model_that_swallows_its_own_error_has_failed_nevertheless() -> None:
    class Silent:
        name = "silent"

        @asynccontextmanager
        async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent], None]:
            try:
                async with Played([[away()]]).stream(request) as events:
                    yield events
            except ModelUnavailable:
                pass

    assert await said(Fallbacks([Silent(), scripted("b", "B")])) == "B"
    with pytest.raises(ModelUnavailable, match="away"):
        await said(Fallbacks([Silent()]))


# Who is left alone, and for how long.


async def test_a_model_that_failed_is_passed_over_until_its_probe(autojump_clock: MockClock) -> None:
    first = scripted("a", away(), away(), "A", "A again")
    model = Fallbacks([first, scripted("b", *"BCDE")], probe_every=300)
    heard = [await said(model), await said(model)]
    await trio.sleep(299.9)
    heard.append(await said(model))
    assert (heard, len(first.requests)) == (["B", "C", "D"], 1)
    await trio.sleep(0.1)
    heard.append(await said(model))  # the probe fails
    await trio.sleep(299.9)
    assert len(first.requests) == 2
    await trio.sleep(0.1)
    assert [*heard, await said(model), await said(model)] == ["B", "C", "D", "E", "A", "A again"]


@pytest.mark.parametrize(("after", "pause"), [(2.0, 2.0), (1000.0, 300.0), (float("nan"), 300.0), (None, 300.0)])
async def test_a_provider_that_names_a_shorter_pause_is_passed_over_for_that(
    after: float | None, pause: float, autojump_clock: MockClock
) -> None:
    first = scripted("a", RateLimited("slow down", retry_after=after), "A")
    model = Fallbacks([first, scripted("b", "B", "C")])
    assert await said(model) == "B"
    await trio.sleep(pause - 0.5)
    assert await said(model) == "C"
    await trio.sleep(0.5)
    assert await said(model) == "A"


async def test_only_one_request_probes_while_the_others_pass_the_model_over(autojump_clock: MockClock) -> None:
    gate = Gate()
    first = scripted("a", away(), gate.then("A"), "A later")
    model = Fallbacks([first, scripted("b", "B", "C", "D")], probe_every=10)
    heard = [await said(model)]
    await trio.sleep(10)
    async with trio.open_nursery() as nursery:

        async def probe() -> None:
            heard.append(await said(model))

        nursery.start_soon(probe)
        await gate.wait_reached()
        heard += [await said(model), await said(model)]
        gate.open()
    assert [*heard, await said(model)] == ["B", "C", "D", "A", "A later"]


async def test_a_probe_that_is_cancelled_leaves_the_next_request_to_probe(autojump_clock: MockClock) -> None:
    gate = Gate()
    first = scripted("a", away(), gate.then("never"), "A")
    model = Fallbacks([first, scripted("b", "B")], probe_every=10)
    assert await said(model) == "B"
    await trio.sleep(10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(said, model)
        await gate.wait_reached()
        nursery.cancel_scope.cancel()
    assert first.active == 0
    assert await said(model) == "A"


async def test_models_that_are_passed_over_are_asked_after_all_others_have_failed() -> None:
    first, second = scripted("a", away(), "A"), scripted("b", "B", away())
    model = Fallbacks([first, second])
    assert [await said(model), await said(model)] == ["B", "A"]
    assert (len(first.requests), len(second.requests)) == (2, 2)


async def test_who_says_that_a_request_is_bad_is_there_again(autojump_clock: MockClock) -> None:
    first = scripted("a", away(), BadRequest("no"), "A")
    model = Fallbacks([first, scripted("b", "B")], probe_every=10)
    assert await said(model) == "B"
    await trio.sleep(10)
    with pytest.raises(BadRequest):
        await said(model)
    assert await said(model) == "A"


async def test_who_is_asked_out_of_turn_and_says_that_a_request_is_bad_has_its_place_again(
    autojump_clock: MockClock,
) -> None:
    first = scripted("a", away(), BadRequest("no"), "A")
    second = scripted("b", "B", RateLimited("slow down", retry_after=1), "B again")
    model = Fallbacks([first, second])
    assert await said(model) == "B"
    with pytest.raises(BadRequest):
        await said(model)
    await trio.sleep(1)
    assert await said(model) == "A"


def test_another_loop_begins_without_what_was_remembered() -> None:
    first = scripted("a", away(), "A")
    model = Fallbacks([first, scripted("b", "B")])
    assert [trio.run(said, model), trio.run(said, model)] == ["B", "A"]


async def test_leaving_early_closes_the_reply_and_says_nothing_about_the_model() -> None:
    first = Played([[ModelText("1"), ModelText("2"), ModelDone()]] * 2)
    model = Fallbacks([first, scripted("b")])
    async with model.stream(ASK) as events:
        assert await anext(events) == ModelText("1")
    assert (first.open, first.closed) == (0, 1)
    with trio.CancelScope() as scope:
        async with model.stream(ASK) as events:
            scope.cancel()
            await anext(events)
    assert scope.cancelled_caught
    assert (first.open, first.closed) == (0, 2)


async def test_a_cancelled_wait_for_the_second_model_closes_it() -> None:
    gate = Gate()
    second = scripted("b", gate.then("B"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(said, Fallbacks([scripted("a", away()), second]))
        await gate.wait_reached()
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert second.active == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.sampled_from(["ok", "out", "bad"]), min_size=6, max_size=6), min_size=1, max_size=4))
def test_every_request_asks_each_model_at_most_once_and_ends_as_the_rules_say(plans: list[list[str]]) -> None:
    words: dict[str, Any] = {"ok": "text", "out": away(), "bad": BadRequest("no")}
    models = [scripted(str(n), *(words[word] for word in plan)) for n, plan in enumerate(plans)]

    async def main() -> None:
        model = Fallbacks(models, probe_every=5)
        for _ in range(6):
            before = [len(inner.requests) for inner in models]
            try:
                assert await said(model) == "text"
                end = "ok"
            except BadRequest:
                end = "bad"
            except ModelUnavailable:
                end = "out"
            asked = [len(inner.requests) - was for inner, was in zip(models, before, strict=True)]
            assert set(asked) <= {0, 1}
            heard = [plans[n][before[n]] for n, times in enumerate(asked) if times]
            if end == "out":
                assert heard == ["out"] * len(models)  # everybody was asked
            else:
                assert [word for word in heard if word != "out"] == [end]
            await trio.sleep(2)

    trio.run(main, clock=MockClock(autojump_threshold=0))


# In a run.


async def test_tool_calls_pass_and_a_run_never_notices() -> None:
    calls = tool_calls(("f", {"x": 1}))
    assert await collect(Fallbacks([scripted("a", away()), scripted("b", calls)])) == [
        ModelToolCall(0, "call-1-1", "f", '{"x": 1}'),
        ModelDone("tool_calls"),
    ]
    first, second = scripted("a", away()), scripted("b", "Hello.")
    async with open_runtime(Agent(model=Fallbacks([first, second]), loop=Conductor())) as runtime:
        result = await runtime.run("Hello?")
    assert (result.text, result.reason, result.handled_by) == ("Hello.", None, "device")
    assert (len(first.requests), len(second.requests)) == (1, 1)


async def test_the_request_room_repeats_the_whole_round(autojump_clock: MockClock) -> None:
    first, second = scripted("a", away(), away()), scripted("b", away(), "Hello.")
    async with open_runtime(Agent(model=Fallbacks([first, second], retries=1), loop=Conductor())) as runtime:
        result = await runtime.run("Hello?")
    assert (result.text, result.reason) == ("Hello.", None)
