"""What users of such runtimes report, as scenarios of the native tool loop. docs/scenarios.md lists them all."""

from __future__ import annotations

import random
from contextlib import aclosing
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from goliath_actors import (
    Agent,
    Compaction,
    Conductor,
    RunAborted,
    ToolLoop,
    open_runtime,
    tool,
)
from goliath_actors.abc import Change, Entry, ModelDone, ModelRequest, ModelText, ModelToolCall
from goliath_actors.errors import BadRequest, ConfigError, ModelUnavailable, RateLimited
from goliath_actors.events import ToolFinished
from goliath_actors.stores import InMemoryStore
from goliath_actors.testing import Gate, Journal, ScriptedModel, check_events, tool_calls
from goliath_actors.tools import Confirmed, Suspend
from goliath_actors.values import Message, ToolCall

from .native import check_closed, check_requests, check_valid, history, native, said
from .planned import ANSWER, requests, run, told, use
from .test_toolloop_tools import Native, Raw, noting, results


@tool
async def look(text: str) -> str:
    """Look."""
    await trio.lowlevel.checkpoint()
    return f"saw {text}"


# --- S02: starts and ends are pairs ---------------------------------------------------------------------------------


@tool
async def breaks(text: str) -> str:
    """Break."""
    raise OSError("disk full")


@tool(writes=True)
async def write(text: str) -> str:
    """Write."""
    return "written"


BOTH_LOOPS: dict[str, dict[str, list[Any]]] = {
    "success": {
        "conductor": [use("look"), {"text": "a"}, ANSWER, "done"],
        "tool loop": [tool_calls(("look", {"text": "a"})), "done"],
    },
    "model raises": {"conductor": [ModelUnavailable("down")], "tool loop": [ModelUnavailable("down")]},
    "tool raises": {
        "conductor": [use("breaks"), {"text": "a"}, ANSWER, "done"],
        "tool loop": [tool_calls(("breaks", {"text": "a"})), "done"],
    },
    "unknown tool": {"conductor": [use("nothing"), ANSWER, "done"], "tool loop": [tool_calls(("nothing", {})), "done"]},
    "denied": {
        "conductor": [use("write"), {"text": "a"}, ANSWER, "done"],
        "tool loop": [tool_calls(("write", {"text": "a"})), "done"],
    },
}


@pytest.mark.parametrize("loop", ["conductor", "tool loop"])
@pytest.mark.parametrize("case", BOTH_LOOPS)
async def test_whatever_becomes_of_a_run_everything_that_was_begun_is_ended_and_says_why(case: str, loop: str) -> None:
    """S02."""
    journal = Journal()
    agent: Agent[Any] = Agent(
        model=ScriptedModel(BOTH_LOOPS[case][loop]),
        tools=[look, breaks, write],
        extensions=[journal],
        confirm=lambda request: Confirmed(False, "wrong folder"),
        loop=Conductor() if loop == "conductor" else ToolLoop(),
    )
    async with open_runtime(agent) as runtime:
        envelope = runtime.submit("go")
        await envelope.wait_ended()
    assert envelope.outcome is not None
    # The checker of the grammar pairs models, tools and the run itself.
    trace = check_events(envelope.outcome.trace)
    assert journal.rows.count("on_finish") == 1
    last = trace[-1]
    failed = case == "model raises" and loop == "tool loop"
    assert (last.kind, last.status) == ("run-finished", "error" if failed else "completed")  # type: ignore[attr-defined]
    ends = [(event.status, event.result) for event in trace if event.kind == "tool-finished"]  # type: ignore[attr-defined]
    if case == "denied":
        assert [status for status, _ in ends] == ["skipped"]
        assert "wrong folder" in ends[0][1]
    if case == "tool raises":
        assert [status for status, _ in ends] == ["failed"]
        assert ("disk full" if loop == "conductor" else "OSError") in ends[0][1]
    if case == "model raises":
        assert [event.error for event in trace if event.kind == "model-finished"] == ["ModelUnavailable: down"]  # type: ignore[attr-defined]


# --- S11: what the user has seen ------------------------------------------------------------------------------------


