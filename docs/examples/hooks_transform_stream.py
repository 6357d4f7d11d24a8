"""`transform_stream`: rewrite a reply while it streams, or end it. What comes out is shown, kept and returned."""

from collections.abc import AsyncIterator

import attrs
import trio

from goliath_actors import Agent, Extension, open_runtime
from goliath_actors.abc import ModelEvent, ModelText
from goliath_actors.events import Answer, Retraction, TextDelta
from goliath_actors.hooks import HookContext, StreamControl
from goliath_actors.testing import ScriptedModel


class Polite(Extension[None]):
    name = "polite"

    async def transform_stream(
        self, ctx: HookContext[None], events: AsyncIterator[ModelEvent], control: StreamControl
    ) -> AsyncIterator[ModelEvent]:
        said = ""
        async for event in events:
            if isinstance(event, ModelText):
                said += event.text
                if "swordfish" in said:  # pieces can end anywhere, so look at the whole
                    await control.abort("a secret", replacement="I keep that to myself.")  # does not come back
                event = attrs.evolve(event, text=event.text.replace("Hey", "Good morning"))
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
#   withdrawn: Good morning! The word is swordfi
#   answer: I keep that to myself. | shown: I keep that to myself.
#   completed Responded(extension='polite', phase='transform_stream', reason='a secret', outcome='blocked')
