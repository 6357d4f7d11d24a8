"""The composition `pipe`: a stream sent through every hook of a row, and the control by which a hook ends it."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import AbstractContextManager, AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import trio

from ._callables import discard
from ._decisions import StreamVerdict
from ._leaves import bare, leaves, of_its_own
from ._roster import Hook
from .errors import GoliathExtensionError

__all__ = ["pipe"]

T = TypeVar("T")


@asynccontextmanager
async def pipe(
    hooks: Iterable[Hook],
    context: Callable[[Hook], Any],
    fault: Callable[[Hook, Exception], GoliathExtensionError],
    events: AsyncIterator[T],
    scope: trio.CancelScope,
    verdicts: list[StreamVerdict],
    running: Callable[[str], AbstractContextManager[None]],
) -> AsyncIterator[AsyncIterator[T]]:
    """Send `events` through every hook, in registration order. As `Panel.pipe`.

    Arguments: `context` gives a hook its own; `fault` the error that stands for what a hook raised by itself; `running`
    a block whose interrupts are blamed on an origin, unless an inner one has been (`RunJournal.running`).
    """
    async with AsyncExitStack() as stack:
        stream, whose = events, "model"
        # Around everything that is entered below: a hook's stream may raise as it is closed, too.
        stack.enter_context(running("extension"))
        for hook in hooks:
            passed: list[BaseException] = []
            control = _Control(hook.extension, scope, verdicts)
            upstream = await stack.enter_async_context(aclosing(_LettingThrough(stream, passed, running(whose))))
            whose = "extension"
            try:
                out = hook.call(context(hook), upstream, control)
            except Exception as error:
                raise fault(hook, error) from error
            if out is None:
                continue
            if not hasattr(out, "__aiter__"):
                discard(out)
                what = "a coroutine; it has no yield" if inspect.iscoroutine(out) else type(out).__name__
                problem = TypeError(f"an async generator is wanted, not {what}")
                raise fault(hook, problem) from problem
            if hasattr(out, "aclose"):
                await stack.enter_async_context(aclosing(out))
            stream = await stack.enter_async_context(aclosing(_guarded(hook, out, passed, fault)))
        yield stream


async def _guarded(
    hook: Hook, stream: Any, passed: list[BaseException], fault: Callable[[Hook, Exception], GoliathExtensionError]
) -> AsyncGenerator[Any, None]:
    out_of_group: Exception | None = None
    try:
        async for event in stream:
            yield event
    except Exception as error:
        if any(error is known for known in passed):
            raise
        only = bare(error)
        if all(only is not known for known in passed):
            raise fault(hook, only) from only
        out_of_group = only
    except BaseExceptionGroup as group:
        own = of_its_own(group, passed, partial(fault, hook))
        if own is None:
            raise
        raise own from None
    if out_of_group is not None:
        raise out_of_group


class _LettingThrough:
    """A stream as a hook gets it: what it raises is noted in `passed`, and is its last word.

    Why no async generator: `blaming` is entered for each event anew, and holds nothing while the hook has its turn.
    """

    __slots__ = ("_blaming", "_passed", "_stream")

    def __init__(
        self, stream: AsyncIterator[T], passed: list[BaseException], blaming: AbstractContextManager[None]
    ) -> None:
        self._stream: AsyncIterator[Any] | None = stream
        self._passed = passed
        self._blaming = blaming

    def __aiter__(self) -> _LettingThrough:
        return self

    async def __anext__(self) -> Any:
        if self._stream is None:
            raise StopAsyncIteration
        try:
            with self._blaming:
                return await self._stream.__anext__()
        except StopAsyncIteration:
            self._stream = None
            raise
        except Exception as error:
            self._stream = None
            self._passed.append(error)
            raise
        except BaseExceptionGroup as group:
            self._stream = None
            self._passed.extend(leaves(group))
            raise

    async def aclose(self) -> None:
        """End it for the hook; the stream itself is closed by who made it."""
        self._stream = None


class _Control:
    """`StreamControl` for one extension. Cancelling the pipe's scope is how nothing returns to the transform."""

    __slots__ = ("_extension", "_scope", "verdicts")

    def __init__(self, extension: str, scope: trio.CancelScope, verdicts: list[StreamVerdict]) -> None:
        self._extension = extension
        self._scope = scope
        self.verdicts = verdicts

    async def abort(self, reason: str, outcome: str = "blocked", replacement: str = "") -> None:
        _strings("abort", reason, outcome, replacement)
        self.verdicts.append(StreamVerdict(self._extension, "abort", replacement, reason, outcome))
        self._scope.cancel()
        await trio.sleep_forever()

    async def retry(self, feedback: str) -> None:
        _strings("retry", feedback)
        self.verdicts.append(StreamVerdict(self._extension, "retry", feedback))
        self._scope.cancel()
        await trio.sleep_forever()


def _strings(method: str, *values: object) -> None:
    for value in values:
        if not isinstance(value, str):
            raise TypeError(f"control.{method} takes strings, not {type(value).__name__}")
