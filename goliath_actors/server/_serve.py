"""`serve`: a runtime, its application and a listening socket, in one nursery."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import attrs
import trio
from starlette.types import ASGIApp

from goliath_actors import Agent, Runtime, open_runtime
from goliath_actors._directory import with_subagents
from goliath_actors._open import check_agents
from goliath_actors.abc import Store
from goliath_actors.metrics import Metrics
from goliath_actors.stores import InMemoryStore
from goliath_actors.values import DrainReport

from ._alone import alone_with
from ._app import create_app, recorded
from ._config import ServerConfig
from ._hosted import Visitor
from ._hosting import Hosting
from ._ledger import Ledger
from ._listen import LEAVE, listen, open_socket

__all__ = ["Server", "serve", "serve_app"]


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
        return _url(self.host, self.port)

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


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve_app(
    app: ASGIApp,
    config: ServerConfig | None = None,
    *,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve an application of your own, in which that of `create_app` may be mounted, with connections as `serve` has
    them: none can end another or the server, and one whose client stops reading ends after `send_timeout`.

    Arguments: of `config` what concerns addresses and connections is used. `nursery.start` gives the address.

    Raises: `ConfigError` for an address that cannot be had.

    Cancellation: connections end.
    """
    config = config or ServerConfig()
    with open_socket(config) as listener:
        async with trio.open_nursery() as nursery:
            await nursery.start(listen, app, listener, config, trio.sleep_forever)
            task_status.started(_url(*listener.getsockname()[:2]))


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

    Raises: `ConfigError` for an address that cannot be had, and for the file of a `SqliteStore` that another process
    serves; as `open_runtime`.

    Cancellation: every run is aborted (cause `shutdown`), its observers are told, connections end.
    """
    check_agents(agents)
    config = config or ServerConfig()
    store = InMemoryStore() if store is None else store
    ledger = Ledger(store)
    metrics = Metrics() if config.metrics else None
    # Those that are tools of others, too: clients may ask them, and what they are asked is to be on record.
    everybody = with_subagents(agents)
    watched = everybody if metrics is None else [metrics.watch(agent) for agent in everybody]
    with alone_with(store), open_socket(config) as listener:
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
                await nursery.start(listen, app, listener, config, server._ending.wait)
                task_status.started(server)
                report = await server._drain()
                nursery.cancel_scope.deadline = trio.current_time() + LEAVE
    return report
