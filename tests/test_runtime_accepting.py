"""Accepting and refusing: identity, limits, busy conversations, and what callbacks do meanwhile (R1, R2, R8)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock, wait_all_tasks_blocked

from goliath_actors import RunAborted, open_runtime
from goliath_actors._work import Work
from goliath_actors.abc import Change
from goliath_actors.errors import (
    ConfigError,
    ConversationBusy,
    MailboxFull,
    RuntimeClosed,
)
from goliath_actors.stores import SqliteStore
from goliath_actors.testing import Gate, Journal, check_events
from goliath_actors.values import ConversationStatus, Memory

from .loops import loop_agent
from .runtime_stage import for_ever, gated, sleepy

# --- R1, R2: identity and acceptance ----------------------------------------------------------------------------------


async def test_a_run_gives_its_result_to_the_asker() -> None:
    async with open_runtime(loop_agent()) as runtime:
        result = await runtime.run("hello", conversation_id="c1")
    assert (result.status, result.text, result.conversation_id) == ("completed", "echo hello", "c1")
    assert [event.kind for event in check_events(result.trace)] == ["run-queued", "run-started", "run-finished"]


@pytest.mark.parametrize("bad", ["", "   ", "x" * 513, 7, b"c1"])
async def test_a_bad_conversation_id_raises_before_anything_exists(bad: Any) -> None:
    async with open_runtime(loop_agent()) as runtime:
        with pytest.raises(ConfigError, match="conversation_id"):
            runtime.submit("hello", conversation_id=bad)
        with pytest.raises(ConfigError, match="conversation_id"):
            runtime.conversation(bad)
        assert runtime.statistics().accepted == 0
        assert runtime.statistics().conversations == 0


async def test_an_id_is_used_as_given_and_none_is_not_the_word_default() -> None:
    async with open_runtime(loop_agent()) as runtime:
        for name in ("default", " c ", "c", None, "x" * 512):
            assert (await runtime.run("hi", conversation_id=name)).conversation_id == name
        assert runtime.statistics().conversations == 5


async def test_a_bad_ask_is_refused_and_says_what_to_do() -> None:
    async with open_runtime(loop_agent()) as runtime:
        for bad, words in ((None, "string"), ("  ", "blank")):
            with pytest.raises(ConfigError, match=words):
                runtime.submit(bad)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="when_busy"):
            runtime.submit("hi", when_busy="never")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="timeout"):
            runtime.submit("hi", timeout=-1)
        with pytest.raises(ConfigError, match="on_event"):
            runtime.submit("hi", on_event=3)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="no agent 'nobody'"):
            runtime.submit("hi", agent="nobody")


async def test_with_several_agents_one_must_be_named() -> None:
    one, two = loop_agent(name="one"), loop_agent(name="two")
    async with open_runtime(one, two) as runtime:
        with pytest.raises(ConfigError, match="several agents"):
            runtime.submit("hi")
        assert (await runtime.run("hi", agent="two")).text == "echo hi"
        assert (await runtime.run("hi", agent=one)).text == "echo hi"
        assert runtime.statistics().conversations == 2


async def test_two_agents_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="two agents are named 'agent'"):
        async with open_runtime(loop_agent(), loop_agent()):
            pass  # pragma: no cover


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_running": 0}, "max_running"),
        ({"mailbox_capacity": -1}, "mailbox_capacity"),
        ({"mailbox_capacity": None}, "mailbox_capacity"),
        ({"max_waiting": True}, "max_waiting"),
        ({"finish_timeout": 0}, "finish_timeout"),
        ({"idle_timeout": -1}, "idle_timeout"),
        ({"store": object()}, "store"),
    ],
)
async def test_a_wrong_limit_is_refused_on_opening(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        async with open_runtime(loop_agent(), **options):
            pass  # pragma: no cover


async def test_a_full_mailbox_refuses_says_which_and_leaves_no_trace() -> None:
    gate, journal = Gate(), Journal()
    async with open_runtime(loop_agent(gated(gate), extensions=(journal,)), mailbox_capacity=2) as runtime:
        accepted = [runtime.submit(f"a{n}", conversation_id="c") for n in range(3)]
        with pytest.raises(MailboxFull) as caught:
            runtime.submit("too much", conversation_id="c")
        assert (caught.value.scope, caught.value.waiting, caught.value.capacity) == ("conversation", 2, 2)
        assert "mailbox_capacity" in str(caught.value)
        other = runtime.submit("elsewhere", conversation_id="d")
        gate.open()
        for run in (*accepted, other):
            await run.wait()
        assert runtime.statistics().accepted == 4
    assert sorted(ask for ask, _ in journal.heard("on_finish")) == ["a0", "a1", "a2", "elsewhere"]


async def test_max_waiting_bounds_the_whole_runtime_but_not_what_starts_at_once() -> None:
    gate = Gate()
    async with open_runtime(loop_agent(gated(gate)), max_waiting=1) as runtime:
        runtime.submit("runs", conversation_id="a")
        await gate.wait_reached()
        runtime.submit("waits", conversation_id="a")
        with pytest.raises(MailboxFull) as caught:
            runtime.submit("refused", conversation_id="a")
        assert caught.value.scope == "runtime"
        assert "max_waiting" in str(caught.value)
        await wait_all_tasks_blocked()
        runtime.submit("starts at once", conversation_id="b")
        gate.open()


async def test_what_has_its_turn_is_not_waiting_even_before_its_task_has_stepped() -> None:
    gate = Gate()
    async with open_runtime(loop_agent(gated(gate)), max_running=4, max_waiting=10) as runtime:
        accepted = refused = 0
        for n in range(30):
            try:
                runtime.submit("hi", conversation_id=str(n))
                accepted += 1
            except MailboxFull:
                refused += 1
        assert (accepted, refused) == (14, 16)
        assert (runtime.statistics().running, runtime.statistics().waiting) == (4, 10)
        gate.open()


async def test_a_closed_runtime_refuses() -> None:
    async with open_runtime(loop_agent()) as runtime:
        pass
    with pytest.raises(RuntimeClosed, match="closed"):
        runtime.submit("late")
    with pytest.raises(RuntimeClosed):
        await runtime.run("late")


async def test_run_refuses_before_its_first_checkpoint() -> None:
    async with open_runtime(loop_agent()) as runtime:
        with trio.CancelScope() as scope:
            scope.cancel()
            with pytest.raises(ConfigError):
                await runtime.run("", conversation_id="c")
        assert not scope.cancelled_caught


async def test_an_event_callback_that_raises_on_queued_fails_the_run_at_its_turn() -> None:
    error = RuntimeError("callback")

    def on_event(event: Any) -> None:
        if event.kind == "run-queued":
            raise error

    journal = Journal()
    async with open_runtime(loop_agent(extensions=(journal,))) as runtime:
        run = runtime.submit("hi", on_event=on_event)
        with pytest.raises(RuntimeError, match="callback") as caught:
            await run.wait()
        assert caught.value is error
    assert journal.heard("on_error") == [("hi", "event")]


# --- R8a, R8b: busy and seen ------------------------------------------------------------------------------------------


async def test_when_busy_refuse_raises_and_leaves_no_trace() -> None:
    gate = Gate()
    async with open_runtime(loop_agent(gated(gate))) as runtime:
        runtime.submit("one", conversation_id="c")
        with pytest.raises(ConversationBusy, match="'c' is busy"):
            runtime.submit("two", conversation_id="c", when_busy="refuse")
        gate.open()
        assert runtime.statistics().accepted == 1


async def test_when_busy_replace_aborts_what_runs_and_goes_before_what_waits() -> None:
    journal = Journal()
    gate = Gate()

    async def action(work: Work) -> str:
        if work.ask == "old":
            await trio.sleep_forever()
        await gate.pass_through()
        return work.ask

    async with open_runtime(loop_agent(action, extensions=(journal,)), mailbox_capacity=1) as runtime:
        old = runtime.submit("old", conversation_id="c")
        await wait_all_tasks_blocked()
        waits = runtime.submit("waits", conversation_id="c")
        new = runtime.submit("new", conversation_id="c", when_busy="replace")
        newer = runtime.submit("newer", conversation_id="c", when_busy="replace")
        gate.open()
        for run in (old, new):
            with pytest.raises(RunAborted) as caught:
                await run.wait()
            assert caught.value.cause == "requested"
        assert (await newer.wait()).text == "newer"
        assert (await waits.wait()).text == "waits"
    assert journal.heard("on_finish") == [
        ("old", "aborted"),
        ("new", "aborted"),
        ("newer", "completed"),
        ("waits", "completed"),
    ]


async def test_status_says_what_runs_where_since_when_and_what_waits(autojump_clock: MockClock) -> None:
    async def action(work: Work) -> str:
        work.journal.enter("tool:create_task")
        await trio.sleep(10)
        return ""

    async with open_runtime(loop_agent(action)) as runtime:
        conversation = runtime.conversation("c")
        assert conversation.status() == ConversationStatus()
        await trio.sleep(1)
        run = conversation.submit("one")
        await trio.sleep(2)
        conversation.submit("two")
        await trio.sleep(3)
        status = conversation.status()
        assert status == ConversationStatus(run.id, "tool:create_task", 1.0, 1, 3.0)
        conversation.abort("enough", queued=True)


async def test_conversation_abort_spares_the_queue_unless_told_otherwise(autojump_clock: MockClock) -> None:
    async with open_runtime(loop_agent(sleepy)) as runtime:
        conversation = runtime.conversation("c")
        first, second = conversation.submit("5"), conversation.submit("1")
        await wait_all_tasks_blocked()
        conversation.abort("first only")
        with pytest.raises(RunAborted):
            await first.wait()
        assert (await second.wait()).text == "slept 1"
        third, fourth = conversation.submit("5"), conversation.submit("1")
        conversation.abort("all", queued=True)
        for run in (third, fourth):
            with pytest.raises(RunAborted, match="all"):
                await run.wait()


async def test_doors_that_need_a_tool_loop_say_so() -> None:
    async with open_runtime(loop_agent()) as runtime:
        conversation = runtime.conversation("c")
        with pytest.raises(ConfigError, match="steer needs an agent with a ToolLoop"):
            conversation.steer("left")
        with pytest.raises(ConfigError, match="submit_resume needs"):
            conversation.submit_resume({})
        with pytest.raises(ConfigError, match="resume needs"):
            await conversation.resume({})
        with pytest.raises(ConfigError, match="rewrite needs"):
            await conversation.rewrite("regenerate")


async def test_submitting_from_a_run_goes_to_its_own_agent_where_none_is_named() -> None:
    async def action(work: Work) -> str:
        await trio.lowlevel.checkpoint()
        if work.ask == "first":
            work.submit("second", conversation_id="other")
        return work.ask

    one, two = loop_agent(action, name="one"), loop_agent(action, name="two")
    async with open_runtime(one, two) as runtime:
        await runtime.run("first", agent="two")
        assert runtime._doors.acceptance.entry("two").actors.get("other") is not None
        assert runtime._doors.acceptance.entry("one").actors.get("other") is None


# --- accepting: whatever a callback on RunQueued does -----------------------------------------------------------------


async def test_an_event_callback_that_exits_on_queued_leaves_no_run_that_nobody_could_end(
    autojump_clock: MockClock,
) -> None:
    journal = Journal()

    def on_event(event: Any) -> None:
        if event.kind == "run-queued":
            raise SystemExit(3)

    async with open_runtime(loop_agent(for_ever, extensions=(journal,))) as runtime:
        with pytest.raises(SystemExit):
            runtime.submit("hi", on_event=on_event)
    assert journal.heard("on_finish") == [("hi", "aborted")]
    assert runtime.statistics().aborted == 1


async def test_an_ask_out_of_an_event_callback_goes_behind_the_one_that_was_being_accepted() -> None:
    order: list[str] = []

    async def action(work: Work) -> str:
        await trio.lowlevel.checkpoint()
        order.append(work.ask)
        return ""

    def on_event(event: Any) -> None:
        if event.kind == "run-queued":
            runtime.submit("inner", conversation_id="c")

    async with open_runtime(loop_agent(action)) as runtime:
        runtime.submit("outer", conversation_id="c", on_event=on_event)
    assert order == ["outer", "inner"]


async def test_a_callback_that_looks_at_the_runtime_cannot_have_the_new_conversation_forgotten(
    autojump_clock: MockClock,
) -> None:
    active = peak = 0

    async def action(work: Work) -> str:
        nonlocal active, peak
        active += 1
        peak = max(peak, active)
        await trio.sleep(1)
        active -= 1
        return ""

    async with open_runtime(loop_agent(action), idle_timeout=0) as runtime:
        for ask in ("one", "two", "three"):
            runtime.submit(ask, conversation_id="c", on_event=lambda event: runtime.statistics())
        assert runtime.conversation("c").status().waiting == 2
        await trio.sleep(5)
        assert runtime.statistics().conversations == 0
    assert peak == 1


# --- doors and fakes --------------------------------------------------------------------------------------------------


async def test_a_number_of_seconds_that_no_clock_can_add_is_refused_before_anything_exists() -> None:
    huge = 10**400
    for option in ("finish_timeout", "idle_timeout"):
        with pytest.raises(ConfigError, match=option):
            async with open_runtime(loop_agent(), **{option: huge}):
                pass  # pragma: no cover
    async with open_runtime(loop_agent()) as runtime:
        with pytest.raises(ConfigError, match="timeout"):
            runtime.submit("hi", timeout=huge)
        with pytest.raises(ConfigError, match="grace"):
            await runtime.drain(huge)
        assert runtime.statistics().conversations == 0
        assert (await runtime.run("hi", timeout=10**300)).text == "echo hi"


async def test_an_async_event_callback_is_refused_since_nothing_of_it_would_run() -> None:
    async def on_event(event: Any) -> None:
        raise AssertionError("unreachable: never awaited")

    class Callback:
        async def __call__(self, event: Any) -> None:
            raise AssertionError("unreachable: never awaited")

    for callback in (on_event, Callback()):
        with pytest.raises(ConfigError, match="must not be async"):
            loop_agent(on_event=callback)
        async with open_runtime(loop_agent()) as runtime:
            with pytest.raises(ConfigError, match="must not be async"):
                runtime.submit("hi", on_event=callback)


async def test_who_waits_at_a_gate_that_is_armed_again_is_let_through_when_it_opens() -> None:
    gate = Gate()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gate.wait_reached)
        await wait_all_tasks_blocked()
        gate.arm()
        nursery.start_soon(gate.pass_through)
        await gate.wait_reached()
        gate.arm()
        assert gate.reached == 0
        gate.open()
        nursery.cancel_scope.deadline = trio.current_time() + 5
    assert not nursery.cancel_scope.cancelled_caught


ODD_NAMES = ["\ud800", "a\0b", "a\nb", "a/b", "/", "..", "a%2Fb", "e\u0301", "\u202e", "\U0001f600" * 512]


@pytest.mark.parametrize("name", ODD_NAMES)
async def test_any_text_names_a_conversation_or_an_agent_through_to_a_file(name: str, tmp_path: Path) -> None:
    one, two = (loop_agent(name=agent_name) for agent_name in (name, f"{name}/x"[-512:]))
    async with open_runtime(one, two, store=SqliteStore(tmp_path / "chat.db")) as runtime:
        places = [
            runtime.conversation(place, agent) for agent in (one, two) for place in (None, name, f"x/{name}"[:512])
        ]
        keys = [
            runtime._doors.acceptance.entry(agent).key(place.id)
            for place, agent in zip(places, [one] * 3 + [two] * 3, strict=True)
        ]
        assert len(set(keys)) == 6
        for number, (place, key) in enumerate(zip(places, keys, strict=True)):
            assert (await place.run("hi")).conversation_id == place.id
            await runtime._engine.store.commit(key, Change(memory=Memory(f"number {number}")))
        assert [(await place.memory()).summary for place in places] == [f"number {number}" for number in range(6)]
        await places[1].forget()
        assert [(await place.memory()).summary for place in places[:3]] == ["number 0", "", "number 2"]
