"""Compaction: old turns become a summary, or nothing changes (T12)."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio

from goliath_actors import Agent, Compaction, Extension, ToolLoop, open_runtime, tool
from goliath_actors.abc import Change, Entry, ModelRequest
from goliath_actors.errors import ContextOverflow, GoliathBudgetError, ModelUnavailable
from goliath_actors.hooks import Continue, Decline
from goliath_actors.stores import InMemoryStore
from goliath_actors.testing import FailingStore, ScriptedModel, tool_calls
from goliath_actors.values import Message, ToolCall

from .native import check_closed, check_requests, history, native
from .planned import end, requests, roles


def turns(count: int) -> list[Entry]:
    """Turns of a question, a call with its result, and an answer."""
    entries: list[Entry] = []
    for n in range(count):
        call = ToolCall(f"c{n}", "look", '{"text": "x"}')
        for place, message in enumerate(
            [
                Message("user", f"question {n} " + "long " * 60),
                Message("assistant", "", [call]),
                Message("tool", f"result {n}", tool_call_id=call.id),
                Message("assistant", f"answer {n}"),
            ]
        ):
            entries.append(Entry(f"{n}-{place}", 0.0, message.role, message))  # type: ignore[arg-type]
    return entries


@tool
async def look(text: str) -> str:
    """Look."""
    await trio.lowlevel.checkpoint()
    return text


async def stored(count: int) -> InMemoryStore:
    store = InMemoryStore()
    await store.commit("agent", Change(append=turns(count)))
    return store


def small(script: Any, **options: Any) -> Agent[Any]:
    options.setdefault("loop", ToolLoop(window=2000, compaction=Compaction(at=0.4, keep_turns=2)))
    return native(script, tools=[look], **options)


async def test_a_context_that_passed_its_threshold_is_summarised_before_the_step() -> None:
    store = await stored(10)
    agent = small(["They asked eight questions.", "done"])
    async with open_runtime(agent, store=store) as runtime:
        assert (await runtime.run("now?")).text == "done"
    assert roles(agent) == ["compact", "step"]
    summarised, step = requests(agent)
    assert "question 8" in summarised.text
    assert "question 9" not in summarised.text
    assert "look called" not in summarised.text
    texts = [message.text for message in step.messages]
    assert texts[1].startswith("Summary of the conversation so far:\nThey asked eight questions.\n\nquestion 9")
    assert [message.role for message in step.messages] == ["system", "user", "assistant", "tool", "assistant", "user"]
    check_requests(requests(agent))
    entries = await history(store, agent)
    check_closed([entry for entry in entries if entry.role != "summary"])
    assert [entry.context_visible for entry in entries[:40]] == [False] * 36 + [True] * 4
    assert all(entry.transcript_visible for entry in entries)
    record = await store.load("agent")
    assert record.private["compaction"] == {"through": "8-3"}


async def test_a_summary_is_read_again_and_summarised_in_its_turn() -> None:
    store = await stored(10)
    agent = small(["first summary", "a", "b", "c", "second summary", "d"])
    async with open_runtime(agent, store=store) as runtime:
        await runtime.run("1 " + "long " * 80)
        await runtime.run("2 " + "long " * 80)
        await runtime.run("3 " + "long " * 80)
    agent_two = small(["third summary", "e"])
    async with open_runtime(agent_two, store=store) as runtime:
        await runtime.run("4 " + "long " * 300)
    assert "first summary" not in requests(agent_two)[-1].text
    assert requests(agent_two)[-1].text.count("Summary of the conversation so far") == 1
    entries = await history(store, agent)
    visible = [entry for entry in entries if entry.role == "summary" and entry.context_visible]
    assert len(visible) == 1


async def test_nothing_is_summarised_below_the_threshold_or_without_compaction() -> None:
    agent = small(["done"], loop=ToolLoop())
    async with open_runtime(agent, store=await stored(10)) as runtime:
        await runtime.run("now?")
    assert roles(agent) == ["step"]
    agent = small(["done"], loop=ToolLoop(window=4000, compaction=None))
    async with open_runtime(agent, store=await stored(10)) as runtime:
        await runtime.run("now?")
    assert roles(agent) == ["step"]


@pytest.mark.parametrize("reply", [ModelUnavailable("down"), "", "  "])
async def test_a_summary_that_fails_leaves_the_history_as_it_was(reply: Any) -> None:
    store = await stored(9)
    agent = small([reply, "done"])
    async with open_runtime(agent, store=store) as runtime:
        result = await runtime.run("now?")
    assert result.text == "done"
    assert len([event for event in result.trace if event.kind == "memory-error"]) == 1
    entries = await history(store, agent)
    assert all(entry.context_visible for entry in entries)
    assert "compaction" not in (await store.load("agent")).private


async def test_a_summary_that_cannot_be_stored_leaves_the_history_as_it_was() -> None:
    inner = await stored(9)
    store = FailingStore(inner, {"commit": [None, OSError("full")]})
    agent = small(["summary", "done"])
    async with open_runtime(agent, store=store) as runtime:
        result = await runtime.run("now?")
    assert result.text == "done"
    assert all(entry.context_visible for entry in await history(inner, agent))


class Compactor(Extension[Any]):
    name = "compactor"

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.questions: list[Any] = []

    def before_compact(self, ctx: Any, question: Any) -> Any:
        self.questions.append(question)
        return self.answer


async def test_an_extension_may_give_the_summary_and_no_model_is_asked() -> None:
    compactor = Compactor("by hand")
    agent = small(["done"], extensions=[compactor])
    async with open_runtime(agent, store=await stored(8)) as runtime:
        await runtime.run("now?")
    assert roles(agent) == ["step"]
    assert "by hand" in requests(agent)[0].text
    question = compactor.questions[0]
    assert (question.range, question.reason, len(question.messages)) == (("0-0", "6-3"), "threshold", 28)
    assert len(compactor.questions) == 1


@pytest.mark.parametrize("answer", ["by hand", Decline()])
async def test_e_075_who_comes_behind_a_decision_is_not_asked(answer: Any) -> None:
    silent, decider, late = Compactor(None), Compactor(answer), Compactor("late")
    silent.name, late.name = "silent", "late"
    agent = small(["done"], extensions=[silent, decider, late])
    async with open_runtime(agent, store=await stored(9)) as runtime:
        await runtime.run("now?")
    assert (len(silent.questions), len(decider.questions), len(late.questions)) == (1, 1, 0)
    assert ("by hand" in requests(agent)[0].text) == (answer == "by hand")


async def test_a_range_that_is_too_long_for_one_prompt_is_summarised_piece_by_piece() -> None:
    store = await stored(40)
    agent = small(["first", "second", "third", "done"])
    async with open_runtime(agent, store=store) as runtime:
        assert (await runtime.run("now?")).text == "done"
    assert roles(agent) == ["compact", "compact", "compact", "step"]
    assert "Summary of the conversation so far" not in requests(agent)[1].text.replace("first", "", 1)
    assert "first" in requests(agent)[1].text
    assert "third" in requests(agent)[3].text
    check_closed([entry for entry in await history(store, agent) if entry.role != "summary"])


async def test_an_extension_may_decline() -> None:
    compactor = Compactor(Decline())
    agent = small(["done"], extensions=[compactor])
    async with open_runtime(agent, store=await stored(9)) as runtime:
        result = await runtime.run("now?")
    assert roles(agent) == ["step"]
    assert [event.decision for event in result.trace if event.kind == "hook-decision"] == ["decline"]


async def test_an_overflow_that_the_provider_tells_is_answered_by_one_compaction_and_one_retry() -> None:
    agent = small([ContextOverflow("too long"), "summary", "done"], loop=ToolLoop())
    async with open_runtime(agent, store=await stored(6)) as runtime:
        assert (await runtime.run("now?")).text == "done"
    assert roles(agent) == ["step", "compact", "step"]

    agent = small([ContextOverflow("too long"), "summary", ContextOverflow("still")], loop=ToolLoop())
    async with open_runtime(agent, store=await stored(6)) as runtime:
        with pytest.raises(ContextOverflow, match="still"):
            await runtime.run("now?")


async def test_with_few_turns_an_overflow_keeps_the_last_one_and_without_any_it_is_raised() -> None:
    agent = small([ContextOverflow("too long"), "summary", "done"], loop=ToolLoop())
    async with open_runtime(agent, store=await stored(1)) as runtime:
        assert (await runtime.run("now?")).text == "done"
    assert roles(agent) == ["step", "compact", "step"]

    agent = small([ContextOverflow("too long")], loop=ToolLoop())
    async with open_runtime(agent) as runtime:
        with pytest.raises(ContextOverflow):
            await runtime.run("now?")


async def test_a_round_that_does_not_shrink_is_not_repeated() -> None:
    compactor = Compactor("longer than before " * 400)
    calls = tool_calls(("look", {"text": "a"}))
    agent = small(
        [calls, calls, "done"],
        extensions=[compactor],
        loop=ToolLoop(window=8000, compaction=Compaction(at=0.05, keep_turns=1)),
    )
    async with open_runtime(agent, store=await stored(4)) as runtime:
        assert (await runtime.run("now?")).text == "done"
    assert len(compactor.questions) == 1


async def test_one_turn_that_is_too_long_is_a_budget_error() -> None:
    ending = await end(small(["never"]), "long " * 6000, store=await stored(0))
    assert isinstance(ending.error, GoliathBudgetError)


async def test_a_counter_that_fails_is_told_by_the_request_itself() -> None:
    def broken(text: str) -> int:
        raise ValueError("no")

    ending = await end(native(ScriptedModel(["never"]), token_counter=broken))
    assert ending.status == "error"
    assert "no" in str(ending.error)


async def test_the_last_ask_is_never_summarised_so_that_it_can_be_answered_anew() -> None:
    class Asks(Extension[Any]):
        name = "asks"

        def after_step(self, ctx: Any, question: Any) -> Any:
            return Continue("and more? " + "x" * 300) if question.step.text.startswith("part") else None

    store = InMemoryStore()
    loop = ToolLoop(window=2000, max_steps=9, compaction=Compaction(at=0.1, keep_turns=1))
    answers = ["old", "part 0", "part 1", "part 2", "part 3", "done", "anew"]

    def reply(request: ModelRequest) -> str:
        return "summary" if request.role == "compact" else answers.pop(0)

    agent = native([reply] * 20, loop=loop, extensions=[Asks()])
    async with open_runtime(agent, store=store) as runtime:
        await runtime.run("before " + "y" * 300)
        await runtime.run("the ask")
        assert (await runtime.conversation().rewrite("regenerate")).text == "anew"
    entries = await history(store, agent)
    assert "summary" in [entry.role for entry in entries]
    shown = [entry.message.text for entry in entries if entry.context_visible and entry.role != "summary"]
    assert shown == ["the ask", "anew"]


async def test_a_summary_hides_from_the_model_alone_and_leaves_the_transcript_as_it_is() -> None:
    store = InMemoryStore()
    entries = turns(10)
    entries[1] = attrs.evolve(entries[1], transcript_visible=False)
    await store.commit("agent", Change(append=entries))
    agent = small(["They asked eight questions.", "done"])
    async with open_runtime(agent, store=store) as runtime:
        await runtime.run("and now?")
    kept = await history(store, agent)
    axes = {entry.id: (entry.transcript_visible, entry.context_visible) for entry in kept}
    summarised = [entry.id for entry in entries if not axes[entry.id][1]]
    assert len(summarised) >= 8
    assert axes["0-1"] == (False, False)
    assert {axes[name] for name in summarised if name != "0-1"} == {(True, False)}
