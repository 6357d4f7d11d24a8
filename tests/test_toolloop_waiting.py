"""Runs that wait for a person: suspended, kept, and taken up again, also by another process (T8)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from goliath_actors import Agent, Extension, RunAborted, Tool, ToolContext, open_runtime, tool
from goliath_actors.abc import Change, Entry, Record
from goliath_actors.errors import ConfigError, GoliathExtensionError, NotWaiting, StoreConflict
from goliath_actors.events import Confirm, RunWaiting
from goliath_actors.hooks import Complete, Continue, Respond
from goliath_actors.stores import InMemoryStore, SqliteStore
from goliath_actors.testing import FailingStore, Gate, Journal, check_events, tool_calls
from goliath_actors.tools import Confirmed, Suspend
from goliath_actors.values import Message, Waiting

from .native import check_closed, check_requests, history, native
from .planned import requests, told


def sender(sent: list[str]) -> Tool:
    @tool(writes=True)
    async def send(text: str) -> str:
        """Send a message."""
        await trio.lowlevel.checkpoint()
        sent.append(text)
        return f"sent {text}"

    return send


def asker(log: list[Any], questions: int = 1) -> Tool:
    @tool
    async def ask_user(ctx: ToolContext[Any], topic: str) -> str:
        """Ask the user."""
        log.append("entered")
        answers = [await ctx.suspend({"topic": topic, "number": n}) for n in range(questions)]
        log.append(answers)
        return f"{topic}: {answers}"

    return ask_user


@tool
async def look(text: str) -> str:
    """Look."""
    await trio.lowlevel.checkpoint()
    return f"saw {text}"


def closed_in_any_order(entries: Any) -> None:
    calls = [call.id for entry in entries for call in entry.message.tool_calls]
    results = [entry.message.tool_call_id for entry in entries if entry.role == "tool"]
    assert sorted(calls) == sorted(results)
    assert len(set(results)) == len(results)


WAIT_FOR_APPROVAL = {"confirm": lambda request: Suspend({"who": "boss"})}


async def test_an_approval_that_waits_is_executed_unchanged_once_it_is_given() -> None:
    sent: list[str] = []
    store, journal = InMemoryStore(), Journal()
    script = [tool_calls(("send", {"text": "a"}), ("look", {"text": "b"}), text="I need a yes."), "done"]
    agent = native(script, tools=[sender(sent), look], extensions=[journal], **WAIT_FOR_APPROVAL)
    async with open_runtime(agent, store=store) as runtime:
        first = await runtime.run("go", conversation_id="c")
        assert (first.status, first.text, first.reason) == ("completed", "I need a yes.", "waiting")
        (waiting,) = first.waiting
        assert waiting == Waiting(waiting.call_id, "send", {"text": "a"}, {"who": "boss"}, "approval")
        assert told(first, RunWaiting)[0].entries == (waiting,)
        assert [step.tool for step in first.steps] == ["look"]
        assert sent == []
        journal.clear()
        second = await runtime.conversation("c").resume({waiting.call_id: True})
    assert (second.text, sent) == ("done", ["a"])
    check_events(first.trace)
    check_events(second.trace)
    assert [event.approved for event in told(second, Confirm)] == [True]
    assert "before_tool" not in journal.rows
    assert [question.entry for row, _, question in journal.questions if row == "before_run"] == ["resume"]
    assert [question.ask for row, _, question in journal.questions if row == "before_run"] == ["go"]
    heard = next(question for row, _, question in journal.questions if row == "after_tools")
    assert heard.results == ("sent a", "saw b")
    closed_in_any_order(await history(store, agent, "c"))
    check_requests(requests(agent))
    assert [m.text for m in requests(agent)[1].messages if m.role == "tool"] == ["sent a", "saw b"]
    assert "waiting" not in (await store.load("agent/c")).private


@pytest.mark.parametrize(("answer", "why"), [(False, ""), (Confirmed(False, "too late"), ": too late")])
async def test_a_refusal_is_a_result_like_any_other(answer: Any, why: str) -> None:
    sent: list[str] = []
    agent = native([tool_calls(("send", {"text": "a"})), "understood"], tools=[sender(sent)], **WAIT_FOR_APPROVAL)
    async with open_runtime(agent) as runtime:
        first = await runtime.run("go")
        second = await runtime.conversation().resume({first.waiting[0].call_id: answer})
    assert (second.text, sent) == ("understood", [])
    assert (second.steps[0].status, second.steps[0].skip_reason) == ("skipped", "confirmation")
    assert second.steps[0].result == f"Declined by the user{why}. Do not try it again unless the user asks for it."


async def test_a_tool_that_suspends_is_entered_again_with_the_answer() -> None:
    log: list[Any] = []
    store = InMemoryStore()
    agent = native(
        [tool_calls(("ask_user", {"topic": "size"}), ("look", {"text": "b"})), "ok"], tools=[asker(log), look]
    )
    async with open_runtime(agent, store=store) as runtime:
        first = await runtime.run("go")
        assert first.waiting[0].kind == "question"
        assert first.waiting[0].payload == {"topic": "size", "number": 0}
        check_events(first.trace)
        assert [(step.tool, step.status) for step in first.steps] == [("ask_user", "unknown"), ("look", "executed")]
        second = await runtime.conversation().resume({first.waiting[0].call_id: "large"})
    assert (log, second.text) == (["entered", "entered", ["large"]], "ok")
    closed_in_any_order(await history(store, agent))


async def test_a_tool_may_ask_again_and_gets_its_earlier_answers_first() -> None:
    log: list[Any] = []
    agent = native([tool_calls(("ask_user", {"topic": "x"})), "ok"], tools=[asker(log, questions=2)])
    async with open_runtime(agent) as runtime:
        result = await runtime.run("go")
        for answer in ("one", "two"):
            assert len(result.waiting) == 1
            result = await runtime.conversation().resume({result.waiting[0].call_id: answer})
    assert (result.text, log) == ("ok", ["entered", "entered", "entered", ["one", "two"]])


async def test_several_calls_may_be_answered_one_after_the_other() -> None:
    sent: list[str] = []
    store = InMemoryStore()
    script = [tool_calls(("send", {"text": "a"}), ("send", {"text": "b"})), "done"]
    agent = native(script, tools=[sender(sent)], **WAIT_FOR_APPROVAL)
    async with open_runtime(agent, store=store) as runtime:
        first = await runtime.run("go")
        a, b = [waiting.call_id for waiting in first.waiting]
        second = await runtime.conversation().resume({b: True})
        assert ([waiting.call_id for waiting in second.waiting], sent) == ([a], ["b"])
        third = await runtime.conversation().resume({a: True})
    assert (third.text, third.waiting, sent) == ("done", (), ["b", "a"])
    closed_in_any_order(await history(store, agent))
    assert [m.text for m in requests(agent)[1].messages if m.role == "tool"] == ["sent a", "sent b"]


async def test_what_waits_is_taken_up_by_another_process(tmp_path: Path) -> None:
    sent: list[str] = []
    path = tmp_path / "chat.db"
    agent = native([tool_calls(("send", {"text": "a"}))], tools=[sender(sent)], **WAIT_FOR_APPROVAL)
    async with open_runtime(agent, store=SqliteStore(path)) as runtime:
        first = await runtime.run("go", conversation_id="c")
    again = native(["done"], tools=[sender(sent)], **WAIT_FOR_APPROVAL)
    async with open_runtime(again, store=SqliteStore(path)) as runtime:
        second = await runtime.conversation("c").submit_resume({first.waiting[0].call_id: True}).wait()
        page = await runtime.conversation("c").history()
    assert (second.text, sent) == ("done", ["a"])
    closed_in_any_order(page.entries)


async def test_a_tool_that_is_gone_or_no_longer_takes_the_input_is_not_executed() -> None:
    store = InMemoryStore()
    agent = native([tool_calls(("send", {"text": "a"}))], tools=[sender([])], **WAIT_FOR_APPROVAL)
    async with open_runtime(agent, store=store) as runtime:
        first = await runtime.run("go")
    ran: list[int] = []

    @tool(writes=True)
    async def send(number: int) -> str:
        """Another tool of that name."""
        ran.append(number)
        return "sent"

    call_id = first.waiting[0].call_id
    other = native(["done"], tools=[send])
    async with open_runtime(other, store=store) as runtime:
        result = await runtime.conversation().resume({call_id: True})
    assert (result.text, ran, result.steps[0].status) == ("done", [], "failed")
    closed_in_any_order(await history(store, agent))


async def test_a_new_message_denies_what_waits_and_says_so_to_both() -> None:
    sent: list[str] = []
    store = InMemoryStore()
    script = [tool_calls(("send", {"text": "a"})), "something else then"]
    agent = native(script, tools=[sender(sent)], **WAIT_FOR_APPROVAL)
    async with open_runtime(agent, store=store) as runtime:
        first = await runtime.run("go")
        second = await runtime.run("never mind")
        with pytest.raises(ConfigError, match="nothing waits"):
            await runtime.conversation().resume({first.waiting[0].call_id: True})
    assert (second.text, sent) == ("something else then", [])
    assert [(e.approved, e.reason) for e in told(second, Confirm)] == [
        (False, "a new message came instead of an answer")
    ]
    assert [m.role for m in requests(agent)[1].messages] == ["system", "user", "assistant", "tool", "user"]
    closed_in_any_order(await history(store, agent))


async def test_answers_that_are_none_are_refused_and_what_waits_goes_on_waiting() -> None:
    sent: list[str] = []
    agent = native([tool_calls(("send", {"text": "a"})), "done"], tools=[sender(sent)], **WAIT_FOR_APPROVAL)
    async with open_runtime(agent) as runtime:
        conversation = runtime.conversation()
        with pytest.raises(ConfigError, match="nothing waits"):
            await conversation.resume({"x": True})
        first = await runtime.run("go")
        call_id = first.waiting[0].call_id
        for bad in ({}, "yes", {1: True}):
            with pytest.raises(ConfigError, match="takes a mapping"):
                await conversation.resume(bad)  # type: ignore[arg-type]
        with pytest.raises(
            ConfigError, match="answers are by call id, and 'other' does not wait in the default conversation"
        ):
            await conversation.resume({call_id: True, "other": True})
        with pytest.raises(ConfigError, match="must be a bool or a Confirmed"):
            await conversation.resume({call_id: "yes"})
        assert (await conversation.resume({call_id: True})).text == "done"
    assert sent == ["a"]


class AfterStep(Extension[Any]):
    name = "after-step"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def after_step(self, ctx: Any, question: Any) -> Any:
        return None if question.is_final or question.step.kind == "answer" else self.answer


async def test_complete_beats_waiting_and_gives_what_waits_a_result() -> None:
    store = InMemoryStore()
    script = [tool_calls(("send", {"text": "a"}), text="enough")]
    agent = native(script, tools=[sender([])], extensions=[AfterStep(Complete())], **WAIT_FOR_APPROVAL)
    async with open_runtime(agent, store=store) as runtime:
        result = await runtime.run("go")
    assert (result.text, result.waiting) == ("enough", ())
    entries = await history(store, agent)
    closed_in_any_order(entries)
    assert entries[-1].message.text == "Not done: the run was completed without waiting for it."
    assert "waiting" not in (await store.load("agent")).private


class Wording(Extension[Any]):
    """Rewords what `after_tool` is asked about, or fails there."""

    name = "wording"

    def __init__(self, error: Exception | None = None) -> None:
        self.heard: list[Any] = []
        self.error = error

    def after_tool(self, ctx: Any, question: Any) -> str:
        self.heard.append((question.tool.name, question.outcome.status, question.result))
        if self.error is not None:
            raise self.error
        return f"[{question.tool.name}]"


DISMISSED = "Not done: the run was completed without waiting for it."


async def test_a_result_of_a_call_that_waits_no_longer_passes_after_tool() -> None:
    store, wording = InMemoryStore(), Wording()
    script = [tool_calls(("send", {"text": "a"}), ("ask_user", {"topic": "b"}), text="enough")]
    tools = [sender([]), asker([])]
    agent = native(script, tools=tools, extensions=[AfterStep(Complete()), wording], **WAIT_FOR_APPROVAL)
    async with open_runtime(agent, store=store) as runtime:
        check_events((await runtime.run("go")).trace)
    assert wording.heard == [("send", "skipped", DISMISSED), ("ask_user", "unknown", DISMISSED)]
    entries = await history(store, agent)
    closed_in_any_order(entries)
    assert [entry.message.text for entry in entries[2:]] == ["[send]", "[ask_user]"]


class Stored(Extension[Any]):
    """Words every result that is about to be stored anew."""

    name = "stored"

    def before_append(self, ctx: Any, question: Any) -> Any:
        if question.message.role != "tool":
            return None
        return attrs.evolve(question.message, text=f"{question.message.text} (seen)")


@pytest.mark.parametrize("how", ["message", "respond", "complete"])
async def test_p_070_however_a_call_ceases_to_wait_its_result_passes_both_hooks(how: str) -> None:
    class Ends(Extension[Any]):
        name = "ends"

        def before_run(self, ctx: Any, question: Any) -> Respond | None:
            return Respond("not now") if how == "respond" and question.entry == "resume" else None

        def after_step(self, ctx: Any, question: Any) -> Complete | None:
            return Complete() if how == "complete" and ctx.state.get("asked") else None

        def before_append(self, ctx: Any, question: Any) -> None:
            ctx.state["asked"] = question.message.role == "tool"

    store, wording = InMemoryStore(), Wording()
    script = [tool_calls(("send", {"text": "a"}), ("ask_user", {"topic": "b"}), text="enough"), "done"]
    extensions = [Ends(), wording, Stored()]
    agent = native(script, tools=[sender([]), asker([])], extensions=extensions, **WAIT_FOR_APPROVAL)
    async with open_runtime(agent, store=store) as runtime:
        first = await runtime.run("go")
        assert wording.heard == []
        if how == "message":
            result = await runtime.run("never mind")
        else:
            answers = {first.waiting[1].call_id: "yes"}
            result = await runtime.conversation().resume(answers)
        check_events(result.trace)
    async with open_runtime(native([], tools=[sender([]), asker([])]), store=store) as runtime:
        with pytest.raises(NotWaiting):
            await runtime.conversation().resume({first.waiting[0].call_id: True})
    # The one that was answered is executed before the run can be completed.
    second = ("ask_user", "executed") if how == "complete" else ("ask_user", "unknown")
    assert sorted(heard[:2] for heard in wording.heard) == [second, ("send", "skipped")]
    entries = await history(store, agent)
    closed_in_any_order(entries)
    results = sorted(entry.message.text for entry in entries if entry.role == "tool")
    assert results == ["[ask_user] (seen)", "[send] (seen)"]
    reasons = [event.reason for event in result.trace if isinstance(event, Confirm)]
    said = {
        "message": "a new message came instead of an answer",
        "respond": "an extension answered before it was taken up",
    }
    assert reasons == ([said[how]] * 2 if how in said else [])


@pytest.mark.parametrize("row", ["after_tool", "before_append"])
async def test_a_hook_that_fails_on_a_refusal_lets_the_calls_wait_on(row: str) -> None:
    broken = [False]

    class Fails(Extension[Any]):
        name = "fails"

    def fails(ctx: Any, question: Any) -> None:
        if broken[0]:
            raise LookupError("no words")

    extension = Fails()
    vars(extension)[row] = fails
    agent = native(
        [tool_calls(("send", {"text": "a"})), "done"],
        tools=[sender([])],
        extensions=[extension],
        **WAIT_FOR_APPROVAL,
    )
    async with open_runtime(agent) as runtime:
        first = await runtime.run("go")
        broken[0] = True
        with pytest.raises(GoliathExtensionError) as caught:
            await runtime.run("never mind")
        assert caught.value.phase == row
        broken[0] = False
        assert (await runtime.conversation().resume({first.waiting[0].call_id: True})).text == "done"


async def test_a_hook_that_fails_on_a_call_that_waits_no_longer_leaves_the_history_whole() -> None:
    store, wording = InMemoryStore(), Wording(LookupError("no words"))
    script = [tool_calls(("send", {"text": "a"}), text="enough")]
    agent = native(script, tools=[sender([])], extensions=[AfterStep(Complete()), wording], **WAIT_FOR_APPROVAL)
    async with open_runtime(agent, store=store) as runtime:
        with pytest.raises(GoliathExtensionError) as caught:
            await runtime.run("go")
    assert (caught.value.extension, caught.value.phase, len(wording.heard)) == ("wording", "after_tool", 1)
    closed_in_any_order(await history(store, agent))
    assert "waiting" not in (await store.load("agent")).private


async def test_waiting_beats_a_continuation() -> None:
    agent = native(
        [tool_calls(("send", {"text": "a"}))],
        tools=[sender([])],
        extensions=[AfterStep(Continue("go on"))],
        **WAIT_FOR_APPROVAL,
    )
    async with open_runtime(agent) as runtime:
        assert len((await runtime.run("go")).waiting) == 1


async def test_an_abort_of_a_resumed_run_leaves_what_was_not_answered_waiting(autojump_clock: MockClock) -> None:
    @tool(writes=True)
    async def send(text: str) -> str:
        """Send."""
        await trio.sleep(10)
        return "sent"

    store = InMemoryStore()
    script = [tool_calls(("send", {"text": "a"}), ("send", {"text": "b"})), "done"]
    agent = native(script, tools=[send], **WAIT_FOR_APPROVAL)
    async with open_runtime(agent, store=store) as runtime:
        first = await runtime.run("go")
        a, b = [waiting.call_id for waiting in first.waiting]
        with pytest.raises(RunAborted):
            await runtime.conversation().resume({a: True}, timeout=1)
        result = await runtime.conversation().resume({b: False})
    assert result.text == "done"
    closed_in_any_order(await history(store, agent))
    texts = [m.text for m in requests(agent)[1].messages if m.role == "tool"]
    assert texts[0] == "Execution did not complete; it may have taken effect."
    assert texts[1].startswith("Declined by the user")


async def test_a_planned_agent_has_nothing_to_resume() -> None:
    from .planned import planned

    async with open_runtime(planned([])) as runtime:
        with pytest.raises(ConfigError, match="resume needs an agent with a ToolLoop"):
            await runtime.conversation().resume({"x": True})


@pytest.mark.parametrize("at", range(1, 60))
@pytest.mark.parametrize("resumed", [False, True])
async def test_a_cut_at_any_checkpoint_of_a_run_that_waits_or_is_taken_up_leaves_a_conversation_that_goes_on(
    at: int, resumed: bool
) -> None:
    class Slow(InMemoryStore):  # type: ignore[misc]  # a test's own store: a commit may be cut on either side
        async def commit(self, *args: Any, **kwargs: Any) -> Any:
            record = await super().commit(*args, **kwargs)
            await trio.lowlevel.checkpoint()
            return record

    sent: list[str] = []
    store = Slow()
    script: list[Any] = [tool_calls(("send", {"text": "a"}), ("ask_user", {"topic": "t"}), ("look", {"text": "b"}))]
    agent: Agent[Any] = native(
        [*script, *["done"] * 4], tools=[sender(sent), asker([]), look], extensions=[Journal()], **WAIT_FOR_APPROVAL
    )
    async with open_runtime(agent, store=store) as runtime:
        conversation = runtime.conversation("c")
        answers: dict[str, Any] = {}
        if resumed:
            first = await conversation.run("go")
            answers = {waiting.call_id: waiting.kind == "approval" or "large" for waiting in first.waiting}
        envelope = conversation.submit_resume(answers) if resumed else conversation.submit("go")
        for _ in range(at):
            await trio.lowlevel.checkpoint()
        envelope.abort()
        await envelope.wait_ended()
        assert envelope.outcome is not None
        check_events(envelope.outcome.trace)
        waiting = (await store.load("agent/c")).private.get("waiting", {"calls": []})["calls"]
        if envelope.outcome.status == "aborted" and not resumed:
            assert waiting == []
        result = await conversation.run("and now?")
        if result.waiting:  # cut before the model was asked, so that it says now what it would have said then
            result = await conversation.run("and then?")
        assert result.text == "done"
        entries = await history(store, agent, "c")
    closed_in_any_order(entries)
    check_requests(requests(agent))
    assert len(sent) <= 1
    assert "waiting" not in (await store.load("agent/c")).private


async def copy_of(store: InMemoryStore, key: str) -> InMemoryStore:
    """What another process would find if this one were killed now."""
    record, page = await store.load(key), await store.entries(key, after=0, limit=1000)
    copy = InMemoryStore()
    await copy.commit(key, Change(metadata=record.metadata, private=record.private, append=page.entries))
    return copy


@pytest.mark.parametrize("name", ["send", "ask_user"])
async def test_a_process_that_is_killed_in_the_middle_of_what_was_approved_leaves_it_not_to_be_done_again(
    name: str,
) -> None:
    """S7, T8: answered once, a call is executed at most once."""
    sent: list[str] = []
    found: list[InMemoryStore] = []
    store = InMemoryStore()

    @tool(writes=True)
    async def send(text: str) -> str:
        """Send a message."""
        sent.append(text)
        found.append(await copy_of(store, "agent/c"))
        return "sent"

    @tool
    async def ask_user(ctx: ToolContext[Any], text: str) -> str:
        """Ask the user, then do what they said."""
        sent.append(await ctx.suspend(text))
        found.append(await copy_of(store, "agent/c"))
        return "done"

    agent = native([tool_calls((name, {"text": "a"})), "done"], tools=[send, ask_user], **WAIT_FOR_APPROVAL)
    answers = {}
    async with open_runtime(agent, store=store) as runtime:
        first = await runtime.run("go", conversation_id="c")
        answers[first.waiting[0].call_id] = True if name == "send" else "a"
        await runtime.conversation("c").resume(answers)
    (left,) = found
    again = native(["what now?"], tools=[send, ask_user], **WAIT_FOR_APPROVAL)
    async with open_runtime(again, store=left) as runtime:
        with pytest.raises(ConfigError, match="nothing waits"):
            await runtime.conversation("c").resume(answers)
        assert (await runtime.run("and?", conversation_id="c")).text == "what now?"
    assert sent == ["a"]
    closed_in_any_order(await history(left, again, "c"))
    assert "It may have taken effect" in requests(again)[0].text


# --- two runtimes on one store, without leases ------------------------------------------------------------------------


async def test_what_two_runtimes_take_up_at_once_is_executed_once() -> None:
    class Held(FailingStore):
        async def commit(self, key: str, change: Change, expect: int | None = None, token: int | None = None) -> Record:
            await gate.pass_through()
            return await super().commit(key, change, expect=expect, token=token)

    sent: list[str] = []
    store, gate = InMemoryStore(), Gate()
    agents = [native(["done"], tools=[sender(sent)], **WAIT_FOR_APPROVAL) for _ in range(2)]
    first = native([tool_calls(("send", {"text": "a"}))], tools=[sender(sent)], **WAIT_FOR_APPROVAL)
    async with open_runtime(first, store=store) as runtime:
        (waiting,) = (await runtime.run("go", conversation_id="c")).waiting
    async with (
        open_runtime(agents[0], store=Held(store, {})) as slow,
        open_runtime(agents[1], store=store) as quick,
        trio.open_nursery() as nursery,
    ):

        async def lose() -> None:
            with pytest.raises(StoreConflict, match=r"somebody else has gone on with .* of 'agent/c'"):
                await slow.conversation("c").resume({waiting.call_id: True})

        nursery.start_soon(lose)
        await gate.wait_reached()  # it has read that the call waits
        assert (await quick.conversation("c").resume({waiting.call_id: True})).text == "done"
        gate.open()
    assert sent == ["a"]
    check_closed(await history(store, first, "c"))


async def test_a_call_that_another_runtime_has_closed_gets_no_second_result() -> None:
    gate = Gate()

    @tool
    async def slow(text: str) -> str:
        """Take long."""
        if text == "a":
            await gate.pass_through()
        else:
            await trio.lowlevel.checkpoint()
        return f"did {text}"

    store = InMemoryStore()
    calls = tool_calls(("slow", {"text": "a"}), ("slow", {"text": "b"}))
    agent, other = native([calls, "never asked"], tools=[slow]), native(["it was interrupted"], tools=[slow])
    async with open_runtime(agent, store=store) as one, open_runtime(other, store=store) as two:
        run = one.submit("go", conversation_id="c")
        await gate.wait_reached()
        # For this runtime nobody has the conversation, so the calls were left by a process that died.
        assert (await two.run("and?", conversation_id="c")).text == "it was interrupted"
        gate.open()
        with pytest.raises(StoreConflict, match=r"somebody else has gone on with .*, .* of 'agent/c'"):
            await run.wait()
    entries = await history(store, agent, "c")
    check_closed(entries)
    assert [entry.message.text[:11] for entry in entries] == [
        "go",
        "",
        "Interrupted",
        "Interrupted",
        "and?",
        "it was inte",
    ]


async def test_a_result_is_found_also_where_somebody_else_has_made_the_history_shorter() -> None:
    class Rewritten(InMemoryStore):  # type: ignore[misc]  # a test's own store
        """Somebody else writes a shorter history with the call and its result, just before ours is stored."""

        async def commit(self, key: str, change: Change, expect: int | None = None, token: int | None = None) -> Record:
            if [entry.message.text for entry in change.append] == ["ours"]:
                known = (await self.entries(key, after=0)).entries
                (made,) = [entry for entry in known if entry.message.tool_calls]
                call = made.message.tool_calls[0]
                theirs = Entry("theirs", 1.0, "tool", Message("tool", "theirs", tool_call_id=call.id, name=call.name))
                await super().commit(key, Change(append=[attrs.evolve(made, id="again"), theirs], truncate_after=""))
            return await super().commit(key, change, expect, token)

    @tool
    async def look() -> str:
        """Look."""
        return "ours"

    store, agent = Rewritten(), native([tool_calls(("look", {})), "done"], tools=[look])
    async with open_runtime(agent, store=store) as runtime:
        with pytest.raises(StoreConflict, match=r"somebody else has gone on with"):
            await runtime.run("go")
    entries = await history(store, agent)
    check_closed(entries)
    assert [entry.message.text for entry in entries] == ["", "theirs"]


async def test_a_result_is_not_stored_where_somebody_else_has_taken_its_call_away() -> None:
    class Rewritten(InMemoryStore):  # type: ignore[misc]  # a test's own store
        """Somebody else answers the ask anew, without a call, just before ours is stored."""

        async def commit(self, key: str, change: Change, expect: int | None = None, token: int | None = None) -> Record:
            if [entry.message.text for entry in change.append] == ["ours"]:
                asked = (await self.entries(key, after=0)).entries[0]
                theirs = [Entry(f"theirs-{n}", 1.0, "assistant", Message("assistant", "theirs")) for n in range(many)]
                await super().commit(key, Change(append=theirs, truncate_after=asked.id))
            return await super().commit(key, change, expect, token)

    @tool
    async def look() -> str:
        """Look."""
        return "ours"

    for many in (0, 1, 3):
        store, agent = Rewritten(), native([tool_calls(("look", {})), "done"], tools=[look])
        async with open_runtime(agent, store=store) as runtime:
            with pytest.raises(StoreConflict, match=r"somebody else has gone on with"):
                await runtime.run("go")
        assert [entry.message.text for entry in await history(store, agent)] == ["go", *["theirs"] * many]
