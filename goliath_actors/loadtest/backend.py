"""Driving a running chat backend over HTTP: one event stream an ask, on a pool that stays fast with thousands open."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import attrs
import trio

from goliath_actors.errors import ConfigError, GoliathError
from goliath_actors.models._answer import close_response
from goliath_actors.models._http import USER_AGENT, httpx, parse_url, place
from goliath_actors.models._pool import Pool
from goliath_actors.models._sse import ServerSentEvents

from ._ledger import Check
from ._measure import Observation, Status
from .targets import Depth, Order

__all__ = ["BackendTarget"]

_CONNECT = 10.0  # seconds for a connection
_STATISTICS = 10.0  # seconds for the server's counts
_PROBLEM = 4096  # bytes looked at of what is no event stream
_REFUSED = (429, 503)
_STATUSES: Mapping[str, Status] = {
    "completed": "completed",
    "stopped": "stopped",
    "error": "error",
    "aborted": "aborted",
}


@attrs.define(eq=False)
class _Counted:
    """What the streams themselves said, to be held against the server's own counts."""

    begun: int = 0
    finished: int = 0
    # Streams whose client went away before the end, and what only the server knows of.
    left: int = 0
    # Asks that were sent and never answered: the server may have accepted them or not.
    unsure: int = 0
    broken: list[str] = attrs.field(factory=list)
    broken_count: int = 0

    def evidence(self, text: str) -> None:
        self.broken_count += 1
        if len(self.broken) < 20:
            self.broken.append(text)


