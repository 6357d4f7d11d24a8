"""What is hidden later: before the commit an extension adds to it, and afterwards an index hears of it."""

import trio

from goliath_actors import Agent, Extension, ToolLoop, open_runtime
from goliath_actors.hooks import AfterRewrite, BeforeRewrite, HookContext, MetadataPatch
from goliath_actors.testing import ScriptedModel


class Index(Extension[None]):
    """Keeps a search index of what people may read. It is told after the commit, beside the runs."""

    name = "index"

    def before_rewrite(self, ctx: HookContext[None], question: BeforeRewrite) -> MetadataPatch:
        return MetadataPatch(metadata={"edited": question.kind})

    async def after_rewrite(self, ctx: HookContext[None], question: AfterRewrite) -> None:
        await trio.lowlevel.checkpoint()  # a real one would call a service here
        print("index:", question.kind, list(question.changes.values()))


model = ScriptedModel(["Noted.", "I do not know it."])
agent = Agent(model=model, loop=ToolLoop(), extensions=[Index()])


async def main() -> None:
    async with open_runtime(agent) as runtime:
        talk = runtime.conversation("ada")
        await talk.run("My password is swordfish.")
        ask = (await talk.history()).entries[0]
        await talk.set_visibility({ask.id: (False, False)})  # out of the transcript, and out of the model's context
        await talk.run("What is my password?")
        print("the model read it:", "swordfish" in model.requests[-1].text)
        print(dict((await talk.thread.load()).metadata))


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   index: visibility [{'before': [True, True], 'after': [False, False]}]
#   the model read it: False
#   {'edited': 'visibility'}
