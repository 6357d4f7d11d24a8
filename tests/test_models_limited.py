"""Limited: never more than was allowed, first come first served, and nothing lost to a cancellation."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, assert_checkpoints, wait_all_tasks_blocked

from goliath_actors import Agent, Conductor, open_runtime
from goliath_actors.abc import Model, ModelDone, ModelEvent, ModelRequest, ModelText, ModelUsage, ToolSpec
from goliath_actors.errors import ConfigError, ModelUnavailable, RateLimited
from goliath_actors.models import Fallbacks, Limited, LimitedStatistics
from goliath_actors.testing import Gate, ScriptedModel
from goliath_actors.values import Message, ToolCall, Usage

ASK = ModelRequest("answer", (Message("user", "Hello?"),))


def ask(text: str, **fields: Any) -> ModelRequest:
    return ModelRequest("answer", (Message("user", text),), **fields)


async def collect(model: Model, request: ModelRequest = ASK) -> list[ModelEvent]:
    async with model.stream(request) as stream:
        return [event async for event in stream]


@attrs.define(eq=False)
class Timed:
    """Answers after as many seconds as its prompt has letters `.`; notes what began when, and how much at once.

    A token is a letter; the reply reports what `usage` says, if anything.
    """

    usage: Usage | None = None
    error: Exception | None = None
    name: str = "timed"
    window: int | None = None
    retries: int = 0
    began: list[tuple[str, float]] = attrs.field(factory=list)
    ended: list[str] = attrs.field(factory=list)
    open: int = 0
    most: int = 0

    def count_tokens(self, text: str) -> int:
        return len(text)

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent], None]:
        self.began.append((request.text, trio.current_time()))
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            yield self._play(request)
        finally:
            self.open -= 1
            self.ended.append(request.text)

    async def _play(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        await trio.sleep(request.text.count("."))
        if self.error is not None:
            raise self.error
        yield ModelText("ok")
        if self.usage is not None:
            yield ModelUsage(self.usage)
        yield ModelDone()


# Configuration.


@pytest.mark.parametrize("limit", ["in_flight", "rpm", "tpm"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3"])
def test_limits_are_whole_numbers_above_zero(limit: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{limit} is {value!r}"):
        Limited(Timed(), **{limit: value})


def test_what_is_no_model_is_refused() -> None:
    wrong: Any = "gpt"
    with pytest.raises(ConfigError, match="'gpt' has no stream method"):
        Limited(wrong)


def test_it_is_the_model_as_far_as_anybody_asks() -> None:
    model = Limited(Timed(window=100, retries=3), in_flight=2, tpm=5)
    assert isinstance(model, Model)
    assert (model.name, model.window, model.retries) == ("timed", 100, 3)
    assert model.count_tokens is not None
    assert model.count_tokens("abc") == 3
    assert repr(model).endswith(", in_flight=2, tpm=5)")
    plain = Limited(ScriptedModel([]))
    assert (plain.window, plain.retries, plain.count_tokens) == (None, 0, None)


# In flight.


async def test_without_limits_everything_passes_unchanged_and_each_request_is_a_checkpoint() -> None:
    model = Limited(ScriptedModel(["one"], usage=Usage(3, 4)))
    assert await collect(model) == [ModelText("one"), ModelUsage(Usage(3, 4)), ModelDone("stop")]
    assert model.statistics() == LimitedStatistics(0, 0, 0, 0)
    with assert_checkpoints():
        async with Limited(Timed()).stream(ASK):
            pass


async def test_no_more_replies_are_open_than_allowed_and_the_others_wait_in_order(autojump_clock: MockClock) -> None:
    inner = Timed()
    model = Limited(inner, in_flight=2)
    async with trio.open_nursery() as nursery:
        for name in "abcde":
            nursery.start_soon(collect, model, ask(f"{name}.."))
            await wait_all_tasks_blocked()
        assert model.statistics() == LimitedStatistics(2, 3, 0, 0)
    start = inner.began[0][1]
    assert [(name[0], at - start) for name, at in inner.began] == [("a", 0), ("b", 0), ("c", 2), ("d", 2), ("e", 4)]
    assert inner.most == 2
    assert model.statistics() == LimitedStatistics(0, 0, 0, 0)


async def test_the_line_is_one_for_all_agents_and_through_other_models(autojump_clock: MockClock) -> None:
    inner = Timed()
    model = Limited(inner, in_flight=1)
    async with (
        open_runtime(Agent(model=model, loop=Conductor())) as first,
        open_runtime(Agent(model=Fallbacks([model]), loop=Conductor())) as second,
        trio.open_nursery() as nursery,
    ):
        for runtime in (first, second, first, second):
            nursery.start_soon(runtime.run, "Hello.")
    assert (len(inner.ended), inner.most) == (4, 1)


async def test_a_turn_is_given_back_however_the_reply_ends(autojump_clock: MockClock) -> None:
    error = RateLimited("slow down")
    model = Limited(Timed(error=error), in_flight=1)
    with pytest.raises(RateLimited) as caught:
        await collect(model)
    assert caught.value is error
    async with model.stream(ASK):
        pass
    with pytest.raises(KeyError):
        async with model.stream(ASK):
            raise KeyError
    with trio.move_on_after(1) as scope:
        await collect(model, ask("....."))
    assert scope.cancelled_caught

    class Closed:
        name = "closed"

        def stream(self, request: ModelRequest) -> Any:
            raise ModelUnavailable("closed")

    closed = Limited(Closed(), in_flight=1)
    for _ in range(2):
        with pytest.raises(ModelUnavailable):
            await collect(closed)
    assert model.statistics() == closed.statistics() == LimitedStatistics(0, 0, 0, 0)


async def test_the_turn_ends_only_when_the_model_has_closed_its_connection() -> None:
    closing, gate = trio.Event(), trio.Event()

    class Slow(Timed):
        @asynccontextmanager
        async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent], None]:
            async with super().stream(request) as events:
                try:
                    yield events
                finally:
                    with trio.CancelScope(shield=True):
                        closing.set()
                        await gate.wait()

    model = Limited(Slow(), in_flight=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect, model)
        await closing.wait()
        nursery.cancel_scope.cancel()
        assert model.statistics().in_flight == 1
        gate.set()
    assert model.statistics().in_flight == 0


async def test_who_is_cancelled_while_waiting_costs_nobody_else_a_place(autojump_clock: MockClock) -> None:
    inner = Timed()
    model = Limited(inner, in_flight=1)
    scopes: dict[str, trio.CancelScope] = {}

    async def one(name: str) -> None:
        with trio.CancelScope() as scopes[name]:
            await collect(model, ask(f"{name}."))

    async with trio.open_nursery() as nursery:
        for name in "abcdef":
            nursery.start_soon(one, name)
            await wait_all_tasks_blocked()
        scopes["c"].cancel()  # from the middle
        scopes["b"].cancel()  # the head
        await wait_all_tasks_blocked()
        assert model.statistics() == LimitedStatistics(1, 3, 0, 0)
        scopes["a"].cancel()  # the one in flight, and in the same moment
        scopes["d"].cancel()  # the one whose turn that makes it
    assert [name[0] for name, _ in inner.began] == ["a", "e", "f"]
    assert model.statistics() == LimitedStatistics(0, 0, 0, 0)


async def test_a_cancelled_request_takes_no_turn() -> None:
    inner = Timed()
    model = Limited(inner, in_flight=1, rpm=1, tpm=100)
    with trio.CancelScope() as scope:
        scope.cancel()
        await collect(model)
    assert inner.began == []
    assert model.statistics() == LimitedStatistics(0, 0, 0, 0)


async def test_waiting_opens_no_connection_and_runs_against_no_time_out_of_the_model(autojump_clock: MockClock) -> None:
    gate = Gate()
    inner = ScriptedModel([gate.then("first"), "second"])
    model = Limited(inner, in_flight=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect, model)
        await gate.wait_reached()
        nursery.start_soon(collect, model)
        await trio.sleep(1000)
        assert (len(inner.requests), inner.active) == (1, 1)
        gate.open()
    assert len(inner.requests) == 2


# Per minute.


async def test_no_more_requests_begin_within_any_minute(autojump_clock: MockClock) -> None:
    inner = Timed()
    model = Limited(inner, rpm=2)
    start = trio.current_time()
    await collect(model)
    await trio.sleep(50)
    await collect(model)
    await trio.sleep(1)
    assert model.statistics() == LimitedStatistics(0, 0, 2, 0)
    await collect(model)  # not at 60, where a minute on the wall begins, but when the first one is a minute old
    await collect(model)
    await collect(model)
    assert [at - start for _, at in inner.began] == [0, 50, 60, 110, 120]
    await trio.sleep(60)
    assert model.statistics() == LimitedStatistics(0, 0, 0, 0)


async def test_tokens_are_booked_as_an_estimate_and_corrected_by_the_report(autojump_clock: MockClock) -> None:
    inner = Timed(usage=Usage(20, 30, cached_tokens=10))
    model = Limited(inner, tpm=100)
    start = trio.current_time()
    async with model.stream(ask("12345", max_output_tokens=90)) as events:
        assert model.statistics().tokens == 95
        async for _ in events:
            assert model.statistics().tokens == 95  # what is reported before the end is no more than a lower bound
    assert model.statistics().tokens == 50
    await collect(model, ask("1" * 50))
    await collect(model, ask("2"))
    assert [at - start for _, at in inner.began] == [0, 0, 60]


async def test_a_report_of_more_than_was_estimated_counts_at_once(autojump_clock: MockClock) -> None:
    model = Limited(Timed(usage=Usage(70, 10)), tpm=100)
    async with model.stream(ask("1")) as events:
        assert await anext(events) == ModelText("ok")
        assert model.statistics().tokens == 1
        await anext(events)
        assert model.statistics().tokens == 80
    assert model.statistics().tokens == 80


async def test_a_reply_that_failed_or_was_left_keeps_what_it_has_booked() -> None:
    model = Limited(Timed(error=ModelUnavailable("away")), tpm=100)
    with pytest.raises(ModelUnavailable):
        await collect(model, ask("1" * 10))
    async with model.stream(ask("1" * 20)):
        pass
    assert model.statistics().tokens == 30


async def test_what_was_reported_before_a_reply_broke_off_does_not_lower_what_is_booked() -> None:
    model = Limited(Timed(usage=Usage(1, 1)), tpm=100)
    async with model.stream(ask("1" * 20)) as events:
        assert await anext(events) == ModelText("ok")
        assert await anext(events) == ModelUsage(Usage(1, 1))
    assert model.statistics().tokens == 20


async def test_a_request_larger_than_a_minute_allows_waits_for_an_empty_one(autojump_clock: MockClock) -> None:
    inner = Timed()
    model = Limited(inner, tpm=10)
    start = trio.current_time()
    for text in ("1", "2" * 50, "3"):
        await collect(model, ask(text))
    assert [at - start for _, at in inner.began] == [0, 60, 120]


async def test_nobody_overtakes_a_large_request(autojump_clock: MockClock) -> None:
    inner = Timed()
    model = Limited(inner, tpm=10)
    async with trio.open_nursery() as nursery:
        for text in ("aaaaaa", "bbbbbb", "c"):
            nursery.start_soon(collect, model, ask(text))
            await wait_all_tasks_blocked()
    assert [text[0] for text, _ in inner.began] == ["a", "b", "c"]


async def test_a_correction_lets_the_next_one_begin_at_once(autojump_clock: MockClock) -> None:
    inner = Timed(usage=Usage(1, 1))
    model = Limited(inner, tpm=10)
    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        for text in ("aaaaaaa.", "bbbbbbb."):
            nursery.start_soon(collect, model, ask(text))
            await wait_all_tasks_blocked()
    assert [at - start for _, at in inner.began] == [0, 1]


async def test_a_report_that_comes_after_the_minute_changes_nothing(autojump_clock: MockClock) -> None:
    model = Limited(Timed(usage=Usage(9, 0)), tpm=100)
    await collect(model, ask("." * 61))
    assert model.statistics().tokens == 0


async def test_everything_that_is_sent_is_estimated() -> None:
    call = Message("assistant", "", (ToolCall("1", "note", '{"a": 1}'),))
    tool = ToolSpec("note", "Notes.", {"type": "object"})
    request = ModelRequest("answer", (Message("user", "Hi"), call), {"type": "string"}, (tool,), max_output_tokens=7)
    model = Limited(Timed(), tpm=1000)
    sent = ['Hi\n\n\nnote {"a": 1}', 'note Notes. {"type": "object"}', '{"type": "string"}']
    async with model.stream(request):
        assert model.statistics().tokens == len("\n".join(sent)) + 7
    plain = Limited(ScriptedModel(["x"]), tpm=1000)
    async with plain.stream(ask("x" * 80)):
        assert plain.statistics().tokens == 23  # the estimate of rule C8


def test_each_loop_has_a_line_of_its_own() -> None:
    model = Limited(Timed(), in_flight=1, rpm=1)

    async def main() -> float:
        before = trio.current_time()
        await collect(model)
        return trio.current_time() - before

    assert [trio.run(main, clock=MockClock(autojump_threshold=0)) for _ in range(3)] == [0, 0, 0]


# As a whole.


@attrs.frozen
class Arrival:
    gap: int  # quarters of a second after the one before
    seconds: int
    patience: int | None  # quarters of a second until it is cancelled


ARRIVALS = st.lists(
    st.builds(Arrival, st.integers(1, 80), st.integers(0, 40), st.none() | st.integers(0, 200)), min_size=1, max_size=12
)
LIMIT = st.none() | st.integers(1, 4)


async def play(model: Limited, arrivals: list[Arrival]) -> list[float]:
    start, at = trio.current_time(), 0.0
    times: list[float] = []

    async def one(number: int, arrival: Arrival, due: float) -> None:
        await trio.sleep_until(start + due)
        with trio.move_on_after(float("inf") if arrival.patience is None else arrival.patience / 4):
            await collect(model, ask(f"{number:02}" + "." * arrival.seconds))

    async with trio.open_nursery() as nursery:
        for number, arrival in enumerate(arrivals):
            at += arrival.gap / 4
            times.append(at)
            nursery.start_soon(one, number, arrival, at)
    return times


@settings(max_examples=150, deadline=None)
@given(arrivals=ARRIVALS, in_flight=LIMIT, rpm=LIMIT, tpm=st.none() | st.integers(20, 120))
def test_limits_hold_and_order_is_kept_whoever_is_cancelled(
    arrivals: list[Arrival], in_flight: int | None, rpm: int | None, tpm: int | None
) -> None:
    inner = Timed()
    model = Limited(inner, in_flight=in_flight, rpm=rpm, tpm=tpm)

    async def main() -> LimitedStatistics:
        await play(model, arrivals)
        await trio.sleep(60)
        return model.statistics()

    assert trio.run(main, clock=MockClock(autojump_threshold=0)) == LimitedStatistics(0, 0, 0, 0)
    assert inner.most <= (in_flight or len(arrivals))
    order = [int(text[:2]) for text, _ in inner.began]
    assert order == sorted(order)
    assert {number for number, arrival in enumerate(arrivals) if arrival.patience is None} <= set(order)
    for _, first in inner.began:
        minute = [text for text, at in inner.began if first <= at < first + 60]
        assert len(minute) <= (rpm or len(arrivals))
        if tpm is not None:
            assert sum(min(len(text), tpm) for text in minute) <= tpm


@settings(max_examples=100, deadline=None)
@given(arrivals=ARRIVALS, in_flight=LIMIT, rpm=LIMIT, tpm=st.none() | st.integers(20, 120))
def test_nobody_waits_longer_than_the_limits_demand(
    arrivals: list[Arrival], in_flight: int | None, rpm: int | None, tpm: int | None
) -> None:
    arrivals = [attrs.evolve(arrival, patience=None) for arrival in arrivals]
    inner = Timed()
    origin = 0.0

    async def main() -> list[float]:
        nonlocal origin
        origin = trio.current_time()
        return await play(Limited(inner, in_flight=in_flight, rpm=rpm, tpm=tpm), arrivals)

    times = trio.run(main, clock=MockClock(autojump_threshold=0))
    begun: list[tuple[float, float, int]] = []  # begin, end, tokens: the same line, told once more
    for due, arrival in zip(times, arrivals, strict=True):
        at = max([due, *(begin for begin, _, _ in begun)])
        tokens = min(2 + arrival.seconds, tpm or 1000)
        while True:
            minute = [(begin, cost) for begin, _, cost in begun if begin > at - 60]
            later: list[float] = []
            if in_flight is not None:
                ends = sorted(end for _, end, _ in begun if end > at)
                later += ends[:1] if len(ends) >= in_flight else []
            if rpm is not None and len(minute) >= rpm:
                later.append(minute[0][0] + 60)
            if tpm is not None and sum(cost for _, cost in minute) + tokens > tpm:
                later.append(minute[0][0] + 60)
            if not later:
                break
            at = min(later)
        begun.append((at, at + arrival.seconds, tokens))
    assert [at - origin for _, at in inner.began] == [begin for begin, _, _ in begun]
