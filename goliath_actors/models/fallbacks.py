"""Several models as one: the first that can answers, and one that has failed is left alone for a while.

Uses _passing. What is asked here is one round: each model at most once. Rounds are repeated by the
request room like any attempt (T11), so the `retries` of the models inside count for nothing.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias, final

import attrs
import trio

from goliath_actors._text import clip
from goliath_actors.abc import Model, ModelEvent, ModelRequest, ModelText, ModelUsage
from goliath_actors.errors import (
    BadRequest,
    ConfigError,
    ContextOverflow,
    ModelUnavailable,
    RateLimited,
    Refused,
    ScriptExhausted,
)
from goliath_actors.values import Usage

from ._passing import Counter, PassedOn, check_model, largest_count

__all__ = ["Fallbacks", "Rule"]

Rule: TypeAlias = Callable[[Exception, Model, Model], bool]
"""`rule(error, failed, candidate)`: may `candidate` be asked instead of `failed`?"""

OUTAGES = (ModelUnavailable, RateLimited)

# Codes of errors after which there is nothing wrong with a model: a kept connection that was dead, a reply of nothing.
_STALE, _EMPTY = "stale-connection", "empty"

# Errors that a provider says; whoever says something is there.
_ANSWERS = (BadRequest, ContextOverflow, Refused)

NOTE = 300  # characters of an earlier error that the last one carries as a note
CAUSES = 8  # how far an error's causes are followed (C6a)


# Why a converter with a name: for `converter=tuple` type checkers do not see what the class may be made from.
def _models(models: Iterable[Model]) -> tuple[Model, ...]:
    try:
        return tuple(models)
    except TypeError as error:
        raise ConfigError(f"Fallbacks takes a list of models, not {type(models).__name__}") from error


@final
@attrs.define(eq=False, repr=False)
class Fallbacks:
    """A model that asks the first of `models`, and the next one when that cannot answer.

    Arguments:
      models: in the order in which they are asked.
      when: which errors let the next one be asked: a type, a tuple of types, or a function `(error, failed, candidate)`
        that returns a bool. None: `ModelUnavailable` and `RateLimited`, also where they are not retryable. With a
        `ContextOverflow` among the types, a prompt that was too long goes to the first model whose `window` is known
        to be larger. Whatever this says, a refusal (`Refused`, also as the cause of another error) is never taken to
        another model, and neither is a script that has run out (`ScriptExhausted`). An error of this library out of a
        model, which may have a runtime inside it, is an error like any other.
      probe_every: seconds on trio's clock for which a model that failed is passed over, less if its error has a shorter
        `retry_after`. Then one request is let through to it, while the others still pass it over: if it answers, it
        has its place again. 0: nothing is passed over.
      retries: how often the request room may repeat the whole round, if its last error is retryable. The `retries` of
        the models are not looked at.

    Raises: `ConfigError` at once for an empty list, what is no model, and arguments out of range.

    Each request asks every model at most once. A kept connection that was dead is the one error that goes back to the
    request room first, which asks the same model again on a new one. Nothing is repeated or replaced once a piece of a
    reply was handed out: an error behind that is raised as it is. Models that are passed over are asked after all
    others have failed, since the alternative is no answer. What is remembered belongs to one trio loop; all agents that
    hold the object share it.

    `window` is the smallest of the known ones, `count_tokens` the largest count (None if no model counts).
    """

    models: tuple[Model, ...] = attrs.field(converter=_models)
    when: type[Exception] | tuple[type[Exception], ...] | Rule | None = attrs.field(default=None, kw_only=True)
    probe_every: float = attrs.field(default=300.0, kw_only=True)
    retries: int = attrs.field(default=0, kw_only=True)
    window: int | None = attrs.field(init=False)
    count_tokens: Counter | None = attrs.field(init=False)
    _rule: Rule = attrs.field(init=False)
    _answered: int = attrs.field(default=0, init=False)
    _memories: weakref.WeakKeyDictionary[trio.lowlevel.TrioToken, _Memory] = attrs.field(
        factory=weakref.WeakKeyDictionary, init=False
    )

    def __attrs_post_init__(self) -> None:
        if not self.models:
            raise ConfigError("Fallbacks(models=...) needs at least one model")
        for model in self.models:
            check_model("Fallbacks", model)
        seconds = self.probe_every
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < math.inf:
            raise ConfigError(f"probe_every is {seconds!r}; it is a number of seconds, 0 or more")
        if type(self.retries) is not int or self.retries < 0:
            raise ConfigError(f"retries is {self.retries!r}; it counts repeats, 0 or more")
        self._rule = _rule(self.when)
        windows = [window for model in self.models if (window := _window(model)) is not None]
        self.window = min(windows, default=None)
        self.count_tokens = largest_count(self.models)

    @property
    def name(self) -> str:
        """The name of the model that was the last to answer; the first one's before any has."""
        return self.models[self._answered].name

    def __repr__(self) -> str:
        return f"Fallbacks({list(self.models)!r})"

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent], None]:
        """Ask one model after the other until one begins to answer, and open its reply.

        Returns: an async context manager whose value iterates over the reply's events. Entering waits for the first
        piece of the reply. Tokens that failed models reported are added to those of the one that answers, if it
        reports any.

        Raises: the error of the model that was asked last, as the same object, with one note for each error before it.

        Cancellation: the connection of the model that is being asked is closed; nothing is remembered of it.
        """
        memory = self._memory
        asked: list[int] = []
        notes: list[str] = []
        spent: Usage | None = None
        number: int | None = memory.choose(range(len(self.models)))
        while number is not None:
            model = self.models[number]
            asked.append(number)
            failure: Exception | None = None
            reply: _Reply | None = None
            memory.begin(number)
            try:
                async with model.stream(request) as events:
                    reply = _Reply(events, spent)
                    try:
                        await reply.begin()
                        memory.good(number)
                        self._answered = number
                        yield reply
                    finally:
                        await reply.aclose()
            except Exception as error:
                if reply is not None and reply.begun:
                    if error is reply.error and _is_outage(error):
                        memory.bad(number, self._pause(error))
                    raise
                failure = error
            finally:
                memory.leave(number)
            if failure is None:
                if reply is not None and reply.begun:
                    return
                # The model's context manager has swallowed its own error.
                failure = (reply and reply.error) or ModelUnavailable("the model gave no reply", code=_EMPTY)
            number = self._after(failure, number, asked, request)
            if number is None:
                for note in notes:
                    if note not in getattr(failure, "__notes__", ()):  # scripts raise one object many times
                        failure.add_note(note)
                raise failure
            notes.append(f"asked before: {model.name}: {_describe(failure)}")
            if reply is not None and reply.usage is not None:
                spent = reply.usage if spent is None else spent + reply.usage

    @property
    def _memory(self) -> _Memory:
        token = trio.lowlevel.current_trio_token()
        memory = self._memories.get(token)
        if memory is None:
            memory = self._memories[token] = _Memory()
        return memory

    def _after(self, error: Exception, failed: int, asked: list[int], request: ModelRequest) -> int | None:
        """Remember that a model has failed with nothing said; return who is asked next, None for nobody."""
        error = _bare(error)
        memory, model = self._memory, self.models[failed]
        code = getattr(error, "code", None)
        if code == _STALE and request.attempt == 0:
            # A new connection to the same model is better than another model, and the request room makes one at once.
            return None
        left = [number for number in range(len(self.models)) if number not in asked]
        if _is_final(error):
            left = []
        left = [number for number in left if self._rule(error, model, self.models[number])]
        if code not in (_STALE, _EMPTY) and not isinstance(error, ContextOverflow) and (left or _is_outage(error)):
            memory.bad(failed, self._pause(error))
        elif isinstance(error, _ANSWERS):
            memory.good(failed)
        return memory.choose(left)

    def _pause(self, error: Exception) -> float:
        after = getattr(error, "retry_after", None)
        if isinstance(after, (int, float)) and 0 <= after < self.probe_every:
            return float(after)
        return self.probe_every


