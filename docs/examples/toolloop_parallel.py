"""`ToolLoop`: the model calls tools natively, several at a time, and goes on with their results."""

import trio

from goliath_actors import Agent, ToolLoop, open_runtime, tool
from goliath_actors.stores import InMemoryStore
from goliath_actors.testing import ScriptedModel, tool_calls


@tool
async def weather(city: str) -> str:
    """Look up today's weather."""
    await trio.lowlevel.checkpoint()
    return f"{city}: sunny"


model = ScriptedModel(
    [
        tool_calls(("weather", {"city": "Oslo"}), ("weather", {"town": "Bern"}), text="I look."),
        "Sunny in Oslo. I could not find out about Bern.",
    ]
)
agent = Agent(model=model, tools=[weather], loop=ToolLoop(window=32_000, max_parallel_tools=4))


async def main() -> None:
    async with open_runtime(agent, store=InMemoryStore()) as runtime:
        result = await runtime.run("Oslo or Bern?", conversation_id="u1")
        print(result.text)
        page = await runtime.conversation("u1").history()
        for entry in page.entries:
            print(entry.role, "|", entry.message.text)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   Sunny in Oslo. I could not find out about Bern.
#   user | Oslo or Bern?
#   assistant | I look.
#   tool | Oslo: sunny
#   tool | Not executed: arguments of 'weather' are not valid: town: no such argument; there are city; \
#   city: required, but missing
#   assistant | Sunny in Oslo. I could not find out about Bern.
