"""A runtime in a program that has a nursery: started like any other service, and drained before it goes."""

import trio

from goliath_actors import Agent, Runtime, serve_runtime
from goliath_actors.errors import RuntimeClosed
from goliath_actors.testing import ScriptedModel

agent = Agent(name="assistant", model=ScriptedModel(["Good morning.", "Good evening."]))


async def caller(runtime: Runtime, ask: str, conversation_id: str) -> None:
    result = await runtime.run(ask, conversation_id=conversation_id)
    print(conversation_id, result.text)


async def main() -> None:
    async with trio.open_nursery() as nursery:
        runtime: Runtime = await nursery.start(serve_runtime, agent)
        await caller(runtime, "Morning!", "ada")
        await caller(runtime, "Evening!", "bob")

        report = await runtime.drain(grace=5)  # refuses new asks; serve_runtime returns when it is done
        print(report)
        try:
            runtime.submit("Too late?")
        except RuntimeClosed as closed:
            print(closed)
    print("the nursery is free")


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   ada Good morning.
#   bob Good evening.
#   DrainReport(finished=0, aborted=0)
#   the runtime is closed and accepts no new asks; open another one
#   the nursery is free
