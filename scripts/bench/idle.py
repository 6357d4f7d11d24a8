"""A hundred thousand idle conversations: bytes each, no task, found and run in the same time as among ten.

python scripts/bench/idle.py [--conversations 100000] [--rounds 5]
"""

from __future__ import annotations

import gc
import statistics
import time
import tracemalloc

import trio
from _fakes import Instant
from _figures import Figure, arguments, show

from goliath_actors import Agent, Runtime, ToolLoop, open_runtime
from goliath_actors.abc import Change, Record
from goliath_actors.stores import InMemoryStore


class Forgetful:
    """A store that keeps nothing, so that what is counted is the runtime's own."""

    def __init__(self) -> None:
        self._inner = InMemoryStore()

    async def load(self, key: str) -> Record:
        await trio.lowlevel.checkpoint()
        return Record()

    async def commit(self, key: str, change: Change, expect: int | None = None, token: int | None = None) -> Record:
        await trio.lowlevel.checkpoint()
        return Record(version=1)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


def main() -> None:
    options = arguments(__doc__, conversations=100_000, rounds=5)
    count: int = options.conversations

    async def measure() -> tuple[float, int, float]:
        agent = Agent(name="idle", model=Instant(), loop=ToolLoop())
        async with open_runtime(agent, store=Forgetful(), idle_timeout=None) as runtime:  # type: ignore[arg-type]

            async def visit(ids: range) -> None:
                for number in ids:
                    await runtime.run("hello", conversation_id=f"c{number}")

            await visit(range(10))
            among_ten = await turn(runtime, 10)
            tasks = trio.lowlevel.current_statistics().tasks_living
            gc.collect()
            tracemalloc.start()
            before = tracemalloc.get_traced_memory()[0]
            for start in range(10, count, 5000):
                async with trio.open_nursery() as nursery:
                    for slot in range(50):
                        nursery.start_soon(visit, range(start + slot, min(start + 5000, count), 50))
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - before
            tracemalloc.stop()
            # The ids themselves belong to whoever asks; here nobody else holds them.
            more_tasks = trio.lowlevel.current_statistics().tasks_living - tasks
            ratios = []
            for _ in range(options.rounds):
                among_all = await turn(runtime, count)
                ratios.append(among_all / among_ten)
                among_ten = await turn(runtime, 10)
            return grown / (count - 10), more_tasks, statistics.median(ratios)

    async def turn(runtime: Runtime, among: int) -> float:
        """CPU seconds of an ask to one of the first `among`, spread over them."""
        start = time.process_time()
        for number in range(300):
            await runtime.run("hello", conversation_id=f"c{number * 7919 % among}")
        return (time.process_time() - start) / 300

    size, tasks, ratio = trio.run(measure)
    show(
        "idle",
        [
            Figure(
                f"memory of one of {count} idle conversations", f"{size:.0f} bytes", "", "", "<= 400 bytes", size <= 400
            ),
            Figure("tasks that they hold", str(tasks), "", "", "0", tasks == 0),
            Figure(f"a turn among {count}, CPU", "", "among 10", f"{ratio:.2f}", "about 1", ratio <= 1.3),
        ],
        options.json,
    )


if __name__ == "__main__":
    main()
