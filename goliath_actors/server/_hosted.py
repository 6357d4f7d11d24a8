"""One run that this server accepted: what was asked for, by whom, and the questions that it has open to its client."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import attrs
import trio

from goliath_actors import Agent, Run
from goliath_actors._callables import without_texts
from goliath_actors._face import envelope_of
from goliath_actors.events import Event, RunFinished
from goliath_actors.tools import Confirmed, ConfirmRequest

from ._ledger import Acceptance, Ledger
from ._wire import plain

__all__ = ["Asking", "Hosted", "Kind", "Visitor"]

Kind: TypeAlias = Literal["run", "steer", "resume", "regenerate"]


@attrs.frozen
class Visitor:
    """Who asks. It is the `context` of the run's hooks and tools, unless the application makes another of it."""

    principal: str
    scopes: frozenset[str] = frozenset()


@attrs.frozen
class Asking:
    """One wish for a run, as a door understood it."""

    visitor: Visitor
    agent: Agent[Any]
    conversation_id: str
    text: str
    kind: Kind = "run"
    # Any: answers to calls that wait, JSON data.
    answers: Mapping[str, Any] = attrs.field(factory=dict)
    timeout: float | None = None
    when_busy: Literal["queue", "refuse", "replace"] = "queue"
    idempotency_key: str | None = None
    # Whether somebody can answer the questions of this run.
    asks_client: bool = True
    instead_of: str | None = None

    @property
    def inner_id(self) -> str:
        """The conversation's id in the runtime: the principal's own, so that nobody can name another's."""
        return f"{self.visitor.principal}/{self.conversation_id}"

    @property
    def key(self) -> str:
        """The key of the conversation's ledger."""
        return Ledger.key(self.agent.name, self.visitor.principal, self.conversation_id)

    @property
    def body(self) -> str:
        """What two equal asks have equal."""
        same = [self.kind, self.text, self.answers, self.timeout, self.when_busy]
        return hashlib.sha256(json.dumps(plain(same), sort_keys=True).encode()).hexdigest()


@attrs.define(eq=False)
class _Question:
    """One open question to a client."""

    request: ConfirmRequest
    # Under which it is answered: the call's, and of another run's call that run's before it.
    id: str
    at: float
    answer: Confirmed = Confirmed(False)  # of one that nobody answers in time
    answered: trio.Event = attrs.Factory(trio.Event)

    def data(self) -> dict[str, Any]:
        request = self.request
        return {
            "call_id": self.id,
            "agent": request.agent,
            "tool": request.tool.name,
            "description": request.tool.description,
            "writes": request.tool.writes,
            "input": plain(request.input),
            "brief": request.brief,
        }


@attrs.define(eq=False)
class Hosted:
    """One run, its questions, and what streams are told beside its events."""

    asking: Asking
    # Set right after the runtime accepted it, before anything of it can happen; of a text that was handed to a running
    # run, once it has become a run of its own.
    run: Run = attrs.field(init=False)
    id: str = ""
    acceptance: Acceptance = attrs.field(init=False)
    started_at: float = attrs.Factory(time.time)
    over: trio.Event = attrs.Factory(trio.Event)
    # Once its end is on record, or never will be.
    kept: trio.Event = attrs.Factory(trio.Event)
    last_seq: int = 0
    questions: dict[str, _Question] = attrs.Factory(dict)
    # What streams are told that is no event of the run: kind and data, in order. At most two for each question.
    asides: list[tuple[str, dict[str, Any]]] = attrs.Factory(list)
    # Texts that were handed to it.
    handed: list[Hosted] = attrs.Factory(list)
    # Streams that wait for the next event, to be woken for an aside.
    waiting: set[trio.CancelScope] = attrs.Factory(set)
    # How many streams follow it, and what one of them sent last, if others do.
    streams: int = 0
    framed: tuple[list[Event], bytes] | None = None

    def leave(self) -> None:
        """End the run because its client left: cause `caller`, as for whoever leaves what they wait for (R6)."""
        envelope_of(self.run).request_abort("caller", "the client left")

    @without_texts
    def hear(self, event: Event) -> None:
        """Called with every event of the run but its texts, where it happens."""
        self.id = event.run_id
        if isinstance(event, RunFinished):
            self.last_seq = event.seq
            self.over.set()

    async def ask_client(self, seconds: float | None, request: ConfirmRequest) -> Confirmed:
        """Wait for a client's answer to a question of this run, or of one that it asked; after so long it is a refusal.

        Cancellation: the question is closed; whoever follows is told.
        """
        question = _Question(request, self._name(request), trio.current_time())
        self.questions[question.id] = question
        self._tell("confirmation-open", question.data())
        limit = math.inf if seconds is None else seconds
        try:
            with trio.move_on_after(limit):
                await question.answered.wait()
            if not question.answered.is_set():
                return Confirmed(False, f"nobody answered within {limit:g} s")
            return question.answer
        finally:
            del self.questions[question.id]
            answer = question.answer
            words = {"call_id": question.id, "approved": answer.approved, "reason": answer.reason or None}
            self._tell("confirmation-closed", words)

    def _name(self, request: ConfirmRequest) -> str:
        """Models give the same ids in many runs; those of this run are the ones that its events have."""
        return request.call_id if request.run_id == self.id else f"{request.run_id}.{request.call_id}"

    def answer(self, call_id: str, approved: bool, reason: str = "") -> bool:
        """Answer a question; False if it is not open."""
        question = self.questions.get(call_id)
        if question is None or question.answered.is_set():
            return False
        question.answer = Confirmed(approved, reason)
        question.answered.set()
        return True

    def _tell(self, kind: str, data: dict[str, Any]) -> None:
        self.asides.append((kind, {"kind": kind, "run_id": self.id, **data}))
        for scope in self.waiting:
            scope.cancel()