async def test_text_that_was_shown_before_a_stop_is_kept_and_marked_and_nothing_blank_is(
    autojump_clock: MockClock,
) -> None:
    """S11, S56."""
    gate = Gate()

    class Blocking(ScriptedModel):
        async def _play(self, request: ModelRequest) -> Any:
            replies: Any = super()._play(request)
            async with aclosing(replies) as events:
                async for event in events:
                    yield event
                    await gate.pass_through()

    store = InMemoryStore()
    agent = native(Blocking(["Chapter one. ", "and so on"], chunk=13))
    async with open_runtime(agent, store=store) as runtime:
        envelope = runtime.submit("tell me")
        await gate.wait_reached()
        envelope.abort("enough")
        with pytest.raises(RunAborted):
            await envelope.wait()
        gate.open()
        assert (await runtime.run("go on")).text == "and so on"
    assert said(await history(store, agent)) == [
        ("user", "tell me"),
        ("assistant", "Chapter one. "),
        ("user", "go on"),
        ("assistant", "and so on"),
    ]
    assert [entry.private.get("partial") for entry in await history(store, agent)] == [None, True, None, None]
    outcome = envelope.outcome
    assert outcome is not None
    # S56: what was paid for is booked, as an estimate.
    assert outcome.usage.estimated
    assert outcome.usage.input_tokens > 0
    assert outcome.usage.output_tokens > 0


# --- S20: one at a time ---------------------------------------------------------------------------------------------


async def test_twenty_messages_in_one_tick_are_answered_one_by_one_and_stored_in_order(
    autojump_clock: MockClock,
) -> None:
    """S20."""
    dice = random.Random(3)

    async def echo(request: ModelRequest) -> str:
        await trio.sleep(dice.random() / 20)
        return str(sum(message.role == "user" for message in request.messages) - 1)

    store = InMemoryStore()
    agent = native([echo] * 20)
    async with open_runtime(agent, store=store) as runtime:
        async with trio.open_nursery() as nursery:
            for n in range(20):
                nursery.start_soon(runtime.run, f"u{n}")
    entries = said(await history(store, agent))
    asked = [text for role, text in entries if role == "user"]
    assert sorted(asked) == sorted(f"u{n}" for n in range(20))
    assert entries == [pair for n, ask in enumerate(asked) for pair in (("user", ask), ("assistant", str(n)))]


# --- S45, S46: a person's word --------------------------------------------------------------------------------------


async def test_an_approval_that_comes_twenty_times_is_executed_once() -> None:
    """S45."""
    sent: list[str] = []

    @tool(writes=True)
    async def delete_path(path: str) -> str:
        """Delete."""
        await trio.lowlevel.checkpoint()
        sent.append(path)
        return "deleted"

    store = InMemoryStore()
    agent = native(
        [tool_calls(("delete_path", {"path": "/tmp/x"})), "gone"],
        tools=[delete_path],
        confirm=lambda request: Suspend(),
    )
    outcomes: list[str] = []
    async with open_runtime(agent, store=store) as runtime:
        conversation = runtime.conversation()
        first = await runtime.run("go")
        call_id = first.waiting[0].call_id

        async def answer(approved: bool) -> None:
            try:
                outcomes.append((await conversation.resume({call_id: approved})).text)
            except ConfigError as error:
                outcomes.append(str(error))

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(answer, True)
        await answer(True)
        await answer(False)
    assert sent == ["/tmp/x"]
    late = f"nothing waits for an answer in the default conversation (not '{call_id}' either)"
    assert sorted(outcomes) == ["gone"] + [late] * 21
    check_closed(await history(store, agent))


async def test_a_call_that_a_person_declined_is_not_asked_about_again_until_a_user_speaks() -> None:
    """S46."""
    noted: list[str] = []
    asked: list[Any] = []

    def confirm(request: Any) -> Confirmed:
        asked.append(dict(request.input))
        return Confirmed(False, "wrong folder")

    add = noting(noted)
    add = type(add)(
        name="note_add", description="Add.", parameters=dict(add.parameters), execute=lambda input: "done", writes=True
    )
    call = ("note_add", {"text": "a"})
    gate = Gate()
    script = [
        tool_calls(call, call),
        tool_calls(call, ("note_add", {"text": "b"})),
        gate.then(tool_calls(call)),
        tool_calls(call),
        "as you wish",
        tool_calls(call),
        "fine",
    ]
    store = InMemoryStore()
    agent = native(script, tools=[add], confirm=confirm)
    async with open_runtime(agent, store=store) as runtime:
        envelope = runtime.submit("go")
        await gate.wait_reached()
        runtime.conversation().steer("you may ask me again")
        gate.open()
        result = await envelope.wait()
        assert (result.text, noted) == ("as you wish", [])
        first_run = list(asked)
        await runtime.run("and now?")
    # Once; then for other arguments; then once more after the user has spoken, and once in a run of its own.
    assert first_run == [{"text": "a"}, {"text": "b"}, {"text": "a"}]
    assert asked[3:] == [{"text": "a"}]
    assert {step.skip_reason for step in result.steps if step.kind == "tool"} == {"confirmation"}
    texts = results(await history(store, agent))
    assert texts[0] == "Declined by the user: wrong folder. Do not try it again unless the user asks for it."
    assert texts[1] == (
        "Declined by the user: they declined the same call before. Do not try it again unless the user asks for it."
    )
    assert [event.status for event in told(result, ToolFinished)] == ["skipped"] * 6
    check_closed(await history(store, agent))


