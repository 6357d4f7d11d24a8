"""The schemas of the OpenAPI document: what goes over the wire, by name, and how one is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from goliath_actors.values import RuntimeStatistics

from ._problems import PROBLEMS

__all__ = ["SCHEMAS", "TEXT", "Schema", "ref"]

# Any, in this room: JSON schemas.
Schema = dict[str, Any]

TEXT: Final[Schema] = {"type": "string"}
NUMBER: Final[Schema] = {"type": "number"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
FLAG: Final[Schema] = {"type": "boolean"}
ANY: Final[Schema] = {}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _one_of(*words: str) -> Schema:
    return {"type": "string", "enum": list(words)}


def _object(description: str, /, *optional: str, **fields: Schema) -> Schema:
    required = [name for name in fields if name not in optional]
    return {"type": "object", "description": description, "properties": fields, "required": required}


_STATE: Final = _one_of("queued", "running", "finishing", "done")
_LINKS: Final = _object("Addresses.", self=TEXT, events=TEXT, abort=TEXT, conversation=TEXT)
_CAN: Final = _object("What the agent's loop allows.", steer=FLAG, resume=FLAG, regenerate=FLAG)
_QUESTION: Final = {
    "call_id": {**TEXT, "description": "under which it is answered"},
    "agent": {**TEXT, "description": "whose tool it is: the run's agent, or a sub-agent"},
    "tool": TEXT,
    "description": TEXT,
    "writes": FLAG,
    "input": {"type": "object"},
    "brief": TEXT,
}
_ABORT: Final = _object(
    "Why a run was ended.",
    cause=_one_of("caller", "requested", "deadline", "shutdown"),
    reason=TEXT,
    phase=_or_null(TEXT),
)

SCHEMAS: Final[Mapping[str, Schema]] = {
    "Problem": _object(
        "What went wrong (RFC 9457).",
        "instance",
        "field",
        "retry_after",
        type=_one_of(*[f"urn:goliath-actors:problem:{kind}" for kind in PROBLEMS]),
        title=TEXT,
        status={"type": "integer"},
        detail=TEXT,
        instance=TEXT,
        field={**TEXT, "description": "what of the request is wrong"},
        retry_after={**COUNT, "description": "seconds"},
    ),
    "DialectError": _object(
        "What went wrong, in OpenAI's dialect.",
        error=_object("The error.", message=TEXT, type=TEXT, param=_or_null(TEXT), code=_or_null(TEXT)),
    ),
    "Usage": _object(
        "Tokens.",
        input_tokens=COUNT,
        output_tokens=COUNT,
        cached_tokens=COUNT,
        reasoning_tokens=COUNT,
        estimated=FLAG,
    ),
    "WaitingCall": _object(
        "A call that waits for a person.",
        call_id=TEXT,
        tool=TEXT,
        input={"type": "object"},
        payload=ANY,
        kind=_one_of("approval", "question"),
    ),
    "Confirmation": _object("A question that is open.", **_QUESTION),
    "Result": _object(
        "How a run ended well.",
        run_id=TEXT,
        conversation_id=TEXT,
        status=_one_of("completed", "stopped"),
        text=TEXT,
        output=ANY,
        handled_by=_one_of("device", "cloud"),
        reason=_or_null(TEXT),
        error=_or_null(TEXT),
        best_effort=FLAG,
        steps={**_list({"type": "object"}), "description": "empty once only the end of the run is on record"},
        stopped=_or_null({"type": "object"}),
        responded=_or_null({"type": "object"}),
        waiting=_list(ref("WaitingCall")),
        usage=ref("Usage"),
    ),
    "Started": _object("A run that was accepted.", run_id=TEXT, state=_STATE, links=_LINKS),
    "Run": _object(
        "A run. `status` is null until it is over; then there is a `result`, or an `error`.",
        run_id=TEXT,
        conversation_id=TEXT,
        agent=TEXT,
        state=_STATE,
        status=_or_null(_one_of("completed", "stopped", "error", "aborted")),
        result=_or_null(ref("Result")),
        error=_or_null(_object("What ended it.", type=TEXT, detail=TEXT)),
        abort=_or_null(_ABORT),
        followed_by=_or_null(TEXT),
        confirmations=_list(ref("Confirmation")),
        links=_LINKS,
    ),
    "Answered": _object("A question that was answered.", run_id=TEXT, call_id=TEXT, approved=FLAG),
    "Conversation": _object(
        "What goes on in a conversation.",
        id=TEXT,
        agent=TEXT,
        title=TEXT,
        created_at=_or_null(NUMBER),
        last_at=_or_null(NUMBER),
        run_id=_or_null(TEXT),
        phase=_or_null(TEXT),
        phase_seconds=_or_null(NUMBER),
        waiting=COUNT,
        oldest_wait_seconds=_or_null(NUMBER),
        runs=_list(
            _object(
                "A run that is not over; `ask` of one that came with a text.",
                run_id=TEXT,
                state=_STATE,
                kind=_one_of("run", "steer", "resume", "regenerate"),
                ask=_or_null(TEXT),
            )
        ),
        confirmations=_list(_object("A question that is open.", run_id=TEXT, **_QUESTION)),
        waiting_calls=_list(ref("WaitingCall")),
        unanswered=_list(
            _object(
                "One of the last asks without an answer; of a long one its first 2000 characters. `reason` is of a run "
                "that completed without a text.",
                run_id=TEXT,
                ask=TEXT,
                at=NUMBER,
                status=_one_of("completed", "stopped", "error", "aborted"),
                reason=_or_null(TEXT),
                error=_or_null(_object("What ended it.", type=TEXT, detail=TEXT)),
                abort=_or_null(_ABORT),
            )
        ),
        can=_CAN,
    ),
    "Conversations": _object(
        "A page of conversations, by id.",
        conversations=_list(
            _object("One.", id=TEXT, agent=TEXT, title=TEXT, created_at=NUMBER, last_at=NUMBER, running=FLAG)
        ),
        next=_or_null(TEXT),
    ),
    "History": _object(
        "A page of what was said, oldest first.",
        entries=_list(
            _object(
                "One entry.",
                "tool_calls",
                "tool_call_id",
                "name",
                "status",
                "input",
                "steps",
                "partial",
                id=TEXT,
                at=NUMBER,
                role=_one_of("user", "assistant", "tool", "summary"),
                text=TEXT,
                tool_calls=_list(_object("A call.", id=TEXT, name=TEXT, arguments=TEXT, input=_or_null({}))),
                tool_call_id=TEXT,
                name=TEXT,
                status={**TEXT, "description": "of a tool's entry: how the call ended"},
                input={"type": "object", "description": "of a tool's entry: where it is not what the model wrote"},
                steps={**_list({"type": "object"}), "description": "of a planned answer: what it was made from"},
                partial={**FLAG, "description": "the answer was stopped before its end"},
            )
        ),
        anchor=COUNT,
        next=_or_null(COUNT),
    ),
    "Agents": _object(
        "The agents.",
        agents=_list(
            _object(
                "One.",
                name=TEXT,
                model=TEXT,
                loop=TEXT,
                can=_CAN,
                tools=_list(
                    _object(
                        "A tool.", name=TEXT, description=TEXT, writes=FLAG, confirm=FLAG, parameters={"type": "object"}
                    )
                ),
            )
        ),
    ),
    "Statistics": _object(
        "Counts of runs.", version=TEXT, **{field.name: COUNT for field in attrs.fields(RuntimeStatistics)}
    ),
    "Health": _object("Whether it is well.", "reason", status=_one_of("ok", "no"), reason=TEXT),
    "Models": _object("The agents as models.", object=_one_of("list"), data=_list(ref("Model"))),
    "Model": _object("An agent as a model.", id=TEXT, object=_one_of("model"), created=COUNT, owned_by=TEXT),
    "Completion": _object(
        "An answer.",
        id=TEXT,
        object=_one_of("chat.completion"),
        created=COUNT,
        model=TEXT,
        choices=_list({"type": "object"}),
        usage={"type": "object"},
    ),
}
