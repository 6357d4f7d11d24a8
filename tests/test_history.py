"""Histories between runs: used again only if the store has the same, bounded, and equal to what is read anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from goliath_actors import Agent, ToolLoop, open_runtime
from goliath_actors._budget import PROMPT_OVERHEAD, PromptCounts
from goliath_actors._composition import compose
from goliath_actors._history import ENTRY_WEIGHT, LEAST_ENTRIES, Histories, History
from goliath_actors.abc import Change, Entry, ModelRequest, Record
from goliath_actors.stores import InMemoryStore
from goliath_actors.testing import FailingStore, ScriptedModel
from goliath_actors.tokens import EstimateCounter
from goliath_actors.values import Message, Page, ToolCall

NONE: frozenset[str] = frozenset()

# --- composing a part at a time -------------------------------------------------------------------------------------

TEXTS = st.sampled_from(["", "a", "b"])
CALLS = st.lists(st.sampled_from(["1", "2", "3"]), max_size=2)
MESSAGES = st.one_of(
    st.builds(lambda text: Message("user", text), TEXTS),
    st.builds(lambda text: Message("assistant", text), TEXTS),
    st.builds(lambda ids: Message("assistant", "", tuple(ToolCall(i, "t", "{}") for i in ids)), CALLS),
    st.builds(lambda i, text: Message("tool", text, tool_call_id=i), st.sampled_from(["1", "2", "3"]), TEXTS),
)


@given(st.lists(st.tuples(MESSAGES, st.booleans()), max_size=25), st.integers(0, 6))
def test_composing_a_part_at_a_time_gives_what_composing_all_at_once_gives(
    said: Sequence[tuple[Message, bool]], summary_at: int
) -> None:
    """Whatever is said, whenever somebody looks; a summary comes in front and takes away what it tells of."""
    history, plain = History(NONE), list[Message]()
    ids = {call.id for message, _ in said for call in message.tool_calls}
    for number, (message, look) in enumerate(said):
        if message.role == "tool" and message.tool_call_id not in ids:
            continue
        if number == summary_at:
            history.cut(0, 2)
            del plain[:2]
            told = Message("user", "so far")
            history.add(Entry("s", 0.0, "summary", told), told)
            plain.insert(0, told)
        # As in a store: an id is never a call's again.
        calls = tuple(attrs.evolve(call, id=f"{call.id}.{number}") for call in message.tool_calls)
        fresh = attrs.evolve(message, tool_calls=calls)
        if message.role == "tool":
            waiting = next((i for i in history.open if i.startswith(f"{message.tool_call_id}.")), "none")
            fresh = attrs.evolve(message, tool_call_id=waiting)
        history.add(Entry(str(number), 0.0, fresh.role, fresh), fresh)  # type: ignore[arg-type]  # no system messages
        plain.append(fresh)
        if look:
            assert history.messages().messages == compose(plain)
    messages, settled, _ = history.messages()
    assert messages == compose(plain)
    assert 0 <= settled <= len(messages)


# --- counting a part at a time --------------------------------------------------------------------------------------


class Counting:
    """Counts characters, and how often it is asked."""

    name, exact = "characters", True

    def __init__(self) -> None:
        self.asked: list[str] = []

    def count(self, text: str) -> int:
        self.asked.append(text)
        return len(text)


@given(st.lists(st.lists(MESSAGES, max_size=600), max_size=4))
def test_counts_do_not_depend_on_what_was_counted_before(prompts: list[list[Message]]) -> None:
    counts = PromptCounts(EstimateCounter())
    for prompt in prompts:
        assert counts.count(prompt, "schema") == PromptCounts(EstimateCounter()).count(prompt, "schema")


def test_a_message_is_counted_once_however_often_it_is_sent() -> None:
    counter = Counting()
    counts = PromptCounts(counter)
    prompt = [Message("system", "S"), *(Message("user", str(number)) for number in range(1000))]
    first = counts.count(prompt, "tools")
    assert first == sum(len(m.text) + 1 for m in prompt) + len("tools") + 1 + PROMPT_OVERHEAD
    counter.asked.clear()
    assert counts.count([*prompt, Message("assistant", "new")], "tools") == first + 4
    assert counter.asked == ["new"]


def test_calls_of_a_message_are_counted() -> None:
    call = Message("assistant", "x", (ToolCall("1", "look", '{"a": 1}'),))
    assert PromptCounts(Counting()).count([call], "") == 2 + len('look {"a": 1}') + 1 + PROMPT_OVERHEAD


def test_a_counter_that_fails_leaves_the_counts_right() -> None:
    class Failing(Counting):
        def count(self, text: str) -> int:
            if text == "bad":
                raise RuntimeError("no")
            return super().count(text)

    counts = PromptCounts(Failing())
    good = [Message("user", "one"), Message("assistant", "two")]
    counts.count(good, "")
    with pytest.raises(RuntimeError):
        counts.count([good[0], Message("assistant", "three"), Message("user", "bad")], "")
    assert counts.count([*good, Message("user", "x")], "") == 4 + 4 + 2 + PROMPT_OVERHEAD


# --- in a runtime ---------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Watched(FailingStore):
    """Counts the entries that are read."""

    read: int = 0

    async def entries(self, key: str, *args: Any, **options: Any) -> Page:
        page = await self.inner.entries(key, *args, **options)
        self.read += len(page.entries)
        return page


def echo(request: ModelRequest) -> str:
    return f"{len(request.messages)} messages, the last says {request.messages[-1].text}"


def agent(turns: int = 100) -> Agent[None]:
    return Agent(name="a", model=ScriptedModel([echo] * turns), loop=ToolLoop())


def texts(agent: Agent[None]) -> list[str]:
    """What the model was sent last."""
    assert isinstance(agent.model, ScriptedModel)
    return [message.text for message in agent.model.requests[-1].messages]


LONG = LEAST_ENTRIES // 2  # turns of two entries each


async def test_a_long_history_is_read_once_and_then_only_its_newest_entry() -> None:
    store, me = Watched(InMemoryStore(), {}), agent()
    async with open_runtime(me, store=store) as runtime:
        for number in range(LONG):
            await runtime.run(str(number), conversation_id="c")
        store.read = 0
        for number in range(5):
            await runtime.run(f"again {number}", conversation_id="c")
        assert store.read == 5
    kept = texts(me)
    fresh = agent()
    async with open_runtime(fresh, store=store) as runtime:
        await runtime.run("again 4", conversation_id="c")
    assert texts(fresh)[: len(kept)] == kept


async def test_a_short_history_is_not_held() -> None:
    store = Watched(InMemoryStore(), {})
    async with open_runtime(agent(), store=store) as runtime:
        for number in range(3):
            await runtime.run(str(number), conversation_id="c")
        store.read = 0
        await runtime.run("again", conversation_id="c")
        assert store.read == 6


async def written(store: Any, change: Change) -> None:
    """Somebody else writes, as another process would."""
    record: Record = await store.load("a/c")
    await store.commit("a/c", change, record.version)


@pytest.mark.parametrize("what", ["append", "hide", "forget and make again"])
async def test_what_somebody_else_wrote_meanwhile_is_seen_by_the_next_run(what: str) -> None:
    store, me = InMemoryStore(), agent()
    async with open_runtime(me, store=store) as runtime:
        for number in range(LONG):
            await runtime.run(f"ask {number}", conversation_id="c")
        before = await store.load("a/c")
        if what == "append":
            await written(store, Change(append=[Entry("new", 1.0, "user", Message("user", "from elsewhere"))]))
        elif what == "hide":
            first = (await store.entries("a/c", after=0, limit=1)).entries[0]
            await written(store, Change(visibility={first.id: (True, False)}))
        else:
            await store.forget("a/c")
            for number in range(before.version):
                entry = Entry(f"e{number}", 1.0, "user", Message("user", f"other {number}"))
                await store.commit("a/c", Change(append=[entry] if number < before.entries_count else []))
            assert (await store.load("a/c")).version == before.version
        await runtime.run("now", conversation_id="c")
    sent = "\n".join(texts(me)).splitlines()
    assert ("from elsewhere" in sent) == (what == "append")
    assert ("ask 0" in sent) == (what == "append")
    assert ("other 3" in sent) == (what == "forget and make again")


async def test_a_commit_that_failed_makes_the_next_run_read_anew() -> None:
    inner, me = InMemoryStore(), agent()
    store = Watched(inner, {})
    async with open_runtime(me, store=store) as runtime:
        for number in range(LONG):
            await runtime.run(str(number), conversation_id="c")
        store.fail = {"commit": [None, OSError("disk full")]}  # type: ignore[misc]  # the answer's commit
        await runtime.run("lost", conversation_id="c")
        store.fail = {}  # type: ignore[misc]
        await runtime.run("after", conversation_id="c")
    sent = texts(me)
    assert sent[-1] == "lost\n\nafter"


async def test_forgotten_and_idle_conversations_are_held_no_more(autojump_clock: object) -> None:
    async with open_runtime(agent(), store=InMemoryStore(), idle_timeout=10) as runtime:
        held = runtime._engine.histories._held
        for number in range(LONG):
            await runtime.run(str(number), conversation_id="c")
            await runtime.run(str(number), conversation_id="d")
        assert set(held) == {"a/c", "a/d"}
        await runtime.conversation("c").forget()
        assert set(held) == {"a/d"}
        await trio.sleep(20)
        assert not held


def long(length: int = LEAST_ENTRIES, text: str = "") -> History:
    history = History(NONE)
    for number in range(length):
        message = Message("user", text)
        history.add(Entry(str(number), 0.0, "user", message), message)
    return history


def test_all_histories_together_are_bounded_and_the_oldest_go_first() -> None:
    histories = Histories(most=8 * LEAST_ENTRIES * ENTRY_WEIGHT)
    for number in range(100):
        histories.keep(str(number), long(), Record(1))
    assert list(histories._held) == [str(number) for number in range(92, 100)]
    assert histories._weight == 8 * LEAST_ENTRIES * ENTRY_WEIGHT
    histories.keep("huge", long(text="x" * 1000), Record(1))
    assert "huge" not in histories._held
    for number in range(92, 100):
        assert histories.take(str(number), NONE, Record(1)) is not None
    assert histories._weight == 0


def test_a_history_of_another_record_or_of_other_tools_is_not_used() -> None:
    histories = Histories()
    for known, record in ((NONE, Record(2)), (frozenset({"t"}), Record(1)), (NONE, Record(1, entries_count=1))):
        histories.keep("k", long(), Record(1))
        assert histories.take("k", known, record) is None
        assert histories._weight == 0
