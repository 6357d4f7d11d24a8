"""A second brain for what the first one cannot do, and how a conversation stops asking a device that keeps failing."""

from typing import Any

import trio
from trio.testing import MockClock

from goliath_actors import Agent, Conductor, SessionFallback, open_runtime
from goliath_actors.errors import ModelUnavailable
from goliath_actors.testing import ScriptedModel
from goliath_actors.values import FallbackRequest


async def cloud(request: FallbackRequest, ctx: Any) -> str:
    """Answer in the cloud. The second parameter is optional: run_id, conversation_id and context."""
    return f"The cloud answers {request.ask!r} for {ctx.conversation_id}."


model = ScriptedModel([ModelUnavailable("away"), ModelUnavailable("away"), "I am back.", "Goal: to get an answer."])
agent = Agent(
    model=model,
    fallback=cloud,
    loop=Conductor(session_fallback=SessionFallback(after=2, probe_every=300)),
)


async def main() -> None:
    async with open_runtime(agent) as runtime:
        talk = runtime.conversation("ada")
        for ask in ("one", "two", "three"):
            result = await talk.run(ask)
            print(result.handled_by, result.reason, "|", result.text)
        print("asked the device:", len(model.requests))

        await trio.sleep(300)  # after `probe_every` one run is let through to the device again
        result = await talk.run("four")
        print(result.handled_by, result.reason, "|", result.text)


if __name__ == "__main__":
    trio.run(main, clock=MockClock(autojump_threshold=0))  # a clock that jumps, so that nobody waits

# Prints:
#   cloud model-unavailable | The cloud answers 'one' for ada.
#   cloud model-unavailable | The cloud answers 'two' for ada.
#   cloud model-error | The cloud answers 'three' for ada.
#   asked the device: 2
#   device None | I am back.