@attrs.define(eq=False)
class _Memory:
    """Which models have failed, for one trio loop. Bounded by the number of models."""

    # Invariant: who stands here has failed and not answered since; the value is when it may be asked again.
    _until: dict[int, float] = attrs.field(factory=dict, init=False)
    # Invariant: who stands here is asked right now by the one request that was let through; others pass it over.
    _probed: dict[int, trio.lowlevel.Task] = attrs.field(factory=dict, init=False)

    def choose(self, numbers: Iterable[int]) -> int | None:
        """Return the first that is not passed over; if all are, the first that is."""
        now = trio.current_time()
        first: int | None = None
        for number in numbers:
            if number not in self._probed and self._until.get(number, -math.inf) <= now:
                return number
            first = number if first is None else first
        return first

    def begin(self, number: int) -> None:
        if number in self._until and number not in self._probed and self._until[number] <= trio.current_time():
            self._probed[number] = trio.lowlevel.current_task()

    def good(self, number: int) -> None:
        self._until.pop(number, None)
        self._probed.pop(number, None)

    def bad(self, number: int, seconds: float) -> None:
        self._until[number] = trio.current_time() + seconds

    def leave(self, number: int) -> None:
        """End a probe, also one that was cancelled: then the next request is let through instead."""
        if self._probed.get(number) is trio.lowlevel.current_task():
            del self._probed[number]


