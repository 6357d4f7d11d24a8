"""Histories of the native loop: composed so that every provider takes them, and closed whatever happens."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from goliath_actors import Extension, RunAborted, ToolFailure, ToolLoop, open_runtime, tool
from goliath_actors._composition import compose, sendable, tool_name, unique_calls
from goliath_actors.abc import Change, Entry
from goliath_actors.errors import GoliathError, ModelUnavailable
from goliath_actors.stores import InMemoryStore
from goliath_actors.testing import FailingStore, ScriptedModel, check_events, tool_calls
from goliath_actors.values import Message, ToolCall

from .native import check_closed, check_requests, check_valid, history, native, said
from .planned import requests

# --- composing ------------------------------------------------------------------------------------------------------

CALL = ToolCall("1", "look", "{}")


def test_neighbours_of_one_role_are_joined_and_blanks_left_out() -> None:
    messages = [Message("user", "a"), Message("user", " "), Message("user", "b"), Message("assistant", "")]
    assert compose(messages) == (Message("user", "a\n\nb"),)


def test_a_result_is_moved_behind_its_call_and_a_missing_one_is_made_up() -> None:
    other = ToolCall("2", "look", "{}")
    messages = [
        Message("assistant", "", [CALL, other]),
        Message("user", "and?"),
        Message("tool", "late", tool_call_id="2"),
        Message("tool", "nobody's", tool_call_id="9"),
    ]
    assert compose(messages) == (
        messages[0],
        Message("tool", "No result was recorded for this call.", tool_call_id="1", name="look"),
        Message("tool", "late", tool_call_id="2"),
        Message("user", "and?"),
    )


def test_a_result_that_says_nothing_says_so() -> None:
    messages = [Message("assistant", "", [CALL]), Message("tool", " ", tool_call_id="1")]
    assert compose(messages)[1].text == "(no output)"


def test_names_and_arguments_that_a_provider_would_refuse_are_put_into_words() -> None:
    message = Message(
        "assistant",
        "",
        [
            ToolCall("1", "set level", "{oops"),
            ToolCall("2", "a.b", "", {"x": 1}),
            ToolCall("3", "", "[1]"),
            ToolCall("4", "look", '{"n": NaN}'),
        ],
    )
    calls = sendable(message, {"a.b"}).tool_calls
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [
        ("set_level", {"not_valid": "{oops"}),
        ("a.b", {"x": 1}),
        ("unknown", {"not_valid": "[1]"}),
        ("look", {"not_valid": '{"n": NaN}'}),
    ]
    assert tool_name("x" * 500) == "x" * 64


def test_ids_are_made_unique_and_stay_so() -> None:
    calls = [ToolCall("", "a"), ToolCall("x", "b"), ToolCall("x", "c"), ToolCall("call-1", "d")]
    unique = unique_calls(calls, {"x"})
    assert [call.id for call in unique] == ["call-1", "x-2", "x-3", "call-1-2"]
    assert unique_calls(unique, {"x"}) == unique


texts = st.sampled_from(["", " ", "a", "b"])
ids = st.sampled_from(["", "1", "2", "3"])
calls = st.builds(ToolCall, ids, st.sampled_from(["look", "", "no such"]), st.sampled_from(["", "{}", "{", "[1]"]))
messages = st.one_of(
    st.builds(lambda text: Message("user", text), texts),
    st.builds(
        lambda text, made: Message("assistant", text, unique_calls(made, ())), texts, st.lists(calls, max_size=3)
    ),
    st.builds(lambda text, id: Message("tool", text, tool_call_id=id), texts, ids),
)


@given(st.lists(messages, max_size=12))
def test_whatever_is_stored_what_is_sent_is_valid(stored: list[Message]) -> None:
    sent = compose([sendable(message, {"look"}) for message in stored])
    check_valid(sent)
    assert compose(sent) == sent
    said_by_users = "".join(message.text for message in stored if message.role == "user").split()
    assert "".join(message.text for message in sent if message.role == "user").split() == said_by_users or said_by_users
    for message in stored:
        if message.text.strip() and message.role != "tool":
            assert any(message.text in other.text for other in sent)


# --- old histories --------------------------------------------------------------------------------------------------


async def stored(*entries: Entry) -> InMemoryStore:
    store = InMemoryStore()
    await store.commit("agent", Change(append=entries))
    return store


async def test_old_blank_messages_and_stray_results_do_not_block_a_conversation() -> None:
    """S42."""
    store = await stored(
        Entry("1", 0.0, "user", Message("user", "hi")),
        Entry("2", 0.0, "assistant", Message("assistant", "")),
        Entry("3", 0.0, "tool", Message("tool", "stray", tool_call_id="x")),
        Entry("4", 0.0, "user", Message("user", "  ")),
    )
    agent = native(["done"])
    async with open_runtime(agent, store=store) as runtime:
        assert (await runtime.run("again")).text == "done"
    check_requests(requests(agent))
    assert requests(agent)[0].messages[-1].text == "hi\n\nagain"


async def test_a_call_that_was_left_open_is_closed_once_and_for_all() -> None:
    store = await stored(
        Entry("1", 0.0, "user", Message("user", "hi")),
        Entry("2", 0.0, "assistant", Message("assistant", "", [CALL])),
    )
    agent = native(["one", "two"])
    async with open_runtime(agent, store=store) as runtime:
        await runtime.run("a")
        await runtime.run("b")
    entries = await history(store, agent)
    check_closed(entries)
    assert [entry.role for entry in entries].count("tool") == 1


async def test_a_result_that_is_hidden_from_the_model_still_closes_its_call() -> None:
    store = await stored(
        Entry("1", 0.0, "user", Message("user", "hi")),
        Entry("2", 0.0, "assistant", Message("assistant", "", [CALL])),
        Entry("3", 0.0, "tool", Message("tool", "private", tool_call_id="1"), context_visible=False),
    )
    agent = native(["done"])
    async with open_runtime(agent, store=store) as runtime:
        await runtime.run("a")
    check_closed(await history(store, agent))
    check_requests(requests(agent))
    assert "private" not in requests(agent)[0].text


async def test_a_long_history_is_read_in_pages_and_in_order() -> None:
    entries = [
        Entry(
            str(n), 0.0, "user" if n % 2 == 0 else "assistant", Message("user" if n % 2 == 0 else "assistant", f"m{n}")
        )
        for n in range(450)
    ]
    store = await stored(*entries)
    agent = native(["done"])
    async with open_runtime(agent, store=store) as runtime:
        await runtime.run("a")
    assert [message.text for message in requests(agent)[0].messages[1:-1]] == [f"m{n}" for n in range(450)]


async def test_a_planned_conversations_entries_are_no_part_of_the_context() -> None:
    store = await stored(Entry("1", 0.0, "user", Message("user", "planned"), context_visible=False))
    agent = native(["done"])
    async with open_runtime(agent, store=store) as runtime:
        await runtime.run("a")
    assert "planned" not in requests(agent)[0].text


async def test_a_store_that_cannot_be_read_fails_the_run() -> None:
    store = await stored(Entry("1", 0.0, "user", Message("user", "x")))
    error = OSError("gone")
    async with open_runtime(native(["done"]), store=FailingStore(store, {"entries": error})) as runtime:
        envelope = runtime.submit("a")
        await envelope.wait_ended()
    assert envelope.outcome is not None
    assert (envelope.outcome.error, envelope.outcome.origin) == (error, "memory")


# --- whatever happens -----------------------------------------------------------------------------------------------


@tool
async def act(kind: str) -> str:
    """Do something."""
    if kind == "fail":
        raise ToolFailure("no")
    if kind == "raise":
        raise ValueError("inner")
    if kind == "wait":
        await trio.sleep(3)
    await trio.lowlevel.checkpoint()
    return kind


class Upset(Extension[Any]):
    """Raises in a row at a time, as the dice say."""

    name = "upset"

    def __init__(self, row: str, at: int) -> None:
        self.row, self.at, self.heard = row, at, 0

    def _hear(self, row: str) -> None:
        if row == self.row:
            self.heard += 1
            if self.heard == self.at:
                raise ValueError(row)

    def before_append(self, ctx: Any, question: Any) -> None:
        self._hear("before_append")

    def before_tool(self, ctx: Any, question: Any) -> None:
        self._hear("before_tool")

    def after_tool(self, ctx: Any, question: Any) -> None:
        self._hear("after_tool")

    def after_step(self, ctx: Any, question: Any) -> None:
        self._hear("after_step")


made = st.tuples(
    st.sampled_from(["act", "act", "act", "nothing"]),
    st.sampled_from(
        [{"kind": "ok"}, {"kind": "fail"}, {"kind": "raise"}, {"kind": "wait"}, {}, "{", "", '{"kind": 1}']
    ),
)
replies = st.one_of(
    st.just("an answer"),
    st.just(""),
    st.lists(made, min_size=1, max_size=3).map(lambda listed: tool_calls(*listed, text="hm")),
    st.just("broken"),
)


@settings(deadline=None, max_examples=120)
@given(
    script=st.lists(replies, min_size=12, max_size=12),
    timeouts=st.lists(st.sampled_from([None, None, 1.0, 5.0]), min_size=3, max_size=3),
    upset=st.tuples(
        st.sampled_from(["", "", "before_append", "before_tool", "after_tool", "after_step"]), st.integers(1, 6)
    ),
    failing=st.lists(st.booleans(), max_size=8),
    parallel=st.integers(1, 3),
)
def test_whatever_happens_history_is_closed_and_valid(
    script: list[Any],
    timeouts: list[float | None],
    upset: tuple[str, int],
    failing: list[bool],
    parallel: int,
) -> None:
    async def main() -> None:
        inner = InMemoryStore()
        store = FailingStore(inner, {"commit": [OSError("full") if fails else None for fails in failing]})
        model = ScriptedModel(
            [ModelUnavailable("down") if reply == "broken" else reply for reply in script] + ["the end"] * 9
        )
        loop = ToolLoop(max_steps=3, max_parallel_tools=parallel)
        agent = native(model, tools=[act], extensions=[Upset(*upset)], loop=loop)
        async with open_runtime(agent, store=store) as runtime:
            for number, timeout in enumerate(timeouts):
                envelope = runtime.submit(f"ask {number}", timeout=timeout)
                try:
                    await envelope.wait()
                except (GoliathError, OSError):
                    pass
                assert envelope.outcome is not None
                check_events(envelope.outcome.trace)
        # Whatever the store refused is closed by whoever loads the conversation next.
        last = native(["fine"], tools=[act])
        async with open_runtime(last, store=inner) as runtime:
            assert (await runtime.run("still there?")).text == "fine"
        entries = await history(inner, agent)
        check_closed(entries)
        check_requests([*model.requests, *requests(last)])

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def test_an_abort_right_behind_the_answer_comes_too_late() -> None:
    store = InMemoryStore()
    agent = native(["done"])
    async with open_runtime(agent, store=store) as runtime:
        envelope = runtime.submit(
            "hi", on_event=lambda event: envelope.abort("late") if event.kind == "answer" else None
        )
        result = await envelope.wait()
    assert result.text == "done"
    assert said(await history(store, agent)) == [("user", "hi"), ("assistant", "done")]


async def test_an_event_callback_that_raises_on_the_answer_fails_the_run_before_it_is_stored() -> None:
    def raising(event: Any) -> None:
        if event.kind == "answer":
            raise LookupError("no")

    store = InMemoryStore()
    agent = native(["done"])
    async with open_runtime(agent, store=store) as runtime:
        with pytest.raises(LookupError):
            await runtime.run("hi", on_event=raising)
    assert said(await history(store, agent)) == [("user", "hi")]


async def test_a_save_that_hangs_is_cut_off_and_told(autojump_clock: MockClock) -> None:
    class Hanging(InMemoryStore):  # type: ignore[misc]  # a test's own store
        commits = 0

        async def commit(self, *args: Any, **kwargs: Any) -> Any:
            Hanging.commits += 1
            if Hanging.commits == 2:
                await trio.sleep_forever()
            return await super().commit(*args, **kwargs)

    async with open_runtime(native(["done"]), store=Hanging(), finish_timeout=2) as runtime:
        result = await runtime.run("hi")
    assert [event.error for event in result.trace if event.kind == "memory-error"] == ["saving took longer than 2 s"]


async def test_a_close_that_cannot_be_stored_is_told_and_the_abort_stands(autojump_clock: MockClock) -> None:
    inner = InMemoryStore()
    store = FailingStore(inner, {"commit": [None, None, OSError("full")]})
    agent = native([tool_calls(("act", {"kind": "wait"})), "fine"], tools=[act])
    async with open_runtime(agent, store=store) as runtime:
        envelope = runtime.submit("go", timeout=1)
        with pytest.raises(RunAborted):
            await envelope.wait()
        assert envelope.outcome is not None
        assert [event.error for event in envelope.outcome.trace if event.kind == "memory-error"] == ["OSError: full"]
        assert (await runtime.run("again")).text == "fine"
    check_closed(await history(inner, agent))
