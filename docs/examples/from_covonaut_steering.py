"""From covonaut: a text for a run that is going on, one for after it, and an abort."""

from __future__ import annotations

import trio

from goliath_actors import Agent, RunAborted, ToolLoop, open_runtime, tool
from goliath_actors.testing import Gate, ScriptedModel, tool_calls

gate = Gate()


@tool
async def dig() -> str:
    """Dig."""
    await gate.pass_through()
    return "a hole"


model = ScriptedModel([tool_calls(("dig", {})), "It is round, as you wanted.", "You are welcome.", gate.then("never")])
agent = Agent(model=model, tools=[dig], loop=ToolLoop())


async def main() -> None:
    async with open_runtime(agent) as runtime:
        garden = runtime.conversation("garden")
        run = garden.submit("Dig a hole.")
        await gate.wait_reached()
        garden.steer("Make it round.")  # reaches this run before its next model call
        after = garden.submit("Thank you!")  # waits for its turn
        gate.open()
        print((await run.wait()).text, "|", (await after.wait()).text)
        print([message.role for message in model.requests[1].messages], model.requests[1].messages[-1].text)

        gate.arm()
        run = garden.submit("Once more.")
        await gate.wait_reached()
        run.abort("it rains")
        try:
            await run.wait()
        except RunAborted as aborted:
            print(aborted)


if __name__ == "__main__":
    trio.run(main)

# Prints:
#   It is round, as you wanted. | You are welcome.
#   ['system', 'user', 'assistant', 'tool', 'user'] Make it round.
#   the run was aborted (requested) in step: it rains
