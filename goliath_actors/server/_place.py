"""The conversation that a request names, and what is told of its runs: those held here, elsewhere, and on record."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any
from urllib.parse import quote

import attrs
import trio

from goliath_actors import Agent
from goliath_actors.abc import Record

from ._hosted import Asking, Hosted, Visitor
from ._ledger import Ledger
from ._wire import frame, plain, run_outcome

__all__ = ["Place", "active_data", "elsewhere", "full", "headers_of", "only_end", "past", "short", "unanswered"]

# Any, in this room: JSON data, and an agent's own context.


@attrs.frozen
class Place:
    """A conversation that a request names, and what is on record of it here."""

    visitor: Visitor
    agent: Agent[Any]
    id: str
    # Where the application is mounted, if it is.
    root: str = ""

    @property
    def key(self) -> str:
        return Ledger.key(self.agent.name, self.visitor.principal, self.id)

    @property
    def path(self) -> str:
        return f"{self.root}/v1/conversations/{quote(self.id, safe='')}"

    def asking(self, text: str, **more: Any) -> Asking:
        return Asking(self.visitor, self.agent, self.id, text, **more)


def links_of(place: Place, run_id: str) -> dict[str, str]:
    """Return the addresses of a run."""
    own = f"{place.path}/runs/{quote(run_id, safe='')}"
    query = f"?agent={quote(place.agent.name, safe='')}"
    return {
        "self": own + query,
        "events": f"{own}/events{query}",
        "abort": f"{own}/abort{query}",
        "conversation": place.path + query,
    }


def headers_of(place: Place, run_id: str) -> dict[str, str]:
    """Return the headers of a response that is about a run."""
    return {"x-run-id": run_id, "location": links_of(place, run_id)["self"]}


def short(place: Place, hosted: Hosted) -> dict[str, Any]:
    """Return what is told of a run that was accepted."""
    return {"run_id": hosted.id, "state": hosted.run.state, "links": links_of(place, hosted.id)}


def full(place: Place, hosted: Hosted, shows_errors: bool) -> dict[str, Any]:
    """Return all that is told of a run that is held here."""
    follower = hosted.run.followed_by
    return {
        "run_id": hosted.id,
        "conversation_id": place.id,
        "agent": place.agent.name,
        "state": hosted.run.state,
        **run_outcome(hosted.run, place.id, shows_errors),
        "followed_by": None if follower is None else follower.id,
        "confirmations": [question.data() for question in hosted.questions.values()],
        "links": links_of(place, hosted.id),
    }


def elsewhere(place: Place, run_id: str, state: str) -> dict[str, Any]:
    """Return what is told of a run that goes on in another process."""
    nothing = dict.fromkeys(("status", "result", "error", "abort", "followed_by"))
    row = {"run_id": run_id, **nothing}
    return {**past(place, row), "state": state}


def past(place: Place, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is told of a run of which only the end is on record."""
    return {
        "run_id": row["run_id"],
        "conversation_id": place.id,
        "agent": place.agent.name,
        "state": "done",
        **{name: plain(row[name]) for name in ("status", "result", "error", "abort", "followed_by")},
        "confirmations": [],
        "links": links_of(place, row["run_id"]),
    }


def unanswered(record: Record) -> list[dict[str, Any]]:
    """Return the asks of the last runs that gave no answer, and why: a history may not hold them."""
    rows = [row for row in record.private.get("ended", ()) if "ask" in row and row["followed_by"] is None]
    names = ("run_id", "ask", "at", "status", "error", "abort")
    return [
        {**{name: plain(row[name]) for name in names}, "reason": (row["result"] or {}).get("reason")} for row in rows
    ]


def active_data(hosted: Hosted) -> dict[str, Any]:
    """Return a run that is not over as JSON data; `ask` for those that came with a text of their own."""
    asking = hosted.asking
    text = asking.text if asking.kind in ("run", "steer") else None
    return {"run_id": hosted.id, "state": hosted.run.state, "kind": asking.kind, "ask": text}


async def only_end(place: Place, row: Mapping[str, Any], after: int) -> AsyncGenerator[bytes, None]:
    """Yield the last event of a run of which only the end is on record."""
    await trio.lowlevel.checkpoint()
    seq = int(row["seq"])
    if seq and after >= seq:  # 0: of a run that a restart ended nobody knows how far it had come
        return
    abort = row["abort"] or {}
    data = {
        "kind": "run-finished",
        "run_id": row["run_id"],
        "conversation_id": place.id,
        "seq": seq,
        "reason": abort.get("cause"),
        **{name: plain(row[name]) for name in ("status", "result", "error", "abort", "followed_by")},
    }
    yield frame("run-finished", data, seq or None)
