"""`serve`: a runtime, its application and a listening socket, in one nursery.

What is known of Hypercorn's trio worker, each with a test: it sends inside a shield without a time-out, so a client
that stops reading would hold its connection, and the end of the server, for ever; the kernel ends such a connection
(`TCP_USER_TIMEOUT`), which the listening socket hands on to those it accepts.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Callable
from typing import Any, final

import attrs
import hypercorn.trio
import trio
from hypercorn.config import Config

from goliath_actors import Agent, Runtime, open_runtime
from goliath_actors.abc import Store
from goliath_actors.errors import ConfigError
from goliath_actors.metrics import Metrics
from goliath_actors.stores import InMemoryStore
from goliath_actors.values import DrainReport

from ._app import create_app, recorded
from ._config import ServerConfig
from ._hosting import Hosting, Visitor
from ._ledger import Ledger

__all__ = ["Server", "serve"]

BACKLOG = 1024
LEAVE = 5.0  # seconds for what is left to be sent, and put on record, once every run is over


@final
@attrs.define(eq=False)
class Server:
    """A running server, as `serve` gives it to who started it."""

    runtime: Runtime
    host: str
    port: int
    _hosting: Hosting
    _grace: float
    _ending: trio.Event = attrs.Factory(trio.Event)
    _hurry: trio.Event = attrs.Factory(trio.Event)

    @property
    def url(self) -> str:
        """The address that it listens on."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{name}:{self.port}"

    def shut_down(self) -> None:
        """Take no more connections and asks, let runs go on for the grace, then abort them. A second call aborts at
        once. Never blocks."""
        if self._ending.is_set():
            self._hurry.set()
        self._hosting.draining = True
        self._ending.set()

    async def _drain(self) -> DrainReport:
        """Wait for the end to be wanted, and bring it about."""
        await self._ending.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hurry_up)
            report = await self.runtime.drain(self._grace)
            nursery.cancel_scope.cancel()
        with trio.move_on_after(LEAVE):
            await self._hosting.wait_kept()
        self._hosting.stop()
        return report

    async def _hurry_up(self) -> None:
        await self._hurry.wait()
        await self.runtime.drain(0)


async def serve(
    *agents: Agent[Any],
    store: Store | None = None,
    config: ServerConfig | None = None,
    context: Callable[[Visitor], Any] | None = None,
    task_status: trio.TaskStatus[Server] = trio.TASK_STATUS_IGNORED,
) -> DrainReport:
    """Serve agents over HTTP until `Server.shut_down`, which `nursery.start` gives.

    Arguments:
      agents, store: as of `open_runtime`.
      config: addresses, limits, who may enter.
      context: makes the `context` of a run's hooks and tools of who asks; without one it is the `Visitor`.

    Returns: how many runs ended by themselves, and how many were aborted, once the server was to end.

    Raises: `ConfigError` for an address that cannot be had; as `open_runtime`.

    Cancellation: every run is aborted (cause `shutdown`), its observers are told, connections end.
    """
    config = config or ServerConfig()
    store = InMemoryStore() if store is None else store
    ledger = Ledger(store)
    metrics = Metrics() if config.metrics else None
    watched = agents if metrics is None else [metrics.watch(agent) for agent in agents]
    with open_socket(config) as listener:
        async with open_runtime(
            *[recorded(agent, ledger) for agent in watched],
            store=store,
            max_running=config.max_running,
            mailbox_capacity=config.mailbox_capacity,
            max_waiting=config.max_waiting,
            finish_timeout=config.finish_timeout,
            idle_timeout=config.idle_timeout,
        ) as runtime:
            async with trio.open_nursery() as nursery:
                app = create_app(runtime, nursery, config, ledger=ledger, context=context, metrics=metrics)
                host, port = listener.getsockname()[:2]
                server = Server(runtime, host, port, app.state.hosting, config.drain_grace)
                await nursery.start(_listen, app, listener, config, server)
                task_status.started(server)
                report = await server._drain()
                nursery.cancel_scope.deadline = trio.current_time() + LEAVE
    return report


async def _listen(
    app: Any,
    listener: socket.socket,
    config: ServerConfig,
    server: Server,
    task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED,
) -> None:
    own = Config()
    own.bind = [f"fd://{listener.detach()}"]  # from here on it is Hypercorn's, to be closed as soon as the end begins
    own.accesslog = None
    own.errorlog = logging.getLogger("goliath_actors.server.http")
    own.include_server_header = False
    own.backlog = BACKLOG
    own.keep_alive_timeout = 30.0
    # From the moment it is to end: runs get their grace, responses their time to be sent.
    own.graceful_timeout = config.drain_grace + LEAVE
    await hypercorn.trio.serve(app, own, shutdown_trigger=server._ending.wait, task_status=task_status)


def open_socket(config: ServerConfig) -> socket.socket:
    """Return a listening socket.

    Raises: `ConfigError` for an address that cannot be had.
    """
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"host {config.host!r} is no address of this machine ({error.strerror})") from error
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(config.send_timeout * 1000))
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ConfigError(_unavailable(config, error)) from error
    return listener


def _unavailable(config: ServerConfig, error: OSError) -> str:
    where = f"{config.host}:{config.port}"
    if error.errno == errno.EADDRINUSE:
        return f"{where} is in use by another program; take another port, or 0 for any free one"
    if error.errno == errno.EACCES:
        return f"this user may not listen on {where}; take a port above 1023"
    return f"{where} cannot be listened on: {error.strerror}"
