"""The facades of a conversation (S5): staged changes, both ways of comparing, narrowed for hooks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from goliath_actors import Extension, Runtime, open_runtime
from goliath_actors.abc import Change, Entry, Record, Store
from goliath_actors.errors import ConfigError, GoliathExtensionError, StoreConflict, StoreError
from goliath_actors.stores import InMemoryStore, SqliteStore
from goliath_actors.testing import Gate
from goliath_actors.threads import Mutation, RewritingMutation, StepThread
from goliath_actors.values import Message

from .native import check_requests, history, native, said
from .planned import planned, requests


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return InMemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "chat.db")


# --- staging ----------------------------------------------------------------------------------------------------------


async def test_what_is_staged_is_committed_in_one_piece(store: Store) -> None:
    async with open_runtime(native(["one"]), store=store) as runtime:
        talk = runtime.conversation("ada")
        await talk.run("first")
        before = await talk.thread.load()
        ids: list[str] = []

        def change(tx: RewritingMutation) -> None:
            tx.merge_metadata({"title": "Trees"})
            tx.merge_private({"cursor": [1, 2]})
            ids.append(tx.append("Ada likes oaks.", transcript=False, private={"from": "profile"}))

        after = await talk.thread.mutate(change)
        page = await talk.history()
        assert (after.version, after.metadata, after.private) == (
            before.version + 1,
            {"title": "Trees"},
            {"cursor": [1, 2]},
        )
        last = page.entries[-1]
        assert (last.id, last.role, last.message.text, last.transcript_visible, last.context_visible) == (
            ids[0],
            "user",
            "Ada likes oaks.",
            False,
            True,
        )
        assert last.private["from"] == "profile"


async def test_if_the_function_raises_nothing_is_written(store: Store) -> None:
    async with open_runtime(native([]), store=store) as runtime:
        thread = runtime.conversation("ada").thread

        async def change(tx: Mutation) -> None:
            tx.merge_metadata({"a": 1})
            tx.append("text")
            await trio.lowlevel.checkpoint()
            raise KeyError("no")

        with pytest.raises(KeyError):
            await thread.mutate(change)
        assert await thread.load() == Record()


async def test_reads_inside_see_what_is_stored_and_nothing_that_is_staged(store: Store) -> None:
    async with open_runtime(native([]), store=store) as runtime:
        thread = runtime.conversation("ada").thread
        await thread.mutate(lambda tx: tx.merge_metadata({"n": 1}))

        async def change(tx: Mutation) -> None:
            tx.merge_metadata({"n": 2})
            tx.append("staged")
            assert tx.record.metadata == {"n": 1}
            assert (await thread.load()).metadata == {"n": 1}
            assert (await thread.history()).entries == []

        await thread.mutate(change)
        assert (await thread.load()).metadata == {"n": 2}
        assert len((await thread.history()).entries) == 1


async def test_keys_are_merged_and_dropped_the_last_word_counts(store: Store) -> None:
    async with open_runtime(native([]), store=store) as runtime:
        thread = runtime.conversation("ada").thread
        await thread.mutate(lambda tx: tx.merge_metadata({"a": 1, "b": 2, "c": 3}))

        def change(tx: Mutation) -> None:
            tx.drop_metadata("a", "b", "nothing")
            tx.merge_metadata({"b": 4, "d": None})
            tx.merge_metadata({"c": 5})
            tx.drop_metadata("c")

        assert (await thread.mutate(change)).metadata == {"b": 4, "d": None}


async def test_nothing_staged_changes_nothing(store: Store) -> None:
    async with open_runtime(native([]), store=store) as runtime:
        thread = runtime.conversation("ada").thread
        await thread.mutate(lambda tx: tx.merge_metadata({"a": 1}))
        assert (await thread.mutate(lambda tx: None)).version == 1
        assert (await thread.load()).version == 1
        with pytest.raises(StoreConflict):
            await thread.mutate(lambda tx: None, expect_version=7)


async def test_a_mutation_is_over_when_its_function_has_returned() -> None:
    kept: list[RewritingMutation] = []
    async with open_runtime(native([])) as runtime:
        await runtime.conversation().thread.mutate(kept.append)
    for late in (
        lambda: kept[0].merge_metadata({}),
        lambda: kept[0].drop_private("x"),
        lambda: kept[0].append("x"),
        lambda: kept[0].set_visibility({}),
    ):
        with pytest.raises(ConfigError, match="this mutation is over"):
            late()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tx: tx.append(" "), "not blank"),
        (lambda tx: tx.append("x", role="tool"), "role"),
        (lambda tx: tx.merge_metadata({1: 2}), "string keys"),
        (lambda tx: tx.merge_private([1]), "string keys"),
        (lambda tx: tx.merge_private({"waiting": {}}), "'waiting' in the private data is the runtime's own"),
        (lambda tx: tx.drop_private("compaction"), "'compaction'"),
        (lambda tx: tx.set_visibility([("a", True)]), "pairs of bools"),
        (lambda tx: tx.set_visibility({"a": True}), "'a': True"),
        (lambda tx: tx.set_visibility({"a": (1, 0)}), "pairs of bools"),
    ],
)
async def test_what_cannot_be_staged_says_what_is_wrong_and_changes_nothing(change: Any, said: str) -> None:
    async with open_runtime(native([])) as runtime:
        thread = runtime.conversation().thread
        with pytest.raises(ConfigError, match=said):
            await thread.mutate(change)
        assert (await thread.load()).version == 0


async def test_what_is_no_json_data_is_refused_and_changes_nothing(store: Store) -> None:
    async with open_runtime(native([]), store=store) as runtime:
        thread = runtime.conversation().thread
        with pytest.raises(StoreError):
            await thread.mutate(lambda tx: tx.merge_metadata({"a": object()}))
        assert (await thread.load()).version == 0


async def test_no_function_is_refused() -> None:
    async with open_runtime(native([])) as runtime:
        nothing: Any = None
        with pytest.raises(ConfigError, match="mutate takes a function"):
            await runtime.conversation().thread.mutate(nothing)


# --- comparing --------------------------------------------------------------------------------------------------------


async def racing(runtime: Runtime, store: Store, other: Change, **expected: Any) -> Any:
    """Mutate, while somebody else commits between the reading and the commit."""

    async def change(tx: Mutation) -> None:
        tx.merge_private({"mine": True})
        await store.commit("agent/ada", other)

    return await runtime.conversation("ada").thread.mutate(change, **expected)


async def test_a_version_that_is_expected_is_defeated_by_any_change(store: Store) -> None:
    async with open_runtime(native([]), store=store) as runtime:
        thread = runtime.conversation("ada").thread
        record = await thread.mutate(lambda tx: tx.merge_private({"cursor": 1}))
        with pytest.raises(StoreConflict, match="has version 2, the change was made against 1"):
            await racing(runtime, store, Change(failures=1), expect_version=record.version)
        assert (await thread.load()).private == {"cursor": 1}
        with pytest.raises(StoreConflict, match="made against 1"):
            await thread.mutate(lambda tx: tx.merge_private({"late": 1}), expect_version=1)
        assert (await thread.mutate(lambda tx: tx.merge_private({"late": 1}), expect_version=2)).version == 3


async def test_private_data_that_is_expected_is_defeated_by_a_change_of_it_alone(store: Store) -> None:
    async with open_runtime(native([]), store=store) as runtime:
        thread = runtime.conversation("ada").thread
        record = await thread.mutate(lambda tx: tx.merge_private({"cursor": 1}))
        bookkeeping = Change(failures=1, metadata={"t": 1}, private={"cursor": 1, "open_run": {"run_id": "r"}})
        after = await racing(runtime, store, bookkeeping, expect_private=record.private)
        assert (after.version, after.private, after.metadata) == (3, {"cursor": 1, "mine": True}, {"t": 1})
        assert (await store.load("agent/ada")).private["open_run"] == {"run_id": "r"}
        with pytest.raises(StoreConflict, match="the private data of 'agent/ada' has changed"):
            await racing(runtime, store, Change(private={"cursor": 2}), expect_private=after.private)
        assert (await thread.load()).private == {"cursor": 2}


async def test_without_an_expectation_a_change_is_merged_into_what_is_there(store: Store) -> None:
    async with open_runtime(native([]), store=store) as runtime:
        after = await racing(runtime, store, Change(private={"theirs": True}))
        assert after.private == {"theirs": True, "mine": True}


async def test_of_many_that_expect_one_version_one_wins(store: Store) -> None:
    won: list[int] = []
    async with open_runtime(native([]), store=store) as runtime:
        thread = runtime.conversation("ada").thread

        async def change(number: int) -> None:
            try:
                await thread.mutate(lambda tx: tx.merge_metadata({"n": number}), expect_version=0)
            except StoreConflict:
                return
            won.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(change, number)
        assert [(await thread.load()).metadata["n"]] == won


async def test_many_without_an_expectation_are_all_kept_or_say_that_they_are_not(store: Store) -> None:
    lost = 0
    async with open_runtime(native([]), store=store) as runtime:
        thread = runtime.conversation("ada").thread

        async def change(number: int) -> None:
            nonlocal lost
            try:
                await thread.mutate(lambda tx: tx.merge_metadata({str(number): True}))
            except StoreConflict:
                lost += 1

        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(change, number)
        assert len((await thread.load()).metadata) + lost == 6
        assert lost == 0  # fewer than the tries that each has


async def test_a_lease_that_was_lost_is_a_conflict_and_a_newer_one_is_none(store: Store) -> None:
    async with open_runtime(native([]), store=store) as runtime:
        thread = runtime.conversation("ada").thread
        old = await store.acquire("agent/ada", "here", 60)
        await store.release("agent/ada", "here")
        new = await store.acquire("agent/ada", "there", 60)
        with pytest.raises(StoreConflict, match="the lease on 'agent/ada' was lost: token 2 is newer than 1"):
            await thread.mutate(lambda tx: tx.merge_metadata({"late": 1}), token=old)
        assert (await thread.load()).version == 0
        assert (await thread.mutate(lambda tx: tx.merge_metadata({"now": 1}), token=new)).version == 1


# --- runs and mutations -----------------------------------------------------------------------------------------------


async def test_metadata_may_change_while_a_run_goes_on_and_the_run_keeps_it(store: Store) -> None:
    gate = Gate()
    async with open_runtime(native([gate.then("answer")]), store=store) as runtime:
        talk = runtime.conversation("ada")
        run = talk.submit("ask")
        await gate.wait_reached()
        for number in range(3):
            await talk.thread.mutate(lambda tx, n=number: tx.merge_metadata({"n": n}))  # type: ignore[misc]  # a default
        gate.open()
        assert (await run.wait()).text == "answer"
        assert (await talk.thread.load()).metadata == {"n": 2}
        assert said(list((await talk.history()).entries)) == [("user", "ask"), ("assistant", "answer")]


async def test_a_hidden_text_reaches_the_model_stays_and_is_nothing_to_answer_anew() -> None:
    agent = native(["one", "two", "three"])
    async with open_runtime(agent) as runtime:
        talk = runtime.conversation("ada")
        await talk.run("first")
        await talk.thread.mutate(lambda tx: tx.append("She is a botanist.", transcript=False))
        await talk.rewrite("regenerate")
        assert requests(agent)[1].messages[-1].text == "first"
        await talk.thread.mutate(lambda tx: tx.append("She is a botanist.", transcript=False))
        await talk.run("second")
    check_requests(requests(agent))
    assert "She is a botanist." in requests(agent)[2].text


async def test_a_summary_of_the_applications_own_comes_first_for_the_model() -> None:
    agent = native(["one", "two"])
    async with open_runtime(agent) as runtime:
        talk = runtime.conversation("ada")
        await talk.run("first")
        await talk.thread.mutate(lambda tx: tx.append("They met.", role="summary", transcript=False))
        await talk.run("second")
    assert requests(agent)[1].messages[1].text.startswith("Summary of the conversation so far:\nThey met.")


async def test_what_is_appended_passes_before_append() -> None:
    class Redacts(Extension[Any]):
        name = "redacts"

        def before_append(self, ctx: Any, question: Any) -> Any:
            return Message(question.message.role, question.message.text.replace("secret", "***"))

    store = InMemoryStore()
    agent = native([], extensions=[Redacts()])
    async with open_runtime(agent, store=store) as runtime:
        await runtime.conversation("ada").thread.mutate(lambda tx: tx.append("the secret"))
    assert said(await history(store, agent, "ada")) == [("user", "the ***")]


async def test_a_planned_conversation_has_a_thread_too(store: Store) -> None:
    async with open_runtime(planned(["one"]), store=store) as runtime:
        talk = runtime.conversation("ada")
        await talk.run("first")
        record = await talk.thread.mutate(lambda tx: tx.merge_metadata({"title": "x"}))
        assert record.metadata == {"title": "x"}
        assert [entry.message.text for entry in await talk.thread.collect()] == ["first", "one"]
        assert record.memory.recent[0].answer == "one"


async def test_collecting_reads_every_page_and_nothing_that_is_appended_meanwhile() -> None:
    class Grows(InMemoryStore):  # type: ignore[misc]  # a test's own store
        async def entries(self, key: str, *args: Any, **kwargs: Any) -> Any:
            page = await super().entries(key, *args, **kwargs)
            count = (await self.load(key)).entries_count
            await self.commit(key, Change(append=[Entry(f"late {count}", 1.0, "user", Message("user", "late"))]))
            return page

    store = Grows()
    for number in range(5):
        entries = [Entry(f"{number}-{n}", 1.0, "user", Message("user", "x")) for n in range(100)]
        await store.commit("agent", Change(append=entries))
    async with open_runtime(native([]), store=store) as runtime:
        found = await runtime.conversation().thread.collect()
    assert [entry.id for entry in found] == [f"{number}-{n}" for number in range(5) for n in range(100)]


# --- the facade of a step ---------------------------------------------------------------------------------------------


class Looks(Extension[Any]):
    """Calls a function with the thread of each step."""

    name = "looks"

    def __init__(self, look: Any) -> None:
        self.look = look

    async def resolve_context(self, ctx: Any, question: Any, call_next: Any) -> Any:
        await self.look(question.thread)
        return await call_next()


async def test_a_step_sees_what_was_there_when_it_began_and_hidden_entries_too() -> None:
    store = InMemoryStore()
    seen: list[Any] = []

    async def look(thread: StepThread) -> None:
        if len(seen) == 1:
            await store.commit("agent", Change(append=[Entry("late", 1.0, "user", Message("user", "late"))]))
        entries = await thread.collect()
        newest = await thread.history(limit=1)
        before = await thread.history(before=thread.anchor, limit=9)
        seen.append(
            (thread.anchor, [entry.id == "late" for entry in entries].count(True), newest.entries == [entries[-1]])
        )
        assert len(before.entries) == thread.anchor - 1
        assert [message.text for message in await thread.messages()] == [
            entry.message.text for entry in entries if entry.context_visible
        ]

    agent = native(["one", "two"], extensions=[Looks(look)])
    async with open_runtime(agent, store=store) as runtime:
        await runtime.run("first")
        hidden = (await runtime.conversation().history()).entries[0].id
        await runtime.conversation().set_visibility({hidden: (False, False)})
        await runtime.run("second")
    assert seen == [(1, 0, True), (3, 0, True)]


async def test_a_step_may_stage_everything_but_visibility() -> None:
    seen: list[Any] = []

    async def look(thread: StepThread) -> None:
        def change(tx: Mutation) -> None:
            assert not hasattr(tx, "set_visibility")
            tx.merge_private({"cursor": len(seen)})
            tx.append("a note", transcript=False)

        seen.append(await thread.mutate(change))
        assert not hasattr(thread, "set_visibility")

    store = InMemoryStore()
    agent = native(["one", "two"], extensions=[Looks(look)])
    async with open_runtime(agent, store=store) as runtime:
        await runtime.run("first")
        assert "a note" not in requests(agent)[0].text
        await runtime.run("second")
        assert requests(agent)[1].text.count("a note") == 1
        record = await runtime.conversation().thread.load()
    assert record.private == {"cursor": 1}
    assert said(await history(store, agent)) == [
        ("user", "first"),
        ("user", "a note"),
        ("assistant", "one"),
        ("user", "second"),
        ("user", "a note"),
        ("assistant", "two"),
    ]
    check_requests(requests(agent))


async def test_what_a_step_appends_is_there_from_the_next_step_on() -> None:
    from goliath_actors import tool
    from goliath_actors.testing import tool_calls

    @tool
    async def look_up() -> str:
        """Look."""
        return "seen"

    steps = 0

    async def look(thread: StepThread) -> None:
        nonlocal steps
        steps += 1
        if steps == 1:
            await thread.mutate(lambda tx: tx.append("a note", transcript=False))

    agent = native([tool_calls(("look_up", {})), "done"], tools=[look_up], extensions=[Looks(look)])
    async with open_runtime(agent) as runtime:
        await runtime.run("go")
    first, second = requests(agent)
    assert ("a note" in first.text, "a note" in second.text) == (False, True)
    check_requests(requests(agent))


async def test_a_step_that_compares_and_loses_is_told() -> None:
    store = InMemoryStore()
    told: list[str] = []

    async def look(thread: StepThread) -> None:
        private = (await thread.load()).private
        await store.commit("agent", Change(private={"cursor": 9}))
        try:
            await thread.mutate(lambda tx: tx.merge_private({"cursor": 1}), expect_private=private)
        except StoreConflict as error:
            told.append(str(error))

    async with open_runtime(native(["one"], extensions=[Looks(look)]), store=store) as runtime:
        assert (await runtime.run("go")).text == "one"
        assert (await runtime.conversation().thread.load()).private == {"cursor": 9}
    assert told == ["the private data of 'agent' has changed; load it again and decide anew"]


async def test_a_conversation_that_was_forgotten_meanwhile_is_refused() -> None:
    store = InMemoryStore()

    async def look(thread: StepThread) -> None:
        await store.forget("agent")  # by another process: in this one it would wait for the run
        await thread.collect()

    async with open_runtime(native([], extensions=[Looks(look)]), store=store) as runtime:
        with pytest.raises(GoliathExtensionError) as raised:
            await runtime.run("go")
    assert isinstance(raised.value.__cause__, StoreConflict)


async def test_a_step_that_reads_a_page_reads_nothing_more() -> None:
    class Counts(InMemoryStore):  # type: ignore[misc]  # a test's own store
        pages = 0

        async def entries(self, *args: Any, **kwargs: Any) -> Any:
            self.pages += 1
            return await super().entries(*args, **kwargs)

    store = Counts()
    reads: list[int] = []

    async def look(thread: StepThread) -> None:
        before = store.pages
        await thread.history(limit=2)
        reads.append(store.pages - before)

    async with open_runtime(native(["one"], extensions=[Looks(look)]), store=store) as runtime:
        await runtime.run("go")
    assert reads == [1]


async def test_no_facade_leads_to_the_store() -> None:
    seen: list[StepThread] = []

    async def look(thread: StepThread) -> None:
        seen.append(thread)
        await trio.lowlevel.checkpoint()

    async with open_runtime(native(["one"], extensions=[Looks(look)])) as runtime:
        await runtime.run("go")
        for facade in (runtime.conversation().thread, seen[0]):
            names = [name for name in dir(facade) if not name.startswith("_")]
            assert all(not isinstance(getattr(facade, name), Store) for name in names)
            assert set(names) <= {"anchor", "collect", "history", "load", "messages", "mutate"}


async def test_a_mutation_that_is_cut_anywhere_is_wholly_made_or_not_at_all() -> None:
    async with open_runtime(native([])) as runtime:
        for at in range(8):
            thread = runtime.conversation(f"c{at}").thread

            def change(tx: Mutation) -> None:
                tx.merge_metadata({"a": 1})
                tx.append("text")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(thread.mutate, change)
                for _ in range(at):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
            record = await thread.load()
            assert (record.version, record.metadata, record.entries_count) in ((0, {}, 0), (1, {"a": 1}, 1))


async def test_reading_never_waits_for_a_run(autojump_clock: MockClock) -> None:
    gate = Gate()
    async with open_runtime(native([gate.then("one")])) as runtime:
        talk = runtime.conversation("ada")
        run = talk.submit("ask")
        await gate.wait_reached()
        with trio.fail_after(1):
            assert said(list(await talk.thread.collect())) == [("user", "ask")]
            assert (await talk.thread.load()).entries_count == 1
        await wait_all_tasks_blocked()
        gate.open()
        await run.wait()
