"""Asking for a run and cutting it at a chosen step: what the proofs that cancel everywhere share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import trio

from goliath_actors import Runtime
from goliath_actors._envelope import Envelope, current_run

CAUSES = ("caller", "requested", "deadline", "shutdown")


@attrs.define(eq=False)
class Cutter(trio.abc.Instrument):
    """Counts the steps of the tasks that belong to one run, and cuts after the n-th of them."""

    at: int | None = None
    steps: int = 0
    run: Envelope | None = None
    cut: Any = None
    problem: Exception | None = None

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.run is None or task.context.get(current_run) is not self.run:
            return
        self.steps += 1
        if self.steps == self.at:
            try:
                self.cut()
            except Exception as error:  # an instrument that raises is silently taken off: keep it for the test
                self.problem = error


@attrs.define(eq=False)
class Asked:
    """One ask, and what its asker came to: `answered`, `raised`, `cancelled`, or nothing if all ended around it.

    Arguments: `cause`, one of `CAUSES`, or nothing to cut by.
    """

    cutter: Cutter
    cause: str
    run: Any = None  # Any: the envelope, once `ask` has been there
    asker: str = ""
    reply: Any = None

    async def ask(
        self,
        runtime: Runtime,
        outer: trio.CancelScope,
        door: Callable[[], Awaitable[Any]],
        beside: Callable[[], object] = lambda: None,
    ) -> None:
        """Ask through `door` in a task of its own, and have the run cut as the cutter says; return with the asker.

        Arguments: `outer`, the scope around the runtime; `beside`, called once the run is accepted.
        """
        scope = trio.CancelScope()

        async def asking() -> None:
            with scope:
                try:
                    self.reply = await door()
                    self.asker = "answered"
                except Exception as reply:  # what it was is the outcome's
                    self.reply, self.asker = reply, "raised"
            if scope.cancelled_caught:
                self.asker = "cancelled"

        async with trio.open_nursery() as nursery:
            nursery.start_soon(asking)
            run = self.run = await _accepted(runtime)

            def cut_deadline() -> None:
                run.deadline = run.scope.deadline = trio.current_time()

            self.cutter.run = run
            self.cutter.cut = {
                "caller": scope.cancel,
                "requested": lambda: run.request_abort("requested", "cut here"),
                "deadline": cut_deadline,
                "shutdown": outer.cancel,
                "": lambda: None,
            }[self.cause]
            beside()
            if self.cutter.at == 0:
                self.cutter.cut()


async def _accepted(runtime: Runtime) -> Envelope:
    """Wait until the ask is accepted, a step of the asker's task away, without letting the run itself step further."""
    while True:
        actor = runtime._doors.acceptance.entry("agent").actors.get("c")
        if actor is not None and isinstance(actor.current, Envelope):
            return actor.current
        await trio.lowlevel.checkpoint()
