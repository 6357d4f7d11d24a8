"""A tool call on its way: its gate, and the question to a person whether it may go ahead.

All rewriting ends here (invariant 10): what leaves the gate is what is confirmed, executed and recorded.
"""

from __future__ import annotations

import inspect
import math
import weakref
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Literal, TypeAlias

import attrs
import trio

from ._budget import ContentBudgets
from ._callables import alone, below, call_with
from ._client import NOBODY
from ._frozen import FrozenDict, thaw
from ._leaves import bare, in_words
from ._text import clip
from ._waiting import WaitingCall
from ._work import Work
from .errors import ConfigError, ToolFailure, ToolInputError
from .events import Confirm, ToolProgress
from .hooks import BeforeTool, Deny, Stop
from .tools import CheckedInput, Confirmed, ConfirmRequest, Suspend, Tool, ToolContext, ToolOutcome
from .values import Exchange

__all__ = [
    "NEW_MESSAGE_REASON",
    "Cached",
    "Call",
    "confirm",
    "context_of",
    "decline",
    "explain",
    "gate",
    "needs_confirmation",
]

REASON_CHARS = 160  # characters of an error or of a denial's reason inside a result
NEW_MESSAGE_REASON = "a new message came instead of an answer"

SkipReason: TypeAlias = Literal["policy", "confirmation", "missing", "batch"]


@attrs.frozen(eq=False)
class Cached:
    """An identical read that was already made: `from_step` is its index, `text` what the model is told."""

    from_step: int
    text: str
    output: Any = None


def explain(call: Call, error: Exception) -> str:
    """Return what a planner is told of an exception: the tool's own words, or the message and what to do next."""
    if isinstance(error, ToolFailure):
        return error.text
    return f"Failed: {clip(_told(error), REASON_CHARS)}. Change the arguments or use another tool."


def _told(error: Exception) -> str:
    """What an exception says. One word, or the key of a `KeyError`, says too little without the name of its type."""
    kind = type(error).__name__
    said = in_words(error).strip() or kind
    alone = isinstance(error, KeyError) or len(said.split()) == 1
    return f"{kind}: {said}" if alone and said != kind else said


@attrs.define(eq=False)
class Call:
    """One tool call on its way. `checked` is its valid input; what hooks and resolvers make of it replaces it."""

    call_id: str
    tool: Tool
    brief: str
    checked: CheckedInput
    recent: tuple[Exchange, ...] = ()
    # What the model is told of an exception that is no `ToolFailure`'s: the loops word it differently. It is given the
    # call rather than made for it: what a call and its run are made of would otherwise wait for the garbage collector.
    explain: Callable[[Call, Exception], str] = explain
    # Where `explain` keeps the error from the model: what ToolFinished says of it instead.
    reported: str | None = None
    # What `ctx.suspend` does; None: the tool may not.
    suspend: Callable[[Any], Awaitable[Any]] | None = None
    # What was mended in a model's text before it could be read, and what it then said.
    repairs: tuple[str, ...] = ()
    written: FrozenDict | None = None
    asks: tuple[tuple[str, str], ...] = ()
    # What `suspend` returns before it waits for more: the tool is entered again from its beginning.
    answers: tuple[Any, ...] = ()
    # What it had asked for, of a call that is taken up.
    asked: Any = None
    # Set while the call waits for a person (native tool loop): it is not over, and not executed in this run.
    waiting: WaitingCall | None = None
    # Why the arguments turned out to be unusable after all, in the resolver's words, and the error itself.
    invalid: str | None = None
    unusable: Exception | None = None
    outcome: ToolOutcome | None = None
    whole_batch: bool = False
    skip_reason: SkipReason | None = None
    result: str = ""
    ms: float = 0.0
    # Invariant: `index` is its step's place in the journal, None until it is recorded; `told` once ToolFinished is out.
    index: int | None = None
    told: bool = False
    # Invariant (9): `started` before the tool's own code can run; `performed` once it has come to its end.
    started: bool = False
    performed: bool = False
    # Invariant (10): set when the gate is passed; nothing replaces `checked` from then on.
    passed: bool = False

    @property
    def input(self) -> FrozenDict:
        """The input as it is shown everywhere."""
        return self.checked.data

    @property
    def live(self) -> bool:
        """True while nothing has decided how the call ends."""
        return self.outcome is None and self.invalid is None and self.waiting is None

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

    Cancellation: honoured before and after each hook, and behind the resolver; nothing was recorded.
    """
    if work.panel.hears("before_tool"):
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
    # Transforms in a schema run once per check, so the object that was checked is kept, not checked again.
    checked = [call.checked]

    def check(answer: Mapping[str, Any]) -> Mapping[str, Any]:
        checked.append(call.tool.check(thaw(answer)))
        return checked[-1].data

    question = BeforeTool(call.call_id, call.tool.descriptor, call.input, call.brief, work.journal.steps, check=check)
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
    work.journal.enter(f"tool:{call.tool.name}")
    problem: Exception | None = None
    try:
        with work.journal.running("tool"):
            answer = alone(partial(call_with, resolve, (thaw(call.input),), context_of(work, call), rest=True))
            if inspect.isawaitable(answer):
                answer = await answer
        call.checked = call.tool.check(answer)
    except Exception as error:  # noqa: BLE001  # the tool's own code; its words go to whoever asked
        problem = bare(below(error))  # it may have a nursery of its own
    if problem is None:
        return
    call.unusable = problem
    if isinstance(problem, ToolFailure):
        call.invalid = problem.text
    elif isinstance(problem, ToolInputError):
        call.invalid = str(problem)
    else:
        call.invalid = clip(_told(problem), REASON_CHARS)
    if not isinstance(problem, ToolFailure):  # that one has its own word said, and nothing to find out
        work.journal.note(call.tool.name, "resolve_input", problem, call.call_id)


def context_of(work: Work, call: Call) -> ToolContext[Any]:
    """Return what the tool gets as its first parameter, if it takes one."""
    return ToolContext(
        context=work.context,
        run_id=work.journal.run_id,
        conversation_id=work.journal.conversation_id,
        call_id=call.call_id,
        steps=work.journal.steps[: call.index],  # those before this one, which is recorded by now
        recent=call.recent,
        result_budget=ContentBudgets(work.window).result,
        submit=partial(_anywhere, work.submit),
        suspend=call.suspend,
        report=_reporter(work, call),
        delegating=work.delegating,
        answers=call.answers,
        asked=call.asked,
    )


REPORT_SECONDS = 0.1  # between two reports of a call; people cannot follow more
REPORT_SHARE = 0.01  # of the time since the first one: an hour has a few hundred, whatever the tool does


def _reporter(work: Work, call: Call) -> Callable[[float, float | None, str], None]:
    """Return what `ctx.report` does: an event, unless one was just told, or the call is over."""
    # A tool that raised is known to its error by its frames, and so is the context; the call and the journal keep the
    # error. Held fast here, all of it would wait for the garbage collector.
    running, told_by = weakref.ref(call), weakref.ref(work.journal)
    first: float | None = None
    last: float | None = None

    def report(progress: float, total: float | None, message: str) -> None:
        nonlocal first, last
        call, journal = running(), told_by()
        if call is None or journal is None or call.told or not call.started:
            return
        now = trio.current_time()
        if first is None or last is None:
            first = now
        elif now - last < max(REPORT_SECONDS, (now - first) * REPORT_SHARE):
            return
        last = now
        # In a clean-up's manner: what a callback raises must not come out of the middle of a tool.
        journal.emit_closing(
            ToolProgress,
            call_id=call.call_id,
            tool=call.tool.name,
            progress=progress,
            total=total,
            message=clip(message, REASON_CHARS),
        )

    return partial(_anywhere, report)


def _anywhere(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call what a tool may call of its context: of a plain tool, in whose thread it is asked, in the run's own."""
    if trio.lowlevel.in_trio_task():
        return function(*args, **options)
    return trio.from_thread.run_sync(partial(function, *args, **options))


