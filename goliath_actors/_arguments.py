"""What the doors of a runtime accept, and the words for what they do not.

Refusing is synchronous and leaves no trace.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable

from ._agent import check_on_event
from ._callables import CALLBACKS, check_takes
from ._envelope import RunOptions
from ._numbers import check_seconds
from .errors import ConfigError

__all__ = ["MAX_ID", "check_ask", "checked_id", "hint"]

MAX_ID = 512  # characters of a conversation id (R1)


def checked_id(conversation_id: object) -> str | None:
    """Return the id if it may name a conversation (R1).

    Raises: `ConfigError`.
    """
    if conversation_id is None:
        return None
    if not isinstance(conversation_id, str):
        raise ConfigError(f"conversation_id must be a string or None, not {type(conversation_id).__name__}")
    if not conversation_id.strip():
        raise ConfigError("conversation_id must be a nonempty string, not blank; None is the default conversation")
    if len(conversation_id) > MAX_ID:
        raise ConfigError(f"conversation_id has {len(conversation_id)} characters, at most {MAX_ID} are allowed")
    return conversation_id


def check_ask(ask: object, options: RunOptions, on_event: Callable[..., object] | None, when_busy: object) -> None:
    """Refuse what is no ask, or asks for what there is not (R2).

    Raises: `ConfigError`.
    """
    if not isinstance(ask, str):
        raise ConfigError(f"ask must be a string, not {type(ask).__name__}")
    if not ask.strip():
        raise ConfigError("ask is blank; there is nothing to answer")
    if when_busy not in ("queue", "refuse", "replace"):
        raise ConfigError(f'when_busy must be "queue", "refuse" or "replace", not {when_busy!r}')
    if options.confirm is not None:
        _check_callable("confirm", options.confirm)
    if on_event is not None:
        _check_callable("on_event", on_event)
        check_on_event("on_event", on_event)
    if options.confirm_timeout is not None:
        check_seconds("confirm_timeout", options.confirm_timeout)


def _check_callable(name: str, value: object) -> None:
    if not callable(value):
        raise ConfigError(f"{name} must be callable, not {type(value).__name__}")
    check_takes(name, value, *CALLBACKS[name])


def hint(name: object, known: Iterable[str]) -> str:
    """Return "; did you mean …?" for a name that is nearly one of those known, else nothing."""
    close = difflib.get_close_matches(name, list(known), n=1) if isinstance(name, str) else []
    return f"; did you mean {close[0]!r}?" if close else ""
