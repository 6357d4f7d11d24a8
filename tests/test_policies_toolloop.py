"""Every policy in whole runs of the native tool loop: streaming, parallel tools, runs at a time, and an abort in the
middle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from goliath_actors import Compaction, Extension, RunAborted, RunResult, ToolLoop, open_runtime, tool
from goliath_actors.abc import ModelRequest, ModelText
from goliath_actors.errors import GoliathExtensionError
from goliath_actors.events import Answer, Retraction, Steered, TextDelta, ToolFinished, ToolStarted
from goliath_actors.hooks import HookContext
from goliath_actors.policies import (
    Audit,
    AuditRecord,
    Block,
    Correct,
    Guardrail,
    RateLimit,
    Redact,
    Retrieval,
    TokenBudget,
    ToolPolicy,
    ask,
    deny,
)
from goliath_actors.stores import InMemoryStore
from goliath_actors.testing import Gate, ScriptedModel, check_events, tool_calls
from goliath_actors.tools import Suspend
from goliath_actors.values import Usage

from .native import check_closed, check_requests, history, native, said
from .planned import requests, run, told

BLOCKED = "I cannot answer that."
LIMITED = "Too many requests. Please try again later."
SPENT = "The token budget is used up. Please try again later."


@tool
async def look(text: str) -> str:
    """Look."""
    await trio.lowlevel.checkpoint()
    return f"saw {text}"


@tool(writes=True)
async def send(text: str) -> str:
    """Send."""
    await trio.lowlevel.checkpoint()
    return f"sent {text}"


def seen(trace: Sequence[Any], between: str = "") -> str:
    """What is before a reader's eyes at the end: the texts of messages as they came, without what was withdrawn."""
    kept, text = "", ""
    for event in trace:
        if isinstance(event, TextDelta):
            text += event.text
        elif isinstance(event, Retraction):
            text = event.text
        elif isinstance(event, ToolStarted | Answer):
            kept, text = kept + (event.text if isinstance(event, Answer) else text) + between, ""
    return kept + text


async def streamed(agent: Any, words: str = "hi", *, store: InMemoryStore | None = None) -> tuple[list[Any], RunResult]:
    """A run with all that a reader of its events gets."""
    async with open_runtime(agent, store=store) as runtime, runtime.stream(words) as streaming:
        events = check_events([event async for event in streaming.events()])
        return events, await streaming.wait()


# --- Guardrail ------------------------------------------------------------------------------------------------------


def short(ctx: HookContext[Any], text: str) -> Correct | None:
    return Correct("be shorter") if len(text) > 12 else None


def polite(ctx: HookContext[Any], text: str) -> Correct | None:
    return None if "please" in text else Correct("say please")


def clean(ctx: HookContext[Any], text: str) -> Block | None:
    return Block("a bad word", "Not in that tone.") if "damn" in text else None


@pytest.mark.parametrize("hold", [True, False])
async def test_every_text_is_checked_before_it_is_stored_and_corrected_with_all_objections(hold: bool) -> None:
    store = InMemoryStore()
    script: list[Any] = [
        tool_calls(("look", {"text": "a"}), ("look", {"text": "b"}), text="I shall look around"),
        tool_calls(("look", {"text": "a"}), ("look", {"text": "b"}), text="look, please"),
        "here is everything",
        "done, please",
    ]
    model = ScriptedModel(script, chunk=3)
    agent = native(model, tools=[look], extensions=[Guardrail(short, polite, hold=hold)])
    events, result = await streamed(agent, store=store)
    assert (result.text, result.status, result.responded) == ("done, please", "completed", None)
    feedback = "Your last reply was rejected: - be shorter\n- say please"
    asked = [request.messages[-1].text.endswith(feedback) for request in requests(agent)]
    assert asked == [False, True, False, True]
    entries = await history(store, agent)
    check_closed(entries)
    assert [text for role, text in said(entries) if role == "assistant"] == ["look, please", "done, please"]
    assert [event.status for event in told(result, ToolFinished)] == ["executed", "executed"]
    assert seen(events) == "look, please" + "done, please"
    if hold:
        assert not [event for event in events if isinstance(event, Retraction) and event.text]
    check_requests(requests(agent))


