"""One model request, for both loops: messages, budget, hooks, attempts.

What can go wrong on the provider's side comes back as a value (`Failure`), so that a loop decides what it
means; what an extension or an application did wrong is raised as it is.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs
import trio

from ._answers import check_messages
from ._budget import PromptCounts, count_prompt, source_of
from ._decisions import StreamVerdict
from ._frozen import freeze
from ._generation import Cut, Generation
from ._provider import CounterFailed, Failure, classify, describe, prompt_parts
from ._stream import Screen
from ._work import Route, Work
from .abc import Model, ModelRequest, ModelResponse, ToolSpec
from .errors import GoliathBudgetError, ModelError
from .events import Budget, HookDecision
from .hooks import AfterResponse, AroundModel, BeforeRequest, ModelPatch
from .values import Message

__all__ = ["Reply", "Wanted", "ask_model", "say"]

RETRY_AFTER_AT_MOST = 60.0  # T11: a longer pause is not waited for, the attempt counts as failed for good
BACKOFF_FIRST, BACKOFF_AT_MOST = 0.5, 8.0  # seconds; "full jitter": uniform between 0 and first * 2 ** retries
# `ModelError.code` of a reply with neither text nor calls: the loops know better than to send the same again.
EMPTY_REPLY = "empty"
STALE_CONNECTION = "stale-connection"  # `ModelError.code` of a kept connection that was dead before any byte came
VISIBLE_ROLES = frozenset({"answer", "step"})


# --- values ---------------------------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class Wanted:
    """What a loop wants asked.

    `messages` are sent as they are, unless `render(compact)` makes them; that is asked for the compact form only if the
    full one does not fit and `compactable`. `limit` is in tokens of input, `output_cap` in tokens of output.
    """

    role: str
    label: str
    limit: int
    output_cap: int | None
    route: Route
    messages: tuple[Message, ...] = ()
    render: Callable[[bool], tuple[Message, ...]] | None = None
    schema: Mapping[str, Any] | None = None
    tools: tuple[ToolSpec, ...] = ()
    compactable: bool = False
    # Counts message by message, for a prompt that begins as the last one did; None: the prompt is counted as a whole.
    counts: PromptCounts | None = None
    # What of schema and tools costs tokens, for `counts`.
    words: str = ""


@attrs.frozen(eq=False)
class Reply:
    """A complete reply."""

    response: ModelResponse

    @property
    def text(self) -> str:
        """The reply's text."""
        return self.response.message.text

    @property
    def cut_off(self) -> bool:
        """True if the reply ended because it was too long."""
        return self.response.finish_reason == "length"


# --- one request ----------------------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class _Attempt(AroundModel):
    """The question of `around_model` with what a hook may change but has no need to see."""

    _route: Route | None = attrs.field(default=None, alias="route")
    _timeout: float = attrs.field(default=math.inf, alias="timeout")

    @property
    def route(self) -> Route:
        assert self._route is not None
        return self._route


def _name_of(model: Model | None) -> str:
    """Return a model's name; one that a patch brought may have none."""
    name = getattr(model, "name", "")
    return name if isinstance(name, str) else ""


def ask_model(work: Work, wanted: Wanted, screen: Screen) -> Awaitable[Reply | Failure | StreamVerdict]:
    """Return what makes one model request, with as many attempts as the model allows (T11).

    Returns: the reply; a `Failure`, after the last attempt; or what a `transform_stream` said through its control,
    text that is out not yet retracted.

    Raises, when awaited: `GoliathExtensionError` for a hook's error; what an event callback raised; `ScriptExhausted`.

    Cancellation: the connection is closed, `ModelFinished` is told, usage so far is booked.
    """
    return _Asking(work, wanted, screen, wanted.role in VISIBLE_ROLES).ask()


async def _inside(scope: trio.CancelScope, answer: Awaitable[ModelResponse]) -> ModelResponse | None:
    with scope:
        return await answer
    return None


