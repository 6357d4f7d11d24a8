"""Recall, remembering, and what is kept of writes whose run did not end well (C1, C10, S1, S6, S7)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from goliath_actors import Agent, Conductor, Extension, Memory, RunAborted, Skip, Stop, ToolLoop, open_runtime, tool
from goliath_actors._kept import CONFLICTS, INTERRUPTED
from goliath_actors._staging import OPEN_RUN
from goliath_actors.abc import Change, ModelDone, ModelText, Record
from goliath_actors.errors import GoliathExtensionError, ModelError
from goliath_actors.events import Answer, MemoryError, Remember
from goliath_actors.stores import InMemoryStore, SqliteStore
from goliath_actors.testing import FailingStore, Gate, ScriptedModel, check_events
from goliath_actors.values import Exchange, FallbackRequest, Page, Step

from .planned import ANSWER, GIVE_UP, end, kinds, memory_of, planned, requests, roles, run, stored, told, use
from .test_request import Played, PlayedModel, agent_of


class Durable(InMemoryStore):
    """Says that it is durable, and keeps every change."""

    durable = True

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[Change] = []

    async def commit(self, key: str, change: Change, expect: int | None = None, token: int | None = None) -> Record:
        record = await super().commit(key, change, expect, token)
        self.changes.append(change)
        return record


class Slow(InMemoryStore):
    """Takes its time for every commit."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    async def commit(self, key: str, change: Change, expect: int | None = None, token: int | None = None) -> Record:
        await trio.sleep(self.seconds)
        return await super().commit(key, change, expect, token)


class Overtaken(InMemoryStore):
    """Somebody else commits first, as many times as told, each time when a commit comes."""

    def __init__(self, times: int, change: Change) -> None:
        super().__init__()
        self.times = times
        self.other = change

    async def commit(self, key: str, change: Change, expect: int | None = None, token: int | None = None) -> Record:
        if self.times:
            self.times -= 1
            await super().commit(key, self.other)
        return await super().commit(key, change, expect, token)


def creator(made: list[str], inside: Callable[[], Any] | None = None) -> Any:
    @tool(writes=True)
    async def create(title: str) -> str:
        """Create a task."""
        made.append(title)
        if inside is not None:
            await inside()
        return f"created {title}"

    return create


MAKE = [use("create"), {"title": "x"}]


def writes(memory: Memory) -> list[tuple[str, str, list[str]]]:
    return [(e.ask, e.answer, [step.status for step in e.steps if step.writes]) for e in memory.recent]


# --- writes that must not be lost -----------------------------------------------------------------------------------


async def test_a_failed_run_keeps_its_executed_writes_as_one_flagged_exchange() -> None:
    class Broken(Extension[Any]):
        name = "broken"

        def after_answer(self, ctx: Any, question: Any) -> None:
            raise RuntimeError("no")

    store = InMemoryStore()
    agent = planned([*MAKE, ANSWER, "done"], tools=[creator([])], extensions=[Broken()])
    ending = await end(agent, "make it", store=store)
    assert isinstance(ending.error, GoliathExtensionError)
    memory = await memory_of(store, agent)
    assert writes(memory) == [("make it", INTERRUPTED, ["executed"])]
    assert memory.recent[0].best_effort
    async with open_runtime(agent, store=store) as runtime:
        page = await runtime.conversation().history()
    assert [(e.role, e.message.text, dict(e.private)) for e in page.entries] == [
        ("user", "make it", {}),
        ("assistant", INTERRUPTED, {"interrupted": True}),
    ]


async def test_the_next_planner_is_told_what_an_interrupted_run_did() -> None:
    gate = Gate()
    store = InMemoryStore()
    agent = planned([*MAKE, gate.then(ANSWER), ANSWER, "done"], tools=[creator([])])
    async with open_runtime(agent, store=store) as runtime:
        first = runtime.submit("make it")
        await gate.wait_reached()
        first.abort()
        await first.wait_ended()
        await runtime.run("did you?")
    text = requests(agent)[-2].text
    assert 'create({"title": "x"}) [completed] -> created x' in text
    assert "Assistant (partial reply)" in text


async def test_a_failed_run_without_writes_saves_nothing() -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    store = InMemoryStore()
    ending = await end(planned([use("look"), use("look")], tools=[look], on_event=_fail_on("model-finished", 2)))
    assert ending.status == "error"
    assert (await store.load("agent")).version == 0