@attrs.define(eq=False)
class BackendTarget:
    """A chat backend of this library at an address.

    Arguments: `url`, such as `http://127.0.0.1:8000`; `token`, a bearer token, kept out of every message;
    `agent`, the agent's name, None for the server's first.

    The server's own counts are read before and after; they are right only while nobody else uses it. Whether observers
    were told (`on_finish`) is judged by these counts alone: the server counts a run as over once they were.
    """

    url: str
    token: str | None = attrs.field(default=None, repr=False)
    agent: str | None = None
    _base: Any = attrs.field(init=False)  # Any: the client library's address
    _pool: Pool | None = attrs.field(default=None, init=False)
    _counted: _Counted = attrs.field(factory=_Counted, init=False)
    _checks: list[Check] = attrs.field(factory=list, init=False)
    _prefix: str = attrs.field(default="", init=False)

    def __attrs_post_init__(self) -> None:
        """Read the address."""
        self._base, _ = parse_url("the backend's address", self.url)

    @property
    def name(self) -> str:
        """The agent, if one was named, and the server's address."""
        whose = "" if self.agent is None else f"agent {self.agent!r} of "
        return f"{whose}chat backend at {place(self._base)}"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Connect, and read the server's counts before and after.

        Raises: `ConfigError` if no chat backend answers there, or if it has no such agent.
        """
        self._pool = Pool()
        # Conversations of an earlier load test are not these.
        self._prefix = f"load-{int(trio.current_time() * 1000) & 0xFFFFFF:x}-"
        try:
            before = await self._statistics()
            await self._check_agent()
            yield
            try:
                self._checks = self._held(before, await self._idle(before))
            except ConfigError as error:  # a server that has gone is what a load test is to find, and no wrong usage
                self._checks = [Check("the server's counts can be read at the end", False, str(error))]
            kept = self._pool.statistics()
            self._checks.append(
                Check(
                    "no connection is left in use",
                    not kept.in_flight,
                    f"{kept.in_flight} in use, {kept.idle} kept for later",
                )
            )
        finally:
            with trio.CancelScope(shield=True):
                await self._pool.aclose()

    def _headers(self, **more: str) -> dict[str, str]:
        headers = {"user-agent": USER_AGENT, "host": self._base.netloc.decode("ascii"), **more}
        if self.token is not None:
            headers["authorization"] = f"Bearer {self.token}"
        return headers

    async def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, accept: str = "application/json"
    ) -> Any:
        assert self._pool is not None
        content = b"" if body is None else json.dumps(body).encode()
        headers = self._headers(accept=accept)
        if body is not None:
            headers |= {"content-type": "application/json"}
        headers["content-length"] = str(len(content))
        url = self._base.copy_with(path=self._base.path.rstrip("/") + path)
        request = httpx.Request(
            method, url, headers=headers, content=content, extensions={"timeout": {"connect": _CONNECT}}
        )
        return await self._pool.handle_async_request(request)

    async def _json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, Any]:
        response = await self._send(method, path, body)
        chunks = _chunks(response)
        try:
            data = b"".join([chunk async for chunk in chunks])
        finally:
            await close_response(response, chunks)
        try:
            return response.status_code, json.loads(data) if data else None
        except ValueError:
            return response.status_code, None

    async def _statistics(self) -> dict[str, int]:
        try:
            with trio.fail_after(_STATISTICS):
                status, data = await self._json("GET", "/v1/statistics")
        except (httpx.HTTPError, OSError, trio.TooSlowError) as error:
            raise ConfigError(
                f"nothing answers at {place(self._base)} ({type(error).__name__}); is it running?"
            ) from error
        if status in (401, 403):
            given = "one" if self.token is None else "another one"
            raise ConfigError(
                f"{place(self._base)} wants a token of scope 'admin'; set GOLIATH_TOKEN to {given} "
                "('goliath-actors token NAME --scopes admin' makes one)"
            )
        counts = data.get("runtime", data) if isinstance(data, dict) else None
        if status != 200 or not isinstance(counts, dict) or "accepted" not in counts:
            raise ConfigError(f"{place(self._base)} is no chat backend of goliath_actors (status {status})")
        return {key: value for key, value in counts.items() if isinstance(value, int)}

    async def _check_agent(self) -> None:
        """Refuse an agent that the server does not have, before every ask is refused for it."""
        if self.agent is None:
            return
        status, data = await self._json("GET", "/v1/agents")
        if status != 200:
            return  # a token that may not read them; the asks will tell
        names = [str(agent["name"]) for agent in data["agents"]]
        if self.agent not in names:
            raise ConfigError(f"{place(self._base)} has no agent {self.agent!r}; it has {', '.join(names)}")

    async def _idle(self, before: Mapping[str, int]) -> dict[str, int]:
        """Wait until the server has nothing to do, for a time, and return its counts."""
        with trio.move_on_after(_STATISTICS):
            while (now := await self._statistics())["running"] or now["waiting"]:  # noqa: ASYNC110  # over HTTP
                await trio.sleep(0.05)
        return await self._statistics()

    def _held(self, before: Mapping[str, int], after: Mapping[str, int]) -> list[Check]:
        ended = {name: after[name] - before[name] for name in ("completed", "stopped", "errors", "aborted")}
        accepted, total = after["accepted"] - before["accepted"], sum(ended.values())
        words = " + ".join(f"{count} {name}" for name, count in ended.items())
        counted = self._counted
        told = counted.finished + counted.left
        return [
            Check(
                "every accepted ask ended once, by the server's counts",
                accepted == total,
                f"{accepted} accepted = {words} = {total}",
            ),
            # No observer of ours is in there. A run is counted as ended behind its last observer, and only there.
            Check(
                "every end was told to on_finish, by the server's counts",
                accepted == total,
                f"{total} of {accepted} runs are counted as over, which they are once every observer was told; "
                "what each heard is not seen from here",
            ),
            Check(
                "the server and its clients count the same",
                counted.begun <= accepted <= counted.begun + counted.unsure,
                f"{accepted} accepted there, {counted.begun} begun here, {counted.unsure} asks without an answer",
            ),
            Check(
                "every stream that was read to its end told the end",
                counted.begun == told,
                f"{counted.finished} told, {counted.left} left early, of {counted.begun}",
            ),
            Check(
                "events keep their order",
                not counted.broken_count,
                f"{counted.broken_count} streams break it",
                tuple(counted.broken),
            ),
            Check(
                "nothing runs or waits any more",
                not after["running"] and not after["waiting"],
                f"{after['running']} running, {after['waiting']} waiting",
            ),
        ]

    async def ask(self, order: Order, seen: Observation) -> None:
        """Ask for an event stream and read it as the client does. Leaving closes the connection."""
        path = f"/v1/conversations/{quote(self._prefix + order.conversation_id, safe='')}/runs"
        body: dict[str, Any] = {"ask": order.ask}
        if order.timeout is not None:
            body["timeout"] = order.timeout
        if self.agent is not None:
            body["agent"] = self.agent
        answered = False
        try:
            response = await self._send("POST", path, body, "text/event-stream")
            answered = True
            chunks = _chunks(response)
            try:
                if response.status_code != 200:
                    seen.status = "refused" if response.status_code in _REFUSED else "error"
                    seen.reason = f"HTTP {response.status_code}"
                    seen.words = await _problem(chunks)
                else:
                    await self._follow(chunks, order, seen, path)
            finally:
                await close_response(response, chunks)
        except (httpx.HTTPError, OSError, GoliathError) as error:
            seen.status, seen.reason, seen.words = "error", type(error).__name__, str(error)
        finally:
            self._counted.unsure += not answered
            seen.ended = trio.current_time()

    async def _follow(self, chunks: AsyncGenerator[bytes, None], order: Order, seen: Observation, path: str) -> None:
        self._counted.begun += 1
        frames = ServerSentEvents()
        last, over = 0, False
        try:
            async for chunk in chunks:
                for frame in frames.feed(chunk):
                    data = _data(frame.data)
                    number = int(data.get("through") or data.get("seq") or 0)
                    if over or (number and number <= last):
                        self._counted.evidence(f"run {data.get('run_id')}: {data.get('kind')} {number} behind {last}")
                    last = number or last
                    over = self._heard(data, seen) or over
                    if data.get("kind") == "text-delta" and order.client == "abandons":
                        self._counted.left += 1
                        seen.status, seen.reason = "aborted", "left"
                        over = True
                        return
                    if data.get("kind") == "run-started" and order.client == "aborts":
                        await self._json(
                            "POST", f"{path}/{data['run_id']}/abort", {"reason": "the load test says stop"}
                        )
                    if order.client == "slow":
                        await trio.sleep(order.slow_pause)
        finally:
            if over:
                self._counted.finished += seen.reason != "left"
            else:
                self._counted.left += 1  # broken off: the end of the load test, or a fault that the status tells
                if seen.reason == "":
                    seen.status, seen.reason = "error", "the stream broke off"

    def _heard(self, data: Mapping[str, Any], seen: Observation) -> bool:
        now = trio.current_time()
        match data.get("kind"):
            case "run-started":
                seen.started = now
            case "text-delta":
                seen.first = seen.first or now
            case "run-finished":
                seen.status = _STATUSES.get(str(data.get("status")), "error")
                if seen.status in ("error", "aborted"):
                    seen.reason = str(data.get("reason") or seen.status)
                return True
        return False

    async def depth(self) -> Depth:
        """Return the server's own counts, zero while it cannot be asked."""
        try:
            counts = await self._statistics()
        except ConfigError:
            return Depth(0, 0)
        return Depth(counts["running"], counts["waiting"])

    def checks(self) -> Sequence[Check]:
        """Return whether the server's counts and the streams agree."""
        return self._checks


def _data(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text) if text else {}
    except ValueError:
        return {"kind": "unreadable"}
    return data if isinstance(data, dict) else {}


async def _problem(chunks: AsyncGenerator[bytes, None]) -> str:
    """Return what a refusal says, as far as it is a problem document or short."""
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > _PROBLEM:
            break
    text = body[:_PROBLEM].decode("utf-8", "replace")
    data = _data(text)
    return str(data.get("detail") or data.get("title") or text)


def _chunks(response: Any) -> AsyncGenerator[bytes, None]:
    """Return the one iteration over the body, in the form that closing the response takes."""
    chunks = response.stream.__aiter__()
    assert isinstance(chunks, AsyncGenerator)
    return chunks
