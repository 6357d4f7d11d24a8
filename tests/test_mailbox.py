"""Envelopes and the mailbox: order, replacements, one reply each."""

from __future__ import annotations

import contextvars
from collections import deque
from contextlib import nullcontext
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from trio.testing import MockClock

from goliath_actors._envelope import Envelope, RunOptions, Ties
from goliath_actors._face import face_of
from goliath_actors._journal import RunJournal
from goliath_actors._mailbox import Mailbox
from goliath_actors.errors import RunAborted
from goliath_actors.values import Outcome, RunResult


class Nobody:
    """Runs no agents."""

    async def delegate(self, *given: Any) -> Any:
        raise AssertionError("nothing here is an agent's tool")


def make_run(name: str = "r", *, replaces: bool = False) -> Envelope:
    run = Envelope(
        name,
        None,
        name,
        None,
        RunOptions(),
        RunJournal(name, None),
        Ties(
            lambda run, *, owned=False, to_end=False: nullcontext(),
            lambda ask: face_of(run),
            Nobody(),
            lambda run: None,
            lambda *rewrite: None,
        ),
        contextvars.copy_context(),
        0.0,
    )
    run.replaces = replaces
    return run


class MailboxMachine(RuleBasedStateMachine):
    """The mailbox against a deque: FIFO, replacements before everything but earlier replacements."""

    def __init__(self) -> None:
        super().__init__()
        self.mailbox = Mailbox()
        self.model: deque[Envelope] = deque()
        self.count = 0

    def _new(self, replaces: bool) -> Envelope:
        self.count += 1
        return make_run(str(self.count), replaces=replaces)

    @rule()
    def post(self) -> None:
        run = self._new(False)
        self.mailbox.post(run)
        self.model.append(run)

    @rule()
    def post_next(self) -> None:
        run = self._new(True)
        self.mailbox.post_next(run)
        ahead = 0
        while ahead < len(self.model) and self.model[ahead].replaces:
            ahead += 1
        self.model.insert(ahead, run)

    @rule()
    def take(self) -> None:
        expected = self.model.popleft() if self.model else None
        assert self.mailbox.take() is expected

    @invariant()
    def same(self) -> None:
        assert len(self.mailbox) == len(self.model)
        assert list(self.mailbox) == list(self.model)

    @invariant()
    def an_empty_mailbox_holds_no_queue(self) -> None:
        if not self.model:
            assert self.mailbox._waiting is None or not self.mailbox._waiting


TestMailbox = MailboxMachine.TestCase


@given(st.lists(st.sampled_from(["requested", "deadline", "shutdown", "caller"]), min_size=1))
def test_the_first_reply_and_the_first_cause_stand(causes: list[Any]) -> None:
    async def drive() -> Envelope:
        run = make_run()
        for cause in causes:
            run.request_abort(cause, f"because {cause}")
        return run

    run = trio.run(drive)
    assert isinstance(run.early_reply, RunAborted)
    assert run.early_reply.cause == causes[0]
    with pytest.raises(RunAborted) as caught:
        run.unwrap()
    assert caught.value is run.early_reply


async def test_every_waiter_gets_the_one_reply_and_a_waiter_that_leaves_changes_nothing() -> None:
    run = make_run()
    got: list[str] = []

    async def wait() -> None:
        got.append((await face_of(run).wait()).text)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(wait)
        with trio.move_on_after(0.01):
            await face_of(run).wait()
        run.state = "running"
        result = RunResult("r", None, text="done")
        run.end(Outcome("completed", result))
    assert got == ["done"] * 3
    assert (await face_of(run).wait()).text == "done"
    await run.wait_ended()
    run.request_abort("requested")
    assert run.abort_state is None


async def test_a_deadline_that_comes_while_queued_is_seen_by_a_waiter(autojump_clock: MockClock) -> None:
    run = make_run()
    run.deadline = run.scope.deadline = 5.0
    with pytest.raises(RunAborted) as caught:
        await face_of(run).wait()
    assert (caught.value.cause, trio.current_time()) == ("deadline", 5.0)


async def test_an_abort_after_the_time_has_run_out_is_still_the_deadline(autojump_clock: MockClock) -> None:
    run = make_run()
    run.deadline = run.scope.deadline = 5.0
    await trio.sleep(6)
    face_of(run).abort("too late")
    assert run.abort_state is not None
    assert (run.abort_state.cause, run.abort_state.reason) == ("deadline", "")


async def test_a_waiter_stops_watching_the_deadline_once_the_run_has_begun(autojump_clock: MockClock) -> None:
    run = make_run()
    run.deadline = run.scope.deadline = 5.0
    async with trio.open_nursery() as nursery:

        async def begin_then_end() -> None:
            await trio.sleep(1)
            run.state = "running"
            run.scope.deadline = 100.0  # a confirmation put it off
            await trio.sleep(20)
            run.end(Outcome("completed", RunResult("r", None, text="late but fine")))

        nursery.start_soon(begin_then_end)
        assert (await face_of(run).wait()).text == "late but fine"


def test_a_run_says_what_it_is() -> None:
    assert repr(face_of(make_run("run-7"))) == "<Run run-7 queued conversation=None>"


async def test_a_run_has_one_face_for_as_long_as_anybody_looks_and_it_shows_only_what_is_promised() -> None:
    envelope = make_run()
    face = face_of(envelope)
    assert face_of(envelope) is face
    public = [name for name in dir(face) if not name.startswith("_")]
    assert public == [
        "abort",
        "ask",
        "conversation_id",
        "events",
        "followed_by",
        "id",
        "outcome",
        "state",
        "wait",
        "wait_ended",
    ]