# --- confirmation ---------------------------------------------------------------------------------------------------


def needs_confirmation(call: Call) -> bool:
    """Say whether a person is asked: for writes, for tools that want it, and where a hook answered `Ask`."""
    return call.tool.writes or bool(call.tool.confirm) or bool(call.asks)


async def confirm(work: Work, call: Call) -> Suspend | None:
    """Ask the application whether the call may go ahead; a refusal skips it, and so does an expiry or a new message.

    Returns: `Suspend` if the callback wants the run to wait instead (the caller decides what that means), else None.

    Raises: what the callback raised, and `ConfigError` for an answer that is none, with origin `confirm`.

    Cancellation: honoured; nothing was executed or recorded.
    """
    journal = work.journal
    if work.confirm is None:
        reason = NOBODY
        journal.emit(Confirm, tool=call.tool.name, approved=False, reason=reason)
        call.skip("confirmation", f"This needs a confirmation, and {reason}. Do not try it again.")
        return None
    await trio.lowlevel.checkpoint_if_cancelled()
    if journal.superseded:
        _settle(work, call, Confirmed(False, NEW_MESSAGE_REASON))
        return None
    journal.enter("confirm")
    request = ConfirmRequest(
        call.call_id,
        call.tool.descriptor,
        thaw(call.input),
        call.brief,
        journal.run_id,
        journal.conversation_id,
        work.context,
        work.panel.agent_name,
    )
    limit = math.inf if work.confirm_timeout is None else work.confirm_timeout
    answer: bool | Confirmed | Suspend = False
    with work.run.asking_a_person(), journal.origin("confirm"), trio.move_on_after(limit) as waiting:
        journal.question = waiting
        try:
            said: Any = work.confirm(request)  # Any: the application's, checked below
            if inspect.isawaitable(said):
                said = await said
        finally:
            journal.question = None
        answer = _checked(said)
    if waiting.cancelled_caught:
        late = f"nobody answered within {limit:g} s"
        answer = Confirmed(False, NEW_MESSAGE_REASON if journal.superseded else late)
    else:
        journal.superseded = False  # it was answered all the same: a rule's word, or given in the same moment
    if isinstance(answer, Suspend):
        return answer
    _settle(work, call, answer)
    await trio.lowlevel.checkpoint_if_cancelled()
    return None


def _settle(work: Work, call: Call, answer: bool | Confirmed) -> None:
    approved, reason = (answer.approved, answer.reason) if isinstance(answer, Confirmed) else (answer, "")
    work.journal.emit(Confirm, tool=call.tool.name, approved=approved, reason=reason or None)
    if not approved:
        decline(call, reason)


def decline(call: Call, reason: str) -> None:
    """Decide that a call is not executed, since a person does not want it."""
    why = f": {clip(reason.strip(), REASON_CHARS)}" if reason.strip() else ""
    call.skip("confirmation", f"Declined by the user{why}. Do not try it again unless the user asks for it.")


def _checked(answer: object) -> bool | Confirmed | Suspend:
    if isinstance(answer, bool | Suspend):
        return answer
    if isinstance(answer, Confirmed) and isinstance(answer.approved, bool) and isinstance(answer.reason, str):
        return answer
    # `Suspend` is left out on purpose: whoever meant it has it, and under a planned loop nothing can wait.
    raise ConfigError(f"confirm must return True, False or a Confirmed(approved, reason), not {answer!r}")
