"""One tool call from the gate to the text that the model is told: execution, words, end.

Every way to a tool goes through here: both loops and `invoke_tool` (H12). The stages are separate so that a
loop can pass several calls through one stage before the next; `run_call` is all of them for a single call.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Literal

import trio

from ._budget import ContentBudgets
from ._call import Cached, Call, confirm, context_of, gate, needs_confirmation
from ._callables import alone, below, call_with, discard
from ._decisions import RunStopped
from ._frozen import freeze, thaw
from ._json import snapshot
from ._leaves import bare
from ._provider import CounterFailed, counting
from ._records import RESULT_CHARS, UNPROCESSED, close, provisional, record, update
from ._text import clip, estimate, fit_content, summarise
from ._work import Work
from .errors import ConfigError, ToolFailure, ToolInputError, ToolInterrupted, ToolTimeout
from .events import ToolFinished
from .hooks import AfterTool, AfterTools, AroundTool
from .tools import CheckedInput, Tool, ToolContext, ToolOutcome
from .values import Step, ToolCall

__all__ = [
    "cap_result",
    "conclude",
    "dispatch",
    "execute",
    "invoke",
    "run_call",
]

INVOKE_WINDOW = 4096  # tokens that bound a result where no loop says how large its window is
UNFORMATTED = "Completed. The output could not be put into words."


# --- execution ------------------------------------------------------------------------------------------------------


async def execute(work: Work, call: Call) -> None:
    """Run a live, recorded call's tool inside `around_tool`, and note how it ended.

    Raises: `GoliathExtensionError` for a hook's own error. What the tool raised is an outcome.

    Cancellation: passes; the step stays `unknown`, and a thread that was running is abandoned.
    """
    journal = work.journal
    journal.enter(f"tool:{call.tool.name}")
    raised: list[tuple[Exception, TracebackType | None]] = []
    around = work.panel.hears("around_tool")

    async def inner(question: AroundTool | None) -> Any:
        start = journal.now()
        try:
            with journal.running("tool"):
                limit = call.tool.timeout
                output = await (_start(work, call) if limit is None else _within(work, call, limit))
            call.performed = True
            if around:  # else it is updated below, with nothing to wait for in between
                update(work, call, UNPROCESSED, "executed")
            return output
        except Exception as error:
            raised.append((error, _from_tool_on(call.tool, error.__traceback__)))
            raise
        finally:
            call.ms += (journal.now() - start) * 1000

    try:
        if around:
            question = AroundTool(call.call_id, call.tool.descriptor, call.input)
            output = await work.panel.nest("around_tool", question, inner)
        else:
            output = await inner(None)
    except Exception as error:
        if all(error is not known for known, _ in raised):
            raise
        _failed(work, call, error)
        return
    finally:
        for known, traceback in raised:
            known.__traceback__ = traceback
    call.outcome = ToolOutcome("executed", output=output)
    update(work, call, UNPROCESSED, "executed", freeze(snapshot(output)))
    if call.tool.on_output is not None:
        await _observe_output(work, call, output)


async def _within(work: Work, call: Call, seconds: float) -> Any:
    with trio.move_on_after(seconds) as scope:
        return await _start(work, call)
    assert scope.cancelled_caught
    raise ToolTimeout(f"{call.tool.name} did not finish within {seconds:g} s.")


async def _start(work: Work, call: Call) -> Any:
    """Call the tool with arguments of its own: an async one here, a plain one in a thread (R16)."""
    tool = call.tool
    context = context_of(work, call) if tool.takes_context else None
    # Before the thread has a place: whether one that was abandoned has begun by now, nobody can say from here.
    call.started = True
    if tool.is_async:
        value = tool.start(call.checked, context)
    else:
        (value,) = await work.threads.run(partial(_in_thread, tool, call.checked, context))
    return await value if inspect.isawaitable(value) else value


def _in_thread(tool: Tool, checked: CheckedInput, context: ToolContext[Any] | None) -> tuple[Any]:
    # In a tuple, since a plain function may return an awaitable, which threads refuse to pass on.
    return (tool.start(checked, context),)


def _from_tool_on(tool: Tool, traceback: TracebackType | None) -> TracebackType | None:
    """Return what of a traceback is the tool's; of an error on the way to its thread, all that is behind `_start`.

    Frames before that, also those of hooks around the tool, know the call and the run, which keep the error: a tool
    that raised would leave its whole run to the garbage collector. trio cuts off its own frames as well, but those
    between threads know the error, too.
    """
    own = _behind(_start, traceback)
    return own if tool.is_async else _behind(_in_thread, own) or own


def _behind(function: Callable[..., Any], traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and traceback.tb_frame.f_code is not function.__code__:
        traceback = traceback.tb_next
    return None if traceback is None else traceback.tb_next


def _failed(work: Work, call: Call, error: Exception) -> None:
    error = bare(error)  # a tool may have a nursery of its own
    # A write that broke off may have happened, unless the tool itself says that it failed, and a hook that ran it
    # again had not let it succeed before.
    says_so = isinstance(error, ToolFailure) and not isinstance(error, ToolInterrupted) and not call.performed
    sure = not call.tool.writes or says_so
    status: Literal["failed", "unknown"] = "failed" if sure else "unknown"
    call.outcome = ToolOutcome(status, error=error)
    if not isinstance(
        error, ToolFailure
    ):  # a tool's own words are no riddle; of anything else, keep where it came from
        work.journal.note(call.tool.name, "tool", error, call.call_id)
    call.result = call.explain(call, error)
    if status == "unknown":
        call.result = f"{clip(call.result, 400)} It may have taken effect: look before doing it again."
    update(work, call, cap_result(work, call, call.result), status)


async def _observe_output(work: Work, call: Call, output: Any) -> None:
    # The tool has been executed: what its observer raises cannot undo that, so it is a diagnostic.
    assert call.tool.on_output is not None
    try:
        with work.journal.running("tool"):
            answer = alone(partial(call_with, call.tool.on_output, (output,), context_of(work, call), rest=True))
            if inspect.isawaitable(answer):
                await answer
    except Exception as error:  # noqa: BLE001
        work.journal.note(call.tool.name, "on_output", below(error), call.call_id)


# --- what the model is told -----------------------------------------------------------------------------------------


async def conclude(work: Work, call: Call, prior: Sequence[Step] | None = None) -> None:
    """Put the output into words, ask `after_tool`, cap the text, and say that the call is over.

    Arguments: `prior`, the steps before this one; None takes those in the journal.

    Raises: `GoliathExtensionError`; what an event callback raised.

    Cancellation: the step keeps what is known; `close` says that it is over.
    """
    assert call.index is not None
    assert call.outcome is not None
    journal, outcome = work.journal, call.outcome
    if outcome.status == "executed":
        call.result = _words(work, call, outcome.output)
    if work.panel.hears("after_tool"):
        before = journal.steps[: call.index] if prior is None else tuple(prior)
        question = AfterTool(call.call_id, call.tool.descriptor, call.input, call.result, outcome, before)
        decision = await work.panel.decide("after_tool", question)
        call.result = decision.question.result
    call.result = cap_result(work, call, call.result)
    update(work, call, call.result)
    call.told = True
    journal.emit(
        ToolFinished,
        call_id=call.call_id,
        tool=call.tool.name,
        input=call.input,
        status=outcome.status,
        result=call.result,
        ms=call.ms,
        error=call.reported,
    )


def _words(work: Work, call: Call, output: Any) -> str:
    formatter = call.tool.to_model_output
    try:
        if formatter is not None:
            with work.journal.origin("formatter"):
                text = alone(formatter, output)
            if not isinstance(text, str):
                discard(text)
                raise TypeError(f"to_model_output must return a string, not {type(text).__name__}")
            return text
        if call.tool.output_mode == "content":
            return output if isinstance(output, str) else json.dumps(thaw(snapshot(output)), ensure_ascii=False)
        return summarise(output)
    except Exception as error:  # noqa: BLE001  # the effect stands, whatever becomes of its description
        work.journal.note(call.tool.name, "to_model_output", below(error), call.call_id)
        return UNFORMATTED


def cap_result(work: Work, call: Call, text: str) -> str:
    """Return `text` within what one result may take: 600 characters, or the content budget in tokens."""
    if call.tool.output_mode != "content":
        return clip(text, RESULT_CHARS)
    limit = ContentBudgets(work.window).result
    try:
        return fit_content(text, limit, counting(work.counter))
    except CounterFailed:  # the tool has run; whether a prompt fits is decided where prompts are counted
        return fit_content(text, limit, estimate)


# --- all of it ------------------------------------------------------------------------------------------------------


async def run_call(
    work: Work,
    call: Call,
    *,
    duplicate: Callable[[Call], Cached | None] | None = None,
    before_write: Callable[[Work, Step], Awaitable[None]] | None = None,
) -> None:
    """Take one call through every stage, unless `call.invalid` says after the gate that its arguments are no good.

    Arguments: `before_write` is awaited with the step that is about to be recorded, before a write starts.

    Raises: as the stages; `ConfigError` if `confirm` wants to suspend, which takes a tool loop.

    Cancellation: as the stages; a recorded step is always told as finished.
    """
    cached: list[Cached] = []

    def find(wanted: Call) -> Cached | None:
        found = None if duplicate is None else duplicate(wanted)
        cached.extend([] if found is None else [found])
        return found

    await gate(work, call, find)
    if call.invalid is not None:
        return
    if call.live and needs_confirmation(call):
        suspended = await confirm(work, call)
        if suspended is not None:
            error = ConfigError("confirm returned Suspend: only a conversation under a ToolLoop can wait for it")
            work.journal.blame(error, "confirm")
            raise error
    await dispatch(work, call, before_write, cached[0].output if cached else None)


async def dispatch(
    work: Work,
    call: Call,
    before_write: Callable[[Work, Step], Awaitable[None]] | None = None,
    output: Any = None,
) -> None:
    """Record a call that has passed the gate, execute it if it is live, and conclude it."""
    if call.live and call.tool.writes and before_write is not None:
        await before_write(work, provisional(work, call))
    # Before the record: behind it, an abort would leave the step of a tool that never started as `unknown`.
    await trio.lowlevel.checkpoint_if_cancelled()
    try:
        record(work, call, output)
        if call.live:
            await execute(work, call)
        await conclude(work, call)
        await _after_tools(work, call)
    finally:
        close(work, call)


async def _after_tools(work: Work, call: Call) -> None:
    """A planned step is a round of one call."""
    if work.panel.hears("after_tools"):
        arguments = json.dumps(call.input, ensure_ascii=False)
        made = ToolCall(call.call_id, call.tool.name, arguments, call.input)
        await work.panel.observe("after_tools", AfterTools((made,), (call.result,)))


async def invoke(work: Work, name: str, input: Mapping[str, Any]) -> ToolOutcome:
    """Call one tool outside a run, through the same gate (H12).

    Returns: how it went. A denial, a refusal and a `Stop` are outcomes.

    Raises: `ToolInputError` for arguments that do not fit; `GoliathExtensionError`; what `confirm` raised.

    Cancellation: the tool unwinds; a write that had begun may have happened.
    """
    tool = work.tools[name]
    if work.window <= 0:  # the loop's window is a callable, which is asked by runs
        work.window = INVOKE_WINDOW
    call = Call(f"{work.journal.run_id}.1", tool, "", tool.check(input))
    try:
        await run_call(work, call)
    except RunStopped as stop:
        return ToolOutcome("skipped", reason="policy", extension=stop.stopped.extension)
    if call.invalid is not None:
        if isinstance(call.unusable, ToolInputError):
            raise call.unusable
        raise ToolInputError(name, (call.invalid,)) from call.unusable
    assert call.outcome is not None
    return call.outcome
