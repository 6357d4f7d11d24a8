"""Context variables of the submitter are seen by hooks and tools of its run, and by no other run."""

from contextvars import ContextVar
from typing import Any

import trio

from goliath_actors import Agent, open_runtime, tool
from goliath_actors.testing import ScriptedModel

request_id: ContextVar[str] = ContextVar("request_id", default="none")


@tool
async def trace() -> str:
    """Say which request this is."""
    return request_id.get()


def play() -> list[Any]:
    return [{"kind": "tool", "tool": "trace", "brief": "trace"}, {"kind": "answer", "brief": "say it"}, "Traced."]


agent = Agent(model=ScriptedModel([*play(), *play()]), tools=[trace])


async def main() -> None:
    async with open_runtime(agent) as runtime:
        runs = []
        for name in ("request-1", "request-2"):
            request_id.set(name)
            runs.append(runtime.submit("trace", conversation_id="shared"))
        request_id.set("something else")
        for run in runs:
            print((await run.wait()).steps[0].result)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   request-1
#   request-2
