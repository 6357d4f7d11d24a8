"""Abort thousands of running runs at once, with two extensions each: every observer hears, none is lost.

    python scripts/bench/abort.py [--runs 10000] [--rounds 5]

Against trio alone cancelling as many tasks that sleep.
"""

from __future__ import annotations

import gc
from typing import Any

import trio
import trio.testing
from _figures import Figure, arguments, show

from goliath_actors import Agent, Extension, ToolLoop, open_runtime
from goliath_actors.hooks import HookContext


class Counter(Extension[Any]):
    """Counts the ends that it hears of."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.heard = 0

    def on_finish(self, ctx: HookContext[Any], outcome: Any, /) -> None:
        self.heard += 1


class Sleeper:
    """A model that never answers."""

    name = "sleeper"

    def stream(self, request: Any) -> Any:
        return self

    async def __aenter__(self) -> Any:
        self.reached += 1
        await trio.sleep_forever()

    async def __aexit__(self, *error: object) -> None:
        return None

    reached = 0


def main() -> None:
    options = arguments(__doc__, runs=10_000, rounds=5)
    runs: int = options.runs
    heard: list[int] = []

    async def ours() -> None:
        extensions = [Counter("one"), Counter("two")]
        agent = Agent(name="abort", model=Sleeper(), extensions=extensions, loop=ToolLoop())
        async with open_runtime(agent) as runtime:
            running = [runtime.submit("hello", conversation_id=f"c{number}") for number in range(runs)]
            await trio.testing.wait_all_tasks_blocked()
            started.append(trio.current_time())
            for run in running:
                run.abort("enough")
        ended.append(trio.current_time())
        heard.append(sum(extension.heard for extension in extensions))

    async def raw() -> None:
        scopes: list[trio.CancelScope] = []

        async def sleeper() -> None:
            with trio.CancelScope() as scope:
                scopes.append(scope)
                await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            for _ in range(runs):
                nursery.start_soon(sleeper)
            await trio.testing.wait_all_tasks_blocked()
            started.append(trio.current_time())
            for scope in scopes:
                scope.cancel()
        ended.append(trio.current_time())

    started: list[float] = []
    ended: list[float] = []
    for _ in range(options.rounds + 1):  # the first round does not count
        for contestant in (ours, raw):
            gc.collect()
            trio.run(contestant)
    # Only from the abort to the last end: setting ten thousand runs up is another figure.
    spans = [end - start for start, end in zip(started, ended, strict=True)][2:]
    ratios = sorted(a / b for a, b in zip(spans[::2], spans[1::2], strict=True))
    ratio = ratios[len(ratios) // 2]
    wanted, fewest = 2 * runs, min(heard)
    mine, theirs = sorted(spans[::2])[len(ratios) // 2], sorted(spans[1::2])[len(ratios) // 2]
    what = f"on_finish heard after {runs} aborts, two extensions"
    heard_all = Figure(what, str(fewest), str(wanted), "", "0 lost", fewest == max(heard) == wanted)
    ms = (f"{mine * 1e3:.0f} ms", f"raw trio {theirs * 1e3:.0f} ms")
    wall = Figure("from the abort to the last end, wall", *ms, f"{ratio:.1f}", "<= 5", ratio <= 5)
    show("abort", [heard_all, wall], options.json)


if __name__ == "__main__":
    main()
