"""What a reply says: decoded frames in, model events out, and a verdict at the end.

Uses _sse, _calls, _errors; used by openai_chat. Nothing in a frame is guaranteed to be there, and
nothing here waits or knows about connections. A reply is complete when a finish reason or the end marker has come;
without either it was cut off.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import final

from goliath_actors.abc import ModelDone, ModelEvent, ModelText, ModelUsage
from goliath_actors.errors import ModelError, ModelUnavailable, Refused
from goliath_actors.values import Usage

from ._calls import Calls, Surrogates
from ._errors import Report, Scrubber, from_report
from ._sse import Frame
from ._wire import read_json

__all__ = ["Reply", "read_payload", "unusable", "usage_of"]

_LENGTH = frozenset({"length", "max_tokens", "max_output_tokens", "model_length"})
_FILTERED = frozenset({"content_filter", "content_filtered", "prohibited_content", "refusal", "safety"})
_BROKEN = frozenset({"abort", "aborted", "cancelled", "error"})
_MOST_TOKENS = 1_000_000_000
# NaN and Infinity are no JSON, but some servers write them into fields that nobody needs: they become None.
_DECODER = json.JSONDecoder(parse_constant=lambda _: None)


@final
class Reply:
    """One reply as it comes in. `taken` are the tool-call ids that the conversation has already."""

    def __init__(self, scrub: Scrubber, taken: Iterable[str] = ()) -> None:
        self._scrub = scrub
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._whole_text = Surrogates()
        self._calls = Calls(taken)
        self._usage: Usage | None = None
        self._finish: str | None = None
        self._marked = False
        self._seen = False  # anything at all
        self.progress = False
        """True once something of worth has come; whoever waits sets it back. Comments and pings do not set it."""

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._text)

    @property
    def complete(self) -> bool:
        """True if a finish reason or the end marker has come."""
        return self._marked or self._finish is not None

    @property
    def ended(self) -> bool:
        """True if nothing more can come that counts."""
        return self._marked

    def feed(self, frame: Frame) -> list[ModelEvent]:
        """Return the events of one frame of a stream.

        Raises: `ModelError` if it reports an error or is not JSON; what came before it stays in `text`.
        """
        data = frame.data.strip()
        if not data:
            return []
        self._seen = True
        if data == "[DONE]":
            self._marked = self.progress = True
            return []
        payload = read_payload(frame, _decode, self._scrub, self.text)
        if payload is None:
            return []
        if "done" in payload and "choices" not in payload:
            return self._line(payload)
        events = self._choice(_first_choice(payload))
        usage = payload.get("usage")
        return events if usage is None else [*events, *self._count(usage)]

    def feed_whole(self, frame: Frame) -> list[ModelEvent]:
        """Return the events of a reply that came as one body; it is complete then.

        Raises: `ModelError` if it reports an error or is no reply.
        """
        self._seen = True
        try:
            payload = _decode(frame.data)
        except (ValueError, RecursionError):
            kind = "a web page" if frame.data.lstrip().startswith("<") else "something that is not JSON"
            raise self._unusable(f"the server sent {kind} instead of a reply: {self._scrub(frame.data, 150)}") from None
        report = Report.find(payload)
        fields = payload if isinstance(payload, dict) else {}
        if report is None and "choices" not in fields and isinstance(fields.get("message"), str):
            report = Report.of(payload)
        if report is not None:
            raise from_report(report, self._scrub, partial=self.text)
        if "choices" in fields:
            events = [*self._choice(_first_choice(fields), whole=True), *self._count(fields.get("usage"))]
        elif isinstance(fields.get("message"), dict):
            events = self._line(fields)
        else:
            raise self._unusable(f"the server sent JSON that is no reply: {self._scrub(frame.data, 150)}")
        self._marked = True
        return events

    def end(self, cut: str) -> tuple[list[ModelEvent], ModelError | None]:
        """Return the last events, and the error that follows them if this was no answer.

        Arguments: `cut` says what has ended the stream, for the message if the reply is not complete.
        """
        if not self.complete:
            if not self._seen:
                return [], ModelUnavailable("the server sent an empty reply", code="empty")
            return [], ModelUnavailable(cut, code="truncated", partial=self.text)
        events: list[ModelEvent] = []
        if left := self._whole_text.close():
            self._text.append(left)
            events.append(ModelText(left))
        refusal = "".join(self._refusal).strip()
        if refusal or self._finish == "content_filter":
            return events, Refused(
                self._scrub(refusal) or "the provider's filter ended the reply",
                code="content_filter" if self._finish == "content_filter" else "refusal",
                partial=self.text or refusal,
            )
        if self._finish in _BROKEN:
            why = f"the provider gave the reply up (finish reason {self._finish!r})"
            return events, ModelUnavailable(why, code="truncated", partial=self.text)
        if not self._calls and not self.text.strip():
            why = "the model's reply is empty"
            if self._finish == "length":
                why += ": its whole allowance went elsewhere (reasoning?); raise max_output_tokens"
            return events, ModelUnavailable(why, code="empty")
        return [*events, *self._calls.close(), ModelDone(self._finish or "unknown")], None

    def _choice(self, choice: Mapping[str, object] | None, *, whole: bool = False) -> list[ModelEvent]:
        if choice is None:
            return []
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

    def _delta(self, delta: Mapping[str, object], whole: bool) -> list[ModelEvent]:
        # Reasoning and whatever else a server streams is no answer, but it shows that the model is at work.
        self.progress = self.progress or any(value for key, value in delta.items() if key != "role")
        events: list[ModelEvent] = []
        content = delta.get("content")
        for kind, piece in [("text", content)] if isinstance(content, str) else _parts(content):
            if kind == "refusal":
                self._refusal.append(piece)
            elif text := self._whole_text(piece):
                self._text.append(text)
                events.append(ModelText(text))
        refusal = delta.get("refusal")
        if isinstance(refusal, str):
            self._refusal.append(refusal)
        calls = delta.get("tool_calls")
        if isinstance(calls, list) and calls:
            events.extend(self._calls.feed(calls, whole=whole))
        return events

    def _line(self, payload: Mapping[str, object]) -> list[ModelEvent]:
        """One line of the older dialect of a local server: `message`, `done`, and counts of its own."""
        events: list[ModelEvent] = []
        message = payload.get("message")
        if isinstance(message, dict):
            events = self._delta(message, whole=True)
        if payload.get("done"):
            reason = payload.get("done_reason")
            self._finished(reason if isinstance(reason, str) and reason else "stop")
            self._marked = self.progress = True
            counts = {"prompt_tokens": payload.get("prompt_eval_count"), "completion_tokens": payload.get("eval_count")}
            events.extend(self._count({name: count for name, count in counts.items() if count is not None}))
        return events

    def _finished(self, reason: str) -> None:
        word = reason.lower()
        if word in _FILTERED or word.startswith("content_filter"):
            self._finish = "content_filter"
        elif self._finish != "content_filter":
            self._finish = "length" if word in _LENGTH else reason

    def _count(self, reported: object) -> list[ModelEvent]:
        usage = usage_of(reported)
        if usage is None or usage == self._usage:
            return []
        self._usage = usage
        self.progress = True
        return [ModelUsage(usage)]

    def _unusable(self, message: str) -> ModelUnavailable:
        return unusable(message, self.text)


def read_payload(
    frame: Frame, decode: Callable[[str], object], scrub: Scrubber, partial: str
) -> dict[str, object] | None:
    """Return the object that one event of a stream holds, None if it holds nothing that counts.

    Arguments: `decode`, the dialect's own reader of JSON; `partial`, the text that came before.

    Raises: `ModelError` if it reports an error or is not JSON.
    """
    data = frame.data.strip()
    try:
        payload = decode(data)
    except (ValueError, RecursionError):
        if frame.cut:
            return None  # the connection ended inside this frame: cut off, not malformed
        if frame.event == "error":
            raise from_report(Report(data), scrub, partial=partial) from None
        raise unusable(f"an event of the reply is not JSON: {scrub(data, 100)}", partial) from None
    report = Report.find(payload) or (Report.of(payload) if frame.event == "error" else None)
    if report is not None:
        raise from_report(report, scrub, partial=partial)
    return payload if isinstance(payload, dict) else None


def unusable(message: str, partial: str) -> ModelUnavailable:
    """Return the error for what is no reply."""
    return ModelUnavailable(message, code="bad-response", partial=partial)


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


def _detail(reported: Mapping[str, object], group: str, name: str) -> int:
    details = reported.get(group)
    value = details.get(name) if isinstance(details, dict) else None
    return int(value) if value is not None and _is_count(value) else 0


def _is_count(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return 0 <= value <= _MOST_TOKENS and value == int(value)


def _first_choice(payload: Mapping[str, object]) -> Mapping[str, object] | None:
    choices = payload.get("choices")
    if not isinstance(choices, list):
        return None
    for choice in choices:
        # Only one reply was asked for; further ones would be mixed into it.
        if isinstance(choice, dict) and choice.get("index") in (None, 0):
            return choice
    return None


def _parts(content: object) -> list[tuple[str, str]]:
    """The pieces of a message's content that is no text: a list of typed parts."""
    if not isinstance(content, list):
        return []
    found: list[tuple[str, str]] = []
    for part in content:
        if isinstance(part, str):
            found.append(("text", part))
        elif isinstance(part, dict) and part.get("type") in ("text", "output_text", "refusal", None):
            kind = "refusal" if part.get("type") == "refusal" else "text"
            piece = part.get(kind)
            if isinstance(piece, str):
                found.append((kind, piece))
    return found


def _decode(data: str) -> object:
    return read_json(data, _DECODER.decode)