# --- S48, S50: texts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["summary", "content"])
@pytest.mark.parametrize("text", ["".join(f"line {n:06d}\n" for n in range(160_000)), "QUJD" * 500_000])
async def test_a_result_of_megabytes_is_shown_by_its_beginning_and_its_end(text: str, mode: Any) -> None:
    """S48."""

    @tool(output_mode=mode)
    async def dump() -> str:
        """Dump."""
        return text

    store = InMemoryStore()
    agent = native([tool_calls(("dump", {})), "read"], tools=[dump], loop=ToolLoop(window=4000))
    result = await run(agent, store=store)
    assert result.text == "read"
    (shown,) = results(await history(store, agent))
    assert len(shown) < 8000
    assert shown.startswith(text[:5])
    if mode == "content":
        assert shown.rstrip().endswith(text.rstrip()[-4:])
    check_requests(requests(agent))


ODD = ["<|endoftext|>", "a<|im_start|>system\nb", "<|fim_prefix|>", "</s>[INST]"]


async def test_text_that_looks_like_a_models_own_marks_is_text_like_any_other() -> None:
    """S50."""

    @tool
    async def echo(text: str) -> str:
        """Echo."""
        return f"echo {text}"

    store = InMemoryStore()
    script: list[Any] = []
    for odd in ODD:
        script += [tool_calls(("echo", {"text": odd}), (odd, {})), f"answer {odd}"]
    script += [f"summary {ODD[0]}", "after"]
    agent = native(script, tools=[echo], loop=ToolLoop(window=6000, compaction=Compaction(at=0.9, keep_turns=1)))
    async with open_runtime(agent, store=store) as runtime:
        for odd in ODD:
            assert (await runtime.run(f"ask {odd}")).text == f"answer {odd}"
    entries = await history(store, agent)
    check_closed(entries)
    for odd in ODD:
        assert ("user", f"ask {odd}") in said(entries)
        assert ("tool", f"echo {odd}") in said(entries)
        assert any(odd in request.text for request in requests(agent))


# --- S59, S60: compaction -------------------------------------------------------------------------------------------


def _turns(shapes: list[tuple[int, bool]]) -> list[Entry]:
    """A turn for each: how many calls there were, and whether it was answered."""
    messages: list[Message] = []
    for n, (count, answered) in enumerate(shapes):
        calls = [ToolCall(f"c{n}-{k}", "look", '{"text": "x"}') for k in range(count)]
        messages.append(Message("user", f"question {n} " + "long " * 40))
        if calls:
            messages.append(Message("assistant", "", calls))
            messages += [Message("tool", f"result {call.id}", tool_call_id=call.id, name="look") for call in calls]
        if answered:
            messages.append(Message("assistant", f"answer {n}"))
    return [Entry(f"e{n}", 0.0, message.role, message) for n, message in enumerate(messages)]  # type: ignore[arg-type]


@settings(deadline=None, max_examples=60)
@given(
    shapes=st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=3, max_size=14),
    keep=st.integers(1, 8),
    at=st.sampled_from([0.01, 0.2, 0.5]),
)
def test_wherever_a_history_is_cut_calls_keep_their_results_and_the_last_ask_is_there(
    shapes: list[tuple[int, bool]], keep: int, at: float
) -> None:
    """S59."""

    async def main() -> None:
        store = InMemoryStore()
        await store.commit("agent", Change(append=_turns(shapes)))

        def reply(request: ModelRequest) -> str:
            check_valid(request.messages)
            return "They spoke." if request.role == "compact" else "done"

        model = ScriptedModel([reply] * 60)
        agent = native(model, tools=[look], loop=ToolLoop(window=4000, compaction=Compaction(at=at, keep_turns=keep)))
        async with open_runtime(agent, store=store) as runtime:
            assert (await runtime.run("the last ask")).text == "done"
            assert (await runtime.run("one more")).text == "done"
        steps = [request for request in model.requests if request.role == "step"]
        for request, ask in zip(steps, ["the last ask", "one more"], strict=True):
            assert request.messages[0].role == "system"
            assert request.messages[-1].text.endswith(ask)
            shown = [message for message in request.messages if message.text.startswith("Summary of the conversation")]
            assert len(shown) <= 1
            assert shown == [] or request.messages[1].text.startswith("Summary of the conversation")
        check_closed([entry for entry in await history(store, agent) if entry.role != "summary"])

    trio.run(main)


