"""The four causes of an abort, each told to the observers, and what the caller sees of it."""

from collections.abc import Awaitable, Callable

import trio
from trio.testing import MockClock

from goliath_actors import Agent, Extension, RunAborted, Runtime, open_runtime
from goliath_actors.abc import ModelRequest
from goliath_actors.hooks import HookContext, OnFinish
from goliath_actors.testing import ScriptedModel


class Watch(Extension[None]):
    name = "watch"

    def on_finish(self, ctx: HookContext[None], question: OnFinish) -> None:
        abort = question.outcome.abort
        assert abort is not None
        print(f"observer: {ctx.ask}, cause {abort.cause} in {abort.phase}")


async def never(request: ModelRequest) -> str:
    await trio.sleep_forever()
    raise AssertionError("nothing wakes it")


def agent() -> Agent[None]:
    return Agent(model=ScriptedModel([never]), extensions=[Watch()])


async def caller(runtime: Runtime) -> None:
    with trio.move_on_after(1) as scope:  # the scope around `run` owns the run
        await runtime.run("caller")
    print("cancelled like anything in trio:", scope.cancelled_caught)


async def requested(runtime: Runtime) -> None:
    run = runtime.submit("requested")
    await trio.sleep(1)
    runtime.conversation().abort("by hand")
    try:
        await run.wait()
    except RunAborted as aborted:
        print(aborted)


async def deadline(runtime: Runtime) -> None:
    try:
        await runtime.run("deadline", timeout=1)
    except RunAborted as aborted:
        print(aborted)


async def shutdown(runtime: Runtime) -> None:
    run = runtime.submit("shutdown")
    print(await runtime.drain(grace=1))
    try:
        await run.wait()
    except RunAborted as aborted:
        print(aborted)


async def main() -> None:
    causes: list[Callable[[Runtime], Awaitable[None]]] = [caller, requested, deadline, shutdown]
    for cause in causes:
        async with open_runtime(agent()) as runtime:
            await cause(runtime)


if __name__ == "__main__":
    trio.run(main, clock=MockClock(autojump_threshold=0))  # a clock that jumps, so that nobody waits

# Prints:
#   observer: caller, cause caller in answer
#   cancelled like anything in trio: True
#   observer: requested, cause requested in answer
#   the run was aborted (requested) in answer: by hand
#   observer: deadline, cause deadline in answer
#   the run was aborted (deadline) in answer
#   observer: shutdown, cause shutdown in answer
#   DrainReport(finished=0, aborted=1)
#   the run was aborted (shutdown) in answer: the runtime was drained
