"""What fits: shares of the context window, counting a prompt, choosing the counter.

Used by the request room, the loops and the tool room.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable
from typing import Any, Final, Literal, SupportsIndex, final

import attrs

from .abc import TokenCounter
from .errors import ConfigError
from .tokens import EstimateCounter, best_counter
from .values import Message

__all__ = [
    "INPUT_SHARE",
    "PROMPT_OVERHEAD",
    "ContentBudgets",
    "FixedCounts",
    "PromptCounts",
    "count_prompt",
    "input_limit",
    "provider_reserve",
    "resolve_counter",
    "source_of",
]

# Share of the window that a prompt may fill.
INPUT_SHARE: Final = 0.7
# Tokens that a provider's own message frame adds to every prompt: a few per message, for a system and a user message.
PROMPT_OVERHEAD: Final = 8
FIXED_TEXTS: Final = 32  # system texts and schemas of an agent whose counts are kept


def provider_reserve(window: int) -> int:
    """Return the tokens of `window` (tokens) that are left free for what a provider adds: a tenth, at least 128."""
    return max(128, -(-window // 10))


def input_limit(window: int, output_cap: int) -> int:
    """Return how many tokens a prompt may have, given the window and the cap of the reply (both in tokens).

    Not positive for a tiny window: then nothing fits.
    """
    # INPUT_SHARE in whole numbers: 0.7 * 90 is 62.99… in binary floating point.
    return min(window * 7 // 10, window - output_cap - provider_reserve(window))


def count_prompt(counter: TokenCounter, system: str, schema_json: str, prompt: str) -> int:
    """Return the tokens of a whole prompt: system text, JSON text of the reply's schema (or empty) and user text.

    A tokenizer counts all three at once, joined by blank lines; an estimate is the sum of the three. `PROMPT_OVERHEAD`
    is added in both cases.

    Raises: ValueError if the token counter answers with no valid count; whatever the counter itself raises.
    """
    parts = [part for part in (system, schema_json, prompt) if part]
    if source_of(counter) == "tokenizer":
        return counter.count("\n\n".join(parts)) + PROMPT_OVERHEAD
    return sum(counter.count(part) for part in parts) + PROMPT_OVERHEAD


@attrs.define(eq=False)
class FixedCounts:
    """Counts of texts that stay the same from prompt to prompt, a few of them, for all conversations of an agent."""

    counter: TokenCounter
    _known: dict[str, int] = attrs.Factory(dict)

    def of(self, text: str) -> int:
        """Return the tokens of a text.

        Raises: ValueError if the token counter answers with no valid count; whatever the counter itself raises.
        """
        count = self._known.get(text)
        if count is None:
            count = self.counter.count(text)
            if len(self._known) >= FIXED_TEXTS:
                self._known.clear()
            self._known[text] = count
        return count


@attrs.define(eq=False)
class PromptCounts:
    """Counts prompts that begin alike, as those of one conversation do: each message is counted once."""

    counter: TokenCounter
    # Of system texts and schemas, which change seldom.
    fixed: FixedCounts = attrs.Factory(lambda self: FixedCounts(self.counter), takes_self=True)
    # The prompt that was counted last: system texts, `_first` of them, then a body, with the sum up to each message of
    # that; and its tokens, None if they are not known: a step counts its own first as what it would be, then as it is.
    _messages: tuple[Message, ...] = ()
    _first: int = 0
    _sums: list[int] = attrs.Factory(list)
    _schemas: str = ""
    _total: int | None = None

    def count(self, messages: tuple[Message, ...], schemas: str) -> int:
        """Return the tokens of a prompt, `PROMPT_OVERHEAD` included; texts that are separate messages count apart.

        Raises: ValueError if the token counter answers with no valid count; whatever the counter itself raises.
        """
        known = self._total
        # Mostly of the same objects, and so quick.
        if known is not None and self._messages == messages and self._schemas == schemas:
            return known
        first, count = 0, len(messages)
        while first < count and messages[first].role == "system":
            first += 1
        begin = first + self._alike(messages, first)
        del self._sums[begin - first :]
        # What was counted, should the counter raise.
        self._messages, self._first, self._total = messages[:begin], first, None
        total = self._sums[-1] if self._sums else 0
        for message in messages[begin:]:
            total += self._of(message)
            self._sums.append(total)
        self._messages = messages
        total += PROMPT_OVERHEAD
        for message in messages[:first]:
            total += self.fixed.of(message.text) + 1 if message.text else 0
        if schemas:
            total += self.fixed.of(schemas) + 1
        self._schemas, self._total = schemas, total
        return total

    def _alike(self, messages: tuple[Message, ...], first: int) -> int:
        """Return how many messages from `first` on are those that were counted last. Compares the same objects, which
        takes no time."""
        alike, most = 0, min(len(messages) - first, len(self._messages) - self._first)
        new, old = first, self._first
        for step in (256, 16, 1):
            while alike + step <= most and messages[new : new + step] == self._messages[old : old + step]:
                alike, new, old = alike + step, new + step, old + step
        return alike

    def _of(self, message: Message) -> int:
        count = self.counter.count
        tokens = count(message.text) + 1 if message.text else 0  # 1 for what parts it from the next
        for call in message.tool_calls:
            tokens += count(f"{call.name} {call.arguments}") + 1
        return tokens


def source_of(counter: TokenCounter) -> Literal["tokenizer", "estimate"]:
    """Return the word under which a budget event names where its count came from."""
    return "tokenizer" if counter.exact else "estimate"


def resolve_counter(token_counter: TokenCounter | Callable[[str], int] | str | None, model: object) -> TokenCounter:
    """Return the counter to use: the agent's, else the model's own `count_tokens`, else the estimate.

    Arguments: `token_counter`, an object with `count`, a plain callable, `"auto"` (tiktoken if its vocabulary is on
    disk, else the estimate) or None; `model`, anything that may have `count_tokens(text) -> int`.

    Returns: a counter whose every count is checked: an answer that is no whole, finite, non-negative number raises
    ValueError.

    Raises: ConfigError if `token_counter` is none of these.
    """
    if token_counter is not None:
        return _of_agent(token_counter)
    count = getattr(model, "count_tokens", None)
    if callable(count):
        return _Checked(f"{getattr(model, 'name', type(model).__name__)}.count_tokens", True, count)
    return EstimateCounter()


def _of_agent(token_counter: TokenCounter | Callable[[str], int] | str) -> TokenCounter:
    if isinstance(token_counter, str):
        if token_counter == "auto":
            return best_counter()
        raise ConfigError(f'token_counter={token_counter!r}: the only word is "auto"; or pass a counter or a callable')
    if isinstance(token_counter, type):
        raise ConfigError(f"token_counter is the class {token_counter.__name__}; pass an instance of it")
    if isinstance(token_counter, _Checked):
        return token_counter
    count = getattr(token_counter, "count", None)
    if callable(count):
        name = getattr(token_counter, "name", type(token_counter).__name__)
        return _Checked(str(name), bool(getattr(token_counter, "exact", True)), count)
    if callable(token_counter):
        return _Checked(getattr(token_counter, "__name__", type(token_counter).__name__), True, token_counter)
    raise ConfigError(
        "token_counter must have a method `count(text) -> int` or be such a function, "
        f"not {type(token_counter).__name__}"
    )


@final
@attrs.define(eq=False)
class _Checked:
    """A counter of an application's, its answers checked."""

    name: str
    exact: bool
    # Any: checked below.
    _count: Callable[[str], Any]

    def count(self, text: str) -> int:
        return _valid(self._count(text), self.name)


