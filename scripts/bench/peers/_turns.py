"""How every contestant is driven, so that they differ in nothing but themselves. Needs nothing beyond Python.

A contestant is a file with `--port`, `--conversations`, `--turns`; it prints one line of JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import time
from collections.abc import Awaitable, Callable

QUESTION = "What is the weather in Lund?"
INSTRUCTIONS = "You are a helpful assistant. Use the tool."


class Clock:
    """Takes the time of every turn, and the CPU of all, those that warm up left out."""

    def __init__(self) -> None:
        parser = argparse.ArgumentParser()
        parser.add_argument("--port", type=int, required=True)
        parser.add_argument("--conversations", type=int, default=1)
        parser.add_argument("--turns", type=int, default=3)
        parser.add_argument("--warm-up", type=int, default=1)
        parser.add_argument("--collector", action="store_true", help="set the garbage collector for many at once")
        options = parser.parse_args()
        if options.collector:
            gc.set_threshold(50_000, 20, 100)
        self.url = f"http://127.0.0.1:{options.port}/v1"
        self.port: int = options.port
        self.conversations: int = options.conversations
        self.turns: int = options.turns
        self.warm_up: int = options.warm_up
        self.latencies: list[float] = []
        self.errors: dict[str, int] = {}
        self._cpu = self._wall = 0.0
        self._warm = 0

    async def talk(self, turn: Callable[[], Awaitable[object]], ready: Callable[[], Awaitable[object]]) -> None:
        """Hold one conversation: warm-up turns, then all wait for each other, then the turns that count."""
        for _ in range(self.warm_up):
            await self._one(turn, counts=False)
        self._warm += 1
        if self._warm == self.conversations:
            self._cpu, self._wall = time.process_time(), time.perf_counter()
        await ready()
        for _ in range(self.turns):
            await self._one(turn, counts=True)

    async def _one(self, turn: Callable[[], Awaitable[object]], *, counts: bool) -> None:
        start = time.perf_counter()
        try:
            text = await turn()
            if "sunny" not in str(text):
                raise ValueError(f"the answer is {text!r}")
        except Exception as error:  # noqa: BLE001  # a figure of the table, whatever it is
            self.errors[type(error).__name__] = self.errors.get(type(error).__name__, 0) + 1
        if counts:
            self.latencies.append(time.perf_counter() - start)

    @property
    def all_warm(self) -> bool:
        return self._warm == self.conversations

    def tell(self) -> None:
        """Print what was measured."""
        cpu, wall = time.process_time() - self._cpu, time.perf_counter() - self._wall
        ordered = sorted(self.latencies)
        print(
            json.dumps(
                {
                    "turns": len(ordered),
                    "cpu": cpu,
                    "wall": wall,
                    "p50": ordered[len(ordered) // 2],
                    "p99": ordered[min(int(len(ordered) * 0.99), len(ordered) - 1)],
                    "errors": self.errors,
                    "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                }
            ),
            flush=True,
        )