async def test_a_text_that_stays_wrong_is_blocked_and_its_calls_are_not_made() -> None:
    store = InMemoryStore()
    script = [tool_calls(("look", {"text": "a"}), text="far too long a text")] * 3
    agent = native(script, tools=[look], extensions=[Guardrail(short)])
    events, result = await streamed(agent, store=store)
    assert (result.text, result.status) == (BLOCKED, "completed")
    assert result.responded is not None
    assert (result.responded.extension, result.responded.reason) == ("guardrail", "be shorter")
    assert said(await history(store, agent)) == [("user", "hi"), ("assistant", BLOCKED)]
    assert told(result, ToolFinished) == []
    assert seen(events) == BLOCKED


async def test_a_block_is_not_argued_about_wherever_it_comes() -> None:
    store = InMemoryStore()
    script = [tool_calls(("look", {"text": "a"})), "oh damn it all", "fine"]
    agent = native(script, tools=[look], extensions=[Guardrail(short, clean)])
    async with open_runtime(agent, store=store) as runtime:
        result = await runtime.run("hi")
        assert (result.text, result.reason, len(requests(agent))) == ("Not in that tone.", None, 2)
        assert result.responded is not None
        assert result.responded.reason == "be shorter; a bad word"
        await runtime.run("and now?")
    assert "damn" not in "".join(request.text for request in requests(agent))
    check_closed(await history(store, agent))


async def test_its_budget_is_the_runs_own_and_the_loops_is_for_each_step() -> None:
    """Three corrections in three steps are more than `hook_retries` of one step."""
    script: list[Any] = []
    for name in "abc":
        script += [
            tool_calls(("look", {"text": name}), text="far too long a text"),
            tool_calls(("look", {"text": name})),
        ]
    agent = native(
        [*script, "done"], tools=[look], extensions=[Guardrail(short, corrections=3)], loop=ToolLoop(hook_retries=1)
    )
    assert (await run(agent)).text == "done"
    agent = native(
        [*script, "done"], tools=[look], extensions=[Guardrail(short, corrections=2)], loop=ToolLoop(hook_retries=1)
    )
    assert (await run(agent)).text == BLOCKED
    agent = native(
        ["far too long a text"] * 3, extensions=[Guardrail(short, corrections=3)], loop=ToolLoop(hook_retries=1)
    )
    with pytest.raises(GoliathExtensionError, match="hook_retries used up"):
        await run(agent)


async def test_what_is_handed_in_is_checked_like_an_ask() -> None:
    gate = Gate()
    store = InMemoryStore()
    agent = native(
        [gate.then(tool_calls(("look", {"text": "a"}))), "unused"], tools=[look], extensions=[Guardrail(asks=[clean])]
    )
    async with open_runtime(agent, store=store) as runtime:
        envelope = runtime.submit("go")
        await gate.wait_reached()
        runtime.conversation().steer("damn, faster")
        gate.open()
        result = await envelope.wait()
    assert (result.text, len(requests(agent))) == ("Not in that tone.", 1)
    check_closed(await history(store, agent))


async def test_an_abort_in_the_middle_of_a_check_shows_and_keeps_nothing_unchecked(autojump_clock: MockClock) -> None:
    async def slow(ctx: HookContext[Any], text: str) -> None:
        await trio.sleep_forever()

    store = InMemoryStore()
    agent = native(ScriptedModel(["secret plans", "hello"], chunk=3), extensions=[Guardrail(slow)])
    async with open_runtime(agent, store=store) as runtime:
        heard: list[Any] = []
        envelope = runtime.submit("go", timeout=5, on_event=heard.append)
        with pytest.raises(RunAborted):
            await envelope.wait()
        assert seen(heard) == ""
    assert said(await history(store, agent)) == [("user", "go")]


# --- Audit ----------------------------------------------------------------------------------------------------------


