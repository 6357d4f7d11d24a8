"""What a planned conversation remembers: three exchanges, and a summary of what went before them."""

import trio

from goliath_actors import Agent, open_runtime
from goliath_actors.testing import ScriptedModel

model = ScriptedModel(
    [
        "Noted: Grace, Friday.",
        "Noted: seven guests.",
        "Noted: no nuts.",
        "Noted: at eight.",
        # The fourth exchange pushes the first one out: the model is asked, as a scribe, to fold it into the summary.
        "Goal: a party for Grace on Friday.",
        "On Friday at eight.",
        "Goal: a party for Grace on Friday, seven guests.",
    ]
)
agent = Agent(model=model)


async def main() -> None:
    async with open_runtime(agent) as runtime:
        talk = runtime.conversation("ada")
        for ask in ("A party for Grace on Friday.", "Seven guests.", "No nuts.", "At eight."):
            await talk.run(ask)
        memory = await talk.memory()
        print(memory.summary)
        print([exchange.ask for exchange in memory.recent])

        print((await talk.run("When is the party?")).text)
        print((await talk.memory()).summary)
    print([request.role for request in model.requests])
    print("Goal: a party for Grace" in model.requests[5].text)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   Goal: a party for Grace on Friday.
#   ['Seven guests.', 'No nuts.', 'At eight.']
#   On Friday at eight.
#   Goal: a party for Grace on Friday, seven guests.
#   ['answer', 'answer', 'answer', 'answer', 'scribe', 'answer', 'scribe']
#   True
