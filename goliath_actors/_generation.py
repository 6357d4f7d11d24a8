"""One generation: a single call of one model between its two events, its text sent through the transforms.

Used by the request room, which makes the attempts.
"""

from __future__ import annotations

from contextlib import aclosing

import attrs
import trio

from ._decisions import StreamVerdict
from ._provider import CounterFailed, bare, counting, describe, exhausted
from ._stream import Heard, Screen, Source, replayed
from ._text import estimate
from ._work import Work
from .abc import Model, ModelRequest, ModelResponse, ModelText
from .errors import GoliathExtensionError, ModelUnavailable, Refused
from .events import ModelFinished, ModelStarted
from .values import Usage

__all__ = ["Cut", "Generation"]


@attrs.frozen(eq=False)
class Cut:
    """How a transform ends a reply from inside, through its control: `scope` is cancelled, `verdicts` hold what it said
    (the first counts)."""

    scope: trio.CancelScope = attrs.Factory(trio.CancelScope)
    verdicts: list[StreamVerdict] = attrs.Factory(list)


@attrs.define(eq=False)
class Generation:
    """One call of a model. `tokens` is what its prompt was counted at; `visible` sends its text to the screen.

    `cut` is None without transforms. It is the block around its own call (`calling`), since each object more is one
    more that every run holds while it waits.
    """

    work: Work
    screen: Screen
    visible: bool
    tokens: int
    cut: Cut | None
    heard: Heard = attrs.Factory(Heard)
    # What was booked, once the call is over.
    usage: Usage | None = None
    _request: ModelRequest | None = None
    _since: float = 0.0
    # The provider's error, if the call came to one.
    _failure: Exception | None = None

    def calling(self, request: ModelRequest) -> Generation:
        """Return a block around the call, to be entered once: leaving it books the usage and tells `ModelFinished`,
        exactly once, whatever passes."""
        self._request, self._since = request, self.work.journal.now()
        return self

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        journal, request = self.work.journal, self._request
        assert request is not None
        tell, words = journal.emit, None if self._failure is None else describe(self._failure)
        if error is not None:
            journal.blame_fatal(error, "model")
            tell, words = journal.emit_closing, describe(error) if isinstance(error, Exception) else "cancelled"
        usage = self.usage = self._book()
        seconds = journal.now() - self._since
        tell(ModelFinished, role=request.role, attempt=request.attempt, usage=usage, error=words, seconds=seconds)

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

    async def read_within(self, model: Model, seconds: float) -> ModelResponse | Exception:
        """As `read`; what takes longer than `seconds` is an unavailable model."""
        with trio.move_on_after(seconds) as limit:
            return await self.read(model)
        assert limit.cancelled_caught
        self._failure = ModelUnavailable(f"no complete reply within {seconds:g} s", partial=self.heard.text)
        return self._failure

    async def read(self, model: Model) -> ModelResponse | Exception:
        """Inside the block: open the stream, read it to its end, close it.

        Returns: the response, or the provider's error.

        Raises: what is not the provider's.

        Cancellation: the stream is closed.
        """
        request = self._request
        assert request is not None
        self.work.journal.emit(ModelStarted, role=request.role, attempt=request.attempt)
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
        failure = self._failure = bare(failure)
        self.work.journal.blame(failure, "model")
        return failure

    async def _show(self, source: Source) -> ModelResponse:
        """Read a reply to its end; one that is shown is sent through `transform_stream`, and what comes out of that is
        what is emitted and returned (T9)."""
        if self.cut is None or not self.visible:
            await source.drain(self.screen.show if self.visible else None)
            return self.heard.response(self.heard)
        out = Heard()
        async with self.work.panel.pipe("transform_stream", source, self.cut.scope, self.cut.verdicts) as stream:
            async for event in stream:
                wrong = out.take(event)
                if wrong is not None:
                    raise self._not_an_event(wrong)
                if isinstance(event, ModelText) and event.text:
                    self.screen.show(event.text)
        return out.response(self.heard)

    def _not_an_event(self, wrong: str) -> GoliathExtensionError:
        hooks = self.work.panel.hooks("transform_stream")
        error = GoliathExtensionError(hooks[-1].extension, "transform_stream", f"yielded {wrong}")
        self.work.journal.blame(error, "extension")
        return error

    async def replay(self, response: ModelResponse) -> ModelResponse:
        """Send a response that no model streamed through `transform_stream`, as if one had. No call is made.

        Returns: what came out of the transforms.
        """
        async with aclosing(self.heard.source(replayed(response))) as source:
            shown = await self._show(source)
        return attrs.evolve(shown, usage=response.usage)
