"""Changes of visibility from outside, and who hears of a rewrite afterwards (S5, `before_rewrite`, `after_rewrite`)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from goliath_actors import Agent, Compaction, Extension, RunAborted, Runtime, ToolContext, ToolLoop, open_runtime, tool
from goliath_actors._rewrites import AT_A_TIME, PENDING
from goliath_actors.abc import Store
from goliath_actors.errors import (
    ConfigError,
    ConversationBusy,
    GoliathExtensionError,
    MailboxFull,
    ReentrantRun,
    RuntimeClosed,
    StoreConflict,
    StoreError,
)
from goliath_actors.hooks import MetadataPatch
from goliath_actors.stores import InMemoryStore, SqliteStore
from goliath_actors.testing import FailingStore, Gate, Journal, tool_calls

from .native import check_requests, history, native
from .planned import planned, requests, roles


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return InMemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "chat.db")


async def second() -> None:
    await trio.sleep(1)


async def three_seconds() -> None:
    await trio.sleep(3)


class Rewrites(Extension[Any]):
    """Answers `before_rewrite`, keeps what it hears, and waits in `after_rewrite` where it is told to."""

    name = "rewrites"

    def __init__(self, answer: Any = None, wait: Any = None, raises: Exception | None = None) -> None:
        self.answer = answer
        self.wait = wait
        self.raises = raises
        self.heard: list[tuple[str, str, Any]] = []
        self.active = self.most = 0

    def before_rewrite(self, ctx: Any, question: Any) -> Any:
        self.heard.append(("before", question.kind, question.changes))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def after_rewrite(self, ctx: Any, question: Any) -> None:
        self.active += 1
        self.most = max(self.most, self.active)
        try:
            if self.wait is not None:
                await self.wait()
            self.heard.append(("after", question.kind, question.changes))
            if self.raises is not None:
                raise self.raises
        finally:
            self.active -= 1

    @property
    def after(self) -> list[Any]:
        return [changes for when, _, changes in self.heard if when == "after"]


async def first_id(runtime: Runtime, conversation_id: str | None = None) -> str:
    entry_id: str = (await runtime.conversation(conversation_id).history()).entries[0].id
    return entry_id


# --- changes of visibility --------------------------------------------------------------------------------------------


async def test_visibility_changes_with_what_extensions_want_stored_in_one_commit(store: Store) -> None:
    hears = Rewrites(MetadataPatch({"title": "x"}, {"cursor": 1}))
    agent = native(["one", "two"], extensions=[hears])
    async with open_runtime(agent, store=store) as runtime:
        talk = runtime.conversation("ada")
        await talk.run("first")
        ask, answer = (await talk.history()).entries
        version = (await talk.thread.load()).version
        await talk.set_visibility({ask.id: (True, False), answer.id: (True, True)})
        record = await talk.thread.load()
        assert (record.version, record.metadata, record.private) == (version + 1, {"title": "x"}, {"cursor": 1})
        await talk.run("second")
    changes = {ask.id: {"before": [True, True], "after": [True, False]}}
    assert hears.heard == [("before", "visibility", changes), ("after", "visibility", changes)]
    assert "first" not in requests(agent)[1].text
    check_requests(requests(agent))


@pytest.mark.parametrize("answer", [ValueError("no"), MetadataPatch(5), MetadataPatch(private=[1])])  # type: ignore[arg-type]
async def test_an_extension_that_refuses_and_a_store_that_fails_leave_it_as_it_was(answer: Any) -> None:
    store = InMemoryStore()
    agent = native(["one"], extensions=[Rewrites(answer)])
    async with open_runtime(agent, store=store) as runtime:
        await runtime.run("first")
        before = await store.load("agent")
        entry_id = await first_id(runtime)
        with pytest.raises(GoliathExtensionError) as raised:
            await runtime.conversation().set_visibility({entry_id: (False, False)})
        assert raised.value.phase == "before_rewrite"
        assert await store.load("agent") == before
    hears = Rewrites()
    async with open_runtime(
        native([], extensions=[hears]), store=FailingStore(store, {"commit": OSError("full")})
    ) as runtime:
        with pytest.raises(OSError, match="full"):
            await runtime.conversation().set_visibility({entry_id: (False, False)})
    assert await store.load("agent") == before
    assert hears.after == []


async def test_an_entry_that_is_not_there_is_named_and_nothing_is_asked(store: Store) -> None:
    hears = Rewrites()
    async with open_runtime(native(["one"], extensions=[hears]), store=store) as runtime:
        await runtime.run("first")
        entry_id = await first_id(runtime)
        with pytest.raises(StoreError, match="'agent' has no entry 'nobody'"):
            await runtime.conversation().set_visibility({entry_id: (False, False), "nobody": (True, True)})
        with pytest.raises(ConfigError, match="pairs of bools"):
            await runtime.conversation().set_visibility({entry_id: True})  # type: ignore[dict-item]
        assert (await runtime.conversation().history()).entries[0].context_visible
    assert hears.heard == []


async def test_what_changes_nothing_is_no_rewrite(store: Store) -> None:
    hears = Rewrites()
    async with open_runtime(native(["one"], extensions=[hears]), store=store) as runtime:
        await runtime.run("first")
        version = (await runtime.conversation().thread.load()).version
        await runtime.conversation().set_visibility({await first_id(runtime): (True, True)})
        assert (await runtime.conversation().thread.load()).version == version
    assert hears.heard == []


async def test_it_is_a_turn_and_overlaps_no_run(autojump_clock: MockClock) -> None:
    gate = Gate()
    agent = native(["one", gate.then("two"), "three"])
    async with open_runtime(agent) as runtime:
        talk = runtime.conversation("ada")
        await talk.run("first")
        run = talk.submit("second")
        await gate.wait_reached()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(talk.set_visibility, {await first_id(runtime, "ada"): (True, False)})
            await wait_all_tasks_blocked()
            assert talk.status().waiting == 1
            later = talk.submit("third")
            assert run.state == "running"
            gate.open()
        await later.wait()
    assert ["first" in request.text for request in requests(agent)] == [True, True, False]


async def test_while_it_waits_it_can_be_called_off(autojump_clock: MockClock) -> None:
    gate, hears = Gate(), Rewrites()
    async with open_runtime(native([gate.then("one")], extensions=[hears])) as runtime:
        talk = runtime.conversation("ada")
        run = talk.submit("first")
        await gate.wait_reached()
        with trio.move_on_after(1) as scope:
            await talk.set_visibility({await first_id(runtime, "ada"): (False, False)})
        assert scope.cancelled_caught
        gate.open()
        await run.wait()
        assert (await talk.history()).entries[0].transcript_visible
    assert hears.heard == []


async def test_a_full_mailbox_and_a_closed_runtime_refuse_it(autojump_clock: MockClock) -> None:
    gate = Gate()
    async with open_runtime(native([gate.then("one")]), mailbox_capacity=0) as runtime:
        run = runtime.submit("first")
        await gate.wait_reached()
        with pytest.raises(MailboxFull):
            await runtime.conversation().set_visibility({await first_id(runtime): (False, False)})
        gate.open()
        await run.wait()
    with pytest.raises(RuntimeClosed):
        await runtime.conversation().set_visibility({"x": (False, False)})


async def test_inside_a_run_of_the_conversation_it_would_wait_for_itself() -> None:
    found: list[tuple[str, ...]] = []

    @tool
    async def hide(ctx: ToolContext[Any]) -> str:
        """Hide."""
        try:
            await runtime.conversation("ada").set_visibility({await first_id(runtime, "ada"): (False, False)})
        except ReentrantRun as error:
            found.append(error.chain)
        return "tried"

    agent = native([tool_calls(("hide", {})), "done"], tools=[hide])
    async with open_runtime(agent) as runtime:
        await runtime.run("go", conversation_id="ada")
    assert found == [("agent/ada", "agent/ada")]


async def test_a_hook_that_is_asked_about_it_cannot_wait_for_its_own_conversation() -> None:
    found: list[Any] = []

    class Asks(Extension[Any]):
        name = "asks"

        async def before_rewrite(self, ctx: Any, question: Any) -> None:
            try:
                await runtime.run("hello?", conversation_id="ada")
            except ReentrantRun as error:
                found.append(error.chain)
            found.append((await runtime.run("hello?", conversation_id="other")).text)

    async with open_runtime(native(["one", "two"], extensions=[Asks()])) as runtime:
        await runtime.run("first", conversation_id="ada")
        await runtime.conversation("ada").set_visibility({await first_id(runtime, "ada"): (False, True)})
    assert found == [("agent/ada", "agent/ada"), "two"]


async def test_a_planned_conversation_changes_visibility_without_being_asked(store: Store) -> None:
    hears = Rewrites()
    async with open_runtime(planned(["one"], extensions=[hears]), store=store) as runtime:
        await runtime.run("first")
        await runtime.conversation().set_visibility({await first_id(runtime): (False, False)})
        assert not (await runtime.conversation().history()).entries[0].transcript_visible
    assert hears.heard == []


async def test_what_a_summary_stands_for_can_be_shown_to_the_model_again() -> None:
    store = InMemoryStore()
    loop = ToolLoop(window=2000, compaction=Compaction(at=0.1, keep_turns=1))
    agent = native([*"abcde", "summary", "f"], loop=loop)
    async with open_runtime(agent, store=store) as runtime:
        talk = runtime.conversation()
        for number in range(5):
            await talk.run(f"old {number}")
        await talk.run("long " * 200)
        assert "compact" in roles(agent)
        entries = await history(store, agent)
        hidden = next(entry for entry in entries if not entry.context_visible)
        await talk.set_visibility({hidden.id: (True, True)})
    later = native(["h"])
    async with open_runtime(later, store=store) as runtime:
        await runtime.run("and now?")
    text = requests(later)[0].text
    assert hidden.message.text in text
    assert "summary" in text


async def test_hiding_and_staging_go_into_one_commit_and_one_comparison(store: Store) -> None:
    async with open_runtime(native(["one"]), store=store) as runtime:
        talk = runtime.conversation("ada")
        await talk.run("first")
        entry_id = await first_id(runtime, "ada")
        record = await talk.thread.load()

        def change(tx: Any) -> None:
            new = tx.append("In short.", role="summary", context=False)
            tx.set_visibility({entry_id: (True, False), new: (True, True)})
            tx.merge_private({"cursor": 1})

        after = await talk.thread.mutate(change, expect_private={})
        assert (after.version, after.private) == (record.version + 1, {"cursor": 1})
        entries = (await talk.history()).entries
        assert [(entry.role, entry.context_visible) for entry in entries] == [
            ("user", False),
            ("assistant", True),
            ("summary", True),
        ]
        with pytest.raises(StoreConflict):
            await talk.thread.mutate(lambda tx: tx.set_visibility({entry_id: (True, True)}), expect_private={})
        with pytest.raises(StoreConflict):
            await talk.thread.mutate(lambda tx: tx.set_visibility({entry_id: (True, True)}), expect_version=1)
        assert not (await talk.history()).entries[0].context_visible


async def test_a_rewrite_with_a_lease_that_was_lost_changes_nothing(store: Store) -> None:
    hears = Rewrites()
    async with open_runtime(native(["one"], extensions=[hears]), store=store) as runtime:
        await runtime.run("first")
        entry_id = await first_id(runtime)
        old = await store.acquire("agent", "here", 60)
        await store.release("agent", "here")
        await store.acquire("agent", "there", 60)
        with pytest.raises(StoreConflict, match="the lease on 'agent' was lost"):
            await runtime.conversation().thread.mutate(
                lambda tx: tx.set_visibility({entry_id: (False, False)}), token=old
            )
        assert (await runtime.conversation().history()).entries[0].transcript_visible
    assert hears.after == []


async def test_a_busy_conversation_refuses_a_rewrite_that_will_not_wait(autojump_clock: MockClock) -> None:
    gate = Gate()
    async with open_runtime(native(["one", gate.then("two")])) as runtime:
        await runtime.run("first")
        run = runtime.submit("second")
        await gate.wait_reached()
        before = (await runtime.conversation().history()).entries
        with pytest.raises(ConversationBusy, match="the default conversation is busy"):
            await runtime.conversation().rewrite("regenerate", when_busy="refuse")
        assert (await runtime.conversation().history()).entries == before
        gate.open()
        await run.wait()


# --- afterwards -------------------------------------------------------------------------------------------------------


async def test_nobody_waits_for_who_hears_of_a_rewrite_but_the_end_of_the_runtime(autojump_clock: MockClock) -> None:
    gate = Gate()
    hears = Rewrites(wait=gate.pass_through)
    async with open_runtime(native(["one", "two", "three"], extensions=[hears])) as runtime:
        talk = runtime.conversation("ada")
        await talk.run("first")
        assert (await talk.rewrite("regenerate")).text == "two"
        await gate.wait_reached()
        assert (await talk.run("second")).text == "three"
        assert hears.after == []
        with trio.move_on_after(5):
            await runtime.conversation("ada").set_visibility({await first_id(runtime, "ada"): (True, False)})
        gate.open()
    assert len(hears.after) == 2


async def test_a_drain_waits_for_them_and_cuts_them_off_after_its_grace(autojump_clock: MockClock) -> None:
    hears = Rewrites(wait=three_seconds)
    async with open_runtime(native(["one", "two"], extensions=[hears])) as runtime:
        await runtime.run("first")
        await runtime.conversation().rewrite("regenerate")
        start = trio.current_time()
        await runtime.drain(10)
        assert trio.current_time() - start == 3
    assert len(hears.after) == 1

    stuck = Rewrites(wait=trio.sleep_forever)
    async with open_runtime(native(["one", "two"], extensions=[stuck])) as runtime:
        await runtime.run("first")
        result = await runtime.conversation().rewrite("regenerate")
        start = trio.current_time()
        await runtime.drain(2)
        assert trio.current_time() - start == 4  # the grace, and as much again for observers
    assert (stuck.after, stuck.active, result.text) == ([], 0, "two")


async def test_a_cancelled_runtime_ends_them(autojump_clock: MockClock) -> None:
    stuck = Rewrites(wait=trio.sleep_forever)
    with trio.move_on_after(5):
        async with open_runtime(native(["one", "two"], extensions=[stuck])) as runtime:
            await runtime.run("first")
            await runtime.conversation().rewrite("regenerate")
            await trio.sleep_forever()
    assert stuck.active == 0


async def test_what_one_raises_is_a_diagnostic_of_the_run_and_in_the_log(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def slow(request: Any) -> str:
        await trio.sleep(1)
        return "two"

    problem = KeyError("x")
    hears = Rewrites(raises=problem)
    async with open_runtime(native(["one", slow], extensions=[hears])) as runtime:
        await runtime.run("first")
        with caplog.at_level(logging.WARNING, "goliath_actors.threads"):
            result = await runtime.conversation().rewrite("regenerate")
            await runtime.conversation().set_visibility({await first_id(runtime): (False, True)})
            await wait_all_tasks_blocked()
    assert [(known.extension, known.phase, known.error) for known in result.diagnostics] == [
        ("rewrites", "after_rewrite", problem)
    ]
    assert [record.getMessage() for record in caplog.records] == ["after_rewrite of rewrites failed: KeyError('x')"] * 2


async def test_they_hear_one_after_the_other_in_order_and_never_side_by_side(autojump_clock: MockClock) -> None:
    hears = Rewrites(wait=second)
    async with open_runtime(native(["one"], extensions=[hears])) as runtime:
        talk = runtime.conversation("ada")
        await talk.run("first")
        entry_id = await first_id(runtime, "ada")
        for visible in (False, True, False, True):
            await talk.set_visibility({entry_id: (visible, True)})
    assert hears.most == 1
    assert [changes[entry_id]["after"][0] for changes in hears.after] == [False, True, False, True]


async def test_only_a_few_conversations_at_a_time_are_told(autojump_clock: MockClock) -> None:
    hears = Rewrites(wait=second)
    count = 3 * AT_A_TIME
    async with open_runtime(native(["x"] * count, extensions=[hears])) as runtime:
        for number in range(count):
            await runtime.run("first", conversation_id=str(number))
        for number in range(count):
            await runtime.conversation(str(number)).set_visibility(
                {await first_id(runtime, str(number)): (False, True)}
            )
    assert (hears.most, len(hears.after)) == (AT_A_TIME, count)


async def test_a_pile_of_rewrites_stays_small_and_the_last_one_is_told(autojump_clock: MockClock) -> None:
    gate = Gate()
    hears = Rewrites(wait=gate.pass_through)
    async with open_runtime(native(["one"], extensions=[hears])) as runtime:
        talk = runtime.conversation("ada")
        await talk.run("first")
        entry_id = await first_id(runtime, "ada")
        count = PENDING + 5
        for number in range(count):
            await talk.set_visibility({entry_id: (bool(number % 2), True)})
        await gate.wait_reached()
        gate.open()
    assert len(hears.after) == PENDING
    last = hears.after[-1]
    assert last.pop("merged") == 5
    assert last == {entry_id: {"before": [False, True] if (count - 1) % 2 else [True, True],
                               "after": [bool((count - 1) % 2), True]}}  # fmt: skip


async def test_who_hears_of_it_may_ask_the_conversation_and_has_the_runs_state(autojump_clock: MockClock) -> None:
    found: list[Any] = []

    class Asks(Extension[Any]):
        name = "asks"

        def before_run(self, ctx: Any, question: Any) -> None:
            ctx.state["ask"] = question.ask

        async def after_rewrite(self, ctx: Any, question: Any) -> None:
            found.append(ctx.state.get("ask"))
            found.append((await runtime.run("noted", conversation_id="ada")).text)

    async with open_runtime(native(["one", "two", "three"], extensions=[Asks()])) as runtime:
        await runtime.run("first", conversation_id="ada")
        await runtime.conversation("ada").rewrite("regenerate")
        await wait_all_tasks_blocked()
    assert found == ["first", "three"]


async def test_a_phase_of_the_run_is_not_touched_by_who_hears_of_its_rewrite(autojump_clock: MockClock) -> None:
    gate, told = Gate(), Gate()
    hears = Rewrites(wait=told.pass_through)
    async with open_runtime(native(["one", gate.then("two")], extensions=[hears])) as runtime:
        await runtime.run("first")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.conversation().rewrite, "regenerate")
            await gate.wait_reached()
            await told.wait_reached()
            assert runtime.conversation().status().phase == "step"
            told.open()
            gate.open()


async def test_a_rewrite_that_was_cut_is_told_exactly_if_it_was_made() -> None:
    class Slow(InMemoryStore):  # type: ignore[misc]  # a test's own store: a commit may be cut on either side
        async def commit(self, *args: Any, **kwargs: Any) -> Any:
            record = await super().commit(*args, **kwargs)
            await trio.lowlevel.checkpoint()
            return record

    made: set[bool] = set()
    for at in range(25):
        hears = Rewrites()
        agent: Agent[Any] = native(["one", "two", "three"], extensions=[hears])
        async with open_runtime(agent, store=Slow()) as runtime:
            await runtime.run("go")
            known = (await runtime.conversation().history()).entries
            async with trio.open_nursery() as nursery:
                nursery.start_soon(runtime.conversation().rewrite, "regenerate")
                for _ in range(at):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
            left = (await runtime.conversation().history()).entries
        gone = known[1].id not in [entry.id for entry in left]
        made.add(gone)
        assert len(hears.after) == gone
    assert made == {True, False}


async def test_who_is_cut_off_is_a_diagnostic(autojump_clock: MockClock) -> None:
    stuck, journal = Rewrites(wait=trio.sleep_forever), Journal()
    gate = Gate()
    async with open_runtime(native(["one", gate.then("two")], extensions=[stuck, journal])) as runtime:
        await runtime.run("first")
        journal.clear()
        async with trio.open_nursery() as nursery:

            async def rewrite() -> None:
                with pytest.raises(RunAborted):
                    await runtime.conversation().rewrite("regenerate")

            nursery.start_soon(rewrite)
            await gate.wait_reached()
            await runtime.drain(1)
    (error,) = [question for row, _, question in journal.questions if row == "on_finish"]
    assert error.outcome.status == "aborted"
    assert stuck.active == 0


async def test_no_task_is_left_when_there_is_nobody_to_tell() -> None:
    async with open_runtime(native(["one", "two"])) as runtime:
        await runtime.run("first")
        await runtime.conversation().rewrite("regenerate")
        await runtime.conversation().set_visibility({await first_id(runtime): (False, True)})
        await wait_all_tasks_blocked()
        assert runtime.statistics().running == 0