def paired(records: Sequence[AuditRecord]) -> list[tuple[str, str, str]]:
    """Every exit as (of, name, outcome); to each there was one enter before it."""
    open_records: dict[tuple[str, str, str], AuditRecord] = {}
    ends: list[tuple[str, str, str]] = []
    for record in records:
        key = (record.run_id, record.of, record.id)
        if record.edge == "enter":
            assert key not in open_records
            open_records[key] = record
        else:
            assert open_records.pop(key).at <= record.at
            ends.append((record.of, record.name, str(record.outcome)))
    assert open_records == {}
    return ends


async def test_everything_in_a_run_of_parallel_tools_has_a_beginning_and_an_end(autojump_clock: MockClock) -> None:
    records: list[AuditRecord] = []
    script = [
        tool_calls(("look", {"text": "a"}), ("send", {"text": "b"}), ("nothing", {}), ("look", {"text": 1})),
        tool_calls(("send", {"text": "c"}), ("look", {"text": "d"})),
        "done",
    ]
    policy = ToolPolicy(deny("send", when=lambda ctx, question: question.input["text"] == "c", whole_batch=True))
    agent = native(script, tools=[look, send], extensions=[Audit(records.append), policy])
    await run(agent)
    ends = paired(records)
    assert [end for end in ends if end[0] == "tool"] == [
        ("tool", "look", "executed"),
        ("tool", "send", "executed"),
        ("tool", "nothing", "failed"),
        ("tool", "look", "failed"),
        ("tool", "send", "skipped"),
        ("tool", "look", "skipped"),
    ]
    assert [end for end in ends if end[0] == "model"] == [("model", "step", "completed")] * 3
    assert ends[-1] == ("run", "agent", "completed")


async def test_an_abort_among_parallel_tools_ends_every_record(autojump_clock: MockClock) -> None:
    records: list[AuditRecord] = []

    @tool
    async def hang(text: str) -> str:
        """Hang."""
        await trio.sleep_forever()
        return ""

    agent = native(
        [tool_calls(("look", {"text": "a"}), ("hang", {"text": "b"}), ("hang", {"text": "c"}))],
        tools=[look, hang],
        extensions=[Audit(records.append)],
    )
    async with open_runtime(agent) as runtime:
        with pytest.raises(RunAborted):
            await runtime.run("go", timeout=5)
    assert paired(records) == [
        ("model", "step", "completed"),
        ("tool", "look", "executed"),
        ("tool", "hang", "aborted"),
        ("tool", "hang", "aborted"),
        ("run", "agent", "aborted"),
    ]


async def test_a_run_that_waits_and_the_one_that_goes_on_are_both_told_to_their_end() -> None:
    records: list[AuditRecord] = []
    script = [tool_calls(("send", {"text": "a"}), ("look", {"text": "b"})), "done"]
    agent = native(script, tools=[look, send], extensions=[Audit(records.append)], confirm=lambda request: Suspend())
    async with open_runtime(agent) as runtime:
        first = await runtime.run("go")
        await runtime.conversation().resume({first.waiting[0].call_id: True})
    ends = paired(records)
    assert [end for end in ends if end[0] == "run"] == [("run", "agent", "completed")] * 2
    assert ("tool", "send", "executed") in ends


# --- RateLimit ------------------------------------------------------------------------------------------------------


async def test_model_calls_of_every_step_wait_and_count_across_runs_that_go_on_at_once(
    autojump_clock: MockClock,
) -> None:
    starts: list[float] = []

    def reply(request: ModelRequest) -> Any:
        starts.append(trio.current_time())
        return (
            "done"
            if request.messages[-1].role == "tool"
            else tool_calls(("look", {"text": "a"}), ("look", {"text": "b"}))
        )

    agent = native(ScriptedModel([reply] * 12), tools=[look], extensions=[RateLimit(2, 10, of="model", scope="all")])
    async with open_runtime(agent) as runtime, trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(lambda number=number: runtime.run("hi", conversation_id=str(number)))  # type: ignore[misc]
    assert starts == [0, 0, 10, 10, 20, 20]


