"""One model request, for both loops: messages, budget, hooks, stream, response, retries.

Floor 3. What can go wrong on the provider's side comes back as a value (`Failure`), so that a loop decides what it
means; what an extension or an application did wrong is raised as it is.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any

import attrs
import trio

from ._budget import count_prompt, source_of
from ._frozen import freeze
from ._journal import RunJournal, leaves
from ._panel import RunStopped, StreamVerdict
from ._text import estimate
from ._work import Work
from .abc import (
    Model,
    ModelDone,
    ModelEvent,
    ModelRequest,
    ModelResponse,
    ModelText,
    ModelToolCall,
    ModelUsage,
    TokenCounter,
    ToolSpec,
    assemble,
)
from .errors import (
    ContextOverflow,
    GoliathBudgetError,
    GoliathExtensionError,
    ModelError,
    ModelUnavailable,
    Refused,
    ScriptExhausted,
)
from .events import Budget, HookDecision, ModelFinished, ModelStarted, Retraction
from .hooks import AfterResponse, AroundModel, BeforeRequest, ModelPatch
from .values import Message, ToolCall, Usage

__all__ = [
    "CounterFailed",
    "Failure",
    "Reply",
    "Route",
    "Screen",
    "Wanted",
    "ask_model",
    "classify",
    "counting",
    "describe",
]

CAUSE_LINKS = 8  # C6a: how far an error's causes are followed
DESCRIBE_AT_MOST = 300  # characters of an error in an event or an escalation
RETRY_AFTER_AT_MOST = 60.0  # T11: a longer pause is not waited for, the attempt counts as failed for good
BACKOFF_FIRST, BACKOFF_AT_MOST = 0.5, 8.0  # seconds; "full jitter": uniform between 0 and first * 2 ** retries
STALE_CONNECTION = "stale-connection"  # `ModelError.code` of a kept connection that was dead before any byte came
VISIBLE_ROLES = frozenset({"answer", "step"})


# --- values ---------------------------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class Route:
    """Which model is asked, and how."""

    model: Model
    settings: Mapping[str, Any]
    provider_options: Mapping[str, Any]

    @classmethod
    def of(cls, work: Work) -> Route:
        """The run's own route."""
        return cls(work.model, work.settings, work.provider_options)

    def patched(self, patch: Any) -> Route:
        """Apply the model, settings and options of a run, plan or model patch (T10): with a model nothing is
        inherited; without one, settings merge by field and options by key."""
        fresh = patch.model is not None
        return Route(
            patch.model if fresh else self.model,
            {**({} if fresh else self.settings), **(patch.settings or {})},
            {**({} if fresh else self.provider_options), **(patch.provider_options or {})},
        )


@attrs.frozen(eq=False)
class Wanted:
    """What a loop wants asked.

    `render(compact)` makes the messages; it is asked for the compact form only if the full one does not fit and
    `compactable`. `limit` is in tokens of input, `output_cap` in tokens of output.
    """

    role: str
    label: str
    render: Callable[[bool], tuple[Message, ...]]
    limit: int
    output_cap: int | None
    route: Route
    schema: Mapping[str, Any] | None = None
    tools: tuple[ToolSpec, ...] = ()
    compactable: bool = False

    @property
    def visible(self) -> bool:
        """True if the reply's text is shown while it streams, through `transform_stream`."""
        return self.role in VISIBLE_ROLES


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


@attrs.frozen(eq=False)
class Failure:
    """No reply. `reason` is `guardrail`, `context-budget`, `model-unavailable` or `model-error`."""

    reason: str
    error: Exception

    @property
    def over_budget(self) -> bool:
        """True if the prompt was never sent, because it does not fit."""
        return isinstance(self.error, GoliathBudgetError)

    @property
    def detail(self) -> str:
        """The error in words."""
        return describe(self.error)


class CounterFailed(Exception):
    """The token counter raised, or gave what is no count. Never replaced by an estimate; a provider failure (C6a)."""


@attrs.define(eq=False)
class Screen:
    """The text of a reply that is already out, so that it can be withdrawn."""

    journal: RunJournal
    out: bool = False

    def show(self, text: str) -> None:
        """Emit a piece of text."""
        self.out = True
        self.journal.delta(text)

    def retract(self, text: str = "") -> None:
        """Withdraw what is out, if anything is; `text` stands in its place."""
        if self.out:
            self.out = False
            self.journal.emit(Retraction, text=text)


# --- errors ---------------------------------------------------------------------------------------------------------


