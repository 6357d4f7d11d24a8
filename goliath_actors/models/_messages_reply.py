"""What a reply in the messages dialect says.

Uses _decoder, _reply, _errors, _wire; used by anthropic. A reply is a list of blocks, streamed one behind the other:
text, calls, and kinds that are no answer (thinking).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from goliath_actors.abc import ModelDone, ModelEvent
from goliath_actors.errors import ModelError, Refused
from goliath_actors.values import Message

from ._decoder import Decoder, Payload
from ._errors import Scrubber
from ._reply import usage_of
from ._wire import compact_json

__all__ = ["MessagesReply"]

_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
}
_INPUT = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
_COUNTS = (*_INPUT, "output_tokens")


@final
class MessagesReply(Decoder):
    """One reply as it comes in. `messages` are those that it replies to; `reply_tool` is the tool whose input is the
    reply's text."""

    def __init__(self, scrub: Scrubber, messages: Sequence[Message] = (), reply_tool: str | None = None) -> None:
        super().__init__(scrub, messages)
        self._reply_tool = reply_tool
        # What is said beside a reply that is the input of a tool; it counts only if that tool is never called.
        self._aside: list[str] = []
        self._replying: int | None = None  # the block whose input is the reply
        self._replied = False
        self._counts: dict[str, object] = {}
        self._why_refused = ""

    def _event(self, payload: Payload) -> list[ModelEvent]:
        match payload.get("type"):
            case "message_start":
                # No progress: the provider has taken the request, and nothing says that the model is at work.
                return self._count(_part(payload, "message").get("usage"), progress=False)
            case "content_block_start":
                return self._begin(payload.get("index"), _part(payload, "content_block"))
            case "content_block_delta":
                return self._delta(payload.get("index"), _part(payload, "delta"))
            case "message_delta":
                self._stop(_part(payload, "delta"))
                return self._count(payload.get("usage"))
            case "message_stop":
                self.ended = self.progress = True
        return []

    def _body(self, payload: Payload) -> list[ModelEvent] | None:
        content = payload.get("content")
        if not isinstance(content, list):
            return None
        events: list[ModelEvent] = []
        for number, block in enumerate(content):
            if isinstance(block, dict):
                events.extend(self._begin(number, block))
        self._stop(payload)
        events.extend(self._count(payload.get("usage")))
        return events

    def _verdict(self) -> tuple[list[ModelEvent], ModelError | None]:
        if self._replied and not self.text and self._finish != "length":
            aside = "{}"  # the input was empty, and none came
        else:
            aside = "" if self._replied else "".join(self._aside)
        events = [*self._say(aside), *self._rest()]
        if self._finish == "refusal":
            said = self._scrub(self._why_refused) or "the model declined to answer"
            return events, Refused(said, code="refusal", partial=self.text)
        empty = self._empty(": its whole allowance went elsewhere (thinking?); raise max_tokens")
        if empty is not None:
            return events, empty
        finish = self._finish or "unknown"
        if self._replied and finish == "tool_calls" and not self._calls:
            finish = "stop"  # the one call was the reply
        return [*events, *self._end_calls(), ModelDone(finish)], None

    def _begin(self, index: object, block: Payload) -> list[ModelEvent]:
        match block.get("type"):
            case "text":
                return self._spoken(block.get("text"))
            case "tool_use":
                self.progress = True
                given = block.get("input")
                arguments = compact_json(given) if isinstance(given, dict) else ""
                if self._reply_tool is not None and block.get("name") == self._reply_tool:
                    self._replying = index if type(index) is int else None
                    self._replied = True
                    # An empty input stands for one that is still to come; here, and in the calls of the decoder.
                    return self._say(arguments) if given else []
                function = {"name": block.get("name"), "arguments": arguments}
                return self._called([{"index": index, "id": block.get("id"), "function": function}])
        return []

    def _delta(self, index: object, delta: Payload) -> list[ModelEvent]:
        # Thinking is no answer, but it shows that the model is at work.
        self.progress = True
        match delta.get("type"):
            case "text_delta":
                return self._spoken(delta.get("text"))
            case "input_json_delta":
                piece = delta.get("partial_json")
                if self._replied and index == self._replying:
                    return self._say(piece) if isinstance(piece, str) else []
                return self._called([{"index": index, "function": {"arguments": piece}}]) if piece else []
        return []

    def _spoken(self, piece: object) -> list[ModelEvent]:
        if isinstance(piece, str) and piece:
            self.progress = True
            if self._reply_tool is None:
                return self._say(piece)
            self._aside.append(piece)
        return []

    def _stop(self, fields: Payload) -> None:
        reason = fields.get("stop_reason")
        if isinstance(reason, str) and reason.strip():
            self.progress = True
            self._finish = _REASONS.get(reason.strip(), reason.strip())
        details = fields.get("stop_details")
        if isinstance(details, dict) and isinstance(details.get("explanation"), str):
            self._why_refused = details["explanation"]

    def _count(self, reported: object, *, progress: bool = True) -> list[ModelEvent]:
        """Take running totals: those of the end replace those of the beginning, and either may leave some out."""
        if not isinstance(reported, dict):
            return []
        self._counts.update({name: reported[name] for name in _COUNTS if _is_count(reported.get(name))})
        details = reported.get("output_tokens_details")
        thought = details.get("thinking_tokens") if isinstance(details, dict) else None
        if _is_count(thought):
            self._counts["thinking_tokens"] = thought
        counts: dict[str, int] = {name: int(str(count)) for name, count in self._counts.items()}
        usage = usage_of(
            {
                # What was read from a cache, or written to one, comes on top of the provider's own count.
                "input_tokens": sum(counts.get(name, 0) for name in _INPUT),
                "output_tokens": counts.get("output_tokens", 0),
                "prompt_tokens_details": {"cached_tokens": counts.get("cache_read_input_tokens", 0)},
                "completion_tokens_details": {"reasoning_tokens": counts.get("thinking_tokens", 0)},
            }
        )
        events = self._used(usage)
        self.progress = self.progress or (progress and bool(events))
        return events


def _part(payload: Payload, name: str) -> Payload:
    part = payload.get(name)
    return part if isinstance(part, dict) else {}


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0
