"""One tool call, from its valid arguments to the text that the model is told.

Floor 3. Every way to a tool goes through here: both loops and `invoke_tool` (H12). The stages are separate so that a
loop can pass several calls through one stage before the next; `run_call` is all of them for a single call.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import attrs
import trio

from ._budget import ContentBudgets
from ._frozen import FrozenDict, freeze, thaw
from ._json import snapshot
from ._panel import RunStopped
from ._request import CounterFailed, counting
from ._text import clip, estimate, fit_content, summarise
from ._work import Work
from .errors import ConfigError, ToolFailure, ToolInputError, ToolTimeout
from .events import Confirm, ToolFinished, ToolStarted
from .hooks import AfterTool, AfterTools, AroundTool, BeforeTool, Deny, Stop
from .tools import CheckedInput, Confirmed, ConfirmRequest, Suspend, Tool, ToolContext, ToolOutcome
from .values import Exchange, Step, ToolCall

__all__ = [
    "RESULT_CHARS",
    "Cached",
    "Call",
    "cap_result",
    "close",
    "conclude",
    "confirm",
    "execute",
    "gate",
    "invoke",
    "record",
    "run_call",
]

RESULT_CHARS = 600  # characters of a result in summary mode, whoever wrote it
REASON_CHARS = 160  # characters of an error or of a denial's reason inside a result

INVOKE_WINDOW = 4096  # tokens that bound a result where no loop says how large its window is

UNFINISHED = "Execution did not complete; it may have taken effect."
UNPROCESSED = "Executed; its output was not processed."
UNFORMATTED = "Completed. The output could not be put into words."

SkipReason: TypeAlias = Literal["policy", "confirmation", "missing", "batch"]


@attrs.frozen(eq=False)
class Cached:
    """An identical read that was already made: `from_step` is its index, `text` what the model is told."""

    from_step: int
    text: str
    output: Any = None


def explain(error: Exception) -> str:
    """Return what a planner is told of an exception: the tool's own words, or the message and what to do next."""
    if isinstance(error, ToolFailure):
        return error.text
    message = clip(str(error).strip() or type(error).__name__, REASON_CHARS)
    return f"Failed: {message}. Change the arguments or use another tool."


@attrs.define(eq=False)
class Call:
    """One tool call on its way. `checked` is its valid input; what hooks and resolvers make of it replaces it."""

    call_id: str
    tool: Tool
    brief: str
    checked: CheckedInput
    recent: tuple[Exchange, ...] = ()
    # What the model is told of an exception that is no `ToolFailure`'s: the loops word it differently.
    explain: Callable[[Exception], str] = explain
    # What `ctx.suspend` does; None: the tool may not.
    suspend: Callable[[Any], Awaitable[Any]] | None = None
    asks: tuple[tuple[str, str], ...] = ()
    # Why the arguments turned out to be unusable after all, in the resolver's words.
    invalid: str | None = None
    outcome: ToolOutcome | None = None
    whole_batch: bool = False
    skip_reason: SkipReason | None = None
    result: str = ""
    ms: float = 0.0
    # Invariant: `index` is its step's place in the journal, None until it is recorded; `told` once ToolFinished is out.
    index: int | None = None
    told: bool = False
    # Invariant (10): set when the gate is passed; nothing replaces `checked` from then on.
    passed: bool = False

    @property
    def input(self) -> FrozenDict:
        """The input as it is shown everywhere."""
        return self.checked.data

    @property
    def live(self) -> bool:
        """True while nothing has decided how the call ends."""
        return self.outcome is None and self.invalid is None

    def skip(self, reason: SkipReason, text: str, extension: str | None = None) -> None:
        """Decide that the call is not executed."""
        self.skip_reason = reason
        self.outcome = ToolOutcome("skipped", reason=reason, extension=extension)
        self.result = text


# --- the gate -------------------------------------------------------------------------------------------------------


