"""One server: the task that is connected to it, and the calls that go there.

The protocol's client has to be entered and left in one task, so that task is ours and lives as long as the extension's
lifespan. Calls are made in the tasks of their runs: an abort of a run unwinds its own call, which tells the server, and
what the caller's context variables say (a trace, for instance) goes along.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs
import trio

from goliath_actors.errors import ToolFailure, ToolInterrupted, ToolsUnavailable
from goliath_actors.tools import ToolContext

from ._transports import Reach
from ._words import McpOutput, output_of

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import Tool as Listed

__all__ = ["McpProgress", "Server"]

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds after a first and after many failed attempts to connect
REFRESH_PAUSE = 0.1  # seconds between two looks at a list that changes
MOST_PAGES = 100  # of one list of tools: a server that never comes to an end must not hold us up
MOST_WAITING = 256  # calls that may wait for their turn, at `max_parallel` at a time
REASON_CHARS = 300

_log = logging.getLogger("goliath_actors.mcp")

# JSON-RPC codes (https://www.jsonrpc.org/specification) and the protocol's own.
_CLOSED = -32000
_TIMED_OUT = -32001

# Any, below: messages of the protocol's library, and the application's context.


@attrs.frozen
class McpProgress:
    """How far a call is, in the server's own measure; `total` is None where the server does not know."""

    tool: str
    run_id: str
    conversation_id: str | None
    call_id: str
    progress: float
    total: float | None
    message: str | None


@attrs.define(eq=False)
class _Attempt:
    """One attempt to connect, and who waits for it."""

    over: trio.Event = attrs.Factory(trio.Event)
    client: Client | None = None


