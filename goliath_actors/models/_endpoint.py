"""Where requests to one provider go: the application's own client, or one pool per trio loop.

Uses _pool, _answer; used by _adapter and http_fallback.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Awaitable, Mapping
from typing import final

import attrs
import trio

from ._answer import Answer, client_answer
from ._connection import Head, Limits
from ._http import USER_AGENT, httpx
from ._idle import Origin
from ._pool import Pool, origin_of

__all__ = ["Endpoint"]

_MAX_HEADS = 16  # heads of requests that an endpoint keeps; one is used unless headers differ from call to call
_OWN_HEADERS = {"user-agent": USER_AGENT, "content-type": "application/json"}


@functools.lru_cache(maxsize=16)
def _limits(connect_timeout: float | None) -> Limits:
    return Limits(connect=connect_timeout)


async def _sent(client: httpx.AsyncClient, request: httpx.Request) -> Answer:
    return client_answer(await client.send(request, stream=True, follow_redirects=False))


@final
@attrs.define(eq=False)
class Endpoint:
    """Where requests to one provider go: the application's own client, or one pool per trio loop.

    A pool belongs to the loop it was made in. Another loop (a later `trio.run`, or another thread's) gets another one,
    and a loop that has ended takes its pool with it.
    """

    _http: httpx.AsyncClient | None = attrs.field(default=None, alias="http")
    _pools: weakref.WeakKeyDictionary[trio.lowlevel.TrioToken, Pool] = attrs.field(
        factory=weakref.WeakKeyDictionary, init=False
    )

    _heads: dict[tuple[object, ...], tuple[httpx.URL, Origin, Head]] = attrs.field(factory=dict, init=False, repr=False)

    @property
    def pool(self) -> Pool:
        """The pool of the current loop, made when it is first asked for."""
        token = trio.lowlevel.current_trio_token()
        pool = self._pools.get(token)
        if pool is None:
            pool = self._pools[token] = Pool()
        return pool

    # Not async, as the wait for an answer would be one coroutine deeper.
    def post(
        self, url: httpx.URL, headers: dict[str, str], content: bytes, connect_timeout: float | None
    ) -> Awaitable[Answer]:
        """Return what sends one POST and gives the answer unread, to be made `readable`. Redirects are never followed:
        they would carry the key along.

        Arguments: `headers`, whose names are lower-case; `connect_timeout` in seconds; every other limit is the
        caller's own cancel scope.

        Raises, on the call or when awaited: the client library's transport errors.

        Cancellation: the connection is closed.
        """
        if self._http is not None:
            request = self._http.build_request(
                "POST",
                url,
                headers={**_OWN_HEADERS, **headers},
                content=content,
                timeout=httpx.Timeout(None, connect=connect_timeout),
            )
            return _sent(self._http, request)
        origin, head = self._head(url, headers)
        return self.pool.send(origin, head, content, _limits(connect_timeout))

    def _head(self, url: httpx.URL, headers: Mapping[str, str]) -> tuple[Origin, Head]:
        key = tuple(headers.items())
        known = self._heads.get(key)
        # By identity: an adapter has one address, and comparing addresses costs as much as sending a request.
        if known is None or known[0] is not url:
            own = {"host": url.netloc.decode("ascii"), **_OWN_HEADERS, **headers}
            try:
                raw = [(name.encode("ascii"), value.encode("ascii")) for name, value in own.items()]
            except UnicodeEncodeError as error:
                raise httpx.LocalProtocolError("a header holds what no header can carry") from error
            if len(self._heads) >= _MAX_HEADS:
                self._heads.clear()
            known = self._heads[key] = url, origin_of(url), Head.of(b"POST", url.raw_path, raw)
        return known[1:]

    async def aclose(self) -> None:
        """Close the current loop's pool. A later request makes a new one; a client of the application's stays open.

        Cancellation: everything idle is closed nevertheless.
        """
        pool = self._pools.pop(trio.lowlevel.current_trio_token(), None)
        if pool is not None:
            await pool.aclose()
        else:
            await trio.lowlevel.checkpoint()
