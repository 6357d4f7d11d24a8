"""From effective-harness: before a range is summarised, an extension may decline, or give the summary itself."""

from __future__ import annotations

from typing import Any

import trio

from goliath_actors import Agent, Compaction, Extension, ToolLoop, open_runtime
from goliath_actors.hooks import BeforeCompact, Decline, HookContext
from goliath_actors.testing import ScriptedModel


class Notes(Extension[Any]):
    name = "notes"

    def before_compact(self, ctx: HookContext[Any], question: BeforeCompact) -> Decline | str | None:
        print(f"{len(question.messages)} messages, because of {question.reason}")
        if ctx.context == "keep everything":
            return Decline()
        return f"The user told {sum(m.role == 'user' for m in question.messages)} stories."


story = "Once upon a time there was a very long story. " * 30
model = ScriptedModel(["Nice.", "Lovely.", "Great.", "Fine.", "Three or four."])
agent = Agent(
    model=model, extensions=[Notes()], loop=ToolLoop(window=2_000, compaction=Compaction(at=0.5, keep_turns=1))
)


async def main() -> None:
    async with open_runtime(agent) as runtime:
        for context in ("", "", "keep everything", ""):
            await runtime.run(story, context=context)
        sent = model.requests[-1].messages
        print([message.role for message in sent], "|", sent[1].text.partition("Once")[0].splitlines())
        history = (await runtime.conversation().history()).entries
        print([(entry.role, entry.transcript_visible, entry.context_visible) for entry in history])


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   4 messages, because of threshold
#   6 messages, because of threshold
#   ['system', 'user'] | ['Summary of the conversation so far:', 'The user told 3 stories.', '']
#   [('user', True, False), ('assistant', True, False), ('user', True, False), ('assistant', True, False), \
#     ('user', True, False), ('assistant', True, False), ('user', True, True), ('summary', True, True), \
#     ('assistant', True, True)]
