"""Redact: a secret does not come through, however the reply is cut into pieces."""

import re

import trio

from goliath_actors import Agent, open_runtime
from goliath_actors.events import TextDelta
from goliath_actors.policies import Redact
from goliath_actors.testing import ScriptedModel

redact = Redact(re.compile(r"sk-[a-z0-9]{8}"), "swordfish")
model = ScriptedModel(["The key is sk-12ab34cd and the word is swordfish, skipper."], chunk=3)
agent = Agent(model=model, extensions=[redact])


async def main() -> None:
    async with open_runtime(agent) as runtime, runtime.stream("What do you know?") as run:
        shown = [event.text async for event in run.events() if isinstance(event, TextDelta)]
        result = await run.wait()
    print("".join(shown))
    print(result.text)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   The key is [redacted] and the word is [redacted], skipper.
#   The key is [redacted] and the word is [redacted], skipper.
