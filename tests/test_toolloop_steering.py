"""Texts that are handed to a running run: taken before its next model call, or a run of their own (T7)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from goliath_actors import Extension, Respond, RunAborted, Stop, ToolLoop, open_runtime, tool
from goliath_actors.errors import ConfigError, MailboxFull
from goliath_actors.events import Steered
from goliath_actors.hooks import Complete, Continue, RunPatch
from goliath_actors.stores import InMemoryStore
from goliath_actors.testing import Gate, Journal, ScriptedModel, check_events, tool_calls

from .native import check_closed, check_requests, history, native, said
from .planned import planned, requests, told


@tool
async def look(text: str) -> str:
    """Look."""
    await trio.lowlevel.checkpoint()
    return f"saw {text}"


LOOK = tool_calls(("look", {"text": "a"}))


async def test_a_text_reaches_the_run_before_its_next_model_call() -> None:
    gate, journal, store = Gate(), Journal(), InMemoryStore()
    agent = native([gate.then(LOOK), "in French"], tools=[look], extensions=[journal])
    async with open_runtime(agent, store=store) as runtime:
        conversation = runtime.conversation("c")
        run = conversation.submit("go")
        await gate.wait_reached()
        assert conversation.steer("in French, please") is run
        assert conversation.status().waiting == 1
        gate.open()
        result = await run.wait()
        assert conversation.status().waiting == 0
    assert (result.text, run.followed_by) == ("in French", None)
    assert [event.text for event in told(result, Steered)] == ["in French, please"]
    check_events(result.trace)
    asked = [(question.ask, question.entry) for row, _, question in journal.questions if row == "before_run"]
    assert asked == [("go", "run"), ("in French, please", "steer")]
    entries = await history(store, agent, "c")
    check_closed(entries)
    assert [role for role, _ in said(entries)] == ["user", "assistant", "tool", "user", "assistant"]
    check_requests(requests(agent))
    assert requests(agent)[1].messages[-1].text == "in French, please"


async def test_a_text_that_comes_with_the_answer_lets_the_run_go_on() -> None:
    gate, store = Gate(), InMemoryStore()
    agent = native([gate.then("draft"), "final"])
    async with open_runtime(agent, store=store) as runtime:
        run = runtime.submit("go")
        await gate.wait_reached()
        runtime.conversation().steer("shorter")
        gate.open()
        assert (await run.wait()).text == "final"
    assert said(await history(store, agent)) == [
        ("user", "go"),
        ("assistant", "draft"),
        ("user", "shorter"),
        ("assistant", "final"),
    ]


async def test_without_a_running_run_a_text_is_a_run_of_its_own() -> None:
    agent = native(["one", "two"])
    async with open_runtime(agent) as runtime:
        first = runtime.conversation().steer("hello")
        assert first.ask == "hello"
        assert (await first.wait()).text == "one"
        second = runtime.conversation().steer("again")
        assert second is not first
        assert (await second.wait()).text == "two"


@pytest.mark.parametrize("how", ["abort", "error", "complete", "last step"])
async def test_a_text_that_was_not_taken_becomes_the_next_run_with_the_same_context(how: str) -> None:
    gate, journal, store = Gate(), Journal(), InMemoryStore()

    class Ending(Extension[Any]):
        name = "ending"

        def after_step(self, ctx: Any, question: Any) -> Any:
            return Complete() if how == "complete" and ctx.ask == "go" else None

    contexts: list[Any] = []

    class Contexts(Extension[Any]):
        name = "contexts"

        def before_run(self, ctx: Any, question: Any) -> None:
            contexts.append((ctx.ask, ctx.context))

    first = ValueError("down") if how == "error" else "an answer"
    loop = ToolLoop(max_steps=1) if how == "last step" else ToolLoop()
    agent = native([gate.then(first), "to b", "to c"], extensions=[Ending(), Contexts(), journal], loop=loop)
    async with open_runtime(agent, store=store) as runtime:
        run = runtime.submit("go", context="mine")
        queued = runtime.submit("queued", context="other")
        await gate.wait_reached()
        assert runtime.conversation().steer("b") is run
        if how == "abort":
            run.abort()
        gate.open()
        await run.wait_ended()
        follow = run.followed_by
        assert follow is not None
        assert (await follow.wait()).text == "to b"
        assert (await queued.wait()).text == "to c"
        statistics = runtime.statistics()
    assert contexts == [("go", "mine"), ("b", "mine"), ("queued", "other")]
    assert [ask for ask, _ in journal.heard("on_finish")] == ["go", "b", "queued"]
    assert statistics.accepted == 3
    assert [text for role, text in said(await history(store, agent)) if role == "user"] == ["go", "b", "queued"]


async def test_several_texts_keep_their_order_and_count_for_the_capacity() -> None:
    gate = Gate()
    agent = native([gate.then(LOOK), "done"], tools=[look])
    async with open_runtime(agent, mailbox_capacity=2) as runtime:
        run = runtime.submit("go")
        await gate.wait_reached()
        conversation = runtime.conversation()
        conversation.steer("a")
        conversation.steer("b")
        with pytest.raises(MailboxFull):
            conversation.steer("c")
        with pytest.raises(MailboxFull):
            conversation.submit("d")
        gate.open()
        result = await run.wait()
    assert [event.text for event in told(result, Steered)] == ["a", "b"]
    assert requests(agent)[1].messages[-1].text == "a\n\nb"


class Door(Extension[Any]):
    """Answers `before_run` about texts that are handed in."""

    name = "door"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def before_run(self, ctx: Any, question: Any) -> Any:
        return self.answer if question.entry == "steer" else None


async def steered(answer: Any, script: list[Any], store: InMemoryStore) -> Any:
    gate = Gate()
    agent = native([gate.then(LOOK), *script], tools=[look], extensions=[Door(answer)])
    async with open_runtime(agent, store=store) as runtime:
        run = runtime.submit("go")
        await gate.wait_reached()
        runtime.conversation().steer("bad words")
        gate.open()
        result = await run.wait()
    assert run.followed_by is None
    check_closed(await history(store, agent))
    return result, said(await history(store, agent))


async def test_a_guard_before_the_run_is_not_bypassed_by_handing_a_text_in() -> None:
    result, texts = await steered(Stop("no", "policy"), [], InMemoryStore())
    assert (result.status, result.text) == ("stopped", "no")
    assert "bad words" not in [text for _, text in texts]

    result, texts = await steered(Respond("I would rather not."), [], InMemoryStore())
    assert result.text == "I would rather not."
    assert texts[-2:] == [("user", "bad words"), ("assistant", "I would rather not.")]

    result, texts = await steered(RunPatch(ask="kind words"), ["fine"], InMemoryStore())
    assert (result.text, texts[-2]) == ("fine", ("user", "kind words"))


async def test_users_outrank_hooks() -> None:
    gate, store = Gate(), InMemoryStore()

    class More(Extension[Any]):
        name = "more"

        def after_step(self, ctx: Any, question: Any) -> Any:
            return Continue("from a hook") if question.step.text == "draft" else None

    agent = native([gate.then("draft"), "final"], extensions=[More()])
    async with open_runtime(agent, store=store) as runtime:
        run = runtime.submit("go")
        await gate.wait_reached()
        runtime.conversation().steer("from a user")
        gate.open()
        await run.wait()
    assert [text for role, text in said(await history(store, agent)) if role == "user"] == ["go", "from a user"]


async def test_a_text_that_was_not_taken_is_ended_with_all_that_waits() -> None:
    gate, journal = Gate(), Journal()
    agent = native([gate.then("never")], extensions=[journal])
    async with open_runtime(agent) as runtime:
        run = runtime.submit("go")
        await gate.wait_reached()
        runtime.conversation().steer("b")
        runtime.conversation().abort("all of it", queued=True)
        await run.wait_ended()
        follow = run.followed_by
        assert follow is not None
        with pytest.raises(RunAborted):
            await follow.wait()
    assert [(ask, status) for ask, status in journal.heard("on_finish")] == [("go", "aborted"), ("b", "aborted")]


async def test_forgetting_ends_a_text_that_was_not_taken() -> None:
    gate, store = Gate(), InMemoryStore()
    agent = native([gate.then("never"), "new"])
    async with open_runtime(agent, store=store) as runtime:
        runtime.submit("go")
        await gate.wait_reached()
        runtime.conversation().steer("b")
        await runtime.conversation().forget()
        assert await history(store, agent) == []
        assert (await runtime.run("c")).text == "new"


async def test_a_shutdown_tells_the_observers_of_a_text_that_was_not_taken() -> None:
    gate, journal = Gate(), Journal()
    agent = native([gate.then("never")], extensions=[journal])
    with trio.CancelScope() as scope:
        async with open_runtime(agent) as runtime:
            run = runtime.submit("go")
            await gate.wait_reached()
            runtime.conversation().steer("b")
            scope.cancel()
            await trio.sleep_forever()
    assert run.followed_by is not None
    assert journal.heard("on_finish") == [("go", "aborted"), ("b", "aborted")]


async def test_a_planned_agent_cannot_be_steered_and_a_blank_text_is_none() -> None:
    async with open_runtime(planned([])) as runtime:
        with pytest.raises(ConfigError, match="steer needs an agent with a ToolLoop"):
            runtime.conversation().steer("x")
    gate = Gate()
    async with open_runtime(native([gate.then("done")])) as runtime:
        run = runtime.submit("go")
        await gate.wait_reached()
        with pytest.raises(ConfigError):
            runtime.conversation().steer("  ")
        gate.open()
        await run.wait()


class Waits(Extension[Any]):
    """Is asked everything a text passes, and takes its time."""

    name = "waits"

    async def before_run(self, ctx: Any, question: Any) -> None:
        await trio.lowlevel.checkpoint()

    async def before_append(self, ctx: Any, question: Any) -> None:
        await trio.lowlevel.checkpoint()

    async def before_plan(self, ctx: Any, question: Any) -> None:
        await trio.lowlevel.checkpoint()

    async def after_step(self, ctx: Any, question: Any) -> None:
        await trio.lowlevel.checkpoint()

    async def after_answer(self, ctx: Any, question: Any) -> None:
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("late", [False, True])
def test_a_text_is_never_lost_and_never_given_twice_wherever_the_run_is_cut(late: bool) -> None:
    class Slow(InMemoryStore):  # type: ignore[misc]  # a test's own store: a commit may be cut on either side
        async def commit(self, *args: Any, **kwargs: Any) -> Any:
            record = await super().commit(*args, **kwargs)
            await trio.lowlevel.checkpoint()
            return record

    async def main(at: int) -> bool:
        store, gate = Slow(), Gate()
        model = ScriptedModel([gate.then(LOOK), *["done"] * 9])
        agent = native(model, tools=[look], extensions=[Waits()])
        async with open_runtime(agent, store=store) as runtime:
            run = runtime.submit("go")
            await gate.wait_reached()
            if not late:
                runtime.conversation().steer("b")
            gate.open()
            for step in range(at):
                if late and step == at // 2:
                    runtime.conversation().steer("b")
                await trio.lowlevel.checkpoint()
            if late and at == 0:
                runtime.conversation().steer("b")
            over = run.state == "done"
            run.abort()
        entries = await history(store, agent)
        check_closed(entries)
        check_requests(model.requests)
        assert [text for role, text in said(entries) if role == "user"] == ["go", "b"]
        return over

    at = 0
    while not trio.run(main, at, clock=MockClock(autojump_threshold=0)):
        at += 1
    assert at > 15


async def test_texts_that_were_not_taken_are_run_in_the_order_in_which_they_were_handed_in() -> None:
    gate = Gate()
    agent = native([gate.then("x"), "one", "two", "three", "queued"])
    async with open_runtime(agent) as runtime:
        talk = runtime.conversation()
        first = talk.submit("first")
        await gate.wait_reached()
        queued = talk.submit("queued")
        for text in ("one", "two", "three"):
            talk.steer(text)
        first.abort()
        await first.wait_ended()
        followed = first.followed_by
        assert followed is not None
        assert (await followed.wait()).text == "one"
        assert (await queued.wait()).text == "queued"
    asks = [request.messages[-1].text.split("\n\n")[-1] for request in requests(agent)]
    assert asks == ["first", "one", "two", "three", "queued"]


async def test_a_text_that_was_not_taken_is_no_replacement_that_a_later_one_replaces() -> None:
    gate, second = Gate(), Gate()
    agent = native([gate.then("x"), second.then("one"), "two", "instead"])
    async with open_runtime(agent) as runtime:
        talk = runtime.conversation()
        first = talk.submit("first")
        await gate.wait_reached()
        for text in ("one", "two"):
            talk.steer(text)
        first.abort()
        await second.wait_reached()
        replacement = talk.submit(
            "instead", when_busy="replace"
        )  # aborts "one", which runs, and not "two", which waits
        await replacement.wait()
    asks = [request.messages[-1].text.split("\n\n")[-1] for request in requests(agent)]
    assert asks == ["first", "one", "two", "instead"]


async def test_a_text_whose_commit_was_cut_before_it_arrived_becomes_the_next_run() -> None:
    gate = Gate()
    blocked: list[str] = []

    class Blocked(InMemoryStore):  # type: ignore[misc]  # a test's own store
        async def commit(self, key: str, change: Any, *args: Any, **kwargs: Any) -> Any:
            if not blocked and any(entry.message.text == "b" for entry in change.append):
                blocked.append("b")
                await gate.pass_through()
            return await super().commit(key, change, *args, **kwargs)

    store, first = Blocked(), Gate()
    agent = native([first.then(LOOK), "answer to b"], tools=[look])
    async with open_runtime(agent, store=store) as runtime:
        run = runtime.submit("go")
        await first.wait_reached()
        runtime.conversation().steer("b")
        first.open()
        await gate.wait_reached()
        run.abort()
        await run.wait_ended()
        assert run.followed_by is not None
        assert (await run.followed_by.wait()).text == "answer to b"
    entries = await history(store, agent)
    check_closed(entries)
    assert [text for role, text in said(entries) if role == "user"] == ["go", "b"]