def describe(error: BaseException) -> str:
    """Return an error in one bounded line: its type and its text."""
    text = str(error).strip()
    line = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return line if len(line) <= DESCRIBE_AT_MOST else line[: DESCRIBE_AT_MOST - 1] + "…"


def classify(error: BaseException) -> str:
    """Return the escalation reason for an error out of a model call.

    Follows `__cause__` for 8 links, cycle-safe, into groups too; a refusal anywhere wins, else the first type that
    says something (C6a, C9).
    """
    seen: list[BaseException] = []
    link: BaseException | None = error
    reason = ""
    while link is not None and len(seen) < CAUSE_LINKS and all(link is not known for known in seen):
        seen.append(link)
        for leaf in leaves(link):
            if isinstance(leaf, Refused):
                return "guardrail"
            if isinstance(leaf, ContextOverflow):
                reason = reason or "context-budget"
            elif isinstance(leaf, ModelUnavailable):
                reason = reason or "model-unavailable"
        link = link.__cause__
    return reason or "model-error"


def _bare(error: Exception) -> Exception:
    """Return the single error inside a group of one, at any depth; what is no such group as it is."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _not_the_providers(error: Exception) -> Exception | None:
    """Return the leaf that must fail the run whoever let it out: a test's mistake, an extension's error."""
    for leaf in leaves(error):
        if isinstance(leaf, ScriptExhausted | GoliathExtensionError | RunStopped):
            return leaf
    return None


# --- counting -------------------------------------------------------------------------------------------------------


def counting(counter: TokenCounter) -> Callable[[str], int]:
    """Return a function that counts one text, raising `CounterFailed` for whatever goes wrong."""

    def count(text: str) -> int:
        try:
            tokens: Any = counter.count(text)
        except Exception as error:
            raise CounterFailed(f"token counter {counter.name!r} failed: {describe(error)}") from error
        if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 0:
            raise CounterFailed(f"token counter {counter.name!r} gave {tokens!r}, which is no count of tokens")
        return tokens

    return count


def _parts(messages: Sequence[Message], schema: Mapping[str, Any] | None, tools: tuple[ToolSpec, ...]) -> list[str]:
    """Return what is sent as (system, schemas, prompt): everything that costs tokens is in one of them."""
    system = [message.text for message in messages if message.role == "system"]
    prompt: list[str] = []
    for message in messages:
        if message.role != "system":
            prompt.append(message.text)
            prompt.extend(f"{call.name} {call.arguments}" for call in message.tool_calls)
    schemas = [json.dumps(schema, ensure_ascii=False)] if schema is not None else []
    schemas += [f"{tool.name} {tool.description} {json.dumps(tool.parameters, ensure_ascii=False)}" for tool in tools]
    return ["\n\n".join(system), "\n\n".join(schemas), "\n\n".join(prompt)]


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


async def ask_model(work: Work, wanted: Wanted, screen: Screen) -> Reply | Failure | StreamVerdict:
    """Make one model request, with as many attempts as the model allows (T11).

    Returns: the reply; a `Failure`, after the last attempt; or what a `transform_stream` said through its control,
    text that is out not yet retracted.

    Raises: `GoliathExtensionError` for a hook's error; what an event callback raised; `ScriptExhausted`.

    Cancellation: the connection is closed, `ModelFinished` is told, usage so far is booked.
    """
    asking = _Asking(work, wanted, screen)
    attempt = 0
    while True:
        result = await asking.attempt(attempt)
        if not isinstance(result, Failure):
            return result
        await trio.lowlevel.checkpoint_if_cancelled()
        pause = asking.pause(result)
        if pause is None:
            return result
        attempt += 1
        await trio.sleep(pause)


def _retries(model: Model) -> int:
    retries = getattr(model, "retries", 0)
    return retries if isinstance(retries, int) and retries > 0 else 0


@attrs.define(eq=False)
class _Asking:
    work: Work
    wanted: Wanted
    screen: Screen
    # Of the messages that were counted last, which tokens are for.
    messages: tuple[Message, ...] = ()
    tokens: int = 0
    retried: int = 0
    reconnected: bool = False
    # The model of the last generation: retries are its, not those of the route that was patched away.
    model: Model | None = None
    # Errors that came out of a model, by identity: everything else that passes is not the provider's.
    failed: list[Exception] = attrs.Factory(list)
    streamed: ModelResponse | None = None
    heard: _Heard | None = None
    scope: trio.CancelScope = attrs.Factory(trio.CancelScope)
    verdicts: list[StreamVerdict] = attrs.Factory(list)

    def pause(self, failure: Failure) -> float | None:
        """Return the seconds to wait before the next attempt, None if there is to be none."""
        error = failure.error
        if self.screen.out or not isinstance(error, ModelError) or self.model is None:
            return None
        if error.code == STALE_CONNECTION and not self.reconnected:
            self.reconnected = True
            return 0.0
        if not error.retryable or self.retried >= _retries(self.model):
            return None
        after = error.retry_after
        backoff = random.uniform(0, min(BACKOFF_AT_MOST, BACKOFF_FIRST * 2**self.retried))
        if isinstance(after, int | float) and math.isfinite(after) and after >= 0:
            if after > RETRY_AFTER_AT_MOST:
                return None
            backoff = float(after)
        self.retried += 1
        return backoff

    async def attempt(self, number: int) -> Reply | Failure | StreamVerdict:
        """Make one attempt: messages, budget, then the model inside `around_model`."""
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
            return Failure("context-budget", GoliathBudgetError(wanted.label, self.tokens, wanted.limit))
        await trio.lowlevel.checkpoint_if_cancelled()
        request = ModelRequest(
            role=wanted.role,
            messages=messages,
            schema=None if wanted.schema is None else freeze(wanted.schema),
            tools=wanted.tools,
            settings=freeze(wanted.route.settings),
            provider_options=freeze(wanted.route.provider_options),
            max_output_tokens=wanted.output_cap,
            attempt=number,
        )
        question = _Attempt(request, number, route=wanted.route)
        self.scope, self.streamed, self.failed = trio.CancelScope(), None, []
        problem: Exception | None = None
        with self.scope:
            try:
                response = await work.panel.nest("around_model", question, self._generate, self._patched)
                response = await self._canonical(response)
            except Exception as error:
                # What a control ended is over; that the model then failed to close in good order changes nothing.
                if all(error is not known for known in self.failed):
                    raise
                problem = error
            else:
                return Reply(response)
        if self.verdicts:
            return await self._cut_short(self.verdicts[0])
        assert problem is not None
        if isinstance(problem, CounterFailed):
            return Failure("model-error", problem)
        reason = "context-budget" if isinstance(problem, GoliathBudgetError) else classify(problem)
        return Failure(reason, problem)

    async def _messages(self, number: int) -> tuple[Message, ...]:
        """Return the messages of this attempt, after compaction and `before_request`, and count them."""
        wanted, panel = self.wanted, self.work.panel
        messages = wanted.render(False)
        self._count(messages)
        if self.tokens > wanted.limit and wanted.compactable:
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
        system, schemas, prompt = _parts(messages, self.wanted.schema, self.wanted.tools)
        counter = self.work.counter
        try:
            self.tokens = count_prompt(counter, system, schemas, prompt)
        except CounterFailed:
            raise
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
        return attrs.evolve(question, request=request, route=route, timeout=timeout)

    # --- one generation ---------------------------------------------------------------------------------------------

    async def _generate(self, question: _Attempt) -> ModelResponse:
        """Ask the model once, and tell `after_response` how it went."""
        work, request = self.work, question.request
        if request.messages != self.messages:
            self._recount(request.messages)
        self.screen.retract()  # a second `call_next`: what the first let out is withdrawn
        self.model = question.route.model
        outcome, usage = await self._finished(question)
        if isinstance(outcome, Exception):
            self.failed.append(outcome)
        if work.panel.hears("after_response"):
            if isinstance(outcome, Exception):
                terminal = AfterResponse(request.role, None, outcome, usage)
            else:
                terminal = AfterResponse(request.role, outcome.message, None, usage)
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
            self.failed.append(error)
            raise
        if self.tokens > self.wanted.limit:
            too_large = GoliathBudgetError(self.wanted.label, self.tokens, self.wanted.limit)
            self.failed.append(too_large)
            raise too_large

    async def _finished(self, question: _Attempt) -> tuple[ModelResponse | Exception, Usage | None]:
        """Make the call between its two events, and book its usage exactly once."""
        journal, request = self.work.journal, question.request
        heard = self.heard = _Heard()
        start = trio.current_time()
        usage: Usage | None = None
        error: str | None = "cancelled"
        told = False
        try:
            journal.emit(ModelStarted, role=request.role, attempt=request.attempt)
            outcome = await self._timed(question, heard)
            error = describe(outcome) if isinstance(outcome, Exception) else None
            usage = self._book(heard)
            told = True
            seconds = trio.current_time() - start
            journal.emit(
                ModelFinished, role=request.role, attempt=request.attempt, usage=usage, error=error, seconds=seconds
            )
        except Exception as raised:
            error = describe(raised)
            raise
        finally:
            if not told:
                usage = self._book(heard)
                seconds = trio.current_time() - start
                journal.emit_closing(
                    ModelFinished, role=request.role, attempt=request.attempt, usage=usage, error=error, seconds=seconds
                )
        return outcome, usage

    def _book(self, heard: _Heard) -> Usage | None:
        usage = heard.usage
        if usage is None and heard.anything:
            text = heard.all_text
            try:
                output = counting(self.work.counter)(text)
            except CounterFailed:
                output = estimate(text)
            usage = Usage(input_tokens=self.tokens, output_tokens=output, estimated=True)
        if usage is not None:
            self.work.journal.usage += usage
        return usage

    async def _timed(self, question: _Attempt, heard: _Heard) -> ModelResponse | Exception:
        with trio.move_on_after(question._timeout) as limit:
            return await self._read(question.route.model, question.request, heard)
        assert limit.cancelled_caught
        return ModelUnavailable(f"no complete reply within {question._timeout:g} s", partial=heard.text)

    async def _read(self, model: Model, request: ModelRequest, heard: _Heard) -> ModelResponse | Exception:
        """Open the stream, read it to its end, close it.

        Returns: the response, or the provider's error. Raises what is not the provider's.
        """
        # Why by hand: the model's context manager sees our own errors pass and may swallow or replace them; and it
        # may itself raise on entering, while iterating and on leaving, all of which is the provider's.
        ours: Exception | None = None
        response: ModelResponse | None = None
        failure: Exception | None = None
        try:
            async with model.stream(request) as events, aclosing(heard.source(events)) as source:
                try:
                    response = await self._consume(source, heard)
                except Exception as error:
                    failure = error
                    ours = None if error is heard.error else error
                    raise
        except Exception as error:  # noqa: BLE001  # C6a: whatever its type, it is the provider's failure
            failure = error
        if ours is not None:
            raise ours
        if failure is None and heard.finish == "content_filter":
            failure = Refused("the provider's filter ended the reply", partial=heard.text)
        if failure is None:
            assert response is not None
            return response
        passing = _not_the_providers(failure)
        if passing is not None:
            self.work.journal.blame(passing, "model")
            raise passing
        failure = _bare(failure)
        self.work.journal.blame(failure, "model")
        return failure

    async def _consume(self, source: AsyncIterator[ModelEvent], heard: _Heard) -> ModelResponse:
        if not self.wanted.visible:
            async for _ in source:
                pass
            return heard.response(heard)
        return await self._shown(source, heard)

    async def _shown(self, source: AsyncIterator[ModelEvent], heard: _Heard) -> ModelResponse:
        """Send a reply through `transform_stream`; what comes out is what is emitted and returned (T9)."""
        out = _Heard()
        async with self.work.panel.pipe("transform_stream", source, self.scope, self.verdicts) as stream:
            async for event in stream:
                if not isinstance(event, ModelEvent):
                    raise self._not_an_event(event)
                out.take(event)
                if isinstance(event, ModelText) and event.text:
                    self.screen.show(event.text)
        return out.response(heard)

    def _not_an_event(self, event: object) -> GoliathExtensionError:
        hooks = self.work.panel.hooks("transform_stream")
        error = GoliathExtensionError(
            hooks[-1].extension, "transform_stream", f"yielded {type(event).__name__}, which is no model event"
        )
        self.work.journal.blame(error, "extension")
        return error

    async def _canonical(self, response: ModelResponse) -> ModelResponse:
        """An answer of `around_model` that is not what the last `call_next` streamed is sent through
        `transform_stream` as if it had been, after a retraction if text was out."""
        last = self.streamed
        if not self.wanted.visible or (last is not None and response.message == last.message):
            return response
        self.screen.retract()
        heard = _Heard()
        async with aclosing(heard.source(_replayed(response))) as source:
            shown = await self._shown(source, heard)
        return attrs.evolve(shown, usage=response.usage)

    async def _cut_short(self, verdict: StreamVerdict) -> StreamVerdict:
        """Tell of a reply that a transform ended; nothing after its first word counts."""
        self.verdicts = []
        heard, panel = self.heard, self.work.panel
        self.work.journal.emit(
            HookDecision,
            extension=verdict.extension,
            phase="transform_stream",
            decision=verdict.kind,
            reason=verdict.reason or verdict.text or None,
        )
        if heard is not None and panel.hears("after_response"):
            message = heard.response(heard).message
            await panel.observe("after_response", AfterResponse(self.wanted.role, message, None, heard.usage))
        return verdict


def _check_patch(patch: object) -> None:
    if not isinstance(patch, ModelPatch):
        raise ValueError(f"call_next takes a ModelPatch, not {type(patch).__name__}")
    if patch.messages is not None and (
        not patch.messages or not all(isinstance(message, Message) for message in patch.messages)
    ):
        raise ValueError("messages must be a list of Message with something in it")
    if patch.model is not None and not callable(getattr(patch.model, "stream", None)):
        raise ValueError(f"model must have a stream method, {type(patch.model).__name__} has none")
    for name in ("settings", "provider_options"):
        value = getattr(patch, name)
        if value is not None and not isinstance(value, Mapping):
            raise ValueError(f"{name} must be a mapping, not {type(value).__name__}")
    seconds = patch.timeout
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0):
        raise ValueError(f"timeout must be a number of seconds above 0, not {seconds!r}")


async def _replayed(response: ModelResponse) -> AsyncIterator[ModelEvent]:
    message = response.message
    if message.text:
        yield ModelText(message.text)
    for index, call in enumerate(message.tool_calls):
        yield ModelToolCall(index, call.id, call.name, call.arguments)
    yield ModelDone(response.finish_reason)


@attrs.define(eq=False)
class _Heard:
    """What has arrived of one reply: on the provider's side of the transforms, or behind them."""

    texts: list[str] = attrs.Factory(list)
    calls: dict[int, _Pieces] = attrs.Factory(dict)
    usage: Usage | None = None
    finish: str | None = None
    error: Exception | None = None

    async def source(self, events: Any) -> AsyncGenerator[ModelEvent, None]:
        """Yield a model's events, taking note of each.

        Raises: what the model raises; `ModelUnavailable` if it ends without saying that it is complete.
        """
        try:
            async with AsyncExitStack() as stack:
                iterator = aiter(events)
                if hasattr(iterator, "aclose"):
                    await stack.enter_async_context(aclosing(iterator))
                async for event in iterator:
                    if not isinstance(event, ModelEvent):
                        raise ModelError(f"the model yielded {type(event).__name__}, which is no model event")
                    self.take(event)
                    yield event
            if self.finish is None:
                raise ModelUnavailable("the stream ended before the reply was complete", partial=self.text)
        except Exception as error:
            self.error = error
            raise

    def take(self, event: ModelEvent) -> None:
        """Add one event."""
        if isinstance(event, ModelText):
            self.texts.append(event.text)
        elif isinstance(event, ModelToolCall):
            self.calls.setdefault(event.index, _Pieces()).take(event)
        elif isinstance(event, ModelUsage):
            self.usage = event.usage  # running totals: a later one replaces an earlier one
        else:
            self.finish = event.finish_reason

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.texts)

    @property
    def anything(self) -> bool:
        """True if the call cost something: a piece of a reply arrived, or its end."""
        return bool(self.texts or self.calls or self.finish is not None)

    @property
    def all_text(self) -> str:
        """Everything that the provider counts as output."""
        return "".join([*self.texts, *(f"{call.name}{call.arguments}" for call in self.tool_calls())])

    def tool_calls(self) -> list[ToolCall]:
        """The calls in order of first appearance, each with an id of its own: providers leave ids out or repeat
        them, and one that is missing must not merge two calls into one."""
        calls: list[ToolCall] = []
        taken: set[str] = set()
        for place, pieces in enumerate(self.calls.values(), 1):
            name = pieces.id or f"call-{place}"
            unique, number = name, 2
            while unique in taken:
                unique, number = f"{name}-{number}", number + 1
            taken.add(unique)
            calls.append(ToolCall(unique, pieces.name, "".join(pieces.arguments)))
        return calls

    def response(self, provider: _Heard) -> ModelResponse:
        """Return the assembled response; usage and the end are the provider's where a transform kept them back."""
        finish = self.finish or provider.finish or "unknown"
        return ModelResponse(assemble(self.text, self.tool_calls()), provider.usage, finish)


@attrs.define(eq=False)
class _Pieces:
    id: str | None = None
    name: str = ""
    arguments: list[str] = attrs.Factory(list)

    def take(self, event: ModelToolCall) -> None:
        self.id = self.id or event.id
        self.name = self.name or event.name or ""
        self.arguments.append(event.arguments)
