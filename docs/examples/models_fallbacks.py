"""Two models as one: the second answers while the first is away, and the first has its place again when it is back."""

import trio
from trio.testing import MockClock

from goliath_actors import Agent, open_runtime
from goliath_actors.errors import ModelUnavailable
from goliath_actors.models import Fallbacks
from goliath_actors.testing import ScriptedModel

near = ScriptedModel([ModelUnavailable("away"), "The near one is back."], name="near")
far = ScriptedModel(["Far, but here.", "Still far."], name="far")
model = Fallbacks([near, far], probe_every=60)
agent = Agent(model=model)


async def main() -> None:
    async with open_runtime(agent) as runtime:
        for pause in (0, 30, 30):
            await trio.sleep(pause)
            result = await runtime.run("Where are you?")
            print(f"{model.name}: {result.text}")
    print("the near one was asked", len(near.requests), "times")


if __name__ == "__main__":
    trio.run(main, clock=MockClock(autojump_threshold=0))  # a clock that jumps, so that nobody waits

# Prints:
#   far: Far, but here.
#   far: Still far.
#   near: The near one is back.
#   the near one was asked 2 times