class _Reply(PassedOn):
    """One model's reply. Nothing of it counts as begun before there is something that a run could show or use."""

    def __init__(self, events: AsyncIterator[ModelEvent], spent: Usage | None) -> None:
        super().__init__(events)
        self._spent = spent
        self._held: deque[ModelEvent] = deque()
        self.usage: Usage | None = None
        self.begun = False

    async def begin(self) -> None:
        """Wait for the first event that is more than a count of tokens, and keep it for the reader."""
        while not self.begun:
            try:
                event = await self.receive()
            except StopAsyncIteration:
                raise ModelUnavailable("the stream ended before the reply had begun", code="truncated") from None
            if isinstance(event, ModelUsage):
                self.usage = event.usage
            elif not isinstance(event, ModelText) or event.text:
                self.begun = True
                if self.usage is not None:
                    self._held.append(self._total(self.usage))
                self._held.append(event)

    async def __anext__(self) -> ModelEvent:
        if self._held:
            await trio.lowlevel.checkpoint()
            return self._held.popleft()
        event = await self.receive()
        return self._total(event.usage) if isinstance(event, ModelUsage) else event

    def _total(self, usage: Usage) -> ModelUsage:
        return ModelUsage(usage if self._spent is None else self._spent + usage)


def _rule(when: object) -> Rule:
    if when is None:
        when = OUTAGES
    if isinstance(when, type):
        when = (when,)
    if isinstance(when, tuple):
        for kind in when:
            if not isinstance(kind, type) or not issubclass(kind, Exception):
                raise ConfigError(f"when={kind!r}: a rule is made of exception types, or is a function")
            if issubclass(kind, Refused):
                raise ConfigError("when names Refused; a refusal is never taken to another model")
        kinds: tuple[type[Exception], ...] = when
        return lambda error, failed, candidate: (
            isinstance(error, kinds) and (not isinstance(error, ContextOverflow) or _is_larger(candidate, failed))
        )
    if not callable(when):
        raise ConfigError(f"when={when!r}: a rule is made of exception types, or is a function")
    # Any: a callable of the application's; what it returns is only asked for its truth.
    rule: Any = when
    return lambda error, failed, candidate: bool(rule(error, failed, candidate))


def _is_larger(candidate: Model, failed: Model) -> bool:
    ours, theirs = _window(failed), _window(candidate)
    return ours is not None and theirs is not None and theirs > ours


def _window(model: Model) -> int | None:
    window = getattr(model, "window", None)
    return window if isinstance(window, int) else None


def _is_outage(error: Exception) -> bool:
    return isinstance(_bare(error), OUTAGES)


def _is_final(error: Exception) -> bool:
    """True for what no rule may take to another model: a refusal or a test's mistake, also among the causes."""
    link: BaseException | None = error
    for _ in range(CAUSES):
        if link is None:
            return False
        if any(isinstance(leaf, (Refused, ScriptExhausted)) for leaf in _leaves(link)):
            return True
        link = link.__cause__
    return False


def _leaves(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for inner in error.exceptions for leaf in _leaves(inner)]


def _bare(error: Exception) -> Exception:
    """The single error inside a group of one: what a nursery inside of a model makes of it."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _describe(error: Exception) -> str:
    return clip(f"{type(_bare(error)).__name__}: {_bare(error)}".removesuffix(": "), NOTE)
