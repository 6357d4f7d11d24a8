"""What happens to an ask when its conversation is busy: it waits, is refused, or takes the place."""

import trio

from goliath_actors import Agent, RunAborted, open_runtime
from goliath_actors.errors import ConversationBusy, MailboxFull
from goliath_actors.testing import Gate, ScriptedModel

gate = Gate()
agent = Agent(model=ScriptedModel([gate.then("never said"), "in its place", "after that"]))


async def main() -> None:
    async with open_runtime(agent, mailbox_capacity=1) as runtime:
        talk = runtime.conversation("ada")
        first = talk.submit("one")
        await gate.wait_reached()
        queued = talk.submit("two")  # when_busy="queue" is the default
        print("waiting:", talk.status().waiting)

        try:
            talk.submit("three")
        except MailboxFull as full:
            print("full:", full.scope, full.waiting, full.capacity)

        try:
            talk.submit("three", when_busy="refuse")
        except ConversationBusy as busy:
            print("busy:", busy.conversation_id)

        replacement = talk.submit("instead", when_busy="replace")  # taken although the mailbox is full
        try:
            await first.wait()
        except RunAborted as aborted:
            print("first:", aborted.cause, "|", aborted.reason)
        print("replacement:", (await replacement.wait()).text)
        print("queued:", (await queued.wait()).text)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   waiting: 1
#   full: conversation 1 1
#   busy: ada
#   first: requested | replaced by a newer ask
#   replacement: in its place
#   queued: after that
