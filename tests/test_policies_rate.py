"""`RateLimit`: never more than so many, for whom they are counted, and who waits."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from goliath_actors import Conductor, open_runtime, tool
from goliath_actors.errors import ConfigError
from goliath_actors.policies import RateLimit
from goliath_actors.policies._limits import Bucket, Window
from goliath_actors.testing import Journal

from .planned import ANSWER, planned, roles, run, use

TEXT = "Too many requests. Please try again later."


@tool
async def look() -> str:
    """Look."""
    return "seen"


# --- the limits -----------------------------------------------------------------------------------------------------

gaps = st.lists(st.floats(0, 5, allow_nan=False), max_size=60)


@given(gaps, st.integers(1, 5), st.floats(0.1, 4))
def test_a_window_never_lets_more_through_in_any_stretch_of_its_length(
    waits: list[float], limit: int, seconds: float
) -> None:
    window, now, taken = Window(limit, seconds), 1000.0, []
    for wait in waits:
        now = window.next(now + wait)
        window.take(now)
        taken.append(now)
    for first, beyond in zip(taken, taken[limit:], strict=False):
        assert first + seconds <= beyond


@given(gaps, st.integers(1, 5), st.floats(0.1, 4), st.integers(1, 5))
def test_a_bucket_lets_through_its_burst_and_then_the_average(
    waits: list[float], limit: int, seconds: float, burst: int
) -> None:
    bucket, now, taken = Bucket(limit, seconds, burst), 1000.0, []
    for wait in waits:
        now = bucket.next(now + wait)
        bucket.take(now)
        taken.append(now)
    for start in range(len(taken)):
        for end in range(start, len(taken)):
            allowed = burst + (taken[end] - taken[start]) * limit / seconds
            assert end - start + 1 <= allowed + 1e-6


@given(st.integers(1, 4), st.integers(0, 9), st.sampled_from(["window", "bucket"]))
def test_the_time_that_is_foretold_is_the_time_it_takes(limit: int, ahead: int, kind: str) -> None:
    def fresh() -> Window | Bucket:
        made: Window | Bucket = Window(limit, 3.0) if kind == "window" else Bucket(limit, 3.0, 2)
        for now in (10.0, 10.5, 11.0)[:limit]:
            made.take(made.next(now))
        return made

    foretold, lived = fresh().next(11.5, ahead), fresh()
    now = 11.5
    for _ in range(ahead):
        now = lived.next(now)
        lived.take(now)
    assert lived.next(now) == pytest.approx(foretold)


# --- runs -----------------------------------------------------------------------------------------------------------


async def begin_times(policy: RateLimit, asks: int, **options: Any) -> list[float]:
    """The seconds after which each of some asks, made at once in conversations of their own, was let through."""
    started: list[float] = []
    begin = trio.current_time()

    def reply(request: object) -> str:
        started.append(trio.current_time() - begin)
        return "ok"

    agent = planned([reply] * asks, extensions=[policy])
    async with open_runtime(agent) as runtime:
        for number in range(asks):
            runtime.submit("hi", conversation_id=options.get("id", f"c{number}"))
    return started


async def test_asks_over_the_limit_wait_for_the_window_to_slide(autojump_clock: MockClock) -> None:
    assert await begin_times(RateLimit(2, 10, scope="all"), 5) == [0, 0, 10, 10, 20]


async def test_a_token_bucket_refills_evenly_after_its_burst(autojump_clock: MockClock) -> None:
    assert await begin_times(RateLimit(1, 2, scope="agent", burst=3), 6) == [0, 0, 0, 2, 4, 6]


async def test_conversations_do_not_count_for_each_other(autojump_clock: MockClock) -> None:
    assert await begin_times(RateLimit(1, 10), 3) == [0, 0, 0]
    assert await begin_times(RateLimit(1, 10), 3, id="same") == [0, 10, 20]


async def test_the_count_outlives_runs_and_runtimes(autojump_clock: MockClock) -> None:
    policy = RateLimit(1, 60, over="refuse")
    agent = planned(["first", "third"], extensions=[policy])
    first = await run(agent)
    second = await run(agent)
    await trio.sleep(60)
    third = await run(agent)
    assert [first.text, second.text, third.text] == ["first", TEXT, "third"]


async def test_a_refused_ask_stops_before_anything_is_done_for_it(autojump_clock: MockClock) -> None:
    journal = Journal()
    agent = planned(["first"], extensions=[RateLimit(1, 60, over="refuse"), journal])
    await run(agent)
    journal.clear()
    await trio.sleep(17.5)
    result = await run(agent)
    assert (result.status, result.text) == ("stopped", TEXT)
    assert result.stopped is not None
    assert (result.stopped.extension, result.stopped.phase) == ("rate-limit", "before_run")
    assert result.stopped.reason == "rate limit: possible again in 43 s"
    assert journal.rows == ["on_finish"]


async def test_who_would_have_to_wait_too_long_is_refused_at_once(autojump_clock: MockClock) -> None:
    agent = planned(["1", "2", "3"], extensions=[RateLimit(1, 10, scope="all", max_wait=15)])
    begin = trio.current_time()
    async with open_runtime(agent) as runtime:
        runs = []
        for number in range(4):
            runs.append(runtime.submit("hi", conversation_id=f"c{number}"))
            await wait_all_tasks_blocked()
        last = await runs[3].wait()
        assert (last.text, trio.current_time() - begin) == (TEXT, 0)
        third = await runs[2].wait()
        assert (third.text, trio.current_time() - begin) == (TEXT, 0)
        assert ((await runs[1].wait()).text, trio.current_time() - begin) == ("2", 10)


async def test_who_leaves_the_line_has_taken_no_place(autojump_clock: MockClock) -> None:
    agent = planned(["1", "3"], extensions=[RateLimit(1, 10, scope="all")])
    begin = trio.current_time()
    async with open_runtime(agent) as runtime:
        await runtime.run("hi", conversation_id="a")
        second = runtime.submit("hi", conversation_id="b")
        await wait_all_tasks_blocked()
        third = runtime.submit("hi", conversation_id="c")
        await wait_all_tasks_blocked()
        second.abort()
        assert ((await third.wait()).text, trio.current_time() - begin) == ("3", 10)
        await second.wait_ended()


async def test_the_key_can_be_the_applications(autojump_clock: MockClock) -> None:
    policy = RateLimit(1, 60, over="refuse", scope=lambda ctx: ctx.context)
    agent = planned(["a", "b"], extensions=[policy])
    texts = [(await run(agent, context=user, conversation_id=str(n))).text for n, user in enumerate(("u", "v", "u"))]
    assert texts == ["a", "b", TEXT]


async def test_keys_that_no_longer_count_are_forgotten(autojump_clock: MockClock) -> None:
    policy = RateLimit(1, 10)
    agent = planned(["ok"] * 200, extensions=[policy])
    async with open_runtime(agent) as runtime:
        for number in range(200):
            await runtime.run("hi", conversation_id=str(number))
            await trio.sleep(1)
            assert len(policy._lines) <= 21


def test_a_policy_may_be_used_in_one_trio_run_after_the_other() -> None:
    policy = RateLimit(1, 1e9, over="refuse")
    texts = [trio.run(run, planned(["ok"], extensions=[policy])).text for _ in range(2)]
    assert texts == ["ok", "ok"]


# --- model calls and tools ------------------------------------------------------------------------------------------


async def test_model_calls_wait_too(autojump_clock: MockClock) -> None:
    begin = trio.current_time()
    agent = planned([use("look"), ANSWER, "done"], tools=[look], extensions=[RateLimit(1, 5, of="model")])
    result = await run(agent)
    assert (result.text, trio.current_time() - begin) == ("done", 10)


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_a_refused_model_call_stops_the_run_whatever_it_was_for(autojump_clock: MockClock, limit: int) -> None:
    @tool
    async def greet(name: str) -> str:
        """Greet."""
        return name

    script = [use("greet"), {"name": "Ada"}, ANSWER, "done"][:limit]
    asked: list[object] = []
    agent = planned(
        script,
        tools=[greet],
        extensions=[RateLimit(limit, 60, of="model", over="refuse")],
        fallback=asked.append,
    )
    result = await run(agent)
    assert (result.status, result.text, asked) == ("stopped", TEXT, [])
    assert roles(agent) == ["plan", "arguments", "plan"][:limit]


async def test_a_refused_model_call_does_not_leave_through_the_fallback(autojump_clock: MockClock) -> None:
    @tool
    async def greet(name: str) -> str:
        """Greet."""
        return name

    asked: list[object] = []
    policy = RateLimit(1, 60, of="model", over="refuse")
    # The arguments are refused, which is the only step: the loop escalates before it comes to another plan.
    agent = planned(
        [use("greet")], tools=[greet], extensions=[policy], loop=Conductor(max_steps=1), fallback=asked.append
    )
    result = await run(agent)
    assert result.stopped is not None
    assert (result.text, result.stopped.phase, asked) == (TEXT, "before_fallback", [])


async def test_the_summary_is_left_out_where_its_call_is_refused(autojump_clock: MockClock) -> None:
    policy = RateLimit(4, 1e6, of="model", over="refuse")
    agent = planned(["1", "2", "3", "4"], extensions=[policy])
    async with open_runtime(agent) as runtime:
        texts = [(await runtime.run("hi", conversation_id="c")).text for _ in range(4)]
        memory = await runtime.conversation("c").memory()
    assert texts == ["1", "2", "3", "4"]
    assert (memory.summary, [exchange.answer for exchange in memory.recent]) == ("", ["2", "3", "4"])
    assert roles(agent) == ["answer"] * 4


async def test_a_tool_call_over_the_limit_is_denied_and_the_run_goes_on(autojump_clock: MockClock) -> None:
    @tool
    async def other() -> str:
        """Other."""
        return "other"

    policy = RateLimit(1, 60, of="tools", tools=["lo*"], over="refuse")
    agent = planned([use("look"), use("look"), use("other"), ANSWER, "done"], tools=[look, other], extensions=[policy])
    result = await run(agent)
    assert [step.status for step in result.steps[:3]] == ["executed", "skipped", "executed"]
    assert result.steps[1].result == (
        "Denied by rate-limit: too many calls; possible again in 60 s. Do not try it again unless the user asks for it."
    )


@pytest.mark.parametrize(
    "options",
    [
        {"limit": 0},
        {"limit": 1.5},
        {"limit": True},
        {"seconds": 0},
        {"seconds": float("nan")},
        {"seconds": float("inf")},
        {"burst": 0},
        {"of": "asks"},
        {"over": "drop"},
        {"max_wait": -1},
        {"max_wait": 1, "over": "refuse"},
        {"tools": "look", "of": "tools"},
        {"tools": ["look"]},
        {"scope": "run"},
        {"scope": None},
        {"text": ""},
    ],
    ids=str,
)
def test_wrong_configuration_is_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        RateLimit(**{"limit": 1, "seconds": 1, **options})