def _fail_on(kind: str, number: int) -> Callable[[Any], None]:
    seen = 0

    def on_event(event: Any) -> None:
        nonlocal seen
        seen += event.kind == kind
        if event.kind == kind and seen == number:
            raise RuntimeError(kind)

    return on_event


async def test_writes_that_cannot_be_kept_are_told_and_the_error_stays_the_same() -> None:
    store = FailingStore(InMemoryStore(), {"commit": OSError("disk full")})
    agent = planned([*MAKE, ANSWER, "done"], tools=[creator([])], on_event=_fail_on("answer", 1))
    ending = await end(agent, store=store)
    assert str(ending.error) == "answer"
    assert [event.error for event in told(ending, MemoryError)] == ["OSError: disk full"]


async def test_writes_are_kept_within_a_bounded_time(autojump_clock: MockClock) -> None:
    store = Slow(1000)
    agent = planned([*MAKE, ANSWER, "done"], tools=[creator([])], on_event=_fail_on("answer", 1))
    start = trio.current_time()
    async with open_runtime(agent, store=store, finish_timeout=3) as runtime:
        envelope = runtime.submit("hello")
        await envelope.wait_ended()
    assert trio.current_time() - start == 3
    assert envelope.outcome is not None
    assert str(envelope.outcome.error) == "answer"
    assert [e.error for e in told(envelope.outcome, MemoryError)] == [
        "what this run has done could not be kept in time"
    ]


@pytest.mark.parametrize(
    ("script", "options"),
    [
        ([*MAKE, GIVE_UP, "so far"], {}),
        ([*MAKE, ModelError("down")], {}),
        ([*MAKE, "no plan", "no plan", ""], {}),
    ],
    ids=["best effort", "model error", "blank"],
)
async def test_a_run_whose_answer_is_not_saved_still_keeps_its_writes(script: list[Any], options: Any) -> None:
    # C1 leaves the answer out; that an effect is never lost from the record stands above it.
    store = InMemoryStore()
    agent = planned(script, tools=[creator([])])
    result = await run(agent, "make it", store=store)
    assert result.reason is not None
    assert writes(await memory_of(store, agent)) == [("make it", INTERRUPTED, ["executed"])]


async def test_a_stop_and_a_skip_save_nothing_even_after_a_write() -> None:
    class Halt(Extension[Any]):
        name = "halt"

        def after_answer(self, ctx: Any, question: Any) -> Stop:
            return Stop("stopped", "policy")

    class Forget(Extension[Any]):
        name = "forget"

        def before_remember(self, ctx: Any, question: Any) -> Skip:
            return Skip()

    for extension in (Halt(), Forget()):
        store = Durable()
        agent = planned([*MAKE, ANSWER, "done"], tools=[creator([])], extensions=[extension])
        await run(agent, store=store)
        record = await store.load("agent")
        assert record.memory == Memory()
        assert dict(record.private) == {}


# --- runs in progress on a durable store (S7) -----------------------------------------------------------------------


async def test_a_write_is_committed_before_it_starts_and_closed_by_the_save() -> None:
    store = Durable()
    seen: list[Any] = []

    async def look() -> None:
        seen.append((await store.load("agent")).private)

    agent = planned([*MAKE, ANSWER, "done"], tools=[creator([], look)])
    result = await run(agent, "make it", store=store)
    mark = seen[0][OPEN_RUN]
    assert (mark["ask"], mark["run_id"]) == ("make it", result.run_id)
    assert [(step["tool"], step["status"], step["input"]) for step in mark["steps"]] == [
        ("create", "unknown", {"title": "x"})
    ]
    record = await store.load("agent")
    assert dict(record.private) == {}
    assert writes(record.memory) == [("make it", "done", ["executed"])]
    assert len(store.changes) == 2


async def test_a_store_that_is_not_durable_is_not_asked_before_a_write() -> None:
    store = FailingStore(InMemoryStore(), {})
    await run(planned([*MAKE, ANSWER, "done"], tools=[creator([])]), store=store)
    assert store.calls.count("commit") == 1


async def test_a_write_that_cannot_be_announced_does_not_start() -> None:
    made: list[str] = []
    error = OSError("disk full")
    store = FailingStore(Durable(), {"commit": error})
    ending = await end(planned(MAKE, tools=[creator(made)]), store=store)
    assert ending.error is error
    assert (ending.origin, made, ending.steps) == ("memory", [], ())


