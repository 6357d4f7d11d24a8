"""What goes wrong, as `application/problem+json` (RFC 9457): a type that stays, words for a person, what to do."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from goliath_actors.errors import (
    ConfigError,
    ConversationBusy,
    ConversationElsewhere,
    GoliathError,
    MailboxFull,
    RunAborted,
    RuntimeClosed,
    StoreError,
)

__all__ = ["PROBLEMS", "Problem", "problem_of", "respond_problem"]

# Every type, with its title and status: the documentation's table and the OpenAPI document are made of it.
PROBLEMS: Mapping[str, tuple[int, str]] = {
    "bad-json": (400, "The body is no JSON that can be read"),
    "invalid": (422, "A value does not fit"),
    "unauthorized": (401, "A valid token is needed"),
    "forbidden": (403, "The token does not allow this"),
    "wrong-host": (421, "The request names another host"),
    "not-found": (404, "There is no such thing"),
    "method-not-allowed": (405, "The address has other methods"),
    "not-acceptable": (406, "Nothing that is accepted can be given"),
    "timeout": (408, "The body took too long"),
    "conversation-busy": (409, "The conversation is busy"),
    "conflict": (409, "This is not possible now"),
    "too-large": (413, "The body is too large"),
    "wrong-content-type": (415, "The body must be application/json"),
    "key-reused": (422, "The idempotency key was used for another ask"),
    "mailbox-full": (429, "The conversation has too many asks waiting"),
    "internal": (500, "The server failed"),
    "overloaded": (503, "The server has too many asks waiting"),
    "shutting-down": (503, "The server is ending"),
    "store": (503, "The store failed"),
}


class Problem(Exception):
    """Ends a request with a problem. `field` names what of the request is wrong; `retry_after` is in seconds."""

    def __init__(self, kind: str, detail: str, *, field: str | None = None, retry_after: int | None = None) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.field = field
        self.retry_after = retry_after
        self.status, self.title = PROBLEMS[kind]

    def data(self, instance: str | None = None) -> dict[str, Any]:
        """Return the problem as JSON data."""
        found: dict[str, Any] = {
            "type": f"urn:goliath-actors:problem:{self.kind}",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
        }
        if instance is not None:
            found["instance"] = instance
        if self.field is not None:
            found["field"] = self.field
        if self.retry_after is not None:
            found["retry_after"] = self.retry_after
        return found

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers that go with it."""
        headers: dict[str, str] = {}
        if self.retry_after is not None:
            headers["retry-after"] = str(self.retry_after)
        if self.status == 401:
            headers["www-authenticate"] = 'Bearer realm="goliath-actors"'
        return headers


def problem_of(error: Exception) -> Problem | None:
    """Return the problem that an error of the library is, None if it is no fault of a request or of the moment."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, MailboxFull):
        kind = "mailbox-full" if error.scope == "conversation" else "overloaded"
        detail = f"{error.waiting} of {error.capacity} asks are waiting; try again later"
        return Problem(kind, detail, retry_after=1 if error.scope == "conversation" else 2)
    if isinstance(error, ConversationBusy):
        return Problem("conversation-busy", 'wait for its run, or ask with when_busy "queue" or "replace"')
    if isinstance(error, RuntimeClosed):
        return Problem("shutting-down", "no new asks are taken; try again in a moment", retry_after=5)
    if isinstance(error, ConfigError):
        return Problem("invalid", str(error))
    if isinstance(error, ConversationElsewhere):
        words = "the conversation has a run in another process of this server"
        return Problem("conversation-busy", words, retry_after=math.ceil(error.retry_after))
    if isinstance(error, StoreError):
        return Problem("store", "what was asked could not be recorded or read; try again", retry_after=2)
    return None


def run_problem(error: BaseException | None, show: bool) -> dict[str, Any]:
    """Return an error that ended a run as JSON data: its name, and its words if the client may see them."""
    name = type(error).__name__
    words = f"the run failed ({name})"
    if isinstance(error, RunAborted | ConfigError):  # our own words
        words = str(error)
    elif show and error is not None:
        words = str(error) or name
    blame = name if isinstance(error, GoliathError) or show else "Error"
    return {"type": blame, "detail": words}


def respond_problem(problem: Problem, instance: str | None = None) -> Response:
    """Return the response that a problem is."""
    body = json.dumps(problem.data(instance)).encode()
    return Response(body, problem.status, problem.headers, "application/problem+json")
