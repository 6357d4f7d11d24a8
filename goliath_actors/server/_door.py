"""The way in: who asks, whether they may, and what becomes of errors. Every address of the API goes through here."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeAlias, final
from urllib.parse import urlsplit

import trio
import trio.lowlevel
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from goliath_actors.errors import ConfigError

from ._config import LOOPBACK_HOSTS, ServerConfig
from ._hosted import Visitor
from ._problems import Problem, problem_of, respond_problem
from ._tokens import LOCAL, SCOPES, Token, TokenFile, match_token

__all__ = ["Admission", "Endpoint", "Guard", "door"]

log = logging.getLogger("goliath_actors.server")

Endpoint: TypeAlias = Callable[[Request, Visitor], Awaitable[Response]]

_SECURITY: Final = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    # The page's own responses bring a wider one.
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
}
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_CORS_HEADERS: Final = "authorization, content-type, idempotency-key, last-event-id, x-conversation-id"
_CORS_EXPOSED: Final = "location, retry-after, x-run-id, x-conversation-id, idempotent-replayed, x-should-retry"


@final
class Admission:
    """Who may enter."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self._file = None if config.token_file is None else TokenFile(config.token_file)

    def admit(self, request: Request, scope: str) -> Visitor:
        """Return who asks.

        Raises: `Problem` without a valid token, where tokens are wanted, or with one that does not allow `scope`.
        """
        if not self.config.wants_tokens:
            return Visitor(LOCAL, frozenset(SCOPES))
        kind, _, presented = request.headers.get("authorization", "").partition(" ")
        presented = presented.strip()
        if not presented:
            raise Problem("unauthorized", "send the header Authorization: Bearer TOKEN")
        token = match_token(self._tokens(), presented) if kind.lower() == "bearer" else None
        if token is None:
            raise Problem("unauthorized", "the server does not know this token")
        if not token.may(scope):
            raise Problem("forbidden", f"this needs a token with the scope {scope!r}")
        return Visitor(token.principal, token.scopes)

    def _tokens(self) -> tuple[Token, ...]:
        return self.config.tokens if self._file is None else (*self.config.tokens, *self._file.tokens())


def door(
    admission: Admission,
    scope: str,
    endpoint: Endpoint,
    tell: Callable[[Problem, str], Response] = respond_problem,
) -> Callable[[Request], Awaitable[Response]]:
    """Return what Starlette calls for an endpoint: every error becomes a response, and none tells too much.

    Arguments: `tell` makes a response of a problem and the request's path.
    """

    async def enter(request: Request) -> Response:
        try:
            return await endpoint(request, admission.admit(request, scope))
        except Exception as error:  # noqa: BLE001  # the last place before the client: what it is told is decided here
            return tell(_told(error, admission.config), request.url.path)

    return enter


def _told(error: Exception, config: ServerConfig) -> Problem:
    problem = problem_of(error)
    if problem is not None:
        return problem
    number = secrets.token_hex(4)
    # The text of an error may hold what belongs in no log; where it came from does not.
    log.error(
        "error %s: %s", number, type(error).__name__, exc_info=error if config.shows_errors else None, stack_info=False
    )
    return Problem("internal", f"{type(error).__name__}, noted as {number}")


class Guard:
    """What holds for every request, whatever its address: its host, its origin, and headers of its response."""

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self._app = app
        self._config = config
        # With tokens a page that points its own name here gains nothing, since it has no token.
        checks = not config.wants_tokens and not config.insecure
        self._hosts = frozenset((*LOOPBACK_HOSTS, *config.allowed_hosts)) if checks else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Cancellation: as of the application inside.
        """
        if not trio.lowlevel.in_trio_run():
            raise ConfigError("this application runs on trio: serve it with Hypercorn's trio worker")
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        allowed = origin is not None and origin in self._config.cors_origins

        async def finish(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._dress(message, origin if allowed else None)
            await send(message)

        problem = self._refuse(scope["method"], headers, allowed)
        if problem is not None:
            await respond_problem(problem, scope["path"])(scope, receive, finish)
        elif allowed and scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            preflight = {
                "access-control-allow-methods": "GET, POST, DELETE",
                "access-control-allow-headers": _CORS_HEADERS,
                "access-control-max-age": "600",
            }
            await Response(None, 204, preflight)(scope, receive, finish)
        else:
            await self._app(scope, receive, finish)

    def _refuse(self, method: str, headers: Headers, allowed: bool) -> Problem | None:
        host = headers.get("host", "")
        if self._hosts is not None and _name_of(host) not in self._hosts:
            return Problem("wrong-host", "this server is asked under the name of this machine alone")
        origin = headers.get("origin")
        if origin is None or allowed or method in _READING or _place_of(origin) == host:
            return None
        return Problem("forbidden", "pages of other origins may not ask here (cors_origins allows some)")

    def _dress(self, message: MutableMapping[str, Any], origin: str | None) -> None:
        headers = MutableHeaders(scope=message)
        for name, value in _SECURITY.items():
            headers.setdefault(name, value)
        if origin is not None:
            headers["access-control-allow-origin"] = origin
            headers["access-control-expose-headers"] = _CORS_EXPOSED
            headers.add_vary_header("Origin")


def _place_of(origin: str) -> str | None:
    """Return an origin's host and port, None for what is no origin."""
    try:
        return urlsplit(origin).netloc
    except ValueError:  # such as "http://["
        return None


def _name_of(host: str) -> str:
    """Return a Host header's name without its port; that of an IPv6 address without its brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
