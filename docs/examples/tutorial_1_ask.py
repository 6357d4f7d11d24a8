"""Step 1: an agent, a runtime, one ask."""

import trio

from goliath_actors import Agent, open_runtime
from goliath_actors.testing import ScriptedModel

# A scripted model plays a list of replies, so this program needs no network. Step 8 puts a real one in its place.
agent = Agent(
    name="assistant",
    model=ScriptedModel(["Hello Ada. What shall we do today?"]),
)


async def main() -> None:
    async with open_runtime(agent) as runtime:
        result = await runtime.run("Hello, I am Ada.", conversation_id="ada")
        print(result.status, result.handled_by)
        print(result.text)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   completed device
#   Hello Ada. What shall we do today?