async def gate(work: Work, call: Call, duplicate: Callable[[Call], Cached | None] | None = None) -> None:
    """Pass a call through `before_tool`, its own `resolve_input`, and the look for an identical one.

    Afterwards the call is live, or skipped, or cached, or `invalid` says why its arguments cannot be used.

    Arguments: `duplicate` finds an identical earlier call; it may raise to end the loop.

    Raises: `RunStopped`; `GoliathExtensionError`, also for a replacement that does not fit the tool's schema.

    Cancellation: honoured before and after each hook; nothing was recorded.
    """
    await _before_tool(work, call)
    if call.live and call.tool.resolve_input is not None:
        await _resolve(work, call)
    await trio.lowlevel.checkpoint_if_cancelled()
    if call.live and duplicate is not None:
        cached = duplicate(call)
        if cached is not None:
            call.outcome = ToolOutcome("cached", from_step=cached.from_step)
            call.result = cached.text
    call.passed = True


async def _before_tool(work: Work, call: Call) -> None:
    if not work.panel.hears("before_tool"):
        return
    # Transforms in a schema run once per check, so the object that was checked is kept, not checked again.
    checked = [call.checked]

    def check(answer: Mapping[str, Any]) -> Mapping[str, Any]:
        checked.append(call.tool.check(thaw(answer)))
        return checked[-1].data

    question = BeforeTool(
        call.call_id, call.tool.descriptor, call.input, call.brief, tuple(work.journal.steps), check=check
    )
    decision = await work.panel.decide("before_tool", question)
    call.checked = next(known for known in reversed(checked) if known.data is decision.question._input)
    call.asks = decision.asks
    verdict = decision.verdict
    if isinstance(verdict, Stop):
        raise work.panel.stop("before_tool", decision)
    if isinstance(verdict, Deny):
        reason = clip(verdict.reason.strip(), REASON_CHARS) or "no reason given"
        text = f"Denied by {decision.extension}: {reason}. Do not try it again unless the user asks for it."
        call.skip("policy", text, decision.extension)
        call.whole_batch = verdict.whole_batch


async def _resolve(work: Work, call: Call) -> None:
    """Let the tool put real values in place of references, and check them again."""
    resolve = call.tool.resolve_input
    assert resolve is not None
    try:
        answer = resolve(thaw(call.input), context_of(work, call))
        if inspect.isawaitable(answer):
            answer = await answer
        call.checked = call.tool.check(answer)
    except ToolInputError as error:
        call.invalid = str(error)
    except Exception as error:  # noqa: BLE001  # the tool's own code; its words go to whoever asked
        call.invalid = clip(str(error).strip() or type(error).__name__, REASON_CHARS)


def context_of(work: Work, call: Call) -> ToolContext[Any]:
    """Return what the tool gets as its first parameter, if it takes one."""
    return ToolContext(
        context=work.context,
        run_id=work.journal.run_id,
        conversation_id=work.journal.conversation_id,
        call_id=call.call_id,
        steps=tuple(work.journal.steps[: call.index]),  # those before this one, which is recorded by now
        recent=call.recent,
        result_budget=ContentBudgets(work.window).result,
        submit=work.submit,
        suspend=call.suspend,
    )


# --- confirmation ---------------------------------------------------------------------------------------------------


def needs_confirmation(call: Call) -> bool:
    """Say whether a person is asked: for writes, for tools that want it, and where a hook answered `Ask`."""
    return call.tool.writes or bool(call.tool.confirm) or bool(call.asks)