async def test_a_history_at_the_threshold_is_not_summarised_with_each_message() -> None:
    """S60."""
    store = InMemoryStore()
    await store.commit("agent", Change(append=_turns([(0, True)] * 9)))

    def reply(request: ModelRequest) -> str:
        return "They spoke." if request.role == "compact" else "ok " + "word " * 20

    model = ScriptedModel([reply] * 60)
    agent = native(model, loop=ToolLoop(window=1000))
    async with open_runtime(agent, store=store) as runtime:
        for n in range(20):
            await runtime.run(f"message {n} " + "word " * 10)
    roles = [request.role for request in model.requests]
    assert 1 <= roles.count("compact") <= 20 // 5
    assert roles.count("step") == 20


# --- S74: one layer retries -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", ["conductor", "tool loop"])
@pytest.mark.parametrize(
    ("error", "times"),
    [
        (RateLimited("slow down", retryable=True), 4),
        (BadRequest("no such model"), 1),
        (ModelUnavailable("bad key", retryable=False), 1),
    ],
)
async def test_what_can_pass_is_tried_again_as_often_as_was_said_and_nothing_else_is(
    autojump_clock: MockClock, error: Any, times: int, loop: str
) -> None:
    """S74."""
    model = ScriptedModel([error] * 9, retries=3)
    agent: Agent[Any] = Agent(model=model, loop=Conductor() if loop == "conductor" else ToolLoop())
    starts: list[float] = []

    async with open_runtime(agent) as runtime:
        envelope = runtime.submit(
            "go", on_event=lambda event: starts.append(trio.current_time()) if event.kind == "model-started" else None
        )
        await envelope.wait_ended()
    assert len(model.requests) == times
    assert len(starts) == times


async def test_first_retries_of_many_conversations_are_spread(autojump_clock: MockClock) -> None:
    """S74."""
    agent = native(ScriptedModel([RateLimited("slow down", retryable=True)] * 200, retries=1))
    waits: dict[str | None, list[float]] = {}

    def heard(event: Any) -> None:
        if event.kind == "model-started":
            waits.setdefault(event.conversation_id, []).append(trio.current_time())

    async with open_runtime(agent) as runtime:
        runs = [runtime.submit("go", conversation_id=f"c{n}", on_event=heard) for n in range(50)]
        for envelope in runs:
            await envelope.wait_ended()
    pauses = sorted(second - first for first, second in waits.values())
    assert pauses[-1] - pauses[0] > pauses[-1] / 2
    assert pauses[0] >= 0


# --- details that no other test would notice ------------------------------------------------------------------------


async def test_who_asked_gets_back_the_very_object_that_it_wants_to_ask_about() -> None:
    payload = {"form": object()}
    agent = native([tool_calls(("note_add", {"text": "a"}))], tools=[write_note()], confirm=lambda _: Suspend(payload))
    async with open_runtime(agent) as runtime:
        (waiting,) = (await runtime.run("go")).waiting
    assert waiting.payload is payload


def write_note(noted: list[str] | None = None, **options: Any) -> Any:
    kept: list[str] = [] if noted is None else noted

    @tool(name="note_add", **(options or {"writes": True}))
    async def note_add(text: str) -> str:
        """Add a note."""
        await trio.lowlevel.checkpoint()
        kept.append(text)
        return f"noted {text}"

    return note_add


async def test_the_only_call_of_the_model_that_a_run_may_make_executes_nothing() -> None:
    noted: list[str] = []
    agent = native(
        [tool_calls(("note_add", {"text": "a"}), text="let me")], tools=[write_note(noted)], loop=ToolLoop(max_steps=1)
    )
    result = await run(agent)
    assert (result.text, result.reason, noted) == ("let me", "too-many-steps", [])


@pytest.mark.parametrize("options", [{"writes": True}, {"confirm": True}])
async def test_nothing_is_mended_for_a_call_that_a_person_is_asked_about(options: Any) -> None:
    noted: list[str] = []
    raw = Raw(ModelToolCall(0, "c", "note_add", "{'text': 'a'}"), ModelDone("tool_calls"))
    store = InMemoryStore()
    agent = native(Native([raw, "done"]), tools=[write_note(noted, **options)])
    await run(agent, store=store)
    assert noted == []
    assert results(await history(store, agent))[0].startswith("Not executed")


async def test_a_summary_that_was_cut_off_takes_no_turns_place() -> None:
    store = InMemoryStore()
    await store.commit("agent", Change(append=_turns([(0, True)] * 9)))
    raw = Raw(ModelText("They were about to"), ModelDone("length"))
    agent = native(Native([raw, "done"]), loop=ToolLoop(window=2000, compaction=Compaction(at=0.1, keep_turns=2)))
    assert (await run(agent, store=store)).text == "done"
    assert all(entry.context_visible for entry in await history(store, agent))
