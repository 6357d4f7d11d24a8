"""A reply as it arrives: assembling it, replaying one, and what of its text is already out.

Used by the room that makes one generation.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import attrs
import trio

from ._journal import RunJournal
from .abc import ModelDone, ModelEvent, ModelResponse, ModelText, ModelToolCall, ModelUsage, assemble
from .errors import ModelError, ModelUnavailable
from .events import Retraction
from .values import ToolCall, Usage

__all__ = ["Heard", "Screen", "replayed"]


@attrs.define(eq=False)
class Screen:
    """The text of a reply that is already out, so that it can be withdrawn."""

    journal: RunJournal
    # Invariant: what is out and neither withdrawn nor kept; None while nothing is.
    _pieces: list[str] | None = None

    @property
    def out(self) -> bool:
        """True if anything is out."""
        return self._pieces is not None

    @property
    def shown(self) -> str:
        """The text that is out and neither withdrawn nor kept."""
        return "".join(self._pieces or ())

    def show(self, text: str) -> None:
        """Emit a piece of text."""
        if self._pieces is None:
            self._pieces = []
        self._pieces.append(text)
        self.journal.delta(text)

    def keep(self) -> None:
        """What is out stays out: the reply that it belongs to has found its place."""
        self._pieces = None

    def retract(self, text: str = "") -> None:
        """Withdraw what is out, if anything is; `text` stands in its place."""
        if self._pieces is not None:
            self.keep()
            self.journal.emit(Retraction, text=text)


async def replayed(response: ModelResponse) -> AsyncIterator[ModelEvent]:
    await trio.lowlevel.checkpoint()
    message = response.message
    if message.text:
        yield ModelText(message.text)
    for index, call in enumerate(message.tool_calls):
        yield ModelToolCall(index, call.id, call.name, call.arguments)
    yield ModelDone(response.finish_reason)


@attrs.define(eq=False)
class Heard:
    """What has arrived of one reply: on the provider's side of the transforms, or behind them."""

    # Pieces of text; None until the first one comes.
    texts: list[str] | None = None
    calls: dict[int, _Pieces] = attrs.Factory(dict)
    usage: Usage | None = None
    finish: str | None = None
    error: Exception | None = None

    def source(self, events: Any) -> Source:
        """Return an iterator over a model's events that takes note of each."""
        return Source(self, events)

    def take(self, event: object) -> str | None:
        """Add one event; what is none, or holds what it must not, is left out.

        Returns: in words, what it is instead; None for an event. Models are written by hand, and what is let in here is
        joined, counted and stored where nobody expects a model's mistake.
        """
        if isinstance(event, ModelText):
            if not isinstance(event.text, str):
                return _misfit(event, "text", event.text)
            if self.texts is None:
                self.texts = []
            self.texts.append(event.text)
        elif isinstance(event, ModelToolCall):
            if not isinstance(event.index, int):
                return _misfit(event, "index", event.index)
            for field, value in (("id", event.id or ""), ("name", event.name or ""), ("arguments", event.arguments)):
                if not isinstance(value, str):
                    return _misfit(event, field, value)
            pieces = self.calls.get(event.index)
            if pieces is None:
                pieces = self.calls[event.index] = _Pieces()
            pieces.take(event)
        elif isinstance(event, ModelUsage):
            usage = event.usage
            if not isinstance(usage, Usage):
                return _misfit(event, "usage", usage)
            for count in (usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.reasoning_tokens):
                if not isinstance(count, int):
                    return _misfit(usage, "count", count)
            self.usage = event.usage  # running totals: a later one replaces an earlier one
        elif isinstance(event, ModelDone):
            if not isinstance(event.finish_reason or "", str):
                return _misfit(event, "finish_reason", event.finish_reason)
            self.finish = event.finish_reason
        else:
            return f"{type(event).__name__}, which is no model event"
        return None

    def cut_off(self) -> ModelUnavailable | None:
        """Return the error of a stream that ends here without having said that the reply is complete."""
        if self.finish is not None:
            return None
        return ModelUnavailable("the stream ended before the reply was complete", partial=self.text)

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.texts or ())

    @property
    def anything(self) -> bool:
        """True if the call cost something: a piece of a reply arrived, or its end."""
        return bool(self.texts or self.calls or self.finish is not None)

    @property
    def all_text(self) -> str:
        """Everything that the provider counts as output."""
        return "".join([self.text, *(f"{call.name}{call.arguments}" for call in self.tool_calls())])

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

    def response(self, provider: Heard) -> ModelResponse:
        """Return the assembled response; usage and the end are the provider's where a transform kept them back."""
        finish = self.finish or provider.finish or "unknown"
        message = assemble(self.text, self.tool_calls() if self.calls else ())
        return ModelResponse(message, provider.usage, finish)


def _misfit(event: object, field: str, value: object) -> str:
    return f"a {type(event).__name__} whose {field} is of type {type(value).__name__}"


# Why no async generator: one that yields inside the block that closes the model's iterator may never close it.
class Source:
    """A model's events, each noted in `heard` as it passes. Closing it closes the model's iterator.

    Raises: what the model raises, noted as `heard.error`; `ModelUnavailable` if it ends without saying that the reply
    is complete.
    """

    __slots__ = ("_events", "_heard", "_iterator")

    def __init__(self, heard: Heard, events: Any) -> None:
        self._heard = heard
        self._events = events
        self._iterator: AsyncIterator[Any] | None = None

    def __aiter__(self) -> Source:
        return self

    def _begun(self) -> AsyncIterator[Any]:
        if self._iterator is None:
            self._iterator = aiter(self._events)
        return self._iterator

    async def __anext__(self) -> ModelEvent:
        heard = self._heard
        try:
            event: ModelEvent = await self._begun().__anext__()
            self._take(event)
            return event
        except StopAsyncIteration:
            heard.error = heard.cut_off()
            if heard.error is None:
                raise
            raise heard.error from None
        except Exception as error:
            heard.error = error
            raise

    def _take(self, event: object) -> None:
        wrong = self._heard.take(event)
        if wrong is not None:
            raise ModelError(f"the model yielded {wrong}")

    async def drain(self, show: Callable[[str], None] | None) -> None:
        """Take every event that is left, as if by iterating, with no step in between: there may be thousands.

        Arguments: `show` gets each piece of text.

        Raises: also what `show` raised, which is not noted.
        """
        heard, shown_badly = self._heard, None
        try:
            following = self._begun().__anext__
            while True:
                event = await following()
                if not isinstance(event, ModelText) or not isinstance(event.text, str):
                    self._take(event)
                    continue
                if heard.texts is None:
                    heard.texts = []
                heard.texts.append(event.text)
                if show is not None and event.text:
                    try:
                        show(event.text)
                    except Exception as error:
                        shown_badly = error
                        raise
        except StopAsyncIteration as error:
            if error is shown_badly:
                raise
            heard.error = heard.cut_off()
        except Exception as error:
            if error is not shown_badly:
                heard.error = error
            raise
        if heard.error is not None:
            raise heard.error

    async def aclose(self) -> None:
        """Close the model's iterator, if it can be closed."""
        close = getattr(self._events if self._iterator is None else self._iterator, "aclose", None)
        if close is not None:
            await close()


@attrs.define(eq=False)
class _Pieces:
    id: str | None = None
    name: str = ""
    arguments: list[str] = attrs.Factory(list)

    def take(self, event: ModelToolCall) -> None:
        self.id = self.id or event.id
        self.name = self.name or event.name or ""
        self.arguments.append(event.arguments)