async def confirm(work: Work, call: Call) -> Suspend | None:
    """Ask the application whether the call may go ahead; a refusal, an expiry included, skips it.

    Returns: `Suspend` if the callback wants the run to wait instead (the caller decides what that means), else None.

    Raises: what the callback raised, and `ConfigError` for an answer that is none, with origin `confirm`.

    Cancellation: honoured; nothing was executed or recorded.
    """
    journal = work.journal
    if work.confirm is None:
        reason = "nobody can be asked here"
        journal.emit(Confirm, tool=call.tool.name, approved=False, reason=reason)
        call.skip("confirmation", f"This needs a confirmation, and {reason}. Do not try it again.")
        return None
    await trio.lowlevel.checkpoint_if_cancelled()
    journal.enter("confirm")
    request = ConfirmRequest(
        call.call_id,
        call.tool.descriptor,
        thaw(call.input),
        call.brief,
        journal.run_id,
        journal.conversation_id,
        work.context,
    )
    limit = math.inf if work.confirm_timeout is None else work.confirm_timeout
    answer: Any = None
    with work.paused(), journal.origin("confirm"), trio.move_on_after(limit) as waiting:
        answer = work.confirm(request)
        if inspect.isawaitable(answer):
            answer = await answer
        _check_answer(answer)
    if waiting.cancelled_caught:
        answer = Confirmed(False, f"nobody answered within {limit:g} s")
    if isinstance(answer, Suspend):
        return answer
    approved, reason = (answer.approved, answer.reason) if isinstance(answer, Confirmed) else (answer, "")
    journal.emit(Confirm, tool=call.tool.name, approved=approved, reason=reason or None)
    if not approved:
        why = f": {clip(reason.strip(), REASON_CHARS)}" if reason.strip() else ""
        call.skip("confirmation", f"Declined by the user{why}. Do not try it again unless the user asks for it.")
    await trio.lowlevel.checkpoint_if_cancelled()
    return None


def _check_answer(answer: object) -> None:
    if isinstance(answer, bool | Suspend):
        return
    if isinstance(answer, Confirmed) and isinstance(answer.approved, bool) and isinstance(answer.reason, str):
        return
    raise ConfigError(f"confirm must return a bool, a Confirmed or a Suspend, not {answer!r}")


# --- the record -----------------------------------------------------------------------------------------------------


def provisional(work: Work, call: Call) -> Step:
    """Return the step as it stands before the tool starts: it may have happened (invariant 9)."""
    outcome = call.outcome
    return Step(
        index=len(work.journal.steps),
        kind="tool",
        brief=call.brief,
        tool=call.tool.name,
        call_id=call.call_id,
        input=call.input,
        status="unknown" if outcome is None else outcome.status,
        skip_reason=call.skip_reason,
        extension=None if outcome is None else outcome.extension,
        from_step=None if outcome is None else outcome.from_step,
        result=UNFINISHED if outcome is None else call.result,
        writes=call.tool.writes,
    )


def record(work: Work, call: Call, output: Any = None) -> None:
    """Put the call's step into the journal and say that it began. From here on `close` must be called."""
    step = provisional(work, call)
    if output is not None:
        step = attrs.evolve(step, output=output)
    call.index = step.index
    work.journal.steps.append(step)
    work.journal.emit(ToolStarted, call_id=call.call_id, tool=call.tool.name, input=call.input)


def _update(work: Work, call: Call, **changes: Any) -> None:
    assert call.index is not None
    work.journal.steps[call.index] = attrs.evolve(work.journal.steps[call.index], **changes)


def close(work: Work, call: Call) -> None:
    """In a clean-up: say that a recorded call is over, if nothing has said so yet. Never raises."""
    if call.index is None or call.told:
        return
    step = work.journal.steps[call.index]
    call.told = True
    work.journal.emit_closing(
        ToolFinished,
        call_id=call.call_id,
        tool=call.tool.name,
        input=call.input,
        status=step.status,
        result=step.result or "",
        ms=call.ms,
    )


# --- execution ------------------------------------------------------------------------------------------------------


