"""Bounds for a whole program: how many runs at once, how many asks may wait, and a door of one's own in front."""

import trio

from goliath_actors import Agent, Runtime, open_runtime
from goliath_actors.errors import MailboxFull
from goliath_actors.testing import Gate, ScriptedModel

gate = Gate()


async def main() -> None:
    agent = Agent(model=ScriptedModel([gate.then("done")] * 5))
    async with open_runtime(agent, max_running=2, max_waiting=3) as runtime:
        for number in range(2):
            runtime.submit("work", conversation_id=f"c{number}")
        while gate.reached < 2:
            await gate.wait_reached()
        for number in range(2, 5):
            runtime.submit("work", conversation_id=f"c{number}")
        counts = runtime.statistics()
        print("running:", counts.running, "waiting:", counts.waiting)
        try:
            runtime.submit("work", conversation_id="c5")
        except MailboxFull as full:
            print(full)
        gate.open()
    print("completed:", runtime.statistics().completed)

    # Who would rather wait than be refused brings a limiter: the queue is then in the caller's hands.
    agent = Agent(model=ScriptedModel(["done"] * 10))
    async with open_runtime(agent, max_running=2, max_waiting=0) as runtime, trio.open_nursery() as nursery:
        limiter = trio.CapacityLimiter(2)
        for number in range(10):
            nursery.start_soon(patient, runtime, limiter, f"d{number}")
    print("completed:", runtime.statistics().completed)


async def patient(runtime: Runtime, limiter: trio.CapacityLimiter, conversation_id: str) -> None:
    async with limiter:
        await runtime.run("work", conversation_id=conversation_id)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   running: 2 waiting: 3
#   the runtime already has 3 of 3 asks waiting (max_waiting); try again later or wait on a limiter of your own \
#       before submitting
#   completed: 5
#   completed: 10