async def test_a_run_that_is_aborted_while_it_waits_for_its_turn_takes_no_place(autojump_clock: MockClock) -> None:
    agent = native(["one", "two"], extensions=[RateLimit(1, 10, of="model", scope="all")])
    async with open_runtime(agent) as runtime:
        await runtime.run("hi", conversation_id="a")
        envelope = runtime.submit("hi", conversation_id="b", timeout=5)
        with pytest.raises(RunAborted):
            await envelope.wait()
        await runtime.run("hi", conversation_id="c")
        assert trio.current_time() == 10


async def test_a_refused_step_stops_the_run_and_leaves_a_history_that_goes_on(autojump_clock: MockClock) -> None:
    store = InMemoryStore()
    script = [tool_calls(("look", {"text": "a"}), text="Let me see."), "done"]
    agent = native(script, tools=[look], extensions=[RateLimit(1, 10, of="model", over="refuse")])
    events, result = await streamed(agent, store=store)
    assert (result.status, result.text) == ("stopped", LIMITED)
    assert result.stopped is not None
    assert result.stopped.reason == "rate limit: possible again in 10 s"
    entries = await history(store, agent)
    check_closed(entries)
    assert LIMITED not in [text for _, text in said(entries)]
    assert seen(events) == "Let me see."
    await trio.sleep(10)
    assert (await run(agent, "go on", store=store)).text == "done"
    check_requests(requests(agent))


async def test_a_refusal_is_not_argued_about_by_a_guardrail(autojump_clock: MockClock) -> None:
    for hook_retries in (0, 1, 2):
        agent = native(
            ["unused"],
            extensions=[RateLimit(1, 10, of="model", over="refuse", scope="all"), Guardrail(short)],
            loop=ToolLoop(hook_retries=hook_retries),
        )
        async with open_runtime(agent) as runtime:
            await runtime.run("hi", conversation_id="other")
            result = await runtime.run("hi", conversation_id="c")
        assert (result.status, result.text) == ("stopped", LIMITED)


async def test_calls_of_one_message_over_the_limit_are_denied_in_call_order() -> None:
    store = InMemoryStore()
    script = [tool_calls(*(("look", {"text": name}) for name in "abcd")), "done"]
    agent = native(script, tools=[look], extensions=[RateLimit(2, 60, of="tools", over="refuse")])
    result = await run(agent, store=store)
    assert [event.status for event in told(result, ToolFinished)] == ["executed", "executed", "skipped", "skipped"]
    check_closed(await history(store, agent))


async def test_asks_and_texts_that_are_handed_in_count_alike_and_what_is_resumed_does_not(
    autojump_clock: MockClock,
) -> None:
    gate = Gate()
    script = [gate.then(tool_calls(("send", {"text": "a"}))), "done", "again"]
    agent = native(script, tools=[send], extensions=[RateLimit(2, 100)], confirm=lambda request: Suspend())
    async with open_runtime(agent) as runtime:
        envelope = runtime.submit("go")
        await gate.wait_reached()
        gate.open()
        waiting = (await envelope.wait()).waiting
        assert (await runtime.conversation().resume({waiting[0].call_id: True})).text == "done"
        assert trio.current_time() == 0
        await runtime.run("second")
        assert trio.current_time() == 0


# --- Redact ---------------------------------------------------------------------------------------------------------

SECRET = "4711-0815"


