"""Token counters: the estimate, a vocabulary on disk if there is one, and a counter of your own."""

import attrs
import trio

from goliath_actors import Agent, open_runtime
from goliath_actors.errors import RanksUnavailable
from goliath_actors.events import Budget
from goliath_actors.testing import ScriptedModel
from goliath_actors.tokens import EstimateCounter, TiktokenCounter


@attrs.frozen
class HalfBytes:
    """Two bytes are a token: close to the truth for text that is not English."""

    name: str = "half-bytes"
    exact: bool = False

    def count(self, text: str) -> int:
        return -(-len(text.encode()) // 2)


async def main() -> None:
    print("estimate:", EstimateCounter().count("Hello, world."))
    try:
        TiktokenCounter.load("o200k_base", source="no/such/file")
    except RanksUnavailable as error:
        print(str(error).partition(";")[0])

    for counter in (None, HalfBytes(), len):
        agent = Agent(model=ScriptedModel(["Hello."]), token_counter=counter)
        async with open_runtime(agent) as runtime:
            result = await runtime.run("Hello?")
        budget = next(event for event in result.trace if isinstance(event, Budget))
        print(budget.label, budget.source, budget.counter, budget.tokens <= budget.limit)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   estimate: 4
#   the vocabulary o200k_base was not found on disk and is never downloaded
#   answer estimate estimate True
#   answer estimate half-bytes True
#   answer tokenizer len True