def _valid(count: Any, name: str) -> int:
    if inspect.isawaitable(count):
        if inspect.iscoroutine(count):
            count.close()
        raise ValueError(f"the token counter {name!r} is async; it must return a number at once")
    whole = _whole(count)
    if whole is None or whole < 0:
        raise ValueError(f"the token counter {name!r} returned {count!r}; a count is a whole number, 0 or more")
    return whole


def _whole(number: object) -> int | None:
    if isinstance(number, float):
        return int(number) if math.isfinite(number) and number.is_integer() else None
    if isinstance(number, bool) or not isinstance(number, SupportsIndex):
        return None
    return operator.index(number)


@attrs.frozen
class ContentBudgets:
    """How many tokens of literal content a window has room for.

    `result` bounds one tool result in content mode: min(800, window / 8); `retrieved` all such results that a prompt
    shows: min(2000, window / 4). Both are at least 1 and may be given instead.

    Raises: ConfigError if a given one is not a positive integer, or `result` is larger than `retrieved`.
    """

    window: int
    result: int = attrs.field(default=attrs.Factory(lambda own: max(1, min(800, own.window // 8)), takes_self=True))
    retrieved: int = attrs.field(default=attrs.Factory(lambda own: max(1, min(2000, own.window // 4)), takes_self=True))

    def __attrs_post_init__(self) -> None:
        for name, value in (("result", self.result), ("retrieved", self.retrieved)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"the {name} budget must be a positive integer (tokens), not {value!r}")
        if self.result > self.retrieved:
            raise ConfigError(
                f"the budget of one result ({self.result} tokens) is larger than that of all retrieved content "
                f"({self.retrieved}); lower `result` or raise `retrieved`"
            )
