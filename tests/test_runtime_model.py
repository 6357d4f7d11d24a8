"""The runtime against a plain-Python reference: random asks, aborts, time limits, failing hooks, slots and a drain.

The reference knows no tasks: it is a clock, a queue for each conversation and a line of those that are ready. It says
for every run how it must end, when, and in which order observers hear of it.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import attrs
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from goliath_actors import Extension, Run, RunAborted, open_runtime
from goliath_actors._work import Work
from goliath_actors.errors import GoliathExtensionError, MailboxFull
from goliath_actors.testing import Journal, check_events

from .loops import loop_agent

CAPACITY = 3
GRACE = 2.5003


@attrs.frozen
class Ask:
    """One ask. Durations and limits are chosen so that no two things ever happen at the same instant."""

    conversation: str
    seconds: float
    ends: str  # "ok", "raises", "hook raises"
    timeout: float | None


@attrs.frozen
class AbortNth:
    """Abort the n-th accepted run (modulo their number)."""

    n: int


asks = st.builds(
    Ask,
    st.sampled_from("abc"),
    st.sampled_from([0.4013, 2.7031, 5.3091, 11.0903]),
    st.sampled_from(["ok", "ok", "raises", "hook raises"]),
    st.sampled_from([None, None, 1.4507, 3.8511]),
)
operations = st.lists(asks | st.builds(AbortNth, st.integers(0, 20)), min_size=1, max_size=14)


@attrs.define
class Expected:
    """What the reference says about one run."""

    ask: Ask
    accepted: float
    begun: float = math.inf
    ended: float = math.inf
    status: str = ""
    cause: str | None = None
    abort_at: float = math.inf
    abort_cause: str = ""
    # Aborted by somebody before it began: it keeps its place, and no others out.
    gone: bool = False

    def want_abort(self, at: float, cause: str) -> None:
        if not self.status and at < self.abort_at:
            self.abort_at, self.abort_cause = at, cause


class Reference:
    """A clock, queues and a line."""

    def __init__(self, limit: int | None) -> None:
        self.limit = math.inf if limit is None else limit
        self.now = 0.0
        self.queues: dict[str, deque[Expected]] = {name: deque() for name in "abc"}
        self.current: dict[str, Expected | None] = dict.fromkeys("abc")
        self.line: deque[str] = deque()
        self.busy = 0
        self.runs: list[Expected] = []
        self.finished: list[Expected] = []

    def submit(self, ask: Ask) -> bool:
        name = ask.conversation
        head = self.current[name]
        queue = self.queues[name]
        crowd = len(queue) - min(sum(run.gone for run in queue), CAPACITY)
        if (head is not None or name in self.line) and crowd >= CAPACITY:
            return False
        run = Expected(ask, self.now)
        if ask.timeout is not None:
            run.want_abort(self.now + ask.timeout, "deadline")
        self.runs.append(run)
        self.queues[name].append(run)
        if head is None and name not in self.line:
            self.ready(name)
        return True

    def ready(self, name: str) -> None:
        if self.busy < self.limit:
            self.begin(name)
        else:
            self.line.append(name)

    def begin(self, name: str) -> None:
        run = self.queues[name].popleft()
        self.current[name] = run
        self.busy += 1
        run.begun = self.now

    def end_of(self, run: Expected) -> tuple[float, str]:
        if run.abort_at <= run.begun:
            return run.begun, "aborted"
        if run.ask.ends == "hook raises":
            return run.begun, "error"
        own = run.begun + run.ask.seconds
        if run.abort_at < own:
            return run.abort_at, "aborted"
        return own, "completed" if run.ask.ends == "ok" else "error"

    def advance(self, until: float) -> None:
        while True:
            due = [(*self.end_of(run), name) for name, run in self.current.items() if run is not None]
            if not due or min(due)[0] > until:
                break
            at, status, name = min(due)
            self.now = at
            run = self.current[name]
            assert run is not None
            run.ended, run.status = at, status
            run.cause = run.abort_cause if status == "aborted" else None
            self.finished.append(run)
            self.current[name] = None
            self.busy -= 1
            while self.line and self.busy < self.limit:
                self.begin(self.line.popleft())
            if self.queues[name]:
                self.ready(name)
        self.now = max(self.now, until)

    def abort_everything(self, cause: str) -> None:
        for run in self.runs:
            run.want_abort(self.now, cause)


class FailsOnDemand(Extension[Any]):
    name = "fails-on-demand"

    def before_run(self, ctx: Any, question: Any) -> None:
        if ctx.context.ends == "hook raises":
            raise LookupError("hook")

    def on_finish(self, ctx: Any, question: Any) -> None:
        raise RuntimeError("observers may fail, nobody else minds")


@settings(max_examples=150, deadline=None)
@given(operations, st.sampled_from([None, 1, 2]), st.booleans())
def test_every_run_ends_as_and_when_the_reference_says(plan: list[Any], limit: int | None, drain: bool) -> None:
    reference = Reference(limit)
    journal = Journal()
    ended: dict[str, float] = {}

    async def action(work: Work) -> str:
        await trio.sleep(work.context.seconds)
        if work.context.ends == "raises":
            raise ValueError(work.ask)
        return work.ask

    class Ends(Extension[Any]):
        name = "ends"

        async def on_finish(self, ctx: Any, question: Any) -> None:
            await trio.lowlevel.checkpoint()
            ended[ctx.ask] = trio.current_time() - start

    start = 0.0

    async def drive() -> tuple[list[Run], Any, Any]:
        nonlocal start
        agent = loop_agent(action, extensions=(FailsOnDemand(), journal, Ends()))
        runs: list[Run] = []
        report = None
        async with open_runtime(agent, max_running=limit, mailbox_capacity=CAPACITY) as runtime:
            start = trio.current_time()
            for step, operation in enumerate(plan, 1):
                if isinstance(operation, Ask):
                    accepted = reference.submit(operation)
                    try:
                        run = runtime.submit(
                            str(len(runs)),
                            conversation_id=operation.conversation,
                            timeout=operation.timeout,
                            context=operation,
                        )
                    except MailboxFull:
                        assert not accepted
                    else:
                        assert accepted
                        runs.append(run)
                elif runs:
                    nth = operation.n % len(runs)
                    reference.runs[nth].want_abort(reference.now, "requested")
                    reference.runs[nth].gone = True
                    runs[nth].abort()
                await trio.sleep_until(start + step)
                reference.advance(step)
            if drain:
                report = await runtime.drain(GRACE)
                reference.advance(reference.now + GRACE)
                reference.abort_everything("shutdown")
        reference.advance(math.inf)
        return runs, report, runtime.statistics()

    runs, report, statistics = trio.run(drive, clock=MockClock(autojump_threshold=0))

    for index, (run, expected) in enumerate(zip(runs, reference.runs, strict=True)):
        assert run.outcome is not None
        assert (index, run.outcome.status) == (index, expected.status)
        cause = None if run.outcome.abort is None else run.outcome.abort.cause
        assert (index, cause) == (index, expected.cause)
        assert math.isclose(ended[str(index)], expected.ended, abs_tol=1e-6)
        check_events(run.outcome.trace)
        kinds = {"aborted": RunAborted, "error": (ValueError, GoliathExtensionError)}
        if run.outcome.status in kinds:
            assert isinstance(run.outcome.error, kinds[run.outcome.status])  # type: ignore[arg-type]
    for name in "abc":
        heard = [ask for ask, _ in journal.heard("on_finish", name)]
        assert heard == [str(n) for n, expected in enumerate(reference.runs) if expected.ask.conversation == name]
    counts = [expected.status for expected in reference.runs]
    assert (statistics.accepted, statistics.running, statistics.waiting) == (len(runs), 0, 0)
    assert statistics.completed == counts.count("completed")
    assert statistics.errors == counts.count("error")
    assert statistics.aborted == counts.count("aborted")
    if report is not None:
        assert report.aborted == sum(expected.cause == "shutdown" for expected in reference.runs)
