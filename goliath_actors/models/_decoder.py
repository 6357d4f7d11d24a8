"""What replies of every dialect have alike: frames in, model events out, and a verdict at the end.

Uses _sse, _calls, _errors, _wire; used by _reply, _messages_reply and _incoming. Nothing in a frame is guaranteed to be
there, and nothing here waits or knows about connections. A reply is complete when the reason for its end or the end
marker has come; without either it was cut off.
"""

from __future__ import annotations

import abc
import json
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import attrgetter

from goliath_actors.abc import ModelEvent, ModelText, ModelUsage
from goliath_actors.errors import ModelError, ModelUnavailable
from goliath_actors.values import Message, Usage

from ._calls import LONE, Calls, whole
from ._errors import Report, Scrubber, from_report
from ._sse import Frame
from ._wire import read_json

__all__ = ["Decoder", "Payload"]

Payload = Mapping[str, object]

_ID, _TOOL_CALLS = attrgetter("id"), attrgetter("tool_calls")
_NO_JSON = object()


class Decoder(abc.ABC):
    """One reply as it comes in. `messages` are those that it replies to: no new call gets the id of one of theirs."""

    def __init__(self, scrub: Scrubber, messages: Sequence[Message] = ()) -> None:
        self._scrub = scrub
        self._messages = messages
        self._text: list[str] | None = None  # made when the first piece comes: a reply is mostly waited for
        self._half = ""  # of a surrogate pair, which the next piece completes
        self._calls: Calls | None = None  # made when the first one comes: most replies have none
        self._usage: Usage | None = None
        self._finish: str | None = None
        self._seen = False  # anything at all
        self.ended = False
        """True if nothing more can come that counts: the end marker has come."""
        self.progress = False
        """True once something of worth has come; whoever waits sets it back. Comments and pings do not set it."""

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._text or ())

    @property
    def complete(self) -> bool:
        """True if the reason for the end or the end marker has come."""
        return self.ended or self._finish is not None

    def feed(self, frame: Frame) -> list[ModelEvent]:
        """Return the events of one frame of a stream.

        Raises: `ModelError` if it reports an error or is not JSON; what came before it stays in `text`.
        """
        data = frame.data.strip()
        if not data:
            return []
        self._seen = True
        if data == "[DONE]":  # also of proxies that know one dialect better than the other
            self.ended = self.progress = True
            return []
        payload = self._payload(data)
        if payload is _NO_JSON:
            if frame.cut:
                return []  # the connection ended inside this frame: cut off, not malformed
            if frame.event == "error":
                raise from_report(Report(data), self._scrub, partial=self.text)
            raise self._unusable(f"an event of the reply is not JSON: {self._scrub(data, 100)}")
        report = Report.find(payload)
        if report is None and frame.event == "error":
            report = Report.of(payload)
        if report is not None:
            raise from_report(report, self._scrub, partial=self.text)
        return self._event(payload) if isinstance(payload, dict) else []

    def _payload(self, text: str) -> object:
        # What raises for it does so outside: an error of the reader's holds the whole text, and would be its context.
        try:
            return read_json(text, self._read)
        except (ValueError, RecursionError):
            return _NO_JSON

    def feed_whole(self, frame: Frame) -> list[ModelEvent]:
        """Return the events of a reply that came as one body; it is complete then.

        Raises: `ModelError` if it reports an error or is no reply.
        """
        self._seen = True
        payload = self._payload(frame.data)
        if payload is _NO_JSON:
            kind = "a web page" if frame.data.lstrip().startswith("<") else "something that is not JSON"
            raise self._unusable(f"the server sent {kind} instead of a reply: {self._scrub(frame.data, 150)}")
        report = Report.find(payload)
        events: list[ModelEvent] | None = None
        if report is None and isinstance(payload, dict):
            report = self._hidden_report(payload)
            events = self._body(payload) if report is None else None
        if report is not None:
            raise from_report(report, self._scrub, partial=self.text)
        if events is None:
            raise self._unusable(f"the server sent JSON that is no reply: {self._scrub(frame.data, 150)}")
        self.ended = True
        return events

    def end(self, cut: str) -> tuple[list[ModelEvent], ModelError | None]:
        """Return the last events, and the error that follows them if this was no answer.

        Arguments: `cut` says what has ended the stream, for the message if the reply is not complete.
        """
        if not self.complete:
            if not self._seen:
                return [], ModelUnavailable("the server sent an empty reply", code="empty")
            return [], ModelUnavailable(cut, code="truncated", partial=self.text)
        return self._verdict()

    @abc.abstractmethod
    def _event(self, payload: Payload) -> list[ModelEvent]:
        """Return the events of one event of a stream."""

    @abc.abstractmethod
    def _body(self, payload: Payload) -> list[ModelEvent] | None:
        """Return the events of a whole reply, None if it is none."""

    @abc.abstractmethod
    def _verdict(self) -> tuple[list[ModelEvent], ModelError | None]:
        """Return the last events of a complete reply, and the error that follows them if it was no answer."""

    def _read(self, text: str) -> object:
        """Read what is not strictly JSON."""
        value: object = json.loads(text)
        return value

    def _hidden_report(self, payload: Payload) -> Report | None:
        """Return the error that a whole body reports in a way of the dialect's own."""
        return None

    def _say(self, piece: str) -> list[ModelEvent]:
        if self._half or not piece.isascii():
            piece, self._half = whole(self._half + piece)
        if not piece:
            return []
        if self._text is None:
            self._text = []
        self._text.append(piece)
        return [ModelText(piece)]

    def _rest(self) -> list[ModelEvent]:
        """Return what was held back of the text."""
        half, self._half = self._half, ""
        return self._say(LONE) if half else []

    def _called(self, pieces: Sequence[object], *, alone: bool = False) -> list[ModelEvent]:
        """Take pieces of calls; `alone` says that each is a call of its own."""
        if self._calls is None:
            self._calls = Calls(map(_ID, chain.from_iterable(map(_TOOL_CALLS, self._messages))))
        return [*self._calls.feed(pieces, alone=alone)]

    def _end_calls(self) -> list[ModelEvent]:
        return [] if self._calls is None else [*self._calls.close()]

    def _empty(self, hint: str) -> ModelUnavailable | None:
        """Return the error for a reply without text and calls; `hint` is for one that ran into its limit."""
        if self._calls or self.text.strip():
            return None
        return ModelUnavailable(f"the model's reply is empty{hint if self._finish == 'length' else ''}", code="empty")

    def _used(self, usage: Usage | None) -> list[ModelEvent]:
        """Return the event for a count, unless it is the one that was told already."""
        if usage is None or usage == self._usage:
            return []
        self._usage = usage
        return [ModelUsage(usage)]

    def _unusable(self, message: str) -> ModelUnavailable:
        return ModelUnavailable(message, code="bad-response", partial=self.text)
