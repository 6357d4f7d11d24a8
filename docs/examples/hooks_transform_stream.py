"""`transform_stream`: rewrite a reply while it streams, or end it. What comes out is shown, kept and returned."""

from collections.abc import AsyncIterator

import attrs
import trio

from goliath_actors import Agent, Extension, open_runtime
from goliath_actors.abc import ModelEvent, ModelText
from goliath_actors.events import Answer, Retraction, TextDelta
from goliath_actors.hooks import HookContext, StreamControl
from goliath_actors.testing import ScriptedModel

SECRET = "swordfish"
# Pieces end anywhere, also inside a word. So much of the text's end may be the beginning of one, and is held back.
TAIL = len(SECRET) - 1


class Polite(Extension[None]):
    name = "polite"

    async def transform_stream(
        self, ctx: HookContext[None], events: AsyncIterator[ModelEvent], control: StreamControl
    ) -> AsyncIterator[ModelEvent]:
        held = ""
        async for event in events:
            if isinstance(event, ModelText):
                held = (held + event.text).replace("Hey", "Good morning")
                if SECRET in held:
                    await control.abort("a secret", replacement="I keep that to myself.")  # does not come back
                sure = max(0, len(held) - TAIL)
                event, held = attrs.evolve(event, text=held[:sure]), held[sure:]
            elif held:  # the text is over
                yield ModelText(held)
                held = ""
            yield event


model = ScriptedModel(["Hey! All is well.", "Hey! The word is swordfish."], chunk=4)
agent = Agent(model=model, extensions=[Polite()])


async def main() -> None:
    async with open_runtime(agent) as runtime:
        for ask in ("How are you?", "What is the word?"):
            async with runtime.stream(ask) as run:
                shown = ""
                async for event in run.events():
                    if isinstance(event, TextDelta):
                        shown += event.text
                    elif isinstance(event, Retraction):
                        print("withdrawn:", shown)
                        shown = event.text
                    elif isinstance(event, Answer):
                        print("answer:", event.text, "| shown:", shown)
                result = await run.wait()
            print(result.status, result.responded)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   answer: Good morning! All is well. | shown: Good morning! All is well.
#   completed None
#   withdrawn: Good morning! The word is
#   answer: I keep that to myself. | shown: I keep that to myself.
#   completed Responded(extension='polite', phase='transform_stream', reason='a secret', outcome='blocked')