def _retries(model: Model) -> int:
    retries = getattr(model, "retries", 0)
    return retries if isinstance(retries, int) and retries > 0 else 0


@attrs.define(eq=False)
class _Asking:
    work: Work
    wanted: Wanted
    screen: Screen
    # The reply's text is shown while it streams, through `transform_stream`.
    visible: bool
    # Of the messages that were counted last, which tokens are for.
    messages: tuple[Message, ...] = ()
    tokens: int = 0
    retried: int = 0
    reconnected: bool = False
    # The model of the last generation: retries are its, not those of the route that was patched away.
    model: Model | None = None
    # Errors that came out of a model, by identity: everything else that passes is not the provider's.
    failed: tuple[Exception, ...] = ()
    # Our own word that a patched prompt does not fit.
    too_large: GoliathBudgetError | None = None
    # The first error of an extension or a callback inside a generation: no hook around it may make it unsaid.
    broken: Exception | None = None
    streamed: ModelResponse | None = None
    generation: Generation | None = None
    # Only a transform ends an attempt from inside; every other attempt is spared the scope.
    cut: Cut | None = None

    async def ask(self) -> Reply | Failure | StreamVerdict:
        """Make attempts until one succeeds, or until there is to be no other.

        Why the wait for the model is in here, and not in a method for one attempt: thousands of runs wait for theirs at
        a time, and each coroutine that does is one more for the garbage collector to look at.
        """
        number = 0
        while True:
            result: Reply | Failure | StreamVerdict
            request = await self._prepared(number)
            if isinstance(request, Failure):
                result = request
            else:
                problem: Exception | None = None
                response: ModelResponse | None = None
                try:
                    response = await self._answer(request)
                except Exception as error:  # noqa: BLE001  # sorted below: ours, an extension's, or the provider's
                    problem = error
                result = await self._result(response, problem)
            if not isinstance(result, Failure):
                return result
            await trio.lowlevel.checkpoint_if_cancelled()
            pause = self.pause(result)
            if pause is None:
                return result
            number += 1
            await trio.sleep(pause)

    def pause(self, failure: Failure) -> float | None:
        """Return the seconds to wait before the next attempt, None if there is to be none."""
        error = failure.error
        if self.screen.out or not isinstance(error, ModelError) or self.model is None:
            return None
        if error.code == STALE_CONNECTION and not self.reconnected:
            self.reconnected = True
            return 0.0
        if error.code == EMPTY_REPLY or not error.retryable or self.retried >= _retries(self.model):
            return None
        after = error.retry_after
        backoff = random.uniform(0, min(BACKOFF_AT_MOST, BACKOFF_FIRST * 2**self.retried))
        if isinstance(after, int | float) and math.isfinite(after) and after >= 0:
            if after > RETRY_AFTER_AT_MOST:
                return None
            backoff = float(after)
        self.retried += 1
        return backoff

    async def _prepared(self, number: int) -> ModelRequest | Failure:
        """Return the request of an attempt, if its prompt fits."""
        work, wanted = self.work, self.wanted
        try:
            messages = await self._messages(number)
        except CounterFailed as error:
            return Failure("model-error", error)
        if number == 0:
            work.journal.emit(
                Budget,
                label=wanted.label,
                tokens=self.tokens,
                limit=wanted.limit,
                source=source_of(work.counter),
                counter=work.counter.name,
            )
        if self.tokens > wanted.limit:
            too_large = GoliathBudgetError(wanted.label, self.tokens, wanted.limit)
            return Failure("context-budget", too_large, over_budget=True)
        await trio.lowlevel.checkpoint_if_cancelled()
        self.cut = Cut() if self.visible and work.panel.hears("transform_stream") else None
        self.streamed = self.too_large = None
        self.failed = ()
        return ModelRequest(
            wanted.role,
            messages,
            None if wanted.schema is None else freeze(wanted.schema),
            wanted.tools,
            freeze(wanted.route.settings),
            freeze(wanted.route.provider_options),
            wanted.output_cap,
            number,
        )

    def _answer(self, request: ModelRequest) -> Awaitable[ModelResponse | None]:
        """Return what asks the model, inside `around_model`; it gives None if a transform ended it."""
        route = self.wanted.route
        if self.work.panel.hears("around_model"):
            answer = self._nested(_Attempt(request, request.attempt, _name_of(route.model), route))
        else:
            answer = self._generate(request, route.model, math.inf)
        return answer if self.cut is None else _inside(self.cut.scope, answer)

    async def _nested(self, question: _Attempt) -> ModelResponse:
        response = await self.work.panel.nest("around_model", question, self._innermost, self._patched)
        if self.broken is not None or response is self.streamed:
            return response
        return await self._canonical(response)

    async def _result(
        self, response: ModelResponse | None, problem: Exception | None
    ) -> Reply | Failure | StreamVerdict:
        """Say what an attempt came to.

        Raises: what is not the provider's.
        """
        if self.broken is not None:
            raise self.broken
        if problem is not None and all(problem is not known for known in self.failed):
            raise problem
        if self.cut is not None and self.cut.verdicts:
            # What a control ended is over; that the model then failed to close in good order changes nothing.
            return await self._cut_short(self.cut.verdicts[0])
        if response is not None:
            return Reply(response)
        assert problem is not None
        if self.too_large is not None and problem is self.too_large:
            return Failure("context-budget", self.too_large, over_budget=True)
        return Failure("model-error" if isinstance(problem, CounterFailed) else classify(problem), problem)

    async def _messages(self, number: int) -> tuple[Message, ...]:
        """Return the messages of this attempt, after compaction and `before_request`, and count them."""
        wanted, panel = self.wanted, self.work.panel
        messages = wanted.messages if wanted.render is None else wanted.render(False)
        self._count(messages)
        if self.tokens > wanted.limit and wanted.compactable and wanted.render is not None:
            messages = wanted.render(True)
            self._count(messages)
        if panel.hears("before_request"):
            decision = await panel.decide("before_request", BeforeRequest(messages, wanted.role, number))
            if decision.question.messages is not messages:
                messages = decision.question.messages
                self._count(messages)
            self.work.journal.enter(wanted.role)
        return messages

    def _count(self, messages: tuple[Message, ...]) -> None:
        wanted, counter = self.wanted, self.work.counter
        try:
            if wanted.counts is not None:
                self.tokens = wanted.counts.count(messages, wanted.words)
            else:
                self.tokens = count_prompt(counter, *prompt_parts(messages, wanted.schema, wanted.tools))
        except Exception as error:  # the counter is the application's; whatever it raises is a provider failure
            raise CounterFailed(f"token counter {counter.name!r} failed: {describe(error)}") from error
        self.messages = messages

    def _patched(self, question: _Attempt, patch: Any) -> _Attempt:
        """Apply what a hook gave to `call_next` (T10).

        Raises: `ValueError` for what is no usable patch.
        """
        _check_patch(patch)
        route = question.route.patched(patch)
        request = attrs.evolve(
            question.request,
            messages=question.request.messages if patch.messages is None else tuple(patch.messages),
            settings=freeze(route.settings),
            provider_options=freeze(route.provider_options),
        )
        timeout = question._timeout if patch.timeout is None else patch.timeout
        return attrs.evolve(question, request=request, model=_name_of(route.model), route=route, timeout=timeout)

    # --- one generation ---------------------------------------------------------------------------------------------

    async def _innermost(self, question: _Attempt) -> ModelResponse:
        return await self._generate(question.request, question.route.model, question._timeout)

    async def _generate(self, request: ModelRequest, model: Model, timeout: float) -> ModelResponse:
        """Ask the model once, for `timeout` seconds at most, and tell `after_response` how it went."""
        work = self.work
        if request.messages is not self.messages and request.messages != self.messages:
            self._recount(request.messages)
        self.screen.retract()  # a second `call_next`: what the first let out is withdrawn
        self.model = model
        generation = self._new_generation()
        try:
            with generation.calling(request):
                if timeout == math.inf:
                    outcome = await generation.read(model)
                else:
                    outcome = await generation.read_within(model, timeout)
        except Exception as error:
            self.broken = self.broken or error
            raise
        if isinstance(outcome, Exception):
            self.failed += (outcome,)
        if work.panel.hears("after_response"):
            if isinstance(outcome, Exception):
                terminal = AfterResponse(request.role, None, outcome, generation.usage, _name_of(self.model))
            else:
                terminal = AfterResponse(request.role, outcome.message, None, generation.usage, _name_of(self.model))
            await work.panel.observe("after_response", terminal)
            work.journal.enter(request.role)
        if isinstance(outcome, Exception):
            raise outcome
        self.streamed = outcome
        return outcome

    def _recount(self, messages: tuple[Message, ...]) -> None:
        """Count messages that a patch replaced; they must fit like any others."""
        try:
            self._count(messages)
        except CounterFailed as error:
            self.failed += (error,)
            raise
        if self.tokens > self.wanted.limit:
            self.too_large = GoliathBudgetError(self.wanted.label, self.tokens, self.wanted.limit)
            self.failed += (self.too_large,)
            raise self.too_large

    async def _canonical(self, response: ModelResponse) -> ModelResponse:
        """An answer of `around_model` that is not what the last `call_next` streamed is sent through
        `transform_stream` as if it had been, after a retraction if text was out."""
        last = self.streamed
        if not self.visible or (last is not None and response.message == last.message):
            return response
        self.screen.retract()
        return await self._new_generation().replay(response)

    def _new_generation(self) -> Generation:
        self.generation = Generation(self.work, self.screen, self.visible, self.tokens, self.cut)
        return self.generation

    async def _cut_short(self, verdict: StreamVerdict) -> StreamVerdict:
        """Tell of a reply that a transform ended; nothing after its first word counts."""
        generation, panel = self.generation, self.work.panel
        _tell(self.work, verdict)
        assert generation is not None
        if panel.hears("after_response"):
            heard = generation.heard
            message = heard.response(heard).message
            await panel.observe(
                "after_response", AfterResponse(self.wanted.role, message, None, heard.usage, _name_of(self.model))
            )
        return verdict