async def test_a_run_that_a_crash_left_open_is_closed_by_the_next_one() -> None:
    store = Durable()
    mark = {
        "run_id": "lost",
        "ask": "make it",
        "at": 12.5,
        "steps": [
            {"index": 0, "kind": "tool", "tool": "create", "status": "unknown", "writes": True, "input": {"a": 1}},
            {"no": "step"},
            "nonsense",
        ],
    }
    await store.commit("agent", Change(private={OPEN_RUN: mark, "other": 1}))
    agent = planned([ANSWER, "done"], tools=[creator([])])
    result = await run(agent, "and now?", store=store)
    check_events(result.trace)
    assert 'create({"a": 1}) [may have happened]' in requests(agent)[0].text
    record = await store.load("agent")
    assert dict(record.private) == {"other": 1}
    first = record.memory.recent[0]
    assert (first.ask, first.best_effort, first.at) == ("make it", True, 12.5)
    assert record.entries_count == 4


@pytest.mark.parametrize("mark", ["odd", {"ask": 7, "at": "x", "steps": None}, {}])
async def test_a_mark_that_cannot_be_read_is_closed_all_the_same(mark: Any) -> None:
    store = Durable()
    await store.commit("agent", Change(private={OPEN_RUN: mark}))
    agent = planned(["done"])
    await run(agent, store=store)
    record = await store.load("agent")
    assert dict(record.private) == {}
    assert [e.answer for e in record.memory.recent] == [INTERRUPTED, "done"]


async def test_a_mark_that_cannot_be_closed_fails_the_run() -> None:
    inner = Durable()
    await inner.commit("agent", Change(private={OPEN_RUN: {}}))
    error = OSError("read-only")
    ending = await end(planned([]), store=FailingStore(inner, {"commit": error}))
    assert ending.error is error
    assert ending.origin == "memory"


async def test_an_aborted_write_on_a_durable_store_is_kept_and_its_mark_closed() -> None:
    gate = Gate()
    store = Durable()
    agent = planned(MAKE, tools=[creator([], gate.pass_through)])
    async with open_runtime(agent, store=store) as runtime:
        envelope = runtime.submit("make it")
        await gate.wait_reached()
        envelope.abort()
        with pytest.raises(RunAborted):
            await envelope.wait()
    record = await store.load("agent")
    assert dict(record.private) == {}
    assert writes(record.memory) == [("make it", INTERRUPTED, ["unknown"])]


async def test_a_write_that_its_tool_says_failed_leaves_only_its_mark_to_close() -> None:
    from goliath_actors import ToolFailure

    async def refuse() -> None:
        raise ToolFailure("taken")

    gate = Gate()
    store = Durable()
    agent = planned([*MAKE, gate.then(ANSWER)], tools=[creator([], refuse)])
    async with open_runtime(agent, store=store) as runtime:
        envelope = runtime.submit("make it")
        await gate.wait_reached()
        envelope.abort()
        await envelope.wait_ended()
    record = await store.load("agent")
    assert dict(record.private) == {}
    assert record.memory == Memory()


async def test_a_stop_whose_mark_cannot_be_taken_away_is_told() -> None:
    class Halt(Extension[Any]):
        name = "halt"

        def after_answer(self, ctx: Any, question: Any) -> Stop:
            return Stop("stopped", "policy")

    store = FailingStore(Durable(), {"commit": [None, OSError("disk full")]})
    result = await run(planned([*MAKE, ANSWER, "done"], tools=[creator([])], extensions=[Halt()]), store=store)
    assert (result.status, result.text) == ("stopped", "stopped")
    assert [event.error for event in told(result, MemoryError)] == ["OSError: disk full"]


async def test_a_stop_whose_mark_takes_too_long_is_told(autojump_clock: MockClock) -> None:
    class Halt(Extension[Any]):
        name = "halt"

        def after_answer(self, ctx: Any, question: Any) -> Stop:
            return Stop("stopped", "policy")

    class SlowLater(Durable):
        async def commit(self, key: str, change: Change, expect: int | None = None, token: int | None = None) -> Record:
            if self.changes:
                await trio.sleep(1000)
            return await super().commit(key, change, expect, token)

    agent = planned([*MAKE, ANSWER, "done"], tools=[creator([])], extensions=[Halt()])
    result = await run(agent, store=SlowLater())
    assert [event.error for event in told(result, MemoryError)] == ["the end of this run could not be recorded in time"]


