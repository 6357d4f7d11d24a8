"""What can go wrong on a provider's side, in words and by kind; and counting tokens, which fails in the same way.

Used by everything that has to do with a model call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from ._callables import discard
from ._composition import schemas_text
from ._leaves import bare, leaves, single
from ._text import clip
from .abc import TokenCounter, ToolSpec
from .errors import ContextOverflow, ModelUnavailable, Refused, ScriptExhausted
from .values import Message

__all__ = [
    "CounterFailed",
    "Failure",
    "bare",
    "classify",
    "counting",
    "describe",
    "exhausted",
    "prompt_parts",
]

CAUSE_LINKS = 8  # C6a: how far an error's causes are followed
DESCRIBE_AT_MOST = 300  # characters of an error in an event or an escalation


@attrs.frozen(eq=False)
class Failure:
    """No reply. `reason` is `guardrail`, `context-budget`, `model-unavailable` or `model-error`."""

    reason: str
    error: Exception
    # True if the prompt was never sent, because it does not fit. Said by the room that counted it and never read off
    # the error's type: a model may raise a `GoliathBudgetError` of its own making, which is its failure (C6a).
    over_budget: bool = False

    @property
    def detail(self) -> str:
        """The error in words."""
        return describe(self.error)


class CounterFailed(Exception):
    """The token counter raised, or gave what is no count. Never replaced by an estimate; a provider failure (C6a)."""


# --- errors ---------------------------------------------------------------------------------------------------------


def describe(error: BaseException) -> str:
    """Return an error in one bounded line: its type and its text; of a group of one, those of the one."""
    error = single(error) or error
    text = str(error).strip()
    line = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return clip(line, DESCRIBE_AT_MOST)


def classify(error: BaseException) -> str:
    """Return the escalation reason for an error out of a model call.

    Follows `__cause__` for 8 links, cycle-safe, into groups too; a refusal anywhere wins, else the first type that
    says something (C6a, C9).
    """
    reason = ""
    for link in _links(error):
        for leaf in leaves(link):
            if isinstance(leaf, Refused):
                return "guardrail"
            if isinstance(leaf, ContextOverflow):
                reason = reason or "context-budget"
            elif isinstance(leaf, ModelUnavailable):
                reason = reason or "model-unavailable"
    return reason or "model-error"


def _links(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes, 8 links, each once."""
    seen: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and len(seen) < CAUSE_LINKS and all(link is not known for known in seen):
        seen.append(link)
        yield link
        link = link.__cause__


def exhausted(error: Exception) -> ScriptExhausted | None:
    """Return the exhausted script behind an error, wherever a model has put it: a test's mistake is no outage (C6a)."""
    for link in _links(error):
        for leaf in leaves(link):
            if isinstance(leaf, ScriptExhausted):
                return leaf
    return None


# --- counting -------------------------------------------------------------------------------------------------------


def counting(counter: TokenCounter) -> Callable[[str], int]:
    """Return a function that counts one text, raising `CounterFailed` for whatever goes wrong."""

    def count(text: str) -> int:
        try:
            tokens: Any = counter.count(text)
        except Exception as error:
            raise CounterFailed(f"token counter {counter.name!r} failed: {describe(error)}") from error
        if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 0:
            discard(tokens)
            raise CounterFailed(f"token counter {counter.name!r} gave {tokens!r}, which is no count of tokens")
        return tokens

    return count


def prompt_parts(
    messages: Sequence[Message], schema: Mapping[str, Any] | None, tools: tuple[ToolSpec, ...]
) -> list[str]:
    """Return what is sent as (system, schemas, prompt): everything that costs tokens is in one of them."""
    system = [message.text for message in messages if message.role == "system"]
    prompt: list[str] = []
    for message in messages:
        if message.role != "system":
            prompt.append(message.text)
            prompt.extend(f"{call.name} {call.arguments}" for call in message.tool_calls)
    return ["\n\n".join(system), schemas_text(schema, tools), "\n\n".join(prompt)]
