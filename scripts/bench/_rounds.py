"""Interleaved rounds: contestants take turns, since two measurements can only be compared within one run."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping

__all__ = ["microseconds", "table"]


async def microseconds(
    contestants: Mapping[str, Callable[[int], Awaitable[None]]], rounds: int, times: int
) -> dict[str, float]:
    """Return the median over `rounds` of the CPU time of one turn, in microseconds, by contestant.

    Arguments: each contestant is called with `times`, how many turns it does in one round.
    """
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for contestant in contestants.values():
        await contestant(max(1, times // 10))
    for turn in range(rounds):
        order = list(contestants)
        for name in order if turn % 2 else reversed(order):
            gc.collect()
            start = time.process_time()
            await contestants[name](times)
            taken[name].append((time.process_time() - start) / times * 1e6)
    return {name: statistics.median(values) for name, values in taken.items()}


def table(title: str, taken: Mapping[str, float], base: str, goals: Mapping[str, str]) -> None:
    """Print the times, each as a multiple of `base`, with its goal."""
    print(f"\n{title}\n")
    width = max(map(len, taken))
    for name, value in taken.items():
        print(f"  {name:<{width}}  {value:9.1f} µs  {value / taken[base]:6.2f} x  {goals.get(name, '')}".rstrip())
