"""The addresses under `/v1/conversations`: runs, and what a conversation holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar, final

import attrs
import msgspec
import trio
from starlette.requests import Request
from starlette.responses import Response

from goliath_actors import Agent, Conversation
from goliath_actors.abc import Record

from ._bodies import (
    AbortBody,
    AnswerBody,
    AskBody,
    RegenerateBody,
    ResumeBody,
    SteerBody,
    check_query,
    conversation_id,
    idempotency_key,
    last_event_id,
    query_int,
    query_text,
    read_json,
)
from ._config import ServerConfig
from ._hosted import Hosted, Kind, Visitor
from ._hosting import Hosting
from ._ledger import Ledger
from ._place import Place, active_data, elsewhere, full, headers_of, only_end, past, short, unanswered
from ._problems import Problem
from ._recovery import Recovery
from ._streams import StreamResponse, follow, while_connected
from ._wire import dumps, entry_data

__all__ = ["Routes", "respond"]

# Any, in this room: JSON data, and an agent's own context.

MAX_PAGE: Final = 200  # entries or conversations at once
MAX_NAME: Final = 200
_STREAM: Final = "text/event-stream"

B = TypeVar("B", bound=msgspec.Struct)


def respond(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return JSON data as a response."""
    return Response(dumps(data), status, headers, "application/json")


