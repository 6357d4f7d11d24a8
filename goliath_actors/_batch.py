"""The tool calls of one message: read, gated, confirmed, executed side by side, and put into words in call order.

Every stage passes all calls before the next begins: no tool starts while a gate may still refuse its sibling
(T1). What a model wrote wrongly is a result like any other (T4).
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NoReturn

import attrs
import trio

from ._call import Call, confirm, decline, gate, needs_confirmation
from ._composition import NOT_EXECUTED
from ._frozen import thaw
from ._json import canonical
from ._provider import describe
from ._reading import UNREAD, dismissed_call, explained, fail, read_call, resumed_call
from ._records import UNFINISHED, UNFINISHED_WRITE, UNPROCESSED, close, pause, record
from ._tools import cap_result, conclude, execute
from ._waiting import WaitingCall
from ._work import Work
from .errors import ToolInputError
from .hooks import AfterTool
from .tools import Tool, ToolOutcome
from .values import Message, ToolCall

__all__ = ["CUT_OFF", "Round"]

DECLINED_BEFORE = "they declined the same call before"
CUT_OFF = (
    "Not executed: the message was cut off because it was too long, so its arguments may be incomplete. Call again."
)


@attrs.define(eq=False)
class Round:
    """The calls of one assistant message, in call order."""

    work: Work
    made: tuple[ToolCall, ...]
    calls: list[Call]
    # The number of the run's steps when a user last spoke.
    since: int = 0
    # The call whose text is being made: a hook that was cut in the middle of it is not asked again.
    concluding: Call | None = None

    @classmethod
    def of(cls, work: Work, made: Sequence[ToolCall], offered: Mapping[str, Tool], refusal: str | None = None) -> Round:
        """Read the arguments of every call.

        Arguments: `offered`, the tools that may be called; `refusal`, why none of the calls may run.
        """
        calls = [read_call(work, call, offered, refusal) for call in made]
        # What could be read of the arguments is kept beside their text.
        known = [
            ToolCall(one.id, one.name, one.arguments, None if call.checked is UNREAD else call.input)
            for one, call in zip(made, calls, strict=True)
        ]
        return cls(work, tuple(known), calls)

    @property
    def executed(self) -> tuple[ToolCall, ...]:
        """The calls with the inputs that were really used."""
        return tuple(
            made if made.input is None else attrs.evolve(made, input=call.input)
            for made, call in zip(self.made, self.calls, strict=True)
        )

    # --- stages -----------------------------------------------------------------------------------------------------

    async def run(self, parallel: int) -> None:
        """Take every call to its end, at most `parallel` of them executing at a time.

        Raises: `RunStopped`; what hooks, `confirm` and event callbacks raised: of several, the first in call order,
        the others noted on it and as diagnostics (R10). What tools raised are results.

        Cancellation: running tools unwind; `salvage` makes the best of what is known.
        """
        await self._gates()
        await self._confirmations()
        await self.go(parallel)

    async def go(self, parallel: int) -> None:
        """Execute the calls that are live, and conclude all that do not wait. As `run`, behind the gates."""
        await trio.lowlevel.checkpoint_if_cancelled()
        # Before anything starts: behind it, an abort would leave a tool that never started without a record.
        for call in self.calls:
            if call.waiting is None:
                record(self.work, call)
        for together in _waves([call for call in self.calls if call.live]):
            await self._execute(together, parallel)
        for call in self.calls:
            if call.waiting is None:
                self.concluding = call
                await conclude(self.work, call)
        self.concluding = None

    async def _gates(self) -> None:
        for call in self.calls:
            if not call.live:
                continue
            await gate(self.work, call)
            if call.invalid is not None:
                call.invalid = None
                self._unusable(call)
            elif call.whole_batch:
                self._deny_siblings(call)
                return

    def _unusable(self, call: Call) -> None:
        """Put into words why a tool's own resolver could not use the arguments (T4, T5)."""
        error = call.unusable
        assert error is not None
        if isinstance(error, ToolInputError):
            fail(call, error)
            return
        call.outcome = ToolOutcome("failed", error=error)
        call.result = f"Not executed: {explained(self.work, call, error)}"

    def _deny_siblings(self, denied: Call) -> None:
        assert denied.outcome is not None
        who = denied.outcome.extension
        for call in self.calls:
            if call.live:
                call.skip("batch", f"Not done: {who} denied a call of the same message, and with it all others.", who)

    async def _confirmations(self) -> None:
        for call in self.calls:
            if not (call.live and needs_confirmation(call)):
                continue
            if self._was_declined(call):
                decline(call, DECLINED_BEFORE)
                continue
            suspended = await confirm(self.work, call)
            if suspended is not None:
                call.waiting = WaitingCall(call.call_id, call.tool.name, call.input, "approval", suspended.payload)

    def _was_declined(self, call: Call) -> bool:
        """Say whether a person declined the same call since a user last spoke: they are not asked again (S46)."""
        wanted = canonical(call.input)
        steps = self.work.journal.steps[self.since :]
        told = [(step.tool, step.input) for step in steps if step.skip_reason == "confirmation"]
        told += [(one.tool.name, one.input) for one in self.calls if one.skip_reason == "confirmation"]
        return any(name == call.tool.name and canonical(input or {}) == wanted for name, input in told)

    async def _execute(self, together: Sequence[Call], parallel: int) -> None:
        errors: dict[int, Exception] = {}
        queue = deque(enumerate(together))

        async def work() -> None:
            while queue and not errors:
                place, call = queue.popleft()
                try:
                    # S08: an abort is noticed before every start, not only by tools that wait.
                    await trio.lowlevel.checkpoint_if_cancelled()
                    await self._one(call)
                except Exception as error:  # noqa: BLE001  # it must not cancel the siblings; raised below
                    errors[place] = error

        if len(together) == 1 or parallel == 1:
            await work()
        else:
            async with trio.open_nursery() as nursery:
                for _ in range(min(parallel, len(together))):
                    nursery.start_soon(work)
        if errors:
            self._raise_first(together, errors)

    async def _one(self, call: Call) -> None:
        """Execute one call, up to where its tool suspends: then it waits, and unwinds like one that is cancelled."""
        if not call.tool.takes_context:  # it has nothing to suspend with
            await execute(self.work, call)
            call.waiting = None
            return
        with trio.CancelScope() as scope:
            call.suspend = _suspending(call, scope)
            try:
                await execute(self.work, call)
            finally:
                call.suspend = None  # it knows the call
        if scope.cancelled_caught:
            pause(self.work, call)
        else:
            call.waiting = None

    def _raise_first(self, together: Sequence[Call], errors: Mapping[int, Exception]) -> NoReturn:
        first, *others = [errors[place] for place in sorted(errors)]
        for place in sorted(errors)[1:]:
            call = together[place]
            self.work.journal.note_hook(call.tool.name, "around_tool", errors[place], call.call_id)
        for other in others:
            first.add_note(f"another call of the same message failed, too: {describe(other)}")
        raise first

    @property
    def waiting(self) -> list[WaitingCall]:
        """The calls that wait, in call order."""
        return [call.waiting for call in self.calls if call.waiting is not None]

    @classmethod
    def dismissing(cls, work: Work, waiting: Sequence[WaitingCall]) -> Round:
        """Take calls that are to wait no longer, of this run or an earlier one."""
        made = [ToolCall(one.call_id, one.tool, input=one.input) for one in waiting]
        return cls(work, tuple(made), [dismissed_call(work, one) for one in waiting])

    async def dismissed(self, text: str) -> dict[str, str]:
        """Ask `after_tool` about calls that are to wait no longer, and return what the model is told, by call id.

        Their attempts were over when they began to wait; what becomes of them goes through the hook like any result.

        Raises: `GoliathExtensionError`.
        """
        work, texts = self.work, {}
        for call in self.calls if work.panel.hears("after_tool") else ():
            assert call.outcome is not None
            before = tuple(step for step in work.journal.steps if step.call_id != call.call_id)
            question = AfterTool(call.call_id, call.tool.descriptor, call.input, text, call.outcome, before)
            decision = await work.panel.decide("after_tool", question)
            texts[call.call_id] = cap_result(work, call, decision.question.result)
        return texts

    @classmethod
    def resumed(cls, work: Work, waiting: Sequence[WaitingCall], answers: Mapping[str, Any]) -> Round:
        """Take up calls that waited, with their answers: their gates are behind them (T8).

        Raises: `ConfigError` for an answer to an approval that is none.
        """
        made = [ToolCall(one.call_id, one.tool, input=one.input) for one in waiting]
        return cls(work, tuple(made), [resumed_call(work, one, answers[one.call_id]) for one in waiting])

    # --- results ----------------------------------------------------------------------------------------------------

    def message(self, made: ToolCall, call: Call) -> Message:
        """Return the result of one call as a message."""
        return Message("tool", call.result, tool_call_id=made.id, name=made.name)

    def private(self, call: Call) -> dict[str, Any]:
        """Return what only the server may read about a result: how the call ended, what was mended in its arguments,
        and the input that was really used where a hook or the tool itself replaced it."""
        recorded = None if call.index is None else self.work.journal.steps[call.index].status
        facts: dict[str, Any] = {"status": recorded or "failed"}
        if call.repairs:
            facts["repairs"] = list(call.repairs)
        if call.input != call.written:
            facts["input"] = thaw(call.input)
        return facts

    async def salvage(self, ask: bool) -> None:
        """In a clean-up, under a shield: say of every recorded call that it is over, with the best text there is (T3).

        Arguments: `ask`, whether `after_tool` may be asked about calls that had finished. Where it may not, and
        somebody would have been asked, their output is left out rather than told without them.

        Never raises an `Exception`.
        """
        for call in self.calls:
            if call.index is None:
                if call.outcome is None:
                    call.result = NOT_EXECUTED
            elif call.waiting is not None:
                call.result = UNFINISHED_WRITE if call.tool.writes else UNFINISHED
                close(self.work, call)
            elif not call.told:
                await self._salvage(call, ask)
                close(self.work, call)

    async def _salvage(self, call: Call, ask: bool) -> None:
        journal = self.work.journal
        may = ask or not self.work.panel.hears("after_tool")
        if call.outcome is not None and call is not self.concluding and may:
            try:
                await conclude(self.work, call)
                return
            except Exception as error:  # noqa: BLE001  # what is passing must not be replaced
                journal.note_hook(call.tool.name, "after_tool", error, call.call_id)
        if call.index is not None and not call.started and call.outcome is None:
            call.result = NOT_EXECUTED
            return
        step = journal.steps[call.index or 0]
        call.result = UNPROCESSED if step.status == "executed" else step.result or ""


def _suspending(call: Call, scope: trio.CancelScope) -> Callable[[Any], Awaitable[Any]]:
    """Return what `ctx.suspend` does: give the answers that there are, in order, then wait for another one.

    Cancelling the call's own scope is how it does not return to the tool.
    """
    left = deque(call.answers)
    running = weakref.ref(call)  # as in `_reporter`

    async def suspend(payload: Any) -> Any:
        await trio.lowlevel.checkpoint()
        if left:
            return left.popleft()
        call = running()
        if call is not None:
            call.waiting = WaitingCall(call.call_id, call.tool.name, call.input, "question", payload, call.answers)
        scope.cancel()
        await trio.sleep_forever()

    return suspend


def _waves(calls: Sequence[Call]) -> list[list[Call]]:
    """Return the calls in groups that may run side by side: those marked `sequential` have one of their own."""
    waves: list[list[Call]] = []
    for call in calls:
        if waves and not call.tool.sequential and not waves[-1][-1].tool.sequential:
            waves[-1].append(call)
        else:
            waves.append([call])
    return waves