async def test_writes_survive_a_file_that_is_opened_again(tmp_path: Any) -> None:
    gate = Gate()
    path = tmp_path / "chat.db"
    agent = planned(MAKE, tools=[creator([], gate.pass_through)])
    async with open_runtime(agent, store=SqliteStore(path)) as runtime:
        envelope = runtime.submit("make it")
        await gate.wait_reached()
        envelope.abort()
        await envelope.wait_ended()
    async with open_runtime(planned(["x"]), store=SqliteStore(path)) as runtime:
        assert writes(await runtime.conversation().memory()) == [("make it", INTERRUPTED, ["unknown"])]


# --- text that was shown (§P) ---------------------------------------------------------------------------------------


async def test_text_that_was_shown_before_an_abort_stays_in_the_transcript_marked_partial() -> None:
    gate = Gate()
    store = InMemoryStore()
    agent = agent_of(PlayedModel([Played([ModelText("Chapter "), ModelText("one. ")], wait=gate)]))
    async with open_runtime(agent, store=store) as runtime:
        envelope = runtime.submit("tell me")
        await gate.wait_reached()
        envelope.abort()
        await envelope.wait_ended()
        page = await runtime.conversation().history()
    assert [(e.role, e.message.text, dict(e.private)) for e in page.entries] == [
        ("user", "tell me", {}),
        ("assistant", "Chapter one. ", {"partial": True}),
    ]
    assert (await store.load("agent")).memory == Memory()


async def test_with_a_write_the_shown_text_is_the_flagged_exchanges_answer() -> None:
    gate = Gate()
    store = InMemoryStore()
    plans = [[ModelText(json.dumps(reply)), ModelDone()] for reply in (*MAKE, ANSWER)]
    model = PlayedModel([*map(Played, plans), Played([ModelText("I made ")], wait=gate)])
    agent = agent_of(model, tools=[creator([])])
    async with open_runtime(agent, store=store) as runtime:
        envelope = runtime.submit("make it")
        await gate.wait_reached()
        envelope.abort()
        await envelope.wait_ended()
    assert writes(await memory_of(store, agent)) == [("make it", "I made ", ["executed"])]


async def test_an_aborted_run_that_showed_nothing_leaves_nothing() -> None:
    gate = Gate()
    store = InMemoryStore()
    agent = planned([gate.then("never")])
    async with open_runtime(agent, store=store) as runtime:
        envelope = runtime.submit("hello")
        await gate.wait_reached()
        envelope.abort()
        await envelope.wait_ended()
    assert (await store.load("agent")).version == 0


async def test_text_of_a_run_that_failed_is_not_kept() -> None:
    def on_event(event: Any) -> None:
        if event.kind == "model-finished":
            raise RuntimeError("no")

    store = InMemoryStore()
    await end(planned(["shown"], on_event=on_event), store=store)
    assert (await store.load("agent")).version == 0


# --- conflicts and failing saves (S6) -------------------------------------------------------------------------------


async def test_a_save_that_was_overtaken_is_applied_once_more() -> None:
    store = Overtaken(1, Change(metadata={"title": "mine"}))
    agent = planned(["done"])
    result = await run(agent, store=store)
    assert "remember" in kinds(result)
    record = await store.load("agent")
    assert [e.answer for e in record.memory.recent] == ["done"]
    assert dict(record.metadata) == {"title": "mine"}


async def test_a_save_onto_a_newer_memory_adds_to_it() -> None:
    other = Memory("theirs", [Exchange("their ask", "their answer", 1.0)])
    store = Overtaken(1, Change(memory=other))
    agent = planned(["done"])
    await run(agent, store=store)
    memory = await memory_of(store, agent)
    assert memory.summary == "theirs"
    assert [e.ask for e in memory.recent] == ["their ask", "hello"]


async def test_a_save_that_is_overtaken_a_few_times_is_made_and_one_that_always_is_is_told() -> None:
    result = await run(planned(["done"]), store=Overtaken(CONFLICTS - 1, Change(metadata={})))
    assert told(result, MemoryError) == []
    store = Overtaken(CONFLICTS, Change(metadata={}))
    result = await run(planned(["done"]), store=store)
    assert result.text == "done"
    (error,) = told(result, MemoryError)
    assert error.error.startswith("StoreConflict")
    assert told(result, Remember) == []


