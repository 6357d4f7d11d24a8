"""The ASGI application: addresses, the page, and what surrounds them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import trio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from goliath_actors import Agent, Runtime, ToolLoop, __version__, approve_all
from goliath_actors.metrics import CONTENT_TYPE, Metrics

from ._completions import Completions, respond_error
from ._config import ServerConfig
from ._door import Admission, Endpoint, Guard, door
from ._hosted import Visitor
from ._hosting import Hosting
from ._ledger import Ledger, Recorder
from ._openapi import openapi
from ._problems import Problem, respond_problem
from ._recovery import Recovery
from ._routes import Routes, respond
from ._wire import plain

__all__ = ["create_app", "recorded"]

STATIC: Final = Path(__file__).parent / "static"

# Scripts and styles of the page come from this server alone, as files; nothing is inline and nothing is framed.
PAGE_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_C: Final = "/v1/conversations"


def recorded(agent: Agent[Any], ledger: Ledger) -> Agent[Any]:
    """Return an agent whose runs are put on record as begun before they do anything."""
    return agent.replace(extensions=(Recorder(ledger), *agent.extensions))


def create_app(
    runtime: Runtime,
    nursery: trio.Nursery,
    config: ServerConfig | None = None,
    *,
    ledger: Ledger | None = None,
    context: Callable[[Visitor], Any] | None = None,
    metrics: Metrics | None = None,
) -> Starlette:
    """Return an ASGI application, for a server of your own or to be mounted in an application of your own.

    Arguments:
      runtime: whose conversations it serves. For a restart to run what had not begun, its agents need `recorded`.
      nursery: where the tasks live that put runs on record; it outlives the runs, and the runtime outlives it.
      config: of which what concerns addresses and the runtime's limits is not used.
      ledger: the one that the agents' `recorded` got.
      context: makes the `context` of a run's hooks and tools of who asks; without one it is the `Visitor`.
      metrics: those that watch the agents, shown at `/metrics`.

    Under another server than Hypercorn on trio, requests must be handled in trio tasks.
    """
    config = config or ServerConfig()
    hosting = Hosting(runtime, ledger or Ledger(runtime.store), config, nursery, context)
    recovery = Recovery(hosting)
    nursery.start_soon(hosting.in_background, recovery.look_through)
    if hosting.ledger.shared:
        nursery.start_soon(hosting.in_background, hosting.ledger.live)
    routes = Routes(hosting, recovery)
    completions = Completions(hosting, recovery)
    admission = Admission(config)

    def at(path: str, method: str, scope: str, endpoint: Endpoint) -> Route:
        return Route(path, door(admission, scope, endpoint), methods=[method])

    def in_dialect(path: str, method: str, scope: str, endpoint: Endpoint) -> Route:
        return Route(path, door(admission, scope, endpoint, respond_error), methods=[method])

    # One route for both methods, so that a refusal of a third can name them.
    conversation = {
        "GET": door(admission, "read", routes.get_conversation),
        "DELETE": door(admission, "chat", routes.delete_conversation),
    }

    async def one_conversation(request: Request) -> Response:
        return await conversation["DELETE" if request.method == "DELETE" else "GET"](request)

    run = _C + "/{id}/runs/{run_id}"
    table: list[BaseRoute] = [
        at(_C, "GET", "read", routes.get_conversations),
        Route(_C + "/{id}", one_conversation, methods=list(conversation)),
        at(_C + "/{id}/history", "GET", "read", routes.get_history),
        at(_C + "/{id}/runs", "POST", "chat", routes.post_run),
        at(_C + "/{id}/steer", "POST", "chat", routes.post_steer),
        at(_C + "/{id}/resume", "POST", "chat", routes.post_resume),
        at(_C + "/{id}/regenerate", "POST", "chat", routes.post_regenerate),
        at(run, "GET", "read", routes.get_run),
        at(run + "/events", "GET", "read", routes.get_events),
        at(run + "/abort", "POST", "chat", routes.post_abort),
        at(run + "/confirmations/{call_id}", "POST", "chat", routes.post_answer),
        in_dialect("/v1/chat/completions", "POST", "chat", completions.post_completion),
        in_dialect("/v1/models", "GET", "read", completions.get_models),
        _any_text(in_dialect("/v1/models/{model:path}", "GET", "read", completions.get_model)),
        at("/v1/agents", "GET", "read", _Agents(runtime).get),
        at("/v1/statistics", "GET", "admin", _Statistics(runtime).get),
        Route("/healthz", _Health(hosting).live, methods=["GET"]),
        Route("/readyz", _Health(hosting).ready, methods=["GET"]),
        Route("/openapi.json", _document, methods=["GET"]),
        Route("/", _page, methods=["GET"]),
        Mount("/assets", _Assets(directory=STATIC / "assets", check_dir=False)),
    ]
    if metrics is not None:
        metrics.collect(runtime)
        table.append(at("/metrics", "GET", "admin", _Shown(metrics).get))
    app = Starlette(routes=table, exception_handlers={HTTPException: _http_problem})
    app.add_middleware(Guard, config=config)
    if metrics is not None:
        app.add_middleware(metrics.http().wrap)  # around all others: what they refuse is counted, too
    app.state.hosting = hosting
    app.state.recovery = recovery
    return app


class _Agents:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def get(self, request: Request, visitor: Visitor) -> Response:
        """`GET /v1/agents`: the agents, and what they may do."""
        await trio.lowlevel.checkpoint()
        return respond({"agents": [_agent_data(agent) for agent in self._runtime.agents]})


def _agent_data(agent: Agent[Any]) -> dict[str, Any]:
    native = isinstance(agent.loop, ToolLoop)
    return {
        "name": agent.name,
        "model": agent.model.name,
        "loop": type(agent.loop).__name__,
        "can": dict.fromkeys(("steer", "resume", "regenerate"), native),
        "tools": [
            {
                "name": tool.name,
                "description": tool.description,
                "writes": tool.writes,
                "confirm": (tool.writes or bool(tool.confirm)) and agent.confirm is not approve_all,
                "parameters": plain(tool.parameters),
            }
            for tool in agent.tool_table.values()
        ],
    }


class _Shown:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def get(self, request: Request, visitor: Visitor) -> Response:
        """`GET /metrics`: what Prometheus reads."""
        await trio.lowlevel.checkpoint()
        return Response(self._metrics.text(), headers={"content-type": CONTENT_TYPE})


class _Statistics:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def get(self, request: Request, visitor: Visitor) -> Response:
        """`GET /v1/statistics`: the runtime's counts."""
        await trio.lowlevel.checkpoint()
        return respond({"version": __version__, **plain(self._runtime.statistics())})


