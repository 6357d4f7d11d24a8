"""Step 4: a store on disk. The second runtime knows what was said in the first."""

import tempfile
from pathlib import Path

import trio

from goliath_actors import Agent, open_runtime
from goliath_actors.stores import SqliteStore
from goliath_actors.testing import ScriptedModel

model = ScriptedModel(["Nice to meet you, Ada.", "Your name is Ada."])
agent = Agent(name="assistant", model=model)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chat.sqlite"

        async with open_runtime(agent, store=SqliteStore(path)) as runtime:
            await runtime.run("I am Ada.", conversation_id="ada")

        # A new runtime, as after a restart of the program: the file is all that is left.
        async with open_runtime(agent, store=SqliteStore(path)) as runtime:
            result = await runtime.run("Who am I?", conversation_id="ada")
            print(result.text)
            memory = await runtime.conversation("ada").memory()
            for exchange in memory.recent:
                print(exchange.ask, "->", exchange.answer)
            other = await runtime.conversation("bob").memory()
            print("bob:", len(other.recent))

    print("I am Ada." in model.requests[1].text)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   Your name is Ada.
#   I am Ada. -> Nice to meet you, Ada.
#   Who am I? -> Your name is Ada.
#   bob: 0
#   True
