"""What a row of the hook table comes to: answers that were validated, verdicts, patches folded into one.

`RunStopped` is how a `Stop` leaves any depth of rooms.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import CoroutineType
from typing import Any

import attrs

from .hooks import Ask, Complete, Continue, Decline, Deny, NextStep, Question, Respond, Retry, Row, RunPatch, Skip, Stop
from .values import Stopped

__all__ = ["Decision", "RunStopped", "StreamVerdict", "awaitable", "combine", "validated"]

_VERDICTS = (Stop, Respond, Deny, Ask, Retry, Skip, Decline, NextStep, Complete, Continue)


class RunStopped(Exception):  # not an error: the way out of any depth of rooms
    """A `Stop` was honoured. Raised and caught by rooms only; it never crosses an application's frame."""

    def __init__(self, stopped: Stopped, text: str) -> None:
        self.stopped = stopped
        self.text = text
        super().__init__(stopped.reason)


@attrs.frozen(eq=False)
class Decision:
    """What a deciding row came to: the question with every answer applied, and the verdict that ended it, if any."""

    # Any: each row has its own types; whoever asks a row knows them.
    question: Any
    verdict: Any = None
    # Whose verdict it is.
    extension: str = ""
    # Who wants a person to be asked, and why.
    asks: tuple[tuple[str, str], ...] = ()
    patches: tuple[Any, ...] = ()


@attrs.frozen
class StreamVerdict:
    """What a `transform_stream` said through its control."""

    extension: str
    kind: str  # "abort" or "retry"
    text: str  # replacement or feedback
    reason: str = ""
    outcome: str = "blocked"


def awaitable(answer: Any) -> bool:
    """Say whether a hook's answer has to be awaited."""
    return type(answer) is CoroutineType or hasattr(answer, "__await__")


def validated(row: Row, question: Question, answer: Any) -> Any:
    """Return a hook's answer as it is used, checked by its row (H6).

    Raises: `TypeError` or `ValueError`, or what the row's own check raises: the extension's fault.
    """
    if not row.answers:
        raise TypeError(f"{row.name} only observes and must return nothing, not {type(answer).__name__}")
    right = isinstance(answer, row.answers) and not (isinstance(answer, str) and str not in row.answers)
    if object in row.answers:  # any output will do, but a verdict is none: here it has no effect
        right = not isinstance(answer, _VERDICTS)
    if not right:
        allowed = row.words or " · ".join(kind.__name__ for kind in row.answers)
        raise TypeError(f"{row.name} may answer {allowed} or None, not {type(answer).__name__}")
    if isinstance(answer, Stop | Respond | Deny | Retry | Ask | Continue):
        _check_verdict(answer)
    return answer if row.check is None else row.check(question, answer)


def _check_verdict(verdict: Stop | Respond | Deny | Retry | Ask | Continue) -> None:
    for field in attrs.fields(type(verdict)):
        value = getattr(verdict, field.name)
        if field.name != "whole_batch" and not isinstance(value, str):
            raise TypeError(f"{type(verdict).__name__}.{field.name} must be a string, not {type(value).__name__}")
    if isinstance(verdict, Respond | Continue) and not verdict.text.strip():
        raise ValueError(f"the text of a {type(verdict).__name__} is blank")


def combine(patches: Iterable[Any]) -> RunPatch:
    """Fold run, plan or model patches into one: settings merge by field, options by key; a patch with a model starts
    afresh, so what earlier ones set of both is dropped (T10); messages are appended in order."""
    model = None
    settings: dict[str, Any] = {}
    options: dict[str, Any] = {}
    messages: list[Any] = []
    tools: list[str] | None = None
    for patch in patches:
        if patch.model is not None:
            model, settings, options = patch.model, {}, {}
        settings.update(patch.settings or {})
        options.update(patch.provider_options or {})
        messages.extend(patch.messages or ())
        wanted = getattr(patch, "tools", None)
        if wanted is not None:
            tools = list(wanted) if tools is None else [name for name in tools if name in set(wanted)]
    return RunPatch(
        messages=messages or None,
        tools=tools,
        model=model,
        settings=settings or None,
        provider_options=options or None,
    )
