"""How a tool fails: in its own words, in ours, or by taking too long. None of it fails the run."""

import trio
from trio.testing import MockClock

from goliath_actors import Agent, ToolFailure, approve_all, open_runtime, tool
from goliath_actors.testing import ScriptedModel

lines = ["busy", "free"]


@tool
async def call(name: str) -> str:
    """Call somebody."""
    if lines.pop(0) == "busy":
        # The model reads this word for word; `retryable` lets it try the same call once more.
        raise ToolFailure(f"The line of {name} is busy. Try once more.", retryable=True)
    return f"spoke with {name}"


@tool(writes=True, timeout=30)
async def send(text: str) -> str:
    """Send a message."""
    await trio.sleep(3600)
    return "sent"


model = ScriptedModel(
    [
        {"kind": "tool", "tool": "call", "brief": "call Grace"},
        {"name": "Grace"},
        {"kind": "tool", "tool": "call", "brief": "call Grace again"},
        {"name": "Grace"},
        {"kind": "tool", "tool": "send", "brief": "send it in writing, too"},
        {"text": "See you on Friday"},
        {"kind": "answer", "brief": "say what happened"},
        "I spoke with Grace; I do not know whether my message arrived.",
    ]
)
agent = Agent(model=model, tools=[call, send], confirm=approve_all)


async def main() -> None:
    async with open_runtime(agent) as runtime:
        result = await runtime.run("Tell Grace about Friday.")
        for step in result.steps[:3]:
            print(step.status, "|", step.result)
        print(result.text)


if __name__ == "__main__":
    trio.run(main, clock=MockClock(autojump_threshold=0))  # a clock that jumps, so that nobody waits

# Prints:
#   failed | The line of Grace is busy. Try once more.
#   executed | spoke with Grace
#   unknown | send did not finish within 30 s. It may have taken effect: look before doing it again.
#   I spoke with Grace; I do not know whether my message arrived.
