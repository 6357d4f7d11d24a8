"""What an ask costs before anything is done for it: through an actor, and as a bare task with an event.

    python scripts/bench/actor.py [--rounds 9] [--asks 2000] [--idle 5000]

In this process alone, without network; it takes some seconds. The loop of the agent does nothing, so that what is left
is the runtime: acceptance, mailbox, task, scope, journal, events, supervision, reply. Times are CPU times, as medians
over interleaved rounds; only the ratios mean something on another machine.
"""

from __future__ import annotations

import gc
import math
import os
import sys
import tracemalloc
from typing import Any

import attrs
import trio
from _figures import Figure, Found, NoFigure, arguments, microseconds, multiples, process, show

from goliath_actors import Agent, Extension, Runtime, open_runtime
from goliath_actors._work import Ending
from goliath_actors.testing import ScriptedModel

LONGEST = 60  # seconds for one import


@attrs.define(eq=False)
class NothingToDo:
    """A loop that has its answer at once and needs no record."""

    window: int = 4096
    recalls: bool = False

    async def drive(self, work: Any, responded: Any = None) -> Ending:
        return Ending("done")


class Watching(Extension[Any]):
    """An observer that does nothing."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def on_finish(self, ctx: Any, question: Any) -> None:
        pass


def agent(name: str, watching: int = 0) -> Agent[Any]:
    extensions = [Watching(f"watching-{number}") for number in range(watching)]
    return Agent(name=name, model=ScriptedModel([]), loop=NothingToDo(), extensions=extensions)


async def bare(times: int) -> None:
    """A task and an event for each ask: the least that an answer from another task can cost."""

    async def answer(done: trio.Event) -> None:
        done.set()

    async with trio.open_nursery() as nursery:
        for _ in range(times):
            done = trio.Event()
            nursery.start_soon(answer, done)
            await done.wait()


async def idle_bytes(runtime: Runtime, count: int) -> float:
    """Return what an idle conversation holds, its id included, in bytes."""
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(count):
        await runtime.run("hello", conversation_id=f"idle-{number}", agent="plain")
    gc.collect()
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return held / count


def import_seconds(statement: str) -> float:
    """Return the CPU time of an import in a new process, the least of five.

    Raises: `NoFigure`.
    """
    measured = f"import time; start = time.process_time(); {statement}; taken = time.process_time() - start"
    command = [sys.executable, "-c", f"{measured}; import json; print(json.dumps({{'seconds': taken}}))"]
    return min(float(process(command, LONGEST, os.environ)["seconds"]) for _ in range(5))


def imports() -> list[Figure]:
    """Return a line for each import of ours against what it stands on; one that fails is told on its line."""
    figures = []
    bare = "import trio, attrs"
    for statement, most in (("import goliath_actors", 0.25), ("from goliath_actors import Agent, open_runtime", None)):
        values, failed = {}, {}
        for name, what in (("ours", statement), (bare, bare)):
            try:
                values[name] = import_seconds(what)
            except NoFigure as error:
                failed[name] = str(error)
        goal, ours = "" if most is None else f"<= {most * 1e3:.0f} ms", values.get("ours", math.inf)
        line = Found(values, failed).line(
            f"{statement}, CPU", bare, lambda seconds: f"{seconds * 1e3:.0f} ms", label="trio, attrs"
        )
        figures.append(attrs.evolve(line, goal=goal, ok=None if most is None else ours <= most))
    return figures


async def main(options: Any) -> None:
    async with open_runtime(agent("plain"), agent("watched", 4)) as runtime:

        async def actor(times: int) -> None:
            for _ in range(times):
                await runtime.run("hello", conversation_id="c", agent="plain")

        async def submitted(times: int) -> None:
            for _ in range(times):
                await runtime.submit("hello", conversation_id="c", agent="plain").wait()

        async def watched(times: int) -> None:
            for _ in range(times):
                await runtime.run("hello", conversation_id="c", agent="watched")

        taken = await microseconds(
            {
                "a task and an event": bare,
                "an ask by run": actor,
                "an ask by submit, wait": submitted,
                "an ask by run, 4 observers": watched,
            },
            options.rounds,
            options.asks,
        )
        held = await idle_bytes(runtime, options.idle)
    figures = multiples(taken, "a task and an event", {"an ask by run": 3})
    figures.append(Figure("an idle conversation", f"{held:.0f} bytes", "", "", "<= 400 bytes", held <= 400))
    show("one ask", figures + imports(), options.json)


if __name__ == "__main__":
    trio.run(main, arguments(__doc__, rounds=9, asks=2000, idle=5000))
