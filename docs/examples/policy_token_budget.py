"""Token budget: a conversation may use so many tokens in an hour; a call that does not fit is not made."""

import trio

from goliath_actors import Agent, open_runtime
from goliath_actors.policies import TokenBudget
from goliath_actors.testing import ScriptedModel
from goliath_actors.values import Usage

budget = TokenBudget(1000, scope="conversation", seconds=3600)
model = ScriptedModel(["One.", "Two."], usage=Usage(input_tokens=350, output_tokens=10))
agent = Agent(model=model, extensions=[budget])


async def main() -> None:
    async with open_runtime(agent) as runtime:
        for ask in ("first", "second", "third"):
            result = await runtime.run(ask, conversation_id="u1")
            print(result.status, "|", result.text, "|", result.usage.input_tokens + result.usage.output_tokens)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   completed | One. | 360
#   completed | Two. | 360
#   stopped | The token budget is used up. Please try again later. | 0
