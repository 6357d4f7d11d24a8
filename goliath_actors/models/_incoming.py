"""One response as it comes in: bytes awaited under the right time-out, and handed on as model events.

Uses _answer, _sse, _decoder, _errors; used by the adapters. What bytes mean is the decoder's: one a dialect.

Why this is an object and no async generator: a time-out is a cancel scope, and none may be held while the consumer has
an event. Each wait has a scope of its own instead, and what is left of the time is kept between them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from typing import final

import attrs
import trio

from goliath_actors.abc import ModelEvent
from goliath_actors.errors import ModelError, ModelUnavailable

from ._answer import Answer
from ._decoder import Decoder
from ._errors import Scrubber
from ._http import httpx
from ._sse import Frame, Framer, FrameTooLarge, JsonLines, ServerSentEvents, WholeBody

__all__ = ["Decoder", "Incoming", "Patience"]

ERROR_BODY = 64 * 1024
"""Bytes that are read of a response which is an error."""

MAX_REPLY = 256 * 1024 * 1024
"""Bytes of one reply. Some hundred thousand tokens are real, with half a kilobyte of an event around each; a reply that
never ends must not fill the memory."""

AFTER_FINISH = 5.0
"""Seconds that usage and end marker may take once the finish reason has come; the reply is complete without them."""

BURST = 16
"""Events of one packet between two passes through the scheduler."""

DRAIN = 0.1
"""Seconds that the end of the body may take once the reply is complete. It mostly lies in the same packet; reading it
is what lets the connection be used again, and a server that keeps the body open is not waited for."""


@attrs.frozen
class Patience:
    """Seconds: until the first piece of a reply, between pieces; and who is waited for, in words."""

    first: float
    idle: float
    server: str

    def first_exceeded(self) -> ModelUnavailable:
        """The error for a server that did not begin."""
        return ModelUnavailable(
            f"nothing came from {self.server} within {self.first:g} s (first_token_timeout)", code="timeout"
        )

    def idle_exceeded(self, partial: str) -> ModelUnavailable:
        """The error for a server that fell silent."""
        return ModelUnavailable(
            f"nothing more came from {self.server} for {self.idle:g} s in the middle of the reply (idle_timeout)",
            code="timeout",
            partial=partial,
        )


@final
@attrs.define(eq=False)
class Incoming(AsyncIterator[ModelEvent]):
    """The events of one response, for one task. `left` is what is left of the time until the first piece."""

    _answer: Answer
    _reply: Decoder
    _scrub: Scrubber
    _patience: Patience
    # Invariant: seconds of *waiting* until the next piece must have come; a consumer that takes its time uses none.
    _left: float
    _room: int = MAX_REPLY
    _framer: Framer | None = attrs.field(default=None, init=False)
    _events: deque[ModelEvent] = attrs.field(factory=deque, init=False)
    _error: ModelError | None = attrs.field(default=None, init=False)
    _begun: bool = attrs.field(default=False, init=False)
    _over: bool = attrs.field(default=False, init=False)
    _waiting: bool = attrs.field(default=False, init=False)
    # Invariant: True once a wait for the body has run out of time; nobody waits for its end a second time.
    _given_up: bool = attrs.field(default=False, init=False)
    _closed: bool = attrs.field(default=False, init=False)
    _burst: int = attrs.field(default=0, init=False)

    async def __anext__(self) -> ModelEvent:
        # A checkpoint also when events lie ready: a burst in one packet must neither hide a cancellation nor hold up
        # other tasks. A pass through the scheduler costs more than an event, so not every one of a burst makes one.
        if self._events:
            self._burst += 1
            if self._burst % BURST:
                await trio.lowlevel.checkpoint_if_cancelled()
            else:
                await trio.lowlevel.checkpoint()
            return self._events.popleft()
        self._burst = 0
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._events:
            if self._error is not None:
                raise self._error
            if self._over:
                raise StopAsyncIteration
            # Does not wait for what came with the head of the response: that was waited for a moment ago.
            await self._receive()
        return self._events.popleft()

    @property
    def closed(self) -> bool:
        """True once `aclose` was called."""
        return self._closed

    async def read_error(self) -> bytes:
        """Return the beginning of a body that is an error, as much as comes in time.

        Cancellation: as for any read; `aclose` is still due.
        """
        parts: list[bytes] = []
        size = 0
        with trio.move_on_after(min(self._left, self._patience.idle)):
            try:
                while size < ERROR_BODY and (chunk := await self._answer.read()):
                    parts.append(chunk)
                    size += len(chunk)
            except httpx.HTTPError:
                pass  # the status says enough
        return b"".join(parts)[:ERROR_BODY]

    async def drain(self) -> None:
        """Read the rest of the body if the reply was complete, for a moment, so that the connection can be kept.

        Cancellation: the connection is not kept; `aclose` is still due.
        """
        if not self._drains():
            await trio.lowlevel.checkpoint()
            return
        size = 0
        with trio.move_on_after(DRAIN) as scope:
            try:
                while size < ERROR_BODY and (chunk := await self._answer.read()):
                    size += len(chunk)
            except httpx.HTTPError:
                pass  # the reply is complete; only the connection is lost
        self._given_up = scope.cancelled_caught

    def _drains(self) -> bool:
        return self._over and self._error is None and not (self._given_up or self._closed or self._answer.over)

    async def aclose(self) -> None:
        """Give the connection back, or close it if the body was not read to its end.

        The loops close the iterator before they leave its block, so a complete reply is drained here, too: every next
        request would open a connection of its own.

        Cancellation: is done nevertheless; the connection is not kept then.
        """
        try:
            if self._drains():
                await self.drain()
        finally:
            self._closed = True
            await self._answer.aclose()

    async def _receive(self) -> None:
        """Turn the next bytes, their end or their absence into events."""
        if self._waiting:
            # A cancelled wait has closed the connection: what would come now is not the server's doing.
            text = "an earlier wait for this reply was cancelled, so it cannot go on"
            self._fail(ModelUnavailable(text, code="truncated", partial=self._reply.text))
            return
        chunk = b""
        broken: httpx.HTTPError | None = None
        try:
            chunk = self._answer.ready()
        except httpx.HTTPError as error:
            broken = error
        if not chunk and broken is None and not self._answer.over:
            self._waiting = True
            since = trio.current_time()
            with trio.move_on_after(max(0.0, self._left)) as scope:
                try:
                    chunk = await self._answer.read()
                except httpx.HTTPError as error:
                    broken = error
            self._waiting = False
            self._left -= trio.current_time() - since
            if scope.cancelled_caught:
                self._given_up = True
                self._silent()
                return
        try:
            if chunk:
                self._decode(chunk)
            elif self._framer is not None:
                # Also after a broken connection: the end marker may lie there, only its line end is missing.
                self._hand_out(self._framer.close())
        except FrameTooLarge as error:
            self._fail(
                ModelUnavailable(f"the reply is unusable: {error}", code="bad-response", partial=self._reply.text)
            )
        if self._over:
            return
        if broken is not None:
            said = self._scrub(str(broken), 150)
            self._finish(f"the connection broke off in the middle of the reply: {said}", broken)
        elif not chunk or self._reply.ended:
            self._finish("the server ended the stream in the middle of the reply")
        elif self._reply.progress:
            self._begun, self._reply.progress = True, False
            self._left = min(self._patience.idle, AFTER_FINISH) if self._reply.complete else self._patience.idle

    def _decode(self, chunk: bytes) -> None:
        self._room -= len(chunk)
        if self._room < 0:
            raise FrameTooLarge(MAX_REPLY)
        if self._framer is None:
            if not chunk.strip():
                return
            self._framer = _framer_for(self._answer.headers.get("content-type", ""), chunk)
        self._hand_out(self._framer.feed(chunk))
        if isinstance(self._framer, WholeBody) and chunk.strip():
            self._reply.progress = True

    def _hand_out(self, frames: list[Frame]) -> None:
        decode = self._reply.feed_whole if isinstance(self._framer, WholeBody) else self._reply.feed
        for frame in frames:
            try:
                self._events.extend(decode(frame))
            except ModelError as error:
                self._fail(error)
                return
            if self._reply.ended:
                return

    def _silent(self) -> None:
        if self._reply.complete:
            self._finish("")
        elif self._begun:
            self._fail(self._patience.idle_exceeded(self._reply.text))
        else:
            self._fail(self._patience.first_exceeded())

    def _finish(self, cut: str, cause: Exception | None = None) -> None:
        events, error = self._reply.end(cut)
        self._events.extend(events)
        self._over = True
        if error is not None:
            error.__cause__ = cause
            self._fail(error)

    def _fail(self, error: ModelError) -> None:
        # Raised only when the events before it have been taken.
        self._error = error
        self._over = True


def _framer_for(content_type: str, beginning: bytes) -> Framer:
    """The parser for a reply. Where the content type does not say stream, its first character tells: no JSON begins
    like a field of an event stream."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "text/event-stream":
        return ServerSentEvents()
    if kind in ("application/x-ndjson", "application/ndjson", "application/jsonl"):
        return JsonLines()
    return ServerSentEvents() if beginning.lstrip()[:1] in (b"d", b"e", b"i", b"r", b":") else WholeBody()
