"""`before_remember`: decide what is kept. `Skip` keeps nothing of this exchange; a `Memory` is kept instead."""

import attrs
import trio

from goliath_actors import Agent, Extension, Memory, Skip, open_runtime
from goliath_actors.hooks import BeforeRemember, HookContext
from goliath_actors.testing import ScriptedModel


class OffTheRecord(Extension[None]):
    name = "off-the-record"

    def before_remember(self, ctx: HookContext[None], question: BeforeRemember) -> Skip | None:
        return Skip() if "off the record" in ctx.ask.lower() else None


class ShortAnswers(Extension[None]):
    """Keeps the first sentence of each new answer."""

    name = "short-answers"

    def before_remember(self, ctx: HookContext[None], question: BeforeRemember) -> Memory:
        *earlier, newest = question.memory.recent
        first = newest.answer.partition(". ")[0].rstrip(".") + "."
        return attrs.evolve(question.memory, recent=(*earlier, attrs.evolve(newest, answer=first)))


agent = Agent(
    model=ScriptedModel(["Good idea. I would bake it on Friday.", "My lips are sealed."]),
    extensions=[OffTheRecord(), ShortAnswers()],
)


async def main() -> None:
    async with open_runtime(agent) as runtime:
        print((await runtime.run("Shall I bake a cake?")).text)
        print((await runtime.run("Off the record: it is for Grace.")).text)
        for exchange in (await runtime.conversation().memory()).recent:
            print("kept:", exchange.ask, "->", exchange.answer)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   Good idea. I would bake it on Friday.
#   My lips are sealed.
#   kept: Shall I bake a cake? -> Good idea.
