"""A store that fails. When saving fails the answer stands; when loading fails there is none, and the run fails."""

import trio

from goliath_actors import Agent, open_runtime
from goliath_actors.events import MemoryError as SavingFailed
from goliath_actors.stores import InMemoryStore
from goliath_actors.testing import FailingStore, ScriptedModel

agent = Agent(model=ScriptedModel(["Hello.", "never said"]))
store = FailingStore(InMemoryStore(), {"commit": OSError("disk full"), "load": [None, OSError("disk gone")]})


async def main() -> None:
    async with open_runtime(agent, store=store) as runtime:
        result = await runtime.run("Hi.")
        print(result.text, [event.error for event in result.trace if isinstance(event, SavingFailed)])
        try:
            await runtime.run("Hi again.")
        except OSError as error:  # the store's own error, as the same object
            print(error)
        print(runtime.statistics().errors)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   Hello. ['OSError: disk full']
#   disk gone
#   1
