"""What a reply in the chat-completions dialect says.

Uses _decoder, _sse, _errors; used by openai_chat. Two kinds of frames: those of the dialect, and the lines of a local
server's older one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import final

from goliath_actors.abc import ModelDone, ModelEvent
from goliath_actors.errors import ModelError, ModelUnavailable, Refused
from goliath_actors.values import Message, Usage

from ._decoder import Decoder, Payload
from ._errors import Report, Scrubber

__all__ = ["Reply", "usage_of"]

_LENGTH = frozenset({"length", "max_tokens", "max_output_tokens", "model_length"})
_FILTERED = frozenset({"content_filter", "content_filtered", "prohibited_content", "refusal", "safety"})
_BROKEN = frozenset({"abort", "aborted", "cancelled", "error"})
_MOST_TOKENS = 1_000_000_000
# NaN and Infinity are no JSON, but some servers write them into fields that nobody needs: they become None.
_DECODER = json.JSONDecoder(parse_constant=lambda _: None)


@final
class Reply(Decoder):
    """One reply as it comes in. `messages` are those that it replies to."""

    def __init__(self, scrub: Scrubber, messages: Sequence[Message] = ()) -> None:
        super().__init__(scrub, messages)
        self._refusal: list[str] | None = None

    def _refused(self, piece: str) -> None:
        if self._refusal is None:
            self._refusal = []
        self._refusal.append(piece)

    def _event(self, payload: Payload) -> list[ModelEvent]:
        if "done" in payload and "choices" not in payload:
            return self._line(payload)
        choice = _first_choice(payload)
        events = [] if choice is None else self._choice(choice)
        usage = payload.get("usage")
        if usage is not None:
            events.extend(self._count(usage))
        return events

    def _body(self, payload: Payload) -> list[ModelEvent] | None:
        if "choices" in payload:
            choice = _first_choice(payload)
            events = [] if choice is None else self._choice(choice, whole=True)
            return [*events, *self._count(payload.get("usage"))]
        return self._line(payload) if isinstance(payload.get("message"), dict) else None

    def _read(self, text: str) -> object:
        value: object = _DECODER.decode(text)
        return value

    def _hidden_report(self, payload: Payload) -> Report | None:
        if "choices" not in payload and isinstance(payload.get("message"), str):
            return Report.of(payload)
        return None

    def _verdict(self) -> tuple[list[ModelEvent], ModelError | None]:
        events = self._rest()
        refusal = "".join(self._refusal or ()).strip()
        if refusal or self._finish == "content_filter":
            return events, Refused(
                self._scrub(refusal) or "the provider's filter ended the reply",
                code="content_filter" if self._finish == "content_filter" else "refusal",
                partial=self.text or refusal,
            )
        if self._finish in _BROKEN:
            why = f"the provider gave the reply up (finish reason {self._finish!r})"
            return events, ModelUnavailable(why, code="truncated", partial=self.text)
        empty = self._empty(": its whole allowance went elsewhere (reasoning?); raise max_output_tokens")
        if empty is not None:
            return events, empty
        return [*events, *self._end_calls(), ModelDone(self._finish or "unknown")], None

    def _choice(self, choice: Payload, *, whole: bool = False) -> list[ModelEvent]:
        events: list[ModelEvent] = []
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            delta = choice.get("message")
        if isinstance(delta, dict):
            events = self._delta(delta, whole)
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason.strip():
            self.progress = True
            self._finished(reason.strip())
        return events

    def _delta(self, delta: Payload, whole: bool) -> list[ModelEvent]:
        # Reasoning and whatever else a server streams is no answer, but it shows that the model is at work.
        if not self.progress:
            self.progress = any(value for key, value in delta.items() if key != "role")
        content = delta.get("content")
        events = self._say(content) if isinstance(content, str) else self._parts(content)
        refusal = delta.get("refusal")
        if isinstance(refusal, str):
            self._refused(refusal)
        calls = delta.get("tool_calls")
        if isinstance(calls, list) and calls:
            events.extend(self._called(calls, alone=whole))
        return events

    def _line(self, payload: Payload) -> list[ModelEvent]:
        """One line of the older dialect of a local server: `message`, `done`, and counts of its own."""
        events: list[ModelEvent] = []
        message = payload.get("message")
        if isinstance(message, dict):
            events = self._delta(message, whole=True)
        if payload.get("done"):
            reason = payload.get("done_reason")
            self._finished(reason if isinstance(reason, str) and reason else "stop")
            self.ended = self.progress = True
            counts = {"prompt_tokens": payload.get("prompt_eval_count"), "completion_tokens": payload.get("eval_count")}
            events.extend(self._count({name: count for name, count in counts.items() if count is not None}))
        return events

    def _finished(self, reason: str) -> None:
        word = reason.lower()
        if word in _FILTERED or word.startswith("content_filter"):
            self._finish = "content_filter"
        elif self._finish != "content_filter":
            self._finish = "length" if word in _LENGTH else reason

    def _parts(self, content: object) -> list[ModelEvent]:
        """Take a message's content that is no text: a list of typed parts."""
        events: list[ModelEvent] = []
        for part in content if isinstance(content, list) else ():
            kind = part.get("type") if isinstance(part, dict) else None
            piece = part.get("refusal" if kind == "refusal" else "text") if isinstance(part, dict) else part
            if not isinstance(piece, str):
                continue
            if kind == "refusal":
                self._refused(piece)
            elif kind in ("text", "output_text", None):
                events.extend(self._say(piece))
        return events

    def _count(self, reported: object) -> list[ModelEvent]:
        events = self._used(usage_of(reported))
        if events:
            self.progress = True
        return events


def usage_of(reported: object) -> Usage | None:
    """Return the tokens that a provider reports, or None if it reports none or what cannot be."""
    if not isinstance(reported, dict):
        return None
    counts: list[int] = []
    for names in (("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens")):
        value = next((reported[name] for name in names if reported.get(name) is not None), 0)
        if not _is_count(value):
            return None
        counts.append(int(value))
    if not any(counts):
        return None  # every prompt has tokens: zeros stand for "not counted"
    return Usage(
        input_tokens=counts[0],
        output_tokens=counts[1],
        cached_tokens=_detail(reported, "prompt_tokens_details", "cached_tokens"),
        reasoning_tokens=_detail(reported, "completion_tokens_details", "reasoning_tokens"),
    )


def _detail(reported: Payload, group: str, name: str) -> int:
    details = reported.get(group)
    value = details.get(name) if isinstance(details, dict) else None
    return int(value) if value is not None and _is_count(value) else 0


def _is_count(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return 0 <= value <= _MOST_TOKENS and value == int(value)


def _first_choice(payload: Payload) -> Payload | None:
    choices = payload.get("choices")
    if not isinstance(choices, list):
        return None
    for choice in choices:
        # Only one reply was asked for; further ones would be mixed into it.
        if isinstance(choice, dict) and choice.get("index") in (None, 0):
            return choice
    return None