@settings(deadline=None, max_examples=60)
@given(
    texts=st.lists(
        st.lists(st.sampled_from([SECRET, "47", "11-", "0815", "x", " ", "4711-0816"]), min_size=1, max_size=6).map(
            "".join
        ),
        min_size=2,
        max_size=2,
    ),
    chunk=st.integers(1, 9),
    result=st.sampled_from([f"it is {SECRET}", "nothing", SECRET * 2]),
)
def test_no_secret_is_shown_stored_or_sent_wherever_the_pieces_are_cut(
    texts: list[str], chunk: int, result: str
) -> None:
    @tool
    async def fetch() -> str:
        """Fetch."""
        return result

    async def main() -> None:
        store = InMemoryStore()
        beside, answer = (text if text.strip() else "x" for text in texts)
        script: list[Any] = [tool_calls(("fetch", {}), ("fetch", {}), text=beside), answer, "next"]
        agent = native(ScriptedModel(script, chunk=chunk), tools=[fetch], extensions=[Redact(SECRET)])
        events, ended = await streamed(agent, store=store)
        assert SECRET not in seen(events, "|")
        assert ended.text == answer.replace(SECRET, "[redacted]")
        entries = await history(store, agent)
        check_closed(entries)
        assert [text for role, text in said(entries) if role == "assistant"] == [
            text.replace(SECRET, "[redacted]") for text in (beside, answer)
        ]
        await run(agent, "more", store=store)
        assert all(SECRET not in request.text for request in requests(agent))
        check_requests(requests(agent))

    trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("after", range(1, 12))
async def test_an_abort_in_the_middle_of_a_secret_shows_and_keeps_none_of_it(after: int) -> None:
    class Counting(Extension[Any]):
        name = "counting"

        async def transform_stream(self, ctx: Any, events: Any, control: Any) -> Any:
            count = 0
            async for event in events:
                count += isinstance(event, ModelText)
                if count == after:
                    envelope.abort("here")
                    await trio.lowlevel.checkpoint()
                yield event

    store = InMemoryStore()
    heard: list[Any] = []
    agent = native(ScriptedModel([f"ab {SECRET} cd", "next"], chunk=1), extensions=[Counting(), Redact(SECRET)])
    async with open_runtime(agent, store=store) as runtime:
        envelope = runtime.submit("go", on_event=heard.append)
        with pytest.raises(RunAborted):
            await envelope.wait()
    shown = seen(heard)
    assert shown == "ab "[: after - 1]
    kept = [text for role, text in said(await history(store, agent)) if role == "assistant"]
    assert kept == ([shown] if shown.strip() else [])


async def test_an_ask_that_is_redacted_is_stored_and_sent_without_it_and_a_users_own_text_is_not_touched() -> None:
    for asks, wanted in ((True, "it is [redacted]"), (False, f"it is {SECRET}")):
        store = InMemoryStore()
        agent = native(["thanks"], extensions=[Redact(SECRET, asks=asks)])
        await run(agent, f"it is {SECRET}", store=store)
        assert said(await history(store, agent))[0] == ("user", wanted)
        assert requests(agent)[0].messages[-1].text == wanted


# --- ToolPolicy -----------------------------------------------------------------------------------------------------


async def test_every_call_of_a_message_is_judged_and_what_may_run_runs() -> None:
    confirmed: list[str] = []

    def confirm(request: Any) -> bool:
        confirmed.append(request.input["text"])
        return bool(request.input["text"] != "no")

    def judged(ctx: HookContext[Any], question: Any) -> bool:
        return bool(question.input["text"] == "never")

    store = InMemoryStore()
    policy = ToolPolicy(deny("look", when=judged, reason="not that one"), ask("look", reason="sure?"), deny("send"))
    script = [
        tool_calls(
            ("look", {"text": "never"}), ("look", {"text": "yes"}), ("look", {"text": "no"}), ("send", {"text": "x"})
        ),
        "done",
    ]
    agent = native(script, tools=[look, send], extensions=[policy], confirm=confirm)
    result = await run(agent, store=store)
    assert confirmed == ["yes", "no"]
    assert [event.status for event in told(result, ToolFinished)] == ["skipped", "executed", "skipped", "failed"]
    # A tool that can only be denied is not offered, so a call of it is a made-up name.
    assert [spec.name for spec in requests(agent)[0].tools] == ["look"]
    entries = await history(store, agent)
    check_closed(entries)
    assert "not that one" in entries[2].message.text


