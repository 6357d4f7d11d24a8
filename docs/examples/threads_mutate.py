"""An application changes a conversation beside its runs: several changes in one commit, or none of them."""

import trio

from goliath_actors import Agent, ToolLoop, open_runtime
from goliath_actors.errors import StoreConflict
from goliath_actors.testing import ScriptedModel
from goliath_actors.threads import RewritingMutation

model = ScriptedModel(["Plant it in autumn.", "Oaks, then."])
agent = Agent(model=model, loop=ToolLoop())


async def main() -> None:
    async with open_runtime(agent) as runtime:
        talk = runtime.conversation("ada")
        await talk.run("When do I plant a tree?")

        def note(tx: RewritingMutation) -> None:
            tx.merge_metadata({"title": "Trees"})
            tx.merge_private({"profile": 7})
            tx.append("Ada likes oaks.", transcript=False)  # the model reads it, people do not

        record = await talk.thread.mutate(note, expect_version=(await talk.thread.load()).version)
        print(dict(record.metadata), "| entries:", record.entries_count)
        try:
            await talk.thread.mutate(lambda tx: tx.merge_private({"profile": 8}), expect_private={"profile": 6})
        except StoreConflict as error:
            print(error)
        await talk.run("Which one?")
        print("the model read it:", "Ada likes oaks." in model.requests[-1].text)
        page = await talk.history(limit=50)
        print([entry.message.text for entry in page.entries if entry.transcript_visible])


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   {'title': 'Trees'} | entries: 3
#   the private data of 'agent/ada' has changed; load it again and decide anew
#   the model read it: True
#   ['When do I plant a tree?', 'Plant it in autumn.', 'Which one?', 'Oaks, then.']
