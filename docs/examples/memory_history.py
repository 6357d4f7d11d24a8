"""The transcript: every ask and answer, page by page, whatever the model is still shown of it."""

import trio

from goliath_actors import Agent, open_runtime
from goliath_actors.testing import ScriptedModel

agent = Agent(model=ScriptedModel(["one", "two", "three"]))


async def main() -> None:
    async with open_runtime(agent) as runtime:
        talk = runtime.conversation("ada")
        for ask in ("first", "second", "third"):
            await talk.run(ask)

        page = await talk.history(limit=4)  # the newest four entries, oldest first
        print([(entry.role, entry.message.text) for entry in page.entries])

        # Older pages: `next` goes on from there, and the anchor keeps what comes in meanwhile out of sight.
        older = await talk.history(before=page.next, anchor=page.anchor)
        print([(entry.role, entry.message.text) for entry in older.entries], older.next)

        await talk.set_visibility({page.entries[0].id: (False, False)})
        shown = [e.message.text for e in (await talk.history()).entries if e.transcript_visible]
        print(shown)

        await talk.forget()
        print(len((await talk.history()).entries), (await talk.memory()).recent)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   [('user', 'second'), ('assistant', 'two'), ('user', 'third'), ('assistant', 'three')]
#   [('user', 'first'), ('assistant', 'one')] None
#   ['first', 'one', 'two', 'third', 'three']
#   0 ()