@final
@attrs.define(eq=False)
class Routes:
    """The endpoints. Each is called with the request and with who asks."""

    hosting: Hosting
    recovery: Recovery

    @property
    def config(self) -> ServerConfig:
        """How the server behaves."""
        return self.hosting.config

    # --- runs -------------------------------------------------------------------------------------------------------

    async def post_run(self, request: Request, visitor: Visitor) -> Response:
        """`POST /v1/conversations/{id}/runs`: ask."""
        body = await self._read(request, AskBody)
        return await self._started(request, visitor, body, "run", body.ask, when_busy=body.when_busy)

    async def post_resume(self, request: Request, visitor: Visitor) -> Response:
        """`POST /v1/conversations/{id}/resume`: answer calls that wait."""
        body = await self._read(request, ResumeBody)
        return await self._started(request, visitor, body, "resume", "(resume)", answers=body.answers)

    async def post_regenerate(self, request: Request, visitor: Visitor) -> Response:
        """`POST /v1/conversations/{id}/regenerate`: another answer to the last ask."""
        body = await self._read(request, RegenerateBody)
        return await self._started(request, visitor, body, "regenerate", "(regenerate)", when_busy=body.when_busy)

    async def post_steer(self, request: Request, visitor: Visitor) -> Response:
        """`POST /v1/conversations/{id}/steer`: a text for the run that is going on."""
        body = await self._read(request, SteerBody)
        place = self._place(request, visitor, body.agent)
        self._need_tool_loop(place.agent, "steer")
        await self.recovery.touch(place.key)
        hosted, _ = await self.hosting.start(place.asking(body.text, kind="steer", timeout=body.timeout))
        assert isinstance(hosted, Hosted)
        return respond(short(place, hosted), 202, headers_of(place, hosted.id))

    async def _started(
        self,
        request: Request,
        visitor: Visitor,
        body: AskBody | ResumeBody | RegenerateBody,
        kind: Kind,
        text: str,
        **more: Any,
    ) -> Response:
        """Accept a run, and answer as the client wants it: as a stream, at the end, or at once.

        Arguments: `more` has fields of `Asking` that not every door has.
        """
        place = self._place(request, visitor, body.agent)
        if kind != "run":
            self._need_tool_loop(place.agent, kind)
        key = idempotency_key(request)
        asking = place.asking(text, kind=kind, timeout=body.timeout, idempotency_key=key, **more)
        streams = _wants_stream(request)
        await self.recovery.touch(place.key)
        hosted, again = await self.hosting.start(asking)
        if isinstance(hosted, str):
            return await self._over_long_ago(place, hosted, streams)
        headers = headers_of(place, hosted.id)
        if again:
            headers["idempotent-replayed"] = "true"
        # A second request with the same key does not own the run: the first one's client may still be there.
        left = _nothing if body.detach or again else hosted.leave
        if streams:
            return StreamResponse(lambda: follow(self.hosting, hosted), headers, left)
        if not body.wait:
            return respond(short(place, hosted), 202, headers)
        complete = False
        try:
            complete = await while_connected(request, hosted.over.wait)
        finally:
            if not complete:
                left()
        return respond(full(place, hosted, self.config.shows_errors), 200, headers)

    async def get_run(self, request: Request, visitor: Visitor) -> Response:
        """`GET /v1/conversations/{id}/runs/{run_id}`: state and result."""
        place = self._place(request, visitor)
        run_id = request.path_params["run_id"]
        hosted = self._find(place, run_id)
        if hosted is not None:
            await trio.lowlevel.checkpoint()
            return respond(full(place, hosted, self.config.shows_errors))
        record = await self._known(place)
        row = record.private.get("open", {}).get(run_id)
        if row is not None:  # of another process that shares the store
            return respond(elsewhere(place, run_id, "running" if row["begun"] else "queued"))
        return respond(past(place, await self._recorded(place, run_id)))

    async def get_events(self, request: Request, visitor: Visitor) -> Response:
        """`GET /v1/conversations/{id}/runs/{run_id}/events`: follow a run, from its start or from where one was."""
        place = self._place(request, visitor)
        run_id = request.path_params["run_id"]
        after = last_event_id(request)
        hosted = self._find(place, run_id)
        if hosted is not None:
            await trio.lowlevel.checkpoint()
            return StreamResponse(lambda: follow(self.hosting, hosted, after), headers_of(place, run_id))
        row = await self._recorded(place, run_id)
        return StreamResponse(lambda: only_end(place, row, after), headers_of(place, run_id))

    async def post_abort(self, request: Request, visitor: Visitor) -> Response:
        """`POST /v1/conversations/{id}/runs/{run_id}/abort`: end a run."""
        place = self._place(request, visitor)
        body = await self._read(request, AbortBody)
        hosted = self._find(place, request.path_params["run_id"])
        if hosted is None:
            return respond(past(place, await self._recorded(place, request.path_params["run_id"])))
        hosted.run.abort(body.reason or "the client asked for it")
        await trio.lowlevel.checkpoint()
        return respond(short(place, hosted), 202)

    async def post_answer(self, request: Request, visitor: Visitor) -> Response:
        """`POST /v1/conversations/{id}/runs/{run_id}/confirmations/{call_id}`: answer an open question."""
        place = self._place(request, visitor)
        body = await self._read(request, AnswerBody)
        hosted = self._find(place, request.path_params["run_id"])
        call_id = request.path_params["call_id"]
        if hosted is None or not hosted.answer(call_id, body.approve, body.reason):
            raise Problem("not-found", "this run has no such question open")
        await trio.lowlevel.checkpoint()
        return respond({"run_id": hosted.id, "call_id": call_id, "approved": body.approve})

    # --- conversations ----------------------------------------------------------------------------------------------

    async def get_conversations(self, request: Request, visitor: Visitor) -> Response:
        """`GET /v1/conversations`: the visitor's own, in the order of their ids."""
        check_query(request.query_params, "agent", "after", "limit")
        agent = self._agent(query_text(request.query_params, "agent", MAX_NAME))
        limit = query_int(request.query_params, "limit", 1, MAX_PAGE) or 50
        after = query_text(request.query_params, "after", 1000)
        prefix = Ledger.prefix(agent.name, visitor.principal)
        rows = await self.hosting.ledger.listed(prefix, None if after is None else prefix + after, limit + 1)
        found = [
            {
                "id": row.key.removeprefix(prefix),
                "agent": agent.name,
                "title": row.title,
                "created_at": row.created_at,
                "last_at": row.last_at,
                "running": next(self.hosting.active(row.key), None) is not None,
            }
            for row in rows[:limit]
        ]
        return respond({"conversations": found, "next": found[-1]["id"] if len(rows) > limit else None})

    async def get_conversation(self, request: Request, visitor: Visitor) -> Response:
        """`GET /v1/conversations/{id}`: what goes on in it, and what waits."""
        place = self._place(request, visitor)
        record = await self._known(place)
        status = self._conversation(place).status()
        now = trio.current_time()
        active = list(self.hosting.active(place.key))
        return respond(
            {
                "id": place.id,
                "agent": place.agent.name,
                "title": record.metadata.get("title", ""),
                "created_at": record.metadata.get("created_at"),
                "last_at": record.metadata.get("last_at"),
                "run_id": status.run_id,
                "phase": status.phase,
                "phase_seconds": None if status.since is None else max(0.0, now - status.since),
                "waiting": status.waiting,
                "oldest_wait_seconds": status.oldest_wait,
                "runs": [active_data(hosted) for hosted in active],
                "confirmations": [
                    {"run_id": hosted.id, **question.data()}
                    for hosted in active
                    for question in hosted.questions.values()
                ],
                "waiting_calls": await self._waiting_calls(place, record),
                "unanswered": unanswered(record),
                "can": {name: self.hosting.can_resume(place.agent) for name in ("steer", "resume", "regenerate")},
            }
        )

    async def _waiting_calls(self, place: Place, record: Record) -> list[Any]:
        """Return the calls that a run has left waiting for a person, and that have no result since: a run that saw to
        them may have ended without a result of its own."""
        rows = (row["result"] for row in reversed(record.private.get("ended", ())) if row.get("result") is not None)
        last: Mapping[str, Any] = next(rows, {})
        waiting = list(last.get("waiting", ()))
        open_calls: set[str | None] = set()
        if waiting:
            for entry in (await self._conversation(place).history(limit=MAX_PAGE)).entries:
                open_calls.update(call.id for call in entry.message.tool_calls)
                open_calls.discard(entry.message.tool_call_id)
        return [call for call in waiting if call["call_id"] in open_calls]

    async def get_history(self, request: Request, visitor: Visitor) -> Response:
        """`GET /v1/conversations/{id}/history`: what was said, a page at a time, oldest first."""
        place = self._place(request, visitor, None, "before", "after", "limit", "anchor")
        query = request.query_params
        before, after = query_int(query, "before", 0), query_int(query, "after", 0)
        limit, anchor = query_int(query, "limit", 1, MAX_PAGE) or 50, query_int(query, "anchor", 0)
        await self._known(place)
        page = await self._conversation(place).history(before, after, limit, anchor)
        entries = [entry_data(entry) for entry in page.entries if entry.transcript_visible]
        return respond({"entries": entries, "anchor": page.anchor, "next": page.next})

    async def delete_conversation(self, request: Request, visitor: Visitor) -> Response:
        """`DELETE /v1/conversations/{id}`: abort what goes on in it, and forget it."""
        place = self._place(request, visitor)
        await self._known(place)
        await self.hosting.forget(self._conversation(place), place.key)
        return Response(None, 204)

    # --- what they share --------------------------------------------------------------------------------------------

    async def _read(self, request: Request, kind: type[B]) -> B:
        return await read_json(request, kind, self.config.max_body, self.config.body_timeout)

    def _agent(self, name: str | None) -> Agent[Any]:
        agents = self.hosting.runtime.agents
        if name is None:
            return agents[0]
        for agent in agents:
            if agent.name == name:
                return agent
        raise Problem("not-found", f"there is no agent {name!r}; GET /v1/agents lists them", field="agent")

    def _place(self, request: Request, visitor: Visitor, agent: str | None = None, *query: str) -> Place:
        check_query(request.query_params, "agent", *query)
        named = agent if agent is not None else query_text(request.query_params, "agent", MAX_NAME)
        return Place(visitor, self._agent(named), conversation_id(request), request.scope.get("root_path", ""))

    def _conversation(self, place: Place) -> Conversation:
        return self.hosting.runtime.conversation(place.asking("").inner_id, place.agent)

    async def _known(self, place: Place) -> Record:
        await self.recovery.touch(place.key)
        record = await self.hosting.ledger.read(place.key)
        if record.version == 0 and not await self._was_asked_elsewhere(place):
            raise Problem("not-found", "there is no such conversation")
        return record

    async def _was_asked_elsewhere(self, place: Place) -> bool:
        """Say whether the application itself has asked a conversation that nobody has asked here."""
        conversation = self._conversation(place)
        return conversation.status().run_id is not None or bool((await conversation.history(limit=1)).entries)

    def _find(self, place: Place, run_id: str) -> Hosted | None:
        hosted = self.hosting.get(run_id)
        return hosted if hosted is not None and hosted.asking.key == place.key else None

    async def _recorded(self, place: Place, run_id: str) -> Mapping[str, Any]:
        """Return the end of a run that is not held any more."""
        record = await self._known(place)
        for row in record.private.get("ended", ()):
            if row["run_id"] == run_id:
                return dict(row)
        if run_id in record.private.get("open", {}):
            raise Problem("conflict", "it goes on in another process of this server", retry_after=1)
        raise Problem("not-found", "there is no such run, or it ended too long ago")

    async def _over_long_ago(self, place: Place, run_id: str, streams: bool) -> Response:
        """Answer an ask that was made again, and whose run is only on record, if at all."""
        headers = {**headers_of(place, run_id), "idempotent-replayed": "true"}
        row = await self._recorded(place, run_id)
        if streams:
            return StreamResponse(lambda: only_end(place, row, 0), headers)
        return respond(past(place, row), 200, headers)

    def _need_tool_loop(self, agent: Agent[Any], door: str) -> None:
        if not self.hosting.can_resume(agent):
            raise Problem("conflict", f"{door} needs an agent with a ToolLoop; {agent.name!r} has another loop")


def _nothing() -> None:
    pass


def _wants_stream(request: Request) -> bool:
    """Say whether an event stream is asked for, rather than JSON.

    Raises: `Problem` if the client takes neither.
    """
    accept = request.headers.get("accept", "*/*").lower()
    wanted = [part.partition(";")[0].strip() for part in accept.split(",")]
    if _STREAM in wanted:
        return True
    if any(part in ("*/*", "application/*", "application/json", "") for part in wanted):
        return False
    raise Problem("not-acceptable", "there is application/json and text/event-stream", field="Accept")
