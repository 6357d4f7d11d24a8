"""Answering the last ask anew: what was said behind it goes, in one commit with what extensions want stored."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from goliath_actors import Compaction, Extension, Message, ToolContext, ToolLoop, open_runtime, tool
from goliath_actors.abc import Change, Entry
from goliath_actors.errors import ConfigError, GoliathExtensionError
from goliath_actors.hooks import Continue, MetadataPatch
from goliath_actors.stores import InMemoryStore, SqliteStore
from goliath_actors.testing import FailingStore, Journal, ScriptedModel, tool_calls
from goliath_actors.tools import Suspend
from goliath_actors.values import ToolCall

from .native import check_closed, check_requests, history, native, said
from .planned import planned, requests, roles


@tool
async def look(text: str) -> str:
    """Look."""
    await trio.lowlevel.checkpoint()
    return f"saw {text}"


LOOK = tool_calls(("look", {"text": "a"}))


class Rewrites(Extension[Any]):
    """Answers `before_rewrite`, and keeps what it hears."""

    name = "rewrites"

    def __init__(self, answer: Any = None, name: str = "rewrites") -> None:
        self.answer = answer
        self.name = name
        self.heard: list[Any] = []

    def before_rewrite(self, ctx: Any, question: Any) -> Any:
        self.heard.append(("before", question.kind, question.changes))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def after_rewrite(self, ctx: Any, question: Any) -> None:
        self.heard.append(("after", question.kind, question.changes))


async def test_the_last_ask_is_answered_anew() -> None:
    store, journal = InMemoryStore(), Journal()
    agent = native(["zero", LOOK, "one", "two"], tools=[look], extensions=[journal])
    async with open_runtime(agent, store=store) as runtime:
        await runtime.run("first")
        await runtime.run("second")
        journal.clear()
        result = await runtime.conversation().rewrite("regenerate")
    assert result.text == "two"
    assert [question.ask for row, _, question in journal.questions if row == "before_run"] == ["second"]
    assert journal.rows.index("before_rewrite") < journal.rows.index("before_plan")
    assert journal.rows.count("after_rewrite") == 1
    entries = await history(store, agent)
    check_closed(entries)
    assert said(entries) == [("user", "first"), ("assistant", "zero"), ("user", "second"), ("assistant", "two")]
    check_requests(requests(agent))
    assert "saw a" not in requests(agent)[-1].text


@pytest.mark.parametrize("durable", [False, True])
async def test_what_extensions_want_stored_goes_into_the_same_commit(tmp_path: Any, durable: bool) -> None:
    store = SqliteStore(tmp_path / "chat.db") if durable else InMemoryStore()
    one = Rewrites(MetadataPatch({"title": "x", "n": 1}, {"cursor": 1}))
    two = Rewrites(MetadataPatch({"n": 2}), "two")
    agent = native(["one", "two"], extensions=[one, two])
    async with open_runtime(agent, store=store) as runtime:
        await runtime.run("first")
        await runtime.conversation().rewrite("regenerate")
        record = await store.load("agent")
        ids = [entry.id for entry in await history(store, agent)]
    assert (record.metadata, record.private) == ({"title": "x", "n": 2}, {"cursor": 1})
    before, after = one.heard
    assert before[1:] == after[1:]
    assert before[2]["truncate_after"] == ids[0]
    assert len(before[2]["removed"]) == 1


async def test_a_failing_extension_or_store_leaves_the_history_as_it_was() -> None:
    store = InMemoryStore()
    agent = native(["one"], extensions=[Rewrites(ValueError("no"))])
    async with open_runtime(agent, store=store) as runtime:
        await runtime.run("first")
        with pytest.raises(GoliathExtensionError) as raised:
            await runtime.conversation().rewrite("regenerate")
    assert raised.value.phase == "before_rewrite"
    assert said(await history(store, agent)) == [("user", "first"), ("assistant", "one")]

    other = native(["never"])
    async with open_runtime(other, store=FailingStore(store, {"commit": OSError("full")})) as runtime:
        with pytest.raises(OSError, match="full"):
            await runtime.conversation().rewrite("regenerate")
    assert said(await history(store, agent)) == [("user", "first"), ("assistant", "one")]


async def test_a_text_that_a_hook_made_is_no_ask() -> None:
    class More(Extension[Any]):
        name = "more"

        def after_step(self, ctx: Any, question: Any) -> Any:
            return Continue("shorter") if question.step.text == "draft" else None

    store = InMemoryStore()
    agent = native(["draft", "short", "again"], extensions=[More()])
    async with open_runtime(agent, store=store) as runtime:
        await runtime.run("first")
        await runtime.conversation().rewrite("regenerate")
    assert said(await history(store, agent)) == [("user", "first"), ("assistant", "again")]


async def test_a_summary_that_was_made_behind_the_ask_stays() -> None:
    store = InMemoryStore()
    loop = ToolLoop(window=2000, compaction=Compaction(at=0.1, keep_turns=1))
    agent = native([*"abcde", "summary", "f", "g"], loop=loop)
    async with open_runtime(agent, store=store) as runtime:
        for number in range(5):
            await runtime.run(f"old {number}")
        await runtime.run("long " * 200)
        assert roles(agent)[-2:] == ["compact", "step"]
        assert (await runtime.conversation().rewrite("regenerate")).text == "g"
    later = native(["h"])
    async with open_runtime(later, store=store) as runtime:
        assert (await runtime.run("and now?")).text == "h"
    for request in (requests(agent)[-1], requests(later)[-1]):
        assert request.text.count("Summary of the conversation so far:\nsummary") == 1
        assert "old 1" not in request.text
    entries = await history(store, agent)
    assert [entry.role for entry in entries].count("summary") == 1
    assert len({entry.id for entry in entries}) == len(entries)


async def test_what_waits_behind_the_ask_waits_no_more() -> None:
    @tool(writes=True)
    async def send() -> str:
        """Send."""
        raise AssertionError

    store = InMemoryStore()
    agent = native([tool_calls(("send", {})), "fine"], tools=[send], confirm=lambda request: Suspend())
    async with open_runtime(agent, store=store) as runtime:
        assert len((await runtime.run("go")).waiting) == 1
        assert (await runtime.conversation().rewrite("regenerate")).text == "fine"
    assert said(await history(store, agent)) == [("user", "go"), ("assistant", "fine")]
    assert "waiting" not in (await store.load("agent")).private


async def test_an_answer_in_the_place_of_what_waited_may_use_tools() -> None:
    """The run ended as one that waits, for nothing."""

    @tool
    async def ask(ctx: ToolContext[Any]) -> str:
        """Ask."""
        return str(await ctx.suspend({"what": 1}))

    store = InMemoryStore()
    agent = native([tool_calls(("ask", {})), LOOK, "two"], tools=[ask, look])
    async with open_runtime(agent, store=store) as runtime:
        assert (await runtime.run("first")).reason == "waiting"
        result = await runtime.conversation().rewrite("regenerate")
    assert (result.text, result.reason, result.waiting) == ("two", None, ())
    check_closed(await history(store, agent))


async def test_a_call_before_the_ask_whose_result_is_dropped_gets_another() -> None:
    """Its result lies behind the ask where two processes wrote at once, or one ended in between."""
    store = InMemoryStore()
    agent = native(["one", "two", "three"], tools=[look])
    call = Message("assistant", "", (ToolCall("c1", "look", '{"text": "a"}'),))
    left = [Entry("e1", 1.0, "user", Message("user", "zero")), Entry("e2", 2.0, "assistant", call)]
    left.append(Entry("e3", 3.0, "user", Message("user", "first")))
    async with open_runtime(agent, store=store) as runtime:
        await store.commit(agent.name, Change(append=tuple(left)), expect=0)
        for text in ("one", "two"):
            assert (await runtime.conversation().rewrite("regenerate")).text == text
            entries = await history(store, agent)
            assert [entry.message.tool_call_id for entry in entries if entry.role == "tool"] == ["c1"]
        await runtime.run("second")
    check_requests(agent.model.requests)  # type: ignore[attr-defined]


async def test_there_must_be_something_to_answer_and_a_loop_that_can() -> None:
    async with open_runtime(native([])) as runtime:
        with pytest.raises(ConfigError, match="nothing to answer anew"):
            await runtime.conversation().rewrite("regenerate")
        with pytest.raises(ConfigError, match="can only"):
            await runtime.conversation().rewrite("retry")  # type: ignore[arg-type]
    async with open_runtime(planned([])) as runtime:
        with pytest.raises(ConfigError, match="rewrite needs an agent with a ToolLoop"):
            await runtime.conversation().rewrite("regenerate")


async def test_a_rewrite_that_is_cut_anywhere_is_wholly_done_or_not_at_all() -> None:
    class Slow(InMemoryStore):  # type: ignore[misc]  # a test's own store: a commit may be cut on either side
        async def commit(self, *args: Any, **kwargs: Any) -> Any:
            record = await super().commit(*args, **kwargs)
            await trio.lowlevel.checkpoint()
            return record

    found: set[int] = set()
    for at in range(40):
        store = Slow()
        agent = native(ScriptedModel([LOOK, *["done"] * 9]), tools=[look], extensions=[Journal()])
        async with open_runtime(agent, store=store) as runtime:
            await runtime.run("go")
            with trio.move_on_after(9) as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(runtime.conversation().rewrite, "regenerate")
                    for _ in range(at):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()
            entries = await history(store, agent)
            check_closed(entries)
            found.add(len(entries))
            assert (await runtime.run("next")).text == "done"
        check_requests(requests(agent))
    assert {1, 2, 4} <= found
