"""A model behind limits of one's own: requests in flight, requests and tokens per minute.

Uses _line, _passing. Providers count an account, not a conversation, so the limits are shared by
whoever holds the object; and they are kept before a request is sent, because a refused one costs a turn, too.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import final

import attrs
import trio

from goliath_actors._text import estimate
from goliath_actors.abc import Model, ModelDone, ModelEvent, ModelRequest, ModelUsage
from goliath_actors.errors import ConfigError

from ._line import Line, Place
from ._passing import Counter, PassedOn, check_model, largest_count

__all__ = ["Limited", "LimitedStatistics"]


@attrs.frozen
class LimitedStatistics:
    """Counts of one trio loop as they are now: requests in flight and waiting; requests and tokens of the last minute,
    0 where they are not limited."""

    in_flight: int
    waiting: int
    requests: int
    tokens: int


@final
@attrs.define(eq=False, repr=False)
class Limited:
    """A model that is asked no more, and no more often, than its limits allow; who comes later waits in line.

    Arguments:
      model: the one to ask.
      in_flight: how many replies may be open at once.
      rpm: how many requests may begin within any 60 seconds.
      tpm: how many tokens the requests that began within any 60 seconds may have, prompt and reply together. A request
        is booked with an estimate first: its prompt, counted by the model's `count_tokens` where it has one, and its
        `max_output_tokens` if it says so. What the provider reports for a complete reply replaces the estimate, and
        what it reports before only raises it. One that is larger than `tpm` waits for an empty minute.

    Raises: `ConfigError` at once for what is no model and for limits below 1.

    The line is one for all conversations and agents that hold the object, in order of arrival; nobody overtakes, also
    not with a small request behind a large one. Each trio loop has a line of its own. Seconds are on trio's clock.

    Waiting takes no connection, and none of the model's time-outs runs meanwhile; a run's own deadline does. Attempts
    that failed keep what they have booked: nobody knows what the provider counted.

    `name`, `window`, `retries` and `count_tokens` are the model's.
    """

    model: Model
    in_flight: int | None = attrs.field(default=None, kw_only=True)
    rpm: int | None = attrs.field(default=None, kw_only=True)
    tpm: int | None = attrs.field(default=None, kw_only=True)
    count_tokens: Counter | None = attrs.field(init=False)
    _lines: weakref.WeakKeyDictionary[trio.lowlevel.TrioToken, Line] = attrs.field(
        factory=weakref.WeakKeyDictionary, init=False
    )

    def __attrs_post_init__(self) -> None:
        check_model("Limited", self.model)
        for name in ("in_flight", "rpm", "tpm"):
            limit = getattr(self, name)
            if limit is not None and (type(limit) is not int or limit < 1):
                raise ConfigError(f"{name} is {limit!r}; it is a whole number above 0, or None for no limit")
        self.count_tokens = largest_count([self.model])

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model.name

    @property
    def window(self) -> int | None:
        """The model's window in tokens, None if it says none."""
        window = getattr(self.model, "window", None)
        return window if isinstance(window, int) else None

    @property
    def retries(self) -> int:
        """How often the request room may repeat an attempt; each takes a turn of its own."""
        retries = getattr(self.model, "retries", 0)
        return retries if isinstance(retries, int) else 0

    def __repr__(self) -> str:
        limits = [(name, getattr(self, name)) for name in ("in_flight", "rpm", "tpm")]
        return f"Limited({self.model!r}{''.join(f', {name}={limit}' for name, limit in limits if limit is not None)})"

    def statistics(self) -> LimitedStatistics:
        """Return the counts of the current trio loop."""
        line = self._line
        return LimitedStatistics(line.running, line.waiting, *line.window())

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent], None]:
        """Wait for a turn and open the model's reply; the turn ends with the block.

        Returns: an async context manager whose value iterates over the reply's events.

        Raises: what the model raises, as the same objects.

        Cancellation: while waiting, the place is given up and nobody else loses one; afterwards the turn is given back
        when the model has closed its connection.
        """
        line = self._line
        place = await line.enter(0 if self.tpm is None else self._estimate(request))
        reply: _Reply | None = None
        try:
            async with self.model.stream(request) as events:
                reply = _Reply(events, line, place)
                try:
                    yield reply
                finally:
                    await reply.aclose()
        finally:
            if reply is not None:
                reply.settle()
            line.leave()

    @property
    def _line(self) -> Line:
        token = trio.lowlevel.current_trio_token()
        line = self._lines.get(token)
        if line is None:
            line = self._lines[token] = Line(self.in_flight, self.rpm, self.tpm)
        return line

    def _estimate(self, request: ModelRequest) -> int:
        texts = [request.text]
        texts += [f"{call.name} {call.arguments}" for message in request.messages for call in message.tool_calls]
        texts += [f"{tool.name} {tool.description} {_json(tool.parameters)}" for tool in request.tools]
        if request.schema is not None:
            texts.append(_json(request.schema))
        count = self.count_tokens or estimate
        return count("\n".join(texts)) + (request.max_output_tokens or 0)


class _Reply(PassedOn):
    """A reply whose reported tokens are booked as they come."""

    def __init__(self, events: AsyncIterator[ModelEvent], line: Line, place: Place) -> None:
        super().__init__(events)
        self._line = line
        self._place = place
        self._reported: int | None = None
        self._complete = False

    async def __anext__(self) -> ModelEvent:
        event = await self.receive()
        if isinstance(event, ModelUsage):
            self._reported = event.usage.input_tokens + event.usage.output_tokens
            # Totals are running ones: before the end they may say too little, never too much.
            if self._reported > self._place.tokens:
                self._line.correct(self._place, self._reported)
        elif isinstance(event, ModelDone):
            self._complete = True
        return event

    def settle(self) -> None:
        """Book what a complete reply has cost."""
        if self._complete and self._reported is not None:
            self._line.correct(self._place, self._reported)


def _json(value: object) -> str:
    # What is no JSON is the model's to refuse.
    return json.dumps(value, ensure_ascii=False, default=str)