async def execute(work: Work, call: Call) -> None:
    """Run a live, recorded call's tool inside `around_tool`, and note how it ended.

    Raises: `GoliathExtensionError` for a hook's own error. What the tool raised is an outcome.

    Cancellation: passes; the step stays `unknown`, and a thread that was running is abandoned.
    """
    journal = work.journal
    journal.enter(f"tool:{call.tool.name}")
    raised: list[Exception] = []

    async def inner(question: AroundTool) -> Any:
        start = trio.current_time()
        try:
            return await _perform(work, call)
        except Exception as error:
            raised.append(error)
            raise
        finally:
            call.ms += (trio.current_time() - start) * 1000

    question = AroundTool(call.call_id, call.tool.descriptor, call.input)
    try:
        output = await work.panel.nest("around_tool", question, inner)
    except Exception as error:
        if all(error is not known for known in raised):
            raise
        _failed(work, call, error)
        return
    call.outcome = ToolOutcome("executed", output=output)
    _update(work, call, status="executed", result=UNPROCESSED, output=freeze(snapshot(output)))
    if call.tool.on_output is not None:
        await _observe_output(work, call, output)


async def _perform(work: Work, call: Call) -> Any:
    """Call the tool with arguments of its own: an async one here, a plain one in a thread (R16)."""
    tool, context = call.tool, context_of(work, call)
    limit = math.inf if tool.timeout is None else tool.timeout
    with trio.move_on_after(limit) as scope:
        if tool.is_async:
            value = tool.start(call.checked, context)
        else:
            # In a tuple, since a plain function may return an awaitable, which threads refuse to pass on.
            (value,) = await work.threads.run(lambda: (tool.start(call.checked, context),))
        if inspect.isawaitable(value):
            value = await value
        return value
    assert scope.cancelled_caught
    raise ToolTimeout(f"{tool.name} did not finish within {limit:g} s.")


def _failed(work: Work, call: Call, error: Exception) -> None:
    # A write that broke off may have happened, unless the tool itself says that it failed.
    sure = not call.tool.writes or (isinstance(error, ToolFailure) and not isinstance(error, ToolTimeout))
    status: Literal["failed", "unknown"] = "failed" if sure else "unknown"
    call.outcome = ToolOutcome(status, error=error)
    call.result = call.explain(error)
    if status == "unknown":
        call.result = f"{clip(call.result, 400)} It may have taken effect: look before doing it again."
    _update(work, call, status=status, result=cap_result(work, call, call.result))


async def _observe_output(work: Work, call: Call, output: Any) -> None:
    # The tool has been executed: what its observer raises cannot undo that, so it is a diagnostic.
    assert call.tool.on_output is not None
    try:
        answer = call.tool.on_output(output, context_of(work, call))
        if inspect.isawaitable(answer):
            await answer
    except Exception as error:  # noqa: BLE001
        work.journal.note(call.tool.name, "on_output", error)


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
        before = tuple(journal.steps[: call.index] if prior is None else prior)
        question = AfterTool(call.call_id, call.tool.descriptor, call.input, call.result, outcome, before)
        decision = await work.panel.decide("after_tool", question)
        call.result = decision.question.result
    call.result = cap_result(work, call, call.result)
    _update(work, call, result=call.result)
    call.told = True
    journal.emit(
        ToolFinished,
        call_id=call.call_id,
        tool=call.tool.name,
        input=call.input,
        status=outcome.status,
        result=call.result,
        ms=call.ms,
    )


def _words(work: Work, call: Call, output: Any) -> str:
    formatter = call.tool.to_model_output
    try:
        if formatter is not None:
            text = formatter(output)
            if not isinstance(text, str):
                raise TypeError(f"to_model_output must return a string, not {type(text).__name__}")
            return text
        if call.tool.output_mode == "content":
            return output if isinstance(output, str) else json.dumps(thaw(snapshot(output)), ensure_ascii=False)
        return summarise(output)
    except Exception as error:  # noqa: BLE001  # the effect stands, whatever becomes of its description
        work.journal.blame(error, "formatter")
        work.journal.note(call.tool.name, "to_model_output", error)
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
        raise ToolInputError(name, (call.invalid,))
    assert call.outcome is not None
    return call.outcome
