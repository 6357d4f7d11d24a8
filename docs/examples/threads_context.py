"""A context strategy of one's own: a window over the history, with a cursor in the private data of the conversation."""

from collections.abc import Awaitable, Callable, Sequence

import trio

from goliath_actors import Agent, Extension, Message, ToolLoop, open_runtime
from goliath_actors.hooks import HookContext, ResolveContext
from goliath_actors.testing import ScriptedModel


class Window(Extension[None]):
    """Shows the model the last few entries; how far it had read is kept for the next run."""

    name = "window"

    async def resolve_context(
        self,
        ctx: HookContext[None],
        question: ResolveContext,
        call_next: Callable[..., Awaitable[Sequence[Message]]],
    ) -> Sequence[Message]:
        thread = question.thread
        assert thread is not None
        page = await thread.history(limit=3)  # reads three entries, however long the conversation is
        await thread.mutate(lambda tx: tx.merge_private({"window": thread.anchor}))
        # The layers inside, a redactor for instance, still see what is passed on.
        return await call_next([entry.message for entry in page.entries])


model = ScriptedModel(["one", "two", "three"])
agent = Agent(model=model, loop=ToolLoop(), extensions=[Window()], instructions="")


async def main() -> None:
    async with open_runtime(agent) as runtime:
        for ask in ("first", "second", "third"):
            await runtime.run(ask)
        print([message.text for message in model.requests[-1].messages])
        print(dict((await runtime.conversation().thread.load()).private))


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   ['second', 'two', 'third']
#   {'window': 5}
