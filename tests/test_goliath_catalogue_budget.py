"""Catalogue of the planned loop's behaviour: estimates (BUD), compaction (CB), counted budgets (NB), windows (WIN).

Where a rule of ours overrules a line of the catalogue, the test holds our rule and its comment names it.
The transcript helper of BUD-02 to BUD-04 was used by nothing there and has no counterpart here.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from goliath_actors import Conductor, Extension, RunAborted, open_runtime, tool
from goliath_actors._budget import input_limit
from goliath_actors._prompts import OMITTED, compact_steps, omit_old_content, recent_block
from goliath_actors._text import clip_tokens, estimate
from goliath_actors.errors import ConfigError, GoliathBudgetError, ModelError
from goliath_actors.events import Budget, Escalate, MemoryError
from goliath_actors.hooks import RunPatch
from goliath_actors.testing import Gate
from goliath_actors.values import Exchange, FallbackRequest, Step

from .planned import (
    ANSWER,
    end,
    kinds,
    labels,
    memory_of,
    planned,
    prompt,
    reasons,
    requests,
    roles,
    run,
    stored,
    told,
    use,
)


@tool
async def read() -> str:
    """Read the list."""
    return "milk"


def reporter(text: str) -> Any:
    @tool
    async def report(number: int) -> str:
        """Make a report."""
        return f"report {number}\n{text}\nend of {number}"

    return report


def reports(*numbers: int) -> list[Any]:
    script: list[Any] = []
    for number in numbers:
        script += [use("report"), {"number": number}]
    return script


class Cloud:
    """A fallback that counts."""

    def __init__(self) -> None:
        self.requests: list[FallbackRequest] = []

    async def __call__(self, request: FallbackRequest) -> str:
        await trio.lowlevel.checkpoint()
        self.requests.append(request)
        return "cloud"


# --- BUD, CB --------------------------------------------------------------------------------------------------------


def test_bud_01_estimates() -> None:
    assert estimate("") == 0
    assert estimate("a" * 400) == 115


def step(index: int, result: str, **rest: Any) -> Step:
    return Step(index, "tool", "brief", "report", f"c{index}", {"n": index}, result=result, **rest)


def test_cb_01_compaction_keeps_the_first_lines_of_older_results_and_all_of_the_newest() -> None:
    long = "x" * 150 + "\nsecond line"
    steps = compact_steps([step(0, long), step(1, "short\nsecond"), step(2, long)])
    assert [known.result for known in steps] == ["x" * 99 + "…", "short", long]


async def test_cb_02_an_oversized_planner_prompt_is_compacted() -> None:
    text = "\n".join(f"line {number} of a long report with words in it" for number in range(12))
    agent = planned([*reports(1, 2, 3, 4), ANSWER, "done"], tools=[reporter(text)], loop=Conductor(window=1024))
    result = await run(agent)
    planner = [event for event in told(result, Budget) if event.label == "conductor"]
    assert len(planner) == 5
    assert {event.limit for event in planner} == {640}
    assert all(event.tokens <= event.limit for event in planner)
    last = [request for request in requests(agent) if request.role == "plan"][-1].text
    newest, oldest = result.steps[3].result, result.steps[0].result
    assert newest is not None
    assert oldest is not None
    assert newest in last
    assert oldest not in last
    assert "report 1" in last


async def test_cb_03_what_fits_is_not_trimmed() -> None:
    agent = planned([*reports(1), ANSWER, "done"], tools=[reporter("words\nand words")])
    result = await run(agent)
    assert labels(result) == ["conductor", "worker", "conductor", "answer"]
    assert (result.steps[0].result or "") in prompt(agent, 2)


# --- NB -------------------------------------------------------------------------------------------------------------


async def test_nb_01_a_tokenizer_decides_and_the_window_is_asked_once() -> None:
    asked = 0

    async def window() -> int:
        nonlocal asked
        asked += 1
        await trio.lowlevel.checkpoint()
        return 4096

    agent = planned(["ok"], loop=Conductor(window=window), token_counter=lambda text: 100)
    result = await run(agent, "x" * 12_000)
    assert asked == 1
    assert [(e.label, e.tokens, e.limit, e.source) for e in told(result, Budget)] == [
        ("answer", 108, 2867, "tokenizer")
    ]


async def test_nb_02_every_role_is_counted_with_its_schema_by_the_tokenizer() -> None:
    # C8 overrules the number of counts: clipping uses the configured tokenizer too.
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return estimate(text)

    store = await stored(("a", "1"), ("b", "2"), ("c", "3"))
    agent = planned([*reports(7), ANSWER, "done", "Goal: x"], tools=[reporter("words")], token_counter=count)
    result = await run(agent, store=store)
    assert [event.source for event in told(result, Budget)] == ["tokenizer"] * 5
    assert labels(result) == ["conductor", "worker", "conductor", "answer", "scribe"]
    whole = [text for text in counted if any(request.messages[0].text in text for request in requests(agent))]
    assert len(whole) == 5
    assert '"enum": ["tool", "answer", "escalate"]' in whole[0]
    assert '"missing"' in whole[1]
    assert "New exchange:" in whole[4]


async def test_nb_03_too_many_tokens_escalate_without_a_call() -> None:
    agent = planned([], token_counter=lambda text: 5000)
    result = await run(agent, "hi")
    assert (result.text, result.reason) == ("", "context-budget")
    assert [(e.tokens, e.limit) for e in told(result, Budget)] == [(5008, 2867)]
    assert requests(agent) == []


async def test_nb_04_a_prompt_that_fits_once_compacted_is_counted_twice_and_told_once() -> None:
    whole: list[str] = []

    def count(text: str) -> int:
        if "You plan one step at a time" not in text:
            return 10
        whole.append(text)
        return 4000 if "second line" in text and "read(" in text else 100

    @tool
    async def look() -> str:
        """Look."""
        return "first line\nsecond line"

    agent = planned([use("look"), use("read"), ANSWER, "done"], tools=[look, read], token_counter=count)
    result = await run(agent)
    assert [(e.label, e.tokens) for e in told(result, Budget)] == [
        ("conductor", 108),
        ("conductor", 108),
        ("conductor", 108),
        ("answer", 18),
    ]
    assert len(whole) == 4
    sent = prompt(agent, 2)
    assert "first line" in sent
    assert "second line" not in sent
    for text in whole[-2:]:
        first, _, rest = text.partition("\n\n")
        assert first.startswith("You are")
        assert rest.startswith("{")


@pytest.mark.parametrize("bad", [math.nan, -1, math.inf, 1.2, True, "7", None])
async def test_nb_05_an_impossible_count_is_a_provider_failure(bad: Any) -> None:
    agent = planned([], token_counter=lambda text: bad)
    result = await run(agent)
    assert result.reason == "model-error"
    assert "token counter" in (told(result, Escalate)[0].error or "")
    assert requests(agent) == []


async def test_nb_06_a_failing_tokenizer_is_never_replaced_by_an_estimate() -> None:
    def count(text: str) -> int:
        raise RuntimeError("no vocabulary")

    agent = planned([], token_counter=count)
    result = await run(agent)
    assert result.reason == "model-error"
    assert "no vocabulary" in (told(result, Escalate)[0].error or "")
    assert told(result, Budget) == []
    assert requests(agent) == []


async def test_nb_07_a_window_of_nothing_fails_the_run() -> None:
    agent = planned([], loop=Conductor(window=lambda: 0))
    ending = await end(agent)
    assert isinstance(ending.error, ConfigError)
    assert "positive integer" in str(ending.error)
    assert requests(agent) == []


async def test_nb_07_a_window_without_room_for_the_reserves_fails_the_run() -> None:
    ending = await end(planned([], loop=Conductor(window=lambda: 500)))
    assert isinstance(ending.error, ConfigError)
    assert "too small for the loop's own reserves" in str(ending.error)


async def test_nb_08_a_run_aborted_before_its_turn_costs_no_call() -> None:
    gate = Gate()
    agent = planned([gate.then("first"), "third"])
    async with open_runtime(agent) as runtime:
        first, second, third = (runtime.submit(text) for text in ("one", "two", "three"))
        await gate.wait_reached()
        second.abort()
        gate.open()
        with pytest.raises(RunAborted):
            await second.wait()
        assert [(await run.wait()).text for run in (first, third)] == ["first", "third"]
    assert len(requests(agent)) == 2


# --- WIN ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ask", ["a" * 30_000, "字" * 2_000])
async def test_win_01_an_ask_larger_than_the_window_costs_no_call(ask: str) -> None:
    agent = planned([])
    result = await run(agent, ask)
    assert reasons(result) == ["context-budget"]
    assert requests(agent) == []


async def test_win_02_an_oversized_fact_goes_to_the_cloud_with_the_ask_intact() -> None:
    cloud = Cloud()
    agent = planned([], tools=[read], facts={"big": "x" * 30_000}, fallback=cloud)
    result = await run(agent, "my ask")
    assert (result.reason, cloud.requests[0].ask) == ("context-budget", "my ask")
    assert requests(agent) == []


async def test_win_03_an_oversized_worker_prompt_stops_before_confirm_and_execution() -> None:
    from goliath_actors import Tool

    done: list[Any] = []
    asked: list[Any] = []
    huge = Tool(
        name="huge",
        description="Do something.",
        writes=True,
        parameters={"properties": {"a": {"type": "string", "description": "d" * 30_000}}},
        execute=lambda input: done.append(input),
    )
    cloud = Cloud()
    agent = planned([use("huge")], tools=[huge], confirm=lambda request: asked.append(request) or True, fallback=cloud)
    result = await run(agent)
    assert roles(agent) == ["plan"]
    assert (done, asked) == ([], [])
    assert labels(result) == ["conductor", "worker"]
    assert (result.handled_by, result.reason) == ("cloud", "context-budget")


async def test_win_05_a_formatters_text_is_capped() -> None:
    @tool(to_model_output=lambda output: "y" * 30_000)
    async def look() -> str:
        """Look."""
        return "x"

    agent = planned([use("look"), ANSWER, "done"], tools=[look])
    result = await run(agent)
    assert len(result.steps[0].result or "") == 600
    assert "y" * 599 in prompt(agent, 1)
    assert "y" * 600 not in prompt(agent, 1)


async def test_win_06_every_role_has_its_cap_and_fits() -> None:
    store = await stored(("a", "1"), ("b", "2"), ("c", "3"))
    agent = planned([*reports(1), ANSWER, "done", "Goal: x"], tools=[reporter("words")])
    result = await run(agent, store=store)
    assert [request.max_output_tokens for request in requests(agent)] == [256, 512, 256, 384, 192]
    assert labels(result) == ["conductor", "worker", "conductor", "answer", "scribe"]
    assert all(event.tokens <= event.limit for event in told(result, Budget))


async def test_win_07_a_best_effort_answer_is_compacted() -> None:
    text = "\n".join(["w" * 50] * 20)
    agent = planned(
        [*reports(1, 2, 3, 4), "so far"],
        tools=[reporter(text)],
        loop=Conductor(window=2048, max_steps=4),
        instructions="i" * 2600,
    )
    result = await run(agent)
    last = requests(agent)[-1]
    assert (result.best_effort, result.text) == (True, "so far")
    assert (last.role, last.max_output_tokens) == ("answer", 384)
    results = [known.result or "" for known in result.steps]
    assert [len(known) for known in results] == [600] * 4
    assert [known in last.text for known in results] == [False, False, False, True]
    assert [f"report {number}" in last.text for number in (1, 2, 3, 4)] == [True] * 4


async def test_win_08_oversized_runs_do_not_turn_the_device_off() -> None:
    cloud = Cloud()
    store = await stored()
    agent = planned(["small answer"], fallback=cloud)
    async with open_runtime(agent, store=store) as runtime:
        for _ in range(3):
            result = await runtime.run("x" * 30_000)
            assert result.reason == "context-budget"
        assert (await store.load("agent")).failures == 0
        result = await runtime.run("small")
    assert (result.handled_by, result.text) == ("device", "small answer")
    # The scribe refuses the oversized exchange, too; the answer stands.
    assert len(requests(agent)) == 1
    assert len(told(result, MemoryError)) == 1
    assert [exchange.answer for exchange in (await memory_of(store, agent)).recent][-1] == "small answer"


async def test_win_09_a_failing_scribe_keeps_the_answer_and_the_old_summary() -> None:
    cloud = Cloud()
    store = await stored(("a", "1"), ("b", "2"), ("c", "3"), summary="before")
    agent = planned(["done", ModelError("scribe down")], fallback=cloud)
    result = await run(agent, store=store)
    assert result.text == "done"
    assert [event.error for event in told(result, MemoryError)] == ["ModelError: scribe down"]
    assert cloud.requests == []
    memory = await memory_of(store, agent)
    assert memory.summary == "before"
    assert [exchange.ask for exchange in memory.recent] == ["b", "c", "hello"]
    assert kinds(result)[-2:] == ["memory-error", "remember"]


async def test_win_10_after_a_device_failure_only_the_cloud_is_asked() -> None:
    cloud = Cloud()
    store = await stored(("a", "1"), ("b", "2"), ("c", "3"))
    agent = planned([ModelError("down")], fallback=cloud)
    result = await run(agent, store=store)
    assert len(requests(agent)) == 1
    assert result.handled_by == "cloud"
    assert [exchange.answer for exchange in (await memory_of(store, agent)).recent] == ["2", "3", "cloud"]


@pytest.mark.parametrize("limit", [0, 1, 4, 128, 512])
@pytest.mark.parametrize("text", ["plain ascii text " * 200, "漢字とemoji 👩‍👩‍👧 mixed " * 80])
def test_win_11_clipping_by_tokens_obeys_its_limit(text: str, limit: int) -> None:
    assert estimate(clip_tokens(text, limit)) <= limit
    assert estimate("字" * 100) >= 100


@pytest.mark.parametrize("window", [0, -1, math.nan, math.inf, 0.5, True, "4096"])
def test_win_12_a_window_must_be_a_positive_integer(window: Any) -> None:
    with pytest.raises(ConfigError, match="positive integer"):
        Conductor(window=window)


@pytest.mark.parametrize("window", [1, 512, 640])
def test_a_window_without_room_for_every_role_is_refused(window: int) -> None:
    with pytest.raises(ConfigError, match=r"too small for the loop's own reserves.*use at least 641"):
        Conductor(window=window)
    assert Conductor(window=641).window == 641
    assert input_limit(641, 512) == 1


# --- C4 -------------------------------------------------------------------------------------------------------------


class Long(Extension[Any]):
    name = "long"

    def before_run(self, ctx: Any, question: Any) -> RunPatch:
        return RunPatch(facts={"big": "x" * 30_000})


async def test_c4_strict_budget_overrides_what_extensions_imply() -> None:
    ending = await end(planned([], facts={"big": "x" * 30_000}, loop=Conductor(strict_budget=True)))
    assert isinstance(ending.error, GoliathBudgetError)
    result = await run(planned([], extensions=[Long()], loop=Conductor(strict_budget=False)))
    assert result.reason == "context-budget"


async def test_c4_an_ask_that_is_too_long_is_named_among_what_to_shorten() -> None:
    loop = Conductor(strict_budget=True)
    async with open_runtime(planned([], loop=loop)) as runtime:
        with pytest.raises(GoliathBudgetError) as caught:
            await runtime.run("x" * 30_000)
    error = caught.value
    assert str(error) == (
        f"the {error.phase} prompt needs {error.tokens} tokens and may use {error.limit}; shorten the ask, the "
        "instructions, the facts or the tools' schemas, or raise the loop's window"
    )


async def test_c4_an_oversized_best_effort_prompt_is_swallowed_or_raised() -> None:
    def agent(strict: bool) -> Any:
        return planned([], facts={"big": "x" * 30_000}, loop=Conductor(max_steps=0, strict_budget=strict))

    result = await run(agent(False))
    assert (result.text, result.reason, result.best_effort) == ("", "too-many-steps", True)
    ending = await end(agent(True))
    assert isinstance(ending.error, GoliathBudgetError)
    assert ending.origin == "budget"


# --- trimming, as properties ----------------------------------------------------------------------------------------

words = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "Zs", "So")), max_size=400)
exchanges = st.builds(
    Exchange,
    words,
    words,
    st.just(1.0),
    st.booleans(),
    st.lists(st.builds(step, st.integers(0, 9), words), max_size=3),
)


@given(st.lists(exchanges, max_size=3), st.integers(0, 600))
def test_the_recent_block_never_exceeds_its_budget(recent: list[Exchange], budget: int) -> None:
    block = recent_block(recent, budget, estimate)
    assert estimate(block) <= budget
    whole = recent_block(recent, 100_000, estimate)
    for exchange in recent:
        assert exchange.ask in whole
        assert exchange.answer in whole
    if not recent:
        assert block == ""


@given(st.lists(words, max_size=6))
def test_compaction_cuts_older_results_to_one_short_line_and_nothing_else(results: list[str]) -> None:
    steps = [step(index, result) for index, result in enumerate(results)]
    compacted = compact_steps(steps)
    assert [known.index for known in compacted] == [known.index for known in steps]
    assert compacted[-1:] == tuple(steps[-1:])
    for before, after in zip(steps[:-1], compacted[:-1], strict=True):
        assert after.result is not None
        assert len(after.result) <= 100
        assert "\n" not in after.result
        assert (before.result or "").strip().startswith(after.result.removesuffix("…"))
    assert compact_steps(compacted) == compacted


@given(st.lists(st.tuples(words, st.booleans()), max_size=6), st.integers(1, 400))
def test_quoted_content_is_kept_newest_first_within_its_budget(parts: list[tuple[str, bool]], budget: int) -> None:
    steps = [
        Step(index, "tool", tool="page" if literal else "list", result=text)
        for index, (text, literal) in enumerate(parts)
    ]
    shown = omit_old_content(steps, frozenset({"page"}), budget, estimate)
    kept = [known for known in shown if known.tool == "page" and known.result and known.result != OMITTED]
    assert sum(estimate(known.result or "") for known in kept) <= budget
    assert [known.result for known in shown if known.tool == "list"] == [s.result for s in steps if s.tool == "list"]
    newest = [known.result != OMITTED for known in shown if known.tool == "page" and known.result]
    assert newest == sorted(newest)  # once one is left out, all older ones are
