"""`TokenBudget`: what is set aside, what is booked, and who is stopped."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from goliath_actors import RunAborted, open_runtime, tool
from goliath_actors.abc import ModelText, ModelUsage
from goliath_actors.errors import ConfigError, ModelUnavailable
from goliath_actors.policies import TokenBudget
from goliath_actors.testing import Gate, ScriptedModel
from goliath_actors.values import Usage

from .planned import ANSWER, planned, roles, run, use

TEXT = "The token budget is used up. Please try again later."
ANSWER_CAP = 384  # tokens of output that the planned loop allows an answer


@attrs.frozen
class Flat:
    """Counts every text as ten tokens."""

    name: str = "flat"
    exact: bool = True

    def count(self, text: str) -> int:
        return 10


NEED = ANSWER_CAP + 10  # what is set aside for an answer


@tool
async def look() -> str:
    """Look."""
    return "seen"


def replies(count: int, tokens: int = 100) -> ScriptedModel:
    return ScriptedModel([f"answer {number}" for number in range(count)], usage=Usage(tokens - 5, 5))


def hourly(limit: int, **options: Any) -> TokenBudget:
    return TokenBudget(limit, **{"scope": "conversation", "seconds": 3600, "counter": Flat(), **options})


async def test_a_conversation_is_stopped_when_its_tokens_are_used_up(autojump_clock: MockClock) -> None:
    agent = planned(replies(2), extensions=[hourly(150 + NEED - 50)])
    async with open_runtime(agent) as runtime:
        results = [await runtime.run("hi", conversation_id="c") for _ in range(3)]
    assert [result.text for result in results] == ["answer 0", "answer 1", TEXT]
    stopped = results[2].stopped
    assert stopped is not None
    assert (results[2].status, stopped.extension, stopped.phase) == ("stopped", "token-budget", "after_answer")
    assert stopped.reason == f"token budget: 200 of {100 + NEED} are used, {NEED} more are needed"


async def test_a_run_for_which_nothing_is_left_does_not_begin(autojump_clock: MockClock) -> None:
    agent = planned(replies(1, tokens=500), extensions=[hourly(500)])
    async with open_runtime(agent) as runtime:
        await runtime.run("hi", conversation_id="c")
        result = await runtime.run("hi", conversation_id="c")
    assert result.stopped is not None
    assert (result.stopped.phase, result.stopped.reason) == ("before_run", "token budget: 500 of 500 are used")


async def test_tokens_count_for_as_long_as_was_said(autojump_clock: MockClock) -> None:
    agent = planned(replies(2, tokens=500), extensions=[hourly(500)])
    async with open_runtime(agent) as runtime:
        await runtime.run("hi", conversation_id="c")
        await trio.sleep(3599)
        assert (await runtime.run("hi", conversation_id="c")).text == TEXT
        await trio.sleep(1)
        assert (await runtime.run("hi", conversation_id="c")).text == "answer 1"


async def test_a_run_has_a_budget_of_its_own_and_does_not_go_on_beyond_it(autojump_clock: MockClock) -> None:
    model = ScriptedModel([use("look"), use("look"), ANSWER, "x"], usage=Usage(90, 10))
    asked: list[object] = []
    agent = planned(
        model, tools=[look], extensions=[TokenBudget(400, counter=Flat())], fallback=asked.append
    )  # a plan may take 256 tokens of output
    result = await run(agent)
    assert (result.status, result.text, asked) == ("stopped", TEXT, [])
    assert roles(agent) == ["plan", "plan"]
    assert result.usage == Usage(180, 20)
    again = await run(planned(replies(1), extensions=[TokenBudget(400, counter=Flat())]))
    assert again.text == "answer 0"


async def test_runs_at_the_same_time_cannot_spend_the_same_tokens(autojump_clock: MockClock) -> None:
    gate = Gate()
    model = ScriptedModel([gate.then(f"answer {number}") for number in range(2)], usage=Usage(95, 5))
    agent = planned(model, extensions=[hourly(2 * NEED + 10, scope="all")])
    async with open_runtime(agent) as runtime:
        runs = []
        for number in range(5):
            runs.append(runtime.submit("hi", conversation_id=f"c{number}"))
            await wait_all_tasks_blocked()
        assert [envelope.state for envelope in runs] == ["running", "running", "done", "done", "done"]
        gate.open()
        texts = [(await envelope.wait()).text for envelope in runs]
    assert texts == ["answer 0", "answer 1", TEXT, TEXT, TEXT]


async def test_what_was_set_aside_is_given_back_also_after_a_failure_and_an_abort(autojump_clock: MockClock) -> None:
    gate = Gate()
    model = ScriptedModel([ModelUnavailable("down"), gate.then("late"), "answer"])
    budget = hourly(NEED + 60, scope="all")
    agent = planned(model, extensions=[budget])
    async with open_runtime(agent) as runtime:
        assert (await runtime.run("hi", conversation_id="a")).reason == "model-unavailable"
        aborted = runtime.submit("hi", conversation_id="b")
        await gate.wait_reached()
        aborted.abort()
        with pytest.raises(RunAborted):
            await aborted.wait()
        assert (await runtime.run("hi", conversation_id="c")).text == "answer"


async def test_a_failed_attempt_holds_nothing_back_from_the_next(autojump_clock: MockClock) -> None:
    model = ScriptedModel([ModelUnavailable("down"), "answer"], retries=1)
    assert (await run(planned(model, extensions=[hourly(NEED)]))).text == "answer"


async def test_what_an_aborted_call_had_used_is_booked(autojump_clock: MockClock) -> None:
    class Slow(ScriptedModel):
        async def _play(self, request: Any) -> Any:
            yield ModelText("so far")
            yield ModelUsage(Usage(300, 50))
            await trio.sleep_forever()

    agent = planned(Slow([]), extensions=[hourly(NEED, scope="all")])
    async with open_runtime(agent) as runtime:
        with pytest.raises(RunAborted):
            await runtime.run("hi", timeout=5)
        result = await runtime.run("hi")
    assert result.stopped is not None
    assert result.stopped.reason == f"token budget: 350 of {NEED} are used, {NEED} more are needed"


async def test_keys_that_no_longer_count_are_forgotten_but_not_under_a_run(autojump_clock: MockClock) -> None:
    gate = Gate()
    model = ScriptedModel([gate.then("first"), *["ok"] * 100], usage=Usage(1, 1))
    budget = hourly(10_000, seconds=10)
    agent = planned(model, extensions=[budget])
    async with open_runtime(agent) as runtime:
        runtime.submit("hi", conversation_id="slow")
        await gate.wait_reached()
        for number in range(100):
            await runtime.run("hi", conversation_id=str(number))
            await trio.sleep(1)
            assert budget._accounts is not None
            assert len(budget._accounts) <= 22
        assert ("agent", "slow") in budget._accounts._values
        gate.open()


async def test_the_summary_is_left_out_where_it_does_not_fit(autojump_clock: MockClock) -> None:
    # The fourth answer fits, and the summary of what is then too old does not.
    model = ScriptedModel(["1", "2", "3", "4"], usage=Usage(295, 5))
    agent = planned(model, extensions=[hourly(900 + NEED)])
    async with open_runtime(agent) as runtime:
        texts = [(await runtime.run("hi", conversation_id="c")).text for _ in range(4)]
        memory = await runtime.conversation("c").memory()
    assert texts == ["1", "2", "3", "4"]
    assert (memory.summary, [exchange.answer for exchange in memory.recent]) == ("", ["2", "3", "4"])
    assert roles(agent) == ["answer"] * 4


@pytest.mark.parametrize(
    "options",
    [
        {"limit": 0},
        {"limit": 1.5},
        {"seconds": 10},
        {"scope": "conversation"},
        {"scope": "all", "seconds": 0},
        {"scope": "planet", "seconds": 1},
        {"output": 0},
        {"counter": len},
        {"text": ""},
    ],
    ids=str,
)
def test_wrong_configuration_is_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        TokenBudget(**{"limit": 100, **options})
