"""Whether cost grows: with the length of a conversation, and with what else is in flight. CPU, model time left out.

python scripts/bench/growth.py [--turns 400] [--in-flight 2000] [--rounds 3]
"""

from __future__ import annotations

import statistics
import time

import trio
from _fakes import Instant
from _figures import Figure, arguments, show

from goliath_actors import Agent, ToolLoop, open_runtime, tool


@tool
async def weather(city: str) -> str:
    """Tell the weather of a city."""
    await trio.lowlevel.checkpoint()
    return f"sunny in {city}"


def agent(model: Instant) -> Agent[None]:
    return Agent(name="growth", model=model, tools=[weather], loop=ToolLoop())


async def length(turns: int) -> float:
    """Return CPU of the last ten turns of one conversation against turns 6 to 15."""
    took = []
    async with open_runtime(agent(Instant("weather"))) as runtime:
        for _ in range(turns):
            start = time.process_time()
            await runtime.run("what is the weather?", conversation_id="long")
            took.append(time.process_time() - start)
    return statistics.median(took[-10:]) / statistics.median(took[5:15])


async def width(in_flight: int, each: int) -> float:
    """Return CPU per turn with so many conversations in flight at once."""
    async with open_runtime(agent(Instant("weather", seconds=0.2))) as runtime:

        async def talk(number: int) -> None:
            for _ in range(each):
                await runtime.run("what is the weather?", conversation_id=f"c{number}")

        start = time.process_time()
        async with trio.open_nursery() as nursery:
            for number in range(in_flight):
                nursery.start_soon(talk, number)
        return (time.process_time() - start) / (in_flight * each)


def main() -> None:
    options = arguments(__doc__, turns=400, in_flight=2000, rounds=3)
    lengths, widths, crowded = [], [], []
    for _ in range(options.rounds):
        lengths.append(trio.run(length, options.turns))
        one = trio.run(width, 1, 30)
        ten, all_of_them = trio.run(width, 10, 10), trio.run(width, options.in_flight, 3)
        widths.append(all_of_them / one)
        crowded.append(all_of_them / ten)
    long, wide = statistics.median(lengths), statistics.median(widths)
    show(
        "growth",
        [
            Figure(f"turn {options.turns} of a conversation, CPU", "", "turn 10", f"{long:.2f}", "<= 2", long <= 2),
            Figure(
                f"a turn with {options.in_flight} in flight, CPU", "", "with 1", f"{wide:.2f}", "<= 1.3", wide <= 1.3
            ),
            # One alone pays for every wake-up of the process by itself.
            Figure(
                f"a turn with {options.in_flight} in flight, CPU",
                "",
                "with 10",
                f"{statistics.median(crowded):.2f}",
                "",
                None,
            ),
        ],
        options.json,
    )


if __name__ == "__main__":
    main()
