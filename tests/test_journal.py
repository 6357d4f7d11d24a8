"""A run's journal: sequence numbers, merged deltas, slow and late readers, callbacks, blame."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from goliath_actors._callables import without_texts
from goliath_actors._journal import MERGE_AT_MOST, RunJournal
from goliath_actors.events import Answer, Escalate, Event, Recall, RunFinished, RunStarted, TextDelta


def journal(*callbacks: Any) -> RunJournal:
    made = RunJournal("run-1", "c1", callbacks)
    made.queue()
    return made


async def read_all(stream: Any) -> list[Any]:
    return [event async for event in stream]


async def test_a_late_reader_gets_the_run_so_far_with_deltas_merged_and_nothing_else_dropped() -> None:
    run = journal()
    run.emit(RunStarted)
    for text in ("a", "b", "c"):
        run.delta(text)
    run.emit(Escalate, reason="x")
    run.delta("d")
    run.emit(RunFinished, status="completed")
    events = await read_all(run.stream())
    assert [(e.kind, e.seq) for e in events] == [
        ("run-queued", 1),
        ("run-started", 2),
        ("text-delta", 3),
        ("escalate", 6),
        ("text-delta", 7),
        ("run-finished", 8),
    ]
    assert (events[2].text, events[2].through) == ("abc", 5)
    assert (events[4].text, events[4].through) == ("d", 7)


async def test_a_reader_that_keeps_up_gets_every_delta_by_itself() -> None:
    run = journal()
    stream = run.stream()
    got: list[Any] = [await anext(stream)]
    for text in ("a", "b", "c"):
        run.delta(text)
        got.append(await anext(stream))
    assert [(e.text, e.seq, e.through) for e in got[1:]] == [("a", 2, 2), ("b", 3, 3), ("c", 4, 4)]


@given(st.lists(st.one_of(st.text(min_size=1, max_size=3), st.none(), st.just(0)), max_size=60))
def test_whatever_a_reader_does_it_gets_all_text_and_all_events_in_order(script: list[Any]) -> None:
    """A text is appended as a delta, None as another event, 0 lets the reader read what there is."""

    async def drive() -> tuple[list[Any], str, int]:
        run = journal()
        stream, got, text, others = run.stream(), [], "", 0
        for item in script:
            if item is None:
                run.emit(Escalate, reason="x")
                others += 1
            elif item == 0:
                while (event := stream.next_nowait()) is not None:
                    got.append(event)
            else:
                run.delta(item)
                text += item
        run.emit(RunFinished, status="completed")
        return got + await read_all(stream), text, others

    events, text, others = trio.run(drive)
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == text
    assert sum(isinstance(e, Escalate) for e in events) == others
    expected = 1
    for event in events:
        assert event.seq == expected
        expected = (event.through if isinstance(event, TextDelta) else event.seq) + 1


async def test_a_reader_that_never_reads_costs_one_entry_for_many_deltas() -> None:
    run = journal()
    run.stream()
    for _ in range(10 * MERGE_AT_MOST):
        run.delta("x")
    assert len(run._log) == 1 + 10


async def test_a_waiting_reader_is_woken_and_a_cancelled_wait_has_taken_nothing() -> None:
    run = journal()
    stream = run.stream()
    await anext(stream)
    with trio.move_on_after(0.01) as scope:
        await anext(stream)
    assert scope.cancelled_caught
    got: list[Any] = []

    async def read() -> None:
        got.append(await anext(stream))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        run.emit(RunStarted)
    assert [event.kind for event in got] == ["run-started"]


async def test_the_trace_has_every_event_but_deltas() -> None:
    run = journal()
    run.delta("x")
    run.emit(Recall, summary="s", recent=0)
    assert [event.kind for event in run.trace] == ["run-queued", "recall"]


async def test_a_callback_is_told_after_the_event_is_in_the_log_and_its_error_has_origin_event() -> None:
    error = ValueError("callback")
    seen: list[int] = []

    def callback(event: Any) -> None:
        seen.append(len(run.trace) if event.kind != "run-queued" else 0)
        if event.kind == "escalate":
            raise error

    run = RunJournal("run-1", None, (callback,))
    run.queue()
    run.emit(RunStarted)
    with pytest.raises(ValueError, match="callback"):
        run.emit(Escalate, reason="x")
    assert run.origin_of(error) == "event"
    assert seen == [0, 2, 3]


async def test_after_the_answer_a_callbacks_error_is_a_diagnostic_but_on_the_answer_it_raises() -> None:
    def callback(event: Any) -> None:
        raise ValueError(event.kind)

    run = RunJournal("run-1", None)
    run.callbacks = (callback,)
    with pytest.raises(ValueError, match="answer"):
        run.emit(Answer, text="x")
    run.emit(Recall, summary="", recent=0)
    run.closing = True
    run.emit_closing(RunFinished, status="error")
    assert [(d.extension, d.phase) for d in run.diagnostics] == [("on_event", "on_event")] * 2
    assert [d.about for d in run.diagnostics] == ["recall", "run-finished"]


async def test_a_hook_that_was_cut_off_is_not_blamed_for_what_comes_later() -> None:
    run = RunJournal("run-1", None)
    run.place = "extension"  # as a hook leaves it that never came back
    assert run.origin_of(ValueError()) == "extension"
    run.enter("remember")
    assert run.origin_of(ValueError()) == "harness"


async def test_every_callback_is_told_even_if_an_earlier_one_raises() -> None:
    told: list[str] = []

    def raises(event: Any) -> None:
        raise ValueError("first")

    run = RunJournal("run-1", None, (raises, lambda event: told.append(event.kind)))
    with pytest.raises(ValueError, match="first"):
        run.emit(RunStarted)
    with pytest.raises(ValueError, match="first"):
        run.delta("x")
    assert told == ["run-started", "text-delta"]


async def test_the_innermost_origin_stands_and_groups_blame_their_leaves() -> None:
    run = journal()
    inner = LookupError("inner")
    with pytest.raises(LookupError), run.origin("memory"), run.origin("tool"):
        raise inner
    assert run.origin_of(inner) == "tool"
    leaf = KeyError("leaf")
    group = ExceptionGroup("g", [leaf])
    with pytest.raises(ExceptionGroup), run.origin("confirm"):
        raise group
    assert (run.origin_of(leaf), run.origin_of(group)) == ("confirm", "confirm")
    assert run.origin_of(ValueError("unknown")) == "harness"


def test_a_callback_that_has_no_use_for_texts_is_told_everything_else() -> None:
    heard: list[str] = []

    @without_texts
    def hear(event: Event) -> None:
        heard.append(event.kind)

    everything: list[str] = []
    run = journal(hear, lambda event: everything.append(event.kind))
    run.delta("a")
    run.emit(Escalate, reason="x")
    assert heard == ["run-queued", "escalate"]
    assert everything == ["run-queued", "text-delta", "escalate"]


async def test_a_callback_and_a_reader_are_told_the_same_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    now = itertools.count(100.0)
    monkeypatch.setattr("time.time", lambda: next(now))
    heard: list[Event] = []
    run = journal(heard.append)
    run.delta("a")
    run.emit(RunFinished, status="completed")
    assert await read_all(run.stream()) == heard
