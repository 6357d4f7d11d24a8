"""The grammar of a run's events, as a check that any list of them can be put through (E1)."""

from __future__ import annotations

from collections.abc import Iterable

from .events import (
    Event,
    ModelFinished,
    ModelStarted,
    RunFinished,
    RunQueued,
    RunStarted,
    TextDelta,
    ToolFinished,
    ToolProgress,
    ToolStarted,
)

__all__ = ["check_events"]


def check_events(events: Iterable[Event], *, complete: bool = True) -> list[Event]:
    """Hold a run's events against the grammar (E1) and return them as a list.

    Checks: `RunQueued` first; `RunStarted` at most once and second among what is not a hook decision; exactly one
    `RunFinished`, last (if `complete`); one run id and conversation id; seqs rise, with gaps only behind merged or
    missing deltas; every model call and tool attempt that started finished exactly once.

    Raises: `AssertionError` saying what is wrong and at which event.
    """
    heard = list(events)
    assert heard, "no events"
    assert isinstance(heard[0], RunQueued), f"the first event is {heard[0].kind}, not run-queued"
    assert len({event.run_id for event in heard}) == 1, "events of more than one run"
    assert len({event.conversation_id for event in heard}) == 1, "events of more than one conversation"
    last = 0
    for event in heard:
        assert event.seq > last, f"seq {event.seq} of {event.kind} follows {last}"
        last = event.through if isinstance(event, TextDelta) else event.seq
        assert last >= event.seq, f"a delta goes from {event.seq} through {last}"
    started = [index for index, event in enumerate(heard) if isinstance(event, RunStarted)]
    assert len(started) <= 1, "run-started twice"
    queued = [event for event in heard if isinstance(event, RunQueued)]
    assert len(queued) == 1, "run-queued twice"
    finished = [index for index, event in enumerate(heard) if isinstance(event, RunFinished)]
    assert len(finished) <= 1, "run-finished twice"
    if complete:
        assert finished == [len(heard) - 1], "run-finished is not the last event"
    model: list[tuple[str, int]] = []
    tools: dict[str, int] = {}
    over: set[str] = set()
    work = False
    for event in heard[1:]:
        if isinstance(event, RunStarted):
            assert not work, "something was done before run-started"
        elif isinstance(event, ModelStarted):
            model.append((event.role, event.attempt))
        elif isinstance(event, ModelFinished):
            assert (event.role, event.attempt) in model, f"model call {event.role}#{event.attempt} never started"
            model.remove((event.role, event.attempt))
        elif isinstance(event, ToolStarted):
            assert event.call_id not in {*tools, *over}, f"tool call {event.call_id} started twice"
            tools[event.call_id] = event.seq
        elif isinstance(event, ToolProgress):
            assert event.call_id in tools, f"tool call {event.call_id} reports progress while it is not running"
        elif isinstance(event, ToolFinished):
            assert event.call_id in tools, f"tool call {event.call_id} finished without a start"
            over.add(event.call_id)
            del tools[event.call_id]
        work = work or not isinstance(event, RunStarted | RunFinished)
    if complete:
        assert not model, f"model calls never finished: {model}"
        assert not tools, f"tool calls never finished: {sorted(tools)}"
    return heard
