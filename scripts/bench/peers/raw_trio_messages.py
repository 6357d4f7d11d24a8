"""trio: a task and an event for each message, the least that an answer from another task can cost."""

from __future__ import annotations

import json
import sys
import time

import trio


async def main(times: int) -> None:
    async def answer(done: trio.Event) -> None:
        done.set()

    async with trio.open_nursery() as nursery:
        for number in range(times + times // 10 + 1):
            if number == times // 10 + 1:
                start, began = time.process_time(), time.perf_counter()
            done = trio.Event()
            nursery.start_soon(answer, done)
            await done.wait()
    cpu, wall = time.process_time() - start, time.perf_counter() - began
    print(json.dumps({"asks": times, "cpu": cpu, "wall": wall}))


trio.run(main, int(sys.argv[1]))