async def test_a_question_that_a_policy_asks_may_wait_and_is_not_asked_again_by_whoever_goes_on() -> None:
    asked: list[str] = []

    def sure(ctx: HookContext[Any], question: Any) -> bool:
        asked.append(question.call_id)
        return True

    agent = native(
        [tool_calls(("look", {"text": "a"})), "done"],
        tools=[look],
        extensions=[ToolPolicy(ask("look", when=sure))],
        confirm=lambda request: Suspend(),
    )
    async with open_runtime(agent) as runtime:
        waiting = (await runtime.run("go")).waiting
        assert (await runtime.conversation().resume({waiting[0].call_id: True})).text == "done"
    assert len(asked) == 1


# --- TokenBudget ----------------------------------------------------------------------------------------------------


async def test_runs_at_the_same_time_never_spend_more_than_there_is(autojump_clock: MockClock) -> None:
    spent = [0]

    async def reply(request: ModelRequest) -> Any:
        spent[0] += 40
        await trio.sleep(1)
        return (
            "done"
            if request.messages[-1].role == "tool"
            else tool_calls(("look", {"text": "a"}), ("look", {"text": "b"}))
        )

    # A call needs more than it spends: its prompt is counted, and 30 tokens of output are foreseen.
    budget = TokenBudget(600, scope="all", seconds=3600, output=30)
    model = ScriptedModel([reply] * 60, usage=Usage(30, 10))
    agent = native(model, tools=[look], extensions=[budget])
    results: list[RunResult] = []
    async with open_runtime(agent) as runtime:
        async with trio.open_nursery() as nursery:
            for number in range(12):

                async def one(number: int) -> None:
                    results.append(await runtime.run("hi", conversation_id=str(number)))

                nursery.start_soon(one, number)
        assert 200 <= spent[0] <= 600
        stopped = [result for result in results if result.status == "stopped"]
        assert {result.text for result in stopped} == {SPENT}
        assert len(stopped) + sum(result.text == "done" for result in results) == 12
        # An hour later there are as many again.
        await trio.sleep(3601)
        assert (await runtime.run("hi", conversation_id="0")).text == "done"
    check_requests(model.requests)


async def test_what_an_aborted_step_used_is_booked_and_what_was_set_aside_is_given_back(
    autojump_clock: MockClock,
) -> None:
    @tool
    async def hang() -> str:
        """Hang."""
        await trio.sleep_forever()
        return ""

    budget = TokenBudget(1000, scope="all", seconds=3600, output=10)
    model = ScriptedModel([tool_calls(("hang", {}), ("look", {"text": "a"}))] * 2 + ["done"], usage=Usage(90, 10))
    agent = native(model, tools=[hang, look], extensions=[budget])
    async with open_runtime(agent) as runtime:
        for _ in range(2):
            with pytest.raises(RunAborted):
                await runtime.run("hi", timeout=5)
        assert budget._accounts is not None
        account = budget._accounts.get(None)
        assert (account.spent, account.reserved, account.runs) == (200, 0, 0)
        assert (await runtime.run("hi")).text == "done"
        assert (account.spent, account.reserved, account.runs) == (300, 0, 0)


async def test_a_summary_for_which_nothing_is_left_is_left_out_and_the_run_goes_on(autojump_clock: MockClock) -> None:
    store = InMemoryStore()
    script: list[Any] = ["ok " * 60] * 6

    class SummariesOnly(RateLimit):
        async def around_model(self, ctx: Any, question: Any, call_next: Any) -> Any:
            if question.request.role != "compact":
                return await call_next()
            return await super().around_model(ctx, question, call_next)

    only = SummariesOnly(1, 10**6, of="model", over="refuse", scope="all")
    agent = native(
        [*script, "They spoke."],
        loop=ToolLoop(window=2000, compaction=Compaction(at=0.1, keep_turns=1)),
        extensions=[only],
    )
    async with open_runtime(agent, store=store) as runtime:
        for number in range(4):
            result = await runtime.run(f"question {number} " + "long " * 60)
            assert result.status == "completed"
    assert [request.role for request in requests(agent)].count("compact") == 1
    check_requests([request for request in requests(agent) if request.role == "step"])


# --- Retrieval ------------------------------------------------------------------------------------------------------


