"""Event streams: a run's events as they happen, at the pace of who reads them.

A reader takes events out of the run's own log, so a slow one costs the run nothing and holds nothing of its own: what
it has not read is read later, texts merged. Nothing here is awaited by a run.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final

import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from goliath_actors.events import Event, RunFinished, TextDelta

from ._config import ServerConfig
from ._hosted import Hosted
from ._hosting import Hosting
from ._wire import event_data, event_id, frame, run_outcome

__all__ = ["STREAM_HEADERS", "StreamResponse", "follow", "while_connected"]

STREAM_HEADERS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    # Some proxies hold a stream back until it ends unless they are told.
    "x-accel-buffering": "no",
}
RETRY: Final = b"retry: 1000\n\n"  # milliseconds after which a browser's own reader connects again
PING: Final = b": keep-alive\n\n"


class StreamResponse(Response):
    """Sends pieces as they come, until they end or the client leaves; then `left` is called.

    Starlette's own streaming response leaves a generator of ours to the collector when it is cancelled.
    """

    def __init__(
        self,
        pieces: Callable[[], AsyncGenerator[bytes, None]],
        headers: Mapping[str, str],
        left: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(None, 200, {**STREAM_HEADERS, **headers})
        del self.headers["content-length"]
        self._pieces = pieces
        self._left = left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it.

        Cancellation: as if the client had left.
        """
        if scope["method"] == "HEAD":  # there is no body to wait for
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        complete = False

        async def watch(nursery: trio.Nursery) -> None:
            await _disconnected(receive)
            nursery.cancel_scope.cancel()

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch, nursery)
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                async with aclosing(self._pieces()) as pieces:
                    async for piece in pieces:
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
                complete = True
                nursery.cancel_scope.cancel()
        finally:
            if not complete:
                self._left()
        # Outside, since a server tells of a disconnect while it still closes or recycles the connection behind the last
        # piece: cancelled in there by `watch`, it would leave the connection open for good.
        if complete:
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _disconnected(receive: Callable[[], Awaitable[Message]]) -> None:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return


async def while_connected(request: Request, wait: Callable[[], Awaitable[None]]) -> bool:
    """Await `wait`, which raises nothing; False if the client left first.

    Cancellation: as of `wait`.
    """
    there = False

    async def watch(nursery: trio.Nursery) -> None:
        await _disconnected(request.receive)
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch, nursery)
        await wait()
        there = True
        nursery.cancel_scope.cancel()
    return there


async def follow(hosting: Hosting, hosted: Hosted, after: int = 0) -> AsyncGenerator[bytes, None]:
    """Yield a run's events as frames, from behind `after`; the last one carries how the run ended. Frames of what is
    there together are one piece.

    Beside the run's own events there are `confirmation-open` and `confirmation-closed`, which have no id: whoever comes
    late, or again, is told of the questions that are open.

    Cancellation: the run is untouched.
    """
    feed = hosting.feed(hosted, after)
    opening = [RETRY]
    for question in hosted.questions.values():
        kind = "confirmation-open"
        opening.append(frame(kind, {"kind": kind, "run_id": hosted.id, **question.data()}))
    hosted.streams += 1
    try:
        yield b"".join(opening) + _frames(hosted, feed.take_nowait(), hosting.config)
        while True:
            events = await feed.take()
            piece = b"".join([frame(kind, data) for kind, data in feed.asides()])
            if events is None:
                if piece:
                    yield piece
                return
            if events:
                piece += _frames(hosted, events, hosting.config)
            yield piece or PING
    finally:
        hosted.streams -= 1
        if not hosted.streams:
            hosted.framed = None


def _frames(hosted: Hosted, events: list[Event], config: ServerConfig) -> bytes:
    """Return events as frames. Streams of one run that go side by side share them."""
    if hosted.streams == 1 or not events:
        return b"".join([event_frame(hosted, event, config) for event in events])
    if hosted.framed is not None and _alike(hosted.framed[0], events):
        return hosted.framed[1]
    piece = b"".join([event_frame(hosted, event, config) for event in events])
    # How a run ended may be told in more words later, when it is known what followed it.
    if not isinstance(events[-1], RunFinished):
        hosted.framed = (events, piece)
    return piece


def _alike(ours: list[Event], theirs: list[Event]) -> bool:
    """Say whether two streams took the same: of texts every reader has objects of its own."""
    return len(ours) == len(theirs) and all(
        one is other or (isinstance(one, TextDelta) and one == other) for one, other in zip(ours, theirs, strict=True)
    )


def event_frame(hosted: Hosted, event: Event, config: ServerConfig) -> bytes:
    """Return one event as a frame; the last event of a run with how the run ended."""
    conversation_id = hosted.asking.conversation_id
    data: dict[str, Any] = event_data(event, conversation_id, config.shows_errors)
    if isinstance(event, RunFinished):
        follower = hosted.run.followed_by
        data |= run_outcome(hosted.run, conversation_id, config.shows_errors)
        data["followed_by"] = None if follower is None else follower.id
    return frame(event.kind, data, event_id(event))