async def test_a_save_that_takes_too_long_is_cut_off_and_told(autojump_clock: MockClock) -> None:
    start = trio.current_time()
    result = await run(planned(["done"]), store=Slow(1000))
    assert trio.current_time() - start == 10
    assert [event.error for event in told(result, MemoryError)] == ["saving took longer than 10 s"]


async def test_a_save_that_was_cut_off_but_had_arrived_is_not_kept_twice(autojump_clock: MockClock) -> None:
    class Late(InMemoryStore):
        """The commit arrives, its acknowledgement does not."""

        slow = True

        async def commit(self, key: str, change: Change, expect: int | None = None, token: int | None = None) -> Record:
            record = await super().commit(key, change, expect, token)
            if self.slow:
                self.slow = False
                await trio.sleep_forever()
            return record

    store = Late()
    agent = planned([*MAKE, ANSWER, "done"], tools=[creator([])])
    result = await run(agent, "make it", store=store)
    assert [event.error for event in told(result, MemoryError)] == ["saving took longer than 10 s"]
    assert writes(await memory_of(store, agent)) == [("make it", "done", ["executed"])]
    assert (await store.load("agent")).entries_count == 2


async def test_a_counter_that_cannot_be_saved_is_told(autojump_clock: MockClock) -> None:
    failing = FailingStore(InMemoryStore(), {"commit": OSError("disk full")})
    result = await run(planned([ModelError("down")]), store=failing)
    assert (result.reason, [e.error for e in told(result, MemoryError)]) == ("model-error", ["OSError: disk full"])
    result = await run(planned([ModelError("down")]), store=Slow(1000))
    assert [e.error for e in told(result, MemoryError)] == ["saving took longer than 10 s"]


# --- after the answer (C10) -----------------------------------------------------------------------------------------


async def test_an_abort_behind_the_answer_cuts_the_scribe_and_the_exchange_is_saved() -> None:
    gate = Gate()
    store = await stored(("a", "1"), ("b", "2"), ("c", "3"), summary="before")
    agent = planned(["done", gate.then("Goal: never")])
    async with open_runtime(agent, store=store) as runtime:
        envelope = runtime.submit("hello")
        await gate.wait_reached()
        assert runtime.conversation().status().phase == "scribe"
        envelope.abort("too late")
        result = await envelope.wait()
    check_events(result.trace)
    assert (result.status, result.text) == ("completed", "done")
    memory = await memory_of(store, agent)
    assert memory.summary == "before"
    assert [e.ask for e in memory.recent] == ["b", "c", "hello"]
    assert [e.error for e in told(result, MemoryError)] == ["the summary was cut off; the old one is kept"]


async def test_a_deadline_behind_the_answer_cuts_the_scribe(autojump_clock: MockClock) -> None:
    async def slow(request: Any) -> str:
        await trio.sleep(1000)
        return "never"

    store = await stored(("a", "1"), ("b", "2"), ("c", "3"), summary="before")
    agent = planned(["done", slow])
    start = trio.current_time()
    result = await run(agent, store=store, timeout=30)
    assert trio.current_time() - start == 30
    assert result.status == "completed"
    assert [e.ask for e in (await memory_of(store, agent)).recent] == ["b", "c", "hello"]


async def test_an_abort_out_of_the_answers_own_callback_cuts_the_scribe() -> None:
    store = await stored(("a", "1"), ("b", "2"), ("c", "3"), summary="before")
    agent = planned(["done"])
    async with open_runtime(agent, store=store) as runtime:

        def on_event(event: Any) -> None:
            if isinstance(event, Answer):
                runtime.conversation().abort("now")

        result = await runtime.run("hello", on_event=on_event)
    assert (result.status, roles(agent)) == ("completed", ["answer"])
    assert (await memory_of(store, agent)).summary == "before"


class _Hook(Extension[Any]):
    name = "hook"

    def __init__(self, inside: Callable[[], Any]) -> None:
        self.inside = inside

    async def before_remember(self, ctx: Any, question: Any) -> None:
        await self.inside()


