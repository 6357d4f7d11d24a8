"""Bad input of the tool loop's doors: each gets a typed error that says what and where, and changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from goliath_actors import Agent, Runtime, open_runtime, tool
from goliath_actors.abc import Change, Record, Store
from goliath_actors.errors import (
    ConfigError,
    ConversationBusy,
    GoliathError,
    MailboxFull,
    NothingToRegenerate,
    NotWaiting,
    StoreConflict,
)
from goliath_actors.stores import InMemoryStore, SqliteStore
from goliath_actors.testing import Gate, tool_calls
from goliath_actors.tools import Suspend

from .native import check_closed, history, native


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return InMemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "chat.db")


def waiting(sent: list[str], *script: Any) -> Agent[Any]:
    @tool(writes=True)
    async def send(text: str) -> str:
        """Send a text."""
        await trio.lowlevel.checkpoint()
        sent.append(text)
        return "sent"

    two = tool_calls(("send", {"text": "a"}), ("send", {"text": "b"}))
    return native([two, *script], tools=[send], confirm=lambda request: Suspend())


async def everything(store: Store, agent: Agent[Any], conversation_id: str | None = "ada") -> tuple[Record, list[Any]]:
    key = agent.name if conversation_id is None else f"{agent.name}/{conversation_id}"
    return await store.load(key), await history(store, agent, conversation_id)


async def open_calls(runtime: Runtime) -> tuple[str, str]:
    first, second = (await runtime.run("go", conversation_id="ada")).waiting
    return first.call_id, second.call_id


async def test_a_resume_of_a_call_that_is_unknown_names_it_and_those_that_wait(store: Store) -> None:
    sent: list[str] = []
    agent = waiting(sent)
    async with open_runtime(agent, store=store) as runtime:
        ids = await open_calls(runtime)
        before = await everything(store, agent)
        with pytest.raises(NotWaiting) as raised:
            await runtime.conversation("ada").resume({ids[0]: True, "nobody": True})
        assert (raised.value.conversation_id, raised.value.call_ids, raised.value.waiting) == ("ada", ("nobody",), ids)
        assert str(raised.value) == (
            "answers are by call id, and 'nobody' does not wait in conversation 'ada'; "
            f"these do: {ids[0]!r}, {ids[1]!r}"
        )
        assert await everything(store, agent) == before
    assert sent == []


async def test_a_second_resume_of_a_call_is_refused_whether_others_wait_or_not(store: Store) -> None:
    sent: list[str] = []
    agent = waiting(sent, "done")
    async with open_runtime(agent, store=store) as runtime:
        talk = runtime.conversation("ada")
        one, two = await open_calls(runtime)
        await talk.resume({one: True})
        before = await everything(store, agent)
        with pytest.raises(NotWaiting) as raised:
            await talk.resume({one: True})
        assert (raised.value.call_ids, raised.value.waiting) == ((one,), (two,))
        assert await everything(store, agent) == before
        assert (await talk.resume({two: True})).text == "done"
        with pytest.raises(NotWaiting, match="nothing waits for an answer in conversation 'ada'"):
            await talk.resume({two: True})
        check_closed(await history(store, agent, "ada"))
    assert sent == ["a", "b"]


async def test_of_two_resumes_at_the_same_time_one_is_too_late(store: Store) -> None:
    sent: list[str] = []
    late: list[GoliathError] = []
    agent = waiting(sent, "done")
    async with open_runtime(agent, store=store) as runtime:
        ids = await open_calls(runtime)

        async def answer() -> None:
            try:
                await runtime.conversation("ada").resume(dict.fromkeys(ids, True))
            except NotWaiting as error:
                late.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            nursery.start_soon(answer)
    assert (sorted(sent), len(late)) == (["a", "b"], 1)


async def test_a_resume_where_nothing_ever_waited_says_where(store: Store) -> None:
    agent = native(["one"])
    async with open_runtime(agent, store=store) as runtime:
        with pytest.raises(NotWaiting, match=r"in the default conversation \(not 'x' either\)$"):
            await runtime.conversation().resume({"x": True})
        assert await everything(store, agent, None) == (Record(), [])


async def test_a_rewrite_without_an_ask_says_where_and_makes_nothing(store: Store) -> None:
    agent = native([])
    async with open_runtime(agent, store=store) as runtime:
        with pytest.raises(NothingToRegenerate, match="nothing to answer anew in conversation 'ada'") as raised:
            await runtime.conversation("ada").rewrite("regenerate")
        assert raised.value.conversation_id == "ada"
        assert await everything(store, agent) == (Record(), [])


async def test_a_rewrite_of_a_busy_conversation_waits_or_is_refused(store: Store) -> None:
    gate = Gate()
    agent = native([gate.then("one"), "two"])
    async with open_runtime(agent, store=store, mailbox_capacity=1) as runtime:
        talk = runtime.conversation("ada")
        run = talk.submit("go")
        await gate.wait_reached()
        before = await everything(store, agent)
        with pytest.raises(ConversationBusy, match="conversation 'ada' is busy"):
            await talk.rewrite("regenerate", when_busy="refuse")
        later = talk.submit_rewrite("regenerate")
        with pytest.raises(MailboxFull):
            await talk.rewrite("regenerate")
        assert await everything(store, agent) == before
        gate.open()
        assert ((await run.wait()).text, (await later.wait()).text) == ("one", "two")
        assert [entry.message.text for entry in await history(store, agent, "ada")] == ["go", "two"]


async def test_a_text_for_a_conversation_that_is_not_running_is_no_error_but_a_run(store: Store) -> None:
    async with open_runtime(native(["one", "two"]), store=store) as runtime:
        talk = runtime.conversation("ada")
        assert (await talk.steer("first").wait()).text == "one"
        assert (await talk.steer("second").wait()).text == "two"
        for bad in ("", "  ", 7):
            with pytest.raises(ConfigError):
                talk.steer(bad)  # type: ignore[arg-type]


async def test_a_conflict_in_the_store_changes_nothing_and_says_which_version(store: Store) -> None:
    agent = native(["one"])
    async with open_runtime(agent, store=store) as runtime:
        talk = runtime.conversation("ada")
        await talk.run("go")
        before = await everything(store, agent)
        with pytest.raises(StoreConflict, match="'agent/ada' has version 2, the change was made against 1"):
            await store.commit("agent/ada", Change(metadata={"late": True}, truncate_after=""), expect=1)
        with pytest.raises(StoreConflict, match="made against 1"):
            await talk.thread.mutate(lambda tx: tx.append("late"), expect_version=1)
        assert await everything(store, agent) == before


@pytest.mark.parametrize(
    ("error", "kinds"), [(NotWaiting(None, (), ()), ConfigError), (NothingToRegenerate("x"), ValueError)]
)
def test_what_is_asked_for_in_vain_is_a_wrong_argument(error: Exception, kinds: type[Exception]) -> None:
    assert isinstance(error, kinds)
