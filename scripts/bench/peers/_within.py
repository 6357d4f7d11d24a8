"""How a framework is driven with a model inside its own process, the same for all. Needs nothing beyond Python.

A contestant is a file that takes a number of turns; it prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Awaitable, Callable

QUESTION = "How is the weather in Lisbon?"
INSTRUCTIONS = "You are a careful assistant."
ANSWER = "It is sunny in Lisbon."
ARGUMENTS = '{"city": "Lisbon"}'


async def drive(turn: Callable[[str], Awaitable[object]]) -> None:
    """Take turns, each in a conversation of its own, and print the CPU time of those behind the first tenth."""
    times = int(sys.argv[1])
    start = time.process_time()
    for number in range(times // 10 + times):
        if number == times // 10:
            start = time.process_time()
        text = await turn(str(number))
        if text != ANSWER:
            raise ValueError(f"the answer is {text!r}")
    print(json.dumps({"turns": times, "cpu": time.process_time() - start}), flush=True)
