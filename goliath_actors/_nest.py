"""The composition `nest`: a work inside every hook of a row, the first registered outermost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Generic, TypeVar

import attrs
import trio

from ._decisions import awaitable, validated
from ._leaves import bare, leaves, of_its_own
from ._roster import Hook
from .errors import GoliathExtensionError
from .hooks import Row

__all__ = ["Nest"]

T = TypeVar("T")

_NOTHING: Any = object()


@attrs.frozen(eq=False)
class Nest(Generic[T]):
    """One nest row, being asked about one piece of work."""

    row: Row
    hooks: tuple[Hook, ...]
    # Any: the hook context of the extension, and each row's own question and patch.
    context: Callable[[Hook], Any]
    # Gives the error that stands for what a hook raised by itself.
    fault: Callable[[Hook, Exception], GoliathExtensionError]
    # Gives a block around a hook's own code: what ends the program there is the extension's doing (R12).
    place: Callable[[], AbstractContextManager[None]]
    inner: Callable[[Any], Awaitable[T]]
    # Applies what a hook gave to `call_next`; None where a row takes nothing.
    patched: Callable[[Any, Any], Any] | None = None
    # A hook's further `call_next()` without a patch gives what the last one gave.
    memoised: bool = False

    async def run(self, question: Any, depth: int = 0) -> T:
        """Run the hooks from `depth` on, and inside them the work.

        Raises: what the work raised and the hooks let through, as the same object (H4a); `GoliathExtensionError` for
        what a hook raised or answered by itself.

        Cancellation: passes through every hook, the innermost first.
        """
        if depth == len(self.hooks):
            return await self.inner(question)
        hook = self.hooks[depth]
        passed: list[BaseException] = []
        result: T = _NOTHING
        called = over = False

        async def call_next(patch: Any = None) -> T:
            nonlocal result, called
            if over:  # it would act behind the back of a run that has gone on, or is over
                raise RuntimeError(f"call_next of {self.row.name} is good only while its hook runs")
            following = question
            if patch is None and self.memoised and result is not _NOTHING:
                await trio.lowlevel.checkpoint()
                return result
            if patch is not None:
                if self.patched is None:
                    raise TypeError(f"call_next of {self.row.name} takes no argument")
                following = self.patched(question, patch)
            called, result = True, _NOTHING
            try:
                result = await self.run(following, depth + 1)
            except Exception as error:
                passed.append(error)
                raise
            except BaseExceptionGroup as group:
                passed.extend(leaves(group))
                raise
            return result

        out_of_group: Exception | None = None
        answer: Any = None
        try:
            with self.place():  # what comes out of `call_next` was blamed in there
                answer = hook.call(self.context(hook), question.fork(), call_next)
                if answer is not None and awaitable(answer):
                    answer = await answer
            if answer is not None:
                answer = validated(self.row, question, answer)
        except Exception as error:
            if any(error is known for known in passed):
                raise
            only = bare(error)
            if all(only is not known for known in passed):
                raise self.fault(hook, only) from only
            out_of_group = only
        except BaseExceptionGroup as group:
            own = of_its_own(group, passed, partial(self.fault, hook))
            if own is None:
                raise
            raise own from None
        finally:
            over = True
        if out_of_group is not None:
            raise out_of_group
        await trio.lowlevel.checkpoint_if_cancelled()
        if answer is not None:
            value: T = answer
            return value
        # No opinion: what came of the last call stands, and a hook that made none gets out of the way. Nothing is done
        # a second time because a hook kept an error, or its own time limit, to itself.
        if result is not _NOTHING:
            return result
        if not called:
            return await self.run(question, depth + 1)
        if passed:
            raise passed[-1]
        problem = TypeError(f"it cut {self.row.name} short and returned nothing in its place")
        raise self.fault(hook, problem) from problem
