"""`after_step` and `before_append`: send an answer back for another round, and keep a number out of the history."""

import attrs
import trio

from goliath_actors import Agent, Extension, ToolLoop, open_runtime
from goliath_actors.hooks import AfterStep, BeforeAppend, Continue, HookContext
from goliath_actors.testing import ScriptedModel
from goliath_actors.values import Message


class Shorter(Extension[None]):
    name = "shorter"

    def after_step(self, ctx: HookContext[None], question: AfterStep) -> Continue | None:
        if question.is_final and len(question.step.text) > 40:
            return Continue("Shorter, please.")
        return None


class NoNumbers(Extension[None]):
    name = "no-numbers"

    def before_append(self, ctx: HookContext[None], question: BeforeAppend) -> Message:
        message = question.message
        return attrs.evolve(message, text=message.text.replace("4711", "****"))


model = ScriptedModel(["That is a very long story, and it begins with the number 4711.", "It is 4711."])
agent = Agent(model=model, extensions=[Shorter(), NoNumbers()], loop=ToolLoop())


async def main() -> None:
    async with open_runtime(agent) as runtime:
        result = await runtime.run("What was it, 4711?")
        print(result.text)
        for entry in (await runtime.conversation().history()).entries:
            print(entry.role, "|", entry.message.text)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   It is ****.
#   user | What was it, ****?
#   assistant | That is a very long story, and it begins with the number ****.
#   user | Shorter, please.
#   assistant | It is ****.
