"""Models around other models: what both kinds need to hand a reply through without owning it.

Used by fallbacks and limited.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from goliath_actors.abc import Model, ModelEvent
from goliath_actors.errors import ConfigError

__all__ = ["PassedOn", "check_model", "largest_count"]

Counter = Callable[[str], int]


class PassedOn(AsyncIterator[ModelEvent]):
    """The events of another model's reply, one to one. `error` is what that model has raised while iterating.

    Not an async generator: one that is abandoned half-way would be closed by the garbage collector, and with it the
    other model's iterator. `aclose` closes that one, if it can be closed.
    """

    def __init__(self, events: AsyncIterator[ModelEvent]) -> None:
        self._events = aiter(events)
        self.error: Exception | None = None

    async def __anext__(self) -> ModelEvent:
        return await self.receive()

    async def receive(self) -> ModelEvent:
        """Return the other model's next event.

        Raises: what it raises; `StopAsyncIteration` at the end.

        Cancellation: is the other model's.
        """
        try:
            event = await anext(self._events)
        except StopAsyncIteration:
            raise
        except Exception as error:
            self.error = error
            raise
        return event

    async def aclose(self) -> None:
        """Close the other model's iterator; once more changes nothing.

        Cancellation: is the other model's.
        """
        # Any: an iterator need not have the method; generators do.
        close: Any = getattr(self._events, "aclose", None)
        if close is not None:
            await close()


def check_model(owner: str, model: object) -> None:
    """Raise `ConfigError` unless `model` can be asked; `owner` is who was given it."""
    if isinstance(model, type) or not callable(getattr(model, "stream", None)):
        raise ConfigError(f"{owner} takes models; {model!r} has no stream method")


def largest_count(models: Iterable[Model]) -> Counter | None:
    """Return a function that counts a text as that of `models` does which counts the most tokens; None if none of them
    can count (`Model.count_tokens` is optional)."""
    # Any: an optional attribute, whose signature nothing but its use can check.
    optional: list[Any] = [getattr(model, "count_tokens", None) for model in models]
    counters: list[Any] = [count for count in optional if callable(count)]
    if not counters:
        return None
    return lambda text: max(count(text) for count in counters)