async def test_passages_are_in_every_step_of_their_run_and_are_not_stored() -> None:
    fetched: list[str] = []

    def fetch(ctx: HookContext[Any], words: str) -> list[str]:
        fetched.append(words)
        return [f"passage about {words}"]

    store = InMemoryStore()
    gate = Gate()
    script = [
        tool_calls(("look", {"text": "a"}), ("look", {"text": "b"})),
        gate.then(tool_calls(("look", {"text": "c"}))),
        "done",
        "next",
    ]
    agent = native(script, tools=[look], extensions=[Retrieval(fetch)])
    async with open_runtime(agent, store=store) as runtime:
        envelope = runtime.submit("the moon")
        await gate.wait_reached()
        runtime.conversation().steer("and mars")
        gate.open()
        result = await envelope.wait()
        assert [event.text for event in told(result, Steered)] == ["and mars"]
        await runtime.run("the sun")
    assert fetched == ["the moon", "and mars", "the sun"]
    check_requests(requests(agent))
    first, second, third, fourth = requests(agent)
    for request in (first, second):
        assert request.messages[-1].role == "user"
        assert request.messages[-1].text.endswith("[1] passage about the moon")
    assert third.messages[-1].text.startswith("and mars")
    assert "passage about the moon" in third.messages[-1].text
    assert third.messages[-1].text.endswith("[1] passage about and mars")
    assert "passage about the moon" not in fourth.text
    assert fourth.messages[-1].text.startswith("the sun")
    assert all("passage" not in text for _, text in said(await history(store, agent)))


async def test_an_abort_cuts_the_fetch_and_stores_nothing(autojump_clock: MockClock) -> None:
    async def fetch(ctx: HookContext[Any], words: str) -> list[str]:
        await trio.sleep_forever()
        return []

    store = InMemoryStore()
    agent = native(["unused"], extensions=[Retrieval(fetch)])
    async with open_runtime(agent, store=store) as runtime:
        with pytest.raises(RunAborted):
            await runtime.run("the moon", timeout=5)
    assert (await history(store, agent), requests(agent)) == ([], [])


# --- all of them ----------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(at=st.integers(0, 150), data=st.data())
def test_all_policies_together_keep_a_history_closed_and_their_books_balanced_wherever_a_run_is_cut(
    at: int, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(5)))

    async def main() -> None:
        records: list[AuditRecord] = []
        budget = TokenBudget(10**6, scope="all", seconds=3600)
        limit = RateLimit(50, 10, of="model", scope="all")
        middle: list[Extension[Any]] = [
            Redact(SECRET),
            limit,
            budget,
            ToolPolicy(deny("send")),
            Retrieval(lambda ctx, words: ["a passage"]),
        ]
        extensions = [Audit(records.append), *(middle[n] for n in order), Guardrail(clean)]
        script: list[Any] = [
            tool_calls(
                ("look", {"text": SECRET}), ("send", {"text": "b"}), ("look", {"text": "c"}), text="see " + SECRET
            ),
            f"it is {SECRET}",
            "next",
        ]
        model = ScriptedModel(script, chunk=4, usage=Usage(90, 10))
        store = InMemoryStore()
        agent = native(model, tools=[look, send], extensions=extensions)
        async with open_runtime(agent, store=store) as runtime:
            heard: list[Any] = []
            envelope = runtime.submit("go", on_event=heard.append)
            for _ in range(at):
                await trio.lowlevel.checkpoint()
            envelope.abort("cut")
            await envelope.wait_ended()
            assert envelope.outcome is not None
            check_events(envelope.outcome.trace)
            assert SECRET not in "".join(event.text for event in heard if isinstance(event, TextDelta))
            entries = await history(store, agent)
            check_closed(entries)
            paired(records)
            assert budget._accounts is not None
            account = budget._accounts.get(None)
            assert (account.reserved, account.runs) == (0, 0)
        check_requests(model.requests)
        assert all(SECRET not in message.text for request in model.requests for message in request.messages)

    trio.run(main, clock=MockClock(autojump_threshold=0))
