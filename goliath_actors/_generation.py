"""One generation: a single call of one model between its two events, its text sent through the transforms.

Used by the request room, which makes the attempts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import aclosing

import attrs
import trio

from ._decisions import StreamVerdict
from ._provider import CounterFailed, bare, counting, describe, exhausted
from ._stream import Heard, Screen, Source, replayed
from ._text import estimate
from ._work import Work
from .abc import Model, ModelEvent, ModelRequest, ModelResponse, ModelText
from .errors import GoliathExtensionError, ModelUnavailable, Refused
from .events import ModelFinished, ModelStarted
from .values import Usage

__all__ = ["Generation"]


@attrs.define(eq=False)
class Generation:
    """One call of a model. `tokens` is what its prompt was counted at; `visible` sends its text to the screen.

    `scope` is cancelled, and `verdicts` filled, when a transform ends the reply through its control; None without
    transforms.
    """

    work: Work
    screen: Screen
    visible: bool
    tokens: int
    scope: trio.CancelScope | None
    verdicts: list[StreamVerdict]
    heard: Heard = attrs.Factory(Heard)

    async def run(
        self, model: Model, request: ModelRequest, seconds: float
    ) -> tuple[ModelResponse | Exception, Usage | None]:
        """Make the call and book its usage exactly once.

        Arguments: what takes longer than `seconds` is an unavailable model.

        Returns: the response, or the provider's error; and the usage that was booked.

        Raises: what is not the provider's.

        Cancellation: the stream is closed, `ModelFinished` is told, usage so far is booked.
        """
        journal = self.work.journal
        start = journal.now()
        usage: Usage | None = None
        error: str | None = "cancelled"
        told = False
        try:
            journal.emit(ModelStarted, role=request.role, attempt=request.attempt)
            with journal.running("model"):
                if seconds == math.inf:
                    outcome = await self._read(model, request)
                else:
                    outcome = await self._timed(model, request, seconds)
            error = describe(outcome) if isinstance(outcome, Exception) else None
            usage = self._book()
            told = True
            self._finished(journal.emit, request, usage, error, start)
        except Exception as raised:
            error = describe(raised)
            raise
        finally:
            if not told:
                usage = self._book()
                self._finished(journal.emit_closing, request, usage, error, start)
        return outcome, usage

    def _finished(
        self, tell: Callable[..., object], request: ModelRequest, usage: Usage | None, error: str | None, start: float
    ) -> None:
        seconds = self.work.journal.now() - start
        tell(ModelFinished, role=request.role, attempt=request.attempt, usage=usage, error=error, seconds=seconds)

    def _book(self) -> Usage | None:
        """Add the call's usage to the run's: the provider's word, or an estimate of a call that produced something."""
        usage = self.heard.usage
        if usage is None and self.heard.anything:
            text = self.heard.all_text
            try:
                output = counting(self.work.counter)(text)
            except CounterFailed:
                output = estimate(text)
            usage = Usage(input_tokens=self.tokens, output_tokens=output, estimated=True)
        if usage is not None:
            self.work.journal.usage += usage
        return usage

    async def _timed(self, model: Model, request: ModelRequest, seconds: float) -> ModelResponse | Exception:
        with trio.move_on_after(seconds) as limit:
            return await self._read(model, request)
        assert limit.cancelled_caught
        return ModelUnavailable(f"no complete reply within {seconds:g} s", partial=self.heard.text)

    async def _read(self, model: Model, request: ModelRequest) -> ModelResponse | Exception:
        """Open the stream, read it to its end, close it."""
        # Why by hand: the model's context manager sees our own errors pass and may swallow or replace them; and it
        # may itself raise on entering, while iterating and on leaving, all of which is the provider's.
        heard = self.heard
        ours: Exception | None = None
        response: ModelResponse | None = None
        failure: Exception | None = None
        try:
            async with model.stream(request) as events:
                source = heard.source(events)
                try:
                    response = await self._show(source)
                except Exception as error:
                    failure = error
                    ours = None if error is heard.error else error
                    raise
                finally:
                    await source.aclose()
        except Exception as error:  # noqa: BLE001  # C6a: whatever its type, it is the provider's failure
            failure = error
        if ours is not None:
            raise ours
        if failure is None and heard.finish == "content_filter":
            failure = Refused("the provider's filter ended the reply", partial=heard.text)
        if failure is None:
            assert response is not None
            return response
        passing = exhausted(failure)
        if passing is not None:
            self.work.journal.blame(passing, "model")
            raise passing
        failure = bare(failure)
        self.work.journal.blame(failure, "model")
        return failure

    async def _show(self, source: Source) -> ModelResponse:
        """Read a reply to its end; one that is shown is sent through `transform_stream`, and what comes out of that is
        what is emitted and returned (T9)."""
        if self.scope is None or not self.visible:
            await source.drain(self.screen.show if self.visible else None)
            return self.heard.response(self.heard)
        out = Heard()
        async with self.work.panel.pipe("transform_stream", source, self.scope, self.verdicts) as stream:
            async for event in stream:
                if not isinstance(event, ModelEvent):
                    raise self._not_an_event(event)
                out.take(event)
                if isinstance(event, ModelText) and event.text:
                    self.screen.show(event.text)
        return out.response(self.heard)

    def _not_an_event(self, event: object) -> GoliathExtensionError:
        hooks = self.work.panel.hooks("transform_stream")
        error = GoliathExtensionError(
            hooks[-1].extension, "transform_stream", f"yielded {type(event).__name__}, which is no model event"
        )
        self.work.journal.blame(error, "extension")
        return error

    async def replay(self, response: ModelResponse) -> ModelResponse:
        """Send a response that no model streamed through `transform_stream`, as if one had. No call is made.

        Returns: what came out of the transforms.
        """
        async with aclosing(self.heard.source(replayed(response))) as source:
            shown = await self._show(source)
        return attrs.evolve(shown, usage=response.usage)
