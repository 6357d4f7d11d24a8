"""The trio thread of a bridge: the runtime, and what asyncio loops ask of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar, final

import attrs
import outcome
import trio

from goliath_actors import Agent, Run, Runtime, open_runtime
from goliath_actors.errors import ConfigError, RuntimeClosed

from ._call import Call, Side, insist
from ._crossing import Crossing, Thunk
from ._outward import Home, asker, home
from ._pump import Pump

__all__ = ["Engine"]

T = TypeVar("T")


@final
@attrs.define(eq=False)
class Engine:
    """A runtime in a thread of its own. Lives once: `start`, questions, `stop`."""

    _agents: tuple[Agent[Any], ...]
    # Any: the options of `open_runtime`, handed on.
    _options: dict[str, Any]
    _grace: float | None
    # Guards what several threads share, for a few instructions each time.
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    # Invariant: holds every call without an answer. Whoever takes one out answers it, so each gets exactly one.
    _calls: set[Call[Any]] = attrs.field(factory=set, init=False)
    _pumps: set[Pump] = attrs.field(factory=set, init=False)
    _sides: dict[asyncio.AbstractEventLoop, Side] = attrs.field(factory=dict, init=False)
    # True once the thread answers nothing any more.
    _over: bool = attrs.field(default=False, init=False)
    _error: BaseException | None = attrs.field(default=None, init=False)
    _ended: list[tuple[Side, asyncio.Future[None]]] = attrs.field(factory=list, init=False)
    # Set before the thread is told, which may not be listening yet.
    _hasty: bool = attrs.field(default=False, init=False)
    _thread: threading.Thread | None = attrs.field(default=None, init=False)
    _outward: Crossing | None = attrs.field(default=None, init=False)
    # Only the trio thread touches these.
    _runtime: Runtime | None = attrs.field(default=None, init=False)
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)
    _leave: trio.Event = attrs.field(factory=trio.Event, init=False)
    # Around the runtime: cancelling it aborts every run, cause `shutdown`.
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    # --- from asyncio loops -----------------------------------------------------------------------------------------

    def side(self) -> Side:
        """Return the running loop's side of this bridge. Raises `ConfigError` where no asyncio loop runs."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise ConfigError(
                "a bridge is used from asyncio, and no event loop of it is running here; on trio use open_runtime"
            ) from None
        with self._lock:
            side = self._sides.get(loop)
            if side is None:
                # Loops come and go in tests and in threads; those that are over are not kept.
                self._sides = {known: side for known, side in self._sides.items() if not known.is_closed()}
                side = self._sides[loop] = Side(loop, Crossing(loop.call_soon_threadsafe))
        return side

    async def start(self) -> None:
        """Start the thread and wait until the runtime is open.

        Raises: what opening it raised.

        Cancellation: waits until what was begun is undone.
        """
        side = self.side()
        opened: asyncio.Future[None] = side.loop.create_future()
        main = partial(self._thread_main, side, lambda: side.inward.post(partial(_tell, opened)))
        # A daemon: a program that ends without leaving the bridge's block must not hang. Stores bear being killed.
        context = copy_context()
        self._thread = threading.Thread(target=lambda: context.run(main), name="goliath_actors bridge", daemon=True)
        self._thread.start()
        finished = False
        try:
            await opened
            finished = True
        finally:
            if not finished:
                await self.stop(at_once=True)
        if self._over:
            await self.stop(at_once=True)
            if self._error is not None:
                raise self._error

    async def stop(self, *, at_once: bool) -> None:
        """End the runtime, in peace or at once, and wait for the thread's end.

        Cancellation: ends it at once, and goes on when the thread has ended.
        """
        self._hasty = self._hasty or at_once
        self.post(self._scope.cancel if at_once else self._leave.set)

        def hurry() -> None:
            self._hasty = True
            self.post(self._scope.cancel)

        cancelled = await insist(self.ended(), hurry)
        if self._thread is not None:
            self._thread.join()  # it has nothing left to do
        if cancelled is not None:
            raise cancelled

    @property
    def error(self) -> BaseException | None:
        """What ended the runtime, if it ended by an error."""
        return self._error

    def ended(self) -> asyncio.Future[None]:
        """Return a future of the running loop that is done when the thread is."""
        side = self.side()
        ended: asyncio.Future[None] = side.loop.create_future()
        with self._lock:
            if self._over:
                ended.set_result(None)
            else:
                self._ended.append((side, ended))
        return ended

    def post(self, thunk: Thunk) -> None:
        """Have `thunk` called in the trio thread, if it is there."""
        outward = self._outward
        if outward is not None:
            outward.post(thunk)

    async def ask(
        self,
        start: Callable[[Runtime], Any],
        finish: Callable[[Any], Awaitable[T]] | None = None,
        leave: Thunk | None = None,
    ) -> T:
        """Ask the trio thread; see `Call`.

        Arguments: `leave` is called in the trio thread when the asker is cancelled; the default cancels `finish`.

        Raises: what the steps raise; `RuntimeClosed` when the thread is over or ends meanwhile.

        Cancellation: goes on only when the answer has come.
        """
        call: Call[T] = Call(self.side(), lambda: start(self._open()), finish)
        call.context.run(asker.set, call.side)
        with self._lock:
            over = self._over
            if not over:
                self._calls.add(call)
        if over:
            raise self._closed()
        self.post(partial(self._begin, call))
        return await call.outcome(lambda: self.post(leave or call.scope.cancel))

    def pump(self, run: Run) -> Pump:
        """Start to read a run's events for the running loop."""
        assert self._outward is not None
        pump = Pump(run, self.side(), self._outward)
        with self._lock:
            over = self._over
            if not over:
                self._pumps.add(pump)
        if over:
            pump.end(self._closed())
        else:
            self.post(partial(self._fill, pump))
        return pump

    def _closed(self) -> RuntimeClosed:
        error = RuntimeClosed("the runtime behind this bridge is over; open another bridge")
        error.__cause__ = self._error
        return error

    # --- in the trio thread -----------------------------------------------------------------------------------------

    def _thread_main(self, side: Side, opened: Thunk) -> None:
        # `capture` takes all that can end a thread: whoever leaves the block raises it, there is nobody else above.
        ended = outcome.capture(lambda: trio.run(self._main, side, opened))
        error = _single(ended.error) if isinstance(ended, outcome.Error) else None
        with self._lock:
            self._over, self._error = True, error
            calls, self._calls = self._calls, set()
            pumps, self._pumps = self._pumps, set()
            waiting, self._ended = self._ended, []
        for call in calls:
            call.answer(error=self._closed())
        for pump in pumps:
            pump.end(self._closed())
        opened()
        for other, future in waiting:
            other.inward.post(partial(_tell, future))

    async def _main(self, side: Side, opened: Thunk) -> None:
        self._outward = outward = Crossing(trio.lowlevel.current_trio_token().run_sync_soon)
        home.set(Home(side, outward))
        if self._hasty:
            self._scope.cancel()
        failed: Exception | None = None
        # Outside of the runtime: those who wait for its runs hear how they ended before the thread does.
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                with self._scope:
                    async with open_runtime(*self._agents, **self._options) as runtime:
                        self._runtime = runtime
                        opened()
                        await self._leave.wait()
                        if self._grace is not None:
                            await runtime.drain(self._grace)
            except Exception as error:  # noqa: BLE001  # raised below, once everybody was told
                failed = error
            for pump in list(self._pumps):
                pump.hurry()
        if failed is not None:
            raise failed

    def _open(self) -> Runtime:
        assert self._runtime is not None
        return self._runtime

    def _begin(self, call: Call[Any]) -> None:
        assert self._nursery is not None
        try:
            value = call.context.run(call.start)
            if call.finish is None:
                self._answer(call, value)
            else:
                call.context.run(self._nursery.start_soon, self._finish, call, value)
        except Exception as error:  # noqa: BLE001  # the asker raises it
            self._answer(call, error=error)

    async def _finish(self, call: Call[Any], value: Any) -> None:
        assert call.finish is not None
        with call.scope:
            try:
                result = await call.finish(value)
            except Exception as error:  # noqa: BLE001  # the asker raises it
                self._answer(call, error=error)
            else:
                self._answer(call, result)
        if call.scope.cancelled_caught:
            self._answer(call)  # the asker has left and raises its own cancellation

    def _answer(self, call: Call[Any], value: Any = None, error: Exception | None = None) -> None:
        with self._lock:
            mine = call in self._calls
            self._calls.discard(call)
        if mine:
            call.answer(value, error)

    def _fill(self, pump: Pump) -> None:
        assert self._nursery is not None
        try:
            pump.context.run(self._nursery.start_soon, self._filling, pump)
        except RuntimeError:  # the nursery has closed; the thread's end tells the reader
            return
        if self._scope.cancel_called or self._leave.is_set():
            pump.hurry()

    async def _filling(self, pump: Pump) -> None:
        await pump.fill()
        with self._lock:
            self._pumps.discard(pump)


def _tell(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _single(error: BaseException) -> BaseException:
    """Return what nurseries put into groups, if it is one error, perhaps met in several tasks."""
    found = list(_leaves(error))
    return found[0] if found and all(leaf is found[0] for leaf in found) else error


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _leaves(part)
    else:
        yield error
