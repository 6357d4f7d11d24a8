"""`Redact`: patterns that nobody is shown, in what streams, in what is kept, and in what leaves the device."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, cast

import attrs

from goliath_actors.abc import ModelDone, ModelEvent, ModelText
from goliath_actors.errors import ConfigError
from goliath_actors.hooks import (
    AfterAnswer,
    AfterTool,
    BeforeAppend,
    BeforeFallback,
    BeforeRemember,
    BeforeRun,
    Extension,
    HookContext,
    RunPatch,
    StreamControl,
)
from goliath_actors.values import Exchange, FallbackRequest, Memory, Message, Step

from ._scope import positive

__all__ = ["Redact"]

Secret: TypeAlias = "str | re.Pattern[str]"


class _Pattern(Protocol):
    """What is used of a pattern of the library `regex`, which can say that a text may be the beginning of a match."""

    # Any: a match, or None.
    def match(self, text: str, pos: int = ...) -> Any: ...

    def search(self, text: str, pos: int = ..., *, partial: bool = ...) -> Any: ...

    def fullmatch(self, text: str, pos: int = ..., *, partial: bool = ...) -> Any: ...


def _compiled(secret: object) -> _Pattern:
    import regex  # type: ignore[import-untyped]  # the distribution carries no type information

    if isinstance(secret, str):
        if not secret.strip():
            raise ConfigError("Redact: a text to be redacted must have something in it")
        return cast(_Pattern, regex.compile(regex.escape(secret)))
    if not isinstance(secret, re.Pattern) or not isinstance(secret.pattern, str):
        raise ConfigError(f"Redact takes strings, and patterns made by re.compile, not {secret!r}")
    flags = regex.VERSION0
    for name in ("ASCII", "IGNORECASE", "MULTILINE", "DOTALL", "VERBOSE"):
        if secret.flags & getattr(re, name):
            flags |= getattr(regex, name)
    try:
        pattern = cast(_Pattern, regex.compile(secret.pattern, flags))
    except regex.error as error:
        raise ConfigError(f"Redact cannot use the pattern {secret.pattern!r}: {error}") from error
    if pattern.fullmatch("") is not None:
        raise ConfigError(f"Redact: the pattern {secret.pattern!r} matches where there is nothing")
    return pattern


@attrs.define(eq=False)
class _Stream:
    """Text that arrives in pieces; what is given out of it can no longer be a part of a secret.

    A position is held back while the text from there to the end may be the beginning of a match, or is one that could
    still grow. Once more than `longest` characters are held back, that many count as a secret: they are replaced, and
    nothing behind them is given out before it is sure where the match ends, or that there is none.
    """

    patterns: Sequence[_Pattern]
    replacement: str
    longest: int
    # What arrived and may still matter: up to `longest` characters before `place`, which patterns may look back at.
    raw: str = ""
    # Invariant: it is known of every position before this one whether a secret begins there.
    place: int = 0
    # Invariant: everything before this position that is not given out has been replaced.
    covered: int = 0

    def feed(self, text: str, final: bool = False) -> str:
        """Take a piece; return what is sure by now. After `final` there is nothing more."""
        self.raw += text
        out: list[str] = []
        while self.place < len(self.raw):
            begin = self._next(final)
            out.append(self.raw[max(self.place, self.covered) : begin])
            self.place = begin
            if begin == len(self.raw):
                break
            if not final and self._may_go_on(begin):
                if len(self.raw) - begin > self.longest:
                    self._cover(begin + self.longest, out)
                break
            self._cover(self._end(begin), out)
            # Not behind the match: another secret may begin inside it and end later.
            self.place += 1
        self._trim()
        return "".join(out)

    def _next(self, final: bool) -> int:
        """Return the first position from `place` on at which something begins; the length of the text if none does."""
        hits = [pattern.search(self.raw, self.place, partial=not final) for pattern in self.patterns]
        begins: list[int] = [hit.start() for hit in hits if hit is not None and hit.end() > hit.start()]
        if not begins:
            return len(self.raw)
        if final:
            return min(begins)
        # A search prefers a whole match to the beginning of one that lies before it, so the first is looked for.
        last = min(begins)
        return next(
            (place for place in range(self.place, last) if self._may_go_on(place) or self._end(place) > place), last
        )

    def _may_go_on(self, place: int) -> bool:
        return any(pattern.fullmatch(self.raw, place, partial=True) is not None for pattern in self.patterns)

    def _end(self, place: int) -> int:
        """Return where the longest match at a position ends; the position itself if there is none."""
        matches = [pattern.match(self.raw, place) for pattern in self.patterns]
        ends: list[int] = [match.end() for match in matches if match is not None]
        return max(ends, default=place)

    def _cover(self, end: int, out: list[str]) -> None:
        if self.place >= self.covered:
            out.append(self.replacement)
        self.covered = max(self.covered, end)

    def _trim(self) -> None:
        cut = self.place - self.longest
        if cut > 0:
            self.raw, self.place, self.covered = self.raw[cut:], self.longest, max(0, self.covered - cut)


class Redact(Extension[Any]):
    """Replaces secrets in what is said, kept, and handed to a fallback.

    Arguments:
      secrets: texts, taken literally, and patterns made by `re.compile`, of which at most the `longest` characters
        before a match are looked back at.
      replacement: what stands in a secret's place; none of the secrets may match in it.
      longest: characters that a streaming reply is held back by at most, because they may be the beginning of a secret.
        What may be a longer one is replaced without waiting for its end, also where it turns out to be none.
      asks: also redact the ask before a model sees it. What is stored of it then has no secret either.
      name: the extension's name; needed where an agent has two of these.

    Redacted are: streamed replies, whatever the pieces; answers of a fallback, and those given in the model's place;
    what models are told of tool results; everything a fallback is asked with; summaries, remembered exchanges and
    stored messages of the assistant and of tools. Not redacted: the input of tools, which must be what was confirmed,
    and briefs, which lead to it; so the events about tools and plans show those.

    Register it last, so that it sees what other extensions make of a text.

    Raises: `ConfigError`.
    """

    def __init__(
        self,
        *secrets: Secret,
        replacement: str = "[redacted]",
        longest: int = 256,
        asks: bool = False,
        name: str = "redact",
    ) -> None:
        if not secrets:
            raise ConfigError("Redact needs at least one secret")
        positive("Redact(longest=...)", longest, whole=True)
        if not isinstance(replacement, str) or not replacement.strip():
            # With nothing in its place, what stands on both sides of a secret could become one.
            raise ConfigError("Redact(replacement=...) must be a string with text in it")
        self._patterns = [_compiled(secret) for secret in secrets]
        for secret, pattern in zip(secrets, self._patterns, strict=True):
            if pattern.search(replacement) is not None:
                raise ConfigError(f"Redact: the replacement {replacement!r} has a match of {secret!r} itself")
            if isinstance(secret, str) and len(secret) > longest:
                raise ConfigError(f"Redact(longest={longest}) is less than the {len(secret)} characters of a secret")
        self.name = name
        self._replacement = replacement
        self._longest = longest
        self._asks = asks

    def _stream(self) -> _Stream:
        return _Stream(self._patterns, self._replacement, self._longest)

    def _clean(self, text: str) -> str:
        return self._stream().feed(text, final=True)

    def before_run(self, ctx: HookContext[Any], question: BeforeRun) -> RunPatch | None:
        """Redact the ask, if it is to be."""
        if not self._asks:
            return None
        ask = self._clean(question.ask)
        return None if ask == question.ask else RunPatch(ask=ask)

    async def transform_stream(
        self, ctx: HookContext[Any], events: AsyncIterator[ModelEvent], control: StreamControl
    ) -> AsyncIterator[ModelEvent]:
        """Redact a reply while it streams."""
        stream = self._stream()
        async for event in events:
            if isinstance(event, ModelText):
                text = stream.feed(event.text)
                if text:
                    yield ModelText(text)
                continue
            if isinstance(event, ModelDone):
                rest = stream.feed("", final=True)
                if rest:
                    yield ModelText(rest)
            yield event
        # Another transform may keep the end to itself.
        rest = stream.feed("", final=True)
        if rest:
            yield ModelText(rest)

    def after_tool(self, ctx: HookContext[Any], question: AfterTool) -> str | None:
        """Redact what the model is told of a tool call."""
        return _changed(question.result, self._clean(question.result))

    def after_answer(self, ctx: HookContext[Any], question: AfterAnswer) -> str | None:
        """Redact an answer that did not stream through here."""
        return _changed(question.text, self._clean(question.text))

    def before_append(self, ctx: HookContext[Any], question: BeforeAppend) -> Message | None:
        """Redact a message that is to be stored, unless it is the user's own."""
        message = question.message
        if message.role not in ("assistant", "tool"):
            return None
        text = self._clean(message.text)
        return None if text == message.text else attrs.evolve(message, text=text)

    def before_fallback(self, ctx: HookContext[Any], question: BeforeFallback) -> FallbackRequest:
        """Redact everything that leaves the device."""
        request = question.request
        return FallbackRequest(
            ask=self._clean(request.ask),
            summary=self._clean(request.summary),
            recent=[self._exchange(exchange) for exchange in request.recent],
            steps=[self._step(step) for step in request.steps],
            reason=request.reason,
            error=None if request.error is None else self._clean(request.error),
        )

    def before_remember(self, ctx: HookContext[Any], question: BeforeRemember) -> Memory:
        """Redact what is remembered."""
        memory = question.memory
        return Memory(self._clean(memory.summary), [self._exchange(exchange) for exchange in memory.recent])

    def _exchange(self, exchange: Exchange) -> Exchange:
        return attrs.evolve(
            exchange,
            ask=self._clean(exchange.ask),
            answer=self._clean(exchange.answer),
            steps=[self._step(step) for step in exchange.steps],
        )

    def _step(self, step: Step) -> Step:
        return attrs.evolve(
            step,
            brief=self._clean(step.brief),
            input=None if step.input is None else self._data(step.input),
            result=None if step.result is None else self._clean(step.result),
            text=None if step.text is None else self._clean(step.text),
            output=None,
        )

    def _data(self, value: Any) -> Any:
        """Return JSON data with every string in it redacted, keys included."""
        if isinstance(value, str):
            return self._clean(value)
        if isinstance(value, Mapping):
            return {self._clean(str(key)): self._data(item) for key, item in value.items()}
        if isinstance(value, Sequence):
            return [self._data(item) for item in value]
        return value


def _changed(before: str, after: str) -> str | None:
    return None if after == before else after
