"""`before_fallback`: stop before the second brain is asked, or take out what it must not see."""

import re

import attrs
import trio

from goliath_actors import Agent, Extension, Stop, open_runtime
from goliath_actors.errors import ModelUnavailable
from goliath_actors.hooks import BeforeFallback, HookContext
from goliath_actors.testing import ScriptedModel
from goliath_actors.values import FallbackRequest


@attrs.frozen
class Consent:
    allow_cloud: bool


class StopBeforeCloud(Extension[Consent]):
    name = "stop-before-cloud"

    def before_fallback(self, ctx: HookContext[Consent], question: BeforeFallback) -> Stop | None:
        if not ctx.context.allow_cloud:
            return Stop("I cannot answer this here, and you do not want it to leave this device.", "cloud-disabled")
        return None


class Redact(Extension[Consent]):
    """Changes what is sent away. The local step log and memory keep what was really said."""

    name = "redact"

    def before_fallback(self, ctx: HookContext[Consent], question: BeforeFallback) -> FallbackRequest:
        request = question.request
        return attrs.evolve(request, ask=re.sub(r"\S+@\S+", "(address)", request.ask))


async def cloud(request: FallbackRequest) -> str:
    print("cloud was asked:", request.ask, "|", request.reason)
    return "Write a short letter."


model = ScriptedModel([ModelUnavailable("no memory left"), ModelUnavailable("no memory left")])
agent = Agent(model=model, extensions=[StopBeforeCloud(), Redact()], fallback=cloud)


async def main() -> None:
    async with open_runtime(agent) as runtime:
        ask = "What do I write to ada@example.org today?"
        for consent in (Consent(allow_cloud=False), Consent(allow_cloud=True)):
            result = await runtime.run(ask, context=consent)
            print(result.status, result.handled_by, "|", result.text)
        print((await runtime.conversation().memory()).recent[0].ask)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   stopped device | I cannot answer this here, and you do not want it to leave this device.
#   cloud was asked: What do I write to (address) today? | model-unavailable
#   completed cloud | Write a short letter.
#   What do I write to ada@example.org today?