async def say(work: Work, screen: Screen, text: str) -> str | StreamVerdict:
    """Send a text that no model made through `transform_stream`, as if one had streamed it.

    Returns: what came out, or what a transform said through its control (told, text that is out not yet retracted).

    Raises: `GoliathExtensionError`; what an event callback raised.

    Cancellation: honoured; what was shown stays shown.
    """
    cut = Cut()
    generation = Generation(work, screen, True, 0, cut)
    shown = ""
    with cut.scope:
        shown = (await generation.replay(ModelResponse(Message("assistant", text)))).message.text
    if not cut.verdicts:
        return shown
    verdict = cut.verdicts[0]
    _tell(work, verdict)
    return verdict


def _tell(work: Work, verdict: StreamVerdict) -> None:
    """Tell what a transform said through its control."""
    work.journal.emit(
        HookDecision,
        extension=verdict.extension,
        phase="transform_stream",
        decision=verdict.kind,
        reason=verdict.reason or verdict.text or None,
    )


def _check_patch(patch: object) -> None:
    if not isinstance(patch, ModelPatch):
        raise ValueError(f"call_next takes a ModelPatch, not {type(patch).__name__}")
    if patch.messages is not None:
        check_messages(None, patch.messages)
    if patch.model is not None and not callable(getattr(patch.model, "stream", None)):
        raise ValueError(f"model must have a stream method, {type(patch.model).__name__} has none")
    for name in ("settings", "provider_options"):
        value = getattr(patch, name)
        if value is not None and not isinstance(value, Mapping):
            raise ValueError(f"{name} must be a mapping, not {type(value).__name__}")
    seconds = patch.timeout
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0):
        raise ValueError(f"timeout must be a number of seconds above 0, not {seconds!r}")
