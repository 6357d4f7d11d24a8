"""`Guardrail` and `Retrieval`: checked before anybody sees it, fetched before anything is planned."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from goliath_actors import Conductor, Extension, Respond, open_runtime
from goliath_actors.errors import ConfigError, GoliathExtensionError
from goliath_actors.events import HookDecision, Retraction, TextDelta
from goliath_actors.hooks import BeforeRun, HookContext
from goliath_actors.policies import Block, Correct, Guardrail, Passage, Retrieval
from goliath_actors.stores import InMemoryStore
from goliath_actors.testing import ScriptedModel
from goliath_actors.values import Responded

from .planned import ANSWER, GIVE_UP, memory_of, planned, prompt, roles, run, told, use

BLOCKED = "I cannot answer that."


def short(ctx: HookContext[Any], text: str) -> Correct | None:
    return Correct("be shorter") if len(text) > 12 else None


async def polite(ctx: HookContext[Any], text: str) -> Correct | None:
    await trio.lowlevel.checkpoint()
    return None if "please" in text else Correct("say please")


def clean(ctx: HookContext[Any], text: str) -> Block | None:
    return Block("a bad word", "Not in that tone.") if "damn" in text else None


async def shown(agent: Any) -> tuple[list[str], Any]:
    """What somebody who looks on is shown, retractions in angle brackets, and the result."""
    seen: list[str] = []
    async with open_runtime(agent) as runtime, runtime.stream("hi") as streaming:
        async for event in streaming.events():
            if isinstance(event, TextDelta):
                seen.append(event.text)
            elif isinstance(event, Retraction):
                seen.append(f"<{event.text}>")
        return seen, await streaming.wait()


async def test_an_answer_without_objections_comes_through_as_it_streamed() -> None:
    agent = planned(ScriptedModel(["yes, please"], chunk=4), extensions=[Guardrail(short, polite, clean)])
    seen, result = await shown(agent)
    assert ("".join(seen), result.text) == ("yes, please", "yes, please")


async def test_the_model_is_given_all_objections_at_once_and_answers_again() -> None:
    agent = planned(["I would like to have some", "some, please"], extensions=[Guardrail(short, polite)])
    seen, result = await shown(agent)
    assert (seen, result.text, result.status) == (["some, please"], "some, please", "completed")
    assert "Your last reply was rejected: - be shorter\n- say please" in prompt(agent, 1)
    decisions = [(event.extension, event.phase, event.decision) for event in told(result, HookDecision)]
    assert decisions == [("guardrail", "transform_stream", "retry")]


async def test_an_answer_that_stays_wrong_is_blocked_when_the_budget_is_spent() -> None:
    asked: list[object] = []
    agent = planned(["no", "no", "no"], extensions=[Guardrail(polite, corrections=1)], fallback=asked.append)
    seen, result = await shown(agent)
    assert (result.text, len(roles(agent)), asked) == (BLOCKED, 2, [])
    assert result.responded == Responded("guardrail", "transform_stream", "say please", "blocked")
    assert "no" not in "".join(seen).split()


async def test_a_block_is_not_argued_about_and_is_what_is_remembered() -> None:
    store = InMemoryStore()
    agent = planned(["damn, please"], extensions=[Guardrail(polite, clean)])
    result = await run(agent, store=store)
    assert result.text == "Not in that tone."
    assert result.responded == Responded("guardrail", "transform_stream", "a bad word", "blocked")
    assert [exchange.answer for exchange in (await memory_of(store, agent)).recent] == ["Not in that tone."]


async def test_a_block_wins_over_corrections_and_every_objection_is_told() -> None:
    result = await run(planned(["damn"], extensions=[Guardrail(polite, clean)]))
    assert result.responded is not None
    assert result.responded.reason == "say please; a bad word"


async def test_without_holding_back_a_wrong_answer_is_retracted() -> None:
    agent = planned(ScriptedModel(["damn it", "x"], chunk=4), extensions=[Guardrail(clean, hold=False)])
    seen, result = await shown(agent)
    assert ("".join(seen), result.text) == ("damn it<Not in that tone.>", "Not in that tone.")


async def test_the_loops_own_budget_ends_it_first_where_it_is_smaller() -> None:
    agent = planned(["no", "no"], extensions=[Guardrail(polite, corrections=5)], loop=Conductor(hook_retries=1))
    result = await run(agent)
    assert (result.reason, result.text) == ("answer-invalid", "")


async def test_an_answer_of_a_fallback_is_checked() -> None:
    agent = planned([GIVE_UP], tools=[_tool()], extensions=[Guardrail(clean)], fallback=lambda request: "damn")
    assert (await run(agent)).text == "Not in that tone."


async def test_an_answer_in_the_models_place_is_checked() -> None:
    class Answers(Extension[Any]):
        name = "answers"

        def before_run(self, ctx: HookContext[Any], question: BeforeRun) -> Respond:
            return Respond("no thanks")

    assert (await run(planned([], extensions=[Answers(), Guardrail(polite)]))).text == BLOCKED


async def test_an_ask_can_be_blocked_before_anything_is_done_for_it() -> None:
    agent = planned(["please"], extensions=[Guardrail(polite, asks=[clean])])
    blocked = await run(agent, "damn")
    assert (blocked.text, roles(agent)) == ("Not in that tone.", [])
    assert blocked.responded == Responded("guardrail", "before_run", "a bad word", "blocked")
    assert (await run(agent, "hello")).text == "please"


async def test_each_check_is_asked_once_for_an_answer_that_streamed() -> None:
    texts: list[str] = []

    def watch(ctx: HookContext[Any], text: str) -> None:
        texts.append(text)

    await run(planned(["hello"], extensions=[Guardrail(watch)]))
    assert texts == ["hello"]


@pytest.mark.parametrize("answer", [True, False, "no good"])
async def test_a_check_that_answers_with_something_else_fails_the_run(answer: Any) -> None:
    with pytest.raises(GoliathExtensionError, match="a check must return None, a Correct or a Block"):
        await run(planned(["hello"], extensions=[Guardrail(lambda ctx, text: answer)]))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Guardrail(),
        lambda: Guardrail("polite"),  # type: ignore[arg-type]
        lambda: Guardrail(asks=["polite"]),  # type: ignore[list-item]
        lambda: Guardrail(polite, corrections=-1),
        lambda: Guardrail(polite, corrections=True),
        lambda: Guardrail(polite, text=""),
        lambda: Retrieval("fetch"),  # type: ignore[arg-type]
        lambda: Retrieval(lambda ctx, ask: [], at_most=0),
        lambda: Retrieval(lambda ctx, ask: [], tokens=0),
        lambda: Retrieval(lambda ctx, ask: [], timeout=0),
        lambda: Retrieval(lambda ctx, ask: [], heading=" "),
        lambda: Retrieval(lambda ctx, ask: [], counter=len),  # type: ignore[arg-type]
    ],
)
def test_wrong_configuration_is_refused_at_once(make: Any) -> None:
    with pytest.raises(ConfigError):
        make()


# --- Retrieval ------------------------------------------------------------------------------------------------------


def _tool() -> Any:
    from goliath_actors import tool

    @tool
    async def look(where: str) -> str:
        """Look."""
        return "seen"

    return look


async def test_passages_are_fetched_once_and_stand_in_every_prompt() -> None:
    asks: list[tuple[str, Any]] = []

    async def fetch(ctx: HookContext[Any], ask: str) -> list[Passage | str]:
        asks.append((ask, ctx.context))
        await trio.lowlevel.checkpoint()
        return [Passage("Tea is at five.", "house rules"), "  ", "Coffee never is."]

    store = InMemoryStore()
    agent = planned(
        [use("look"), {"where": "here"}, ANSWER, "at five"],
        tools=[_tool()],
        extensions=[Retrieval(fetch, heading="Found:")],
    )
    result = await run(agent, "tea?", context="u1", store=store)
    assert (result.text, asks) == ("at five", [("tea?", "u1")])
    assert roles(agent) == ["plan", "arguments", "plan", "answer"]
    for call in range(4):
        assert "Found:\n\n[1] (house rules) Tea is at five.\n\n[2] Coffee never is." in prompt(agent, call)
    assert "house rules" not in repr(await memory_of(store, agent))


async def test_only_so_many_passages_and_tokens_are_given() -> None:
    def fetch(ctx: HookContext[Any], ask: str) -> list[str]:
        return ["a b c", "long " * 100, "d e f", "g h i"]

    agent = planned(["ok"], extensions=[Retrieval(fetch, at_most=2, tokens=30)])
    await run(agent)
    assert "[1] a b c\n\n[2] d e f" in prompt(agent, 0)
    assert "long" not in prompt(agent, 0)
    assert "g h i" not in prompt(agent, 0)


async def test_nothing_found_adds_nothing() -> None:
    with_it = planned(["ok"], extensions=[Retrieval(lambda ctx, ask: [])])
    without = planned(["ok"])
    await run(with_it)
    await run(without)
    assert prompt(with_it, 0) == prompt(without, 0)


async def test_a_fetch_that_takes_too_long_fails_the_run_or_is_done_without(autojump_clock: MockClock) -> None:
    async def fetch(ctx: HookContext[Any], ask: str) -> list[str]:
        await trio.sleep(10)
        return ["late"]

    with pytest.raises(GoliathExtensionError) as caught:
        await run(planned([], extensions=[Retrieval(fetch, timeout=5)]))
    assert isinstance(caught.value.__cause__, trio.TooSlowError)
    result = await run(planned(["ok"], extensions=[Retrieval(fetch, timeout=5, required=False)]))
    assert result.text == "ok"
    assert [(known.extension, known.phase) for known in result.diagnostics] == [("retrieval", "before_run")]


@pytest.mark.parametrize("found", ["text", 7, [7]])
async def test_a_fetch_that_returns_something_else_fails_the_run(found: Any) -> None:
    with pytest.raises(GoliathExtensionError, match="fetch must return"):
        await run(planned([], extensions=[Retrieval(lambda ctx, ask: found)]))