async def test_a_hook_that_is_asked_while_an_abort_comes_may_finish(autojump_clock: MockClock) -> None:
    gate = Gate()

    async def inside() -> None:
        await gate.pass_through()
        await trio.sleep(3)

    store = InMemoryStore()
    agent = planned(["done"], extensions=[_Hook(inside)])
    async with open_runtime(agent, store=store) as runtime:
        envelope = runtime.submit("hello")
        await gate.wait_reached()
        envelope.abort()
        gate.open()
        result = await envelope.wait()
    assert result.status == "completed"
    assert [e.answer for e in (await memory_of(store, agent)).recent] == ["done"]


async def test_a_hook_that_hangs_is_cut_some_seconds_after_an_abort_and_nothing_is_saved(
    autojump_clock: MockClock,
) -> None:
    gate = Gate()

    async def inside() -> None:
        await gate.pass_through()
        await trio.sleep_forever()

    store = InMemoryStore()
    agent = planned(["done"], extensions=[_Hook(inside)])
    async with open_runtime(agent, store=store, finish_timeout=4) as runtime:
        envelope = runtime.submit("hello")
        await gate.wait_reached()
        gate.open()
        start = trio.current_time()
        envelope.abort()
        result = await envelope.wait()
    assert trio.current_time() - start == 4
    assert (result.status, result.text) == ("completed", "done")
    assert [e.error for e in told(result, MemoryError)] == ["before_remember was cut off; this exchange is not saved"]
    assert (await store.load("agent")).memory == Memory()


async def test_an_abort_before_the_hook_bounds_it_too(autojump_clock: MockClock) -> None:
    asked: list[str] = []

    async def inside() -> None:
        asked.append("yes")
        await trio.sleep(3)

    store = InMemoryStore()
    agent = planned(["done"], extensions=[_Hook(inside)])
    async with open_runtime(agent, store=store) as runtime:

        def on_event(event: Any) -> None:
            if isinstance(event, Answer):
                runtime.conversation().abort("now")

        await runtime.run("hello", on_event=on_event)
    assert asked == ["yes"]
    assert [e.answer for e in (await memory_of(store, agent)).recent] == ["done"]


async def test_an_error_on_the_answer_event_fails_the_run_before_anything_is_saved() -> None:
    store = InMemoryStore()
    ending = await end(planned(["done"], on_event=_fail_on("answer", 1)), store=store)
    assert (ending.status, ending.origin) == ("error", "event")
    assert (await store.load("agent")).version == 0


async def test_an_error_on_a_later_event_is_a_diagnostic() -> None:
    store = InMemoryStore()
    result = await run(planned(["done"], on_event=_fail_on("remember", 1)), store=store)
    assert [(d.extension, d.phase, d.about) for d in result.diagnostics] == [("on_event", "on_event", "remember")]
    assert (await store.load("agent")).version == 1


# --- details --------------------------------------------------------------------------------------------------------


async def test_a_hooks_memory_loses_raw_outputs_too() -> None:
    class Keep(Extension[Any]):
        name = "keep"

        def before_remember(self, ctx: Any, question: Any) -> Memory:
            step = Step(0, "tool", tool="look", output={"raw": 1})
            return attrs.evolve(question.memory, recent=[attrs.evolve(question.exchange, steps=[step])])

    store = InMemoryStore()
    agent = planned(["done"], extensions=[Keep()])
    await run(agent, store=store)
    assert [step.output for e in (await memory_of(store, agent)).recent for step in e.steps] == [None]


@pytest.mark.parametrize("forgetful", [False, True])
async def test_a_transcript_keeps_what_an_answer_was_made_from_as_it_is_remembered(forgetful: bool) -> None:
    class Forget(Extension[Any]):
        name = "forget"

        def before_remember(self, ctx: Any, question: Any) -> Memory | None:
            if not forgetful:
                return None
            return attrs.evolve(question.memory, recent=[attrs.evolve(question.exchange, steps=[])])

    store = InMemoryStore()
    agent = planned([*MAKE, ANSWER, "done"], tools=[creator([])], extensions=[Forget()])
    result = await run(agent, "make it", store=store)
    async with open_runtime(agent, store=store) as runtime:
        page = await runtime.conversation().history()
    step = {
        "call_id": result.steps[0].call_id,
        "tool": "create",
        "input": {"title": "x"},
        "status": "executed",
        "result": "created x",
    }
    assert [(e.role, dict(e.private)) for e in page.entries] == [
        ("user", {}),
        ("assistant", {} if forgetful else {"steps": [step]}),
    ]


