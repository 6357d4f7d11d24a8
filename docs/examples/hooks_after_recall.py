"""`after_recall`: a view of memory for this run alone. What is stored stays."""

import attrs
import trio

from goliath_actors import Agent, Extension, Memory, open_runtime
from goliath_actors.hooks import AfterRecall, HookContext
from goliath_actors.testing import ScriptedModel


@attrs.frozen
class Screen:
    shared: bool  # somebody else is looking


class HideWhileShared(Extension[Screen]):
    name = "hide-while-shared"

    def after_recall(self, ctx: HookContext[Screen], question: AfterRecall) -> Memory | None:
        if ctx.context.shared:
            return Memory()  # nothing is remembered in front of others
        return None


model = ScriptedModel(["Noted.", "I do not know what you mean.", "Flowers for Grace."])
agent = Agent(model=model, extensions=[HideWhileShared()])


async def main() -> None:
    async with open_runtime(agent) as runtime:
        await runtime.run("The surprise is flowers for Grace.", context=Screen(shared=False))
        print((await runtime.run("What was the surprise?", context=Screen(shared=True))).text)
        print((await runtime.run("What was the surprise?", context=Screen(shared=False))).text)
        print([exchange.ask for exchange in (await runtime.conversation().memory()).recent])
    print(["flowers for Grace" in request.text for request in model.requests[1:]])


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   I do not know what you mean.
#   Flowers for Grace.
#   ['The surprise is flowers for Grace.', 'What was the surprise?', 'What was the surprise?']
#   [False, True]
