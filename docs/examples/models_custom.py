"""A model of your own: a name, and a way to open one generation."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
import trio.lowlevel

from goliath_actors import Agent, open_runtime
from goliath_actors.abc import ModelDone, ModelEvent, ModelRequest, ModelText, ModelUsage
from goliath_actors.errors import ModelUnavailable
from goliath_actors.values import Usage


class Parrot:
    """Repeats what it is asked, and is out of reach the first time."""

    name = "parrot"
    retries = 1  # optional: how often a failed attempt may be repeated, if its error is retryable
    calls = 0

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        self.calls += 1
        if self.calls == 1:
            raise ModelUnavailable("asleep", retry_after=0.01)
        try:
            yield self._reply(request)
        finally:
            pass  # close connections here: this block ends also when the run is aborted

    async def _reply(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        await trio.lowlevel.checkpoint()
        said = request.messages[-1].text.rpartition("Request: ")[2]
        yield ModelText(f"You said: {said}")
        yield ModelUsage(Usage(input_tokens=20, output_tokens=5))
        yield ModelDone("stop")


model = Parrot()
agent = Agent(model=model)


async def main() -> None:
    async with open_runtime(agent) as runtime:
        result = await runtime.run("good morning")
        print(result.text)
        print(result.usage.input_tokens, result.usage.output_tokens, result.usage.estimated, model.calls)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   You said: good morning
#   20 5 False 2