@pytest.mark.parametrize("bad", [Memory(summary=7), Memory("", ["x"])])  # type: ignore[arg-type, list-item]
async def test_a_memory_of_the_wrong_shape_is_the_extensions_error(bad: Any) -> None:
    class Bad(Extension[Any]):
        name = "bad"

        def before_remember(self, ctx: Any, question: Any) -> Memory:
            return bad  # type: ignore[no-any-return]  # the mistake under test

    class BadView(Extension[Any]):
        name = "bad"

        def after_recall(self, ctx: Any, question: Any) -> Memory:
            return bad  # type: ignore[no-any-return]  # the mistake under test

    for extension, phase in ((Bad(), "before_remember"), (BadView(), "after_recall")):
        ending = await end(planned(["done"], extensions=[extension]))
        assert isinstance(ending.error, GoliathExtensionError)
        assert (ending.error.extension, ending.error.phase) == ("bad", phase)


async def test_a_token_counter_that_fails_while_saving_costs_no_memory() -> None:
    broken = False

    def count(text: str) -> int:
        if broken:
            raise RuntimeError("gone")
        return 10

    class Break(Extension[Any]):
        name = "break"

        def after_answer(self, ctx: Any, question: Any) -> None:
            nonlocal broken
            broken = True

    store = await stored(("a", "1"), summary="kept summary")
    agent = planned(["done"], extensions=[Break()], token_counter=count)
    result = await run(agent, store=store)
    assert "remember" in kinds(result)
    assert (await memory_of(store, agent)).summary == "kept summary"


async def test_a_scribe_that_a_transform_cannot_touch_is_asked_with_the_runs_own_model() -> None:
    store = await stored(("a", "1"), ("b", "2"), ("c", "3"))
    agent = planned(ScriptedModel(["done", "Goal: x"], chunk=1))
    async with open_runtime(agent, store=store) as runtime:
        async with runtime.stream("hello") as envelope:
            events = [event async for event in envelope.events()]
    check_events(events)
    assert "".join(e.text for e in events if e.kind == "text-delta") == "done"


async def test_a_cloud_answer_is_remembered_and_flagged_by_nothing() -> None:
    def cloud(request: FallbackRequest) -> str:
        return "from the cloud"

    store = InMemoryStore()
    agent = planned([], loop=Conductor(max_steps=0), fallback=cloud)
    await run(agent, store=store)
    (exchange,) = (await memory_of(store, agent)).recent
    assert (exchange.answer, exchange.best_effort, exchange.steps) == ("from the cloud", False, ())


class Sparing:
    """A store that an application wrote from the rule S2: no more than a runtime needs, its options by name."""

    def __init__(self) -> None:
        self.kept = InMemoryStore()

    async def load(self, key: str) -> Record:
        return await self.kept.load(key)

    async def commit(self, key: str, change: Change, *, expect: int | None) -> Record:
        return await self.kept.commit(key, change, expect=expect)

    async def entries(
        self,
        key: str,
        *,
        before: int | None = None,
        after: int | None = None,
        limit: int = 50,
        anchor: int | None = None,
    ) -> Page:
        return await self.kept.entries(key, before=before, after=after, limit=limit, anchor=anchor)

    async def forget(self, key: str) -> None:
        await self.kept.forget(key)


@pytest.mark.parametrize("loop", [Conductor(), ToolLoop()])
async def test_a_store_that_takes_its_options_by_name_alone_is_enough(loop: Any) -> None:
    store: Any = FailingStore(Sparing(), {})  # type: ignore[arg-type]  # less than a Store, on purpose
    for either in (Sparing(), store):
        agent = Agent(model=ScriptedModel(["one", "two"]), loop=loop)
        async with open_runtime(agent, store=either) as runtime:
            conversation = runtime.conversation("c")
            await conversation.run("first")
            await conversation.run("second")
            page = await conversation.history(limit=3)
            await conversation.set_visibility({page.entries[0].id: (True, False)})
            await conversation.thread.mutate(lambda changing: changing.merge_metadata({"seen": True}))
            assert [entry.message.text for entry in page.entries] == ["one", "second", "two"]
            await conversation.forget()
            assert not (await conversation.history()).entries
