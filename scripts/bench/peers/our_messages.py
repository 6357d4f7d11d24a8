"""goliath_actors: asks to one conversation whose loop has its answer at once, each waited for."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import attrs
import trio

from goliath_actors import Agent, open_runtime
from goliath_actors._work import Ending
from goliath_actors.testing import ScriptedModel


@attrs.define(eq=False)
class Echo:
    """A loop that has its answer at once and needs no record."""

    window: int = 4096
    recalls: bool = False

    async def drive(self, work: Any, responded: Any = None) -> Ending:
        return Ending("hello")


async def main(times: int) -> None:
    agent: Any = Agent(name="echo", model=ScriptedModel([]), loop=Echo())
    async with open_runtime(agent) as runtime:
        for _ in range(times // 10 + 1):
            await runtime.run("hello", conversation_id="c")
        start, began = time.process_time(), time.perf_counter()
        for _ in range(times):
            assert (await runtime.run("hello", conversation_id="c")).text == "hello"
        cpu, wall = time.process_time() - start, time.perf_counter() - began
        print(json.dumps({"asks": times, "cpu": cpu, "wall": wall}))


trio.run(main, int(sys.argv[1]))
