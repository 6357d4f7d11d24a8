"""`after_answer`: the last word on a text. What you return is saved, returned, and told in the event `Answer`.

Text that streamed is out by then: to hide something, use `transform_stream` as well.
"""

import attrs
import trio

from goliath_actors import Agent, Extension, open_runtime
from goliath_actors.hooks import AfterAnswer, HookContext
from goliath_actors.testing import ScriptedModel


@attrs.frozen
class Shop:
    imprint: str


class Suffix(Extension[Shop]):
    name = "suffix"

    def after_answer(self, ctx: HookContext[Shop], question: AfterAnswer) -> str:
        mark = "" if question.handled_by == "device" else " (from the cloud)"
        return f"{question.text}{mark} {ctx.context.imprint}"


agent = Agent(model=ScriptedModel(["We open at nine."]), extensions=[Suffix()])


async def main() -> None:
    async with open_runtime(agent) as runtime:
        result = await runtime.run("When do you open?", context=Shop("Corner Books, Berlin."))
        print(result.text)
        print((await runtime.conversation().memory()).recent[0].answer == result.text)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   We open at nine. Corner Books, Berlin.
#   True
