"""What an ask costs before anything is done for it: through an actor, and as a bare task with an event.

    python scripts/bench/actor.py [--rounds 9] [--asks 2000] [--idle 5000]

In this process alone, without network; it takes some seconds. The loop of the agent does nothing, so that what is left
is the runtime: acceptance, mailbox, task, scope, journal, events, supervision, reply. Times are CPU times, as medians
over interleaved rounds; only the ratios mean something on another machine.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import tracemalloc
from typing import Any

import attrs
import trio
from _figures import Figure, arguments, microseconds, multiples, show

from goliath_actors import Agent, Extension, Runtime, open_runtime
from goliath_actors._work import Ending
from goliath_actors.testing import ScriptedModel


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
    code = f"import time; start = time.process_time(); {statement}; print(time.process_time() - start)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(5)]
    return min(float(run.stdout) for run in runs)


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
    bare_import = import_seconds("import trio, attrs")
    for statement, most in (("import goliath_actors", 0.25), ("from goliath_actors import Agent, open_runtime", None)):
        ours = import_seconds(statement)
        against = f"trio, attrs {bare_import * 1e3:.0f} ms"
        ratio = f"{ours / bare_import:.2f}"
        goal, ok = ("", None) if most is None else (f"<= {most * 1e3:.0f} ms", ours <= most)
        figures.append(Figure(f"{statement}, CPU", f"{ours * 1e3:.0f} ms", against, ratio, goal, ok))
    show("one ask", figures, options.json)


if __name__ == "__main__":
    trio.run(main, arguments(__doc__, rounds=9, asks=2000, idle=5000))