@attrs.define(eq=False)
class Server:
    """A server that is connected to when it is needed, and again after it was lost.

    Invariant: `_client` is set only between entering the client and leaving it, by the one task in `keep`.
    """

    name: str
    reach: Reach
    connect_timeout: float
    max_parallel: int
    listed: Callable[[list[Listed]], None]
    on_progress: Callable[[McpProgress], object] | None = None
    instructions: str = ""
    _client: Client | None = None
    _attempt: _Attempt = attrs.Factory(_Attempt)
    _wanted: trio.Event = attrs.Factory(trio.Event)
    _changed: trio.Event = attrs.Factory(trio.Event)
    _kept: bool = False
    _known: bool = False
    _failures: int = 0
    _not_before: float = -math.inf
    _problem: str = ""
    _slots: trio.CapacityLimiter = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._slots = trio.CapacityLimiter(self.max_parallel)

    # --- calls ------------------------------------------------------------------------------------------------------

    async def call(self, tool: str, input: dict[str, Any], ctx: ToolContext[Any]) -> McpOutput:
        """Have the server execute one of its tools.

        Raises: `ToolFailure` if the server says that it failed, or was never asked; `ToolInterrupted` if the answer is
        lost, and with it whether it happened.

        Cancellation: passes; the server is told that nobody waits any more, and may or may not have been done by then.
        """
        if self._slots.statistics().tasks_waiting >= MOST_WAITING:
            raise ToolFailure(f"{self.name} has too many calls waiting; try again later.")
        async with self._slots:
            client = await self._connected()
            return await self._made(client, tool, input, ctx)

    async def _made(self, client: Client, tool: str, input: dict[str, Any], ctx: ToolContext[Any]) -> McpOutput:
        from mcp import MCPError

        try:
            result = await client.call_tool(tool, input, progress_callback=self._progress(tool, ctx))
        except MCPError as error:
            if error.code in (_CLOSED, _TIMED_OUT):
                raise ToolInterrupted(f"{self.name} was lost before {tool} had answered.", retryable=True) from error
            raise ToolFailure(f"{tool}: {self._said(error)}") from error
        except Exception as error:  # an answer that cannot be read, or a client that is being left
            raise ToolInterrupted(f"{self.name} gave no usable answer to {tool}: {self._said(error)}") from error
        self._failures = 0
        output = output_of(result)
        if result.is_error:
            raise ToolFailure(output.text)
        return output

    def _progress(self, tool: str, ctx: ToolContext[Any]) -> Any:
        async def progress(progress: float, total: float | None, message: str | None) -> None:
            ctx.report(progress, total, message or "")
            if self.on_progress is not None:
                self.on_progress(
                    McpProgress(tool, ctx.run_id, ctx.conversation_id, ctx.call_id, progress, total, message)
                )
            await trio.lowlevel.checkpoint()

        return progress

    async def _connected(self) -> Client:
        """Return the client, connecting first if need be; one attempt serves all who wait for it."""
        await trio.lowlevel.checkpoint()
        if self._client is not None:
            return self._client
        if not self._kept or self._not_before > trio.current_time():
            raise self._unreached()
        attempt = self._attempt
        self._wanted.set()
        await attempt.over.wait()
        if attempt.client is None:
            raise self._unreached()
        return attempt.client

    def _unreached(self) -> ToolFailure:
        if not self._kept:
            return ToolFailure(f"{self.name} is closed: its runtime has ended.")
        left = max(1, math.ceil(self._not_before - trio.current_time()))
        return ToolFailure(f"{self.name} cannot be reached ({self._problem}); try again in {left} s.")

    # --- the connection ---------------------------------------------------------------------------------------------

    async def keep(
        self, required: bool, *, task_status: trio.TaskStatus[str | None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Be connected: at once, and again whenever a call needs it after the server was lost.

        Starts with what went wrong with the first attempt, None if nothing did; if `required`, it then ends.

        Cancellation: the client is left, its process ended: asked to, then made to, within seconds.
        """
        self._failures, self._not_before, self._kept = 0, -math.inf, True
        try:
            await self._keep(required, task_status)
        finally:
            self._kept = False
            self._give_up()

    async def _keep(self, required: bool, task_status: trio.TaskStatus[str | None]) -> None:
        first = True
        while True:
            connected = await self._hold(task_status.started if first else None)
            if first and not connected:
                task_status.started(self._problem)
                if required:
                    return
            first = False
            if not connected and not self._known:
                # Nobody calls tools that are not known yet, so nobody would have us try again.
                await trio.sleep_until(self._not_before)
            else:
                await self._wanted.wait()
                if self._not_before > trio.current_time():  # wanted before it was known how the last one ended
                    self._give_up()
                    await trio.sleep_until(self._not_before)

    async def _hold(self, started: Callable[[None], None] | None) -> bool:
        """Connect once and stay so until the server is lost; say whether it came to that."""
        from mcp import Client

        attempt, lost, connected, problem = self._attempt, trio.Event(), False, ""

        def ended() -> None:
            self._client = None  # at once: whoever calls now is not to be told of a call that was lost
            lost.set()

        with trio.CancelScope(deadline=trio.current_time() + self.connect_timeout) as limit:
            try:
                client = Client(
                    self.reach.target(ended), message_handler=self._heard, cache=None, client_info=_ourselves()
                )
                async with client:
                    self.listed(await _all_tools(client))
                    self.instructions = client.instructions or ""
                    limit.deadline = math.inf
                    connected = self._known = True
                    self._client = attempt.client = client
                    self._attempt, self._wanted = _Attempt(), trio.Event()
                    attempt.over.set()
                    if started is not None:
                        started(None)
                    try:
                        await self._watch(client, lost)
                    finally:
                        self._client = None
            # With a star: a transport may break while we are being cancelled, and then leaves as one group with that.
            except* Exception as error:  # noqa: BLE001  # of the protocol's library, whatever it is: whoever calls is told
                problem = self._said(error)
        if limit.cancelled_caught:
            problem = f"no answer within {self.connect_timeout:g} s"
        self._note(problem or "the connection ended", connected)
        return connected

    def _note(self, problem: str, connected: bool) -> None:
        _log.warning("%s %s: %s", self.name, "was lost" if connected else "cannot be reached", problem)
        self._problem = problem
        self._failures += 1
        # A connection that is lost is made anew at once; one that is lost again and again without having been of use is
        # waited for like one that cannot be made.
        tries = self._failures - 1 if connected else self._failures
        pause = 0.0 if tries == 0 else min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(tries - 1, 16))
        self._not_before = trio.current_time() + pause
        if not connected:
            self._give_up()

    def _give_up(self) -> None:
        """Tell those who wait for the attempt that it came to nothing."""
        attempt, self._attempt, self._wanted = self._attempt, _Attempt(), trio.Event()
        attempt.over.set()

    async def _watch(self, client: Client, lost: trio.Event) -> None:
        """Follow changes of the server's list of tools until the server is lost."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen, client)
            nursery.start_soon(self._refresh, client)
            await lost.wait()
            nursery.cancel_scope.cancel()

    async def _listen(self, client: Client) -> None:
        from mcp.client.subscriptions import ListenNotSupportedError

        try:
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self._changed.set()
        except* ListenNotSupportedError:
            pass  # an older server: it says so without being asked, to `_heard`
        except* Exception as error:  # noqa: BLE001  # then the list stays as it is
            _log.debug("%s does not tell of changes: %s", self.name, self._said(error))

    async def _heard(self, message: Any) -> None:
        from mcp_types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._changed.set()
        await trio.lowlevel.checkpoint()

    async def _refresh(self, client: Client) -> None:
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            try:
                self.listed(await _all_tools(client))
            except Exception as error:  # noqa: BLE001  # the list stays as it was
                _log.warning("%s: its changed list of tools cannot be read: %s", self.name, self._said(error))
            await trio.sleep(REFRESH_PAUSE)  # a server that changes it all the time is not asked all the time

    def _said(self, error: BaseException) -> str:
        """What went wrong, without secrets. What leaves the library's task groups is a group, also of one."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        said = " ".join(str(error).split())
        kind = type(error).__name__
        return self.reach.masked(f"{kind}: {said}" if said and not _is_plain(error) else said or kind)[:REASON_CHARS]


def _is_plain(error: BaseException) -> bool:
    return type(error).__name__ == "MCPError"  # the server's own words; the class says nothing more


def _ourselves() -> Any:
    from mcp_types import Implementation

    from goliath_actors._version import __version__

    return Implementation(name="goliath-actors", version=__version__)


async def _all_tools(client: Client) -> list[Listed]:
    found: list[Listed] = []
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if not cursor:
            return found
    raise ToolsUnavailable(f"its list of tools does not end within {MOST_PAGES} pages")
