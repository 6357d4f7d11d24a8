"""A run on the screen: its steps as they happen, one dim line each, and its answer in full.

Called inline with every event, so that what is shown stands in the order in which it happened.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, final

import attrs

from goliath_actors import RunResult
from goliath_actors.events import (
    Answer,
    Confirm,
    Escalate,
    Event,
    HookDecision,
    MemoryError,
    ModelFinished,
    ModelStarted,
    PlanMade,
    Retraction,
    RunQueued,
    TextDelta,
    ToolFinished,
    ToolProgress,
    ToolStarted,
)

from .screen import Screen, one_line
from .trouble import without_type

__all__ = ["View", "json_line", "thaw"]

_DOING = {
    "plan": "planning",
    "arguments": "filling in the arguments",
    "answer": "answering",
    "scribe": "remembering",
    "step": "thinking",
    "compact": "summarising",
}


def json_line(value: Any) -> str:  # Any: a tool's input or a part of it, plain JSON data
    """Return plain JSON data, read-only mappings included, as one line of JSON."""
    return json.dumps(thaw(value), ensure_ascii=False)


def thaw(value: Any) -> Any:
    """Return a plain copy of JSON data that may hold read-only mappings and tuples."""
    if isinstance(value, Mapping):
        return {key: thaw(item) for key, item in value.items()}
    return [thaw(item) for item in value] if isinstance(value, list | tuple) else value


@final
@attrs.define(eq=False)
class View:
    """Shows runs. `answers` gets answers alone, `notes` everything else; in a terminal both are one screen.

    `lost` is called once the output is gone (a closed pipe, a vanished terminal). A `quiet` view shows no steps.
    """

    answers: Screen
    notes: Screen
    quiet: bool = False
    lost: Callable[[], None] = lambda: None
    # Whether confirmations were typed here, so that showing the decision again would say it twice.
    asks: bool = False
    indent: str = ""
    escalation: Escalate | None = attrs.field(default=None, init=False)
    # The answer as far as it is out: streamed text, then, once it is whole, what the run says it is.
    _text: str = attrs.field(default="", init=False)
    _whole: bool = attrs.field(default=False, init=False)
    _error: str = attrs.field(default="", init=False)
    # Why the attempt that is told next is no call: it was refused or denied just before.
    _instead: str = attrs.field(default="", init=False)

    def on_event(self, event: Event) -> None:
        """Show one event. Never raises: an output that is gone ends the program, not the run with an odd error."""
        try:
            self._show(event)
        except OSError:
            self.lost()

    def _show(self, event: Event) -> None:
        if isinstance(event, RunQueued):
            self.escalation, self._text, self._whole, self._error, self._instead = None, "", False, "", ""
        elif isinstance(event, TextDelta):
            self.notes.clear_status()
            self._write(event.text)
            self._text += event.text
        elif isinstance(event, Retraction):
            self._withdraw("the text above is withdrawn")
        elif isinstance(event, Answer):
            self._answer(event.text)
        elif isinstance(event, Escalate):
            self.escalation = event
            error = without_type(event.error or "")
            self._step("gave up", event.reason + (f": {error}" if error and error != self._error else ""), "yellow")
        elif not self.quiet:
            self._show_step(event)

    def _show_step(self, event: Event) -> None:
        if isinstance(event, ModelStarted):
            if event.attempt:
                self._step("again", f"attempt {event.attempt + 1}")
            self.notes.status(f"{self.indent}  {_DOING.get(event.role, event.role)} …")
        elif isinstance(event, ModelFinished):
            if not event.error or event.error == "cancelled":  # an abort is told by whoever asked for it
                return
            error = without_type(event.error)
            self._step("model", "the same" if error == self._error else error, "yellow")
            self._error = error
        elif isinstance(event, PlanMade):
            what = event.plan_kind if event.tool is None else f"use {event.tool}"
            why = event.why or event.brief
            self._step("plan", f"{what}: {why}" if why else what)
        elif isinstance(event, ToolStarted):
            self._step(self._instead or "call", f"{event.tool} {json_line(event.input)}")
            if not self._instead:
                self.notes.status(f"{self.indent}  {event.tool} runs …")
            self._instead = ""
        elif isinstance(event, ToolProgress):
            far = f"{event.progress:g}" if event.total is None else f"{event.progress:g} of {event.total:g}"
            words = f", {one_line(event.message)}" if event.message else ""
            self.notes.status(f"{self.indent}  {event.tool} runs: {far}{words} …")
        elif isinstance(event, ToolFinished):
            status = "" if event.status == "executed" else f"[{event.status}] "
            self._step("result", status + event.result, "dim" if not status else "yellow")
            if event.error is not None:
                self._step("error", event.error, "yellow")
        elif isinstance(event, Confirm):
            self._instead = "" if event.approved else "refused"
            if self.asks:
                return
            self._step("confirm", "approved" if event.approved else f"refused: {event.reason or 'no reason given'}")
        elif isinstance(event, HookDecision):
            if event.phase == "before_tool" and event.decision == "deny":
                self._instead = "denied"
            reason = f": {event.reason}" if event.reason else ""
            self._step("hook", f"{event.extension} in {event.phase}: {event.decision}{reason}", "yellow")
        elif isinstance(event, MemoryError):
            self._step("memory", f"not saved: {event.error}", "yellow")

    def asked(self, text: str) -> None:
        """Show an ask that came out of a file or a pipe, so that its steps can be told from those of others."""
        self._step("ask", text, "bold")

    def finish(self, result: RunResult) -> None:
        """Make sure that the whole answer of a run that is over is on the screen."""
        if result.text and not (self._whole and result.text == self._text):
            self._answer(result.text)
        self.end()
        if result.stopped is not None and not self.quiet:
            stopped = result.stopped
            self._step("stopped", f"{stopped.extension} in {stopped.phase}: {stopped.reason}", "yellow")
        for waiting in result.waiting:
            payload = "" if waiting.payload is None else f": {waiting.payload}"
            self._step(
                "waits", f"{waiting.tool} waits for an answer ({waiting.kind}, {waiting.call_id}){payload}", "yellow"
            )

    def end(self) -> None:
        """End whatever line is open."""
        self.answers.end_line()
        self.notes.clear_status()

    def _answer(self, text: str) -> None:
        self.notes.clear_status()
        if self._text.strip() != text.strip():
            if self._text:
                self._withdraw("the answer was changed to")
            self._write(text)
        self._text, self._whole = text, True
        self.answers.end_line()

    def _write(self, text: str) -> None:
        self.answers.flow(text, self.indent)

    def _withdraw(self, words: str) -> None:
        self.end()
        if self._text:
            self.notes.line(f"{self.indent}  ({words})", "dim")
        self._text = ""

    def _step(self, label: str, text: str, style: str = "dim") -> None:
        if self.quiet:
            return
        self.answers.end_line()
        self.notes.spans((f"{self.indent}  {label:<8}{one_line(text)}", style), cut=True)
