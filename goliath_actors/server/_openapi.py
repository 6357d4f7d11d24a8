"""The OpenAPI document: what `_routes` and `_completions` take and give. A test holds the server against it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from goliath_actors import __version__
from goliath_actors.events import EVENTS

from ._bodies import MAX_ID, MAX_KEY, AbortBody, AnswerBody, AskBody, RegenerateBody, ResumeBody, SteerBody
from ._completions import ChatBody
from ._openapi_schemas import SCHEMAS, TEXT, Schema, ref

__all__ = ["openapi"]

BODIES: Final = (AskBody, RegenerateBody, ResumeBody, SteerBody, AbortBody, AnswerBody, ChatBody)


def _query(name: str, schema: Schema, description: str) -> Schema:
    return {"name": name, "in": "query", "schema": schema, "description": description}


def _path(name: str, schema: Schema, description: str) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": schema, "description": description}


_ID: Final[Schema] = {
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_ID,
    "pattern": r"^[^/\x00-\x1f\x7f]*[^/\s\x00-\x1f\x7f][^/\x00-\x1f\x7f]*$",
}
_NAME: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": 200}
_POSITION: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 2**53 - 1}
_LIMIT: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": 200, "default": 50}
_CONVERSATION: Final = _path("id", _ID, "the conversation's id, percent-encoded")
_RUN: Final = _path("run_id", _ID, "the run's id")
_AGENT: Final = _query("agent", _NAME, "the agent's name; without it, the first agent")
_KEY: Final[Schema] = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {"type": "string", "minLength": 1, "maxLength": MAX_KEY, "pattern": r"^[!-~]+$"},
    "description": "the same key and the same body are the same run, once, also after a restart",
}
_LAST: Final[Schema] = {
    "name": "Last-Event-ID",
    "in": "header",
    "schema": {"type": "string", "pattern": r"^[0-9]{1,15}$"},
    "description": "the id of the last event that was read",
}

_STREAM: Final[Schema] = {
    "text/event-stream": {
        "schema": {
            **TEXT,
            "description": "events of these kinds, besides confirmation-open and confirmation-closed: "
            + ", ".join(sorted(EVENTS)),
        }
    }
}


def _json(name: str) -> Schema:
    return {"application/json": {"schema": ref(name)}}


def _given(description: str, content: Schema | None = None, headers: bool = False) -> Schema:
    found: Schema = {"description": description}
    if content is not None:
        found["content"] = content
    if headers:
        found["headers"] = {name: {"schema": TEXT, "required": True} for name in ("X-Run-Id", "Location")}
    return found


_PROBLEM: Final = _given("A problem.", {"application/problem+json": {"schema": ref("Problem")}})
_DIALECT: Final = _given("An error.", _json("DialectError"))


def _operation(
    summary: str,
    responses: Mapping[str, Schema],
    *parameters: Schema,
    body: type[msgspec.Struct] | None = None,
    needed: bool = True,
    default: Schema = _PROBLEM,
    scope: str | None = "read",
) -> Schema:
    found: Schema = {"summary": summary, "responses": {**responses, "default": default}}
    if parameters:
        found["parameters"] = list(parameters)
    if body is not None:
        found["requestBody"] = {"required": needed, "content": _json(body.__name__)}
    found["security"] = [] if scope is None else [{"token": []}]
    if scope is not None:
        found["description"] = f"Needs a token with the scope `{scope}`, where tokens are configured."
    return found


_WAYS: Final = {
    "200": _given("The run, when it is over; or its events.", {**_json("Run"), **_STREAM}, headers=True),
    "202": _given("The run was accepted.", _json("Started"), headers=True),
}
_C: Final = "/v1/conversations"


def _paths() -> dict[str, Schema]:
    one, run = _C + "/{id}", _C + "/{id}/runs/{run_id}"
    after = _query("after", {"type": "string", "minLength": 1, "maxLength": 1000}, "the last id of the page before")
    call = _path("call_id", _ID, "the call's id")
    return {
        _C: {
            "get": _operation(
                "List conversations", {"200": _given("A page.", _json("Conversations"))},
                _AGENT, after, _query("limit", _LIMIT, "of a page"),
            )
        },
        one: {
            "get": _operation(
                "What goes on in a conversation", {"200": _given("It.", _json("Conversation"))}, _CONVERSATION, _AGENT
            ),
            "delete": _operation(
                "Forget a conversation", {"204": _given("It is forgotten.")}, _CONVERSATION, _AGENT, scope="chat"
            ),
        },
        one + "/history": {
            "get": _operation(
                "What was said", {"200": _given("A page.", _json("History"))}, _CONVERSATION, _AGENT,
                _query("before", _POSITION, "`next` of the page before, to go back"),
                _query("after", _POSITION, "`next` of the page before, to go on"),
                _query("limit", _LIMIT, "of a page"),
                _query("anchor", _POSITION, "of the first page, so that what is said meanwhile shifts nothing"),
            )
        },
        one + "/runs": {"post": _operation("Ask", _WAYS, _CONVERSATION, _AGENT, _KEY, body=AskBody, scope="chat")},
        one + "/steer": {
            "post": _operation(
                "Hand a text to the run that goes on", {"202": _WAYS["202"]}, _CONVERSATION, _AGENT,
                body=SteerBody, scope="chat",
            )
        },
        one + "/resume": {
            "post": _operation(
                "Answer calls that wait", _WAYS, _CONVERSATION, _AGENT, _KEY, body=ResumeBody, scope="chat"
            )
        },
        one + "/regenerate": {
            "post": _operation(
                "Answer the last ask anew", _WAYS, _CONVERSATION, _AGENT, _KEY,
                body=RegenerateBody, needed=False, scope="chat",
            )
        },
        run: {
            "get": _operation("State and result of a run", {"200": _given("It.", _json("Run"))},
                              _CONVERSATION, _RUN, _AGENT)
        },
        run + "/events": {
            "get": _operation("Follow a run", {"200": _given("Its events.", _STREAM, headers=True)},
                              _CONVERSATION, _RUN, _AGENT, _LAST)
        },
        run + "/abort": {
            "post": _operation(
                "End a run",
                {"200": _given("It was over.", _json("Run")), "202": _given("It is about to end.", _json("Started"))},
                _CONVERSATION, _RUN, _AGENT, body=AbortBody, needed=False, scope="chat",
            )
        },
        run + "/confirmations/{call_id}": {
            "post": _operation(
                "Answer a question", {"200": _given("It is answered.", _json("Answered"))},
                _CONVERSATION, _RUN, call, _AGENT, body=AnswerBody, scope="chat",
            )
        },
        "/v1/agents": {"get": _operation("List agents", {"200": _given("They.", _json("Agents"))})},
        "/v1/statistics": {
            "get": _operation("Count runs", {"200": _given("The counts.", _json("Statistics"))}, scope="admin")
        },
        "/metrics": {
            "get": _operation(
                "Metrics for Prometheus", {"200": _given("They.", {"text/plain": {"schema": TEXT}})}, scope="admin"
            )
        },
        "/v1/chat/completions": {
            "post": _operation(
                "Ask, in OpenAI's dialect",
                {"200": _given("The answer.", {**_json("Completion"), "text/event-stream": {"schema": TEXT}})},
                _KEY, body=ChatBody, default=_DIALECT, scope="chat",
            )
        },
        "/v1/models": {
            "get": _operation("List agents as models", {"200": _given("They.", _json("Models"))}, default=_DIALECT)
        },
        "/v1/models/{model}": {
            "get": _operation("An agent as a model", {"200": _given("It.", _json("Model"))},
                              _path("model", _ID, "its name"), default=_DIALECT)
        },
        "/healthz": {
            "get": _operation("Whether the process lives", {"200": _given("Yes.", _json("Health"))}, scope=None)
        },
        "/readyz": {
            "get": _operation(
                "Whether more work should come",
                {"200": _given("Yes.", _json("Health")), "503": _given("No.", _json("Health"))}, scope=None,
            )
        },
    }  # fmt: skip


def openapi() -> Schema:
    """Return the document."""
    _, bodies = msgspec.json.schema_components(BODIES, ref_template="#/components/schemas/{name}")
    for body in bodies.values():
        body["description"] = " ".join(body["description"].split())
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "goliath_actors",
            "version": __version__,
            "description": "Conversations with language models. Times are seconds since the epoch.",
        },
        "paths": _paths(),
        "components": {
            "schemas": {**SCHEMAS, **bodies},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
