"""Limits that a whole program shares: never more than two requests within a minute, in order of arrival."""

import trio
from trio.testing import MockClock

from goliath_actors import Agent, open_runtime
from goliath_actors.models import Limited
from goliath_actors.testing import ScriptedModel

model = Limited(ScriptedModel([f"Answer {number}." for number in (1, 2, 3)]), in_flight=8, rpm=2)
agent = Agent(model=model)


async def main() -> None:
    start = trio.current_time()
    async with open_runtime(agent) as runtime:
        for _ in range(3):
            result = await runtime.run("Well?")
            print(f"after {trio.current_time() - start:.0f} s: {result.text}")
    print(model.statistics())


if __name__ == "__main__":
    trio.run(main, clock=MockClock(autojump_threshold=0))  # a clock that jumps, so that nobody waits

# Prints:
#   after 0 s: Answer 1.
#   after 0 s: Answer 2.
#   after 60 s: Answer 3.
#   LimitedStatistics(in_flight=0, waiting=0, requests=1, tokens=0)