class _Health:
    def __init__(self, hosting: Hosting) -> None:
        self._hosting = hosting

    async def live(self, request: Request) -> Response:
        """`GET /healthz`: the event loop turns."""
        await trio.lowlevel.checkpoint()
        return respond({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """`GET /readyz`: whether more work should come here; no before asks have to be refused."""
        await trio.lowlevel.checkpoint()
        why = self._hosting.unready
        return respond(
            {"status": "ok"} if why is None else {"status": "no", "reason": why}, 200 if why is None else 503
        )


def _any_text(route: Route) -> Route:
    """Let a name be any text: with slashes, as those of models often have, and with ends of lines, which are refused in
    the words of the route itself."""
    route.path_regex = re.compile(route.path_regex.pattern, re.DOTALL)
    return route


async def _document(request: Request) -> Response:
    await trio.lowlevel.checkpoint()
    document, root = openapi(), request.scope.get("root_path", "")
    # Mounted in another application, its addresses begin where that one has put it.
    return respond({**document, "servers": [{"url": root}]} if root else document)


async def _page(request: Request) -> Response:
    page = STATIC / "index.html"
    if not await trio.Path(page).is_file():
        return respond({"name": "goliath_actors", "version": __version__, "openapi": "/openapi.json"})
    return FileResponse(page, headers={"content-security-policy": PAGE_POLICY, "cache-control": "no-cache"})


class _Assets(StaticFiles):
    """The page's files, which may change with the next version."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["content-security-policy"] = PAGE_POLICY
        response.headers["cache-control"] = "no-cache"
        return response


async def _http_problem(request: Request, error: Exception) -> Response:
    """Put Starlette's own refusals into the words of all others."""
    await trio.lowlevel.checkpoint()
    assert isinstance(error, HTTPException)
    kind = {404: "not-found", 405: "method-not-allowed"}.get(error.status_code, "internal")
    problem = Problem(kind, {404: "there is nothing at this address"}.get(error.status_code, error.detail))
    response = respond_problem(problem, request.url.path)
    for name, value in (error.headers or {}).items():
        response.headers[name] = value
    return response
